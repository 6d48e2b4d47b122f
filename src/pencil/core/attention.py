"""Attention: self or cross, with grouped heads; a fused route, and a plain one that shows every value.

A query whose keys are all masked gives zeros in both routes, with finite gradients: the fused route lets such a query
see everything and zeroes the result, because kernels differ on it.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from .cache import LayerCache
from .layers import RMSNorm
from .masks import GivenMask, Mask, Seen, seen_by
from .positions import rotate
from .probe import OFF, Probe
from .span import Span


def attend(
    q: Float[Tensor, "*h T d"],
    k: Float[Tensor, "*g S d"],
    v: Float[Tensor, "*g S e"],
    mask: Seen | GivenMask | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    probe: Probe = OFF,
) -> Float[Tensor, "*h T e"]:
    """softmax(q kᵀ·scale + bias + mask) v; fused, unless the probe wants the scores or the pattern, or in forward mode.

    q, k and v have the axes (B, h, T, d), (B, T, d) or (T, d). A query whose keys are all masked gets zeros on both
    routes. With g < h each key-value head serves h/g query heads. In a mask True or 1 attends (`booleans`); what it
    masks has no effect, whatever it holds, and a query that attends to a key or value that is not finite gets NaN.
    """
    check_tensors("attend", q=q, k=k, v=v)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        return _without_heads(q, k, v, mask, bias, scale, dropout, probe)
    seen = seen_by(mask, q, (len(q), q.shape[1], q.shape[2], k.shape[2])) if isinstance(mask, (Tensor, Mask)) else mask
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if seen is None or not seen.given or seen.route == "all":
        return _attend(q, k, v, seen, bias, scale, dropout, probe)
    # on a CPU it is quickly known whether k and v are finite; whether the result is says too little: a masked key of −∞
    # can have the score −∞ and the weight 0, as it should, and only in the gradient of q is this 0 multiplied with the
    # key
    if q.device.type == "cpu" and not torch.compiler.is_compiling() and _known_finite(k) and _known_finite(v):
        return _attend(q, k, v, seen, bias, scale, dropout, probe)
    k, v, broken = _finite(q, k, v, seen)
    return _attend(q, k, v, seen, bias, scale, dropout, probe).masked_fill(broken, torch.nan)


def check_tensors(name: str, **values: Any) -> None:
    """Refuse arrays and whatever else is no tensor, with what to call instead."""
    for argument, value in values.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name} takes tensors of PyTorch, and {argument} is of the type {type(value).__name__}: give "
                f"torch.as_tensor({argument}), or call pencil.listings, whose functions take NumPy arrays"
            )


def check_call(x: Any, span: Any, more: tuple[Any, ...]) -> None:
    """Refuse arrays, and the query, key and value with which the documents' listings call their attention."""
    if more or isinstance(span, Tensor):
        raise ValueError(
            "Attention takes one tensor, x, and makes queries, keys and values of it: attention(x), "
            "attention(x, source=keys, values=values), or, called with a query, a key and a value, "
            "pencil.listings.MultiHeadAttention(width, heads)(query, key, value)"
        )
    check_tensors("Attention", x=x)


def _attend(q, k, v, seen: Seen | None, bias, scale: float, dropout: float, probe: Probe) -> Tensor:
    # a fused kernel has no forward-mode derivative, which torch.func.jvp and hessian take
    if forward_ad._current_level >= 0 or probe.wants("raw_scores", "bias", "mask", "scores", "pattern"):
        return _plain(q, k, v, seen, bias, scale, dropout, probe)
    return _fused(q, k, v, seen, bias, scale, dropout)


def _known_finite(x: Tensor) -> bool:
    """Whether all is finite, so that nothing can come through a mask; unknown under vmap: one answer a row."""
    try:
        return bool(x.detach().sum().isfinite())
    except RuntimeError:
        return False


def _finite(q, k, v, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
    """The keys and values with zeros for those that are not finite, and the queries that attend to one of these.

    A masked key has the weight 0, but 0·NaN is NaN. Nothing here waits for the device.
    """
    # 0·x is 0 if and only if x is finite; asking each number whether it is takes ten times as long
    faulty = (k.detach() * 0).sum(-1) + (v.detach() * 0).sum(-1) != 0
    k, v = (x.masked_fill(faulty[..., None], 0) for x in (k, v))
    faulty = faulty.repeat_interleave(q.shape[1] // k.shape[1], 1).float()
    if seen.route == "causal":
        return k, v, faulty.cummax(-1).values[..., -q.shape[2] :, None] > 0
    return k, v, torch.einsum("bhts,bhs->bht", seen.matrix().float(), faulty)[..., None] > 0


def _without_heads(q, k, v, mask, bias, scale: float | None, dropout: float, probe: Probe):
    """`attend` over (T, d) or (B, T, d): as one head. A probe sees the axes B and h all the same."""
    if q.ndim not in (2, 3) or not q.ndim == k.ndim == v.ndim:
        raise ValueError(
            f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} axes: all three take (B, h, T, d), (B, T, d) or (T, d)"
        )
    lift = (None, None) if q.ndim == 2 else (slice(None), None)
    if isinstance(mask, (Tensor, Mask)):
        mask = seen_by(mask, q, (len(q) if q.ndim == 3 else 1, 1, q.shape[-2], k.shape[-2]))
    if bias is not None:
        bias = bias[None, None] if bias.ndim == 2 else bias[:, None] if bias.ndim == 3 else bias
    z = attend(q[lift], k[lift], v[lift], mask, bias, scale, dropout, probe)
    return z[0, 0] if q.ndim == 2 else z[:, 0]


def _plain(q, k, v, seen: Seen | None, bias, scale: float, dropout: float, probe: Probe):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = probe("raw_scores", q @ k.mT) * scale
    if bias is not None:
        scores = scores + probe("bias", bias)
    blind = None
    if seen is not None and seen.route != "all":
        allowed = seen.matrix().expand(-1, -1, q.shape[2], -1)
        mask = probe("mask", torch.zeros_like(allowed, dtype=scores.dtype).masked_fill(~allowed, -torch.inf))
        scores = scores + mask
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
    if seen is not None and seen.attend is not None and bias is None and not dropout:
        return seen.attend(q, k, v, scale)
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


# of queries and keys: each projected, then normalised and rotated where the model does so
_ROTATED = (
    "{{{0}_u? {{{0}₀? R(Norm_{1}({0}_u))|Norm_{1}({0}_u)}}|{{{0}₀? R(X_{2} W_{0}⟨ + b_{0}⟩)|X_{2} W_{0}⟨ + b_{0}⟩}}}}"
)


class Attention(nn.Module):
    """Queries are matched against keys, and take a weighted sum of values.

    Queries, keys and values come from one joined product; W_Q, W_K and W_V are views of it. `source` makes it
    cross-attention: another sequence, or its keys and values as `read` returns them. Without a `span` whole sequences
    attend to one another, under `mask` if one is given; `values` is the values' own sequence. `dropout` zeroes single
    attention weights; `key_dropout` zeroes whole keys, for all queries alike, which every fused kernel can do.
    `qkv_bias` is `bias` unless given; with `qk_norm`, its epsilon, each head's queries and keys are normalised.
    """

    NAMES = {
        "w_q": ("h D d", "W_Q", ""),
        "w_k": ("g D d", "W_K", ""),
        "w_v": ("g D d", "W_V", ""),
        "b_q?": ("h d", "b_Q", ""),
        "b_k?": ("g d", "b_K", ""),
        "b_v?": ("g d", "b_V", ""),
        "w_o": ("h·d D", "W_O", ""),
        "q_unnormed?": ("B h T d", "Q_u", "X_q W_Q⟨ + b_Q⟩"),
        "k_unnormed?": ("B g T d", "K_u", "X_kv W_K⟨ + b_K⟩"),
        "q_unrotated?": ("B h T d", "Q₀", "{Q_u? Norm_q(Q_u)|X_q W_Q⟨ + b_Q⟩}"),
        "k_unrotated?": ("B g T d", "K₀", "{K_u? Norm_k(K_u)|X_kv W_K⟨ + b_K⟩}"),
        "q": ("B h T d", "Q", _ROTATED.format("Q", "q", "q")),
        "k": ("B g S d", "K", _ROTATED.format("K", "k", "kv")),
        "v": ("B g S d", "V", "X_kv W_V⟨ + b_V⟩"),
        "k_all?": ("B g S d", "K_all", "[K_past; K]"),
        "v_all?": ("B g S d", "V_all", "[V_past; V]"),
        "raw_scores": ("B h T S", "S_raw", "Q {K_all|K}ᵀ"),
        "bias?": ("B h T S", "B", "{shaw? Q a_K[r]ᵀ/√d|{shaw_axes? Q Σ_a a_K[a, r_a]ᵀ/√d|B}}"),
        "mask?": ("B 1 T S", "M", "0 where SEEN, else −∞"),
        "scores": ("B h T S", "S", "Q {K_all|K}ᵀ{unscaled?|/√d}⟨ + B⟩⟨ + M⟩"),
        "pattern": ("B h T S", "A", "softmax(S)"),
        "z": ("B h T d", "H", "A {V_all|V}"),
        "concat": ("B T h·d", "H_cat", "{single? H|concat(H)}"),
        "out": ("B T D", "O", "{single? H|concat(H)} W_O⟨ + b_O⟩"),
    }
    WEIGHTS = {"qkv.weight": "[W_Q W_K W_V]", "qkv.bias": "[b_Q b_K b_V]", "out.weight": "W_O", "out.bias": "b_O"}

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        key_dropout: float = 0.0,
        qkv_bias: bool | None = None,
        qk_norm: float | None = None,
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} key-value heads cannot serve {heads} heads evenly")
        if head_width is None and width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        self.head_width = head_width or width // heads
        self.sizes = [count * self.head_width for count in (heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(width, sum(self.sizes), bias=bias if qkv_bias is None else qkv_bias)
        self.out = nn.Linear(self.sizes[0], width, bias=bias)
        self.q_norm = None if qk_norm is None else RMSNorm(self.head_width, qk_norm)
        self.k_norm = None if qk_norm is None else RMSNorm(self.head_width, qk_norm)
        self.dropout, self.key_dropout = dropout, key_dropout
        self.FACTS = {"single"} if heads == 1 else set()

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

    def joined(self, probe: Probe, names: str = "qkv") -> tuple[Float[Tensor, "n D"], Float[Tensor, "n"] | None]:
        """The matrix and the bias that give q, k and v, or some of them; from their heads, where a probe wants those.

        A probe sees each head's matrix as it multiplies from the right, and may edit it.
        """
        which = slice("qkv".index(names[0]), "qkv".index(names[-1]) + 1)
        weights = self.qkv.weight.split(self.sizes)[which]
        biases = None if self.qkv.bias is None else self.qkv.bias.split(self.sizes)[which]
        if probe.wants(*(f"w_{name}" for name in names)):
            heads = [part.unflatten(0, (-1, self.head_width)).mT for part in weights]
            weights = [probe(f"w_{n}", part).mT.flatten(0, 1) for n, part in zip(names, heads, strict=True)]
        if biases is not None and probe.wants(*(f"b_{name}" for name in names)):
            heads = [part.unflatten(0, (-1, self.head_width)) for part in biases]
            biases = [probe(f"b_{n}", part).flatten() for n, part in zip(names, heads, strict=True)]
        return torch.cat(tuple(weights)), None if biases is None else torch.cat(tuple(biases))

    def read(
        self, source: Float[Tensor, "B S D"], probe: Probe = OFF
    ) -> tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]:
        """The keys and values of a source, computed once and used by every query."""
        if probe.wants("w_k", "w_v", "b_k", "b_v"):
            weight, bias = self.joined(probe, "kv")
        else:
            queries = self.sizes[0]
            weight, bias = self.qkv.weight[queries:], None if self.qkv.bias is None else self.qkv.bias[queries:]
        k, v = F.linear(source, weight, bias).chunk(2, -1)
        return self._normed("k", self.split_heads(k), probe), self.split_heads(v)

    def _normed(self, name: str, x: Float[Tensor, "B m T d"], probe: Probe) -> Float[Tensor, "B m T d"]:
        """Queries or keys, normalised over each head's channels if this attention does so."""
        norm = self.q_norm if name == "q" else self.k_norm
        return x if norm is None else norm(probe(f"{name}_unnormed", x))

    def _whole(self, x, source, values, mask, cache: LayerCache | None, probe: Probe) -> Tensor:
        """Whole sequences, without positions: (B, T, D), or one of (T, D). `values` are another sequence's."""
        if cache is not None:
            raise ValueError("a cache needs a span: cache.place(cache.next(tokens)).under(mask)")
        if x.ndim == 2:
            source, values = (one[None] if isinstance(one, Tensor) else one for one in (source, values))
            return self._whole(x[None], source, values, mask, None, probe)[0]
        if values is not None:
            source = self.read(x if source is None else source)[0], self.read(values)[1]
        keys = x if source is None else source if isinstance(source, Tensor) else source[0]
        span = Span.whole(x.shape[1], device=x.device)
        if mask is not None:
            span = replace(span, seen=seen_by(mask, x, (len(x), self.heads, x.shape[1], keys.shape[-2])))
        return self.forward(x, span, source=source, probe=probe)

    def forward(
        self,
        x: Float[Tensor, "*B T D"],
        span: Span | None = None,
        *more: Any,  # refused, with what to call instead
        source: Float[Tensor, "*B S D"] | tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]] | None = None,
        values: Float[Tensor, "*B S D"] | None = None,
        mask: GivenMask | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "*B T D"]:
        check_call(x, span, more)
        if span is None:
            return self._whole(x, source, values, mask, cache, probe)
        if mask is not None or values is not None:
            raise ValueError("mask= and values= are for a call without a span: span.under(mask) has the mask")
        observed = probe.wants("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")
        if source is None:
            joined = F.linear(x, *self.joined(probe)) if observed else self.qkv(x)
            q, k, v = (self.split_heads(part) for part in joined.split(self.sizes, -1))
            k = self._normed("k", k, probe)
        else:
            bias = None if self.qkv.bias is None else self.qkv.bias[: self.sizes[0]]
            q = self.split_heads(F.linear(x, *(self.joined(probe, "q") if observed else (self.w_q, bias))))
            k, v = self.read(source, probe) if isinstance(source, Tensor) else source
        q = self._normed("q", q, probe)
        if span.rotation is not None:
            q = rotate(probe("q_unrotated", q), span.rotation, span.adjacent)
        if span.key_rotation is not None:
            k = rotate(probe("k_unrotated", k), span.key_rotation, span.adjacent)
        q, k, v = probe("q", q), probe("k", k), probe("v", v)
        if self.key_dropout and self.training:
            v = v * F.dropout(torch.ones_like(v[..., :1]), self.key_dropout)
        if cache is not None and span.slots is not None:
            k, v = cache.write(span, k, v)
            k, v = probe("k_all", k), probe("v_all", v)
        bias = None if span.bias is None else span.bias(q)
        dropout = self.dropout if self.training else 0.0
        z = probe("z", attend(q, k, v, span.seen, bias, span.scale, dropout, probe))
        heads = probe("concat", z.transpose(1, 2).flatten(-2))
        if probe.wants("w_o"):
            return probe.checked(probe("out", F.linear(heads, probe("w_o", self.out.weight.mT).mT, self.out.bias)))
        return probe.checked(probe("out", self.out(heads)))
