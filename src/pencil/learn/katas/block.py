"""Exercises on the rest of a model: the residual stream, the MLP, and the loss."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.layers import MLP, LayerNorm, gelu, gelu_tanh
from ...core.probe import OFF, Probe
from ...train.losses.vocabulary import next_token
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, tensor, work
from .exercise import Question, Table

Rows = list[list[float]]


def slots(count: int) -> list[str]:
    return [f"slot {i + 1}" for i in range(count)]


def _residual(strip: list[float], matrix: Rows) -> Question:
    norm, part = LayerNorm(len(matrix), 1e-6), nn.Linear(len(matrix), len(matrix), bias=False)
    part.weight.data = tensor(matrix)

    def pre_norm(strip: Tensor, probe: Probe = OFF) -> Tensor:
        read = probe("read", norm(strip))
        return probe("out", strip + probe("part", part(read)))

    def mistaken(strip: Tensor, probe: Probe = OFF) -> Tensor:
        read = norm(strip)
        probe("no residual", part(read))
        probe("normed residual", read + part(read))
        probe("not normed", strip + part(strip))
        return probe("post-norm", norm(strip + part(strip)))

    done, wrong = (work(function, tensor([strip]), modules=[norm, part]) for function in (pre_norm, mistaken))
    names, count = slots(len(strip)), range(len(strip))
    parts = (("read", "read"), ("part", "part"), ("new", "out"))
    cells = [(f"{label} {i + 1}", f"{name}[0,{i}]") for label, name in parts for i in count]
    return Question(
        (Table("strip", [strip], names), Table("W", matrix, None, [f"new {i + 1}" for i in count])),
        "The part reads the tamed strip (LayerNorm: middle 0, spread 1) and multiplies it by W, one row of W for each "
        "new number. Its output is added to the strip itself. The strip afterwards?",
        blanks(names, done["out"], 2, done.roundings("out", 2)),
        (
            mistake(
                "residual forgotten",
                "The output of the part is added to the strip, it does not replace it.",
                wrong["no residual"],
            ),
            mistake(
                "added to the tamed strip",
                "The residual stream is never tamed: add to the strip as it was given.",
                wrong["normed residual"],
            ),
            mistake("norm forgotten", "The part reads the tamed strip, not the strip as it is.", wrong["not normed"]),
            mistake(
                "norm after the sum", "Here the norm comes before the part, not after the sum.", wrong["post-norm"]
            ),
        ),
        lambda: done.lines(*cells),
    )


def _gelu(strip: list[float], up: Rows, bias: list[float], down: Rows) -> Question:
    def mlp(activation: Callable[[Tensor], Tensor] = gelu, bias: list[float] = bias) -> Work:
        module = MLP(len(up[0]), len(up), activation)
        module.up.weight.data, module.up.bias.data = tensor(up), tensor(bias)
        module.down.weight.data, module.down.bias.data = tensor(down), torch.zeros(len(down), dtype=torch.float64)

        def hidden_units(strip: Tensor, probe: Probe = OFF) -> Tensor:
            return module(strip, probe=probe)

        return work(hidden_units, tensor([[strip]]), modules=[module])

    done, names = mlp(), slots(len(down))
    hidden, pre = [f"hidden {i + 1}" for i in range(len(up))], done["pre"][0]
    low, high = int(min(pre.min(), -2)), int(max(pre.max(), 2))
    steps = [float(u) for u in range(low, high + 1)]
    portions = torch.special.ndtr(tensor(steps)).numpy().round(4).tolist()
    cells = [(f"U {i + 1}", f"pre[0,0,{i}]") for i in range(len(up))]
    cells += [(f"GELU {i + 1}", f"act[0,0,{i}]") for i in range(len(up))]
    cells += [(name, f"out[0,0,{i}]") for i, name in enumerate(names)]
    roundings = [mlp(gelu_tanh)["out"], *done.roundings("out", 2)]
    return Question(
        (
            Table("strip", [strip], slots(len(strip))),
            Table("W₁", up, None, hidden),
            Table("b₁", [bias], hidden),
            Table("W₂", down, None, names),
            Table("Φ", [portions], [f"{u:g}".replace("-", "−") for u in steps]),
        ),
        "A small MLP: U = W₁·strip + b₁, one row of W₁ for each hidden unit; then GELU(u) = u·Φ(u); then W₂ times "
        "that. The Φ of whole numbers is given. The new numbers?",
        blanks(names, done["out"], 2, roundings),
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
    """The same step by step: the portions of all words, then minus the logarithm of the target's."""
    raised = probe("raised", logits[0, 0].exp())
    portion = probe("portion", raised / probe("total", raised.sum()))
    return probe("loss", -portion[target[0, 0]].log())


def _cross_entropy(logits: list[float], target: int) -> Question:
    words = ["the", "cat", "sat", "on"][: len(logits)]

    def inputs(target: int) -> tuple[Tensor, Tensor]:
        return tensor([[logits]]), torch.tensor([[target]])

    done, hand = work(cross_entropy, *inputs(target)), work(cross_entropy_by_hand, *inputs(target))
    loss, portion = float(done["loss"]), float(hand["portion"][target])
    roundings = zip(hand.roundings("portion", 3), hand.roundings("loss", 3), strict=True)
    best = max(range(len(logits)), key=lambda i: logits[i])
    other = work(cross_entropy_by_hand, *inputs(best))
    cells = [(f"e^logit of {word}", f"raised[{i}]") for i, word in enumerate(words)]
    cells += [("total", "total"), (f"portion of {words[target]}", f"portion[{target}]"), ("loss", "loss")]
    return Question(
        (Table("logits", [logits], words),),
        f"The next word was “{words[target]}”. Its portion after softmax, and the cross-entropy (natural logarithm)?",
        blanks(["portion", "loss"], [portion, loss], 3, [[one[0][target], float(one[1])] for one in roundings]),
        (
            mistake(
                "minus forgotten", "The logarithm of a portion is below 0; the loss is minus that.", portion, -loss
            ),
            mistake("logarithm of base 2", "The loss is in nats: the natural logarithm.", portion, loss / math.log(2)),
            mistake(
                "the most likely word",
                "The loss is that of the word that followed, however unlikely it was.",
                other["portion"][best],
                float(other["loss"]),
            ),
            mistake("one minus the portion", "The loss is minus the logarithm of the portion.", portion, 1 - portion),
        ),
        lambda: hand.lines(*cells),
    )


def _draw_residual(d: Draws) -> Numbers:
    """Three numbers: a norm turns two into −1 and 1, whatever they are."""
    return {"strip": d.distinct(3, 0, 9), "matrix": d.tags(3, 3, -1, 2)}


def _informative_residual(numbers: Numbers) -> bool:
    """No tamed number is 0."""
    strip = numbers["strip"]
    return all(len(strip) * one != sum(strip) for one in strip)


def _draw_gelu(d: Draws) -> Numbers:
    return {
        "strip": d.distinct(2, -1, 2, but=[0]),
        "up": d.tags(3, 2, -1, 1),
        "bias": d.row(3, -1, 1),
        "down": d.tags(2, 3, -2, 2),
    }


def _draw_cross_entropy(d: Draws) -> Numbers:
    count = d.pick([3, 4])
    return {"logits": d.distinct(count, -1, 3), "target": d.whole(0, count - 1)}


_RESIDUAL = {"strip": [2.0, 4.0, 9.0], "matrix": [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, -1.0]]}
_GELU = {
    "strip": [1.0, 2.0], "up": [[1.0, 0.0], [0.0, -1.0], [1.0, -1.0]], "bias": [0.0, 1.0, 0.0],
    "down": [[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]],
}  # fmt: skip

MAKES = {
    "residual": Maker("residual", _RESIDUAL, _draw_residual, _residual, _informative_residual),
    "gelu": Maker("gelu", _GELU, _draw_gelu, _gelu),
    "cross-entropy": Maker(
        "cross-entropy", {"logits": [2.0, 1.0, 0.0], "target": 1}, _draw_cross_entropy, _cross_entropy
    ),
}
