"""A run opened for looking into: its model run once on what the user gave, with words for the places."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import UserError
from ..core.masks import NOWHERE
from ..data.augment import Look
from ..data.images import open_picture
from ..generate import Sampling, complete
from ..models.parts import numbers
from ..runs import Loaded, load
from ..tracing.nested import mapped
from ..tracing.picture import last_pattern
from ..tracing.record import LiveTrace, trace
from ..train.painting import drawing_of, paint
from ..train.pairs import shown, sources_of, write
from .noise import told
from .pairs import tokens_of


def trace_run(path: Path, reading: Any, double: bool = False) -> LiveTrace:
    """The trace of a run's model on what it reads (`tracing.Reading`); in double precision if asked."""
    loaded = load(path)
    family, given, text = loaded.run.family, reading.given, reading.text
    if text is not None and family not in ("captioner", "seq2seq"):
        raise UserError(f"--text is what a captioner or a seq2seq says of its input, and {path} is a {family}")
    for name in reading.options:
        # a dit takes all of them but --input, the others no more than that
        if name != "--text" and (name == "--input") == (family == "dit"):
            raise UserError(f"{path} is a {family}: it takes no {name}")
    if family == "dit":
        return _from_noise(loaded, reading, double)
    if given is None:
        what = "a picture's file" if family in ("vit", "captioner") else "a text"
        raise UserError(f"{path} is a {family}: give it {what} by --input")
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


def _from_noise(loaded: Loaded, reading: Any, double: bool) -> LiveTrace:
    """A dit at one step of its way from noise."""
    model, tokenizer, _ = loaded
    c, asked = model.config, reading.prompt if model.config.vocab else reading.label
    labels, texts = ([] if one is None else [one] for one in (reading.label, reading.prompt))
    given = told(loaded, labels, texts)
    steps = 50 if reading.steps is None else reading.steps
    step = (steps + 1) // 2 if reading.step is None else reading.step
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    if not 1 <= step <= steps:
        raise UserError(f"--step must be from 1 to {steps}, not {step}")
    seed, guidance = reading.seed or 0, 1.0 if reading.guidance is None else reading.guidance
    handed = _handed(loaded, given, step, steps, seed, guidance)
    if double:
        model.double()
        handed = mapped(handed, "", lambda _, one: one.double() if one.is_floating_point() else one)
    words = _groups(c, [] if guidance == 1 else [str(asked), "nothing"])
    if c.vocab:
        ids, there = given[0][0].tolist(), given[1][0].tolist()
        read = [shown(tokenizer, i) if at < NOWHERE else "(padding)" for i, at in zip(ids, there, strict=True)]
        words["s"] = ["begin", *read[1:]]
    moment = (f"{asked}, " if given else "") + f"step {step} of {steps}" + (f", seed {seed}" if seed else "")
    return trace(model, *handed, words=words, facts=_strips(0, c.grid) | {"moment": moment})


class _Reached(Exception):
    """The walk is where it was to be looked at."""


def _handed(loaded: Loaded, given: Any, step: int, steps: int, seed: int, guidance: float) -> tuple[Any, ...]:
    """What `paint`, and so `pencil sample`, hands the model at this step: listened in on, so that it is the same."""
    model, _, run = loaded
    process = drawing_of(model.config, "vae" in run.config["run"])
    calls = []

    def listen(_: Any, handed: tuple[Any, ...]) -> None:
        calls.append(handed)
        if len(calls) == step:
            raise _Reached

    listening = model.register_forward_pre_hook(listen)
    try:
        paint(model, process, given, 1, guidance, steps, seed=seed)
    except _Reached:
        pass
    finally:
        listening.remove()
    return calls[-1]


def _groups(c: Any, rows: list[str]) -> dict[str, list[str]]:
    """Words for the strips of a picture or a video, and for the groups in which they look at one another."""

    def seats(name: str, sides: Any) -> list[str]:
        return [f"{name} {','.join(map(str, at))}" for at in np.ndindex(*sides)]

    def each(groups: list[str]) -> list[str]:
        return [f"{row}, {group}" for row in rows for group in groups] or groups

    strips = seats("strip", c.grid)
    labels = {"T": strips, "S": strips, "N": strips} | ({"B": rows} if rows else {})
    if c.attention == "factored":
        last = c.patch_frames - 1
        starts = range(0, c.frames, c.patch_frames)
        times = [f"frames {i}–{i + last}" if last else f"frame {i}" for i in starts]
        seen = seats("strip", c.grid[1:])
        labels |= {"w": times, "B·w": each(times), "n": seen, "B·n": each(seen)}
    elif c.attention == "windowed":
        sizes = [min(c.window, side) for side in c.grid]
        there = seats("window", [side // size for side, size in zip(c.grid, sizes, strict=True)])
        labels |= {"B·w": each(there), "n": seats("place", sizes)}
    return labels


def _words(tokenizer: Any, vocab: int) -> list[str]:
    """The words of the vocabulary, where there are few enough to be read along an axis."""
    if vocab > 512:
        return []
    return [shown(tokenizer, i) if i < tokenizer.vocab else "[mask]" for i in range(vocab)]
