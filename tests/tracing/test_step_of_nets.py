"""A training step of convolution nets, recurrent nets and every activation: each gradient is what its receipt says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pencil
from pencil.tracing import rules
from traced import disagreeing, drawn, same, unchecked, wrong

LINE, IMAGE, ROWS = drawn(2, 6, 11), drawn(2, 6, 7, 5), drawn(3, 5) * 2


class First(nn.Module):
    """The first output of a module that has several."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


NETS = {
    "convolutions": (IMAGE, lambda: [nn.Conv2d(6, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)]),
    "groups": (
        IMAGE, lambda: [
            nn.Conv2d(6, 9, 3, 2, 1, groups=3), nn.GELU(), nn.Conv2d(9, 9, 3, padding=2, dilation=2, groups=9),
            nn.Conv2d(9, 18, 1, groups=9),
        ],
    ),
    "transposed": (
        IMAGE, lambda: [nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), nn.Tanh(), nn.ConvTranspose2d(4, 6, 3, padding=1, groups=2)]
    ),
    "group norm": (IMAGE, lambda: [nn.Conv2d(6, 8, 3), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 2, 1)]),
    "instance norm": (LINE, lambda: [nn.Conv1d(6, 8, 3), nn.InstanceNorm1d(8, affine=True), nn.Conv1d(8, 2, 1)]),
    "batch norm": (IMAGE, lambda: [nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)]),
    "pools": (
        IMAGE, lambda: [
            nn.Conv2d(6, 4, 1), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2, 1, 1), nn.AdaptiveAvgPool2d((5, 3)),
            nn.AdaptiveMaxPool2d((3, 2)), nn.Conv2d(4, 2, 1),
        ],
    ),
    "other sizes": (
        IMAGE, lambda: [
            nn.Conv2d(6, 2, 1), nn.Upsample(scale_factor=2), nn.Upsample((11, 7), mode="bilinear"),
            nn.Upsample((5, 3), mode="bicubic"),
        ],
    ),
    "padding": (IMAGE, lambda: [nn.Conv2d(6, 4, 1), nn.ReflectionPad2d((1, 2, 0, 3)), nn.ReplicationPad2d(2)]),
    "patches": (IMAGE, lambda: [nn.Conv2d(6, 4, 1), nn.Unfold(3, stride=2)]),
    "weight norm": (LINE, lambda: [nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 5, 3)), nn.Conv1d(5, 2, 1)]),
    "LSTM": (drawn(3, 2, 5), lambda: [First(nn.LSTM(5, 7, 2))]),
    "GRU": (drawn(3, 2, 5), lambda: [First(nn.GRU(5, 7))]),
}  # fmt: skip
ACTIVATIONS = """Mish ELU SELU CELU Softplus Hardswish Hardsigmoid Hardtanh ReLU6 LeakyReLU LogSigmoid PReLU RReLU
Softshrink Hardshrink Softsign Tanhshrink GLU""".split()


def step(model, x, **options):
    torch.manual_seed(0)
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, 0, 0.5)
    return pencil.trace_step(model, lambda model, x: (model(x) ** 2).mean(), (x,), **options)


@pytest.mark.parametrize(("name", "training"), [*((name, False) for name in NETS), ("batch norm", True)])
@unchecked()
def test_every_cell_of_a_step_of_a_net(name, training):
    x, layers = NETS[name]
    model = nn.Sequential(*layers())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = step(model, x, training=training)
    worked, bad = wrong(found.graph, 100)
    assert worked > 500
    assert not bad
    assert not found.graph.undescribed
    assert not disagreeing(found, 5)
    if training:  # its memory of the batch is put back
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items() if "running" in key)
        assert any(n.op == "native_batch_norm.running_var" for n in found.graph.nodes)


@unchecked()
def test_the_slope_of_every_activation():
    inner = [getattr(nn, name)() for name in ACTIVATIONS[:-1]]
    model = nn.ModuleDict({"first": nn.Linear(5, 8), "each": nn.ModuleList(inner), "last": nn.GLU()})

    def loss(model, x):
        y = model["first"](x)
        return sum((each(y * 3) ** 2).mean() for each in model["each"]) + (model["last"](y) ** 2).mean()

    for training in (False, True):
        found = pencil.trace_step(model, loss, (ROWS,), training=training)
        assert not found.graph.undescribed
        assert not wrong(found.graph, 100)[1]


IDS = torch.tensor([1, -100, 3])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@unchecked()
def test_the_slope_of_every_loss(reduction):
    targets, weights = drawn(3, 5, seed=3), drawn(5).abs()

    def loss(model, x):
        y = model(x)
        each = [
            F.mse_loss(y, targets, reduction=reduction), F.huber_loss(y, targets, reduction=reduction, delta=0.7),
            F.smooth_l1_loss(y, targets, reduction=reduction, beta=0.3), F.l1_loss(y, targets, reduction=reduction),
            F.soft_margin_loss(y, targets.sign(), reduction=reduction),
            F.binary_cross_entropy(y.sigmoid(), targets.sigmoid(), reduction=reduction),
            F.binary_cross_entropy_with_logits(y, targets.sigmoid(), reduction=reduction),
            F.cross_entropy(y, IDS, weights, reduction=reduction), F.cross_entropy(y, IDS, reduction=reduction),
            F.cross_entropy(y.T[None], IDS[None], weights, reduction=reduction),
        ]  # fmt: skip
        return sum(each)

    found = pencil.trace_step(nn.Linear(5, 5), loss, (ROWS,))
    assert not found.graph.undescribed
    assert not wrong(found.graph, 100)[1]


@pytest.mark.parametrize(
    "op", ["convolution_backward", "native_group_norm_backward", "max_pool2d_with_indices_backward"]
)
@unchecked()
def test_a_wrong_gradient_is_caught(op, monkeypatch):
    kind, right = rules.RULES[op]
    monkeypatch.setitem(rules.RULES, op, (kind, lambda call: _louder(call, right)))
    model = nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Conv2d(4, 3, 1))
    _, bad = wrong(step(model, IMAGE).graph, 100)
    assert {found for found, _, _ in bad} == {op}


def _louder(call, rule):
    """Whether the rule's plan is of the output or of another shape of it, a thousandth more."""
    beside = call.beside
    call.beside = lambda name, plan, *rest: beside(name, plan * 1.001 if name == "folded" else plan, *rest)
    plan = rule(call)
    return plan if plan[0] == "ref" else plan * 1.001


class Force(nn.Module):
    """The gradient of an energy, as molecules are modelled."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(4, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x[:, 1:] * x[:, :1]).tanh().sum(), x)[0]


def test_gradients_inside_a_forward_pass():
    model = Force()
    found = pencil.trace(model, ROWS)
    np.testing.assert_array_equal(found["output"].value, model(ROWS).detach().numpy())
    assert not wrong(found.graph)[1]


def test_parts_put_back_with_every_second_left_out():
    def program(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad((x[:, ::2] * x[:, 1:4]).sum(), x)[0]

    same(program, ROWS)
