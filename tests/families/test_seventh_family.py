"""A seventh family is one file and one line: every verb works on it, or refuses in one sentence."""

import json

import pytest
import torch

from families.toy import FAMILY, ParityConfig
from pencil import families
from pencil.api import loading
from pencil.cli.main import main


@pytest.fixture(scope="module", autouse=True)
def seventh():
    families.register(FAMILY)
    yield
    del families.FAMILIES[FAMILY.name]


@pytest.fixture(scope="module")
def run(seventh, tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "run"
    assert call("train", FAMILY.name, "--out", path, "--model.width", "13", "--train.save_every", "5") == 0
    return path


def call(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def refused(capsys, *words) -> str:
    capsys.readouterr()
    assert call(*words) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert line.startswith("pencil: ")
    return line


def test_it_trains_to_a_run_that_loads(run):
    model, tokenizer, opened = loading.load(run)
    assert tokenizer is None
    assert opened.family == "parity"
    assert model.config.width == 13


def test_it_resumes_to_the_same_bits(run, tmp_path):
    half, whole = tmp_path / "half", loading.load(run).model
    words = ("--model.width", "13", "--train.save_every", "5")
    assert call("train", FAMILY.name, "--out", half, *words, "--train.steps", "10", "--train.schedule", "constant") == 0
    straight = tmp_path / "straight"
    assert call("train", FAMILY.name, "--out", straight, *words, "--train.schedule", "constant",
                "--train.warmup", "2") == 0  # fmt: skip
    assert call("resume", half, "--train.steps", "20") == 0
    one, other = loading.load(half).model.state_dict(), loading.load(straight).model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["head.weight"], whole.head.weight)


def test_it_samples(run, capsys):
    capsys.readouterr()
    assert call("sample", run, "--list", "1,2,3,4,5") == 0
    assert capsys.readouterr().out.strip() in ("odd", "even")


def test_help_lists_just_its_options(run, capsys):
    capsys.readouterr()
    assert call("sample", run, "--help") == 0
    shown = capsys.readouterr().out
    assert "--list" in shown
    assert "--prompt" not in shown
    assert "--image" not in shown
    assert call("train", FAMILY.name, "--help") == 0
    shown = capsys.readouterr().out
    assert "--data" in shown
    assert "integers" in shown
    assert "--tokenizer" not in shown
    assert "--vae" not in shown


def test_its_settings_are_listed(run, capsys):
    capsys.readouterr()
    assert call("train", FAMILY.name, "--settings") == 0
    shown = capsys.readouterr().out
    assert "numbers = 7" in shown
    assert "mixup" not in shown


def test_it_is_evaluated(run, capsys):
    capsys.readouterr()
    assert call("eval", run, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"val_loss", "accuracy"}


def test_it_is_traced_and_any_number_unfolds(run, capsys, tmp_path):
    capsys.readouterr()
    assert call("why", run, "sum[0,3]", "--list", "1,2,3,4,5") == 0
    assert "✓" in capsys.readouterr().out
    assert call("trace", run, "--list", "1,2,3,4,5", "--html", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_its_shapes_and_costs_are_shown(run, capsys):
    capsys.readouterr()
    assert call("shapes", "parity:nano") == 0
    assert "Σ E[t]" in capsys.readouterr().out
    assert call("cost", "parity:wide", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == 7 * 23 + 2 * 23 + 2
    assert call("cost", "parity:wide") == 0
    assert "n 5 tokens" in capsys.readouterr().out


def test_its_cost_is_shown_though_its_inputs_are_no_tokens(capsys, monkeypatch):
    monkeypatch.setattr(ParityConfig, "sizes", property(lambda config: {"D": config.width, "K": 2}))
    assert call("cost", "parity:wide") == 0
    assert "n 1 token " in capsys.readouterr().out


def test_what_it_cannot_do_is_refused_in_a_sentence(run, capsys):
    assert "parity" in refused(capsys, "heads", run)
    assert "--prompt" in refused(capsys, "sample", run, "--prompt", "x")
    assert "--list is missing" in refused(capsys, "sample", run)
    assert "train.mixup has no effect on a parity" in refused(
        capsys, "train", FAMILY.name, "--train.mixup", "0.5", "--out", run.parent / "other"
    )
    assert "train.flip has no effect on a parity" in refused(capsys, "resume", run, "--train.flip", "true")
    assert "model.width must be at least 1" in refused(
        capsys, "train", FAMILY.name, "--model.width", "0", "--out", run.parent / "other"
    )
