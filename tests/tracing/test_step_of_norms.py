"""Gradients of norms: bounds that say something where a mean is far from 0, and RMS norms in one formula."""

import numpy as np
import pytest
import torch
from torch import nn

from pencil.core.layers import RMSNorm
from pencil.tracing import graph, step
from pencil.tracing.step import trace_step
from traced import disagreeing, unchecked, wrong

WIDTH, ROWS = 7, 251


@pytest.fixture(autouse=True)
def without_shape_checks():
    with unchecked():
        yield


def far_from_zero(ratio, seed=0):
    """A step through a layer norm of rows whose mean is `ratio` of their deviations; in every second one cell is near it."""
    torch.manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)
    x[::2, 0] = 0.01
    x = (x + ratio * torch.randn(ROWS, 1).sign()).float()
    shift, norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
    nn.init.eye_(shift.weight)
    nn.init.zeros_(shift.bias)
    nn.init.normal_(norm.weight)
    aim = torch.randn(ROWS, WIDTH)
    return trace_step(nn.Sequential(shift, norm), lambda model, x: (model(x) * aim).sum(), (x,))


def worked(found):
    """Of the gradient of what the norm read: reworked, allowed, recorded."""
    node = found.graph.names["grad:0"]
    node = int(found.graph.resolve(node, np.asarray([0]))[0][0])
    places = np.arange(ROWS * WIDTH)
    return *found.graph.work(node, places), found.graph.cells(node, places)


@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e4, 1e5])
def test_the_bound_of_a_layer_norms_gradient_holds_and_says_something(ratio):
    found = far_from_zero(ratio)
    assert not wrong(found.graph, 10_000)[1]
    reworked, allowed, recorded = worked(found)
    assert (np.abs(reworked - recorded) <= allowed).all()
    assert np.median(allowed) < max(1e-5, 2e-6 * ratio) * np.median(np.abs(recorded))


def test_a_wrong_cell_far_from_zero_is_refused():
    """One that is off by a tenth of its own size, at every fiftieth row, where the mean is 10,000 deviations."""
    found = far_from_zero(1e4)
    *_, recorded = worked(found)
    for row in range(0, ROWS, 50):
        place = row * WIDTH + int(np.abs(recorded[row * WIDTH : row * WIDTH + WIDTH]).argmax())
        cell = found.grad["0"][divmod(place, WIDTH)]
        assert cell.why().agrees
        node = int(found.graph.resolve(cell.id, np.asarray([place]))[0][0])
        kept = found.graph.values[node].view(-1)
        before = float(kept[place])
        kept[place] = before * 1.1
        refused = not cell.why().agrees
        kept[place] = before
        assert refused, (row, before)


def test_without_the_rounding_of_its_products_the_bound_would_not_hold(monkeypatch):
    apply = graph.apply

    def without(name, values, u, outer):
        return values[0] if name == "multiplied" else apply(name, values, u, outer)

    found = far_from_zero(1e4)
    monkeypatch.setattr(graph, "apply", without)
    reworked, allowed, recorded = worked(found)
    assert not (np.abs(reworked - recorded) <= allowed).all()


class OwnRMSNorm(nn.Module):
    """As transformers writes it for LLaMA and T5."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Residual(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.read, self.norm, self.out = nn.Linear(5, WIDTH), norm, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.read(x)
        return x + self.out(self.norm(x))


@pytest.mark.parametrize("norm", [RMSNorm, OwnRMSNorm])
def test_the_gradient_of_an_rms_norm_is_one_formula(norm):
    torch.manual_seed(3)
    model = Residual(norm(WIDTH))
    nn.init.normal_(model.norm.weight)
    found = trace_step(model, lambda model, x: model(x).square().sum(), (torch.randn(2, 11, 5),))
    cell = found.grad["read"][1, 3, 2].why()
    assert [one.word for one in cell.steps] == ["rms", "x̂", "Σ ĝ·x̂/n"]
    rms, own, _ = (one.value for one in cell.steps)
    x = found["read"].value[1, 3].astype(float)
    assert rms == pytest.approx(np.sqrt(np.mean(x**2)), rel=1e-4)
    assert own == pytest.approx(x[2] / rms)
    assert "^" not in str(cell)
    assert not wrong(found.graph, 10_000)[1]
    assert not disagreeing(found, 40)


def test_a_fold_that_is_wrong_is_caught(monkeypatch):
    fold = step.fold_norms

    def upside_down(tape, begin=0):
        before = [n.plan for n in tape.nodes]
        fold(tape, begin)
        for n, plan in zip(tape.nodes, before, strict=True):
            n.plan = n.plan if n.plan is plan else n.plan[1]  # without its minus

    monkeypatch.setattr(step, "fold_norms", upside_down)
    found = trace_step(Residual(RMSNorm(WIDTH)), lambda model, x: model(x).square().sum(), (torch.randn(3, 11, 5),))
    assert {op for op, *_ in wrong(found.graph, 10_000)[1]} == {"mul"}


def test_what_only_looks_like_an_rms_norm_is_not_folded():
    """x·(the mean of y²)^−½ has that slope for y, of which x is not the same."""
    torch.manual_seed(3)
    read = nn.Linear(5, WIDTH)

    def loss(model, x):
        y = model(x)
        return (y.tanh() * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).square().sum()

    found = trace_step(read, loss, (torch.randn(2, 11, 5),))
    assert not any("Σ ĝ·x̂/n" in str(n.plan) for n in found.graph.nodes)
    assert not wrong(found.graph, 10_000)[1]
