"""eval: metrics of a run on its held-out data, or on other data."""

import json
import math
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..console import note, shortened, visible
from .names import check_run

DTYPE_HELP = (
    "float32, bfloat16 or float16; int8 rounds the matrices and computes in bfloat16 on CUDA, elsewhere in float32; "
    "auto is what the weights are stored in, on a CPU at least float32."
)


def evaluate(
    run: Path,
    /,
    *,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
    dtype: Annotated[str, Parameter(help=DTYPE_HELP)] = "auto",
    out: Path | None = None,
    by: str | None = None,
    baseline: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Evaluate a run on its held-out data, or on other data: one metric a line, and figures in a folder.

    Text: loss, perplexity, bits per byte. Classes: accuracy with its 95 % interval and the share of the commonest
    class, balanced accuracy, macro F1, precision and recall per class, confusion matrix, the most confident mistakes,
    expected calibration error, how often answers are right beside their probability, all answers in predictions.csv.
    Captions and translations: exact match, chrF, BLEU, mistakes, the attention at each word. Diffusion: loss, and the
    share of samples that a classifier of the same data classifies as their label, beside the classifier's own accuracy
    on real images; the classifier is trained once and kept.

    Parameters
    ----------
    run
        The run's folder.
    data
        Other data of the same kind, all of it evaluated: a folder with the same classes, another text, other pairs.
        Classes are matched by name; one that the model does not know is refused. Images that the run was trained on
        are left out.
    as_json
        Print the metrics as one JSON object.
    device
        auto, cpu, cuda or mps.
    out
        Folder for the figures; by default eval/ in the run's folder, or eval-NAME/ for other data.
    by
        A column of a table of texts with labels: also the accuracy for each of its values.
    baseline
        Of classes also the figures of simple models fitted to the run's training data, in seconds: always the
        commonest class and, with scikit-learn installed, TF-IDF with logistic regression for texts, colour histograms
        with a random forest for images. They are added to the run's README.md.
    """
    check_run(run)
    from ..api.evaluate import evaluate_run
    from ..train.tasks.class_report import GROUP_FIGURES, describe_calibration, group_table
    from ..train.tasks.metrics import CLASS_FIGURES, class_table, describe_accuracy

    found = evaluate_run(run, data, device, dtype, out, note, by, baseline)
    task, metrics = found.task, found.metrics
    *compared, verdict = found.compared or [""]
    if as_json:
        print(json.dumps({name: value if math.isfinite(value) else None for name, value in metrics.items()}))
    else:
        for name, value in metrics.items():
            if name.partition(".")[0] not in (*CLASS_FIGURES, *GROUP_FIGURES, "baseline"):
                print(f"{visible(shortened(name), one_line=True)} {value:.6f}")
        for line in [*class_table(metrics), *group_table(metrics, by), *compared]:
            print(visible(line, one_line=True))
    skipped = [f"skipped {name}: {fault}" for name, fault in task.skipped()]
    explained = [describe_accuracy(metrics, task.unit), describe_calibration(metrics), verdict]
    for line in [*skipped, *filter(None, explained), *getattr(task, "notes", ()), *map(str, found.files)]:
        note(line)
    return 0
