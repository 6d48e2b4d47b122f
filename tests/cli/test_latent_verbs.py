"""A dit on the latents of an autoencoder of diffusers."""

import os
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from test_dit_verbs import SMALL

from pencil.api.run_setup import train_config
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.families import family
from pencil.inference.autoencoder import BATCH, Autoencoder
from pencil.train.task import Request
from pencil.train.tasks import latents
from pencil.train.tasks.diffusion import Diffusion
from pencil.train.tasks.latents import to_latents

FACTOR, CHANNELS = 4, 5


@pytest.fixture(scope="module")
def vae(tmp_path_factory):
    """The folder of a small autoencoder with random weights."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
    torch.manual_seed(7)
    model = diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, down_block_types=["DownEncoderBlock2D"] * 3, norm_num_groups=3,
        up_block_types=["UpDecoderBlock2D"] * 3, block_out_channels=[6, 9, 12], latent_channels=CHANNELS,
        layers_per_block=1, scaling_factor=0.37, shift_factor=0.11,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("vae")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    """Two classes of colour pictures of 20×28, one of them broken behind its head."""
    rng = np.random.default_rng(3)
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(11):
            pixels = rng.integers(256, size=(20, 28, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{i}.png")
    broken = tmp_path / "photos" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:900])
    return tmp_path / "photos"


def test_encoding_and_decoding_equal_diffusers(vae):
    from diffusers import AutoencoderKL

    theirs = AutoencoderKL.from_pretrained(vae)
    autoencoder = Autoencoder.open(str(vae))
    assert (autoencoder.factor, autoencoder.channels, autoencoder.image_channels) == (FACTOR, CHANNELS, 3)
    pictures = np.random.default_rng(0).integers(256, size=(BATCH + 3, 3, 20, 28), dtype=np.uint8)
    x = torch.from_numpy(pictures).float() / 127.5 - 1
    with torch.no_grad():
        expected = (theirs.encode(x).latent_dist.mean - 0.11) * 0.37
        shown = theirs.decode(expected / 0.37 + 0.11).sample
    torch.testing.assert_close(autoencoder.encode(pictures), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(autoencoder.decode(expected).astype(float) - (shown.clamp(-1, 1).numpy() + 1) * 127.5).max() <= 0.51


def prepared(vae, photos, **more):
    record, model = family("dit"), dict(width=16, depth=1, heads=2)
    config = train_config(record, "nano", {"batch": 7})
    options = record.train_options(vae=str(vae), **more)
    return Diffusion.prepare(Request(record, str(photos), "nano", model=model, options=options), config)


def test_latents_are_encoded_once_and_cached(vae, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    task = prepared(vae, photos).task
    assert (task.config.image_size, task.config.channels, task.config.patch) == ((5, 7), CHANNELS, (1, 1))
    assert not os.path.exists(tmp_path / "cache") or not list((tmp_path / "cache").glob("latents-*"))
    first = task.inputs
    assert len(list((tmp_path / "cache").glob("latents-*.f16"))) == 2
    x, _ = task.examples(0, 0)
    assert x.shape == (7, CHANNELS, 5, 7)
    assert x.dtype == np.float32

    def encode(*_):
        raise AssertionError("encoded a second time")

    monkeypatch.setattr(latents, "_write", encode)
    again = prepared(vae, photos).task.inputs
    assert np.array_equal(again.train.latents, first.train.latents, equal_nan=True)
    # the latents of a row are those of its picture, and of its label
    autoencoder, transform = Autoencoder.open(str(vae)), ImageTransform((20, 28), 3)
    pixels = images.load(str(photos), "label")
    for part, whole in ((first.train, pixels.train), (first.test, pixels.test)):
        pictures, labels = whole.take(range(len(whole)), transform)
        found, named = part.take(range(len(part)), transform)
        assert named == labels
        torch.testing.assert_close(torch.from_numpy(found), autoencoder.encode(pictures), rtol=2e-3, atol=1e-3)


def test_an_image_that_breaks_while_it_is_encoded_is_skipped(vae, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    data = images.load(str(photos), "label")
    victim = data.train.sources[5]
    victim.write_bytes(victim.read_bytes()[:700])
    kept = to_latents(data, Autoencoder.open(str(vae)), ImageTransform((20, 28), 3), lambda _: None)
    broken = {victim, photos / "cat" / "3.png"}
    whole = [t for source, t in zip(data.train.sources, data.train.targets, strict=True) if source not in broken]
    assert kept.train.targets == whole
    assert len(kept.train) == len(whole) < len(data.train)
    assert str(victim) in [name for name, _ in data.skipped]


def test_an_interrupted_encoding_leaves_nothing(vae, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    data, autoencoder = images.load(str(photos), "label"), Autoencoder.open(str(vae))

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(autoencoder, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        to_latents(data, autoencoder, ImageTransform((20, 28), 3), lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []


def _counted(decode, counts):
    def counted(autoencoder, latents):
        counts.append(len(latents))
        return decode(autoencoder, latents)

    return counted


@pytest.mark.usefixtures("light")
def test_train_sample_and_resume_in_latents(vae, photos, type_in, fails, tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    mine = tmp_path / "mine"
    (mine / "vae").mkdir(parents=True)
    shutil.copytree(vae, mine / "vae", dirs_exist_ok=True)  # as a pipeline keeps it
    shown = type_in("train", "dit", "--data", photos, "--vae", mine, *SMALL).err
    assert "Encoding" in shown
    assert "at 20×28" in shown
    assert "as latents of 5×5×7" in shown
    run = "runs/photos-dit"
    type_in("sample", run, "--label", "dog", "--steps", 2, "--count", 4)
    decoded = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Autoencoder, "decode", _counted(Autoencoder.decode, decoded))
        type_in("sample", run, "--label", "dog", "--steps", 37, "--count", 4)
    assert decoded == [12, 4]  # thirteen moments of the first sample, not one for each step
    assert Image.open(tmp_path / run / "sampled" / "grid.png").mode == "RGB"
    assert "Encoding" not in type_in("resume", run, "--train.steps", 3).err
    assert type_in("verify", run).out.count("/latents-") == 2
    victim = next((tmp_path / "cache").glob("latents-*-train.f16"))
    victim.write_bytes(victim.read_bytes()[:-2])
    assert f"{victim.name} is damaged" in type_in("verify", run, code=1).out
    assert f"{victim.name} is damaged" in type_in("resume", run, "--train.steps", 4).err
    with (mine / "vae" / "config.json").open("r+") as file:
        text = file.read().replace("0.37", "0.38")
        file.seek(0)
        file.write(text)
    assert "has changed since" in fails("sample", run, "--label", "dog")


def test_autoencoders_that_are_refused(vae, photos, fails, monkeypatch, tmp_path):
    assert "does not divide 18×28" in fails("train", "dit", "--data", photos, "--vae", vae, "--size", "18x28")
    assert "moving-digits is generated while training, so it cannot be encoded before: leave --vae out" in fails(
        "train", "dit", "--data", "moving-digits", "--vae", vae
    )
    assert "a vit takes no --vae; pencil train vit --help lists its options" in fails(
        "train", "vit", "--data", photos, "--vae", vae
    )
    assert "has no config.json" in fails("train", "dit", "--data", photos, "--vae", photos)
    assert "train.flip has no effect with --vae: images are encoded once, before training" in fails(
        "train", "dit", "--data", photos, "--vae", vae, "--train.flip", "true"
    )
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.setitem(sys.modules, "diffusers.models.autoencoders.autoencoder_kl", None)
    assert "pip install '.[latents]'" in fails("train", "dit", "--data", photos, "--vae", vae)
