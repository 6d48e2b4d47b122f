"""What DDP and FSDP2 cost where there is one process: seconds of an update, and on a GPU the memory beside `pencil cost`.

python benchmarks/one_device.py [--preset gpt2] [--batch 64] [--accumulate 1] [--optimizer adamw] [--recompute none]
                                [--compile auto] [--steps 10] [--rounds 5]

Each round trains with each in turn, in another order; a ratio is the median of the rounds' own ratios. With a small
batch the GPU waits for Python, which has more to do with DDP and FSDP2: the ratio is then not theirs.
"""

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pencil.cost.count import count
from pencil.cost.memory import train_memory
from pencil.cost.parallel import Plan, device_memory, units_of
from pencil.cost.profile import on_meta
from pencil.device import sync_of, total_memory
from pencil.families import family
from pencil.families.from_run import prepare
from pencil.families.run_setup import train_config
from pencil.train.loop import Trainer
from pencil.train.task import Request

TEXT = "".join(f"line {i}: the pencil draws {i * 7 % 13} strips of {i * 5 % 11}.\n" for i in range(40_000))
CUDA = torch.cuda.is_available()
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


def measured(text: Path, parallel: str, args: argparse.Namespace) -> tuple[float, int, int]:
    """Seconds of an update, bytes at the peak, and the bytes that are counted."""
    made = trainer(text, parallel, args)
    with made.group:
        for _ in range(WARM):
            made.update()
        if CUDA:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        for _ in range(args.steps):
            made.update()
        if CUDA:
            torch.cuda.synchronize()
        took = (time.perf_counter() - begun) / args.steps
        peak = torch.cuda.max_memory_allocated() if CUDA else 0
    task: Any = made.task
    record, config, dtype = family("gpt"), task.config, "bf16" if CUDA else "fp32"
    del made, task
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
    counts = count(record.create, record.cost, config)
    sync = sync_of("auto", sum(counts.parameters.values()), total_memory(torch.device("cuda" if CUDA else "cpu")))
    plan = Plan("fsdp" if parallel == "fsdp" else "ddp", 1, args.accumulate, args.optimizer, dtype=dtype, sync=sync)
    held = train_memory(record.cost, config, counts, args.batch, None, dtype, CUDA, plan.sharded)
    units = units_of(on_meta(record.create, config))
    return took, peak, device_memory(units, plan, held.activations, args.recompute == "blocks").total


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
    args = parser.parse_args()
    kinds, found = ["auto", "ddp", "fsdp"], []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(TEXT)
        for number in range(args.rounds):
            found.append({kind: measured(text, kind, args) for kind in kinds[:: 1 if number % 2 else -1]})
    print(f"gpt {args.preset}, batch {args.batch} × {args.accumulate}, {args.optimizer}, recompute {args.recompute}, "
          f"compile {args.compile}, {torch.cuda.get_device_name() if CUDA else 'CPU'}, torch {torch.__version__}\n")  # fmt: skip
    print("| one process | ms an update | beside none | peak | counted | ratio |\n|---|---:|---:|---:|---:|---:|")
    for kind in kinds:
        seconds = statistics.median(one[kind][0] for one in found)
        ratio = statistics.median(one[kind][0] / one["auto"][0] for one in found)
        peak, counted = (max(one[kind][i] for one in found) for i in (1, 2))
        memory = f"{peak / 1e9:.3f} GB | {counted / 1e9:.3f} GB | {counted / peak:.3f}" if peak else "– | – | –"
        print(f"| {'none' if kind == 'auto' else kind} | {1000 * seconds:.2f} | {ratio:.3f} | {memory} |")


if __name__ == "__main__":
    main()
