"""train, resume and demo."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError, build, overrides, to_toml

Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def train(
    family: str,
    /,
    *settings: Settings,
    data: Annotated[str, Parameter(allow_leading_hyphen=True)] = "pydoc",
    tokenizer: str | None = None,
    vocab: int = 4096,
    preset: str | None = None,
    name: str | None = None,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    settings_only: Annotated[bool, Parameter(name="--settings", negative=())] = False,
) -> int:
    """Train a model on your data; Ctrl-C saves and says how to go on.

    Parameters
    ----------
    family
        What to train: gpt.
    data
        A text file, a folder of them, "-" for standard input, or pydoc (Python's own documentation, embedded).
    tokenizer
        char, byte, bpe (trained on the data), gpt2, or the path of a tokenizer.json.
    vocab
        How many ids a trained bpe may have.
    preset
        nano, nanogpt, small, shakespeare, llama-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl.
    name
        The run's name under runs/; DATA-FAMILY when not given.
    out
        The run's folder, anywhere.
    force
        Replace a run that is already there.
    settings_only
        List every --model and --train setting with its value here, and train nothing.
    """
    chosen = overrides(list(settings), ("model", "train"))
    from ..train.start import new_run, settings_of

    if settings_only:
        print(to_toml(settings_of(family, preset, chosen["model"], chosen["train"])))
        return 0
    run, task, config = new_run(
        family, data, tokenizer, vocab, preset, chosen["model"], chosen["train"], name, out, force
    )
    for path, fault in task.data.corpus.skipped:
        _say(f"skipped {path}: {fault}")
    return _go(run, task, config)


def resume(run: Path, /, *settings: Settings) -> int:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    Parameters
    ----------
    run
        The run's folder. Training settings may be changed on the way: --train.steps 4000.
    """
    from ..runs import Run
    from ..train import checkpoint
    from ..train.settings import TrainConfig
    from ..train.start import task_of

    held = Run.open(run)
    changed = overrides(list(settings), ("train",))["train"]
    config = build(TrainConfig, held.config["train"] | changed, "train.")
    task = task_of(held, config.batch, config.seed)
    steps = checkpoint.saved(held.path)
    if steps and steps[-1] >= config.steps:
        _say(f"{run} has made {steps[-1]} steps, and {config.steps} were asked for; a larger --train.steps goes on")
        return 0
    return _go(held, task, config)


def demo(*, out: Path | None = None) -> int:
    """The whole story on this machine: train a small GPT on embedded text, then let it write.

    Parameters
    ----------
    out
        The run's folder; runs/pydoc-gpt when not given, or the next free name.
    """
    import torch

    from ..generate import Sampling, stream
    from ..runs import load
    from ..train.start import new_run

    _say("A GPT learns, from nothing, to write like Python's own documentation; about a minute on two cores.")
    run, task, config = new_run("gpt", "pydoc", "bpe", 1024, "nano", DEMO_MODEL, DEMO_TRAIN, out=out)
    model = task.build()
    sizes = run.config["model"]
    _say(
        f"{sum(p.numel() for p in model.parameters()):,} numbers to learn: {sizes['depth']} blocks of width "
        f"{sizes['width']}, from {len(task.data.train):,} tokens, with {torch.get_num_threads()} threads."
    )
    status = _go(run, task, config)
    if status:
        return status
    loaded = load(run.path)
    prompt = 'The "while" statement'
    _say("\nWhat it writes, read as it decodes (the first words are ours):\n")
    sys.stdout.write(prompt)
    for piece in stream(loaded.model, loaded.tokenizer, [prompt], 250, Sampling(0.6, top_p=0.95), slide=True):
        sys.stdout.write(piece[0])
        sys.stdout.flush()
    sys.stdout.write("\n")
    _say(f"\nThe run     {run.path}\nIts curve   {run.path / 'loss.png'}\nIts samples {run.path / 'samples'}")
    _say(f'Go on:      {_command()} sample {run.path} --prompt "The" --temperature 0.8 --slide')
    _say(f"Your text:  {_command()} train gpt --data notes/ --tokenizer bpe --preset small")
    return 0


DEMO_MODEL: dict[str, Any] = {}
DEMO_TRAIN: dict[str, Any] = {"steps": 300, "eval_every": 100, "eval_batches": 8, "save_every": 100, "warmup": 30}


def _go(run: Any, task: Any, config: Any) -> int:
    """Train to the end, or to the interruption; say where things are."""
    from ..train.loop import Trainer

    try:
        outcome = Trainer(task, run, config).train()
    except RuntimeError as error:
        # torch says so in its own words on each device
        if "memory" not in str(error).lower():
            raise
        raise UserError(
            "there is not enough memory; try a smaller --train.batch, --model.width or --model.context"
        ) from None
    if not outcome.finished:
        _say(f"Stopped after step {outcome.step}, and saved. Go on with:\n  {_command()} resume {run.path}")
        return 130
    best = outcome.best
    _say(f"Trained {outcome.step} steps in {outcome.seconds:.1f} s; best val_loss {best['val_loss']:.4f} at step "
         f"{best['step']}; the run is in {run.path}")  # fmt: skip
    return 0


def _command() -> str:
    """What the user types to run this program: its bare name where the shell would find it."""
    return "pencil" if shutil.which("pencil") or not sys.argv[0].endswith("pencil") else sys.argv[0]


def _say(line: str) -> None:
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
