"""The token-wise layers of a block: norms and MLPs; and a model's modules without their dropout.

GELU's gradient is our own on a CPU: torch's is not vectorised on every one, and took a fifth of a step here. Values and
gradients are the same numbers.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .probe import OFF, Probe


class Norm(nn.Module):
    """A norm over the last axis: its `formula` takes x, and the learned tensors in the order of `WEIGHTS`.

    Training that holds the tensors in half precision calls the formula with them in full.
    """

    SYMBOL: str  # as formulas write it
    WEIGHTS: dict[str, str]


class LayerNorm(Norm):
    """(x − mean)/√(var + ε)·γ + β over the last axis, with the population variance."""

    SYMBOL = "LN"
    WEIGHTS = {"weight": "γ", "bias": "β"}

    def __init__(self, width: int, eps: float = 1e-5, bias: bool = True, scale: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if scale else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.formula(x, self.weight, self.bias)

    def formula(
        self, x: Float[Tensor, "... D"], weight: Float[Tensor, "D"] | None, bias: Float[Tensor, "D"] | None
    ) -> Float[Tensor, "... D"]:
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)


class RMSNorm(Norm):
    """x/√(mean of squares + ε)·γ over the last axis."""

    SYMBOL = "RMSNorm"
    WEIGHTS = {"weight": "γ"}

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.formula(x, self.weight)

    def formula(self, x: Float[Tensor, "... D"], weight: Float[Tensor, "D"]) -> Float[Tensor, "... D"]:
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)


# the norms by the words of a setting: each is made from a width, an epsilon, and whether layers have biases
NormWord = Literal["layer", "rms"]
NORMS: dict[NormWord, Callable[[int, float, bool], Norm]] = {
    "layer": LayerNorm,
    "rms": lambda width, eps, bias: RMSNorm(width, eps),
}


def gelu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x·Φ(x), exact."""
    slow = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.requires_grad
    return _Gelu.apply(x) if slow and not torch.compiler.is_compiling() else F.gelu(x)


class _Gelu(torch.autograd.Function):
    """The same values as F.gelu, whose backward is not vectorised on every CPU and takes three times as long there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return F.gelu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Float[Tensor, "..."]], output: Float[Tensor, "..."]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "..."]) -> Float[Tensor, "..."]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Φ(x) + x·φ(x)."""
        (x,) = ctx.saved_tensors
        density = torch.exp(x * x * -0.5) / math.sqrt(2 * math.pi)
        return (torch.special.ndtr(x) + x * density) * grad

    # of one variable at a time, so the derivative times the tangent is what the derivative times the gradient is
    jvp = backward  # pyright: ignore[reportAssignmentType]


def gelu_tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """GPT-2's GELU: Φ(x) approximated through tanh."""
    return F.gelu(x, approximate="tanh")


class Activation(NamedTuple):
    """The activation of an MLP."""

    function: Callable[[Tensor], Tensor]
    symbol: str  # as formulas write it
    gated: bool = False  # whether the MLP multiplies it with a second product of its input (`GatedMLP`)
    saved: int = 2  # values per channel of the MLP that its backward pass needs: most need input and output


# the activations by the words of a setting
ActivationWord = Literal["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu", "geglu-tanh"]
ACTIVATIONS: dict[ActivationWord, Activation] = {
    "gelu": Activation(gelu, "GELU"),
    "gelu-tanh": Activation(gelu_tanh, "GELU_tanh"),
    "relu": Activation(F.relu, "ReLU", saved=1),
    "silu": Activation(F.silu, "SiLU"),
    "swiglu": Activation(F.silu, "SiLU", gated=True, saved=4),
    "geglu": Activation(gelu, "GELU", gated=True, saved=4),
    "geglu-tanh": Activation(gelu_tanh, "GELU_tanh", gated=True, saved=4),
}


def activation_symbol(function: Callable[[Tensor], Tensor]) -> str:
    """How formulas write an activation; one of a caller's own is f."""
    return next((one.symbol for one in ACTIVATIONS.values() if one.function is function), "f")


class MLP(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂."""

    NAMES = {
        "pre": ("B T F", "U", "X̂ W₁⟨ + b₁⟩"),
        "act": ("B T F", "G", "GELU(U)"),
        "out": ("B T D", "M_mlp", "G W₂⟨ + b₂⟩"),
    }
    WEIGHTS = {"up.weight": "W₁", "up.bias": "b₁", "down.weight": "W₂", "down.bias": "b₂"}

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor] = gelu, bias: bool = True):
        super().__init__()
        self.NAMES = type(self).NAMES | {"act": ("B T F", "G", f"{activation_symbol(activation)}(U)")}
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        if self._fuses(x, probe):
            product = torch.ops.aten._addmm_activation(self.up.bias, x.flatten(0, -2), self.up.weight.mT, use_gelu=True)
            return probe("out", self.down(product.unflatten(0, x.shape[:-1])))
        act = probe("act", self.activation(probe("pre", self.up(x))))
        return probe("out", self.down(act))

    def _fuses(self, x: Tensor, probe: Probe) -> bool:
        """Whether cuBLAS applies the activation within the product: it knows GELU's tanh form, without gradients."""
        if self.activation is not gelu_tanh or not x.is_cuda or torch.is_grad_enabled() or probe.wants("pre", "act"):
            return False
        known = type(self.up) is nn.Linear and self.up.bias is not None and x.dtype == self.up.weight.dtype
        return known and x.dtype in (torch.bfloat16, torch.float16) and not torch.is_autocast_enabled("cuda")


class GatedMLP(nn.Module):
    """(activation(x W_gate) ∘ x W_up) W_down, as in LLaMA."""

    NAMES = {
        "gate": ("B T F", "U", "X̂ W_gate⟨ + b_gate⟩"),
        "up": ("B T F", "U′", "X̂ W_up⟨ + b_up⟩"),
        "act": ("B T F", "G", "SiLU(U)·U′"),
        "out": ("B T D", "M_mlp", "G W_down⟨ + b_down⟩"),
    }
    WEIGHTS = {
        "gate.weight": "W_gate", "gate.bias": "b_gate", "up.weight": "W_up", "up.bias": "b_up",
        "down.weight": "W_down", "down.bias": "b_down",
    }  # fmt: skip

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor] = F.silu, bias: bool = False):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.activation = activation
        self.NAMES = type(self).NAMES | {"act": ("B T F", "G", f"{activation_symbol(activation)}(U)·U′")}

    def forward(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        gate, up = probe("gate", self.gate(x)), probe("up", self.up(x))
        return probe("out", self.down(probe("act", self.activation(gate) * up)))


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A model's modules in evaluation mode, without dropout; each in its own mode again afterwards."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
