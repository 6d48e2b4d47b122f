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


def test_a_picture_in_plain_letters():
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
        dots = np.broadcast_to(seen, (3, *seen.shape[1:]))
        for j, values in enumerate(found):
            below = dots[:, 2 * i + 1, j].tolist() if 2 * i + 1 < seen.shape[1] else [0, 0, 0]
            assert [int(v) for v in values] == dots[:, 2 * i, j].tolist() + below
    plain = draw.terminal(picture, False)
    assert len(plain) == seen.shape[1]
    assert {len(line) for line in plain} == {2 * seen.shape[2]}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 11])
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
    matrix[0] = 0  # a class of which there is none to judge by
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert min(opened(draw.confusion(matrix, names, "a $ title")).shape[:2]) >= 400


def test_a_confusion_matrix_is_darkest_where_most_are():
    def blue(matrix):
        return int((opened(draw.confusion(np.array(matrix), ["a", "b"])).mean(-1) < 100).sum())

    assert blue([[9, 0], [0, 9]]) > 2 * blue([[9, 9], [9, 9]])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 6, 13])
def test_where_a_model_looked(channels, count):
    looks = np.random.default_rng(2).random((count, 2, 3)) / 6
    assert opened(draw.overlays(noise(channels, 8, 12), (NAMES * 2)[:count], looks)).std() > 5


def test_a_model_that_looked_nowhere_can_be_drawn():
    assert opened(draw.overlays(noise(1, 8, 8), ["word"], np.zeros((1, 4, 4)))).size


def test_the_light_falls_where_the_model_looked():
    look = np.zeros((1, 2, 2))
    look[0, 1, 0] = 1  # below, on the left
    image = opened(draw.overlays(np.zeros((1, 8, 8), np.uint8), ["word"], look)).astype(int)
    half = image[:, image.shape[1] // 2 :]
    warm = np.argwhere((half[..., 0] > 100) & (half[..., 2] < half[..., 0] - 30))
    dark = np.argwhere(half.sum(-1) < 60)
    assert len(warm)
    assert warm[:, 0].mean() > dark[:, 0].mean()
    assert warm[:, 1].mean() < dark[:, 1].mean()
