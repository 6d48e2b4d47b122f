"""The lines of a README that prepare a picture give the bytes that the run reads."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pencil
from commands import SMALL
from pencil.data.images.augment import ImageTransform
from pencil.data.images.picture_code import picture_code
from pencil.families.predictions import read_pictures
from pencil.models.build import normalize


@pytest.fixture(scope="module")
def odd_pictures(tmp_path_factory):
    """Transparent, turned by EXIF, grey with 16 bits, with a palette, a large JPEG; all of different shapes."""
    folder, draw = tmp_path_factory.mktemp("odd"), np.random.default_rng(5)

    def noise(*shape):
        return Image.fromarray(draw.integers(0, 256, shape, np.uint8))

    noise(41, 67, 4).save(folder / "clear.png")
    noise(23, 97, 3).save(folder / "wide.png")
    noise(11, 17, 3).save(folder / "exact.png")
    noise(89, 31).save(folder / "grey.png")
    Image.fromarray(draw.integers(0, 65536, (37, 43), np.uint16)).save(folder / "deep.png")
    noise(29, 53, 3).quantize(19).save(folder / "palette.png", transparency=3)
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(47, 71, 3).save(folder / "turned.jpg", exif=exif)
    noise(307, 211, 3).resize((422, 614)).save(folder / "large.jpg")
    return sorted(folder.iterdir())


TRANSFORMS = {
    "pad": dict(fit="pad"),
    "grey bars": dict(fit="pad", channels=1),
    "crop": dict(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)),
    "squash": dict(fit="squash", transparency="drop"),
    "resize, squash": dict(fit="squash", resize=(13, 19), resample="lanczos"),
    "resize, square": dict(size=(17, 17), resize=(19, 19), resample="bilinear"),
    "resize, crop": dict(resize=(13, 19)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_written_code_gives_the_pixels_of_the_run(name, odd_pictures):
    transform = replace(ImageTransform((11, 17), 3), **TRANSFORMS[name])
    written = {}
    exec(picture_code(transform), written)
    for path in odd_pictures:
        expected = normalize(torch.from_numpy(read_pictures([path], transform)), transform.mean, transform.std)
        np.testing.assert_allclose(written["pixels"](path), expected.numpy(), rtol=0, atol=1e-6, err_msg=path.name)


def test_the_readme_of_a_padded_export_answers_as_the_run(type_in, light, odd_pictures, capsys):
    draw = np.random.default_rng(3)
    for name in ("tall", "wide"):
        for i in range(4):
            sides = (61 + i, 23) if name == "tall" else (19, 59 + i)
            path = Path("shapes", name, f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (*sides, 3), np.uint8)).save(path)
    type_in("train", "vit", "--data", "shapes", "--size", "20", *SMALL, "--name", "padded", "--model.patch", "5x5")
    shown = type_in("export", "runs/padded", "--to", "hf", "--out", "hf")
    assert "without preprocessor_config.json" in shown.err
    readme = Path("hf/README.md").read_text(encoding="utf-8")
    for path in odd_pictures[:3]:
        Image.open(path).save("picture.png")
        expected = pencil.predict("runs/padded", "picture.png")
        capsys.readouterr()
        exec("\n".join(re.findall(r"```python\n(.*?)```", readme, re.S)), {})
        label, probability = capsys.readouterr().out.split()
        assert label == expected.label
        assert float(probability) == pytest.approx(expected.probability, abs=1e-6)
