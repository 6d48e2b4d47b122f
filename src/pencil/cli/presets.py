"""A model by the name of a preset, or by the folder of a run."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import UserError

if TYPE_CHECKING:
    from ..families.record import Family


def find_model(what: str) -> "tuple[Family, Any, dict[str, Any]]":
    """The family, the model's config and the training settings of a preset or of a run."""
    from ..families import FAMILIES, open_run

    presets = {f"{name}:{preset}": (name, preset) for name, one in FAMILIES.items() for preset in one.presets}
    alike = [full for full in presets if full.endswith(f":{what}")]
    if len(alike) > 1:
        raise UserError(f"{what} is a preset of several families; use {', '.join(alike[:-1])} or {alike[-1]}")
    if what in presets or alike:
        name, preset = presets[alike[0] if alike else what]
        record = FAMILIES[name]
        return record, record.configure(preset), dict(record.training.get(preset, {}))
    if Path(what).is_dir():
        run = open_run(what)
        record = FAMILIES[run.family]
        return record, record.read_config(run.config["model"]), run.config["train"]
    if what in FAMILIES:
        raise UserError(f"{what} is a family; use one of {', '.join(f for f in presets if presets[f][0] == what)}")
    close = difflib.get_close_matches(what, [*presets, *(preset for _, preset in presets.values())], 1, 0.6)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(presets))}"
    raise UserError(f"{what} is neither a preset nor a run's folder; {hint}")
