"""Data in memory trains, evaluates and resumes a run as the same data in a file does, whichever library holds it."""

import io

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import pencil
from conftest import call, unchecked
from pencil.config import UserError
from pencil.data import in_memory
from pencil.train.tasks.diffusion import annotation_kind

SMALL = dict(depth=1, width=24, heads=3, batch=5, steps=3, eval_every=3, eval_batches=1, warmup=1, quiet=True)
ROWS = [(f"{'not bad' if i % 2 else 'so dull'} at all {i}", "good" if i % 2 else "bad") for i in range(60)]
TEXTS, LABELS = (list(column) for column in zip(*ROWS, strict=True))
COLUMNS = {"number": list(range(60)), "said": TEXTS, "mood": LABELS, "text": ["nothing"] * 60}
NAMED = dict(text="said", label="mood")


@pytest.fixture(autouse=True)
def fast(monkeypatch, tmp_path):
    monkeypatch.setattr(in_memory, "_registered", {})
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    monkeypatch.setattr("pencil.train.loop.evaluator.Evaluator.preview", lambda evaluator: None)
    monkeypatch.chdir(tmp_path)
    with unchecked():
        yield


def same_weights(one, other):
    a, b = (load_file(run.path / "model.safetensors") for run in (one, other))
    assert a.keys() == b.keys()
    return all(torch.equal(a[key], b[key]) for key in a)


def test_every_form_of_a_table_is_its_file(tmp_path):
    (tmp_path / "t.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in ROWS))
    frame = pandas.DataFrame(COLUMNS)
    whole = pencil.train("reader", "t.tsv", out="file", **SMALL)
    assert same_weights(whole, pencil.train("reader", frame, out="table", **NAMED, **SMALL))
    assert same_weights(whole, pencil.train("reader", ROWS, out="pairs", **SMALL))
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    numbered = datasets.Dataset.from_dict({"text": TEXTS, "label": [i % 2 for i in range(60)]}, features=features)
    for named, forms in (
        (NAMED, (frame, frame.astype({"mood": "category"}), polars.from_pandas(frame), pyarrow.table(COLUMNS), COLUMNS,
                 frame.to_dict("records"), datasets.Dataset.from_dict(COLUMNS))),
        ({}, (numbered, {"text": TEXTS, "label": LABELS})),
        ({}, (ROWS, (TEXTS, np.array(LABELS)), (polars.Series(TEXTS), pandas.Series(LABELS)))),
        ({}, (TEXTS, polars.Series(TEXTS), pandas.Series(TEXTS), np.array(TEXTS))),
    ):  # fmt: skip
        assert len({in_memory.register(form, named) for form in forms}) == 1
    assert in_memory.register(frame.iloc[::-1], NAMED) != in_memory.register(frame, NAMED)


def test_the_verbs_on_a_run_of_a_table(tmp_path, monkeypatch, capsys):
    frame = pandas.DataFrame(COLUMNS)
    run = pencil.train("reader", frame, out="run", **NAMED, **{**SMALL, "quiet": False})
    assert "text from column said, label from mood (2 classes)" in (said := capsys.readouterr().err)
    assert f"model.context {run.load().model.config.context}, from the data" in said
    others = pandas.DataFrame({"said": ["so dull", "not bad at all", "x"], "mood": ["bad", "good", "bad"]})
    metrics = run.evaluate(others, quiet=True)  # the columns are those of the training
    answers = run.predict(others)
    assert metrics["accuracy"] == np.mean([a.label == m for a, m in zip(answers, others["mood"], strict=True)])
    assert metrics["accuracy.examples"] == 3
    run.evaluate({"said": ["so", "dull " * 97], "mood": ["bad", "bad"]})
    assert "2 texts (1 of them longer than the context of" in capsys.readouterr().err
    assert "pencil.resume(" in (card := (run.path / "README.md").read_text())
    assert "pencil resume" not in card
    assert len(in_memory._registered) == 1  # others were forgotten
    assert pencil.evaluate(run.load(), quiet=True) == pencil.evaluate("run", frame, quiet=True)  # its held-out part
    file = run.predict(others, out="p.csv")
    assert (file.rows, file.errors) == (3, 0)
    assert list(pandas.read_csv("p.csv")["label"]) == [one.label for one in answers]
    assert pencil.verify(run) == []
    with pytest.raises(UserError, match="norm_position is 'pre'"):  # as the command refuses it
        run.export("hf", out="exported", quiet=True)
    stopped = pencil.train("reader", frame, out="run", force=True, on_step=lambda step, _: step < 2, **NAMED, **SMALL)
    assert not stopped.finished
    with pytest.raises(
        UserError, match=r"^the data in memory is not the data that run was trained on[^:]*: (?!.*memory:)"
    ):
        stopped.resume(frame.head(59), quiet=True)
    assert same_weights(stopped.resume(frame, quiet=True), pencil.train("reader", ROWS, out="at-once", **SMALL))
    monkeypatch.setattr(in_memory, "_registered", {})  # another program
    refused = call("resume", "run", "--train.steps", "7", code=2).stderr
    assert "was trained on data in the memory of a program, and has no copy of it" in refused
    assert "pencil.resume('run', data)" in refused


def test_an_evaluation_by_a_column_and_beside_baselines(capsys):
    table = {**COLUMNS, "number": [f"{n % 3}" for n in range(60)]}
    run = pencil.train("reader", table, out="run", **NAMED, **SMALL)
    others = {"said": TEXTS[:7], "mood": LABELS[:7], "number": ["a", "b", "a", None, "b", "b", "b"]}
    answers = [one.label == label for one, label in zip(run.predict(others["said"]), LABELS, strict=False)]
    metrics = run.evaluate(others, by="number", baseline=True)
    for value, rows in (("a", (0, 2)), ("b", (1, 4, 5, 6))):
        assert metrics[f"group_accuracy.{value}"] == np.mean([answers[row] for row in rows])
    said = capsys.readouterr().err
    assert f"always the commonest class in training    {metrics['baseline.commonest.accuracy']:.4f}" in said
    assert "this run" in said
    assert {name.partition(".")[2] for name in run.evaluate(by="number", quiet=True) if "group_accuracy" in name} == {
        *"012"
    }
    for by, sentence in (("mod", "did you mean mood?"), ("text", "the data in memory has no column text")):
        with pytest.raises(UserError, match=sentence):
            run.evaluate(others, by=by, quiet=True)
    with pytest.raises(UserError, match="its columns have no names"):
        run.evaluate(ROWS[:3], by="number", quiet=True)


def test_a_run_that_keeps_its_data_goes_on_anywhere(monkeypatch):
    run = pencil.train("reader", pandas.DataFrame(COLUMNS), out="run", keep_data=True, **NAMED, **SMALL)
    assert "pencil resume" in (run.path / "README.md").read_text()
    monkeypatch.setattr(in_memory, "_registered", {})
    call("resume", "run", "--train.steps", "5")
    assert run.resume(quiet=True).step == 5
    assert "data.jsonl" in call("verify", "run").stdout
    with (run.path / "data.jsonl").open("a") as file:
        file.write("{}\n")
    monkeypatch.setattr(in_memory, "_registered", {})
    with pytest.raises(UserError, match="damaged|differs|not as"):
        run.resume(steps=7, quiet=True)
    assert [one.path.name for one in pencil.verify(run)] == ["data.jsonl"]


def test_pictures_in_memory_are_those_of_a_folder(tmp_path, monkeypatch):
    pixels = np.random.default_rng(3).integers(0, 255, (22, 11, 13, 3), dtype=np.uint8)
    labels = ["cat"] * 11 + ["dog"] * 11
    paths = [tmp_path / "photos" / label / f"{i:02}.png" for i, label in enumerate(labels)]
    for path, picture in zip(paths, pixels, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    files = pencil.train("vit", "photos", size="16", out="files", **SMALL)
    images = [Image.fromarray(one) for one in pixels]
    hub = datasets.Dataset.from_dict({"image": images, "label": labels})
    table = pandas.DataFrame({"kind": labels, "where": list(map(str, paths))})
    forms = [((pixels, labels), {}), (hub, {}), (table, dict(image="where", label="kind"))]
    for i, (form, names) in enumerate(forms):
        run = pencil.train("vit", form, size="16", out=f"m{i}", keep_data=True, **names, **SMALL)
        assert same_weights(files, run)
        assert run.evaluate(quiet=True) == files.evaluate(quiet=True)
    assert pencil.load("m0").model.config.image_size == (16, 16)
    monkeypatch.setattr(in_memory, "_registered", {})
    assert pencil.resume("m0", steps=4, quiet=True).step == 4


def test_a_picture_in_memory_is_as_its_file():
    picture = Image.fromarray(np.random.default_rng(3).integers(0, 255, (7, 5, 3), dtype=np.uint8))
    turned, file = picture.copy(), io.BytesIO()
    turned.getexif()[0x0112] = 6  # by a quarter
    kept = in_memory.table_of(in_memory.register(([turned, picture.convert("CMYK")], [0, 1])))["input"]
    assert [Image.open(io.BytesIO(one)).size for one in kept] == [(7, 5), (5, 7)]
    picture.resize((97, 89)).save(file, "JPEG")
    with pytest.raises(UserError, match="row 1: the picture cannot be read"):
        in_memory.register(([Image.open(io.BytesIO(file.getvalue()[:700]))], [0]))


def test_texts_pairs_and_captions_in_memory():
    assert pencil.train("gpt", [f"line {i} of a text" for i in range(90)], context=13, out="gpt", **SMALL).finished
    assert (pencil.export("gpt", out="exported", quiet=True) / "config.json").is_file()
    pairs = [(f"say {i}", f"{i} times") for i in range(40)]
    (translated,) = pencil.train("seq2seq", pairs, out="pairs", **SMALL).predict(["say 7"], max_new_tokens=3)
    assert translated.ended in ("length", "end")
    pixels = np.random.default_rng(3).integers(0, 255, (12, 8, 8), dtype=np.uint8)
    album = {"image": list(pixels), "text": [f"a photo of cat {i % 3}" for i in range(12)]}
    described = pencil.train("captioner", album, out="album", **SMALL)
    assert described.evaluate(album, quiet=True).keys() >= {"exact_match"}
    assert annotation_kind(in_memory.register(album)) == "caption"
    assert annotation_kind(in_memory.register({"image": album["image"]})) == "nothing"
    assert annotation_kind(in_memory.register((album["image"], ["a"] * 12))) == "label"


GREY = np.zeros((4, 8, 8), np.uint8)


@pytest.mark.parametrize("family, data, names, said", [
    ("reader", [], {}, "the data in memory is empty"),
    ("reader", 7, {}, "not int"),
    ("reader", pandas.DataFrame(COLUMNS), dict(text="saids"), "has no column saids; did you mean said"),
    ("reader", {"a": ["x", "y"], "b": ["x"]}, {}, "columns of 2 and 1 values"),
    ("reader", [("a", "b"), ("a",)], {}, "row 2: not a pair"),
    ("reader", [("a", "x"), ("b", None), ("c", "y")], {}, "row 2: the label is empty"),
    ("reader", [("a", ""), ("", "x"), ("c", None), ("d", "y")], {}, r"the text is empty in 1 row \(2\) and the label is empty in 2 rows \(1, 3\)"),
    ("reader", {"text": ["a", "b", "c"], "label": ["x", ["y"], "x"]}, {}, "row 2: the label is a list"),
    ("reader", polars.DataFrame(COLUMNS).lazy(), NAMED, r"LazyFrame is a query that has not run: give its result, .collect\(\)"),
    ("reader", pandas.concat([pandas.DataFrame(COLUMNS)] * 2, axis=1), NAMED, "has 2 columns named number"),
    ("reader", pandas.DataFrame(COLUMNS), dict(text="said", label="said"), "text and label both name the column said"),
    ("reader", pandas.DataFrame(COLUMNS), dict(source="said"), "source= names no column that a reader reads, only text, label do"),
    ("reader", None, NAMED, "data is None, and text= names a column of it"),
    ("reader", None, dict(keep_data=True), "data is None, and keep_data keeps a copy"),
    ("gpt", "the cat sat on a mat " * 13, {}, r"data is a text of 273 characters.*in a list, \[text\]"),
    ("reader", {"train": datasets.Dataset.from_dict({"text": ["a"]})}, {}, "has the parts train: give one"),
    ("reader", ["t.tsv"], {}, "t.tsv is a file"),
    ("vit", (GREY / 2, [0, 1, 0, 1]), {}, "row 1: an array of a picture is uint8"),
    ("vit", (GREY, [0, None, 0, 1]), {}, "row 2: the picture has no label"),
    ("vit", {"image": list(GREY), "x": [0, 1, 0, 1]}, {}, "say which has the labels, label=COLUMN"),
    ("gpt", {"a": ["x"], "b": ["y"]}, {}, "say which has the texts, text=COLUMN"),
    ("vit", "photos", dict(label="kind"), "label_column is not a setting of a vit"),
])  # fmt: skip
def test_refusals(tmp_path, family, data, names, said):
    (tmp_path / "t.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match=said):
        pencil.train(family, data, out="run", **names, **SMALL)
    assert not (tmp_path / "run").exists()


def test_keep_data_and_columns_are_for_data_in_memory(tmp_path):
    (tmp_path / "t.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in ROWS))
    with pytest.raises(UserError, match="keep_data is for data in memory"):
        pencil.train("reader", "t.tsv", keep_data=True, out="run", **SMALL)
    with pytest.raises(UserError, match="column is for a table"):
        pencil.train("reader", ROWS, out="run", **SMALL).predict(["x"], column="y")
