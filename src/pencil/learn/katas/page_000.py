"""The page of document 000: every worked line and every exercise of it, in its order and its words."""

import numpy as np
import torch

from ...core.masks import causal
from ...core.patches import grid_of
from .attention_by_hand import by_hand, softmax_cells, strips
from .builder import blanks, rows
from .exercise import Blank, Question
from .layernorm import by_hand as tame
from .layernorm import number_labels, steps
from .page_parts import Section, drawn, kata, kata_numbers, numbers, posed, table, turn
from .positions import SLOTS, stamping

Tags = dict[str, list[list[float]]]


def counting(seed: int | None, height: int, width: int, patch: int) -> Question:
    """How many strips a photo is cut into."""
    down, across = grid_of((height, width), (patch, patch))
    return posed(
        "counting",
        "Count the strips",
        seed,
        f"A photo of {height} × {width} dots is cut into {patch} × {patch} squares. How many squares are there across, "
        f"how many down, how many strips in all, and how many dots has each?",
        numbers(("across", across, 0), ("down", down, 0), ("strips", down * across, 0), ("dots", patch * patch, 0)),
        lambda: [
            f"across = {width}/{patch} = {across}, down = {height}/{patch} = {down}",
            f"strips = {across}·{down} = {across * down}, dots = {patch}·{patch} = {patch * patch}",
        ],
    )


def divisors(seed: int | None, base: int, width: int) -> Question:
    """What the seat is divided by in each pair of slots."""
    values = [base ** (2 * i / width) for i in range(width // 2)]
    return posed(
        "divisors",
        "The divisors of a stamp",
        seed,
        f"At width {width} the slot pairs are i = 0 … {width // 2 - 1}. The seat is divided by {base}^(2i/{width}): by "
        f"which number in each pair?",
        numbers(*((f"pair {i}", value, 2) for i, value in enumerate(values))),
        lambda: [f"pair {i} = {base}^({2 * i}/{width}) = {value:.6g}" for i, value in enumerate(values)],
    )


def near(seed: int | None, base: int, seat: int) -> Question:
    """How far the stamps of two neighbouring seats are apart."""
    one, other = (stamping(at, [0.0] * 4, base)["positions.embedding"][0] for at in (seat, seat + 1))
    return posed(
        "near-seats",
        "Two seats side by side",
        seed,
        f"How much does each slot change from the stamp of seat {seat} to that of seat {seat + 1}? The fast slots are "
        f"those that change more: the first two or the last two?",
        (
            *blanks([f"slot {i + 1}" for i in range(4)], other - one, 3, [other.round(3) - one.round(3)]),
            Blank("fast slots: the", "first", words=True),
        ),
        lambda: [f"slot {i + 1} = {other[i]:.4f} − {one[i]:.4f} = {other[i] - one[i]:.4f}" for i in range(4)],
        [table("stamps", [one.round(4), other.round(4)], [f"seat {seat}", f"seat {seat + 1}"], SLOTS)],
    )


def raised(seed: int | None, tags: Tags, row: int) -> Question:
    """The powers of e of one row, and their total."""
    want, have = tags["want"], tags["have"]
    hand, count = by_hand(want, have, have), len(have)
    values = np.append(hand["raised"][row], hand["total"][row])
    also = [
        np.append(*pair)
        for pair in zip(rows(hand.roundings("raised", 2), row), rows(hand.roundings("total", 2), row), strict=True)
    ]
    return posed(
        "raised",
        "Raise e to each score",
        seed,
        f"SOFTMAX of s{row + 1}'s row begins here: raise e (2.71828…) to each scaled score, and add the results.",
        blanks([*(f"e^score {j + 1}" for j in range(count)), "total"], values, 2, also),
        lambda: hand.lines(*softmax_cells(row, count)[: count + 1]),
        [table("scaled scores", hand["scores"][row], [f"s{row + 1}"], strips(count))],
    )


def shapes(seed: int | None, n: int, width: int, give: int) -> Question:
    """The shapes of the whole grid as matrix products."""
    sizes = {"keyᵀ": (width, n), "query keyᵀ": (n, n), "weights": (n, n), "weights value": (n, give)}
    labels = [f"{name}: {side}" for name in sizes for side in ("rows", "columns")]
    return posed(
        "shapes",
        "The whole grid at once",
        seed,
        f"{n} strips; WANT and HAVE tags are {width} wide, GIVE tags {give}. As matrices with one row for each strip, "
        f"query is {n} × {width}, key {n} × {width} and value {n} × {give}. Write each shape.",
        blanks(labels, [side for pair in sizes.values() for side in pair], 0),
        lambda: [f"{name}: {down} × {across}" for name, (down, across) in sizes.items()],
        rows=[(name, 2) for name in sizes],
        across=("rows", "columns"),
    )


def taming(seed: int | None, strip: list[float]) -> Question:
    """LayerNorm line by line, up to the spread."""
    hand, count = tame(strip), len(strip)
    names = ("middle", "diffs", "squares", "average square", "spread")
    labels = [
        "middle",
        *(f"diff {i + 1}" for i in range(count)),
        *(f"square {i + 1}" for i in range(count)),
        "average square",
        "spread",
    ]
    also = [
        np.concatenate([np.ravel(one) for one in turn])
        for turn in zip(*(hand.roundings(name, 2) for name in names), strict=True)
    ]
    return posed(
        "taming",
        "Tame a strip line by line",
        seed,
        "The middle (average) of this strip; each number's diff from it; the squares of the diffs; their average; and "
        "the spread, the root of that average.",
        blanks(labels, np.concatenate([np.ravel(hand[name]) for name in names]), 2, also),
        lambda: hand.lines(*steps(count)[: count + 3]),
        [table("strip", strip, None, number_labels(count))],
        [("middle", 1), ("diffs", count), ("squares", count), ("average square", 1), ("spread", 1)],
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
            f"{row}: " + "  ".join("0" if one else "−inf" for one in line) for row, line in zip(down, seen, strict=True)
        ],
        rows=[*((row, count) for row in down), ("blocked, causal", 1), ("blocked, no mask", 1)],
        across=across,
    )


RECITED = (
    ("the move that keeps each square whole", "swap"), ("the tag that looks", "WANT"),
    ("the tag it is dotted with", "HAVE"), ("scores into portions", "softmax"), ("the tag that is summed", "GIVE"),
    ("the norm that reads one strip alone", "LayerNorm"), ("the mask of a writer (decoder)", "causal"),
)  # fmt: skip


def recitation(seed: int | None) -> Question:
    """The whole document, one word for each part."""
    return posed(
        "recitation",
        "One recitation",
        seed,
        "From the photo to a strip's new numbers, one word for each.",
        [Blank(label, word, words=True) for label, word in RECITED],
        lambda: [f"{label}: {word}" for label, word in RECITED],
        rows=[(label, 1) for label, _ in RECITED],
    )


def sections(seed: int | None) -> list[Section]:
    tags: Tags = {name: kata_numbers("weighted-sum", seed)[name] for name in ("want", "have", "give")}
    pair = {"want": tags["want"], "have": tags["have"]}
    photo = kata_numbers("missing-swap", seed)["photo"]
    strip = kata_numbers("layernorm", seed)["strip"]
    # tokens of the mask's grid and of its portions are the same number
    tokens = len(kata_numbers("causal", seed)["scores"])
    dot = (
        {"photo": photo, "patch": 2}
        if seed is None
        else {
            "photo": photo,
            "patch": 2,
            "row": drawn("dot", seed).whole(0, len(photo) - 1),
            "column": drawn("dot column", seed).whole(0, 3),
        }
    )
    base, first = (10000, 0) if seed is None else (kata_numbers("stamp", seed)["base"], drawn("seat", seed).whole(1, 6))
    return [
        Section(
            "A photo cut into strips",
            "Three moves: FOLD gives every dot a longer address, SWAP re-orders the parts of the address so that a "
            "square's dots become neighbours, GLUE writes each square as one row.",
            (
                counting(seed, len(photo), len(photo[0]), 2),
                *(kata("cut", seed, photo=photo, strip=i) for i in range(4)),
                *(turn(kata("missing-swap", seed, photo=photo, strip=i)) for i in range(3)),
                turn(kata("dot", seed, **dot)),
            ),
        ),
        Section(
            "Stamp the seat on",
            "Cutting loses where a strip sat. A stamp of sines and cosines, different for every seat, is added to it.",
            (
                divisors(seed, base, 4),
                *(kata("stamp", seed, seat=first + i, base=base) for i in range(3)),
                near(seed, base, first),
                turn(kata("add-stamp", seed)),
            ),
        ),
        Section(
            "Every strip looks at every strip",
            "Each strip has three tags: WANT, what it looks for; HAVE, what it offers to be found by; GIVE, what it "
            "hands over.",
            (
                kata("match", seed, **pair),
                *(kata("scale", seed, **pair, row=i) for i in range(2)),
                *(raised(seed, tags, i) for i in range(2)),
                kata("softmax", seed, **pair, row=0),
                turn(kata("softmax", seed, **pair, row=1)),
                *(kata("weighted-sum", seed, row=i) for i in range(2)),
                shapes(seed, len(tags["want"]), len(tags["want"][0]), len(tags["give"][0])),
            ),
        ),
        Section(
            "Tame one strip, alone",
            "LayerNorm takes one strip's numbers to a middle of 0 and a spread of 1, and reads no other strip; γ and β "
            "then stretch and shift them.",
            (
                taming(seed, strip),
                kata("layernorm", seed),
                kata("dials", seed),
                turn(kata("middle", seed)),
            ),
        ),
        Section(
            "Block the future",
            "A score set to −inf before the softmax becomes a portion of 0: e^(−inf) = 0.",
            (
                mask_grid(seed, tokens),
                *(kata("causal", seed, row=i) for i in range(tokens) if i != 1),
                turn(kata("causal", seed, row=1)),
            ),
        ),
        Section("The whole, in one go", "", (recitation(seed),)),
    ]
