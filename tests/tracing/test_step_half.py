"""A training step in half precision: every cell is within the rounding of the kernels, which round more than they store."""

import pytest
import torch
import torch.nn.functional as F
from test_step import adamw, case
from torch import nn

from pencil.config import UserError
from pencil.tracing import half_precision, rules
from pencil.tracing.step import trace_step
from traced import LEAVES, disagreeing, drawn, unchecked, wrong

HALF = [torch.bfloat16, torch.float16]
IDS = torch.arange(23) % 7


def in_half(model, batch, dtype):
    return model.to(dtype), tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)


def holds(trace, cells, receipts=8):
    assert not trace.graph.undescribed
    assert all(n.plan is not None or n.kind in LEAVES for n in trace.graph.nodes if n.size)
    worked, bad = wrong(trace.graph, cells)
    assert worked > 5 * cells
    assert not bad
    assert not disagreeing(trace, receipts)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "family, kind, cells",
    [
        ("gpt", "gpt2", 50),
        *(
            pytest.param(*one, 300, marks=pytest.mark.long)
            for one in [("gpt", "llama"), ("vit", "class"), ("captioner", "seed"), ("reader", "bert"),
                        ("seq2seq", "separate"), ("dit", "windowed")]
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@unchecked()
def test_a_step_with_weights_in_half_precision(family, kind, cells, dtype):
    model, loss, batch = case(family, kind)
    model, batch = in_half(model, batch, dtype)
    trace = trace_step(model, loss, batch, adamw(model), clip=0.1, keep="blocks" if dtype == HALF[0] else "all")
    holds(trace, cells)
    assert trace.grad["tokens.weight" if family == "gpt" else next(iter(trace.grad))].value.dtype.kind == "f"
    assert {n.dtype for n in trace.graph.nodes if n.op == "adam"} == {str(dtype).removeprefix("torch.")}


@pytest.mark.parametrize("family", ["vit", pytest.param("gpt", marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@unchecked()
def test_a_step_under_autocast(family):
    """Products are in bfloat16, the weights and their gradients in single precision."""
    model, loss, batch = case(family, "class" if family == "vit" else "gpt2")

    def under_autocast(model, *batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, *batch)

    trace = trace_step(model, under_autocast, batch, adamw(model), clip=0.1)
    holds(trace, 50)
    assert {n.dtype for n in trace.graph.nodes if n.kind == "dot"} == {"bfloat16"}
    # its sums over the batch run in bfloat16, although the gradient of the weight is in single precision
    sums = [n for n in trace.graph.nodes if n.op == "native_layer_norm_backward" and n.dtype == "float32"]
    assert sums


@unchecked()
def test_the_parts_of_a_gradient_under_autocast_are_within_the_rounding_of_bfloat16():
    """The gradient is in single precision, but the sum over the examples was stored in bfloat16 before it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 7), nn.GELU(), nn.Linear(7, 2))

    def under_autocast(model, x, targets):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), targets)

    trace = trace_step(model, under_autocast, (drawn(5, 3), torch.arange(5) % 2))
    parts = [trace.contributions(f"grad:0.weight[{row},{column}]") for row in range(7) for column in range(3)]
    off = [abs(found.total - found.value) for found in parts]
    assert all(one <= found.allowed for one, found in zip(off, parts, strict=True))
    assert max(off) > 2.0**-12 * max(abs(found.value) for found in parts)  # far more than single precision rounds
    worst = parts[off.index(max(off))]
    assert f"off by {max(off):.1g}, and rounding allows {worst.allowed:.1g}" in worst.title()
    receipt = trace[worst.name].why()
    assert worst.allowed == pytest.approx(receipt.allowed, rel=1e-3)


class Rounding(nn.Module):
    """Operations whose kernels round each step of theirs in half precision."""

    def __init__(self):
        super().__init__()
        self.table, self.line = nn.Parameter(drawn(7, 6)), nn.Parameter(drawn(6, 6))
        self.norm, self.pool = nn.InstanceNorm1d(2, affine=True), nn.AvgPool2d(2, 1)

    def forward(self, x, targets):
        y = F.glu((F.embedding(IDS, self.table) + self.table[IDS]) @ self.line)
        image = F.pad(y[:22].reshape(1, 2, 11, 3), (1, 1, 1, 1), "replicate")
        folded = F.fold(F.unfold(self.norm(y[:22].reshape(1, 2, -1)).reshape(1, 2, 11, 3), 2), (11, 3), 2)
        z = y + x
        each = [
            F.mse_loss(z, targets), F.huber_loss(z, targets, delta=0.7), F.smooth_l1_loss(z, targets),
            F.soft_margin_loss(z, targets.sign()), F.binary_cross_entropy(z.sigmoid(), targets.sigmoid()),
            F.binary_cross_entropy_with_logits(z, targets.sigmoid()), F.cross_entropy(z, IDS % 3),
            F.nll_loss(z.T.log_softmax(0).T, IDS % 3, targets[0].abs()), z.logsumexp(1).square().mean(),
            self.pool(F.max_pool2d(image, 3, 1)).square().mean(), folded.square().mean(), z.prod(1).mean(),
        ]  # fmt: skip
        return sum(each)


def rounding_step(dtype):
    torch.manual_seed(0)
    model, batch = in_half(Rounding(), (drawn(23, 3, seed=1), drawn(23, 3, seed=2)), dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.3)
    return trace_step(model, lambda model, *batch: model(*batch), batch, optimizer)


@pytest.mark.parametrize("dtype", HALF)
@unchecked()
def test_kernels_that_round_every_step_of_theirs(dtype):
    holds(rounding_step(dtype), 500, receipts=8)


@unchecked()
def test_that_they_do_is_in_their_plans(monkeypatch):
    """Without it most of them would seem wrong; a wrong rule still does."""
    monkeypatch.setattr(half_precision, "IN_OWN_PRECISION", set())
    _, bad = wrong(rounding_step(torch.bfloat16).graph, 1000)
    found = {op for op, _, _ in bad}
    assert {"embedding_dense_backward", "glu_backward", "mse_loss_backward", "huber_loss_backward"} <= found
    monkeypatch.undo()
    kind, right = rules.RULES["glu_backward"]
    monkeypatch.setitem(rules.RULES, "glu_backward", (kind, lambda call: right(call) * 1.1))
    _, bad = wrong(rounding_step(torch.bfloat16).graph, 1000)
    assert {op for op, _, _ in bad} == {"glu_backward"}


def test_an_optimizer_that_would_divide_by_0_is_refused():
    model, loss, batch = case("gpt", "gpt2")
    model = model.half()
    with pytest.raises(UserError, match=r"the eps 1e-08 of AdamW is 0 in float16.*give eps=1e-4, fused=True"):
        trace_step(model, loss, batch, torch.optim.AdamW(model.parameters()))
