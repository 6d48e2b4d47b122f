"""Kill -9 single processes of a training that `--processes` started: torchrun starts them again, and it goes on.

After the last kill the training is stopped by SIGTERM. Its weights and moments must then equal, bit for bit, those of
a training in one process that was never killed (exact mode). Linux only.
`python benchmarks/survival/elastic.py --kills 20 --processes 2`
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(300))
STEPS = 10**6  # more than are made before the last kill, with a rate that does not depend on how many there are
COMMAND = """train gpt --data text.txt --model.width 12 --model.depth 1 --model.heads 3 --model.context 17
    --model.dropout 0.1 --train.batch 8 --train.warmup 0 --train.schedule constant --train.eval_every 1000
    --train.eval_batches 1 --train.exact true""".split()
PROMISED = 60  # seconds for a recovery
MOST = 1800  # after which it is given up; a machine may be busy


def start(folder: Path, out: str, *words: object) -> subprocess.Popen:
    """A training, in its own folder; what it says goes to a file."""
    log = (folder / f"{out}.log").open("a")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ("-m", "pencil", *COMMAND, "--out", out, *map(str, words))
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=log, stderr=log)


def newest(run: Path) -> int:
    """The step of the newest checkpoint."""
    whole = (path.parent.name for path in run.glob("checkpoints/step-*/manifest.json"))
    return max((int(name.removeprefix("step-")) for name in whole), default=0)


def processes(launcher: int) -> dict[int, int]:
    """The processes of a training by their ranks."""
    found = subprocess.run(["pgrep", "-P", str(launcher)], capture_output=True, text=True).stdout.split()
    ranks = {}
    for process in map(int, found):
        try:
            settings = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks |= {int(one[5:]): process for one in settings if one.startswith(b"RANK=")}
    return ranks


def wait_for(run: Path, step: int, training: subprocess.Popen) -> float | None:
    """Seconds until there is a checkpoint after this step; None if there is none in time."""
    began = time.monotonic()
    while newest(run) <= step:
        if training.poll() is not None or time.monotonic() - began > MOST:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


def digest(run: Path, step: int) -> str:
    """A hash of all weights and moments of a checkpoint."""
    found = hashlib.sha256()
    for path in sorted((run / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                found.update(name.encode() + file.get_tensor(name).numpy().tobytes())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    choose = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as place:
        folder, run = Path(place), Path(place) / "killed"
        (folder / "text.txt").write_text(TEXT)
        several = ("--processes", args.processes, "--train.steps", STEPS, "--train.save_every", 20)
        training = start(folder, "killed", *several)
        seconds = []
        try:
            wait_for(run, 0, training)
            for number in range(args.kills):
                time.sleep(choose.random())
                rank, step = choose.randrange(args.processes), newest(run)
                os.kill(processes(training.pid)[rank], signal.SIGKILL)
                took = wait_for(run, max(step, newest(run)), training)
                if took is None:
                    print((folder / "killed.log").read_text()[-2000:])
                    print(f"kill {number + 1}, of rank {rank}: no checkpoint after it")
                    return 1
                seconds.append(took)
                print(f"kill {number + 1:3}, of rank {rank} after step {step}: a newer checkpoint {took:.1f} s later")
            training.send_signal(signal.SIGTERM)
            status = training.wait(timeout=MOST)
        finally:
            if training.poll() is None:
                training.terminate()
                training.wait()
        last = newest(run)
        start(folder, "whole", "--train.steps", last, "--train.save_every", last).wait()
        equal = digest(run, last) == digest(folder / "whole", last)
        prompt = sum(took <= PROMISED for took in seconds)
        print(
            f"{args.kills} kills, {len(seconds)} recoveries, {prompt} within {PROMISED} s (slowest {max(seconds):.1f} s); "
            f"SIGTERM: status {status}; step {last}: {'equal' if equal else 'NOT equal'} to one process, never killed"
        )
    return int(status or not equal)


if __name__ == "__main__":
    sys.exit(main())
