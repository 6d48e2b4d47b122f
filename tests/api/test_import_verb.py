"""The verb that imports: names of runs, what is refused and what is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import call
from foreign import MAKERS
from pencil.api.original import (
    APPLIED,
    GENERATION,
    OPTIONS,
    USUAL,
    WHEN_SAMPLING,
    WITH_BEAMS,
    WITHOUT_EFFECT,
    about_generation,
)
from pencil.families import FAMILIES
from pencil.files import locked
from pencil.weights.gpt2 import GPT2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("foreign")
    return {name: MAKERS[name](root / name.lower()) for name in ("GPT-2", "Qwen2")}


@pytest.fixture
def gpt2(folders):
    shutil.copytree(folders["GPT-2"], "small")
    return Path("small")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_value(folder, name, value):
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[1] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_nan_is_said_at_import_and_equals_nothing(gpt2):
    with_value(gpt2, "transformer.h.0.ln_1.weight", float("nan"))
    printed = call("import", "small", "--parity", code=1).stderr
    assert "blocks.0.attn_norm.weight holds NaN or infinity: what the model computes will be NaN, too" in printed
    assert "NOT equal: " in printed
    assert " has NaN or infinity, which equals nothing" in printed
    assert Path("runs/small/model.safetensors").is_file()


def test_a_value_that_the_dtype_cannot_hold_is_refused(gpt2):
    with_value(gpt2, "transformer.h.0.ln_1.weight", 7e4)
    refusal = call("import", "small", "--dtype", "float16", code=2).stderr
    assert "blocks.0.attn_norm.weight has a value of 7e+04, which is too large for float16" in refusal
    assert not Path("runs/small").exists()


def test_parity_compares_the_weights_before_they_are_rounded(gpt2):
    printed = call("import", "small", "--dtype", "bfloat16", "--parity").stderr
    assert "equal: the largest error is" in printed
    assert "(computed in float32, from the weights as they are before they are rounded to bfloat16)" in printed
    kinds = {tensor.dtype for tensor in load_file("runs/small/model.safetensors").values()}
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("name", ["FooForCausalLM", "Qwen2ForTokenClassification"])
def test_another_class_of_the_same_kind_is_refused_by_name(folders, name):
    shutil.copytree(folders["Qwen2"], "small")
    config = json.loads(Path("small/config.json").read_text())
    Path("small/config.json").write_text(json.dumps({**config, "architectures": [name]}))
    refusal = call("import", "small", code=2).stderr
    assert f"architectures has '{name}', which ours does not have: only Qwen2ForCausalLM or Qwen2Model" in refusal
    assert not Path("runs").exists()


def test_a_name_that_is_taken_is_said_and_force_replaces_it(gpt2):
    call("import", "small")
    printed = call("import", "small").stderr
    assert "runs/small exists already, so this run is runs/small-2" in printed
    first = Path("runs/small/config.toml").read_text()
    call("import", "small", "--force")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["small", "small-2"]
    assert Path("runs/small/config.toml").read_text() != first  # it has an id of its own
    with locked(Path("runs/small"), "busy"):
        assert "runs/small is being written" in call("import", "small", "--force", code=2).stderr
    shutil.copytree("small", "runs/small/inner")
    refusal = call("import", "runs/small/inner", "--out", "runs/small", "--force", code=2).stderr
    assert "runs/small holds the checkpoint itself" in refusal


def test_an_unusable_tokenizer_is_left_out_on_request(gpt2):
    content = json.loads(Path("small/tokenizer.json").read_text())
    content["model"]["dropout"] = 0.1
    Path("small/tokenizer.json").write_text(json.dumps(content))
    refusal = call("import", "small", code=2).stderr
    assert "its dropout is not supported; --without-tokenizer imports the model alone" in refusal
    assert not Path("runs").exists()
    printed = call("import", "small", "--without-tokenizer").stderr
    assert "it comes without a tokenizer" in printed
    assert not Path("runs/small/tokenizer.json").exists()
    assert "tokenizer_config.json" not in json.loads(Path("runs/small/original.json").read_text())
    refusal = call("import", "small", "--without-tokenizer", "--tokenizer", "gpt2", code=2).stderr
    assert "--tokenizer and --without-tokenizer cannot be given together" in refusal


def test_what_changes_a_text_and_is_not_applied_is_said_at_import(gpt2):
    settings = {
        "eos_token_id": 0,
        "repetition_penalty": 1.3,
        "min_new_tokens": 7,
        "top_p": 0.9,
        "forced_eos_token_id": 0,
    }
    Path("small/generation_config.json").write_text(json.dumps(settings))
    config, rows = Path("small/config.json"), load_file("small/model.safetensors")
    table = rows["transformer.wte.weight"]
    save_file(rows | {"transformer.wte.weight": torch.cat((table, table[:3]))}, "small/model.safetensors")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": len(table) + 3}))
    printed = call("import", "small").stderr
    assert (
        "settings of its generation_config.json that change what is generated are not applied: repetition_penalty 1.3, "
        "min_new_tokens 7, forced_eos_token_id 0; pencil sample takes --repetition-penalty 1.3"
    ) in printed
    assert f"3 of its {len(table) + 3} rows of the vocabulary have no token: they are never sampled" in printed
    Path("small/generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_k": 0}))
    assert "not applied: do_sample true, temperature 0.6; pencil sample takes --temperature 0.6" in (
        call("import", "small").stderr
    )


CHANGES = [
    dict(repetition_penalty=1.7), dict(no_repeat_ngram_size=2), dict(min_new_tokens=11, eos_token_id="first"), dict(min_length=13, eos_token_id="first"),
    dict(begin_suppress_tokens="first"), dict(forced_eos_token_id=0), dict(sequence_bias="first"), dict(num_beams=3),
    dict(exponential_decay_length_penalty=[1, 9.0]), dict(max_new_tokens=3), dict(max_length=7),
    dict(guidance_scale=3.0), dict(suppress_tokens="first"), dict(eos_token_id="first"), dict(use_cache=False),
    dict(temperature=0.3), dict(length_penalty=0.1), dict(top_k=3), dict(pad_token_id=5), dict(output_scores=True),
]  # fmt: skip


def test_every_setting_that_changes_greedy_text_is_applied_or_named(folders, tmp_path):
    """Against `generate` of transformers; and no field of its settings is one that nobody has thought of."""
    from transformers import GenerationConfig, GPT2LMHeadModel

    theirs = GPT2LMHeadModel.from_pretrained(folders["GPT-2"])
    prompt = torch.tensor([[3, 5, 2, 7]])

    def written(**settings):
        longest = {} if {"max_new_tokens", "max_length"} & set(settings) else {"max_new_tokens": 13}
        chosen = GenerationConfig(**{"pad_token_id": 1, "eos_token_id": 0, **longest, **settings})
        return theirs.generate(prompt, generation_config=chosen, return_dict_in_generate=False)[0].tolist()

    plain = written()
    first, changed = plain[4], []
    values = {
        "begin_suppress_tokens": [first], "suppress_tokens": [first], "eos_token_id": first,
        "sequence_bias": [[[first], -100.0]],
    }  # fmt: skip
    for settings in CHANGES:
        settings = {key: values[key] if value == "first" else value for key, value in settings.items()}
        (tmp_path / GENERATION).write_text(json.dumps(settings))
        said = "".join(about_generation(SimpleNamespace(folder=tmp_path, config={}), GPT2, FAMILIES["gpt"]))
        name, *ends = settings
        if written(**settings) != written(**{key: settings[key] for key in ends}):
            changed.append(name)
            assert name in APPLIED or name in said, name
        else:
            assert name not in said or name == "num_beams", name
    assert {"repetition_penalty", "no_repeat_ngram_size", "begin_suppress_tokens", "forced_eos_token_id"} <= set(
        changed
    )
    thought_of = {*APPLIED, *WITHOUT_EFFECT, *USUAL, *WHEN_SAMPLING, *WITH_BEAMS, *OPTIONS}
    named = {"do_sample", "max_time", "stop_strings", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias",
             "remove_invalid_values", "exponential_decay_length_penalty", "begin_suppress_tokens", "token_healing",
             "watermarking_config", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"}  # fmt: skip
    assert set(vars(GenerationConfig())) - thought_of - named == set()


def test_a_prefix_of_another_library_is_refused(gpt2):
    refusal = call("import", "nanogpt:small", code=2).stderr
    assert "nanogpt:small is a GPT-2 of transformers, and not of nanogpt: leave nanogpt: out" in refusal


KILLED = """
import sys, time
from pencil.api.interchange import importing
def slowly(tensors, *rest):
    for pair in tensors:
        yield pair
        print("one", flush=True)
        time.sleep(60)
importing._finite = slowly
importing.import_checkpoint("small", name="kk")
"""


@pytest.mark.long
def test_what_a_killed_import_left_is_removed_by_the_next(gpt2):
    source = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, env=os.environ | source) as child:
        child.stdout.readline()
        (left,) = Path("runs").glob(".kk.*")
        call("import", "small", "--name", "kk")  # the other is still at work
        assert left.is_dir()
        child.send_signal(signal.SIGKILL)
        child.wait()
    time.sleep(0.05)
    assert left.is_dir()
    call("import", "small", "--name", "kk", "--force")
    assert [path.name for path in Path("runs").iterdir()] == ["kk"]


def test_mistakes_of_the_line_are_named_with_what_was_meant(gpt2):
    assert "import takes no --nmae; did you mean --name?" in call("import", "small", "--nmae", "x", code=2).stderr
    assert "export takes no --too; did you mean --to?" in call("export", "small", "--too", "hf", code=2).stderr
    assert "a gpt takes no --form; did you mean --from?" in call("train", "gpt", "--form", "x", code=2).stderr
    refusal = call("import", "foo:bar/baz", code=2).stderr
    assert (
        "foo:bar/baz is neither a path nor the name of a checkpoint; it begins with hf:, timm:, diffusers:" in refusal
    )
    Path("package").mkdir()
    shutil.copytree("small", "package/inner")
    assert "package holds no weights: " in (refusal := call("import", "package", code=2).stderr)
    assert "did you mean package/inner?" in refusal


def test_a_missing_shard_is_named_without_an_index(gpt2):
    Path("small/model.safetensors").rename("small/model-00001-of-00002.safetensors")
    assert "small has no model-00002-of-00002.safetensors" in call("import", "small", code=2).stderr


def test_an_error_of_a_tensor_names_the_checkpoint(gpt2):
    tensors = load_file("small/model.safetensors")
    del tensors["transformer.ln_f.bias"]
    save_file(tensors, "small/model.safetensors")
    refusal = call("import", "small", code=2).stderr.splitlines()[-1]
    assert refusal == "pencil: small: this GPT-2 has no transformer.ln_f.bias"


def test_the_cost_of_an_imported_run_has_its_biases_and_its_optimizer(folders):
    call("import", folders["Qwen2"])
    printed = call("cost", "runs/qwen2").stdout
    assert "d + biases of Q, K, V" in printed
    assert "AdamW" in printed
    assert "Muon and AdamW" not in printed
