"""lab: claims about parts of a transformer, measured over several seeds."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..config import UserError, expand_path
from ..console import Console


def lab(
    name: str | None = None,
    /,
    *,
    quick: Annotated[bool, Parameter(negative=())] = False,
    seeds: int = 5,
    out: str | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Remove one part of a transformer and measure what breaks, with and without it over the same seeds.

    After an interruption the same command goes on: what was measured is kept.

    Parameters
    ----------
    name
        The claim to test, or `all`. Without a name: list the claims.
    quick
        Run the small size of each experiment.
    seeds
        Number of runs, each with different weights and data; at least 3.
    out
        Folder for the figure and the report; lab/NAME by default.
    force
        Start anew, and overwrite the results in that folder.
    """
    from ..learn.lab import claim_of, claims
    from ..learn.lab.resume import writing
    from ..learn.lab.runner import Plan
    from .screens.lab_results import list_claims, run_plan, take_over

    console = Console(highlight=False)
    if name is None:
        list_claims(console, list(claims().values()))
        return 0
    if seeds < 3:
        raise UserError(f"--seeds must be at least 3, not {seeds}: a confidence interval needs several runs")
    every = name == "all"
    tested = list(claims().values()) if every else [claim_of(name)]
    words = ["pencil", "lab", name, *(["--quick"] if quick else []), *(["--seeds", str(seeds)] if seeds != 5 else [])]
    folder = _folder(expand_path(out) if out is not None else Path("lab") / name)
    plan, command = Plan(tested, seeds, quick), shlex.join(words)
    with writing(folder):
        take_over(console, plan, folder, command, force)
        return run_plan(console, plan, folder, command, every)


def _folder(folder: Path) -> Path:
    """The folder for the results: a new or an empty one, or one that the lab wrote."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder; choose another with --out")
    ours = any((folder / name).is_file() for name in ("results.jsonl", "plan.json"))
    if folder.is_dir() and any(path.name != ".lock" for path in folder.iterdir()) and not ours:
        raise UserError(
            f"{folder} is not empty and was not written by pencil lab (it has no results.jsonl); choose another with "
            f"--out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder
