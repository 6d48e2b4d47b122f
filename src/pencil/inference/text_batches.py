"""Texts as batches of tokens: padding, the end token, sources of an encoder–decoder, and labels of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.masks import NOWHERE
from ..core.span import Span
from ..data.tokenizers.tokenizer import Tokenizer
from ..progress import pollable
from .beam import Hypothesis, search
from .generation import Generation
from .sampling import Sampling


def end_token(tokenizer: Tokenizer) -> int:
    """The id that begins and ends a text; refused where the tokenizer has none."""
    if tokenizer.end is None:
        raise UserError("the tokenizer has no <|endoftext|>, which begins and ends a text")
    return tokenizer.end


def start_token(tokenizer: Tokenizer) -> int:
    """The id that begins a target: the end token, unless the tokenizer of an imported run has another."""
    return end_token(tokenizer) if tokenizer.start is None else tokenizer.start


def source_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A source and its end token."""
    if tokenizer.special is not None:
        return tokenizer.encode_with_special(text)
    return [*tokenizer.encode(text).tolist(), end_token(tokenizer)]


def target_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A target and the token that begins it."""
    return [start_token(tokenizer), *tokenizer.encode_target(text).tolist()]


def text_ids(tokenizer: Tokenizer, text: str, longest: int | None = None) -> list[int]:
    """A text as a classifier reads it: begun by the end token, or with the special tokens of an imported run.

    One that is longer than `longest` is cut, and keeps its special tokens.
    """
    ids = tokenizer.encode(text).tolist()
    before, after = ((end_token(tokenizer),), ()) if tokenizer.special is None else tokenizer.around
    return [*before, *ids[: None if longest is None else max(0, longest - len(before) - len(after))], *after]


def mask_token(tokenizer: Tokenizer) -> int:
    """The id of the mask token: the one after the last, unless the tokenizer of an imported run has one."""
    return tokenizer.vocab if tokenizer.mask is None else tokenizer.mask


def padded_length(count: int, longest: int) -> int:
    """The length that so many tokens are padded to: few different ones, so that a compiled model meets few shapes."""
    return min(longest, -(-count // 8) * 8)


def pad(rows: Sequence[Sequence[int]], fill: int, longest: int, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one tensor, and the index of each token: NOWHERE for padding.

    No row is longer than `longest`, and neither is the result; with `whole` it is always as long.
    """
    length = longest if whole else padded_length(max(map(len, rows)), longest)
    tokens = np.full((len(rows), length), fill, np.int64)
    places = np.full((len(rows), length), NOWHERE, np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], places[i, : len(row)] = row, np.arange(len(row))
    return torch.from_numpy(tokens), torch.from_numpy(places)


def source_inputs(model: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """The source inputs of an encoder–decoder; a source that is empty or too long is refused."""
    longest, end, rows = model.config.source_context, end_token(tokenizer), []
    for text in texts:
        ids = source_ids(tokenizer, text)
        if len(ids) == 1:
            raise UserError("the source is empty: give at least one word")
        if len(ids) > longest:
            raise UserError(
                f"the source “{shorten(text)}” has {len(ids)} tokens with its end token, and the source context is "
                f"{longest}; shorten it"
            )
        rows.append(ids)
    device = next(model.parameters()).device
    if len({len(row) for row in rows}) == 1:
        return {"source": torch.tensor(rows, device=device)}
    tokens, places = pad(rows, end, longest)
    return {"source": tokens.to(device), "source_span": Span.at(places.to(device))}


def greedy_targets(
    model: Any, tokenizer: Tokenizer, sources: Sequence[str], max_new_tokens: int | None = None
) -> list[str]:
    """The target of each source, decoded greedily."""
    start, longest = start_token(tokenizer), model.config.context - 1
    generation = Generation(
        model,
        [[start]] * len(sources),
        min(longest, max_new_tokens or longest),
        Sampling(0),
        end=tokenizer.ends,
        never=tokenizer.never,
        vocab=tokenizer.vocab,
        given=source_inputs(model, tokenizer, sources),
    )
    for _ in pollable(generation):
        pass
    return [decode_text(tokenizer, row[1:]) for row in generation.rows]


def beam_targets(
    model: Any,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    beams: int,
    penalty: float,
    max_new_tokens: int | None = None,
) -> list[list[tuple[str, Hypothesis]]]:
    """For each source the highest-scoring targets of a beam search, best first, with their scores."""
    start, longest = start_token(tokenizer), model.config.context - 1
    hypotheses = search(
        model,
        [[start]] * len(sources),
        min(longest, max_new_tokens or longest),
        beams,
        end=tokenizer.ends,
        never=tokenizer.never,
        vocab=tokenizer.vocab,
        penalty=penalty,
        given=source_inputs(model, tokenizer, sources),
    )
    return [[(decode_text(tokenizer, one.tokens), one) for one in rows] for rows in hypotheses]


def decode_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of these ids, without end tokens."""
    return tokenizer.decode([token for token in ids if token not in tokenizer.ends])


def token_label(tokenizer: Tokenizer, token: int) -> str:
    """One token as a short visible word."""
    return tokenizer.token(token).replace(" ", "␣").replace("\n", "⏎") or "·"


def vocabulary_labels(tokenizer: Tokenizer, vocab: int) -> list[str]:
    """A label for each id, where there are few enough to be kept with a trace; beyond are masks."""
    if vocab > 8192:
        return []
    spare = "[mask]" if tokenizer.special is None else "·"
    return [token_label(tokenizer, i) if i < tokenizer.vocab else spare for i in range(vocab)]


def shorten(text: str, length: int = 40) -> str:
    return text[:length] + "…" * (len(text) > length)
