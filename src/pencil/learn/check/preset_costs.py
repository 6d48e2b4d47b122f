"""What a preset costs, for formulas: parameters, FLOPs and bytes of the KV cache, by the counter of `pencil cost`."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from ...config import UserError, nearest
from ...cost.count import SCORES, Counts, count
from ...cost.memory import kv_cache
from ...families import FAMILIES, Family

SIZES = ("width", "depth", "heads", "kv_heads", "hidden", "vocab")


def _attention(counts: Counts) -> int:
    return sum(n for group, n in counts.forward.by_group.items() if group in ("attention", "attention" + SCORES))


def _scores(counts: Counts) -> int:
    return sum(n for group, n in counts.forward.by_group.items() if group.endswith(SCORES))


def _decode(counts: Counts) -> int:
    if counts.decode is None:
        raise UserError("this model does not generate token by token, so it has no decode step")
    return counts.decode.flops


# of one sequence; None is not counted but follows from the config
QUANTITIES: dict[str, Callable[[Counts], int] | None] = {
    "parameters": lambda counts: counts.total_parameters,
    "flops": lambda counts: counts.forward.flops,
    "attention_flops": _attention,
    "score_flops": _scores,
    "decode_flops": _decode,
    "kv_cache_bytes": None,
}


def count_model(
    quantity: Callable[[Counts], int] | None, model: str, tokens: int | None, sizes: Mapping[str, int]
) -> float:
    """A quantity of a preset, over a text of so many tokens, with these sizes in place of its own."""
    for name in sizes:
        if name not in SIZES:
            raise UserError(f"{name} is not a size that can be changed here; {nearest(name, SIZES)}")
    if tokens is not None and tokens < 1:
        raise UserError(f"the number of tokens must be at least 1, not {tokens}")
    record, preset = _preset(model)
    config = _resized(record.configure(preset), record, tokens, sizes)
    if quantity is None:
        if not record.cost.decodes:
            raise UserError(f"{model} has no KV cache: it does not generate token by token")
        return float(kv_cache(config, 1, tokens or config.context))
    return float(quantity(_counts(record.name, config, tokens)))


def _preset(model: str) -> tuple[Family, str]:
    """The family and the preset of this name. The folder of a run is not looked for: a formula opens no file."""
    found = [(record, preset) for record in FAMILIES.values() for preset in record.presets]
    chosen = [(r, preset) for r, preset in found if model in (preset, f"{r.name}:{preset}")]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(f"{record.name}:{preset}" for record, preset in chosen)
        raise UserError(f"{model} is a preset of several families; use one of {names}")
    known = {f"{record.name}:{preset}" if ":" in model else preset for record, preset in found}
    raise UserError(f"{model[:40]} is not a preset; {nearest(model, known)}")


def _resized(config: Any, record: Family, tokens: int | None, sizes: Mapping[str, int]) -> Any:
    own = {field.name for field in fields(config)}
    if missing := next((name for name in sizes if name not in own), None):
        raise UserError(f"this model has no {missing}")
    changed: dict[str, int] = dict(sizes)
    if tokens is not None:
        if not record.cost.takes_length:
            raise UserError("the number of tokens of this model follows from its picture; leave it out")
        if tokens > config.context:
            changed |= {name: tokens for name in ("context", "source_context") if name in own}
    return replace(config, **changed)


@lru_cache(256)
def _counts(family: str, config: Any, tokens: int | None) -> Counts:
    record = FAMILIES[family]
    return count(record.create, record.cost, config, tokens)
