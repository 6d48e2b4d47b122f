"""The exercises on a training step: their formulas are what autograd, torch's LayerNorm and the optimizers give."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pencil.learn.katas import KATAS, backprop
from pencil.train.optim import orthogonalise


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def gradients(function, *given):
    given = [one.clone().requires_grad_() for one in given]
    return torch.autograd.grad(function(*given), given)


def test_softmax_minus_one_hot():
    z = random(3)
    (expected,) = gradients(lambda z: F.cross_entropy(z[None], torch.tensor([1])), z)
    np.testing.assert_allclose(backprop.one_hot_gradient(z.softmax(-1).tolist(), 1)["g"], expected, atol=1e-12)


def test_both_gradients_of_a_product():
    x, w, g = random(3, 2), random(2, 5, seed=1), random(3, 5, seed=2)
    by_x, by_w = gradients(lambda x, w: (x @ w * g).sum(), x, w)
    np.testing.assert_allclose(backprop.to_input(w.tolist(), g.tolist())["g"], by_x, atol=1e-12)
    np.testing.assert_allclose(backprop.to_weight(x.tolist(), g.tolist())["g"], by_w, atol=1e-12)


def test_the_gradient_of_layernorm():
    x, g = random(5), random(5, seed=1)
    (expected,) = gradients(lambda x: (F.layer_norm(x, (5,), eps=0.0) * g).sum(), x)
    sigma = x.std(correction=0)
    x_n = ((x - x.mean()) / sigma).tolist()
    np.testing.assert_allclose(backprop.norm_gradient(x_n, float(sigma), g.tolist())["g"], expected, atol=1e-12)


def test_the_gradient_of_a_residuals_sum():
    x, g = random(5), random(5, seed=1)
    (expected,) = gradients(lambda x: ((x + x.sin()) * g).sum(), x)
    branch = (g * x.cos()).tolist()
    np.testing.assert_allclose(backprop.sum_gradient(g.tolist(), branch)["g"], expected, atol=1e-12)


def test_one_step_of_adamw():
    w, g = random(5).requires_grad_(), random(5, seed=1)
    before = w.detach().tolist()
    w.grad = g
    torch.optim.AdamW([w], lr=0.2, weight_decay=0.3, eps=0.0).step()
    # in the first step the corrected m is the gradient, and √v its size
    given = backprop.adamw_weight(before, g.tolist(), g.abs().tolist(), 0.2, 0.3)
    np.testing.assert_allclose(given["g"], w.detach(), atol=1e-12)


def test_one_iteration_of_muon():
    """On a diagonal matrix an iteration does to each number what the exercise does to a singular value."""
    matrix = torch.diag(torch.tensor([0.6, 0.8]))[None]
    once = orthogonalise(matrix, steps=1)[0].diagonal()
    given = backprop.muon_values([0.6, 0.8], 3.4445, -4.7750, 2.0315)["g"]
    np.testing.assert_allclose(given, once, atol=1e-6)  # it is computed in single precision


@pytest.mark.parametrize("name", [name for name, kata in KATAS.items() if kata.topic == "backprop"])
def test_its_working_ends_in_its_answers(name):
    for seed in (None, 3, 5):
        question = KATAS[name].make(seed)
        assert len(question.working) >= len(question.blanks)
        assert len(question.mistakes) >= 2
