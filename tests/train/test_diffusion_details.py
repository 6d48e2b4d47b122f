"""Diffusion, its numbers recomputed: the held-out loss, the preview, features of a classifier, the shape of latents."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from conftest import unchecked
from pencil import draw
from pencil.api.run_setup import train_config
from pencil.data.images import open_images as images
from pencil.families import family
from pencil.inference.autoencoder import Autoencoder
from pencil.train.task import Request, random_of
from pencil.train.tasks import diffusion
from pencil.train.tasks.diffusion import Diffusion, middle_frames, suggest_shape

TINY = dict(width=16, depth=1, heads=2)


def request_for(data="digits", model=None, **options):
    chosen = family("dit").train_options(**options)
    return Request(family("dit"), data, "nano", {**TINY, **(model or {})}, {}, chosen)


def prepare(data="digits", model=None, **train):
    config = train_config(family("dit"), "nano", {"batch": 7, **train})
    return Diffusion.prepare(Request(family("dit"), data, "nano", {**TINY, **(model or {})}, train), config).task


@pytest.fixture(scope="module")
def task():
    return prepare()


def lively(task, seed=3):
    torch.manual_seed(seed)
    model = task.build().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


def test_the_held_out_loss_is_the_mean_over_images_each_under_its_own_noise(task):
    """Losses are compared between runs and versions, so the noise is part of what they mean."""
    model = lively(task)
    chosen = np.linspace(0, len(task.data.test) - 1, 14).astype(int)
    with unchecked(), torch.no_grad():
        found = task.evaluate(model, 2)["val_loss"]
        x = torch.from_numpy(task.data.test.pictures[chosen]).float() / 127.5 - 1
        labels = torch.tensor([task.data.test.targets[i] for i in chosen])
        keys = random_of(0, 0, 1 << 23).integers(1 << 62, size=len(task.data.test))[chosen]
        t, noise, _ = task.noise(torch.from_numpy(keys), x)
        made = model(task.process.add_noise(x, noise, t), task.process.timestep(t), labels, None, None)
    assert found == pytest.approx(float(((made - task.process.target(x, noise, t)) ** 2).mean()), rel=1e-5)


def test_the_preview_has_twenty_samples_under_their_labels(task, monkeypatch):
    asked, sheets = {}, []

    def sample(self, model, targets, **settings):
        asked.update(targets=list(targets), **settings)
        return np.zeros((len(targets), 1, 8, 8), np.uint8)

    monkeypatch.setattr(Diffusion, "sample", sample)
    monkeypatch.setattr(draw, "sheet", lambda *given: sheets.append(given) or b"\x89PNG")
    assert task.preview(nn.Module()).suffix == ".png"
    labels = [i % 10 for i in range(20)]
    assert asked == {"targets": labels, "guidance": 2.0, "steps": 20}
    assert sheets[0][1:] == (list(map(str, labels)), [True] * 20, "digits")


def test_the_features_of_many_pictures_are_in_their_order():
    """More than are read at once; and of a video the mean over its frames."""

    def classifier(x, probe):
        probe.values["pooled"] = torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1)
        return torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3)), torch.full((len(x),), -9.0)], 1)

    pictures = np.random.default_rng(5).integers(0, 256, (259, 1, 3, 5), dtype=np.uint8)
    plain = pictures[:, 0].astype(float) / 127.5 - 1
    found, labels = diffusion.features(classifier, pictures)
    expected = np.stack([plain.mean((1, 2)), plain.max((1, 2))], 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert labels.tolist() == (expected[:, 0] < 0).astype(int).tolist()
    videos = pictures[:257].reshape(-1, 257, 1, 1, 3, 5).repeat(2, 3)[0]
    videos[:, :, 1] = pictures[2:259]
    found, _ = diffusion.features(classifier, videos)
    np.testing.assert_allclose(found, (expected[:257] + expected[2:259]) / 2, atol=1e-6)


def test_samples_are_scored_by_what_a_classifier_takes_them_for(task, monkeypatch):
    """Of 20 samples the classifier reads the class from the first pixel; every third is another one."""
    labels = [i % 10 for i in range(20)]
    taken = [(label + 1) % 10 if i % 3 == 0 else label for i, label in enumerate(labels)]
    made, sheets, asked = np.zeros((20, 1, 8, 8), np.uint8), [], {}
    made[:, 0, 0, 0] = taken
    monkeypatch.setattr(diffusion, "SAMPLES", 20)
    monkeypatch.setattr(Diffusion, "sample", lambda self, model, targets, **settings: asked.update(settings) or made)
    monkeypatch.setattr(draw, "sheet", lambda *given: sheets.append(given) or b"\x89PNG")

    def classifier(x, probe):
        probe.values["pooled"] = x.flatten(1)[:, :3]
        first = ((x[:, 0, 0, 0] + 1) * 127.5).round().long()
        return torch.nn.functional.one_hot(first.clamp(max=16), 17).float()[:, :10] * 9

    metrics, files = diffusion.score_samples(task, None, classifier)
    assert asked == {"guidance": 3.0, "steps": 50}
    assert metrics["sample_accuracy"] == pytest.approx(13 / 20)
    # of the real held-out images: those whose first pixel is their label; another one is class 0, of which none is
    first = task.data.test.pictures[:, 0, 0, 0].tolist()
    shown = [pixel if pixel < 10 else 0 for pixel in first]
    named = [one == label for one, label in zip(shown, task.data.test.targets, strict=True)]
    assert metrics["classifier_accuracy"] == pytest.approx(sum(named) / len(named))
    assert 0 < sum(named) < len(named)
    _, lines, right, title = sheets[0]
    assert right == [one == other for one, other in zip(labels, taken, strict=True)]
    assert lines == [str(a) if a == b else f"{a}, classified as {b}" for a, b in zip(labels, taken, strict=True)]
    assert title == "13 of 20 classified as their label"
    assert set(files) == {"samples.png"}
    held = torch.from_numpy(task.data.test.pictures).float().flatten(1)[:, :3] / 127.5 - 1
    some = random_of(0, 0).permutation(len(task.data.train))[:20]
    real = torch.from_numpy(task.data.train.pictures[some]).float().flatten(1)[:, :3] / 127.5 - 1
    expected = diffusion.frechet(real.double().numpy(), held.double().numpy())
    assert metrics["frechet_of_real"] == pytest.approx(expected, rel=1e-5)
    assert metrics["frechet"] > metrics["frechet_of_real"]


def test_a_dim_moving_point_is_followed_like_a_bright_one():
    video = np.zeros((1, 1, 4, 7, 11), np.uint8)
    for frame, column in enumerate((0, 1, 3, 6)):
        video[0, 0, frame, 2, column] = 1
    assert diffusion.jerk(video) == pytest.approx(0.5, rel=1e-3)  # one pixel more a frame, along one of two axes


def test_of_a_video_the_middle_frame_is_shown():
    video = np.arange(2 * 5).reshape(2, 1, 5, 1, 1)
    assert middle_frames(video).ravel().tolist() == [2, 7]
    still = np.zeros((2, 1, 3, 3))
    assert middle_frames(still) is still


class Quartering(nn.Module):
    """As much of an AutoencoderKL as its sizes: latents of a quarter of each side."""

    config = SimpleNamespace(in_channels=1, latent_channels=5, block_out_channels=[3, 3, 3], scaling_factor=1.0)


@pytest.mark.parametrize("size, latent, patch", [
    ("24x40", (6, 10), (2, 2)), ("12x40", (3, 10), (1, 1)), ("24x20", (6, 5), (1, 1))
])  # fmt: skip
def test_latents_of_even_sides_are_cut_by_two(size, latent, patch):
    data = images.load("digits", "label")
    config = Diffusion.configure(request_for(vae="some", size=size), data, {"classes": 10}, Autoencoder(Quartering()))
    assert (config.image_size, config.channels, config.patch) == (latent, 5, patch)


def test_the_shape_of_the_data_is_taken_unless_another_is_requested():
    data = images.load("digits", "label")
    assert suggest_shape(request_for(), data) == {"image_size": (8, 8), "channels": 1, "patch": (2, 2)}
    assert suggest_shape(request_for(size="24x16"), data) == {"image_size": (24, 16), "channels": 1, "patch": (4, 4)}
    assert suggest_shape(request_for(size="40"), data)["patch"] == (5, 5)
    chosen = suggest_shape(request_for(model={"image_size": "40", "patch": 4}), data)
    assert chosen == {"image_size": (40, 40), "channels": 1, "patch": data.model_defaults["patch"]}
    # a side of nothing is refused by the model's config, with its name
    assert suggest_shape(request_for(size="0x8"), data)["patch"] == data.model_defaults["patch"]
