"""Who looks at whom: for each family the keys a token may see, and those that count for a score."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...config import UserError
from ...core.masks import Mask, causal, full
from ...core.patches import seats

Inputs = tuple[Tensor, ...]  # what one call of a model is given, a batch of one
REFUSED = {
    "dit": "what its heads look at changes with every step from noise, so no one score tells it; "
    "pencil trace --png draws the attention at one step"
}


class Layout(NamedTuple):
    """Who looks at whom in one sequence: the keys a token may see, those that count for a score, and whose looks do."""

    allowed: Bool[Tensor, "T S"]
    targets: dict[str, Bool[Tensor, "T S"]]
    rows: Bool[Tensor, "T"]


class Stack(NamedTuple):
    """Blocks that look alike: their name, that of their patterns, and how they look."""

    name: str
    pattern: str
    layout: Layout


def choices(layout: Layout) -> dict[str, tuple[Bool[Tensor, "T S"], Bool[Tensor, "T"]]]:
    """For each score the keys that count and the tokens that could look at them or elsewhere; none without such."""
    found = {}
    for name, target in layout.targets.items():
        target = target & layout.allowed
        rows = layout.rows & target.any(-1) & (target.sum(-1) < layout.allowed.sum(-1))
        if rows.any():
            found[name] = target, rows
    return found


def shares(pattern: Float[Tensor, "h T S"], layout: Layout) -> dict[str, Float[Tensor, "h"]]:
    """The share of each head's attention that falls on the keys that count."""
    return {name: (pattern * target).sum(-1)[:, rows].mean(-1) for name, (target, rows) in choices(layout).items()}


def chances(layout: Layout) -> dict[str, float]:
    """The same if a head's weights were dealt out among the keys it may see in any order: the keys' own share."""
    seen = layout.allowed.sum(-1)
    return {
        name: float((target.sum(-1) / seen)[rows].double().mean()) for name, (target, rows) in choices(layout).items()
    }


def breadth(pattern: Float[Tensor, "h T S"], layout: Layout) -> Float[Tensor, "h"]:
    """The entropy of each token's attention as a share of the greatest it could have; 1 looks at all alike."""
    seen = layout.allowed.sum(-1)
    rows = layout.rows & (seen > 1)
    return (torch.special.entr(pattern).sum(-1)[:, rows] / seen[rows].to(pattern).log()).mean(-1)


def everything(pattern: Float[Tensor, "h T S"], layout: Layout) -> dict[str, Float[Tensor, "h"]]:
    """Every share, and the breadth."""
    return shares(pattern, layout) | {"broad": breadth(pattern, layout)}


def line(mask: Mask, length: int, start: int = 0) -> Layout:
    """Tokens in a line; those before `start` are no text, and only the text's looks count."""
    at = torch.arange(length)
    gap, key = at[:, None] - at, at.expand(length, -1)
    text = key >= start
    targets = {"previous": (gap == 1) & text, "next": gap == -1, "first": (key == start) & (gap != 0), "own": gap == 0}
    return Layout(_seen(mask, at), targets, at >= start)


def stacks_of(model: Any, family: str, given: Inputs) -> list[Stack]:
    """How the blocks of a model look at what it is given."""
    own, length = "blocks.{}.attn.pattern", given[0].shape[1]
    if family == "gpt":
        return [Stack("", own, line(model.mask, length))]
    if family == "reader":
        return [Stack("", f"encoder.{own}", line(full, length))]
    if family == "captioner":
        return [Stack("", own, _stream(model, length))]
    if family == "vit":
        return [Stack("", own, _strips(model))]
    if family == "seq2seq":
        source = given[1].shape[1]
        key = torch.arange(source).expand(length, -1)
        ends = {"first": key == 0, "last": key == source - 1}
        across = Layout(torch.ones(length, source, dtype=torch.bool), ends, torch.ones(length, dtype=torch.bool))
        return [
            Stack("encoder", f"encoder.{own}", line(full, source)),
            Stack("decoder", own, line(causal, length)),
            Stack("cross", "blocks.{}.cross.pattern", across),
        ]
    raise UserError(f"a {family} has no heads that can be scored: {REFUSED[family]}")


def _stream(model: Any, length: int) -> Layout:
    """A captioner's words, which look at one another and at the strips before them."""
    c = model.config
    layout = line(model.mask, c.before + length, c.before)
    key, marks = torch.arange(c.before + length), int(c.delimiters)
    strips = (key >= marks) & (key < c.before - marks)
    return layout._replace(targets=layout.targets | {"picture": strips.expand(len(key), -1)})


def _strips(model: Any) -> Layout:
    """A vit's strips, and the class token before them if there is one."""
    before = int(model.class_token is not None)
    places = seats(model.config.grid, torch.device("cpu"))
    steps = (places[:, None] - places).abs().sum(-1)
    count = before + len(places)
    own, near = torch.eye(count, dtype=torch.bool), torch.zeros(count, count, dtype=torch.bool)
    near[before:, before:] = steps == 1
    targets = {"class": (torch.arange(count) < before).expand(count, -1) & ~own, "near": near, "own": own}
    return Layout(torch.ones(count, count, dtype=torch.bool), targets, torch.ones(count, dtype=torch.bool))


def repeated(mask: Mask, count: int, start: int) -> Layout:
    """A sequence written twice: each token of the second half may look at what came after it in the first."""
    at = torch.arange(start + 2 * count)
    key, second = at.expand(len(at), -1), at >= start + count
    after = (at[:, None] - at == count - 1) & (key > start) & (key < start + count)
    return Layout(_seen(mask, at), {"induction": after}, second)


def _seen(mask: Mask, at: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return mask(at[:, None], at[None]).expand(len(at), len(at))
