"""The inputs on which a run's heads are scored: its own held-out data, or a text of the user's."""

from collections.abc import Sequence
from typing import Any

from ...api.run_data import task_of, task_on
from ...config import UserError, build
from ...families import family
from ...inference.head_patterns import MAX_INPUTS, HeadProfile, Inputs
from ...runs.run import Loaded
from ...train.settings import TrainConfig


def head_profile(loaded: Loaded) -> HeadProfile:
    """What the family of a run provides for scoring heads; refused where it cannot."""
    profile = family(loaded.run.family).heads
    if isinstance(profile, str):
        raise UserError(f"{loaded.run.path} is a {loaded.run.family}: {profile}")
    return profile


def head_inputs(loaded: Loaded, text: str | None = None, data: str | None = None) -> list[Inputs]:
    """The inputs of the run's model, one forward pass each: parts of the text, other data, or its held-out data."""
    profile, run = head_profile(loaded), loaded.run
    if text is None:
        inputs = profile.held_out(loaded, _task(loaded, profile, data))
        if len(inputs) < 2:
            raise UserError(f"{run.path} has too little held-out data: at least two examples of two tokens are needed")
    elif profile.from_text is None:
        raise UserError(
            f"{run.path} is a {run.family}, which reads more than a text: leave --text and --prompt out, and its heads "
            "are scored on its held-out data"
        )
    elif loaded.tokenizer is None:
        raise run.no_tokenizer()
    else:
        inputs = profile.from_text(loaded, text)
    return on_device(loaded.model, inputs)


def separators(loaded: Loaded) -> set[int]:
    """The tokens that separate texts or lines: after them a model may well attend no further back."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return set()
    special = {*tokenizer.ends, *(part for side in tokenizer.around for part in side)}
    return special | {i for i in range(tokenizer.vocab) if "\n" in tokenizer.token(i)}


def on_device(model: Any, inputs: Sequence[Inputs]) -> list[Inputs]:
    """The same on the model's device, in its precision."""
    like = next(model.parameters())
    return [
        tuple(part.to(like) if part.is_floating_point() else part.to(like.device) for part in row) for row in inputs
    ]


def _task(loaded: Loaded, profile: HeadProfile, data: str | None) -> Any:
    run = loaded.run
    config = build(TrainConfig, {**run.config["train"], "batch": MAX_INPUTS}, "train.")
    if data is not None:
        return task_on(run, config, data, lambda line: None)[0]
    if not run.config["run"].get("data_path") and "import" in run.config:
        text = ", or a text with --prompt" if profile.from_text is not None else ""
        raise UserError(f"{run.path} was imported, and has no data of its own: name some with --data{text}")
    try:
        return task_of(run, config)
    except UserError as error:
        if profile.from_text is None:
            raise
        raise UserError(f"{error} (or give a text by --text or --prompt)") from None
