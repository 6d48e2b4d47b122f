import io
import re
import warnings

import numpy as np
import pytest
from PIL import Image

from pencil import draw

NAMES = ["$x$", "$ only one", "snow ☃", "naïve_name^2", r"back\slash", "{curly}", "a" * 60]


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def opened(content):
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_picture_in_plain_characters():
    picture = np.array([[[0, 128, 255], [255, 0, 0]]], np.uint8)
    assert draw.terminal(picture, False) == ["  ++@@", "@@    "]
    colours = np.stack([picture[0]] * 3)
    assert draw.terminal(colours, False) == draw.terminal(picture, False)
    ramp = draw.terminal(np.arange(256, dtype=np.uint8).reshape(1, 1, 256), False, 256)[0][::2]
    assert set(ramp) == set(draw.RAMP)
    assert [draw.RAMP.index(c) for c in ramp] == sorted(draw.RAMP.index(c) for c in ramp)


@pytest.mark.parametrize("shape", [(1, 7, 5), (1, 8, 5), (3, 7, 5), (1, 1, 1), (3, 64, 100)])
def test_a_picture_in_colour_has_two_rows_a_line(shape):
    picture = noise(*shape)
    lines = draw.terminal(picture, True)
    step = -(-shape[2] // 32)
    seen = picture[:, ::step, ::step]
    assert len(lines) == -(-seen.shape[1] // 2)
    for i, line in enumerate(lines):
        assert line.endswith("\x1b[0m")
        assert line.count("▀") == seen.shape[2] <= 32
        found = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+)m\x1b\[48;2;(\d+);(\d+);(\d+)m▀", line)
        pixels = np.broadcast_to(seen, (3, *seen.shape[1:]))
        for j, values in enumerate(found):
            below = pixels[:, 2 * i + 1, j].tolist() if 2 * i + 1 < seen.shape[1] else [0, 0, 0]
            assert [int(v) for v in values] == pixels[:, 2 * i, j].tolist() + below
    plain = draw.terminal(picture, False)
    assert len(plain) == seen.shape[1]
    assert {len(line) for line in plain} == {2 * seen.shape[2]}


@pytest.mark.parametrize("channels, count", [(1, 0), (3, 1), (1, 11)])
def test_a_contact_sheet(channels, count):
    lines = [NAMES[i % len(NAMES)] + ("\nis " + NAMES[0] if i % 2 else "") for i in range(count)]
    content = draw.sheet(list(noise(count, channels, 9, 11)), lines, [i % 2 == 0 for i in range(count)], "costs $3")
    image = opened(content)
    assert image.shape[1] >= 400
    if count:
        assert image.std() > 20


def test_right_and_wrong_are_framed_in_their_colours():
    black = np.zeros((1, 9, 9), np.uint8)

    def has(image, colour):
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        return bool((image == wanted).all(-1).sum() > 50)

    for fine in (True, False):
        image = opened(draw.sheet([black], ["word"], [fine]))
        assert has(image, draw.GOOD) == fine
        assert has(image, draw.BAD) != fine


@pytest.mark.parametrize("size", [2, 7, 40])
def test_a_confusion_matrix(size):
    names = (NAMES * 6)[:size]
    matrix = np.random.default_rng(1).integers(0, 50, (size, size))
    matrix[0] = 0  # a class that does not occur
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert min(opened(draw.confusion(matrix, names, "a $ title")).shape[:2]) >= 400


def test_a_confusion_matrix_is_darkest_where_most_are():
    def blue(matrix):
        return int((opened(draw.confusion(np.array(matrix), ["a", "b"])).mean(-1) < 100).sum())

    assert blue([[9, 0], [0, 9]]) > 2 * blue([[9, 9], [9, 9]])


@pytest.mark.parametrize("channels, count", [(3, 0), (1, 1), (3, 13)])
def test_attention_over_a_picture(channels, count):
    attention = np.random.default_rng(2).random((count, 2, 3)) / 6
    assert opened(draw.overlays(noise(channels, 8, 12), (NAMES * 2)[:count], attention)).std() > 5


def test_attention_of_zero_everywhere_can_be_drawn():
    assert opened(draw.overlays(noise(1, 8, 8), ["word"], np.zeros((1, 4, 4)))).size


def is_orange(image):
    return (image[..., 0] > 60) & (image[..., 2] < image[..., 0] - 30)


def test_the_overlay_is_orange_where_the_attention_is():
    attention = np.zeros((1, 2, 2))
    attention[0, 1, 0] = 1  # below, on the left
    image = opened(draw.overlays(np.zeros((1, 8, 8), np.uint8), ["word"], attention)).astype(int)
    half = image[:, image.shape[1] // 2 :]
    orange = np.argwhere(is_orange(half) & (half[..., 0] > 100))
    dark = np.argwhere(half.sum(-1) < 60)
    assert len(orange)
    assert orange[:, 0].mean() > dark[:, 0].mean()
    assert orange[:, 1].mean() < dark[:, 1].mean()


def brightest(attention):
    """The red of the brightest overlay in each panel: a black picture under one weight."""
    maps = np.zeros((len(attention), 2, 2))
    maps[:, 0, 0] = attention
    words = [str(i) for i in range(len(attention))]
    image = opened(draw.overlays(np.zeros((1, 8, 8), np.uint8), words, maps)).astype(int)
    panels = np.array_split(image, len(attention) + 1, axis=1)[1:]
    return [int(np.where(is_orange(panel), panel[..., 0], 0).max()) for panel in panels]


def test_all_panels_of_an_overlay_have_one_scale():
    """Half the attention is half as strong, beside a panel with all of it."""
    alone, strong, weak = *brightest([0.5]), *brightest([1.0, 0.5])
    assert alone == strong
    assert weak == pytest.approx(strong / 2, abs=3)


def test_repeated_words_are_numbered():
    assert draw.numbered(["a", "b", "a", "c", "a", "b"]) == ["a", "b", "a#2", "c", "a#3", "b#2"]
    assert draw.numbered([]) == []


def colours(maps, **options):
    """The colour of the single cell of each of several heat maps, read from what matplotlib is given."""
    shown = []

    def keep(figure):
        shown.extend(axes.images[0] for axes in figure.axes if axes.images)
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "as_png", keep)
        draw.heat_maps([np.array([[m]]) for m in maps], ["x"] * len(maps), ["row"], ["column"], **options)
    return [image.to_rgba(image.get_array())[0, 0, :3].tolist() for image in shown[: len(maps)]]


def test_all_heat_maps_have_one_scale_from_white_to_orange():
    none, half, all_ = colours([0.0, 0.4, 0.8])
    assert none == pytest.approx([1, 1, 1])
    assert half == pytest.approx(list(draw.ORANGE), abs=0.02)
    assert all_[0] > all_[1] > all_[2]
    assert sum(none) > sum(half) > sum(all_)
    assert colours([0.4]) == [all_]  # alone, the largest value has the full colour


def test_heat_maps_of_scores_are_symmetric_around_zero():
    low, zero, high = colours([-3.0, 0.0, 3.0], probability=False)
    assert min(zero) > 0.9
    assert low[2] > low[0]
    assert high[0] > high[2]
    assert opened(draw.heat_maps([np.array([[0.2, -np.inf]])], ["x"], ["row"], ["a", "b"], axes=None)).size


@pytest.mark.parametrize("top, shown", [(0.03, "the scale ends at the largest, 0.03"), (1.0, "")])
def test_the_colour_bar_of_attention_ends_at_its_largest_and_says_so(monkeypatch, top, shown):
    figures = []
    monkeypatch.setattr(draw, "as_png", lambda figure: figures.append(figure) or b"")
    draw.heat_maps([np.array([[top, top / 3], [0.0, top / 7]])], [""], ["a", "b"], ["c", "d"])
    panel, bar = figures[0].axes
    assert bar.get_ylabel() == shown
    assert panel.images[0].get_clim() == (0, top)
    texts = {text.get_text() for text in panel.texts}
    assert len(texts) == 4  # no two values look alike


def test_a_name_of_thousands_of_letters_is_shortened_before_it_is_laid_out(monkeypatch):
    """Laying it out takes half a minute, for each picture of a run."""
    from matplotlib.text import Text

    drawn, set_text = [], Text.set_text
    monkeypatch.setattr(Text, "set_text", lambda self, text: (drawn.append(str(text or "")), set_text(self, text))[1])
    long, two = "x" * 6007, noise(2, 3, 5, 7)
    draw.confusion(np.eye(2, dtype=int), ["cat", long], long)
    draw.sheet(list(two), [f"cat\nis {long}", "dog"], [False, True], long)
    draw.heat_maps([np.eye(2)], [long], ["a", long], [long, "b"])
    assert any(text.startswith("xxx") and text.endswith("…") for text in drawn)
    assert max(map(len, drawn)) < 250
