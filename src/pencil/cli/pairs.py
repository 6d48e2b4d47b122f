"""What `sample` does with texts: an encoder–decoder writes their targets, a reader judges them."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..config import UserError
from ..core.span import Span
from ..files import write_aside
from ..generate import Sampling, stream
from ..runs import Loaded
from ..train.pairs import best, end_of, looks, padded, shown, sources_of
from .using import flow, tell, whole


class Beam(NamedTuple):
    """How the likeliest targets are looked for."""

    width: int
    penalty: float


def transduce(
    loaded: Loaded,
    sources: list[str],
    new: int,
    how: Sampling,
    stop: list[str],
    count: int | None,
    beam: Beam | None,
    attention: Path | None,
    out: Path | None,
) -> int:
    """The target of each source; by a beam the likeliest, with their scores."""
    model, tokenizer, _ = loaded
    if attention and len(sources) > 1:
        raise UserError(f"--attention shows one source and its target, and {len(sources)} were given")
    if beam is not None:
        found = best(model, tokenizer, sources, beam.width, beam.penalty, new)
        lines = []
        for source, rows in zip(sources, found, strict=True):
            head = [f"{source}:"] if len(sources) > 1 else []
            lines.append("\n".join(head + [f"{one.score:.4f}  {text}" for text, one in rows[:count]]))
        tell(lines, out, "\n")
        first = found[0][0][0]
    else:
        times = count or 1
        rows = [source for source in sources for _ in range(times)]
        pieces = stream(
            model, tokenizer, [""] * len(rows), min(new, model.config.context - 1), how, stop=stop,
            samples=[k for _ in sources for k in range(times)], begin=end_of(tokenizer),
            given=sources_of(model, tokenizer, rows),
        )  # fmt: skip
        if len(rows) == 1 and out is None and attention is None:
            flow("", pieces)
            return 0
        texts = whole([""] * len(rows), pieces)
        tell([f"{s}: {t}" if len(sources) > 1 else t for s, t in zip(rows, texts, strict=True)], out, "\n")
        first = texts[0]
    if attention:
        write_aside(attention, looks(model, tokenizer, sources[0], first))
    return 0


def tokens_of(model: Any, tokenizer: Any, text: str) -> list[int]:
    """What a reader reads: a text begun by its end, or with the token that hides where it says [mask]."""
    if model.config.classes is not None:
        ids = [end_of(tokenizer), *tokenizer.encode(text).tolist()]
    else:
        first, *rest = (tokenizer.encode(part).tolist() for part in MASK.split(text))
        ids = first + [token for part in rest for token in (tokenizer.vocab, *part)]
    if not text:
        raise UserError("the text is empty: give at least one word")
    if len(ids) > model.config.context:
        raise UserError(
            f"the text “{text[:40]}{'…' * (len(text) > 40)}” has {len(ids)} tokens and the model reads "
            f"{model.config.context}; shorten it"
        )
    return ids


MASK = re.compile(r"\[mask\]", re.IGNORECASE)


def judge(loaded: Loaded, texts: list[str], out: Path | None) -> int:
    """The likeliest labels of each text, or the likeliest words where it says [mask]."""
    model, tokenizer, run = loaded
    labelled = model.config.classes is not None
    rows = [tokens_of(model, tokenizer, text) for text in texts]
    for text, ids in zip(texts, rows, strict=True):
        if not labelled and tokenizer.vocab not in ids:
            raise UserError(f"{run.path} guesses hidden words: write [mask] where one shall be, in “{text[:40]}”")
    tokens, places = (t.to(next(model.parameters()).device) for t in padded(rows, 0, model.config.context))
    with torch.no_grad():
        likely = model(tokens, Span.at(places)).float().softmax(-1).cpu()
    lines = []
    for text, ids, row in zip(texts, rows, likely, strict=True):
        head = [f"{text}:"] if len(texts) > 1 else []
        if labelled:
            classes = run.config["run"].get("classes") or []
            lines.append("\n".join(head + _top(row, lambda i: classes[i] if i < len(classes) else str(i))))  # noqa: B023
        else:
            row = row[:, : tokenizer.vocab]
            told = [_top(row[at], lambda i: shown(tokenizer, i)) for at, i in enumerate(ids) if i == tokenizer.vocab]
            lines.append("\n".join([*head, "\n\n".join("\n".join(guesses) for guesses in told)]))
    tell(lines, out, "\n\n" if not labelled else "\n")
    return 0


def _top(row, name) -> list[str]:
    best = row.topk(min(5, len(row)))
    return [f"{name(i)} {p:.4f}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
