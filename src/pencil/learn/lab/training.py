"""The training loop of the experiments, with seeded random numbers, and the tasks that several claims share."""

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.blocks import Block
from ...core.masks import Mask, causal
from ...core.span import Span
from ...train.optim import make_optimizers
from ...train.settings import TrainConfig
from ...train.task import random_of


def generator(seed: int, step: int = 0, stream: int = 0) -> torch.Generator:
    """A random generator for (seed, step, stream), independent of all others."""
    return torch.Generator().manual_seed(int(random_of(seed, step, stream).integers(1 << 62)))


def seeded(make: Callable[[], Any], seed: int) -> Any:
    """A model initialised with this seed: two arms with the same shapes start from the same weights."""
    torch.manual_seed(seed)
    return make()


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    steps: int,
    *,
    lr: float = 1e-3,
    warmup: int = 0,
    decay: bool = True,
    beta2: float = 0.99,
) -> list[float]:
    """The loss of every step; `loss_of(step)` draws the batch of a step and returns its loss.

    The learning rate warms up linearly, then follows a cosine decay unless `decay` is False. Training stops at a loss
    that is not finite.
    """
    config = TrainConfig(steps=max(1, steps), lr=lr, optimizer="adamw", weight_decay=0.0, beta2=beta2)
    optimizers = make_optimizers(model, config)
    model.train()
    losses = []
    for step in range(steps):
        loss = loss_of(step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = _rate(step, steps, warmup, decay)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return losses


def _rate(step: int, steps: int, warmup: int, decay: bool) -> float:
    if step < warmup:
        return (step + 1) / (warmup + 1)
    along = (step - warmup) / max(1, steps - warmup)
    return (1 + math.cos(math.pi * along)) / 2 if decay else 1.0


def mean_of_last(losses: list[float], count: int, worst: float) -> float:
    """The mean of the last losses, each at most `worst`, the loss of guessing; so is a loss that is not finite."""
    tail = losses[-count:]
    return sum(min(loss, worst) if math.isfinite(loss) else worst for loss in tail) / len(tail)


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def points(xs: Any, ys: Any) -> list[tuple[float, float]]:
    """A curve as `measure` returns it."""
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def by_step(losses: list[float]) -> list[tuple[float, float]]:
    """The curve of the losses of a training."""
    return points(range(len(losses)), losses)


# ---- texts of a small random grammar, whose lowest loss is known


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


# ---- associative recall: cards with a name and a value each, then a query that names some of them; a model must find
# the cards by their names and predict their values in the order of the query


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
