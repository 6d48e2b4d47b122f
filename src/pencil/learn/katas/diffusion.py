"""Exercises on diffusion: norms and gates set by a condition (adaLN), and one denoising step (DDIM)."""

import torch
from torch import Tensor

from ...core.attention import Attention
from ...core.blocks import AdaBlock, AdaNormBlock
from ...core.layers import MLP, LayerNorm
from ...core.masks import full
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...inference.diffusion import GaussianDiffusion
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, tensor, work
from .exercise import Question, Table
from .layernorm import UNBIASED, UNBIASED_HINT, number_labels, steps
from .layernorm import by_hand as tamed_by_hand

Row = list[float]
Kind = type[AdaBlock] | type[AdaNormBlock]


def conditioned(strip: Row, settings: list[Row], output: Row | None = None, kind: Kind = AdaBlock) -> Work:
    """A block whose condition gives these shifts, scales and gates, and whose attention has this output."""
    width = len(strip)
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

    def one_block(strip: Tensor, condition: Tensor, probe: Probe = OFF) -> Tensor:
        return block(strip, Span.whole(strip.shape[1]).under(full), condition, probe)

    return work(one_block, tensor([[strip]]), torch.zeros(1, width, dtype=torch.float64), modules=[block])


def _adaln(strip: Row, scale: Row, shift: Row) -> Question:
    """As the document has it, γ·LN(x) + β; DiT's own block, adaLN-Zero, scales by 1 + γ."""
    done, names = conditioned(strip, [scale, shift], kind=AdaNormBlock), number_labels(len(strip))
    gain, added = tensor(scale), tensor(shift)
    hand = tamed_by_hand(strip, gain, added)
    cells = [(f"new {i + 1}", f"out[0,{i}]") for i in range(len(strip))]
    return Question(
        (
            Table("strip", [strip], names),
            Table("from the condition", [scale, shift], names, ["γ (scale)", "β (shift)"]),
        ),
        "adaLN, γ·LN(x) + β: tame the strip (middle 0, spread 1); then each number times γ, plus β. What does the "
        "block read? (adaLN-Zero would multiply by 1 + γ.)",
        blanks(names, done["attn_norm"], 2, hand.roundings("out", 2)),
        (
            mistake(
                "1 + γ, as in adaLN-Zero",
                "1 + γ is right for adaLN-Zero, DiT's own block; here γ is the whole scale.",
                conditioned(strip, [shift, scale])["attn_norm"],
            ),
            mistake(
                "γ and β mixed up",
                "γ scales and β shifts.",
                conditioned(strip, [shift, scale], kind=AdaNormBlock)["attn_norm"],
            ),
            mistake(UNBIASED, UNBIASED_HINT, tamed_by_hand(strip, gain, added, short=1)["out"]),
            mistake("γ and β forgotten", "The condition still has to scale and shift the tamed strip.", hand["tamed"]),
        ),
        lambda: hand.lines(*steps(len(strip), "tamed"), *cells),
    )


def _gate(strip: Row, output: Row, gate: Row) -> Question:
    still = [0.0] * len(strip)
    done, names = conditioned(strip, [still, still, gate], output), number_labels(len(strip))
    x, out, opened = tensor(strip), tensor(output), tensor(gate)
    one = conditioned(strip, [still, still, [1.0] * len(strip)], output)
    cells = [(f"new {i + 1}", f"mid[0,0,{i}]") for i in range(len(strip))]
    return Question(
        (
            Table("strip", [strip], names),
            Table("attention output", [output], names),
            Table("gate α", [gate], names),
        ),
        "adaLN-Zero: the attention output is multiplied by its gate α and added to the strip. The strip afterwards?",
        blanks(names, done["mid"], 2),
        (
            mistake("gate forgotten", "The output is first multiplied by α; at α = 0 nothing is added.", one["mid"]),
            mistake(
                "strip gated too",
                "Only the attention output is multiplied by the gate, the strip itself is not.",
                opened * (x + out),
            ),
            mistake(
                "residual forgotten",
                "The strip itself stays, and α times the attention output is added to it.",
                opened * out,
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
    given = tensor([x]), tensor([eps])
    done, hand = ddim_step(*given, now, then), work(ddim_by_hand, *given, tensor(now), tensor(then))
    count = range(len(x))
    pixels = [f"pixel {i + 1}" for i in count]

    def both(done: Work) -> tuple:
        return done["picture"], done["out"]

    rootless = work(ddim_by_hand, *given, tensor(now**2), tensor(then**2))
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
            [done["picture"], done["out"]],
            2,
            [list(one) for one in roundings],
        ),
        (
            mistake(
                "roots forgotten",
                "The image is multiplied by √ᾱ and the noise by √(1 − ᾱ): take the roots.",
                *both(rootless),
            ),
            mistake(
                "ᾱ now both times",
                "The result is mixed with ᾱ after this step, not with ᾱ now.",
                *both(ddim_step(*given, now, now)),
            ),
            mistake(
                "the two ᾱ mixed up",
                "ᾱ now is for subtracting the noise, ᾱ after this step for adding it.",
                *both(work(ddim_by_hand, *given, tensor(then), tensor(now))),
            ),
            mistake(
                "noise not subtracted",
                "First subtract √(1 − ᾱ_now)·ε from x_t.",
                *both(ddim_step(given[0], torch.zeros_like(given[1]), now, then)),
            ),
        ),
        lambda: hand.lines(*cells),
    )


def _draw_adaln(d: Draws) -> Numbers:
    strip = d.distinct(3, 1, 12)
    scale, shift = d.distinct_tenths(3, -5, 10, but=[0]), d.distinct_tenths(3, -10, 10, but=[0])
    return {"strip": strip, "scale": scale, "shift": shift}


def _draw_gate(d: Draws) -> Numbers:
    strip, output = d.distinct(3, -5, 9, but=[0]), d.distinct(3, -6, 6, but=[0])
    return {"strip": strip, "output": output, "gate": d.distinct_tenths(3, 0, 8)}


ALPHAS = (0.9216, 0.64, 0.36, 0.0784)  # √ᾱ and √(1 − ᾱ) have two decimals


def _draw_ddim(d: Draws) -> Numbers:
    then = d.whole(0, 2)
    now = d.whole(then + 1, 3)
    pixels = {name: d.distinct_tenths(2, -20, 20, but=[0]) for name in ("x", "eps")}
    return pixels | {"now": ALPHAS[now], "then": ALPHAS[then]}


MAKES = {
    "adaln": Maker(
        "adaln", {"strip": [2.0, 4.0, 6.0], "scale": [0.5, 0.0, -0.5], "shift": [0.0, 1.0, 0.2]}, _draw_adaln, _adaln
    ),
    "adaln-zero": Maker(
        "adaln-zero", {"strip": [2.0, 4.0, 6.0], "output": [1.0, -3.0, 5.0], "gate": [0.0] * 3}, _draw_gate, _gate
    ),
    "ddim": Maker("ddim", {"x": [1.4, 0.2], "eps": [1.0, -0.5], "now": 0.36, "then": 0.64}, _draw_ddim, _ddim),
}
