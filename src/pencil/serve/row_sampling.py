"""Sampling with rules of its own for each row, as tensors: rows join and leave, and no row's rules slow the others.

Everything is computed along a row alone (maxima, sorting, cumulative sums), so a row's choice depends on nothing that
another row does. Rules that are off are numbers that change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference.sampling import NOT_FINITE, Sampling, most_likely, penalize

NO_TOP_P = 2.0  # no sum of probabilities is as large, so everything is kept


@dataclass(frozen=True)
class Rules:
    """How one sequence is sampled: `Sampling`, and what the API adds to the logits."""

    sampling: Sampling = field(default_factory=Sampling)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the choice."""
        penalties = self.presence_penalty, self.frequency_penalty, self.sampling.repetition_penalty - 1
        return any(penalties) or bool(self.logit_bias)


class Choices(NamedTuple):
    """The next token of each row, and how it was chosen; lists, one entry a row."""

    tokens: list[int]  # NOT_FINITE where the logits have no largest one
    logprobs: list[float]  # of the token, in the model's own distribution
    low: list[float]  # the token's interval of [0, 1): the random number that was drawn is in it
    high: list[float]
    runners: list[int]  # the largest of the other logits
    margins: list[float]  # by how much the largest logit exceeds the next one


class RowRules:
    """The rules of the rows of one tile."""

    def __init__(self, rows: int, vocab: int, device: torch.device):
        def full(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.full((rows, 1), value, dtype=dtype, device=device)

        self.temperature, self.top_p, self.min_p = full(1.0), full(NO_TOP_P), full(0.0)
        self.top_k = full(vocab, torch.long)
        self.presence, self.frequency, self.repetition = (full(x, torch.float32) for x in (0.0, 0.0, 1.0))
        self.bias = torch.zeros(rows, vocab, device=device)
        self.counts = torch.zeros(rows, vocab, device=device)  # of generated tokens
        self.seen = torch.zeros(rows, vocab, dtype=torch.bool, device=device)  # in the prompt or generated
        self.sampled, self.sorted, self.adjusted = set[int](), set[int](), set[int]()  # rows whose rules do so

    def set(self, row: int, rules: Rules, prompt: list[int]) -> None:
        """Give a row to a sequence."""
        how = rules.sampling
        self.forget(row)
        self.temperature[row] = how.temperature or 1.0
        self.top_k[row] = self.bias.shape[1] if how.top_k is None else min(how.top_k, self.bias.shape[1])
        self.top_p[row] = NO_TOP_P if how.top_p is None else how.top_p
        self.min_p[row] = how.min_p or 0.0
        self.presence[row], self.frequency[row] = rules.presence_penalty, rules.frequency_penalty
        self.repetition[row] = how.repetition_penalty
        if how.temperature > 0:
            self.sampled.add(row)
            if how.top_k is not None or how.top_p is not None:
                self.sorted.add(row)
        if rules.adjusts:
            self.adjusted.add(row)
            self.seen[row, prompt] = True
            for token, bias in rules.logit_bias.items():
                self.bias[row, token] = bias

    def forget(self, row: int) -> None:
        for rows in (self.sampled, self.sorted):
            rows.discard(row)
        if row in self.adjusted:
            self.adjusted.discard(row)
            for tensor in (self.bias, self.counts, self.seen):
                tensor[row] = 0

    def count(self, row: int, token: int) -> None:
        """A row has got this token."""
        if row in self.adjusted:
            self.counts[row, token] += 1
            self.seen[row, token] = True

    def choose(self, logits: Float[Tensor, "B V"], uniforms: list[float]) -> Choices:
        """The next token of each row, by its own random number in [0, 1); greedy rows do without."""
        total = logits.double().logsumexp(-1)
        raw = logits
        if self.adjusted:
            logits = logits + self.bias - self.frequency * self.counts - self.presence * (self.counts > 0)
            logits = penalize(logits, self.seen, self.repetition)  # pyright: ignore[reportArgumentType]
        (largest, second), (token, runner) = (one.unbind(-1) for one in _two_largest(logits))
        finite = largest.abs() < torch.inf
        low, high = torch.zeros_like(total), torch.ones_like(total)
        if self.sampled:
            drawn = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
            p = ((logits.double() - largest.double()[:, None]) / self.temperature).softmax(-1)
            rows = torch.tensor(sorted(self.sampled - self.sorted), dtype=torch.long, device=logits.device)
            if len(rows):
                part = p[rows]
                part = part * (part >= self.min_p[rows] * part.amax(-1, keepdim=True))
                token[rows], low[rows], high[rows] = _draw(part, drawn[rows])
            rows = torch.tensor(sorted(self.sorted), dtype=torch.long, device=logits.device)
            if len(rows):
                ids = most_likely(logits[rows], None)
                part = p[rows].gather(-1, ids)
                part = part * (torch.arange(part.shape[1], device=part.device) < self.top_k[rows])
                part = part / part.cumsum(-1)[:, -1:]
                # the token that crosses the line of top-p is kept, so at least one always is
                part = part * ((part.cumsum(-1) - part < self.top_p[rows]) & (part >= self.min_p[rows] * part[:, :1]))
                part = torch.zeros_like(part).scatter(-1, ids, part)  # drawn in the order of ids, as all are
                token[rows], low[rows], high[rows] = _draw(part, drawn[rows])
        logprob = raw.gather(-1, token[:, None])[:, 0].double() - total
        token = torch.where(finite, token, NOT_FINITE)
        integers = torch.stack((token, runner)).tolist()
        numbers = torch.stack((logprob, low, high, (largest - second).double())).tolist()
        return Choices(integers[0], numbers[0], numbers[1], numbers[2], integers[1], numbers[3])


def _two_largest(logits: Float[Tensor, "B V"]) -> tuple[Float[Tensor, "B 2"], Int[Tensor, "B 2"]]:
    """The two largest logits, the first as `max` finds it: of equal ones that of the lower id."""
    largest, token = logits.max(-1, keepdim=True)
    if logits.shape[1] == 1:
        return largest.expand(-1, 2), token.expand(-1, 2)
    second, runner = logits.scatter(-1, token, -torch.inf).max(-1, keepdim=True)
    return torch.cat((largest, second), -1), torch.cat((token, runner), -1)


def _draw(p: Float[Tensor, "n V"], uniforms: Float[Tensor, "n 1"]) -> tuple[Tensor, Tensor, Tensor]:
    """The column in which each row's random number falls, and that column's interval."""
    cumulative = p.cumsum(-1)
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniforms * total, right=True).clamp(max=p.shape[1] - 1)
    high = cumulative.gather(-1, drawn)
    low = high - p.gather(-1, drawn)
    return drawn[:, 0], (low / total)[:, 0], (high / total)[:, 0]
