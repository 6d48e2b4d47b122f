"""train, resume and demo."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError, build, overrides, to_toml

Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def train(
    family: str,
    /,
    *settings: Settings,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    tokenizer: str | None = None,
    vocab: int = 4096,
    preset: str | None = None,
    size: str | None = None,
    vae: str | None = None,
    name: str | None = None,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    settings_only: Annotated[bool, Parameter(name="--settings", negative=())] = False,
) -> int:
    """Train a model on your data; Ctrl-C saves and says how to go on.

    Parameters
    ----------
    family
        What to train: gpt (text), vit (picture to label), captioner (picture to text), seq2seq (text to text), reader
        (text to label, or hidden words) or dit (label, text or nothing to picture, label to video).
    data
        gpt: a text file, a folder of them, "-" for standard input, or pydoc (embedded). vit: digits (embedded), a
        folder with one folder a class, or of MNIST's idx files. captioner: scenes or scenes-hard (embedded), or a
        folder of pictures with metadata.jsonl (file_name and text a line). Pictures also as hub:OWNER/NAME. seq2seq:
        dates (embedded), a .tsv file of source, tab, target a line, or a .jsonl file. reader: a .tsv file of text, tab,
        label, or a .jsonl file; without labels what gpt takes, and words are hidden. dit: as vit or captioner, a folder
        of pictures alone, or moving-digits (embedded videos).
    tokenizer
        Of text: char, byte, bpe (trained on the data), gpt2, or the path of a tokenizer.json.
    vocab
        How many ids a trained bpe may have.
    preset
        gpt: nano, nanogpt, small, shakespeare, llama-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl. vit: nano, small,
        ti/16, s/16, b/16, b/32, l/16. captioner: nano, seed, small, base. seq2seq: nano, small, base, big. reader:
        nano, small, bert-base, bert-large. dit: nano, small, and s, b, l, xl with /2, /4, /8 (of the paper).
    size
        Of pictures: 64, or 64x96 for height and width; without --vae the same as --model.image_size.
    vae
        An autoencoder of diffusers (a folder, or a name on the hub): a dit learns to draw in its latents, which are
        made once and kept in the cache.
    name
        The run's name under runs/; DATA-FAMILY when not given.
    out
        The run's folder, anywhere.
    force
        Replace a run that is already there.
    settings_only
        List every --model and --train setting with its value here, and train nothing.
    """
    chosen = overrides(list(settings), ("model", "train"))
    if vae is not None and family != "dit":
        raise UserError(f"--vae is for a dit, and this is a {family}")
    if size is not None and family in ("gpt", "seq2seq", "reader"):
        raise UserError(f"--size is for pictures, and {family} reads text")
    if size is not None and vae is None and "image_size" in chosen["model"]:
        raise UserError("--size is the same as --model.image_size here: give one of the two")
    if size is not None and vae is None:
        chosen["model"]["image_size"] = size
    from ..models import parameters
    from ..train.loop import pick_device
    from ..train.start import new_run, settings_of

    if settings_only:
        print(to_toml(settings_of(family, data, preset, chosen["model"], chosen["train"], tokenizer, vocab, vae, size)))
        return 0
    run, task, config = new_run(
        family, data, tokenizer, vocab, preset, chosen["model"], chosen["train"], name, out, force, vae, size
    )
    count = parameters(family, task.config)
    _say(f"A {family} of {count:,} parameters, from {task.about()}; on {pick_device(config.device).type}.")
    return _go(run, task, config)


def resume(run: Path, /, *settings: Settings) -> int:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    Parameters
    ----------
    run
        The run's folder. Training settings may be changed on the way: --train.steps 4000.
    """
    from ..runs import Run
    from ..train import checkpoint
    from ..train.settings import TrainConfig
    from ..train.start import task_of

    held = Run.open(run)
    changed = overrides(list(settings), ("train",))["train"]
    config = build(TrainConfig, held.config["train"] | changed, "train.")
    task = task_of(held, config)
    steps = checkpoint.saved(held.path)
    if steps and steps[-1] >= config.steps:
        _say(f"{run} has made {steps[-1]} steps, and {config.steps} were asked for; a larger --train.steps goes on")
        return 0
    return _go(held, task, config)


def demo(*, out: Path | None = None) -> int:
    """The whole story on this machine: a model learns to say what it sees, then describes pictures it never saw.

    Parameters
    ----------
    out
        The run's folder; runs/scenes-captioner when not given, or the next free name.
    """
    import torch

    from ..files import write_aside
    from ..runs import load
    from ..train.start import new_run

    _say("A model learns, from nothing, to say what stands where in a picture; about a minute and a half on two cores.")
    run, task, config = new_run("captioner", "scenes", train=DEMO, out=out)
    sizes = run.config["model"]
    _say(
        f"{sum(p.numel() for p in task.build().parameters()):,} numbers to learn: {sizes['depth']} blocks of width "
        f"{sizes['width']}, from {task.about()}, with {torch.get_num_threads()} threads.\n"
        "A picture is cut into strips; the words follow the strips in one stream, and each word looks at all of them."
    )
    status = _go(run, task, config)
    if status:
        return status
    loaded = load(run.path)
    model = loaded.model
    measures, files = task.report(model, run.path / "eval")
    _say("\nPictures it has never seen, in combinations and handwriting it has never seen, and what it says of them:\n")
    shown = task.data.test.pictures[:4]
    for picture, said, meant in zip(shown, task.caption(model, shown), task.data.test.targets, strict=False):
        _beside(picture, [said, "" if said == meant else f"(is: {meant})"])
    share, held = measures["exact_match"], len(task.data.test)
    _say(f"Right to the last word: {share:.1%} of {held:,} held-out pictures (exact_match {share:.4f}).")
    page = run.path / "eval" / "caption.html"
    _unfold(loaded, shown[0], page)
    _say(
        f"\nThe run         {run.path}\nWhere it looked {files[-1].parent}/attention-*.png\n"
        f"Its mistakes    {files[0]}\n"
        f"Every number    {page}   (open it and click any number)"
    )
    one = run.path / "eval" / "picture.png"
    write_aside(one, _as_png(shown[0]))
    _say(f"Go on:          {_command()} sample {run.path} --image {one} --attention look.png")
    _say(f"Your pictures:  {_command()} train captioner --data album/   (album/ has pictures and metadata.jsonl)")
    _say(f"Your text:      {_command()} train gpt --data notes/ --tokenizer bpe --preset small")
    return 0


def _unfold(loaded: Any, picture: Any, page: Path) -> None:
    """One number behind the first caption, as its arithmetic; and a page on which every other one unfolds too."""
    from ..tracing import html
    from ..tracing.show import receipt
    from .opening import strongest_look, trace_picture

    trace = trace_picture(loaded, picture)
    cell, word = strongest_look(trace)
    _say(f"\nAs it said {word!r} in the first caption, the head that looked hardest at one strip; by hand:\n")
    receipt(trace[cell].why(), trace, Console(soft_wrap=True))
    html.write(trace, page, trace.facts["said"], start=cell)


DEMO: dict[str, Any] = {"steps": 1060, "eval_every": 265, "eval_batches": 2, "save_every": 530}


def _beside(picture: Any, words: list[str]) -> None:
    """A picture drawn in the terminal, and words to the right of its middle."""
    from ..draw import terminal

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    lines = terminal(picture, colour)
    first = (len(lines) - len(words)) // 2
    for i, line in enumerate(lines):
        text = words[i - first] if 0 <= i - first < len(words) else ""
        sys.stdout.write(f"  {line}  {text}".rstrip() + "\n")
    sys.stdout.write("\n")
    sys.stdout.flush()


def _as_png(picture: Any) -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


SHOWN = 20  # names of unusable files told one by one


def _go(run: Any, task: Any, config: Any) -> int:
    """Train to the end, or to the interruption; say where things are."""
    from ..train.loop import Trainer

    told = task.skipped()
    for name, fault in told[:SHOWN]:
        _say(f"skipped {name}: {fault}")
    try:
        outcome = Trainer(task, run, config).train()
    except (RuntimeError, MemoryError) as error:
        # torch says so in its own words on each device
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise UserError(
            "there is not enough memory; try a smaller --train.batch, --model.width or "
            + ("--model.image_size" if task.unit == "pictures" else "--model.context")
        ) from None
    later = task.skipped()[len(told) :]
    for name, fault in later[:SHOWN]:
        _say(f"skipped {name}: {fault}")
    if lost := len(told) + len(later):
        _say(f"{lost} file{'s' if lost > 1 else ''} of the data could not be used.")
    if not outcome.finished:
        _say(f"Stopped after step {outcome.step}, and saved. Go on with:\n  {_command()} resume "
             f"{shlex.quote(str(run.path))}")  # fmt: skip
        return 130
    best = outcome.best
    told_first = "" if task.headline == "val_loss" else f"{task.headline} {best[task.headline]:.4f}, "
    kept = "best " if task.chooses else ""
    steps = f"{outcome.step} step" + "s" * (outcome.step > 1)
    _say(f"Trained {steps} in {outcome.seconds:.1f} s; {kept}{told_first}val_loss {best['val_loss']:.4f} "
         f"at step {best['step']}; the run is in {run.path}")  # fmt: skip
    return 0


def _command() -> str:
    """What the user types to run this program: its bare name where the shell would find it."""
    return "pencil" if shutil.which("pencil") or not sys.argv[0].endswith("pencil") else sys.argv[0]


def _say(line: str) -> None:
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
