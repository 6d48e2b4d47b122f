"""Beam search: the highest-scoring continuations of each prompt."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..config import UserError
from ..core.layers import evaluating
from ..models.build import refuse_output
from .generation import Generation

MAX_PENALTY = 10  # beyond it nothing but the length would count


class Hypothesis(NamedTuple):
    """A continuation, its end token included if it has one; its log-probability; its score.

    The score is the log-probability over ((5 + length)/6)^penalty: without a length penalty short sequences win.
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


class Growth(NamedTuple):
    """A token after one of a prompt's beams, and the log-probability of the continuation with it."""

    beam: int
    token: int
    log_probability: float


class _PromptSearch:
    """The hypotheses of one prompt, and whether it is still searched."""

    def __init__(self, beams: int, penalty: float, max_length: int, ends: Collection[int]):
        self.beams, self.penalty, self.max_length, self.ends = beams, penalty, max_length, ends
        self.live, self.hypotheses = True, list[Hypothesis]()

    def grow(self, length: int, texts: Sequence[list[int]], candidates: Iterable[Growth]) -> list[Growth]:
        """Keep the candidates of this length that end as hypotheses; the growth of each beam, or none at the end."""
        growths: list[Growth] = []
        last = length == self.max_length
        for rank, growth in enumerate(candidates):
            if growth.log_probability == -torch.inf:
                continue
            ended = growth.token in self.ends
            if ended or last:
                if rank < self.beams or last:
                    text, score = [*texts[growth.beam], growth.token], growth.log_probability / self._norm(length)
                    self.hypotheses.append(Hypothesis(text, growth.log_probability, score, ended))
            elif len(growths) < self.beams:
                growths.append(growth)
        self.hypotheses = sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.beams]
        full = len(self.hypotheses) == self.beams
        norm = max(self._norm(length), self._norm(self.max_length))
        self.live = bool(growths) and not (full and self.hypotheses[-1].score >= growths[0].log_probability / norm)
        if not self.live:
            return []
        # with fewer growths than beams the rest is never the best
        return growths + [growths[0]._replace(log_probability=-torch.inf)] * (self.beams - len(growths))

    def _norm(self, length: int) -> float:
        return ((5 + length) / 6) ** self.penalty


@torch.no_grad()
def search(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    beams: int,
    *,
    end: int | Collection[int] | None = None,
    never: Sequence[int] = (),
    vocab: int | None = None,
    penalty: float = 0.6,
    given: Mapping[str, Any] | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt at most `beams` continuations of at most `max_new_tokens` tokens, the best first.

    A prompt is searched until no live beam can score better than the last of its hypotheses.
    """
    if beams < 1:
        raise UserError(f"beams must be at least 1, not {beams}")
    if not -MAX_PENALTY <= penalty <= MAX_PENALTY:
        raise UserError(f"length-penalty must be at least {-MAX_PENALTY} and at most {MAX_PENALTY}, not {penalty}")
    generation = Generation(
        model, prompts, max_new_tokens, end=end, never=never, vocab=vocab, given=given, capture=False
    )
    max_lengths = [min(max_new_tokens, generation.context - len(prompt) + 1) for prompt in prompts]
    width, device = generation.vocab, generation.device
    beams = min(beams, width ** max(max_lengths))  # no more continuations exist
    searches = [_PromptSearch(beams, penalty, length, generation.ends) for length in max_lengths]
    # all beams of a prompt start the same: only the first may grow
    scores = torch.zeros(len(prompts), beams, dtype=torch.float64, device=device)
    scores[:, 1:] = -torch.inf
    with evaluating(generation.modules):
        logits = generation.branch(beams)  # the beams of a prompt are consecutive rows
        for length in range(1, max(max_lengths) + 1):
            # a hypothesis has the probability that the model gives it, whatever else is not generated
            log_probabilities = generation.allowed(logits.double().log_softmax(-1)).unflatten(0, scores.shape)
            sums = (scores[..., None] + log_probabilities).flatten(1)
            # each beam can end with every end token: so many candidates that as many others as beams are among them
            best = sums.topk(min(max(2, 1 + len(generation.ends)) * beams, beams * width))
            values, places = best.values.tolist(), best.indices.tolist()
            growths: list[Growth | None] = []  # one a row; none in the rows of a prompt that is no longer searched
            for i, (prompt, prompt_search) in enumerate(zip(prompts, searches, strict=True)):
                if not prompt_search.live:
                    growths += [None] * beams
                    continue
                if any(value != value for value in values[i]):
                    refuse_output(model, f"the logits of token {length}")
                candidates = [
                    Growth(place // width, place % width, value)
                    for value, place in zip(values[i], places[i], strict=True)
                ]
                texts = [row[len(prompt) :] for row in generation.rows[i * beams : (i + 1) * beams]]
                growths += prompt_search.grow(length, texts, candidates) or [None] * beams
            if not any(growths):
                break
            parents = [row if growth is None else row - row % beams + growth.beam for row, growth in enumerate(growths)]
            logits = generation.extend(parents, [None if growth is None else growth.token for growth in growths])
            totals = [-torch.inf if growth is None else growth.log_probability for growth in growths]
            scores = torch.tensor(totals, dtype=torch.float64, device=device).view(scores.shape)
    return [prompt_search.hypotheses for prompt_search in searches]
