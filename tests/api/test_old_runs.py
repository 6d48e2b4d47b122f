"""Runs made by 0.6 still open: its settings, its tensors and its checkpoints are read under today's names.

tests/runs-0.6 was written by Pencil 0.6 itself, with old names for settings that have new ones; metrics.json is what
0.6 itself measured on two batches.
"""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from pencil import families
from pencil.api import loading
from pencil.api.run_data import task_of
from pencil.config import UserError, build
from pencil.runs.run import Run
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.tasks.diffusion import Diffusion

OLD = Path(__file__).parents[1] / "runs-0.6"
METRICS = json.loads((OLD / "metrics.json").read_text())
EXPECTED = {
    "gpt": dict(rope_theta=500.0, rope_fraction=0.5, tie_embeddings=False, dropout=0.1, attention_dropout=None),
    "vit": dict(positions="sinusoidal", dropout=0.1, attention_dropout=0.0, key_dropout=0.1),
    "captioner": dict(image_positions="learned", type_embeddings=True),
    "seq2seq": dict(norm_position="post", scale_embeddings=True),
    "reader": dict(token_types=2, positions="shaw", max_distance=5),
    "dit": dict(noise_schedule="linear", prediction="v", learned_variance=True, text_encoder_depth=1,
                downscale_freq_shift=True, positions="sinusoidal"),
}  # fmt: skip
TRAINING = {
    "vit": dict(final_lr_fraction=0.1, augment_ops=1),
    "seq2seq": dict(schedule="inverse-sqrt"),
    "reader": dict(mask_fraction=0.3, word_dropout=None),
}


@pytest.fixture
def old(request, tmp_path):
    """A copy to write into."""
    path = tmp_path / request.param
    shutil.copytree(OLD / request.param, path)
    return path


def settings(run: Run) -> TrainConfig:
    return build(TrainConfig, {**run.config["train"], "device": "cpu"}, "train.")


def reopened(path: Path):
    """The run and its task; Python's own documentation, which some were trained on, differs between versions."""
    run = loading.open_run(path)
    try:
        return run, task_of(run, settings(run))
    except UserError as error:
        if "pydoc has changed" not in str(error):
            raise
        pytest.skip("this Python's documentation is another text")


@pytest.mark.parametrize("name", EXPECTED)
def test_old_settings_are_read_under_their_new_names(name):
    run = loading.open_run(OLD / name)
    config = families.family(name).read_config(run.config["model"])
    assert {key: getattr(config, key) for key in EXPECTED[name]} == EXPECTED[name]
    train = build(TrainConfig, run.config["train"], "train.")
    wanted = {"final_lr_fraction": 0.1} | TRAINING.get(name, {})
    assert {key: getattr(train, key) for key in wanted} == wanted


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_measures_as_it_did(name, monkeypatch):
    def as_0_6(self, keys, like):  # which drew the noise of all batches in turn
        return torch.randint(len(self.process), (len(like),)), torch.randn_like(like), torch.zeros(len(like))

    monkeypatch.setattr(Diffusion, "noise", as_0_6)
    run, task = reopened(OLD / name)
    torch.manual_seed(0)
    found = task.evaluate(loading.load_model(run), 2)
    assert found.keys() >= METRICS[name].keys()  # later versions may measure more
    for key, value in METRICS[name].items():
        assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("old", EXPECTED, indirect=True)
def test_an_old_run_goes_on_from_its_checkpoint(old):
    run, task = reopened(old)
    config = build(TrainConfig, {**run.config["train"], "steps": 6, "device": "cpu"}, "train.")
    trainer = Trainer(task, run, config)
    trainer.restore()
    assert trainer.step == 4
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    moved = [name for name, state in trainer.optimizers["adamw"].state.items() if state]
    assert moved, "the optimizer's moments came along"
    assert trainer.train().finished
    assert any(not torch.equal(before[name], p) for name, p in trainer.model.named_parameters())
    # from here on it is a run of this version
    table = tomllib.loads((old / "config.toml").read_text())
    assert table["run"]["pencil"] == "0.6.0"
    assert table["run"]["settings"] == "0.7"
    again = loading.open_run(old)
    assert again.config["model"] == run.config["model"]
    loading.load(old)


def test_old_names_are_refused_in_a_run_of_this_version(tmp_path):
    run = loading.open_run(OLD / "gpt")
    table = {**run.config, "model": {**run.config["model"], "rope_base": 500.0}}
    with pytest.raises(UserError, match=r"model\.rope_base is not a setting; did you mean rope_theta\?"):
        families.create("gpt", table["model"])
