"""A model run again with its nonlinear parts held at their recorded values, so that every output is affine.

Two passes. The first is the recorded one: it keeps what is held. The second is in double precision: each norm has the
1/σ of the first, each activation its ratio act(u)/u, attention its pattern, a gated MLP its SiLU(gate), and adaLN its
scales and gates. What is left are products with constants and sums, so an output is the sum of what each source
(a token, a pixel, a position, a bias, …) adds to it, and a gradient says how much.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..config import UserError
from ..core import layers
from ..core.embed import Tokens
from ..core.layers import evaluating
from .tape import Edit, Tape
from .traced_model import EveryValue, TracedModel, mapped, parameters_and_buffers, tensors

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
