"""Claims about what came before: a recurrent network and an LSTM as large as the transformer."""

import time
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .cards import Cards, all_right, card_loss, deal, unseen
from .claim import Claim, Curve, Measured, Prediction, Size
from .claims_looking import stack
from .practice import built, dice, points, train

ARMS = ("transformer", "RNN", "LSTM")
GATES = {"RNN": 1, "LSTM": 4}


class Recurrent(nn.Module):
    """torch's RNN or LSTM, and a matrix back to the width of what came in."""

    def __init__(self, kind: str, width: int, state: int):
        super().__init__()
        made: Any = nn.RNN if kind == "RNN" else nn.LSTM
        self.cells = made(width, state, batch_first=True)
        self.out = nn.Linear(state, width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.out(self.cells(x)[0])


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def trunk(arm: str, width: int, depth: int) -> nn.Module:
    """Blocks, or the recurrent network whose numbers are nearest in count."""
    blocks = stack(width, 2, depth)
    if arm == "transformer":
        return blocks
    wanted, gates = count(blocks), GATES[arm]

    def numbers(state: int) -> int:
        return gates * state * (width + state + 2) + (state + 1) * width

    return Recurrent(arm, width, min(range(1, 40 * width), key=lambda state: abs(numbers(state) - wanted)))


def one_text(model: nn.Module, x: Tensor, times: int) -> float:
    """Milliseconds for one text there and back; the least of several, which what else runs disturbs least."""
    found = []
    for _ in range(times + 1):
        start = time.perf_counter()
        model(x)[:, -1].sum().backward()
        found.append(time.perf_counter() - start)
    return 1000 * min(found[1:])


def clocked(arm: str, seed: int, size: Size) -> Measured:
    """Forward and backward over one text of growing length."""
    model = built(lambda: trunk(arm, size["width"], size["depth"]), seed)
    spent = []
    for n in size["lengths"]:
        x = torch.randn(1, n, size["width"], generator=dice(seed, n), requires_grad=True)
        spent.append(one_text(model, x, size["times"]))
    by_length = dict(zip(size["lengths"], spent, strict=True))
    return {
        "time": by_length[size["judged"]],
        "growth": by_length[size["judged"]] / spent[0],
        "numbers": float(count(model)),
        "time by length": points(size["lengths"], spent),
    }


def reaching_back(arm: str, seed: int, size: Size) -> Measured:
    """How much of the gradient of the last token's output reaches the first token, against what reaches the last."""
    # in double precision: an RNN's share soon lies below what single precision can hold
    model = built(lambda: trunk(arm, size["width"], size["depth"]), seed).double()
    shares = []
    for n in size["lengths"]:
        random = dice(seed, n)
        x = torch.randn(1, n, size["width"], generator=random, dtype=torch.float64, requires_grad=True)
        wish = torch.randn(size["width"], generator=random, dtype=torch.float64)
        (grad,) = torch.autograd.grad((model(x)[0, -1] * wish).sum(), x)
        shares.append(float(grad[0, 0].norm() / grad[0, -1].norm()))
    return {"share": shares[-1], "share by length": points(size["lengths"], shares)}


def remember(arm: str, seed: int, size: Size) -> Measured:
    """Cards go by, few or many; then the value of one is asked for."""
    kind = dict(names=size["names"], values=size["values"], asked=1)

    def make() -> Cards:
        return Cards(size["names"], size["values"], 1, size["width"], trunk(arm, size["width"], size["depth"]))

    model = built(make, seed)

    def loss_of(step: int) -> Tensor:
        shown = size["shown"][step % len(size["shown"])]
        return card_loss(model, deal(dice(seed, step, 1), size["rows"], shown=shown, **kind))

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    right = [all_right(model, unseen(seed, size["judged"], shown=shown, **kind)) for shown in size["shown"]]
    return {
        "held": right[0] - right[-1],
        "many": right[-1],
        "numbers": float(count(model)),
        "right by cards": points(size["shown"], right),
        "loss by step": points(range(len(losses)), losses),
    }


_TIME = dict(width=64, depth=2, lengths=(16, 64, 256, 1024), judged=256, times=5)
_BACK = dict(width=64, depth=2, lengths=(2, 4, 8, 16, 32, 64, 100))
_RECALL = dict(names=16, values=8, width=32, depth=1, shown=(2, 4, 8, 16), rows=64, steps=400, lr=1e-2, judged=1000)
_SWAPPED = "the blocks are swapped for torch.nn.{} with as many numbers and a matrix back to the width"

CLAIMS = (
    Claim(
        name="rnn-time",
        title="A recurrent network: time",
        hypothesis="A recurrent network must take one token after another, so its time grows with every token of the "
        "text; attention takes all tokens at once.",
        removed=_SWAPPED.format("RNN or LSTM") + "; one text at a time, forward and backward, one thread",
        arms=ARMS,
        measure=clocked,
        predictions=tuple(
            Prediction(
                f"the {arm} takes longer over a text of 256 tokens",
                "time",
                "time of one text of 256 tokens, forward and backward (ms)",
                arm,
                "transformer",
                times=1.0,
            )
            for arm in ARMS[1:]
        ),
        quick=_TIME,
        full=_TIME | dict(lengths=(16, 32, 64, 128, 256, 512, 1024, 2048), times=15),
        tiny=dict(width=4, depth=1, lengths=(3, 5), judged=5, times=1),
        curves=(Curve("time by length", "tokens in the text", "time (ms)", log_x=True, log_y=True),),
        alone=True,
        caveat="Times are of one thread of this machine. Attention's work grows with the square of the length and "
        "catches up: see the right end of the curve. With many texts in a batch a recurrent network wastes less, and "
        "on hardware with many cores more.",
        source="002, Why Not RNNs? Problem 1",
    ),
    Claim(
        name="rnn-gradient",
        title="A recurrent network: the gradient of the first token",
        hypothesis="A recurrent network multiplies the gradient by the same matrix at every step back, so it vanishes "
        "with the length; gates soften this and do not end it; attention reaches every token in one step.",
        removed=_SWAPPED.format("RNN or LSTM") + "; fresh weights, as torch and pencil draw them",
        arms=ARMS,
        measure=reaching_back,
        predictions=(
            *(
                Prediction(
                    f"in the {arm} almost nothing of it reaches back 100 tokens",
                    "share",
                    "gradient at the first of 100 tokens against that at the last",
                    "transformer",
                    arm,
                    times=1000.0,
                )
                for arm in ARMS[1:]
            ),
            Prediction(
                "the LSTM's gates soften it",
                "share",
                "gradient at the first of 100 tokens against that at the last",
                "LSTM",
                "RNN",
                times=10.0,
            ),
        ),
        quick=_BACK,
        full=_BACK | dict(width=128, depth=4, lengths=(2, 4, 8, 16, 32, 64, 100)),
        tiny=dict(width=4, depth=1, lengths=(2, 5)),
        curves=(
            Curve("share by length", "tokens in the text", "gradient, first against last", log_x=True, log_y=True),
        ),
        caveat="Fresh weights, nothing trained. How fast it vanishes follows from how the matrix was drawn: torch's "
        "default has a largest eigenvalue near 0.6, and one drawn orthogonal would lose less; an LSTM whose forget "
        "gates begin open keeps more. The transformer's falls too, as 1/n: each token is one of n that are looked at.",
        source="002, Why Not RNNs? Problem 2",
    ),
    Claim(
        name="rnn-recall",
        title="A recurrent network: what fits in its state",
        hypothesis="All of the past must fit in one state of fixed size, so early tokens are overwritten; attention "
        "looks them up.",
        removed=_SWAPPED.format("RNN or LSTM"),
        arms=ARMS,
        measure=remember,
        predictions=(
            *(
                Prediction(
                    f"the {arm} forgets which value was whose",
                    "many",
                    "right answers when 16 cards went by (share)",
                    "transformer",
                    arm,
                    by=0.2,
                )
                for arm in ARMS[1:]
            ),
            Prediction(
                "the LSTM holds two cards better than sixteen",
                "held",
                "right answers with two cards, less those with sixteen (share)",
                "LSTM",
                "transformer",
                by=0.1,
            ),
        ),
        quick=_RECALL,
        full=_RECALL | dict(width=64, steps=4000, judged=4000),
        tiny=dict(names=5, values=3, width=4, depth=1, shown=(2, 5), rows=2, steps=1, lr=1e-3, judged=7),
        curves=(
            Curve("right by cards", "cards that went by", "right answers (share)", log_x=True),
            Curve("loss by step", "step", "training loss (nats)"),
        ),
        caveat="The same number of steps for all. A recurrent network must learn to store before it can be asked, "
        "which takes it longer, so a part of the gap is time to learn and not room in the state.",
        source="002, Why Not RNNs? Problem 3; 003, part 1",
    ),
)
