"""Training in several processes beside one with as many threads, on the same cores: tokens a second.

`python benchmarks/processes.py --processes 2 --preset nano --steps 60`
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(4000))
SKIPPED = 1  # lines of metrics at the start, while memory is first taken and kernels are chosen


def rate(folder: Path, name: str, words: list[str], threads: int) -> float:
    """Tokens a second: the median of the lines of metrics, which are ten steps each."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "pencil", "train", "gpt", "--data", "text.txt", "--out", name, *words]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr[-2000:])
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    rates = [line["rate"] for line in lines if "rate" in line]
    return statistics.median(rates[SKIPPED:] or rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    count = args.processes
    words = f"--preset {args.preset} --train.batch {args.batch} --train.steps {args.steps} --train.warmup 0".split()
    words += ["--train.eval_every", str(args.steps), "--train.eval_batches", "1", "--train.device", "cpu"]
    several = [*words, "--processes", str(count)]
    rows = {
        "1 process, 1 thread": (words, 1),
        f"1 process, {count} threads": (words, count),
        f"{count} processes, 1 thread each (ddp)": (several, 1),
        f"{count} processes, 1 thread each (fsdp)": ([*several, "--train.parallel", "fsdp"], 1),
        f"{count} processes, 1 thread each (exact)": ([*several, "--train.exact", "true"], 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text.txt").write_text(TEXT)
        print(f"gpt {args.preset}, batch {args.batch}, {os.cpu_count()} cores\n")
        print("| | tokens/s | beside one thread |\n|---|---:|---:|")
        first = 0.0
        for number, (name, (line, threads)) in enumerate(rows.items()):
            found = rate(Path(folder), str(number), line, threads)
            first = first or found
            print(f"| {name} | {found:,.0f} | {found / first:.2f}× |", flush=True)


if __name__ == "__main__":
    main()
