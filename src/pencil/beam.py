"""Beam search: several continuations of each prompt side by side, and of all that ended the best by score."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .config import UserError
from .generate import Generation

STRONGEST = 10  # penalty: beyond it nothing but the length would count


class Found(NamedTuple):
    """What a beam wrote after its prompt, its end included if it came to one; its logarithm of probability; its score.

    The score is that logarithm over ((5 + length)/6)^penalty: without a penalty every further token makes a text less
    likely, and short ones win.
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


@torch.no_grad()
def search(
    model: Any,
    prompts: Sequence[Sequence[int]],
    new: int,
    beams: int,
    *,
    end: int | None = None,
    vocab: int | None = None,
    penalty: float = 0.6,
    given: Mapping[str, Any] | None = None,
) -> list[list[Found]]:
    """For each prompt at most `beams` continuations of at most `new` tokens, the best first.

    A prompt is searched until no beam that still grows can come before the last of those found.
    """
    if beams < 1:
        raise UserError(f"beams must be at least 1, not {beams}")
    if not -STRONGEST <= penalty <= STRONGEST:
        raise UserError(f"length-penalty must be at least {-STRONGEST} and at most {STRONGEST}, not {penalty}")
    grown = Generation(model, prompts, new, end=end, vocab=vocab, given=given)
    rooms = [min(new, grown.context - len(prompt) + 1) for prompt in prompts]
    width, device = grown.vocab, grown.device
    beams = min(beams, width ** max(rooms))  # there are no more continuations
    found: list[list[Found]] = [[] for _ in prompts]
    live = list(range(len(prompts)))  # prompts still searched; each has `beams` rows, one after another
    texts: list[list[list[int]]] = [[[]] * beams for _ in prompts]
    logits = grown.prefill()[:, None, :width].expand(-1, beams, -1)
    # all beams of a prompt begin alike: only the first may grow
    scores = torch.zeros(len(prompts), beams, dtype=torch.float64, device=device)
    scores[:, 1:] = -torch.inf
    cache: Any = grown.cache
    cache.pick(torch.arange(len(prompts), device=device).repeat_interleave(beams))
    for length in range(1, max(rooms) + 1):
        ahead = scores[..., None] + logits.double().log_softmax(-1)
        # as many again as there are beams: if each of them ended, there would still be enough that go on
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
                if token == end or last:
                    if rank < beams or last:
                        text = [*texts[i][beam], token]
                        found[prompt].append(Found(text, value, value / _worth(length, penalty), token == end))
                elif len(grows) < beams:
                    grows.append((beam, token, value))
            found[prompt] = sorted(found[prompt], key=lambda one: -one.score)[:beams]
            full = len(found[prompt]) == beams
            most = max(_worth(n, penalty) for n in (length, rooms[prompt]))
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
        # beams change places among themselves; a source stays where it is until a whole prompt goes
        cache.pick(torch.tensor(rows, device=device), sources=dropped)
        scores = torch.tensor(kept, dtype=torch.float64, device=device)
        fed = torch.tensor(tokens, device=device)[:, None]
        logits = model(fed, cache=cache, last=True)[:, -1, :width].unflatten(0, (len(live), beams))
    return found


def _worth(length: int, penalty: float) -> float:
    return ((5 + length) / 6) ** penalty
