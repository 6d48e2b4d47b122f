"""Removals: a model is built complete, then some of its modules are replaced from outside."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ...core.blocks import Block, PostBlock
from ...core.cache import LayerCache
from ...core.embed import Tokens
from ...core.layers import LayerNorm
from ...core.positions import Positions
from ...core.probe import OFF, Probe
from ...core.span import Span


class NoSkip(nn.Module):
    """The parts of a pre-norm block one after another: f(x) where the block has x + f(x)."""

    def __init__(self, block: Block):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = block.attn_norm, block.attn, block.mlp_norm, block.mlp

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        x = self.attn(self.attn_norm(x), span, cache=cache, probe=probe / "attn")
        return probe("post", self.mlp(self.mlp_norm(x), probe=probe / "mlp"))


class Undivided(nn.Module):
    """An attention whose scores are not divided by √d_k."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x: Float[Tensor, "B T D"], span: Span, **more: Any) -> Float[Tensor, "B T D"]:
        return self.attention(x, replace(span, scale=1.0), **more)


class ScaledTokens(nn.Module):
    """Token embeddings multiplied by a factor."""

    def __init__(self, tokens: Tokens, factor: float):
        super().__init__()
        self.tokens, self.factor = tokens, factor

    def forward(self, tokens: Tensor) -> Float[Tensor, "B *T D"]:
        return self.factor * self.tokens(tokens)


def without_skips(model: Any) -> Any:
    """Every block without its residual connections."""
    model.blocks = nn.ModuleList(NoSkip(block) for block in model.blocks)
    return model


def without_division(model: Any) -> Any:
    """Every block with scores that are not divided by √d_k."""
    for block in model.blocks:
        block.attn = Undivided(block.attn)
    return model


def without_norms(model: Any) -> Any:
    """The norms inside the blocks removed; the one before the logits stays."""
    for block in model.blocks:
        block.attn_norm, block.mlp_norm = nn.Identity(), nn.Identity()
    return model


def post_norm(model: Any) -> Any:
    """The same attention and MLPs in post-norm blocks; there is no norm before the logits."""
    norm = partial(LayerNorm, model.config.width, model.config.eps, model.config.bias)
    model.blocks = nn.ModuleList(PostBlock(_as_maker(b.attn), _as_maker(b.mlp), norm) for b in model.blocks)
    model.norm = nn.Identity()
    return model


def without_positions(model: Any) -> Any:
    """The positional scheme replaced by none."""
    inner = getattr(model, "encoder", model)
    inner.positions = Positions()
    return model


def _as_maker(module: nn.Module) -> Callable[[], Any]:
    return lambda: module


def gradient_norms(model: Any, loss: Callable[[], Tensor]) -> list[float]:
    """The norm of the loss's gradient at the output of each block, from the first block to the last."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, out: Tensor) -> None:
        out.retain_grad()
        outputs.append(out)

    handles = [block.register_forward_hook(keep) for block in model.blocks]
    loss().backward()
    for handle in handles:
        handle.remove()
    return [float(out.grad.norm()) if out.grad is not None else 0.0 for out in outputs]
