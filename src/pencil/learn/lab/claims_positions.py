"""Claims about order: positions, and the mask as the difference between encoder and decoder."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from ...core.masks import Mask, causal, full
from ...inference.generation import Generation
from ...inference.sampling import Sampling
from ...models.gpt import GPT, GPTConfig
from ...models.reader import Reader, ReaderConfig
from ...train.losses.cross_entropy import next_token
from .ablations import without_positions
from .claim import LOSS, Claim, Curve, Measured, Prediction, Size
from .training import by_step, generator, grammar, grammatical, lowest_loss, mean_of_last, sample_texts, seeded, train


def order_batch(size: Size, seed: int, step: int, rows: int) -> tuple[Tensor, Tensor]:
    """Random words with one 0 and one 1 among them; and whether the 0 comes first."""
    random = generator(seed, step, 3)
    text = torch.randint(2, size["words"], (rows, size["length"]), generator=random)
    two = torch.stack([torch.randperm(size["length"], generator=random)[:2] for _ in range(rows)])
    text.scatter_(1, two, torch.tensor([[0, 1]]).expand(rows, 2))
    return text, (two[:, 0] < two[:, 1]).long()


def order_classifier(arm: str, seed: int, size: Size) -> Reader:
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=2, depth=size["depth"])
    model = seeded(lambda: Reader(ReaderConfig(classes=2, pool="mean", positions="learned", **sizes)), seed)
    return model if arm == "with" else without_positions(model)


def measure_positions(arm: str, seed: int, size: Size) -> Measured:
    """A classifier learns which of two words comes first; then its input words are shuffled."""
    model = order_classifier(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        text, first = order_batch(size, seed, step, size["batch"])
        return F.cross_entropy(model(text), first)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=10)
    model.eval()
    with torch.no_grad():
        text, first = order_batch(size, seed, 1 << 19, size["held_out"])
        logits = model(text)
        shuffled = model(text[:, torch.randperm(size["length"], generator=generator(seed, 0, 4))])
    return {
        "accuracy": float((logits.argmax(-1) == first).float().mean()),
        "moved": float((logits - shuffled).abs().max()),
        "loss by step": by_step(losses),
    }


def gpt_with_mask(mask: Mask, vocab: int, seed: int, size: Size) -> GPT:
    """The same model with the same initial weights; only its attention mask differs."""
    config = GPTConfig(vocab=vocab, context=size["length"], width=size["width"], heads=2, depth=size["depth"])
    model = seeded(lambda: GPT(config), seed)
    model.mask = mask
    return model


def next_token_lm(
    model: GPT,
    table: Tensor,
    batch_of: Callable[[int], Tensor],
    prompts: Tensor,
    seed: int,
    size: Size,
    warmup: int,
    cached: bool = True,
) -> tuple[float, list[float]]:
    """Next-token prediction: the fraction of generated words that are grammatical after training, and the losses."""

    def loss_of(step: int) -> Tensor:
        text = batch_of(step)
        # the last word is an input too, so that without the mask every target is visible
        return next_token(model(text)[:, :-1], text[:, 1:])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=warmup)
    model.eval()
    before, length = prompts.shape[1], size["length"]
    generation = Generation(model, prompts.tolist(), length - before, Sampling(seed=seed), cached=cached)
    for _ in generation:
        pass
    generated = torch.tensor([row[:length] for row in generation.rows])[:, before - 1 :]
    # no word may follow a mask token: its row of the table matches none
    return grammatical(F.pad(table, (0, 0, 0, 1), value=-1), generated), losses


def measure_causal_mask(arm: str, seed: int, size: Size) -> Measured:
    """A language model is trained with the future masked or visible; then it generates."""
    table = grammar(size["words"], size["choices"], seed)

    def batch_of(step: int) -> Tensor:
        return sample_texts(table, size["batch"], size["length"], generator(seed, step, 2))

    model = gpt_with_mask(causal if arm == "with" else full, size["words"], seed, size)
    prompts = sample_texts(table, size["held_out"], 4, generator(seed, 1 << 19, 2))
    correct, losses = next_token_lm(model, table, batch_of, prompts, seed, size, 10)
    return {
        "loss": mean_of_last(losses, 10, lowest_loss(table) * 10),
        "grammatical": correct,
        "loss by step": by_step(losses),
    }


def random_masked(text: Int[Tensor, "B T"], fraction: float, random: torch.Generator) -> Bool[Tensor, "B T"]:
    """The tokens to mask: at least one in every row, never the first or the last."""
    masked = torch.rand(text.shape, generator=random) < fraction
    inner = torch.randint(1, text.shape[1] - 1, (len(text), 1), generator=random)
    masked = masked.scatter(1, inner, True)
    masked[:, 0] = masked[:, -1] = False
    return masked


def masked_lm(model: GPT, table: Tensor, seed: int, size: Size) -> tuple[float, list[float]]:
    """Masked language modelling: the accuracy on masked tokens after training, and the losses."""
    mask_token = size["words"]

    def masked_texts(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = sample_texts(table, rows, size["length"], random)
        return text, random_masked(text, size["fraction"], random)

    def loss_of(step: int) -> Tensor:
        text, masked = masked_texts(size["rows"], generator(seed, step, 4))
        return F.cross_entropy(model(text.masked_fill(masked, mask_token))[masked], text[masked])

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    model.eval()
    text, masked = masked_texts(size["held_out"], generator(seed, 0, 5))
    with torch.no_grad():
        right = model(text.masked_fill(masked, mask_token)).argmax(-1) == text
    return float(right[masked].float().mean()), losses


def measure_switch(arm: str, seed: int, size: Size) -> Measured:
    """Two trainings from the same weights: masked language modelling, and next-token prediction."""
    table = grammar(size["words"], size["choices"], seed)

    def batch_of(step: int) -> Tensor:
        return sample_texts(table, size["rows"], size["length"], generator(seed, step, 4))

    first, second = (gpt_with_mask(full if arm == "open" else causal, size["words"] + 1, seed, size) for _ in range(2))
    accuracy, masked_losses = masked_lm(first, table, seed, size)
    prompts = sample_texts(table, size["held_out"], 3, generator(seed, 0, 5))
    # without a cache: the model reads the whole text for each word, as in training
    correct, next_losses = next_token_lm(second, table, batch_of, prompts, seed, size, 20, cached=False)
    return {
        "masked accuracy": accuracy,
        "grammatical": correct,
        "masked loss by step": by_step(masked_losses),
        "next-token loss by step": by_step(next_losses),
    }


CLAIMS = (
    Claim(
        name="positions",
        title="Positions",
        hypothesis="Attention without positions is blind to order: it cannot tell “dog bites man” from “man bites "
        "dog”.",
        removed="the learned position embeddings are replaced by none",
        arms=("with", "without"),
        measure=measure_positions,
        predictions=(
            Prediction(
                "it cannot tell which of two words comes first",
                "accuracy",
                "accuracy on held-out texts",
                "with",
                "without",
                by=0.2,
            ),
            Prediction("it guesses", "accuracy", "accuracy on held-out texts", "without", "", by=0.05, near=0.5),
            Prediction(
                "shuffled words give the same answer",
                "moved",
                "largest change of a logit when the words are shuffled",
                "without",
                "",
                by=1e-3,
                near=0.0,
            ),
        ),
        quick=dict(words=12, length=8, width=32, depth=2, batch=64, steps=120, lr=3e-3, held_out=2000),
        full=dict(steps=600, width=64, held_out=10_000),
        tiny=dict(words=5, length=3, width=4, depth=1, batch=2, steps=1, lr=1e-3, held_out=7),
        curves=(LOSS,),
        caveat="This holds for attention without a mask. Under a causal mask a word sees only those before it, and "
        "order matters even without positions. The loss is exact: attention is equivariant to permutations, its rows "
        "move with the words, and their mean does not change.",
        source="002, Positional Encoding; 003, part 3",
    ),
    Claim(
        name="causal-mask",
        title="The causal mask",
        hypothesis="Without the mask a language model sees in training the words it has to predict; its loss "
        "collapses, and it cannot generate, since there is no future to see.",
        removed="the model's mask is set from causal to full before training",
        arms=("with", "without"),
        measure=measure_causal_mask,
        predictions=(
            Prediction(
                "the training loss collapses",
                "loss",
                "training loss at the end (nats per word)",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "its generated text is wrong",
                "grammatical",
                "generated words that may follow the word before (fraction)",
                "with",
                "without",
                by=0.2,
            ),
        ),
        quick=dict(words=23, choices=3, length=64, width=32, depth=2, batch=8, steps=250, lr=3e-3, held_out=100),
        full=dict(steps=1000, width=64, held_out=500),
        tiny=dict(words=5, choices=2, length=7, width=4, depth=1, batch=2, steps=1, lr=1e-3, held_out=2),
        curves=(LOSS,),
        caveat="In the grammar three words may follow each word, with equal probability, so the lowest loss without "
        "seeing the future is ln 3 = 1.099 nats; a lower loss comes from the future. The last word of each text has no "
        "future even without the mask, so one position in 64 trains normally: enough for more grammatical words than "
        "the 3 in 23 of guessing. In a first trial of one seed, with texts of 16 words and no KV cache, the failure "
        "did not show: 0.88 with, 0.84 without.",
        source="000, Block the Future; 003, decoder self-attention (which gives inference as the reason; it is needed "
        "in training)",
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
        quick=dict(
            words=13, choices=3, length=12, width=32, depth=1, fraction=0.25, rows=64, steps=250, lr=1e-2, held_out=100
        ),
        full=dict(words=31, width=64, depth=2, steps=3000, lr=3e-3, held_out=500),
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
