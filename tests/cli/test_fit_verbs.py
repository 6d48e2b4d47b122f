"""--data.fit as a user types it: chosen by the data, recorded in the run, and used by every verb that reads a picture."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

import pencil
from albums import photos, picture
from commands import SMALL, trained
from pencil.api.loading import load, open_run
from pencil.api.run_data import task_of
from pencil.config import build
from pencil.inference.head_patterns import held_out_images
from pencil.train.settings import TrainConfig


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A folder of wide pictures."""
    folder = tmp_path_factory.mktemp("wide") / "photos"
    for k, name in enumerate(("ant", "bee")):
        for i in range(11):
            picture(folder / name / f"{i}.png", seed=100 * k + i, size=(17, 7))
    return folder


@pytest.fixture(scope="module")
def padded(tmp_path_factory, wide):
    """A vit of wide pictures, at 16×16."""
    return trained(tmp_path_factory.mktemp("padded"), "train", "vit", "--data", wide, "--size", 16)


def by_hand(path, how):
    """A picture of 17×7 at 16×16, as the model reads it."""
    with Image.open(path) as image:
        if how == "squash":
            shown = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC))
        elif how == "crop":
            shown = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC, (5, 0, 12, 7)))
        else:
            shown = np.full((16, 16, 3), 128, np.uint8)
            shown[4:11] = np.asarray(image.resize((16, 7), Image.Resampling.BICUBIC))
    return torch.from_numpy(shown.transpose(2, 0, 1)[None].astype(np.float32)) / 127.5 - 1


def config_of(run):
    return tomllib.loads((run / "config.toml").read_text())


def test_wide_pictures_are_padded_and_the_user_reads_so(type_in, light, wide, tmp_path):
    shown = type_in("train", "vit", "--data", wide, "--size", 16, *SMALL, "--out", "a")
    assert "100 % of the pictures would lose more than a quarter by cropping: all are padded" in shown.err
    assert "at 16×16, padded, 20 to train on, 2 held out" in shown.err
    assert config_of(tmp_path / "a")["data"] == {"fit": "pad"}
    for how in ("crop", "squash"):
        shown = type_in("train", "vit", "--data", wide, "--size", 16, "--data.fit", how, *SMALL, "--out", how)
        assert "would lose" not in shown.err
        assert config_of(tmp_path / how)["data"] == {"fit": how}


@pytest.mark.parametrize("how", ["pad", "crop", "squash"])
def test_every_verb_reads_a_picture_alike(type_in, light, wide, tmp_path, how):
    type_in("train", "vit", "--data", wide, "--size", 16, "--data.fit", how, *SMALL, "--out", "run")
    path, run = wide / "ant" / "3.png", tmp_path / "run"
    x, loaded = by_hand(path, how), load(run)
    with torch.no_grad():
        likely = loaded.model(x).softmax(-1)[0]
    row = json.loads(type_in("sample", run, "--image", path, "--json").out)["results"][0]
    assert [row["probabilities"][name] for name in ("ant", "bee")] == pytest.approx(likely.tolist(), abs=1e-6)
    found = pencil.predict(run, [path, Image.open(path)])
    assert [one.probabilities.tolist() for one in found] == [pytest.approx(likely.tolist(), abs=1e-6)] * 2
    assert torch.equal(torch.as_tensor(np.asarray(pencil.trace(run, path)["picture"].value)), x)
    opened = open_run(run)
    task = task_of(opened, build(TrainConfig, opened.config["train"], "train."))
    pictures, _ = held_out_images(task)  # what eval and heads read
    for source, shown in zip(task.data.test.sources, pictures, strict=True):
        assert torch.equal(shown, by_hand(source, how))


def test_an_older_run_crops(padded, wide, tmp_path):
    """A run that does not record how it fits pictures."""
    run = open_run(padded)
    run.config.pop("data")
    task = task_of(run, build(TrainConfig, run.config["train"], "train."))
    assert task.transform.fit == "crop"
    assert torch.equal(held_out_images(task)[0][0], by_hand(task.data.test.sources[0], "crop"))


def test_another_fit_in_the_config_is_noticed(fails, padded, tmp_path):
    run = shutil.copytree(padded, tmp_path / "run")
    (run / "config.toml").write_text((run / "config.toml").read_text().replace('fit = "pad"', 'fit = "crop"'))
    assert "it was saved with data.fit pad, and config.toml has crop" in fails("resume", run, "--train.steps", 5)
    assert "config.toml" in fails("eval", run)


def test_where_it_has_no_effect_or_is_none_it_is_refused(fails, notes, wide):
    assert "data.fit has no effect on digits, whose pictures are all 8×8: leave it out" in fails(
        "train", "vit", "--data.fit", "pad"
    )
    assert "data.fit has no effect on scenes" in fails("train", "captioner", "--data.fit", "squash")
    assert "data.fit has no effect on videos" in fails("train", "dit", "--data", "moving-digits", "--data.fit", "pad")
    assert "data.fit has no effect on a gpt" in fails("train", "gpt", "--data", notes, "--data.fit", "pad")
    assert "data.fit must be one of crop, pad, squash" in fails("train", "vit", "--data", wide, "--data.fit", "fill")


def test_a_dit_crops_and_its_classifier_reads_as_it_does(type_in, light, wide, tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pencil.api.evaluate.CLASSIFIER_TRAINING", dict(steps=2, eval_every=2, warmup=1))
    monkeypatch.setattr("pencil.train.tasks.diffusion.SAMPLES", 4)
    monkeypatch.setattr("pencil.train.tasks.diffusion.STEPS", 2)
    shown = type_in("train", "dit", "--data", wide, "--size", 16, *SMALL, "--out", "a")
    assert "would lose more than a quarter by cropping, and are cropped" in shown.err.replace("\n", " ")
    assert config_of(tmp_path / "a")["data"] == {"fit": "crop"}
    type_in("train", "dit", "--data", wide, "--size", 16, "--data.fit", "squash", *SMALL, "--out", "b")
    type_in("eval", "b")
    (kept,) = (tmp_path / "cache").glob("classifier-*")
    assert "-squash" in kept.name
    assert config_of(kept)["data"] == {"fit": "squash"}


ROWS = {
    "gpt": {"prompt", "text"},
    "seq2seq": {"source", "text"},
    "captioner": {"image", "prompt", "text"},
    "vit": {"image", "label", "probability", "probabilities"},
    "classifier": {"prompt", "label", "probability", "probabilities"},
    "masked": {"prompt", "masks"},
    "dit": {"label", "sample", "seed"},
}


def test_every_family_samples_as_json(type_in, request, run, digit, tmp_path):
    given = {
        "gpt": ("--prompt", "line", "--max-new-tokens", 7, "--count", 2),
        "seq2seq": ("--source", "abe", "--source", "bad"),
        "captioner": ("--image", digit, "--attention", "a.png"),
        "vit": ("--image", digit, digit),
        "classifier": ("--prompt", "the film was fine"),
        "masked": ("--prompt", "li[mask]e [mask]"),
        "dit": ("--label", "7", "--label", "3", "--count", 2, "--steps", 2, "--out", "made"),
    }
    counts = {"gpt": 2, "seq2seq": 2, "vit": 2, "dit": 4}
    for name, words in given.items():
        path = run if name == "gpt" else request.getfixturevalue(f"{name}_run")
        shown = type_in("sample", path, "--json", *words)
        found = json.loads(shown.out)
        assert shown.out.count("\n") == 1
        assert found.keys() == {"results", "files"}
        assert [set(row) for row in found["results"]] == [ROWS[name]] * counts.get(name, 1), name
        assert all((tmp_path / file).is_file() for file in found["files"])
        assert len(found["files"]) == {"captioner": 1, "dit": 2}.get(name, 0)
        if "probabilities" in ROWS[name]:
            assert sum(found["results"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        if name in ("gpt", "vit"):  # the same as is printed without it
            plain = type_in("sample", path, *words).out
            texts = [row.get("text") or f"{row['label']} {row['probability']:.4f}" for row in found["results"]]
            assert all(text in plain for text in texts)
        if name == "masked":
            assert len(found["results"][0]["masks"]) == 2


def test_beams_and_a_file_as_json(type_in, seq2seq_run, tmp_path):
    shown = type_in("sample", seq2seq_run, "--source", "abe", "--beams", 3, "--json", "--out", "made.json")
    assert not shown.out
    rows = json.loads((tmp_path / "made.json").read_text())["results"]
    assert [row["source"] for row in rows] == ["abe"] * 3
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    printed = type_in("sample", seq2seq_run, "--source", "abe", "--beams", 3).out.splitlines()
    assert printed == [f"{row['score']:.4f}  {row['text'] or '(empty)'}" for row in rows]


def test_metrics_without_a_number_are_null(type_in, vit_run, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "pencil.train.tasks.image_classification.ImageClassification.report",
        lambda *given: ({"a": float("nan"), "b": 1.0}, []),
    )
    assert json.loads(type_in("eval", vit_run, "--json").out) == {"a": None, "b": 1.0}


def test_a_stranger_s_folder_trains_with_its_layout_read_out(type_in, light, tmp_path):
    photos(tmp_path / "photos" / "Train")
    photos(tmp_path / "photos" / "Test")
    (tmp_path / "photos" / "Train" / "cat" / "list.csv").write_text("a,b\n")
    shown = type_in("train", "vit", "--data", "photos", "--size", 16, *SMALL).err.replace("\n", " ")
    assert "photos has Train/ to train on and Test/ to evaluate on" in shown
    assert "is no picture by the ending, and not read (list.csv)" in shown
