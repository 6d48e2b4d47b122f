"""The outline of a trace: its tensors in order, where they belong in the model, and the map of its modules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from ..config import UserError
from ..core.attention import Attention
from ..core.layers import MLP, GatedMLP
from ..core.notation import Notation, stored
from ..core.probe import LEGEND, branches, declared, symbols
from ..tracing.address import address
from ..tracing.graph import Node
from ..tracing.lens import LENS
from ..tracing.live_trace import LiveTrace
from ..tracing.module_graph import path_of
from ..tracing.recording import tensors as nested_tensors
from .session import Session


def outline(session: Session, key: str) -> dict[str, Any]:
    """What is in a trace, and the cell to open first."""
    trace, state = session.any_trace(key), session.states[key]
    nodes = tensors(trace) if isinstance(trace, LiveTrace) else [n for n in trace.graph.nodes if n.kind]
    lens = lenses(trace) if isinstance(trace, LiveTrace) else {}
    start = _first_cell(trace, session.answer(state)) if isinstance(trace, LiveTrace) else "loss"
    return {
        "trace": key,
        "tensors": [_tensor(n) for n in (*nodes, *(n for some in lens.values() for n in some))],
        "labels": trace.labels,
        "facts": trace.facts,
        "map": module_map(session.loaded.model, nodes, lens),
        "edges": residual_edges(session.loaded.model),
        "start": start,
        "legend": LEGEND,
    }


def _first_cell(trace: LiveTrace, answer: Mapping[str, Any]) -> str:
    """That of the likeliest class or of the first token, else the middle of the last value."""
    if bars := answer.get("tokens") or answer.get("classes"):
        return bars[0]["cell"]
    named = [n for n in tensors(trace) if n.named and n.size and n.kind not in ("weight", "input")]
    last = next((n for n in reversed(named) if n.axes), named[-1])
    return address(last.name, [0, *(size // 2 for size in last.shape[1:])][: len(last.shape)])


def lenses(trace: LiveTrace) -> dict[str, list[Node]]:
    """What the model would say before its first block and after each, which is recorded when it is looked at."""
    try:
        return {path: trace.lens.described(path) for path in trace.lens.streams}
    except UserError:
        return {}


def residual_edges(model: nn.Module) -> list[dict[str, str]]:
    """What hangs from the residual streams: from which stream to which, and by which module."""
    edges: list[dict[str, str]] = []
    last: dict[str, dict[str, str]] = {}
    for branch in branches(model):
        stack = branch.block.rpartition(".")[0]
        before = last.get(stack)
        begin = ".".join(filter(None, (stack.rpartition(".")[0], "input")))
        # two that add at one place begin at one place, too
        begin = begin if before is None else before["from"] if before["to"] == branch.stream else before["to"]
        last[stack] = {"from": begin, "by": branch.path, "to": branch.stream}
        edges.append(last[stack])
    return edges


def tensors(trace: LiveTrace) -> list[Node]:
    """The tensors in the order of computing; those of closed blocks as an opened block of their kind has them.

    Not those of a lens: what the outline has is the same whatever was looked at.
    """
    graph = trace.graph
    if not graph.blocks:
        lens = {i for path, (first, end, _, _) in graph.opened.items() if LENS.match(path) for i in range(first, end)}
        return [n for i, n in enumerate(graph.nodes) if n.kind and i not in lens]
    likes = {path: (path.rpartition(".")[0], *_shapes(args)) for path, (_, args, _) in graph.blocks.items()}
    models: dict[Any, str] = {}
    for path, like in likes.items():
        if like not in models:
            trace.open(graph.results[path][0][0])
            models[like] = path

    def inside(path: str) -> list[Node]:
        model = path if path in graph.opened else models[likes[path]]
        first, last, _, _ = graph.opened[model]
        return [replace(n, name=path + n.name.removeprefix(model)) for n in graph.nodes[first:last]]

    skipped = {i for first, last, _, _ in graph.opened.values() for i in range(first, last)}
    ends = {graph.results[path][0][0]: path for path in graph.blocks}
    nodes: list[Node] = []
    for i, n in enumerate(graph.nodes):
        if i not in skipped:
            nodes += [*(inside(ends[i]) if i in ends else []), n]
    return _explained(trace, [n for n in nodes if n.kind])


def _shapes(args: object) -> Iterator[tuple[int, ...]]:
    """The shapes of a block's inputs: blocks of other shapes have other tensors."""
    return (tuple(tensor.shape) for _, tensor in nested_tensors(args, ""))


def _explained(trace: LiveTrace, nodes: list[Node]) -> list[Node]:
    """The nodes, those of closed blocks with the symbols and formulas of their own block."""
    names = trace.graph.names
    if all(n.name in names or not n.named for n in nodes):
        return nodes
    model, templates = trace.traced_model.model, declared(trace.traced_model.model)
    about = Notation(model, (n.name for n in nodes if n.name in templates)).names
    return [
        replace(n, symbol=about[n.name].symbol, formula=about[n.name].formula)
        if n.name not in names and n.name in about
        else n
        for n in nodes
    ]


def _tensor(n: Node) -> dict[str, Any]:
    named = n.named or n.kind in ("input", "weight")
    return {
        "name": n.name,
        "symbol": n.symbol,
        "formula": n.formula,
        "shape": list(n.shape),
        "axes": n.axes.split(),
        "kind": n.kind,
        "op": n.op,
        "dtype": n.dtype,
        "portions": n.portions,
        "path": path_of(n),
        "named": named,
    }


def module_map(
    model: nn.Module, computed: Sequence[Node], lens: Mapping[str, Sequence[Node]] | None = None
) -> dict[str, Any]:
    """The model as a tree of its parts, down to the matrices, each with the values computed there, in order."""
    paths = {path for path, module in model.named_modules() if not isinstance(module, nn.Linear)}
    values: dict[str, list[Node]] = {}
    for n in computed:
        if n.kind != "weight" and (n.named or n.kind == "input"):
            # a norm has the name of its value
            values.setdefault(n.name if n.name in paths and n.kind != "input" else path_of(n), []).append(n)
    whole = _module(Place(model, "", type(model).__name__), values, model, symbols(model))
    if lens:
        whole["children"].append(_beside("lens", "logit lens", [_lens(path, nodes) for path, nodes in lens.items()]))
    return whole


def _lens(path: str, nodes: Sequence[Node]) -> dict[str, Any]:
    title = "before block 1" if path == "lens.input" else f"after block {int(path.rpartition('.')[2]) + 1}"
    return {**_beside(path, title, []), "tensors": [n.name for n in nodes]}


def _beside(path: str, title: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    """A part that is no module."""
    return {"path": path, "title": title, "kind": "other", "parameters": 0, "tensors": [], "children": children}


class Place(NamedTuple):
    """A module, its path and what it is called."""

    module: nn.Module
    path: str
    title: str


def _module(
    at: Place, values: Mapping[str, Sequence[Node]], model: nn.Module, learned: Mapping[str, str]
) -> dict[str, Any]:
    module, path, _ = at
    children = [_matrix(path, name, p, model, learned) for name, p in module.named_parameters(recurse=False)]
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList):
            each = [Place(block, f"{inner}.{i}", _numbered(name, int(i))) for i, block in child.named_children()]
            children += [_module(place, values, model, learned) for place in each]
        elif isinstance(child, nn.Linear):  # a linear map is its matrix, and its bias
            children += [_matrix(inner, part, p, model, learned) for part, p in child.named_parameters()]
        elif any(True for _ in child.parameters()) or values.get(inner):
            place = Place(child, inner, TITLES.get(name, name.replace("_", " ")))
            children.append(_module(place, values, model, learned))
    own = values.get(path, ())
    formula = next((n.formula for n in reversed(own) if n.formula), "")
    return {
        "path": path,
        "title": at.title,
        "kind": _kind(module, path),
        "parameters": sum(p.numel() for p in module.parameters()),
        "tensors": [n.name for n in own],
        "children": children,
        **({"formula": formula} if formula else {}),
    }


def _matrix(path: str, name: str, p: nn.Parameter, model: nn.Module, learned: Mapping[str, str]) -> dict[str, Any]:
    name = f"{path}.{name}" if path else name
    symbol = learned.get(name)
    return {
        "path": name,
        "title": symbol or name.rpartition(".")[2],
        "kind": "matrix" if p.ndim > 1 else "other",
        "parameters": p.numel(),
        "shape": list(p.shape),
        "tensors": [name],
        "children": [],
        **({"formula": stored(model, name, symbol)} if symbol else {}),
    }


TITLES = {
    "attn": "attention",
    "cross": "cross-attention",
    "mlp": "MLP",
    "attn_norm": "attention norm",
    "cross_norm": "cross-attention norm",
    "mlp_norm": "MLP norm",
    "norm": "final norm",
    "tokens": "token embedding",
    "patches": "patch embedding",
    "time": "timestep embedding",
    "labels": "label embedding",
}


def _kind(module: nn.Module, path: str) -> str:
    name = path.rpartition(".")[2]
    kinds = {
        "model": not path,
        "block": name.isdigit(),
        "attention": isinstance(module, Attention),
        "mlp": isinstance(module, MLP | GatedMLP),
        "norm": "Norm" in type(module).__name__,
        "embedding": type(module).__module__.endswith((".embed", ".positions", ".biases")),
        "head": name == "head",
    }
    return next((kind for kind, holds in kinds.items() if holds), "other")


def _numbered(name: str, i: int) -> str:
    return f"{name.removesuffix('s').replace('_', ' ')} {i + 1}"
