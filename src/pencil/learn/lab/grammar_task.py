"""A task that several claims share: texts of a small random grammar, whose lowest loss is known."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from .training import generator


@lru_cache(maxsize=8)
def grammar(words: int, choices: int, seed: int) -> Tensor:
    """The words that may follow each word: `choices` of them, with equal probability."""
    random = generator(seed, 0, 1)
    return torch.stack([torch.randperm(words, generator=random)[:choices] for _ in range(words)])


def sample_texts(table: Tensor, rows: int, length: int, random: torch.Generator) -> Tensor:
    """Random texts of the grammar: each word is one that may follow the word before."""
    words, choices = table.shape
    text = [torch.randint(words, (rows,), generator=random)]
    for _ in range(length - 1):
        text.append(table[text[-1], torch.randint(choices, (rows,), generator=random)])
    return torch.stack(text, 1)


def lowest_loss(table: Tensor) -> float:
    """The lowest loss that is possible without seeing the next word, in nats per word."""
    return math.log(table.shape[1])


def grammatical(table: Tensor, text: Tensor) -> float:
    """The fraction of words that may follow the word before them."""
    return float((table[text[:, :-1]] == text[:, 1:, None]).any(-1).float().mean())
