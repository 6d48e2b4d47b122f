"""The rules by which a nonlinear part of a model is held at what it was in a recorded pass.

Some named values are constants; the nonlinear functions are replaced, each by an affine one that gives the recorded
result for the recorded input.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
