"""average: the mean of a run's last checkpoints as a run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..console import note
from .names import check_run


def average(
    run: Path,
    /,
    *,
    last: int = 5,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
) -> int:
    """Average the weights of a run's last checkpoints, as the first Transformer was used: a new run, evaluated.

    A training keeps its newest two checkpoints; --train.keep 5 keeps five. Where it keeps a moving average of the
    weights (--train.ema), that of each checkpoint is averaged.

    Parameters
    ----------
    run
        The run's folder.
    last
        Number of checkpoints, counted from the newest; at least 2.
    out
        Folder of the new run; by default the run's own name with -average after it.
    force
        Replace the run of that name.
    device
        auto, cpu, cuda or mps; where it is evaluated.
    """
    check_run(run)
    from ..api.average import average_run
    from ..api.loading import open_run
    from ..train.loop.report import shown_progress
    from ..train.tasks.metrics import is_detail

    with shown_progress("averaging"):
        made, metrics = average_run(run, last, out, force, device, note)
    before = open_run(run).weights_facts
    for name, value in metrics.items():
        if not is_detail(name):
            was = f" ({float(before[name]):.6f} of {run}, step {before['step']})" if name in before else ""
            print(f"{name} {value:.6f}{was}")
    note(str(made.path))
    return 0
