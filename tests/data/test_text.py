import io
import shutil
import sys
import tracemalloc

import numpy as np
import pytest

from pencil.config import UserError
from pencil.data.text import text_data as text
from pencil.data.tokenizers.tokenizer import ByteTokenizer, CharTokenizer


def test_a_file_is_its_text(tmp_path):
    path = tmp_path / "tale.txt"
    path.write_bytes("Once,\r\nin a café …\n".encode() * 50)
    data = text.load(str(path), "char")
    assert data.corpus.name == "tale"
    assert data.tokenizer.decode(data.ids.tolist()) == path.read_bytes().decode()
    assert len(data.train) + len(data.val) == len(data.ids)
    assert data.val_bytes == len(data.tokenizer.decode(data.val.tolist()).encode())


def test_a_byte_order_mark_is_not_text(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes("\ufeffbread\ufeff\n".encode())
    data = text.load(str(tmp_path), "char")
    assert [text for document in data.corpus.documents() for text in document] == ["bread\ufeff\n"] * 2


def test_a_folder_is_read_in_order_and_what_is_not_text_is_named(tmp_path):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b.txt").write_text("second")
    (folder / "a.md").write_text("first")
    (folder / "deep" / "c.py").write_text("third")
    (folder / ".hidden" / "secret").write_text("no")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "empty.txt").touch()
    data = text.load(str(folder), "byte")
    assert bytes(data.ids.tolist()).decode() == "first\nsecond\nthird\n"
    assert data.corpus.name == "notes"
    assert {(p.name, why.split(" (")[0]) for p, why in data.corpus.skipped} == {
        ("photo.png", "a picture; give a text"), ("latin.txt", "not UTF-8 text"), ("empty.txt", "empty")
    }  # fmt: skip


def test_a_folder_does_not_read_the_runs_it_holds(tmp_path, run):
    shutil.copytree(run, tmp_path / "runs" / "mine")
    (tmp_path / "a.txt").write_text("words")
    corpus = text.find(str(tmp_path))
    assert [p.name for p in corpus.files] == ["a.txt"]
    assert corpus.skipped == [(tmp_path / "runs" / "mine", "a run, not a text")]


def test_one_document_ends_with_the_end_token_too(tmp_path):
    (tmp_path / "a.txt").write_text("this is text " * 30)
    data = text.load(str(tmp_path / "a.txt"), "bpe", 270)
    assert data.ids[-1] == data.tokenizer.end


def test_every_file_of_a_folder_teaches_the_tokenizer(tmp_path):
    for i in range(300):
        (tmp_path / f"{i:03}.txt").write_text("first words here\n" if i < 290 else "zygomorphic zygomorphic\n" * 9)
    tokenizer = text.load(str(tmp_path), "bpe", 400).tokenizer
    assert len(tokenizer.encode(" zygomorphic")) == 1


def test_a_text_without_lines_is_read_in_pieces(tmp_path):
    path = tmp_path / "one-line.txt"
    path.write_text("word " * 1_500_000)
    corpus = text.find(str(path))
    sizes = [len(piece) for piece in corpus.pieces()]
    assert sum(sizes) == 7_500_000
    assert max(sizes) <= 2 * text.CHUNK


def test_documents_end_with_the_end_token_in_bpe(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"this is text {name} " * 20)
    data = text.load(str(tmp_path), "bpe", 270)
    assert list(data.ids).count(data.tokenizer.end) == 2


@pytest.mark.parametrize("content, words", [
    (b"", "empty"), (b"ab\0cd", "binary data .a zero byte at 2"), (b"caf\xe9 ol", "not UTF-8"), (b"caf\xc3", "within a character"),
])  # fmt: skip
def test_a_file_that_cannot_be_trained_on_is_refused(tmp_path, content, words):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        text.find(str(path))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no file or folder pydocs.*did you mean pydoc"):
        text.find("pydocs")
    with pytest.raises(UserError, match="holds no text file"):
        text.find(str(tmp_path))


def test_standard_input_is_kept_by_its_content(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n" * 9)))
    corpus = text.find("-")
    assert "".join(corpus.pieces()) == "from a pipe\n" * 9
    assert corpus.hash[:32] in corpus.files[0].name
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UserError, match="standard input cannot be trained on: empty"):
        text.find("-")


def test_the_embedded_text_is_pythons_own():
    corpus = text.find("pydoc")
    assert '"while" statement' in corpus.text
    assert len(corpus.text) > 300_000


def test_ids_are_cached_by_content_and_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    path.write_text("abc" * 40)
    first = text.load(str(path), "char")
    assert len(list((tmp_path / "cache").glob("tokens-*.uint16"))) == 1
    monkeypatch.setattr(CharTokenizer, "encode", lambda *_: pytest.fail("encoded again"))
    again = text.load(str(path), "char")
    assert np.array_equal(first.ids, again.ids)
    assert isinstance(again.ids, np.memmap)
    monkeypatch.undo()
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    path.write_text("abd" * 40)
    changed = text.load(str(path), "char")
    assert changed.tokenizer.decode(changed.ids[:3].tolist()) == "abd"
    assert len(list((tmp_path / "cache").glob("tokens-*.uint16"))) == 2


@pytest.mark.parametrize("vocab, dtype", [(256, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_are_as_narrow_as_the_vocabulary_allows(tmp_path, monkeypatch, vocab, dtype):
    class Wide(ByteTokenizer):
        def to_json(self):
            return f"wide {vocab}"

    Wide.vocab = vocab
    path = tmp_path / "a.txt"
    path.write_text("abc")
    assert text.tokenize(text.find(str(path)), Wide()).dtype == dtype


def test_an_interrupted_tokenization_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    path.write_text("abc\n" * 9)

    class Breaks(ByteTokenizer):
        def encode(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        text.tokenize(text.find(str(path)), Breaks())
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.long
def test_a_corpus_is_never_held_whole_in_memory(tmp_path):
    path = tmp_path / "large.txt"
    line = "the quick brown fox jumps over the lazy dog, again and again\n"
    path.write_text(line * (96_000_000 // len(line)))
    tracemalloc.start()
    data = text.load(str(path), "byte")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.ids) == path.stat().st_size
    assert peak < path.stat().st_size / 3
    assert bytes(data.ids[-len(line) :].tolist()).decode() == line
