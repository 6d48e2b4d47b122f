"""Vectors of texts: beside transformers' own, pooled by hand; in Python and by `pencil embed`."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pencil
from both_ways import randomise
from conftest import call
from pencil.config import UserError
from pencil.data.tokenizers.from_checkpoint import find_tokenizer
from pencil.families.reader import Vectors, embed_texts, exported, sentence_settings, settings_of
from pencil.models.reader import ReaderConfig
from pencil.runs.run import Loaded
from pencil.weights.bert import BERT, ROBERTA
from pencil.weights.maps import Source, load

OLD_RUN = Path(__file__).parents[1] / "runs-0.6" / "reader"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "##s", "dog", "ran", "."]
TEXTS = ["the cat sat on a mat.", "dogs", "the dog ran on. the cat ran on a mat", "Cat", "a zebra sat", "the " * 40]


def folder_of(path, name="BertModel", **sizes):
    """A folder as the hub has it, with random weights; and its model."""
    import transformers

    config = dict(vocab_size=len(WORDS), hidden_size=26, num_hidden_layers=2, num_attention_heads=2,
                  intermediate_size=29, max_position_embeddings=23, pad_token_id=0) | sizes  # fmt: skip
    kind = "roberta" if name.startswith("Roberta") else "bert"
    theirs = getattr(transformers, name)(transformers.AutoConfig.for_model(kind, **config)).eval()
    randomise(theirs, seed=3)
    theirs.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return theirs


def opened(path, theirs, table=None):
    """Ours with the weights of theirs, as a run that was opened."""
    config = json.loads((path / "config.json").read_text())
    architecture, source = {"bert": BERT, "roberta": ROBERTA}[config["model_type"]], Source(theirs.state_dict())
    found = find_tokenizer(path)
    assert found is not None
    model = load(architecture, source, architecture.configure(config, source))
    run = SimpleNamespace(path=path, family="reader", config={"run": {}, "embed": table or {}})
    return Loaded(model, found[0], run)  # pyright: ignore[reportArgumentType]


def expected(path, theirs, texts, pool, normalize, longest):
    """One text at a time through transformers: nothing is padded."""
    from transformers import BertTokenizerFast  # pyright: ignore[reportAttributeAccessIssue]

    tokenizer, rows = BertTokenizerFast.from_pretrained(path), []
    for text in texts:
        given = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**given).last_hidden_state[0]
        rows.append(states.mean(0) if pool == "mean" else states[0])
    found = torch.stack(rows)
    return found / found.square().sum(1, keepdim=True).sqrt() if normalize else found


@pytest.mark.proof("parity with a reference on random weights", "reader")
@pytest.mark.parametrize("name, pool, normalize, longest", [
    ("BertModel", "mean", True, 13), ("BertModel", "class", False, 23), ("RobertaModel", "mean", False, 22),
])  # fmt: skip
def test_vectors_of_a_batch_equal_those_of_single_texts_by_transformers(name, pool, normalize, longest, tmp_path):
    theirs = folder_of(tmp_path, name)
    loaded, notes = opened(tmp_path, theirs), []
    found = embed_texts(loaded, TEXTS, Vectors(pool, normalize, longest), notes.append)
    wanted = expected(tmp_path, theirs, TEXTS, pool, normalize, longest)
    assert found.dtype == torch.float32
    assert found.shape == (6, 26)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert notes == [f"cut at {longest} tokens, which the model reads at most: 1 of 6 texts"]
    alone = embed_texts(loaded, TEXTS[:1], Vectors(pool, normalize, longest))
    torch.testing.assert_close(alone[0], found[0], atol=1e-5, rtol=1e-5)


def test_a_run_says_how_its_vectors_are_made(tmp_path):
    theirs = folder_of(tmp_path)
    loaded = opened(tmp_path, theirs, {"pool": "class", "normalize": True, "context": 7})
    assert settings_of(loaded) == Vectors("class", True, 7)
    assert settings_of(loaded, "mean", False) == Vectors("mean", False, 7)
    assert settings_of(opened(tmp_path, theirs)) == Vectors("mean", False, 23)
    with pytest.warns(UserWarning, match="cut at 7 tokens"):
        found = pencil.embed(loaded, TEXTS)
    wanted = expected(tmp_path, theirs, TEXTS, "class", True, 7)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    one = pencil.embed(loaded.model, "dogs", tokenizer=loaded.tokenizer, pool="class", normalize=True)
    torch.testing.assert_close(one, wanted[1], atol=1e-5, rtol=1e-5)
    assert len(pencil.embed(loaded, ["dogs"])) == 1
    for given, words in ((dict(pool="max"), "pool is mean"), (dict(tokenizer=1), "leave tokenizer and classes out")):
        with pytest.raises(UserError, match=words):
            pencil.embed(loaded, "dogs", **given)
    for texts, words in (([], "empty"), (["cat", " "], "a text is empty"), ([3], "is a str"), (None, "is a str")):
        with pytest.raises(UserError, match=words):
            pencil.embed(loaded, texts)
    with pytest.raises(UserError, match="needs a tokenizer"):
        pencil.embed(loaded.model, "dogs")


def test_padding_inside_a_text_is_refused_where_it_would_move_positions(tmp_path):
    loaded = opened(tmp_path, folder_of(tmp_path, "RobertaModel"))
    with pytest.raises(UserError, match=r"has \[PAD\], which is this model's padding"):
        pencil.embed(loaded, "the [PAD] cat")


@pytest.mark.parametrize("add", [True, False])
def test_a_model_without_a_head_predicts_nothing_and_says_what_it_can(add, tmp_path):
    import transformers

    folder_of(tmp_path)
    theirs = transformers.BertModel.from_pretrained(tmp_path, add_pooling_layer=add)
    loaded = opened(tmp_path, theirs)
    assert loaded.model.config.output == ("pool" if add else "states")
    with pytest.raises(UserError, match="has no head that predicts.*pencil embed .* gives vectors"):
        pencil.predict(loaded, "the [mask] sat")
    traced = pencil.trace(loaded, "the cat sat")
    assert traced["encoder.out"].shape == (1, 5, 26)
    with pytest.raises(UserError, match="head pool predicts nothing to train on"):
        pencil.train("reader", OLD_RUN / "config.toml", head="pool", steps=1)


# ---- folders of sentence-transformers

TRANSFORMER, POOLING, NORMALIZE = (
    {"type": f"sentence_transformers.models.{kind}", "path": path}
    for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
)
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}


def settings(**files):
    files = {name.replace("__", "/") + ".json": content for name, content in files.items()}
    return sentence_settings(files.get, 512)


@pytest.mark.parametrize("files, table", [
    (dict(), {}),
    (dict(modules=[TRANSFORMER, POOLING, NORMALIZE], **{"1_Pooling__config": MEAN}), dict(pool="mean", normalize=True)),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": {"pooling_mode_cls_token": True}},
          sentence_bert_config={"max_seq_length": 256, "do_lower_case": False}),
     dict(pool="class", normalize=False, context=256)),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": {"pooling_mode": "mean", "include_prompt": True}},
          tokenizer_config={"model_max_length": 1000}), dict(pool="mean", normalize=False)),
])  # fmt: skip
def test_the_settings_of_a_folder_of_sentence_transformers_are_kept(files, table):
    assert settings(**files) == table


@pytest.mark.parametrize("table", [dict(pool="mean", normalize=True, context=7), dict(pool="class", normalize=False)])
def test_the_settings_are_exported_as_they_are_imported(table):
    config = ReaderConfig(context=512)
    run = SimpleNamespace(config={"run": {}, "embed": table})
    contents, notes = exported(run, config, "transformers", {"a": 1})  # pyright: ignore[reportArgumentType]
    assert sentence_settings(contents.get, 512) == table
    assert contents["config.json"] == {"a": 1}
    assert notes == []
    labels = SimpleNamespace(config={"run": {"classes": ["good", "bad"]}})
    contents, _ = exported(labels, ReaderConfig(classes=2), "transformers", {})  # pyright: ignore[reportArgumentType]
    assert contents == {"config.json": {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}}}


@pytest.mark.parametrize("files, words", [
    (dict(modules=[TRANSFORMER, POOLING, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]), "Dense"),
    (dict(modules=[TRANSFORMER]), "modules.json has Transformer"),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": {"pooling_mode_max_tokens": True}}), "max_tokens"),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": MEAN | {"pooling_mode_cls_token": True}}), "cls_token"),
    (dict(modules=[TRANSFORMER, POOLING]), "no way"),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": MEAN},
          sentence_bert_config={"do_lower_case": True}), "do_lower_case"),
    (dict(modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": MEAN},
          config_sentence_transformers={"default_prompt_name": "query"}), "'query'"),
])  # fmt: skip
def test_what_would_give_other_vectors_is_refused(files, words):
    with pytest.raises(UserError, match=words):
        settings(**files)


# ---- the verb


def test_the_verb_prints_vectors_as_lines_csv_and_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = pencil.embed(OLD_RUN, ["def cat", "import"], pool="mean")
    out = call("embed", str(OLD_RUN), "--prompt", "def cat", "--prompt", "import").stdout
    lines = [list(map(float, line.split())) for line in out.splitlines()]
    assert torch.equal(torch.tensor(lines), wanted)  # to the bit
    Path("texts.txt").write_text("def cat\n\n  import \n")
    done = call("embed", str(OLD_RUN), "--file", "texts.txt", "--csv", "out.csv", "--normalize")
    assert done.stdout == ""
    assert "out.csv" in done.stderr
    head, *rows = csv.reader(io.StringIO(Path("out.csv").read_text()))
    assert head[:2] == ["text", "x0"]
    assert [row[0] for row in rows] == ["def cat", "import"]
    found = torch.tensor([list(map(float, row[1:])) for row in rows])
    torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True))
    results = json.loads(call("embed", str(OLD_RUN), "--prompt", "import", "--json").stdout)["results"]
    assert results[0]["prompt"] == "import"
    assert torch.equal(torch.tensor(results[0]["vector"]), pencil.embed(OLD_RUN, "import"))


@pytest.mark.parametrize("words, fault", [
    ((), "--prompt is missing"),
    (("--prompt", "a", "--csv", "x.txt"), "--csv writes a .csv file"),
    (("--prompt", "a", "--csv", "x.csv", "--json"), "give one"),
    (("--file", "none.txt"), "none.txt"),
    (("--file", "table.csv"), "is a table"),
    (("--file", "blank.txt"), "has no text"),
    (("--prompt", "a", "--pool", "max"), "max"),
])  # fmt: skip
def test_the_verb_refuses_in_a_sentence(words, fault, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("blank.txt").write_text(" \n\n")
    Path("table.csv").write_text("a,b\n")
    assert fault in call("embed", str(OLD_RUN), *words, code=2).stderr


def test_another_family_says_which_one_gives_vectors():
    run = OLD_RUN.parent / "gpt"
    assert (
        "is a gpt, which gives no vector of a text: only a reader does"
        in call("embed", str(run), "--prompt", "a", code=2).stderr
    )
