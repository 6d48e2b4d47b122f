import numpy as np
import pytest
from PIL import Image, ImageOps

from pencil.data.images import augment
from pencil.data.images.augment import OPS, ImageTransform, fit, random_affine, random_augment, shrink


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


def test_no_affine_operation_changes_nothing():
    rows = noise(7, 1, 11, 13)
    assert np.array_equal(random_affine(rows, 0, rng(1)), rows)


def test_random_affine_is_determined_by_the_generator():
    rows = noise(7, 1, 11, 13)
    one = random_affine(rows, 2, rng(1))
    assert one.shape == rows.shape
    assert one.dtype == np.uint8
    assert np.array_equal(one, random_affine(rows, 2, rng(1)))
    assert not np.array_equal(one, random_affine(rows, 2, rng(2)))
    same = np.repeat(rows[:1], 7, 0)
    assert len({row.tobytes() for row in random_affine(same, 2, rng(1))}) > 3  # each image differently


def test_random_affine_adds_no_brightness():
    rows = np.full((200, 1, 9, 7), 201, np.uint8)
    out = random_affine(rows, 3, rng(4))
    assert out.max() == 201
    middle = out[:, 0, 3:6, 3]
    assert (middle == 201).all()  # small changes do not reach the middle
    assert (out < 201).any()  # black came in from outside


class Fixed(np.random.Generator):
    """A generator that always draws this operation with this magnitude."""

    def __init__(self, op, magnitude):
        super().__init__(np.random.Philox(key=0))
        self.op, self.magnitude = op, magnitude

    def uniform(self, low, high, n):
        return np.full(n, self.magnitude)

    def integers(self, low, high, n):
        return np.full(n, self.op)


@pytest.mark.parametrize("op, magnitude, moved", [(4, 1, (-1, 0)), (4, -1, (1, 0)), (5, 1, (0, -2)), (5, -1, (0, 2))])
def test_a_pixel_moves_by_a_tenth_of_the_image(op, magnitude, moved):
    rows = np.zeros((1, 1, 10, 20), np.uint8)
    rows[0, 0, 5, 7] = 199
    out = random_affine(rows, 1, Fixed(op, magnitude))
    assert np.argwhere(out[0, 0]).tolist() == [[5 + moved[0], 7 + moved[1]]]
    assert out.max() == 199


def test_rotation_and_scale_keep_the_centre_in_place():
    rows = np.zeros((1, 1, 11, 11), np.uint8)
    rows[0, 0, 5, 5] = 255
    for op in (0, 1, 2, 3):
        out = random_affine(rows, 1, Fixed(op, 1.0))[0, 0]
        assert out[5, 5] == 255
    rows[0, 0, 5, 9] = 255
    rotated = random_affine(rows, 1, Fixed(0, 1.0))[0, 0].astype(float)
    rotated[5, 5] = 0
    row, column = ((rotated * axis).sum() / rotated.sum() for axis in np.mgrid[:11, :11])
    angle = np.degrees(np.arctan2(abs(row - 5), column - 5))
    assert angle == pytest.approx(15, abs=4)
    assert np.hypot(row - 5, column - 5) == pytest.approx(4, abs=0.4)


def test_an_augmented_image_has_the_requested_size():
    transform = ImageTransform((7, 11), 3, flip=True, crop=0.3, augment_ops=2)
    for key in range(20):
        image = random_augment(smooth("RGB", (41 + key, 23)), transform, rng(key))
        assert image.size == (11, 7)
        assert image.mode == "RGB"
    assert transform.without_augmentation == ImageTransform((7, 11), 3)
    assert transform.augmented
    assert not transform.without_augmentation.augmented


def test_a_flip_is_a_mirror_half_the_time():
    image, transform = Image.fromarray(noise(7, 11)), ImageTransform((7, 11), 1, flip=True)
    found = [random_augment(image, transform, rng(key)).tobytes() for key in range(200)]
    assert set(found) == {image.tobytes(), ImageOps.mirror(image).tobytes()}
    assert 70 < found.count(image.tobytes()) < 130


@pytest.mark.parametrize("size", [(40, 30), (3, 90), (90, 3), (1, 1), (5, 5)])
def test_a_crop_stays_inside_and_keeps_its_fraction(size, monkeypatch):
    boxes = []

    resize = Image.Image.resize

    def seen(image, target, how, box, reducing_gap):
        boxes.append(box)
        return resize(image, target, how, box, reducing_gap)

    monkeypatch.setattr(Image.Image, "resize", seen)
    transform, image = ImageTransform((16, 24), 1, crop=0.5), Image.new("L", size)
    for key in range(300):
        assert augment._random_crop(image, transform, rng(key)).size == (24, 16)
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
        out = np.asarray(random_augment(image, ImageTransform((8, 8), 1, crop=0.2), rng(key))).astype(int)
        assert (np.diff(out, axis=1) > 0).all()  # still from left to right
        assert (abs(out - out[:1]) <= 1).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("which", range(len(OPS)))
def test_every_op_keeps_size_and_mode_and_magnitude_zero_changes_nothing(which, mode):
    image, op = smooth(mode), OPS[which]
    for magnitude in (-1.0, 0.0, 1.0):
        out = op(image, magnitude)
        assert out.size == image.size
        assert out.mode == mode
        if magnitude == 0:
            assert abs(np.asarray(out).astype(int) - np.asarray(image).astype(int)).max() <= 1
    if not (mode == "L" and which == 8):  # grey has no colour to lose
        moved = [op(image, m).tobytes() for m in (-1.0, 1.0)]
        assert any(pixels != image.tobytes() for pixels in moved)


def test_every_op_can_be_drawn(monkeypatch):
    drawn = set()
    ops = tuple(lambda image, m, i=i: drawn.add(i) or image for i in range(len(OPS)))
    monkeypatch.setattr(augment, "OPS", ops)
    for key in range(200):
        random_augment(smooth("L"), ImageTransform((19, 23), 1, augment_ops=1), rng(key))
    assert drawn == set(range(len(OPS)))


def test_shrinking_leaves_a_quarter_more_than_the_input_size():
    for size in ((400, 300), (300, 400), (31, 700)):
        out = shrink(Image.new("L", size), (16, 24))
        assert out.width >= 1.25 * 24 - 1e-6
        assert out.height >= 1.25 * 16 - 1e-6
        assert min(out.width / 30, out.height / 20) < 1.1
        assert out.width / out.height == pytest.approx(size[0] / size[1], rel=0.06)
    small = Image.new("L", (25, 17))
    assert shrink(small, (16, 24)) is small


def test_fit_keeps_the_centre():
    array = np.zeros((10, 30), np.uint8)
    array[:, 10:20] = 200
    assert np.asarray(fit(Image.fromarray(array), (10, 10))).min() == 200
    same = Image.fromarray(array)
    assert fit(same, (10, 30)) is same
