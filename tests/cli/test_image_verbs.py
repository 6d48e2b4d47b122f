"""The verbs as a user types them, on images."""

import json
import re
import tomllib

import numpy as np
import pytest

from albums import album, cut_short, idx, photos, picture
from commands import SMALL, is_png, metrics
from pencil.api.loading import load
from pencil.data.images.digits import digits
from pencil.train.loop.report import Metrics

FIGURES = {
    "val_loss", "accuracy", "accuracy.low", "accuracy.high", "accuracy.commonest", "accuracy.examples",
    "balanced_accuracy", "macro_f1", "calibration_error",
}  # fmt: skip


@pytest.mark.long
def test_train_evaluate_and_resume_a_vit_on_digits(type_in, tmp_path, request):
    shown = type_in("train", "vit", "--data", "digits", *SMALL)
    assert "the run is in runs/digits-vit" in shown.err
    assert "best" not in shown.err  # weights are not selected on a test set
    run = tmp_path / "runs" / "digits-vit"
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["run"]["classes"] == [str(d) for d in range(10)]
    assert config["model"]["image_size"] == [8, 8]
    assert config["model"]["patch"] == [2, 2]
    assert not (run / "tokenizer.json").exists()
    assert is_png(run / "samples" / "step-00000003.png")
    assert is_png(run / "loss.png")
    shown = type_in("eval", "runs/digits-vit")
    found = metrics(shown.out)
    of_accuracy = {f"accuracy.{name}" for name in ("low", "high", "commonest", "examples")}
    assert set(found) == {"val_loss", "accuracy", "balanced_accuracy", "macro_f1", "calibration_error"} | of_accuracy
    _, labels, held = digits()
    share = np.bincount(labels[held]) / held.sum()
    for name in ("confusion.png", "calibration.png", "mistakes.png"):
        assert is_png(run / "eval" / name)
        assert f"runs/digits-vit/eval/{name}" in shown.err
    again = json.loads(type_in("eval", "runs/digits-vit", "--json", "--out", "seen").out)
    assert {name: round(again[name], 6) for name in found} == found
    assert again["accuracy"] == pytest.approx(sum(share[d] * again[f"recall.{d}"] for d in range(10)))
    assert is_png(tmp_path / "seen" / "confusion.png")
    request.getfixturevalue("light")
    assert "Trained 5 steps" in type_in("resume", "runs/digits-vit", "--train.steps", 5).err
    assert "runs/digits-vit-2" in type_in("train", "vit", *SMALL).err


def test_the_model_cards_of_image_runs(vit_run, captioner_run):
    for run, family, data, headline in (
        (vit_run, "vit", "digits", "accuracy"), (captioner_run, "captioner", "scenes", "exact_match")
    ):  # fmt: skip
        card = (run / "README.md").read_text()
        model = load(run).model
        assert f"A {family} of {sum(p.numel() for p in model.parameters()):,} parameters" in card
        assert f"on `{data}`" in card
        assert re.search(rf"\| {headline} \| [01]\.\d{{4}} \|", card)
        assert "a test set does not select weights" in card
        assert f"pencil sample {run} --image picture.png" in card
        assert ("tokenizer: bpe" in card) == (family == "captioner")


def test_a_vit_classifies_images(type_in, vit_run, digit, tmp_path):
    lines = metrics(type_in("sample", vit_run, "--image", digit).out)
    assert len(lines) == 5
    assert set(lines) <= {str(d) for d in range(10)}
    assert 0.5 - 1e-3 <= sum(lines.values()) <= 1 + 1e-3  # the five most likely of ten
    assert list(lines.values()) == sorted(lines.values(), reverse=True)
    picture(tmp_path / "odd one.jpg", size=(31, 17))
    two = type_in("sample", vit_run, "--image", digit, "--image", tmp_path / "odd one.jpg").out.splitlines()
    assert two[0] == str(digit)
    assert two[6] == str(tmp_path / "odd one.jpg")
    assert metrics("\n".join(two[1:6])) == pytest.approx(lines, abs=2e-4)
    shown = type_in("sample", vit_run, "--image", digit, "--attention", "attention.png", "--out", "names.txt")
    assert not shown.out
    assert metrics((tmp_path / "names.txt").read_text()) == lines
    assert is_png(tmp_path / "attention.png")


def test_a_captioner_describes_images(type_in, captioner_run, digit, tmp_path):
    text = type_in("sample", captioner_run, "--image", digit, "--max-new-tokens", 9).out
    assert text.endswith("\n")
    assert (
        text == type_in("sample", captioner_run, "--image", digit, "--max-new-tokens", 9, "--seed", 3).out
    )  # greedy unless --temperature is given
    begun = type_in("sample", captioner_run, "--image", digit, "--prompt", "a two", "--max-new-tokens", 5).out
    assert begun.startswith("a two")
    type_in(
        "sample",
        captioner_run,
        "--image",
        digit,
        "--max-new-tokens",
        9,
        "--out",
        "words.txt",
        "--attention",
        "attention.png",
    )
    assert (tmp_path / "words.txt").read_text() == text
    assert is_png(tmp_path / "attention.png")
    other = picture(tmp_path / "other.png", seed=4, size=(40, 20))
    both = type_in("sample", captioner_run, "--image", digit, "--image", other, "--max-new-tokens", 9).out
    assert both.startswith(f"{digit}: {text.rstrip()}")
    assert f"\n{other}: " in both
    many = type_in(
        "sample", captioner_run, "--image", digit, "--count", 3, "--temperature", 2, "--max-new-tokens", 9
    ).out
    assert len(set(many.splitlines())) == 3


def test_evaluate_a_captioner_on_scenes(type_in, captioner_run, tmp_path):
    shown = type_in("eval", captioner_run, "--out", "seen")
    found = metrics(shown.out)
    assert set(found) == {"val_loss", "exact_match", "exact_match_familiar", "chrf", "bleu", "token_accuracy"}
    assert 0 <= found["exact_match"] <= 1
    for name in ("mistakes.png", "attention-1.png", "attention-3.png"):
        assert is_png(tmp_path / "seen" / name)
    assert not (captioner_run / "eval").exists()


@pytest.mark.usefixtures("light")
def test_a_vit_on_a_folder_of_classes(type_in, tmp_path):
    photos(tmp_path / "photos", {"cat": 8, "wild dog": 6, "a[b]": 4})
    size = ["--model.image_size", "16", "--model.patch", "8"]
    shown = type_in("train", "vit", "--data", "photos/", *SMALL, *size)
    assert "runs/photos-vit" in shown.err
    assert re.search(r"; kept step \d, the lowest val_loss: accuracy \d\.\d{4}, val_loss", shown.err)
    assert re.search(r"95 % interval .* always their commonest class, .*, would have", shown.err)
    config = tomllib.loads((tmp_path / "runs" / "photos-vit" / "config.toml").read_text())
    assert config["run"]["classes"] == ["a[b]", "cat", "wild dog"]
    assert config["model"]["classes"] == 3
    assert config["model"]["channels"] == 3
    assert config["train"]["flip"] is True
    evaluated = type_in("eval", "runs/photos-vit").out
    assert set(metrics(evaluated)) == FIGURES
    assert [line.split()[:2] for line in evaluated.splitlines()[-3:]] == [
        ["a[b]", "1"],
        ["cat", "1"],
        ["wild_dog", "1"],
    ]
    names = metrics(type_in("sample", "runs/photos-vit", "--image", "photos/cat/0.png").out)
    assert set(names) == {"cat", "wild dog", "a[b]"}
    assert sum(names.values()) == pytest.approx(1, abs=2e-4)
    assert "Trained 4 steps" in type_in("resume", "runs/photos-vit", "--train.steps", 4).err


@pytest.mark.usefixtures("light")
def test_a_vit_on_idx_files(type_in, tmp_path):
    idx(tmp_path / "mine", prefix="leaves-", packed=True)
    shown = type_in("train", "vit", "--data", "mine", *SMALL)
    assert "runs/leaves-vit" in shown.err
    config = tomllib.loads((tmp_path / "runs" / "leaves-vit" / "config.toml").read_text())
    assert config["model"]["image_size"] == [6, 9]
    assert config["model"]["classes"] == 3
    found = json.loads(type_in("eval", "runs/leaves-vit", "--json").out)
    assert set(found) >= FIGURES
    assert [found[f"held_out.{i}"] for i in range(3)] == [4, 4, 3]
    assert {"recall.0", "recall.1", "recall.2"} <= set(found)


@pytest.mark.parametrize(
    "tokenizer", ["bpe", pytest.param("char", marks=pytest.mark.long), pytest.param("byte", marks=pytest.mark.long)]
)
def test_a_captioner_on_a_folder_with_metadata(type_in, tmp_path, tokenizer):
    album(tmp_path / "album")
    size = ["--model.image_size", "16", "--tokenizer", tokenizer, *(["--vocab", 290] if tokenizer == "bpe" else [])]
    shown = type_in("train", "captioner", "--data", "album", *SMALL, *size)
    assert "runs/album-captioner" in shown.err
    config = tomllib.loads((tmp_path / "runs" / "album-captioner" / "config.toml").read_text())
    assert "flip" not in config["train"]  # a caption says left and right
    assert config["run"]["tokenizer"] == tokenizer
    assert set(metrics(type_in("eval", "runs/album-captioner").out)) == {
        "val_loss", "exact_match", "chrf", "bleu", "token_accuracy"
    }  # fmt: skip
    assert is_png(tmp_path / "runs" / "album-captioner" / "eval" / "attention-1.png")
    begun = type_in(
        "sample", "runs/album-captioner", "--image", "album/p00.png", "--prompt", "a bar", "--max-new-tokens", 4
    ).out
    assert begun.startswith("a bar")
    assert "Trained 4 steps" in type_in("resume", "runs/album-captioner", "--train.steps", 4).err
    assert [line["step"] for line in Metrics.read(tmp_path / "runs" / "album-captioner") if "val_loss" in line] == [
        0,
        3,
        4,
    ]


@pytest.mark.usefixtures("light")
def test_broken_images_are_named_and_counted_and_training_continues(type_in, tmp_path):
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "fake.png").write_text("words")
    (tmp_path / "photos" / "dog" / "none.gif").touch()
    cut = [cut_short(tmp_path / "photos" / name) for name in ("cat/a.jpg", "cat/b.jpg", "dog/a.jpg", "dog/b.jpg")]
    shown = type_in("train", "vit", "--data", "photos", *SMALL, "--model.image_size", "16", "--train.batch", 19)
    assert re.search(r"^skipped photos/cat/fake\.png: not a picture", shown.err, re.M)
    assert re.search(r"^skipped photos/dog/none\.gif: empty \(0 bytes\)", shown.err, re.M)
    for path in cut:  # namesakes in other folders are others
        name = re.escape(str(path.relative_to(tmp_path)))
        assert len(re.findall(rf"^skipped {name}: .*truncated", shown.err, re.M)) == 1
    assert re.search(r"^6 files of the data could not be used\.$", shown.err, re.M)
    assert "Trained 3 steps" in shown.err
    assert "recall.dog" in json.loads(type_in("eval", "runs/photos-vit", "--json").out)


@pytest.mark.usefixtures("light")
def test_an_image_run_is_used_from_any_folder(type_in, tmp_path, monkeypatch):
    photos(tmp_path / "photos")
    type_in("train", "vit", "--data", "photos", *SMALL, "--model.image_size", "16")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "accuracy" in type_in("eval", "../runs/photos-vit").out


def test_settings_of_image_families_are_listed(type_in):
    shown = tomllib.loads(type_in("train", "vit", "--preset", "b/16", "--settings").out)
    assert shown["model"]["image_size"] == [224, 224]
    assert shown["train"]["batch"] == 128
    assert "context" in tomllib.loads(type_in("train", "captioner", "--settings").out)["model"]
