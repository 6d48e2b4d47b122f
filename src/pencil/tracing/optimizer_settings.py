"""The settings of an optimizer in the arithmetic of its update: η, λ, β₁ where PyTorch passes on a number made of them.

A plan has a setting as the named step ("is", "η", 0.001). So a receipt says what a number is, and a workbook has a cell
for it, which its formulas read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .graph import Plan
from .plan_functions import FUNCTIONS
from .rules import P, fn, sqrt, step

if TYPE_CHECKING:  # a workbook of a trace file is written without it
    import torch

SETTINGS = {
    "η": "learning rate",
    "λ": "weight decay",
    "β₁": "share of the first moment that is kept",
    "β₂": "share of the second moment that is kept",
    "μ": "momentum",
    "clip": "largest norm of all gradients together",
}
FORMULAS = {
    "Muon": "(1 − η·λ)·W − η·√max(1, rows/columns)·X₅",
    "AdamW": "(1 − η·λ)·w − η/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + ε)",
    "Adam": "w − η/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + ε)",
    "SGD": "w − η·g",
    "SGD with momentum": "w − η·b",
    "SGD with Nesterov momentum": "w − η·(g + μ·b)",
}
STATE_FORMULAS = {  # of what an optimizer remembers; ₜ₋₁ is from before this step
    "Muon": {"momentum_buffer": "μ·bₜ₋₁ + (1 − μ)·g"},
    "AdamW": {"exp_avg": "β₁·mₜ₋₁ + (1 − β₁)·g", "exp_avg_sq": "β₂·vₜ₋₁ + (1 − β₂)·g²"},
    "Adam": {"exp_avg": "β₁·mₜ₋₁ + (1 − β₁)·g", "exp_avg_sq": "β₂·vₜ₋₁ + (1 − β₂)·g²"},
    "SGD": {"momentum_buffer": "μ·bₜ₋₁ + g"},
}

Numbers = Mapping[float, Plan]


def made_of(word: str, plan: Plan) -> Any:
    """A number that Python makes of settings, in double precision; it is rounded where it is used."""
    return step(word, fn("double")(plan))


def adam_settings(options: Mapping[str, Any], single: bool = False) -> dict[str, Any]:
    """The options of the fused kernel, with its settings as plans.

    `single`: of a kernel that has them in single precision, where for β₂ = 0.999 the number 1 − β₂ is 0.00099998713.
    """
    symbols = {"lr": "η", "weight_decay": "λ", "beta1": "β₁", "beta2": "β₂"}
    if single:
        options = {**options, **{key: float(np.float32(options[key])) for key in symbols}}
    return {**options, **{key: step(symbol, options[key]) for key, symbol in symbols.items() if options[key]}}


def update_formula(optimizer: "torch.optim.Optimizer", group: Mapping[str, Any], p: "torch.Tensor") -> str:
    """How an optimizer computes a new weight of a group, and what it is called; nothing for its rarer variants."""
    name = _known(optimizer)
    if name == "SGD" and group["momentum"]:
        name += " with Nesterov momentum" if group["nesterov"] else " with momentum"
    formula = FORMULAS.get(name, "")
    if not group.get("weight_decay"):  # as of norms and biases
        formula = formula.replace("(1 − η·λ)·", "")
    if name.startswith("SGD") and group["weight_decay"]:
        formula = formula.replace("·g", "·(g + λ·w)").replace("(g + μ", "(g + λ·w + μ")
    # Muon's X has more columns than rows; of a joined matrix each part has its own
    tall = {rows > p.shape[1] for rows in getattr(optimizer, "parts", {}).get(p, p.shape[:1])} if name == "Muon" else ()
    if not name or len(tall) > 1 or group.get("maximize") or group.get("amsgrad"):
        return ""
    return f"{formula.replace('X₅', 'X₅ᵀ') if True in tall else formula} ({name})"


def state_formula(optimizer: "torch.optim.Optimizer", group: Mapping[str, Any], key: str) -> str:
    """How an optimizer computes what it remembers of a parameter; nothing for its rarer variants."""
    name = _known(optimizer)
    formula = STATE_FORMULAS.get(name, {}).get(key, "")
    if name in ("Adam", "SGD") and group.get("weight_decay") and not group.get("decoupled_weight_decay"):
        formula = re.sub("g(?=²?$)", "(g + λ·w)", formula)
    return "" if group.get("maximize") or group.get("dampening") else formula


def _known(optimizer: "torch.optim.Optimizer") -> str:
    """What an optimizer is called, or the first that it is made from, of those with formulas."""
    return next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in FORMULAS), "")


def numbers_of(optimizer: "torch.optim.Optimizer", shapes: Iterable[Sequence[int]] = ()) -> dict[float, Plan]:
    """The numbers that an optimizer computes with, each as it is made of settings: −η, 1 − η·λ, 1 − β₁.

    Muon's also depend on the shapes of its matrices. Where one number could be two of them, such as λ and μ that are
    equal, none of these settings is known, so that a cell of a workbook changes all that is made of it.
    """
    found: dict[float, Plan] = {}
    unclear: set[str] = set()
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float):
            times = {1 + float(optimizer.state[p].get("step", 0)) for p in group["params"]}
            for number, plan in _numbers_of(group, shapes, times):
                if (other := found.setdefault(number, plan)) != plan:
                    unclear |= {word for word, _ in settings_in(other)} | {word for word, _ in settings_in(plan)}
    return {n: plan for n, plan in found.items() if unclear.isdisjoint(word for word, _ in settings_in(plan))}


def _numbers_of(
    group: Mapping[str, Any], shapes: Iterable[Sequence[int]], times: Iterable[float]
) -> Iterator[tuple[float, Plan]]:
    """The numbers of one group of parameters, as its optimizer writes them; `times` are the numbers of the step."""
    rate, decay = group["lr"], group.get("weight_decay")
    eta, lam, power = step("η", rate), step("λ", decay), fn("pow")
    if decay:
        yield 1 - rate * decay, made_of("1 − η·λ", 1 - eta * lam)
    if "betas" in group:
        (first, second), (beta1, beta2) = group["betas"], map(step, ("β₁", "β₂"), group["betas"])
        if decay:
            yield decay, lam  # which Adam adds to the gradient
        yield 1 - first, made_of("1 − β₁", 1 - beta1)
        yield from ((second, beta2), (1 - second, made_of("1 − β₂", 1 - beta2)))
        for t in times:
            corrected = made_of("η/(1 − β₁ᵗ)", eta / (1 - power(beta1, t)))
            yield from ((rate / (1 - first**t), corrected), (-(rate / (1 - first**t)), -corrected))
            yield (1 - second**t) ** 0.5, made_of("√(1 − β₂ᵗ)", sqrt(1 - power(beta2, t)))
        return
    yield -rate, -eta
    momentum, mu = group["momentum"], step("μ", group["momentum"])
    if momentum:
        yield momentum, mu
    if "dampening" in group:  # SGD
        if decay:
            yield decay, lam
        if group["dampening"]:
            yield 1 - group["dampening"], 1 - group["dampening"]
        return
    yield rate, eta
    yield from ((1 - momentum, made_of("1 − μ", 1 - mu)), (1 - (1 - momentum), mu))
    for rows, columns in shapes:
        if rows > columns:
            yield rate * (rows / columns) ** 0.5, made_of("η·√(rows/columns)", eta * sqrt(fn("div")(rows, columns)))


def settings_in(plan: Plan) -> Iterator[tuple[str, float]]:
    """The settings that a plan is made of, each with its number."""
    if isinstance(plan, tuple | list):
        if plan[0] == "is" and plan[1] in SETTINGS and isinstance(plan[2], int | float):
            yield plan[1], plan[2]
        elif plan[0] == "is" or plan[0] in FUNCTIONS:
            for part in plan[1:]:
                yield from settings_in(part)


def with_settings(plan: Plan, numbers: Numbers) -> Plan:
    """A plan with its numbers as they are made of settings."""
    if isinstance(plan, float):
        return numbers.get(plan, plan)
    if isinstance(plan, tuple | list) and plan[0] in FUNCTIONS:
        return P((plan[0], *(with_settings(part, numbers) for part in plan[1:])))
    if isinstance(plan, tuple | list) and plan[0] == "is":
        return step(plan[1], with_settings(plan[2], numbers))
    return plan
