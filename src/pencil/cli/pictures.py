"""What `sample` does with pictures: a vit names them, a captioner describes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import draw
from ..config import UserError
from ..data.augment import Look
from ..data.images import open_picture
from ..files import write_aside
from ..generate import Sampling, stream
from ..models import vit
from ..models.parts import numbers
from ..runs import Loaded
from ..train.captions import overlay
from .using import flow, tell, whole


def _open(loaded: Loaded, paths: Sequence[Path]) -> tuple[np.ndarray, Any]:
    """The pictures as bytes and as the model reads them."""
    c = loaded.model.config
    shown = np.stack([open_picture(path, Look(c.image_size, c.channels)) for path in paths])
    device = next(loaded.model.parameters()).device
    return shown, numbers(torch.from_numpy(shown).to(device))


def name_pictures(loaded: Loaded, paths: Sequence[Path], attention: Path | None, out: Path | None) -> int:
    """The likeliest classes of each picture, one a line, with their probabilities."""
    shown, x = _open(loaded, paths)
    _one_only(paths, attention)
    classes = loaded.run.config["run"].get("classes") or []
    with torch.no_grad():
        likely = loaded.model(x).float().softmax(-1).cpu()
    lines = []
    for path, row in zip(paths, likely, strict=True):
        best = row.topk(min(5, len(row)))
        names = [classes[i] if i < len(classes) else str(i) for i in best.indices.tolist()]
        head = [str(path)] if len(paths) > 1 else []
        lines.append("\n".join(head + [f"{n} {p:.4f}" for n, p in zip(names, best.values.tolist(), strict=True)]))
    tell(lines, out, "\n")
    if attention:
        looks = vit.attention_maps(loaded.model, x)[0].float().cpu().numpy()
        first = int(likely[0].argmax())
        label = classes[first] if first < len(classes) else str(first)
        write_aside(attention, draw.overlays(shown[0], [label], looks[None]))
    return 0


def describe(
    loaded: Loaded,
    paths: Sequence[Path],
    prompts: list[str],
    new: int,
    how: Sampling,
    stop: list[str],
    count: int,
    attention: Path | None,
    out: Path | None,
) -> int:
    """What the model says of each picture, going on from each prompt."""
    model, tokenizer, _ = loaded
    shown, x = _open(loaded, paths)
    rows = [(i, prompt, k) for i in range(len(paths)) for prompt in prompts for k in range(count)]
    _one_only(rows, attention)
    begun = [prompt for _, prompt, _ in rows]
    pieces = stream(
        model, tokenizer, begun, new, how, stop=stop, samples=[k for *_, k in rows], begin=tokenizer.end,
        given={"picture": x[[i for i, *_ in rows]]},
    )  # fmt: skip
    if len(rows) == 1 and out is None and attention is None:
        flow(begun[0], pieces)
        return 0
    texts = whole(begun, pieces)
    named = [f"{paths[i]}: {text}" if len(paths) > 1 else text for (i, *_), text in zip(rows, texts, strict=True)]
    tell(named, out, "\n")
    if attention:
        write_aside(attention, overlay(model, tokenizer, shown[0], texts[0]))
    return 0


def _one_only(asked: Sequence[Any], attention: Path | None) -> None:
    if attention and len(asked) > 1:
        raise UserError(f"--attention shows one picture and what was said of it, and {len(asked)} were asked for")
