"""Samples of a diffusion model as files: a grid, and the first sample at each denoising step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from ... import draw
from ...config import UserError
from ..options import OUTPUT, NoOptions, default
from ..output import Output

COLUMNS = 13  # of the picture of the steps
KINDS = frozenset(".png .gif .jpg .jpeg .webp .bmp .tif .tiff .svg .pdf .mp4 .webm .mov .avi".split())
MAX_STEPS, MAX_VIDEO_STEPS = 8 * COLUMNS, 11  # shown; of more only some, evenly spaced
MAX_LATENT_STEPS = COLUMNS  # each goes through the autoencoder, which costs more than a denoising step


@dataclass(frozen=True)
class ImageOutput(NoOptions):
    """Where images are written."""

    out: Annotated[
        Path | None,
        Parameter(
            group=OUTPUT,
            help="A folder, or a .png file (.gif for video); the denoising steps are written beside it.",
            show_default=default("RUN/sampled"),
        ),
    ] = None

    def places(self, run: Path, video: bool) -> tuple[Path, Path]:
        """Where the grid and the steps are written: into a folder, or under the name of a file and beside it."""
        ending = ".gif" if video else ".png"
        if self.out is not None and not self.out.is_dir():
            if self.out.suffix.lower() == ending:
                return self.out, self.out.with_name(f"{self.out.stem}-steps.png")
            if self.out.suffix.lower() in KINDS:
                raise UserError(f"{'a video' if video else 'an image'} is written as {ending}, and --out is {self.out}")
        folder = run / "sampled" if self.out is None else self.out
        return folder / f"grid{ending}", folder / "steps.png"


def shown_steps(video: bool, latent: bool) -> int:
    """How many moments of the first sample are shown at most."""
    return MAX_VIDEO_STEPS if video else MAX_LATENT_STEPS if latent else MAX_STEPS


def write_samples(steps: Sequence[np.ndarray], count: int, places: tuple[Path, Path], output: Output) -> None:
    """The samples as a grid or an animation, and the first of them at each step; `count` are of one condition."""
    made, grid = steps[-1], places[0]
    rows = len(made)
    grid.parent.mkdir(parents=True, exist_ok=True)
    first = [step[0] for step in steps]
    # each of several conditions has a row of its own, or all of them share one
    across = int(np.ceil(np.sqrt(rows))) if rows == count else count if count > 1 else min(rows, COLUMNS)
    if made.ndim == 5:
        sheet, shown = draw.film(_tile(made, across)), [step.swapaxes(0, 1) for step in first]
    else:
        sheet, stills = draw.rows([_tile(made[:, :, None], across)[0][None]]), np.stack(first)
        shown = [stills[i : i + COLUMNS] for i in range(0, len(stills), COLUMNS)]
    for path, content in zip(places, (sheet, draw.rows(shown)), strict=True):
        output.file(path, content)


def _tile(videos: np.ndarray, across: int) -> np.ndarray:
    """Videos (n, C, F, H, W) in rows, as frames (F, C, height, width), one pixel between them."""
    count, channels, frames, height, width = videos.shape
    down = -(-count // across)
    sheet = np.full((frames, channels, down * (height + 1) - 1, across * (width + 1) - 1), 64, np.uint8)
    for i, video in enumerate(videos):
        row, column = divmod(i, across)
        top, left = row * (height + 1), column * (width + 1)
        sheet[:, :, top : top + height, left : left + width] = video.swapaxes(0, 1)
    return sheet
