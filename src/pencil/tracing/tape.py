"""The recorder: every ATen operation of a forward pass of any PyTorch model, with its inputs and outputs.

Fused kernels take their plain route while the tape runs. Values are kept as they were when computed: before an
operation changes a tensor in place, what was recorded of it is copied, and tensors that share its memory are updated.

A plan describes how any cell follows from others, as plain data: refs with strides into other nodes, functions, lists
to be summed. A rule turns one ATen operation into a plan, once for the whole tensor; everything that shows arithmetic
(the terminal, the page's JavaScript, the formulas of a spreadsheet, the thousand-cell proofs) evaluates or writes plans
and knows no operation. A move is found by running the operation on the places of its inputs: strides where it only
looks at memory in another way, a table else.

Memory is followed, not guessed. An operation that writes in place makes a new node; what was recorded of that memory is
copied first, and another view of it is updated, cell by cell, when it is next read. So a key read from the cache
unfolds to the step that computed it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_any, tree_map_only

from ..config import UserError
from . import backward_rules as _backward_rules  # noqa: F401  for what it adds to RULES
from . import index_rules as _index_rules  # noqa: F401
from . import window_rules as _window_rules  # noqa: F401
from .graph import Array, Graph, Node, Plan
from .half_precision import rounded_steps
from .rules import RULES, Call, In

# ---- arguments and results as they come: tensors alone, in lists, in tuples, in dictionaries; each by a name


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside an argument or a result, each with a name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from tensors(inner, f"{name}.{key}" if name else str(key))


def mapped(value: Any, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    """An argument or a result with each tensor in it changed, by the name `tensors` gives it."""
    if isinstance(value, Tensor):
        return change(name, value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    before = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    after = {key: mapped(inner, f"{name}.{key}" if name else str(key), change) for key, inner in before.items()}
    if all(after[key] is before[key] for key in before):
        return value
    if not isinstance(value, Mapping):
        return type(value)(*after.values()) if hasattr(value, "_fields") else type(value)(list(after.values()))
    other: Any = copy(value)
    for key, inner in after.items():
        other[key] = inner
    return other


# ---- tensors and the memory they view


DTYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


def functional(func: Any) -> Any:
    """The same operation, writing nothing."""
    space, name = func._schema.name.split("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name != "out"]
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other
    return None


def dtype_of(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def memory_of(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def positions(value: Tensor) -> Array:
    """The place of each cell of a tensor in its memory."""
    at = np.full(value.shape, value.storage_offset(), np.int64)
    for axis, (n, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        at = at + (np.arange(n) * stride).reshape([-1 if d == axis else 1 for d in range(value.ndim)])
    return at.reshape(-1)


def laid_like(places: Tensor, like: Tensor) -> Tensor:
    """The same values in memory laid out as another tensor's is."""
    memory = torch.full((like.untyped_storage().nbytes() // like.element_size(),), -1)
    memory.as_strided(like.shape, like.stride(), like.storage_offset()).copy_(places)
    return memory.as_strided(like.shape, like.stride(), like.storage_offset())


@contextmanager
def off():
    """Work that is not the model's: not recorded."""
    with _disable_current_modes(), torch.no_grad():
        yield


def check_dtype(value: Tensor, name: str) -> None:
    """Refuse a tensor whose values have no exact form in numpy, such as float8."""
    if value.dtype not in DTYPES:
        raise UserError(
            f"{name} is {str(value.dtype).removeprefix('torch.')}, which has no receipt yet; trace a wider dtype"
        )


def as_array(value: Tensor) -> Array:
    with off():
        value = value.detach().cpu().resolve_conj()
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()
        repeated = value.ndim and not any(value.stride())  # one number, as `kept_aside` keeps zeros
        return (value if repeated else value.contiguous()).numpy()


def kept_aside(value: Tensor) -> Tensor:
    """A copy; of a tensor of zeros, such as the first moments of Adam, one number that stands for all."""
    zeros = value.numel() > 1 and not value.is_complex() and float(value[(0,) * value.ndim]) == 0
    if zeros and not value.contiguous().view(torch.uint8).any():  # to the bit: −0 is another number
        return value.new_zeros(()).expand(value.shape)
    return value.clone()


# ---- operations that only move values: their plan is found by sending the places of their inputs through them


# those that only view memory
VIEWS = set(
    "view _unsafe_view reshape _reshape_alias permute transpose t expand squeeze unsqueeze slice select split "
    "unsafe_split split_with_sizes unbind diagonal unfold".split()
)
DATA = (
    "self",
    "input",
    "data",
    "tensors",
    "src",
    "source",
    "values",
    "value",
    "grad_output",
)  # arguments whose values are moved


# those whose kernels take no whole numbers; and those that put a number where nothing is
REAL = {
    f"{kind}{n}d" for kind in ("reflection_pad", "replication_pad", "upsample_nearest", "_upsample_nearest_exact")
    for n in (1, 2, 3)
}  # fmt: skip
FILLED = {"im2col", "max_unpool2d", "max_unpool3d", "_pad_packed_sequence", "slice_backward", "select_backward"}
# what operations write that their schema does not say
HIDDEN_WRITES = {"native_batch_norm": ("running_mean", "running_var")}
SILENT = {"prim", "profiler", "c10d"}  # operations without arithmetic


def _grouped_products(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> Tensor:
    """A product for each group of rows, or of columns, that `offs` ends, as the products that they are."""
    if offs is None or bias is not None or out_dtype not in (None, x.dtype):
        raise NotImplementedError("_grouped_mm with a bias, with another dtype, or without groups")
    with off():
        ends = offs.tolist()
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    if x.ndim == 2 and y.ndim == 2:
        return torch.stack([torch.mm(x[:, begin:end], y[begin:end]) for begin, end in parts])
    if x.ndim == 2:
        left_out = [x.new_zeros(len(x) - ends[-1], y.shape[-1])]
        return torch.cat([torch.mm(x[begin:end], y[i]) for i, (begin, end) in enumerate(parts)] + left_out)
    return torch.cat([torch.mm(x[i], y[:, begin:end]) for i, (begin, end) in enumerate(parts)], -1)


# fused kernels that are run as plain operations, whose rounding may be another
IN_PARTS = {"_grouped_mm": _grouped_products}


# ---- the tape


BUDGET = 1 << 30  # bytes kept of the inside of blocks, before only their inputs are
Edit = Callable[[Tensor], Tensor]


class TooMuch(Exception):
    """More was recorded than the budget allows."""


class Tape(TorchDispatchMode, Graph):
    """Records while it is entered; afterwards it is the graph of what happened.

    A block of the model can be left closed: then the tape has its inputs and outputs, until it is run again and opened.
    With `opaque` an operation that is not described is a leaf, and `undescribed` says which they were.
    """

    def __init__(self, budget: int | None = None, edits: Mapping[str, Edit] | None = None, opaque: bool = False):
        TorchDispatchMode.__init__(self)
        Graph.__init__(self)
        self.values: list[Tensor | None] = []  # of each node; of one that is only described none
        self.of: dict[int, tuple[int, int]] = {}  # tensor object -> its node, and how many changes of its memory it saw
        self.alive: list[Tensor] = []  # those objects, so that none of their ids is used twice
        self.changes: dict[int, list[tuple[int, Tensor]]] = {}  # memory -> (node, view) written in place
        self.sharing: dict[int, list[int]] = {}  # memory -> the nodes kept in it
        self.path, self.counts = "", {}
        self.leaf_names: dict[int, tuple[list[str], str]] = {}  # names and kinds of parameters, buffers and inputs
        self.fired: dict[str, None] = {}  # names the model itself gave, in order
        self.paused = False
        self.budget, self.bytes = budget, 0
        self.opaque = opaque
        self.undescribed: dict[str, str] = {}  # operation without a rule -> the name of its first value
        self.edits = dict(edits or {})
        self.edited: set[str] = set()
        self._arrays: dict[int, Array] = {}
        self.versions: dict[int, tuple[Tensor, int]] = {}  # leaves, and how often PyTorch had seen them written
        self.blocks: dict[str, tuple[Any, Any, Any]] = {}  # path -> module and arguments, of closed blocks
        self.results: dict[str, list[tuple[int, Any]]] = {}  # path -> the nodes of what it computed, each with a key
        self.opened: dict[str, tuple[int, int, int, int]] = {}  # path -> its nodes, and objects alive, from and to
        self.changed: dict[str, Tensor] = {}  # weights in place of the model's, by name
        self.readout: dict[str, Any] | None = None  # what the readout of the model was given (`lens.py`)
        self.read_out: list[str] = []  # the names of what it computed, in their order
        self._versions: list[tuple[Tensor, int]] = []  # of the arguments of the block that runs

    # ---- what a graph must know

    def stored(self, node: int) -> Array:
        value = self.values[node]
        if value is None:
            raise UserError(f"the values of {self.nodes[node].name} were not kept")
        leaf, version = self.versions.get(node, (None, 0))
        if leaf is not None and leaf._version != version:
            raise UserError(f"{self.nodes[node].name} was changed after this was recorded: record it again")
        if node not in self._arrays:
            self._arrays[node] = as_array(value)
        return self._arrays[node]

    # ---- names

    def name(self, value: Tensor, name: str, named: bool = True) -> str | None:
        """Call the node of this tensor by a name; returns the name it has, with a number if another has it already."""
        if self.paused or not isinstance(value, Tensor):
            return None
        return self.name_node(self.node_of(value), name, named)

    def name_node(self, node: int, name: str, named: bool = True) -> str:
        """Call a node by a name."""
        while name in self.names and self.names[name] != node:
            count = self.counts[name] = self.counts.get(name, 1) + 1
            name = f"{name.split('#')[0]}#{count}"
        self.names[name] = node
        n = self.nodes[node]
        if named and not n.named and (n.plan is not None or n.kind == "constant"):
            n.name = name
        elif named and name != n.name and name not in n.also:
            n.also += (name,)
        n.named |= named
        return name

    def fire(self, name: str, value: Tensor) -> Tensor:
        """Name a value as the model itself names it; the value after its edit."""
        value = self.change(name, value)
        self.name(value, name)
        if name in self.names:
            self.fired[name] = None
        return value

    def change(self, name: str, value: Tensor) -> Tensor:
        """The value after its edit, if it has one; the edited tensor is a new leaf."""
        if not self.edits or self.paused:
            return value
        before = self.node_of(value)
        if self.names.get(name, before) != before:
            name = f"{name}#{self.counts.get(name, 1) + 1}"  # a module called again
        if name not in self.edits or name in self.edited:
            return value
        self.edited.add(name)
        with off():
            new = self.edits[name](value.detach().clone())
            same = ((new == value) | ((new != new) & (value != value))).reshape(-1).cpu().numpy()
        # what the edit did not change still follows from its inputs
        arguments = self._add(new, "edited", "edited", None, f"{name}:edit")
        table = np.arange(new.numel()) + np.where(same, 0, new.numel())
        node = self._add(new, "edit", "move", ("table", self._table(table), [before, arguments]), name)
        self.names[name], self.nodes[node].named = node, True
        return new

    def fresh(self, op: str) -> str:
        """A name for an unnamed value: where it was made, and by what."""
        base = f"{self.path}:{op.strip('_')}" if self.path else op.strip("_")
        count = self.counts[base] = self.counts.get(base, 0) + 1
        return base if count == 1 else f"{base}.{count}"

    # ---- nodes

    def _append(self, node: Node, value: Tensor | None) -> int:
        """The number of a new node."""
        self.nodes.append(node)
        self.names.setdefault(node.name, len(self.nodes) - 1)
        self.values.append(value)
        return len(self.nodes) - 1

    def _add(self, value: Tensor, op: str, kind: str, plan: Plan, name: str | None = None) -> int:
        """A node for a tensor that no node has yet."""
        name = self.fresh(op) if name is None else name
        check_dtype(value, name)
        with off():
            node = self._append(Node(name, op, kind, tuple(value.shape), dtype_of(value), plan), value.detach())
        self._own(value, node)
        return node

    def _own(self, value: Tensor, node: int) -> None:
        memory = memory_of(value)
        self.of[id(value)] = (node, len(self.changes.get(memory, ())))
        self.alive.append(value)
        self.sharing.setdefault(memory, []).append(node)

    def node_of(self, value: Tensor) -> int:
        """The node of a tensor as it now is: one not seen before is a leaf, one whose memory changed is updated."""
        if id(value) not in self.of:
            names, kind = self.leaf_names.get(id(value), ([], "constant"))
            node = self._add(value, kind, kind, None, names[0] if names else self.fresh("const"))
            if not value.is_inference():
                self.versions[node] = value, value._version  # its memory is the model's or the caller's
            self.nodes[node].also = tuple(names[1:])
            self.names |= dict.fromkeys(names[1:], node)
            return node
        before, seen = self.of[id(value)]
        node, changes = before, self.changes.get(memory_of(value), [])
        for source, view in changes[seen:]:
            if view is not value:
                node = self._updated(value, node, source, view)
        if node != before:
            with off():
                self.values[node] = value.detach().clone()
        self.of[id(value)] = (node, len(changes))
        return node

    def _updated(self, value: Tensor, node: int, source: int, view: Tensor) -> int:
        """A tensor after another that shares its memory was written: some of its cells are the other's now."""
        if value.is_complex() != view.is_complex():
            raise UserError("memory written as complex numbers and read as real ones, or the reverse, has no receipt")
        read, written = positions(value), positions(view)
        order = np.argsort(written)
        at = np.clip(np.searchsorted(written[order], read), 0, len(written) - 1)
        hit = written[order][at] == read
        if not hit.any():
            return node
        table = np.where(hit, order[at], view.numel() + np.arange(value.numel()))
        plan = ("table", self._table(table), [source, node])
        name, dtype = self.fresh("update"), self.nodes[node].dtype
        return self._append(Node(name, "update", "move", tuple(value.shape), dtype, plan), None)

    def _table(self, places: Array) -> str:
        key = f"table.{len(self.tables)}"
        self.tables[key] = np.ascontiguousarray(places)
        return key

    # ---- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or func.namespace in SILENT:
            return func(*args, **kwargs)
        schema = func._schema
        op = schema.name.split("::")[1]
        if in_parts := IN_PARTS.get(op):
            with self:
                return in_parts(*args, **kwargs)
        arguments = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        inputs = {name: self._seen(value) for name, value in arguments.items()}
        if written and (not schema.returns or any(r.alias_info for r in schema.returns)):
            return self._in_place(func, op, arguments, inputs, written)
        beside = self._kept(arguments, written or (HIDDEN_WRITES.get(op, ()) if arguments.get("training") else ()))
        out = func(*args, **kwargs)
        outputs = self._record(func, op, inputs, arguments, out)
        for i, (name, before) in enumerate(beside.items(), outputs):
            if not torch.equal(before, arguments[name]):
                node = self._written(arguments[name], f"{op}.{name}")
                self._describe(node, func, op, inputs, arguments, i, node)
        if self.edits and isinstance(out, Tensor):
            # a value that only has the name that the tape gives
            out = self.change(self.nodes[self.of[id(out)][0]].name, out)
        return out

    def _seen(self, value: Any) -> Any:
        """An argument with its tensors as nodes."""
        if isinstance(value, Tensor):
            return In(self.node_of(value), tuple(value.shape), dtype_of(value))
        if isinstance(value, list | tuple):
            return [self._seen(v) for v in value]
        return value

    def _kept(self, arguments: dict[str, Any], names: Iterable[str]) -> dict[str, Tensor]:
        """Copies of the tensors that an operation may write beside its outputs."""
        kept: dict[str, Tensor] = {}
        for name in names:
            if isinstance(value := arguments.get(name), Tensor):
                self._set_aside(memory_of(value))
                with off():
                    kept[name] = value.detach().clone()
        return kept

    def _record(self, func: Any, op: str, inputs: dict[str, Any], arguments: dict[str, Any], out: Any) -> int:
        """Nodes for the outputs of an operation; how many it has."""
        outs = [o for o in (out if isinstance(out, list | tuple) else [out]) if isinstance(o, Tensor)]
        first = len(self.nodes)
        for i, o in enumerate(outs):
            if id(o) in self.of and self.node_of(o) < first:
                continue  # returned unchanged
            node = self._add(o, op, "", None)
            if o.numel():
                self._describe(node, func, op, inputs, arguments, i, node)
            if not self.nodes[node].moves:
                self.bytes += o.numel() * o.element_size()
                if self.budget is not None and self.bytes > self.budget:
                    raise TooMuch
        return len(outs)  # none where it is a size or a truth, read by Python itself

    def _describe(self, node: int, func: Any, op: str, inputs: dict[str, Any], arguments: Any, i: int, me: int) -> None:
        """Give a node its plan; where there is no rule it is refused, or left as a leaf."""
        n = self.nodes[node]
        try:
            self._plan(node, func, op, inputs, arguments, i, me)
            n.plan = rounded_steps(n, n.plan)
        except UserError as error:
            if not self.leaves_out:
                raise UserError(f"{error}; with opaque=True it is a leaf, of which only the values are known") from None
            self._leave(n, op)

    @property
    def leaves_out(self) -> bool:
        """Whether an operation that is not described is a leaf."""
        return self.opaque

    def _leave(self, n: Node, op: str) -> None:
        n.kind, n.plan = "undescribed", None
        self.undescribed.setdefault(op, n.name)

    def _plan(self, node: int, func: Any, op: str, inputs: dict[str, Any], arguments: Any, i: int, me: int) -> None:
        n = self.nodes[node]
        call = Call(
            op,
            inputs,
            n.shape,
            n.dtype,
            i,
            me,
            read=lambda x: self.value(x.node),
            again=lambda: self._moved(func, inputs, arguments, i),
            run=lambda **changed: self._run(func, arguments | changed),
            table=self._table,
            beside=lambda name, plan, shape, dtype, value=None: self._beside(node, name, plan, shape, dtype, value),
            device=next((a.device.type for a in arguments.values() if isinstance(a, Tensor)), "cpu"),
        )
        if op not in RULES:
            raise UserError(f"the operation {op} (at {n.name}) has no receipt yet")
        n.kind, rule = RULES[op]
        try:
            plan = rule(call)
        except NotImplementedError as error:
            raise UserError(f"the operation {op} (at {n.name}) has no receipt for {error}") from None
        n.kind, n.plan = (plan, None) if isinstance(plan, str) else (n.kind, plan)

    def _run(self, func: Any, arguments: dict[str, Any]) -> Any:
        with off():
            return func(**arguments)

    def _beside(self, node: int, name: str, plan: Plan, shape: Any, dtype: str, value: Any) -> int:
        """A node that another's plan is written with: that one in another shape, a constant, or what only moves."""
        n = self.nodes[node]
        if isinstance(value, np.ndarray):
            return self._add(torch.as_tensor(value).to(getattr(torch, dtype)), name, "constant", None)
        if name == "folded":
            own, plan = self.values[node], rounded_steps(n, plan)
            assert own is not None
            with off():
                own = own.reshape(shape)
            return self._add(own, n.op, n.kind, plan, self.fresh(name))
        return self._append(Node(self.fresh(name), n.op, "move", tuple(shape), dtype, plan), None)

    def _moved(self, func: Any, inputs: dict[str, Any], arguments: dict[str, Any], which: int) -> Plan:
        """The plan of one output: strides where it is a view, else a table of places in the inputs laid end to end."""
        if func is None:
            raise NotImplementedError("a form of it that only writes in place")
        if func._schema.overload_name == "dtype":
            raise NotImplementedError("the same bits read as another dtype")
        if arguments.get("accumulate") or arguments.get("reduce"):
            raise NotImplementedError("places that are added to")
        data = [name for name in DATA if tree_any(lambda x: isinstance(x, In), inputs.get(name))]
        op = func._schema.name.split("::")[1]
        if op in VIEWS and data == ["self"]:
            x = inputs["self"]
            with off():
                out = func(**{**arguments, "self": torch.empty(x.shape, device="meta")})
            out = out[which] if isinstance(out, list | tuple) else out
            return ("ref", x.node, int(out.storage_offset()), list(out.stride()), [])
        sources: list[int] = []
        start = 0
        if op in FILLED:  # the place 0 is of a zero, which is where nothing is
            empty = torch.tensor(arguments.get("padding_value", 0), dtype=getattr(torch, inputs[data[0]].dtype))
            sources.append(self._add(empty, "constant", "constant", None))
            arguments, start = {**arguments, "padding_value": 0} if op == "_pad_packed_sequence" else arguments, 1

        def numbered(x: Any) -> Any:
            nonlocal start
            if isinstance(x, list):
                return [numbered(inner) for inner in x]
            sources.append(x.node)
            begin, start = start, start + int(np.prod(x.shape, dtype=np.int64))
            places = torch.arange(begin, start).reshape(x.shape)
            places = places.double() if op in (*REAL, *FILLED) else places
            return laid_like(places, arguments["self"]) if op == "as_strided" else places

        with off():
            args = {
                name: tree_map_only(Tensor, Tensor.cpu, value) for name, value in arguments.items() if name != "out"
            }
            if op == "constant_pad_nd":
                args.setdefault("value", 0)
            args |= {name: numbered(inputs[name]) for name in data}
            for name in ("value", "fill_value"):
                if isinstance(args.get(name), int | float):
                    constant = torch.full((), float(args[name]), dtype=arguments["self"].dtype)
                    sources.append(self._add(constant, "constant", "constant", None))
                    args[name], start = start, start + 1
            out = func(**args)
        out = out[which] if isinstance(out, list | tuple) else out
        return ("table", self._table(out.numpy().reshape(-1).astype(np.int64)), sources)

    def _in_place(
        self, func: Any, op: str, arguments: dict[str, Any], inputs: dict[str, Any], written: list[str]
    ) -> Any:
        """An operation that writes into its argument: what was recorded of that memory is copied first."""
        if len(written) != 1 or not isinstance(arguments[written[0]], Tensor):
            return self._several_written(func, op, arguments, [arguments[name] for name in written])
        target, plain = arguments[written[0]], op.removesuffix("_")
        self._set_aside(memory_of(target))
        with off():
            out = func(**arguments)
        node = self._written(target, plain)
        read = {k: v for k, v in inputs.items() if k != "out"}
        self._describe(node, functional(func), plain, read, arguments, 0, node)
        return out

    def _several_written(self, func: Any, op: str, arguments: dict[str, Any], written: list[Any]) -> Any:
        if not self.leaves_out:
            raise UserError(
                f"the operation {op} writes into several tensors at once, which no receipt can show; with opaque=True "
                "they are leaves, of which only the values are known"
            )
        targets = [t for one in written for t in (one if isinstance(one, list | tuple) else [one]) if t is not None]
        for target in targets:
            self._set_aside(memory_of(target))
        with off():
            out = func(**arguments)
        for target in targets:
            self._leave(self.nodes[self._written(target, op.removesuffix("_"))], op)
        return out

    def _written(self, target: Tensor, op: str, plan: Plan = None, kind: str = "update") -> int:
        """The node of a tensor that was written in place."""
        memory = memory_of(target)
        node = self._append(
            Node(self.fresh(op), op, kind, tuple(target.shape), dtype_of(target), plan), target.detach()
        )
        self.sharing.setdefault(memory, []).append(node)
        self.changes.setdefault(memory, []).append((node, target))
        self.of[id(target)] = (node, len(self.changes[memory]))
        return node

    def _set_aside(self, memory: int) -> None:
        """Copy what was recorded of this memory, which is about to be written."""
        with off():
            for node in self.sharing.pop(memory, []):
                value = self.values[node]
                if value is not None and memory_of(value) == memory:
                    # what only moves is read where its values came from
                    self.values[node] = None if self.nodes[node].moves else kept_aside(value)
                    self._arrays.pop(node, None)  # it was a view of that memory
                    self.versions.pop(node, None)

    # ---- blocks left closed

    def copied(self, value: Tensor) -> Tensor:
        """A copy of the tensor in its own memory, known as the same node."""
        return self.copy_of(self.node_of(value))

    def copy_of(self, node: int) -> Tensor:
        """A copy of the values of a node, known as that node."""
        value = self.values[node]
        if value is None:
            raise UserError(f"the values of {self.nodes[node].name} were not kept")
        with off():
            new = value.detach().clone()
        self._own(new, node)
        return new

    def close_block(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Keep the arguments of a block and record no further until it is left; the arguments it is to run on."""
        copies = mapped((args, kwargs), "", lambda _, tensor: self.copied(tensor))
        self.blocks[path], self.paused = (module, *copies), True
        self._versions = [(tensor, tensor._version) for _, tensor in tensors((args, kwargs), "")]
        return args, kwargs

    def leave_block(self, path: str, out: Any) -> Any:
        """Record the outputs of a block, without its inside; what the model goes on with."""
        self.paused = False
        if any(tensor._version != version for tensor, version in self._versions):
            raise UserError(f"{path} writes into its input or a buffer, so it cannot be left closed: use keep='all'")
        self.results[path] = []
        for i, (_, tensor) in enumerate(tensors(out, "")):
            if id(tensor) not in self.of:
                self._closed(path, i, tensor, path if not i else f"{path}.{i}")
                self.nodes[-1].named = True
            else:
                self.results[path].append((self.of[id(tensor)][0], i))
        return out

    def _closed(self, path: str, key: Any, value: Tensor, name: str) -> int:
        """A node for a tensor that a closed block computed."""
        node = self._add(value, "block", "block", ("block", path, key), name)
        self.results[path].append((node, key))
        return node

    def block_opened(self, path: str, computed: Mapping[Any, Tensor], begun: tuple[int, int]) -> None:
        """Its inside is now recorded: what it computed follows from it, if that is the same to the last bit.

        `begun` counts the nodes and the objects alive when it began.
        """
        for node, key in self.results[path]:
            before, again = self.values[node], computed[key]
            if before is None or not torch.equal(torch.nan_to_num(before), torch.nan_to_num(again)):
                raise UserError(f"{path} gave other values when it was run again, so its inside cannot be shown")
            inner = self.node_of(again)
            if inner != node:
                made, n = self.nodes[inner], self.nodes[node]
                n.plan, n.op, n.kind = made.plan, made.op, made.kind
                made.named, made.also = False, ()
                own = path.split("#")[0]  # which the closed node is called already
                self.names = {
                    name: node if i == inner else i
                    for name, i in self.names.items()
                    if i != inner or name.split("#")[0] != own
                }
        self.opened[path] = (begun[0], len(self.nodes), begun[1], len(self.alive))

    def forget(self, path: str) -> None:
        """Drop the inside of an opened block; it can be opened again."""
        begun, end, first, last = self.opened.pop(path)
        for node, key in self.results[path]:
            n = self.nodes[node]
            n.plan, n.op, n.kind = ("block", path, key), "block", "block"
        inside = set(range(begun, end))
        for node in inside:
            self.values[node], self.nodes[node].named = None, False
            self._arrays.pop(node, None)
        for value in self.alive[first:last]:
            self.of.pop(id(value), None)
        self.alive[first:last] = [torch.empty(0)] * (last - first)
        results = {node for node, _ in self.results[path]}
        outside = {k: v for k, v in self.names.items() if v not in inside}
        self.names = {k: v for k, v in outside.items() if v not in results or not k.startswith(f"{path}.")}
