"""eval: metrics of a run on its held-out data."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..config import UserError, build
from ..console import visible
from .terminal import note, note_line


def evaluate(
    run: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
    out: Path | None = None,
) -> int:
    """Evaluate a run on its held-out data: one metric a line, and figures in a folder.

    Text: loss, perplexity, bits per byte. Classes: accuracy, confusion matrix, the most confident mistakes.
    Captions and translations: exact match, mistakes, the attention at each word. Diffusion: loss, and the share of
    samples that a classifier of the same data classifies as their label; the classifier is trained once and kept.

    Parameters
    ----------
    run
        The run's folder.
    as_json
        Print the metrics as one JSON object.
    device
        auto, cpu, cuda or mps.
    out
        Folder for the figures; eval/ in the run's folder by default.
    """
    from ..device import pick_device
    from ..families import family, load_model, open_run
    from ..families.run_setup import task_of
    from ..train.settings import TrainConfig

    opened = open_run(run)
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out is the folder for the figures")
    model = load_model(opened, pick_device(device))
    task = task_of(opened, build(TrainConfig, {**opened.config["train"], "batch": 32}, "train."), notify=note)
    folder, record = out or opened.path / "eval", family(opened.family)
    metrics, files = record.evaluate(task, model, folder, note) if record.evaluate else task.report(model, folder)
    if as_json:
        print(json.dumps(metrics))
    else:
        for name, value in metrics.items():
            print(f"{visible(name, one_line=True)} {value:.6f}")
    skipped = [f"skipped {name}: {fault}" for name, fault in task.skipped()]
    for line in [*skipped, *getattr(task, "notes", ()), *map(str, files)]:
        note_line(line)
    return 0
