"""Kill -9 at random moments of a training, in several families.

After each kill the run must be whole; at the end it must equal, bit for bit, one that was never killed.
`python benchmarks/survival/kills.py --kills 200`
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch._dynamo  # noqa: F401  optimizers import it at their first step: here, once for all processes
from safetensors import safe_open

from pencil.api.loading import open_run
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.api.verifying import verify_run
from pencil.config import build
from pencil.runs import snapshots
from pencil.train.loop import checkpoint
from pencil.train.loop import trainer as loop
from pencil.train.loop.report import Metrics
from pencil.train.settings import TrainConfig

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(300))
SIZES = dict(width=12, depth=1, heads=3)
FAMILIES = {
    "gpt": ("text", dict(context=17, **SIZES)),
    "vit": ("digits", SIZES),
    "seq2seq": ("pairs", SIZES),
    "reader": ("text", dict(context=17, **SIZES)),
    "dit": ("digits", SIZES),
}
STEPS = 10**6  # more than are made before the last kill, with a rate that does not depend on how many there are
PACE = dict(steps=STEPS, batch=5, save_every=3, eval_every=25, eval_batches=1, warmup=0, schedule="constant")
REST = 7  # steps after the last kill


def start(work: Callable[[], None], log: Path) -> int:
    """Do the work in a process of its own, which has everything imported already; its number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 2)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(work: Callable[[], None], log: Path) -> None:
    if os.waitpid(start(work, log), 0)[1]:
        raise SystemExit(f"a training failed; {log} ends with: {log.read_text()[-1500:]}")


def create(name: str, out: Path, data: dict[str, Path]) -> None:
    source, sizes = FAMILIES[name]
    new_run(TrainingRequest(name, str(data.get(source, source)), model=dict(sizes), train=PACE), out=out)


def train(folder: Path, steps: int) -> None:
    run = open_run(folder)
    config = build(TrainConfig, {**run.config["train"], "steps": steps})
    loop.Trainer(task_of(run, config), run, config).train()


def kill_once(folder: Path, log: Path, rng: random.Random, longest: float) -> None:
    """Train for a random time, or until shortly after a save, then kill."""
    before, began = checkpoint.saved_steps(folder), time.monotonic()
    process = start(lambda: train(folder, STEPS), log)
    if rng.random() < 0.6:
        while checkpoint.saved_steps(folder) == before and time.monotonic() - began < 60:
            if os.waitpid(process, os.WNOHANG)[0]:
                raise SystemExit(f"a training ended by itself; {log} ends with: {log.read_text()[-1500:]}")
            time.sleep(0.02)
        time.sleep(rng.uniform(0, longest / 10))
    else:
        time.sleep(rng.uniform(0, longest))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def contents(folder: Path, step: int) -> tuple:
    """Every tensor of the last checkpoint and of the weights as bytes, what is recorded of them, metrics, snapshots."""
    kept = checkpoint.read(folder, step)
    with safe_open(folder / "model.safetensors", "np") as file:
        weights = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        facts = file.metadata()
    lines = [{k: v for k, v in line.items() if k not in ("rate", "time")} for line in Metrics.read(folder)]
    kept_on_the_way = snapshots.listed(folder)  # by size and hash
    return (
        {n: t.numpy().tobytes() for n, t in kept.tensors.items()},
        kept.state["best"],
        weights,
        facts,
        lines,
        kept_on_the_way,
    )


def survive(name: str, kills: int, folder: Path, seed: int, longest: float) -> tuple[int, bool]:
    """How many kills left something that is not whole, and whether the run ended as one never killed."""
    rng, log = random.Random(f"{name} {seed}"), folder / f"{name}.log"
    data = {"text": folder / "notes.txt", "pairs": folder / "words.tsv"}
    data["text"].write_text(TEXT)
    data["pairs"].write_text("".join(f"{a}{b}{c}\t{c}{b}{a}\n" for a in "abcd" for b in "efgh" for c in "ijkl"))
    killed, whole = folder / f"{name}-killed", folder / f"{name}-whole"
    for out in (killed, whole):
        finish(lambda out=out: create(name, out, data), log)
    bad = 0
    for _ in range(kills):
        kill_once(killed, log, rng, longest)
        faults = [str(fault) for _, fault in verify_run(killed) if fault is not None]
        bad += bool(faults)
        for fault in faults:
            print(f"{name}: {fault}")
    steps = max(checkpoint.saved_steps(killed), default=0) + REST
    for out in (killed, whole):
        finish(lambda out=out: train(out, steps), log)
    equal = contents(killed, steps) == contents(whole, steps)
    print(
        f"{name}: {kills} kills, {bad} bad; {steps} steps, {'equal to the bit' if equal else 'NOT EQUAL'}", flush=True
    )
    return bad, equal


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="in all families together")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds before a kill, at most")
    chosen = parser.parse_args()
    for owner, name in ((loop, "plot_losses"), (loop.Evaluator, "preview")):
        setattr(owner, name, lambda *_: None)  # pictures that nothing depends on
    bad, equal, count = 0, 0, len(chosen.families)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PENCIL_CACHE"] = str(Path(folder) / "cache")
        for i, name in enumerate(chosen.families):
            kills = chosen.kills // count + (i < chosen.kills % count)
            found, same = survive(name, kills, Path(folder), chosen.seed, chosen.longest)
            bad, equal = bad + found, equal + same
    print(f"{chosen.kills} kills in {count} families: {bad} bad; {equal} of {count} runs equal to the bit")
    return int(bad > 0 or equal < count)


if __name__ == "__main__":
    sys.exit(main())
