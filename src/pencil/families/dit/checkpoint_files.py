"""What an imported diffusion transformer brings beside its weights: the names of its classes, and its autoencoder."""

from pathlib import Path
from typing import Any

from ...config import UserError
from ...files import read_json
from ...inference.autoencoder import Autoencoder
from ...weights.checkpoint_files import LARGEST_CONFIG, Checkpoint, inside


def imported(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
    """Tables of the run, from the folder of the pipeline that the transformer is a part of."""
    if checkpoint.folder.name != "transformer":
        return {}
    pipeline = checkpoint.folder.parent
    facts: dict[str, Any] = {"classes": names} if (names := _class_names(pipeline, config.classes)) else {}
    return {"run": facts | _autoencoder(pipeline, config.channels)}


def _class_names(pipeline: Path, count: int | None) -> list[str]:
    """The names in the pipeline's list of parts; none where they are not one for each class."""
    if not (pipeline / "model_index.json").exists():
        return []
    names = read_json(inside(pipeline, "model_index.json"), LARGEST_CONFIG).get("id2label")
    numbers = [str(i) for i in range(count or 0)]
    if not isinstance(names, dict) or set(names) != set(numbers) or not all(isinstance(n, str) for n in names.values()):
        return []
    return [names[number] for number in numbers]


def _autoencoder(pipeline: Path, channels: int) -> dict[str, Any]:
    """The autoencoder in vae/, as a run that was trained with one names it; `pencil sample --vae` takes another."""
    if not (pipeline / "vae" / "config.json").exists():
        return {}
    try:
        autoencoder = Autoencoder.open(str(pipeline))
    except UserError:  # diffusers is not installed, or the weights are pickled: sampling says that it needs one
        return {}
    if autoencoder.channels != channels:
        raise UserError(
            f"the autoencoder in {pipeline / 'vae'} makes latents of {autoencoder.channels} channels, and the "
            f"transformer takes {channels}"
        )
    return {"vae": autoencoder.source, "vae_hash": autoencoder.hash}
