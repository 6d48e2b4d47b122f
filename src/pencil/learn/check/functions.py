"""The functions that formulas of worked examples may call, on float64 arrays."""

import math
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .limits import check_size, integer, spend_once, untimed
from .model_functions import attend, conv, normal, prefix, rank, rotate, sinusoids, unfold

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
COUNT = 1_000_000  # cells that counting a model is worth, so that a file counts some twenty at most


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
            from .counted import QUANTITIES, count_model

            return count_model(QUANTITIES[name], model, length, chosen)

    return counted


# what the counter of `pencil cost` counts; the first argument is the name of a preset, in quotes
COUNTED: dict[str, Callable] = {
    name: _counted(name)
    for name in ("parameters", "flops", "attention_flops", "score_flops", "decode_flops", "kv_cache_bytes")
}
