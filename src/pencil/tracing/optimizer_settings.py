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
    "ε": "number that is added to the root of the second moment",
    "μ": "momentum",
    "a": "Newton–Schulz: how much of X",
    "b": "Newton–Schulz: how much of X Xᵀ X",
    "c": "Newton–Schulz: how much of (X Xᵀ)² X",
    "clip": "largest norm of all gradients together",
}
FORMULAS = {
    "Muon": "(1 − η·λ)·W − η·√max(1, rows/columns)·X₅",
    "AdamW": "(1 − η·λ)·w − η/(1 − β₁^step)·m_new/(√v_new/√(1 − β₂^step) + ε)",
    "Adam": "w − η/(1 − β₁^step)·m_new/(√v_new/√(1 − β₂^step) + ε)",
    "SGD": "w − η·g",
    "SGD with momentum": "w − η·b_new",
    "SGD with Nesterov momentum": "w − η·(g + μ·b_new)",
}
MOMENTS = {"exp_avg": "β₁·m_old + (1 − β₁)·g", "exp_avg_sq": "β₂·v_old + (1 − β₂)·g²"}
STATE_FORMULAS = {  # of what an optimizer remembers; the one of ours and of PyTorch's Muon are called differently
    "Muon": dict.fromkeys(("momentum", "momentum_buffer"), "μ·m_old + (1 − μ)·g"),
    "AdamW": MOMENTS,
    "Adam": MOMENTS,
    "SGD": {"momentum_buffer": "μ·b_old + g"},
}
Numbers = Mapping[float, Plan]
Place = tuple[str, str]  # an operation, and what it changes: "weight", "state", "decay" of a gradient, or ""
Group = Mapping[str, Any]  # a group of parameters, with the settings that an optimizer has for it
Letters = Mapping[str, str]  # what each setting of a group is called, such as λ_Muon, by its symbol


def settings_of(optimizer: "torch.optim.Optimizer", group: Group) -> dict[str, float]:
    """The settings of a group by their symbols; none that is 0, for then the formula is without it."""
    found = {"η": group["lr"], "λ": group.get("weight_decay"), "μ": group.get("momentum")}
    if "betas" in group:
        found |= {"β₁": group["betas"][0], "β₂": group["betas"][1], "ε": group["eps"]}
    coefficients = group.get("ns_coefficients", getattr(optimizer, "coefficients", ()))
    found |= dict(zip("abc", coefficients, strict=False))
    return {symbol: number for symbol, number in found.items() if isinstance(number, float) and number}


def letters_of(
    optimizers: Sequence["torch.optim.Optimizer"], optimizer: "torch.optim.Optimizer", group: Group
) -> dict[str, str]:
    """What the settings of a group are called: η, and in a step of several optimizers η_Muon and η_AdamW.

    Of one optimizer with a number for each of its groups they are numbered: η_1, η_2.
    """
    kinds = [type(one).__name__ for one in optimizers]
    mine = next(i for i, one in enumerate(optimizers) if one is optimizer)
    kind = kinds[mine] if kinds.count(kinds[mine]) == 1 else f"{kinds[mine]}{kinds[: mine + 1].count(kinds[mine])}"
    having = [[settings_of(one, group) for group in one.param_groups] for one in optimizers]
    number = next(i for i, one in enumerate(optimizer.param_groups, 1) if one is group)
    found = {}
    for symbol in settings_of(optimizer, group):
        shared = sum(any(symbol in settings for settings in groups) for groups in having) > 1
        several = len({settings[symbol] for settings in having[mine] if symbol in settings}) > 1
        found[symbol] = "_".join([symbol, ",".join([kind] * shared + [str(number)] * several)]).rstrip("_")
    return found


def _lettered(formula: str, letters: Letters) -> str:
    """A formula in which the settings are called so."""
    words = sorted((symbol for symbol in letters if symbol not in "abc"), key=len, reverse=True)
    return re.sub("|".join(words) or "$^", lambda match: letters[match[0]], formula)


def made_of(word: str, plan: Plan) -> Any:
    """A number that Python makes of settings, in double precision; it is rounded where it is used."""
    return step(word, fn("double")(plan))


def adam_settings(options: Mapping[str, Any], letters: Letters, single: bool = False) -> dict[str, Any]:
    """The options of the fused kernel, with its settings as plans, and `letters`.

    `single`: of a kernel that has them in single precision, where for β₂ = 0.999 the number 1 − β₂ is 0.00099998713.
    """
    symbols = {"lr": "η", "weight_decay": "λ", "beta1": "β₁", "beta2": "β₂", "eps": "ε"}
    letters = {symbol: symbol for symbol in symbols.values()} | {**letters}
    if single:
        options = {**options, **{key: float(np.float32(options[key])) for key in symbols if key != "eps"}}
    plans = {key: step(letters[symbol], options[key]) for key, symbol in symbols.items() if options[key]}
    return {**options, **plans, "letters": letters}


def update_formula(optimizer: "torch.optim.Optimizer", group: Group, p: "torch.Tensor", letters: Letters) -> str:
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
    rare = group.get("maximize") or group.get("amsgrad") or group.get("adjust_lr_fn") not in (None, "original")
    if not name or len(tall) > 1 or rare or group.get("ns_steps", 5) != 5:
        return ""
    return f"{_lettered(formula.replace('X₅', 'X₅ᵀ') if True in tall else formula, letters)} ({name})"


def state_formula(optimizer: "torch.optim.Optimizer", group: Group, key: str, letters: Letters) -> str:
    """How an optimizer computes what it remembers of a parameter; nothing for its rarer variants."""
    name = _known(optimizer)
    formula = STATE_FORMULAS.get(name, {}).get(key, "")
    if name in ("Adam", "SGD") and group.get("weight_decay") and not group.get("decoupled_weight_decay"):
        formula = re.sub("g(?=²?$)", "(g + λ·w)", formula)
    return "" if group.get("maximize") or group.get("dampening") else _lettered(formula, letters)


def muon_formula(name: str, tall: bool, letters: Letters) -> str:
    """How a matrix on Muon's way is made: of G_μ, the gradient and its momentum, by Newton–Schulz."""
    kind, i = name[0], int(name[1:]) if name[1:].isdigit() else 0
    before, now = (str(n).translate(SUBSCRIPTS) for n in (i - 1, i))
    formulas = {
        "G": "g + μ·(m_new − g)",
        "n": "‖G_μ‖",
        "A": f"X{before} X{before}ᵀ",
        "B": f"b·A{now} + c·A{now} A{now}",
        "X": f"a·X{before} + B{now} X{before}" if i else f"G_μ{'ᵀ' if tall else ''}/‖G_μ‖",
    }
    return formulas[kind].replace("μ·", f"{letters.get('μ', 'μ')}·")


SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _known(optimizer: "torch.optim.Optimizer") -> str:
    """What an optimizer is called, or the first that it is made from, of those with formulas."""
    return next((kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ in FORMULAS), "")


def numbers_of(
    optimizer: "torch.optim.Optimizer",
    letters: Sequence[Letters],
    shapes: Iterable[Sequence[int]] = (),
) -> dict[Place, dict[float, Plan]]:
    """The numbers that an optimizer computes with, each as it is made of settings: −η, 1 − η·λ, 1 − β₁.

    They are known by the operation that has them and by what it changes, since λ and μ may be equal. `letters` are
    those of each group. Muon's numbers also depend on the shapes of its matrices. Where a number could still be two
    of them, none of these settings is known, so that a cell of a workbook changes all that is made of it.
    """
    found: dict[Place, dict[float, Plan]] = {}
    unclear: set[str] = set()
    for group, called in zip(optimizer.param_groups, letters, strict=True):
        if isinstance(group["lr"], float):
            times = {1 + float(optimizer.state[p].get("step", 0)) for p in group["params"]}
            for place, number, plan in _numbers_of(settings_of(optimizer, group), group, called, shapes, times):
                if (other := found.setdefault(place, {}).setdefault(number, plan)) != plan:
                    unclear |= {word for word, _ in settings_in(other)} | {word for word, _ in settings_in(plan)}
    return {
        place: {n: plan for n, plan in numbers.items() if unclear.isdisjoint(word for word, _ in settings_in(plan))}
        for place, numbers in found.items()
    }


def _numbers_of(
    settings: Mapping[str, float],
    group: Group,
    letters: Letters,
    shapes: Iterable[Sequence[int]],
    times: Iterable[float],
) -> Iterator[tuple[Place, float, Plan]]:
    """The numbers of one group of parameters, as its optimizer writes them; `times` are the numbers of the step."""
    plans = {symbol: step(letters[symbol], number) for symbol, number in settings.items()}
    rate, decay, power = settings.get("η", 0.0), settings.get("λ", 0.0), fn("pow")
    η = letters.get("η", "η")
    if not rate:
        return
    eta = plans["η"]
    if decay:
        shrunk = made_of(f"1 − {η}·{letters['λ']}", 1 - eta * plans["λ"])
        yield from ((("mul", "weight"), 1 - rate * decay, shrunk), (("add", "decay"), decay, plans["λ"]))
    if "betas" in group:
        (first, second), (β1, β2) = group["betas"], (letters.get("β₁", "β₁"), letters.get("β₂", "β₂"))
        beta1, beta2 = (step(word, number) for word, number in ((β1, first), (β2, second)))
        yield ("lerp", "state"), 1 - first, made_of(f"1 − {β1}", 1 - beta1)
        yield ("mul", "state"), second, beta2
        yield ("addcmul", "state"), 1 - second, made_of(f"1 − {β2}", 1 - beta2)
        if "ε" in plans:
            yield ("add", ""), settings["ε"], plans["ε"]
        for t in times:
            corrected = made_of(f"{η}/(1 − {β1}^step)", eta / (1 - power(beta1, t)))
            for number, plan in ((rate / (1 - first**t), corrected), (-(rate / (1 - first**t)), -corrected)):
                yield ("addcdiv", "weight"), number, plan
            yield ("div", ""), (1 - second**t) ** 0.5, made_of(f"√(1 − {β2}^step)", sqrt(1 - power(beta2, t)))
        return
    yield ("add", "weight"), -rate, -eta
    momentum, mu = settings.get("μ", 0.0), plans.get("μ")
    if mu is not None:
        yield from ((place, momentum, mu) for place in (("mul", "state"), ("add", ""), ("add", "state"), ("lerp", "")))
    if "dampening" in group:  # SGD
        return
    for place, symbol in ((place, symbol) for place in (("addmm", ""), ("baddbmm", "")) for symbol in "abc"):
        if symbol in plans:
            yield place, settings[symbol], plans[symbol]
    yield ("mul", ""), rate, eta
    if mu is not None:
        rest = made_of(f"1 − {letters['μ']}", 1 - mu)
        yield from (((op, of), 1 - momentum, rest) for op, of in (("mul", ""), ("lerp", "state")))
        yield ("mul", "state"), 1 - (1 - momentum), mu
    for rows, columns in shapes:
        if rows > columns:
            taller = made_of(f"{η}·√(rows/columns)", eta * sqrt(fn("div")(rows, columns)))
            number = rate * (rows / columns) ** 0.5
            yield from ((("mul", ""), number, taller), (("add", "weight"), -number, -taller))


def symbol_of(setting: str) -> str:
    """The symbol of a setting by what it is called: λ for λ_Muon."""
    return setting.partition("_")[0]


def settings_in(plan: Plan) -> Iterator[tuple[str, float]]:
    """The settings that a plan is made of, each with its number."""
    if isinstance(plan, tuple | list):
        if plan[0] == "is" and symbol_of(plan[1]) in SETTINGS and isinstance(plan[2], int | float):
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
