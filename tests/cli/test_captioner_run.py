"""A captioner with one delimiter that has a position, and both projections: trained, resumed and looked into."""

import shutil
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

from commands import trained
from pencil.api import loading

VARIANT = ["--model.delimiters", "end", "--model.delimiter_positions", "true", "--model.text_width", "7",
           "--model.image_width", "31", "--model.image_positions", "learned"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("variant"), "train", "captioner", "--data", "scenes", *VARIANT)


@pytest.fixture
def scene(tmp_path):
    path = tmp_path / "scene.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (16, 16), np.uint8)).save(path)
    return path


def test_a_run_keeps_its_settings_and_goes_on(type_in, run, light):
    table = tomllib.loads((run / "config.toml").read_text())["model"]
    assert (table["delimiters"], table["delimiter_positions"]) == ("end", True)
    assert (table["text_width"], table["image_width"]) == (7, 31)
    shutil.copytree(run, "copy")
    type_in("resume", "copy", "--train.steps", "4")
    before, after = (loading.load(path).model.state_dict() for path in (run, "copy"))
    assert after["marks"].shape == (1, 24)
    assert after["image_positions.table"].shape == (17, 24)  # the patches, and the delimiter after them
    assert after["text_project.map.weight"].shape == (24, 7)
    assert after["tokens.weight"].shape[1] == 7
    assert all(not torch.equal(before[name], after[name]) for name in after)


def test_its_verbs_work(type_in, run, scene):
    assert type_in("sample", run, "--image", scene, "--max-new-tokens", 3).out
    shown = type_in("show", run, "image_positions.embedding", "--input", scene, "--text", "a two").out
    assert "[/IMG]" in shown
    assert "[IMG]" not in shown
    assert "text_project.back" in type_in("shapes", run).out
    assert "embeddings" in type_in("cost", run).out
