"""A stranger's afternoon, replayed: own pictures, captions, tables and texts through every verb, on data that is made here.

python benchmarks/afternoon.py [--quick] [--keep FOLDER]

Each step is one line: what was typed, and how it ended. A step fails if there is a traceback, if the exit status is another,
if a sentence that the user needs is missing, or if the card of a run says something else than its weights do. --quick: two
steps of training each, all in one process but Ctrl-C.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors import safe_open

from replay.data import make_data
from replay.judging import Failed, check_card, check_eval, fresh, here, judge


class Afternoon:
    """The steps so far: each is run, judged and printed."""

    def __init__(self, command: Callable[[list[str]], tuple[int, str]], training: list[str]):
        self.command, self.training, self.failures = command, training, 0

    def step(self, what: str, do: Callable[[], str]) -> None:
        """One step, which returns a few words about itself or raises."""
        began = time.perf_counter()
        try:
            result = do()
        except Failed as error:
            self.failures += 1
            result = f"FAILED: {error}"
        except Exception as error:
            self.failures += 1
            result = f"FAILED: {type(error).__name__}: {error}"
        print(f"{time.perf_counter() - began:6.1f} s  {what}  {result}", flush=True)

    def pencil(self, line: str, *says: str, code: int = 0, never: str = "", run: str = "") -> None:
        """A command: its status, the sentences it must say, one it must not, and the card of the run that it wrote."""

        def do() -> str:
            words = [*line.split(), *(self.training if line.startswith("train ") and code == 0 else [])]
            ended, text = self.command(words)
            judge(text, ended, code, says, never)
            if run:
                check_card(Path(run))
            return "ok" if code == 0 else f"refused: {text.strip().splitlines()[-1][:90]}"

        self.step(f"pencil {line}", do)

    def python(self, what: str, code: Callable[[], str]) -> None:
        self.step(f"Python: {what}", code)


def interrupted(quick: bool) -> str:
    """Ctrl-C in the midst of training, before a second evaluation."""
    run = Path("runs/stopped")
    words = (
        "train gpt --data notes.txt --out runs/stopped --train.steps 100000 --train.eval_every 50000 --train.warmup 0"
    )
    small = (
        "--model.width 48 --model.depth 1 --model.context 32 --train.batch 2 --train.eval_batches 1".split()
        if quick
        else []
    )
    process = subprocess.Popen([sys.executable, "-m", "pencil", *words.split(), *small], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)  # fmt: skip
    assert process.stdout
    said = []
    for line in process.stdout:
        said.append(line)
        if re.search(r"step [1-9]\d*/", line):  # the first rate
            process.send_signal(signal.SIGINT)
            break
    said.append(process.communicate(timeout=120)[0])
    judge("".join(said), process.returncode, process.returncode, (r"pencil resume runs/stopped",))
    check_card(run)
    with safe_open(run / "model.safetensors", "np") as file:
        step = int(file.metadata()["step"])
    ended, text = here(["resume", "runs/stopped", "--train.steps", str(step + 3)])
    judge(text, ended, 0, (f"{step + 3}",))
    check_card(run)
    return f"stopped at step {step}, resumed to {step + 3}"


def predicted() -> str:
    """Every family by `pencil.predict`, against `pencil sample`."""
    import pencil

    one = pencil.predict("runs/photos-vit", "cat.png")
    _, text = here(["sample", "runs/photos-vit", "--image", "cat.png"])
    if text.split()[0] != one.label or abs(float(text.split()[1]) - one.probability) > 6e-5:
        raise Failed(f"predict gives {one}, sample {text!r}")
    many = pencil.predict("runs/photos-vit", [Image.open("cat.png"), np.asarray(Image.open("cat.png"))])
    if {two.label for two in many} != {one.label}:
        raise Failed(f"a picture by path and as an array: {one} and {many}")
    pencil.predict("runs/reviews-reader", ["good", "bad"])
    pencil.predict("runs/album-captioner", "cat.png")
    pencil.predict("runs/pairs-seq2seq", "say 7")
    images = pencil.predict("runs/photos-dit", "red", steps=2)
    text = pencil.predict("runs/notes-gpt", "Once", max_new_tokens=5)
    if not text.text.startswith("Once") or images.size != (16, 16):
        raise Failed(f"{text.text!r}, {images.size}")
    return f"{one.label} {one.probability:.4f}, as sample says"


def misspelt() -> str:
    """A probe whose name nobody fires."""
    import pencil

    run = pencil.load("runs/notes-gpt")
    import torch

    tokens = torch.from_numpy(run.tokenizer.encode("the"))[None].long()
    try:
        run.model(tokens, probe=pencil.Probe(edit={"blocks.0.attn.patern": lambda a: a * 0}))
    except Exception as error:
        if "did you mean blocks.0.attn.pattern" in str(error):
            return f"refused: {error}"
        raise
    raise Failed("an edit of a value that does not exist changed nothing, in silence")


def trained_from_python(training: list[str]) -> str:
    """`pencil.train` with a callback."""
    import pencil

    seen = []
    settings = {
        name.removeprefix("--train."): int(value) for name, value in zip(training[::2], training[1::2], strict=True)
    }
    pencil.train("reader", "marks.jsonl", quiet=True, on_step=lambda step, metrics: seen.append(step), **settings)
    check_card(Path("runs/marks-reader"))
    return f"{len(seen)} steps"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two steps of training each, in one process")
    parser.add_argument("--keep", type=Path, help="work in this folder, and keep it")
    options = parser.parse_args()
    steps = 2 if options.quick else 30
    training = f"--train.steps {steps} --train.eval_every {steps} --train.batch 4 --train.warmup 0".split()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XDG_CACHE_HOME"] = str((folder / "cache").resolve())
        back = Path.cwd()
        os.chdir(folder)
        stack.callback(os.chdir, back)
        make_data(Path())
        day = Afternoon(here if options.quick else fresh, training)
        pictures(day)
        texts(day)
        inside(day)
        day.python("predict, all families", predicted)
        handed_over(day)
        day.python("a misspelt probe", misspelt)
        day.python("pencil.train", lambda: trained_from_python(training))
        if hasattr(signal, "SIGHUP"):  # elsewhere no process can be sent Ctrl-C alone
            day.step("Ctrl-C, then resume", lambda: interrupted(options.quick))
        changed(day)
    print(f"{day.failures} failures" if day.failures else "no failure")
    return int(day.failures > 0)


def pictures(day: Afternoon) -> None:
    lost, unread = r"would lose more than a quarter by cropping: all are padded", r"by the ending, and not read"
    day.pencil("train vit --data photos/", "Writing runs/photos-vit", lost, unread, run="runs/photos-vit")
    day.pencil("train vit --data photos/ --data.fit squash --name squashed", "squashed", run="runs/squashed")
    day.pencil("eval runs/photos-vit", r"red +\d+ +", "confusion.png")
    day.step("the card against eval", lambda: check_eval("runs/photos-vit", "val_loss"))
    day.pencil("eval runs/photos-vit --data others/ --json", "21 images", r'"accuracy": ')
    day.pencil("sample runs/photos-vit --image cat.png --json", r'"image": "cat.png"')
    day.pencil("train captioner --data album/", lost, run="runs/album-captioner")
    day.pencil("sample runs/album-captioner --image cat.png --attention words.png", "words.png")
    day.pencil("eval runs/album-captioner", "exact_match", "chrf", "bleu", "token_accuracy")
    day.pencil("train dit --data photos/ --size 16 --train.eval_batches 1", "and are cropped", run="runs/photos-dit")
    day.pencil("sample runs/photos-dit --label red --steps 2 --out red.png", "red.png")
    day.pencil("train vit --data photo/", "there is no folder photo/", code=2)
    day.pencil("train vit --data photos/", "photos-vit-2", run="runs/photos-vit-2")
    day.pencil("train resnet", "resnet", code=2, never="did you mean reader")


def texts(day: Afternoon) -> None:
    read = r"reviews.csv: semicolon-separated with a header; text from column review, label from column stars"
    day.pencil("train reader --data reviews.csv", read, run="runs/reviews-reader")
    day.step("the card against eval", lambda: check_eval("runs/reviews-reader", "val_loss"))
    day.pencil("sample runs/reviews-reader --prompt good", r"[15] 0\.\d+")
    day.pencil("eval runs/reviews-reader --data marks.jsonl", "83 texts")
    day.pencil("train reader --data reviews.csv --data.label_column starz", "starz", "stars", code=2)
    day.pencil("train gpt --data reviews.csv --name table", "read as plain text, with its delimiters", run="runs/table")
    day.pencil("train seq2seq --data pairs.tsv", run="runs/pairs-seq2seq")
    day.pencil("eval runs/pairs-seq2seq --data other-pairs.tsv", "17 pairs", "exact_match", "chrf")
    day.pencil("sample runs/pairs-seq2seq --source say")
    day.pencil("train gpt --data notes.txt", "Writing runs/notes-gpt", run="runs/notes-gpt")
    day.pencil("sample runs/notes-gpt --prompt Once --max-new-tokens 5", "Once")
    day.pencil("eval runs/notes-gpt --data letters.txt --json", r'"bits_per_byte": ')
    day.pencil("train gpt --data notes.txt --settings --out run.toml --tokenizer bpe --vocab 300")
    day.step("the vocabulary of --settings", _vocabulary)
    day.pencil("train --config run.toml --name from-file", run="runs/from-file")
    day.pencil("train gpt --data notes.txt --train.time 3", "train.time", code=2, never="did you mean optimizer")


def _vocabulary() -> str:
    found = re.search(r"^vocab = (\d+)", Path("run.toml").read_text(), re.M)
    if not found or int(found[1]) > 301:
        raise Failed(f"vocab is {found and found[1]}, and the tokenizer has at most 300")
    return f"vocab = {found[1]}"


def inside(day: Afternoon) -> None:
    day.pencil("trace runs/photos-vit --input cat.png --png heads.png", "heads.png")
    day.pencil("trace runs/notes-gpt --input the --xlsx block.xlsx --of blocks.1.attn.*", "block.xlsx")
    day.pencil("why runs/notes-gpt blocks.0.attn.pattern[0,0,2,1] --input the", "recorded .* ✓")
    day.pencil("show runs/notes-gpt blocks.0.attn.patern --input the", "blocks.0.attn.pattern", code=2)


def handed_over(day: Afternoon) -> None:
    """The goals after training: many inputs, a baseline, mistakes by name, what it costs, other libraries."""
    day.pencil("predict runs/photos-vit photos/ cat.png --out predictions.csv", "predictions.csv")
    day.pencil("eval runs/reviews-reader --baseline", "always the commonest class in training", "this run")
    day.step("a baseline in the card", lambda: _has("runs/reviews-reader/README.md", "## Baselines"))
    day.step("mistakes by name", lambda: _has("runs/photos-vit/eval/predictions.csv", "truth,answer,probability"))
    day.pencil("cost runs/notes-gpt --device h200", "B 4 batch size", "The whole training")
    day.pencil("export runs/notes-gpt --to hf", "exports/notes-gpt-hf")
    day.pencil("train vit --data photos/ --from runs/photos-vit --name again", run="runs/again")
    day.python("data in memory", _in_memory)


def _has(file: str, words: str) -> str:
    if words not in Path(file).read_text(encoding="utf-8"):
        raise Failed(f"{file} has no {words}")
    return f"{file} has {words}"


def _in_memory() -> str:
    """A training on data in memory, with the verbs on it, and what the command line says of it."""
    import pencil

    rows = [(f"{word} number {i}", word) for i in range(20) for word in ("good", "bad")]
    run = pencil.train("reader", rows, name="memory", steps=2, depth=1, width=24, heads=3, warmup=0, quiet=True)
    metrics, answers = run.evaluate(rows, quiet=True), run.predict([text for text, _ in rows])
    if len(answers) != 40 or pencil.verify(run) or "accuracy" not in metrics:
        raise Failed(f"{len(answers)} answers, {pencil.verify(run)}, {metrics}")
    return f"trained, evaluated, predicted: {run.path}"


def changed(day: Afternoon) -> None:
    Path("photos/red/3.png").unlink()
    gone = r"has changed since runs/photos-vit was trained on it: 1 file removed: red/3.png"
    day.pencil("eval runs/photos-vit", gone, code=2)
    day.pencil("resume runs/photos-vit --train.steps 40", gone, code=2)
    day.pencil("eval runs/photos-vit --data photos/", "it is evaluated as it is", "are left out")
    day.pencil("sample runs/photos-vit --image cat.png", r"0\.\d+")
    day.pencil("verify runs/photos-vit")


if __name__ == "__main__":
    sys.exit(main())
