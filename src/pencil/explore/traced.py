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
from ..families.trace_labels import read_image
from ..runs.run import Loaded
from ..tracing.live_trace import LiveTrace
from .export import Shown
from .session import Subject


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
        subject = Subject(loaded)
        shown = Shown("numbers" if cell else "answer", cell, title=title)

        def on_event(name: str, content: dict[str, Any]) -> None:
            if name == "progress" and content["total"]:
                progress(content["done"] / content["total"])

        return subject.export({"input": given(subject, options), "edits": list(edits)}, shown, on_event)

    trace.shared = page
    return trace


def given(subject: Subject, options: Any) -> dict[str, Any]:
    """What a trace reads, as the page sends it."""
    first, found = getattr(options, "given", None), dict[str, Any]()
    if "picture" in subject.takes:
        found["picture"] = FITTED + data_address(read_image(subject.loaded, str(first))).partition(",")[2]
    elif first is not None:
        found["source" if "source" in subject.takes else "text"] = first
    for name, word in (("text", "text"), ("label", "label"), ("prompt", "text")):
        if getattr(options, name, None) is not None:
            found[word] = getattr(options, name)
    return {**found, "options": _settings(subject, options)}


def _settings(subject: Subject, options: Any) -> dict[str, float]:
    """The settings that the options of a trace have; those left out are as the trace has them."""
    known = {one.name: one for one in subject.controls}
    chosen = {name: getattr(options, name, None) for name in known}
    found = {name: value for name, value in chosen.items() if value is not None}
    if subject.profile.draws:
        found.setdefault("step", (int(found.get("steps", known["steps"].value)) + 1) // 2)
        if "guidance" in known:
            found.setdefault("guidance", 1.0)
    return found
