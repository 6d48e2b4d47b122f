"""train, resume and demo."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from .. import __version__
from ..config import UserError, build, overrides

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
    """
    chosen = overrides(list(settings), ("model", "train"))
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
    from ..train.settings import PRESETS, TrainConfig
    from ..train.tasks import TextTask

    preset = preset or find_family(family).default
    configure(family, preset, **model)  # refuse a bad setting before reading a large corpus
    config = build(TrainConfig, PRESETS[family][preset] | train, "train.")
    pick_device(config.device)
    if name and (out or "/" in name):
        raise UserError("--name is a name under runs/; with --out the folder is its own name")
    if name and (Path("runs") / name).exists() and not force:
        raise UserError(f"the name {name} is already taken by {Path('runs') / name}; choose another, or --force")
    tokenizer = tokenizer or ("gpt2" if preset.startswith("gpt2") else "char")
    corpus = text.load(data, tokenizer, vocab)
    for path, fault in corpus.corpus.skipped:
        _say(f"skipped {path}: {fault}")
    size = int(model.get("vocab", corpus.tokenizer.vocab))
    if size < corpus.tokenizer.vocab:
        raise UserError(f"model.vocab {size} is smaller than the tokenizer's {corpus.tokenizer.vocab}")
    sizes = configure(family, preset, **{**model, "vocab": size})
    task = TextTask(corpus, sizes, config.batch, config.seed)
    path = out or (Path("runs") / name if name else choose_path(f"{corpus.corpus.name}-{family}"))
    facts = {
        "family": family, "preset": preset, "data": data, "data_hash": corpus.corpus.hash,
        "tokenizer": corpus.tokenizer.kind, "pencil": __version__,
    }  # fmt: skip
    run = Run.create(path, {"run": facts, "model": sizes, "train": config}, corpus.tokenizer, force)
    return run, task, config


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
        _say(f"{run} has made all its {config.steps} steps; --train.steps {2 * config.steps} would go on")
        return 0
    if changed:
        with held.writing():
            held.write_config({**held.config, "train": config})
    return _go(held, task, config)


def restore_task(run: Any, batch: int, seed: int):
    """The task of a run, on the data it was trained on; data that has changed since is refused."""
    from ..data import text
    from ..models import configure
    from ..train.tasks import TextTask

    facts = run.config["run"]
    source = facts["data"]
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

    outcome = Trainer(task, run, config).train()
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
