"""Random damage to runs, checkpoints, caches and traces: each must be found, and the file named.

Bits are flipped, files cut, lengthened, swapped with another run's, deleted, renamed and added. A mutation that leaves
the bytes as they were is not counted. `python benchmarks/survival/damage.py --mutations 1000`
"""

import argparse
import io
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pencil.cli.main import main as pencil
from pencil.train.loop import trainer as loop

TEXT = "".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(200))
SMALL = (
    "--model.width 12 --model.depth 1 --model.heads 3 --train.steps 6 --train.batch 3 --train.eval_batches 1 "
    "--train.warmup 0 --train.save_every 2 --train.eval_every 3"
).split()
TRACES = {"pencil-attention": "pattern[0,0,0,1]", "mha-demo": "one.pattern[0,0,1,0]"}  # with a cell to ask about
DOORS = 12  # of so many mutations one is also tried at the verbs that use the file


class Mutation(NamedTuple):
    """What was done, to which file, and a name by which a sentence may point to it."""

    kind: str
    path: Path
    names: tuple[str, ...]


def call(*words: object) -> tuple[int, str]:
    """Run a command in this process; its status and everything it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            pencil([str(word) for word in words])
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, out.getvalue()


def make(folder: Path) -> None:
    """Two runs of one kind on different texts, one without a tokenizer, their caches, and two traces."""
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt").write_text(TEXT.replace("squares", "circles"))
    for name in ("a", "b"):
        words = ("--data", folder / f"{name}.txt", "--tokenizer", "bpe", "--vocab", 270, "--model.context", 17)
        done(call("train", "gpt", "--out", folder / "runs" / name, *words, *SMALL, "--train.seed", ord(name)))
    done(call("train", "vit", "--out", folder / "runs" / "v", *SMALL))
    for name, cell in TRACES.items():
        done(call("trace", f"example:{name}", "--out", folder / "traces" / f"{name}.safetensors"))
        done(call("why", folder / "traces" / f"{name}.safetensors", cell))


def done(result: tuple[int, str]) -> None:
    if result[0]:
        raise SystemExit(f"a command failed: {result[1][-1500:]}")


def damage_file(path: Path, other: Path | None, rng: random.Random) -> Mutation | None:
    """One mutation of one file; None if it changed nothing."""
    before = path.read_bytes()
    kind = rng.choice(["flip", "flip", "flip", "cut", "lengthen", "blank", "swap", "delete", "rename"])
    after = bytearray(before)
    if kind == "flip":
        after[rng.randrange(len(after))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del after[rng.randrange(len(after)) :]
    elif kind == "lengthen":
        after += rng.randbytes(rng.randrange(1, 9))
    elif kind == "blank":
        at = rng.randrange(len(after))
        after[at : at + 64] = bytes(len(after[at : at + 64]))
    elif kind == "swap" and other is not None and other.is_file():
        after = other.read_bytes()
    elif kind in ("delete", "rename"):
        path.rename(path.with_name(path.name + ".old")) if kind == "rename" else path.unlink()
        return Mutation(kind, path, (path.name,))
    if after == before:
        return None
    path.write_bytes(after)
    return Mutation(kind, path, (path.name,))


def damage_checkpoints(run: Path, other: Path, rng: random.Random) -> Mutation:
    """One mutation of the folder of checkpoints."""
    held = run / "checkpoints"
    one = rng.choice(sorted(held.iterdir()))
    kind = rng.choice(
        ["delete a checkpoint", "rename a checkpoint", "swap a checkpoint", "add", "add inside", "delete all"]
    )
    names = (one.name,)
    if kind == "delete a checkpoint":
        shutil.rmtree(one)
    elif kind == "rename a checkpoint":
        one.rename(held / "step-00000099")
        names = (one.name, "step-00000099")
    elif kind == "swap a checkpoint":
        shutil.rmtree(one)
        shutil.copytree(other / "checkpoints" / one.name, one)
    elif kind == "delete all":
        names = tuple(path.name for path in held.iterdir())
        shutil.rmtree(held)
    else:
        stray = (one if kind == "add inside" else held) / f"stray-{rng.randrange(99)}.bin"
        stray.write_bytes(rng.randbytes(9))
        names = (stray.name,)
    return Mutation(kind, one, names)


def mutate(root: Path, rng: random.Random) -> Mutation | None:
    """One mutation somewhere."""
    what = rng.choice(["run", "checkpoint", "checkpoint", "checkpoints", "cache", "trace"])
    name, other = rng.choice([("a", "b"), ("b", "a"), ("v", "a")])
    run, else_where = root / "runs" / name, root / "runs" / other
    if what == "run":
        files = [run / one for one in ("config.toml", "tokenizer.json", "model.safetensors", "manifest.json")]
        if name == "v" and rng.random() < 0.1:
            shutil.copy(else_where / "tokenizer.json", run)
            return Mutation("add", run / "tokenizer.json", ("tokenizer.json",))
        path = rng.choice([file for file in files if file.is_file()])
        return damage_file(path, else_where / path.name, rng)
    if what == "checkpoint":
        path = rng.choice(sorted((run / "checkpoints").glob("*/*")))
        return damage_file(path, else_where / path.relative_to(run), rng)
    if what == "checkpoints":
        return damage_checkpoints(run, else_where, rng)
    if what == "cache":
        files = sorted((root / "cache").glob("tokens-*")) + sorted((root / "cache").glob("bpe-*"))
        path = rng.choice(files)
        return damage_file(path, rng.choice([one for one in files if one != path]), rng)
    # a trace belongs to nothing: another whole one in its place is no damage
    return damage_file(root / "traces" / f"{rng.choice(list(TRACES))}.safetensors", None, rng)


def found(root: Path, mutation: Mutation, doors: bool) -> str:
    """ "" if the damage is found and named, else what was printed instead."""
    path = mutation.path
    if path.parent.name == "traces":
        return _named(call("why", path, TRACES[path.stem]), mutation)
    if path.parent.name == "cache":
        shown = [call("verify", root / "runs" / name) for name in "ab"]
        problem = _named((max(s for s, _ in shown), "".join(text for _, text in shown)), mutation)
        if doors and not problem and mutation.kind != "delete":  # what is not there is made again without a word
            # training goes on with a cache that was made again, and announces it; a trained tokenizer is the run's own
            name = "ab"[[status for status, _ in shown].index(1)]
            if path.name.startswith("tokens-"):
                problem = _named((1, call("resume", root / "runs" / name, "--train.steps", 7)[1]), mutation)
        return problem
    run = next(one for one in path.parents if one.parent.name == "runs")
    problem = _named(call("verify", run), mutation)
    if doors and not problem:
        if path.parent == run:
            use = ("eval", run) if run.name == "v" else ("sample", run, "--max-new-tokens", 3)
            problem = _named(call(*use), mutation)
        if not problem and "step-00000004" not in path.parts:  # an older checkpoint is not read
            problem = _named((1, call("resume", run, "--train.steps", 7)[1]), mutation)
    return problem


def _named(result: tuple[int, str], mutation: Mutation) -> str:
    status, shown = result
    if "Traceback" in shown:
        return shown
    return "" if status and any(name in shown for name in mutation.names) else f"status {status}: {shown}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for owner, name in ((loop, "plot_losses"), (loop.Evaluator, "preview")):
        setattr(owner, name, lambda *_: None)  # pictures that nothing depends on
    rng, kinds, missed = random.Random(chosen.seed), Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        whole, work = Path(folder) / "whole", Path(folder) / "work"
        os.environ["PENCIL_CACHE"] = str(work / "cache")
        (work / "traces").mkdir(parents=True)
        make(work)
        shutil.copytree(work, whole)
        for name in "abv":
            done(call("verify", work / "runs" / name))
        while sum(kinds.values()) < chosen.mutations:
            mutation = mutate(work, rng)
            if mutation is not None:
                kinds[mutation.kind] += 1
                problem = found(work, mutation, sum(kinds.values()) % DOORS == 0)
                if problem:
                    missed += 1
                    print(f"MISSED: {mutation.kind} {mutation.path.relative_to(work)}: {problem}")
            shutil.rmtree(work)
            shutil.copytree(whole, work)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(f"{sum(kinds.values())} mutations: {sum(kinds.values()) - missed} found by name, {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
