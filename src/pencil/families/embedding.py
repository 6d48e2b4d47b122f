"""A text as one vector: the hidden states of its tokens pooled, as sentence-transformers does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import UserError
from ..core.layers import evaluating
from ..core.span import Span
from ..inference.text_batches import pad, shorten, text_ids
from ..models.output import refuse_output
from ..models.reader import first_of, mean_of
from ..progress import track
from ..runs.run import Loaded

BATCH = 64  # texts in one forward pass
Pool = Literal["mean", "class"]
POOLS: dict[str, Any] = {"mean": mean_of, "class": first_of}
SECTION = "embed"  # of a run's config: pool, normalize and context, as the original has them


class Vectors(NamedTuple):
    """How texts become vectors."""

    pool: Pool = "mean"  # the mean of all tokens, or the first one
    normalize: bool = False  # whether each vector has length 1
    context: int | None = None  # tokens read of a text, where that is fewer than the model's context


def settings_of(loaded: Loaded, pool: str | None = None, normalize: bool | None = None) -> Vectors:
    """How this run's texts become vectors: as the run says, unless given."""
    c, table = loaded.model.config, loaded.run.config.get(SECTION, {})
    usual = c.pool if c.output == "label" else "mean"
    pool = pool or table.get("pool", usual)
    if pool not in POOLS:
        raise UserError(f"pool is mean (of all tokens) or class (the first token), not {pool}")
    context = min(int(table.get("context", c.context)), c.context)
    return Vectors(pool, bool(table.get("normalize", False)) if normalize is None else normalize, context)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def embed_texts(
    loaded: Loaded, texts: Sequence[str], how: Vectors, notify: Callable[[str], None] = lambda line: None
) -> Tensor:
    """The vector of each text (n, D), in float32; the end of a text that is too long is left out."""
    model, tokenizer = loaded.model, loaded.tokenizer
    longest = how.context or model.config.context
    rows = [token_row(model, tokenizer, text) for text in texts]
    long = sum(len(row) > longest for row in rows)
    if long:
        which = f"{long} of {len(rows)} texts" if len(rows) > 1 else "the text"
        notify(f"cut at {longest} tokens, which the model reads at most: {which}")
        rows = [
            row if len(row) <= longest else token_row(model, tokenizer, text, longest)
            for row, text in zip(rows, texts, strict=True)
        ]
    pooled = torch.empty(len(rows), model.config.width)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # texts of one length together: little padding
    for begin in track(range(0, len(rows), BATCH)):
        few = order[begin : begin + BATCH]
        tokens, places = (t.to(loaded.device) for t in pad([rows[i] for i in few], tokenizer.pad or 0, longest))
        span = Span.at(places)
        with evaluating(model.modules()):
            vectors = POOLS[how.pool](model.states(tokens, span).float(), span)
        pooled[few] = (F.normalize(vectors, dim=-1) if how.normalize else vectors).cpu()
    if not pooled.isfinite().all():
        refuse_output(model, "the vectors")
    return pooled


def token_row(model: Any, tokenizer: Any, text: str, longest: int | None = None) -> list[int]:
    """The tokens of a text as the model was trained on them, at most `longest`."""
    text = text.strip()
    ends = tokenizer.special is not None or model.config.output == "label"
    row = text_ids(tokenizer, text, longest) if ends else tokenizer.encode(text).tolist()[:longest]
    if not text or not row:
        raise UserError("a text is empty: give at least one word")
    check_padding(model, tokenizer, text, row)
    return row


def check_padding(model: Any, tokenizer: Any, text: str, row: Sequence[int]) -> None:
    """Refuse padding inside a text, where the original gives it no position of its own."""
    if model.config.position_offset and tokenizer.pad in row:
        word = tokenizer.token(tokenizer.pad)
        raise UserError(f"the text “{shorten(text)}” has {word}, which is this model's padding: leave it out")
