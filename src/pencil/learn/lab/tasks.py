"""Small languages to train on, whose right answers are known."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from .practice import dice


@lru_cache(maxsize=8)
def grammar(words: int, choices: int, seed: int) -> Tensor:
    """Which words may follow each word: `choices` of them, all as likely."""
    random = dice(seed, 0, 1)
    return torch.stack([torch.randperm(words, generator=random)[:choices] for _ in range(words)])


def walks(table: Tensor, rows: int, length: int, random: torch.Generator) -> Tensor:
    """Texts in which every word is one that may follow the word before; nothing else is known of it."""
    words, choices = table.shape
    text = [torch.randint(words, (rows,), generator=random)]
    for _ in range(length - 1):
        text.append(table[text[-1], torch.randint(choices, (rows,), generator=random)])
    return torch.stack(text, 1)


def floor_of(table: Tensor) -> float:
    """The loss, in nats a word, below which nobody can come who does not know the future."""
    return math.log(table.shape[1])


def lawful(table: Tensor, text: Tensor) -> float:
    """The share of words that may follow the word before them."""
    return float((table[text[:, :-1]] == text[:, 1:, None]).any(-1).float().mean())
