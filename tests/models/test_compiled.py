"""Every family compiles to one graph, whatever its kind. They are compiled in another process: shape checking is off there."""

import json
import subprocess
import sys

import pytest

PICTURE = dict(image_size=(6, 25), channels=2, patch=(2, 5))
SIZES = {
    "gpt": dict(vocab=101, context=17, width=30, heads=3),
    "vit": dict(**PICTURE, classes=11, width=42, heads=3, hidden=53),
    "captioner": dict(**PICTURE, vocab=101, context=11, width=42, heads=3, hidden=53),
    "reader": dict(vocab=31, context=11, width=30, heads=3, hidden=17),
    "seq2seq": dict(vocab=31, context=7, source_context=11, width=30, heads=3, hidden=17),
    "dit": dict(image_size=(6, 10), channels=2, patch=(2, 5), width=30, heads=3, hidden=17),
}
KINDS = {
    "gpt": {
        "llama": dict(positions="rope", norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False),
    },
    "vit": {
        "rotated": dict(positions="rope", norm="rms", activation="swiglu", bias=False, pool="mean"),
    },
    "captioner": {
        "rotated": dict(mask="causal", positions="learned", image_positions="rope", image_width=47, kv_heads=1),
    },
    "reader": {
        "bert": dict(norm_position="post", embed_norm=True, positions="learned", token_types=2, classes=5),
    },
    "seq2seq": {
        "shaw": dict(positions="shaw", norm_position="post", share_embeddings=False, source_vocab=37),
    },
    "dit": {
        "factored": dict(
            vocab=31, context=7, text_encoder_depth=1, frames=10, patch_frames=2, attention="factored", depth=2
        ),
    },
}
MORE = {
    "seq2seq": {
        "first": dict(norm_position="post", positions="sinusoidal", scale_embeddings=True, activation="relu", bias=True)
    },
    "gpt": {
        "t5": dict(positions="t5", norm="rms", tie_embeddings=False),
        "gpt2": dict(positions="learned", bias=True, activation="gelu-tanh", depth=2),
        "plain": dict(positions="sinusoidal", tie_embeddings=False, bias=True),
        "none": dict(positions="none"),
    },
    "vit": {
        "class": dict(depth=2),
        "mean": dict(pool="mean", positions="sinusoidal", activation="gelu-tanh"),
        "t5": dict(positions="t5"),
    },
    "captioner": {
        "nano": dict(),
        "seed": dict(mask="causal", positions="learned", delimiters="none", type_embeddings=False, bias=True),
        "crow": dict(positions="t5", image_positions="alibi", type_embeddings=False, delimiters="none"),
    },
    "reader": {
        "mean": dict(classes=5, pool="mean", positions="alibi", norm="rms", activation="swiglu", kv_heads=1),
        "t5": dict(positions="t5", activation="relu", bias=False, norm="rms"),
    },
    "dit": {
        "windowed": dict(image_size=(12, 20), attention="windowed", window=2, classes=11, positions="rope", depth=2),
        "plain": dict(adaln="plain", positions="shaw", noise_schedule="linear", learned_variance=True),
    },
}

CODE = """
import json, sys
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from pencil.families import configure, create

def filled(given):
    if given.is_floating_point():
        return torch.randn_like(given)
    return torch.randint_like(given, 5)

out = {}
for name, family, sizes in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    model = create(family, configure(family, None, **sizes)).eval()
    for p in model.parameters():
        p.data.add_(torch.randn_like(p) * 0.2)
    inputs = [filled(given) for given in model.example(2)]
    if family == "dit" and len(inputs) > 2:
        inputs += [None, torch.tensor([True, False])]  # one row without its condition
    graphs = CompileCounterWithBackend("aot_eager")
    fast, plain = torch.compile(model, fullgraph=True, backend=graphs)(*inputs), model(*inputs)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)
    out[name] = graphs.frame_count, bool(fast.any())
    torch._dynamo.reset()
print(json.dumps(out))
"""


def compiled(tables):
    requested = [
        (f"{family} {kind}", family, {"depth": 1, **SIZES[family], **values})
        for family, kinds in tables.items()
        for kind, values in kinds.items()
    ]
    done = subprocess.run([sys.executable, "-c", CODE, json.dumps(requested)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {name for name, *_ in requested}
    return found


@pytest.fixture(scope="module")
def graphs():
    return compiled({name: kinds for name, kinds in KINDS.items() if name != "gpt"})


def whole(graphs, family):
    return [graphs[f"{family} {kind}"] for kind in KINDS[family]] == [[1, True]] * len(KINDS[family])


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "gpt")
def test_a_gpt_compiles_to_one_graph():
    assert whole(compiled({"gpt": KINDS["gpt"]}), "gpt")


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "vit")
def test_a_vit_compiles_to_one_graph(graphs):
    assert whole(graphs, "vit")


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "captioner")
def test_a_captioner_compiles_to_one_graph(graphs):
    assert whole(graphs, "captioner")


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "reader")
def test_a_reader_compiles_to_one_graph(graphs):
    assert whole(graphs, "reader")


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "seq2seq")
def test_an_encoder_and_decoder_compile_to_one_graph(graphs):
    assert whole(graphs, "seq2seq")


@pytest.mark.long
@pytest.mark.proof("one compiled graph, no breaks", "dit")
def test_a_dit_compiles_to_one_graph(graphs):
    """A video in groups, with a text or without."""
    assert whole(graphs, "dit")


@pytest.mark.long
def test_further_kinds_compile_to_one_graph_each():
    found = compiled(MORE)
    assert list(found.values()) == [[1, True]] * len(found)
