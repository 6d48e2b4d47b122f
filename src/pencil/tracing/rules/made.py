"""Operations without inputs: constants, ranges, noise."""

from ..graph import Plan
from .words import Call, P, fn, number, rule


@rule("constant", "full", "full_like", "new_full", "fill", "scalar_tensor")
def _full(call: Call) -> Plan:
    value = next(call.args[name] for name in ("fill_value", "value", "s") if name in call.args)
    return call.broadcast(value)


@rule("constant", "zeros", "zeros_like", "new_zeros", "zero", "ones", "ones_like", "new_ones")
def _same(call: Call) -> Plan:
    return int("one" in call.op)


@rule("constant", "arange")
def _arange(call: Call) -> Plan:
    start, step, index = number(call.get("start", 0)), number(call.get("step", 1)), P(("axis", 0))
    along = index if step == 1 else step * index
    return along if start == 0 else start + along


@rule("constant", "linspace")
def _linspace(call: Call) -> Plan:
    steps = max(call.steps - 1, 1)
    return number(call.start) + (call.end - call.start) / steps * P(("axis", 0))


@rule("constant", "eye")
def _eye(call: Call) -> Plan:
    return fn("eq")(P(("axis", 0)), P(("axis", 1)))


@rule("constant", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
def _unset(call: Call) -> Plan:
    return None


DRAWN = "rand randn rand_like randn_like randint randperm bernoulli multinomial normal uniform exponential".split()


@rule("noise", *DRAWN)
def _drawn(call: Call) -> Plan:
    return None
