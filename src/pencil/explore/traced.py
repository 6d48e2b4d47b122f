"""Traces of runs whose page has the views of the explorer: the file that Share writes, of the trace's own input."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from ..api.trace import prepare_trace, trace_loaded
from ..api.trace import trace as trace_any
from ..data.images.decoding import FITTED
from ..families import family
from ..families.explore_inputs import data_address
from ..families.predictions import input_transform, read_pictures
from ..runs.run import Loaded
from ..tracing.live_trace import LiveTrace
from .export import export_page
from .requests import Shown
from .session import Session


@wraps(trace_any)
def trace(what: Any, *inputs: Any, **given: Any) -> LiveTrace:
    if not isinstance(what, str | Path | Loaded):
        return trace_any(what, *inputs, **given)
    loaded, options, double = prepare_trace(what, inputs, given)
    found = trace_loaded(loaded, options, double)
    return found if double else shareable(found, loaded, options)


def shareable(trace: LiveTrace, loaded: Loaded, options: Any) -> LiveTrace:
    """The trace of a run, with the way to its page; of a family that the explorer does not open, with the reason."""
    kind = family(loaded.run.family)
    if kind.explore is None:
        trace.alone = f"a {kind.name} cannot be explored"
        return trace

    def page(edits: Sequence[str], title: str, cell: str, progress: Callable[[float], object]) -> str:
        session = Session(loaded)
        shown = Shown("numbers" if cell else "answer", cell, title=title)

        def on_event(name: str, content: dict[str, Any]) -> None:
            if name == "progress" and content["total"]:
                progress(content["done"] / content["total"])

        state = {"input": read_input(session, options), "edits": list(edits)}
        return export_page(session, state, shown, on_event)

    trace.shared = page
    return trace


def read_input(session: Session, options: Any) -> dict[str, Any]:
    """What a trace reads, as the page sends it."""
    first, texts = getattr(options, "given", None), dict[str, str]()
    if "picture" in session.takes:
        (picture,) = read_pictures([str(first)], input_transform(session.loaded))
        texts["picture"] = FITTED + data_address(picture).partition(",")[2]
    elif first is not None:
        texts["source" if "source" in session.takes else "text"] = first
    for name, word in (("text", "text"), ("label", "label"), ("prompt", "text")):
        if getattr(options, name, None) is not None:
            texts[word] = getattr(options, name)
    return {**texts, "options": _read_settings(session, options)}


def _read_settings(session: Session, options: Any) -> dict[str, float]:
    """The settings that the options of a trace have; those left out are as the trace has them."""
    controls = {one.name: one for one in session.controls}
    given = {name: getattr(options, name, None) for name in controls}
    settings = {name: value for name, value in given.items() if value is not None}
    if session.profile.draws:
        settings.setdefault("step", (int(settings.get("steps", controls["steps"].value)) + 1) // 2)
        if "guidance" in controls:
            settings.setdefault("guidance", 1.0)
    return settings
