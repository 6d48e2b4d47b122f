"""Cross-entropy fused with the output matrix, against the plain one in float64: loss, gradients, compiled."""

import pytest
import torch
import torch.nn.functional as F

from pencil.core.span import Span
from pencil.families import create
from pencil.train.losses import cross_entropy as losses
from pencil.train.losses.cross_entropy import linear_cross_entropy

TOKENS, WIDTH, VOCAB = 23, 7, 41


def made(dtype=torch.float64, bias=True, ignored=5):
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for n in (TOKENS, VOCAB))
    offset = torch.randn(VOCAB, generator=generator, dtype=torch.float64) if bias else None
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    targets[torch.randperm(TOKENS, generator=generator)[:ignored]] = -100
    given = [t if t is None else t.to(dtype).requires_grad_() for t in (x, weight, offset)]
    return given, targets


def plain(x, weight, bias, targets, smoothing):
    return F.cross_entropy(F.linear(x, weight, bias), targets, label_smoothing=smoothing)


def gradients(loss, given):
    return torch.autograd.grad(loss * 1.7, [t for t in given if t is not None])


@pytest.mark.parametrize("chunk", [1, 6, 11, TOKENS, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_are_those_of_the_plain_loss(bias, smoothing, chunk):
    given, targets = made(bias=bias)
    loss = linear_cross_entropy(*given, targets, smoothing, chunk)
    expected = plain(*given, targets, smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(loss, given), gradients(expected, given), rtol=1e-12, atol=1e-14)
    half, _ = made(torch.float32, bias)
    loss = linear_cross_entropy(*half, targets, smoothing, chunk)
    torch.testing.assert_close(loss, expected.float(), rtol=3e-6, atol=0)
    exact = tuple(g.float() for g in gradients(plain(*given, targets, smoothing), given))
    torch.testing.assert_close(gradients(loss, half), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
def test_every_target_below_zero_is_ignored_by_the_plain_and_the_fused_loss(smoothing):
    (x, weight, bias), targets = made(ignored=11)
    some = targets >= 0
    expected = plain(x[some], weight, bias, targets[some], smoothing)
    targets[~some] = torch.tensor([-1, -2, -99, -100, -101, -(1 << 40), -7, -1, -100, -3, -1])
    logits = F.linear(x, weight, bias)[None]
    found = losses.next_token(logits, targets[None], smoothing)
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(linear_cross_entropy(x, weight, bias, targets, smoothing), expected, rtol=1e-13, atol=0)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient[0, ~some].any()
    assert gradient[0, some].any(-1).all()


@pytest.mark.long
def test_the_gradient_is_that_of_small_differences():
    given, targets = made()
    assert torch.autograd.gradcheck(lambda *g: linear_cross_entropy(*g, targets, 0.1, 6), given)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_only_the_gradients_that_are_wanted_are_computed(frozen):
    given, targets = made()
    given[frozen].requires_grad_(False)
    linear_cross_entropy(*given, targets, chunk=6).backward()
    assert [t.grad is None for t in given] == [i == frozen for i in range(3)]
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(*given, targets), plain(*given, targets, 0.0))


def test_a_matrix_that_is_also_the_token_table_gets_both_gradients():
    (_, weight, _), targets = made(bias=False)
    tokens = torch.arange(TOKENS) % VOCAB
    both = [
        call(F.embedding(tokens, weight).tanh(), weight, None, targets, 0.0) for call in (linear_cross_entropy, plain)
    ]
    torch.testing.assert_close(*(torch.autograd.grad(loss, weight) for loss in both), rtol=1e-12, atol=1e-14)


def test_without_a_target_the_mean_is_no_number_and_the_rows_are_not_read():
    given, targets = made(ignored=TOKENS)
    assert linear_cross_entropy(*given, targets).isnan()
    given, targets = made(ignored=TOKENS - 1)
    loss = linear_cross_entropy(*given, targets, chunk=6)
    torch.testing.assert_close(loss, plain(*given, targets, 0.0))
    (by_x, *_) = gradients(loss, given)
    assert (by_x.abs().sum(-1) > 0).sum() == 1


def test_a_logit_that_is_not_finite_is_seen_in_the_loss():
    given, targets = made(ignored=0)
    given[0].data[7] = float("nan")
    assert linear_cross_entropy(*given, targets, chunk=6).isnan()


def test_under_autocast_products_are_in_half_precision_and_gradients_of_the_matrix_are_not():
    given, targets = made(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(*given, targets, chunk=6)
        expected = F.cross_entropy(F.linear(*given).float(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)  # the same bfloat16 logits
    double = made()[0]
    for got, exact in zip(gradients(loss, given), gradients(plain(*double, targets, 0.0), double), strict=True):
        assert got.dtype == torch.float32
        assert (got - exact).norm() < 2**-7 * exact.norm()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_code_is_one_graph_and_gives_the_same(backend):
    given, targets = made()

    def call(*given):
        return linear_cross_entropy(given[0].sin(), *given[1:], targets, 0.1, 6)

    compiled = torch.compile(call, backend=backend, fullgraph=True)(*given)
    torch.testing.assert_close(compiled, call(*given))
    torch.testing.assert_close(gradients(compiled, given), gradients(call(*given), given))


def test_the_operator_is_what_it_declares():
    given, targets = made()
    torch.library.opcheck(torch.ops.pencil.linear_cross_entropy.default, (*given, targets, 0.1, 6, True, True, True))


def test_the_logits_are_never_held_as_a_whole(monkeypatch):

    seen, kernel = [], losses.softmax_loss_
    monkeypatch.setattr(losses, "softmax_loss_", lambda z, *rest: seen.append(tuple(z.shape)) or kernel(z, *rest))
    given, targets = made()
    linear_cross_entropy(*given, targets, chunk=6).backward()
    assert seen == [(6, VOCAB), (6, VOCAB), (6, VOCAB), (5, VOCAB)]


# one of each kind that ends in logits over a vocabulary, with what its matrix may have: a bias, a factor
IMAGE = dict(image_size=(6, 6), patch=(3, 3), channels=1)
MODELS = {
    "gpt": ("gpt", {}),
    "gpt with a head": ("gpt", dict(tie_embeddings=False, head_bias=True)),
    "captioner": ("captioner", IMAGE),
    "captioner of two widths": ("captioner", IMAGE | dict(text_width=5)),
    "seq2seq": ("seq2seq", {}),
    "reader": ("reader", {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_alike_with_either_loss(name, monkeypatch):
    torch.manual_seed(7)
    kind, values = MODELS[name]
    model = create(kind, dict(width=24, heads=3, depth=2, vocab=VOCAB, context=11, **values)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens, picture = torch.randint(VOCAB, (3, 11)), torch.randn(3, 1, 6, 6, dtype=torch.float64)
    source = torch.randint(VOCAB, (3, 5)), Span.at(torch.arange(5).repeat(3, 1))
    inputs = (tokens, *{"captioner": (picture,), "seq2seq": source}.get(kind, ()))
    targets = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))
    targets[1, 4:] = -100
    parameters = list(model.parameters())
    both = []
    for fused in (False, True):
        monkeypatch.setattr(losses, "fuses", lambda *_, fused=fused: fused)
        loss = losses.token_loss(model, targets, *inputs, smoothing=0.1)
        both.append((loss.double(), *torch.autograd.grad(loss, parameters)))
    # the plain loss is computed from logits in float32
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-7)
    assert not torch.equal(both[0][1], both[1][1])
