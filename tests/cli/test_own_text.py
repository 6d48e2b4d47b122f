"""Own tables and texts from the command line: how they are read is announced, recorded, and the same ever after."""

import csv
import json
import tomllib

import pytest

from conftest import call

SMALL = ["--model.width", 12, "--model.depth", 1, "--model.heads", 3, "--train.steps", 2, "--train.batch", 4]
GOOD, BAD = ("great", "lovely", "funny"), ("dull", "poor", "weak")
ROWS = [
    (f"The film, they say, was {(GOOD if i % 3 else BAD)[i % 2]} {i}", "pos" if i % 3 else "neg") for i in range(61)
]


def save(path, rows, delimiter=",", end="\r\n"):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(rows)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A reader of a table whose columns had to be named."""
    folder = tmp_path_factory.mktemp("own")
    rows = [(i % 5, words, label) for i, (words, label) in enumerate(ROWS)]
    table = save(folder / "reviews.csv", [("stars", "review", "sentiment"), *rows])
    done = call(
        "train", "reader", "--data", table, "--data.label_column", "sentiment", *SMALL, "--out", folder / "run"
    )  # fmt: skip
    return folder, done.stderr


def test_a_labelled_table_is_classified_and_how_it_is_read_is_announced_and_recorded(trained):
    folder, notes = trained
    assert (
        "reviews.csv: comma-separated with a header; text from column review, label from column sentiment (2 classes)"
    ) in notes.splitlines()
    assert any(line.startswith("tokenizer bpe, ") for line in notes.splitlines())
    config = tomllib.loads((folder / "run" / "config.toml").read_text())
    assert config["run"]["classes"] == ["neg", "pos"]
    assert config["data"] == {
        "delimiter": "comma", "header": True, "text_column": "review", "label_column": "sentiment"
    }  # fmt: skip


def test_a_run_of_a_table_is_evaluated_and_goes_on(trained):
    folder, _ = trained
    metrics = json.loads(call("eval", folder / "run", "--json").stdout)
    assert {"accuracy", "recall.pos"} <= set(metrics)
    call("resume", folder / "run", "--train.steps", 3)


def test_a_run_is_evaluated_on_another_table_by_the_same_columns(trained):
    folder, _ = trained
    rows = [(label, i % 5, words) for i, (words, label) in enumerate(ROWS[:31])]
    other = save(folder / "other.csv", [("sentiment", "stars", "review"), *rows], ";", "\n")
    assert "31 texts" in call("eval", folder / "run", "--data", other).stderr


def test_a_text_model_says_that_it_reads_a_table_as_text(tmp_path):
    table = save(tmp_path / "reviews.csv", ROWS)
    done = call("train", "gpt", "--data", table, "--model.context", 16, *SMALL, "--out", tmp_path / "run")
    assert "reviews.csv: a table by the name, read as plain text, with its delimiters and quotes" in done.stderr
    assert "tokenizer char, " in done.stderr


def test_a_tokenizer_that_cannot_be_as_large_says_so(tmp_path):
    (tmp_path / "notes.txt").write_text("the cat sat on the mat. " * 99)
    words = ["train", "gpt", "--data", tmp_path / "notes.txt", "--model.context", 16, *SMALL, "--out", tmp_path / "run"]
    done = call(*words, "--tokenizer", "bpe", "--vocab", 997)
    assert "tokens; the text has no more for --vocab 997" in done.stderr


@pytest.fixture
def files(tmp_path):
    save(tmp_path / "reviews.csv", [("stars", "review", "sentiment"), *((i % 5, *row) for i, row in enumerate(ROWS))])
    (tmp_path / "notes.txt").write_text("the cat sat on the mat. " * 99)
    (tmp_path / "letter.docx").write_bytes(b"PK\x03\x04words")
    return tmp_path


REFUSED = [
    (["reader", "reviews.csv"], "has the columns stars ('0'), review ('The film, they say,…'), sentiment ('neg'), and "
     "which is the label is not clear; name it with --data.label_column sentiment, whose values repeat"),
    (["reader", "reviews.csv", "--data.label_column", "sentimnt"], "has no column sentimnt; did you mean sentiment?"),
    (["reader", "reviews.csv", "--data.source_column", "review"], "data.source_column has no effect on a reader"),
    (["reader", "reviews.csv", "--data.delimiter", "colon"], "data.delimiter must be one of comma, semicolon, tab, pipe"),
    (["reader", "notes.txt", "--data.header", "true"], "data.header is for a table of texts with labels"),
    (["seq2seq", "reviews.csv"], "which is the source and which the target is not clear; name them with --data.source_column"),
    (["seq2seq", "dates", "--data.header", "true"], "data.header has no effect on dates"),
    (["gpt", "notes.txt", "--vocab", "300"], "--vocab 300 has no effect on the tokenizer char"),
    (["gpt", "notes.txt", "--data.header", "true"], "data.header has no effect on a gpt"),
    (["gpt", "letter.docx"], "a Word document; save its text as a .txt file in UTF-8"),
    (["dit", "digits", "--model.window", "2"], "model.window has no effect with model.attention full"),
    (["resnet", "digits"], "resnet is not a family of models; known: captioner, "),
    (["gpt", "notes.txt", "--train.time", "5"], "train.time is not a setting; pencil train FAMILY --settings lists"),
]  # fmt: skip


@pytest.mark.parametrize("words, message", REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_has_no_effect_or_no_meaning_is_refused(files, words, message):
    family, data, *rest = words
    data = files / data if (files / data).exists() else data
    done = call("train", family, "--data", data, *rest, "--out", files / "run", code=2)
    assert message in done.stderr
    assert not (files / "run").exists()


@pytest.mark.parametrize("labelled", [True, False])
def test_images_with_texts_and_labels_say_which_is_used(labelled, tmp_path):
    from PIL import Image

    rows = []
    for i in range(23):
        Image.new("L", (8, 8), i * 10).save(tmp_path / f"{i}.png")
        label = {"label": "dark" if i % 2 else "light"} if labelled else {}
        rows.append({"file_name": f"{i}.png", "text": f"grey {i}", **label})
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("train", "dit", "--data", tmp_path, *SMALL, "--model.image_size", 8, "--out", tmp_path / "run")
    said = "has texts and labels: the texts are used; --model.classes chooses the labels"
    assert (said in done.stderr) == labelled
