"""The functions that formulas of worked examples may call, on float64 arrays.

Those that a claim about a transformer needs are written out apart from the code of the models: a claim is held against
the definition.
"""

import math
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .resource_limits import check_size, integer, spend, spend_once, untimed


def normal(seed, *shape):
    """What numpy draws after np.random.seed(seed) with np.random.randn(*shape)."""
    sizes = [integer(size) for part in shape for size in np.ravel(part)]
    check_size(prod(sizes))
    return np.random.RandomState(integer(seed)).standard_normal(sizes)


def attend(q, k, v, mask=0):
    """softmax(q kᵀ / √d + mask) v; a masked score is −inf."""
    outer = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    size = prod(np.broadcast_shapes((*outer, q.shape[-2], k.shape[-2]), np.shape(mask)))
    check_size(size)
    spend(size * (q.shape[-1] + v.shape[-1]) // 16)
    return _softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + mask) @ v


def _angles(positions, width, base):
    """The angle of each position in each pair of a width."""
    return np.ravel(positions)[:, None] / np.asarray(base) ** (np.arange(0, width, 2) / width)


def sinusoids(positions, width, base=10000):
    """A row a position: sin(pos / base^(2i/width)) at 2i, the cosine at 2i + 1."""
    d = integer(width)
    if d < 2 or d % 2:
        raise ValueError(f"sines and cosines come in pairs, so the width must be even, not {d}")
    check_size(np.size(positions) * d)
    angles = _angles(positions, d, base)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, d)


def rotate(x, positions, base=10000):
    """RoPE: the pair (2i, 2i + 1) of each row turned by its position / base^(2i/d)."""
    d = x.shape[-1]
    if d % 2 or np.size(positions) != x.shape[-2]:
        raise ValueError(f"{x.shape[-2]} rows of {d} numbers need an even width and a position each")
    angles = _angles(positions, d, base)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)
    return np.stack(turned, axis=-1).reshape(x.shape)


def prefix(first, total):
    """The mask that is causal, but lets the first tokens see one another; 0, or −inf where the key is hidden."""
    n, size = integer(first), integer(total)
    check_size(size**2)
    query, key = np.arange(size)[:, None], np.arange(size)
    return np.where((key <= query) | ((key < n) & (query < n)), 0.0, -np.inf)


def unfold(image, patch):
    """The patches of (…, C, H, W), one a row: channel by channel, each row by row."""
    patches = np.moveaxis(_glue(_swap(_fold(image, patch))), -3, -2)
    return patches.reshape(*patches.shape[:-2], -1)


def conv(image, kernels, stride=1):
    """The convolution of (…, C, H, W) with kernels (D, C, p, q), as networks have it: no flip, no padding."""
    step, (count, channels, down, across) = integer(stride), kernels.shape
    *outer, own, height, width = image.shape
    if own != channels or step < 1 or down > height or across > width:
        raise ValueError(f"kernels of {channels}×{down}×{across} do not fit an image of {own}×{height}×{width}")
    rows, columns = (height - down) // step + 1, (width - across) // step + 1
    size = prod(outer) * count * rows * columns
    check_size(size)
    out = np.zeros((*outer, count, rows, columns))
    for i in range(down):
        for j in range(across):
            spend(size * channels // 8)
            seen = image[..., i : i + rows * step : step, j : j + columns * step : step]
            out += np.einsum("...chw,dc->...dhw", seen[..., :rows, :columns], kernels[:, :, i, j])
    return out


def rank(x):
    """The rank of a matrix."""
    if np.ndim(x) != 2:
        raise ValueError("only a matrix has a rank")
    spend(prod(x.shape) * min(x.shape) * 4)
    return np.linalg.matrix_rank(x)


CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
COUNT = 1_200_000  # cells that counting a model is worth, so that a file counts some twenty at most


def _sizes(parts: tuple[Any, ...]) -> list[int]:
    """The sizes in reshape(x, 2, 3) or reshape(x, shape(y))."""
    return [integer(size) for part in parts for size in np.ravel(part)]


def _each(function: Callable) -> Callable:
    def each(x):
        return function(x)

    return each


def _along(function: Callable) -> Callable:
    def along(x, *, axis=None, keepdims=False):
        return function(x, axis=None if axis is None else integer(axis), keepdims=bool(keepdims))

    return along


def _filled(number: float) -> Callable:
    def filled(*shape):
        sizes = _sizes(shape)
        check_size(prod(sizes))
        return np.full(sizes, number)

    return filled


_erf = np.vectorize(math.erf, otypes=[float])


def _softmax(x, *, axis=-1):
    raised = np.exp(x - np.max(x, axis=integer(axis), keepdims=True))
    return raised / raised.sum(axis=integer(axis), keepdims=True)


def _layernorm(x, gamma=1, beta=0, *, eps=0):
    check_size(prod(np.broadcast_shapes(np.shape(x), np.shape(gamma), np.shape(beta))))
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gamma + beta


def _concat(*parts, axis=-1):
    return np.concatenate(parts, axis=integer(axis))


def _stack(*parts, axis=0):
    return np.stack(parts, axis=integer(axis))


def _reshape(x, *shape):
    return np.reshape(x, _sizes(shape))


def _transpose(x, *axes):
    return np.transpose(x, _sizes(axes) or None)


def _fold(image, patch):
    *outer, height, width = image.shape
    p = integer(patch)
    if p < 1 or height % p or width % p:
        raise ValueError(f"{height}×{width} is not cut evenly by patches of {p}")
    return image.reshape(*outer, height // p, p, width // p, p)


def _swap(folded):
    return np.swapaxes(folded, -3, -2)


def _glue(swapped):
    *outer, down, across, p, q = swapped.shape
    return swapped.reshape(*outer, down * across, p * q)


def _arange(start, stop=None, step=1):
    first, last = (0.0, float(start)) if stop is None else (float(start), float(stop))
    check_size(math.ceil((last - first) / float(step)))
    return np.arange(first, last, float(step))


def _eye(n):
    check_size(integer(n) ** 2)
    return np.eye(integer(n))


def _causal(n):
    check_size(integer(n) ** 2)
    return np.where(np.tri(integer(n)) > 0, 0.0, -np.inf)


def _where(condition, yes, no):
    check_size(prod(np.broadcast_shapes(np.shape(condition), np.shape(yes), np.shape(no))))
    return np.where(condition != 0, yes, no)


def _round(x, digits=0):
    return np.round(x, integer(digits))


FUNCTIONS: dict[str, Callable] = {
    **{name: _each(getattr(np, name)) for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tanh", "abs")},
    **{name: _each(getattr(np, name)) for name in ("floor", "ceil", "shape", "ravel", "isfinite")},
    **{name: _along(getattr(np, name)) for name in ("sum", "mean", "var", "std", "max", "min", "prod", "argmax")},
    **{name: _along(getattr(np, name)) for name in ("all", "any")},
    "erf": _each(_erf),
    "relu": _each(lambda x: np.maximum(x, 0)),
    "sigmoid": _each(lambda x: 1 / (1 + np.exp(-x))),
    "silu": _each(lambda x: x / (1 + np.exp(-x))),
    "gelu": _each(lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)))),
    "softmax": _softmax,
    "layernorm": _layernorm,
    "concat": _concat,
    "stack": _stack,
    "reshape": _reshape,
    "transpose": _transpose,
    "fold": _fold,
    "swap": _swap,
    "glue": _glue,
    "arange": _arange,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "eye": _eye,
    "causal": _causal,
    "where": _where,
    "round": _round,
    "normal": normal,
    "attend": attend,
    "sinusoids": sinusoids,
    "rotate": rotate,
    "prefix": prefix,
    "unfold": unfold,
    "conv": conv,
    "rank": rank,
}


def _counted(name: str) -> Callable:
    def counted(model: str, tokens=None, **sizes):
        length = None if tokens is None else integer(tokens)
        chosen = {key: integer(size) for key, size in sizes.items()}
        if name != "kv_cache_bytes":  # which is a product
            spend_once((model, length, *sorted(chosen.items())), COUNT)
        with untimed():
            from .preset_costs import QUANTITIES, count_model

            return count_model(QUANTITIES[name], model, length, chosen)

    return counted


# what the counter of `pencil cost` counts; the first argument is the name of a preset, in quotes
COUNTED: dict[str, Callable] = {
    name: _counted(name)
    for name in ("parameters", "flops", "attention_flops", "score_flops", "decode_flops", "kv_cache_bytes")
}
