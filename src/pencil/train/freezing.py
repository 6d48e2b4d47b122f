"""Frozen parameters: chosen by patterns of their names, never updated, and no gradient is computed of them.

Frozen is `requires_grad` off, before the optimizers are made: they, the average and the checkpoints know only what
trains, and autograd records nothing before the first parameter that does. **Recomputation wraps the blocks from
outside** (`train/recompute.py`): no model knows of it; a probed block runs as it is.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from torch import nn

from ..config import UserError, closest
from ..console import consecutive

BLOCK = re.compile(r"^(?:(.*)\.)?blocks\.(\d+)\.")
NAMED_PARTS = 8  # how many parts a refusal lists


def patterns_of(freeze: str | None) -> list[str]:
    """The patterns of train.freeze, one by one."""
    return [pattern for one in (freeze or "").split(",") if (pattern := one.strip())]


def frozen_names(names: Sequence[str], freeze: str | None) -> set[str]:
    """The parameters that the patterns match; a pattern that matches none, or all of them together, is refused.

    A pattern matches a name, or a part that the name is in: `tokens` and `tokens.*` are the same.
    """
    frozen: set[str] = set()
    for pattern in patterns_of(freeze):
        matched = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not matched:
            raise UserError(f"train.freeze {pattern} matches no parameter of this model; {_nearest(pattern, names)}")
        frozen |= matched
    if frozen and len(frozen) == len(names):
        raise UserError(f"train.freeze {freeze} matches every parameter, so that nothing would be trained: leave some")
    return frozen


def freeze_parameters(model: nn.Module, freeze: str | None) -> set[str]:
    """Freeze the parameters that the patterns match; their names."""
    named: dict[str, Any] = dict(model.named_parameters())
    frozen = frozen_names(list(named), freeze)
    for name in frozen:
        named[name].requires_grad_(False)
    return frozen


def frozen_model(create: Callable[[Any], nn.Module], freeze: str) -> Callable[[Any], nn.Module]:
    """A factory of models in which these parameters are frozen."""

    def build(config: Any) -> nn.Module:
        model = create(config)
        freeze_parameters(model, freeze)
        return model

    return build


def _nearest(pattern: str, names: Sequence[str]) -> str:
    """The part or the parameter that may have been meant; else the parts there are."""
    parts = {".".join(words[:end]) for words in (name.split(".") for name in names) for end in range(1, len(words) + 1)}
    bare = pattern.removesuffix(".*")
    if (close := closest(bare, parts)) is not None:
        return f"did you mean {close}{pattern[len(bare) :] if close not in names else ''}?"
    return f"its parts are {describe_parts(names)}, such as {names[0]}"


def blocks_with(names: Iterable[str]) -> set[tuple[str, int | None]]:
    """The blocks that have these parameters, each as its stack and its number."""
    return {part for part in _by_part(names) if part[1] is not None}


def describe_parts(names: Iterable[str], among: Iterable[str] = ()) -> str:
    """The parts that these parameters are in, in words: "blocks 6–11, norm and head".

    A part of which `among` has more parameters is called "part of" it.
    """
    inside = _by_part(names)
    whole = _by_part(among)
    words: list[str] = []
    for (stack, partial), group in groupby(inside, key=lambda part: (part[0], inside[part] < whole.get(part, 0))):
        numbers = [part[1] for part in group]
        prefix = "part of " * partial
        if numbers[0] is None:
            words.append(prefix + stack)
            continue
        ranges = consecutive(number for number in numbers if number is not None)
        many = "blocks" if len(numbers) > 1 else "block"
        words.append(f"{prefix}{stack}{' ' * bool(stack)}{many} {_listed(ranges)}")
    return _listed(words if len(words) <= NAMED_PARTS else [*words[:NAMED_PARTS], f"{len(words) - NAMED_PARTS} more"])


def _by_part(names: Iterable[str]) -> dict[tuple[str, int | None], int]:
    """How many parameters each part has: a block by its stack and its number, another part by its first word."""
    counts: dict[tuple[str, int | None], int] = {}
    matches = {name: BLOCK.match(name) for name in names}
    stacks = {block[1] for block in matches.values() if block}
    for name, block in matches.items():
        first, _, rest = name.partition(".")
        part = f"{first}.{rest.partition('.')[0]}" if first in stacks else first  # beside the blocks of a stack
        key = (part, None) if block is None else (block[1] or "", int(block[2]))
        counts[key] = counts.get(key, 0) + 1
    return counts


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
