"""What an export hands back beside the weights, and which folders it replaces."""

import json
import shutil
from pathlib import Path

import pytest

from conftest import call
from foreign import MAKERS
from pencil.api.interchange.card import exported_card
from pencil.api.interchange.exporting import WRITTEN
from pencil.runs.run import Run
from random_texts import random_texts
from small_tokenizers import sentencepiece_file, wordpiece

QUICK = ["--train.steps", "1", "--train.batch", "2", "--train.eval_batches", "1", "--train.warmup", "1"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CHOSEN = {"temperature": 0.7, "top_p": 0.9, "top_k": 23, "repetition_penalty": 1.3, "do_sample": True, "num_beams": 3,
          "max_length": 29, "length_penalty": 0.6}  # fmt: skip
CARD = "---\nlicense: apache-2.0\n---\n\n# a model\n"


def changed(path, **values):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def held(path):
    return json.loads(Path(path).read_text())


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A GPT-2 as the hub has them: with settings of generation, a chat template and a licence."""
    folder = MAKERS["GPT-2"](tmp_path_factory.mktemp("foreign") / "small-gpt2")
    changed(folder / "generation_config.json", **CHOSEN)
    changed(folder / "tokenizer_config.json", padding_side="left", auto_map={"AutoTokenizer": "code.Evil"})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory, gpt2):
    """A folder with the run of it, and its export."""
    folder = tmp_path_factory.mktemp("home")
    call("import", gpt2, "--out", folder / "run")
    call("export", folder / "run", "--out", folder / "back")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_settings_of_generation_and_of_the_tokenizer_come_back_unchanged(gpt2, home):
    assert held(home / "back/generation_config.json") == held(gpt2 / "generation_config.json")
    theirs = held(gpt2 / "tokenizer_config.json")
    del theirs["auto_map"]
    assert held(home / "back/tokenizer_config.json") == theirs
    assert (home / "back/chat_template.jinja").read_text() == TEMPLATE
    assert {path.name for path in (home / "back").iterdir()} <= WRITTEN


def test_the_token_that_begins_a_text_comes_back_and_the_export_generates(gpt2, home):
    from transformers import AutoTokenizer, GPT2LMHeadModel

    first, back = (AutoTokenizer.from_pretrained(folder) for folder in (gpt2, home / "back"))
    assert back.bos_token_id == first.bos_token_id == 0
    model = GPT2LMHeadModel.from_pretrained(home / "back")
    assert model.config.bos_token_id == model.generation_config.bos_token_id == 0
    assert model.generate(max_length=5, num_beams=1, do_sample=False).shape[0] == 1
    talk = [{"role": "user", "content": "the strip"}]
    assert back.apply_chat_template(talk, tokenize=False) == first.apply_chat_template(talk, tokenize=False)


def test_settings_of_generation_in_an_older_config_come_back_in_a_file_of_their_own(gpt2, tmp_path):
    shutil.copytree(gpt2, "older")
    Path("older/generation_config.json").unlink()
    changed(Path("older/config.json"), max_length=31, num_beams=2, task_specific_params={"x": {"prefix": "so: "}})
    call("import", "older")
    call("export", "runs/older", "--out", "back")
    found = held("back/generation_config.json")
    assert (found["max_length"], found["num_beams"], found["bos_token_id"]) == (31, 2, 0)
    assert held("back/config.json")["task_specific_params"] == {"x": {"prefix": "so: "}}


@pytest.mark.parametrize("kept", [("tokenizer.json",), ("vocab.txt",)])
def test_pairs_of_texts_have_the_original_token_types(kept, tmp_path):
    from transformers import AutoTokenizer, BertTokenizer

    folder = MAKERS["BERT"](tmp_path / "bert")
    words = wordpiece(True).get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    if "tokenizer.json" not in kept:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    call("import", folder, "--out", "run")
    call("export", "run", "--out", "back")
    first, back = (AutoTokenizer.from_pretrained(place) for place in (folder, "back"))
    assert type(back) is type(first)
    pair = ("the strip has", "a seat")
    assert dict(back(*pair)) == dict(first(*pair))
    assert 1 in back(*pair)["token_type_ids"]


@pytest.mark.parametrize("settings", [{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}, None])
def test_a_tokenizer_of_sentencepiece_comes_back_with_its_ids(settings, tmp_path):
    from transformers import AutoTokenizer

    folder = MAKERS["LLaMA"](tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    content = sentencepiece_file(
        "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, vocab_size=400
    )
    (folder / "tokenizer.model").write_bytes(content)
    if settings is not None:
        changed(folder / "tokenizer_config.json", **settings)
    call("import", folder, "--out", "run")
    call("export", "run", "--out", "back")
    ours, back = Run.open("run").tokenizer, AutoTokenizer.from_pretrained("back")
    for text in random_texts(100, 3):
        assert back(text)["input_ids"] == ours.encode_with_special(text)


def test_languages_of_a_translator_come_back(tmp_path):
    folder = MAKERS["Marian"](tmp_path / "marian")
    call("import", folder, "--out", "run")
    call("export", "run", "--out", "back")
    found = held("back/tokenizer_config.json")
    assert (found["source_lang"], found["target_lang"]) == ("en", "de")


def test_a_run_trained_from_it_keeps_licence_origin_and_settings(gpt2, home):
    Path("notes.txt").write_text("the strip has a seat and the other one has not\n" * 40)
    call("train", "gpt", "--from", home / "run", "--data", "notes.txt", "--out", "on", "--model.context", "23", *QUICK)
    card = Path("on/README.md").read_text()
    assert f"which come from `{gpt2}`, whose licence is apache-2.0" in card
    call("export", "on", "--out", "back")
    card = Path("back/README.md").read_text()
    assert "license: apache-2.0\n" in card
    assert f"Its first weights are those of `{gpt2}`" in card
    assert held("back/generation_config.json") == held(gpt2 / "generation_config.json")
    found = held("back/tokenizer_config.json")
    assert (found["padding_side"], found["model_max_length"]) == ("left", 23)


def test_the_card_names_the_model_of_the_hub():
    origin = {"from_origin": "hf:some/one@abc", "from_hub": "some/one", "from_licence": "mit"}
    card = exported_card(Path("back"), Path("run"), "transformers", "GPT2LMHeadModel", origin)
    assert card.startswith("---\nlicense: mit\nbase_model: some/one\nlibrary_name: transformers\n---\n")


def test_dropout_is_said_at_import_and_written_at_export(gpt2, home):
    printed = call("import", gpt2).stderr
    assert "its dropout (resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.1) is not taken over" in printed
    config = held(home / "back/config.json")
    assert [config[name] for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")] == [0.0] * 3


def test_a_model_without_a_tokenizer_is_exported_with_a_word_about_it(gpt2):
    shutil.copytree(gpt2, "bare", ignore=shutil.ignore_patterns("tokenizer*", "special*"))
    call("import", "bare")
    printed = call("export", "runs/bare", "--out", "back").stderr
    assert "runs/bare has no tokenizer, so the folder has none" in printed


def test_force_replaces_an_export_and_nothing_else(home):
    shutil.copytree(home, "runs")
    Path("thesis").mkdir()
    Path("thesis/thesis.txt").write_text("years of work")
    Path("notes.txt").write_text("notes")
    for out in ("runs", "runs/run", "thesis"):
        refusal = call("export", "runs/run", "--out", out, "--force", code=2).stderr
        assert f"{out} holds something that is not an exported checkpoint; choose another --out" in refusal
    assert Path("thesis/thesis.txt").read_text() == "years of work"
    refusal = call("export", "runs/run", "--out", "notes.txt", "--force", code=2).stderr
    assert "notes.txt is a file; --out is the folder to write" in refusal
    assert "cannot write notes.txt/x" in call("export", "runs/run", "--out", "notes.txt/x", code=2).stderr
    call("verify", "runs/run")
    assert "runs/back exists already" in call("export", "runs/run", "--out", "runs/back", code=2).stderr
    Path("runs/back/config.json").write_text("{}")
    call("export", "runs/run", "--out", "runs/back", "--force")
    assert held("runs/back/config.json")["model_type"] == "gpt2"
    Path("runs/back/mine.txt").write_text("mine")
    refusal = call("export", "runs/run", "--out", "runs/back", "--force", code=2).stderr
    assert "runs/back also holds mine.txt, which no export writes" in refusal
    assert sorted(path.name for path in Path("runs").iterdir()) == ["back", "run"]
