"""Checkpoints found and compared: how a broken manifest is named, and settings as older versions recorded them."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from pencil.families import configure, create, family
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.checkpointer import _has_dropout, differences_of_machine
from pencil.train.loop.resume_changes import Change, differences
from pencil.train.settings import TrainConfig


@pytest.mark.parametrize(
    "content", ["{}", "{", '{"step": 3, "files": {}}', '{"step": "3", "files": {"state.json": {}}}']
)
def test_a_broken_manifest_is_named_once(tmp_path, content):
    checkpoint.write(tmp_path, 2, {"a": torch.ones(3)}, {})
    folder = shutil.copytree(checkpoint.folder_of(tmp_path, 2), checkpoint.folder_of(tmp_path, 3))
    (folder / "manifest.json").write_text(content)
    found, (fault,) = checkpoint.find(tmp_path)
    assert [one.step for one in found] == [2]
    assert str(fault).count(str(folder)) == 1
    if content == "{":
        assert str(fault).startswith(f"{folder / 'manifest.json'} is not JSON")
    else:
        assert str(fault) == f"{folder / 'manifest.json'} is damaged"


def old_state(run, **changes):
    """What a checkpoint recorded before it had the training settings."""
    facts = run.config["run"]
    return {"of": {"family": facts["family"], "model": {**run.config["model"], **changes}, "data": facts["data_hash"]}}


def test_settings_of_an_older_checkpoint_are_compared_as_they_are_before_they_are_upgraded(vit_run):
    """The dropout of an older vit had another meaning, and is only read so where the settings are not the run's own."""
    run, record = Run.open(vit_run), family("vit")
    for name in ("key_dropout", "attention_dropout"):
        run.config["model"].pop(name, None)
    assert run.config["model"]["dropout"] > 0
    assert differences(old_state(run), run, record) == []
    assert Change("model.depth", 7, 1) in differences(old_state(run, depth=7), run, record)


def test_a_setting_that_was_not_recorded_had_its_default(vit_run):
    run, record = Run.open(vit_run), family("vit")
    of = {"run": run.config["run"], "model": run.config["model"], "train": dict(run.config["train"]), "tokenizer": None}
    assert differences({"of": of}, run, record) == []
    del of["train"]["eps"]
    assert differences({"of": of}, run, record) == []
    of["train"]["eps"] = 1e-6
    assert differences({"of": of}, run, record) == [Change("train.eps", 1e-6, 1e-8)]


@pytest.mark.parametrize("dropout", [0.0, 0.13])
def test_dropout_is_found_in_models_of_both_kinds(dropout):
    for model in (
        create("gpt", configure("gpt", width=22, heads=11, depth=1, dropout=dropout)),
        torch.nn.Dropout(dropout),
    ):
        assert _has_dropout(torch.nn.Sequential(model)) == (dropout > 0)


@pytest.mark.parametrize("dropout", [0.0, 0.13])
def test_another_number_of_processes_says_what_it_changes(dropout):
    """With dropout the random numbers differ, without it only the order of sums; an exact training has neither."""
    model = create("gpt", configure("gpt", width=22, heads=11, depth=1, dropout=dropout))
    state = {"threads": torch.get_num_threads(), "device": "cpu", "processes": 3}

    def notes(**settings):
        trained = SimpleNamespace(config=TrainConfig(**settings))
        return differences_of_machine(SimpleNamespace(state=trained, model=model, device=torch.device("cpu")), state)

    (note,) = notes()
    assert note.startswith("processes was 3 and is 1 now: ")
    assert ("dropout draws other numbers" in note and "--train.exact true" in note) == (dropout > 0)
    assert ("last bits" in note) == (dropout == 0)
    assert notes(exact=True) == []
