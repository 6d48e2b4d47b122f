"""Questions about the shapes of a model's tensors: the answers come from running the model."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ...core.probe import Probe
from ...models.captioner import Captioner, CaptionerConfig
from ...models.gpt import GPT, GPTConfig
from .exercise import Blank, Question
from .page_parts import drawn, posed, table

Shape = tuple[int, ...]
TEXT = {"B": 2, "T": 5, "V": 11, "D": 6, "F": 24}
BOTH = {"B": 2, "C": 3, "H": 4, "W": 6, "P": 2, "T": 5, "V": 13, "D": 8, "F": 32}


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
    batch, length, vocab = (int(one) for one in d.distinct(3, 2, 13))
    width = 2 * d.whole(7, 12)
    return dict(zip(like, (batch, length, vocab, width, 4 * width), strict=True))


def _shapes(model: torch.nn.Module, *inputs: Any) -> dict[str, Shape]:
    """The shape of every named value and weight; the axis of the one head is left out, as the notation does.

    The model stores the weights of its linear maps transposed.
    """
    probe = Probe("*")
    with torch.no_grad():
        model(*inputs, probe=probe)
    found = {name: tuple(value.shape) for name, value in probe.values.items()}
    heads = [name for name in found if ".attn." in name]
    found |= {name: found[name][:1] + found[name][2:] for name in heads if len(found[name]) == 4}
    found |= {name: found[name][1:] for name in heads if len(found[name]) == 3 and ".w_" in name}
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return found | {name: shape[::-1] if name in linear else shape for name, shape in weights.items()}


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
    found = (_both if picture else _text)(*sizes.values())
    pairs = [(symbol, found[name]) for symbol, name in names]
    answers = [
        Blank(f"{symbol}, axis {i + 1}", float(side), 0) for symbol, shape in pairs for i, side in enumerate(shape)
    ]
    letters = {"F": "d_ff"}
    return posed(
        "shapes",
        "Write the shapes",
        seed,
        "Every axis of each, in the order of the notation.",
        answers,
        lambda: [f"{symbol}: {' × '.join(map(str, shape))}" for symbol, shape in pairs],
        [table("sizes", list(sizes.values()), None, [letters.get(one, one) for one in sizes])],
        [(symbol, len(shape)) for symbol, shape in pairs],
    )
