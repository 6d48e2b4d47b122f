"""Exercises on the parts of a block: norms, the residual stream, the MLP, the loss, and what diffusion adds.

The models' own modules give the answers; the same step by step gives the working.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.attention import Attention
from ...core.blocks import AdaBlock, AdaNormBlock
from ...core.layers import MLP, LayerNorm, RMSNorm, gelu, gelu_tanh
from ...core.masks import full
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...inference.diffusion import GaussianDiffusion
from ...train.losses.cross_entropy import next_token
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, tensor, work
from .exercise import Question, Table, numbered

UNBIASED = "n−1 variance"
UNBIASED_HINT = "The average of the squares is over all n numbers, not over n−1."
ALPHAS = (0.9216, 0.64, 0.36, 0.0784)  # √ᾱ and √(1 − ᾱ) have two decimals
Row = list[float]
Rows = list[list[float]]


# ---- norms


def normed(x: Row, norm: nn.Module) -> Work:
    """The output of a norm of the models."""

    def apply(x: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("out", norm(x))

    return work(apply, tensor([x]), modules=[norm])


def normed_by_hand(x: Row, *gain_and_shift: Tensor, fewer: int = 0, root: bool = True) -> Work:
    """LayerNorm step by step; `fewer` is subtracted from the count of the squares, `root` takes the root."""

    def norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, probe: Probe = OFF) -> Tensor:
        mean = probe("mean", x.sum(-1, keepdim=True) / x.shape[-1])
        deviations = probe("deviations", x - mean)
        squares = probe("squares", deviations * deviations)
        variance = probe("variance", squares.sum(-1, keepdim=True) / (x.shape[-1] - fewer))
        deviation = probe("standard deviation", variance.sqrt() if root else variance)
        normalised = probe("normalised", deviations / deviation)
        normalised = normalised if gamma is None else normalised * gamma
        return probe("out", normalised if beta is None else normalised + beta)

    return work(norm, tensor([x]), *gain_and_shift)


def norm_cells(count: int, last: str = "out") -> list[tuple[str, str]]:
    """The cells of LayerNorm, from the mean to the result, each with its label."""
    every = range(count)
    cells = [("mean", "mean[0,0]"), *((f"deviation {i + 1}", f"deviations[0,{i}]") for i in every)]
    cells += [("variance", "variance[0,0]"), ("standard deviation", "standard deviation[0,0]")]
    return cells + [(f"number {i + 1}", f"{last}[0,{i}]") for i in every]


def _mean(x: Row) -> Question:
    hand, count, values = normed_by_hand(x), len(x), np.asarray(x)
    mean, deviations = hand["mean"], hand["deviations"]
    median, short = np.sort(x)[count // 2], values.sum() / (count - 1)
    roundings = zip(hand.roundings("mean", 2), hand.roundings("deviations", 2), strict=True)
    return Question(
        (Table("token", [x], numbered("number", count)),),
        "The mean of these numbers? Then the deviation of each from the mean.",
        blanks(
            ["mean", *numbered("deviation", count)],
            np.append(mean, deviations),
            2,
            [np.append(*rounded) for rounded in roundings],
        ),
        (
            mistake("deviations the wrong way round", "A deviation is the number minus the mean.", mean, -deviations),
            mistake("divided by n−1", "The mean is the sum over all n numbers, divided by n.", short, values - short),
            mistake("the median", "The mean is the average, not the median.", median, values - median),
        ),
        lambda: hand.lines(*norm_cells(count)[: count + 1]),
    )


def _layernorm(x: Row) -> Question:
    count = len(x)
    done, hand = normed(x, LayerNorm(count, 1e-6)), normed_by_hand(x)
    return Question(
        (Table("token", [x], numbered("number", count)),),
        "LayerNorm without γ and β: shift the numbers of this token to mean 0 and scale them to standard deviation 1.",
        blanks(numbered("number", count), done["out"], 2, hand.roundings("out", 2)),
        (
            mistake(UNBIASED, UNBIASED_HINT, normed_by_hand(x, fewer=1)["out"]),
            mistake(
                "mean not subtracted",
                "First subtract the mean from every number, then take the standard deviation.",
                normed(x, RMSNorm(count, 1e-6))["out"],
            ),
            mistake(
                "no root",
                "The standard deviation is the root of the average square.",
                normed_by_hand(x, root=False)["out"],
            ),
            mistake(
                "not divided",
                "The deviations still have to be divided by the standard deviation.",
                hand["deviations"],
            ),
        ),
        lambda: hand.lines(*norm_cells(count)),
    )


def _gain_and_shift(x: Row, gamma: Row, beta: Row) -> Question:
    names, norm = numbered("number", len(x)), LayerNorm(len(x), 1e-6)
    gain, shift = tensor(gamma), tensor(beta)
    norm.weight, norm.bias = nn.Parameter(gain), nn.Parameter(shift)
    done, hand = normed(x, norm), normed_by_hand(x, gain, shift)
    normalised = tensor(hand["normalised"])
    new = [(f"new {i + 1}", f"out[0,{i}]") for i in range(len(x))]
    return Question(
        (
            Table("token", [x], names),
            Table("parameters", [gamma, beta], names, ["γ (gain)", "β (shift)"]),
        ),
        "LayerNorm: shift the numbers of this token to mean 0 and scale them to standard deviation 1; then multiply "
        "each by its γ and add its β.",
        blanks(names, done["out"], 2, hand.roundings("out", 2)),
        (
            mistake(UNBIASED, UNBIASED_HINT, normed_by_hand(x, gain, shift, fewer=1)["out"]),
            mistake("shifted before scaled", "Multiply by γ first; β is added last.", (normalised + shift) * gain),
            mistake("β forgotten", "After the multiplication by γ, β is added.", normalised * gain),
            mistake("γ forgotten", "Before β is added, each number is multiplied by its γ.", normalised + shift),
        ),
        # two lists, so that steps that both share are written in each
        lambda: [*hand.lines(*norm_cells(len(x), "normalised")), *hand.lines(*new)],
    )


# ---- the residual stream, the MLP and the loss


def _residual(x: Row, matrix: Rows) -> Question:
    norm, part = LayerNorm(len(matrix), 1e-6), nn.Linear(len(matrix), len(matrix), bias=False)
    part.weight.data = tensor(matrix)

    def pre_norm(x: Tensor, probe: Probe = OFF) -> Tensor:
        read = probe("read", norm(x))
        return probe("out", x + probe("part", part(read)))

    def mistaken(x: Tensor, probe: Probe = OFF) -> Tensor:
        read = norm(x)
        probe("no residual", part(read))
        probe("normed residual", read + part(read))
        probe("not normed", x + part(x))
        return probe("post-norm", norm(x + part(x)))

    done, wrong = (work(function, tensor([x]), modules=[norm, part]) for function in (pre_norm, mistaken))
    names, count = numbered("dim", len(x)), range(len(x))
    steps = (("read", "read"), ("part", "part"), ("new", "out"))
    cells = [(f"{label} {i + 1}", f"{name}[0,{i}]") for label, name in steps for i in count]
    return Question(
        (Table("token", [x], names), Table("W", matrix, None, numbered("new", len(x)))),
        "A part of a block reads the token after LayerNorm (mean 0, standard deviation 1) and multiplies it by W, one "
        "row of W for each new number. Its output is added to the token itself, in the residual stream. The token "
        "afterwards?",
        blanks(names, done["out"], 2, done.roundings("out", 2)),
        (
            mistake(
                "residual forgotten",
                "The output of the part is added to the token, it does not replace it.",
                wrong["no residual"],
            ),
            mistake(
                "added to the normalised token",
                "The residual stream is never normalised: add to the token as it was given.",
                wrong["normed residual"],
            ),
            mistake(
                "norm forgotten", "The part reads the normalised token, not the token as it is.", wrong["not normed"]
            ),
            mistake(
                "norm after the sum", "Here the norm comes before the part, not after the sum.", wrong["post-norm"]
            ),
        ),
        lambda: done.lines(*cells),
    )


def _gelu(x: Row, up: Rows, bias: Row, down: Rows) -> Question:
    def mlp(activation: Callable[[Tensor], Tensor] = gelu, bias: Row = bias) -> Work:
        module = MLP(len(up[0]), len(up), activation)
        module.up.weight.data, module.up.bias.data = tensor(up), tensor(bias)
        module.down.weight.data, module.down.bias.data = tensor(down), torch.zeros(len(down), dtype=torch.float64)

        def hidden_units(x: Tensor, probe: Probe = OFF) -> Tensor:
            return module(x, probe=probe)

        return work(hidden_units, tensor([[x]]), modules=[module])

    done, names, hidden = mlp(), numbered("dim", len(down)), numbered("hidden", len(up))
    pre = done["pre"][0]
    steps = [float(u) for u in range(int(min(pre.min(), -2)), int(max(pre.max(), 2)) + 1)]
    shares = torch.special.ndtr(tensor(steps)).numpy().round(4).tolist()
    cells = [(f"U {i + 1}", f"pre[0,0,{i}]") for i in range(len(up))]
    cells += [(f"GELU {i + 1}", f"act[0,0,{i}]") for i in range(len(up))]
    cells += [(name, f"out[0,0,{i}]") for i, name in enumerate(names)]
    return Question(
        (
            Table("token", [x], numbered("dim", len(x))),
            Table("W₁", up, None, hidden),
            Table("b₁", [bias], hidden),
            Table("W₂", down, None, names),
            Table("Φ", [shares], [f"{u:g}".replace("-", "−") for u in steps]),
        ),
        "A small MLP: U = W₁·x + b₁, where x is the token and W₁ has one row for each hidden unit; then GELU(u) = "
        "u·Φ(u); then W₂ times that (b₂ = 0). Φ, the distribution function of the normal distribution, is given for "
        "whole numbers. The new numbers?",
        blanks(names, done["out"], 2, [mlp(gelu_tanh)["out"], *done.roundings("out", 2)]),
        (
            mistake("ReLU", "GELU is u·Φ(u): negative inputs are not set to 0.", mlp(F.relu)["out"]),
            mistake("no activation", "GELU comes between W₁ and W₂.", mlp(lambda u: u)["out"]),
            mistake("Φ alone", "GELU(u) is u times Φ(u), not Φ(u) alone.", mlp(torch.special.ndtr)["out"]),
            mistake("b₁ forgotten", "b₁ is added before GELU.", mlp(bias=[0.0] * len(bias))["out"]),
        ),
        lambda: done.lines(*cells),
    )


def cross_entropy(logits: Tensor, target: Tensor, probe: Probe = OFF) -> Tensor:
    """The training loss of one prediction."""
    return probe("loss", next_token(logits, target))


def cross_entropy_by_hand(logits: Tensor, target: Tensor, probe: Probe = OFF) -> Tensor:
    """The same step by step: the probabilities of all words, then minus the logarithm of the target's."""
    raised = probe("raised", logits[0, 0].exp())
    probability = probe("probability", raised / probe("total", raised.sum()))
    return probe("loss", -probability[target[0, 0]].log())


def _cross_entropy(logits: Row, target: int) -> Question:
    words = ["the", "cat", "sat", "on"][: len(logits)]

    def loss_by(function: Callable[..., Tensor], target: int) -> Work:
        return work(function, tensor([[logits]]), torch.tensor([[target]]))

    hand, best = loss_by(cross_entropy_by_hand, target), logits.index(max(logits))
    other = loss_by(cross_entropy_by_hand, best)
    loss, probability = float(loss_by(cross_entropy, target)["loss"]), float(hand["probability"][target])
    roundings = zip(hand.roundings("probability", 3), hand.roundings("loss", 3), strict=True)
    cells = [(f"e^logit of {word}", f"raised[{i}]") for i, word in enumerate(words)]
    cells += [("total", "total"), (f"probability of {words[target]}", f"probability[{target}]"), ("loss", "loss")]
    return Question(
        (Table("logits", [logits], words),),
        f"A model gives these logits for the next word, which was “{words[target]}”. Its probability by the softmax, "
        f"and the cross-entropy loss (natural logarithm)?",
        blanks(
            ["probability", "loss"],
            [probability, loss],
            3,
            [[each[target], float(rounded)] for each, rounded in roundings],
        ),
        (
            mistake(
                "minus forgotten",
                "The logarithm of a probability is below 0; the loss is minus that.",
                probability,
                -loss,
            ),
            mistake(
                "logarithm of base 2", "The loss is in nats: the natural logarithm.", probability, loss / math.log(2)
            ),
            mistake(
                "the most likely word",
                "The loss is that of the word that followed, however unlikely it was.",
                other["probability"][best],
                float(other["loss"]),
            ),
            mistake(
                "one minus the probability",
                "The loss is minus the logarithm of the probability.",
                probability,
                1 - probability,
            ),
        ),
        lambda: hand.lines(*cells),
    )


# ---- diffusion: norms and gates set by a condition (adaLN), and one denoising step (DDIM)


def conditioned(
    x: Row, settings: Rows, output: Row | None = None, kind: type[AdaBlock] | type[AdaNormBlock] = AdaBlock
) -> Work:
    """A block whose condition gives these shifts, scales and gates, and whose attention has this output."""
    width = len(x)
    block = kind(
        lambda: Attention(width, 1),
        lambda: MLP(width, 1),
        lambda: LayerNorm(width, 1e-6, bias=False, scale=False),
        width,
    )
    biases = [value for row in settings for value in row]
    block.ada.bias.data = tensor(biases + [0.0] * (len(block.ada.bias) - len(biases)))
    block.attn.out.weight.data.zero_()
    block.attn.out.bias.data = tensor(output or [0.0] * width)

    def one_block(x: Tensor, condition: Tensor, probe: Probe = OFF) -> Tensor:
        return block(x, Span.whole(x.shape[1]).under(full), condition, probe)

    return work(one_block, tensor([[x]]), torch.zeros(1, width, dtype=torch.float64), modules=[block])


def _adaln(x: Row, scale: Row, shift: Row) -> Question:
    """As document 002 has it, γ·LN(x) + β; DiT's own block, adaLN-Zero, scales by 1 + γ."""
    done, names = conditioned(x, [scale, shift], kind=AdaNormBlock), numbered("number", len(x))
    gain, added = tensor(scale), tensor(shift)
    hand = normed_by_hand(x, gain, added)
    cells = [(f"new {i + 1}", f"out[0,{i}]") for i in range(len(x))]
    return Question(
        (
            Table("token", [x], names),
            Table("from the condition", [scale, shift], names, ["γ (scale)", "β (shift)"]),
        ),
        "adaLN, γ·LN(x) + β: LayerNorm gives this token mean 0 and standard deviation 1; then each number is "
        "multiplied by γ (adaLN-Zero would multiply by 1 + γ), and β is added. What does the block read?",
        blanks(names, done["attn_norm"], 2, hand.roundings("out", 2)),
        (
            mistake(
                "1 + γ, as in adaLN-Zero",
                "1 + γ is right for adaLN-Zero, DiT's own block; here γ is the whole scale.",
                conditioned(x, [shift, scale])["attn_norm"],
            ),
            mistake(
                "γ and β mixed up",
                "γ scales and β shifts.",
                conditioned(x, [shift, scale], kind=AdaNormBlock)["attn_norm"],
            ),
            mistake(UNBIASED, UNBIASED_HINT, normed_by_hand(x, gain, added, fewer=1)["out"]),
            mistake(
                "γ and β forgotten",
                "The condition still has to scale and shift the normalised token.",
                hand["normalised"],
            ),
        ),
        lambda: hand.lines(*norm_cells(len(x), "normalised"), *cells),
    )


def _gate(x: Row, output: Row, gate: Row) -> Question:
    none, names = [0.0] * len(x), numbered("number", len(x))
    done, opened = (conditioned(x, [none, none, gates], output) for gates in (gate, [1.0] * len(x)))
    token, out, alpha = tensor(x), tensor(output), tensor(gate)
    cells = [(f"new {i + 1}", f"mid[0,0,{i}]") for i in range(len(x))]
    return Question(
        (
            Table("token", [x], names),
            Table("attention output", [output], names),
            Table("gate α", [gate], names),
        ),
        "adaLN-Zero: the attention output is multiplied by its gate α and added to the token, in the residual stream. "
        "The token afterwards?",
        blanks(names, done["mid"], 2),
        (
            mistake("gate forgotten", "The output is first multiplied by α; at α = 0 nothing is added.", opened["mid"]),
            mistake(
                "token gated too",
                "Only the attention output is multiplied by the gate, the token itself is not.",
                alpha * (token + out),
            ),
            mistake(
                "residual forgotten",
                "The token itself stays, and α times the attention output is added to it.",
                alpha * out,
            ),
        ),
        lambda: done.lines(*cells),
    )


def ddim_step(x: Tensor, eps: Tensor, now: float, then: float) -> Work:
    """One step of DDIM from timestep 1 to timestep 0, with the image predicted on the way."""
    diffusion = GaussianDiffusion(tensor([then, now]))

    def step(x: Tensor, eps: Tensor, probe: Probe = OFF) -> Tensor:
        picture, _ = diffusion.split(x, eps, torch.ones(1, dtype=torch.long))
        probe("picture", picture)
        return probe("out", diffusion.ddim(x, eps, 1, 0))

    return work(step, x, eps)


def ddim_by_hand(x: Tensor, eps: Tensor, now: Tensor, then: Tensor, probe: Probe = OFF) -> Tensor:
    """The same step by step: subtract the noise, then add less of it."""
    noise = probe("noise", (1 - now).sqrt() * eps)
    picture = probe("picture", (x - noise) / probe("root", now.sqrt()))
    return probe("out", then.sqrt() * picture + (1 - then).sqrt() * eps)


def _ddim(x: Row, eps: Row, now: float, then: float) -> Question:
    noisy, noise, count = tensor([x]), tensor([eps]), range(len(x))
    pixels = numbered("pixel", len(x))

    def by_hand(now: float, then: float) -> Work:
        return work(ddim_by_hand, noisy, noise, tensor(now), tensor(then))

    def both(done: Work) -> tuple:
        return done["picture"], done["out"]

    hand = by_hand(now, then)
    cells = [(f"x₀ {i + 1}", f"picture[0,{i}]") for i in count] + [(f"x {i + 1}", f"out[0,{i}]") for i in count]
    roundings = zip(hand.roundings("picture", 2), hand.roundings("out", 2), strict=True)
    return Question(
        (
            Table("x_t", [x], pixels),
            Table("ε, predicted", [eps], pixels),
            Table("ᾱ", [[now, then]], ["now", "after this step"]),
        ),
        "One step of DDIM. x₀ = (x_t − √(1 − ᾱ_now)·ε)/√ᾱ_now is the predicted image; then "
        "x = √ᾱ_after·x₀ + √(1 − ᾱ_after)·ε. Both, for each pixel?",
        blanks(
            [f"x₀ of {pixel}" for pixel in pixels] + [f"x of {pixel}" for pixel in pixels],
            both(ddim_step(noisy, noise, now, then)),
            2,
            list(roundings),
        ),
        (
            mistake(
                "roots forgotten",
                "The image is multiplied by √ᾱ and the noise by √(1 − ᾱ): take the roots.",
                *both(by_hand(now**2, then**2)),
            ),
            mistake(
                "ᾱ now both times",
                "The result is mixed with ᾱ after this step, not with ᾱ now.",
                *both(ddim_step(noisy, noise, now, now)),
            ),
            mistake(
                "the two ᾱ mixed up",
                "ᾱ now is for subtracting the noise, ᾱ after this step for adding it.",
                *both(by_hand(then, now)),
            ),
            mistake(
                "noise not subtracted",
                "First subtract √(1 − ᾱ_now)·ε from x_t.",
                *both(ddim_step(noisy, torch.zeros_like(noise), now, then)),
            ),
        ),
        lambda: hand.lines(*cells),
    )


# ---- fresh numbers


def _draw_layernorm(d: Draws) -> Numbers:
    # multiples of ten, whose squares are easy by hand; or any numbers
    tens = [10 * number for number in d.distinct(4, 1, 9)]
    return {"x": d.pick([tens, d.distinct(4, 1, 12), d.distinct(3, 1, 12)])}


def _draw_ddim(d: Draws) -> Numbers:
    then = d.whole(0, 2)
    now = d.whole(then + 1, 3)
    pixels = {name: d.distinct_tenths(2, -20, 20, but=[0]) for name in ("x", "eps")}
    return pixels | {"now": ALPHAS[now], "then": ALPHAS[then]}


def _draw_cross_entropy(d: Draws) -> Numbers:
    count = d.pick([3, 4])
    return {"logits": d.distinct(count, -1, 3), "target": d.whole(0, count - 1)}


def _none_normalises_to_0(numbers: Numbers) -> bool:
    return all(len(numbers["x"]) * number != sum(numbers["x"]) for number in numbers["x"])


_RESIDUAL = {"x": [2.0, 4.0, 9.0], "matrix": [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, -1.0]]}
_GELU = {
    "x": [1.0, 2.0], "up": [[1.0, 0.0], [0.0, -1.0], [1.0, -1.0]], "bias": [0.0, 1.0, 0.0],
    "down": [[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]],
}  # fmt: skip

MAKES = {
    maker.name: maker
    for maker in (
        Maker("middle", {"x": [2.0, 4.0, 6.0]}, lambda d: {"x": d.distinct(d.pick([3, 4, 5]), 1, 20)}, _mean),
        Maker("layernorm", {"x": [50.0, 60.0, 40.0, 30.0]}, _draw_layernorm, _layernorm),
        Maker(
            "dials",
            {"x": [2.0, 4.0, 6.0], "gamma": [2.0, 1.0, 0.5], "beta": [0.0, 1.0, -1.0]},
            lambda d: {
                "x": d.distinct(3, 1, 12),
                "gamma": d.distinct_tenths(3, 5, 30, but=[10]),
                "beta": d.distinct_tenths(3, -20, 20, but=[0]),
            },
            _gain_and_shift,
        ),
        # three numbers: a norm turns two into −1 and 1, whatever they are
        Maker(
            "residual",
            _RESIDUAL,
            lambda d: {"x": d.distinct(3, 0, 9), "matrix": d.vectors(3, 3, -1, 2)},
            _residual,
            _none_normalises_to_0,
        ),
        Maker(
            "gelu",
            _GELU,
            lambda d: {
                "x": d.distinct(2, -1, 2, but=[0]),
                "up": d.vectors(3, 2, -1, 1),
                "bias": d.row(3, -1, 1),
                "down": d.vectors(2, 3, -2, 2),
            },
            _gelu,
        ),
        Maker("cross-entropy", {"logits": [2.0, 1.0, 0.0], "target": 1}, _draw_cross_entropy, _cross_entropy),
        Maker(
            "adaln",
            {"x": [2.0, 4.0, 6.0], "scale": [0.5, 0.0, -0.5], "shift": [0.0, 1.0, 0.2]},
            lambda d: {
                "x": d.distinct(3, 1, 12),
                "scale": d.distinct_tenths(3, -5, 10, but=[0]),
                "shift": d.distinct_tenths(3, -10, 10, but=[0]),
            },
            _adaln,
        ),
        Maker(
            "adaln-zero",
            {"x": [2.0, 4.0, 6.0], "output": [1.0, -3.0, 5.0], "gate": [0.0] * 3},
            lambda d: {
                "x": d.distinct(3, -5, 9, but=[0]),
                "output": d.distinct(3, -6, 6, but=[0]),
                "gate": d.distinct_tenths(3, 0, 8),
            },
            _gate,
        ),
        Maker("ddim", {"x": [1.4, 0.2], "eps": [1.0, -0.5], "now": 0.36, "then": 0.64}, _draw_ddim, _ddim),
    )
}
