"""The listings of the five documents under their own names: NumPy arrays in, NumPy arrays out.

    from pencil.listings import self_attention

Each is a thin function over the parts of `pencil.core`, so what is computed is what Pencil's models compute. Arrays
give arrays in the precision of the arrays; tensors give tensors, through which gradients flow. Where a document's
listing and Pencil differ, the docstring says so. docs/guides/python.md has a table for each document.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
import torch
from torch import Tensor, nn

from .config import UserError
from .core import attention as core_attention
from .core import layers, masks, patches
from .core.cache import Cache
from .core.embed import Tokens
from .core.positions import Alibi, Rope, Sinusoidal, rotate
from .core.probe import Probe
from .core.span import Span
from .inference import diffusion

__all__ = [
    "KVCache",
    "MultiHeadAttention",
    "TokenPlusPositionEmbedding",
    "adaln",
    "add_noise",
    "alibi",
    "attention",
    "causal_mask",
    "ffn",
    "fold",
    "glue",
    "layer_norm",
    "multi_head_attention",
    "positional_encoding",
    "prefix_mask",
    "rope",
    "scaled_dot_product_attention",
    "self_attention",
    "softmax",
    "swap",
    "unfold",
]


P = ParamSpec("P")


def _arrays(function: Callable[P, Any]) -> Callable[P, Any]:
    """The same function of arrays: its result is tensors where a tensor was given, else arrays."""

    call: Callable[..., Any] = function

    @wraps(function)
    def wrapped(*args: P.args, **keywords: P.kwargs) -> Any:
        out = call(*map(_tensor, args), **{name: _tensor(x) for name, x in keywords.items()})
        return out if any(isinstance(x, Tensor) for x in (*args, *keywords.values())) else _array(out)

    return wrapped


def _tensor(x: Any) -> Any:
    """An array, or a list of numbers, as a tensor; the parts of a list of arrays so."""
    if isinstance(x, list | tuple) and any(isinstance(one, np.ndarray | Tensor) for one in x):
        return [_tensor(one) for one in x]
    if isinstance(x, list):
        x = np.asarray(x, dtype=np.float64)
    return torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x


def _array(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(_array(one) for one in x)
    return x.detach().numpy() if isinstance(x, Tensor) else x


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """What attention gives, its weights and its scores."""
    probe = Probe("scores", "pattern")
    q, k, v = map(_real, (q, k, v))
    output = core_attention.attend(q, k, v, mask, probe=probe)
    shape = *q.shape[:-1], k.shape[-2]
    return output, probe.values["pattern"].reshape(shape), probe.values["scores"].reshape(shape)


# ---- 000, Vision Transformer From Pencil


@_arrays
def attention(query: Any, key: Any, value: Any) -> Any:
    """000's three lines: scores = query @ key.T / √d_k, weights = softmax(scores), output = weights @ value.

    Returns output, weights, scores. The document's second line overflows at scores over 709; this one does not.
    """
    return _attend(query, key, value)


@_arrays
def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-6) -> Any:
    """000's `layer_norm`: gamma·(x − mean)/√(var + eps) + beta over the last axis."""
    x = _real(x)
    gamma, beta = (torch.as_tensor(one, dtype=x.dtype).expand(x.shape[-1]) for one in (gamma, beta))
    return layers.LayerNorm(x.shape[-1], eps).formula(x, gamma, beta)


@_arrays
def fold(photo: Any, patch: int | Sequence[int]) -> Any:
    """000's first move: a photo (H, W) as (down-band, in-square-down, across-band, in-square-across).

    Of a batch (B, C, H, W) these axes come after B and C.
    """
    if photo.ndim not in (2, 4):
        raise UserError(f"fold takes a photo (H, W) or a batch (B, C, H, W), not {photo.ndim} axes")
    sides = (patch, patch) if isinstance(patch, int) else tuple(int(side) for side in patch)
    return patches.fold(photo, sides) if photo.ndim == 4 else patches.fold(photo[None, None], sides)[0, 0]


@_arrays
def swap(folded: Any) -> Any:
    """000's second move: the two bands first, then what is within a square: its channels, rows and columns."""
    if folded.ndim not in (4, 6):
        raise UserError(f"swap takes what fold gives, with 4 axes or 6, not {folded.ndim}: swap(fold(photo, 2))")
    return patches.swap(folded) if folded.ndim == 6 else patches.swap(folded[None, None])[0, :, :, 0]


@_arrays
def glue(swapped: Any) -> Any:
    """000's third move: each square as one row, (N, p·p), or (B, N, C·p·p) of a batch."""
    if swapped.ndim not in (4, 6):
        raise UserError(f"glue takes what swap gives, with 4 axes or 6, not {swapped.ndim}: glue(swap(fold(photo, 2)))")
    batch = swapped if swapped.ndim == 6 else swapped[None]
    rows = patches.glue(batch, batch.shape[1] * batch.shape[2])
    return rows if swapped.ndim == 6 else rows[0]


# ---- 001, ViT Transformation Notation


@_arrays
def unfold(X_img: Any, P: int) -> Any:
    """001's operator 𝒰: images (B, C, H, W) as flattened patches (B, N, C·P²)."""
    return patches.cut(X_img, (P, P))


def causal_mask(n: int) -> np.ndarray:
    """000's triangle and 001's M, to be added to scores: 0 where j ≤ i, −∞ where j > i."""
    return _added(masks.causal, n)


def prefix_mask(N: int, T: int) -> np.ndarray:
    """001's M for bidirectional vision: the N image tokens see one another, the T text tokens all before them."""
    return _added(masks.prefix(N), N + T)


def _added(mask: masks.Mask, n: int) -> np.ndarray:
    i = torch.arange(n)
    return np.where(mask(i[:, None], i[None]).numpy(), 0.0, -np.inf)


# ---- 002, from first principles


@_arrays
def softmax(x: Any, axis: int = -1) -> Any:
    """002's and 003's `softmax`: stable, along one axis."""
    return _real(x).softmax(axis)


@_arrays
def self_attention(X: Any, W_Q: Any, W_K: Any, W_V: Any) -> Any:
    """002's `self_attention` of X (n, d): returns output (n, d_v), weights (n, n), scores (n, n)."""
    return _attend(X @ W_Q, X @ W_K, X @ W_V)


@_arrays
def multi_head_attention(X: Any, W_Qs: Any, W_Ks: Any, W_Vs: Any, W_O: Any) -> Any:
    """002's `multi_head_attention`: returns the output (n, d) and the list of each head's weights (n, n)."""
    heads = [_attend(X @ W_Q, X @ W_K, X @ W_V) for W_Q, W_K, W_V in zip(W_Qs, W_Ks, W_Vs, strict=True)]
    return torch.cat([output for output, _, _ in heads], -1) @ W_O, [weights for _, weights, _ in heads]


@_arrays
def rope(x: Any, positions: Any = None, base: float = 10000.0) -> Any:
    """002's R_i: queries or keys (n, d_k), channels 2i and 2i + 1 rotated by position·base^(−2i/d_k).

    The positions are 0, 1, … unless others are given, one for each row.
    """
    x = _real(x)
    where = torch.arange(len(x)) if positions is None else positions
    angles = Rope(x.shape[-1], base=base, adjacent=True).angles(where[None, :, None])[:, None]
    return rotate(x[None, None], (angles.cos(), angles.sin()), adjacent=True)[0, 0]


@_arrays
def ffn(x: Any, W_1: Any, b_1: Any, W_2: Any, b_2: Any) -> Any:
    """002's FFN and 001's MLP: GELU(x W_1 + b_1) W_2 + b_2, of matrices (d, d_ff) and (d_ff, d)."""
    return layers.gelu(x @ W_1 + b_1) @ W_2 + b_2


@_arrays
def adaln(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """002's adaLN: γ(t) ⊙ LN(x) + β(t), where a condition gives γ and β. DiT itself has 1 + γ."""
    return gamma * layers.LayerNorm(x.shape[-1], eps, bias=False, scale=False)(x) + beta


class KVCache:
    """002's KV cache of one head: `append(k, v)` gives all keys and all values so far, (t, d_k) each."""

    def __init__(self, max_len: int, d_k: int):
        self._cache = Cache(1, 1, 1, max_len, d_k, dtype=torch.float64)

    def append(self, k: Any, v: Any) -> tuple[np.ndarray, np.ndarray]:
        """The key and value of the new token, or of several, beside all that came before."""
        new = [torch.from_numpy(np.atleast_2d(np.asarray(x, dtype=np.float64)))[None, None] for x in (k, v)]
        count, used = new[0].shape[2], int(self._cache.used[0])
        if used + count > self._cache.length:
            raise UserError(f"the cache is for {self._cache.length} tokens: {used} and {count} more need a longer one")
        K, V = self._cache[0].write(self._cache.place(self._cache.next(count)), *new)
        return K[0, 0].numpy().copy(), V[0, 0].numpy().copy()


@_arrays
def add_noise(x_0: Any, noise: Any, t: int) -> Any:
    """The noised image a DiT reads: √ᾱ_t·x₀ + √(1 − ᾱ_t)·ε, in DDPM's 1000 linear steps."""
    process = diffusion.GaussianDiffusion(diffusion.linear())
    return process.add_noise(_real(x_0)[None], _real(noise)[None], torch.tensor([t]))[0]


# ---- 003, Understanding Transformers


@_arrays
def scaled_dot_product_attention(Q: Any, K: Any, V: Any, mask: Any = None) -> Any:
    """003's `scaled_dot_product_attention`, where the mask is not 0: returns output and weights.

    A query that may attend to nothing gets zeros; the document's −1e9 gives it the mean of all values.
    """
    return _attend(Q, K, V, None if mask is None else mask != 0)[:2]


class MultiHeadAttention(nn.Module):
    """003's `MultiHeadAttention`, called as (query, key, value, mask): returns the output and each head's weights.

    A mask has the axes (T, S), (B, T, S) or (B, h, T, S). The document's class would apply one of (B, T, S) to the
    heads; and a query that may attend to nothing gets zeros here.
    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        if d_model % num_heads:
            raise UserError(f"{num_heads} heads do not divide a width of {d_model}")
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return self._forward(query, key, value, mask)

    @_arrays
    def _forward(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
        maps = (self.W_q, query), (self.W_k, key), (self.W_v, value)
        q, k, v = (
            layer(x.to(layer.weight.dtype)).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
            for layer, x in maps
        )
        if mask is not None:
            mask = mask[:, None] != 0 if mask.ndim == 3 else mask != 0
        context, weights, _ = _attend(q, k, v, mask)
        return self.W_o(context.transpose(1, 2).flatten(-2)), weights


def positional_encoding(max_len: int, d_model: int) -> np.ndarray:
    """003's `positional_encoding`, and 000's stamps: the sines and cosines of every position, (max_len, d_model)."""
    return Sinusoidal(d_model).embedding(torch.arange(max_len)[None, :, None])[0].double().numpy()


class TokenPlusPositionEmbedding(nn.Module):
    """003's embedding of token ids (B, T): token table × √d_model, plus positions, and dropout while training.

    The document's class reads a `d_model` that it never stored; this one stores it.
    """

    pe: Tensor

    def __init__(self, vocab_size: int, d_model: int, max_len: int = 5000, dropout: float = 0.1):
        super().__init__()
        self.d_model = d_model
        self.token_emb, self.dropout = Tokens(vocab_size, d_model), nn.Dropout(dropout)
        nn.init.normal_(self.token_emb.weight)  # as nn.Embedding, which the document uses
        self.register_buffer("pe", torch.from_numpy(positional_encoding(max_len, d_model)).float())

    def forward(self, x: Any) -> Any:
        return self._forward(x)

    @_arrays
    def _forward(self, x: Any) -> Any:
        if x.shape[1] > len(self.pe):
            raise UserError(f"{x.shape[1]} tokens need max_len={x.shape[1]} or more; it is {len(self.pe)}")
        return self.dropout(self.token_emb(x) * math.sqrt(self.d_model) + self.pe[: x.shape[1]])


def alibi(heads: int, n: int) -> np.ndarray:
    """003's ALiBi: what is added to the scores of each head, −m·|i − j|, (heads, n, n)."""
    return Alibi(heads).bias(Span.whole(n))(torch.empty(0, dtype=torch.float64))[0].numpy()
