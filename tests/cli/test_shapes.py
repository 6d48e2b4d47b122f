"""`pencil shapes` and `pencil cost` of a preset with other settings: the model that `pencil train` would make of them."""

import json
import re
from pathlib import Path

import pytest

from pencil.families import configure, family

LISTED = "lists its options"
RUN = Path(__file__).parents[1] / "runs-0.6" / "gpt"


def head(text):
    """The first line of a summary: the model, and its parameters."""
    return text.splitlines()[0]


@pytest.mark.parametrize("what, settings, values", [
    ("gpt:nanogpt", ["--model.heads", "1", "--model.width", "64"], dict(heads=1, width=64)),
    ("gpt:nanogpt", ["--model.heads=2", "--model.kv-heads=1"], dict(heads=2, kv_heads=1)),
    ("vit:nano", ["--model.image_size", "14x21", "--model.patch", "7"], dict(image_size=(14, 21), patch=(7, 7))),
    ("captioner:seed", ["--model.text_width", "7", "--model.delimiters", "true"], dict(text_width=7, delimiters="both")),
    ("dit:nano", ["--model.frames", "3", "--model.attention", "factored", "--model.depth", "2"],
     dict(frames=3, attention="factored", depth=2)),
])  # fmt: skip
def test_any_setting_of_a_preset_can_be_changed(type_in, what, settings, values):
    name, preset = what.split(":")
    count = family(name).parameters(configure(name, preset, **values))
    assert count != family(name).parameters(configure(name, preset))
    shown = type_in("shapes", what, *settings)
    assert f"{count:,} parameters" in head(shown.out)
    assert not shown.err
    named = {key: "×".join(map(str, v)) if isinstance(v, tuple) else v for key, v in values.items()}
    assert head(shown.out).startswith(
        f"{what} with {', '.join(f'{key} {value}' for key, value in named.items())}: {name}"
    )


def test_two_settings_of_a_preset_at_once(type_in, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    shown = type_in("shapes", "gpt:nanogpt", "--model.heads", "1", "--model.width", "64", "--batch", "3").out
    context = configure("gpt", "nanogpt").context
    assert re.search(rf" S .* 3×1×{context}×{context} .*blocks.ℓ.attn.scores", shown)
    assert re.search(rf" X⁰ .* 3×{context}×64 ", shown)


def test_settings_may_come_before_the_model(type_in):
    assert (
        type_in("shapes", "--model.depth", "1", "gpt:nano").out
        == type_in("shapes", "gpt:nano", "--model.depth", "1").out
    )


def test_a_setting_without_effect_is_said(type_in):
    shown = type_in("shapes", "gpt:nanogpt", "--model.rope_theta", "7", "--model.depth", "2")
    assert shown.err == "model.rope_theta 7 changes no shape, formula or parameter of gpt:nanogpt\n"
    assert head(shown.out).startswith("gpt:nanogpt with rope_theta 7.0, depth 2: gpt, ")
    # one that another needs is not called so: without it the other could not be
    assert not type_in("shapes", "gpt:nanogpt", "--model.heads", "5", "--model.width", "65").err


@pytest.mark.parametrize("verb", ["shapes", "cost"])
@pytest.mark.parametrize("words, sentence", [
    (["gpt:nanogpt", "--model.haeds", "1"], "model.haeds is not a setting; did you mean heads?"),
    (["gpt:nanogpt", "--model.preset", "1"], "model.preset is not a setting; "),
    (["gpt:nanogpt", "--model.heads", "5"], "model.heads 5 does not divide model.width"),
    (["gpt:nanogpt", "--model.heads", "one"], "model.heads must be a whole number, not 'one'"),
    (["gpt:nanogpt", "--model.positions", "sincos"], "model.positions must be one of learned, sinusoidal, "),
    (["gpt:nanogpt", "--model.heads"], "--model.heads needs a value"),
    (["gpt:nanogpt", "--data.lr", "1"], "unknown option --data.lr: only --model"),
    (["gpt:nanogpt", "--heads", "1"], "takes no --heads; did you mean --model.heads?"),
    (["gpt", "nanogpt", "--model.heads", "1"], "a family and its preset are one word: use gpt:nanogpt"),
    (["gpt2", "gpt2-xl"], "VERB takes one preset or run at a time, not gpt2 and gpt2-xl"),
    (["--model.heads", "1"], "WHAT is missing; usage: pencil VERB WHAT [OPTIONS] [--model.SETTING VALUE]"),
    (["captioner:seed", "--model.delimiter_positions", "true"], "model.delimiter_positions is of delimiters"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(fails, verb, words, sentence):
    assert sentence.replace("VERB", verb) in fails(verb, *words)


def test_training_changes_no_shape(fails):
    assert "unknown option --train.lr: only --model settings can be changed here" in fails(
        "shapes", "gpt:nanogpt", "--train.lr", "1"
    )


@pytest.mark.parametrize("verb", ["shapes", "cost"])
def test_a_runs_settings_are_its_own(fails, verb):
    assert fails(verb, RUN, "--model.heads", "1") == (
        f"pencil: {RUN} is a run, and its model has the settings it was trained with: leave --model.heads out, or give a "
        "preset"
    )


def test_a_cost_is_of_the_changed_model(type_in):
    found = json.loads(type_in("cost", "gpt:nanogpt", "--model.kv_heads", "1", "--json").out)
    assert found["model"] == "gpt:nanogpt with kv_heads 1"
    assert found["config"]["kv_heads"] == 1
    assert found["parameters"]["total"] == family("gpt").parameters(configure("gpt", "nanogpt", kv_heads=1))


@pytest.mark.parametrize("name", ["gpt", "captioner"])
def test_the_presets_of_the_notation_have_one_head_and_an_mlp_of_4d(type_in, monkeypatch, name):
    """Document 001: a single head, so that d_k = d_v = D, d_ff = 4D, learned positions and biases."""
    monkeypatch.setenv("COLUMNS", "160")
    shown, c = type_in("shapes", f"{name}:seed").out, configure(name, "seed")
    tokens = c.sizes["T"]
    assert re.search(rf" Q +X̃ W_Q \+ b_Q +B h T d +1×1×{tokens}×{c.width} ", shown)
    assert re.search(rf" G +GELU\(U\) +B T F +1×{tokens}×{4 * c.width} ", shown)
    assert re.search(rf" A +softmax\(S\) +B h T S +1×1×{tokens}×{tokens} ", shown)
