"""A task that several claims share: cards with a name and a value each, then a question that names some of them.

What must be learned is to look: find the cards by their names, and say their values in the order asked.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.blocks import Block
from ...core.masks import Mask, causal
from ...core.span import Span
from .practice import dice


class Deal(NamedTuple):
    """Rows of cards, what is asked of each row, and the answers."""

    names: Int[Tensor, "B n"]
    values: Int[Tensor, "B n"]
    asked: Int[Tensor, "B a"]
    answers: Int[Tensor, "B a"]


def deal(random: torch.Generator, rows: int, names: int, values: int, shown: int, asked: int) -> Deal:
    """`shown` cards of different names in each row, in any order; `asked` of them are asked for."""
    who = torch.rand(rows, names, generator=random).argsort(1)[:, :shown]
    what = torch.randint(values, (rows, shown), generator=random)
    which = torch.rand(rows, shown, generator=random).argsort(1)[:, :asked]
    return Deal(who, what, who.gather(1, which), what.gather(1, which))


class Stack(nn.Module):
    """Blocks one after another and a norm, with nothing known of where a token stands."""

    def __init__(self, block: Callable[[], Block], depth: int, norm: nn.Module, mask: Mask = causal):
        super().__init__()
        self.blocks, self.norm, self.mask = nn.ModuleList(block() for _ in range(depth)), norm, mask

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        span = Span.whole(x.shape[1], device=x.device).under(self.mask)
        for block in self.blocks:
            x = block(x, span)
        return self.norm(x)


class Cards(nn.Module):
    """Each card is one token, its name's vector plus its value's; the question is the last token; any trunk between.

    Name and value are added, not one row of a table for each pair: so a mixture of two cards no longer says which
    value was whose.
    """

    def __init__(self, names: int, values: int, asked: int, width: int, trunk: nn.Module):
        super().__init__()
        self.asked, self.names, self.values = asked, nn.Embedding(names, width), nn.Embedding(values, width)
        self.asks = nn.ModuleList(nn.Embedding(names, width) for _ in range(asked))
        self.trunk, self.head = trunk, nn.Linear(width, asked * values)

    def forward(self, hand: Deal) -> Float[Tensor, "B a v"]:
        cards = self.names(hand.names) + self.values(hand.values)
        question = torch.stack([ask(hand.asked[:, i]) for i, ask in enumerate(self.asks)]).sum(0)
        x = self.trunk(torch.cat((cards, question[:, None]), 1))
        return self.head(x[:, -1]).unflatten(-1, (self.asked, -1))


def card_loss(model: Cards, hand: Deal) -> Tensor:
    return F.cross_entropy(model(hand).flatten(0, 1), hand.answers.flatten())


@torch.no_grad()
def all_right(model: Cards, hand: Deal) -> float:
    """The share of rows in which every answer is right."""
    model.eval()
    return float((model(hand).argmax(-1) == hand.answers).all(-1).float().mean())


def dealer(seed: int, rows: int, **kind: int) -> Callable[[int], Deal]:
    """The deal of each step of training: the same for every arm."""
    return lambda step: deal(dice(seed, step, 1), rows, **kind)


def unseen(seed: int, rows: int, **kind: int) -> Deal:
    """A deal to be judged by; no step of training draws it."""
    return deal(dice(seed, 0, 2), rows, **kind)
