"""Claims about the parts of a model: residual connections, norms, MLPs, embeddings, and the warm-up they need."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.probe import OFF, Probe
from ...models.build import initialise_post
from ...models.gpt import GPT, GPTConfig
from ...train.losses.cross_entropy import next_token
from .ablations import ScaledTokens, gradient_norms, post_norm, without_norms, without_skips
from .claim import LOSS, Claim, Curve, Measured, Prediction, Size
from .training import by_step, generator, grammar, mean_of_last, points, sample_texts, seeded, train


def small_gpt(size: Size, seed: int, depth: int, glorot: bool = False) -> Any:
    """A small GPT, initialised as GPT-2, or by Glorot, which keeps the scale of activations."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"], bias=True)
    model = seeded(lambda: GPT(GPTConfig(depth=depth, **sizes)), seed)
    if glorot:
        torch.manual_seed(seed)
        initialise_post(model)
    return model


def text_batch(size: Size, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step, in the grammar of the seed."""
    text = sample_texts(grammar(size["words"], 3, seed), size["batch"], size["length"] + 1, generator(seed, step, 2))
    return text[:, :-1], text[:, 1:]


def train_on_texts(model: Any, size: Size, seed: int, **how: Any) -> Measured:
    """A short training on the texts of the seed: its losses, and that at the end.

    The last is at most that of guessing: the logarithm of the vocabulary size.
    """

    def loss_of(step: int) -> Tensor:
        text, targets = text_batch(size, seed, step)
        return next_token(model(text), targets)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], **how)
    return {"loss": mean_of_last(losses, 10, math.log(size["words"])), "loss by step": by_step(losses)}


def block_gradients(model: Any, size: Size, seed: int) -> list[float]:
    """The gradient norms of the first loss at the output of each block."""
    text, targets = text_batch(size, seed, 0)
    return gradient_norms(model, lambda: next_token(model(text), targets))


def gradient_ratios(make: Callable[[int], Any], size: Size, seed: int) -> list[float]:
    """The gradient at the first block as a fraction of that at the last, for models of each depth.

    In double precision: without residual connections a deep model's gradient is below the smallest single float.
    """
    gradients = (block_gradients(make(depth).double(), size, seed) for depth in size["depths"])
    return [norms[0] / norms[-1] for norms in gradients]


def measure_residual(arm: str, seed: int, size: Size) -> Measured:
    """The gradient at the first block as a fraction of that at the last, for growing depth; then a short training."""

    def make(depth: int) -> Any:
        model = small_gpt(size, seed, depth)
        if arm == "with":
            return model
        return without_skips(without_norms(model) if arm == "no norms either" else model)

    ratios = gradient_ratios(make, size, seed)
    measured: Measured = {"ratio": ratios[-1], "ratio by depth": points(size["depths"], ratios)}
    if arm == "no norms either":
        return measured  # this arm is for the gradients only
    return measured | train_on_texts(make(size["depth"]), size, seed, warmup=10)


def measure_layernorm(arm: str, seed: int, size: Size) -> Measured:
    """The scale of a block's input, in the last block against the first; then a short training.

    The scale is measured in double precision: without norms a deep model exceeds the largest single float.
    """

    def make(depth: int) -> Any:
        model = small_gpt(size, seed, depth, glorot=arm != "without, small start")
        return model if arm == "with" else without_norms(model)

    probe = Probe("blocks.*.attn_norm")
    with torch.no_grad():
        make(max(size["depths"])).double()(text_batch(size, seed, 0)[0], probe=probe)
    scales = [root_mean_square(value) for value in probe.values.values()]
    return {
        "drift": max(scales[-1] / scales[0], scales[0] / scales[-1]),
        "scale by block": points(range(1, len(scales) + 1), scales),
        **train_on_texts(make(size["depth"]), size, seed, warmup=10),
    }


def measure_pre_norm(arm: str, seed: int, size: Size) -> Measured:
    """Pre-norm against post-norm with the same matrices: gradients by depth, and a training without warm-up."""

    def make(depth: int) -> Any:
        model = small_gpt(size, seed, depth, glorot=True)
        return post_norm(model) if arm == "post" else model

    ratios = gradient_ratios(make, size, seed)
    training = train_on_texts(make(size["depth"]), size, seed)
    return {"ratio": ratios[-1], "ratio by depth": points(size["depths"], ratios), **training}


def measure_warmup(arm: str, seed: int, size: Size) -> Measured:
    """Post-norm blocks at several learning rates, each with a warm-up or from the first step."""
    how = dict(warmup=size["warmup"] if arm == "with" else 0, decay=False, beta2=0.98)
    trainings = []
    for rate in size["rates"]:
        model = post_norm(small_gpt(size, seed, size["depth"], glorot=True))
        trainings.append(train_on_texts(model, {**size, "lr": rate}, seed, **how))
    ends = [training["loss"] for training in trainings]
    return {
        "loss": ends[-1],
        "loss at the smallest rate": ends[0],
        "loss by rate": points(size["rates"], ends),
        "loss by step": trainings[-1]["loss by step"],
    }


def measure_embedding_scale(arm: str, seed: int, size: Size) -> Measured:
    """The scale of token embeddings and of position embeddings where they are added; and a short training."""
    kind, start = arm.split(", ", 1)
    model = scaled_gpt(size, seed, 1.0 if start == "N(0, 1)" else size["width"] ** -0.5, kind == "scaled")
    probe = Probe("embed", "positions.embedding")
    with torch.no_grad():
        model(text_batch(size, seed, 0)[0], probe=probe)
    tokens, positions = map(root_mean_square, probe.values.values())
    return {
        "ratio": max(tokens / positions, positions / tokens),
        "tokens": tokens / positions,
        **train_on_texts(model, size, seed, warmup=10),
    }


def root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def scaled_gpt(size: Size, seed: int, std: float, scaled: bool) -> Any:
    """A GPT with sinusoidal positions; its token embeddings have this standard deviation, times √width if `scaled`."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"])
    model = seeded(
        lambda: GPT(GPTConfig(depth=size["depth"], positions="sinusoidal", tie_embeddings=False, **sizes)), seed
    )
    torch.nn.init.normal_(model.tokens.weight, std=std)
    if scaled:
        model.tokens = ScaledTokens(model.tokens, math.sqrt(size["width"]))
    return model


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


def memorise(arm: str, seed: int, size: Size) -> tuple[GPT, Tensor, Tensor, list[float]]:
    """A model that was trained on random facts about pairs of words, the facts, and its losses."""
    model, (inputs, answers) = facts_model(arm, seed, size), random_facts(size["words"], seed)

    def loss_of(step: int) -> Tensor:
        return F.cross_entropy(model(inputs, last=True)[:, 0], answers)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    return model.eval(), inputs, answers, losses


def measure_mlp(arm: str, seed: int, size: Size) -> Measured:
    """Random facts about pairs of words are memorised."""
    model, inputs, answers, losses = memorise(arm, seed, size)
    with torch.no_grad():
        final = model(inputs, last=True)[:, 0]
    return {
        "known": float((final.argmax(-1) == answers).float().mean()),
        "loss": float(F.cross_entropy(final, answers)),
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "loss by step": by_step(losses),
    }


@torch.no_grad()
def known_without(model: GPT, inputs: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which facts are known, which without each of the last MLP's neurons, and what each adds to the right answer.

    A neuron adds its activation times the product of its output vector and the answer's row of the head; the norm
    before the head, which scales all of them alike, is left out.
    """
    path = f"blocks.{len(model.blocks) - 1}.mlp"
    probe, output = Probe(f"{path}.act"), model.get_submodule(f"{path}.down").get_parameter("weight")
    head: Tensor = model.get_parameter("head.weight")
    known = model(inputs, last=True, probe=probe)[:, 0].argmax(-1) == answers
    active = probe.values[f"{path}.act"][:, -1]
    added = active * (head[answers] @ output)

    def silence(neuron: int) -> Callable[[Tensor], Tensor]:
        return lambda act: act.index_fill(-1, torch.tensor([neuron]), 0.0)

    left = []
    for neuron in range(active.shape[-1]):
        edited = Probe(f"{path}.act", edit={f"{path}.act": silence(neuron)})
        left.append(model(inputs, last=True, probe=edited)[:, 0].argmax(-1) == answers)
    return known, torch.stack(left), added


def measure_facts(arm: str, seed: int, size: Size) -> Measured:
    """Facts are memorised; then one neuron at a time is set to 0, and the known facts that are lost are counted."""
    model, inputs, answers, losses = memorise("with", seed, size)
    known, left, added = known_without(model, inputs, answers)
    if not known.any():
        return {"lost": 0.0, "known": 0.0, "loss by step": by_step(losses)}
    lost = (known & ~left).float()[:, known]  # of each neuron, of each known fact
    top = added[known].argmax(-1)
    if arm == "its own fact":
        share = lost[top].diagonal().mean()
    elif arm == "the other facts":
        count = lost.shape[1]
        share = ((lost[top].sum(1) - lost[top].diagonal()) / max(1, count - 1)).mean()
    else:
        share = lost.mean()
    return {"lost": float(share), "known": float(known.float().mean()), "loss by step": by_step(losses)}


_SIZE = dict(words=17, length=16, width=32, heads=2, batch=16, depths=(2, 4, 8, 16, 32), depth=12, steps=100, lr=2e-3)
_FULL = dict(depths=(2, 4, 8, 16, 32, 64, 96), steps=400, width=64, heads=4)
_TINY = dict(words=5, length=3, width=4, heads=2, batch=2, depths=(1, 2), depth=2, steps=1, lr=1e-3)

CLAIMS = (
    Claim(
        name="residual",
        title="Residual connections",
        hypothesis="Through x + f(x) the gradient reaches the first block as large as it leaves the last; without it a "
        "deep model does not train.",
        removed="each block computes f(x) instead of x + f(x); its norms, attention and MLP stay",
        arms=("with", "without", "no norms either"),
        measure=measure_residual,
        predictions=(
            Prediction(
                "less of the last block's gradient reaches the first",
                "ratio",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "a deep model does not train",
                "loss",
                "training loss at the end (nats per word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("ratio by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), LOSS),
        caveat="With the norms that stay, the gradient survives a few blocks, not tens: in the small form 0.38 of it "
        "reached the first of 8 blocks, 1.3·10⁻⁵ the first of 16, 8.8·10⁻²⁰ the first of 32. Without the norms as well "
        "(third line) it was 2·10⁻⁵ over 2 blocks and 1.2·10⁻³⁵ over 8. That a model without residual connections does "
        "not learn is not only a matter of gradients: each block has to pass on all that the next ones need.",
        source="002, Residual Connections",
        by_hand="pencil why example:training-step 'grad:blocks.0.mid[0,1,2]'",
    ),
    Claim(
        name="layernorm",
        title="LayerNorm inside the blocks",
        hypothesis="Without normalisation the scale of activations drifts as they pass through many layers, growing "
        "exponentially or shrinking.",
        removed="the two norms of every block are removed; the one before the logits stays",
        arms=("with", "without", "without, small start"),
        measure=measure_layernorm,
        predictions=(
            Prediction(
                "the input of a block grows or shrinks with depth",
                "drift",
                "scale of the last block's input ÷ the first's, or its inverse, deepest model, untrained",
                "without",
                "with",
                times=10.0,
            ),
            Prediction(
                "it trains worse", "loss", "training loss at the end (nats per word)", "without", "with", by=0.1
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("scale by block", "block", "root mean square of its input", log_y=True), LOSS),
        caveat="The matrices are initialised by Glorot, where the claim is testable. With GPT-2's small initialisation "
        "(third line, normal(0.02), less for output projections) nothing drifts before training.",
        source="002, Layer Normalization",
        by_hand="pencil why example:training-step 'grad:blocks.0.post[0,1,1]'",
    ),
    Claim(
        name="pre-norm",
        title="The norm before each part, or after it",
        hypothesis="Pre-norm is more stable to train than post-norm, because the residual path carries values that "
        "were not normalised and so stays a highway for gradients.",
        removed="the blocks are replaced by post-norm ones with the same attention and MLPs, and the same weights",
        arms=("pre", "post"),
        measure=measure_pre_norm,
        predictions=(
            Prediction(
                "post-norm shrinks the gradient towards the first block",
                "ratio",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "pre",
                "post",
                times=2.0,
            ),
            Prediction(
                "post-norm trains worse without a warm-up",
                "loss",
                "training loss at the end (nats per word)",
                "post",
                "pre",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("ratio by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), LOSS),
        caveat="Both have Glorot initialisation and the same learning rate; each might do better with its own.",
        source="002, Layer Normalization",
        by_hand="pencil why example:training-step 'grad:input[0,1,2]'",
    ),
    Claim(
        name="warm-up",
        title="Learning rate warm-up",
        hypothesis="The post-norm blocks of the first Transformer need a small learning rate at the start; at the full "
        "rate from the first step they train worse or not at all.",
        removed="the learning rate is at its peak from the first step, instead of rising linearly; all else is the "
        "same",
        arms=("with", "without"),
        measure=measure_warmup,
        predictions=(
            Prediction(
                "at a high learning rate it trains worse or not at all",
                "loss",
                "training loss at the end, at the highest rate (nats per word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=dict(
            words=17, length=16, width=32, heads=2, batch=16, depth=6, steps=120, warmup=40, rates=(0.001, 0.004, 0.016)
        ),
        # this wider model does not train at 0.016, with or without warm-up
        full=dict(steps=400, warmup=130, width=64, heads=4, rates=(0.001, 0.002, 0.004)),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, warmup=1, rates=(0.001, 0.01)),
        curves=(
            Curve("loss by rate", "peak learning rate", "training loss at the end (nats)", log_x=True),
            Curve("loss by step", "step", "training loss at the highest rate (nats)"),
        ),
        caveat="The highest rate is tested. At the lower ones the model trains without a warm-up equally well, or a "
        "little faster; the warm-up is what allows a high rate.",
        source="the schedule of the first Transformer",
        by_hand="pencil why example:training-step 'new:tokens.weight[1,2]'",
    ),
    Claim(
        name="embedding-scale",
        title="Multiplying the embeddings by √d",
        hypothesis="Multiplying the embeddings by √d brings the token embeddings and the position embeddings to the "
        "same order of magnitude.",
        removed="the token embeddings are not multiplied by √d",
        arms=("scaled, d^−½", "plain, d^−½", "scaled, N(0, 1)", "plain, N(0, 1)"),
        measure=measure_embedding_scale,
        predictions=(
            Prediction(
                "initialised with d^−½, the position embeddings are much larger",
                "ratio",
                "token and position embeddings, the larger ÷ the smaller (root mean squares)",
                "plain, d^−½",
                "scaled, d^−½",
                times=2.0,
            ),
            Prediction(
                "initialised with N(0, 1), as in the document's code, the scale brings them together too",
                "ratio",
                "token and position embeddings, the larger ÷ the smaller (root mean squares)",
                "plain, N(0, 1)",
                "scaled, N(0, 1)",
                times=2.0,
            ),
            Prediction(
                "small token embeddings learn more slowly",
                "loss",
                "training loss at the end, from d^−½ (nats per word)",
                "plain, d^−½",
                "scaled, d^−½",
            ),
        ),
        quick=dict(words=17, length=16, width=64, heads=2, batch=16, depth=2, steps=60, lr=2e-3),
        full=dict(width=512, heads=8, steps=200),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, lr=1e-3),
        curves=(LOSS,),
        caveat="The claim is true of embeddings initialised with a standard deviation of d^−½. torch's own Embedding, "
        "which the document's code uses, has N(0, 1): there the factor makes the token embeddings larger than the "
        "position embeddings, 32 to 1 at a width of 512.",
        source="003, part 3",
    ),
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
        quick=dict(words=19, width=32, depth=1, steps=300, lr=3e-3),
        full=dict(words=37, width=64, steps=600),
        tiny=dict(words=3, width=4, depth=1, steps=1, lr=1e-3),
        curves=(LOSS,),
        caveat="The facts are random, one word for each pair of words, and are memorised; nothing is held out, since "
        "there is no rule to learn. Removing the MLP also removes two thirds of the parameters of a block: the third "
        "arm separates the two effects.",
        source="002, The Feed-Forward Network: Per-Token Memory",
    ),
    Claim(
        name="ffn-facts",
        title="The neuron that holds a fact",
        hypothesis="A fact is held by neurons of the MLP: one recognises its pair of words and writes the answer; "
        "without it that fact is lost, and others are not.",
        removed="one neuron of the last MLP is set to 0: the one that adds most to the right answer's logit",
        arms=("its own fact", "the other facts", "any neuron"),
        measure=measure_facts,
        predictions=(
            Prediction(
                "its fact is lost more often than by removing any neuron",
                "lost",
                "known facts that are lost without the neuron (fraction)",
                "its own fact",
                "any neuron",
                by=0.1,
            ),
            Prediction(
                "its fact is lost, the others are not",
                "lost",
                "known facts that are lost without the neuron (fraction)",
                "its own fact",
                "the other facts",
                by=0.5,
            ),
        ),
        quick=dict(words=19, width=32, depth=1, steps=300, lr=3e-3),
        full=dict(words=37, width=64, steps=600),
        tiny=dict(words=3, width=4, depth=1, steps=1, lr=1e-3),
        curves=(LOSS,),
        caveat="Random facts, memorised. There are fewer neurons than facts, so none can hold one fact alone: a fact "
        "is spread over several, and each of them serves many.",
        source="002, The Feed-Forward Network: Per-Token Memory",
    ),
)
