"""Drawing: pictures in a terminal, contact sheets, confusion matrices, heat maps, and where a model looked."""

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

RAMP = " .:-=+*#%@"
GOOD, BAD = "#0072b2", "#d55e00"  # told apart by every eye
ORANGE = (1.0, 0.5, 0.05)
NUMBERED = 12  # places along a side of a heat map up to which each cell's number is written in
LABELLED = 40  # and up to which each place has its word


def terminal(picture: np.ndarray, colour: bool, width: int = 32) -> list[str]:
    """A picture (C, H, W) of bytes as lines of text: two dots a letter in colour, else two letters a dot."""
    step = max(1, -(-picture.shape[2] // width))
    picture = picture[:, ::step, ::step]
    grey = picture.mean(0)
    if not colour:
        levels = (grey / 256 * len(RAMP)).astype(int)
        return ["".join(RAMP[v] * 2 for v in row) for row in levels]
    dots = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    if len(dots) % 2:
        dots = np.concatenate((dots, np.zeros_like(dots[:1])))
    lines = []
    for upper, lower in zip(dots[::2], dots[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{';'.join(map(str, a))}m\x1b[48;2;{';'.join(map(str, b))}m▀"
            for a, b in zip(upper.tolist(), lower.tolist(), strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return lines


def canvas(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Any) -> bytes:
    """A figure as the bytes of a PNG file."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        # a letter the font lacks, or a name too long for its place, is no concern of the user's
        warnings.simplefilter("ignore")
        figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _show(axes: Any, picture: np.ndarray) -> None:
    shown = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def literal(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def sheet(pictures: Sequence[np.ndarray], lines: Sequence[str], right: Sequence[bool], title: str = "") -> bytes:
    """A contact sheet: each picture with its line, framed by whether it is right."""
    across = min(8, max(1, len(pictures)))
    letters = 15
    texts = ["\n".join("\n".join(textwrap.wrap(part, letters)) for part in line.split("\n")) for line in lines]
    tallest = max((text.count("\n") + 1 for text in texts), default=1)
    down = -(-len(pictures) // across)
    figure = canvas(max(4.0, 1.35 * across), 0.5 + down * (1.25 + 0.15 * tallest) if pictures else 0.8)
    key = " (blue right, orange wrong)" if len(set(right)) > 1 else ""
    figure.suptitle(literal(title + key), fontsize=10)
    for i, (picture, text, fine) in enumerate(zip(pictures, texts, right, strict=True)):
        axes = figure.add_subplot(down, across, i + 1)
        _show(axes, picture)
        axes.set_title(literal(text), fontsize=7.5, color=GOOD if fine else BAD)
        for side in axes.spines.values():
            side.set(color=GOOD if fine else BAD, linewidth=1.5)
    return as_png(figure)


def confusion(matrix: np.ndarray, names: Sequence[str], title: str = "") -> bytes:
    """Rows are what a picture is, columns what it was taken for; numbers where there are few enough to read."""
    size = len(names)
    side = min(14.0, max(4.0, 1.2 + 0.42 * size))
    figure = canvas(side, side)
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    few = size <= 30
    axes.set(xlabel="taken for", ylabel="is", title=literal(title))
    if few:
        axes.set_xticks(range(size), [literal(n) for n in names], rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(size), [literal(n) for n in names])
        for row in range(size):
            for column in range(size):
                if matrix[row, column]:
                    shade = "white" if share[row, column] > 0.5 else "black"
                    axes.text(column, row, str(matrix[row, column]), ha="center", va="center", fontsize=8, color=shade)
    return as_png(figure)


def overlays(picture: np.ndarray, words: Sequence[str], looks: np.ndarray) -> bytes:
    """The picture, then once for each word, lit where the model looked as it said it; the share of attention below."""
    across = min(6, len(words) + 1)
    down = -(-(len(words) + 1) // across)
    height, width = picture.shape[1:]
    figure = canvas(1.7 * across, 2.05 * down)
    plain = figure.add_subplot(down, across, 1)
    _show(plain, picture)
    plain.set_title("the picture", fontsize=9)
    plain.set_xlabel("orange: looked at", fontsize=7)
    for i, (word, look) in enumerate(zip(words, looks, strict=True)):
        axes = figure.add_subplot(down, across, i + 2)
        _show(axes, picture)
        # one colour, stronger where it looked more: it shows on black and on white
        lit = np.zeros((*look.shape, 4))
        lit[..., :3], lit[..., 3] = ORANGE, 0.75 * look / (look.max() or 1)
        axes.imshow(lit, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
        axes.set_title(literal(word), fontsize=9)
        axes.set_xlabel(f"{look.sum():.0%} on the picture", fontsize=7)
    return as_png(figure)


def heat_maps(
    maps: Sequence[Any],
    titles: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    probability: bool = True,
    looking: bool = True,
) -> bytes:
    """Matrices side by side on one scale: 0 to 1 for portions, else as far below nothing as above it."""
    maps = [np.asarray(m, dtype=float) for m in maps]
    finite = np.concatenate([m[np.isfinite(m)] for m in maps])
    top = float(np.abs(finite).max(initial=0)) or 1.0
    scale: dict[str, Any] = (
        dict(cmap="Blues", vmin=0, vmax=1) if probability else dict(cmap="RdBu_r", vmin=-top, vmax=top)
    )
    across = min(4, len(maps))
    down = math.ceil(len(maps) / across)
    small = max(len(rows), len(columns)) <= NUMBERED
    longest = max(len(rows), len(columns))
    side = max(2.6, 0.42 * longest) if small else max(3.6, 0.15 * min(longest, LABELLED))
    side += 0.9 if max(map(len, [*rows, *columns])) > 4 else 0.3
    figure = canvas(min(side * across + 0.8, 24), min(side * down + 0.6, 24))
    if title:
        figure.suptitle(literal(title), fontsize=11)
    shown: Any = None
    panels = []
    for i, (m, word) in enumerate(zip(maps, titles, strict=True)):
        axes = figure.add_subplot(down, across, i + 1)
        panels.append(axes)
        axes.set_facecolor("#dddddd")  # what may not be seen: neither high nor low
        shown = axes.imshow(np.where(np.isfinite(m), m, np.nan), aspect="equal", **scale)
        if word:
            axes.set_title(literal(word), fontsize=10)
        if looking:
            axes.set_xlabel("looked at", fontsize=8)
            axes.set_ylabel("" if i % across else "looking", fontsize=8)
        _ticks(axes, rows, columns)
        if small:
            for (r, c), value in np.ndenumerate(m):
                said = f"{value:.2f}" if np.isfinite(value) else "−∞"
                dark = np.isfinite(value) and (value > 0.5 if probability else abs(value) > 0.6 * top)
                axes.text(c, r, said, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    figure.colorbar(shown, ax=panels, fraction=0.04, shrink=0.8)
    return as_png(figure)


def _ticks(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    long = max((len(word) for word in columns), default=0) > 3
    if len(columns) <= LABELLED:
        axes.set_xticks(range(len(columns)), [literal(w) for w in columns], rotation=90 if long else 0, fontsize=7)
    if len(rows) <= LABELLED:
        axes.set_yticks(range(len(rows)), [literal(w) for w in rows], fontsize=7)


def rows(lines: Sequence[np.ndarray], side: int = 640) -> bytes:
    """Pictures (n, C, H, W) of bytes in lines under one another, each dot as large as fits, one dot between."""
    from PIL import Image

    _, channels, height, width = lines[0].shape
    longest = max(map(len, lines))
    sheet = np.full((channels, len(lines) * (height + 1) - 1, longest * (width + 1) - 1), 64, np.uint8)
    for row, line in enumerate(lines):
        for column, picture in enumerate(line):
            top, left = row * (height + 1), column * (width + 1)
            sheet[:, top : top + height, left : left + width] = picture
    out = io.BytesIO()
    _enlarged(Image, sheet, side).save(out, "PNG")
    return out.getvalue()


def film(frames: np.ndarray, side: int = 320, seconds: float = 0.12) -> bytes:
    """Frames (n, C, H, W) of bytes as a GIF that goes round."""
    from PIL import Image

    pictures = [_enlarged(Image, frame, side) for frame in frames]
    out = io.BytesIO()
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:], duration=int(1000 * seconds), loop=0)
    return out.getvalue()


def _enlarged(image: Any, picture: np.ndarray, side: int) -> Any:
    times = max(1, side // max(picture.shape[1:]))
    shown = image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))
    return shown.resize((shown.width * times, shown.height * times), 0)
