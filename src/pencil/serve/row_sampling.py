"""Sampling with rules of its own for each row, as tensors: rows join and leave, and no row's rules slow the others.

Everything is computed along a row alone (maxima, sorting, cumulative sums), so a row's choice depends on nothing that
another row does. Rules that are off are numbers that change nothing.
"""

from collections.abc import Collection, Mapping
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
    def penalizes(self) -> bool:
        """Whether tokens are less likely, or more, for having been there."""
        return any((self.presence_penalty, self.frequency_penalty, self.sampling.repetition_penalty - 1))


class Choices(NamedTuple):
    """The next token of each row, and how it was chosen."""

    tokens: Int[Tensor, "B"]  # NOT_FINITE where the logits have no largest one
    runners: Int[Tensor, "B"]  # the largest of the other logits
    logprobs: Float[Tensor, "B"]  # of the token, in the model's own distribution
    low: Float[Tensor, "B"]  # the token's interval of [0, 1): the random number that was drawn is in it
    high: Float[Tensor, "B"]
    margins: Float[Tensor, "B"]  # by how much the largest logit exceeds the next one


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
        # rows whose rules do so
        self.sampled, self.sorted, self.biased, self.penalized = set[int](), set[int](), set[int](), set[int]()

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
        if rules.penalizes:
            self.penalized.add(row)
            self.seen[row, prompt] = True
        for token, bias in rules.logit_bias.items():
            self.biased.add(row)
            self.bias[row, token] = bias

    def forget(self, row: int) -> None:
        for rows in (self.sampled, self.sorted):
            rows.discard(row)
        for rows, tensors in ((self.biased, (self.bias,)), (self.penalized, (self.counts, self.seen))):
            if row in rows:
                rows.discard(row)
                for tensor in tensors:
                    tensor[row] = 0

    def _rows(self, rows: Collection[int], first: int, last: int) -> Int[Tensor, "n"]:
        """Those of a set from `first` to before `last`, counted from `first`."""
        found = [row - first for row in sorted(rows) if first <= row < last]
        return torch.tensor(found, dtype=torch.long, device=self.bias.device)

    def choose(self, logits: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"], row: int | None = None) -> Choices:
        """The next token of each row, or of one, by its own random number in [0, 1); greedy rows do without."""
        first, last = (0, len(self.bias)) if row is None else (row, row + 1)
        here = slice(first, last)
        likely = logits.double().log_softmax(-1)
        if self.biased:
            logits = logits + self.bias[here]
        if self.penalized:
            counts, repetition = self.counts[here], self.repetition[here]
            logits = logits - self.frequency[here] * counts - self.presence[here] * (counts > 0)
            logits = penalize(logits, self.seen[here], repetition)  # pyright: ignore[reportArgumentType]
        (largest, second), (token, runner) = (one.unbind(-1) for one in _two_largest(logits))
        finite = largest.abs() < torch.inf
        low, high = torch.zeros_like(likely[:, 0]), torch.ones_like(likely[:, 0])
        if self.sampled:
            drawn = uniforms[:, None]
            p = ((logits.double() - largest.double()[:, None]) / self.temperature[here]).softmax(-1)
            rows = self._rows(self.sampled - self.sorted, first, last)
            if len(rows):
                part = p[rows]
                part = part * (part >= self.min_p[here][rows] * part.amax(-1, keepdim=True))
                token[rows], low[rows], high[rows] = _draw(part, drawn[rows])
            rows = self._rows(self.sorted, first, last)
            if len(rows):
                ids = most_likely(logits[rows], None)
                part = p[rows].gather(-1, ids)
                part = part * (torch.arange(part.shape[1], device=part.device) < self.top_k[here][rows])
                part = part / part.cumsum(-1)[:, -1:]
                # the token that crosses the line of top-p is kept, so at least one always is
                most = self.min_p[here][rows] * part[:, :1]
                part = part * ((part.cumsum(-1) - part < self.top_p[here][rows]) & (part >= most))
                part = torch.zeros_like(part).scatter(-1, ids, part)  # drawn in the order of ids, as all are
                token[rows], low[rows], high[rows] = _draw(part, drawn[rows])
        logprob = likely.gather(-1, token[:, None])[:, 0]
        if self.penalized:
            rows = self._rows(self.penalized, first, last)
            self.counts[here][rows, token[rows]] += 1
            self.seen[here][rows, token[rows]] = True
        return Choices(torch.where(finite, token, NOT_FINITE), runner, logprob, low, high, (largest - second).double())


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
