"""Every family has its own options: --help lists exactly those, --settings every setting, others are refused by name."""

import dataclasses
import re
import tomllib
from typing import Literal, get_args, get_origin

import pytest

from pencil.api.run_setup import settings_of
from pencil.api.training_request import FROM_DATA, TrainingRequest
from pencil.config import build, setting_types
from pencil.families import FAMILIES, family
from pencil.train.settings import OPTIONAL, TrainConfig

RUNS = {"gpt": "run", "vit": "vit_run", "captioner": "captioner_run", "seq2seq": "seq2seq_run", "reader": "masked_run",
        "dit": "dit_run"}  # fmt: skip

TOKENIZER = {"--tokenizer": "depends on the data", "--vocab": "4096"}
TRAIN = {
    "gpt": {"--data": "pydoc", **TOKENIZER},
    "vit": {"--data": "digits", "--size": ""},
    "captioner": {"--data": "scenes", "--size": "", **TOKENIZER},
    "seq2seq": {"--data": "dates", **TOKENIZER},
    "reader": {"--data": "pydoc", **TOKENIZER},
    "dit": {"--data": "digits", "--size": "", **TOKENIZER, "--vae": ""},
}
DECODING = {"--max-new-tokens": "256", "--count": "1", "--temperature": "0", "--top-k": "", "--top-p": "", "--min-p": "",
            "--repetition-penalty": "1.0", "--stop": "", "--seed": "0", "--compile": ""}  # fmt: skip
# by panel, in their order: each option with the default it shows
SAMPLE = {
    "gpt": {"Input": {"--prompt": ""}, "Generation": DECODING | {"--temperature": "0.8", "--slide": ""},
            "Output": {"--out": "", "--json": ""}},
    "vit": {"Input": {"--image": ""}, "Output": {"--attention": "", "--out": "", "--json": ""}},
    "captioner": {"Input": {"--image": "", "--prompt": ""}, "Generation": DECODING,
                  "Output": {"--attention": "", "--out": "", "--json": ""}},
    "seq2seq": {"Input": {"--source": ""},
                "Generation": DECODING | {"--count": "1, or all beams", "--beams": "", "--length-penalty": "0.6"},
                "Output": {"--attention": "", "--out": "", "--json": ""}},
    "reader": {"Input": {"--prompt": "", "--truncate": ""}, "Output": {"--out": "", "--json": ""}},
    "dit": {"Input": {"--label": "", "--prompt": ""},
            "Sampling": {"--count": "1", "--guidance": "3", "--steps": "50", "--sampler": "", "--seed": "0", "--vae": "", "--compile": ""},
            "Output": {"--out": "RUN/sampled", "--json": ""}},
}  # fmt: skip
STEP = {"--label": "", "--prompt": "", "--step": "the middle one", "--steps": "50", "--seed": "0", "--guidance": "1"}
STEP |= {"--target": "", "--time": "0.5"}
TRACE_INPUT = {
    "gpt": {"--input": ""}, "vit": {"--input": "", "--target": ""}, "captioner": {"--input": "", "--text": ""},
    "seq2seq": {"--input": "", "--text": ""}, "reader": {"--input": "", "--text": "", "--target": ""},
    "dit": STEP,
}  # fmt: skip
TRACE_OUTPUT = {
    "--html": "",
    "--xlsx": "",
    "--png": "",
    "--of": "all; with --png the last attention pattern",
    "--query": "",
    "--out": "",
}


def panels(text):
    """The panels of a help page: the options of each, with the defaults they show."""
    found, panel, option = {}, None, None
    for line in text.splitlines():
        if head := re.match(r"╭─ (.+?) ─", line):
            panel = found.setdefault(head[1], {})
        elif named := re.match(r"│ (--[a-z-]+)", line):
            option = named[1]
            panel[option] = ""
        if default := re.search(r"\[default: (.+?)\]", line):
            panel[option] = default[1]
    return found


@pytest.fixture
def help_of(type_in, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    def call(*words):
        text = type_in(*words, "--help").out
        assert "[default: False]" not in text
        assert "NoOptions" not in text
        return text

    return call


@pytest.fixture
def run_of(request):
    return lambda name: request.getfixturevalue(RUNS[name])


def test_every_family_is_tested_here():
    assert set(FAMILIES) >= set(RUNS) == set(TRAIN) == set(SAMPLE) == set(TRACE_INPUT)


@pytest.mark.parametrize("name", TRAIN)
def test_train_lists_the_options_of_its_family(help_of, name):
    text = help_of("train", name)
    assert text.startswith(f"Usage: pencil train {name} [OPTIONS]\n")
    assert list(panels(text).items()) == [
        ("Data", TRAIN[name]),
        ("Model and training", {"--from": "", "--freeze": "", "--preset": "nano", "--config": "", "--settings": ""}),
        ("Run", {"--name": f"DATA-{name}", "--out": "", "--force": "", "--processes": "1"}),
    ]
    for preset in family(name).presets:
        assert re.search(rf"\b{re.escape(preset)}[,.]", text)


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_lists_the_options_of_the_runs_family(help_of, run_of, name):
    text = help_of("sample", run_of(name))
    assert text.startswith("Usage: pencil sample RUN [OPTIONS]\n")
    expected = {"Arguments": {}, **SAMPLE[name], "Device": {"--device": "auto", "--dtype": "auto"}}
    assert list(panels(text).items()) == list(expected.items())


@pytest.mark.parametrize("name", TRACE_INPUT)
def test_trace_why_and_show_list_the_input_of_the_runs_family(help_of, run_of, name):
    for verb, usage, edit, output in (
        ("trace", "WHAT", {"--edit": "", "--patch-from": ""}, TRACE_OUTPUT), 
        ("why", "WHAT CELL", {"--edit": "", "--patch-from": ""}, {"--contributions": "", "--against": "", "--digits": "4"}),
        ("show", "WHAT [NAME]", {}, {"--digits": "4"}),
    ):  # fmt: skip
        text = help_of(verb, run_of(name))
        assert text.startswith(f"Usage: pencil {verb} {usage} [OPTIONS]\n")
        step = {"Training step": {"--update": "", "--update-at": ""}}
        assert panels(text) == {"Arguments": {}, "Input": TRACE_INPUT[name] | edit, "Output": output} | step


def test_an_example_has_no_input_options(help_of):
    assert panels(help_of("trace", "example:vit-4x4")) == {
        "Arguments": {},
        "Input": {"--edit": "", "--patch-from": ""},
        "Output": TRACE_OUTPUT,
    }


@pytest.mark.parametrize("verb", ["train", "resume", "verify", "sample", "eval", "trace", "why", "show", "diff", "heads", "shapes",
                                  "cost", "kata", "check", "lab", "demo", "doctor", "explore"])  # fmt: skip
def test_every_verb_has_a_help_page(help_of, verb):
    assert help_of(verb).startswith(f"Usage: pencil {verb}")
    assert re.search(rf"^│ {verb} ", help_of(), re.M)


# --settings


def choices(kind):
    """The values a setting can have, where they are a list."""
    kinds = (kind, *get_args(kind))
    return [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]


@pytest.mark.parametrize("name", TRAIN)
def test_settings_list_every_field_and_rebuild_the_config(type_in, tmp_path, name):
    shown = type_in("train", name, "--settings")
    assert not shown.err
    assert not list(tmp_path.iterdir())
    record, tables = family(name), tomllib.loads(shown.out)
    configs = dict(zip(("model", "train"), settings_of(TrainingRequest(name)), strict=True))
    kinds = {"model": record.config, "train": TrainConfig}
    left_out = {"model": set(), "train": set(OPTIONAL) - set(record.train_settings)}
    names, texts = re.findall(r"^\[(\w+)\]$", shown.out, re.M), re.split(r"^\[\w+\]$", shown.out, flags=re.M)[1:]
    sections = dict(zip(names, texts, strict=True))
    # without data, what follows from it is a comment, or it is that of the usual data
    assert tables["run"].get("data") == (record.data if record.data_decides else None)
    unknown = () if record.data_decides else FROM_DATA
    by_data = {one: getattr(configs["model"], one) for one in unknown if hasattr(configs["model"], one)}
    assert not set(by_data) & set(tables["model"])
    for section, kind in kinds.items():
        known = by_data if section == "model" else {}
        assert build(kind, tables[section] | known, f"{section}.") == configs[section]
        listed = {
            match[2]: (match[1], match[3]) for match in re.finditer(r"^(# )?(\w+) =(.*)$", sections[section], re.M)
        }
        assert list(listed) == [f.name for f in dataclasses.fields(kind) if f.name not in left_out[section]]
        for field, hint in setting_types(kind).items():
            if field in listed:
                unset, line = listed[field]
                assert (unset is not None) == (field not in tables[section])
                unset = unset is not None and (section, field) not in [("model", one) for one in by_data]
                assert unset == (getattr(configs[section], field) is None) or field in by_data
                assert "# " in line
                assert field in by_data or not choices(hint) or ", ".join(choices(hint)) in line


def test_settings_take_the_data_the_preset_and_changes_into_account(type_in):
    words = ("--data", "digits", "--preset", "small", "--size", 24, "--model.depth", 3, "--train.lr=1e-3", "--settings")
    tables = tomllib.loads(type_in("train", "vit", *words).out)
    assert (tables["model"]["image_size"], tables["model"]["depth"], tables["train"]["lr"]) == ([24, 24], 3, 1e-3)


# options of other families, old names, and the order of words


@pytest.mark.parametrize("name", SAMPLE)
def test_options_of_other_families_are_refused_in_a_sentence_that_names_the_family(fails, run_of, name):
    run = run_of(name)
    known = set().union(*(options for options in SAMPLE[name].values()))
    others = set().union(*(options for panel in SAMPLE.values() for options in panel.values())) - known
    assert others
    inputs = {option for panels in SAMPLE.values() for option in panels["Input"]} - {"--truncate"}  # how it is read
    its_own = " or ".join(option for option in SAMPLE[name]["Input"] if option in inputs)
    for option in sorted(others):
        meant = f"its input is {its_own}" if option in inputs else f"pencil sample {run} --help lists its options"
        assert fails("sample", run, option, 1) == f"pencil: {run} is a {name}: it takes no {option}; {meant}"
    for option in sorted(set().union(*TRAIN.values()) - set(TRAIN[name])):
        sentence = f"pencil: a {name} takes no {option}; pencil train {name} --help lists its options"
        assert fails("train", name, option, 1) == sentence
    for option in sorted(set().union(*TRACE_INPUT.values()) - set(TRACE_INPUT[name])):
        assert f"{run} is a {name}: it takes no {option}" in fails("trace", run, option, 1)


def test_options_may_come_before_the_run(type_in, fails, run, vit_run):
    after = type_in("sample", run, "--prompt", "line", "--max-new-tokens", 7)
    for words in (("--prompt", "line", "--max-new-tokens", 7, run), ("--max-new-tokens", 7, run, "--prompt", "line"),
                  ("--max-new-tokens=7", "--prompt=line", run)):  # fmt: skip
        assert type_in("sample", *words) == after
    # values that are themselves names of runs or families
    assert type_in("sample", "--prompt", "line", "--stop", vit_run, "--max-new-tokens", 7, run) == after
    shown = type_in("train", "--name", "gpt", "vit", "--settings").out
    assert "image_size" in shown
    assert "✓" in type_in("why", "--input", "line", run, "logits[0,0,0]").out
    assert "✓" in type_in("why", "--digits", 3, "example:vit-4x4", "out[0,0,0]").out
    assert f"{run} is a gpt: it takes no --image" in fails("sample", "--image", "a.png", run)
    assert "there is no run nowhere" in fails("sample", "--prompt", "line", "nowhere")
    assert "gtp is not a family of models" in fails("train", "--data", "notes.txt", "gtp")
    assert fails("train", "--model.width", 24, "gpt") == (
        "pencil: --model.width comes after the family: pencil train gpt --model.width VALUE"
    )


@pytest.mark.parametrize("words, sentence", [
    (["sample"], "RUN is missing; usage: pencil sample RUN [OPTIONS]"),
    (["sample", "--slide"], "RUN is missing; usage: pencil sample RUN [OPTIONS]"),
    (["train"], "FAMILY is missing: gpt, vit, captioner, dit, reader or seq2seq; usage: pencil train FAMILY [OPTIONS]"),
    (["why", "example:vit-4x4"], "CELL is missing; usage: pencil why WHAT CELL [OPTIONS]"),
    (["eval"], "RUN is missing; usage: pencil eval RUN [OPTIONS]"),
    (["eval", "a", "b"], "eval cannot use 'b'; usage: pencil eval RUN [OPTIONS]"),
    (["eval", "a", "--temperature", "1"], "eval takes no --temperature; pencil eval --help lists its options"),
    (["show", "example:vit-4x4", "--digits"], "--digits needs a value"),
    (["trian", "gpt"], "trian is not a command; did you mean train?"),
    (["train", "gpt", "more"], "train cannot use 'more' by itself; data is given with --data DATA, settings as --model.depth 6"),
])  # fmt: skip
def test_commands_that_are_not_complete_or_say_too_much(fails, words, sentence):
    assert fails(*words) == f"pencil: {sentence}"
