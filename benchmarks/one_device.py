"""What DDP and FSDP2 cost where there is one process: seconds of an update, and on a GPU the memory beside `pencil cost`.

python benchmarks/one_device.py [--preset gpt2] [--batch 64] [--accumulate 1] [--optimizer adamw] [--recompute none]
                                [--compile auto] [--steps 10] [--rounds 5]

Each round trains with each in turn, in another order; a ratio is the median of the rounds' own ratios. With a small
batch the GPU waits for Python, which has more to do with DDP and FSDP2: the ratio is then not theirs. Memory is that of
a process of its own, so that nothing of another training is in it.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pencil.api.run_setup import prepare, train_config
from pencil.cost.count import count
from pencil.cost.memory import train_memory
from pencil.cost.parallel import Plan, device_memory, units_of
from pencil.cost.profile import on_meta
from pencil.device import sync_of, total_memory
from pencil.families import family
from pencil.train.loop.trainer import Trainer
from pencil.train.task import Request

TEXT = "".join(f"line {i}: the pencil draws {i * 7 % 13} strips of {i * 5 % 11}.\n" for i in range(40_000))
CUDA = torch.cuda.is_available()
KINDS = ["auto", "ddp", "fsdp"]
WARM = 3  # updates before the clock starts


def trainer(text: Path, parallel: str, args: argparse.Namespace) -> Trainer:
    record = family("gpt")
    chosen = {
        "batch": args.batch, "accumulate": args.accumulate, "optimizer": args.optimizer, "recompute": args.recompute,
        "compile": args.compile, "parallel": parallel, "steps": 10_000,
    }  # fmt: skip
    config = train_config(record, args.preset, chosen)
    # the preset's own vocabulary, which a small text does not fill
    vocab = {"vocab": record.configure(args.preset).vocab}
    options = record.train_options(tokenizer="char")  # GPT-2's own would need its file
    task = prepare(Request(record, str(text), args.preset, vocab, chosen, options), config).task
    return Trainer(task, None, task.train)  # pyright: ignore[reportArgumentType]


def seconds(text: Path, parallel: str, args: argparse.Namespace) -> float:
    """Of an update."""
    made = trainer(text, parallel, args)
    with made.group:
        for _ in range(WARM):
            made.update()
        if CUDA:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(args.steps):
            made.update()
        if CUDA:
            torch.cuda.synchronize()
        took = (time.perf_counter() - begun) / args.steps
    del made
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
    return took


def memory(text: Path, parallel: str, args: argparse.Namespace) -> dict[str, int]:
    """Bytes at the peak of an update, and those that are counted."""
    made = trainer(text, parallel, args)
    with made.group:
        for _ in range(WARM):
            made.update()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            made.update()
        peak = torch.cuda.max_memory_allocated()
    task: Any = made.task
    record, config = family("gpt"), task.config
    counts = count(record.create, record.cost, config)
    sync = sync_of("auto", sum(counts.parameters.values()), total_memory(torch.device("cuda")))
    # one process has the gradients of DDP, too, as each of several has them
    kind, devices = {"auto": ("ddp", 1), "ddp": ("ddp", 2), "fsdp": ("fsdp", 1)}[parallel]
    plan = Plan(kind, devices, args.accumulate, args.optimizer, dtype="bf16", sync=sync)
    held = train_memory(record.cost, config, counts, args.batch, None, "bf16", True, plan.sharded)
    units = units_of(on_meta(record.create, config))
    counted = device_memory(units, plan, held.activations, args.recompute == "blocks").total
    return {"peak": peak, "counted": counted}


def memory_alone(parallel: str) -> dict[str, int]:
    """`memory` in a process of its own, with this one's options."""
    words = [sys.executable, __file__, *sys.argv[1:], "--memory", parallel]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt2" if CUDA else "nano")
    parser.add_argument("--batch", type=int, default=64 if CUDA else 8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "muon"))
    parser.add_argument("--recompute", default="none", choices=("none", "blocks"))
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(TEXT)
        if args.memory:
            print(json.dumps(memory(text, args.memory, args)))
            return
        bytes_of = {kind: memory_alone(kind) for kind in KINDS} if CUDA else {}
        rounds = [
            {kind: seconds(text, kind, args) for kind in KINDS[:: 1 if number % 2 else -1]}
            for number in range(args.rounds)
        ]
    print(f"gpt {args.preset}, batch {args.batch} × {args.accumulate}, {args.optimizer}, recompute {args.recompute}, "
          f"compile {args.compile}, {torch.cuda.get_device_name() if CUDA else 'CPU'}, torch {torch.__version__}\n")  # fmt: skip
    print("| one process | ms an update | beside none | peak | counted | ratio |\n|---|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        middle = statistics.median(one[kind] for one in rounds)
        ratio = statistics.median(one[kind] / one["auto"] for one in rounds)
        shown = "– | – | –"
        if kind in bytes_of:
            peak, counted = bytes_of[kind]["peak"], bytes_of[kind]["counted"]
            shown = f"{peak / 1e9:.3f} GB | {counted / 1e9:.3f} GB | {counted / peak:.3f}"
        print(f"| {'none' if kind == 'auto' else kind} | {1000 * middle:.2f} | {ratio:.3f} | {shown} |")


if __name__ == "__main__":
    main()
