"""Beam search: the highest-scoring continuations of each prompt."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..config import UserError
from ..core.layers import evaluating
from ..core.masks import NOWHERE
from ..core.span import Span
from ..models.output import refuse_output
from .cache_memory import check_cache
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

    A prompt is searched until no live beam can score better than the last hypothesis kept.
    """
    if beams < 1:
        raise UserError(f"beams must be at least 1, not {beams}")
    if not -MAX_PENALTY <= penalty <= MAX_PENALTY:
        raise UserError(f"length-penalty must be at least {-MAX_PENALTY} and at most {MAX_PENALTY}, not {penalty}")
    with evaluating(model.modules()):
        return _searched(model, prompts, max_new_tokens, beams, end, never, vocab, penalty, given)


def _searched(model, prompts, max_new_tokens, beams, end, never, vocab, penalty, given) -> list[list[Hypothesis]]:
    generation = Generation(
        model, prompts, max_new_tokens, end=end, never=never, vocab=vocab, given=given, capture=False
    )
    rooms = [min(max_new_tokens, generation.context - len(prompt) + 1) for prompt in prompts]
    width, device = generation.vocab, generation.device
    beams = min(beams, width ** max(rooms))  # no more continuations exist
    check_cache(model, len(prompts) * beams, generation.cache_length(max(map(len, prompts), default=1)))
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    live = [True] * len(prompts)  # whether a prompt is still searched; each has `beams` consecutive rows
    texts: list[list[list[int]]] = [[[]] * beams for _ in prompts]
    logits = generation.prefill()[:, None].expand(-1, beams, -1)
    # all beams of a prompt start the same: only the first may grow
    scores = torch.zeros(len(prompts), beams, dtype=torch.float64, device=device)
    scores[:, 1:] = -torch.inf
    cache: Any = generation.cache
    cache.pick(torch.arange(len(prompts), device=device).repeat_interleave(beams))
    for length in range(1, max(rooms) + 1):
        # a hypothesis has the probability that the model gives it, whatever else is not generated
        ahead = scores[..., None] + generation.allowed(logits.double().log_softmax(-1))
        # each beam can end with every end token: so many candidates that as many others as beams are among them
        best = ahead.flatten(1).topk(min(max(2, 1 + len(generation.ends)) * beams, beams * width))
        values, places = best.values.tolist(), best.indices.tolist()
        # a finished prompt keeps its rows, as padding, so that the batch and the cache's storage stay the same
        rows, tokens = list(range(len(prompts) * beams)), [0] * (len(prompts) * beams)
        kept = [[-torch.inf] * beams for _ in prompts]
        for i in range(len(prompts)):
            if not live[i]:
                continue
            if any(value != value for value in values[i]):
                refuse_output(model, f"the logits of token {length}")
            grows: list[tuple[int, int, float]] = []
            last = length == rooms[i]
            for rank, (value, place) in enumerate(zip(values[i], places[i], strict=True)):
                beam, token = divmod(place, width)
                if value == -torch.inf:
                    continue
                if token in generation.ends or last:
                    if rank < beams or last:
                        text = [*texts[i][beam], token]
                        found[i].append(
                            Hypothesis(text, value, value / _length_norm(length, penalty), token in generation.ends)
                        )
                elif len(grows) < beams:
                    grows.append((beam, token, value))
            found[i] = sorted(found[i], key=lambda one: -one.score)[:beams]
            full = len(found[i]) == beams
            most = max(_length_norm(n, penalty) for n in (length, rooms[i]))
            live[i] = bool(grows) and not (full and found[i][-1].score >= grows[0][2] / most)
            if live[i]:
                grows += [(grows[0][0], grows[0][1], -torch.inf)] * (beams - len(grows))
                texts[i] = [[*texts[i][beam], token] for beam, token, _ in grows]
                here = slice(i * beams, (i + 1) * beams)
                rows[here] = [i * beams + beam for beam, *_ in grows]
                tokens[here] = [token for _, token, _ in grows]
                kept[i] = [value for *_, value in grows]
        if not any(live):
            break
        # beams are reordered within a prompt, so the source stays
        cache.pick(torch.tensor(rows, device=device), sources=False)
        scores = torch.tensor(kept, dtype=torch.float64, device=device)
        index = [
            len(prompts[i]) + length - 1 if live[i] else NOWHERE for i in range(len(prompts)) for _ in range(beams)
        ]
        span = None if all(live) else Span.at(torch.tensor(index, device=device)[:, None])
        fed = torch.tensor(tokens, device=device)[:, None]
        logits = model(fed, span=span, cache=cache, last=True)[:, -1].unflatten(0, (len(prompts), beams))
    return found


def _length_norm(length: int, penalty: float) -> float:
    return ((5 + length) / 6) ** penalty
