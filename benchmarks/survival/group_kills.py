"""Kill -9 of all processes of a training at once, while they save.

After each kill the run must be whole. Every checkpoint found must be, bit for bit, the one of that step of a run that was
never killed, so that none is mixed of two steps; and no more than the checkpoint being written may be lost.
`python benchmarks/survival/group_kills.py --kills 100`
"""

import argparse
import hashlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch._dynamo  # optimizers import it at their first step: here, once for all processes
import torch.distributed.fsdp

from pencil.api.loading import open_run
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.api.verifying import verify_run
from pencil.collectives.processes import process_group
from pencil.config import build
from pencil.train.loop import checkpoint
from pencil.train.loop import trainer as loop
from pencil.train.settings import TrainConfig

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(300))
KINDS = {"ddp on 2": ("ddp", 2), "fsdp on 2": ("fsdp", 2), "fsdp on 4": ("fsdp", 4)}
EVERY = 3  # steps between two checkpoints
STEPS = 10**6  # more than are made before the last kill, with a rate that does not depend on how many there are
PACE = dict(
    steps=STEPS, batch=4, save_every=EVERY, eval_every=25, eval_batches=1, warmup=0, schedule="constant",
    optimizer="muon", ema=0.9,
)  # fmt: skip
REST = 2 * EVERY  # steps after the last kill
AIMED = 0.85  # of the kills come while a checkpoint is being written
LONGEST = 60  # seconds that a training may take to its next checkpoint


class Found(NamedTuple):
    """What the kills of one kind of training left."""

    kills: int
    halves: int  # kills that left a checkpoint half-written, under its hidden name
    bad: int  # kills after which something was not whole
    mixed: int  # checkpoints that are not those of a run never killed
    lost: int  # most checkpoints that had been due, and were not there
    steps: int  # most steps lost
    equal: bool  # the run ended as one never killed


def launch(work: Callable[[], None], size: int, log: Path) -> list[int]:
    """Do the work on `size` processes of one group, which have everything imported already; their numbers."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started: list[int] = []
    for rank in range(size):
        process = os.fork()
        if not process:
            _child(work, rank, size, port, log)
        os.setpgid(process, started[0] if started else process)
        started.append(process)
    return started


def _child(work: Callable[[], None], rank: int, size: int, port: int, log: Path) -> None:
    status = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 2)
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        with process_group(torch.device("cpu")):
            work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(work: Callable[[], None], size: int, log: Path) -> None:
    statuses = [os.waitpid(process, 0)[1] for process in launch(work, size, log)]
    if any(statuses):
        raise SystemExit(f"a training failed; {log} ends with: {log.read_text()[-1500:]}")


def train(folder: Path, steps: int, keep: int, reached: Path | None = None) -> None:
    """Train to this step; the writer notes in a file how far it is."""
    run = open_run(folder)
    config = build(TrainConfig, {**run.config["train"], "steps": steps, "keep": keep})

    file = None if reached is None else os.open(reached, os.O_WRONLY | os.O_CREAT)

    def note(step: int, _: dict[str, float]) -> None:
        if file is not None:
            os.pwrite(file, b"%012d" % step, 0)  # in one call, so that a kill leaves a whole number

    loop.Trainer(task_of(run, config), run, config, on_step=note if os.environ["RANK"] == "0" else None).train()


def kill_once(folder: Path, size: int, reached: Path, log: Path, rng: random.Random) -> bool:
    """Train until a checkpoint is being written, or for a random time after one, then kill; whether half of one is left."""
    started = launch(lambda: train(folder, STEPS, 2, reached), size, log)
    before, began = checkpoint.saved_steps(folder), time.monotonic()
    aimed, seen = rng.random() < AIMED, rng.randrange(1, 4)  # which of the next checkpoints
    last: set[str] = set()
    while time.monotonic() - began < LONGEST:
        if os.waitpid(started[0], os.WNOHANG)[0]:
            raise SystemExit(f"a training ended by itself; {log} ends with: {log.read_text()[-1500:]}")
        if aimed:
            now = {path.name for path in (folder / "checkpoints").glob(".tmp-*")}
            seen -= bool(now - last)
            last = now
            if not seen and now:
                time.sleep(rng.uniform(0, 0.03))
                break
        elif checkpoint.saved_steps(folder) != before:
            time.sleep(rng.uniform(0, 0.3))
            break
        time.sleep(0.0005)
    os.killpg(started[0], signal.SIGKILL)
    for process in started:
        os.waitpid(process, 0)
    return any((folder / "checkpoints").glob(".tmp-*"))


def digest(folder: Path, step: int) -> str:
    """Of every tensor of a checkpoint, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(checkpoint.read(folder, step).tensors.items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def survive(kind: str, kills: int, folder: Path, seed: int) -> Found:
    mode, size = KINDS[kind]
    name = kind.replace(" ", "-")
    rng, log, reached = random.Random(f"{kind} {seed}"), folder / f"{name}.log", folder / f"{name}.reached"
    text = folder / "notes.txt"
    text.write_text(TEXT)
    killed, whole = folder / f"{name}-killed", folder / f"{name}-whole"
    for out in (killed, whole):
        sizes = dict(context=17, width=12, depth=1, heads=3)
        new_run(TrainingRequest("gpt", str(text), model=sizes, train={**PACE, "parallel": mode}), out=out)
    halves = bad = lost = steps_lost = 0
    seen: dict[int, set[str]] = {}
    for _ in range(kills):
        halves += kill_once(killed, size, reached, log, rng)
        faults = [str(fault) for _, fault in verify_run(killed) if fault is not None]
        bad += bool(faults)
        for fault in faults:
            print(f"{kind}: {fault}")
        steps = checkpoint.saved_steps(killed)
        for step in steps if not faults else ():
            seen.setdefault(step, set()).add(digest(killed, step))
        made, newest = int(reached.read_text()), max(steps, default=0)
        # the checkpoint of the step that was just made waits until the one before it is written: it is not due yet
        lost, steps_lost = max(lost, (made - 1) // EVERY - newest // EVERY), max(steps_lost, made - newest)
    steps = max(seen, default=0) + REST
    finish(lambda: train(killed, steps, 2), size, log)
    finish(lambda: train(whole, steps, steps), size, log)
    mixed = sum(found != {digest(whole, step)} for step, found in seen.items())
    return Found(kills, halves, bad, mixed, lost, steps_lost, digest(killed, steps) == digest(whole, steps))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="of all kinds of training together")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for owner, name in ((loop, "plot_losses"), (loop.Evaluator, "preview")):
        setattr(owner, name, lambda *_: None)  # pictures that nothing depends on
    results: list[Found] = []
    print(f"a checkpoint every {EVERY} steps; kill -9 of all processes at once")
    print(f"{'':12} kills  half-written  not whole  mixed  checkpoints lost  steps lost  ends as never killed")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PENCIL_CACHE"] = str(Path(folder) / "cache")
        for i, kind in enumerate(chosen.kinds):
            kills = chosen.kills // len(chosen.kinds) + (i < chosen.kills % len(chosen.kinds))
            one = survive(kind, kills, Path(folder), chosen.seed)
            results.append(one)
            print(
                f"{kind:12} {one.kills:5}  {one.halves:12}  {one.bad:9}  {one.mixed:5}  {one.lost:16}  {one.steps:10}"
                f"  {'to the bit' if one.equal else 'NO':>20}",
                flush=True,
            )
    bad, mixed, lost = sum(one.bad for one in results), sum(one.mixed for one in results), max(r.lost for r in results)
    equal = sum(one.equal for one in results)
    print(
        f"{chosen.kills} kills: {bad} not whole, {mixed} mixed, at most {lost} checkpoint lost; "
        f"{equal} of {len(results)} runs end as never killed"
    )
    return int(bad > 0 or mixed > 0 or lost > 1 or equal < len(results))


if __name__ == "__main__":
    sys.exit(main())
