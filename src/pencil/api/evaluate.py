"""A run evaluated on its held-out data or on other data; the classifier that scores samples of a diffusion model."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..config import UserError, build
from ..core.patches import by
from ..data.images.sizes import patch_for
from ..data.in_memory import name_of
from ..data.tables.pairs import another_column
from ..data.text.text_data import cache_folder
from ..device import pick_device
from ..families.family import family
from ..families.vit import FAMILY as CLASSIFIER
from ..files import check_inside, write_aside
from ..models.build import check_finite
from ..runs.files import place_beside
from ..runs.run import Run
from ..train.loop import checkpoint
from ..train.loop.report import shown_progress
from ..train.loop.trainer import Trainer
from ..train.settings import TrainConfig
from ..train.tasks.baselines import HEADING, Baseline, as_metrics, baselines, card, rows, verdict
from ..train.tasks.diffusion import Diffusion
from ..train.tasks.metrics import in_columns
from ..train.tasks.text_classification import TextClassification
from .loading import load_model, open_run
from .run_data import amount, task_of, task_on
from .run_setup import new_run
from .training_request import TrainingRequest

CLASSIFIER_TRAINING = dict(steps=800, eval_every=400)  # for data without settings of its own
Notify = Callable[[str], None]


class Evaluation(NamedTuple):
    """A task with the metrics of a run on it, and the files with its figures."""

    task: Any
    metrics: dict[str, float]
    files: list[Path]
    baselines: list[Baseline]

    @property
    def compared(self) -> list[str]:
        """The baselines beside the run as lines of a table, and a sentence; none without baselines."""
        if not self.baselines:
            return []
        table = in_columns(rows(self.baselines, self.metrics))
        return [*table, verdict(self.baselines, self.metrics, self.task.unit)]


def evaluate_run(
    run: Path,
    data: str | None,
    device: str,
    dtype: str,
    out: Path | None,
    notify: Notify,
    column: str | None = None,
    baseline: bool = False,
) -> Evaluation:
    """The metrics of a run on its held-out data, or on all of other data; its figures go into a folder.

    `column` is one of a table of texts: accuracies of the texts with each of its values are among the metrics. With
    `baseline` those of simple models that are fitted to the run's training data are too.
    """
    opened = open_run(run)
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out is the folder for the figures")
    model = load_model(opened, pick_device(device), dtype)
    check_finite(model.named_parameters())
    record, config = family(opened.family), build(TrainConfig, {**opened.config["train"], "batch": 32}, "train.")
    if data is None:
        task, other = task_of(opened, config, notify=notify), False
    else:
        task, other = task_on(opened, config, data, notify)
    if out is not None and not task.figures:
        raise UserError(f"--out has no effect on {opened.path}, whose evaluation draws no figures: leave it out")
    if column is not None:
        if not isinstance(task, TextClassification):
            raise UserError(f"--by {column} is for texts with labels in a table, which {opened.path} does not read")
        task.groups = another_column(data if other and data else opened.config["run"]["data_path"], task.data, column)
    folder = out or place_beside(opened.path, f"eval-{_file_name(data)}" if other and data else "eval")
    if folder.parent == opened.path and out is None:
        check_inside(folder, opened.path)
    if other and data is not None:
        for line in getattr(task.data, "notes", ()):
            notify(line)
        notify(f"Evaluating on {name_of(data)}: {amount(task)}{getattr(task, 'cut_note', '')}.")
        if config.class_weights == "balanced" or config.balanced_batches:
            notify(
                f"val_loss weighs the classes of {name_of(data)} alike: their balance follows from the training data."
            )
    with shown_progress("evaluating"):
        if other or record.evaluate is None:
            metrics, files = task.report(model, folder)
        else:
            metrics, files = record.evaluate(task, model, folder, partial(trained_classifier, notify=notify))
    found = _baselines(opened, task, other, config, notify) if baseline else []
    if found and not other:
        _write_in_card(opened.path, card(found, metrics, task.unit))
    return Evaluation(task, {**metrics, **as_metrics(found)}, files, found)


def _baselines(run: Run, task: Any, other: bool, config: TrainConfig, notify: Notify) -> list[Baseline]:
    if not hasattr(task, "baseline"):
        raise UserError(f"a baseline is of a run that predicts classes, and {run.path} does not: leave --baseline out")
    if other and "data_path" not in run.config["run"]:
        raise UserError(f"{run.path} was imported, and has no data to fit a baseline to: leave --baseline out")
    fitted = task_of(run, config, notify=notify) if other else task
    with shown_progress("fitting baselines"):
        return baselines(task, fitted, notify)


def _write_in_card(run: Path, section: str) -> None:
    """Put the section of the baselines at the end of a run's model card; training goes on with a card without it."""
    path = run / "README.md"
    if path.is_file() and not path.is_symlink():
        text = path.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0]
        write_aside(path, f"{text}\n{section}".encode())


def _file_name(data: str) -> str:
    """The name of data as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", Path(data).name or "input").strip("-.") or "input"


def trained_classifier(task: Diffusion, notify: Notify) -> Any:
    """The classifier of the task's images, at the size they are sampled in."""
    size = {"image_size": task.transform.size, "channels": task.transform.channels}
    native = all(task.data.model_defaults.get(name) == value for name, value in size.items())
    ending = "" if native else "-" + by((size["channels"], *task.transform.size))
    fit = task.reading.fit
    ending += "" if fit in (None, "crop") else f"-{fit}"
    ending += "" if task.data.split == 1 else f"-split{task.data.split}"
    path = cache_folder() / f"classifier-{task.data.hash[:32]}{ending}"
    steps = checkpoint.saved_steps(path)
    if not steps or steps[-1] != Run.open(path).config["train"]["steps"]:
        notify(f"Training a classifier of {task.data.name} to score samples by, once; it is kept in {path}")
        request = TrainingRequest(
            CLASSIFIER.name,
            task.source,
            model={} if native else size | {"patch": patch_for(task.transform.size)},
            train={} if task.data.training_defaults else CLASSIFIER_TRAINING,
            data_settings={"fit": fit} if fit else {},
        )
        run, classify, config = new_run(request, out=path, force=path.exists(), split=task.data.split)
        if not Trainer(classify, run, config).train().finished:
            raise KeyboardInterrupt  # a classifier that was not trained to its end must not score anything
    return load_model(open_run(path))
