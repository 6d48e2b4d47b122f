"""A model with NaN in its weights is refused by every verb that computes with it, by the name of the tensor."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pencil
from conftest import call, unchecked
from pencil.config import UserError
from pencil.explore.session import Session
from pencil.runs.run import Run

OLD = Path(__file__).parents[1] / "runs-0.6"
SAID = "the weights are not finite: blocks.0.mlp.up.weight holds NaN or infinity"
SAMPLES = {
    "gpt": ["--prompt", "a", "--max-new-tokens", "3"],
    "captioner": ["--image", "one.png"],
    "dit": ["--prompt", "a", "--steps", "2", "--count", "1", "--out", "made.png"],
    "reader": ["--prompt", "a [mask]"],
    "seq2seq": ["--source", "a"],
    "vit": ["--image", "one.png"],
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run of each family with one NaN."""
    folder = tmp_path_factory.mktemp("broken")
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(folder / "one.png")
    for family in SAMPLES:
        shutil.copytree(OLD / family, folder / family)
        with unchecked():
            model = pencil.load(folder / family).model
        name = "encoder.blocks.0.mlp.up.weight" if family == "reader" else "blocks.0.mlp.up.weight"
        with torch.no_grad():
            model.get_parameter(name)[0, 0] = torch.nan
        Run.open(folder / family).write_weights(model, {"step": 4})
    return folder


@pytest.mark.parametrize("family", SAMPLES)
def test_samples_are_refused(broken, family, monkeypatch):
    monkeypatch.chdir(broken)
    done = call("sample", family, *SAMPLES[family], "--device", "cpu", code=2)
    assert "the weights are not finite: " in done.stderr
    assert "blocks.0.mlp.up.weight holds NaN or infinity" in done.stderr
    assert done.stdout.strip() in ("", "a")  # a prompt is shown at once


@pytest.mark.parametrize("family", SAMPLES)
def test_weights_are_refused_before_they_are_rounded(broken, family):
    """As int8 NaN would be some whole number, and the output finite."""
    with unchecked(), pytest.raises(UserError, match=r"blocks.0.mlp.up.weight holds NaN or infinity"):
        pencil.load(broken / family, dtype="int8")


def test_beams_are_refused(broken):
    done = call("sample", broken / "seq2seq", "--source", "a", "--beams", 3, "--device", "cpu", code=2)
    assert SAID in done.stderr


def test_eval_heads_export_and_explore_refuse(broken, tmp_path):
    assert SAID in call("eval", broken / "vit", "--device", "cpu", code=2).stderr
    assert SAID in call("heads", broken / "gpt", "--device", "cpu", code=2).stderr
    assert not (broken / "gpt" / "heads.png").exists()
    assert SAID in call("export", broken / "gpt", "--to", "hf", "--out", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=SAID):
        Session.open(broken / "gpt")


def test_training_from_such_weights_names_them_instead_of_the_learning_rate(broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--train.steps", 2, "--train.batch", 2, "--train.device", "cpu", "--name", "on"]
    said = call("train", "vit", "--from", broken / "vit", "--data", "digits", *words, code=2).stderr
    assert SAID in said
    assert "--train.lr" not in said
