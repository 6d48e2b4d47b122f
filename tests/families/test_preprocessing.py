"""Images prepared as transformers and timm prepare them: the same bytes, and the same floats."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from pencil.config import UserError, build, to_toml
from pencil.data.images.augment import ImageTransform
from pencil.data.images.datasets import ArrayExamples, FileExamples
from pencil.data.images.decoding import open_image
from pencil.data.settings import DataConfig, image_transform
from pencil.families.vit import FILE, PROCESSOR, from_timm, from_transformers, to_timm, to_transformers
from pencil.models.build import normalize
from pencil.models.vit import ViTConfig

SQUARE = ViTConfig(image_size=(37, 37), patch=(37, 37), channels=3)
TALL = ViTConfig(image_size=(41, 23), patch=(41, 23), channels=3)
SHAPES = [(53, 97), (97, 53), (37, 37), (11, 7), (203, 38), (371, 298)]  # width and height
IMAGENET = dict(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])


def noise(size, mode="RGB", seed=0):
    """A picture whose every pixel differs from the next, so that a shift of one shows."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), np.uint8)
    return Image.fromarray(values[..., 0] if bands == 1 else values, mode)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures of every shape, as PNG, and a large photo, of which a JPEG could be decoded at a half."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{i}.png" for i in range(len(SHAPES))]
    for path, size in zip(paths, SHAPES, strict=True):
        noise(size).save(path)
    noise((661, 509)).save(folder / "photo.jpg", quality=95)
    return [*paths, folder / "photo.jpg"]


def ours(paths, c, settings):
    """Bytes and floats, by the way of `eval` and `train` and by that of `sample`."""
    reading = build(DataConfig, settings, "data.")
    transform = image_transform(c.image_size, c.channels, reading)
    held = FileExamples(paths, [0] * len(paths), [])
    rows, _ = held.take(range(len(paths)), transform)
    assert np.array_equal(rows, held.take(range(len(paths)), transform)[0])  # from its cache
    assert np.array_equal(rows, np.stack([open_image(path, transform) for path in paths]))
    return rows, normalize(torch.from_numpy(rows), transform.mean, transform.std)


PROCESSORS = {
    "ViT": dict(size={"height": 37, "width": 37}),
    "ViT tall": dict(size={"height": 41, "width": 23}, resample=3, image_mean=[0.48, 0.45, 0.41],
                     image_std=[0.27, 0.26, 0.28]),
    "ViT lanczos": dict(size={"height": 37, "width": 37}, resample=1, do_normalize=False),
    "DeiT": dict(size={"height": 53, "width": 41}, crop_size={"height": 37, "width": 37}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_transformers(name, files, tmp_path):
    import transformers

    kind, c = name.split()[0], TALL if "tall" in name else SQUARE
    theirs = getattr(transformers, f"{kind}ImageProcessorPil")(**PROCESSORS[name])
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    settings = from_transformers(written, kind, c)
    rows, floats = ours(files, c, settings)
    for path, row, values in zip(files, rows, floats, strict=True):
        image = Image.open(path).convert("RGB")
        plain = theirs(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(plain, row), path.name
        expected = theirs(image, return_tensors="pt")["pixel_values"][0]
        assert torch.equal(expected, values), path.name
    again, notes = to_transformers(c, build(DataConfig, settings, "data."))
    assert not notes
    assert from_transformers(again, kind, c) == settings
    (tmp_path / FILE).write_text(json.dumps(again))
    back = getattr(transformers, f"{again['image_processor_type']}Pil").from_pretrained(tmp_path)
    image = Image.open(files[0])
    assert torch.equal(
        back(image, return_tensors="pt")["pixel_values"], theirs(image, return_tensors="pt")["pixel_values"]
    )


def by_timm(image, size, crop_pct, mode, interpolation, mean, std):
    """timm's evaluation transform, written out (torchvision's Resize and CenterCrop of a PIL image)."""
    height, width = (math.floor(side / crop_pct) for side in size)
    how = {"bicubic": Image.BICUBIC, "bilinear": Image.BILINEAR, "lanczos": Image.LANCZOS}[interpolation]
    if mode == "center" and height == width:
        short, long = sorted(image.size)
        longer = int(height * long / short)
        width, height = (height, longer) if image.width < image.height else (longer, height)
    elif mode == "center":
        ratio, how = min(image.height / height, image.width / width), Image.BILINEAR
        height, width = round(image.height / ratio), round(image.width / ratio)
    image = image.resize((width, height), how)
    top, left = round((height - size[0]) / 2.0), round((width - size[1]) / 2.0)
    image = np.asarray(image)[top : top + size[0], left : left + size[1]]
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    mean, std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    return pixels.numpy(), pixels.to(torch.float32).div(255).sub(mean).div(std)


@pytest.mark.parametrize("c, crop_pct, mode, interpolation", [
    (SQUARE, 0.9, "center", "bicubic"), (SQUARE, 1.0, "center", "bilinear"), (SQUARE, 0.875, "squash", "lanczos"),
    (TALL, 0.95, "center", "bicubic"), (TALL, 1.0, "squash", "bicubic"),
])  # fmt: skip
def test_pixels_are_those_of_timm(c, crop_pct, mode, interpolation, files):
    cfg = dict(
        input_size=[3, *c.image_size], crop_pct=crop_pct, crop_mode=mode, interpolation=interpolation, **IMAGENET
    )
    theirs = {"architecture": "vit_base_patch16_224", "pretrained_cfg": cfg}
    settings = from_timm(theirs, c)
    rows, floats = ours(files, c, settings)
    for path, row, values in zip(files, rows, floats, strict=True):
        pixels, expected = by_timm(
            Image.open(path).convert("RGB"), c.image_size, crop_pct, mode, interpolation, **IMAGENET
        )
        assert np.array_equal(pixels, row), path.name
        assert torch.equal(expected, values), path.name
    again, notes = to_timm(c, build(DataConfig, settings, "data."))
    assert not notes
    assert from_timm(theirs | {"pretrained_cfg": cfg | again}, c) == settings


def test_what_a_config_of_timm_leaves_out_is_what_timm_takes(timm):
    c = ViTConfig(image_size=(224, 224), patch=(16, 16), channels=3)
    usual = timm.data.resolve_data_config(pretrained_cfg={"input_size": (3, 224, 224)})
    settings = from_timm({"architecture": "x", "pretrained_cfg": {"input_size": [3, 224, 224]}}, c)
    assert settings["resize"] == (math.floor(224 / usual["crop_pct"]),) * 2
    assert settings["fit"] == {"center": "crop"}[usual["crop_mode"]]
    assert (tuple(settings["mean"]), tuple(settings["std"])) == (usual["mean"], usual["std"])
    assert settings["resample"] == usual["interpolation"]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "P", "CMYK", "1"])
def test_other_kinds_of_pictures_are_converted_as_the_original_does(mode, tmp_path):
    path, image = tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), noise((53, 97), "RGBA")
    image = image.convert("RGB").quantize(16) if mode == "P" else image.convert(mode)
    image.save(path, **({"transparency": 3} if mode == "P" else {}))
    settings = dict(fit="squash", resize=[37, 37], resample="bilinear", transparency="drop")
    rows, _ = ours([path], SQUARE, settings)
    with Image.open(path) as stored:
        expected = np.asarray(stored.convert("RGB").resize((37, 37), Image.BILINEAR))
    assert np.array_equal(rows[0].transpose(1, 2, 0), expected)
    if mode in ("RGBA", "LA", "P"):  # without the setting transparency is on white, as before
        white, _ = ours([path], SQUARE, {key: value for key, value in settings.items() if key != "transparency"})
        assert not np.array_equal(white, rows)


def test_a_photo_is_turned_by_its_exif_orientation(tmp_path):
    path, image = tmp_path / "a.png", noise((53, 97))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, exif=exif)
    rows, _ = ours([path], SQUARE, dict(fit="squash", resize=[37, 37]))
    turned = image.transpose(Image.Transpose.ROTATE_270).resize((37, 37), Image.BICUBIC)
    assert np.array_equal(rows[0].transpose(1, 2, 0), np.asarray(turned))


def test_pictures_in_memory_are_resized_too_where_they_have_the_models_size():
    """timm resizes a picture of 37×37 to 41×41, and cuts 37×37 out of it."""
    image = noise((37, 37))
    transform = image_transform((37, 37), 3, build(DataConfig, dict(resize=[41, 41], resample="bilinear"), "data."))
    held = ArrayExamples(np.asarray(image).transpose(2, 0, 1)[None], [0])
    expected = np.asarray(image.resize((41, 41), Image.BILINEAR).crop((2, 2, 39, 39))).transpose(2, 0, 1)
    assert np.array_equal(held.take([0], transform)[0][0], expected)


def test_augmented_pictures_keep_their_size_and_differ(files):
    transform = ImageTransform((37, 37), 3, flip=True, crop=0.5, resize=(41, 41), resample="bilinear")
    rows, _ = FileExamples(files, [0] * len(files), []).take(range(len(files)), transform, np.random.default_rng(1))
    plain, _ = FileExamples(files, [0] * len(files), []).take(range(len(files)), transform)
    assert rows.shape == plain.shape == (len(files), 3, 37, 37)
    assert not np.array_equal(rows, plain)


def test_the_mean_and_the_deviation_are_those_of_each_channel():
    pixels = torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in IMAGENET.values())
    scaled = (pixels.numpy().astype(np.float64) * (1 / 255)).astype(np.float32)  # as transformers does
    assert np.array_equal(normalize(pixels, **IMAGENET).numpy(), (scaled - mean) / std)
    assert torch.equal(normalize(pixels), pixels.float() / 127.5 - 1)


@pytest.mark.parametrize("values, words", [
    (dict(do_resize=False), "do_resize is False"),
    (dict(size={"shortest_edge": 37}), "size {'shortest_edge': 37}: only height and width"),
    (dict(size=36), "makes images of 36×36, and the model reads 37×37"),
    (dict(do_center_crop=True, crop_size=37, size=40), "cuts a height of 37 out of 40"),
    (dict(rescale_factor=1 / 127.5), "rescale_factor is"),
    (dict(resample=9), "resample 9"),
    (dict(image_mean=[0.5, 0.5]), "data.mean has 2 values"),
    (dict(image_std=[0.5, 0.5, 0]), "data.std must be above 0"),
    (dict(image_processor_type="ConvNextImageProcessor"), "is for a ConvNextImageProcessor"),
    (dict(do_pad=True), "do_pad is True"),
    (dict(do_flip=True), "do_flip = True, which Pencil does not know"),
])  # fmt: skip
def test_a_preprocessor_that_ours_cannot_follow_is_refused_by_the_field(values, words):
    with pytest.raises(UserError, match=words):
        from_transformers({"size": 37} | values, "ViT", SQUARE)


@pytest.mark.parametrize("values, words", [
    (dict(crop_mode="border"), "crop_mode is 'border'"), (dict(crop_pct=1.2), "crop_pct must be"),
    (dict(interpolation="random"), "interpolation is 'random'"), (dict(mean=[0.5]), None),
])  # fmt: skip
def test_a_preparation_of_timm_that_ours_cannot_follow_is_refused_by_the_field(values, words):
    theirs = {"architecture": "x", "pretrained_cfg": {"input_size": [3, 37, 37], **values}}
    if words is None:
        assert from_timm(theirs, SQUARE)["mean"] == [0.5]
        return
    with pytest.raises(UserError, match=words):
        from_timm(theirs, SQUARE)


def test_every_setting_of_a_processor_has_a_use():
    from transformers import DeiTImageProcessorPil, ViTImageProcessorPil

    for kind in (ViTImageProcessorPil, DeiTImageProcessorPil):
        assert set(kind().to_dict()) <= set(PROCESSOR)
        assert set(kind.valid_kwargs.__annotations__) <= set(PROCESSOR)


@pytest.mark.parametrize("fit, kind, mode", [("crop", "CLIPImageProcessor", "center"), (None, "CLIPImageProcessor", "center"),
                                             ("squash", "ViTImageProcessor", "squash"), ("pad", None, "border")])  # fmt: skip
def test_a_run_of_our_own_is_exported_with_what_comes_nearest_and_a_note(fit, kind, mode):
    found, notes = to_transformers(SQUARE, DataConfig(fit=fit))
    assert (found and found["image_processor_type"]) == kind
    assert len(notes) == 1
    found, notes = to_timm(SQUARE, DataConfig(fit=fit))
    assert (found["crop_mode"], found["crop_pct"], found["mean"]) == (mode, 1.0, [0.5] * 3)
    assert len(notes) == 1


@pytest.mark.parametrize("values, words", [
    (dict(resize=[36, 37]), "data.resize 36×37 is smaller than the model's images, 37×37"),
    (dict(resize=[37, 37], fit="pad"), "data.fit pad cannot be used with data.resize"),
    (dict(resample="box"), "data.resample has no effect without data.resize"),
    (dict(mean="0.5"), "data.mean and data.std belong together"),
    (dict(mean="0.5x0.4", std="1"), "data.mean has 2 values"),
    (dict(mean="0.5", std="0"), "data.std must be above 0"),
    (dict(mean="half"), "data.mean must be numbers like 0.5,0.4,0.3"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        image_transform((37, 37), 3, build(DataConfig, values, "data."))


def test_settings_are_written_into_a_run_and_read_again():
    import tomllib

    settings = from_transformers(dict(PROCESSORS["DeiT"]), "DeiT", SQUARE)
    reading = build(DataConfig, settings, "data.")
    assert build(DataConfig, tomllib.loads(to_toml({"data": reading}))["data"], "data.") == reading


def test_a_very_narrow_picture_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "line.png"
    Image.new("RGB", (60_000, 1)).save(path)
    with pytest.raises(UserError, match="would be resized to 15360000×256: it is too narrow"):
        open_image(path, ImageTransform((224, 224), 3, resize=(256, 256)))
