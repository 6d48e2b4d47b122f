"""How a run begins, and how its task is found again: everything is checked before the first file is written."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import UserError, build
from ..data import text
from ..data.builtin import TEXTS
from ..models import configure
from ..models import family as find_family
from ..models.gpt import parameters
from ..runs import Run, choose_path
from .loop import pick_device
from .settings import PRESETS, TrainConfig
from .tasks import TextTask


def settings_of(family: str, preset: str | None, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    """The model's and the training's settings: a preset, and what is said over it."""
    preset = preset or find_family(family).default
    sizes = configure(family, preset, **model)
    return {"model": sizes, "train": build(TrainConfig, PRESETS[family][preset] | train, "train.")}


def new_run(
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
) -> tuple[Run, TextTask, TrainConfig]:
    """Check everything, read the data, and only then make the run's folder."""
    preset = preset or find_family(family).default
    wanted, config = settings_of(family, preset, model, train).values()  # refused before a large corpus is read
    if pick_device(config.device).type == "cpu":
        check_memory(wanted if "vocab" in model else replace(wanted, vocab=256), config.batch)
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; a folder elsewhere is given by --out")
    if name and (Path("runs") / name).exists() and not force:
        raise UserError(f"the name {name} is already taken by {Path('runs') / name}; choose another, or --force")
    found = text.load(data, tokenizer or ("gpt2" if preset.startswith("gpt2") else "char"), vocab)
    size = wanted.vocab if "vocab" in model else found.tokenizer.vocab
    if size < found.tokenizer.vocab:
        raise UserError(f"model.vocab {size} is smaller than the tokenizer's {found.tokenizer.vocab}")
    sizes = configure(family, preset, **{**model, "vocab": size})
    task = TextTask(found, sizes, config.batch, config.seed)
    path = out or (Path("runs") / name if name else choose_path(f"{found.corpus.name}-{family}"))
    facts = {
        "family": family, "preset": preset, "data": data, "data_path": whole_path(data),
        "data_hash": found.corpus.hash, "tokenizer": found.tokenizer.kind, "pencil": __version__,
    }  # fmt: skip
    return Run.create(path, {"run": facts, "model": sizes, "train": config}, found.tokenizer, force), task, config


def task_of(run: Run, batch: int, seed: int) -> TextTask:
    """The task of a run, on the data it was trained on; data that has changed since is refused."""
    facts = run.config["run"]
    source = facts["data_path"]
    if source == "-":
        source = str(text.cache_folder() / f"text-{facts['data_hash'][:32]}.txt")
    corpus = text.find(source)
    if corpus.hash != facts["data_hash"]:
        raise UserError(f"{facts['data']} has changed since {run.path} was trained on it")
    data = text.TextData(corpus, run.tokenizer, text.tokenize(corpus, run.tokenizer))
    return TextTask(data, configure(run.family, facts.get("preset"), **run.config["model"]), batch, seed)


def whole_path(data: str) -> str:
    """Where the data is, from any working folder: a path in full, the name of an embedded text as it is."""
    path = Path(data).expanduser()
    return str(path.resolve()) if path.exists() and data not in TEXTS else data


def check_memory(sizes: Any, batch: int) -> None:
    """Refuse what cannot fit: weights, gradients and two moments, and the least a batch needs, against all there is."""
    if not hasattr(os, "sysconf"):
        return
    try:
        needed = 16 * parameters(sizes) + 4 * batch * sizes.context * (sizes.vocab + 8 * sizes.width * sizes.depth)
    except RuntimeError:  # so large that its bytes cannot be counted
        needed = 1 << 63
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"this training needs about {needed / 1e9:,.0f} GB of memory and the machine has {there / 1e9:,.0f}; "
            "try a smaller --train.batch, --model.width or --model.context"
        )
