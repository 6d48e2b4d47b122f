"""Questions that belong to the page of a document alone: counts, costs, shapes, and steps between two exercises."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...core.attention import Attention
from ...core.masks import causal, full
from ...core.patches import grid_of
from ...core.probe import Probe
from ...core.span import Span
from ...models.captioner import Captioner, CaptionerConfig
from ...models.gpt import GPT, GPTConfig
from ...tracing.receipt_text import format_number
from ..worked.examples import soft_lookup
from . import KATAS
from .attention import by_hand, cells, softmax_cells
from .blocks import norm_cells, normed_by_hand
from .builder import Draws, blanks, rows, tensor
from .exercise import Blank, Question, Table, numbered, written
from .positions import DIMS, encoding

Answer = tuple[str, float, int]  # label, value, decimals
Shape = tuple[int, ...]
Vectors = dict[str, list[list[float]]]
TEXT = {"B": 2, "T": 5, "V": 11, "D": 6, "F": 24}
BOTH = {"B": 2, "C": 3, "H": 4, "W": 6, "P": 2, "T": 5, "V": 13, "D": 8, "F": 32}


@dataclass(frozen=True)
class Section:
    """A section of a document: what it does, and its exercises."""

    title: str
    about: str
    questions: tuple[Question, ...]


def kata(name: str, seed: int | None, **changes: Any) -> Question:
    """An exercise of the list, with some of its numbers changed."""
    return KATAS[name].make(seed, **changes)


def kata_numbers(name: str, seed: int | None) -> dict[str, Any]:
    """The numbers of an exercise, for others that share them."""
    return KATAS[name].numbers(seed)


def turn(question: Question) -> Question:
    """An exercise that the document leaves to its reader."""
    return replace(question, title=f"YOUR TURN: {question.title}")


def drawn(name: str, seed: int) -> Draws:
    """The fresh numbers of a question that belongs to a page alone."""
    return Draws(f"page {name} {seed}")


def posed(
    name: str,
    title: str,
    seed: int | None,
    ask: str,
    answers: Sequence[Blank],
    working: Callable[[], Iterable[str]],
    tables: Sequence[Table] = (),
    rows: Sequence[tuple[str, int]] = (),
    across: Sequence[str] = (),
) -> Question:
    """A question that belongs to a page alone; it has no list of known mistakes."""
    return Question(
        tuple(tables),
        ask,
        tuple(answers),
        work=working,
        rows=tuple(rows),
        across=tuple(across),
        kata=name,
        title=title,
        seed=seed,
    )


def numbers(*answers: Answer) -> tuple[Blank, ...]:
    return tuple(Blank(label, float(value), decimals) for label, value, decimals in answers)


def grid(
    down: Sequence[str], across: Sequence[str], values: Any, decimals: int, also: Sequence[Any] = ()
) -> tuple[Blank, ...]:
    """A blank for each cell of a table; `also` are its values with earlier steps rounded."""
    labels = [f"{row}, {column}" for row in down for column in across]
    return blanks(labels, values, decimals, [np.asarray(rounded) for rounded in also])


def table(name: str, values: Any, down: Sequence[str] | None = None, across: Sequence[str] | None = None) -> Table:
    rows = np.atleast_2d(np.asarray(values, dtype=float)).tolist()
    return Table(name, rows, None if across is None else list(across), None if down is None else list(down))


def term(value: float, decimals: int = 4) -> str:
    """A number in a sum or a product: in parentheses if it is negative."""
    text = written(value, decimals)
    return f"({text})" if text.startswith("−") else text


def counting(seed: int | None, height: int, width: int, patch: int) -> Question:
    """How many patches an image is cut into."""
    down, across = grid_of((height, width), (patch, patch))
    return posed(
        "counting",
        "Count the patches",
        seed,
        f"An image of {height} × {width} pixels is cut into patches of {patch} × {patch}. How many patches are there "
        f"across, how many down, how many in all, and how many pixels has each?",
        numbers(("across", across, 0), ("down", down, 0), ("patches", down * across, 0), ("pixels", patch * patch, 0)),
        lambda: [
            f"across = {width}/{patch} = {across}, down = {height}/{patch} = {down}",
            f"patches = {across}·{down} = {across * down}, pixels = {patch}·{patch} = {patch * patch}",
        ],
    )


def divisors(seed: int | None, base: int, width: int) -> Question:
    """What the position is divided by in each pair of dimensions."""
    values = [base ** (2 * i / width) for i in range(width // 2)]
    return posed(
        "divisors",
        "The divisors of the sinusoidal encoding",
        seed,
        f"The sinusoidal encoding has {width} dimensions in pairs i = 0 … {width // 2 - 1}. The position is divided by "
        f"{base}^(2i/{width}): by which number in each pair?",
        numbers(*((f"pair {i}", value, 2) for i, value in enumerate(values))),
        lambda: [f"pair {i} = {base}^({2 * i}/{width}) = {value:.6g}" for i, value in enumerate(values)],
    )


def near(seed: int | None, base: int, position: int) -> Question:
    """How far the encodings of two neighbouring positions are apart."""
    first, second = (encoding(at, [0.0] * 4, base)["positions.embedding"][0] for at in (position, position + 1))
    return posed(
        "near-seats",
        "Two positions side by side",
        seed,
        f"How much does each dimension change from the encoding of position {position} to that of position "
        f"{position + 1}? Which two dimensions change more, the first two or the last two?",
        (
            *blanks(DIMS, second - first, 3, [second.round(3) - first.round(3)]),
            Blank("change more: the", "first", words=True),
        ),
        lambda: [
            f"{dim} = {term(b)} − {term(a)} = {written(b - a, 4)}"
            for dim, a, b in zip(DIMS, first, second, strict=True)
        ],
        [table("encodings", [first.round(4), second.round(4)], numbered("position", 2, first=position), DIMS)],
    )


def raised(seed: int | None, vectors: Vectors, row: int) -> Question:
    """The powers of e of one row, and their total."""
    queries, keys = vectors["queries"], vectors["keys"]
    hand, count = by_hand(queries, keys, keys), len(keys)
    values = np.append(hand["raised"][row], hand["total"][row])
    roundings = zip(rows(hand.roundings("raised", 2), row), rows(hand.roundings("total", 2), row), strict=True)
    return posed(
        "raised",
        "Raise e to each score",
        seed,
        f"The softmax of token {row + 1}'s row begins here: raise e (2.71828…) to each scaled score, and add up the "
        f"results.",
        blanks([*numbered("e^score", count), "total"], values, 2, [np.append(*pair) for pair in roundings]),
        lambda: hand.lines(*softmax_cells(row, count)[: count + 1]),
        [table("scaled scores", hand["scores"][row], [f"token {row + 1}"], numbered("token", count))],
    )


def products(seed: int | None, n: int, width: int, value_width: int) -> Question:
    """The shapes of attention over all tokens as matrix products."""
    sizes = {"keyᵀ": (width, n), "query keyᵀ": (n, n), "weights": (n, n), "weights value": (n, value_width)}
    labels = [f"{name}: {side}" for name in sizes for side in ("rows", "columns")]
    return posed(
        "shapes",
        "All tokens at once",
        seed,
        f"{n} tokens; queries and keys are {width} wide, values {value_width}. As matrices with one row for each "
        f"token, query is {n} × {width}, key {n} × {width} and value {n} × {value_width}. Write each shape.",
        blanks(labels, [side for pair in sizes.values() for side in pair], 0),
        lambda: [f"{name}: {down} × {across}" for name, (down, across) in sizes.items()],
        rows=[(name, 2) for name in sizes],
        across=("rows", "columns"),
    )


def norm_steps(seed: int | None, x: list[float]) -> Question:
    """LayerNorm line by line, up to the standard deviation."""
    hand, count = normed_by_hand(x), len(x)
    sizes = {"mean": 1, "deviations": count, "squares": count, "variance": 1, "standard deviation": 1}
    labels = ["mean", *numbered("deviation", count), *numbered("square", count), "variance", "standard deviation"]
    roundings = zip(*(hand.roundings(name, 2) for name in sizes), strict=True)
    return posed(
        "taming",
        "LayerNorm line by line",
        seed,
        "The mean of these numbers; each number's deviation from it; the squares of the deviations; their average, the "
        "variance; and the root of that, the standard deviation.",
        blanks(
            labels,
            np.concatenate([np.ravel(hand[name]) for name in sizes]),
            2,
            [np.concatenate([np.ravel(part) for part in rounded]) for rounded in roundings],
        ),
        lambda: hand.lines(*norm_cells(count)[: count + 3]),
        [table("token", x, None, numbered("number", count))],
        list(sizes.items()),
    )


def mask_grid(seed: int | None, count: int) -> Question:
    """What the causal mask adds to each score."""
    index = np.arange(count)
    tokens = torch.arange(count)
    seen = causal(tokens[:, None], tokens).numpy()
    down, across = ([f"{letter}{k + 1}" for k in index] for letter in "ij")
    cells = tuple(Blank(f"{down[i]} → {across[j]}", 0.0 if seen[i, j] else -np.inf, 0) for i in index for j in index)
    blocked = int((~seen).sum())
    return posed(
        "mask-grid",
        "The causal mask as a grid",
        seed,
        f"{count} tokens; row i looks at column j. Write 0 where the cell stays and −inf where it is blocked. How many "
        f"cells does the causal mask block, and how many are blocked without a mask (bidirectional)?",
        (*cells, *numbers(("blocked, causal", blocked, 0), ("blocked, no mask", 0, 0))),
        lambda: [
            f"{row}: " + "  ".join("0" if label else "−inf" for label in line)
            for row, line in zip(down, seen, strict=True)
        ],
        rows=[*((row, count) for row in down), ("blocked, causal", 1), ("blocked, no mask", 1)],
        across=across,
    )


RECITED = (
    ("the step that keeps the pixels of a patch together", "transpose"), ("the vector that asks", "query"),
    ("the vector it is multiplied with", "key"), ("scores into weights", "softmax"),
    ("the vector that is summed", "value"), ("the norm that reads one token alone", "LayerNorm"),
    ("the mask of a decoder", "causal"),
)  # fmt: skip


def recitation(seed: int | None) -> Question:
    """The whole document, one word for each part."""
    return posed(
        "recitation",
        "One recitation",
        seed,
        "From the image to the output of a token, one word for each.",
        [Blank(label, word, words=True) for label, word in RECITED],
        lambda: [f"{label}: {word}" for label, word in RECITED],
        rows=[(label, 1) for label, _ in RECITED],
    )


def stream(seed: int | None) -> Question:
    """Which positions of the one sequence are patches, and which words."""
    size = both_sizes(seed)
    patches = (size["H"] // size["P"]) * (size["W"] // size["P"])
    words = size["T"]
    return posed(
        "stream",
        "Who sees whom",
        seed,
        f"The sequence is {patches} patches, then {words} words, under the causal mask; positions count from 1. At "
        f"which position is the first word? How many positions does the last patch see, how many the first word, how "
        f"many the last word?",
        numbers(
            ("first word at", patches + 1, 0),
            ("last patch sees", patches, 0),
            ("first word sees", patches + 1, 0),
            ("last word sees", patches + words, 0),
        ),
        lambda: [
            "a position sees itself and all before it",
            f"{patches} patches, so the first word is at {patches + 1}, the last at {patches + words}",
        ],
    )


def predicted(seed: int | None) -> Question:
    """How many words of a text are predicted from the text positions alone."""
    words = both_sizes(seed)["T"]
    return posed(
        "targets",
        "How many words are predicted",
        seed,
        f"The logits are read at the {words} text positions, and each predicts the next word. How many of the {words} "
        f"words are predicted? And how many if the text has a begin token before its first word?",
        numbers(("as written", words - 1, 0), ("with a begin token", words, 0)),
        lambda: [
            "the first word would be predicted at the last patch, which is not read",
            "a begin token gives it a position of its own",
        ],
    )


def lookup(seed: int | None) -> Question:
    """A query and three keys in the plane; the page's own are similar, opposite and at a right angle."""
    trace = soft_lookup()
    queries, keys = (trace[name].value[0, 0].tolist() for name in ("want", "have"))
    if seed is not None:
        d = drawn("lookup", seed)
        queries = [[d.tenths(5, 15), d.tenths(5, 15)]]
        keys = [[d.tenths(-15, 15), d.tenths(-15, 15)] for _ in range(3)]
    hand, names = by_hand(queries, keys, keys), numbered("k", 3, "")
    labels = [*numbered("score", 3), *numbered("weight", 3)]
    also = [
        np.append(*pair)
        for pair in zip(rows(hand.roundings("scores", 2), 0), rows(hand.roundings("pattern", 2), 0), strict=True)
    ]
    return posed(
        "lookup",
        "A soft lookup in the plane",
        seed,
        "The query q is compared with three keys: q·k/√2, then the softmax. Draw the arrows first: which key points "
        "nearly the same way?",
        blanks(labels, np.append(hand["scores"][0], hand["pattern"][0]), 2, also),
        lambda: hand.lines(*cells("scores", 0, numbered("score", 3)), *softmax_cells(0, 3)),
        [table("query", queries, ["q"]), table("keys", keys, names)],
        [("scores", 3), ("weights", 3)],
        names,
    )


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
            f"q {j + 1} = {' + '.join(f'{term(a, 0)}·{term(row[j], 0)}' for a, row in zip(x, matrix, strict=True))} "
            f"= {written(q[j], 0)}"
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
            (f"deviation at {first}", math.sqrt(first), 1),
            (f"deviation at {second}", math.sqrt(second), 1),
            ("scaled deviation", 1, 1),
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
        f"{tokens} tokens, d_k = {width}: how many billion (10⁹) multiply-adds does Q Kᵀ take in one head? And with "
        f"twice as many tokens, how many times as many?",
        numbers(("billion multiply-adds", products / 1e9, 2), ("times", 4, 0)),
        lambda: [f"{tokens}·{tokens}·{width} = {products:,} multiply-adds", "2²·n²·d_k: 4 times"],
    )


def head_sizes(seed: int | None) -> Question:
    """Width and cost of each of several heads."""
    tokens, width, heads = (
        (10, 512, 8) if seed is None else (10, *drawn("heads", seed).pick([(768, 12), (1024, 16), (384, 6), (256, 4)]))
    )
    each, full = tokens * tokens * width // heads, tokens * tokens * width
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
            ("multiply-adds in one head", each, 0),
            ("in all heads", heads * each, 0),
            ("in one of full width", full, 0),
            ("weights", count, 0),
        ),
        lambda: [
            f"d_k = {width}/{heads} = {width // heads}",
            f"{tokens}·{tokens}·{width // heads} = {each:,} multiply-adds; times {heads} = {heads * each:,}",
            f"{tokens}·{tokens}·{width} = {full:,}: the same",
            f"4·{width}² = {count:,} weights",
        ],
    )


def rotated_encoding(seed: int | None) -> Question:
    """The sinusoids of pos + k as a rotation of those of pos."""
    at, by = (1, 2) if seed is None else (drawn("pos", seed).whole(1, 5), drawn("offset", seed).whole(1, 4))
    here, there = (encoding(pos, [0.0, 0.0])["positions.embedding"][0] for pos in (at, at + by))
    sin, cos = math.sin(by), math.cos(by)
    return posed(
        "rotated-stamp",
        "From one position to another",
        seed,
        f"At ω = 1, position {at} is encoded as (sin {at}, cos {at}). Multiply it by the rotation of the offset {by}: "
        f"(s, c) becomes (s·cos {by} + c·sin {by}, c·cos {by} − s·sin {by}). That is the encoding of which position?",
        (*blanks(["sine", "cosine"], there, 3), Blank("position", float(at + by), 0)),
        lambda: [
            f"sine = {term(here[0])}·{term(cos)} + {term(here[1])}·{term(sin)} = {format_number(there[0])}",
            f"cosine = {term(here[1])}·{term(cos)} − {term(here[0])}·{term(sin)} = {format_number(there[1])}",
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
        f"Pair i has the wavelength 2π·10000^(2i/d), and i ends at d/2 − 1. How many positions long is the "
        f"longest at a width d = {width}? At d = 512, to the nearest whole number? (It is not 2π·10000.)",
        numbers((f"longest at width {width}", longest, 1), ("longest at width 512", round(big), 0)),
        lambda: [
            f"2π·10000^({width - 2}/{width}) = {longest:.2f} positions",
            f"2π·10000^(510/512) = {big:.2f} positions",
        ],
    )


def reordered(seed: int | None) -> Question:
    """Attention without positions: reordered inputs give reordered outputs."""
    order = [2, 0, 1] if seed is None else [int(place) for place in drawn("order", seed).distinct(3, 0, 2)]
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
        lambda: [f"row {i + 1} is that of {names[place]}" for i, place in enumerate(order)],
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
        numbers(("scores without", naive, 0), ("scores with a cache", cached, 0)),
        lambda: [f"1² + … + {count}² = {naive} scores", f"1 + … + {count} = {cached} scores"],
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
        numbers(("tokens", count, 0), ("scores", count * count, 0), ("scores, factored", factored, 0)),
        lambda: [
            f"{frames}·{side // 2}·{side // 2} = {count:,} tokens",
            f"{count:,}² = {count * count:,} scores",
            f"{frames}·{each}² + {each}·{frames}² = {factored:,} scores",
        ],
    )


def text_sizes(seed: int | None) -> dict[str, int]:
    """The sizes of a model of text; fresh ones are all different."""
    return dict(TEXT) if seed is None else _fresh("text", seed, TEXT)


def both_sizes(seed: int | None) -> dict[str, int]:
    """The sizes of a model of a picture and text."""
    if seed is None:
        return dict(BOTH)
    d = drawn("picture", seed)
    patch = d.whole(2, 4)
    picture = {"C": d.pick([1, 3]), "H": patch * d.whole(2, 4), "W": patch * d.whole(2, 4), "P": patch}
    return BOTH | _fresh("picture and text", seed, TEXT) | picture


def _fresh(name: str, seed: int, like: dict[str, int]) -> dict[str, int]:
    d = drawn(name, seed)
    batch, length, vocab = (int(size) for size in d.distinct(3, 2, 13))
    width = 2 * d.whole(7, 12)
    return dict(zip(like, (batch, length, vocab, width, 4 * width), strict=True))


def _shapes(model: torch.nn.Module, *inputs: Any) -> dict[str, Shape]:
    """The shape of every named value and weight; the axis of the one head is left out, as the notation does.

    The model stores the weights of its linear maps transposed.
    """
    probe = Probe("*")
    with torch.no_grad():
        model(*inputs, probe=probe)
    values = {name: tuple(value.shape) for name, value in probe.values.items()}
    heads = [name for name in values if ".attn." in name]
    values |= {name: values[name][:1] + values[name][2:] for name in heads if len(values[name]) == 4}
    values |= {name: values[name][1:] for name in heads if len(values[name]) == 3 and ".w_" in name}
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return values | {name: shape[::-1] if name in linear else shape for name, shape in weights.items()}


@lru_cache(maxsize=8)
def _text(batch: int, length: int, vocab: int, width: int, hidden: int) -> dict[str, Shape]:
    model = GPT(GPTConfig(vocab, length, width, 1, 1, hidden=hidden, positions="learned", bias=True))
    return _shapes(model, torch.zeros(batch, length, dtype=torch.long))


@lru_cache(maxsize=8)
def _both(
    batch: int, channels: int, height: int, across: int, patch: int, length: int, vocab: int, width: int, hidden: int
) -> dict[str, Shape]:
    config = CaptionerConfig(
        image_size=(height, across),
        channels=channels,
        patch=(patch, patch),
        vocab=vocab,
        context=length,
        width=width,
        depth=1,
        heads=1,
        hidden=hidden,
        mask="causal",
        positions="learned",
        type_embeddings=False,
        delimiters="none",
        bias=True,
    )
    tokens, picture = torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, channels, height, across)
    return _shapes(Captioner(config), tokens, picture)


def shapes(seed: int | None, names: Sequence[tuple[str, str]], picture: bool = False) -> Question:
    """The shapes of some tensors, as (symbol, name in the model)."""
    sizes = both_sizes(seed) if picture else text_sizes(seed)
    model_shapes = (_both if picture else _text)(*sizes.values())
    pairs = [(symbol, model_shapes[name]) for symbol, name in names]
    answers = [
        Blank(f"{symbol}, axis {i + 1}", float(side), 0) for symbol, shape in pairs for i, side in enumerate(shape)
    ]
    letters = {"F": "d_ff"}
    return posed(
        "shapes",
        "Write the shapes",
        seed,
        f"The size of every axis, as the token ids t have {sizes['B']} × {sizes['T']}, which is B × T.",
        answers,
        lambda: [f"{symbol}: {' × '.join(map(str, shape))}" for symbol, shape in pairs],
        [table("sizes", list(sizes.values()), None, [letters.get(name, name) for name in sizes])],
        [(symbol, len(shape)) for symbol, shape in pairs],
    )
