"""Attention: self or cross, with grouped heads; a fused route, and a plain one that shows every value."""

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .cache import LayerCache
from .masks import Seen
from .positions import rotate
from .probe import OFF, Probe
from .span import Span


def attend(
    q: Float[Tensor, "B h T d"],
    k: Float[Tensor, "B g S d"],
    v: Float[Tensor, "B g S e"],
    mask: Seen | Bool[Tensor, "#B #h #T S"] | None = None,
    bias: Float[Tensor, "#B #h T S"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    probe: Probe = OFF,
) -> Float[Tensor, "B h T e"]:
    """softmax(q kᵀ·scale + bias + mask) v; fused, unless the probe wants the scores or the pattern.

    A query whose keys are all masked gets zeros on both routes. With g < h each key-value head serves h/g query heads.
    """
    seen = Seen.dense(mask) if isinstance(mask, Tensor) else mask
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if probe.wants("scores", "pattern"):
        return _plain(q, k, v, seen, bias, scale, dropout, probe)
    return _fused(q, k, v, seen, bias, scale, dropout)


def _plain(q, k, v, seen: Seen | None, bias, scale: float, dropout: float, probe: Probe):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * scale
    if bias is not None:
        scores = scores + bias
    blind = None
    if seen is not None and seen.route != "all":
        allowed = seen.matrix()
        scores = scores.masked_fill(~allowed, -torch.inf)
        blind = ~allowed.any(-1, keepdim=True)
    scores = probe("scores", scores)
    # a fully masked row is all −∞: give its softmax finite values, then zero it, so that no gradient is NaN
    pattern = (scores if blind is None else scores.masked_fill(blind, 0)).softmax(-1)
    pattern = probe("pattern", pattern if blind is None else pattern.masked_fill(blind, 0))
    return F.dropout(pattern, dropout, dropout > 0).to(v.dtype) @ v


def _fused(q, k, v, seen: Seen | None, bias, scale: float, dropout: float):
    grouped = q.shape[1] != k.shape[1]
    route = "all" if seen is None else seen.route
    # FlexAttention takes no heads narrower than 16, and has no dropout
    if seen is not None and route == "blocks" and bias is None and not dropout and q.shape[-1] >= 16:
        return _flex(q, k, v, seen.blocks, scale, grouped)
    if route in ("all", "causal") and bias is None:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=route == "causal", scale=scale, dropout_p=dropout, enable_gqa=grouped
        )
    if seen is not None and seen.first and bias is None:
        return _in_two(q, k, v, seen.first, scale, dropout, grouped)
    if seen is None or route == "all":
        allowed, blind = None, None
    else:
        seen = seen if route == "dense" else Seen.dense(seen.matrix())
        allowed, blind = seen.allowed, seen.blind
    if bias is not None:
        allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale, dropout_p=dropout, enable_gqa=grouped)
    return z if blind is None else z.masked_fill(blind, 0)


def _in_two(q, k, v, first: int, scale: float, dropout: float, grouped: bool):
    """A prefix mask in two calls: the first tokens attend to one another, each later one to all tokens up to itself."""
    options: dict[str, Any] = dict(scale=scale, dropout_p=dropout, enable_gqa=grouped)
    head = F.scaled_dot_product_attention(q[:, :, :first], k[:, :, :first], v[:, :, :first], **options)
    rest = q.shape[2] - first
    causal = torch.ones(rest, k.shape[2], dtype=torch.bool, device=q.device).tril(first)
    tail = F.scaled_dot_product_attention(q[:, :, first:], k, v, attn_mask=causal, **options)
    return torch.cat((head, tail), 2)


def _flex(q, k, v, blocks, scale: float, grouped: bool):
    from torch.nn.attention.flex_attention import flex_attention

    # inside a compiled model this call is compiled with it; alone it must be, or it would build the whole score matrix
    call = flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)
    return call(q, k, v, block_mask=blocks, scale=scale, enable_gqa=grouped)


@lru_cache
def _compiled(function):
    return torch.compile(function, dynamic=False)


class Attention(nn.Module):
    """Queries are matched against keys, and take a weighted sum of values.

    Queries, keys and values come from one joined product; W_Q, W_K and W_V are views of it. `source` makes it
    cross-attention: another sequence, or its keys and values as `read` returns them. `dropout` zeroes single attention
    weights; `key_dropout` zeroes whole keys, for all queries alike, which every fused kernel can do.
    """

    NAMES = {
        "q": ("B h T d", "Q", "X̃ W_Q"),
        "k": ("B g S d", "K", "X̃ W_K"),
        "v": ("B g S d", "V", "X̃ W_V"),
        "scores": ("B h T S", "S", "Q Kᵀ/√d + M"),
        "pattern": ("B h T S", "A", "softmax(S)"),
        "z": ("B h T d", "H", "A V"),
        "out": ("B T D", "O", "H W_O"),
    }
    WEIGHTS = {"qkv.weight": "W_Q W_K W_V", "qkv.bias": "b_Q b_K b_V", "out.weight": "W_O", "out.bias": "b_O"}

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        key_dropout: float = 0.0,
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} key-value heads cannot serve {heads} heads evenly")
        if head_width is None and width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        self.head_width = head_width or width // heads
        self.sizes = [count * self.head_width for count in (heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(width, sum(self.sizes), bias=bias)
        self.out = nn.Linear(self.sizes[0], width, bias=bias)
        self.dropout, self.key_dropout = dropout, key_dropout

    @property
    def w_q(self) -> Float[Tensor, "hd D"]:
        return self.qkv.weight.split(self.sizes)[0]

    @property
    def w_k(self) -> Float[Tensor, "gd D"]:
        return self.qkv.weight.split(self.sizes)[1]

    @property
    def w_v(self) -> Float[Tensor, "gd D"]:
        return self.qkv.weight.split(self.sizes)[2]

    def split_heads(self, x: Float[Tensor, "B T n"]) -> Float[Tensor, "B m T d"]:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def read(self, source: Float[Tensor, "B S D"]) -> tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]:
        """The keys and values of a source, computed once and used by every query."""
        queries, rest = self.sizes[0], self.qkv.weight[self.sizes[0] :]
        bias = None if self.qkv.bias is None else self.qkv.bias[queries:]
        k, v = F.linear(source, rest, bias).chunk(2, -1)
        return self.split_heads(k), self.split_heads(v)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        span: Span,
        *,
        source: Float[Tensor, "B S D"] | tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]] | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        if source is None:
            q, k, v = (self.split_heads(part) for part in self.qkv(x).split(self.sizes, -1))
        else:
            bias = None if self.qkv.bias is None else self.qkv.bias[: self.sizes[0]]
            q = self.split_heads(F.linear(x, self.w_q, bias))
            k, v = self.read(source) if isinstance(source, Tensor) else source
        if span.rotation is not None:
            q = rotate(q, span.rotation)
        if span.key_rotation is not None:
            k = rotate(k, span.key_rotation)
        q, k, v = probe("q", q), probe("k", k), probe("v", v)
        if self.key_dropout and self.training:
            v = v * F.dropout(torch.ones_like(v[..., :1]), self.key_dropout)
        if cache is not None and span.slots is not None:
            k, v = cache.write(span.slots, k, v)
        bias = None if span.bias is None else span.bias(q)
        dropout = self.dropout if self.training else 0.0
        z = probe("z", attend(q, k, v, span.seen, bias, span.scale, dropout, probe))
        return probe("out", self.out(z.transpose(1, 2).flatten(-2)))
