"""Claims about the MLP, and about the mask as the difference between encoder and decoder."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...core.masks import causal, full
from ...core.probe import OFF, Probe
from ...inference.generation import Generation
from ...inference.sampling import Sampling
from ...models.gpt import GPT, GPTConfig
from ...train.losses.vocabulary import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .grammar_task import grammar, grammatical, sample_texts
from .training import generator, points, seeded, train


class ZeroMLP(nn.Module):
    """Replaces an MLP: its output is 0."""

    def forward(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        return torch.zeros_like(x)


def random_facts(count: int, seed: int) -> tuple[Int[Tensor, "n 3"], Int[Tensor, "n"]]:
    """Every pair of words followed by a query token, and a random answer for each pair."""
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))
    inputs = torch.cat((pairs, torch.full((len(pairs), 1), count)), 1)
    return inputs, torch.randint(count, (len(pairs),), generator=generator(seed, 0, 3))


def facts_model(arm: str, seed: int, size: Size) -> GPT:
    """A GPT, or one without MLPs: as deep, or three times as deep, which is the same number of parameters."""
    depth = size["depth"] * (3 if arm == "attention, three times as deep" else 1)
    sizes = dict(vocab=size["words"] + 1, context=3, width=size["width"], heads=2, depth=depth)
    model = seeded(lambda: GPT(GPTConfig(positions="learned", tie_embeddings=False, bias=True, **sizes)), seed)
    if arm != "with":
        for block in model.blocks:
            block.mlp = ZeroMLP()
    return model


def measure_mlp(arm: str, seed: int, size: Size) -> Measured:
    """Random facts about pairs of words are memorised."""
    model, (inputs, answers) = facts_model(arm, seed, size), random_facts(size["words"], seed)

    def logits() -> Tensor:
        return model(inputs, last=True)[:, 0]

    losses = train(model, lambda step: F.cross_entropy(logits(), answers), size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    with torch.no_grad():
        final = logits()
    return {
        "known": float((final.argmax(-1) == answers).float().mean()),
        "loss": float(F.cross_entropy(final, answers)),
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "loss by step": points(range(len(losses)), losses),
    }


def random_masked(text: Int[Tensor, "B T"], fraction: float, random: torch.Generator) -> Bool[Tensor, "B T"]:
    """The tokens to mask: at least one in every row, never the first or the last."""
    masked = torch.rand(text.shape, generator=random) < fraction
    inner = torch.randint(1, text.shape[1] - 1, (len(text), 1), generator=random)
    masked = masked.scatter(1, inner, True)
    masked[:, 0] = masked[:, -1] = False
    return masked


def gpt_with_mask(arm: str, seed: int, size: Size) -> GPT:
    """The same model with the same initial weights; only its attention mask differs."""
    sizes = dict(vocab=size["words"] + 1, context=size["length"], width=size["width"], heads=2, depth=size["depth"])
    model = seeded(lambda: GPT(GPTConfig(**sizes)), seed)
    model.mask = full if arm == "open" else causal
    return model


def masked_lm(arm: str, seed: int, size: Size) -> tuple[float, list[float]]:
    """Masked language modelling: the accuracy on masked tokens after training, and the losses."""
    table, model = grammar(size["words"], size["choices"], seed), gpt_with_mask(arm, seed, size)
    mask_token = size["words"]

    def texts(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = sample_texts(table, rows, size["length"], random)
        return text, random_masked(text, size["fraction"], random)

    def loss_of(step: int) -> Tensor:
        text, masked = texts(size["rows"], generator(seed, step, 4))
        return F.cross_entropy(model(text.masked_fill(masked, mask_token))[masked], text[masked])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    text, masked = texts(size["held_out"], generator(seed, 0, 5))
    with torch.no_grad():
        right = model(text.masked_fill(masked, mask_token)).argmax(-1) == text
    return float(right[masked].float().mean()), losses


def next_token_lm(arm: str, seed: int, size: Size) -> tuple[float, list[float]]:
    """Next-token prediction: the fraction of generated words that are grammatical after training, and the losses."""
    table, model = grammar(size["words"], size["choices"], seed), gpt_with_mask(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        text = sample_texts(table, size["rows"], size["length"], generator(seed, step, 4))
        # the last word is an input too, so that without the mask every target is visible
        return next_token(model(text)[:, :-1], text[:, 1:])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    prompts = sample_texts(table, size["held_out"], 3, generator(seed, 0, 5))
    # without a cache: the model reads the whole text for each word, as in training
    generation = Generation(model, prompts.tolist(), size["length"] - 3, Sampling(seed=seed), cached=False)
    for _ in generation:
        pass
    generated = torch.tensor([row[: size["length"]] for row in generation.rows])[:, 2:]
    # no word may follow the mask token: its row of the table matches none
    return grammatical(torch.cat((table, table.new_full((1, table.shape[1]), -1))), generated), losses


def measure_switch(arm: str, seed: int, size: Size) -> Measured:
    """Two trainings from the same weights: masked language modelling, and next-token prediction."""
    accuracy, masked_losses = masked_lm(arm, seed, size)
    correct, next_losses = next_token_lm(arm, seed, size)
    return {
        "masked accuracy": accuracy,
        "grammatical": correct,
        "masked loss by step": points(range(len(masked_losses)), masked_losses),
        "next-token loss by step": points(range(len(next_losses)), next_losses),
    }


_FACTS = dict(words=19, width=32, depth=1, steps=300, lr=3e-3)
_SWITCH = dict(
    words=13, choices=3, length=12, width=32, depth=1, fraction=0.25, rows=64, steps=250, lr=1e-2, held_out=100
)
_LOSS = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="ffn",
        title="The MLP",
        hypothesis="Attention only moves information between tokens; the MLP transforms it, and stores facts.",
        removed="block.mlp is replaced by a module with output 0; in a third arm the model is three times as deep, for "
        "the same number of parameters",
        arms=("with", "attention alone", "attention, three times as deep"),
        measure=measure_mlp,
        predictions=(
            Prediction(
                "fewer facts are learned",
                "known",
                "facts known after training (fraction of all pairs of words)",
                "with",
                "attention alone",
                by=0.1,
            ),
            Prediction(
                "attention with the same number of parameters cannot replace it",
                "known",
                "facts known after training (fraction of all pairs of words)",
                "with",
                "attention, three times as deep",
            ),
        ),
        quick=_FACTS,
        full=_FACTS | dict(words=37, width=64, steps=600),
        tiny=dict(words=3, width=4, depth=1, steps=1, lr=1e-3),
        curves=(_LOSS,),
        caveat="The facts are random, one word for each pair of words, and are memorised; nothing is held out, since "
        "there is no rule to learn. Removing the MLP also removes two thirds of the parameters of a block: the third "
        "arm separates the two effects.",
        source="002, The Feed-Forward Network: Per-Token Memory",
    ),
    Claim(
        name="switch",
        title="The causal mask as the only difference",
        hypothesis="One switch, the future open or blocked, is the whole difference between a reader (encoder) and a "
        "writer (decoder).",
        removed="model.mask is full or causal; the same initial weights and texts, and both training objectives in "
        "each",
        arms=("open", "causal"),
        measure=measure_switch,
        predictions=(
            Prediction(
                "open, it predicts masked tokens better: it sees both sides of them",
                "masked accuracy",
                "accuracy on masked tokens, held-out texts",
                "open",
                "causal",
                by=0.2,
            ),
            Prediction(
                "causal, it can generate: it never learned to copy the future",
                "grammatical",
                "generated words that may follow the word before (fraction)",
                "causal",
                "open",
                by=0.2,
            ),
        ),
        quick=_SWITCH,
        full=_SWITCH | dict(words=31, width=64, depth=2, steps=3000, lr=3e-3, held_out=500),
        tiny=dict(words=5, choices=2, length=7, width=4, depth=1, fraction=0.2, rows=2, steps=1, lr=1e-3, held_out=2),
        curves=(
            Curve("masked loss by step", "step", "loss on masked tokens (nats)"),
            Curve("next-token loss by step", "step", "loss on next tokens (nats)"),
        ),
        caveat="The mask is not the whole difference: the training objective must fit it. Each model here is trained "
        "on one objective. With the future open the model copies the next word in training, but keeps what it learned "
        "before it found this, and so generates better than by guessing (3 words of 13); a model trained on both "
        "objectives at once generated nearly as well with the future open (one trial). An encoder can generate if the "
        "last token is masked each time.",
        source="000, Block the Future",
    ),
)
