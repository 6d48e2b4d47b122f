"""A run opened for looking into: its model run once on what the user gave, with words for the places."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import UserError
from ..data.augment import Look
from ..data.images import open_picture
from ..generate import Sampling, complete
from ..models.parts import numbers
from ..runs import Loaded, load
from ..tracing.picture import last_pattern
from ..tracing.record import LiveTrace, trace
from ..train.pairs import shown, sources_of, write
from .pairs import tokens_of


def trace_run(path: Path, given: str | None, text: str | None, double: bool = False) -> LiveTrace:
    """The trace of a run's model on a text or a picture; in double precision if asked."""
    loaded = load(path)
    family = loaded.run.family
    if family == "dit":
        raise UserError(f"{path} is a dit, which is opened from Python: pencil.trace(model, noised, clock, label)")
    if given is None:
        what = "a picture's file" if family in ("vit", "captioner") else "a text"
        raise UserError(f"{path} is a {family}: give it {what} by --input")
    if text is not None and family not in ("captioner", "seq2seq"):
        raise UserError(f"--text is what a captioner or a seq2seq says of its input, and {path} is a {family}")
    if double:
        loaded.model.double()
    if family == "gpt":
        return _text(loaded, given)
    if family == "seq2seq":
        return _pair(loaded, given, text)
    if family == "reader":
        return _read(loaded, given)
    look = Look(loaded.model.config.image_size, loaded.model.config.channels)
    picture = open_picture(given, look)
    return trace_picture(loaded, picture, text)


def trace_picture(loaded: Loaded, picture: np.ndarray, text: str | None = None) -> LiveTrace:
    """A vit or a captioner on one picture (C, H, W) of bytes; a captioner with its own caption, unless one is given."""
    model, tokenizer, run = loaded
    c = model.config
    x = numbers(torch.from_numpy(np.array(picture[None]))).to(next(model.parameters()).dtype)
    strips = [f"strip {row},{column}" for row in range(c.grid[0]) for column in range(c.grid[1])]
    if run.family == "vit":
        first = int(model.class_token is not None)
        seen = ["class"] * first + strips
        classes = run.config["run"].get("classes") or []
        return trace(model, x, words={"T": seen, "S": seen, "N": strips, "K": classes}, facts=_strips(first, c.grid))
    if text is None:
        text = complete(model, tokenizer, [""], 64, Sampling(0.0), begin=tokenizer.end, given={"picture": x})[0]
    ids = [tokenizer.end, *tokenizer.encode(text).tolist()]
    if len(ids) > c.context:
        raise UserError(
            f"the caption has {len(ids)} tokens with its beginning, and the context of {run.path} is {c.context}"
        )
    words = ["begin", *(tokenizer.decode([i]).strip() or "␣" for i in ids[1:])]
    marks = int(c.delimiters)
    before = ["[IMG]"] * marks + strips + ["[/IMG]"] * marks
    labels = {
        "T": before + words,
        "S": before + words,
        "N": strips,
        "M": before,
        "t": words,
        "V": _words(tokenizer, c.vocab),
    }
    return trace(model, torch.tensor([ids]), x, words=labels, facts=_strips(marks, c.grid) | {"said": text})


def strongest_look(found: LiveTrace) -> tuple[str, str]:
    """The cell of the last pattern that looks hardest at a strip as the second word is said, and that word."""
    name = last_pattern(found)
    words, first = found.labels["t"], found.facts["strips"]
    said = min(2, len(words) - 1)
    query = len(found.labels["M"]) + said - 1
    looks = found.array(name)[0, :, query, first : first + math.prod(found.facts["grid"])]
    head, strip = np.unravel_index(int(looks.argmax()), looks.shape)
    return f"{name}[0,{head},{query},{first + strip}]", words[said]


def _strips(first: int, grid: Any) -> dict[str, Any]:
    return {"strips": first, "grid": list(grid)}


def _text(loaded: Loaded, text: str) -> LiveTrace:
    model, tokenizer, run = loaded
    ids = tokenizer.encode(text).tolist()
    if not ids:
        raise UserError("--input is empty: give the model at least one token to read")
    if len(ids) > model.config.context:
        raise UserError(f"the input has {len(ids)} tokens and the context of {run.path} is {model.config.context}")
    words = [shown(tokenizer, i) for i in ids]
    labels = {"T": words, "S": words, "V": _words(tokenizer, model.config.vocab)}
    return trace(model, torch.tensor([ids]), words=labels)


def _pair(loaded: Loaded, source: str, target: str | None) -> LiveTrace:
    """An encoder–decoder on a source, and on the target it writes unless one is given."""
    model, tokenizer, run = loaded
    target = write(model, tokenizer, [source])[0] if target is None else target
    given = sources_of(model, tokenizer, [source])["source"]
    ids = [tokenizer.end, *tokenizer.encode(target).tolist()]
    if len(ids) > model.config.context:
        raise UserError(
            f"the target has {len(ids)} tokens with its beginning, and the context of {run.path} is "
            f"{model.config.context}"
        )
    words = ["begin", *(shown(tokenizer, i) for i in ids[1:])]
    there = [*(shown(tokenizer, i) for i in given[0, :-1].tolist()), "end"]
    labels = {"T": words, "S": words, "s": there, "V": _words(tokenizer, model.config.vocab)}
    return trace(model, torch.tensor([ids]), given, words=labels, facts={"said": target})


def _read(loaded: Loaded, text: str) -> LiveTrace:
    model, tokenizer, run = loaded
    labelled = model.config.classes is not None
    ids = tokens_of(model, tokenizer, text)
    words = ["[mask]" if i == tokenizer.vocab else shown(tokenizer, i) for i in ids]
    words[0] = "begin" if labelled else words[0]
    labels = {"T": words, "S": words}
    labels |= (
        {"K": run.config["run"].get("classes") or []} if labelled else {"V": _words(tokenizer, model.config.vocab)}
    )
    return trace(model, torch.tensor([ids]), words=labels)


def _words(tokenizer: Any, vocab: int) -> list[str]:
    """The words of the vocabulary, where there are few enough to be read along an axis."""
    if vocab > 512:
        return []
    return [shown(tokenizer, i) if i < tokenizer.vocab else "[mask]" for i in range(vocab)]
