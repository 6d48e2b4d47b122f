"""The mean of the last checkpoints as a run of its own, against a plain mean of their files."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pencil.api.average import _shapes
from pencil.api.loading import load, load_model, open_run
from pencil.config import UserError
from pencil.families.family import family
from pencil.train.loop import checkpoint

SMALL = (
    "--model.width 12 --model.depth 1 --model.heads 2 --model.context 11 --train.batch 3 --train.eval_batches 1".split()
)
KEPT = "--train.steps 7 --train.save_every 2 --train.eval_every 7 --train.keep 3".split()


@pytest.fixture(params=["0", "0.9"])
def trained(request, type_in, notes, tmp_path):
    type_in("train", "gpt", "--data", notes, "--out", "kept", *SMALL, *KEPT, "--train.ema", request.param)
    return tmp_path / "kept"


def test_the_weights_are_the_mean_of_the_checkpoints(trained, type_in):
    steps = checkpoint.saved_steps(trained)
    assert steps == [4, 6, 7]
    files = [load_file(checkpoint.folder_of(trained, step) / "shard-00000.safetensors") for step in steps[-2:]]
    printed = type_in("average", trained, "--last", "2", "--out", "mean").out
    mean = load_file(trained.parent / "mean" / "model.safetensors")
    with_ema = any(name.startswith("ema.") for name in files[0])
    for name, tensor in mean.items():
        which = f"ema.{name}" if f"ema.{name}" in files[0] else f"model.{name}"
        assert which.startswith("ema.") == with_ema
        wanted = np.mean([file[which].astype(np.float64) for file in files], 0).astype(np.float32)
        np.testing.assert_array_equal(tensor, wanted)
    assert not all(np.array_equal(mean[name], load_file(trained / "model.safetensors")[name]) for name in mean)
    # opened, evaluated and sampled as any run
    opened = load(trained.parent / "mean")
    assert opened.run.weights_facts["weights"] == "average"
    loss = float(opened.run.weights_facts["val_loss"])
    assert f"val_loss {loss:.6f} (" in printed
    assert np.isfinite(loss)
    assert type_in("sample", "mean", "--prompt", "line", "--max-new-tokens", "3").out.startswith("line")
    assert "val_loss" in type_in("eval", "mean").out
    assert " whole" in type_in("verify", "mean").err
    card = (trained.parent / "mean" / "README.md").read_text()
    assert "the mean of those of steps 6, 7" in card
    assert "pencil resume" not in card


@pytest.fixture
def three(type_in, notes, tmp_path):
    type_in("train", "gpt", "--data", notes, "--out", "kept", *SMALL, *KEPT)
    return tmp_path / "kept"


def test_what_cannot_be_averaged(three, fails, type_in):
    said = fails("average", three)
    assert "has 3 checkpoints, of steps 4, 6, 7" in said
    assert "--train.keep 5" in said
    assert "at least 2" in fails("average", three, "--last", "1")
    type_in("average", three, "--last", "3")
    assert "exists already" in fails("average", three, "--last", "3")
    assert "could be replaced" in fails("average", three, "--last", "3", "--out", three, "--force")
    assert "average of checkpoints" in fails("resume", "kept-average")
    assert "an average itself" in fails("average", "kept-average", "--last", "2", "--out", "more")
    before = {path.name for path in three.parent.iterdir()}
    type_in("average", three, "--last", "2", "--force")
    assert {path.name for path in three.parent.iterdir()} == before
    assert open_run("kept-average").config["average"]["steps"] == [6, 7]


def test_checkpoints_of_other_settings_and_whole_numbers_are_refused(three):
    run = open_run(three)
    every = [checkpoint.read(three, step) for step in (4, 6, 7)]
    record = family("gpt")
    assert set(_shapes(record, run, every)) == set(load_model(run).state_dict())
    other = json.loads(json.dumps(every[0].state))
    other["of"]["model"]["rope_theta"] = 31.0
    with pytest.raises(UserError, match=r"steps 4 and 7 .* different settings \(\[model\]\)"):
        _shapes(record, run, [every[0]._replace(state=other), *every[1:]])

    def counting(config):
        model = record.create(config)
        model.register_buffer("seen", torch.zeros(3, dtype=torch.long))
        return model

    class Counting:
        read_config, create = staticmethod(record.read_config), staticmethod(counting)

    with_buffer = [one._replace(tensors=Shaped({**one.tensors, "model.seen": torch.zeros(3)})) for one in every]
    with pytest.raises(UserError, match="seen of .* holds whole numbers, which have no mean"):
        _shapes(Counting, run, with_buffer)


class Shaped(dict):
    @property
    def shapes(self):
        return {name: tuple(tensor.shape) for name, tensor in self.items()}
