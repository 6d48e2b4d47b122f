"""Microseconds per token of the persistent decode kernel, by the number of copies each multiprocessor keeps in flight.

    python benchmarks/decode_flight.py [--models gpt2-xl llama3-8b] [--batches 1 4] [--flights 1 2 3 4 32]

A GPT-2 is measured with its own blocks and with LLaMA's blocks of the same size. Each time is the median of rounds that
alternate between the numbers. The logits must be equal bit by bit: the number changes only when weights are copied.
"""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch

from pencil.bench.decode import as_llama
from pencil.families.gpt import FAMILY
from pencil.inference.persistent import NoKernel, PersistentStep
from pencil.models.gpt import GPT

CACHED = 200  # tokens in the cache of every sequence
ROUNDS, LAUNCHES = 7, 20
_GPT2 = dict(vocab=50257, context=1024, positions="learned", bias=True, activation="gelu-tanh")
_LLAMA = dict(context=8192, norm="rms", activation="swiglu", kv_heads=8)
SIZES: dict[str, dict[str, Any]] = {
    "1.2 B, LLaMA's blocks": dict(vocab=128256, width=2048, depth=16, heads=32, hidden=8192, **_LLAMA),
    "3.2 B, LLaMA's blocks": dict(vocab=128256, width=3072, depth=28, heads=24, hidden=8192, **_LLAMA),
    "2.6 B, GPT-2's blocks": dict(width=2560, depth=32, heads=20, **_GPT2),
    "6.7 B, GPT-2's blocks": dict(width=4096, depth=32, heads=32, **_GPT2),
}
PRESETS = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama3-8b"]


def configs(names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        config = FAMILY.configure(None, **SIZES[name]) if name in SIZES else FAMILY.configure(name, dropout=0.0)
        yield name, config
        if name.startswith("gpt2"):
            yield f"{name} with LLaMA's blocks", as_llama(config)


def built(config: Any) -> GPT:
    """A model in bfloat16 on the GPU, without a copy in float32."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPT(config).eval()
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def measured(model: GPT, batch: int, wanted: list[int]) -> tuple[dict[int, float], int]:
    """Microseconds by the copies in flight, and the number that is chosen."""
    vocab = model.config.vocab
    cache = model.new_cache(batch, 512)
    model(torch.randint(vocab, (batch, CACHED), device="cuda"), cache=cache, last=True)
    tokens = torch.randint(vocab, (batch, 1), device="cuda")
    active = torch.ones(batch, dtype=torch.bool, device="cuda")
    chosen = PersistentStep(model, cache, tokens, active)

    def step_with(flight: int) -> PersistentStep:
        torch.zeros(1, device="cuda")  # makes PyTorch's CUDA context the current one of this thread
        return PersistentStep(model, cache, tokens, active, flight)

    flights = sorted({min(one, chosen.stages) for one in [*wanted, chosen.flight]})
    with ThreadPoolExecutor() as threads:  # compiling takes seconds, and releases the interpreter's lock
        steps = dict(zip(flights, threads.map(step_with, flights), strict=True))
    first, times = None, {flight: [] for flight in flights}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for turn in range(ROUNDS + 1):  # the first is a warm-up
        for flight, step in steps.items():
            cache.used.fill_(CACHED)  # every launch does the same work
            logits = step().clone()
            first = logits if first is None else first
            assert torch.equal(logits, first), f"other logits with {flight} copies in flight"
            begin.record()
            for _ in range(LAUNCHES):
                step()
            end.record()
            end.synchronize()
            if turn:
                times[flight].append(1000 * begin.elapsed_time(end) / LAUNCHES)
    return {flight: median(found) for flight, found in times.items()}, chosen.flight


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*PRESETS, *SIZES], help=f"presets of gpt, or {list(SIZES)}")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--flights", nargs="+", type=int, default=[1, 2, 3, 4, 32])
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        sys.exit("this benchmark needs a CUDA GPU of compute capability 9.0 or higher")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {CACHED} tokens in the cache\n")
    print(
        "| model | sequences | µs per token, by copies in flight | chosen | beside the fastest |\n|---|---|---|---|---|"
    )
    for name, config in configs(options.models):
        model = built(config)
        for batch in options.batches:
            try:
                times, chosen = measured(model, batch, options.flights)
            except NoKernel:
                continue  # decoded by the captured step
            listed = ", ".join(f"{flight}: {time:,.0f}" for flight, time in times.items())
            ratio = times[chosen] / min(times.values())
            print(f"| {name} | {batch} | {listed} | {chosen} | {ratio:.3f} |", flush=True)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
