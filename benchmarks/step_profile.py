"""Where the time of one training step goes: every GPU kernel above 1 %, and the least it could take.

python benchmarks/step_profile.py [--model gpt|vit|dit] [--batch N] [--eager] [--trace FILE]          (needs a CUDA GPU)

gpt is GPT-2 124M at 64 × 1024 tokens, vit ViT-B/16 at 128 images, dit DiT-XL/2 at 32 latents: forward, backward, the
clipping of the gradient and a fused AdamW, float32 weights under bfloat16 autocast, compiled. A product's least time is
at the matmul rate, another kernel's at the bandwidth for its arguments, each read or written once; both ceilings are
measured first. The table is markdown.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pencil.families import family
from pencil.train.losses.cross_entropy import token_loss

MODELS = {"gpt": ("gpt2", 64), "vit": ("b/16", 128), "dit": ("xl/2", 32)}
BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "long int": 8, "long": 8, "int": 4, "bool": 1,
         "unsigned char": 1}  # fmt: skip
STEPS = 5


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of a matmul in bfloat16, and bytes/s of memory."""

    flops: float
    bytes: float


@dataclass
class Kernel:
    """One kernel on inputs of the same shapes: its time and calls a step, and its work in a call."""

    name: str
    what: str
    flops: float
    bytes: float
    ms: float = 0.0
    calls: float = 0.0

    def least(self, ceilings: Ceilings) -> float:
        """Milliseconds a step at the ceilings."""
        return self.calls * max(self.flops / ceilings.flops, self.bytes / ceilings.bytes) * 1e3

    def rate(self) -> str:
        if self.flops:
            return f"{self.calls * self.flops / self.ms / 1e9:.0f} TFLOP/s"
        return f"{self.calls * self.bytes / self.ms / 1e9:.2f} TB/s" if self.bytes else ""


def work_of(op: dict[str, Any], causal: bool, parameters: int) -> tuple[str, float, float]:
    """In words what an operation computes, its FLOPs and its bytes, by the shapes of its inputs."""
    name, given = op["name"], op.get("args", {})
    dims = [d for d in given.get("Input Dims", []) if isinstance(d, list)]
    kinds = given.get("Input type", [])
    sizes = [prod(d) * BYTES.get(kind, 0) for d, kind in zip(given.get("Input Dims", []), kinds, strict=False) if d]
    moved = float(sum(size for size in sizes if isinstance(size, int)))
    flat = [d for d in dims if d and all(isinstance(n, int) for n in d)]
    if name in ("aten::mm", "aten::addmm", "aten::bmm"):
        pair = [d for d in flat if len(d) == (3 if name == "aten::bmm" else 2)]
        # a bias may come before the two matrices, and the output after them
        a, b = next(both for both in pairwise(pair) if both[0][-1] == both[1][-2])
        return f"{name[6:]} {'×'.join(map(str, a))} · {'×'.join(map(str, b))}", 2.0 * prod(a) * b[-1], 0.0
    if "attention" in name and (heads := next((d for d in flat if len(d) == 4), None)):
        length = max(heads[1:3])
        products = 2.5 if "backward" in name else 1.0
        flops = 4.0 * prod(heads) * length * products / (2 if causal else 1)
        return f"attention {'backward' if products > 1 else 'forward'} {'×'.join(map(str, heads))}", flops, 0.0
    if name.endswith("linear_cross_entropy"):
        rows, vocab = prod(flat[0][:-1]), flat[1][0]
        return f"cross-entropy of {rows:,} × {vocab:,} logits, and its gradient", 0.0, 4.0 * rows * vocab
    if "fused_adam" in name:
        return f"AdamW of {parameters:,} parameters", 0.0, 28.0 * parameters
    return f"{name.removeprefix('aten::')}", 0.0, moved


def kernels_of(trace: list[dict[str, Any]], steps: int, causal: bool, parameters: int) -> list[Kernel]:
    """The kernels of a profiler's trace, by name and by what launched them."""
    ops = {e["args"]["External id"]: e for e in trace
           if e.get("cat") in ("cpu_op", "user_annotation") and "External id" in e.get("args", {})}  # fmt: skip
    launched = defaultdict(list)
    for event in trace:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            launched[event.get("args", {}).get("External id")].append(event)
    found: dict[tuple[str, str], Kernel] = {}
    for place, events in launched.items():
        what, flops, moved = work_of(ops.get(place, {"name": ""}), causal, parameters)
        times = Counter()
        for event in events:
            times[event["name"]] += event["dur"]
        main = max(times, key=lambda name: times[name])  # the work of an operation is that of its longest kernel
        share = sum(event["name"] == main for event in events)
        for event in events:
            work = (flops / share, moved / share) if event["name"] == main else (0.0, 0.0)
            one = found.setdefault((event["name"], what), Kernel(event["name"], what, *work))
            one.ms += event["dur"] / 1e3 / steps
            one.calls += 1 / steps
    return sorted(found.values(), key=lambda one: -one.ms)


def short(name: str) -> str:
    """A kernel's name without its template arguments."""
    name = re.sub(r"<.*|\(.*", "", name.removeprefix("void ")).split("::")[-1]
    return name if len(name) <= 48 else name[:47] + "…"


def table(kernels: list[Kernel], wall: float, ceilings: Ceilings) -> str:
    busy = sum(one.ms for one in kernels)
    rows = [
        "| kernel | what | calls | ms | share | rate | least ms | over it ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    small = [one for one in kernels if one.ms < 0.01 * busy]
    for one in kernels:
        if one in small:
            continue
        least = one.least(ceilings)
        rows.append(f"| `{short(one.name)}` | {one.what} | {one.calls:g} | {one.ms:.2f} | {one.ms / wall:.1%} | "
                    f"{one.rate()} | {least:.2f} | {one.ms - least:.2f} |" if least else
                    f"| `{short(one.name)}` | {one.what} | {one.calls:g} | {one.ms:.2f} | {one.ms / wall:.1%} | | | |")  # fmt: skip
    rest, idle = sum(one.ms for one in small), max(0.0, wall - busy)
    rows.append(f"| {len(small)} others | under 1 % each | | {rest:.2f} | {rest / wall:.1%} | | | |")
    rows.append(f"| none | the GPU waits | | {idle:.2f} | {idle / wall:.1%} | | 0 | {idle:.2f} |")
    rows.append(f"| all | one step | | {wall:.2f} | 100 % | | | |")
    return "\n".join(rows)


def seconds(call: Callable[[], object], repeats: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def measure_ceilings() -> Ceilings:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    big, other = (torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in "ab")
    seconds(lambda: a @ b, 5)
    flops = 2 * 8192**3 / min(seconds(lambda: a @ b, 10) for _ in range(5))
    return Ceilings(flops, 2 * big.numel() / min(seconds(lambda: big.copy_(other), 10) for _ in range(5)))


def make_step(name: str, batch: int, compiled: bool) -> tuple[Callable[[], None], nn.Module]:
    torch.manual_seed(0)
    record = family(name)
    model = record.create(record.configure(MODELS[name][0])).cuda().train()
    given = [torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 3) for x in model.example(batch)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    target = torch.randint(3, (batch,), device="cuda")

    def loss() -> Tensor:
        if name == "gpt":
            return token_loss(model, given[0], given[0])
        output = model(*given)
        return F.cross_entropy(output.float(), target) if name == "vit" else output.float().square().mean()

    call = torch.compile(loss) if compiled else loss

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = call()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", choices=MODELS, default="gpt")
    words.add_argument("--batch", type=int)
    words.add_argument("--eager", action="store_true", help="nothing is compiled")
    words.add_argument("--trace", type=Path, help="keep the profiler's trace in this file (for chrome://tracing)")
    options = words.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU")
    torch.set_float32_matmul_precision("high")
    ceilings = measure_ceilings()
    torch.cuda.empty_cache()
    batch = options.batch or MODELS[options.model][1]
    step, model = make_step(options.model, batch, not options.eager)
    for _ in range(5):
        step()
    torch.cuda.reset_peak_memory_stats()
    wall = min(seconds(step, 10) for _ in range(3)) * 1e3
    peak = torch.cuda.max_memory_allocated() / 1e9
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = options.trace or Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        trace = json.loads(file.read_text())["traceEvents"]
    parameters = sum(p.numel() for p in model.parameters())
    kernels = kernels_of(trace, STEPS, options.model == "gpt", parameters)
    print(f"{options.model} {MODELS[options.model][0]}, batch {batch}, {parameters:,} parameters, {peak:.1f} GB, "
          f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ceilings {ceilings.flops / 1e12:.0f} TFLOP/s, "
          f"{ceilings.bytes / 1e12:.2f} TB/s\n")  # fmt: skip
    print(table(kernels, wall, ceilings))


if __name__ == "__main__":
    main()
