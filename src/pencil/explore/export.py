"""What is on the page as one file: the views prepared, and of the trace the values that fit."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config import UserError
from ..tracing import html
from ..tracing.file import refs, tables
from ..tracing.graph import Array, Graph, Node
from ..tracing.live_trace import LiveTrace
from ..tracing.trace_base import RecordedTrace
from .attention_views import layer_of
from .export_why import Asked, prepared
from .outline import module_map
from .outline import tensors as all_tensors
from .state import State

MOST = 5_000_000  # bytes of a file
PREPARED = 1_600_000  # of them for views: answers, attention and contributions
LIGHTS = 700_000  # of these for where the words look
PACKED = 1.27  # letters in the file for each byte of an array, after gzip and base64
Step = Callable[[int, int, str], None]  # how many of how many steps are done, and what comes next
LEFT_OUT: tuple[str, ...] = (
    "Live input and edits: open the model with pencil explore to change something.",
    "Katas: their answers are graded by the server.",
    "Tours, and comparisons with another model or input.",
)


@dataclass(frozen=True)
class Shown:
    """What is open on the page: a view, a cell, what the views keep in the address, and the divided parts of Why."""

    view: str = ""
    cell: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    open: Sequence[str] = ()
    title: str = ""  # empty: the model's name and its input

    def as_json(self) -> dict[str, Any]:
        return {"cell": self.cell, "more": dict(self.more), "open": list(self.open)}


class Lean(Graph):
    """A graph with the values of some nodes alone; how the others were computed is left out too."""

    def __init__(self, graph: Graph, kept: set[int]):
        super().__init__((), graph.names)
        self.tables, self.whole, self.kept = graph.tables, graph, kept
        self.nodes = [n if i in kept else replace(n, plan=None) for i, n in enumerate(graph.nodes)]

    def has(self, node: int) -> bool:
        return node in self.kept

    def stored(self, node: int) -> Array:
        return self.whole.stored(node)


def exported(
    subject: Any, state: State, shown: Shown | None = None, step: Step = lambda done, total, text: None
) -> str:
    """The page of a state, to be opened without a server; of at most so many bytes. `step` hears of the progress."""
    shown = shown or Shown()
    key, trace = subject.key(state), subject.record(state)
    outline = subject.outline(key)
    views, left_out = _views(subject, key, state, outline, shown, step)
    step(1, 1, "writing the file")
    named = sum(n.named for n in trace.graph.nodes)
    first = [outline["start"], *([shown.cell] if _is_cell(trace, shown.cell) else [])]

    def page(kept: set[int], lacking: Sequence[str]) -> str:
        absent = f"The values of {len(lacking)} of {named} tensors, which would make the file too large."
        return html.page(
            RecordedTrace(Lean(trace.graph, kept), trace.labels, trace.facts),
            shown.title or f"{subject.name}: {_read(state, subject)}",
            start=outline["start"],
            views={
                **views,
                "view": shown.view,
                "shown": shown.as_json(),
                "left_out": [*left_out, *([absent] if lacking else [])],
            },
        )

    room = (MOST - len(page(set(), ()).encode())) / PACKED
    while True:
        made = page(*_kept(trace, first, room))
        if len(made.encode()) <= MOST or room < 1000:
            return made
        room *= 0.8


def _is_cell(trace: LiveTrace, cell: str) -> bool:
    """Whether a trace has a cell that the page names."""
    try:
        return bool(cell) and bool(trace.locate(cell)[0])
    except UserError:
        return False


def _read(state: State, subject: Any) -> str:
    """What the model was given, in a few words."""
    texts = [state.input[name] for name in ("source", "text", "label") if state.input.get(name)]
    return texts[0] if texts else "a picture" if "picture" in state.input else subject.kind.summary


def _views(
    subject: Any, key: str, state: State, outline: dict[str, Any], shown: Shown, step: Step
) -> tuple[dict[str, Any], list[str]]:
    """The views that need the model, as the page asks for them; and what had no room."""
    about, answer, left_out = subject.about(), subject.answer(state), list(LEFT_OUT)
    given = answer["state"]["input"]  # a file has the one input that it was made from
    examples = [{"name": "the input of this file", "input": given}]
    path = about["path"] and f"runs/{Path(about['path']).name}"  # the folders above it are of this machine alone
    model = {**about, "path": path, "example": given, "examples": examples}
    trace = subject.trace(key)
    views: dict[str, Any] = {
        "model": model,
        "answer": answer,
        "outline": {"map": module_map(trace.recording.model, all_tensors(trace))},
        "attention": subject.attention(key),
        "light": {},
        "contributions": {},
    }
    room, looked = LIGHTS, shown.more.get("attention", "")
    for name, light in _lights(subject, key, views["attention"], looked):
        step(0, 1, "attention")
        room -= len(json.dumps(light))
        if room < 0:
            left_out.append("Where the words look, of some blocks and heads.")
            break
        views["light"][name] = light
    asked = Asked(shown.more.get("why", ""), shown.more.get("against"), shown.open)
    room = PREPARED - len(json.dumps(views))
    views["contributions"], lacking = prepared(subject, key, answer, outline["start"], asked, room, step)
    return views, [*left_out, *lacking]


def _lights(subject: Any, key: str, attention: dict[str, Any], first: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the words look: what is on screen, then averaged, by rollout, and of every head."""
    group = next((one for one in attention["groups"] if one["name"] == "cross"), None) or attention["groups"][0]
    layers = [layer_of(one["name"]) for one in group["layers"]]
    looks: dict[str, tuple[Any, ...]] = {"mean::": (), "rollout::": (None, None, "rollout")}
    looks |= {f"mean:{layer}:": (layer,) for layer in layers}
    for layer, one in zip(layers, group["layers"], strict=True):
        looks |= {f"head:{layer}:{head}": (layer, head, "head") for head in range(len(one["heads"]))}
    for name in sorted(looks, key=lambda name: name != first):
        yield name, subject.light(key, *looks[name])


def _kept(trace: LiveTrace, cells: Sequence[str], room: float) -> tuple[set[int], list[str]]:
    """The nodes whose values fit: the cells to open first and what they were computed from, nearest first."""
    graph = trace.graph
    first = dict.fromkeys(trace.find(trace.locate(cell)[0]) for cell in cells)
    given = ("input", "weight")
    rest = (i for i, n in enumerate(graph.nodes) if (n.named or n.kind in given) and i not in first)
    todo, seen, kept, lacking = deque(first), set(first), set(), []
    while todo or (todo := deque(_next(rest, seen))):
        node = todo.popleft()
        n = graph.nodes[node]
        size = 0 if n.moves else n.size * (8 if n.dtype in ("float64", "int64") else 4) + _table_bytes(graph, n)
        if size > room:
            if n.named or n.kind in given:
                lacking.append(n.name)
            continue
        room -= size
        kept.add(node)
        for source in refs(n.plan):
            if source not in seen:
                seen.add(source)
                todo.append(source)
    # what only moves values needs those
    for node in sorted(kept):
        if graph.nodes[node].moves and not set(refs(graph.nodes[node].plan)) <= kept:
            kept.discard(node)
    return kept, lacking


def _next(rest: Iterator[int], seen: set[int]) -> list[int]:
    """The next node that was not reached yet."""
    for node in rest:
        if node not in seen:
            seen.add(node)
            return [node]
    return []


def _table_bytes(graph: Graph, n: Node) -> int:
    return sum(4 * graph.tables[name].size for name in tables(n.plan))
