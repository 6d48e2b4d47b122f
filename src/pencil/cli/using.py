"""sample and eval."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError


def sample(
    run: Path,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    count: int = 1,
    new: int = 256,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    seed: int = 0,
    slide: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
    out: Path | None = None,
) -> int:
    """Let a trained model write; one text streams as it is decoded.

    Parameters
    ----------
    run
        The run's folder.
    prompt
        What to go on from; give it again for several texts, or - to read it from standard input.
    count
        How many texts for each prompt.
    new
        How many tokens to write at most.
    temperature
        Under 1 bolder on the likely, over 1 wilder; 0 takes the likeliest always.
    top_k
        Draw only from the k likeliest tokens.
    top_p
        Draw only from the likeliest tokens that together have this probability.
    min_p
        Draw only from tokens at least this fraction as likely as the likeliest.
    repetition_penalty
        Over 1 makes what was already written less likely.
    stop
        End a text before this string; may be given again.
    seed
        The same seed writes the same text.
    slide
        When the context is full, forget its older half and go on, instead of stopping.
    device
        auto, cpu, cuda or mps.
    out
        Write the texts to this file instead of showing them.
    """
    from ..generate import Sampling, stream
    from ..runs import load
    from ..train.loop import pick_device

    how = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    for name, value in (("--new", new), ("--count", count)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    if stop and "" in stop:
        raise UserError("--stop cannot be empty: every text begins with nothing")
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder; --out is the file to write")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} in")
    model, tokenizer, opened = load(run, pick_device(device))
    if tokenizer is None:
        raise UserError(f"{opened.path} has no tokenizer.json")
    given = [sys.stdin.read() if text == "-" else text for text in prompt or [_beginning(tokenizer)]]
    for text in given:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError("the prompt is not UTF-8 text")
    prompts = [text for text in given for _ in range(count)]
    samples = [k for _ in given for k in range(count)]
    reasons: list[str] = []
    pieces = stream(model, tokenizer, prompts, new, how, stop=stop or (), samples=samples, slide=slide, reasons=reasons)
    if len(prompts) == 1 and out is None:
        sys.stdout.write(prompts[0] if prompt else "")
        for piece in pieces:
            sys.stdout.write(piece[0])
            sys.stdout.flush()
        sys.stdout.write("\n")
    else:
        texts = list(prompts) if prompt else [""] * len(prompts)
        for step in pieces:
            texts = [text + piece for text, piece in zip(texts, step, strict=True)]
        whole = ("\n" + "-" * 40 + "\n").join(texts) + "\n"
        if out is None:
            sys.stdout.write(whole)
        else:
            out.write_text(whole, encoding="utf-8")
    if "context" in reasons:
        note = f"(stopped: the context of {model.config.context} tokens is full; --slide goes on)"
        Console(stderr=True).print(note, highlight=False, markup=False)
    return 0


def _beginning(tokenizer) -> str:
    """Something to start from when no prompt is given: the end of the text before, or a new line."""
    if tokenizer.end is not None:
        return tokenizer.decode([tokenizer.end])
    return "\n" if tokenizer.kind == "byte" or "\n" in tokenizer.characters else tokenizer.decode([0])


def evaluate(
    run: Path, /, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False, device: str = "auto"
) -> int:
    """Measure a run on its held-out data: loss, perplexity, bits per byte; one name and value a line.

    Parameters
    ----------
    run
        The run's folder.
    as_json
        The same as one JSON object.
    device
        auto, cpu, cuda or mps.
    """
    from ..runs import Run
    from ..train.loop import pick_device
    from ..train.start import task_of

    held = Run.open(run)
    model = held.load_model(pick_device(device))
    task = task_of(held, batch=32, seed=0)
    measures = task.evaluate(model)
    if as_json:
        print(json.dumps(measures))
    else:
        for name, value in measures.items():
            print(f"{name} {value:.6f}")
    return 0
