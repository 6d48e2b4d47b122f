"""Drawing: pictures in a terminal, contact sheets, confusion matrices, heat maps, and attention over a picture."""

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from .console import shortened

RAMP = " .:-=+*#%@"
GOOD, BAD = "#0072b2", "#d55e00"  # distinct for colour-blind readers too
ORANGE = (1.0, 0.5, 0.05)
NUMBERED = 12  # rows or columns of a heat map up to which each cell shows its value
MOST_LETTERS = 200  # of one text in a picture
LABELLED = 40  # and up to which each has its label


def terminal(picture: np.ndarray, colour: bool, width: int = 32) -> list[str]:
    """A picture (C, H, W) of bytes as lines of text: two pixels a character in colour, else two characters a pixel."""
    step = max(1, -(-picture.shape[2] // width))
    picture = picture[:, ::step, ::step]
    grey = picture.mean(0)
    if not colour:
        levels = (grey / 256 * len(RAMP)).astype(int)
        return ["".join(RAMP[v] * 2 for v in row) for row in levels]
    pixels = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    if len(pixels) % 2:
        pixels = np.concatenate((pixels, np.zeros_like(pixels[:1])))
    lines = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
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
        # characters the font lacks, and labels too long for their space, are not the user's concern
        warnings.simplefilter("ignore")
        figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _show(axes: Any, picture: np.ndarray) -> None:
    shown = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def literal(text: str) -> str:
    """Text that matplotlib does not take for mathematics; it takes long for a long one, which is shortened."""
    return shortened(text, MOST_LETTERS).replace("$", r"\$")


def sheet(pictures: Sequence[np.ndarray], lines: Sequence[str], right: Sequence[bool], title: str = "") -> bytes:
    """A contact sheet: each picture with its line, framed by whether it is right."""
    across = min(8, max(1, len(pictures)))
    letters = 15
    parts = [[shortened(part, MOST_LETTERS) for part in line.split("\n")] for line in lines]
    texts = ["\n".join("\n".join(textwrap.wrap(part, letters)) for part in line) for line in parts]
    texts = [text.replace("$", r"\$") for text in texts]  # after it is wrapped, which would part them
    tallest = max((text.count("\n") + 1 for text in texts), default=1)
    down = -(-len(pictures) // across)
    figure = canvas(max(4.0, 1.35 * across), 0.5 + down * (1.25 + 0.15 * tallest) if pictures else 0.8)
    key = " (blue right, orange wrong)" if len(set(right)) > 1 else ""
    figure.suptitle(literal(title + key), fontsize=10)
    for i, (picture, text, fine) in enumerate(zip(pictures, texts, right, strict=True)):
        axes = figure.add_subplot(down, across, i + 1)
        _show(axes, picture)
        axes.set_title(text, fontsize=7.5, color=GOOD if fine else BAD)
        for side in axes.spines.values():
            side.set(color=GOOD if fine else BAD, linewidth=1.5)
    return as_png(figure)


def confusion(matrix: np.ndarray, names: Sequence[str], title: str = "") -> bytes:
    """Rows are true classes, columns predicted ones; counts where there are few enough to read."""
    size = len(names)
    side = min(14.0, max(4.0, 1.2 + 0.42 * size))
    figure = canvas(side, side)
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    few = size <= 30
    axes.set(xlabel="predicted", ylabel="true", title=literal(title))
    if few:
        names = [shortened(name) for name in names]
        axes.set_xticks(range(size), [literal(n) for n in names], rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(size), [literal(n) for n in names])
        for row in range(size):
            for column in range(size):
                if matrix[row, column]:
                    shade = "white" if share[row, column] > 0.5 else "black"
                    axes.text(column, row, str(matrix[row, column]), ha="center", va="center", fontsize=8, color=shade)
    return as_png(figure)


def calibration(count: np.ndarray, probability: np.ndarray, accuracy: np.ndarray, title: str = "") -> bytes:
    """How often answers are right beside their probability, in bins of equal width; below, how many each has."""
    bins, filled = len(count), count > 0
    middles, width = (np.arange(bins) + 0.5) / bins, 1 / bins
    figure = canvas(4.6, 5.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.bar(middles[filled], accuracy[filled], width, color=GOOD, alpha=0.35, edgecolor=GOOD, label="right answers")
    upper.plot(probability[filled], accuracy[filled], ".", color=GOOD, clip_on=False)
    upper.plot((0, 1), (0, 1), "--", color=BAD, label="as often as their probability")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right answers", title=literal(title))
    upper.legend(fontsize=8, loc="upper left")
    lower.bar(middles[filled], count[filled], width, color=GOOD, alpha=0.35, edgecolor=GOOD)
    lower.set(xlabel="probability of the answer", ylabel="answers")
    return as_png(figure)


def numbered(words: Sequence[str]) -> list[str]:
    """The words, the second and later occurrences of one marked by their number: a, b, a#2."""
    seen: dict[str, int] = {}
    marked = []
    for word in words:
        seen[word] = seen.get(word, 0) + 1
        marked.append(word if seen[word] == 1 else f"{word}#{seen[word]}")
    return marked


def overlays(picture: np.ndarray, words: Sequence[str], attention: np.ndarray) -> bytes:
    """The picture, then once for each word under its attention; one scale for all, each panel's total below it."""
    across = min(6, len(words) + 1)
    down = -(-(len(words) + 1) // across)
    height, width = picture.shape[1:]
    figure = canvas(1.7 * across, 2.05 * down)
    plain = figure.add_subplot(down, across, 1)
    _show(plain, picture)
    plain.set_title("the picture", fontsize=9)
    highest = float(attention.max(initial=0)) or 1.0
    plain.set_xlabel(f"orange: attention, full at {highest:.1%}", fontsize=7)
    for i, (word, weights) in enumerate(zip(words, attention, strict=True)):
        axes = figure.add_subplot(down, across, i + 2)
        _show(axes, picture)
        # one colour, stronger for more attention: it shows on black and on white
        lit = np.zeros((*weights.shape, 4))
        lit[..., :3], lit[..., 3] = ORANGE, 0.75 * weights / highest
        axes.imshow(lit, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
        axes.set_title(literal(word), fontsize=9)
        axes.set_xlabel(f"{weights.sum():.0%} on the picture", fontsize=7)
    return as_png(figure)


def attention_colours() -> Any:
    """White to the orange of the overlays."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("attention", [(1.0, 1.0, 1.0), ORANGE, (0.45, 0.2, 0.0)])


def heat_maps(
    maps: Sequence[Any],
    titles: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    probability: bool = True,
    axes: tuple[str, str] | None = ("key", "query"),
) -> bytes:
    """Matrices side by side on one scale: from 0 to the largest for probabilities, else symmetric around 0.

    `axes` are the labels of the columns and of the rows.
    """
    maps = [np.asarray(m, dtype=float) for m in maps]
    finite = np.concatenate([m[np.isfinite(m)] for m in maps])
    top = float(np.abs(finite).max(initial=0)) or 1.0
    scale: dict[str, Any] = (
        dict(cmap=attention_colours(), vmin=0, vmax=top) if probability else dict(cmap="RdBu_r", vmin=-top, vmax=top)
    )
    across = min(4, len(maps))
    down = math.ceil(len(maps) / across)
    small = max(len(rows), len(columns)) <= NUMBERED
    digits = 2 if top >= 0.1 else min(6, 1 - math.floor(math.log10(top)))
    longest = max(len(rows), len(columns))
    side = max(2.6, 0.42 * longest) if small else max(3.6, 0.15 * min(longest, LABELLED))
    side += 0.9 if max(map(len, [*rows, *columns])) > 4 else 0.3
    figure = canvas(min(side * across + 0.8, 24), min(side * down + 0.6, 24))
    if title:
        figure.suptitle(literal(title), fontsize=11)
    shown: Any = None
    panels = []
    for i, (m, word) in enumerate(zip(maps, titles, strict=True)):
        panel = figure.add_subplot(down, across, i + 1)
        panels.append(panel)
        panel.set_facecolor("#dddddd")  # masked: neither high nor low
        shown = panel.imshow(np.where(np.isfinite(m), m, np.nan), aspect="equal", **scale)
        if word:
            panel.set_title(literal(word), fontsize=10)
        if axes:
            panel.set_xlabel(axes[0], fontsize=8)
            panel.set_ylabel("" if i % across else axes[1], fontsize=8)
        _ticks(panel, rows, columns)
        if small:
            for (r, c), value in np.ndenumerate(m):
                text = f"{value:.{digits}f}" if np.isfinite(value) else "−∞"
                dark = np.isfinite(value) and abs(value) > 0.6 * top
                panel.text(c, r, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    bar = figure.colorbar(shown, ax=panels, fraction=0.04, shrink=0.8)
    if probability and top < 1:
        bar.set_label(f"the scale ends at the largest, {top:.3g}", fontsize=8)
    return as_png(figure)


def _ticks(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    rows, columns = [shortened(word) for word in rows], [shortened(word) for word in columns]
    long = max((len(word) for word in columns), default=0) > 3
    if len(columns) <= LABELLED:
        axes.set_xticks(range(len(columns)), [literal(w) for w in columns], rotation=90 if long else 0, fontsize=7)
    if len(rows) <= LABELLED:
        axes.set_yticks(range(len(rows)), [literal(w) for w in rows], fontsize=7)


def rows(lines: Sequence[np.ndarray], side: int = 640) -> bytes:
    """Pictures (n, C, H, W) of bytes in rows, each pixel as large as fits, one pixel between."""
    _, channels, height, width = lines[0].shape
    longest = max(map(len, lines))
    sheet = np.full((channels, len(lines) * (height + 1) - 1, longest * (width + 1) - 1), 64, np.uint8)
    for row, line in enumerate(lines):
        for column, picture in enumerate(line):
            top, left = row * (height + 1), column * (width + 1)
            sheet[:, top : top + height, left : left + width] = picture
    out = io.BytesIO()
    _enlarged(sheet, side).save(out, "PNG")
    return out.getvalue()


def film(frames: np.ndarray, side: int = 320, seconds: float = 0.12) -> bytes:
    """Frames (n, C, H, W) of bytes as a GIF that goes round."""
    pictures = [_enlarged(frame, side) for frame in frames]
    out = io.BytesIO()
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:], duration=int(1000 * seconds), loop=0)
    return out.getvalue()


def _enlarged(picture: np.ndarray, side: int) -> Image.Image:
    times = max(1, side // max(picture.shape[1:]))
    shown = Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))
    return shown.resize((shown.width * times, shown.height * times), 0)
