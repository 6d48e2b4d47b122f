"""What `sample` does with noise: pictures and videos of a label or a text, and the way there step by step."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .. import draw
from ..config import UserError, nearest
from ..diffusion import check_sampler
from ..files import write_aside
from ..runs import Loaded
from ..train.latents import codec_of
from ..train.painting import drawing_of, finish_of, paint
from ..train.pairs import end_of, padded

ACROSS = 13  # stops in a row of a strip
KINDS = frozenset(".png .gif .jpg .jpeg .webp .bmp .tif .tiff .svg .pdf .mp4 .webm .mov .avi".split())
MOST, MOST_FILMS = 8 * ACROSS, 11  # stops on a strip: of longer ways only some, as evenly as can be


def paint_pictures(
    loaded: Loaded,
    labels: list[str],
    texts: list[str],
    count: int,
    guidance: float | None,
    steps: int,
    sampler: str | None,
    seed: int,
    out: Path | None,
) -> int:
    """A grid of pictures, or a film of them, and a strip: the first of them at each step."""
    model, _, run = loaded
    c = model.config
    grid, strip = _places(run.path, out, c.frames > 1)
    codec = codec_of(run, next(model.parameters()).device)
    process = drawing_of(c, codec is not None)
    if sampler is not None:
        check_sampler(process, sampler)
    given = told(loaded, labels, texts, count)
    guidance = (3.0 if c.null else 1.0) if guidance is None else guidance
    rows, finish = len(given[0]) if given else count, finish_of(codec)
    stops = paint(model, process, given, rows, guidance, steps, sampler, seed, films=True, finish=finish)
    made = stops[-1]
    grid.parent.mkdir(parents=True, exist_ok=True)
    first = [stop[0] for stop in stops]
    most = MOST_FILMS if made.ndim == 5 else MOST
    which = np.linspace(0, len(first) - 1, min(most, len(first))).astype(int)
    # of several labels each has a row of its own, or all of them one
    across = int(np.ceil(np.sqrt(rows))) if rows == count else count if count > 1 else min(rows, ACROSS)
    if made.ndim == 5:
        sheet, way = draw.film(_tiled(made, across)), [first[i].swapaxes(0, 1) for i in which]
    else:
        sheet, stills = draw.rows([_tiled(made[:, :, None], across)[0][None]]), np.stack([first[i] for i in which])
        way = [stills[i : i + ACROSS] for i in range(0, len(stills), ACROSS)]
    for path, content in ((grid, sheet), (strip, draw.rows(way))):
        write_aside(path, content)
        Console(stderr=True).print(str(path), highlight=False, markup=False, soft_wrap=True)
    return 0


def _places(run: Path, out: Path | None, film: bool) -> tuple[Path, Path]:
    """Where the pictures and the strip are written: into a folder, or under the name of a file and beside it."""
    ending = ".gif" if film else ".png"
    if out is not None and not out.is_dir():
        if out.suffix.lower() == ending:
            return out, out.with_name(f"{out.stem}-strip.png")
        if out.suffix.lower() in KINDS:
            raise UserError(f"{'a video' if film else 'a picture'} is written as {ending}, and --out is {out}")
    folder = run / "sampled" if out is None else out
    return folder / f"grid{ending}", folder / "strip.png"


def told(loaded: Loaded, labels: list[str], texts: list[str], count: int = 1) -> tuple[Any, ...]:
    """What a dit is given, `count` rows of each: the numbers of labels, or the tokens of texts and their places; or
    nothing, where it was trained on pictures alone."""
    model, tokenizer, run = loaded
    c = model.config
    if not (c.vocab or c.classes):
        if labels or texts:
            raise UserError(f"{run.path} draws what it likes: leave {'--label' if labels else '--prompt'} out")
        return ()
    asked, other = (texts, labels) if c.vocab else (labels, texts)
    if other:
        how = "a text: say it by --prompt, not --label" if c.vocab else "a label: say it by --label, not --prompt"
        raise UserError(f"{run.path} draws from {how}")
    if not asked:
        raise UserError(
            f"{run.path} is a dit, which draws what it is told: say it by {'--prompt' if c.vocab else '--label'}"
        )
    rows = [one for one in asked for _ in range(count)]
    if c.vocab:
        return padded([_tokens(tokenizer, text, c.context) for text in rows], end_of(tokenizer), c.context)
    import torch

    classes = list(map(str, run.config["run"].get("classes") or range(c.classes or 0)))
    return (torch.tensor([_number(label, classes, run.path) for label in rows]),)


def _number(label: str, classes: list[str], path: Any) -> int:
    if label not in classes:
        raise UserError(f"{path} was not trained on a label {label}; {nearest(label, classes)}")
    return classes.index(label)


def _tokens(tokenizer: Any, text: str, context: int) -> list[int]:
    ids = [end_of(tokenizer), *tokenizer.encode(text).tolist()]
    if len(ids) > context:
        raise UserError(
            f"the text “{text[:40]}” has {len(ids)} tokens with its beginning and the model reads {context}"
        )
    return ids


def _tiled(videos: np.ndarray, across: int) -> np.ndarray:
    """Videos (n, C, F, H, W), so many in a row, as frames (F, C, down, across), one dot between them."""
    count, channels, frames, height, width = videos.shape
    down = -(-count // across)
    sheet = np.full((frames, channels, down * (height + 1) - 1, across * (width + 1) - 1), 64, np.uint8)
    for i, video in enumerate(videos):
        row, column = divmod(i, across)
        top, left = row * (height + 1), column * (width + 1)
        sheet[:, :, top : top + height, left : left + width] = video.swapaxes(0, 1)
    return sheet
