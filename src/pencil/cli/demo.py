"""demo: train a captioner, describe images it has never seen, and unfold one number."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import Console, note
from .screens.terminal import program
from .train import train_to_end

if TYPE_CHECKING:
    from ..runs.run import Loaded

TRAINING: dict[str, Any] = {"steps": 1060, "eval_every": 265, "eval_batches": 2, "save_every": 530}


def demo(*, out: Path | None = None) -> int:
    """Train a small model to describe images, then describe images it has never seen; a minute and a half on two cores.

    Parameters
    ----------
    out
        The run's folder; runs/scenes-captioner by default, or the next free name.
    """
    import torch

    from ..api.loading import load
    from ..api.run_setup import new_run
    from ..api.training_request import TrainingRequest
    from ..families.captioner import FAMILY
    from ..families.predictions import to_image

    note("A model learns, from scratch, to describe what is where in an image; about a minute and a half on two cores.")
    run, task, config = new_run(TrainingRequest(FAMILY.name, "scenes", train=TRAINING), out=out, notify=note)
    c = task.config
    note(
        f"{FAMILY.parameters(c):,} parameters: {c.depth} blocks of width {c.width}, trained on {task.about()}, with "
        f"{torch.get_num_threads()} threads.",
        "An image is cut into patches; the words follow in the same sequence, and each word attends to all patches.",
    )
    status = train_to_end(run, task, config)
    if status:
        return status
    loaded = load(run.path)
    metrics, files = task.report(loaded.model, run.path / "eval")
    note("", "Images it has never seen, in combinations and handwriting it has never seen, and its descriptions:", "")
    shown = task.data.test.pictures[:4]
    captions = task.caption(loaded.model, shown)
    for picture, caption, target in zip(shown, captions, task.data.test.targets, strict=False):
        _beside(picture, [caption, "" if caption == target else f"(is: {target})"])
    share, count = metrics["exact_match"], len(task.data.test)
    note(f"Exact match: {share:.1%} of {count:,} held-out images (exact_match {share:.4f}).")
    page = run.path / "eval" / "caption.html"
    _unfold(loaded, shown[0], page)
    note(
        "",
        f"The run         {run.path}",
        f"Its attention   {files[-1].parent}/attention-*.png",
        f"Its mistakes    {files[0]}",
        f"Every number    {page}   (open it and click any number)",
    )
    one = run.path / "eval" / "picture.png"
    to_image(shown[0]).save(one)
    note(f"Next:           {program()} sample {run.path} --image {one} --attention attention.png")
    note(f"Your images:    {program()} train captioner --data album/   (album/ has images and metadata.jsonl)")
    note(f"Your text:      {program()} train gpt --data notes/ --tokenizer bpe --preset small")
    return 0


def _unfold(loaded: "Loaded", picture: Any, page: Path) -> None:
    """One number behind the first caption, as its arithmetic; and a page on which every other one unfolds too."""
    from ..families.captioner import trace_image
    from ..tracing import html
    from ..tracing.show import receipt

    trace = trace_image(loaded, picture)
    cell, word = strongest_attention(trace)
    note("", f"The largest attention to one patch at the step that produced {word!r}, by hand:", "")
    receipt(trace[cell].why(), trace, Console(soft_wrap=True))
    trace.alone = f"pencil explore {loaded.run.path} shows them"
    html.write(trace, page, trace.facts["text"], start=cell)


def strongest_attention(trace: Any) -> tuple[str, str]:
    """The cell of the last pattern with the most attention to a patch at the step that produced the second word."""
    import numpy as np

    from ..tracing.attention_heatmaps import last_pattern

    name = last_pattern(trace)
    words, first = trace.labels["t"], trace.facts["first_patch"]
    produced = min(2, len(words) - 1)
    query = len(trace.labels["M"]) + produced - 1
    attention = trace.array(name)[0, :, query, first : first + math.prod(trace.facts["grid"])]
    head, patch = np.unravel_index(int(attention.argmax()), attention.shape)
    return f"{name}[0,{head},{query},{first + patch}]", words[produced]


def _beside(picture: Any, words: list[str]) -> None:
    """An image drawn in the terminal, and words to the right of its middle."""
    from ..draw import terminal

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    lines = terminal(picture, colour)
    first = (len(lines) - len(words)) // 2
    for i, line in enumerate(lines):
        text = words[i - first] if 0 <= i - first < len(words) else ""
        sys.stdout.write(f"  {line}  {text}".rstrip() + "\n")
    sys.stdout.write("\n")
    sys.stdout.flush()
