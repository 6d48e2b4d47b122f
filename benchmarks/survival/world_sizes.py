"""Save with 1, 2 and 4 processes, resume with 1, 2 and 4: in exact mode all nine runs end with the same bits.

Each training is cut after its first checkpoint, as kill -9 leaves it, and resumed with each number of processes. The
weights, the moments and the losses of the end are compared with those of one process that was never cut.
`python benchmarks/survival/world_sizes.py --families gpt captioner dit`
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pencil.train.loop import checkpoint

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(300))
SIZES = (1, 2, 4)
CUT, STEPS = 10, 20  # metrics have a line every ten steps
SETTINGS = f"""--model.width 12 --model.depth 1 --model.heads 3 --train.batch 8 --train.warmup 0 --train.ema 0.9
    --train.eval_batches 1 --train.eval_every {STEPS} --train.save_every {CUT} --train.steps {STEPS}
    --train.exact true""".split()
FAMILIES = {
    "gpt": ["--data", "text.txt", "--model.context", "17", "--model.dropout", "0.1"],
    "captioner": ["--model.dropout", "0.1"],
    "dit": ["--data", "digits"],
}


def pencil(folder: Path, *words: object) -> None:
    command = [sys.executable, "-m", "pencil", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[2:])}: {done.stdout[-1000:]}{done.stderr[-2000:]}")


def digest(run: Path) -> str:
    """A hash of the weights, their average, the moments and the losses of a run."""
    found = hashlib.sha256()
    for name, tensor in sorted(checkpoint.read(run, STEPS).tensors.items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        kept = {name: line[name] for name in ("step", "train_loss", "val_loss") if name in line}
        found.update(json.dumps(kept).encode())
    return found.hexdigest()


def cut(run: Path, name: str) -> Path:
    """A copy of a run as it was after its first checkpoint."""
    copy = run.with_name(name)
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / f"step-{STEPS:08d}")
    return copy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    args = parser.parse_args()
    bad = 0
    for family in args.families:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "text.txt").write_text(TEXT)
            for size in SIZES:
                words = ["train", family, *FAMILIES[family], *SETTINGS, "--out", f"saved-{size}"]
                pencil(folder, *words, *(["--processes", size] if size > 1 else []))
            expected, equal = digest(folder / "saved-1"), 0
            for before in SIZES:
                for after in SIZES:
                    run = cut(folder / f"saved-{before}", f"resumed-{before}-{after}")
                    pencil(folder, "resume", run.name, *(["--processes", after] if after > 1 else []))
                    equal += digest(run) == expected
            whole = sum(digest(folder / f"saved-{size}") == expected for size in SIZES)
            print(f"{family}: {equal} of 9 resumed and {whole} of 3 uncut runs end with the same bits", flush=True)
            bad += 9 - equal + 3 - whole
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
