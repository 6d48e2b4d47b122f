"""train, sample and resume of a diffusion transformer, and what is refused."""

import json
import os
import signal

import numpy as np
import pytest
from PIL import Image

from albums import album, picture
from pencil.api import evaluate
from pencil.train.loop import checkpoint
from pencil.train.loop.trainer import Trainer
from pencil.train.tasks import diffusion

SMALL = ("--model.width", 16, "--model.depth", 1, "--model.heads", 2, "--train.batch", 5, "--train.steps", 2,
         "--train.eval_every", 2, "--train.eval_batches", 1, "--train.save_every", 1)  # fmt: skip


def quick_classifier(monkeypatch, steps):
    """A classifier of a few steps, and a few samples for it to score."""
    monkeypatch.setattr(evaluate, "CLASSIFIER_TRAINING", dict(steps=steps, eval_every=steps, eval_batches=1, batch=3))
    monkeypatch.setattr(diffusion, "SAMPLES", 5)
    monkeypatch.setattr(diffusion, "STEPS", 2)


def test_train_sample_and_resume_a_dit_on_digits(type_in, tmp_path):
    type_in("train", "dit", *SMALL)
    run = "runs/digits-dit"
    shown = type_in("sample", run, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert shown.err.split() == [f"{run}/sampled/grid.png", f"{run}/sampled/steps.png"]
    grid, steps = (Image.open(tmp_path / path) for path in shown.err.split())
    assert grid.width > grid.height  # five in three columns
    assert steps.width > 4 * steps.height
    first = (tmp_path / run / "sampled" / "grid.png").read_bytes()
    type_in("sample", run, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert (tmp_path / run / "sampled" / "grid.png").read_bytes() == first
    type_in("sample", run, "--label", 7, "--count", 5, "--steps", 4, "--seed", 1, "--out", "other.png")
    assert (tmp_path / "other.png").read_bytes() != first
    assert "Trained 3 steps" in type_in("resume", run, "--train.steps", 3).err
    assert "--label 0" in (tmp_path / run / "README.md").read_text()


@pytest.mark.long
def test_a_video_is_sampled_as_an_animation(type_in, tmp_path):
    type_in("train", "dit", "--data", "moving-digits", "--model.attention", "windowed", "--model.window", 2, *SMALL)
    type_in("sample", "runs/moving-digits-dit", "--label", 3, "--steps", 2, "--out", "three.gif")
    assert Image.open(tmp_path / "three.gif").n_frames >= 1
    # a row for the noise, one for the step between, one for the end; eight frames of sixteen pixels in each
    steps = Image.open(tmp_path / "three-steps.png").convert("L").resize((8 * 17 - 1, 3 * 17 - 1), 0)
    rows = [steps.crop((0, top, steps.width, top + 16)) for top in (0, 17, 34)]
    assert len({row.tobytes() for row in rows}) == 3
    rough = [np.abs(np.diff(np.asarray(row, float)[:, :16])).mean() for row in rows]
    assert rough[0] == max(rough)
    for out in ("three.png", "a.mp4"):
        shown = type_in("sample", "runs/moving-digits-dit", "--label", 3, "--out", out, code=2).err
        assert f"a video is written as .gif, and --out is {out}" in shown


@pytest.mark.usefixtures("light")
def test_an_image_is_sampled_from_a_text(type_in, tmp_path):
    type_in("train", "dit", "--data", "scenes", *SMALL)
    shown = type_in("sample", "runs/scenes-dit", "--prompt", "a one above a two", "--steps", 2)
    assert (tmp_path / shown.err.split()[0]).is_file()


@pytest.mark.parametrize("words, sentence", [
    (("--label", "eleven"), "was not trained on a label eleven"),
    (("--label", 7, "--steps", 0), "--steps must be at least 1, not 0"),
    (("--label", 7, "--guidance", "nan"), "--guidance must be a finite number, not nan"),
    (("--label", 7, "--count", 0), "--count must be at least 1, not 0"),
    (("--prompt", "a seven"), "is conditioned on labels: use --label, not --prompt"),
    (("--label", 7, "--sampler", "ddim"), "the sampler ddim does not fit a model that predicts velocity; use flow or heun"),
    (("--label", 7, "--sampler", "magic"), "magic is not a sampler"),
    ((), "--label is missing: "),
    (("--label", 7, "--beams", 2), "is a dit: it takes no --beams; pencil sample "),
])  # fmt: skip
def test_sampling_options_that_are_refused(fails, dit_run, words, sentence):
    assert sentence in fails("sample", dit_run, *words)


def test_where_samples_are_written(type_in, fails, dit_run, tmp_path):
    def places(out, *labels):
        shown = type_in("sample", dit_run, *labels or ("--label", 7), "--steps", 1, "--guidance", 1, "--out", out).err
        return shown.split()

    (tmp_path / "old.v1").mkdir()
    assert places("old.v1") == ["old.v1/grid.png", "old.v1/steps.png"]
    assert places("new.v2") == ["new.v2/grid.png", "new.v2/steps.png"]
    assert places("a.PNG") == ["a.PNG", "a-steps.png"]
    for out in ("a.gif", "a.jpg"):
        assert f"an image is written as .png, and --out is {out}" in fails(
            "sample", dit_run, "--label", 7, "--out", out
        )
    # each of several labels has a row of its own; with one picture each they stand in one row
    places("rows.png", "--label", 7, "--label", 3, "--count", 5)
    assert Image.open(tmp_path / "rows.png").width > 2 * Image.open(tmp_path / "rows.png").height
    places("row.png", "--label", 7, "--label", 3, "--label", 1)
    assert Image.open(tmp_path / "row.png").width > 2 * Image.open(tmp_path / "row.png").height


@pytest.mark.parametrize("words, sentence", [
    (("--model.frames", 4), "model.frames 4 is for video, and digits has still images"),
    (("--data", "moving-digits", "--size", 32), "moving-digits is made with model.image_size 16x16 only: leave it out"),
    (("--data", "moving-digits", "--model.frames", 4), "moving-digits is made with model.frames 8 only: leave it out"),
    (("--data", "moving-digits", "--model.channels", 3), "moving-digits is made with model.channels 1 only: leave it out"),
    (("--model.prediction", "v"), "model.prediction needs --model.noise_schedule linear or cosine; a flow predicts the velocity"),
    (("--size", 16, "--model.image_size", 12), "--size is the same as --model.image_size here"),
])  # fmt: skip
def test_settings_that_do_not_fit_the_data(fails, tmp_path, words, sentence):
    assert sentence in fails("train", "dit", *SMALL, *words)
    assert not (tmp_path / "runs").exists()


def test_samples_that_are_not_finite_are_not_written(fails, dit_run, tmp_path):
    shown = fails("sample", dit_run, "--label", 7, "--steps", 2, "--guidance", "1e300", "--out", "black.png")
    assert "sampling diverged (NaN); lower --guidance" in shown
    assert not (tmp_path / "black.png").exists()


@pytest.mark.usefixtures("light")
def test_an_interrupted_classifier_is_trained_to_its_end(type_in, tmp_path, monkeypatch):
    type_in("train", "dit", "--data", photos(tmp_path / "photos"), *SMALL)
    quick_classifier(monkeypatch, steps=7)
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    update = Trainer.update

    def interrupted(self):
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", interrupted)
        assert not type_in("eval", "runs/photos-dit", code=130).out
    (kept,) = (tmp_path / "cache").glob("classifier-*")
    assert checkpoint.saved_steps(kept) == [4]
    assert "sample_accuracy" in type_in("eval", "runs/photos-dit").out
    assert checkpoint.saved_steps(kept)[-1] == 7


@pytest.mark.usefixtures("light")
def test_guidance_needs_the_null_class(type_in, fails):
    type_in("train", "dit", "--model.null_condition", "false", *SMALL, "--out", "bare")
    assert "the model was trained without the null condition" in fails("sample", "bare", "--label", 7, "--guidance", 2)
    type_in("sample", "bare", "--label", 7, "--steps", 1)


@pytest.mark.usefixtures("light")
def test_a_learned_variance_is_trained_and_sampled_with(type_in, fails, tmp_path):
    noise = ("--model.learned_variance", "true", "--model.noise_schedule", "linear")
    shown = type_in("train", "dit", *noise, *SMALL, "--out", "spread").err
    assert "Trained 2 steps" in shown
    type_in("sample", "spread", "--label", 7, "--steps", 3, "--sampler", "ddpm", "--out", "seven.png")
    assert Image.open(tmp_path / "seven.png").width >= 8
    shown = fails("sample", "spread", "--label", 7, "--sampler", "heun")
    assert shown.endswith("the sampler heun does not fit a model that predicts eps; use ddpm or ddim")
    assert "--steps 1009 is more than the 1000 noise steps the model was trained with" in fails(
        "sample", "spread", "--label", 7, "--steps", 1009
    )
    assert "model.learned_variance needs --model.noise_schedule linear or cosine" in fails(
        "train", "dit", "--model.learned_variance", "true"
    )


def photos(folder, sizes=((33, 35),)):
    """Two classes of colour pictures; widths and heights in turn."""
    for k, name in enumerate(("cat", "dog")):
        for i in range(7):
            picture(folder / name / f"{i}.png", seed=7 * k + i, size=sizes[i % len(sizes)])
    return folder


@pytest.mark.usefixtures("light")
def test_a_dit_on_a_folder_of_classes(type_in, fails, tmp_path, monkeypatch):
    shown = type_in("train", "dit", "--data", photos(tmp_path / "photos"), *SMALL).err
    assert "images of photos at 35×33, 12 to train on, 2 held out" in shown
    run = "runs/photos-dit"
    type_in("sample", run, "--label", "dog", "--label", "cat", "--count", 2, "--steps", 2, "--out", "both.png")
    assert "was not trained on a label cow; known: cat, dog" in fails("sample", run, "--label", "cow")
    # a classifier of two steps scores too
    quick_classifier(monkeypatch, steps=2)
    shown = type_in("eval", run)
    assert {line.split()[0] for line in shown.out.splitlines()} == {
        "val_loss", "sample_accuracy", "classifier_accuracy", "frechet", "frechet_of_real",
    }  # fmt: skip
    assert (tmp_path / run / "eval" / "samples.png").is_file()


def test_a_dit_on_a_folder_with_captions(type_in, fails, tmp_path):
    shown = type_in("train", "dit", "--data", album(tmp_path / "album"), *SMALL).err
    assert "images of album at 11×13" in shown
    run = "runs/album-dit"
    type_in("sample", run, "--prompt", "a cup number 3", "--steps", 2, "--out", "cup.png")
    assert "is conditioned on texts: use --prompt, not --label" in fails("sample", run, "--label", "cup")
    shown = type_in("eval", run)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["val_loss"]
    assert shown.err.splitlines() == [
        "captions have no class to score samples by: look at samples.png", f"{run}/eval/samples.png",
    ]  # fmt: skip
    assert set(json.loads(type_in("eval", run, "--json").out)) == {"val_loss"}


@pytest.mark.usefixtures("light")
def test_an_unconditional_dit(type_in, fails, tmp_path):
    for i in range(11):
        picture(tmp_path / "walks" / f"{i}.png", seed=i)
    shown = type_in("train", "dit", "--data", "walks", *SMALL).err
    assert "images of walks at 11×13, 10 to train on, 1 held out" in shown
    run = "runs/walks-dit"
    assert "pencil sample runs/walks-dit --count 16\n" in (tmp_path / run / "README.md").read_text()
    type_in("sample", run, "--count", 3, "--steps", 2, "--out", "three.png")
    type_in("sample", run, "--steps", 2, "--out", "one.png")
    three, one = (Image.open(tmp_path / name) for name in ("three.png", "one.png"))
    one, three = one.resize((13, 11), 0), three.resize((2 * 13 + 1, 2 * 11 + 1), 0)
    assert three.crop((0, 0, 13, 11)).tobytes() == one.tobytes()  # the first of three is the same as one sampled alone
    assert three.crop((14, 0, 27, 11)).tobytes() != one.tobytes()
    assert "is unconditional: leave --label out" in fails("sample", run, "--label", 7)
    assert "is unconditional: leave --prompt out" in fails("sample", run, "--prompt", "a walk")
    assert (
        "the model was trained without a condition, so classifier-free guidance is not possible: use --guidance 1"
        in fails("sample", run, "--guidance", 3)
    )
    shown = type_in("eval", run)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["val_loss"]
    assert "images alone have no class to score samples by" in shown.err
    assert "✓" in type_in("why", run, "blocks.0.attn.pattern[0,1,2,3]", "--step", 2, "--steps", 3).out
    assert "Trained 3 steps" in type_in("resume", run, "--train.steps", 3).err
    assert "--tokenizer is for text, and these images have no captions" in fails(
        "train", "dit", "--data", "walks", "--tokenizer", "char"
    )
    for word, what in (("classes", "labels"), ("vocab", "captions")):
        shown = fails("train", "dit", "--data", "walks", f"--model.{word}", 5, *SMALL)
        assert f"model.{word} is for images with {what}, and walks has none" in shown
    # a single class is no condition either
    (tmp_path / "walks").rename(tmp_path / "dog")
    (tmp_path / "walks").mkdir()
    (tmp_path / "dog").rename(tmp_path / "walks" / "dog")
    assert "11×13, 10 to train on" in type_in("train", "dit", "--data", "walks", "--name", "again", *SMALL).err
    for path in (tmp_path / "walks" / "dog").iterdir():
        path.rename(tmp_path / "walks" / path.name)
    picture(tmp_path / "walks" / "dog" / "1.png")
    assert "11 pictures without a label" in fails("train", "dit", "--data", "walks", *SMALL)


@pytest.mark.usefixtures("light")
def test_labels_can_be_ignored(type_in, fails, tmp_path, monkeypatch):
    photos(tmp_path / "photos")
    type_in("train", "dit", "--data", "photos", "--model.classes", "none", *SMALL)
    type_in("sample", "runs/photos-dit", "--count", 2, "--steps", 2)
    quick_classifier(monkeypatch, steps=2)
    shown = type_in("eval", "runs/photos-dit")
    assert [line.split()[0] for line in shown.out.splitlines()] == [
        "val_loss", "classifier_accuracy", "frechet", "frechet_of_real"
    ]  # fmt: skip
    assert "samples have no label, so none is scored: look at samples.png" in shown.err
    assert "model.classes 1 is fewer than the 2 classes of photos" in fails(
        "train", "dit", "--data", "photos", "--model.classes", 1, *SMALL
    )


@pytest.mark.usefixtures("light")
def test_captions_or_labels_can_be_the_condition(type_in, tmp_path):
    album(tmp_path / "both", ["a cup", "a dot"] * 3, label=["cup", "dot"] * 3)
    type_in("train", "dit", "--data", "both", *SMALL, "--out", "texts")
    type_in("sample", "texts", "--prompt", "a cup", "--steps", 1)
    type_in("train", "dit", "--data", "both", "--model.classes", 2, *SMALL, "--out", "labels")
    type_in("sample", "labels", "--label", "cup", "--steps", 1)
    assert "Trained 3 steps" in type_in("resume", "labels", "--train.steps", 3).err


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("what", ["text", "label", "nothing"])
def test_folders_with_a_test_split(type_in, tmp_path, what):
    for k, part in enumerate(("train", "test")):
        if what == "nothing":
            for i in range(5):
                picture(tmp_path / "mine" / part / f"{i}.png", seed=7 * k + i)
        else:
            album(tmp_path / "mine" / part, ["cup", "dot"] * 3, key=what)
    each = 5 if what == "nothing" else 6
    shown = type_in("train", "dit", "--data", "mine", *SMALL).err
    assert f"images of mine at 11×13, {each} to train on, {each} held out" in shown
    condition = {"text": ("--prompt", "cup"), "label": ("--label", "cup"), "nothing": ()}[what]
    type_in("sample", "runs/mine-dit", *condition, "--steps", 2, "--out", "one.png")
    assert Image.open(tmp_path / "one.png").resize((13, 11)).mode == "RGB"


@pytest.mark.usefixtures("light")
def test_images_of_different_sizes_are_refused_before_a_run_is_made(type_in, fails, tmp_path):
    photos(tmp_path / "photos", sizes=((41, 37), (29, 53)))
    shown = fails("train", "dit", "--data", "photos", *SMALL)
    assert "the pictures in photos are of different sizes" in shown
    assert "37×41" in shown
    assert "53×29" in shown
    assert not (tmp_path / "runs").exists()
    assert "at 22×26" in type_in("train", "dit", "--data", "photos", "--size", "22x26", *SMALL).err
