"""What the heads of a run are measured on: its own held-out data, or a text of the user's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...config import UserError, build
from ...models.parts import numbers
from ...runs import Loaded
from ...train.pairs import end_of
from ...train.settings import TrainConfig
from ...train.start import task_of
from .layouts import REFUSED, Inputs
from .scores import LONGEST, TEXTS

SHORTEST = 8  # tokens of a text, where the model can read as many
PARTS = 8  # a short text is cut into, so that there is an interval


def given_to(loaded: Loaded, text: str | None = None) -> list[Inputs]:
    """What the run's model is given, one call after another: parts of the text, or held-out data of its own."""
    model, tokenizer, run = loaded
    family = run.family
    if family in REFUSED:
        raise UserError(f"{run.path} is a {family}: {REFUSED[family]}")
    if text is None:
        return on(model, _held_out(loaded))
    if family not in ("gpt", "reader"):
        raise UserError(
            f"{run.path} is a {family}, which reads more than a text: leave --text and --prompt out, and its heads are "
            "measured on its held-out data"
        )
    if tokenizer is None:
        raise UserError(f"{run.path} has no tokenizer.json")
    if family == "reader" and model.config.classes is not None:
        lines = [line for line in text.split("\n") if line.strip()]
        return on(model, _begun(lines, tokenizer, model.config.context))
    return on(model, windows(tokenizer.encode(text), model.config.context))


def apart(loaded: Loaded) -> set[int]:
    """The tokens that set one text or line apart from the next: after them a model may well look back no further."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return set()
    return {i for i in range(tokenizer.vocab) if i == tokenizer.end or "\n" in tokenizer.decode([i])}


def on(model: Any, texts: Sequence[Inputs]) -> list[Inputs]:
    """The same on the model's device."""
    device = next(model.parameters()).device
    return [tuple(part.to(device) for part in given) for given in texts]


def windows(ids: np.ndarray, context: int) -> list[Inputs]:
    """Parts of a long text, spread evenly over it; a short one is cut smaller, so that there are several."""
    length = min(context, LONGEST, max(SHORTEST, len(ids) // PARTS))
    if length < 3:
        raise UserError(f"a context of {context} tokens leaves a head nothing to choose between")
    if len(ids) < 2 * length:
        raise UserError(
            f"the text has {len(ids)} tokens, and at least {2 * length} are needed: two parts of {length}, to tell "
            "what a head does from what one text made it do"
        )
    starts = spread(len(ids) // length) * length
    return [(row(ids[at : at + length]),) for at in starts.tolist()]


def spread(total: int) -> np.ndarray:
    """Which of so many to take: all, or as many as are read, as evenly as can be."""
    return np.linspace(0, total - 1, min(total, TEXTS)).astype(int)


def row(ids: Any) -> torch.Tensor:
    """Tokens as a batch of one."""
    return torch.from_numpy(np.asarray(ids, np.int64)[None])


def _begun(texts: Sequence[str], tokenizer: Any, context: int) -> list[Inputs]:
    """Texts as a reader of labels has them: begun by the end, and cut where they are too long."""
    rows = [[end_of(tokenizer), *tokenizer.encode(text).tolist()][: min(context, LONGEST)] for text in texts]
    rows = [ids for ids in rows if len(ids) > 2]
    if len(rows) < 2:
        raise UserError("at least two texts of two tokens are needed, one a line, to tell what a head does")
    return [(row(rows[i]),) for i in spread(len(rows)).tolist()]


def _held_out(loaded: Loaded) -> list[Inputs]:
    model, tokenizer, run = loaded
    family, context = run.family, getattr(model.config, "context", 0)
    try:
        task = task_of(run, build(TrainConfig, {**run.config["train"], "batch": TEXTS}, "train."))
    except UserError as error:
        if family not in ("gpt", "reader"):
            raise
        raise UserError(f"{error} (or give a text by --text or --prompt)") from None
    data = task.data
    if family in ("vit", "captioner"):
        pictures, targets = data.test.take(spread(len(data.test)).tolist(), task.look.plain)
        seen = [numbers(torch.from_numpy(np.array(picture[None]))) for picture in pictures]
        if family == "vit":
            found = [(picture,) for picture in seen]
        else:
            ids = [[task.end, *tokenizer.encode(text).tolist()] for text in targets]
            found = [(row(one), picture) for one, picture in zip(ids, seen, strict=True) if len(one) > 2]
    elif family == "seq2seq":
        chosen = [data.test[i] for i in spread(len(data.test)).tolist()]
        sides = [([task.end, *task.encoded(said)], [*task.encoded(read), task.end]) for read, said in chosen]
        found = [(row(said), row(read)) for said, read in sides if min(len(said), len(read)) > 2]
    elif family == "reader" and model.config.classes is not None:
        found = _begun([data.test[i][0] for i in spread(len(data.test)).tolist()], tokenizer, context)
    else:
        found = windows(data.val, context)
    if len(found) < 2:
        raise UserError(f"{run.path} has too little held-out data: at least two examples of two tokens are needed")
    return found
