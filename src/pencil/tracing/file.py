"""The trace file: one safetensors file, the graph as JSON in its metadata. Read without torch.

The page shows `from pencil.tracing.file import load`, and so do pages that were shared: this name stays.
"""

import hashlib
import json
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from ..config import UserError
from ..files import MOST_VALUES, check_regular, memory, parse_json, write_aside
from ..tensors import LARGEST_HEADER, Header, read_header
from .graph import Array, Graph, Node, Plan, tables
from .plan_functions import FUNCTIONS
from .trace_base import TraceBase

# ---- whether the graph of a file can be followed: checked before anything is computed from it
# Every plan has a known form, reads nodes and places that exist, and no chain of nodes leads back to itself; what it
# would compute is bounded by what the file holds.


MOST_NODES, MOST_AXES, DEEPEST = 100_000, 16, 48
SMALL = 1 << 22  # cells that any file may describe, however little it holds
TERMS = 1 << 18  # of one sum, likewise
WIDER, MORE = 4, 32  # how much larger a tensor that only moves values may be than what is stored; and all of them
FAR = 1 << 40


def _arguments(form: str) -> int:
    """How many arguments a function takes, counted in its written form."""
    fields = [field for _, field, _, _ in Formatter().parse(form) if field is not None]
    return len(set(fields)) if fields[0] else len(fields)


ARGUMENTS = {name: _arguments(function.text) for name, function in FUNCTIONS.items()}


def check_entries(entries: Any) -> None:
    """Refuse nodes whose fields are not what they should be."""
    if not isinstance(entries, list) or len(entries) > MOST_NODES:
        raise ValueError(f"its nodes are no list of at most {MOST_NODES:,}")
    for entry in entries:
        texts = [entry["name"], entry["op"], entry["kind"], entry["dtype"]]
        texts += [entry.get(key, "") for key in ("axes", "symbol", "formula")] + list(entry.get("also", ()))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a node has no name")
        shape = entry["shape"]
        if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(_whole(n, 0) for n in shape):
            raise ValueError(f"{entry['name']} has an impossible shape")
        if not isinstance(entry.get("key"), str | None):
            raise ValueError(f"{entry['name']} has no values")


def _whole(value: Any, least: int = -FAR) -> bool:
    return type(value) is int and least <= value < FAR


class Soundness:
    """The checks of one graph; every failure is a ValueError that names the node."""

    def __init__(self, nodes: Sequence[Node], tables: Mapping[str, Array], arrays: Mapping[str, Array]):
        self.nodes, self.tables = nodes, tables
        sizes = [array.size for array in arrays.values()]
        self.most = max(SMALL, WIDER * max(sizes, default=0))
        self.most_terms = max(TERMS, WIDER * max(sizes, default=0))
        self.most_moved = SMALL + MORE * sum(sizes)
        self.reads: list[set[int]] = []

    def check(self) -> None:
        for me, n in enumerate(self.nodes):
            if n.size > self.most:
                raise ValueError(f"{n.name} has {n.size:,} cells, more than the values of the file could fill")
            self.reads.append(set())
            if n.plan is None:
                continue
            try:
                if self._moves(me, n) or self._terms(me, n, n.plan, 0) == 1:
                    continue
            except (TypeError, IndexError, KeyError, AttributeError):
                pass
            raise ValueError(f"the plan of {n.name} leads nowhere")
        if sum(n.size for n in self.nodes if n.moves) > self.most_moved:
            raise ValueError("it has more cells than the values of the file could fill")
        try:
            TopologicalSorter(dict(enumerate(self.reads))).prepare()
        except CycleError as error:
            raise ValueError(f"{self.nodes[error.args[1][0]].name} is computed from itself") from None

    def _source(self, me: int, node: Any) -> Node:
        if not _whole(node, 0) or node >= len(self.nodes):
            raise IndexError
        self.reads[me].add(node)
        return self.nodes[node]

    def _moves(self, me: int, n: Node) -> bool:
        """Whether a plan moves values, and only from cells that exist."""
        match n.plan:
            case ["cat", axis, parts]:
                starts = [start for start, _ in parts]
                ordered = starts[0] == 0 and starts == sorted(set(starts)) and all(map(_whole, starts))
                if not _whole(axis, 0) or not ordered:
                    raise IndexError
                for (start, ref), end in zip(parts, [*starts[1:], n.shape[axis]], strict=True):
                    slab = [(start, min(end, n.shape[axis])) if a == axis else (0, s) for a, s in enumerate(n.shape)]
                    self._within(me, n, ref, slab)
                return True
            case ["table", table, sources]:
                size = sum(self._source(me, source).size for source in sources)
                self._in_table(table, n.size, size)
                return True
            case ["ref", *_] if n.moves:
                self._within(me, n, n.plan, [(0, s) for s in n.shape])
                return True
        return False

    def _within(self, me: int, n: Node, ref: Any, ranges: Sequence[tuple[int, int]]) -> None:
        """A ref that moves: the cells it points to, over these ranges of indices, exist."""
        head, node, offset, strides, steps = ref
        if head != "ref" or steps or not self._ref(me, n, ref):
            raise IndexError
        if any(begin >= end for begin, end in ranges):
            return
        low = offset + sum(min(s * begin, s * (end - 1)) for s, (begin, end) in zip(strides, ranges, strict=False))
        high = offset + sum(max(s * begin, s * (end - 1)) for s, (begin, end) in zip(strides, ranges, strict=False))
        if low < 0 or high >= self.nodes[node].size:
            raise IndexError

    def _ref(self, me: int, n: Node, ref: Any) -> int:
        """How many cells a ref lists."""
        _, node, offset, strides, steps = ref
        source = self._source(me, node)
        numbers = [offset, *strides, *(number for step in steps for number in step)]
        if not all(map(_whole, numbers)) or (n.shape and len(strides) != len(n.shape)):
            raise IndexError
        if n.size and not source.size:
            raise IndexError
        if node == me:
            # a running sum reads the cell before; any other cell of its own would be a circle
            before = [prod(n.shape[axis + 1 :]) for axis in range(len(n.shape))]
            if list(strides) != before or offset >= 0 or steps:
                raise ValueError(f"{n.name} reads itself")
            self.reads[me].discard(me)
        count = prod(count for _, count in steps)
        if not all(count >= 1 for _, count in steps) or count > self.most_terms:
            raise IndexError
        return count

    def _in_table(self, table: Any, rows: int, size: int) -> None:
        places = self.tables[table]
        if places.size != rows or (rows and not (0 <= int(places.min()) <= int(places.max()) < size)):
            raise IndexError

    def _terms(self, me: int, n: Node, plan: Any, depth: int) -> int:
        """How many terms a plan lists, each part of it checked."""
        if isinstance(plan, int | float):
            return 1
        if depth > DEEPEST:
            raise ValueError(f"the plan of {n.name} is nested too deeply")
        match plan:
            case ["num", text]:
                complex(text[:64]) if "j" in text else float(text[:64])
                return 1
            case ["axis", axis] if _whole(axis, -len(n.shape)) and axis < len(n.shape):
                return 1
            case ["is", str(), part]:
                return self._terms(me, n, part, depth + 1)
            case ["ref", *_]:
                return self._ref(me, n, plan)
            case ["list", node, table, count] if _whole(count, 1) and count <= self.most_terms:
                self._in_table(table, n.size * count, self._source(me, node).size)
                return count
        head = plan[0]
        counts = [self._terms(me, n, part, depth + 1) for part in plan[1:]]
        if ARGUMENTS.get(head) != len(counts):
            raise IndexError
        if FUNCTIONS[head].reduces:
            counts = counts[1:] or [1]
        if len({count for count in counts if count != 1}) > 1:
            raise IndexError
        return max(counts)


# ---- reading and writing


FORMAT = "pencil trace 1"
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
KIND = "a trace file"


def _renumbered(plan: Plan, new: Mapping[int, int]) -> Plan:
    """A plan whose nodes have other numbers; of a block that was not opened there is none."""
    match plan:
        case ("ref" | "list") as head, node, *rest:
            return [head, new[node], *rest]
        case "cat", axis, parts:
            return ["cat", axis, [[start, _renumbered(ref, new)] for start, ref in parts]]
        case "table", table, sources:
            return ["table", table, [new[source] for source in sources]]
        case "block", *_:
            return None
        case head, *parts:
            return [head, *(_renumbered(part, new) for part in parts)]
    return plan


def pack(trace: TraceBase) -> tuple[dict[str, Any], dict[str, Array]]:
    """A trace as plain data: the graph, and the arrays it names. What has no name and nothing needs is left out.

    The graph: `nodes` in the order of computing, each with `name op kind shape dtype plan named axes symbol formula`
    and `key`, the name of its array, or none where it only moves (its values are found by its plan); `names`, every
    name to its node; `labels`, the labels along an axis, by its letter; `facts` (see `Trace`).
    """
    graph = trace.graph
    order = sorted(graph.behind(i for i, n in enumerate(graph.nodes) if n.named or n.kind in ("input", "weight")))
    new = {old: i for i, old in enumerate(order)}
    nodes, arrays = [], {}
    for old in order:
        n = graph.nodes[old]
        key = None if n.moves or not graph.has(old) else f"{new[old]}:{n.name}"
        if key is not None:
            arrays[key] = graph.stored(old).reshape(n.shape)
        for table in tables(n.plan):
            arrays[table] = graph.tables[table].astype(np.int32)
        entry = {"name": n.name, "op": n.op, "kind": n.kind, "shape": list(n.shape), "dtype": n.dtype}
        entry |= {"plan": _renumbered(n.plan, new), "key": key}
        words = {k: v for k in ("named", "axes", "symbol", "formula", "portions", "also") if (v := getattr(n, k))}
        nodes.append(entry | words)
    names = {name: new[i] for name, i in graph.names.items() if i in new}
    facts = {"labels": trace.labels, "facts": trace.facts}
    return {"format": FORMAT, "nodes": nodes, "names": names, **facts}, arrays


class Packed(Graph):
    """A graph read from a file."""

    def __init__(self, meta: Mapping[str, Any], arrays: Mapping[str, Array]):
        check_entries(meta["nodes"])
        keys = [n.get("key") for n in meta["nodes"]]
        fields = ("name", "op", "kind", "dtype", "plan", "named", "axes", "symbol", "formula")
        nodes = [
            Node(shape=tuple(n["shape"]), also=tuple(n.get("also", ())), **{k: n[k] for k in fields if k in n})
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


def write(trace: TraceBase, path: str | Path) -> None:
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
            key: np.frombuffer(memoryview(body)[entry.begin : entry.end], TYPES[entry.dtype]).reshape(entry.shape)
            for key, entry in header.tensors.items()
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
        name: {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [entry.begin, entry.end]}
        for name, entry in header.tensors.items()
    }
    if header.metadata.get("sha256") != _digest(header.metadata["pencil"], entries, body):
        raise ValueError("its SHA-256 is another than when it was written")
