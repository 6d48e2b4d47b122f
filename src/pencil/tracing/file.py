"""The trace file: one safetensors file, the graph as JSON in its metadata. Read without torch."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import UserError
from ..files import write_aside
from .functions import FUNCTIONS
from .graph import Array, Graph, Node
from .recorded import RecordedTrace

FORMAT = "pencil trace 1"
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
LARGEST_HEADER = 1 << 28


def refs(plan: Any) -> Iterator[int]:
    """The nodes a plan reads."""
    if not isinstance(plan, list | tuple):
        return
    if plan[0] in ("ref", "list"):
        yield plan[1]
    elif plan[0] == "cat":
        yield from (ref[1] for _, ref in plan[2])
    elif plan[0] == "table":
        yield from plan[2]
    elif plan[0] not in ("num", "axis", "block"):
        for part in plan[1:]:
            yield from refs(part)


def tables(plan: Any) -> Iterator[str]:
    """The tables a plan reads."""
    if isinstance(plan, list | tuple):
        if plan[0] == "list":
            yield plan[2]
        elif plan[0] == "table":
            yield plan[1]
        elif plan[0] not in ("num", "axis", "block", "ref", "cat"):
            for part in plan[1:]:
                yield from tables(part)


def _functions(plan: Any) -> Iterator[str]:
    """The functions a plan applies."""
    if isinstance(plan, list | tuple) and plan[0] not in ("ref", "list", "cat", "table", "num", "axis"):
        if plan[0] != "is":
            yield plan[0]
        for part in plan[1:]:
            yield from _functions(part)


def _renumbered(plan: Any, new: Mapping[int, int]) -> Any:
    if not isinstance(plan, list | tuple):
        return plan
    if plan[0] in ("ref", "list"):
        return [plan[0], new[plan[1]], *plan[2:]]
    if plan[0] == "cat":
        return ["cat", plan[1], [[start, _renumbered(ref, new)] for start, ref in plan[2]]]
    if plan[0] == "table":
        return ["table", plan[1], [new[n] for n in plan[2]]]
    if plan[0] in ("num", "axis"):
        return list(plan)
    if plan[0] == "block":
        return None
    return [plan[0], *(_renumbered(part, new) for part in plan[1:])]


def pack(trace: RecordedTrace) -> tuple[dict[str, Any], dict[str, Array]]:
    """A trace as plain data: the graph, and the arrays it names. What has no name and nothing needs is left out.

    The graph: `nodes` in the order of computing, each with `name op kind shape dtype plan named axes symbol formula`
    and `key`, the name of its array, or none where it only moves (its values are found by its plan); `names`, every
    name to its node; `labels`, the labels along an axis, by its letter; `facts` (see `Trace`).
    """
    graph = trace.graph
    wanted = {i for i, n in enumerate(graph.nodes) if n.named or n.kind in ("input", "weight")}
    todo = list(wanted)
    while todo:
        for source in refs(graph.nodes[todo.pop()].plan):
            if source not in wanted:
                wanted.add(source)
                todo.append(source)
    order = sorted(wanted)
    new = {old: i for i, old in enumerate(order)}
    nodes, arrays = [], {}
    for old in order:
        n = graph.nodes[old]
        key = None if n.moves else f"{new[old]}:{n.name}"
        if key is not None:
            arrays[key] = graph.stored(old).reshape(n.shape)
        for table in tables(n.plan):
            arrays[table] = graph.tables[table].astype(np.int32)
        plan = _renumbered(n.plan, new)
        entry = {
            "name": n.name,
            "op": n.op,
            "kind": n.kind,
            "shape": list(n.shape),
            "dtype": n.dtype,
            "plan": plan,
            "key": key,
        }
        nodes.append(
            entry | {k: v for k in ("named", "axes", "symbol", "formula", "portions", "also") if (v := getattr(n, k))}
        )
    names = {name: new[i] for name, i in graph.names.items() if i in new}
    facts = {"labels": trace.labels, "facts": trace.facts}
    return {"format": FORMAT, "nodes": nodes, "names": names, **facts}, arrays


class Packed(Graph):
    """A graph read from a file."""

    def __init__(self, meta: Mapping[str, Any], arrays: Mapping[str, Array]):
        keys = [n.get("key") for n in meta["nodes"]]
        kept = ("name", "op", "kind", "dtype", "plan", "named", "axes", "symbol", "formula")
        nodes = [
            Node(shape=tuple(n["shape"]), also=tuple(n.get("also", ())), **{k: n[k] for k in kept if k in n})
            for n in meta["nodes"]
        ]
        super().__init__(nodes, dict(meta["names"]))
        self.keys, self.arrays = keys, arrays
        self.tables = {k: v.astype(np.int64) for k, v in arrays.items() if k.startswith("table.")}

    def check(self) -> None:
        """Refuse a graph that points to something missing."""
        for name, node in self.names.items():
            if node not in range(len(self.nodes)):
                raise ValueError(f"{name} leads nowhere")
        for n, key in zip(self.nodes, self.keys, strict=True):
            if n.plan is not None and not isinstance(n.plan, int | float | list):
                raise ValueError(f"{n.name} has no plan")
            unknown = [name for name in _functions(n.plan) if name not in FUNCTIONS]
            if unknown or not all(node in range(len(self.nodes)) for node in refs(n.plan)):
                raise ValueError(f"the plan of {n.name} leads nowhere")
            if not all(table in self.tables for table in tables(n.plan)):
                raise ValueError(f"a table of {n.name} is missing")
            extra = (2,) if n.dtype.startswith("complex") else ()
            if not n.moves and (key not in self.arrays or self.arrays[key].shape != (*n.shape, *extra)):
                raise ValueError(f"the values of {n.name} are missing")

    def stored(self, node: int) -> Array:
        key = self.keys[node]
        if key is None:
            raise UserError(f"the values of {self.nodes[node].name} are not in this trace")
        array = self.arrays[key]
        if self.nodes[node].dtype.startswith("complex"):
            return array[..., 0] + 1j * array[..., 1]
        return array


def write(trace: RecordedTrace, path: str | Path) -> None:
    """Write a trace as one safetensors file."""
    meta, arrays = pack(trace)
    names = {np.dtype(v).newbyteorder("=").str.lstrip("<=|>"): k for k, v in TYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"pencil": json.dumps(meta, ensure_ascii=False)}}
    chunks, at = [], 0
    for key, array in arrays.items():
        if np.iscomplexobj(array):
            array = np.stack((np.real(array), np.imag(array)), -1)
        shape, array = list(array.shape), np.ascontiguousarray(array)
        raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
        kind = names[array.dtype.str.lstrip("<=|>")]
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        chunks.append(raw)
        at += len(raw)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    write_aside(Path(path), struct.pack("<Q", len(text)) + text + b"".join(chunks))


def load(path: str | Path) -> tuple["Packed", dict[str, Any], dict[str, Any] | None]:
    """The graph, the labels and the facts of a trace file; anything else is refused by name."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no trace {path}")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(path.stat().st_size, LARGEST_HEADER):
                raise ValueError
            header = json.loads(file.read(length))
            body = file.read()
        meta = json.loads(header.pop("__metadata__")["pencil"])
        if meta["format"] != FORMAT:
            raise UserError(f"{path} is a trace of another kind ({meta['format']})")
        arrays = {}
        for key, about in header.items():
            begin, end = about["data_offsets"]
            arrays[key] = np.frombuffer(body[begin:end], TYPES[about["dtype"]]).reshape(about["shape"])
        graph = Packed(meta, arrays)
        graph.check()
        return graph, meta["labels"], meta.get("facts")
    except UserError:
        raise
    except (json.JSONDecodeError, RecursionError, struct.error):
        raise UserError(f"{path} is not a trace file, or is damaged") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        what = f": {error}" if str(error) else ""
        raise UserError(f"{path} is not a trace file, or is damaged{what}") from None
