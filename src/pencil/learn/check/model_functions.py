"""Functions of formulas that a claim about a transformer needs: attention, positions, masks, patches, convolution.

Each is written out on float64 arrays, apart from the code of the models: a claim is held against the definition.
"""

from math import prod

import numpy as np

from .limits import check_size, integer, spend


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
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + mask
    raised = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True) @ v


def sinusoids(positions, width, base=10000):
    """A row a position: sin(pos / base^(2i/width)) at 2i, the cosine at 2i + 1."""
    d = integer(width)
    if d < 2 or d % 2:
        raise ValueError(f"sines and cosines come in pairs, so the width must be even, not {d}")
    check_size(np.size(positions) * d)
    angles = np.ravel(positions)[:, None] / np.asarray(base) ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, d)


def rotate(x, positions, base=10000):
    """RoPE: the pair (2i, 2i + 1) of each row turned by its position / base^(2i/d)."""
    d = x.shape[-1]
    if d % 2 or np.size(positions) != x.shape[-2]:
        raise ValueError(f"{x.shape[-2]} rows of {d} numbers need an even width and a position each")
    angles = np.ravel(positions)[:, None] / np.asarray(base) ** (np.arange(0, d, 2) / d)
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
    *outer, channels, height, width = image.shape
    p = integer(patch)
    if p < 1 or height % p or width % p:
        raise ValueError(f"{height}×{width} is not cut evenly by patches of {p}")
    cut = image.reshape(*outer, channels, height // p, p, width // p, p)
    k = len(outer)  # then C, down, inside, across, inside
    cut = cut.transpose(*range(k), k + 1, k + 3, k, k + 2, k + 4)
    return cut.reshape(*outer, (height // p) * (width // p), channels * p * p)


def conv(image, kernels, stride=1):
    """The convolution of (…, C, H, W) with kernels (D, C, p, q), as networks have it: no flip, no padding."""
    step, (count, channels, down, across) = integer(stride), kernels.shape
    *outer, own, height, width = image.shape
    if own != channels or step < 1 or down > height or across > width:
        raise ValueError(f"kernels of {channels}×{down}×{across} do not fit an image of {own}×{height}×{width}")
    rows, columns = (height - down) // step + 1, (width - across) // step + 1
    size = prod(outer) * count * rows * columns
    check_size(size)
    found = np.zeros((*outer, count, rows, columns))
    for i in range(down):
        for j in range(across):
            spend(size * channels // 8)
            seen = image[..., i : i + rows * step : step, j : j + columns * step : step]
            found += np.einsum("...chw,dc->...dhw", seen[..., :rows, :columns], kernels[:, :, i, j])
    return found


def rank(x):
    """The rank of a matrix."""
    if np.ndim(x) != 2:
        raise ValueError("only a matrix has a rank")
    spend(prod(x.shape) * min(x.shape) * 4)
    return np.linalg.matrix_rank(x)
