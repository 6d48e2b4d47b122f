"""Every operation of every family has a receipt, and a thousand cells of each kind hold."""

import numpy as np
import pytest
import torch

from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import configure, create
from pencil.tracing.live_trace import trace
from pencil.tracing.rules import RULES
from traced import LEAVES, unchecked

GPT = dict(vocab=37, context=11, width=24, depth=2, heads=3)
SCHEMES = ["learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]


def some(*names, of):
    """These in every run of the suite; the others, which every GPT has too, in the long form."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.long) for name in of]


PICTURE = dict(image_size=(6, 15), channels=3, patch=(2, 5), width=24, depth=2, heads=3)


def filled(family, **sizes):
    torch.manual_seed(11)
    model = create(family, configure(family, None, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.fixture(autouse=True)
def quick():
    with unchecked():
        yield


def hold(found, count=1000):
    """Cells drawn over all nodes of each operation: reworked, they are what was recorded."""
    graph, rng = found.graph, np.random.default_rng(5)
    by_op = {}
    for i, node in enumerate(graph.nodes):
        if node.plan is not None and node.size and graph.values[i] is not None:
            by_op.setdefault(node.op, []).append(i)
    assert by_op
    assert not [n.name for n in graph.nodes if n.size and n.plan is None and n.kind not in LEAVES]
    assert set(by_op) <= {*RULES, "update"}
    for op, nodes in by_op.items():
        share = -(-count // len(nodes))
        for i in nodes:
            flat = rng.integers(0, graph.nodes[i].size, share)
            reworked, allowed = graph.work(i, flat)
            recorded = np.asarray(graph.stored(i), float).reshape(-1)[flat]
            with np.errstate(invalid="ignore"):
                near = np.abs(reworked - recorded) <= allowed
            right = near | (reworked == recorded) | (np.isnan(reworked) & np.isnan(recorded))
            assert right.all(), (op, graph.nodes[i].name, reworked[~right], recorded[~right], allowed[~right])


@pytest.mark.proof("no operation without a receipt", "gpt")
@pytest.mark.parametrize(
    "kind",
    [
        dict(positions="learned", bias=True),
        dict(positions="rope", norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False),
        dict(positions="sinusoidal", activation="gelu-tanh"),
        dict(positions="sinusoidal-halves", activation="relu"),
        dict(positions="alibi", activation="silu"),
        dict(positions="shaw", kv_heads=1),
        dict(positions="t5"),
        dict(positions="rope", norm="rms", kv_heads=1, head_dim=10, qk_norm=True, qkv_bias=True),
        dict(positions="none", window=3, bias=True, tie_embeddings=False, head_bias=False),
    ],
    ids=lambda kind: kind["positions"],
)
def test_every_operation_of_gpt_has_a_receipt(kind):
    hold(trace(filled("gpt", **GPT, **kind), torch.randint(0, 37, (2, 11))))


@pytest.mark.proof("no operation without a receipt", "vit")
@pytest.mark.parametrize("positions", some("learned", "rope", "shaw", of=SCHEMES[:2] + SCHEMES[3:7]))
@pytest.mark.parametrize("pool", ["class", pytest.param("mean", marks=pytest.mark.long)])
def test_every_operation_of_vit_has_a_receipt(positions, pool):
    hold(trace(filled("vit", **PICTURE, classes=7, positions=positions, pool=pool), torch.randn(2, 3, 6, 15)))


@pytest.mark.proof("no operation without a receipt", "vit")
@pytest.mark.parametrize("kind", [
    dict(registers=1, distilled=True),
    dict(pool="mean", class_token=True, registers=2, token_positions=False, embed_norm=True, norm_pooled=True),
], ids=["distilled", "mean"])  # fmt: skip
def test_every_operation_of_vit_with_registers_has_a_receipt(kind):
    hold(trace(filled("vit", **PICTURE, classes=7, **kind), torch.randn(2, 3, 6, 15)))


@pytest.mark.proof("no operation without a receipt", "captioner")
@pytest.mark.parametrize("mask", [pytest.param("causal", marks=pytest.mark.long), "prefix"])
@pytest.mark.parametrize("positions", some("sinusoidal", "alibi", "t5", of=SCHEMES[:2] + SCHEMES[3:7]))
def test_every_operation_of_the_captioner_has_a_receipt(mask, positions):
    model = filled("captioner", **PICTURE, vocab=29, context=7, mask=mask, positions=positions)
    hold(trace(model, torch.randint(0, 29, (2, 7)), torch.randn(2, 3, 6, 15)))


@pytest.mark.proof("no operation without a receipt", "seq2seq")
@pytest.mark.parametrize("norm_position", [pytest.param("pre", marks=pytest.mark.long), "post"])
@pytest.mark.parametrize("positions", some("learned", "rope", "alibi", "shaw", "t5", of=SCHEMES))
def test_every_operation_of_seq2seq_has_a_receipt(positions, norm_position):
    """Source and target padded, on either side; with scaled embeddings and a head bias where it is post-norm."""
    first = dict(scale_embeddings=True, head_bias=True, activation="relu", bias=True)
    rest = first if norm_position == "post" else dict(share_embeddings=False)
    model = filled("seq2seq", vocab=29, context=5, source_context=7, width=18, depth=1, heads=3, positions=positions,
                   norm_position=norm_position, **rest)  # fmt: skip
    here = Span.at(torch.tensor([[0, 1, 2, 3, 4], [NOWHERE, NOWHERE, 0, 1, 2]]))
    there = Span.at(torch.tensor([[0, 1, 2, 3, 4, NOWHERE, NOWHERE], [0, 1, 2, 3, 4, 5, 6]]))
    spans = (there, here) if positions in ("rope", "t5", "shaw") else ()
    hold(trace(model, torch.randint(0, 29, (2, 5)), torch.randint(0, 29, (2, 7)), *spans), 300)


@pytest.mark.proof("no operation without a receipt", "seq2seq")
@pytest.mark.parametrize("activation", ["geglu-tanh", pytest.param("geglu", marks=pytest.mark.long)])
def test_every_operation_of_a_t5_has_a_receipt(activation):
    model = filled("seq2seq", vocab=29, context=5, source_context=7, width=18, depth=2, decoder_depth=1, heads=3,
                   head_dim=5, positions="t5", buckets=6, max_distance=7, norm="rms", activation=activation,
                   scale_logits=True)  # fmt: skip
    hold(trace(model, torch.randint(0, 29, (2, 5)), torch.randint(0, 29, (2, 7))), 300)


@pytest.mark.proof("no operation without a receipt", "reader")
@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(
    "kind", [dict(classes=3), dict(classes=3, pool="mean"), dict()], ids=["class", "mean", "words"]
)
@pytest.mark.parametrize("positions, norm_position", [("learned", "post"), ("rope", "pre"), ("shaw", "pre")])
def test_every_operation_of_a_reader_has_a_receipt(positions, norm_position, kind, padded):
    model = filled("reader", vocab=29, context=5, width=18, depth=1, heads=3, positions=positions,
                   norm_position=norm_position, token_types=2, embed_norm=norm_position == "post", **kind)  # fmt: skip
    span = Span.at(torch.tensor([[0, 1, 2, 3, 4], [NOWHERE, NOWHERE, 0, 1, 2]])) if padded else None
    hold(trace(model, torch.randint(0, 29, (2, 5)), span, torch.randint(0, 2, (2, 5))), 300)


@pytest.mark.proof("no operation without a receipt", "reader")
@pytest.mark.parametrize("kind", [dict(head="pool", position_offset=2), dict(head="states")], ids=["pool", "states"])
def test_every_operation_of_a_reader_without_logits_has_a_receipt(kind):
    model = filled("reader", vocab=29, context=5, width=18, depth=1, heads=3, positions="learned",
                   norm_position="post", token_types=2, embed_norm=True, **kind)  # fmt: skip
    span = Span.at(torch.tensor([[0, 1, 2, 3, 4], [NOWHERE, NOWHERE, 0, 1, 2]]))
    hold(trace(model, torch.randint(0, 29, (2, 5)), span, torch.randint(0, 2, (2, 5))), 200)


@pytest.mark.proof("no operation without a receipt", "dit")
@pytest.mark.parametrize("given", [pytest.param("label", marks=pytest.mark.long), "text"])
@pytest.mark.parametrize("ada", ["zero", pytest.param("plain", marks=pytest.mark.long)])
@pytest.mark.parametrize("attention, positions", [
    ("full", "sinusoidal"), ("factored", "learned"), ("factored", "t5"), ("windowed", "shaw"), ("windowed", "rope"),
    pytest.param("full", "rope", marks=pytest.mark.long),
])  # fmt: skip
def test_every_operation_of_a_dit_has_a_receipt(attention, positions, ada, given):
    """A picture, or a video in groups; of the second row the label or the text, which is padded, is left out."""
    shape = dict(frames=6, patch_frames=2) if attention == "factored" else dict(image_size=(8, 10), window=2)
    kind = dict(classes=7) if given == "label" else dict(vocab=29, context=5, text_encoder_depth=1)
    shape = dict(image_size=(4, 10), channels=3, patch=(2, 5), attention=attention) | shape
    model = filled("dit", **shape, width=18, depth=2, heads=3, hidden=11, positions=positions, adaln=ada, **kind)
    words = torch.randint(0, 7, (2,)) if given == "label" else torch.randint(0, 29, (2, 5))
    places = Span.at(torch.tensor([[0, 1, 2, 3, 4], [NOWHERE, NOWHERE, 0, 1, 2]])) if given == "text" else None
    picture, timestep = torch.randn(2, 3, *model.config.sides), torch.tensor([13.0, 701.0])
    hold(trace(model, picture, timestep, words, places, torch.tensor([False, True])), 200)
