"""`pencil.predict`: of a run by its folder, of one that was opened, or of a model alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import UserError
from ..runs.run import Loaded
from .loading import load
from .predict import bare, predict_with


def predict(
    what: Any, inputs: Any = None, *, tokenizer: Any = None, classes: Sequence[str] | None = None, **options: Any
) -> Any:
    """What a model says of its inputs, as `pencil sample` does: one result, or a list of them for a list.

    `what` is a run (its folder, or what `pencil.load` gives) or a model of Pencil's; a model alone takes its
    `tokenizer`, and names of `classes` if there are any. Inputs: pictures (paths, PIL images, arrays of uint8),
    texts, sources of a translation, or labels of images to be sampled. The options are those of `pencil sample`.
    """
    if isinstance(what, str | Path):
        what = load(what, dtype="auto")
    if not isinstance(what, Loaded):
        return predict_with(bare(what, tokenizer, classes), inputs, options)
    if tokenizer is not None or classes is not None:
        raise UserError("a run has its own tokenizer and classes: leave tokenizer and classes out")
    return predict_with(what, inputs, options)
