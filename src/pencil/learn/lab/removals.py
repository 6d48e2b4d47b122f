"""How parts are taken out of a model that was built whole: its modules are swapped from outside."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ...core.blocks import Block, PostBlock
from ...core.cache import LayerCache
from ...core.embed import Tokens
from ...core.layers import LayerNorm
from ...core.positions import Positions
from ...core.probe import OFF, Off
from ...core.span import Span


class NoSkip(nn.Module):
    """The parts of a pre-norm block one after another: f(x) where the block has x + f(x)."""

    def __init__(self, block: Block):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = block.attn_norm, block.attn, block.mlp_norm, block.mlp

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        x = self.attn(self.attn_norm(x), span, cache=cache, probe=probe / "attn")
        return probe("post", self.mlp(self.mlp_norm(x), probe=probe / "mlp"))


class Times(nn.Module):
    """A table of words whose rows are multiplied by a number as they are read."""

    def __init__(self, tokens: Tokens, factor: float):
        super().__init__()
        self.tokens, self.factor = tokens, factor

    def forward(self, tokens: Tensor) -> Float[Tensor, "B *T D"]:
        return self.factor * self.tokens(tokens)


def without_skips(model: Any) -> Any:
    """Every block without its residual connections."""
    model.blocks = nn.ModuleList(NoSkip(block) for block in model.blocks)
    return model


def without_norms(model: Any) -> Any:
    """The norms inside the blocks replaced by nothing; the one before the logits stays."""
    for block in model.blocks:
        block.attn_norm, block.mlp_norm = nn.Identity(), nn.Identity()
    return model


def post_norm(model: Any) -> Any:
    """The same attention and MLPs with the norms on the trunk, after each part; none is left for the end."""
    norm = partial(LayerNorm, model.config.width, model.config.eps, model.config.bias)
    model.blocks = nn.ModuleList(PostBlock(_as_maker(b.attn), _as_maker(b.mlp), norm) for b in model.blocks)
    model.norm = nn.Identity()
    return model


def without_positions(model: Any) -> Any:
    """The scheme of positions replaced by the one that does nothing."""
    inner = getattr(model, "encoder", model)
    inner.positions = Positions()
    return model


def _as_maker(module: nn.Module) -> Callable[[], Any]:
    return lambda: module


def lengths_of_gradients(model: Any, loss: Callable[[], Tensor]) -> list[float]:
    """The gradient of the loss at what each block gives, from the first block to the last."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: Any, out: Tensor) -> None:
        out.retain_grad()
        kept.append(out)

    handles = [block.register_forward_hook(keep) for block in model.blocks]
    loss().backward()
    for handle in handles:
        handle.remove()
    return [float(out.grad.norm()) if out.grad is not None else 0.0 for out in kept]
