"""sample and eval."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError, can_be_written


def sample(
    run: Path,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    count: int | None = None,
    new: int = 256,
    image: Annotated[list[Path] | None, Parameter(negative=(), consume_multiple=True)] = None,
    source: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    label: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative=())] = None,
    guidance: float | None = None,
    steps: int | None = None,
    sampler: str | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    attention: Path | None = None,
    temperature: float | None = None,
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
    """Let a trained model write, say what a picture shows, judge a text, or draw; one text streams as it is decoded.

    Parameters
    ----------
    run
        The run's folder.
    prompt
        What to go on from, or, for a reader, what to judge; to one without labels [mask] is a hidden word. Give it
        again for several texts, or - to read it from standard input.
    image
        The picture, or pictures, a vit names or a captioner describes.
    attention
        Write a picture of where the model looked, for each word it said, to this PNG file.
    source
        The text an encoder–decoder turns into another; give it again for several, or - to read one a line from standard
        input.
    label
        What a dit shall draw, by the name of its class; give it again for several.
    guidance
        How hard a dit is pushed towards what was asked for: 1 not at all. 3 when not given.
    steps
        In how many steps a dit comes from noise to a picture. 50 when not given.
    sampler
        How it gets there: flow or heun, for a model that was trained with flow; ddim or ddpm, for one with steps.
    beams
        Look for the likeliest targets of a source, this many side by side, and tell each with its score: the logarithm
        of its probability over ((5 + length)/6)^length-penalty.
    length_penalty
        Of a search by beams: over 0 long texts lose less by being long. 0.6 when not given.
    count
        How many texts for each prompt, or pictures for each label; with --beams, how many of the best to tell.
    new
        How many tokens to write at most.
    temperature
        Under 1 bolder on the likely, over 1 wilder; 0 takes the likeliest always. 0.8 for text, 0 for captions and
        targets.
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
        Write the texts to this file instead of showing them; of a dit, the folder for its pictures, or a .png or .gif.
    """
    from ..generate import Sampling
    from ..runs import load
    from ..train.loop import pick_device

    how = Sampling(0.8 if temperature is None else temperature, top_k, top_p, min_p, repetition_penalty, seed)
    for name, value in (("--new", new), ("--count", count), ("--beams", beams), ("--steps", steps)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    if stop and "" in stop:
        raise UserError("--stop cannot be empty: every text begins with nothing")
    loaded = load(run, pick_device(device))
    family = loaded.run.family
    if family != "dit":
        can_be_written("--out", out)
    can_be_written("--attention", attention, ".png")
    given = {
        "--prompt": prompt, "--image": image, "--source": source, "--attention": attention, "--slide": slide or None,
        "--beams": beams, "--length-penalty": length_penalty, "--temperature": temperature, "--top-k": top_k,
        "--top-p": top_p, "--min-p": min_p, "--stop": stop, "--count": count,
        "--label": label, "--guidance": guidance, "--steps": steps, "--sampler": sampler,
        "--repetition-penalty": None if repetition_penalty == 1 else repetition_penalty,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and family not in TAKEN_BY.get(name, WRITERS):
            raise UserError(f"{run} is a {family}, which {DOES[family]}: it takes no {name}")
    for name, what in NEEDED.get(family, {}).items():
        if not given[name]:
            raise UserError(f"{run} is a {family}, which {what} by {name}")
    prompt, source = (texts and [_read(text) for text in texts] for texts in (prompt, source))
    if family == "dit":
        from .noise import paint_pictures

        asked = 50 if steps is None else steps
        return paint_pictures(loaded, label or [], prompt or [], count or 1, guidance, asked, sampler, seed, out)
    if family == "vit":
        from .pictures import name_pictures

        return name_pictures(loaded, image or [], attention, out)
    likeliest = replace(how, temperature=temperature or 0.0)  # the likeliest words, unless asked otherwise
    texts = prompt or [""]
    if family == "captioner":
        from .pictures import describe

        return describe(loaded, image or [], texts, new, likeliest, stop or [], count or 1, attention, out)
    if family == "seq2seq":
        from .pairs import Beam, transduce

        sources = [line for text in source or [] for line in text.strip("\n").split("\n")]
        beam = None if beams is None else Beam(beams, 0.6 if length_penalty is None else length_penalty)
        if beam is None and length_penalty is not None:
            raise UserError("--length-penalty is for a search by --beams")
        if beams is not None and count is not None and count > beams:
            raise UserError(f"--beams {beams} finds {beams} texts at most, and --count asks for {count}")
        if beam and (drawn := [name for name in DRAWN if given[name]]):
            raise UserError(f"--beams looks for the likeliest texts and draws none: it takes no {drawn[0]}")
        return transduce(loaded, sources, new, likeliest, stop or [], count, beam, attention, out)
    if family == "reader":
        from .pairs import judge

        return judge(loaded, [text.strip("\n") for text in texts], out)
    return _write(loaded, texts if prompt else None, new, how, stop or [], count or 1, slide, out)


DRAWN = ("--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop")  # not by beams
WRITERS = ("gpt", "captioner", "seq2seq")
TAKEN_BY = {  # an option that is not here is for all that write
    "--prompt": ("gpt", "captioner", "reader", "dit"),
    "--image": ("vit", "captioner"),
    "--attention": ("vit", "captioner", "seq2seq"),
    "--source": ("seq2seq",),
    "--beams": ("seq2seq",),
    "--length-penalty": ("seq2seq",),
    "--slide": ("gpt",),
    "--label": ("dit",),
    "--guidance": ("dit",),
    "--steps": ("dit",),
    "--sampler": ("dit",),
    "--count": ("gpt", "captioner", "seq2seq", "dit"),
}
DOES = {
    "gpt": "goes on from a prompt",
    "vit": "says a picture's label",
    "captioner": "describes a picture",
    "seq2seq": "writes the target of a source",
    "reader": "reads a text and writes none",
    "dit": "draws a picture",
}
NEEDED = {
    "vit": {"--image": "looks at a picture: give one"},
    "captioner": {"--image": "looks at a picture: give one"},
    "seq2seq": {"--source": "reads a source: give one"},
    "reader": {"--prompt": "reads a text: give one"},
}


def _read(text: str) -> str:
    """A text as it was given, or, for -, from standard input."""
    try:
        text = sys.stdin.read() if text == "-" else text
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8 text") from None
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError("the text is not UTF-8")
    return text


def _write(loaded, given: list[str] | None, new: int, how, stop: list[str], count: int, slide: bool, out: Path | None):
    """A text model goes on from its prompts."""
    from ..generate import stream

    model, tokenizer, opened = loaded
    if tokenizer is None:
        raise UserError(f"{opened.path} has no tokenizer.json")
    begun = given or [_beginning(tokenizer)]
    prompts = [text for text in begun for _ in range(count)]
    samples = [k for _ in begun for k in range(count)]
    reasons: list[str] = []
    pieces = stream(model, tokenizer, prompts, new, how, stop=stop, samples=samples, slide=slide, reasons=reasons)
    shown = prompts if given else [""] * len(prompts)
    if len(prompts) == 1 and out is None:
        flow(shown[0], pieces)
    else:
        tell(whole(shown, pieces), out)
    if "context" in reasons:
        note = f"(stopped: the context of {model.config.context} tokens is full; --slide goes on)"
        Console(stderr=True).print(note, highlight=False, markup=False)
    return 0


def flow(prompt: str, pieces) -> None:
    """One text, shown as it is written."""
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece[0])
        sys.stdout.flush()
    sys.stdout.write("\n")


def whole(prompts: list[str], pieces) -> list[str]:
    texts = list(prompts)
    for step in pieces:
        texts = [text + piece for text, piece in zip(texts, step, strict=True)]
    return texts


def tell(texts: list[str], out: Path | None, between: str = "\n" + "-" * 40 + "\n") -> None:
    """Several texts, or any to a file."""
    content = between.join(texts) + "\n"
    if out is None:
        sys.stdout.write(content)
    else:
        out.write_text(content, encoding="utf-8")


def _beginning(tokenizer) -> str:
    """Something to start from when no prompt is given: the end of the text before, or a new line."""
    if tokenizer.end is not None:
        return tokenizer.decode([tokenizer.end])
    return "\n" if "\n" in getattr(tokenizer, "characters", "\n") else tokenizer.decode([0])


def evaluate(
    run: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "auto",
    out: Path | None = None,
) -> int:
    """Measure a run on its held-out data, one name and value a line; of pictures also as pictures.

    A gpt: loss, perplexity, bits per byte. A vit: accuracy, over all and per class, the confusion matrix and the worst
    mistakes. A captioner: exact matches, the mistakes, and where it looked. A seq2seq: exact matches, errors a
    character, chrF and BLEU if sacrebleu is installed, the mistakes, and where it looked. A reader: accuracy. A dit:
    how many samples a classifier of the same pictures sees as what was asked for; of texts the loss, and samples to
    look at.

    Parameters
    ----------
    run
        The run's folder.
    as_json
        The same as one JSON object.
    device
        auto, cpu, cuda or mps.
    out
        The folder to write pictures of the result into; eval/ in the run's own when not given.
    """
    from ..config import build
    from ..runs import Run
    from ..train.loop import pick_device
    from ..train.settings import TrainConfig
    from ..train.start import task_of

    held = Run.open(run)
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out is the folder for the pictures of the result")
    model = held.load_model(pick_device(device))
    task = task_of(held, build(TrainConfig, {**held.config["train"], "batch": 32}, "train."))
    measures, files = task.report(model, out or held.path / "eval")
    if as_json:
        print(json.dumps(measures))
    else:
        for name, value in measures.items():
            print(f"{name} {value:.6f}")
    lost = [f"skipped {name}: {fault}" for name, fault in task.skipped()]
    for line in [*lost, *getattr(task, "notes", ()), *map(str, files)]:
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
    return 0
