"""Sampling with rules of its own for each row, as tensors: rows join and leave, and no row's rules slow the others.

Everything is computed along a row alone (maxima, sorting, cumulative sums), so a row's choice depends on nothing that
another row does. Rules that are off are numbers that change nothing. On CUDA nothing waits for the device, so that a
choice can be captured: what only some rows need is computed for all, and taken where it is theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference.sampling import NOT_FINITE, Sampling, most_likely, penalize

ALL = slice(None)
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

    def stacked(self) -> Float[Tensor, "numbers B"]:
        return torch.stack([one.double() for one in self])


class Kinds(NamedTuple):
    """Which rules a row has, or any of several."""

    drawn: bool = False  # from all tokens
    ranked: bool = False  # drawn from the likeliest tokens, which are sorted for that: top-k and top-p
    biased: bool = False
    penalized: bool = False

    def __or__(self, other: "Kinds") -> "Kinds":
        return Kinds(*map(max, self, other))


class RowRules:
    """The rules of the rows of one tile; of logits that are longer than the vocabulary the rest are −∞."""

    def __init__(self, rows: int, vocab: int, device: torch.device, width: int | None = None):
        width = vocab if width is None else width

        def full(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.full((rows, 1), value, dtype=dtype, device=device)

        self.temperature, self.top_p, self.min_p = full(1.0), full(NO_TOP_P), full(0.0)
        self.top_k = full(vocab, torch.long)
        self.presence, self.frequency, self.repetition = (full(x, torch.float32) for x in (0.0, 0.0, 1.0))
        self.vocab = vocab
        self.bias = torch.zeros(rows, width, device=device)
        self.counts = torch.zeros(rows, width, device=device)  # of generated tokens
        self.seen = torch.zeros(rows, width, dtype=torch.bool, device=device)  # in the prompt or generated
        self.kinds = [Kinds()] * rows
        self._masks = torch.zeros(len(Kinds()), rows, dtype=torch.bool, device=device)  # the same, on the device
        self._rows = torch.arange(rows, device=device)

    def set(self, row: int, rules: Rules, prompt: list[int]) -> None:
        """Give a row to a sequence."""
        how = rules.sampling
        self.forget(row)
        self.temperature[row] = how.temperature or 1.0
        self.top_k[row] = self.vocab if how.top_k is None else min(how.top_k, self.vocab)
        self.top_p[row] = NO_TOP_P if how.top_p is None else how.top_p
        self.min_p[row] = how.min_p or 0.0
        self.presence[row], self.frequency[row] = rules.presence_penalty, rules.frequency_penalty
        self.repetition[row] = how.repetition_penalty
        sampled, ranked = how.temperature > 0, how.top_k is not None or how.top_p is not None
        self._be(row, Kinds(sampled and not ranked, sampled and ranked, bool(rules.logit_bias), rules.penalizes))
        if rules.penalizes:
            self.seen[row, prompt] = True
        for token, bias in rules.logit_bias.items():
            self.bias[row, token] = bias

    def forget(self, row: int) -> None:
        kinds = self.kinds[row]
        for forgotten, tensors in ((kinds.biased, (self.bias,)), (kinds.penalized, (self.counts, self.seen))):
            if forgotten:
                for tensor in tensors:
                    tensor[row] = 0
        self._be(row, Kinds())

    def _be(self, row: int, kinds: Kinds) -> None:
        for mask, before, now in zip(self._masks, self.kinds[row], kinds, strict=True):
            if before != now:
                mask[row] = now
        self.kinds[row] = kinds

    @property
    def any(self) -> Kinds:
        """The kinds of all rows together."""
        return reduce(Kinds.__or__, self.kinds)

    def choose(
        self,
        logits: Float[Tensor, "B V"],
        uniforms: Float[Tensor, "B"],
        here: slice | Int[Tensor, "B"] = ALL,
        kinds: Kinds | None = None,
    ) -> Choices:
        """The next token of each row, by its own random number in [0, 1); greedy rows do without.

        The rows are those of the tile that are `here`, whose rules are of these `kinds`.
        """
        kinds = self.any if kinds is None else kinds
        likely = logits.double().log_softmax(-1)
        if kinds.biased:
            logits = logits + self.bias[here]
        if kinds.penalized:
            counts, repetition = self.counts[here], self.repetition[here]
            logits = logits - self.frequency[here] * counts - self.presence[here] * (counts > 0)
            logits = penalize(logits, self.seen[here], repetition)  # pyright: ignore[reportArgumentType]
        (largest, second), (token, runner) = (one.unbind(-1) for one in _two_largest(logits))
        finite = largest.abs() < torch.inf
        low, high = torch.zeros_like(likely[:, 0]), torch.ones_like(likely[:, 0])
        drawn, ranked, _, penalized = self._masks[:, here]
        if kinds.drawn or kinds.ranked:
            p = ((logits.double() - largest.double()[:, None]) / self.temperature[here]).softmax(-1)
            kinds_of_draw = (kinds.drawn, drawn, self._from_all), (kinds.ranked, ranked, self._from_likeliest)
            for asked, mask, draw in kinds_of_draw:
                if not asked or not (mask.is_cuda or mask.any()):
                    continue
                rows = ALL if mask.is_cuda else mask.nonzero()[:, 0]
                new = draw(logits[rows], p[rows], uniforms[rows, None], self._rows[here][rows])
                for old, now in zip((token, low, high), new, strict=True):
                    old[rows] = torch.where(mask[rows], now, old[rows])
        logprob = likely.gather(-1, token[:, None])[:, 0]
        if kinds.penalized:
            at = self._rows[here], token
            self.counts[at] += penalized
            self.seen[at] |= penalized
        return Choices(torch.where(finite, token, NOT_FINITE), runner, logprob, low, high, (largest - second).double())

    def _from_all(self, logits: Tensor, p: Tensor, uniforms: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._draw(p * (p >= self.min_p[rows] * p.amax(-1, keepdim=True)), uniforms)

    def _from_likeliest(
        self, logits: Tensor, p: Tensor, uniforms: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ids = most_likely(logits, None)
        part = p.gather(-1, ids)
        part = part * (torch.arange(part.shape[1], device=part.device) < self.top_k[rows])
        part = part / part.cumsum(-1)[:, -1:]
        # the token that crosses the line of top-p is kept, so at least one always is
        most = self.min_p[rows] * part[:, :1]
        part = part * ((part.cumsum(-1) - part < self.top_p[rows]) & (part >= most))
        return self._draw(torch.zeros_like(part).scatter(-1, ids, part), uniforms)  # in the order of ids, as all are

    def _draw(self, p: Float[Tensor, "n V"], uniforms: Float[Tensor, "n 1"]) -> tuple[Tensor, Tensor, Tensor]:
        """The column in which each row's random number falls, and that column's interval."""
        cumulative = p.cumsum(-1)
        total = cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, uniforms * total, right=True).clamp(max=self.vocab - 1)
        high = cumulative.gather(-1, drawn)
        low = high - p.gather(-1, drawn)
        return drawn[:, 0], (low / total)[:, 0], (high / total)[:, 0]


def _two_largest(logits: Float[Tensor, "B V"]) -> tuple[Float[Tensor, "B 2"], Int[Tensor, "B 2"]]:
    """The two largest logits, the first as `max` finds it: of equal ones that of the lower id."""
    largest, token = logits.max(-1, keepdim=True)
    if logits.shape[1] == 1:
        return largest.expand(-1, 2), token.expand(-1, 2)
    second, runner = logits.scatter(-1, token, -torch.inf).max(-1, keepdim=True)
    return torch.cat((largest, second), -1), torch.cat((token, runner), -1)
