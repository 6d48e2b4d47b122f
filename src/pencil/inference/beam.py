"""Beam search: the highest-scoring continuations of each prompt."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..config import UserError
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
    generation = Generation(model, prompts, max_new_tokens, end=end, never=never, vocab=vocab, given=given)
    rooms = [min(max_new_tokens, generation.context - len(prompt) + 1) for prompt in prompts]
    width, device = generation.vocab, generation.device
    beams = min(beams, width ** max(rooms))  # no more continuations exist
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # prompts still searched; each has `beams` consecutive rows
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
        # twice the beams: if half of them end, enough remain
        best = ahead.flatten(1).topk(min(2 * beams, beams * width))
        values, places = best.values.tolist(), best.indices.tolist()
        rows, tokens, kept, going = [], [], [], []
        for i, prompt in enumerate(live):
            grows: list[tuple[int, int, float]] = []
            last = length == rooms[prompt]
            for rank, (value, place) in enumerate(zip(values[i], places[i], strict=True)):
                beam, token = divmod(place, width)
                if value == -torch.inf:
                    continue
                if token in generation.ends or last:
                    if rank < beams or last:
                        text = [*texts[i][beam], token]
                        found[prompt].append(
                            Hypothesis(text, value, value / _length_norm(length, penalty), token in generation.ends)
                        )
                elif len(grows) < beams:
                    grows.append((beam, token, value))
            found[prompt] = sorted(found[prompt], key=lambda one: -one.score)[:beams]
            full = len(found[prompt]) == beams
            most = max(_length_norm(n, penalty) for n in (length, rooms[prompt]))
            if not grows or (full and found[prompt][-1].score >= grows[0][2] / most):
                continue
            grows += [(grows[0][0], grows[0][1], -torch.inf)] * (beams - len(grows))
            going.append((i, [[*texts[i][beam], token] for beam, token, _ in grows]))
            rows += [i * beams + beam for beam, *_ in grows]
            tokens += [token for _, token, _ in grows]
            kept.append([value for *_, value in grows])
        if not going:
            break
        dropped = len(going) < len(live)
        live, texts = [live[i] for i, _ in going], [text for _, text in going]
        # beams are reordered within a prompt; the source is reordered only when a prompt is finished
        cache.pick(torch.tensor(rows, device=device), sources=dropped)
        scores = torch.tensor(kept, dtype=torch.float64, device=device)
        fed = torch.tensor(tokens, device=device)[:, None]
        logits = model(fed, cache=cache, last=True)[:, -1].unflatten(0, (len(live), beams))
    return found


def _length_norm(length: int, penalty: float) -> float:
    return ((5 + length) / 6) ** penalty
