"""The classifier that scores samples of a diffusion model: a ViT of the same data, trained once and cached."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.patches import by
from ..data.images.sizes import patch_for
from ..data.text.text_data import cache_folder
from ..families.vit import FAMILY as CLASSIFIER
from ..runs.run import Run
from ..train.loop import checkpoint
from ..train.loop.trainer import Trainer
from ..train.tasks.diffusion import Diffusion
from .loading import load_model, open_run
from .run_setup import new_run
from .training_request import TrainingRequest

TRAINING = dict(steps=800, eval_every=400)  # for data without settings of its own


def trained_classifier(task: Diffusion, notify: Callable[[str], None]) -> Any:
    """The classifier of the task's images, at the size they are sampled in."""
    size = {"image_size": task.transform.size, "channels": task.transform.channels}
    native = all(task.data.model_defaults.get(name) == value for name, value in size.items())
    ending = "" if native else "-" + by((size["channels"], *task.transform.size))
    fit = task.reading.fit
    ending += "" if fit in (None, "crop") else f"-{fit}"
    ending += "" if task.data.split == 1 else f"-split{task.data.split}"
    path = cache_folder() / f"classifier-{task.data.hash[:32]}{ending}"
    if not _is_finished(path):
        notify(f"Training a classifier of {task.data.name} to score samples by, once; it is kept in {path}")
        request = TrainingRequest(
            CLASSIFIER.name,
            task.source,
            model={} if native else size | {"patch": patch_for(task.transform.size)},
            train={} if task.data.training_defaults else TRAINING,
            data_settings={"fit": fit} if fit else {},
        )
        run, classify, config = new_run(request, out=path, force=path.exists(), split=task.data.split)
        if not Trainer(classify, run, config).train().finished:
            raise KeyboardInterrupt  # a classifier that was not trained to its end must not score anything
    return load_model(open_run(path))


def _is_finished(path: Path) -> bool:
    steps = checkpoint.saved_steps(path)
    return bool(steps) and steps[-1] == Run.open(path).config["train"]["steps"]
