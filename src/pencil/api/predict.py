"""`pencil.predict` and `pencil.embed`: of a run by its folder, of one that was opened, or of a model alone."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ..config import UserError
from ..families.family import FAMILIES, family
from ..families.predictions import as_batch, check_texts
from ..families.reader import settings_of
from ..runs.run import Loaded
from .loading import load, predict_loaded


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
        return predict_loaded(bare(what, tokenizer, classes), inputs, options)
    if tokenizer is not None or classes is not None:
        raise UserError("a run has its own tokenizer and classes: leave tokenizer and classes out")
    return predict_loaded(what, inputs, options)


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
    checked, model = check_texts(batch, "a text"), loaded.model
    trains = model.training
    model.eval()
    try:
        how = settings_of(loaded, pool, normalize)
        rows = vectors(loaded, checked, how, lambda line: warnings.warn(line, stacklevel=4))
    finally:
        model.train(trains)
    return rows[0] if single else rows


def embedder(name: str, where: Any) -> Callable[..., Tensor]:
    """What gives the vectors of texts in the family of this name; a family without it is refused."""
    record = family(name)
    if record.embed is None:
        able = " or ".join(one.name for one in FAMILIES.values() if one.embed)
        raise UserError(f"{where} is a {record.name}, which gives no vector of a text: only a {able} does")
    return record.embed


def bare(model: Any, tokenizer: Any, classes: Sequence[str] | None) -> Loaded:
    """A model without a run, as one that was opened; its classes have numbers unless they are named."""
    names = [name for name, record in FAMILIES.items() if type(model) is record.model]
    if not names:
        raise UserError(
            f"{type(model).__name__} is neither a run nor a model of a family; a run is its folder or what pencil.load "
            "gives"
        )
    count = getattr(model.config, "classes", None)
    if classes is not None and len(classes) != count:
        raise UserError(f"{len(classes)} names of classes were given, and the model has {count or 'none'}")
    facts: dict[str, Any] = {} if classes is None else {"classes": list(map(str, classes))}
    run: Any = SimpleNamespace(path="the model", family=names[0], config={"run": facts})
    return Loaded(model, tokenizer, run)
