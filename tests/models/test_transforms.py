"""torch.func through every family: forward mode against reverse mode, the Hessian, and rows one by one."""

import pytest
import torch
from test_compiled import SIZES
from torch.func import functional_call, grad, hessian, jvp, vjp, vmap

from pencil.families import configure, create


def made(family):
    torch.manual_seed(3)
    model = create(family, configure(family, None, depth=1, **SIZES[family])).double().eval()
    inputs = [
        torch.randn_like(given).double() if given.is_floating_point() else torch.randint_like(given, 5)
        for given in model.example(2)
    ]
    weights = {name: p.detach() + torch.randn_like(p) * 0.2 for name, p in model.named_parameters()}
    return lambda w, *given: functional_call(model, w, given), weights, inputs


@pytest.mark.parametrize("family", SIZES)
def test_forward_mode_and_reverse_mode_are_one_derivative(family):
    call, weights, inputs = made(family)
    along = {name: torch.randn_like(one) for name, one in weights.items()}
    out, forward = jvp(lambda w: call(w, *inputs), (weights,), (along,))
    _, back = vjp(lambda w: call(w, *inputs), weights)
    torch.testing.assert_close(out, call(weights, *inputs))
    against = torch.randn_like(out)
    (reverse,) = back(against)
    torch.testing.assert_close(
        (forward * against).sum(), sum((reverse[name] * along[name]).sum() for name in weights), rtol=1e-9, atol=1e-9
    )


def test_a_hessian_and_gradients_of_each_row():
    call, weights, (tokens,) = made("gpt")
    name, size = "blocks.0.mlp.up.weight", 1e-5

    def loss(row, given=tokens):
        return call({**weights, name: torch.cat((row[None], weights[name][1:]))}, given).square().mean()

    first = weights[name][0]
    found = hessian(loss)(first)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-9)
    step = torch.randn_like(first) * size
    by_differences = (grad(loss)(first + step) - grad(loss)(first - step)) / 2
    torch.testing.assert_close(found @ step, by_differences, rtol=1e-5, atol=1e-9)
    rows = vmap(lambda one: grad(loss)(first, one[None]))(tokens)
    torch.testing.assert_close(rows, torch.stack([grad(loss)(first, one[None]) for one in tokens]))
