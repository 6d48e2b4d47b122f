"""The loss fused with the output matrix on a GPU: against float64, compiled, and what it may not cost."""

import pytest
import torch
import torch.nn.functional as F

from conftest import unchecked
from pencil.families import create
from pencil.train.losses import cross_entropy as losses
from pencil.train.losses.cross_entropy import linear_cross_entropy, softmax_loss_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
TOKENS, WIDTH, VOCAB = 1301, 72, 50257


@pytest.fixture(autouse=True)
def as_before():
    """What a test sets on the device is undone."""
    torch.compiler.reset()
    with unchecked():
        yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.empty_cache()


def made(vocab=VOCAB, bias=True, ignored=211):
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(n, WIDTH, generator=generator) for n in (TOKENS, vocab))
    offset = torch.randn(vocab, generator=generator) if bias else None
    targets = torch.randint(vocab, (TOKENS,), generator=generator)
    targets[torch.randperm(TOKENS, generator=generator)[:ignored]] = -100
    return [t if t is None else t.cuda().requires_grad_() for t in (x, weight * 0.3, offset)], targets.cuda()


def exact(given, targets, smoothing):
    double = [t if t is None else t.detach().double().requires_grad_() for t in given]
    loss = F.cross_entropy(F.linear(*double), targets, label_smoothing=smoothing)
    return loss, torch.autograd.grad(loss, [t for t in double if t is not None])


@pytest.mark.parametrize("vocab", [41, 4099, VOCAB])
@pytest.mark.parametrize("bias, smoothing", [(False, 0.0), (True, 0.0), (True, 0.13)])
@pytest.mark.parametrize("half", [False, True])
def test_loss_and_gradients_are_those_of_float64(half, bias, smoothing, vocab):
    given, targets = made(vocab, bias)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        loss = linear_cross_entropy(*given, targets, smoothing, 257)
    found = torch.autograd.grad(loss, [t for t in given if t is not None])
    expected, gradients = exact(given, targets, smoothing)
    assert abs(loss - expected) < (2e-3 if half else 1e-5) * expected
    for got, right in zip(found, gradients, strict=True):
        assert got.dtype == torch.float32
        assert (got - right).norm() < (2**-6 if half else 1e-4) * right.norm()


def test_in_half_precision_it_is_no_less_exact_than_the_plain_loss():
    given, targets = made(bias=False)
    _, gradients = exact(given, targets, 0.0)
    with torch.autocast("cuda", torch.bfloat16):
        both = (
            linear_cross_entropy(*given, targets, chunk=257),
            losses.next_token(F.linear(*given)[None], targets[None]),
        )
    errors = [
        [float((g - e).norm() / e.norm()) for g, e in zip(torch.autograd.grad(loss, given[:2]), gradients, strict=True)]
        for loss in both
    ]
    assert all(ours < 1.05 * plain for ours, plain in zip(*errors, strict=True)), errors
    torch.testing.assert_close(*both, rtol=1e-4, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_gives_what_plain_operations_give(dtype, smoothing, monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed")
    z = (7 * torch.randn(61, 4160, generator=torch.Generator().manual_seed(0))).to("cuda", dtype)
    targets = torch.arange(61, device="cuda") * 68
    targets[5] = -100
    by_kernel, plain = z.clone(), z.clone()
    found = softmax_loss_(by_kernel, targets, 4099, smoothing, True)
    monkeypatch.setattr(losses, "_has_triton", lambda: False)
    expected = softmax_loss_(plain, targets, 4099, smoothing, True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(by_kernel, plain, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)
    assert not by_kernel[:, 4099:].any()
    assert not by_kernel[5].any()


def test_a_logit_that_is_not_finite_is_seen_in_the_loss():
    for value in (float("nan"), float("inf")):
        given, targets = made(ignored=0)
        given[0].data[7, 3] = value
        assert not linear_cross_entropy(*given, targets, chunk=257).isfinite()


def test_it_neither_waits_for_the_device_nor_differs_between_two_runs(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    given, targets = made()

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            loss = linear_cross_entropy(*given, targets, 0.1, 257)
        return loss.detach(), *torch.autograd.grad(loss, given)

    torch.use_deterministic_algorithms(True)
    first = run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    second = run()
    torch.cuda.set_sync_debug_mode("default")
    assert all(map(torch.equal, first, second))


def test_it_holds_one_chunk_of_logits():
    tokens, width = 8192, 64
    x, weight = (torch.randn(n, width, device="cuda", requires_grad=True) for n in (tokens, VOCAB))
    targets = torch.randint(VOCAB, (tokens,), device="cuda")

    def peak(call):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            loss = call()
        loss.backward()
        return torch.cuda.max_memory_allocated() - before

    fused = peak(lambda: linear_cross_entropy(x, weight, None, targets, chunk=1024))
    assert fused < 1.3 * (1024 * 2 * VOCAB + 3 * 4 * VOCAB * width + 4 * tokens * width * 2)
    assert fused < peak(lambda: losses.next_token(F.linear(x, weight)[None], targets[None])) / 8


@pytest.mark.parametrize("compiled", [False, True])
def test_a_large_vocabulary_is_trained_with_the_fused_loss_as_with_the_plain_one(compiled, monkeypatch):
    found = {}
    for large in (0, 1 << 60):
        monkeypatch.setattr(losses, "LARGE", large)
        torch.compiler.reset()
        torch.manual_seed(0)
        model = create("gpt", dict(width=56, heads=7, depth=2, vocab=VOCAB, context=31)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        tokens = torch.randint(97, (11, 32), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        call = torch.compile(losses.token_loss) if compiled else losses.token_loss
        found[large] = []
        for _ in range(20):
            with torch.autocast("cuda", torch.bfloat16):
                loss = call(model, tokens[:, 1:], tokens[:, :-1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            found[large].append(float(loss))
    fused, plain = (torch.tensor(found[large]) for large in (0, 1 << 60))
    assert plain[-1] < 0.7 * plain[0], "it should learn"
    torch.testing.assert_close(fused, plain, rtol=0.02, atol=0.01)
