"""Claims about recurrent networks: an RNN and an LSTM of the transformer's size."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .claim import LOSS, Claim, Curve, Measured, Prediction, Size
from .claims_attention import make_blocks
from .training import (
    RecallModel,
    by_step,
    exact_match,
    generator,
    held_out_batch,
    points,
    recall_batch,
    recall_loss,
    seconds,
    seeded,
    train,
)

ARMS = ("transformer", "RNN", "LSTM")
GATES = {"RNN": 1, "LSTM": 4}


class Recurrent(nn.Module):
    """torch's RNN or LSTM, and a projection back to the input width."""

    def __init__(self, kind: str, width: int, state: int):
        super().__init__()
        made: Any = nn.RNN if kind == "RNN" else nn.LSTM
        self.cells = made(width, state, batch_first=True)
        self.out = nn.Linear(state, width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.out(self.cells(x)[0])


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def sequence_model(arm: str, width: int, depth: int) -> nn.Module:
    """Transformer blocks, or the recurrent network with the nearest number of parameters."""
    blocks = make_blocks(width, 2, depth)
    if arm == "transformer":
        return blocks
    wanted, gates = count_parameters(blocks), GATES[arm]

    def parameters(state: int) -> int:
        return gates * state * (width + state + 2) + (state + 1) * width

    return Recurrent(arm, width, min(range(1, 40 * width), key=lambda state: abs(parameters(state) - wanted)))


def measure_time(arm: str, seed: int, size: Size) -> Measured:
    """Forward and backward over one text of growing length: the least of several times, which other load affects
    least."""
    model = seeded(lambda: sequence_model(arm, size["width"], size["depth"]), seed)
    by_length = {}
    for n in size["lengths"]:
        x = torch.randn(1, n, size["width"], generator=generator(seed, n), requires_grad=True)
        spent = [seconds(lambda x=x: model(x)[:, -1].sum().backward()) for _ in range(size["times"] + 1)]
        by_length[n] = 1000 * min(spent[1:])  # the first is a warm-up
    return {
        "time": by_length[size["length"]],
        "growth": by_length[size["length"]] / by_length[size["lengths"][0]],
        "parameters": float(count_parameters(model)),
        "time by length": points(by_length, by_length.values()),
    }


def measure_gradient(arm: str, seed: int, size: Size) -> Measured:
    """The gradient of the last token's output at the first token, relative to that at the last."""
    # in double precision: the gradient of an RNN soon underflows in single precision
    model = seeded(lambda: sequence_model(arm, size["width"], size["depth"]), seed).double()
    ratios = []
    for n in size["lengths"]:
        random = generator(seed, n)
        x = torch.randn(1, n, size["width"], generator=random, dtype=torch.float64, requires_grad=True)
        direction = torch.randn(size["width"], generator=random, dtype=torch.float64)
        (grad,) = torch.autograd.grad((model(x)[0, -1] * direction).sum(), x)
        ratios.append(float(grad[0, 0].norm() / grad[0, -1].norm()))
    return {"ratio": ratios[-1], "ratio by length": points(size["lengths"], ratios)}


def measure_recall(arm: str, seed: int, size: Size) -> Measured:
    """Few or many cards are read; then the value of one is queried."""
    kind = dict(names=size["names"], values=size["values"], queries=1)

    def make() -> RecallModel:
        return RecallModel(
            size["names"], size["values"], 1, size["width"], sequence_model(arm, size["width"], size["depth"])
        )

    model = seeded(make, seed)

    def loss_of(step: int) -> Tensor:
        shown = size["shown"][step % len(size["shown"])]
        return recall_loss(model, recall_batch(generator(seed, step, 1), size["rows"], shown=shown, **kind))

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    right = [exact_match(model, held_out_batch(seed, size["held_out"], shown=shown, **kind)) for shown in size["shown"]]
    return {
        "drop": right[0] - right[-1],
        "many": right[-1],
        "parameters": float(count_parameters(model)),
        "accuracy by cards": points(size["shown"], right),
        "loss by step": by_step(losses),
    }


_REPLACED = "the blocks are replaced by torch.nn.{} with the same number of parameters, and a projection"

CLAIMS = (
    Claim(
        name="rnn-time",
        title="Recurrent networks: time",
        hypothesis="A recurrent network must process one token after another, so its time grows with every token of "
        "the text; attention processes all tokens at once.",
        removed=_REPLACED.format("RNN or LSTM") + "; one text at a time, forward and backward, one thread",
        arms=ARMS,
        measure=measure_time,
        predictions=tuple(
            Prediction(
                f"the {arm} takes longer for a text of 256 tokens",
                "time",
                "time of one text of 256 tokens, forward and backward (ms)",
                arm,
                "transformer",
                times=1.0,
            )
            for arm in ARMS[1:]
        ),
        quick=dict(width=64, depth=2, lengths=(16, 64, 256, 1024), length=256, times=5),
        full=dict(lengths=(16, 32, 64, 128, 256, 512, 1024, 2048), times=15),
        tiny=dict(width=4, depth=1, lengths=(3, 5), length=5, times=1),
        curves=(Curve("time by length", "tokens in the text", "time (ms)", log_x=True, log_y=True),),
        alone=True,
        caveat="The times are of one thread of this machine. The cost of attention grows with the square of the length "
        "and catches up: see the right end of the curve. A recurrent network uses the hardware better with large "
        "batches, and worse with many cores.",
        source="002, Why Not RNNs? Problem 1",
    ),
    Claim(
        name="rnn-gradient",
        title="Recurrent networks: the gradient at the first token",
        hypothesis="A recurrent network multiplies the gradient by the same matrix at every step back, so it vanishes "
        "with the length; gates reduce this but do not end it; attention reaches every token in one step.",
        removed=_REPLACED.format("RNN or LSTM") + "; untrained, with the default initialisation of torch and pencil",
        arms=ARMS,
        measure=measure_gradient,
        predictions=(
            *(
                Prediction(
                    f"in the {arm} almost no gradient reaches back 100 tokens",
                    "ratio",
                    "gradient at the first of 100 tokens ÷ at the last",
                    "transformer",
                    arm,
                    times=1000.0,
                )
                for arm in ARMS[1:]
            ),
            Prediction(
                "the gates of the LSTM reduce this",
                "ratio",
                "gradient at the first of 100 tokens ÷ at the last",
                "LSTM",
                "RNN",
                times=10.0,
            ),
        ),
        quick=dict(width=64, depth=2, lengths=(2, 4, 8, 16, 32, 64, 100)),
        full=dict(width=128, depth=4, lengths=(2, 4, 8, 16, 32, 64, 100)),
        tiny=dict(width=4, depth=1, lengths=(2, 5)),
        curves=(
            Curve("ratio by length", "tokens in the text", "gradient: first ÷ last token", log_x=True, log_y=True),
        ),
        caveat="Nothing is trained. How fast the gradient vanishes depends on the initialisation: torch's default has "
        "a largest eigenvalue near 0.6, an orthogonal matrix would lose less, and an LSTM with a large forget-gate "
        "bias keeps more. The transformer's gradient falls too, as 1/n: attention is over n tokens.",
        source="002, Why Not RNNs? Problem 2",
    ),
    Claim(
        name="rnn-recall",
        title="Recurrent networks: the capacity of the state",
        hypothesis="The whole past must fit in one state of fixed size, so early tokens are overwritten; attention "
        "looks them up.",
        removed=_REPLACED.format("RNN or LSTM"),
        arms=ARMS,
        measure=measure_recall,
        predictions=(
            *(
                Prediction(
                    f"the {arm} forgets which value belongs to which name",
                    "many",
                    "accuracy after 16 cards",
                    "transformer",
                    arm,
                    by=0.2,
                )
                for arm in ARMS[1:]
            ),
            Prediction(
                "the LSTM recalls two cards better than sixteen",
                "drop",
                "accuracy after two cards − after sixteen",
                "LSTM",
                "transformer",
                by=0.1,
            ),
        ),
        quick=dict(
            names=16, values=8, width=32, depth=1, shown=(2, 4, 8, 16), rows=64, steps=400, lr=1e-2, held_out=1000
        ),
        full=dict(width=64, steps=4000, held_out=4000),
        tiny=dict(names=5, values=3, width=4, depth=1, shown=(2, 5), rows=2, steps=1, lr=1e-3, held_out=7),
        curves=(
            Curve("accuracy by cards", "cards", "accuracy", log_x=True),
            LOSS,
        ),
        caveat="The same number of steps for all. A recurrent network must learn to store all cards before the query, "
        "which takes longer, so part of the gap is training time and not the capacity of the state.",
        source="002, Why Not RNNs? Problem 3; 003, part 1",
    ),
)
