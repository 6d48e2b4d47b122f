"""Fine-tuning against training from scratch, at equal steps: the validation loss on a text that is not the first run's.

python benchmarks/fine_tuning.py [--source-steps 1000] [--steps 200] [--bytes 60000]

A gpt nano of half the width is trained on pydoc (built in). Then three are trained on source code of Python's own library, cut to --bytes: from
scratch, from the first run's weights, and from them with the first half of the blocks and the token table frozen. Each has the
settings that `pencil train` takes by itself. A minute or two on two CPU cores.
"""

import argparse
import email
import tempfile
from pathlib import Path

import pencil

FIRST = {"tokenizer": "byte", "width": 64}


def python_source(size: int) -> str:
    """The first bytes of the source code of Python's `email` package."""
    files = sorted(Path(email.__file__).parent.glob("*.py"))
    return "".join(path.read_text(encoding="utf-8") for path in files).encode("ascii", "ignore").decode()[:size]


def losses(text: Path, out: Path, steps: int, **settings) -> dict[int, float]:
    """The validation loss by step."""
    found: dict[int, float] = {}
    every = max(1, steps // 8)
    pencil.train(
        "gpt", text, out=out, quiet=True, steps=steps, eval_every=every, save_every=steps, eval_batches=20,
        on_evaluation=lambda step, metrics: found.update({step: metrics["val_loss"]}), **settings,
    )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source-steps", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=60_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, source = Path(folder, "library.txt"), Path(folder, "pydoc-gpt")
        text.write_text(python_source(chosen.bytes), encoding="utf-8")
        pencil.train("gpt", "pydoc", out=source, quiet=True, steps=chosen.source_steps, eval_batches=20, **FIRST)
        start = {"from_run": source}
        columns = {
            "from scratch": losses(text, Path(folder, "a"), chosen.steps, **FIRST),
            "--from": losses(text, Path(folder, "b"), chosen.steps, **start),
            "--from, half frozen": losses(
                text, Path(folder, "c"), chosen.steps, freeze="tokens,blocks.[0-1].*", **start
            ),
        }
    print("| step | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for step in columns["from scratch"]:
        print(f"| {step} | " + " | ".join(f"{found[step]:.3f}" for found in columns.values()) + " |")


if __name__ == "__main__":
    main()
