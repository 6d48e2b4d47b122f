"""What each part of a model added to one number of its output: terms that sum to it, each divided further on demand.

The model is run again with its nonlinear parts held at their recorded values, so that it is affine. An output is then
a sum over what was added to it directly: by each head, by each MLP, by embeddings, positions and biases. A head
divides into the tokens it read, a token into what had written it, an embedding of a patch into its pixels.

Two passes. The first is the recorded one: it keeps what is held. The second is in double precision: each norm has the
1/σ of the first, each activation its ratio act(u)/u, attention its pattern, a gated MLP its SiLU(gate), and adaLN its
scales and gates. What is left are products with constants and sums, so an output is the sum of what each source
(a token, a pixel, a position, a bias, …) adds to it, and a gradient says how much.
"""

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..config import UserError
from ..core import layers
from ..core.embed import Tokens
from ..core.layers import evaluating
from .address import Label, address, occurrence, parse
from .graph import ROUNDING
from .receipt import format_number
from .recording import EveryValue, TracedModel, mapped, parameters_and_buffers, tensors
from .tape import Edit, Tape
from .trace_base import TraceBase

# a trace that still has its model: live_trace.py gives it contributions, so its class cannot be imported here
LiveTrace = Any

# ---- the rules by which a nonlinear part is held at what it was in a recorded pass
# Some named values are constants; the nonlinear functions are replaced, each by an affine one that gives the recorded
# result for the recorded input.


# values that are held, by the last part of their names, and the sentence that tells it
CONSTANT = {
    "pattern": "Every attention pattern is held at its recorded value.",
    "gate": "The activation of the gate in every gated MLP is held at its recorded value.",
}
ADALN = "The scales and gates of adaLN are held at their recorded values; its shifts are parts of the condition."
CONSTANT |= dict.fromkeys(("scale_attn", "scale_mlp", "gate_attn", "gate_mlp", "last_scale"), ADALN)
NORM = "1/σ of every norm is held at its recorded value."
RATIO = "The ratio act(u)/u of every activation is held at its recorded value."
TANH = "The ratio tanh(u)/u of the pooled vector is held at its recorded value."


def _layer_norm(
    seen: Tensor, _: Tensor, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
):
    over = tuple(range(-len(shape), 0))
    inverse = (seen.var(over, correction=0, keepdim=True) + eps).rsqrt()
    x = (x - x.mean(over, keepdim=True)) * inverse
    x = x if weight is None else x * weight.detach()
    return x if bias is None else x + bias


def _rms_norm(seen: Tensor, _: Tensor, x: Tensor, shape: Any, weight: Any = None, eps: float | None = None):
    over = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    x = x * (seen.square().mean(over, keepdim=True) + eps).rsqrt()
    return x if weight is None else x * weight.detach()


def _ratio(slope: float) -> Callable[..., Tensor]:
    """x·(f(u)/u) for the recorded u; at u = 0 the ratio is its limit, the slope there."""

    def rule(seen: Tensor, out: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x * torch.where(seen == 0, slope, out / seen)

    return rule


RULES: dict[Any, tuple[str, Callable[..., Tensor]]] = {
    F.layer_norm: (NORM, _layer_norm),
    F.rms_norm: (NORM, _rms_norm),
    F.gelu: (RATIO, _ratio(0.5)),
    F.silu: (RATIO, _ratio(0.5)),
    F.relu: (RATIO, _ratio(0.0)),
    torch.tanh: (TANH, _ratio(1.0)),
}


class Keep(TorchFunctionMode):
    """Keeps what every nonlinear function was given and gave, in order."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Any, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in RULES:
            self.calls.append((func, args[0].detach(), out.detach()))
        return out


class Hold(TorchFunctionMode):
    """Replaces every nonlinear function by its rule, with what was kept of the same call."""

    def __init__(self, calls: list[tuple[Any, Tensor, Tensor]]):
        super().__init__()
        self.calls, self.sentences = iter(calls), dict[str, None]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in RULES:
            return func(*args, **(kwargs or {}))
        before, seen, out = next(self.calls)
        assert before is func, "the second pass is not the first"
        sentence, rule = RULES[func]
        if args[0].requires_grad:
            self.sentences[sentence] = None
        return rule(double(seen), double(out), *args, **(kwargs or {}))


def double(value: Tensor) -> Tensor:
    return value.detach().cpu().double() if value.is_floating_point() else value.cpu()


# ---- the two passes


class _Gates:
    """Whether gradients pass the gates; an object of its own, so that no graph holds itself in memory."""

    open = False


class _Gate(torch.autograd.Function):
    """The same value; a gradient passes only while the gates are open."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gates: _Gates) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.gates = gates
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad if ctx.gates.open else None, None


@dataclass(eq=False)
class Leaf:
    """A value that is a part of the output: a source, or one that divides further (`before` is how it was computed)."""

    name: str
    kind: str  # head, value, mlp, token, patch, pixel, position, condition, parameter, input or edit
    value: Tensor
    before: Tensor | None = None
    shown: str = ""  # the name of the recorded tensor that shows it
    ids: Tensor | None = None  # of rows of a table: which


OF_HEADS = {"z": "head", "v": "value", "v_all": "value"}
OF_MODULES = {"mlp.act": "mlp", "patches.out": "patch", "patches.fold": "pixel", "time.sinusoids": "timestep"}


def _kind(name: str, value: Tensor) -> str:
    """What kind of part the value of this name is; of most names none."""
    path, _, last = name.rpartition(".")
    module = path.rpartition(".")[2]
    if value.ndim == 4 and last in OF_HEADS:
        return OF_HEADS[last]
    if last == "embedding" and module.endswith("positions"):
        return "position"
    return "condition" if name == "condition" else OF_MODULES.get(f"{module}.{last}", "")


class LinearizedModel:
    """The second pass of a recorded model: its leaves, and the gradient of any value with respect to them."""

    def __init__(self, traced: TracedModel):
        model = traced.model
        if not (isinstance(model, nn.Module) and traced.probed):
            raise UserError("contributions need a model that names its values with a probe, as Pencil's models do")
        self.gates, self.leaves = _Gates(), list[Leaf]()
        self.values: dict[str, Tensor] = {}
        self.constants: dict[str, Tensor] = {}
        self.sentences: dict[str, None] = {}
        self.unshown: list[Leaf] = []
        self.edits: dict[str, Edit] = dict(traced.edits)  # those that were not made yet
        self.changed: dict[str, tuple[Tensor, Tensor]] = {}  # which cells an edit changed, and the values it gave
        keep = Keep()
        weights = parameters_and_buffers(model)
        edited = {n: traced.edits[n](weights[n].detach().clone()) for n in traced.edits if n in weights}
        inputs, keywords = traced.arguments(Tape(None, traced.edits))
        with _plainly(model), torch.no_grad(), keep:
            functional_call(model, edited, inputs, {**keywords, "probe": EveryValue(self._keep)})
        copy = deepcopy(model).cpu().double()
        self._prepare(copy, edited)
        inputs, keywords = self._inputs(inputs, keywords, traced)
        hold = Hold(keep.calls)
        with _plainly(copy), torch.enable_grad(), _plain_gelu(), hold:
            out = copy(*inputs, **keywords, probe=EveryValue(self._hold))
        for name, value in tensors(out, ""):
            self.values.setdefault(name or "output", value)
        self.sentences |= hold.sentences

    def _keep(self, name: str, value: Tensor) -> Tensor:
        """In the first pass: keep the values that are held, and which cells an edit changed."""
        if change := self.edits.pop(name, None):
            new = change(value.detach().clone())
            self.changed[name] = (new != value).cpu(), double(new)
            value = new
        if name.rsplit(".", 1)[-1] in CONSTANT:
            self.constants[name] = double(value)
        return value

    def _hold(self, name: str, value: Tensor) -> Tensor:
        """In the second pass: those values, and leaves of the others that are parts of the output."""
        if name in self.constants:
            self.sentences[CONSTANT[name.rsplit(".", 1)[-1]]] = None
            return self.constants[name]
        if not value.is_floating_point():
            return value
        kind = _kind(name, value)
        if name in self.changed:
            where, new = self.changed.pop(name)
            if value.requires_grad or kind:
                new = self.source(f"edit of {name}", "edit", new, name)
            value = torch.where(where, new, value)
        for leaf in [
            leaf for leaf in self.unshown if leaf.value.shape[:-1] == value.shape[:-1] and value.requires_grad
        ]:
            leaf.shown = name
            self.unshown.remove(leaf)
        self.values[name] = value
        if kind in ("pixel", "position", "timestep"):
            return self.source(name, kind, value, name)
        return self.cut(name, kind, value) if kind else value

    def _prepare(self, copy: nn.Module, edited: Mapping[str, Tensor]) -> None:
        """Parameters that are added are sources; those that multiply are constants, and a table gives its rows."""
        for name, value in edited.items():
            parameters_and_buffers(copy)[name].data.copy_(value)
        copy.requires_grad_(False)
        for path, module in copy.named_modules():
            place = f"{path}." if path else ""
            table = isinstance(module, Tokens | nn.Embedding)
            for name, parameter in module.named_parameters(recurse=False):
                if not (name == "weight" and (isinstance(module, nn.Linear) or hasattr(module, "SYMBOL"))):
                    parameter.requires_grad_(True)
                    self.leaves.append(Leaf(place + name, "parameter", parameter, shown=place + name))
            if table:
                self._table(path or "table", module)

    def _table(self, path: str, module: Any) -> None:
        weight = module.weight.detach()

        def rows(tokens: Tensor) -> Tensor:
            embedded = self.source(path, "token", F.embedding(tokens, weight), "")
            self.leaves[-1].ids = tokens
            self.unshown.append(self.leaves[-1])
            return embedded

        module.forward = rows
        module.logits = lambda x: F.linear(x, weight)  # the tied head multiplies by the table

    def _inputs(self, inputs: Any, keywords: Any, traced: TracedModel) -> tuple[Any, Any]:
        """The inputs in double precision; those that are no indices are sources."""
        own = {*traced.declared, *traced.symbols}

        def ready(name: str, value: Tensor) -> Tensor:
            value = double(value)
            shown = f"given.{name}" if name in own else name
            return self.source(name, "input", value, shown) if value.is_floating_point() else value

        names = [*traced.takes, *(f"input.{i}" for i in range(len(traced.takes), len(inputs)))]
        placed = tuple(mapped(value, name, ready) for value, name in zip(inputs, names, strict=False))
        return placed, {name: mapped(value, name, ready) for name, value in keywords.items()}

    def source(self, name: str, kind: str, value: Tensor, shown: str) -> Tensor:
        """A leaf that divides no further."""
        leaf = Leaf(self._fresh(name), kind, value.detach().clone().requires_grad_(), shown=shown)
        self.leaves.append(leaf)
        return leaf.value

    def cut(self, name: str, kind: str, value: Tensor) -> Tensor:
        """A leaf that divides further: gradients end here, unless the gates are open."""
        if not value.requires_grad:
            return self.source(name, kind, value, name)
        leaf = Leaf(self._fresh(name), kind, _Gate.apply(value, self.gates), value, name)  # pyright: ignore[reportArgumentType]
        self.leaves.append(leaf)
        return leaf.value

    def _fresh(self, name: str) -> str:
        same = sum(leaf.name.split("#")[0] == name for leaf in self.leaves)
        return f"{name}#{same + 1}" if same else name

    def gradients(self, of: Tensor, weights: Tensor) -> Iterator[tuple[Leaf, Tensor]]:
        """Σ of·weights by each leaf that it depends on directly, not by way of other leaves."""
        leaves = [leaf.value for leaf in self.leaves]
        grads = torch.autograd.grad(of, leaves, weights, retain_graph=True, allow_unused=True)
        for leaf, grad in zip(self.leaves, grads, strict=True):
            if grad is not None and bool((grad != 0).any()):
                yield leaf, grad

    def over_all_paths(self, of: Tensor, weights: Tensor) -> Iterator[tuple[Leaf, Tensor]]:
        """Σ of·weights by each source, by way of everything between: what is held is affine, so the sum is exact."""
        sources = [leaf for leaf in self.leaves if leaf.before is None]
        self.gates.open = True
        try:
            grads = torch.autograd.grad(
                of, [leaf.value for leaf in sources], weights, retain_graph=True, allow_unused=True
            )
        finally:
            self.gates.open = False
        for leaf, grad in zip(sources, grads, strict=True):
            if grad is not None and bool((grad != 0).any()):
                yield leaf, grad

    def size_of_rounding(self, of: Tensor, weights: Tensor) -> float:
        """Σ|gradient·value| over everything on the way to a number: times the relative rounding, its error.

        Each value is off by about its own size times that; a long sum by more, but not all cells in one direction.
        """
        values = [value for value in self.values.values() if value.requires_grad]
        values += [leaf.value for leaf in self.leaves]
        self.gates.open = True
        try:
            grads = torch.autograd.grad(of, values, weights, retain_graph=True, allow_unused=True)
        finally:
            self.gates.open = False
        total = 0.0
        for value, grad in zip(values, grads, strict=True):
            if grad is not None:
                total += float((grad * value.detach()).abs().sum())
        return total


@contextmanager
def _plainly(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, outside inference mode; as it was afterwards."""
    with evaluating(model.modules()), torch.inference_mode(False):
        yield


@contextmanager
def _plain_gelu() -> Iterator[None]:
    """GELU as the library's function, which can be replaced; ours with a faster gradient cannot."""
    layers._Gelu.apply = F.gelu  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del layers._Gelu.apply


# ---- a part of a sum, and parts as a table


SHOWN = 12  # parts of a table
SHARES = "The percentages are of the sum of the absolute contributions."
Row = tuple[str, str, str, str]


class Part:
    """One term of a sum: `value` of it, by `label` and `kind`.

    `share` is its size among those beside it, |value|/Σ|value|. `cell` is the address of a recorded number that shows
    it: of a head, a bias or an embedding the cell that adds most, of a token the weight of attention that read it.
    `members` are those that a block is made of.
    """

    def __init__(self, id: str, label: str, kind: str, value: float, cell: str | None, members: "Sequence[Part]" = ()):
        self.id, self.label, self.kind, self.value, self.cell = id, label, kind, value, cell
        self.members, self.share = list(members), 0.0

    @cached_property
    def parts(self) -> "list[Part]":
        """What it is made of, largest first; nothing if it divides no further."""
        return self.members

    @property
    def count(self) -> int:
        """How many parts it has at most, without working them out; 0 if it divides no further."""
        return len(self.members)

    def largest(self, count: int = SHOWN) -> "list[Part]":
        return self.parts[:count]

    def __repr__(self) -> str:
        return "\n".join([f"{self.label}: {format_number(self.value, 4)}", *lines(self.parts)])

    def _repr_html_(self) -> str:
        return html_table(f"{self.label}: {format_number(self.value, 4)}", self.parts)


def block_part(id: str, label: str, members: Sequence[Part]) -> Part:
    """All that one block added itself."""
    first = max(members, key=lambda member: abs(member.value))
    return Part(
        id, label, "block", sum(member.value for member in members), first.cell, shared(list(map(copy, members)))
    )


def shared(parts: Sequence[Part]) -> list[Part]:
    """Largest first, each with its share."""
    size = sum(abs(part.value) for part in parts) or 1.0
    for part in parts:
        part.share = abs(part.value) / size
    return sorted(parts, key=lambda part: -abs(part.value))


def rows(parts: Sequence[Part], count: int = SHOWN, digits: int = 4) -> list[Row]:
    """Value, share, label and cell of the largest parts, and of the others together."""
    table = [
        (format_number(part.value, digits), f"{part.share:.1%}", part.label, part.cell or "") for part in parts[:count]
    ]
    rest = parts[count:]
    if rest:
        total, share = sum(part.value for part in rest), sum(part.share for part in rest)
        table.append((format_number(total, digits), f"{share:.1%}", f"{len(rest)} more, together", ""))
    return table


def lines(parts: Sequence[Part]) -> list[str]:
    cells = rows(parts)
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(3)]
    table = [f"{a:>{widths[0]}}  {b:>{widths[1]}}  {c:{widths[2]}}  {d}".rstrip() for a, b, c, d in cells]
    return [*table, SHARES] if table else []


def html_table(title: str, parts: Sequence[Part]) -> str:
    lines = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(parts, len(parts)))
    return f"<p>{escape(title)}</p><table>{''.join(lines)}</table><p>{SHARES if parts else ''}</p>"


# ---- what the parts of an output are called, what kind they are, and which recorded number shows them


Index = tuple[int, ...]
PARTS = {"cross": "cross-attention"}
# the axes along which leaves of a kind fall into parts
GROUPS: dict[str, tuple[int, ...]] = {
    "mlp": (),
    "condition": (),
    "timestep": (),
    "edit": (),
    "head": (1,),
    "value": (0, 2),
}
KINDS = {kind: kind for kind in ("head", "mlp", "pixel", "position", "condition")}
KINDS |= {"token": "embedding", "patch": "embedding", "timestep": "condition", "input": "embedding"}
GRID = re.compile(r"(patch|place|frames?) \d")  # what patches are called, in an image and in groups of patches
# parameters that are added, by their symbols; one that is missing here keeps its symbol
WORDS = {
    "b_O": "bias of the attention's output", "b_V": "bias of the values", "b₁": "bias of the MLP's first layer",
    "b₂": "bias of the MLP's second layer", "b_up": "bias of the MLP's first layer",
    "b_gate": "bias of the MLP's gate", "b_down": "bias of the MLP's second layer",
    "b_patch": "bias of the patch embedding", "b_class": "bias of the classes",
    "b_dist": "bias of the distilled classes", "b_vocab": "bias of the vocabulary", "b_out": "bias of the output",
    "b_map": "bias of the head's first layer", "b_proj": "bias of the projection", "b_pool": "bias of the pooling",
    "b_ada": "bias of the modulation", "b_last": "bias of the last modulation",
    "b_t1": "bias of the timestep's first layer", "b_t2": "bias of the timestep's second layer",
    "T_img": "type embedding (image)", "T_txt": "type embedding (text)", "T_type": "type embedding",
    "z_cls": "class token", "z_reg": "register token", "c_∅": "embedding of no text", "[IMG]": "embedding of [IMG]",
    "[/IMG]": "embedding of [/IMG]",
}  # fmt: skip
NORMS = {"attn_norm": "attention", "cross_norm": "cross-attention", "mlp_norm": "MLP", "head.norm": "head"}
INNER = re.compile(r"(?:^|\.)blocks\.\d+(?=\.|$)")


def block_of(name: str) -> str:
    """The path of the block that a value belongs to, if it belongs to one."""
    match = INNER.search(name)
    return name[: match.end()] if match else ""


class Tree:
    """Divides numbers of a linearized model into parts, and names them in the words of its trace."""

    def __init__(self, trace: LiveTrace, model: LinearizedModel):
        self.trace, self.model = trace, model
        self.traced_model: TracedModel = trace.traced_model
        declared = self.traced_model.declared
        self.tails = {name.partition(".")[2]: entry for name, entry in declared.items() if "." in name}

    def divide(
        self, of: Tensor, weights: Tensor, value: float, label: str, parent: "LeafPart | None" = None
    ) -> list[Part]:
        """The parts of Σ of·weights, largest first. They sum to it, or an error says that they do not."""
        parts: list[LeafPart] = []
        for leaf, grad in self.model.gradients(of, weights):
            axes = self.groups(leaf)
            others = [axis for axis in range(grad.ndim) if axis not in axes]
            rows = [grad.shape[axis] for axis in axes]
            # a row for each part, its cells along it
            weighed = grad.permute(*axes, *others).reshape(prod(rows), -1)
            products = weighed * leaf.value.detach().permute(*axes, *others).reshape(prod(rows), -1)
            values, sizes = products.sum(1).tolist(), products.abs()
            most, sizes = sizes.argmax(1).tolist(), sizes.sum(1).tolist()
            for row in (weighed != 0).any(1).nonzero()[:, 0].tolist():
                index = tuple(int(i) for i in np.unravel_index(row, rows)) if rows else ()
                parts.append(LeafPart(self, leaf, index, grad, parent, values[row], sizes[row], most[row]))
        total, size = sum(part.value for part in parts), sum(part.size for part in parts)
        if not abs(total - value) <= EXACT * max(size, abs(value)):
            raise UserError(
                f"the parts of {label} sum to {total:.6g}, and it is {value:.6g}: this model has a nonlinear part that "
                "contributions do not know how to hold"
            )
        return shared(parts)

    def groups(self, leaf: Leaf) -> tuple[int, ...]:
        """The axes along which a leaf falls into parts; it is summed over the others."""
        axes = tuple(range(leaf.value.ndim))
        # a pixel is one number; of a token, a patch, a position or a table a row is a part
        return GROUPS.get(leaf.kind, axes if leaf.kind == "pixel" else axes[:-1])

    def kind(self, leaf: Leaf, index: Index) -> str:
        match leaf.kind:
            case "value":
                return "patch" if GRID.match(self._word(leaf, 2, index[1])) else "token"
            case "parameter":
                module = self.traced_model.model.get_submodule(leaf.name.rpartition(".")[0])
                return "norm" if hasattr(module, "SYMBOL") else "embedding" if leaf.value.ndim > 1 else "bias"
            case "token" if leaf.value.ndim == 2:
                return "condition"
        return KINDS.get(leaf.kind, "rest")

    def label(self, leaf: Leaf, index: Index) -> str:
        match leaf.kind:
            case "head":
                return _dotted(self.place(leaf.name), f"head {sum(index) + 1}")
            case "mlp":
                return _dotted(self.place(leaf.name), "MLP")
            case "input":
                return address(leaf.name, index)
            case "value":
                row = self._axis(leaf, 0, index[0]) if self._letter(leaf, 0) not in ("", "B") else ""
                return _dotted(row, self._word(leaf, 2, index[1]))
            case "pixel":
                return self._pixel(leaf, index)
            case "parameter":
                return self._parameter(leaf, index)
            case "token" | "patch" | "position" if len(index) > 1:
                return f"{self._what(leaf)} of {self._word(leaf, len(index) - 1, index[-1])}"
            case "token":
                return leaf.shown or leaf.name
            case "timestep":
                return "timestep"
        return leaf.name

    def _what(self, leaf: Leaf) -> str:
        if leaf.kind == "position":
            return "position"
        symbol = self.traced_model.symbols.get(f"{leaf.name.split('#')[0]}.weight", "E")
        return "embedding" if symbol.startswith("E") else WORDS.get(symbol, symbol)

    def place(self, name: str) -> str:
        """Where a value is: block 2, encoder block 1, block 2 · cross-attention."""
        block = block_of(name)
        if not block:
            return ""
        before, _, number = block.rpartition("blocks.")
        words = [*before.rstrip(".").split("."), f"block {int(number) + 1}"]
        inside = name[len(block) + 1 :].split(".")[0]
        return _dotted(" ".join(filter(None, words)), PARTS.get(inside, ""))

    def cell(self, leaf: Leaf, at: Index) -> str | None:
        """The address of a cell of the recorded tensor that a leaf is shown by."""
        name = leaf.shown
        if leaf.kind == "pixel":
            fold = leaf.value.shape
            sides = (*fold[:2], *(a * b for a, b in zip(fold[2::2], fold[3::2], strict=True)))
            inputs = [n.name for n in self.trace.graph.nodes if n.kind == "input" and n.shape == sides]
            if inputs:
                where = (a * size + b for a, b, size in zip(at[2::2], at[3::2], fold[3::2], strict=True))
                return address(inputs[0], (*at[:2], *where))
        return address(name, at) if name else None

    def _pixel(self, leaf: Leaf, index: Index) -> str:
        sizes = leaf.value.shape[3::2]
        *frame, row, column = (a * size + b + 1 for a, b, size in zip(index[2::2], index[3::2], sizes, strict=True))
        channel = f", channel {index[1] + 1}" if leaf.value.shape[1] > 1 else ""
        return "".join(f"frame {number}, " for number in frame) + f"pixel {row},{column}{channel}"

    def _parameter(self, leaf: Leaf, index: Index) -> str:
        path, _, last = leaf.name.rpartition(".")
        # the place says already that it is of cross-attention
        symbol = self.traced_model.symbols.get(leaf.name, last).replace(",src", "")
        rows, parts = prod(leaf.value.shape[:-1]), symbol.split(" ")
        if symbol == "[b_Q b_K b_V]":
            symbol = "b_V"  # q and k act on the pattern, which is held
        elif rows > 1:
            row = int(np.ravel_multi_index(index, leaf.value.shape[:-1]))
            symbol = parts[row] if len(parts) == rows else f"{WORDS.get(symbol, symbol)} {row + 1}"
        norm = hasattr(self.traced_model.model.get_submodule(path), "SYMBOL")
        what = f"{symbol} of {_norm(path)}" if norm else WORDS.get(symbol, symbol)
        return _dotted(self.place(leaf.name), what)

    def _letter(self, leaf: Leaf, axis: int) -> str:
        name = leaf.shown or leaf.name
        entry = self.traced_model.declared.get(name) or self.tails.get(name.partition(".")[2])
        letters = entry.axes.split() if entry else []
        if leaf.kind == "token" and len(letters) == leaf.value.ndim - 1:
            letters = [*letters, ""]
        return letters[axis] if axis < len(letters) else ""

    def _axis(self, leaf: Leaf, axis: int, index: int) -> str:
        letter, count = self._letter(leaf, axis), leaf.value.shape[axis]
        labels = self.trace.labels_along(letter, count, leaf.shown or leaf.name) if letter else None
        return labels[index] + occurrence(labels, index) if labels else ""

    def _word(self, leaf: Leaf, axis: int, index: int) -> str:
        """A token by its label: a patch as it is called, a word in quotation marks."""
        word = self._axis(leaf, axis, index)
        if not word:
            return f"patch {index + 1}" if leaf.kind == "patch" else f"token {index + 1}"
        return word if GRID.match(word) else f"“{word}”"


def _dotted(*words: str) -> str:
    return " · ".join(filter(None, words))


def _norm(path: str) -> str:
    """A norm by what it is of; the last one of the model, or of its encoder, by its place."""
    before, _, last = path.rpartition(".")
    owner = NORMS.get(last) or NORMS.get(f"{before.rpartition('.')[2]}.{last}")
    if owner:
        return f"the {owner}'s norm"
    if last == "norm":
        return f"the {before}'s final norm" if before else "the final norm"
    return "the " + last.replace("_", " ")


# ---- the sum


EXACT = 1e-12  # of the sum of sizes: what double precision may leave between a number and the sum of its parts

# models are kept for the next cell of the same trace; a large one only as long as it is among the last
_newest: deque[LinearizedModel] = deque(maxlen=2)


def linearized(trace: LiveTrace) -> LinearizedModel:
    """The model of a trace with its nonlinear parts held: made once, and again when it was dropped."""
    model = trace.linearized() if trace.linearized is not None else None
    if model is None:
        model = LinearizedModel(trace.traced_model)
        _newest.append(model)
        trace.linearized = weakref.ref(model)
    return model


class LeafPart(Part):
    """The part of a leaf: its `weights` are how much the output changes with each of its cells."""

    def __init__(
        self,
        tree: "Tree",
        leaf: Leaf,
        index: Index,
        weights: Tensor,
        parent: "LeafPart | None",
        value: float,
        size: float,
        most: int,
    ):
        self.tree, self.leaf, self.index, self.weights, self.parent = tree, leaf, index, weights, parent
        self.size = size
        along = dict(zip(tree.groups(leaf), index, strict=True))
        self.at = tuple(along.get(axis, slice(None)) for axis in range(leaf.value.ndim))
        key = f"{leaf.name}:{','.join(map(str, index))}" if index else leaf.name
        super().__init__(
            f"{parent.id}/{key}" if parent else key,
            tree.label(leaf, index),
            tree.kind(leaf, index),
            value,
            self._pattern() or tree.cell(leaf, self._where(most)),
        )

    def _where(self, most: int) -> Index:
        """The index of the cell that adds most; `most` counts the cells along the axes that are summed."""
        summed = [size for size, i in zip(self.leaf.value.shape, self.at, strict=True) if isinstance(i, slice)]
        places = iter(np.unravel_index(most, summed) if summed else ())
        return tuple(int(next(places)) if isinstance(i, slice) else i for i in self.at)

    @property
    def _pattern_name(self) -> str:
        """The pattern of the attention that the leaf belongs to."""
        return f"{self.leaf.name.split('#')[0].rpartition('.')[0]}.pattern"

    def _pattern(self) -> str | None:
        """Of a token that a head read: the weight of attention, at the query that matters most."""
        head = self.parent
        if self.leaf.kind != "value" or head is None or head.leaf.kind != "head":
            return None
        name = self._pattern_name
        pattern, row, key = self.tree.model.constants.get(name), *self.index
        if pattern is None or pattern.shape[-1] != self.leaf.value.shape[2] or head.index[0] >= pattern.shape[1]:
            return None
        felt = (head.weights[row, head.index[0]].abs().sum(-1) * pattern[row, head.index[0], :, key]).argmax()
        return f"{name}[{row},{head.index[0]},{int(felt)},{key}]"

    @cached_property
    @torch.inference_mode(False)
    def parts(self) -> list[Part]:
        if self.leaf.before is None:
            return []
        only = torch.zeros_like(self.weights)
        only[self.at] = self.weights[self.at]
        return self.tree.divide(self.leaf.before, only, self.value, self.label, self)

    @property
    def count(self) -> int:
        if self.leaf.before is None or "parts" in self.__dict__:
            return len(self.parts)
        leaves = self.tree.model.leaves
        match self.leaf.kind:
            case "head":
                pattern = self.tree.model.constants.get(self._pattern_name)
                return self.leaf.value.shape[2] if pattern is None else pattern.shape[-1]
            case "patch":
                fold = next((leaf.value for leaf in leaves if leaf.kind == "pixel"), self.leaf.value)
                return fold.numel() // self.leaf.value.shape[:-1].numel() + 1
        return leaves.index(self.leaf)


class Contributions:
    """One number of a model's output, or the difference of two, as a sum of what each part of the model added.

    `value` is the recorded number and `total` the sum of the parts; they differ by no more than `allowed`, the rounding
    of the recorded pass. `held` says what was held. `parts` is every head, MLP, embedding and bias, largest first;
    `blocks` is the same by block, `sources` the same number by its inputs. `part(id)` finds a part again.
    """

    @torch.inference_mode(False)
    def __init__(self, trace: LiveTrace, cell: str, against: str | int | None = None):
        name, index = _located(trace, cell)
        self.cell, self.against = cell, None if against is None else str(against)
        model = linearized(trace)
        if name in model.constants:
            raise UserError(f"{name} is held as it was recorded, so it has no parts; ask for a value computed from it")
        if name not in model.values:
            such = ", ".join(output for output in ("logits", "patches_out", "output") if output in model.values)
            raise UserError(f"contributions are of what the model computes and names, such as {such}, not of {name}")
        of, recorded = model.values[name], trace.array(name)
        self.tensor, self.index = name, index
        self.of, self._signs = of, [(index, 1.0)]
        if against is not None:
            other = _other(trace, name, index, against)
            if other == index:
                raise UserError(f"{cell} is itself the cell of {against}: give another label along its last axis")
            self._signs.append((other, -1.0))
        self.value = sum(sign * float(recorded[at]) for at, sign in self._signs)
        weights = self.weights
        if not of.requires_grad:
            raise UserError(f"{name} does not depend on the input or on a bias, so nothing contributes to it")
        beside = ",".join(map(str, (*parse(cell)[1][:-1], against)))
        self.name = cell if against is None else f"{cell} − {name}[{beside}]"
        self.tree = Tree(trace, model)
        exact = float((of.detach() * weights).sum())
        self.parts: list[Part] = self.tree.divide(of, weights, exact, self.name)
        self.total = sum(part.value for part in self.parts)
        rounding = ROUNDING.get(trace.graph.nodes[trace.find(name)].dtype, ROUNDING["float32"]) + ROUNDING["float64"]
        self.allowed = rounding * model.size_of_rounding(of, weights)
        self.held = list(model.sentences)
        if not abs(self.total - self.value) <= self.allowed:
            raise UserError(
                f"the parts of {self.name} sum to {self.total:.6g} and {self.value:.6g} was recorded: more than the "
                f"rounding of {self.allowed:.2g} allows, so the model ran otherwise than it was recorded"
            )

    @property
    def weights(self) -> Tensor:
        """The number is Σ of·weights."""
        weights = torch.zeros_like(self.of)
        for index, sign in self._signs:
            weights[index] = sign
        return weights

    @cached_property
    @torch.inference_mode(False)
    def sources(self) -> list[tuple[Leaf, Tensor]]:
        """What each cell of each source (an embedding, a pixel, a position, a bias) added by way of all paths.

        The model with its nonlinear parts held is affine, so one backward pass through all of it, times the sources,
        gives what each of them alone adds to the number; together they are the number.
        """
        model = self.tree.model
        added = [(leaf, grad * leaf.value.detach()) for leaf, grad in model.over_all_paths(self.of, self.weights)]
        total = sum(float(cells.sum()) for _, cells in added)
        size = sum(float(cells.abs().sum()) for _, cells in added)
        exact = sum(part.value for part in self.parts)
        if not abs(total - exact) <= EXACT * max(size, abs(exact)):
            raise UserError(
                f"the inputs of {self.name} sum to {total:.6g} by way of all paths, and it is {exact:.6g}: this model "
                "has a nonlinear part that contributions do not know how to hold"
            )
        return added

    @cached_property
    def blocks(self) -> list[Part]:
        """The parts by block, largest first; what belongs to no block is by itself."""
        by_block: dict[str, list[Part]] = {}
        for part in self.parts:
            by_block.setdefault(block_of(part.id.split(":")[0]) or part.id, []).append(part)
        place = self.tree.place
        grouped = [
            block_part(key, place(key), some) if block_of(key) else copy(some[0]) for key, some in by_block.items()
        ]
        return shared(grouped)

    def part(self, id: str) -> Part:
        """The part of this id, at any depth."""
        part = next((block for block in self.blocks if block.kind == "block" and block.id == id), None)
        if part is not None:
            return part
        among, keys = self.parts, id.split("/")
        for depth in range(1, len(keys) + 1):
            part = next((inner for inner in among if inner.id == "/".join(keys[:depth])), None)
            if part is None:
                break
            among = part.parts if depth < len(keys) else []
        if part is None:
            raise UserError(f"{self.name} has no part {id}; t.contributions({self.cell!r}).parts lists them")
        return part

    def largest(self, count: int = SHOWN) -> list[Part]:
        """The parts that added or took away most."""
        return self.parts[:count]

    def title(self, digits: int = 4) -> str:
        """The number, and what its parts sum to."""
        value, total = format_number(self.value, digits), format_number(self.total, digits)
        return f"{self.name} = {value}: {len(self.parts)} parts, which sum to {total}, within {self.allowed:.1g}"

    def rows(self, count: int = SHOWN, digits: int = 4) -> list[Row]:
        """Value, share, label and cell of the largest parts, and of the others together."""
        return rows(self.parts, count, digits)

    def __repr__(self) -> str:
        return "\n".join([self.title(), *lines(self.parts), *self.held])

    def _repr_html_(self) -> str:
        return html_table(self.title(), self.parts) + "".join(f"<p>{escape(line)}</p>" for line in self.held)


def _located(trace: TraceBase, cell: str) -> tuple[str, Index]:
    name, index = trace.locate(cell)
    shape = trace.graph.nodes[trace.find(name)].shape
    indices = [i for i in index if isinstance(i, int)]
    if len(index) != len(shape) or len(indices) != len(index):
        raise UserError(
            f"contributions are to one number, and {cell} is more: give an index or a label for each of its "
            f"{len(shape)} axes"
        )
    trace[cell]  # refuses an index that is outside
    return name, tuple(i % size for i, size in zip(indices, shape, strict=True))


def _other(trace: TraceBase, name: str, index: Index, against: str | int) -> Index:
    """The cell beside this one along the last axis."""
    node = trace.graph.nodes[trace.find(name)]
    last = parse(f"{name}[{against}]")[1] if isinstance(against, str) else (against,)
    if len(last) != 1 or isinstance(last[0], slice):
        last = (Label(str(against), True),)
    other = trace.indices(node, (*index[:-1], last[0]))
    trace.view(trace.find(name))[other]  # refuses an index that is outside
    return (*index[:-1], other[-1] % node.shape[-1])
