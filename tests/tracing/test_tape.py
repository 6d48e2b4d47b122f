"""The recorder: programs of every sort give the same numbers under it, and every number has its arithmetic."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pencil.config import UserError
from pencil.core.probe import Probe
from pencil.tracing.live_trace import trace
from traced import OURS, disagreeing, drawn, holds, ours, pictures, refused, same, stirred, theirs

IDS = torch.tensor([1, 0, 2])


X, IMAGE = drawn(3, 5), drawn(2, 3, 7, 11, seed=1)


# writing in place


def through_views(x):
    y = x.clone()
    row, column = y[1], y.T[0]
    before = y * 3
    row.mul_(3)
    column += 1
    y[:, ::2] = y[:, 1:4]
    y[y > 0.5] = 0.25
    y[0] = y[2]
    return torch.cat((y * 2, before, row[None], column[None, :].expand(5, 3).T))


def by_index(x):
    y = x.clone()
    y[torch.tensor([0, 2]), torch.tensor([1, 4])] = torch.tensor([5.0, 6.0])
    y[..., 1] = x[:, 0]
    y[[0, 1]] += 1
    y[None, 1:2, 3] = 8
    y.index_copy_(0, torch.tensor([2, 0]), x[:2] * 3)
    y.index_fill_(1, torch.tensor([1]), 9.0)
    return y


def by_mask(x):
    y, seen = x.clone(), x > 0
    y[seen] = x[seen] * 2
    y.masked_scatter_(seen, torch.arange(20.0))
    y.masked_fill_(y < 0, -torch.inf)
    return y


def into_a_buffer(x):
    kept = torch.zeros(2, 4, 5)
    kept[0, :3] = x
    kept[1].narrow(0, 1, 3).copy_(x * 2)
    seen = kept[:, 1:3].sum(0)
    kept.zero_()
    return torch.cat((seen, kept[0]))


def transposed_in_place(x):
    y = x.clone()
    flat = y.view(-1)
    flat[3:9].view(2, 3).zero_()
    flat[0:3].copy_(torch.tensor([1.0, 2, 3]))
    y.t_()
    y.unsqueeze_(0)
    return y * 2


def scattered(x):
    places = IDS[:, None].expand(3, 5)
    return torch.zeros(4, 5).scatter_(0, places, x) + x.new_zeros(4, 5).scatter(0, places, 7.5)


def aside(x):
    into = torch.zeros(3, 5)
    torch.add(x, x, out=into)
    wide = torch.zeros(6, 5)
    torch.cat([x, into], 0, out=wide)
    return wide * 1


def other_kinds(x):
    counts = torch.arange(15).reshape(3, 5)
    counts.copy_(x * 10)
    half = x.bfloat16()
    half.add_(x)
    return counts + half.float()


@pytest.mark.parametrize(
    "program",
    [through_views, by_index, by_mask, into_a_buffer, transposed_in_place, scattered, aside, other_kinds],
    ids=lambda f: f.__name__,
)
def test_writing_in_place(program):
    same(program, X)


def test_what_was_recorded_of_an_input_is_what_it_was():
    """The program changes its own input; the trace shows both states."""

    def program(x):
        before = x * 2
        x.add_(1)
        return before + x

    found = same(program, X)
    np.testing.assert_array_equal(found["x"].value, X.numpy())


VIEWS = [
    lambda x, k: x,
    lambda x, k: x[k % len(x)] if x.ndim > 1 else x,
    lambda x, k: x[k % len(x) :] if x.ndim else x,
    lambda x, k: x[..., ::2] if x.ndim else x,
    lambda x, k: x.transpose(0, -1) if x.ndim else x,
    lambda x, k: x.unsqueeze(0),
    lambda x, k: x.flatten(),
    lambda x, k: x.diagonal() if x.ndim > 1 else x,
    lambda x, k: x.unfold(0, 2, 1) if x.ndim and len(x) > 1 and k % 3 == 0 else x,
]
WRITES = [
    lambda x, y, k: x.mul_(k / 4),
    lambda x, y, k: x.add_(y.sum()),
    lambda x, y, k: x.zero_(),
    lambda x, y, k: x.fill_(k),
    lambda x, y, k: x.copy_(y.flatten()[0].clone()),
    lambda x, y, k: x.clamp_(-k / 5, 1.5),
    lambda x, y, k: x.masked_fill_(x > 0, -k / 8),
    lambda x, y, k: x[..., -1:].neg_() if x.ndim else x.neg_(),
    lambda x, y, k: x.__setitem__(x < 0, 0.5),
    lambda x, y, k: x.sub_(x.flatten()[k % x.numel()].clone()),
]


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), *[st.integers(0, 9)] * 4), min_size=1, max_size=7),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_random_programs_of_writes_through_views(steps, shape):
    start = drawn(*shape, seed=3)

    def program(x):
        pool = [x.clone()]
        for what, i, j, which, k in steps:
            one, other = pool[i % len(pool)], pool[j % len(pool)]
            if not one.numel() or not other.numel():
                continue
            if what == 0:
                pool.append(VIEWS[which % len(VIEWS)](one, k))
            elif what == 1:
                pool.append(one * 2)
            elif not _overlaps_itself(one):
                WRITES[which % len(WRITES)](one, other, k)
        return torch.cat([p.flatten() for p in pool]) + 0.5

    same(program, start, receipts=8)


def _overlaps_itself(x):
    places = sum(i * s for i, s in zip(np.indices(x.shape), x.stride(), strict=True))
    return len(np.unique(places)) != x.numel()


def test_indices_that_were_read_and_then_changed():
    def program(ids, table):
        ids = ids + 0
        twice, rows = ids * 2, F.embedding(ids, table)
        ids.mul_(0)
        return rows + twice[:, None]

    same(program, IDS, drawn(4, 5))


def test_a_move_into_a_given_tensor():
    def stacked(x):
        into = torch.zeros(2, 3, 5)
        torch.stack([x, x + 1], 0, out=into)
        return into * 1

    same(stacked, X)


def test_a_lookup_into_a_given_tensor():
    def chosen(x):
        into = torch.zeros(3, 5)
        torch.index_select(x, 0, IDS, out=into)
        return into * 1

    same(chosen, X)


def test_places_that_are_added_to_are_refused():
    def added(x):
        return x.clone().index_put_((IDS, IDS), x[:, 0], accumulate=True)

    refused(added, X, match="the operation index_put .* has no receipt for places that are added to")


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_scattering_that_adds_is_refused_or_right():
    places = torch.tensor([0, 0, 1])[:, None].expand(3, 5)
    message = "scatter"
    try:
        same(lambda x: torch.zeros(4, 5).scatter(0, places, x, reduce="add"), X)
    except UserError as refusal:
        message = str(refusal)
    assert "scatter" in message


@pytest.mark.parametrize("view_kind", ["complex", "real"])
def test_writing_through_a_complex_view(view_kind):
    def program(x):
        y = x.clone()
        if view_kind == "complex":
            torch.view_as_complex(y).mul_(2j)
            return y * 1
        z = torch.view_as_complex(y)
        z.real.mul_(2)
        return z * 1

    with pytest.raises(UserError, match="complex numbers"):
        trace(program, drawn(3, 2))


# moves

MOVES = {
    "advanced index": lambda x: x[IDS][:, [3, 1]] + x[IDS, IDS][:, None] + x[None, ..., -1].T,
    "mask": lambda x: x[x > 0] * 2,
    "take": lambda x: x.take(torch.tensor([3, 1])) + x.gather(1, torch.tensor([[0, 1], [2, 2]])),
    "along": lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1) * 2,
    "join": lambda x: torch.cat([x, x[:, :2], x[:, :0]], -1) * 2,
    "join with nothing": lambda x: torch.cat([torch.tensor([]), x], 0) * 2,
    "join two kinds": lambda x: torch.cat([x, torch.ones(3, 2, dtype=torch.int64)], -1) * 2,
    "stack": lambda x: torch.stack([x, x * 2], -1) + 1,
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)) * 2,
    "pad less": lambda x: F.pad(x, (-1, 2)) * 2,
    "pad by reflection": lambda x: F.pad(x[None], (1, 2), mode="reflect") * 2,
    "roll": lambda x: x.roll(2, 1).flip(0) * 2 + torch.rot90(x, 2),
    "roll all": lambda x: x.roll(2) * 2,
    "expand": lambda x: x[:, None].expand(3, 4, 5) * 2 + x.repeat(2, 1)[:3][:, None] + x.tile(1, 2)[:, :5][:, None],
    "split": lambda x: torch.cat([c * 2 for c in (*x.chunk(2, 1), *x.split([1, 4], 1), *x.unbind(1)[0][None])[:4]], 1),
    "unfold": lambda x: x.unfold(1, 3, 2) * 2,
    "strides": lambda x: x.as_strided((2, 3), (1, 2), 1) * 2 + x.T.as_strided((2, 3), (1, 2), 1),
    "diagonal": lambda x: x.diagonal(1) * 2,
    "repeat each": lambda x: x.repeat_interleave(3, 1) * 2,
    "pixels": lambda x: F.pixel_shuffle(x[None, :, None, :4].expand(1, 3, 4, 4).repeat(1, 4, 1, 1), 2) * 2,
    "grid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0] + torch.outer(x[0], x[1]),
    "back and forth": lambda x: x.T.reshape(3, 5).permute(1, 0)[None].squeeze(0).movedim(0, 1).contiguous() + 1,
}  # fmt: skip


@pytest.mark.parametrize("program", MOVES.values(), ids=MOVES)
def test_moves(program):
    same(program, X)


def test_repeating_each_as_often_as_a_tensor_counts():
    with pytest.raises(UserError, match="repeat_interleave"):
        trace(lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 0) * 2, X)


def test_padding_with_a_number_that_is_rounded():
    same(lambda x: F.pad(x, (1, 2), value=0.3), X)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.constant_pad_nd(x, [1, 2]) * 2,
        lambda x: F.conv1d(x[None], drawn(2, 3, 4, seed=2), padding="same"),
    ],
)
def test_padding_when_no_number_is_given(program):
    same(program, X)


# arithmetic

ARITHMETIC = {
    "products": lambda x: torch.einsum("ij,kj->ik", x, x) + x @ x[0] @ x[:, 0] + torch.dot(x[0], x[1]),
    "added products": lambda x: torch.addmm(x[0, :3], x, x.T, beta=2, alpha=0.5) + torch.addmv(x[:, 0], x, x[0]),
    "batches": lambda x: torch.baddbmm(x[None, :, :3], x[None], x[None].mT, beta=0.3, alpha=2) @ x[None, None],
    "sums": lambda x: x.sum() + x.mean(1) + x.sum((0, 1)) + x.amax(1) + x.amin() + x.prod(1) + x.logsumexp(1),
    "spreads": lambda x: x.var(1) + x.std(1) + x.var() + torch.var_mean(x, 1)[1] + x.norm(dim=1),
    "powers": lambda x: x**3 + x.abs() ** 0.5 + x.abs() ** 1.7 + 2**x + x.abs() ** x + x**-1 + x**-2,
    "functions": lambda x: x.exp() + x.abs().log() + x.abs().log1p() + x.expm1() + x.abs().rsqrt() + x.sin() + x.cos()
    + x.tan() + x.atan() + x.tanh() + x.sigmoid() + x.sign() + x.floor() + x.ceil() + x.round() - x.square(),
    "activations": lambda x: F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh") + F.relu(x) + F.elu(x) + F.selu(x)
    + F.softplus(x) + F.leaky_relu(x) + F.hardswish(x) + F.hardsigmoid(x) + F.relu6(x * 9) + F.hardtanh(x),
    "in place": lambda x: F.silu(F.relu(x.clone(), inplace=True), inplace=True) * 2,
    "limits": lambda x: x.clamp(-0.3, 0.4) + x.clamp(min=0) + x.clamp(max=torch.zeros(5)) + torch.maximum(x, -x),
    "mixed": lambda x: torch.addcmul(x, x, x, value=0.3) + torch.lerp(x, -x, 0.3)
    + torch.addcdiv(x, x, x.abs() + 1, value=2),
    "choices": lambda x: torch.where(x > 0, x, -1.0).masked_fill(x > 1, -torch.inf) + x.tril() + x.triu(1),
    "truths": lambda x: (x > 0).any(1) | (x > 0).all() & ~(x[:, 0] == 0) ^ (x[:, 1] <= 0),
    "whole numbers": lambda x: torch.arange(-7, 8) // 3 + torch.arange(-7, 8) % 4 + (torch.arange(15) | 3) ** 2,
    "norms": lambda x: F.layer_norm(x, (5,)) + F.layer_norm(x, (3, 5)) + F.rms_norm(x, (5,), x[0], 1e-3)
    + F.layer_norm(x, (5,), x[0], x[1], 1e-3) + F.normalize(x),
    "far from nothing": lambda x: F.layer_norm(1e4 + x, (5,)) + (1e3 + x).var(1, keepdim=True),
    "softmax": lambda x: x.softmax(1) + x.log_softmax(0) + (x * 100).softmax(-1),
    "largest": lambda x: x.max(1)[0] + x.max(1)[1] + x.argmax() + x.min() + x.argmin(1),
    "in order": lambda x: x.topk(3)[0] + x.topk(3)[1] + x.sort(descending=True)[0][:, :3] + x.argsort(descending=True)[:, :3],
    "in rising order": lambda x: x.sort(1)[0] + x.argsort(1) + x.kthvalue(2, 1, keepdim=True)[0] + x.median(1, keepdim=True)[0]
    + x.median() + x.topk(5, largest=False)[0] + x.flatten().sort()[0][4],
    "places": lambda x: (x > 0).nonzero() * 2.5,
    "more activations": lambda x: F.mish(x) + F.celu(x, 0.7) + F.prelu(x, drawn(1)) + F.softshrink(x) + F.hardshrink(x)
    + F.threshold(x, 0.1, 2) + F.logsigmoid(x * 4) + F.rrelu(x) + F.glu(x.repeat(1, 2), 1),
    "more functions": lambda x: x.tanh().asin() + x.tanh().acos() + x.sinh() + x.cosh() + x.erfc() + x.frac() + x.sinc()
    + x.sigmoid().logit() + torch.fmod(x, 0.3) + torch.hypot(x, x) + torch.xlogy(x.abs(), x.abs())
    + torch.logaddexp(x, -x) + torch.atan2(x, -x.flip(1)) + torch.fmin(x, -x),
    "running products": lambda x: x.cumprod(1) + x.cumprod(0),
    "distances": lambda x: x.norm(p=1, dim=1) + x.norm(p=3, dim=1) + x.norm(p=torch.inf, dim=1) + x.norm(p=0, dim=1)
    + torch.cdist(x, x)[0] + torch.cdist(x, x + 1, p=1)[0],
    "distances of many": lambda x: torch.cdist(x.repeat(11, 1), x.flatten()[:, None] - x[0]),
    "counts": lambda x: torch.bucketize(x, torch.linspace(-1, 1, 6)) + torch.bucketize(x, x[0, :1], right=True)
    + F.one_hot((x > 0).long(), 5).sum(-2) + x.count_nonzero(),
    "two by two": lambda x: F.bilinear(x, x, drawn(7, 5, 5), drawn(7)),
    "both ends": lambda x: torch.aminmax(x, dim=1)[0] + torch.aminmax(x)[1] + torch.std_mean(x, 1)[0],
    "made": lambda x: torch.eye(3, 5) + torch.full((3, 5), 0.3) + torch.zeros_like(x) + torch.empty_like(x).fill_(3)
    + torch.arange(0.1, 1.5, 0.3) + torch.linspace(-1, 1, 5),
    "kinds": lambda x: (x * 100).long() + (x * 10).int() + x.bool() + (x / 3).half().float() + (x / 3).bfloat16().double(),
    "read by python": lambda x: x * x.sum().item() + float(x[0, 0]) + len(x),
}  # fmt: skip


@pytest.mark.parametrize("program", ARITHMETIC.values(), ids=ARITHMETIC)
def test_arithmetic(program):
    same(program, X)


@pytest.mark.parametrize("program", [lambda x: torch.addcmul(x, x, x), lambda x: torch.addcdiv(x, x, x.abs() + 1)])
def test_products_added_with_no_number_given(program):
    same(program, X)


def test_nothing_may_be_seen():
    same(lambda x: x.softmax(1), torch.tensor([[-torch.inf] * 3, [0, -torch.inf, 1]]))


def test_running_sums():
    same(lambda x: x.cumsum(0), torch.arange(7))
    same(lambda x: x.cumsum(0), torch.arange(1.0, 8.0))


@pytest.mark.parametrize("x", [torch.tensor([1e6, 0.123, -1e6]), drawn(50).bfloat16()])
def test_running_sums_that_nearly_cancel(x):
    same(lambda x: x.cumsum(0), x)


@pytest.mark.parametrize("program", [lambda x: x.topk(7)[1], lambda x: x.argsort(descending=True)])
def test_the_order_of_equal_numbers(program):
    same(program, torch.zeros(40))


def test_erf_of_small_numbers():
    same(torch.erf, drawn(50))


@pytest.mark.parametrize("how", ["floor", "trunc"])
def test_division_to_whole_numbers(how):
    same(lambda x: torch.div(x, 0.1, rounding_mode=how), torch.arange(50) / 10)


def test_remainders():
    same(lambda x: x % 0.1, torch.arange(50) / 10)


def test_logsumexp_where_nothing_may_be_seen():
    same(lambda x: x.logsumexp(1), torch.full((2, 3), -torch.inf))


def test_truths_added():
    same(lambda x: (x > 0) + (x < 1), X)


def test_silu_far_below_nothing():
    same(F.silu, torch.tensor([-90.0, -100.0, 5.0]))


# rotation by complex numbers


def rotated_by_complex_numbers(x, angles):
    turn = torch.polar(torch.ones_like(angles), angles)
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * turn).flatten(-2)


def test_whole_receipts_of_a_complex_rotation():
    same(rotated_by_complex_numbers, drawn(2, 3, 5, 6), drawn(5, 3, seed=2), receipts=300)


def test_complex_rotation():
    found = same(rotated_by_complex_numbers, drawn(2, 3, 5, 6), drawn(5, 3, seed=2), receipts=0)
    assert {"polar", "view_as_complex", "view_as_real"} <= {n.op for n in found.graph.nodes}
    assert any(n.dtype == "complex64" for n in found.graph.nodes)
    same(
        lambda x: torch.view_as_complex(x).conj() * torch.view_as_complex(x) + torch.view_as_complex(x).abs(),
        drawn(3, 2),
    )
    same(lambda x: torch.view_as_complex(x).real * torch.view_as_complex(x).imag, drawn(3, 2))


# kinds of numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["gpt learned", "gpt grouped", "vit mean", "captioner prefix"])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_models_of_other_kinds_of_numbers(name, dtype):
    model, inputs = ours(name)
    found = trace(model.to(dtype), *(x.to(dtype) if x.is_floating_point() else x for x in inputs))
    assert found.output.dtype == dtype
    holds(found, count=300)
    assert not disagreeing(found, 40)


@pytest.mark.parametrize("name", ["gpt learned", "vit mean"])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast(name):
    model, inputs = ours(name)
    with torch.autocast("cpu", torch.bfloat16):
        found = trace(model, *inputs)
    kinds = {n.dtype for n in found.graph.nodes if n.kind == "dot"}
    assert kinds == {"bfloat16"}
    assert any(n.dtype == "float32" for n in found.graph.nodes)
    holds(found, count=300)
    assert not disagreeing(found, 40)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_what_is_allowed_grows_with_the_coarseness_of_the_numbers():
    bounds = {}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        graph = trace(lambda x: x @ x.T, drawn(5, 7).to(dtype)).graph
        _, allowed = graph.work(graph.names["output"], np.arange(25))
        bounds[dtype] = allowed.max()
    assert list(bounds.values()) == sorted(bounds.values())
    assert bounds[torch.float64] < 1e-13
    assert bounds[torch.bfloat16] < 0.2


# convolutions


@pytest.mark.parametrize("given", [
    dict(), dict(stride=(2, 3)), dict(padding=(1, 2)), dict(stride=2, padding=1, dilation=(1, 2)),
    dict(padding="same"), dict(padding="valid"),
])  # fmt: skip
def test_convolutions(given):
    weight, bias = drawn(5, 3, 3, 3, seed=3), drawn(5, seed=4)
    same(lambda x: F.conv2d(x, weight, bias, **given), IMAGE)


def test_convolutions_along_one_axis_and_three():
    same(lambda x: F.conv1d(x[0], drawn(5, 7, 3), stride=2, padding=1), IMAGE)
    same(lambda x: F.conv3d(x[None], drawn(2, 2, 3, 2, 3)), IMAGE)
    same(lambda x: F.conv2d(x[0], drawn(2, 3, 3, 2)), IMAGE)


def test_batch_norm_that_is_not_training():
    model = stirred(nn.Sequential(nn.Conv1d(3, 5, 3, padding=1), nn.BatchNorm1d(5)))
    model[1].running_mean.copy_(drawn(5))
    found = trace(model, drawn(2, 3, 7))
    with torch.no_grad():
        assert torch.equal(found.output, model(drawn(2, 3, 7)))
    holds(found)


def test_bits_read_as_another_kind_of_number_are_refused():
    refused(lambda x: x.view(torch.int32) + 1, X, match="the operation view .*has no receipt for the same bits")


@pytest.mark.parametrize("program, op", [
    (lambda x: F.fractional_max_pool2d(x[None], 2, output_size=(2, 2)), "fractional_max_pool2d"),
    (lambda x: x.mode(), "mode"), (lambda x: torch.linalg.inv(x[:, :3]), "linalg_inv_ex"),
    (lambda x: x.clone().resize_(2, 5), "resize"),
])  # fmt: skip
def test_other_operations_that_are_refused_by_name(program, op):
    refused(program, X, match=f"the operation [a-z_]*({op}).* has no receipt")


# nothing, and one number


def test_single_numbers():
    same(lambda x: x.sum().softmax(0) + x.sum().cumsum(0) + x.mean().unsqueeze(0)[0] + x.sum().max(), X)
    found = same(lambda x: x * 2, torch.tensor(1.5))
    assert found["output"].shape == ()
    assert float(found["output"]) == 3
    assert str(found["output"].why()).startswith("output = 2·1.5 = 3\nrecorded 3 ✓")
    assert float(found["output"][()]) == 3


@pytest.mark.parametrize(
    "program", [lambda x: x[:0] * 2, lambda x: torch.cat([x[:0], x]) + 1, lambda x: x[:0].softmax(1)]
)
def test_tensors_with_nothing_in_them(program):
    same(program, X)


@pytest.mark.parametrize("program", [lambda x: x[:0].sum() + x, lambda x: x[:, :0] @ x[:, :0].T])
def test_sums_of_nothing(program):
    same(program, X)


# losses

TARGETS = torch.tensor([1, -100, 3])


@pytest.mark.parametrize("program", [
    lambda x: F.cross_entropy(x, TARGETS), lambda x: F.cross_entropy(x, TARGETS, reduction="sum"),
    lambda x: F.cross_entropy(x, IDS, ignore_index=2), lambda x: F.cross_entropy(x, TARGETS, label_smoothing=0.1),
    lambda x: F.cross_entropy(x, x.softmax(1)), lambda x: F.mse_loss(x, x.flip(0)),
    lambda x: F.mse_loss(x, x.flip(0), reduction="none"), lambda x: F.mse_loss(x, x.flip(0), reduction="sum"),
    lambda x: F.l1_loss(x, x.flip(0)), lambda x: F.smooth_l1_loss(x, x.flip(0), beta=0.5),
    lambda x: F.huber_loss(x, x.flip(0)), lambda x: F.soft_margin_loss(x, x.sign()),
    lambda x: F.binary_cross_entropy(x.sigmoid(), x.flip(0).sigmoid(), x.abs()),
    lambda x: F.cross_entropy(x, TARGETS, weight=X[0].abs()), lambda x: F.cross_entropy(x.T[None], TARGETS[None]),
    lambda x: F.cross_entropy(x.T[None], TARGETS[None], X[0].abs(), reduction="none"),
])  # fmt: skip
def test_losses(program):
    same(program, X)


def test_a_loss_of_each():
    same(lambda x: F.cross_entropy(x, TARGETS, reduction="none"), X)


def test_a_loss_of_nothing():
    same(lambda x: F.cross_entropy(x, torch.full((3,), -100)), X)


def test_losses_that_are_refused_by_name():
    refused(lambda x: F.multi_margin_loss(x, IDS), X, match="multi_margin_loss .*has no receipt")
    refused(
        lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=torch.ones(5)),
        X,
        match="has no receipt for a loss",
    )


# what is drawn


def test_noise_is_a_leaf():
    def program(x):
        noise = torch.randn(3, 5)
        kept = torch.bernoulli(torch.full((3, 5), 0.5))
        return x + noise * 0.5 + torch.rand_like(x) + kept + torch.empty(3, 5).normal_()

    found = trace(program, X)
    drawn_by = {n.op for n in found.graph.nodes if n.kind == "noise"}
    assert {"randn", "rand_like", "bernoulli", "normal"} <= drawn_by
    assert all(n.plan is None for n in found.graph.nodes if n.kind == "noise")
    holds(found)
    assert "(drawn at random)" in str(found["randn[1,2]"].why())
    assert "randn[1,2]" in {t.where for t in found["output[1,2]"].why().terms}


def test_dropping_out_on_purpose_is_shown():
    found = trace(lambda x: F.dropout(x, 0.5, training=True), X)
    assert any(n.kind == "noise" or (n.op == "native_dropout" and n.plan is None) for n in found.graph.nodes)
    holds(found)


def test_slopes_that_are_drawn():
    found = trace(lambda x: F.rrelu(x, training=True) * 2, X)
    holds(found)
    assert "rrelu_with_noise.noise[2,2]" in {t.where for t in found["rrelu_with_noise"][2, 2].why().terms}


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(5, 7), nn.Dropout(0.9), nn.Linear(7, 3)

    def forward(self, x):
        return self.b(F.dropout(self.drop(self.a(x)), 0.9, self.training))


def test_dropout_does_nothing_and_training_flags_come_back():
    model = Dropping().train()
    model.b.eval()
    flags = [m.training for m in model.modules()]
    found = trace(model, X)
    assert [m.training for m in model.modules()] == flags
    assert not [n.op for n in found.graph.nodes if "dropout" in n.op or "bernoulli" in n.op]
    with torch.no_grad():
        assert torch.equal(found.output, model.eval()(X))


# tracing changes nothing


@pytest.mark.parametrize("name", OURS)
def test_the_answer_is_that_of_the_plain_route_to_the_last_bit(name):
    model, inputs = ours(name)
    with torch.no_grad():
        plain = model(*inputs, probe=Probe("*.scores", "*.pattern"))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    copies = [x.clone() for x in inputs]
    assert torch.equal(trace(model, *inputs).output, plain)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(copies, inputs, strict=True))
    with torch.no_grad():
        assert torch.equal(model(*inputs, probe=Probe("*.scores", "*.pattern")), plain)


def state(model):
    return (
        [m.training for m in model.modules()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.utils._python_dispatch._len_torch_dispatch_stack(),
    )


class Breaking(Dropping):
    def forward(self, x):
        y = self.drop(self.a(x))
        if y.shape[0] == 3:
            raise RuntimeError("broken inside")
        return torch.linalg.inv(y)


@pytest.mark.parametrize("rows, error", [(3, RuntimeError), (7, UserError)])
@pytest.mark.parametrize("fast", [True, False])
def test_all_is_as_it_was_after_a_failure(rows, error, fast):
    model = Breaking().train()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        before = state(model)
        with pytest.raises(error):
            trace(model, drawn(rows, 5))
        assert state(model) == before
        assert torch.backends.mha.get_fastpath_enabled() is fast
        assert (drawn(2, 2) * 2).shape == (2, 2)  # no tape is left on
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_all_is_as_it_was_after_tracing():
    model, inputs = ours("vit class")
    model.train()
    before = state(model)
    trace(model, *inputs)
    assert state(model) == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_hooks_of_the_user_still_fire():
    model, seen = Dropping(), []
    model.a.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    trace(model, X)
    assert seen == [(3, 7)]


def test_gradients_are_possible_after_tracing():
    model, inputs = ours("gpt learned")
    trace(model, *inputs)
    model(*inputs).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_compiled_model_is_traced_uncompiled():
    model, inputs = ours("vit mean")
    found = trace(torch.compile(model), *inputs)
    assert torch.equal(found.output, trace(model, *inputs).output)
    assert "blocks.0.attn.pattern" in found.names


def test_transformers_own_gelu_written_in_python():
    """It calls erf by itself."""
    import transformers

    model, _, given = theirs("bert")
    config = model.config
    config.hidden_act = "gelu_python"
    found = trace(stirred(transformers.BertForMaskedLM(config)), **given)
    assert "erf" in {n.op for n in found.graph.nodes}
    holds(found)


def test_pictures_of_several_sizes_in_one_batch_of_traces():
    """Two traces alive at once do not share anything."""
    model, _ = ours("vit class")
    one, two = trace(model, pictures(1, seed=3)), trace(model, pictures(1, seed=4))
    assert not np.array_equal(one["logits"].value, two["logits"].value)
    assert not disagreeing(one, 20) + disagreeing(two, 20)
