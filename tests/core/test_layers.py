from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from pencil.core.embed import Tokens
from pencil.core.layers import (
    ACTIVATIONS,
    MLP,
    NORMS,
    ActivationWord,
    GatedMLP,
    LayerNorm,
    NormWord,
    RMSNorm,
    gelu,
    gelu_tanh,
)
from pencil.core.probe import Probe


def test_layer_norm_has_the_epsilon_under_the_root(golden):
    entry = golden["002-layernorm-eps"]
    for size in ("large", "small"):
        found = LayerNorm(4, entry["inputs"]["eps"])(torch.tensor(entry["inputs"][f"x_{size}"]))
        torch.testing.assert_close(found, torch.tensor(entry["expected"][f"{size}_sqrt"]), atol=1e-6, rtol=1e-5)
    entry = golden["000-kata4-layernorm"]
    found = LayerNorm(4, 1e-6)(torch.tensor(entry["inputs"]["strip"]))
    expected = torch.tensor(entry["expected"]["normed_eps_1e_6_sqrt_var_plus_eps"])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_norms_against_their_formulas():
    x, gain, shift = torch.randn(3, 5, 7).double(), torch.randn(7).double(), torch.randn(7).double()
    layer, rms = LayerNorm(7, 1e-3).double(), RMSNorm(7, 1e-3).double()
    layer.weight.data, layer.bias.data, rms.weight.data = gain, shift, gain
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    torch.testing.assert_close(layer(x), (x - mean) / (var + 1e-3).sqrt() * gain + shift)
    torch.testing.assert_close(rms(x), x / ((x**2).mean(-1, keepdim=True) + 1e-3).sqrt() * gain)
    assert LayerNorm(7, bias=False).bias is None


def test_both_gelus():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    torch.testing.assert_close(gelu(x), x * (1 + torch.erf(x / 2**0.5)) / 2)
    tanh = x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2
    torch.testing.assert_close(gelu_tanh(x), tanh)
    assert (gelu(x) - gelu_tanh(x)).abs().max() > 1e-5


def test_gelus_own_gradient_is_the_derivative():
    """Once and twice, against small steps in float64, where torch's exact one is the reference too."""
    torch.manual_seed(0)
    x = (torch.randn(5, 7, dtype=torch.float64) * 3).requires_grad_()
    assert torch.equal(gelu(x), F.gelu(x))
    assert torch.autograd.gradcheck(gelu, (x,))
    assert torch.autograd.gradgradcheck(gelu, (x,))


def test_gelu_under_the_transforms_of_torch_func():
    """Forward mode, forward over reverse, reverse over reverse and row by row, as F.gelu, which has all of them."""
    torch.manual_seed(0)
    x, along = torch.randn(2, 5, 3, dtype=torch.float64) * 2
    layer = torch.nn.Linear(3, 7).double()  # its parameters need gradients, with which ours is taken
    for transform in (
        lambda f: torch.func.jvp(f, (x,), (along,)),
        lambda f: torch.func.hessian(lambda y: f(y).square().sum())(x),
        lambda f: torch.func.grad(lambda y: torch.func.grad(lambda z: f(z).square().sum())(y).square().sum())(x),
        lambda f: torch.func.vmap(torch.func.grad(lambda y: f(y).square().sum()))(x),
        lambda f: torch.func.vmap(torch.func.hessian(lambda y: f(y).square().sum()))(x),
    ):
        ours, theirs = (transform(lambda y, act=act: act(layer(y))) for act in (gelu, F.gelu))
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


def test_gelus_own_gradient_is_torchs():
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([0.0, -0.0, 40.0, -40.0, 1e4, -1e4, 1e30, -1e30])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = torch.randn_like(x)
    (gelu(ours) * weight).sum().backward()
    (F.gelu(theirs) * weight).sum().backward()
    assert ours.grad.isfinite().all()
    assert ours.grad.dtype == torch.float32
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)
    assert torch.equal(gelu(x), F.gelu(x))  # no gradient wanted


@pytest.mark.parametrize("bias", [True, False])
def test_mlps_against_their_formulas(bias):
    x = torch.randn(2, 3, 5)
    mlp, gated = MLP(5, 11, gelu, bias), GatedMLP(5, 13, bias=bias)
    torch.testing.assert_close(mlp(x), mlp.down(gelu(mlp.up(x))))
    torch.testing.assert_close(gated(x), gated.down(torch.nn.functional.silu(gated.gate(x)) * gated.up(x)))
    assert (mlp.up.bias is None) == (not bias)
    probe = Probe()
    gated(x, probe=probe)
    assert set(probe.values) == set(GatedMLP.NAMES)


def test_tokens_are_rows_and_logits_are_products_with_them():
    tokens = Tokens(11, 5)
    ids = torch.tensor([[3, 10, 0]])
    assert torch.equal(tokens(ids)[0], tokens.weight[[3, 10, 0]])
    x = torch.randn(1, 3, 5)
    torch.testing.assert_close(tokens.logits(x), x @ tokens.weight.T)


def test_the_words_of_a_setting_are_those_of_its_table():
    assert get_args(NormWord) == tuple(NORMS)
    assert get_args(ActivationWord) == tuple(ACTIVATIONS)
