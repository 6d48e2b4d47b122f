"""The recipe of 2017 in docs/explain/ablations.md: its settings are those of the preset, its rates the formula's, and its run a small one."""

import re

import pytest
import torch

from conftest import call
from pencil import Probe, Seq2Seq, Sinusoidal
from pencil.api.loading import open_run
from pencil.api.run_setup import settings_of
from pencil.api.training_request import TrainingRequest
from pencil.learn.lab import claims
from test_docs import ROOT

ABLATIONS = (ROOT / "docs" / "explain" / "ablations.md").read_text(encoding="utf-8")
PAGE = ABLATIONS[ABLATIONS.index("## The recipe of 2017") :]
(COMMAND,) = re.findall(r"^pencil (train .* --out .*)$", PAGE, re.M)


def test_every_setting_in_the_table_is_the_presets():
    model, train = settings_of(TrainingRequest("seq2seq", None, preset="base"))
    found = re.findall(
        r"`--(model|train)\.(\w+) ([^` ]+)`", PAGE[PAGE.index("## Its parts") : PAGE.index("To see a part")]
    )
    assert len(found) > 15
    for part, name, said in found:
        if (name, said) in {("attention_dropout", "0"), ("ema", "0.999")}:
            continue  # what is not in the recipe
        value = getattr(model if part == "model" else train, name)
        assert said == (str(value).lower() if isinstance(value, bool) else str(value)), name


def test_the_hidden_width_follows_the_width():
    for preset, hidden in (("base", 2048), ("big", 4096)):
        assert settings_of(TrainingRequest("seq2seq", None, preset=preset))[0].mlp_width == hidden
    assert settings_of(TrainingRequest("seq2seq", None, preset="base", model={"width": 64}))[0].mlp_width == 256


def test_the_rates_of_the_page_are_the_formulas():
    rows = re.findall(r"^\|[^|]*\| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(rows) == 4
    for width, warmup, peak in [[float(cell.replace(",", "")) for cell in row] for row in rows]:
        steps = range(1, int(3 * warmup))
        highest = max(width**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in steps)
        assert peak == pytest.approx(highest, rel=2e-3)


def test_every_claim_it_names_is_in_the_lab():
    named = set(re.findall(r"`([a-z-]+)`: ", PAGE[PAGE.index("## Its parts") :]))
    assert len(named) >= 10
    assert named <= set(claims())


def words_of_the_page(**changed):
    words = COMMAND.split()
    for name, value in changed.items():
        words[words.index(f"--train.{name}") + 1] = str(value)
    return words


@pytest.mark.long
def test_its_command_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = call(*words_of_the_page(steps=3, batch=3, warmup=2), "--train.eval_batches", "1", "--train.device", "cpu")
    assert "learning rate 0.0884 at its peak" in said.stdout + said.stderr
    assert open_run(tmp_path / "runs" / "recipe-2017").config["train"]["lr"] == pytest.approx((64 * 2) ** -0.5)


def test_its_command_is_the_papers_model_at_that_width():
    words = words_of_the_page()
    given = {word: words[i + 1] for i, word in enumerate(words) if word.startswith("--")}
    settings = {part: {name[8:]: int(value) for name, value in given.items() if name.startswith(f"--{part}.")}
                for part in ("model", "train")}  # fmt: skip
    model, train = settings_of(
        TrainingRequest(
            "seq2seq", given["--data"], preset=given["--preset"], model=settings["model"], train=settings["train"]
        )
    )
    assert train.lr == pytest.approx((64 * 400) ** -0.5)
    assert (train.beta1, train.beta2, train.eps, train.label_smoothing) == (0.9, 0.98, 1e-9, 0.1)
    assert (model.width, model.heads, model.dropout, model.norm_position) == (64, 8, 0.1, "post")
    assert model.mlp_width == 256
    made = Seq2Seq(model).eval()
    # tokens ×√d plus the sinusoid are what the first block reads, and the token table is the output matrix too
    probe, tokens = Probe("input", "logits", "blocks.1.post"), torch.tensor([[1, 5, 2]])
    made(tokens, torch.tensor([[3, 4]]), probe=probe)
    expected = made.tokens.weight[tokens] * 8 + Sinusoidal(64).embedding(torch.arange(3)[None, :, None]).float()
    torch.testing.assert_close(probe.values["input"], expected)
    torch.testing.assert_close(probe.values["logits"], probe.values["blocks.1.post"] @ made.tokens.weight.T)
