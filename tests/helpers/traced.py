"""Small models to trace, every family's and other people's, and the check of a trace against itself."""

import functools
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from jaxtyping import config

from pencil.config import UserError
from pencil.families import create
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.vit import ViTConfig
from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import receipt
from pencil.tracing.tape import Tape

CELLS = 1000  # of each kind of operation

GPTS = {
    "gpt learned": dict(
        vocab=29, context=11, width=26, depth=2, heads=2, hidden=37, positions="learned", bias=True, activation="gelu"
    ),
    "gpt llama": dict(
        vocab=23, context=13, width=44, depth=2, heads=11, kv_heads=1, hidden=31, positions="rope", norm="rms",
        activation="swiglu", tie_embeddings=False,
    ),
    "gpt grouped": dict(
        vocab=23, context=13, width=36, depth=1, heads=6, kv_heads=3, hidden=31, positions="rope", norm="rms",
        activation="swiglu", tie_embeddings=False,
    ),
    "gpt sinusoidal": dict(
        vocab=31, context=7, width=38, depth=2, heads=1, hidden=41, positions="sinusoidal", activation="gelu-tanh"
    ),
}  # fmt: skip
PICTURE = dict(image_size=(6, 25), channels=2, patch=(2, 5), width=28, depth=1, heads=7, hidden=37)
VITS = {
    "vit class": dict(classes=11, depth=2),
    "vit mean": dict(classes=11, pool="mean", positions="sinusoidal", activation="gelu-tanh"),
    "vit rotated": dict(classes=11, positions="rope", norm="rms", activation="swiglu", bias=False),
}
CAPTIONERS = {
    "captioner prefix": dict(vocab=19, context=5, mask="prefix"),
    "captioner causal": dict(
        vocab=19, context=5, mask="causal", positions="learned", type_embeddings=False, delimiters="none", bias=True,
        image_width=17, tie_embeddings=False,
    ),
}  # fmt: skip
OURS = [*GPTS, *VITS, *CAPTIONERS]
LEAVES = ("input", "weight", "constant", "noise", "edited")
THEIRS = ["gpt2", "bert", "vit", "t5", "llama", "timm vit"]


def stirred(model, deviation=0.4, seed=0):
    """Weights large enough that the numbers inside are not all nearly nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator) * deviation
            p.copy_(1 + noise / 2 if p.ndim == 1 and p.mean() > 0.5 else noise)
    return model.eval()


def words(count, below, rows=1, seed=1):
    return torch.randint(0, below, (rows, count), generator=torch.Generator().manual_seed(seed))


def pictures(rows=1, shape=(2, 6, 25), seed=2):
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed))


def ours(name):
    """One of our models with its inputs."""
    if name in GPTS:
        c = GPTConfig(**GPTS[name])
        return stirred(create("gpt", c)), (words(min(c.context, 7), c.vocab, rows=2),)
    if name in VITS:
        return stirred(create("vit", ViTConfig(**{**PICTURE, **VITS[name]}))), (pictures(2),)
    c = CaptionerConfig(**{**PICTURE, **CAPTIONERS[name]})
    return stirred(create("captioner", c)), (words(5, c.vocab), pictures())


def theirs(name, timm=None):
    """A model of transformers or timm with its inputs, by name."""
    torch.manual_seed(3)
    if name == "timm vit":
        model = timm.models.VisionTransformer(
            img_size=(14, 15), patch_size=(7, 5), in_chans=2, num_classes=11, embed_dim=33, depth=2, num_heads=3,
            mlp_ratio=53 / 33,
        )  # fmt: skip
        return stirred(model), (pictures(1, (2, 14, 15)),), {}
    import transformers as hf

    wide = dict(hidden_size=33, num_attention_heads=3, num_hidden_layers=2, intermediate_size=53)
    if name == "gpt2":
        model = hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=29, n_positions=11, n_embd=33, n_layer=2, n_head=3, n_inner=53)
        )
        return stirred(model), (), {"input_ids": words(7, 29)}
    if name == "bert":
        model = hf.BertForMaskedLM(hf.BertConfig(vocab_size=29, max_position_embeddings=11, **wide))
        seen = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
        return stirred(model), (), {"input_ids": words(7, 29), "attention_mask": seen}
    if name == "vit":
        config = hf.ViTConfig(image_size=(14, 15), patch_size=(7, 5), num_channels=2, num_labels=11, **wide)
        return stirred(hf.ViTForImageClassification(config)), (), {"pixel_values": pictures(1, (2, 14, 15))}
    if name == "t5":
        config = hf.T5Config(
            vocab_size=29, d_model=26, d_kv=7, d_ff=31, num_layers=2, num_heads=3, decoder_start_token_id=0,
            pad_token_id=0,
        )  # fmt: skip
        model = hf.T5ForConditionalGeneration(config)
        return stirred(model), (), {"input_ids": words(7, 29), "decoder_input_ids": words(5, 29, seed=5)}
    config = hf.LlamaConfig(
        vocab_size=29, hidden_size=36, intermediate_size=53, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=17,
    )  # fmt: skip
    return stirred(hf.LlamaForCausalLM(config)), (), {"input_ids": words(7, 29)}


@contextmanager
def unchecked():
    """Shape checking off, which makes the working of thousands of cells five times slower."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@functools.cache
@unchecked()
def traced(name):
    """The trace of one of our models, or of an example."""
    if name.startswith("example:"):
        from pencil.learn.worked.examples import example

        return example(name.removeprefix("example:"))
    model, inputs = ours(name)
    return trace(model, *inputs)


def kinds(graph):
    """The nodes that were computed, by operation; not what a closed block computed."""
    found = {}
    for i, n in enumerate(graph.nodes):
        if n.plan is not None and n.size and n.kind != "block":
            found.setdefault(n.op, []).append(i)
    return found


@unchecked()
def wrong(graph, count=CELLS, seed=0):
    """Work random cells of each kind of operation again; (cells worked, those that are not what was recorded)."""
    rng, worked, bad = np.random.default_rng(seed), 0, []
    for op, nodes in kinds(graph).items():
        sizes = np.asarray([graph.nodes[n].size for n in nodes])
        all_cells = int(sizes.sum())
        chosen = np.arange(all_cells) if all_cells <= count else rng.choice(all_cells, count, replace=False)
        ends = np.cumsum(sizes)
        which = np.searchsorted(ends, chosen, side="right")
        for k in np.unique(which):
            node = nodes[k]
            flat = chosen[which == k] - (ends[k] - sizes[k])
            value, allowed = graph.work(node, flat)
            kept = recorded(graph, node, flat)
            with np.errstate(invalid="ignore"):
                right = (value == kept) | (np.isnan(value) & np.isnan(kept)) | (np.abs(value - kept) <= allowed)
            worked += len(flat)
            bad += [(op, graph.nodes[node].name, int(f)) for f in flat[~right]]
    return worked, bad


def recorded(graph, node, flat):
    """What the tensor itself held: of a move too, whose numbers the graph would find elsewhere.

    Between two writes into shared memory there is a node of how a view was, but no tensor that was so. What only moves is
    not kept where its memory was written later.
    """
    if not isinstance(graph, Tape) or graph.values[node] is None:
        return graph.cells(node, flat)
    value = graph.values[node].detach().resolve_conj().cpu().reshape(-1)[torch.from_numpy(np.asarray(flat))]
    return value.to(torch.complex128 if value.is_complex() else torch.float64).numpy()


@unchecked()
def disagreeing(found, count=150, seed=0):
    """Whole receipts of random cells, those that do not agree."""
    rng, graph = np.random.default_rng(seed), found.graph
    nodes = [i for i, n in enumerate(graph.nodes) if n.size and n.plan is not None]
    bad = []
    if not nodes:
        return bad
    for _ in range(count):
        node = int(rng.choice(nodes))
        one = receipt(found, node, int(rng.integers(graph.nodes[node].size)))
        if not one.agrees or "✗" in str(one):
            bad.append(str(one))
    return bad


def holds(found, count=CELLS):
    """Every operation is described, and every cell tried is what its description gives."""
    for n in found.graph.nodes:
        if n.size:
            assert n.kind, n.name
            assert n.plan is not None or n.kind in LEAVES, n.name
    worked, bad = wrong(found.graph, count)
    assert not bad
    return worked


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(program, *inputs, receipts=40, cells=10**6):
    """Trace a program: what it gives is what it gives untraced, and all of it can be reworked."""
    fresh = [x.clone() if torch.is_tensor(x) else x for x in inputs]
    with torch.no_grad():
        plain = program(*(x.clone() if torch.is_tensor(x) else x for x in inputs))
    found = trace(program, *fresh)
    torch.testing.assert_close(found.output, plain, atol=0, rtol=0, equal_nan=True)
    holds(found, count=cells)
    shown = np.asarray(found["output"].value)
    wide = torch.complex128 if plain.is_complex() else torch.float64
    np.testing.assert_array_equal(shown, plain.detach().resolve_conj().to(wide).numpy())
    assert not disagreeing(found, receipts)
    return found


def refused(program, *inputs, match):
    with pytest.raises(UserError, match=match) as refusal:
        trace(program, *inputs)
    assert "\n" not in str(refusal.value)
