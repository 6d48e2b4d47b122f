"""The loss fused with the output matrix against the plain one: whole training steps of GPT-2 124M, timed in turn.

python benchmarks/loss.py                                        (64 × 1024 tokens, bfloat16, compiled; on a GPU)
python benchmarks/loss.py --preset nano --batch 2 --vocab 331 --rounds 2 --chunks 16,64 --eager  (a quick check anywhere)

A step is forward, backward, the clipping of the gradient and a fused AdamW, float32 weights under bfloat16 autocast,
as `pencil train` has it; on a CPU all in float32. Peak memory is that of a step. The second table is the loss alone, forward and backward, with
the least its three products could take at the matmul rate that is measured in the same run.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from pencil.families import create
from pencil.models.gpt import PRESETS
from pencil.train.losses import cross_entropy as losses
from pencil.train.losses.cross_entropy import linear_cross_entropy, next_token

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def plain(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return next_token(model(tokens), targets)


def fused(chunk: int, model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return linear_cross_entropy(model.hidden(tokens), *model.output_matrix, targets, chunk=chunk)


def step(loss: Callable[..., Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> None:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
        value = loss(model, *batch)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def alone(loss: Callable[[Tensor], Tensor], hidden: Tensor, weight: Tensor) -> None:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
        value = loss(hidden)
    value.backward()
    hidden.grad = weight.grad = None


def seconds(call: Callable[[], object], repeats: int) -> float:
    if CUDA:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    if CUDA:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def peak(call: Callable[[], object]) -> float:
    """Gigabytes at most during a call."""
    if not CUDA:
        return float("nan")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def compare(variants: dict[str, Callable[[], object]], rounds: int, repeats: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of each variant, the median of rounds in turn; and its peak memory. One that fails is named and left."""
    memory = {}
    for name, call in list(variants.items()):
        begun = time.perf_counter()
        try:
            for _ in range(3):
                call()
            memory[name] = peak(call)
        except Exception as error:
            print(f"{name} failed: {str(error).splitlines()[0][:200]}", file=sys.stderr)
            del variants[name]
            continue
        print(f"{name}: warm after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            times[name].append(seconds(call, repeats))
    for name in variants:
        yield name, statistics.median(times[name]), memory[name]


def matmul_rate() -> float:
    """FLOP/s of a large square product in bfloat16, or float32 on a CPU."""
    n, dtype = (8192, torch.bfloat16) if CUDA else (256, torch.float32)
    a, b = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in "ab")
    seconds(lambda: a @ b, 3)
    return 2 * n**3 / min(seconds(lambda: a @ b, 10) for _ in range(5))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--preset", default="gpt2", choices=PRESETS)
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--vocab", type=int, help="another vocabulary, for instance 50304")
    words.add_argument("--chunks", default="2048,4096,8192,16384,32768", help="tokens of a chunk")
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--eager", action="store_true", help="nothing is compiled")
    words.add_argument("--mode", action="append", help="a mode of torch.compile to try with the fused loss as well")
    words.add_argument("--alone", action="store_true", help="only the second table")
    options = words.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    values = PRESETS[options.preset] | ({} if options.vocab is None else {"vocab": options.vocab})
    model = create("gpt", values).to(DEVICE).train()
    c, chunks = model.config, [int(n) for n in options.chunks.split(",")]
    both = torch.randint(c.vocab, (options.batch, c.context + 1), device=DEVICE)
    batch = [both[:, :-1].contiguous(), both[:, 1:].contiguous()]
    tokens = batch[0].numel()
    where = torch.cuda.get_device_name() if CUDA else "CPU"
    print(f"{options.preset}, {options.batch} × {c.context} tokens, vocabulary {c.vocab}, {where}, {torch.__version__}")
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
        few = [part[:4] for part in batch]
        print(f"the loss of 4 rows: plain {plain(model, *few):.6f}, fused {fused(chunks[0], model, *few):.6f}\n")

    if not options.alone:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        compiled = (
            (lambda call, mode=None: call)
            if options.eager
            else (lambda call, mode=None: torch.compile(call, mode=mode))
        )
        calls = {"plain": compiled(plain)}
        calls |= {f"fused, chunks of {n:,}": compiled(partial(fused, n)) for n in chunks}
        calls |= {f"fused, chunks of {losses.CHUNK:,}, {mode}": compiled(partial(fused, losses.CHUNK), mode)
                  for mode in options.mode or ()}  # fmt: skip
        steps = {name: partial(step, call, model, optimizer, batch) for name, call in calls.items()}
        print("| loss | ms a step | tokens/s | against plain | peak GB |\n|---|---|---|---|---|")
        base = None
        for name, took, memory in compare(steps, options.rounds, options.repeats):
            base = base or took
            print(
                f"| {name} | {took * 1e3:.1f} | {tokens / took:,.0f} | {base / took:.3f}× | {memory:.1f} |", flush=True
            )
        del optimizer
        model.zero_grad(set_to_none=True)

    rate = matmul_rate()
    least = 6 * tokens * c.width * c.vocab / rate
    print(f"\nThe loss alone: at least {least * 1e3:.1f} ms at the measured {rate / 1e12:.0f} TFLOP/s of a matmul\n")
    weight, bias = model.output_matrix
    hidden = torch.randn(tokens, c.width, device=DEVICE, requires_grad=True)
    targets = batch[1].flatten()
    by_hand = {
        "plain": torch.compile(lambda x: next_token(nn.functional.linear(x, weight, bias)[None], targets[None]))
        if not options.eager else lambda x: next_token(nn.functional.linear(x, weight, bias)[None], targets[None]),
        **{f"fused, chunks of {n:,}": lambda x, n=n: linear_cross_entropy(x, weight, bias, targets, chunk=n)
           for n in chunks},
    }  # fmt: skip
    calls = {name: partial(alone, call, hidden, weight) for name, call in by_hand.items()}
    print("| loss alone | ms | of the least | peak GB |\n|---|---|---|---|")
    for name, took, memory in compare(calls, options.rounds, options.repeats):
        print(f"| {name} | {took * 1e3:.2f} | {took / least:.2f}× | {memory:.1f} |", flush=True)


if __name__ == "__main__":
    main()
