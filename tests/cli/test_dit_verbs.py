"""train, sample and resume of a diffusion transformer, and what is refused."""

import json
import os
import signal

import numpy as np
import pytest
from PIL import Image
from test_tracing import fails  # noqa: F401
from test_verbs import type_in  # noqa: F401

from albums import album, picture
from pencil.cli.main import main
from pencil.train import checkpoint, judging
from pencil.train.diffusing import DiffusionTask
from pencil.train.loop import Trainer
from pencil.train.tasks import Preview

SMALL = ("--model.width", 16, "--model.depth", 1, "--model.heads", 2, "--train.batch", 5, "--train.steps", 2,
         "--train.eval_every", 2, "--train.eval_batches", 1, "--train.save_every", 1)  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A small dit of digits: read it, do not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("train", "dit", *SMALL, "--out", folder))])
    assert not ended.value.code
    return folder


@pytest.fixture
def no_previews(monkeypatch):
    """A sheet of samples takes its time."""
    monkeypatch.setattr(DiffusionTask, "preview", lambda *_: Preview(".png", b""))


@pytest.fixture
def drawn(type_in):  # noqa: F811
    type_in("train", "dit", *SMALL)
    return "runs/digits-dit"


def test_the_story_of_a_dit_on_digits(type_in, drawn, tmp_path):  # noqa: F811
    said = type_in("sample", drawn, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert said.err.split() == [f"{drawn}/sampled/grid.png", f"{drawn}/sampled/strip.png"]
    grid, strip = (Image.open(tmp_path / path) for path in said.err.split())
    assert grid.width > grid.height  # five in three columns
    assert strip.width > 4 * strip.height
    first = (tmp_path / drawn / "sampled" / "grid.png").read_bytes()
    type_in("sample", drawn, "--label", 7, "--count", 5, "--guidance", 3, "--steps", 4)
    assert (tmp_path / drawn / "sampled" / "grid.png").read_bytes() == first
    type_in("sample", drawn, "--label", 7, "--count", 5, "--steps", 4, "--seed", 1, "--out", "other.png")
    assert (tmp_path / "other.png").read_bytes() != first
    assert "Trained 3 steps" in type_in("resume", drawn, "--train.steps", 3).err
    assert "--label 0" in (tmp_path / drawn / "README.md").read_text()


def test_a_video_is_drawn_as_a_film(type_in, tmp_path):  # noqa: F811
    type_in("train", "dit", "--data", "moving-digits", "--model.attention", "windowed", "--model.window", 2, *SMALL)
    type_in("sample", "runs/moving-digits-dit", "--label", 3, "--steps", 2, "--out", "three.gif")
    assert Image.open(tmp_path / "three.gif").n_frames >= 1
    # a row for the noise, one for the step between, one for the end; eight frames of sixteen dots in each
    strip = Image.open(tmp_path / "three-strip.png").convert("L").resize((8 * 17 - 1, 3 * 17 - 1), 0)
    rows = [strip.crop((0, top, strip.width, top + 16)) for top in (0, 17, 34)]
    assert len({row.tobytes() for row in rows}) == 3
    rough = [np.abs(np.diff(np.asarray(row, float)[:, :16])).mean() for row in rows]
    assert rough[0] == max(rough)
    for out in ("three.png", "a.mp4"):
        said = type_in("sample", "runs/moving-digits-dit", "--label", 3, "--out", out, code=2).err
        assert f"a video is written as .gif, and --out is {out}" in said


@pytest.mark.usefixtures("no_previews")
def test_a_text_is_drawn(type_in, tmp_path):  # noqa: F811
    type_in("train", "dit", "--data", "scenes", *SMALL)
    said = type_in("sample", "runs/scenes-dit", "--prompt", "a one above a two", "--steps", 2)
    assert (tmp_path / said.err.split()[0]).is_file()


@pytest.mark.parametrize("words, said", [
    (("--label", "eleven"), "was not trained on a label eleven"),
    (("--label", 7, "--steps", 0), "--steps must be at least 1, not 0"),
    (("--label", 7, "--guidance", "nan"), "--guidance must be a number, not nan"),
    (("--label", 7, "--count", 0), "--count must be at least 1, not 0"),
    (("--prompt", "a seven"), "say it by --label"),
    (("--label", 7, "--sampler", "ddim"), "does not fit a model that says flow; flow or heun would"),
    (("--label", 7, "--sampler", "magic"), "magic is not a sampler"),
    ((), "say it by --label"),
    (("--label", 7, "--beams", 2), "it takes no --beams"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(fails, once, words, said):  # noqa: F811
    assert said in fails("sample", once, *words)


def test_where_pictures_are_written(type_in, fails, once, tmp_path):  # noqa: F811
    def places(out, *labels):
        said = type_in("sample", once, *labels or ("--label", 7), "--steps", 1, "--guidance", 1, "--out", out).err
        return said.split()

    (tmp_path / "old.v1").mkdir()
    assert places("old.v1") == ["old.v1/grid.png", "old.v1/strip.png"]
    assert places("new.v2") == ["new.v2/grid.png", "new.v2/strip.png"]
    assert places("a.PNG") == ["a.PNG", "a-strip.png"]
    for out in ("a.gif", "a.jpg"):
        assert f"a picture is written as .png, and --out is {out}" in fails("sample", once, "--label", 7, "--out", out)
    # each of several labels has a row of its own; with one picture each they stand in one row
    places("rows.png", "--label", 7, "--label", 3, "--count", 5)
    assert Image.open(tmp_path / "rows.png").width > 2 * Image.open(tmp_path / "rows.png").height
    places("row.png", "--label", 7, "--label", 3, "--label", 1)
    assert Image.open(tmp_path / "row.png").width > 2 * Image.open(tmp_path / "row.png").height


@pytest.mark.parametrize("words, said", [
    (("--model.frames", 4), "model.frames 4 is for video, and digits has pictures that do not move"),
    (("--data", "moving-digits", "--size", 32), "moving-digits is made with model.image_size 16x16, and no other"),
    (("--data", "moving-digits", "--model.frames", 4), "moving-digits is made with model.frames 8, and no other"),
    (("--data", "moving-digits", "--model.channels", 3), "moving-digits is made with model.channels 1, and no other"),
    (("--model.prediction", "v"), "model.prediction is for noise in steps"),
    (("--size", 16, "--model.image_size", 12), "--size is the same as --model.image_size here"),
])  # fmt: skip
def test_settings_that_do_not_fit_the_data(fails, tmp_path, words, said):  # noqa: F811
    assert said in fails("train", "dit", *SMALL, *words)
    assert not (tmp_path / "runs").exists()


def test_a_picture_that_runs_away_is_not_drawn(fails, once, tmp_path):  # noqa: F811
    said = fails("sample", once, "--label", 7, "--steps", 2, "--guidance", "1e300", "--out", "black.png")
    assert "ran away from all numbers" in said
    assert not (tmp_path / "black.png").exists()


def test_a_judge_that_was_interrupted_is_not_taken_at_its_word(type_in, tmp_path, monkeypatch):  # noqa: F811
    type_in("train", "dit", "--data", photos(tmp_path / "photos"), *SMALL)
    monkeypatch.setattr(judging, "JUDGE", dict(steps=7, eval_every=7, eval_batches=1, batch=3))
    monkeypatch.setattr(judging, "SAMPLES", 5)
    monkeypatch.setattr(judging, "STEPS", 2)
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    update = Trainer.update

    def interrupted(self):
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", interrupted)
        assert not type_in("eval", "runs/photos-dit", code=130).out
    (judge,) = (tmp_path / "cache").glob("judge-*")
    assert checkpoint.saved(judge) == [4]
    assert "asked_for" in type_in("eval", "runs/photos-dit").out
    assert checkpoint.saved(judge)[-1] == 7


@pytest.mark.usefixtures("no_previews")
def test_guidance_needs_the_null_class(type_in, fails):  # noqa: F811
    type_in("train", "dit", "--model.null_condition", "false", *SMALL, "--out", "bare")
    assert "without the null class" in fails("sample", "bare", "--label", 7, "--guidance", 2)
    type_in("sample", "bare", "--label", 7, "--steps", 1)


@pytest.mark.usefixtures("no_previews")
def test_a_learned_variance_is_trained_and_drawn_with(type_in, fails, tmp_path):  # noqa: F811
    noise = ("--model.learned_variance", "true", "--model.noise_schedule", "linear")
    said = type_in("train", "dit", *noise, *SMALL, "--out", "spread").err
    assert "Trained 2 steps" in said
    type_in("sample", "spread", "--label", 7, "--steps", 3, "--sampler", "ddpm", "--out", "seven.png")
    assert Image.open(tmp_path / "seven.png").width >= 8
    said = fails("sample", "spread", "--label", 7, "--sampler", "heun")
    assert said.endswith("the sampler heun does not fit a model that says eps; ddpm or ddim would")
    assert "trained with 1000 steps of noise" in fails("sample", "spread", "--label", 7, "--steps", 1009)
    assert "model.learned_variance is for noise in steps" in fails("train", "dit", "--model.learned_variance", "true")


def photos(folder, sizes=((33, 35),)):
    """Two classes of colour pictures; widths and heights in turn."""
    for k, name in enumerate(("cat", "dog")):
        for i in range(7):
            picture(folder / name / f"{i}.png", seed=7 * k + i, size=sizes[i % len(sizes)])
    return folder


@pytest.mark.usefixtures("no_previews")
def test_the_story_of_a_dit_on_a_folder_of_classes(type_in, fails, tmp_path, monkeypatch):  # noqa: F811
    said = type_in("train", "dit", "--data", photos(tmp_path / "photos"), *SMALL).err
    assert "pictures of photos at 35×33, 12 to train on, 2 to be judged by" in said
    run = "runs/photos-dit"
    type_in("sample", run, "--label", "dog", "--label", "cat", "--count", 2, "--steps", 2, "--out", "both.png")
    assert "was not trained on a label cow; known: cat, dog" in fails("sample", run, "--label", "cow")
    # a judge of two steps is a judge too
    monkeypatch.setattr(judging, "JUDGE", dict(steps=2, eval_every=2, eval_batches=1, batch=3))
    monkeypatch.setattr(judging, "SAMPLES", 5)
    monkeypatch.setattr(judging, "STEPS", 2)
    said = type_in("eval", run)
    assert {line.split()[0] for line in said.out.splitlines()} == {
        "val_loss", "asked_for", "frechet", "frechet_of_real",
    }  # fmt: skip
    assert (tmp_path / run / "eval" / "samples.png").is_file()


def test_the_story_of_a_dit_on_an_album(type_in, fails, tmp_path):  # noqa: F811
    said = type_in("train", "dit", "--data", album(tmp_path / "album"), *SMALL).err
    assert "pictures of album at 11×13" in said
    run = "runs/album-dit"
    type_in("sample", run, "--prompt", "a cup number 3", "--steps", 2, "--out", "cup.png")
    assert "say it by --prompt" in fails("sample", run, "--label", "cup")
    said = type_in("eval", run)
    assert [line.split()[0] for line in said.out.splitlines()] == ["val_loss"]
    assert said.err.splitlines() == [
        "captions have no label to judge samples by: look at samples.png yourself", f"{run}/eval/samples.png",
    ]  # fmt: skip
    assert set(json.loads(type_in("eval", run, "--json").out)) == {"val_loss"}


def test_the_story_of_a_dit_told_nothing(type_in, fails, tmp_path):  # noqa: F811
    for i in range(11):
        picture(tmp_path / "walks" / f"{i}.png", seed=i)
    said = type_in("train", "dit", "--data", "walks", *SMALL).err
    assert "pictures of walks at 11×13, 10 to train on, 1 to be judged by" in said
    run = "runs/walks-dit"
    assert "pencil sample runs/walks-dit --count 16\n" in (tmp_path / run / "README.md").read_text()
    type_in("sample", run, "--count", 3, "--steps", 2, "--out", "three.png")
    type_in("sample", run, "--steps", 2, "--out", "one.png")
    three, one = (Image.open(tmp_path / name) for name in ("three.png", "one.png"))
    one, three = one.resize((13, 11), 0), three.resize((2 * 13 + 1, 2 * 11 + 1), 0)
    assert three.crop((0, 0, 13, 11)).tobytes() == one.tobytes()  # the first of three is the one drawn alone
    assert three.crop((14, 0, 27, 11)).tobytes() != one.tobytes()
    assert "draws what it likes: leave --label out" in fails("sample", run, "--label", 7)
    assert "draws what it likes: leave --prompt out" in fails("sample", run, "--prompt", "a walk")
    assert "told nothing of what to draw, so it cannot be guided" in fails("sample", run, "--guidance", 3)
    said = type_in("eval", run)
    assert [line.split()[0] for line in said.out.splitlines()] == ["val_loss"]
    assert "pictures alone have no label to judge samples by" in said.err
    assert "✓" in type_in("why", run, "blocks.0.attn.pattern[0,1,2,3]", "--step", 2, "--steps", 3).out
    assert "Trained 3 steps" in type_in("resume", run, "--train.steps", 3).err
    assert "--tokenizer is for text, and these pictures have no captions" in fails(
        "train", "dit", "--data", "walks", "--tokenizer", "char"
    )
    for word, what in (("classes", "labels"), ("vocab", "captions")):
        said = fails("train", "dit", "--data", "walks", f"--model.{word}", 5, *SMALL)
        assert f"model.{word} is for pictures with {what}, and walks has none" in said
    # all of one class say as little
    (tmp_path / "walks").rename(tmp_path / "dog")
    (tmp_path / "walks").mkdir()
    (tmp_path / "dog").rename(tmp_path / "walks" / "dog")
    assert "11×13, 10 to train on" in type_in("train", "dit", "--data", "walks", "--name", "again", *SMALL).err
    for path in (tmp_path / "walks" / "dog").iterdir():
        path.rename(tmp_path / "walks" / path.name)
    picture(tmp_path / "walks" / "dog" / "1.png")
    assert "11 pictures without a label" in fails("train", "dit", "--data", "walks", *SMALL)


@pytest.mark.usefixtures("no_previews")
def test_labels_may_be_left_aside(type_in, fails, tmp_path, monkeypatch):  # noqa: F811
    photos(tmp_path / "photos")
    type_in("train", "dit", "--data", "photos", "--model.classes", "none", *SMALL)
    type_in("sample", "runs/photos-dit", "--count", 2, "--steps", 2)
    monkeypatch.setattr(judging, "JUDGE", dict(steps=2, eval_every=2, eval_batches=1, batch=3))
    monkeypatch.setattr(judging, "SAMPLES", 5)
    monkeypatch.setattr(judging, "STEPS", 2)
    said = type_in("eval", "runs/photos-dit")
    assert [line.split()[0] for line in said.out.splitlines()] == ["val_loss", "frechet", "frechet_of_real"]
    assert "no label was asked for, so none is judged" in said.err
    assert "model.classes 1 is fewer than the 2 classes of photos" in fails(
        "train", "dit", "--data", "photos", "--model.classes", 1, *SMALL
    )


@pytest.mark.usefixtures("no_previews")
def test_of_texts_and_labels_one_may_choose(type_in, tmp_path):  # noqa: F811
    album(tmp_path / "both", ["a cup", "a dot"] * 3, label=["cup", "dot"] * 3)
    type_in("train", "dit", "--data", "both", *SMALL, "--out", "texts")
    type_in("sample", "texts", "--prompt", "a cup", "--steps", 1)
    type_in("train", "dit", "--data", "both", "--model.classes", 2, *SMALL, "--out", "labels")
    type_in("sample", "labels", "--label", "cup", "--steps", 1)
    assert "Trained 3 steps" in type_in("resume", "labels", "--train.steps", 3).err


@pytest.mark.usefixtures("no_previews")
@pytest.mark.parametrize("what", ["text", "label", "nothing"])
def test_folders_with_a_part_to_judge_by(type_in, tmp_path, what):  # noqa: F811
    for k, part in enumerate(("train", "test")):
        if what == "nothing":
            for i in range(5):
                picture(tmp_path / "mine" / part / f"{i}.png", seed=7 * k + i)
        else:
            album(tmp_path / "mine" / part, ["cup", "dot"] * 3, key=what)
    each = 5 if what == "nothing" else 6
    said = type_in("train", "dit", "--data", "mine", *SMALL).err
    assert f"pictures of mine at 11×13, {each} to train on, {each} to be judged by" in said
    asked = {"text": ("--prompt", "cup"), "label": ("--label", "cup"), "nothing": ()}[what]
    type_in("sample", "runs/mine-dit", *asked, "--steps", 2, "--out", "one.png")
    assert Image.open(tmp_path / "one.png").resize((13, 11)).mode == "RGB"


@pytest.mark.usefixtures("no_previews")
def test_pictures_of_different_sizes_are_refused_before_a_run_is_made(type_in, fails, tmp_path):  # noqa: F811
    photos(tmp_path / "photos", sizes=((41, 37), (29, 53)))
    said = fails("train", "dit", "--data", "photos", *SMALL)
    assert "the pictures in photos are of different sizes" in said
    assert "37×41" in said
    assert "53×29" in said
    assert not (tmp_path / "runs").exists()
    assert "at 22×26" in type_in("train", "dit", "--data", "photos", "--size", "22x26", *SMALL).err
