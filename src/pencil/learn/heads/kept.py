"""The scores of a run's heads, measured once and kept as `heads.json`.

The file stands in the run's folder, beside `heads.png`, and names the weights that it is of; other weights are measured
again. Where the folder cannot be written, and for the runs that come with Pencil, it is in the cache, under the hash of
the weights. It can be made again, so the run's manifest does not list it, and one that cannot be read is made anew.
"""

import json
from pathlib import Path
from typing import NamedTuple

from ...config import UserError
from ...data.cache import cache_folder
from ...files import read_json, write_aside
from ...runs.files import HEAD_SCORES, WEIGHTS, example_run
from ...runs.run import Loaded
from . import show
from .inputs import head_inputs, head_profile, separators
from .relations import SENTENCES
from .scores import Report, measure


class Place(NamedTuple):
    """Where the scores of a run's own weights are kept, the first choice first; and the hash of these weights."""

    files: tuple[Path, ...]
    weights: str


def kept_report(loaded: Loaded) -> Report | None:
    """The scores of a run's own weights, if they were measured before."""
    if (place := _place(loaded)) is None:
        return None
    for file in place.files:
        try:
            data = read_json(file) if file.is_file() else {}
            if data.get("weights") == place.weights:
                return show.from_data(data)
        except (UserError, KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def measure_and_keep(loaded: Loaded) -> Report:
    """Score the heads of a run's own weights, and keep the scores where they can be written."""
    report = score_heads(loaded)
    if (place := _place(loaded)) is None:
        return report
    for file in place.files:
        try:
            if file.parent != loaded.run.path:
                file.parent.mkdir(exist_ok=True)
            write_aside(file, json.dumps({"weights": place.weights, **show.as_data(report)}).encode())
            break
        except OSError:
            continue  # it cannot be kept there
    return report


def score_heads(loaded: Loaded) -> Report:
    """Score the heads of any weights of a run on its held-out data; on sentences where that does not come with it."""
    profile = head_profile(loaded)
    text = SENTENCES if is_example(loaded) and profile.from_text is not None else None
    return measure(loaded.model, profile, head_inputs(loaded, text), separators(loaded))


def is_example(loaded: Loaded) -> bool:
    """Whether a run comes with Pencil."""
    folder = Path(loaded.run.path)
    return example_run(f"example:{folder.name}") == folder


def _place(loaded: Loaded) -> Place | None:
    """Where scores are kept; None for a run without a list of its files, or one that is gone."""
    try:
        manifest = loaded.run.manifest
    except UserError:
        return None
    if manifest is None or not (entries := manifest.files.get(WEIGHTS)):
        return None
    weights = str(entries[-1]["sha256"])
    cached = cache_folder() / "heads" / f"{weights}.json"
    own = () if is_example(loaded) else (Path(loaded.run.path) / HEAD_SCORES,)
    return Place((*own, cached), weights)
