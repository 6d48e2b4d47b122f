"""Claims about the parts beside attention: the MLP, and the one switch between a reader and a writer."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...core.masks import causal, full
from ...core.probe import OFF, Off
from ...generate import Generation, Sampling
from ...models.gpt import GPT, GPTConfig
from ...train.losses import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .practice import built, dice, points, train
from .tasks import grammar, lawful, walks


class Nothing(nn.Module):
    """In place of an MLP: adds nothing to the trunk."""

    def forward(self, x: Float[Tensor, "B T D"], probe: Off = OFF) -> Float[Tensor, "B T D"]:
        return torch.zeros_like(x)


def facts(count: int, seed: int) -> tuple[Int[Tensor, "n 3"], Int[Tensor, "n"]]:
    """Every pair of words, a mark that asks, and the word that was drawn for the pair: nothing to understand."""
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))
    asked = torch.cat((pairs, torch.full((len(pairs), 1), count)), 1)
    return asked, torch.randint(count, (len(pairs),), generator=dice(seed, 0, 3))


def knower(arm: str, seed: int, size: Size) -> GPT:
    """Without MLPs, attention alone: as deep, or three times as deep, which is as many numbers."""
    depth = size["depth"] * (3 if arm == "attention, three times as deep" else 1)
    sizes = dict(vocab=size["words"] + 1, context=3, width=size["width"], heads=2, depth=depth)
    model = built(lambda: GPT(GPTConfig(positions="learned", tied=False, bias=True, **sizes)), seed)
    if arm != "with":
        for block in model.blocks:
            block.mlp = Nothing()
    return model


def learn_facts(arm: str, seed: int, size: Size) -> Measured:
    """Facts about pairs of words are learned by heart."""
    model, (asked, answers) = knower(arm, seed, size), facts(size["words"], seed)

    def said() -> Tensor:
        return model(asked, last=True)[:, 0]

    losses = train(model, lambda step: F.cross_entropy(said(), answers), size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    with torch.no_grad():
        left = said()
    return {
        "known": float((left.argmax(-1) == answers).float().mean()),
        "loss": float(F.cross_entropy(left, answers)),
        "numbers": float(sum(p.numel() for p in model.parameters())),
        "loss by step": points(range(len(losses)), losses),
    }


def hide(text: Int[Tensor, "B T"], share: float, random: torch.Generator) -> Bool[Tensor, "B T"]:
    """Which words are hidden: in every row at least one, never the first or the last."""
    hidden = torch.rand(text.shape, generator=random) < share
    inner = torch.randint(1, text.shape[1] - 1, (len(text), 1), generator=random)
    hidden = hidden.scatter(1, inner, True)
    hidden[:, 0] = hidden[:, -1] = False
    return hidden


def switched(arm: str, seed: int, size: Size) -> GPT:
    """The same model with the same first weights; only its mask is another."""
    sizes = dict(vocab=size["words"] + 1, context=size["length"], width=size["width"], heads=2, depth=size["depth"])
    model = built(lambda: GPT(GPTConfig(**sizes)), seed)
    model.mask = full if arm == "open" else causal
    return model


def as_reader(arm: str, seed: int, size: Size) -> tuple[float, list[float]]:
    """How many hidden words a model says right that learned to, and its losses."""
    table, blank, model = grammar(size["words"], size["choices"], seed), size["words"], switched(arm, seed, size)

    def texts(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = walks(table, rows, size["length"], random)
        return text, hide(text, size["share"], random)

    def loss_of(step: int) -> Tensor:
        text, hidden = texts(size["rows"], dice(seed, step, 4))
        return F.cross_entropy(model(text.masked_fill(hidden, blank))[hidden], text[hidden])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    text, hidden = texts(size["judged"], dice(seed, 0, 5))
    with torch.no_grad():
        right = model(text.masked_fill(hidden, blank)).argmax(-1) == text
    return float(right[hidden].float().mean()), losses


def as_writer(arm: str, seed: int, size: Size) -> tuple[float, list[float]]:
    """How many of the words that a model writes may stand there, after it learned to say the next word."""
    table, model = grammar(size["words"], size["choices"], seed), switched(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        text = walks(table, size["rows"], size["length"], dice(seed, step, 4))
        # the last word is read too, so that with the future open no answer is out of sight
        return next_token(model(text)[:, :-1], text[:, 1:])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    begun = walks(table, size["judged"], 3, dice(seed, 0, 5))
    # without a cache: each word is written by a model that reads the whole text so far, as in training
    grown = Generation(model, begun.tolist(), size["length"] - 3, Sampling(seed=seed), cached=False)
    for _ in grown:
        pass
    written = torch.tensor([row[: size["length"]] for row in grown.rows])[:, 2:]
    # the blank stands for no word: a row of its own, which none may follow
    return lawful(torch.cat((table, table.new_full((1, table.shape[1]), -1))), written), losses


def read_and_write(arm: str, seed: int, size: Size) -> Measured:
    """Twice from the same first weights: once it learns to say hidden words, once to say the next one."""
    filled, reading = as_reader(arm, seed, size)
    may_follow, writing = as_writer(arm, seed, size)
    return {
        "filled": filled,
        "lawful": may_follow,
        "reader's loss by step": points(range(len(reading)), reading),
        "writer's loss by step": points(range(len(writing)), writing),
    }


_FACTS = dict(words=19, width=32, depth=1, steps=300, lr=3e-3)
_SWITCH = dict(words=13, choices=3, length=12, width=32, depth=1, share=0.25, rows=64, steps=250, lr=1e-2, judged=100)
_LOSS = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="ffn",
        title="The MLP",
        hypothesis="Attention only moves what is known between tokens; the MLP works on it, and is where facts are "
        "kept.",
        removed="block.mlp is swapped for a module that adds nothing; in a third arm attention is made three times as "
        "deep, so that as many numbers are left",
        arms=("with", "attention alone", "attention, three times as deep"),
        measure=learn_facts,
        predictions=(
            Prediction(
                "without it fewer facts are learned",
                "known",
                "facts known after training, of all pairs of words (share)",
                "with",
                "attention alone",
                by=0.1,
            ),
            Prediction(
                "attention cannot make up for it with as many numbers",
                "known",
                "facts known after training, of all pairs of words (share)",
                "with",
                "attention, three times as deep",
            ),
        ),
        quick=_FACTS,
        full=_FACTS | dict(words=37, width=64, steps=600),
        tiny=dict(words=3, width=4, depth=1, steps=1, lr=1e-3),
        curves=(_LOSS,),
        caveat="Facts drawn by chance, a word for each pair of words, learned by heart; nothing is held out, since "
        "there is nothing to understand. Removing the MLP also removes two thirds of the numbers in a block: the third "
        "arm tells the one from the other.",
        source="002, The Feed-Forward Network: Per-Token Memory",
    ),
    Claim(
        name="switch",
        title="The causal switch on one and the same model",
        hypothesis="One switch, the future open or blocked, is the whole difference between a reader and a writer.",
        removed="model.mask is full or causal; the same first weights, the same texts, and each of two jobs in both",
        arms=("open", "causal"),
        measure=read_and_write,
        predictions=(
            Prediction(
                "open, it fills in hidden words better: it sees both sides of them",
                "filled",
                "hidden words said right, in texts not trained on (share)",
                "open",
                "causal",
                by=0.2,
            ),
            Prediction(
                "causal, it can write: it never learned to read the answer off",
                "lawful",
                "words written that may follow the word before (share)",
                "causal",
                "open",
                by=0.2,
            ),
        ),
        quick=_SWITCH,
        full=_SWITCH | dict(words=31, width=64, depth=2, steps=3000, lr=3e-3, judged=500),
        tiny=dict(words=5, choices=2, length=7, width=4, depth=1, share=0.2, rows=2, steps=1, lr=1e-3, judged=2),
        curves=(
            Curve("reader's loss by step", "step", "loss on hidden words (nats)"),
            Curve("writer's loss by step", "step", "loss on next words (nats)"),
        ),
        caveat="The switch is not the whole difference: the job has to go with it. Each model here learns each job by "
        "itself. A writer with the future open reads the next word off in training, but keeps what it learned "
        "before it found out, and so writes better than by chance (3 words of 13); a model that learned both jobs at "
        "once wrote nearly as well with the future open (one trial). A reader can be made to write by hiding the last "
        "word each time.",
        source="000, Block the Future",
    ),
)
