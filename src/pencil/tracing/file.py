"""The trace file: one safetensors file, the graph as JSON in its metadata. Read without torch."""

import hashlib
import json
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import UserError
from ..files import MOST_VALUES, check_regular, memory, parse_json, write_aside
from ..tensors import LARGEST_HEADER, Header, read_header
from .graph import Array, Graph, Node
from .sound import Soundness, check_entries
from .trace_base import RecordedTrace

FORMAT = "pencil trace 1"
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
KIND = "a trace file"


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
        key = None if n.moves or not graph.has(old) else f"{new[old]}:{n.name}"
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
        check_entries(meta["nodes"])
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
        """Refuse a graph that points to something missing, or that cannot be followed."""
        for name, node in self.names.items():
            if node not in range(len(self.nodes)):
                raise ValueError(f"{name} leads nowhere")
        Soundness(self.nodes, self.tables, self.arrays).check()
        for n, key in zip(self.nodes, self.keys, strict=True):
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
    """Write a trace as one safetensors file, with the SHA-256 of all it holds."""
    meta, arrays = pack(trace)
    names = {np.dtype(v).newbyteorder("=").str.lstrip("<=|>"): k for k, v in TYPES.items()}
    entries: dict[str, Any] = {}
    chunks, at = [], 0
    for key, array in arrays.items():
        if np.iscomplexobj(array):
            array = np.stack((np.real(array), np.imag(array)), -1)
        shape, array = list(array.shape), np.ascontiguousarray(array)
        raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
        kind = names.get(array.dtype.str.lstrip("<=|>"))
        if kind is None:
            raise UserError(f"{key.partition(':')[2]} is {array.dtype}, which a trace file cannot hold")
        entries[key] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        chunks.append(raw)
        at += len(raw)
    # "checked" says that there is a hash: a file that lost it is damaged, one without the word is older
    graph, body = json.dumps(meta | {"checked": "sha256"}, ensure_ascii=False), b"".join(chunks)
    about = {"pencil": graph, "sha256": _digest(graph, entries, body)}
    text = json.dumps({"__metadata__": about} | entries, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER or sum(text.count(sign) for sign in (b",", b":", b"[", b"{")) > MOST_VALUES:
        raise UserError(f"this trace has too many operations for one file ({len(meta['nodes']):,}); trace a part of it")
    write_aside(Path(path), struct.pack("<Q", len(text)) + text + body)


def _digest(graph: str, entries: Mapping[str, Any], body: bytes) -> str:
    """The SHA-256 of a trace: its graph, where each array lies, and the arrays."""
    about = hashlib.sha256(graph.encode("utf-8", "surrogatepass"))
    about.update(json.dumps(entries, sort_keys=True).encode())
    about.update(body)
    return about.hexdigest()


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def load(
    path: str | Path, warn: Callable[[str], None] = _warn
) -> tuple["Packed", dict[str, Any], dict[str, Any] | None]:
    """The graph, the labels and the facts of a trace file; anything else is refused by name."""
    path = Path(path)
    if path.is_dir() or not path.exists():
        raise UserError(f"there is no trace {path}")
    if check_regular(path).st_size > memory() // 2:
        raise UserError(f"{path} is larger than half of the memory, into which it would be read")
    with path.open("rb") as file:
        header = read_header(file, path, KIND)
        if "pencil" not in header.metadata:
            raise UserError(f"{path} is not {KIND}, or is damaged: it has no graph")
        body = file.read()
    meta = parse_json(header.metadata["pencil"], str(path), KIND)
    try:
        if meta["format"] != FORMAT:
            raise UserError(
                f"{path} was written by another version of Pencil: it is {str(meta['format'])[:40]!r}, and this "
                f"version reads {FORMAT!r}; record it again with this version, or read it with the one that wrote it"
            )
        _check_digest(header, meta, body, path, warn)
        arrays = {
            key: np.frombuffer(memoryview(body)[one.begin : one.end], TYPES[one.dtype]).reshape(one.shape)
            for key, one in header.tensors.items()
        }
        graph = Packed(meta, arrays)
        graph.check()
        labels, facts = meta["labels"], meta.get("facts")
        if not all(isinstance(word, str) for words in labels.values() for word in words):
            raise ValueError("a label is not text")
        if not isinstance(facts, dict | None):
            raise ValueError("its facts are no table")
        return graph, labels, facts
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        what = f": {error}" if str(error) else ""
        raise UserError(f"{path} is not {KIND}, or is damaged{what}") from None


def _check_digest(
    header: Header, meta: Mapping[str, Any], body: bytes, path: Path, warn: Callable[[str], None]
) -> None:
    """Refuse a file that is not what was written; one from before there were hashes is announced."""
    if "checked" not in meta and "sha256" not in header.metadata:
        warn(f"{path} has no hash to check it by: a damaged number would show only in its receipt")
        return
    entries = {
        name: {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [one.begin, one.end]}
        for name, one in header.tensors.items()
    }
    if header.metadata.get("sha256") != _digest(header.metadata["pencil"], entries, body):
        raise ValueError("its SHA-256 is another than when it was written")
