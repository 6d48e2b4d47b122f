"""train, resume and demo."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from .. import __version__
from ..config import UserError, build, overrides, to_toml
from ..data.builtin import TEXTS

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
    if settings_only:
        print(to_toml(_settings(family, preset, chosen["model"], chosen["train"])))
        return 0
    run, task, config = prepare(
        family, data, tokenizer, vocab, preset, chosen["model"], chosen["train"], name, out, force
    )
    return _go(run, task, config)


def prepare(
    family: str,
    data: str,
    tokenizer: str | None,
    vocab: int,
    preset: str | None,
    model: dict[str, Any],
    train: dict[str, Any],
    name: str | None = None,
    out: Path | None = None,
    force: bool = False,
):
    """Check everything, read the data, and only then make the run's folder."""
    from ..data import text
    from ..models import configure
    from ..models import family as find_family
    from ..runs import Run, choose_path
    from ..train.loop import pick_device
    from ..train.tasks import TextTask

    preset = preset or find_family(family).default
    wanted, config = _settings(family, preset, model, train).values()  # refused before a large corpus is read
    if pick_device(config.device).type == "cpu":
        _check_memory(wanted if "vocab" in model else replace(wanted, vocab=256), config.batch)
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; a folder elsewhere is given by --out")
    if name and (Path("runs") / name).exists() and not force:
        raise UserError(f"the name {name} is already taken by {Path('runs') / name}; choose another, or --force")
    tokenizer = tokenizer or ("gpt2" if preset.startswith("gpt2") else "char")
    corpus = text.load(data, tokenizer, vocab)
    for path, fault in corpus.corpus.skipped:
        _say(f"skipped {path}: {fault}")
    size = wanted.vocab if "vocab" in model else corpus.tokenizer.vocab
    if size < corpus.tokenizer.vocab:
        raise UserError(f"model.vocab {size} is smaller than the tokenizer's {corpus.tokenizer.vocab}")
    sizes = configure(family, preset, **{**model, "vocab": size})
    task = TextTask(corpus, sizes, config.batch, config.seed)
    path = out or (Path("runs") / name if name else choose_path(f"{corpus.corpus.name}-{family}"))
    facts = {
        "family": family, "preset": preset, "data": data, "data_path": _whole(data), "data_hash": corpus.corpus.hash,
        "tokenizer": corpus.tokenizer.kind, "pencil": __version__,
    }  # fmt: skip
    run = Run.create(path, {"run": facts, "model": sizes, "train": config}, corpus.tokenizer, force)
    return run, task, config


def _settings(family: str, preset: str | None, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    """The model's and the training's settings: a preset, and what is said over it."""
    from ..models import configure
    from ..models import family as find_family
    from ..train.settings import PRESETS, TrainConfig

    preset = preset or find_family(family).default
    sizes = configure(family, preset, **model)
    return {"model": sizes, "train": build(TrainConfig, PRESETS[family][preset] | train, "train.")}


def _check_memory(sizes: Any, batch: int) -> None:
    """Refuse what cannot fit: weights, gradients and two moments, and the least a batch needs, against all there is."""
    from ..models.gpt import parameters

    tokens = batch * sizes.context
    try:
        needed = 16 * parameters(sizes) + 4 * tokens * (sizes.vocab + 8 * sizes.width * sizes.depth)
    except RuntimeError:  # so large that its bytes cannot be counted
        needed = 1 << 63
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"this training needs about {needed / 1e9:,.0f} GB of memory and the machine has {there / 1e9:,.0f}; "
            "try a smaller --train.batch, --model.width or --model.context"
        )


def _whole(data: str) -> str:
    """Where the data is, from any working folder: a path in full, the name of an embedded text as it is."""
    path = Path(data).expanduser()
    return str(path.resolve()) if path.exists() and data not in TEXTS else data


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

    held = Run.open(run)
    changed = overrides(list(settings), ("train",))["train"]
    config = build(TrainConfig, held.config["train"] | changed, "train.")
    task = restore_task(held, config.batch, config.seed)
    steps = checkpoint.saved(held.path)
    if steps and steps[-1] >= config.steps:
        _say(f"{run} has made {steps[-1]} steps, and {config.steps} were asked for; a larger --train.steps goes on")
        return 0
    return _go(held, task, config)


def restore_task(run: Any, batch: int, seed: int):
    """The task of a run, on the data it was trained on; data that has changed since is refused."""
    from ..data import text
    from ..models import configure
    from ..train.tasks import TextTask

    facts = run.config["run"]
    source = facts["data_path"]
    if source == "-":
        source = str(text.cache_folder() / f"text-{facts['data_hash'][:32]}.txt")
    corpus = text.find(source)
    if corpus.hash != facts["data_hash"]:
        raise UserError(f"{facts['data']} has changed since {run.path} was trained on it")
    data = text.TextData(corpus, run.tokenizer, text.tokenize(corpus, run.tokenizer))
    return TextTask(data, configure(run.family, facts.get("preset"), **run.config["model"]), batch, seed)


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

    _say("A GPT learns, from nothing, to write like Python's own documentation; about a minute on two cores.")
    run, task, config = prepare("gpt", "pydoc", "bpe", 1024, "nano", DEMO_MODEL, DEMO_TRAIN, out=out)
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
