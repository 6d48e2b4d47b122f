"""Exercises on diffusion: norms and gates that a condition sets, and one step back from noise."""

import torch
from torch import Tensor, nn

from ...core.attention import Attention
from ...core.blocks import AdaBlock, AdaNormBlock
from ...core.layers import MLP, LayerNorm
from ...core.masks import full
from ...core.probe import OFF, Off
from ...core.span import Span
from ...diffusion import Steps
from .exercise import Question, Table
from .making import Draws, Later, Numbers, Work, blanks, maker, mistake, tensor, work
from .taming import UNBIASED, UNBIASED_HINT, numbers, steps
from .taming import by_hand as tamed_by_hand

Row = list[float]
Kind = type[AdaBlock] | type[AdaNormBlock]


class Conditioned(nn.Module):
    """A block whose condition asks for these shifts, scales and gates, and whose attention says what it is told to."""

    def __init__(self, kind: Kind, settings: list[Row], said: Row):
        super().__init__()
        width = len(said)
        self.block = kind(
            lambda: Attention(width, 1),
            lambda: MLP(width, 1),
            lambda: LayerNorm(width, 1e-6, bias=False, scale=False),
            width,
        )
        asked = [number for row in settings for number in row]
        self.block.ada.bias.data = tensor(asked + [0.0] * (len(self.block.ada.bias) - len(asked)))
        self.block.attn.out.weight.data.zero_()
        self.block.attn.out.bias.data = tensor(said)

    def forward(self, strip: Tensor, condition: Tensor, probe: Off = OFF) -> Tensor:
        return self.block(strip, Span.whole(strip.shape[1]).under(full), condition, probe)


def conditioned(strip: Row, settings: list[Row], said: Row | None = None, kind: Kind = AdaBlock) -> Work:
    width = len(strip)
    module = Conditioned(kind, settings, said or [0.0] * width)
    return work(module, tensor([[strip]]), torch.zeros(1, width, dtype=torch.float64))


def _adaln(strip: Row, scale: Row, shift: Row) -> Question:
    done, names = conditioned(strip, [shift, scale]), numbers(len(strip))
    gain, added = tensor(scale), tensor(shift)
    hand = tamed_by_hand(strip, 1 + gain, added)
    cells = [(f"new {i + 1}", f"out[0,{i}]") for i in range(len(strip))]
    return Question(
        "", None, "", (
            Table("strip", [strip], names),
            Table("from the condition", [scale, shift], names, ["γ (scale)", "β (shift)"]),
        ),
        "adaLN: tame the strip (middle 0, spread 1); then each number times (1 + γ), plus β. What does the block read?",
        blanks(names, done["attn_norm"], 2, hand.ways("out", 2)),
        (
            mistake("the 1 forgotten", "The tamed number is scaled by 1 + γ, so that γ = 0 leaves it as it is.",
                    conditioned(strip, [scale, shift], kind=AdaNormBlock).run("attn_norm")),
            mistake("γ and β mixed up", "γ scales and β shifts.", conditioned(strip, [scale, shift]).run("attn_norm")),
            mistake(UNBIASED, UNBIASED_HINT, tamed_by_hand(strip, 1 + gain, added, short=1).run("out")),
            mistake("γ and β forgotten", "The condition still has to scale and shift the tamed strip.",
                    hand.run("tamed")),
        ),
        Later(lambda: hand.lines(*steps(len(strip), "tamed"), *cells)),
    )  # fmt: skip


def _gate(strip: Row, said: Row, gate: Row) -> Question:
    still = [0.0] * len(strip)
    done, names = conditioned(strip, [still, still, gate], said), numbers(len(strip))
    x, out, opened = tensor(strip), tensor(said), tensor(gate)
    one = conditioned(strip, [still, still, [1.0] * len(strip)], said)
    cells = [(f"new {i + 1}", f"mid[0,0,{i}]") for i in range(len(strip))]
    return Question(
        "", None, "", (
            Table("strip", [strip], names),
            Table("attention says", [said], names),
            Table("gate α", [gate], names),
        ),
        "adaLN-Zero: what attention says is multiplied by its gate α, and added to the strip. The strip afterwards?",
        blanks(names, done["mid"], 2),
        (
            mistake("gate forgotten", "What is added is first multiplied by α; at α = 0 nothing is added.",
                    one.run("mid")),
            mistake("trunk gated too", "Only what is added goes through the gate, the strip itself does not.",
                    opened * (x + out)),
            mistake("trunk forgotten", "The strip itself stays, and α times what is said is added to it.",
                    opened * out),
        ),
        Later(lambda: done.lines(*cells)),
    )  # fmt: skip


class Back(nn.Module):
    """One step of DDIM from noise number 1 to number 0, with the picture it sees on the way."""

    def __init__(self, now: float, then: float):
        super().__init__()
        self.steps = Steps(tensor([then, now]))

    def forward(self, x: Tensor, eps: Tensor, probe: Off = OFF) -> Tensor:
        picture, _ = self.steps.apart(x, eps, torch.ones(1, dtype=torch.long))
        probe("picture", picture)
        return probe("out", self.steps.ddim(x, eps, 1, 0))


class BackByHand(nn.Module):
    """The same as a pencil does it: take the noise away, then put less of it back."""

    def forward(self, x: Tensor, eps: Tensor, now: Tensor, then: Tensor, probe: Off = OFF) -> Tensor:
        noise = probe("noise", (1 - now).sqrt() * eps)
        picture = probe("picture", (x - noise) / probe("root", now.sqrt()))
        return probe("out", then.sqrt() * picture + (1 - then).sqrt() * eps)


def _ddim(x: Row, eps: Row, now: float, then: float) -> Question:
    given = tensor([x]), tensor([eps])
    done, hand = work(Back(now, then), *given), work(BackByHand(), *given, tensor(now), tensor(then))
    count = range(len(x))

    def both(way: Work) -> tuple:
        return way.run("picture"), way.run("out")

    rootless = work(BackByHand(), *given, tensor(now**2), tensor(then**2))
    cells = [(f"x₀ {i + 1}", f"picture[0,{i}]") for i in count] + [(f"x {i + 1}", f"out[0,{i}]") for i in count]
    ways = zip(hand.ways("picture", 2), hand.ways("out", 2), strict=True)
    return Question(
        "", None, "", (
            Table("x_t", [x], [f"dot {i + 1}" for i in count]),
            Table("ε, as the model says", [eps], [f"dot {i + 1}" for i in count]),
            Table("share ᾱ left of the picture", [[now, then]], ["now", "after this step"]),
        ),
        "One step of DDIM. x₀ = (x_t − √(1 − ᾱ_now)·ε)/√ᾱ_now is the picture the model sees; then "
        "√ᾱ_after·x₀ + √(1 − ᾱ_after)·ε. Both, for each dot?",
        blanks([f"x₀ of dot {i + 1}" for i in count] + [f"x of dot {i + 1}" for i in count],
               [done["picture"], done["out"]], 2, [list(way) for way in ways]),
        (
            mistake("roots forgotten", "The picture counts √ᾱ and the noise √(1 − ᾱ): take the roots.",
                    *both(rootless)),
            mistake("stayed where it was", "The way out again is with ᾱ after this step, not with ᾱ now.",
                    *both(work(Back(now, now), *given))),
            mistake("the two shares mixed up", "ᾱ now takes the noise away, ᾱ after the step puts less of it back.",
                    *both(work(BackByHand(), *given, tensor(then), tensor(now)))),
            mistake("noise not taken away", "First take √(1 − ᾱ_now)·ε off x_t.",
                    *both(work(Back(now, then), given[0], torch.zeros_like(given[1])))),
        ),
        Later(lambda: hand.lines(*cells)),
    )  # fmt: skip


def _draw_adaln(d: Draws) -> Numbers:
    strip = d.distinct(3, 1, 12)
    return {"strip": strip, "scale": [d.tenths(-5, 10) for _ in strip], "shift": [d.tenths(-10, 10) for _ in strip]}


def _draw_gate(d: Draws) -> Numbers:
    return {"strip": d.row(3, -5, 9), "said": d.row(3, -6, 6), "gate": [d.tenths(0, 8) for _ in range(3)]}


SHARES = (0.9216, 0.64, 0.36, 0.0784)  # their roots, and those of what is left to 1, have two decimals


def _draw_ddim(d: Draws) -> Numbers:
    then = d.whole(0, 2)
    now = d.whole(then + 1, 3)
    dots = {"x": [d.tenths(-20, 20) for _ in range(2)], "eps": [d.tenths(-20, 20) for _ in range(2)]}
    return dots | {"now": SHARES[now], "then": SHARES[then]}


MAKES = {
    "adaln": maker(
        "adaln", {"strip": [2.0, 4.0, 6.0], "scale": [0.5, 0.0, -0.5], "shift": [0.0, 1.0, 0.2]}, _draw_adaln, _adaln
    ),
    "adaln-zero": maker(
        "adaln-zero", {"strip": [2.0, 4.0, 6.0], "said": [1.0, -3.0, 5.0], "gate": [0.0] * 3}, _draw_gate, _gate
    ),
    "ddim": maker("ddim", {"x": [1.4, 0.2], "eps": [1.0, -0.5], "now": 0.36, "then": 0.64}, _draw_ddim, _ddim),
}
