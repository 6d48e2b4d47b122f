"""How a run begins, and how its task is found again: everything is checked before the first file is written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import UserError, build, fitted
from ..data import pairs
from ..data.builtin import TEXTS
from ..data.images import EMBEDDED
from ..models import configure, parameters, preset_of
from ..models import family as find_family
from ..runs import Run, choose_path
from .captions import CaptionTask
from .diffusing import DiffusionTask
from .loop import pick_device
from .pairs import PairTask
from .pictures import LabelTask
from .reading import ReadTask
from .settings import PRESETS, TrainConfig
from .tasks import Asked, unchanged
from .texts import TextTask

TASKS: dict[str, Any] = {
    "gpt": TextTask, "vit": LabelTask, "captioner": CaptionTask, "seq2seq": PairTask, "reader": ReadTask,
    "dit": DiffusionTask,
}  # fmt: skip
USUAL = {
    "gpt": "pydoc", "vit": "digits", "captioner": "scenes", "seq2seq": "dates", "reader": "pydoc", "dit": "digits",
}  # data, when none is named  # fmt: skip
NAMED = {
    "gpt": tuple(TEXTS), "vit": EMBEDDED["label"], "captioner": EMBEDDED["caption"], "seq2seq": pairs.EMBEDDED,
    "reader": tuple(TEXTS), "dit": (*EMBEDDED["label"], *EMBEDDED["caption"]),
}  # fmt: skip


def train_config(family: str, preset: str, train: dict[str, Any]) -> TrainConfig:
    """The training's settings: a preset's, and what is said over them."""
    preset_of(family, preset)
    return build(TrainConfig, PRESETS[family][preset] | train, "train.")


def settings_of(
    family: str,
    data: str | None,
    preset: str | None,
    model: dict[str, Any],
    train: dict[str, Any],
    tokenizer: str | None = None,
    vocab: int = 4096,
    vae: str | None = None,
    size: str | None = None,
) -> dict[str, Any]:
    """The model's and the training's settings as a run would have them; a text need not be read for that."""
    preset = preset or find_family(family).default
    config = train_config(family, preset, train)
    if family == "gpt":
        return {"model": configure(family, preset, **model), "train": config}
    asked = Asked(family, data or USUAL[family], preset, tokenizer, vocab, model, train, vae, size)
    begun = TASKS[family].begin(asked, config)
    return {"model": begun.sizes, "train": begun.config}


def new_run(
    family: str,
    data: str | None = None,
    tokenizer: str | None = None,
    vocab: int = 4096,
    preset: str | None = None,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    name: str | None = None,
    out: Path | None = None,
    force: bool = False,
    vae: str | None = None,
    size: str | None = None,
) -> tuple[Run, Any, TrainConfig]:
    """Check everything, read the data, and only then make the run's folder."""
    preset, model, train = preset or find_family(family).default, model or {}, train or {}
    data = USUAL[family] if data is None else data
    # refused before a large corpus is read; what only the data can settle is judged when it has
    config = train_config(family, preset, train)
    fitted(find_family(family).config, model, "model.")
    on_cpu = pick_device(config.device).type == "cpu"
    if family == "gpt":
        sizes = configure(family, preset, **{"vocab": 256, **model})
        if on_cpu:
            check_memory(family, sizes, config.batch)
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; a folder elsewhere is given by --out")
    if name and (Path("runs") / name).exists() and not force:
        raise UserError(f"the name {name} is already taken by {Path('runs') / name}; choose another, or --force")
    begun = TASKS[family].begin(Asked(family, data, preset, tokenizer, vocab, model, train, vae, size), config)
    if on_cpu:
        check_memory(family, begun.sizes, begun.config.batch)
    path = out or (Path("runs") / name if name else choose_path(f"{begun.name}-{family}"))
    facts = {
        "family": family, "preset": preset, "data": data, "data_path": whole_path(data, NAMED[family]),
        "data_hash": begun.hash, **begun.facts, "pencil": __version__,
    }  # fmt: skip
    settings = {"run": facts, "model": begun.sizes, "train": begun.config}
    return Run.create(path, settings, begun.tokenizer, force), begun.task, begun.config


def task_of(run: Run, config: TrainConfig) -> Any:
    """The task of a run, on the data it was trained on; data that has changed since is refused."""
    facts = run.config["run"]
    find_family(run.family)  # refused by name if there is none
    if "data_path" not in facts or "data_hash" not in facts:
        raise UserError(f"{run.path} does not say where its data is: it was made by Pencil {facts.get('pencil', '?')}")
    task = TASKS[run.family].again(run, facts["data_path"], config)
    unchanged(run, task.hash)
    return task


def whole_path(data: str, embedded: Sequence[str]) -> str:
    """Where the data is, from any working folder: a path in full, the name of embedded data as it is."""
    hub, bare = data.startswith("hub:"), data.removeprefix("hub:")
    path = Path(bare).expanduser()
    return f"{'hub:' * hub}{path.resolve()}" if path.exists() and data not in embedded else data


def check_memory(family: str, config: Any, batch: int) -> None:
    """Refuse what cannot fit: weights, gradients and two moments, and the least a batch needs, against all there is."""
    if not hasattr(os, "sysconf"):
        return
    sizes = config.sizes
    words = sizes.get("t", sizes["T"]) * sizes.get("V", 0)
    try:
        needed = 16 * parameters(family, config) + 4 * batch * (words + 8 * sizes["T"] * config.width * config.depth)
    except RuntimeError:  # so large that its bytes cannot be counted
        needed = 1 << 63
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"this training needs about {needed / 1e9:,.0f} GB of memory and the machine has {there / 1e9:,.0f}; "
            f"try a smaller --train.batch, --model.width or --model.{'context' if 'V' in sizes else 'image_size'}"
        )
