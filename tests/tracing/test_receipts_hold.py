"""The figure of the room: any cell of any operation, reworked from its receipt, is what was recorded."""

import numpy as np
import pytest
import torch
from torch import nn

from pencil.config import UserError
from pencil.learn.worked.examples import EXAMPLES
from pencil.tracing.graph import Graph
from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import receipt
from pencil.tracing.trace import Trace
from traced import (
    CAPTIONERS,
    GPTS,
    THEIRS,
    VITS,
    disagreeing,
    holds,
    kinds,
    recorded,
    stirred,
    theirs,
    traced,
    unchecked,
    wrong,
)

HAND = [f"example:{name}" for name in EXAMPLES]


@pytest.fixture(scope="module", params=THEIRS)
def other(request, timm):
    model, inputs, given = theirs(request.param, timm)
    with unchecked():
        return trace(model, *inputs, **given)


def first_of_each(*groups):
    """One model of each group in every run of the suite, the others in the long form."""
    return [
        name if i == 0 else pytest.param(name, marks=pytest.mark.long)
        for group in groups
        for i, name in enumerate(group)
    ]


@pytest.mark.parametrize("name", GPTS)
@pytest.mark.proof("no operation without a receipt", "gpt")
def test_every_operation_of_a_gpt_is_reworked(name):
    assert holds(traced(name)) > 10_000


@pytest.mark.parametrize("name", VITS)
@pytest.mark.proof("no operation without a receipt", "vit")
def test_every_operation_of_a_vit_is_reworked(name):
    assert holds(traced(name)) > 10_000


@pytest.mark.parametrize("name", CAPTIONERS)
@pytest.mark.proof("no operation without a receipt", "captioner")
def test_every_operation_of_a_captioner_is_reworked(name):
    assert holds(traced(name)) > 10_000


@pytest.mark.parametrize("name", HAND)
def test_every_operation_of_an_example_is_reworked(name):
    assert holds(traced(name)) > 20  # the smallest example has 24 numbers that are computed


def test_every_operation_of_other_peoples_models_is_reworked(other):
    assert holds(other) > 10_000


@pytest.mark.parametrize("name", [*first_of_each(GPTS, VITS, CAPTIONERS), *HAND[:6], *first_of_each(HAND[6:])])
def test_whole_receipts_agree(name):
    """What .why() shows inlines the operands nobody named, and allows for the rounding of each."""
    assert not disagreeing(traced(name))


@pytest.mark.parametrize(
    "other",
    [name if name in ("t5", "timm vit") else pytest.param(name, marks=pytest.mark.long) for name in THEIRS],
    indirect=True,
)
def test_whole_receipts_of_other_peoples_models_agree(other):
    assert not disagreeing(other)


@unchecked()
def test_other_peoples_models_give_what_they_give_untraced(timm):
    for name in THEIRS:
        model, inputs, given = theirs(name, timm)
        with torch.no_grad():
            plain = model(*inputs, **given)
        plain = plain if torch.is_tensor(plain) else plain.logits
        torch.testing.assert_close(trace(model, *inputs, **given).logits, plain, atol=1e-4, rtol=1e-4)


def test_the_operations_tried_are_those_of_a_transformer():
    """Were the tape to see nothing, nothing would be wrong."""
    ops = {op for name in (*GPTS, *VITS, *CAPTIONERS) for op in kinds(traced(name).graph)}
    assert ops >= {"embedding", "mm", "addmm", "bmm", "_softmax", "native_layer_norm", "gelu", "silu", "masked_fill",
                   "cat", "sin", "cos", "add", "mul", "mean", "split_with_sizes", "transpose"}  # fmt: skip
    found = {n.kind for name in (*GPTS, *VITS, *CAPTIONERS) for n in traced(name).graph.nodes}
    assert found >= {"dot", "sum", "scale", "mask", "softmax", "layernorm", "activation", "lookup", "move",
                     "concat", "sine/cosine", "input", "weight"}  # fmt: skip


# the check can fail


class Shaken(Graph):
    """A graph in which one recorded number is another."""

    def __init__(self, graph, node, cell, by):
        super().__init__(graph.nodes, graph.names)
        self.tables, self.inner, self.node, self.cell, self.by = graph.tables, graph, node, cell, by

    def stored(self, node):
        values = self.inner.stored(node)
        if node == self.node:
            values = values.astype(complex if np.iscomplexobj(values) else float)
            values.reshape(-1)[self.cell] += self.by
        return values


@pytest.mark.parametrize("name", ["gpt learned", "gpt llama", "vit mean", "captioner prefix", "example:nanogpt-block"])
@unchecked()
def test_a_number_off_by_ten_times_its_bound_is_caught(name):
    graph = traced(name).graph
    rng, caught = np.random.default_rng(4), set()
    for op, nodes in kinds(graph).items():
        for node in (n for n in nodes if not graph.nodes[n].moves):
            cell = rng.integers(graph.nodes[node].size, size=1)
            value, allowed = graph.work(node, cell)
            if not np.isfinite(value[0]):
                continue
            bad = Shaken(graph, node, cell[0], 10 * allowed[0] or 1.0)
            again, bound = bad.work(node, cell)
            assert abs(again[0] - recorded(bad, node, cell)[0]) > bound[0], graph.nodes[node].name
            worked = receipt(Trace(bad), node, int(cell[0]))
            if not graph.nodes[node].moves and worked.reworked is not None and worked.allowed < 5 * allowed[0]:
                assert not worked.agrees
                assert "✗" in str(worked)
            caught.add(op)
            break
    assert len(caught) > 12


def test_one_wrong_number_among_all_is_found():
    graph = traced("example:vit-4x4").graph
    node = graph.names["attn.pattern"]
    _, bad = wrong(Shaken(graph, node, 7, 1e-12), count=10**9)
    # the cell itself, and those that were made of it
    assert ("_softmax", graph.nodes[node].name, 7) in bad
    assert {op for op, _, _ in bad} <= {"_softmax", "bmm", "_safe_softmax"}
    assert not wrong(graph, count=10**9)[1]


class Absolute(Graph):
    """A graph of which every number is its size: a sum of products becomes the sum of their sizes."""

    def __init__(self, graph):
        super().__init__(graph.nodes, graph.names)
        self.tables, self.inner = graph.tables, graph

    def stored(self, node):
        return np.abs(self.inner.stored(node))


@pytest.mark.parametrize("name", first_of_each(GPTS, VITS, CAPTIONERS))
def test_what_is_allowed_of_a_sum_of_products_is_little(name):
    graph = traced(name).graph
    tried = 0
    for i, n in enumerate(graph.nodes):
        if n.kind not in ("dot", "patch") or n.dtype != "float32":
            continue
        cells = np.arange(n.size)
        _, allowed = graph.work(i, cells)
        size, _ = Absolute(graph).work(i, cells)
        assert (allowed > 0).all()
        assert (allowed < 1e-5 * size + 1e-30).all(), n.name
        tried += n.size
    assert tried > 1000


@pytest.mark.parametrize("name", first_of_each(GPTS, VITS, CAPTIONERS))
def test_what_is_allowed_of_everything_else_is_little(name):
    """Norms, softmax, activations, angles: a thousandth of the largest number in the tensor would be no check."""
    graph = traced(name).graph
    for i, n in enumerate(graph.nodes):
        if n.plan is None or n.moves or not n.size or n.dtype != "float32":
            continue
        value, allowed = graph.work(i, np.arange(n.size))
        top = np.abs(value[np.isfinite(value)]).max(initial=0)
        assert (allowed <= 1e-4 * top + 1e-30).all(), (n.name, n.op)


# an operation without a description


@pytest.mark.parametrize("call, op", [
    (torch.linalg.inv, "linalg_inv"), (lambda x: torch.logcumsumexp(x, 0), "logcumsumexp"), (torch.special.i0, "i0"),
    (torch.linalg.det, "det"),
])  # fmt: skip
def test_an_operation_without_a_description_is_named(call, op):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return call(self.inner(x))

    with pytest.raises(UserError, match=rf"the operation \w*{op}\w* .*has no receipt") as refusal:
        trace(Odd(), torch.eye(3) + 0.1)
    assert "\n" not in str(refusal.value)


# modules that have a fast path hiding their inside


@pytest.mark.parametrize("first", [False, True])
def test_the_inside_of_an_encoder_layer_is_shown(first):
    layer = stirred(nn.TransformerEncoderLayer(22, 2, 37, batch_first=True, norm_first=first))
    x = torch.randn(3, 5, 22, generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        assert torch.backends.mha.get_fastpath_enabled()
        fast = layer(x)
    found = trace(layer, x)
    torch.testing.assert_close(found.output, fast, atol=1e-5, rtol=1e-5)
    ops = [n.op for n in found.graph.nodes]
    assert ops.count("native_layer_norm") >= 2
    assert any(n.kind == "softmax" and n.shape[-2:] == (5, 5) for n in found.graph.nodes)
    assert {"norm1", "norm2", "linear1", "linear2"} <= set(found.names)
    holds(found)
    assert not disagreeing(found)


def test_the_inside_of_an_encoder_with_padding_is_shown():
    encoder = stirred(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(22, 2, 37, batch_first=True), 2, enable_nested_tensor=True)
    )
    x = torch.randn(2, 5, 22, generator=torch.Generator().manual_seed(8))
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.inference_mode():
        fast = encoder(x, src_key_padding_mask=padding)
    found = trace(encoder, x, src_key_padding_mask=padding)
    torch.testing.assert_close(found.output[~padding], fast[~padding], atol=1e-5, rtol=1e-5)
    assert sum(n.kind == "softmax" for n in found.graph.nodes) == 2
    holds(found)


def test_the_inside_of_an_encoder_and_decoder_is_shown():
    model = stirred(nn.Transformer(22, 2, 1, 2, 37, batch_first=True))
    generator = torch.Generator().manual_seed(9)
    source, target = torch.randn(2, 7, 22, generator=generator), torch.randn(2, 5, 22, generator=generator)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.inference_mode():
        fast = model(source, target, tgt_mask=mask)
    found = trace(model, source, target, tgt_mask=mask)
    torch.testing.assert_close(found.output, fast, atol=1e-5, rtol=1e-5)
    assert sum(n.kind == "softmax" for n in found.graph.nodes) == 1 + 2 * 2
    assert sum(n.op == "native_layer_norm" for n in found.graph.nodes if n.shape[-1:] == (22,)) >= 2 + 2 * 3 + 2
    holds(found)
    assert not disagreeing(found)
