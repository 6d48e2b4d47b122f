"""A task that several claims share: associative recall.

Cards with a name and a value each, then a query that names some of them. The model must find the cards by their names
and predict their values in the order of the query.
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
from .training import generator


class RecallBatch(NamedTuple):
    """Rows of cards, the names queried in each row, and the answers."""

    names: Int[Tensor, "B n"]
    values: Int[Tensor, "B n"]
    queries: Int[Tensor, "B a"]
    answers: Int[Tensor, "B a"]


def recall_batch(random: torch.Generator, rows: int, names: int, values: int, shown: int, queries: int) -> RecallBatch:
    """`shown` cards with different names in each row, in random order; `queries` of them are queried."""
    who = torch.rand(rows, names, generator=random).argsort(1)[:, :shown]
    what = torch.randint(values, (rows, shown), generator=random)
    which = torch.rand(rows, shown, generator=random).argsort(1)[:, :queries]
    return RecallBatch(who, what, who.gather(1, which), what.gather(1, which))


class Blocks(nn.Module):
    """Blocks one after another and a norm, without positions."""

    def __init__(self, block: Callable[[], Block], depth: int, norm: nn.Module, mask: Mask = causal):
        super().__init__()
        self.blocks, self.norm, self.mask = nn.ModuleList(block() for _ in range(depth)), norm, mask

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        span = Span.whole(x.shape[1], device=x.device).under(self.mask)
        for block in self.blocks:
            x = block(x, span)
        return self.norm(x)


class RecallModel(nn.Module):
    """A card is one token, the embedding of its name plus that of its value; the query is the last token.

    `body` is any sequence model between them. Name and value are added, and a pair has no embedding of its own: so a
    mixture of two cards does not show which value belongs to which name.
    """

    def __init__(self, names: int, values: int, queries: int, width: int, body: nn.Module):
        super().__init__()
        self.queries, self.names, self.values = queries, nn.Embedding(names, width), nn.Embedding(values, width)
        self.query_embeddings = nn.ModuleList(nn.Embedding(names, width) for _ in range(queries))
        self.body, self.head = body, nn.Linear(width, queries * values)

    def forward(self, batch: RecallBatch) -> Float[Tensor, "B a v"]:
        cards = self.names(batch.names) + self.values(batch.values)
        query = torch.stack([embed(batch.queries[:, i]) for i, embed in enumerate(self.query_embeddings)]).sum(0)
        x = self.body(torch.cat((cards, query[:, None]), 1))
        return self.head(x[:, -1]).unflatten(-1, (self.queries, -1))


def recall_loss(model: RecallModel, batch: RecallBatch) -> Tensor:
    return F.cross_entropy(model(batch).flatten(0, 1), batch.answers.flatten())


@torch.no_grad()
def exact_match(model: RecallModel, batch: RecallBatch) -> float:
    """The fraction of rows in which every answer is right."""
    model.eval()
    return float((model(batch).argmax(-1) == batch.answers).all(-1).float().mean())


def training_batches(seed: int, rows: int, **kind: int) -> Callable[[int], RecallBatch]:
    """The batch of each training step: the same in every arm."""
    return lambda step: recall_batch(generator(seed, step, 1), rows, **kind)


def held_out_batch(seed: int, rows: int, **kind: int) -> RecallBatch:
    """A batch for evaluation; no training step draws it."""
    return recall_batch(generator(seed, 0, 2), rows, **kind)
