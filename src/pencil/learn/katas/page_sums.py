"""Small sums that documents 002 and 003 do in passing: deviations, costs, waves, sizes."""

import math

import numpy as np
import torch

from ...core.attention import Attention
from ...core.masks import full
from ...core.span import Span
from .builder import blanks, tensor
from .exercise import Blank, Question
from .page_parts import drawn, grid, numbers, posed, table
from .positions import stamping


def projected(seed: int | None) -> Question:
    """A query from a token and its matrix."""
    x, matrix = [1.0, 2.0, 0.0], [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]]
    if seed is not None:
        d = drawn("projected", seed)
        x, matrix = d.distinct(3, -2, 4), d.table(3, 2, -2, 3)
    q = np.asarray(x) @ np.asarray(matrix)
    return posed(
        "projected",
        "A token's query",
        seed,
        "q = x W_Q: x is a row of 3 numbers, W_Q has 3 rows and 2 columns.",
        blanks(["q 1", "q 2"], q, 0),
        lambda: [
            f"q {j + 1} = {' + '.join(f'{a:g}·{row[j]:g}' for a, row in zip(x, matrix, strict=True))} = {q[j]:g}"
            for j in range(2)
        ],
        [table("x", x), table("W_Q", matrix)],
    )


def deviation(seed: int | None, widths: tuple[int, int]) -> Question:
    """The spread of dot products before and after scaling."""
    if seed is not None:
        widths = (drawn("deviation", seed).pick([16, 25, 36, 100]), drawn("width", seed).pick([128, 256, 1024]))
    first, second = widths
    return posed(
        "deviation",
        "How far dot products spread",
        seed,
        f"The entries of q and k are independent, with mean 0 and variance 1. The variance of q·k at d_k = {first}? "
        f"Its standard deviation at d_k = {first}, and at d_k = {second}? And after dividing by √d_k?",
        numbers(
            ("variance", first, 0),
            (f"at {first}", math.sqrt(first), 1),
            (f"at {second}", math.sqrt(second), 1),
            ("scaled", 1, 1),
        ),
        lambda: [
            f"q·k is a sum of d_k products, each of variance 1: variance {first}",
            f"√{first} = {math.sqrt(first):.4g}, √{second} = {math.sqrt(second):.4g}, √d_k/√d_k = 1",
        ],
    )


def score_cost(seed: int | None) -> Question:
    """Multiply-adds of QKᵀ in one head."""
    tokens, width = (8192, 64) if seed is None else (drawn("tokens", seed).pick([1024, 2048, 4096]), 128)
    products = tokens * tokens * width
    return posed(
        "score-cost",
        "What QKᵀ costs",
        seed,
        f"{tokens} tokens, d_k = {width}: how many multiply-adds does Q Kᵀ take in one head, in 10⁹? And with twice as "
        f"many tokens, how many times as many?",
        numbers(("10⁹ multiply-adds", products / 1e9, 2), ("times", 4, 0)),
        lambda: [f"{tokens}·{tokens}·{width} = {products:,}", "2²·n²·d_k: 4 times"],
    )


def head_sizes(seed: int | None) -> Question:
    """Width and cost of each of several heads."""
    tokens, width, heads = (
        (10, 512, 8) if seed is None else (10, *drawn("heads", seed).pick([(768, 12), (1024, 16), (384, 6), (256, 4)]))
    )
    each, one = tokens * tokens * width // heads, tokens * tokens * width
    made = Attention(width, heads, bias=False)
    count = sum(weight.numel() for weight in made.parameters())
    return posed(
        "head-sizes",
        "Many heads for the price of one",
        seed,
        f"A model of width {width} has {heads} heads. d_k of each head? Over {tokens} tokens, the multiply-adds of Q "
        f"Kᵀ in one such head, in all of them, and in one head of the full width? And the weights of W_Q, W_K, W_V and "
        f"W_O together (no biases)?",
        numbers(
            ("d_k", made.head_width, 0),
            ("one head", each, 0),
            ("all heads", heads * each, 0),
            ("one of full width", one, 0),
            ("weights", count, 0),
        ),
        lambda: [
            f"d_k = {width}/{heads} = {width // heads}",
            f"{tokens}·{tokens}·{width // heads} = {each}; times {heads} = {heads * each}",
            f"{tokens}·{tokens}·{width} = {one}: the same",
            f"4·{width}² = {count:,}",
        ],
    )


def rotated_stamp(seed: int | None) -> Question:
    """The sinusoids of pos + k as a rotation of those of pos."""
    at, by = (1, 2) if seed is None else (drawn("pos", seed).whole(1, 5), drawn("offset", seed).whole(1, 4))
    here, there = (stamping(pos, [0.0, 0.0])["positions.embedding"][0] for pos in (at, at + by))
    sin, cos = math.sin(by), math.cos(by)
    return posed(
        "rotated-stamp",
        "From one position to another",
        seed,
        f"At ω = 1, position {at} is encoded as (sin {at}, cos {at}). Multiply it by the rotation of the offset {by}: "
        f"(s, c) becomes (s·cos {by} + c·sin {by}, c·cos {by} − s·sin {by}). That is the encoding of which position?",
        (*blanks(["sine", "cosine"], there, 3), Blank("position", float(at + by), 0)),
        lambda: [
            f"sine = {here[0]:.4f}·{cos:.4f} + {here[1]:.4f}·{sin:.4f} = {there[0]:.4f}",
            f"cosine = {here[1]:.4f}·{cos:.4f} − {here[0]:.4f}·{sin:.4f} = {there[1]:.4f}",
            f"position = {at} + {by} = {at + by}",
        ],
        [
            table("encoding", here.round(4), [f"pos {at}"], ["sine", "cosine"]),
            table("of the offset", [cos, sin], [str(by)], ["cos", "sin"]),
        ],
    )


def wavelength(seed: int | None) -> Question:
    """The shortest and the longest wave of a sinusoidal encoding."""
    width = 4 if seed is None else drawn("wave", seed).pick([6, 8, 10])
    longest = 2 * math.pi * 10000 ** ((width - 2) / width)
    big = 2 * math.pi * 10000 ** (510 / 512)
    return posed(
        "wavelength",
        "The longest wave",
        seed,
        f"Pair i has the wavelength 2π·10000^(2i/d), and i ends at d/2 − 1. The longest at d = {width}? At d = 512, to "
        f"the nearest whole number? (It is not 2π·10000.)",
        numbers((f"d = {width}", longest, 1), ("d = 512", round(big), 0)),
        lambda: [f"2π·10000^({width - 2}/{width}) = {longest:.2f}", f"2π·10000^(510/512) = {big:.1f}"],
    )


def reordered(seed: int | None) -> Question:
    """Attention without positions: reordered inputs give reordered outputs."""
    order = [2, 0, 1] if seed is None else [int(one) for one in drawn("order", seed).distinct(3, 0, 2)]
    order = [1, 2, 0] if order == [0, 1, 2] else order
    made = Attention(4, 1, bias=False).double()
    x = tensor([[1, 0, 2, -1], [0, 1, 1, 0], [2, -1, 0, 1]])[None]
    span = Span.whole(3).under(full)
    with torch.no_grad():
        made.qkv.weight.copy_(torch.eye(4, dtype=torch.float64).repeat(3, 1))
        made.out.weight.copy_(torch.eye(4, dtype=torch.float64))
        out, moved = made(x, span)[0].numpy(), made(x[:, order], span)[0].numpy()
    names = ["A", "B", "C"]
    return posed(
        "reordered",
        "Attention does not see the order",
        seed,
        f"Attention without positions and without a mask gives these outputs for the tokens A, B, C. Write its outputs "
        f"for the order {', '.join(names[i] for i in order)}, row by row.",
        grid([f"row {i + 1}" for i in range(3)], [f"y{i + 1}" for i in range(4)], moved, 2),
        lambda: [f"row {i + 1} is that of {names[one]}" for i, one in enumerate(order)],
        [table("outputs", out.round(2), names)],
        [(f"row {i + 1}", 4) for i in range(3)],
    )


def generation(seed: int | None) -> Question:
    """Score entries with and without a KV cache."""
    count = 8 if seed is None else drawn("generation", seed).whole(5, 10)
    naive, cached = sum(t * t for t in range(1, count + 1)), sum(range(1, count + 1))
    return posed(
        "generation",
        "Generating with and without a cache",
        seed,
        f"Tokens 1 to {count} are processed one step at a time. Step t without a cache computes all t × t scores "
        f"again; with one, only the t scores of the new token. How many scores in all?",
        numbers(("without", naive, 0), ("with a cache", cached, 0)),
        lambda: [f"1² + … + {count}² = {naive}", f"1 + … + {count} = {cached}"],
    )


def video_tokens(seed: int | None) -> Question:
    """Tokens of a video, and their scores whole and factored."""
    frames, side = (16, 32) if seed is None else (drawn("frames", seed).pick([4, 8, 12]), 16)
    each = (side // 2) ** 2
    count = frames * each
    factored = frames * each**2 + each * frames**2
    return posed(
        "video-tokens",
        "Tokens of a video",
        seed,
        f"{frames} frames of {side} × {side} latents, in patches of 2 × 2. How many tokens? How many scores in one "
        f"head over all of them? And how many if a token attends within its frame, then to the same place in all "
        f"frames?",
        numbers(("tokens", count, 0), ("scores", count * count, 0), ("factored", factored, 0)),
        lambda: [
            f"{frames}·{side // 2}·{side // 2} = {count}",
            f"{count}² = {count * count:,}",
            f"{frames}·{each}² + {each}·{frames}² = {factored:,}",
        ],
    )
