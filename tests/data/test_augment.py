import numpy as np
import pytest
from PIL import Image, ImageOps

from pencil.data import augment
from pencil.data.augment import CHANGES, Look, bent, fit, shrunk, vary


def rng(key):
    return np.random.Generator(np.random.Philox(key=key))


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(mode, size=(23, 19)):
    """A soft picture without hard edges, of many colours."""
    y, x = np.mgrid[: size[1], : size[0]]
    planes = [40 + 8 * x, 250 - 9 * y, 30 + 150 * np.exp(-((x - 9) ** 2 + (y - 8) ** 2) / 9)]
    array = np.stack(planes, 2).clip(0, 255).astype(np.uint8)
    return Image.fromarray(array if mode == "RGB" else array[..., 2])


def test_bending_nothing_changes_nothing():
    rows = noise(7, 1, 11, 13)
    assert np.array_equal(bent(rows, 0, rng(1)), rows)


def test_bending_follows_from_the_generator_alone():
    rows = noise(7, 1, 11, 13)
    one = bent(rows, 2, rng(1))
    assert one.shape == rows.shape
    assert one.dtype == np.uint8
    assert np.array_equal(one, bent(rows, 2, rng(1)))
    assert not np.array_equal(one, bent(rows, 2, rng(2)))
    same = np.repeat(rows[:1], 7, 0)
    assert len({row.tobytes() for row in bent(same, 2, rng(1))}) > 3  # each in its own way


def test_bending_adds_no_light():
    rows = np.full((200, 1, 9, 7), 201, np.uint8)
    out = bent(rows, 3, rng(4))
    assert out.max() == 201
    middle = out[:, 0, 3:6, 3]
    assert (middle == 201).all()  # small changes do not reach the middle
    assert (out < 201).any()  # black came in from outside


class Fixed(np.random.Generator):
    """A generator that always draws this kind of change, this strong."""

    def __init__(self, kind, by):
        super().__init__(np.random.Philox(key=0))
        self.kind, self.by = kind, by

    def uniform(self, low, high, n):
        return np.full(n, self.by)

    def integers(self, low, high, n):
        return np.full(n, self.kind)


@pytest.mark.parametrize("kind, by, moved", [(4, 1, (-1, 0)), (4, -1, (1, 0)), (5, 1, (0, -2)), (5, -1, (0, 2))])
def test_a_dot_moves_by_a_tenth_of_the_picture(kind, by, moved):
    rows = np.zeros((1, 1, 10, 20), np.uint8)
    rows[0, 0, 5, 7] = 199
    out = bent(rows, 1, Fixed(kind, by))
    assert np.argwhere(out[0, 0]).tolist() == [[5 + moved[0], 7 + moved[1]]]
    assert out.max() == 199


def test_turning_and_growing_leave_the_middle_where_it_is():
    rows = np.zeros((1, 1, 11, 11), np.uint8)
    rows[0, 0, 5, 5] = 255
    for kind in (0, 1, 2, 3):
        out = bent(rows, 1, Fixed(kind, 1.0))[0, 0]
        assert out[5, 5] == 255
    rows[0, 0, 5, 9] = 255
    turned = bent(rows, 1, Fixed(0, 1.0))[0, 0].astype(float)
    turned[5, 5] = 0
    row, column = ((turned * axis).sum() / turned.sum() for axis in np.mgrid[:11, :11])
    angle = np.degrees(np.arctan2(abs(row - 5), column - 5))
    assert angle == pytest.approx(15, abs=4)
    assert np.hypot(row - 5, column - 5) == pytest.approx(4, abs=0.4)


def test_a_varied_picture_has_the_size_that_was_asked_for():
    look = Look((7, 11), 3, flip=True, crop=0.3, randaugment=2)
    for key in range(20):
        image = vary(smooth("RGB", (41 + key, 23)), look, rng(key))
        assert image.size == (11, 7)
        assert image.mode == "RGB"
    assert look.plain == Look((7, 11), 3)
    assert look.varied
    assert not look.plain.varied


def test_a_flip_is_a_mirror_half_the_time():
    image, look = Image.fromarray(noise(7, 11)), Look((7, 11), 1, flip=True)
    found = [vary(image, look, rng(key)).tobytes() for key in range(200)]
    assert set(found) == {image.tobytes(), ImageOps.mirror(image).tobytes()}
    assert 70 < found.count(image.tobytes()) < 130


@pytest.mark.parametrize("size", [(40, 30), (3, 90), (90, 3), (1, 1), (5, 5)])
def test_a_crop_stays_inside_and_keeps_its_share(size, monkeypatch):
    boxes = []

    resize = Image.Image.resize

    def seen(image, target, how, box, reducing_gap):
        boxes.append(box)
        return resize(image, target, how, box, reducing_gap)

    monkeypatch.setattr(Image.Image, "resize", seen)
    look, image = Look((16, 24), 1, crop=0.5), Image.new("L", size)
    for key in range(300):
        assert augment._random_crop(image, look, rng(key)).size == (24, 16)
    shares = []
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
        shares.append((right - left) * (bottom - top) / (size[0] * size[1]))
    if size == (40, 30):
        assert len(set(boxes)) > 100
        assert 0.45 < min(shares) < 0.6  # as rounded; and for odd shapes the sides give less
        assert max(shares) > 0.8


def test_a_crop_is_what_lies_in_its_box():
    image = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8), (64, 1)))  # as bright as the column
    for key in range(30):
        out = np.asarray(vary(image, Look((8, 8), 1, crop=0.2), rng(key))).astype(int)
        assert (np.diff(out, axis=1) > 0).all()  # still from left to right
        assert (abs(out - out[:1]) <= 1).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("which", range(len(CHANGES)))
def test_every_small_change_keeps_size_and_mode_and_none_is_none(which, mode):
    image, change = smooth(mode), CHANGES[which]
    for strength in (-1.0, 0.0, 1.0):
        out = change(image, strength)
        assert out.size == image.size
        assert out.mode == mode
        if strength == 0:
            assert abs(np.asarray(out).astype(int) - np.asarray(image).astype(int)).max() <= 1
    if not (mode == "L" and which == 8):  # grey has no colour to lose
        moved = [change(image, s).tobytes() for s in (-1.0, 1.0)]
        assert any(m != image.tobytes() for m in moved)


def test_every_small_change_can_be_drawn(monkeypatch):
    drawn = set()
    changes = tuple(lambda image, by, i=i: drawn.add(i) or image for i in range(len(CHANGES)))
    monkeypatch.setattr(augment, "CHANGES", changes)
    for key in range(200):
        vary(smooth("L"), Look((19, 23), 1, randaugment=1), rng(key))
    assert drawn == set(range(len(CHANGES)))


def test_shrinking_leaves_a_quarter_more_than_the_model_sees():
    for size in ((400, 300), (300, 400), (31, 700)):
        out = shrunk(Image.new("L", size), (16, 24))
        assert out.width >= 1.25 * 24 - 1e-6
        assert out.height >= 1.25 * 16 - 1e-6
        assert min(out.width / 30, out.height / 20) < 1.1
        assert out.width / out.height == pytest.approx(size[0] / size[1], rel=0.06)
    small = Image.new("L", (25, 17))
    assert shrunk(small, (16, 24)) is small


def test_fitting_keeps_the_middle():
    array = np.zeros((10, 30), np.uint8)
    array[:, 10:20] = 200
    assert np.asarray(fit(Image.fromarray(array), (10, 10))).min() == 200
    same = Image.fromarray(array)
    assert fit(same, (10, 30)) is same
