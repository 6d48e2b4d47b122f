"""Attention under each mask on one GPU: every route against float64, then its time beside the causal kernel's.

python benchmarks/masks.py
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pencil.core.attention import attend
from pencil.core.masks import Seen, causal, full, padding, prefix, window
from pencil.core.probe import Probe

if not torch.cuda.is_available():
    sys.exit("this benchmark needs a CUDA GPU")


def check() -> None:
    """Relative error of the fused and the plain route against float64, gradients too."""
    worst = 0.0
    for name, mask in (("full", full), ("causal", causal), ("prefix", prefix(97)), ("window", causal & window(61))):
        for groups in (1, 3):
            torch.manual_seed(0)
            length = 251
            shapes = [(2, 6, length, 64), (2, 6 // groups, length, 64), (2, 6 // groups, length, 64)]
            base = [torch.randn(s, device="cuda") for s in shapes]
            weight = torch.randn(2, 6, length, 64, device="cuda")
            seen = mask.over(torch.arange(length, device="cuda")[None], start=0)
            results = {}
            for route, dtype, probe in (
                ("exact", torch.float64, [Probe()]),
                ("fused", torch.float32, []),
                ("bf16", torch.bfloat16, []),
            ):
                q, k, v = (t.detach().clone().to(dtype).requires_grad_() for t in base)
                z = attend(q, k, v, seen, None, None, 0.0, *probe)
                z.backward(weight.to(dtype))
                results[route] = [t.double() for t in (z, q.grad, k.grad, v.grad)]
            for route in ("fused", "bf16"):
                errors = [
                    ((a - b).norm() / b.norm()).item() for a, b in zip(results[route], results["exact"], strict=True)
                ]
                print(f"{name:8} groups {groups}  {seen.route:7} {route:6} relative error {max(errors):.1e}")
                worst = max(worst, max(errors) if route == "fused" else 0)
    allowed = torch.rand(2, 6, 40, 50, device="cuda") < 0.4
    allowed[:, :, 7] = False
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(2, 6, n, 64, device="cuda", dtype=dtype, requires_grad=True) for n in (40, 50, 50))
        z = attend(q, k, v, allowed)
        z.sum().backward()
        assert (z[:, :, 7] == 0).all()
        assert all(t.grad.isfinite().all() for t in (q, k, v))
    print("a fully masked row: zeros, finite gradients")
    assert worst < 2e-3, worst


def milliseconds(call, repeats: int = 50) -> float:
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        torch.cuda._sleep(10_000_000)  # keep the GPU busy while the calls queue up: kernels are timed, not launches
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def time_routes() -> None:
    torch.compiler.reset()
    batch, heads, length, width = 32, 12, 512, 64
    q, k, v = (
        torch.randn(batch, heads, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
    )
    weight = torch.randn_like(q)
    index = torch.arange(length, device="cuda")[None]

    def step(seen: Seen):
        def call():
            torch.autograd.grad(attend(q, k, v, seen), (q, k, v), weight)

        return call

    def floor():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), weight)

    base = milliseconds(floor)
    print(f"\n{batch}×{heads}×{length}×{width} bf16, forward and backward; the causal flash kernel {base:.3f} ms = 1")
    for mask in (causal, full, prefix(256), causal & window(128), full & padding):
        seen = mask.over(index, start=0)
        print(f"  {mask.name:24} {seen.route:7} {milliseconds(step(seen)) / base:.2f}")
        if seen.route == "blocks":
            print(f"  {'':24} {'dense':7} {milliseconds(step(Seen.dense(seen.matrix()))) / base:.2f}")


check()
time_routes()
