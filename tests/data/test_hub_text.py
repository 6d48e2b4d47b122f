"""Texts of the hub: streamed into the cache once, in parts that outlast a stream that breaks off."""

import json

import numpy as np
import pytest

from pencil.config import UserError
from pencil.data.text import corpus
from pencil.data.text import text_data as text

ROWS = [{"text": f"tale {i} of a pencil, é\n" * (i % 5), "id": str(i)} for i in range(61)]


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    found = pytest.importorskip("datasets", reason="the datasets package (an extra) is not installed")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus, "PART_BYTES", 701)
    return found


@pytest.fixture
def tales(tmp_path):
    folder = tmp_path / "tales"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def texts(found):
    return ["".join(document) for document in found.documents()]


def test_a_stream_is_a_corpus_of_its_rows(datasets, tales, tmp_path):
    data = text.load(f"hf:{tales}", "byte")
    whole = [row["text"] for row in ROWS if row["text"]]
    assert texts(data.corpus) == whole
    assert bytes(data.ids.astype(np.uint8)).decode() == "".join(one + "\n" for one in whole)
    assert data.corpus.name == "tales"
    assert data.reading is not None
    assert data.reading.text_column == "text"
    parts = sorted((tmp_path / "cache").glob("hub-*.jsonl"))
    assert len(parts) > 5
    assert max(part.stat().st_size for part in parts) < 701 + 200


def test_it_is_streamed_once(datasets, tales, monkeypatch):
    first = text.find(f"hf:{tales}")
    monkeypatch.setattr(datasets, "load_dataset", lambda *words, **more: pytest.fail("streamed again"))
    for column in (None, "text"):  # the second is what a run has recorded
        again = text.find(f"hf:{tales}", column)
        assert (again.hash, again.files) == (first.hash, first.files)


def test_a_stream_that_breaks_off_goes_on_where_it_was(datasets, tales, tmp_path, monkeypatch, capsys):
    plain, asked = datasets.IterableDataset.__iter__, []

    def breaks(rows):
        for i, row in enumerate(plain(rows)):
            if i == 37:
                raise ConnectionResetError("the line is dead")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(datasets.IterableDataset, "__iter__", breaks)
        with pytest.raises(UserError, match="cannot be streamed: the line is dead; run the command again, which keeps"):
            text.find(f"hf:{tales}")
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "cache").glob("hub-*.jsonl")}
    assert len(kept) > 2
    capsys.readouterr()
    skip = datasets.IterableDataset.skip
    monkeypatch.setattr(datasets.IterableDataset, "skip", lambda rows, n: asked.append(n) or skip(rows, n))
    found = text.find(f"hf:{tales}")
    assert texts(found) == [row["text"] for row in ROWS if row["text"]]
    assert 0 < asked[0] <= 37
    assert f"{asked[0]} texts are there from an earlier run" in capsys.readouterr().err.replace("\n", " ")
    assert {path.name: path.stat().st_ino for path in found.files if path.name in kept} == kept


def test_what_cannot_be_streamed_is_one_sentence(datasets, tmp_path, monkeypatch):
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "train.jsonl").write_text('{"title": "a", "body": "b"}\n')
    with pytest.raises(UserError, match=r"has the columns title, body: name the one of the text, --data.text_column"):
        text.find(f"hf:{tmp_path / 'two'}")
    assert texts(text.find(f"hf:{tmp_path / 'two'}", "body")) == ["b"]
    with pytest.raises(UserError, match=r"row 1: words is not there \(it has title, body\)"):
        text.find(f"hf:{tmp_path / 'two'}", "words")
    with pytest.raises(UserError, match=r"hf:nobody/nothing cannot be streamed: .") as error:
        text.find("hf:nobody/nothing")
    assert "\n" not in str(error.value)


def test_a_commit_is_kept_with_the_run(datasets, tales, monkeypatch):
    commit, plain = "0123456789abcdef0123456789abcdef01234567", datasets.load_dataset
    asked = []

    def load(name, **how):
        asked.append((name, how))
        return plain(str(tales), streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = text.load(f"hf:owner/tales@{commit}", "byte")
    assert found.pinned == f"hf:owner/tales@{commit}"
    assert asked[0] == ("owner/tales", {"revision": commit, "streaming": True})
