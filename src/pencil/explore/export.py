"""What is on the page as one file: the views prepared, and of the trace the values that fit."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

from ..api.trace import prepare_trace, trace_loaded
from ..api.trace import trace as trace_any
from ..config import UserError
from ..data.images.decoding import FITTED
from ..families import family
from ..families.explore_profile import data_address
from ..families.predictions import input_transform, read_pictures
from ..runs.run import Loaded
from ..tracing import html as html_file
from ..tracing.contributions import Contributions, Part
from ..tracing.graph import Array, Graph, refs, tables
from ..tracing.live_trace import LiveTrace
from ..tracing.trace_base import TraceBase
from .answers import NOBODY, Listener, one_thread
from .attention_views import attention
from .cells import contribution_table, find_contributions
from .outline import lenses, module_map, outline, residual_edges
from .outline import tensors as all_tensors
from .picture import picture, picture_of
from .requests import Shown, State
from .session import Session
from .tour import tour

MOST_FILE_BYTES = 5_000_000
MOST_VIEW_BYTES = 2_400_000  # for views, before they are packed: answers, the picture, attention and contributions
MOST_PICTURE_BYTES = 1_000_000  # of these for the picture of single numbers
PACKED_LETTERS_PER_BYTE = 1.27  # in the file, for each byte of an array, after gzip and base64
MOST_NUMBERS = 12  # output numbers whose contributions are in the file, and parts of each that are divided
MOST_WAYS = 3  # largest tokens or patches of a head that lead on to the input
MOST_DIVIDED = 48  # parts that are divided further, besides these
LEFT_OUT: tuple[str, ...] = (
    "Live input, edits and training steps: open the model with pencil explore to change something.",
    "Katas: their answers are graded by the server.",
    "The documents, and comparisons with another model or input.",
)


class Lean(Graph):
    """A graph with the values of some nodes alone; how the others were computed is left out too."""

    def __init__(self, graph: Graph, included: set[int]):
        super().__init__((), graph.names)
        self.tables, self.whole, self.included = graph.tables, graph, included
        self.nodes = [n if i in included else replace(n, plan=None) for i, n in enumerate(graph.nodes)]

    def has(self, node: int) -> bool:
        return node in self.included

    def stored(self, node: int) -> Array:
        return self.whole.stored(node)


def export_page(
    session: Session, raw: State | Mapping[str, Any], shown: Shown | str = "", listener: Listener = NOBODY
) -> str:
    """What is on the page as one file that needs no server; `shown` is what it opens on: a view, or more."""
    with one_thread(session.live):
        return _page(session, session.state(raw), Shown(shown) if isinstance(shown, str) else shown, listener)


def _page(session: Session, state: State, shown: Shown, listener: Listener) -> str:
    """The page of a state, of at most so many bytes."""
    trace = session.record(state)
    start = outline(session, state.key)["start"]
    views, left_out = _views(session, state, start, shown, listener)
    listener.step(1, 1, "writing the file")
    named, pieces = sum(n.named for n in trace.graph.nodes), dict[bytes, bytes]()
    of_tour = [step["address"]["cell"] for step in views["tour"]["steps"]]
    first = [start, *(cell for cell in (shown.cell, *of_tour) if _is_cell(trace, cell))]

    def page(included: set[int], lacking: Sequence[str]) -> str:
        absent = f"The values of {len(lacking)} of {named} tensors, which would make the file too large."
        return html_file.page(
            TraceBase(Lean(trace.graph, included), trace.labels, trace.facts),
            shown.title or f"{session.name}: {_name_input(session, state)}",
            start=start,
            views={
                **views,
                "view": shown.view,
                "shown": shown.as_json(),
                "left_out": [*left_out, *([absent] if lacking else [])],
            },
            pieces=pieces,
        )

    array_bytes = (MOST_FILE_BYTES - len(page(set(), ()).encode())) / PACKED_LETTERS_PER_BYTE
    while True:
        html = page(*_fitting_nodes(trace, first, array_bytes))
        if len(html.encode()) <= MOST_FILE_BYTES or array_bytes < 1000:
            return html
        array_bytes *= 0.8


def slides_page(session: Session, raw: State | Mapping[str, Any], listener: Listener = NOBODY) -> str:
    """The tour of a model as slides: the same file, which opens on the first step and is shown as a lecture."""
    state = session.state(raw)
    session.record(state)
    steps = tour(session, state.key)["steps"]
    if not steps:
        raise UserError(f"{session.name} has no part that the tour tells of, so there are no slides of it")
    place = steps[0]["address"]
    divided = next((step["address"]["more"]["why"] for step in steps if "why" in step["address"]["more"]), "")
    more = {**place["more"], "tour": "1", "present": "yes", **({"why": divided} if divided else {})}
    title = f"{session.name}: a tour in {len(steps)} steps"
    return export_page(session, state, Shown(place["view"] or "look", place["cell"], more, title=title), listener)


def _is_cell(trace: LiveTrace, cell: str) -> bool:
    """Whether a trace has a cell that the page names."""
    try:
        return bool(cell) and bool(trace.locate(cell)[0])
    except UserError:
        return False


def _name_input(session: Session, state: State) -> str:
    """What the model was given, in a few words."""
    texts = [state.input[name] for name in ("source", "text", "label") if state.input.get(name)]
    return texts[0] if texts else "a picture" if "picture" in state.input else session.kind.summary


def _views(
    session: Session, state: State, start: str, shown: Shown, listener: Listener
) -> tuple[dict[str, Any], list[str]]:
    """The views that need the model, as the page asks for them; and sentences on what would be too large."""
    about, answer, left_out = session.about(), session.answer(state), list(LEFT_OUT)
    input = answer["state"]["input"]  # a file has the one input that it was made from
    examples = [{"name": "the input of this file", "input": input}]
    trace = session.trace(state.key)
    views: dict[str, Any] = {
        "model": {**about, "path": session.path_elsewhere, "example": input, "examples": examples},
        "answer": answer,
        "outline": {
            "map": module_map(trace.traced_model.model, all_tensors(trace), lenses(trace)),
            "edges": residual_edges(trace.traced_model.model),
        },
        "attention": attention(session, state.key),
        "tour": tour(session, state.key),
        "contributions": {},
    }
    cells = [bar["cell"] for bar in answer.get("tokens") or answer.get("classes") or ()] or [start]
    views["picture"], views["picture_of"] = _pictures(session, state.key, cells, listener)
    if len(views["picture_of"]) < len(cells):
        left_out.append(
            f"The picture of {len(cells) - len(views['picture_of'])} of {len(cells)} numbers of the answer."
        )
    bytes_left = MOST_VIEW_BYTES - len(json.dumps(views))
    for name, make in _contributions(session, state.key, cells, shown, listener):
        if name in views["contributions"]:
            continue
        data = make()
        bytes_left -= len(json.dumps(data))
        if bytes_left < 0:
            break
        views["contributions"][name] = data
    return views, [*left_out, *_lacking(views["contributions"], cells)]


def _pictures(
    session: Session, key: str, cells: Sequence[str], listener: Listener
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The picture of the model, and what it shows for the first numbers of the answer."""
    drawn, numbers, bytes_left = picture(session, key), dict[str, Any](), MOST_PICTURE_BYTES
    for i, cell in enumerate(cells[:MOST_NUMBERS]):
        listener.step(i, len(cells), f"the picture of {cell}")
        try:
            shown = picture_of(session, key, cell)
        except UserError:
            break
        bytes_left -= len(json.dumps(shown))
        if bytes_left < 0:
            break
        numbers[cell] = shown
        if session.live:  # then what each block would say is recorded too, and its numbers open as any others
            for one in shown["lens"]:
                session.trace(key).find(one["cell"].partition("[")[0])
    return drawn, numbers


def _fitting_nodes(trace: LiveTrace, cells: Sequence[str], bytes_left: float) -> tuple[set[int], list[str]]:
    """The nodes whose values fit: the cells to open first and what they were computed from, nearest first."""
    graph = trace.graph
    first = dict.fromkeys(trace.find(trace.locate(cell)[0]) for cell in cells)
    named = {i: n.name for i, n in enumerate(graph.nodes) if n.named or n.kind in ("input", "weight")}
    reached, included, lacking = set[int](), set[int](), []
    for starts in (first, *([i] for i in named)):
        todo = deque(i for i in starts if i not in reached)
        reached.update(todo)
        while todo:
            i = todo.popleft()
            n = graph.nodes[i]
            table_bytes = sum(4 * graph.tables[name].size for name in tables(n.plan))
            size = 0 if n.moves else n.size * (8 if n.dtype in ("float64", "int64") else 4) + table_bytes
            if size > bytes_left:
                lacking += [named[i]] if i in named else []
                continue
            bytes_left -= size
            included.add(i)
            sources = [source for source in dict.fromkeys(refs(n.plan)) if source not in reached]
            reached.update(sources)
            todo += sources
    # what only moves values needs those
    for i in sorted(included):
        if graph.nodes[i].moves and not set(refs(graph.nodes[i].plan)) <= included:
            included.discard(i)
    return included, lacking


# ---- the contributions in a file: those on screen, those the page opens, then the largest


@dataclass(frozen=True)
class Whole:
    """One output number, or its difference from another, with its contributions."""

    cell: str
    against: str | None
    contributions: Contributions

    def key(self, part: Part | None = None) -> str:
        """As the page asks for it (web/src/lib/file.ts)."""
        return f"{self.cell}|{self.against or ''}|{part.id if part else ''}"

    def data(self, part: Part | None = None) -> dict[str, Any]:
        return contribution_table(self.contributions, self.cell, self.against, part)


def _lacking(contained: dict[str, Any], cells: Sequence[str]) -> list[str]:
    sentences = []
    if absent := sum(f"{cell}||" not in contained for cell in cells):
        sentences.append(f"Why: the contributions to {absent} of {len(cells)} numbers of the answer.")
    inside = [
        f"{name.rpartition('|')[0]}|{part['id']}"
        for name, table in contained.items()
        for part in table["parts"]
        if part["parts"]
    ]
    if absent := sum(name not in contained for name in inside):
        sentences.append(
            f"Why: what {absent} of the {len(inside)} parts that divide are made of; the largest ones divide."
        )
    if len(cells) > 1:
        sentences.append("Why: contributions to other differences between two numbers than the one that was on screen.")
    return sentences


def _contributions(
    session: Session, key: str, cells: Sequence[str], shown: Shown, listener: Listener
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What may be in the file by the key that the page asks for, what matters most first."""
    cell_on_screen, against_on_screen = shown.more.get("why", ""), shown.more.get("against")
    wanted = dict.fromkeys([(cell_on_screen, against_on_screen)] if cell_on_screen else [])
    wanted |= dict.fromkeys((cell, None) for cell in cells[:MOST_NUMBERS])
    done, total = 0, (2 + 2 * MOST_WAYS) * len(wanted) + len(shown.open) + MOST_DIVIDED
    wholes: list[Whole] = []
    for cell, against in wanted:
        listener.step(done, total, f"contributions to {cell}")
        done += 1
        try:
            whole = Whole(cell, against, find_contributions(session, key, cell, against))
        except UserError:
            continue
        wholes.append(whole)
        yield whole.key(), whole.data
        begun = _unfolded(_opened_first(whole.contributions))
        if (cell, against) == (cell_on_screen, against_on_screen):
            begun += _parts_on_screen(whole.contributions, shown.open)
        for part in begun:
            listener.step(done, total, f"the parts of {part.label}")
            done += 1
            yield whole.key(part), lambda whole=whole, part=part: whole.data(part)
    for whole, part in (*_ways(wholes), *_largest(wholes)):
        listener.step(min(done, total), total, f"the parts of {part.label}")
        done += 1
        yield whole.key(part), lambda whole=whole, part=part: whole.data(part)


def _parts_on_screen(whole: Contributions, ids: Sequence[str]) -> list[Part]:
    """The parts that are divided on screen."""
    parts = []
    for id in ids:
        try:
            parts.append(whole.part(id))
        except UserError:
            continue  # of another number
    return parts


def _opened_first(whole: Contributions) -> Part | None:
    """The head that the page divides by itself: the largest."""
    return max((p for p in whole.parts if p.kind == "head" and p.count), key=lambda p: abs(p.value), default=None)


def _unfolded(part: Part | None) -> list[Part]:
    """A part, and what the page divides with it: of a token or a patch also its embedding."""
    if part is None:
        return []
    embeddings = (p for p in part.parts if p.kind == "embedding" and p.count and part.kind in ("token", "patch"))
    return [part, *_unfolded(next(embeddings, None))]


def _ways(wholes: Sequence[Whole]) -> Iterator[tuple[Whole, Part]]:
    """From the first head of each number to its largest tokens or patches, and from these to the input."""
    for i in range(MOST_WAYS):
        for whole in wholes:
            head = _opened_first(whole.contributions)
            inside = sorted((p for p in head.parts if p.count), key=lambda p: -abs(p.value)) if head else []
            for part in inside[i : i + 1]:
                yield from ((whole, p) for p in _unfolded(part))


def _largest(wholes: Sequence[Whole]) -> Iterator[tuple[Whole, Part]]:
    """The other parts, level by level, the largest first."""
    levels = [(whole, part) for whole in wholes for part in whole.contributions.parts[:MOST_NUMBERS] if part.count]
    levels.sort(key=lambda pair: -abs(pair[1].value))
    left = MOST_DIVIDED
    while levels and left > 0:
        levels, left = levels[:left], left - len(levels)
        yield from levels
        levels = [(whole, inner) for whole, part in levels for inner in part.parts[:2] if inner.count]


# ---- traces of runs whose page has the views of the explorer: the file that Share writes, of the trace's own input


@wraps(trace_any)
def trace(what: Any, *inputs: Any, **options: Any) -> LiveTrace:
    if not isinstance(what, str | Path | Loaded):
        return trace_any(what, *inputs, **options)
    loaded, settings, double = prepare_trace(what, inputs, options)
    recorded = trace_loaded(loaded, settings, double)
    return recorded if double else shareable(recorded, loaded, settings)


def shareable(trace: LiveTrace, loaded: Loaded, options: Any) -> LiveTrace:
    """The trace of a run, with the way to its page; of a family that the explorer does not open, with the reason."""
    kind = family(loaded.run.family)
    if kind.explore is None:
        trace.alone = f"a {kind.name} cannot be explored"
        return trace

    def page(edits: Sequence[str], title: str, cell: str, progress: Callable[[float], object]) -> str:
        session = Session(loaded)
        shown = Shown("numbers" if cell else "look", cell, title=title)

        def on_event(name: str, content: dict[str, Any]) -> None:
            if name == "progress" and content["total"]:
                progress(content["done"] / content["total"])

        state = {"input": read_input(session, options), "edits": list(edits)}
        return export_page(session, state, shown, Listener(on_event))

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
    controls = {control.name: control for control in session.controls}
    values = {name: getattr(options, name, None) for name in controls}
    settings = {name: value for name, value in values.items() if value is not None}
    if session.profile.draws:
        settings.setdefault("step", (int(settings.get("steps", controls["steps"].value)) + 1) // 2)
        if "guidance" in controls:
            settings.setdefault("guidance", 1.0)
    return settings
