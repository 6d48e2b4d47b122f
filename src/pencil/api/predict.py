"""`pencil.predict` and `pencil.embed`: of a run by its folder, of one that was opened, or of a model alone."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ..config import UserError, refuse
from ..data import in_memory
from ..data.inputs import Input, Kind, choose_column, inputs_of
from ..families.family import FAMILIES, family
from ..families.predictions import as_batch, check_texts, is_picture
from ..families.reader import settings_of
from ..runs.run import Loaded
from .loading import load, predict_loaded
from .predict_files import BATCH, kind_of, predict_file
from .run_data import named_columns
from .trained import TrainedRun


def predict(
    what: Any,
    inputs: Any = None,
    *,
    tokenizer: Any = None,
    classes: Sequence[str] | None = None,
    column: str | None = None,
    out: str | Path | None = None,
    batch: int | None = None,
    strict: bool = False,
    probabilities: bool = False,
    force: bool = False,
    **options: Any,
) -> Any:
    """What a model says of its inputs, as `pencil sample` does: one result, or a list of them for a list.

    `what` is a run (its folder, or what `pencil.load` gives) or a model of Pencil's; a model alone takes its
    `tokenizer`, and names of `classes` if there are any. Inputs: pictures (paths, PIL images, arrays of uint8),
    texts, sources of a translation, or labels of images to be sampled; or a table in memory, whose `column` has them.
    The options are those of `pencil sample`.

    With `out`, a file, it is `pencil predict`: a table is written, and its rows and errors are counted. Then the inputs
    may also be folders of pictures and, as a `Path`, files of texts, lists and tables; `batch`, `strict`,
    `probabilities` and `force` are as there.
    """
    loaded = opened(what, tokenizer, classes)
    if in_memory.is_table(inputs):
        (names, columns), kind = in_memory.raw_columns(inputs), kind_of(loaded.run.family)
        keys = ("image",) if kind == "picture" else ("text", "source")
        own = [name for key, name in named_columns(loaded.run).items() if key in keys and name in names]
        name = choose_column(names, in_memory.WHERE, kind, column or next(iter(own), None))
        inputs, column = list(columns[names.index(name)]), None
    if out is None:
        refuse(
            (column is not None, "column is for a table"),
            (batch is not None or strict or probabilities or force, "batch, strict and the like go with out, a file"),
        )
        return predict_loaded(loaded, inputs, options)
    rows = _inputs(inputs, kind_of(loaded.run.family), column)
    how: Any = {"strict": strict, "probabilities": probabilities, "force": force}
    return predict_file(loaded, rows, Path(out), options, batch=BATCH if batch is None else batch, **how)


def opened(what: Any, tokenizer: Any, classes: Sequence[str] | None) -> Loaded:
    """A run, opened if it is a folder or a training; or a model alone."""
    if isinstance(what, str | Path | TrainedRun):
        what = load(what.path if isinstance(what, TrainedRun) else what, dtype="auto")
    if not isinstance(what, Loaded):
        return bare(what, tokenizer, classes)
    if tokenizer is not None or classes is not None:
        raise UserError("a run has its own tokenizer and classes: leave tokenizer and classes out")
    return what


def _inputs(inputs: Any, kind: Kind, column: str | None) -> Iterator[Input]:
    """The inputs of a table that is written: those that files and folders name, and those in memory."""
    several: Any = [inputs] if isinstance(inputs, str | Path) or is_picture(inputs) else inputs
    for number, one in enumerate(several, 1):
        if isinstance(one, Path) or (isinstance(one, str) and kind == "picture"):
            yield from inputs_of([str(one)], kind, column)
        elif isinstance(one, str):
            yield Input(one, one)
        else:
            yield Input(f"input {number}", one)


def embed(
    what: Any, texts: Any, *, tokenizer: Any = None, pool: str | None = None, normalize: bool | None = None
) -> Tensor:
    """The vector of each text, in float32: (n, D) for a list, (D,) for one text.

    `what` is a run (its folder, or what `pencil.load` gives) or a model, which takes its `tokenizer`. Pooling (mean or
    class) and whether vectors have length 1 are as the run says, unless given. The end of a text that is longer than
    the context is left out, with a warning.
    """
    loaded = opened(what, tokenizer, None)
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
