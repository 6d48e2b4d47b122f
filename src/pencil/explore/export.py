"""What is on the page as one file: the views prepared, and of the trace the values that fit."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..config import UserError
from ..tracing import html
from ..tracing.file import refs, tables
from ..tracing.graph import Array, Graph, Node
from ..tracing.record import LiveTrace
from ..tracing.recorded import RecordedTrace
from .attention_views import layer_of
from .contributed import contributed
from .outline import module_map
from .outline import tensors as all_tensors
from .state import State

MOST = 5_000_000  # bytes of a file
PREPARED = 1_600_000  # of them for views: answers, attention and contributions
LIGHTS = 700_000  # of these for where the words look
DIVIDED = 48  # parts of them that are divided further
SHOWN = 12  # output numbers, and parts of each, whose contributions are in the file
PACKED = 1.27  # letters in the file for each byte of an array, after gzip and base64
Step = Callable[[int, int, str], None]  # how many of how many steps are done, and what comes next
LEFT_OUT: tuple[str, ...] = (
    "Live input and edits: open the model with pencil explore to change something.",
    "Katas: their answers are graded by the server.",
    "Tours, and comparisons with another model or input.",
)


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


def exported(subject: Any, state: State, view: str = "", step: Step = lambda done, total, text: None) -> str:
    """The page of a state, to be opened without a server; of at most so many bytes. `step` hears of the progress."""
    key, trace = subject.key(state), subject.record(state)
    outline = subject.outline(key)
    views, left_out = _views(subject, key, state, outline, step)
    step(1, 1, "writing the file")
    named = sum(n.named for n in trace.graph.nodes)

    def page(kept: set[int], lacking: Sequence[str]) -> str:
        absent = f"The values of {len(lacking)} of {named} tensors, which would make the file too large."
        return html.page(
            RecordedTrace(Lean(trace.graph, kept), trace.labels, trace.facts),
            f"{subject.name}: {_read(state, subject)}",
            start=outline["start"],
            views={**views, "view": view, "left_out": [*left_out, *([absent] if lacking else [])]},
        )

    room = (MOST - len(page(set(), ()).encode())) / PACKED
    while True:
        made = page(*_kept(trace, outline["start"], room))
        if len(made.encode()) <= MOST or room < 1000:
            return made
        room *= 0.8


def _read(state: State, subject: Any) -> str:
    """What the model was given, in a few words."""
    texts = [state.input[name] for name in ("source", "text", "label") if state.input.get(name)]
    return texts[0] if texts else "a picture" if "picture" in state.input else subject.kind.summary


def _views(
    subject: Any, key: str, state: State, outline: dict[str, Any], step: Step
) -> tuple[dict[str, Any], list[str]]:
    """The views that need the model, as the page asks for them; and what had no room."""
    about, answer, left_out = subject.about(), subject.answer(state), list(LEFT_OUT)
    model = {**about, "path": "", "examples": about["examples"][:1]}  # a folder is of this machine alone
    trace = subject.trace(key)
    views: dict[str, Any] = {
        "model": model, "answer": answer, "outline": {"map": module_map(trace.recording.model, all_tensors(trace))},
        "attention": subject.attention(key), "light": {}, "contributions": {},
    }  # fmt: skip
    room = LIGHTS
    for name, light in _lights(subject, key, views["attention"]):
        step(0, 1, "attention")
        room -= len(json.dumps(light))
        if room < 0:
            left_out.append("Where the words look, of some layers and heads.")
            break
        views["light"][name] = light
    room, whole = PREPARED - len(json.dumps(views)), True
    for name, part in _contributions(subject, key, answer, outline["start"], step):
        room -= len(json.dumps(part))
        if room < 0:
            whole = False
            break
        views["contributions"][name] = part
    if not whole:
        left_out.append("Contributions below the largest parts.")
    return views, left_out


def _lights(subject: Any, key: str, attention: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the words look: averaged, by rollout, then of every head."""
    group = next((one for one in attention["groups"] if one["name"] == "cross"), None) or attention["groups"][0]
    layers = [layer_of(one["name"]) for one in group["layers"]]
    yield "mean::", subject.light(key)
    yield "rollout::", subject.light(key, how="rollout")
    for layer in layers:
        yield f"mean:{layer}:", subject.light(key, layer)
    for layer, one in zip(layers, group["layers"], strict=True):
        for head in range(len(one["heads"])):
            yield f"head:{layer}:{head}", subject.light(key, layer, head, "head")


def _contributions(
    subject: Any, key: str, answer: dict[str, Any], start: str, step: Step
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Contributions to each output number, then the parts of these, the largest first."""
    cells = [one["cell"] for one in answer.get("tokens") or (answer.get("classes") or ())[:3]] or [start]
    cells, levels = cells[:SHOWN], list[tuple[str, Any, Any]]()
    done, total = 0, len(cells) + DIVIDED
    for done, cell in enumerate(cells):
        step(done, total, f"contributions to {cell}")
        try:
            found = subject.contributed(key, cell)
        except UserError:
            continue
        yield f"{cell}||", contributed(found, cell)
        levels += [(cell, found, part) for part in found.parts[:SHOWN] if part.count]
    levels.sort(key=lambda one: -abs(one[2].value))
    left = DIVIDED
    while levels and left:
        levels, deeper, left = levels[:left], [], max(0, left - len(levels))
        for cell, found, part in levels:
            done += 1
            step(done, total, f"the parts of {part.label}")
            yield f"{cell}||{part.id}", contributed(found, cell, None, part)
            deeper += [(cell, found, one) for one in part.parts[:2] if one.count]
        levels = deeper


def _kept(trace: LiveTrace, start: str, room: float) -> tuple[set[int], list[str]]:
    """The nodes whose values fit: the cell to open first and what it was computed from, nearest first."""
    graph = trace.graph
    first = trace.find(trace.locate(start)[0])
    given = ("input", "weight")
    order = [first, *(i for i, n in enumerate(graph.nodes) if (n.named or n.kind in given) and i != first)]
    todo, seen, kept, lacking = deque(order[:1]), set(order[:1]), set(), []
    rest = iter(order[1:])
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
