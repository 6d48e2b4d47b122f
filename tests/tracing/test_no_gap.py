"""Every operation of every family has a receipt, and a thousand cells of each kind hold."""

import numpy as np
import pytest
import torch

from pencil.models import configure, create
from pencil.tracing.receipt import agree
from pencil.tracing.record import trace
from pencil.tracing.rules import RULES

GPT = dict(vocab=37, context=11, width=24, depth=2, heads=3)
PICTURE = dict(image_size=(6, 15), channels=3, patch=(2, 5), width=24, depth=2, heads=3)


def filled(family, **sizes):
    torch.manual_seed(11)
    model = create(family, configure(family, None, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def hold(found, count=1000):
    """Cells drawn over all nodes of each operation: reworked, they are what was recorded."""
    graph, rng = found.graph, np.random.default_rng(5)
    by_op = {}
    for i, node in enumerate(graph.nodes):
        if node.plan is not None and node.size and graph.kept[i] is not None:
            by_op.setdefault(node.op, []).append(i)
    assert by_op
    assert set(by_op) <= {*RULES, "update"}
    for op, nodes in by_op.items():
        share = -(-count // len(nodes))
        for i in nodes:
            flat = rng.integers(0, graph.nodes[i].size, share)
            reworked, allowed = graph.work(i, flat)
            recorded = np.asarray(graph.stored(i)).reshape(-1)[flat]
            for a, b, e in zip(reworked, recorded, allowed, strict=True):
                assert agree(float(a), float(b), float(e)), (op, graph.nodes[i].name, a, b, e)


@pytest.mark.proof("no operation without a receipt", "gpt")
@pytest.mark.parametrize(
    "kind",
    [
        dict(positions="learned", bias=True),
        dict(positions="rope", norm="rms", activation="swiglu", kv_heads=1, tied=False),
        dict(positions="sincos", activation="gelu-tanh"),
    ],
    ids=lambda kind: kind["positions"],
)
def test_every_operation_of_gpt_has_a_receipt(kind):
    hold(trace(filled("gpt", **GPT, **kind), torch.randint(0, 37, (2, 11))))


@pytest.mark.proof("no operation without a receipt", "vit")
@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_every_operation_of_vit_has_a_receipt(positions, pool):
    hold(trace(filled("vit", **PICTURE, classes=7, positions=positions, pool=pool), torch.randn(2, 3, 6, 15)))


@pytest.mark.proof("no operation without a receipt", "captioner")
@pytest.mark.parametrize("mask", ["causal", "prefix"])
@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_every_operation_of_the_captioner_has_a_receipt(mask, positions):
    model = filled("captioner", **PICTURE, vocab=29, context=7, mask=mask, positions=positions)
    hold(trace(model, torch.randint(0, 29, (2, 7)), torch.randn(2, 3, 6, 15)))
