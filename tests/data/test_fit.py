"""Pictures of another shape than the model's: cropped, padded or squashed; and which of them the data needs."""

import numpy as np
import pytest
from PIL import Image

from albums import idx, photos, picture
from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.augment import BARS, ImageTransform, fit, random_augment, shrink
from pencil.data.images.datasets import FileExamples
from pencil.data.images.decoding import open_image
from pencil.data.images.sizes import choose_fit
from pencil.models.build import normalize

WIDE, TALL = (53, 17), (13, 47)  # width and height
HOW = ("crop", "pad", "squash")


def noise(size, mode="RGB", seed=0):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def same(one, other):
    return np.array_equal(np.asarray(one), np.asarray(other))


def rng(key):
    return np.random.Generator(np.random.Philox(key=key))


def test_the_bars_are_zero_to_a_model():
    import torch

    assert abs(float(normalize(torch.tensor([[[[BARS]]]], dtype=torch.uint8)))) < 1 / 250


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [WIDE, TALL, (31, 29)])
def test_a_padded_picture_is_whole_between_equal_bars(size, mode):
    image, (height, width) = noise(size, mode), (19, 23)
    shown = np.asarray(fit(image, (height, width), "pad")).astype(int)
    assert shown.shape[:2] == (height, width)
    scale = min(height / size[1], width / size[0])
    inner = round(size[0] * scale), round(size[1] * scale)
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    within = np.zeros((height, width), bool)
    within[top : top + inner[1], left : left + inner[0]] = True
    assert (shown[~within] == BARS).all()
    assert within.any(0).all() or within.any(1).all()  # as large as it fits
    resized = np.asarray(image.resize(inner, Image.Resampling.BICUBIC)).astype(int)
    assert np.array_equal(shown[within], resized.reshape(-1, *shown.shape[2:]))


def test_a_squashed_picture_is_all_of_it_and_a_cropped_one_its_middle():
    image = noise((60, 20))
    assert same(fit(image, (11, 13), "squash"), image.resize((13, 11), Image.Resampling.BICUBIC))
    middle = image.crop((20, 0, 40, 20))
    assert same(fit(image, (20, 20), "crop"), middle)
    for how in HOW:
        assert same(fit(middle, (20, 20), how), middle)


@pytest.mark.parametrize("how", HOW)
def test_one_picture_is_read_alike_from_a_file_and_from_a_data_set(tmp_path, how):
    """And the cache keeps the three apart."""
    path = picture(tmp_path / "a.png", seed=3, size=(19, 7))
    examples = FileExamples([path], ["a"], [])
    found = {}
    for each in HOW:
        found[each] = examples.take([0], ImageTransform((13, 17), 3, fit=each))[0][0]
        assert np.array_equal(found[each], open_image(path, ImageTransform((13, 17), 3, fit=each)))
    assert all(not np.array_equal(found[how], other) for name, other in found.items() if name != how)
    assert np.array_equal(found[how], examples.take([0], ImageTransform((13, 17), 3, fit=how))[0][0])


@pytest.mark.parametrize("how", HOW)
def test_what_is_kept_of_a_large_picture_is_enough_for_its_fit(how):
    kept = shrink(noise((1009, 211)), (29, 31), how)
    least = (1.25 * 31, 1.25 * 31 * 211 / 1009) if how == "pad" else (1.25 * 29 * 1009 / 211, 1.25 * 29)
    assert least[0] <= kept.width <= least[0] + 1
    assert least[1] <= kept.height <= least[1] + 1


@pytest.mark.parametrize("how", ["pad", "squash"])
def test_random_crops_are_of_the_picture_as_evaluation_shows_it(how):
    """A crop that may leave out almost nothing is almost that picture; a crop of the plain picture is not."""
    image = Image.fromarray(np.tile(np.linspace(0, 255, 96).astype(np.uint8), (24, 1)))
    shown = np.asarray(fit(image, (24, 24), how)).astype(int)
    for key in range(5):
        transform = ImageTransform((24, 24), 1, crop=0.97, fit=how)
        made = np.asarray(random_augment(image, transform, rng(key))).astype(int)
        assert np.abs(made - shown).mean() < 12
        plain = np.asarray(random_augment(image, ImageTransform((24, 24), 1, crop=0.97), rng(key))).astype(int)
        assert np.abs(plain - shown).mean() > 25


def folder_of(tmp_path, *sizes):
    for k, name in enumerate(("ant", "bee")):
        for i, size in enumerate(sizes):
            picture(tmp_path / name / f"{i}.png", seed=100 * k + i, size=size)
    return images.load(str(tmp_path), "label")


def test_pictures_are_padded_where_many_would_lose_much(tmp_path):
    few = folder_of(tmp_path / "few", *[(40, 30)] * 19, (90, 30))
    assert choose_fit(few, (32, 32), None, False)[0] == "crop"
    assert "5 % of the pictures would lose more than a quarter" in choose_fit(few, (32, 32), None, False)[1]
    assert choose_fit(few, (32, 32), "squash", False) == ("squash", "")
    many = folder_of(tmp_path / "many", *[(40, 30)] * 5, (90, 30), (30, 41), (30, 47))
    how, said = choose_fit(many, (32, 32), None, False)
    assert how == "pad"
    assert said.startswith("38 % of the pictures would lose more than a quarter")
    assert "--data.fit crop" in said
    # measured against the model's shape, and with the aspect of the pictures it is nothing
    assert choose_fit(few, (30, 40), None, False)[0] == "crop"
    assert choose_fit(folder_of(tmp_path / "same", *[(90, 30)] * 3), (10, 30), None, False) == ("crop", "")


def test_a_model_that_draws_pictures_crops_unless_told_otherwise(tmp_path):
    data = folder_of(tmp_path, *[(90, 30)] * 3)
    how, said = choose_fit(data, (32, 32), None, True)
    assert how == "crop"
    assert "draw the bars" in said
    assert choose_fit(data, (32, 32), "pad", True) == ("pad", "")


def test_the_shape_is_that_of_the_upright_picture(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("ant", "bee"):
        for i in range(3):
            picture(tmp_path / name / f"{i}.jpg", seed=i, size=(30, 60), exif=exif)
    data = images.load(str(tmp_path), "label")
    assert data.shapes == [(30, 60)] * 6
    assert choose_fit(data, (20, 40), None, False) == ("crop", "")


def test_where_it_has_no_effect_it_is_refused(tmp_path):
    idx(tmp_path / "small", side=(6, 9))
    for data, size in (
        (images.load("digits", "label"), (16, 16)),
        (images.load(str(tmp_path / "small"), "label"), (6, 9)),
    ):
        assert choose_fit(data, size, None, False) == (None, "")
        with pytest.raises(UserError, match="data.fit has no effect on"):
            choose_fit(data, size, "pad", False)
    digits = images.load("digits", "label")
    assert choose_fit(digits, (8, 16), "squash", False) == ("squash", "")
    rows, _ = digits.test.take(range(3), ImageTransform((8, 16), 1, fit="pad"))
    assert (rows[..., :4] == BARS).all()
    assert np.array_equal(rows[..., 4:12], digits.test.take(range(3), ImageTransform((8, 8), 1))[0])


def test_grey_is_decided_by_every_picture(tmp_path):
    photos(tmp_path, {"ant": 70, "bee": 70}, mode="L")
    assert images.load(str(tmp_path), "label").model_defaults["channels"] == 1
    picture(tmp_path / "ant" / "1.png", seed=5)
    assert images.load(str(tmp_path), "label").model_defaults["channels"] == 3


@pytest.mark.parametrize("how", HOW)
def test_one_picture_and_the_same_in_a_data_set_have_equal_pixels(tmp_path, how):
    path = tmp_path / "wide.png"
    noise((211, 97)).save(path)
    transform = ImageTransform((19, 23), 3, fit=how)
    pictures, _ = FileExamples([path], [0], []).take([0], transform)
    assert np.array_equal(pictures[0], open_image(path, transform))
