"""A training step recorded on a GPU: autograd has threads of its own there, and kernels and precision are others."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import unchecked
from pencil.tracing.step import trace_step
from small_models import tiny, tokens
from traced import disagreeing, drawn, wrong

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
BATCH = tokens(3, 7, vocab=101)


@pytest.fixture(autouse=True)
def quickly():
    with unchecked():
        yield
    torch.set_float32_matmul_precision("highest")


def model(dropout=0.0):
    return tiny("gpt", positions="learned", dropout=dropout).cuda()


def loss(model, ids):
    logits = model(ids).flatten(0, -2)
    return F.cross_entropy(logits.float(), torch.arange(len(logits), device=logits.device) % 101)


def adamw(model, **more):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, **more)


def holds(trace):
    assert not trace.graph.undescribed
    worked, bad = wrong(trace.graph, 100)
    assert worked > 1000
    assert not bad
    assert not disagreeing(trace, 40)


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("tf32", ["highest", "high"])
def test_every_cell_of_a_step_is_reworked(how, tf32):
    torch.set_float32_matmul_precision(tf32)  # recorded without TF32, and set again afterwards
    one = model()
    trace = trace_step(one, loss, (BATCH.cuda(),), adamw(one, **how), clip=0.1)
    holds(trace)
    assert torch.get_float32_matmul_precision() == tf32
    on_cpu = copy.deepcopy(one).cpu()
    other = trace_step(on_cpu, loss, (BATCH,), adamw(on_cpu, **how), clip=0.1)
    assert set(other.grad) <= set(trace.grad)
    for name in ("tokens.weight", "blocks.0.attn.pattern", "blocks.1.mid", "norm.weight"):
        difference = abs(trace.grad[name].value - other.grad[name].value).max()
        assert difference < 1e-4 * abs(other.grad[name].value).max(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(dtype):
    one = model().to(dtype)
    holds(trace_step(one, loss, (BATCH.cuda(),), adamw(one, fused=True), clip=0.1))


def test_under_autocast():
    def under_autocast(model, ids):
        with torch.autocast("cuda", torch.bfloat16):
            return loss(model, ids)

    one = model()
    trace = trace_step(one, under_autocast, (BATCH.cuda(),), adamw(one, fused=True))
    assert "bfloat16" in {n.dtype for n in trace.graph.nodes if n.kind == "dot"}
    holds(trace)


def test_a_block_left_closed_opens_with_the_same_dropout():
    one = model(dropout=0.3)
    trace = trace_step(one, loss, (BATCH.cuda(),), adamw(one, fused=True), training=True, keep="blocks")
    assert trace.graph.blocks
    before = torch.cuda.get_rng_state()
    for path in trace.graph.blocks:
        assert trace[f"{path}.attn.pattern"][0, 0, 1, 0].why().agrees
    assert len(trace.graph.opened) == len(trace.graph.blocks) == 2
    holds(trace)
    torch.testing.assert_close(torch.cuda.get_rng_state(), before, rtol=0, atol=0)


def test_a_net_of_convolutions():
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.GroupNorm(5, 5), nn.GELU(), nn.Conv2d(5, 2, 3)).cuda()
    holds(trace_step(net, lambda net, x: net(x).square().mean(), (drawn(2, 3, 11, 7).cuda(),)))
