"""The settings of an optimizer in the arithmetic of its update: η, λ, β₁ where PyTorch passes on a number made of them.

A plan has a setting as the named step ("is", "η", 0.001). So a receipt says what a number is, and a workbook has a cell
for it, which its formulas read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .graph import Plan
from .plan_functions import FUNCTIONS
from .rules import P, fn, sqrt, step

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

Numbers = Mapping[float, Plan]


def made_of(word: str, plan: Plan) -> Any:
    """A number that Python makes of settings, in double precision; it is rounded where it is used."""
    return step(word, fn("double")(plan))


def adam_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the fused kernel, with its settings as plans."""
    symbols = {"lr": "η", "weight_decay": "λ", "beta1": "β₁", "beta2": "β₂"}
    return {**options, **{key: step(symbol, options[key]) for key, symbol in symbols.items() if options[key]}}


def update_formula(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> str:
    """How an optimizer computes the new weights of a group, and what it is called."""
    name = next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in FORMULAS), "")
    if name == "SGD" and group["momentum"]:
        name += " with Nesterov momentum" if group["nesterov"] else " with momentum"
    return f"{FORMULAS[name]} ({name})" if name else ""


def numbers_of(optimizer: torch.optim.Optimizer, shapes: Iterable[Sequence[int]] = ()) -> dict[float, Plan]:
    """The numbers that an optimizer computes with, each as it is made of settings: −η, 1 − η·λ, 1 − β₁.

    Muon's also depend on the shapes of its matrices.
    """
    found: dict[float, Plan] = {}
    for group in optimizer.param_groups:
        rate = group["lr"]
        if not isinstance(rate, float):
            continue
        eta = step("η", rate)
        found |= {rate: eta, -rate: -eta}
        if decay := group.get("weight_decay"):
            lam = step("λ", decay)
            found |= {decay: lam, 1 - rate * decay: made_of("1 − η·λ", 1 - eta * lam)}
        if momentum := group.get("momentum"):
            mu = step("μ", momentum)
            found |= {momentum: mu, 1 - momentum: made_of("1 − μ", 1 - mu), 1 - (1 - momentum): mu}
        for rows, columns in shapes:
            if rows > columns:
                word = "η·√(rows/columns)"
                found[rate * (rows / columns) ** 0.5] = made_of(word, eta * sqrt(fn("div")(rows, columns)))
        if "betas" not in group:
            continue
        beta1, beta2 = (step(word, beta) for word, beta in zip(("β₁", "β₂"), group["betas"], strict=True))
        first, second = group["betas"]
        found |= {second: beta2, 1 - first: made_of("1 − β₁", 1 - beta1), 1 - second: made_of("1 − β₂", 1 - beta2)}
        for t in {1 + float(optimizer.state[p].get("step", 0)) for p in group["params"]}:
            power = fn("pow")
            corrected = made_of("η/(1 − β₁ᵗ)", eta / (1 - power(beta1, t)))
            found[rate / (1 - first**t)], found[-(rate / (1 - first**t))] = corrected, -corrected
            found[(1 - second**t) ** 0.5] = made_of("√(1 − β₂ᵗ)", sqrt(1 - power(beta2, t)))
    return found


def with_settings(plan: Plan, numbers: Numbers) -> Plan:
    """A plan with its numbers as they are made of settings."""
    if isinstance(plan, float):
        return numbers.get(plan, plan)
    if isinstance(plan, tuple | list) and plan[0] in FUNCTIONS:
        return P((plan[0], *(with_settings(part, numbers) for part in plan[1:])))
    if isinstance(plan, tuple | list) and plan[0] == "is":
        return step(plan[1], with_settings(plan[2], numbers))
    return plan
