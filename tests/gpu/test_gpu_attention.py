"""Attention on a GPU: every mask's fused route against float64, with gradients and shared key-value heads."""

import pytest
import torch

from conftest import unchecked
from pencil.core.attention import attend
from pencil.core.masks import NOWHERE, causal, full, prefix, window
from pencil.core.probe import Probe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
MASKS = {"full": full, "causal": causal, "prefix": prefix(97), "window": causal & window(61)}
LENGTH = 251


@pytest.fixture(autouse=True)
def without_checks():
    torch.compiler.reset()
    torch.manual_seed(0)
    with unchecked():
        yield


def results(base, seen, dtype, *probe):
    q, k, v = (t.to(dtype).detach().requires_grad_() for t in base[:3])
    z = attend(q, k, v, seen, None, None, 0.0, *probe)
    return [t.double() for t in (z, *torch.autograd.grad(z, (q, k, v), base[3].to(dtype)))]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", MASKS)
def test_a_fused_route_is_the_plain_one(name, groups):
    base = [torch.randn(2, heads, LENGTH, 64, device="cuda") for heads in (6, 6 // groups, 6 // groups, 6)]
    seen = MASKS[name].over(torch.arange(LENGTH, device="cuda")[None], start=0)
    exact = results(base, seen, torch.float64, Probe())
    # float32 products may be TF32, of ten bits; bfloat16 has seven
    for dtype, bits in ((torch.float32, 10), (torch.bfloat16, 7)):
        for found, expected in zip(results(base, seen, dtype), exact, strict=True):
            assert (found - expected).norm() <= 2 * 2**-bits * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_whose_keys_are_all_masked_gives_zeros(dtype):
    allowed = torch.rand(2, 6, 40, 50, device="cuda") < 0.4
    allowed[:, :, 7] = False
    q, k, v = (torch.randn(2, 6, n, 64, device="cuda", dtype=dtype, requires_grad=True) for n in (40, 50, 50))
    z = attend(q, k, v, allowed)
    assert (z[:, :, 7] == 0).all()
    assert all(t.isfinite().all() for t in torch.autograd.grad(z.sum(), (q, k, v)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "heads, groups, width, bounds",
    [(5, 5, 64, (0, NOWHERE)), (6, 2, 24, (0, 17)), (7, 1, 80, (11, NOWHERE)), (48, 2, 128, (0, NOWHERE))],
)
def test_the_kernel_of_decode_steps_attends_to_the_filled_slots(heads, groups, width, bounds, dtype):
    pytest.importorskip("triton", reason="triton is not installed")
    from pencil.inference.decode_attention import attend_rows

    batch, slots, most = 5, 331, 307
    held = torch.tensor([1, 64, 307, 130, 203], device="cuda")
    at = torch.arange(slots, device="cuda")[None]
    key_index = torch.where(at < held[:, None], at, NOWHERE)[:, :most]
    index = (held - 1)[:, None].clone()
    # keys and values are parts of a larger store, and the queries of a joined product; what is not filled is no number
    store = torch.randn(2, batch, groups, slots, width, device="cuda", dtype=dtype)
    store.masked_fill_((at >= held[:, None])[:, None, :, None], torch.nan)
    k, v = store[:, :, :, :most]
    joined = torch.randn(batch, 1, (heads + 3) * width, device="cuda", dtype=dtype)
    q = joined[..., : heads * width].unflatten(-1, (heads, width)).transpose(1, 2)
    found = attend_rows(q, k, v, width**-0.5, index, key_index, held, *bounds)
    near = (
        (index - key_index < bounds[1])
        & ((key_index <= index) | (key_index < bounds[0]))
        & (at[:, :most] < held[:, None])
    )
    wide = [t.double().nan_to_num().repeat_interleave(heads // groups, 1) for t in (k, v)]
    scores = (q.double() @ wide[0].mT * width**-0.5).masked_fill(~near[:, None, None], -torch.inf)
    exact = scores.softmax(-1) @ wide[1]
    bits = {torch.float32: 20, torch.float16: 10, torch.bfloat16: 7}[dtype]
    assert (found.double() - exact).norm() <= 2 * 2**-bits * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_decode_steps_writes_each_row_into_its_slot(dtype):
    pytest.importorskip("triton", reason="triton is not installed")
    from pencil.inference.decode_attention import write_rows

    batch, groups, length, width = 5, 7, 31, 24
    store = torch.randn(2, 3, batch, groups, length + 1, width, device="cuda", dtype=dtype)
    expected = store.clone()
    joined = torch.randn(batch, 1, 3 * groups * width, device="cuda", dtype=torch.float32)
    k, v = (part.unflatten(-1, (groups, width)).transpose(1, 2) for part in joined.chunk(3, -1)[1:])
    slots = torch.tensor([[0], [31], [17], [5], [30]], device="cuda")
    write_rows(*store[:, 1], k, v, slots)
    rows = torch.arange(batch, device="cuda")[:, None]
    for held, new in zip(expected[:, 1], (k, v), strict=True):
        held[rows, :, slots] = new.transpose(1, 2).to(dtype)
    assert torch.equal(store, expected)
