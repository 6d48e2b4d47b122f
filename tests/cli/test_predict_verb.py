"""`pencil predict`: every input has its row, in its order, with what `pencil.predict` says of it alone."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import pencil
from conftest import unchecked
from pencil.api.predict_files import BATCHES_AHEAD, predict_file
from pencil.config import UserError
from pencil.data.inputs import MAX_LINE, Input, count_inputs, inputs_of


@pytest.fixture(autouse=True)
def fast():
    with unchecked():
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Eleven pictures of different shapes, two of them broken, in two folders; and a hidden one."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    for i in range(11):
        path = folder / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (13 + i, 17, 3), dtype=np.uint8)).save(path)
    (folder / "a" / "2.png").write_bytes(b"no picture")
    (folder / "b" / "5.png").unlink()
    (folder / "b" / "5.png").symlink_to(folder / "gone.png")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def rows_of(path):
    path = Path(path)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    with path.open(newline="") as file:
        return [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]


def test_pictures_of_a_folder_in_every_format(vit_run, pictures, type_in):
    loaded, tables = pencil.load(vit_run), []
    for ending in ("csv", "jsonl", "parquet"):
        said = type_in("predict", vit_run, pictures, "--out", f"p.{ending}", "--probabilities", "--batch", 3).err
        assert said.splitlines()[-1].endswith(f"p.{ending}: 11 rows, 2 of them with an error")
        tables.append(rows_of(f"p.{ending}"))
        assert not Path(f"p.{ending}.part").exists()
    names = [str(pictures / "ab"[i % 2] / f"{i}.png") for i in (0, 10, 2, 4, 6, 8, 1, 3, 5, 7, 9)]
    for table in tables:
        assert [row["input"] for row in table] == names
        for row, name in zip(table, names, strict=True):
            if name.endswith(("/2.png", "/5.png")):
                assert row["label"] is None
                assert name in row["error"]
                continue
            alone = loaded.predict(name)
            assert row["error"] is None
            assert row["label"] == alone.label
            each = [float(row[f"probability of {one}"]) for one in loaded.classes]
            np.testing.assert_allclose(each, alone.probabilities, atol=1e-6)
            assert float(row["probability"]) == max(each)
    assert tables[1] == tables[2]
    assert [[str(v) if v is not None else None for v in row.values()] for row in tables[1]] == [
        list(row.values()) for row in tables[0]
    ]


def test_texts_of_a_table_each_as_alone(classifier_run, type_in, tmp_path):
    texts = [
        "the film was grim",
        "a plot so fine here",
        "it",
        "",
        "it is fine again and again",
        "so",
        "fine " * 500,
        "grim, grim",
    ]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "review"], *enumerate(texts)])
    type_in("predict", classifier_run, tmp_path / "t.csv", "--out", "p.jsonl", "--batch", 3)
    loaded, rows = pencil.load(classifier_run), rows_of("p.jsonl")
    assert [row["input"] for row in rows] == texts
    for text, row in zip(texts, rows, strict=True):
        if row["error"]:
            with pytest.raises(UserError) as refused:
                loaded.predict(text)
            assert row == {"input": text, "label": None, "probability": None, "error": str(refused.value)}
            continue
        alone = loaded.predict(text)
        assert row["label"] == alone.label
        assert abs(row["probability"] - alone.probability) < 1e-6
    assert [bool(row["error"]) for row in rows] == [False, False, False, True, False, False, True, False]


def test_a_blank_line_of_standard_input_is_a_row(classifier_run, type_in, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("so fine\n\ngrim\n"))
    said = type_in("predict", classifier_run, "-", "--out", "p.jsonl").err
    assert said.endswith("p.jsonl: 3 rows, 1 of them with an error\n")
    assert [row["input"] for row in rows_of("p.jsonl")] == ["so fine", "standard input, line 2", "grim"]
    assert [row["error"] for row in rows_of("p.jsonl")] == [None, "standard input, line 2: the line is blank", None]


def test_texts_that_are_written(seq2seq_run, captioner_run, pictures, type_in, monkeypatch):
    sources = ["abc", "ad", "ceb", "abd"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(sources) + "\n"))
    type_in("predict", seq2seq_run, "-", "--out", "p.csv", "--max-new-tokens", 5)
    written = pencil.predict(seq2seq_run, sources, max_new_tokens=5)
    assert [(r["input"], r["text"] or "", r["ended"]) for r in rows_of("p.csv")] == [
        (source, one.text, one.ended) for source, one in zip(sources, written, strict=True)
    ]
    type_in("predict", seq2seq_run, "-", "--out", "beams.csv", "--beams", 2, code=2)  # all of it was read
    type_in("predict", captioner_run, pictures / "b", "--out", "c.jsonl", "--max-new-tokens", 3, "--strict", code=2)
    type_in("predict", captioner_run, pictures / "b", "--out", "c.jsonl", "--max-new-tokens", 3)
    rows = rows_of("c.jsonl")
    assert [row["text"] for row in rows if not row["error"]] == [
        one.text
        for one in pencil.predict(captioner_run, [pictures / "b" / f"{i}.png" for i in (1, 3, 7, 9)], max_new_tokens=3)
    ]


class Killed(BaseException):
    pass


def killed_after(batches):
    def progress(done, errors, calls=[]):  # noqa: B006
        calls.append(done)
        if len(calls) == batches:
            raise Killed

    return progress


def test_a_killed_prediction_goes_on_where_it_was(vit_run, pictures, tmp_path):
    loaded = pencil.load(vit_run)
    inputs = lambda: inputs_of([str(pictures)], "picture")  # noqa: E731
    whole = predict_file(loaded, inputs(), tmp_path / "whole.csv", batch=2)
    assert whole[1:] == (11, 2, 0)
    out, part = tmp_path / "p.csv", tmp_path / "p.csv.part"
    with pytest.raises(Killed):
        predict_file(loaded, inputs(), out, batch=2, progress=killed_after(3))
    assert not out.exists()
    assert len(part.read_text().splitlines()) == 7
    with part.open("a") as file:
        file.write('{"input": "half a li')  # the writer was killed within a line
    read = [0]
    counted = (read.__setitem__(0, read[0] + 1) or one for one in inputs())
    assert predict_file(loaded, counted, out, batch=2)[1:] == (11, 2, 6)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with pytest.raises(UserError, match="is already there: --force"):
        predict_file(loaded, inputs(), out, batch=2)


def test_what_was_begun_of_other_inputs_or_options_is_not_gone_on_with(seq2seq_run, tmp_path):
    loaded, out = pencil.load(seq2seq_run), tmp_path / "p.jsonl"
    texts = lambda *words: (Input(word, word) for word in words)  # noqa: E731
    with pytest.raises(Killed):
        predict_file(loaded, texts("abc", "ad"), out, {"max_new_tokens": 3}, progress=killed_after(1))
    with pytest.raises(UserError, match="of another prediction"):
        predict_file(loaded, texts("abc", "ad"), out, {"max_new_tokens": 5})
    for others, now in (
        (("abc", "ae"), "ad as input 2, and now it is ae"),
        (("abc",), "ad as input 2, and now there is none"),
    ):
        with pytest.raises(UserError, match=now):
            predict_file(loaded, texts(*others), out, {"max_new_tokens": 3})
    assert predict_file(loaded, texts("abc", "ae"), out, {"max_new_tokens": 3}, force=True)[1:] == (2, 0, 0)


def test_few_inputs_are_read_before_their_rows_are_written(vit_run, pictures, tmp_path):
    """Whatever their number: memory holds the batches that are read ahead."""
    taken, ahead = [0], []

    def many():
        for i in range(1000):
            taken[0] = i + 1
            yield Input(str(i), pictures / "a" / "0.png")

    def progress(done, errors):
        ahead.append(taken[0] - done)
        if done > 100:
            raise Killed

    with pytest.raises(Killed):
        predict_file(pencil.load(vit_run), many(), tmp_path / "p.csv", batch=7, progress=progress)
    assert len(ahead) > 10
    assert max(ahead) <= (BATCHES_AHEAD + 1) * 7 + 1


def test_what_words_name(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = pictures / "a" / "0.png"
    (tmp_path / "list.txt").write_text(f"{picture}\n\nnowhere.png\n")
    (tmp_path / "t.tsv").write_text("file_name\tlabel\n0.png\tx\n\n1.png\n")
    rows = [{"image": "0.png", "n": 1}, {"image": None, "n": 2}, [3], {"image": True, "n": 3}]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + "{\n" + f'{{"image": "{"a" * MAX_LINE}"}}\n'
    )
    assert count_inputs([str(pictures), str(picture)], "picture") == 12
    assert count_inputs([str(pictures), "list.txt"], "picture") is None
    found = [*inputs_of([str(picture), "list.txt", "t.tsv", "t.jsonl"], "picture")]
    assert [(one.name, str(one.value) if one.value else None) for one in found if not one.fault] == [
        (str(picture), str(picture)), (str(picture), str(picture)), ("nowhere.png", "nowhere.png"), ("0.png", "0.png"), ("0.png", "0.png"),
    ]  # fmt: skip
    assert [one.fault for one in found if one.fault] == [
        "t.tsv, line 4: 1 cells, and the header has 2", "t.jsonl, line 2: the input is missing", "t.jsonl, line 3: not a JSON object",
        "t.jsonl, line 4: the input is no text but bool", "t.jsonl, line 5: not a JSON object", "t.jsonl, line 6: not a JSON object",
    ]  # fmt: skip


@pytest.mark.parametrize("words, said", [
    (["--out", "p.csv"], "INPUTS are missing"),
    (["nowhere", "--out", "p.csv"], "there is no file or folder nowhere"),
    (["a.csv", "--out", "p.txt"], "--out writes a .csv file, not p.txt"),
    (["a.csv", "--out", "p.csv", "--column", "texts"], "a.csv has no column texts; did you mean text"),
    (["b.csv", "--out", "p.csv"], "b.csv has the columns one, two, and which has the texts is not clear; name it with --column"),
    (["empty.txt", "--out", "p.csv"], "empty.txt is empty"),
    (["blank.txt", "--out", "p.csv"], "there is no input to predict from"),
    (["a.csv", "--out", "p.csv", "--batch", "0"], "--batch must be at least 1, not 0"),
    (["a.csv", "--out", "p.csv", "--beams", "2"], "beams is not an option of a reader's predictions"),
    (["folder", "--out", "p.csv"], "folder has no .txt file in it"),
    (["a.csv"], "--out"),
])  # fmt: skip
def test_refusals(classifier_run, fails, tmp_path, words, said):
    (tmp_path / "folder").mkdir()
    for name, content in (
        ("a.csv", "id,text\n1,x\n"),
        ("b.csv", "one,two\n1,x\n"),
        ("empty.txt", ""),
        ("blank.txt", "\n\n"),
    ):
        (tmp_path / name).write_text(content)
    assert said in fails("predict", classifier_run, *words)
    assert not (tmp_path / "p.csv").exists()


def test_a_model_without_inputs_or_classes_is_refused(dit_run, masked_run, fails, digit):
    assert "a dit has no inputs to predict from, only " in fails("predict", dit_run, digit, "--out", "p.csv")
    assert "tells no classes apart" in fails("predict", masked_run, "-", "--out", "p.csv")
