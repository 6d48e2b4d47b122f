"""Exercises on one training step: gradients of a loss, a product, a norm and a sum, and one step of an optimizer."""

from typing import Any

import torch
from torch import Tensor

from ...core.probe import OFF, Probe
from ...tracing.receipt_text import format_number
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, tensor, work
from .exercise import Question, Table, numbered

Row = list[float]
Rows = list[list[float]]


def _step(formula: Any) -> Any:
    """A formula as a function that is traced: its value has the name "g"."""

    def step(*given: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("g", formula(*given))

    return step


def _flat(values: Any) -> Any:
    return values.reshape(-1)


# ---- softmax minus one-hot


def one_hot_gradient(p: Row, right: int) -> Work:
    """∂L/∂z = p − y of the cross-entropy of one prediction."""
    one_hot = [float(i == right) for i in range(len(p))]
    return work(_step(lambda p, y: p - y), tensor(p), tensor(one_hot))


def _one_hot(p: Row, right: int) -> Question:
    done, names = one_hot_gradient(p, right), numbered("word", len(p))
    gradient = done["g"]
    return Question(
        (Table("p", [p], names),),
        f"A model gives these probabilities p to the next word; the right one is word {right + 1}. The loss is −ln p "
        "of the right word. The gradient with respect to the logits, ∂L/∂z?",
        blanks(names, gradient, 1, done.roundings("g", 1)),
        (
            mistake("one-hot forgotten", "1 is subtracted from the probability of the right word.", tensor(p).numpy()),
            mistake("sign", "It is p minus the one-hot vector: negative at the right word.", -gradient),
            mistake("1 everywhere", "1 is subtracted at the right word alone.", tensor(p).numpy() - 1),
        ),
        lambda: done.lines(*((f"∂L/∂z {i + 1}", f"g[{i}]") for i in range(len(p)))),
    )


def _draw_one_hot(d: Draws) -> Numbers:
    first = d.whole(1, 7)
    second = d.whole(1, 9 - first)
    return {"p": [first / 10, second / 10, (10 - first - second) / 10], "right": d.whole(0, 2)}


# ---- a product of matrices: y = x W


def to_input(w: Rows, g: Rows) -> Work:
    """∂L/∂x = g Wᵀ."""
    return work(_step(lambda w, g: g @ w.mT), tensor(w), tensor(g))


def to_weight(x: Rows, g: Rows) -> Work:
    """∂L/∂W = xᵀ g."""
    return work(_step(lambda x, g: x.mT @ g), tensor(x), tensor(g))


def _product_tables(x: Rows, w: Rows, g: Rows) -> tuple[Table, ...]:
    tokens = numbered("token", len(x))
    return (
        Table("x", x, numbered("channel", len(w)), tokens),
        Table("W", w),
        Table("∂L/∂y", g, None, tokens),
    )


def _input_gradient(x: Rows, w: Rows, g: Rows) -> Question:
    done = to_input(w, g)
    a, b = tensor(g), tensor(w)
    names = [f"token {t + 1}, channel {i + 1}" for t in range(len(x)) for i in range(len(w))]
    return Question(
        _product_tables(x, w, g),
        "y = x·W, and ∂L/∂y is known. The gradient with respect to the input, ∂L/∂x?",
        blanks(names, _flat(done["g"]), 0),
        (
            mistake("W not transposed", "Each channel takes a row of W: ∂L/∂x = ∂L/∂y·Wᵀ.", _flat((a @ b).numpy())),
            mistake("x instead of W", "∂L/∂x has no x in it: it is ∂L/∂y·Wᵀ.", _flat((a @ tensor(x).mT).numpy())),
            mistake("number by number", "It is a product of matrices, not number by number.", _flat((a * b).numpy())),
        ),
        lambda: done.lines(*((name, f"g[{i // len(w)},{i % len(w)}]") for i, name in enumerate(names))),
    )


def _weight_gradient(x: Rows, w: Rows, g: Rows) -> Question:
    done = to_weight(x, g)
    a, b = tensor(x), tensor(g)
    names = [f"row {i + 1}, column {j + 1}" for i in range(len(w)) for j in range(len(w[0]))]
    first = torch.outer(a[0], b[0])
    return Question(
        _product_tables(x, w, g),
        "y = x·W, and ∂L/∂y is known. The gradient with respect to the weights, ∂L/∂W?",
        blanks(names, _flat(done["g"]), 0),
        (
            mistake("x not transposed", "∂L/∂W = xᵀ·∂L/∂y: x is transposed.", _flat((a @ b).numpy())),
            mistake("the other way round", "∂L/∂W = xᵀ·∂L/∂y, in this order.", _flat((b.mT @ a).numpy())),
            mistake("one token", "All tokens use the same W: their parts are added.", _flat(first.numpy())),
        ),
        lambda: done.lines(*((name, f"g[{i // len(w[0])},{i % len(w[0])}]") for i, name in enumerate(names))),
    )


def _draw_product(d: Draws) -> Numbers:
    return {name: d.vectors(2, 2, -3, 3) for name in ("x", "w", "g")}


# ---- LayerNorm


def norm_gradient(x_n: Row, sigma: float, g: Row) -> Work:
    """∂L/∂x = (g − mean(g) − x_n·mean(g·x_n))/σ, with γ = 1."""

    def formula(x_n: Tensor, sigma: Tensor, g: Tensor) -> Tensor:
        return (g - g.mean() - x_n * (g * x_n).mean()) / sigma

    return work(_step(formula), tensor(x_n), tensor(sigma), tensor(g))


def _norm(x_n: Row, sigma: float, g: Row) -> Question:
    done, names = norm_gradient(x_n, sigma, g), numbered("number", len(g))
    g_, x_ = tensor(g), tensor(x_n)
    along = x_ * (g_ * x_).mean()
    return Question(
        (Table("x_n", [x_n], names), Table("∂L/∂x_n", [g], names)),
        f"LayerNorm made x_n of x with deviation σ = {sigma:g} (γ is 1, ε is left out). With g = ∂L/∂x_n the gradient "
        "is ∂L/∂x = (g − mean(g) − x_n·mean(g·x_n))/σ. ∂L/∂x?",
        blanks(names, done["g"], 2, done.roundings("g", 2)),
        (
            mistake("σ forgotten", "All of it is divided by σ.", (g_ - g_.mean() - along).numpy()),
            mistake("mean forgotten", "The mean of g is subtracted.", ((g_ - along) / sigma).numpy()),
            mistake(
                "x_n forgotten", "x_n times the mean of g·x_n is subtracted too.", ((g_ - g_.mean()) / sigma).numpy()
            ),
            mistake("g alone", "Each number changes mean and deviation of its row.", (g_ / sigma).numpy()),
        ),
        lambda: done.lines(*((f"∂L/∂x {i + 1}", f"g[{i}]") for i in range(len(g)))),
    )


def _draw_norm(d: Draws) -> Numbers:
    x_n = d.pick([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, -1.0]])
    return {"x_n": x_n, "sigma": float(d.pick([2, 4, 5])), "g": d.distinct(4, -6, 6)}


# ---- a residual's sum


def sum_gradient(g: Row, branch: Row) -> Work:
    """∂L/∂x of y = x + f(x): what the sum passes on, and what comes back through f."""
    return work(_step(lambda g, branch: g + branch), tensor(g), tensor(branch))


def _sum(g: Row, branch: Row) -> Question:
    done, names = sum_gradient(g, branch), numbered("number", len(g))
    g_, b_ = tensor(g).numpy(), tensor(branch).numpy()
    return Question(
        (Table("∂L/∂y", [g], names), Table("through f", [branch], names)),
        "A residual connection: y = x + f(x). The first row is ∂L/∂y; the second is what the backward pass through f "
        "gives x. ∂L/∂x?",
        blanks(names, done["g"], 1, done.roundings("g", 1)),
        (
            mistake("f alone", "x is used twice: the sum passes ∂L/∂y on to it as well.", b_),
            mistake("the sum alone", "x is used twice: what comes through f is added.", g_),
            mistake("their mean", "Gradients of several uses are added, not averaged.", (g_ + b_) / 2),
        ),
        lambda: done.lines(*((f"∂L/∂x {i + 1}", f"g[{i}]") for i in range(len(g)))),
    )


def _draw_sum(d: Draws) -> Numbers:
    return {"g": d.distinct_tenths(3, -9, 9, but=[0]), "branch": d.distinct_tenths(3, -9, 9, but=[0])}


# ---- optimizers


def adamw_weight(w: Row, m: Row, root: Row, rate: float, decay: float) -> Work:
    """w(1 − ηλ) − η·m/√v."""

    def formula(w: Tensor, m: Tensor, root: Tensor, rate: Tensor, decay: Tensor) -> Tensor:
        return w * (1 - rate * decay) - rate * m / root

    return work(_step(formula), *map(tensor, (w, m, root, rate, decay)))


def _adamw(w: Row, m: Row, root: Row, rate: float, decay: float) -> Question:
    done, names = adamw_weight(w, m, root, rate, decay), numbered("weight", len(w))
    w_, m_, r_ = (tensor(one).numpy() for one in (w, m, root))
    return Question(
        (Table("w", [w], names), Table("m", [m], names), Table("√v", [root], names)),
        f"One step of AdamW with the learning rate η = {rate:g} and the weight decay λ = {decay:g}. m and √v are those "
        "of each weight's gradient, already corrected for the first steps; ε is left out. "
        "The new weights w·(1 − η·λ) − η·m/√v?",
        blanks(names, done["g"], 2, done.roundings("g", 2)),
        (
            mistake("decay forgotten", "Each weight is first multiplied by 1 − η·λ.", w_ - rate * m_ / r_),
            mistake("decay without the rate", "The decay is η·λ, not λ.", w_ * (1 - decay) - rate * m_ / r_),
            mistake("uphill", "The step goes against the gradient.", w_ * (1 - rate * decay) + rate * m_ / r_),
            mistake("√v forgotten", "m is divided by √v.", w_ * (1 - rate * decay) - rate * m_),
        ),
        lambda: done.lines(*((f"new w {i + 1}", f"g[{i}]") for i in range(len(w)))),
    )


def _draw_adamw(d: Draws) -> Numbers:
    m = d.distinct_tenths(2, -6, 6, but=[0])
    return {
        "w": d.distinct(2, -5, 5, but=[0]),
        "m": m,
        "root": [d.pick([0.2, 0.4, 0.5, 0.8]) for _ in m],
        "rate": d.pick([0.1, 0.2, 0.5]),
        "decay": d.pick([0.1, 0.2, 0.4]),
    }


def muon_values(s: Row, a: float, b: float, c: float) -> Work:
    """What one iteration of Newton–Schulz makes of singular values: a·s + b·s³ + c·s⁵."""
    return work(_step(lambda s, a, b, c: a * s + b * s**3 + c * s**5), *map(tensor, (s, a, b, c)))


def _muon(s: Row, a: float, b: float, c: float) -> Question:
    done, names = muon_values(s, a, b, c), numbered("singular value", len(s))
    s_ = tensor(s).numpy()
    return Question(
        (Table("s", [s], names),),
        "Muon does not step along the gradient's matrix G, but along one whose singular values are all near 1. It "
        "divides G by its norm, and then repeats X → a·X + b·(X·Xᵀ)·X + c·(X·Xᵀ)²·X, which does the same to every "
        f"singular value: s → a·s + b·s³ + c·s⁵, with a = {a:g}, b = {format_number(b)} and c = {c:g} "
        "(rounded). What does one such iteration make of these?",
        blanks(names, done["g"], 2, done.roundings("g", 2)),
        (
            mistake("only a", "The cube and the fifth power are added.", a * s_),
            mistake("fifth power forgotten", "c·s⁵ is added too.", a * s_ + b * s_**3),
            mistake("squares", "The powers are odd: s³ and s⁵, not s² and s⁴.", a * s_ + b * s_**2 + c * s_**4),
            mistake("b added", "b is negative.", a * s_ - b * s_**3 + c * s_**5),
        ),
        lambda: done.lines(*((f"new s {i + 1}", f"g[{i}]") for i in range(len(s)))),
    )


def _draw_muon(d: Draws) -> Numbers:
    return {"s": d.distinct_tenths(2, 2, 9), "a": 3.4, "b": -4.8, "c": 2.0}


PRODUCT: Numbers = {"x": [[1.0, 2.0], [-1.0, 3.0]], "w": [[2.0, -1.0], [0.0, 3.0]], "g": [[1.0, -2.0], [2.0, 1.0]]}
MAKES = {
    "one-hot-gradient": Maker("one-hot-gradient", {"p": [0.2, 0.5, 0.3], "right": 0}, _draw_one_hot, _one_hot),
    "input-gradient": Maker("input-gradient", PRODUCT, _draw_product, _input_gradient),
    "weight-gradient": Maker("weight-gradient", PRODUCT, _draw_product, _weight_gradient),
    "norm-gradient": Maker(
        "norm-gradient", {"x_n": [1.0, -1.0, 1.0, -1.0], "sigma": 2.0, "g": [3.0, 1.0, -2.0, 4.0]}, _draw_norm, _norm
    ),
    "residual-gradient": Maker(
        "residual-gradient", {"g": [0.4, -0.3, 0.8], "branch": [0.1, 0.5, -0.2]}, _draw_sum, _sum
    ),
    "adamw-step": Maker(
        "adamw-step",
        {"w": [2.0, -1.0], "m": [0.2, -0.4], "root": [0.4, 0.5], "rate": 0.1, "decay": 0.2},
        _draw_adamw,
        _adamw,
    ),
    "muon-step": Maker("muon-step", {"s": [0.5, 0.2], "a": 3.4, "b": -4.8, "c": 2.0}, _draw_muon, _muon),
}
