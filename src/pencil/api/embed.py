"""`pencil.embed`: the vectors of texts, of a run or of a model alone."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import UserError
from ..families.embedding import settings_of
from ..families.predictions import as_batch, check_texts
from ..families.registry import FAMILIES, family
from ..runs.run import Loaded
from .loading import load
from .predict import bare


def embedder(name: str, where: Any) -> Callable[..., Tensor]:
    """What gives the vectors of texts in the family of this name; a family without it is refused."""
    record = family(name)
    if record.embed is None:
        able = " or ".join(one.name for one in FAMILIES.values() if one.embed)
        raise UserError(f"{where} is a {record.name}, which gives no vector of a text: only a {able} does")
    return record.embed


def embed(
    what: Any, texts: Any, *, tokenizer: Any = None, pool: str | None = None, normalize: bool | None = None
) -> Tensor:
    """The vector of each text, in float32: (n, D) for a list, (D,) for one text.

    `what` is a run (its folder, or what `pencil.load` gives) or a model, which takes its `tokenizer`. Pooling (mean or
    class) and whether vectors have length 1 are as the run says, unless given. The end of a text that is longer than
    the context is left out, with a warning.
    """
    if isinstance(what, str | Path):
        what = load(what, dtype="auto")
    if isinstance(what, Loaded) and tokenizer is not None:
        raise UserError("a run has its own tokenizer: leave tokenizer out")
    loaded = what if isinstance(what, Loaded) else bare(what, tokenizer, None)
    vectors = embedder(loaded.run.family, loaded.run.path)
    if loaded.tokenizer is None:
        raise UserError("a text needs a tokenizer: give the model's, embed(…, tokenizer=…)")
    batch, single = as_batch(texts)
    given, model = check_texts(batch, "a text"), loaded.model
    trains = model.training
    model.eval()
    try:
        how = settings_of(loaded, pool, normalize)
        found = vectors(loaded, given, how, lambda line: warnings.warn(line, stacklevel=4))
    finally:
        model.train(trains)
    return found[0] if single else found
