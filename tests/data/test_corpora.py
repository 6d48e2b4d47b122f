"""Several files as one corpus: lists, patterns and folders, plain texts, JSON lines, compressed ones, and Parquet."""

import gzip
import json
import tracemalloc

import numpy as np
import pytest

from pencil.config import UserError
from pencil.data import path_patterns
from pencil.data.images import open_images as images
from pencil.data.images.shards import find_shards
from pencil.data.tables.pairs import load_labelled, read_parquet
from pencil.data.text import corpus, records
from pencil.data.text import text_data as text
from pencil.data.tokenizers.from_checkpoint import find_tokenizer
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.train.tasks.language_modeling import LanguageModeling

ROWS = [{"id": i, "text": f"document {i}, été\n" * (1 + i % 3)} for i in range(13)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def lines(rows=ROWS):
    return "".join(json.dumps(row) + "\n" for row in rows)


def texts(found):
    return ["".join(document) for document in found.documents()]


WHOLE = [row["text"] for row in ROWS]


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "jsonl.gz", "jsonl.zst", "parquet"])
def test_each_record_is_a_document(tmp_path, kind):
    path = tmp_path / f"tales.{kind}"
    if kind.endswith("gz"):
        path.write_bytes(gzip.compress(lines().encode()))
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow (of the extra datasets) is not installed")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.Table.from_pylist(ROWS), path, row_group_size=5)
    elif kind.endswith("zst"):
        arrow = pytest.importorskip("pyarrow", reason="pyarrow (of the extra datasets) is not installed")
        with arrow.CompressedOutputStream(str(path), "zstd") as file:
            file.write(lines().encode())
    else:
        path.write_text(lines())
    data = text.load(str(path), "byte")
    assert texts(data.corpus) == WHOLE
    assert bytes(data.ids.astype(np.uint8)).decode() == "".join(one + "\n" for one in WHOLE)
    assert data.corpus.name == "tales"
    assert data.corpus.notes == [f"tales.{kind}: one document a record, its text from text"]
    made = [part for unit in units(data.corpus) for part in unit]
    assert np.array_equal(np.concatenate(made), data.ids)


def units(found):
    from pencil.data.text.chunks import closing, encode_unit, units_of

    tokenizer = ByteTokenizer()
    for unit in units_of(found, True, 97):
        yield encode_unit(unit, tokenizer, closing(found, tokenizer))


def test_a_folder_mixes_texts_and_records(tmp_path):
    (folder := tmp_path / "set").mkdir()
    (folder / "b.jsonl").write_text("\ufeff" + lines(ROWS[:3]) + "\n\n" + lines(ROWS[3:4]))
    (folder / "a.txt").write_text("plain")
    (folder / "c.md").write_text("end")
    data = text.load(str(folder), "byte")
    assert texts(data.corpus) == ["plain", *WHOLE[:4], "end"]
    assert text.find(str(folder), plain=True).hash != data.corpus.hash  # other documents, other tokens
    (folder / "b.jsonl").unlink()
    assert text.find(str(folder)).hash != data.corpus.hash


def links_out(folder, name):
    """A folder with a link of this name to a file beside it; the sentence that refuses it."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(folder.parent / "secret")
    return rf"{name} is a link that leads out of \S*{folder.name}: copy its target into the folder, or remove the link"


@pytest.mark.parametrize("read, name", [
    (lambda folder: text.find(str(folder)), "z.txt"), (lambda folder: text.find(str(folder)), "z.jsonl"),
    (lambda folder: text.find(str(folder)), "inner/z.txt"), (lambda folder: text.find(f"{folder},{folder}"), "z.txt"),
    (lambda folder: text.find(f"{folder}/*.txt"), "z.txt"), (lambda folder: find_shards(str(folder)), "z.tar"),
    (lambda folder: read_parquet(folder, str(folder)), "z.parquet"), (lambda folder: text.find(f"hf:{folder}"), "z.csv"),
    (lambda folder: images.load(f"hf:{folder}", "label"), "z.parquet"), (find_tokenizer, "vocab.txt"),
    (find_tokenizer, "tokenizer_config.json"), (lambda folder: images.load(str(folder), "label"), "train-images-idx3-ubyte"),
])  # fmt: skip
def test_no_reader_of_a_folder_follows_a_link_out_of_it(tmp_path, read, name):
    (folder := tmp_path / "set").mkdir()
    (folder / "a.txt").write_text("plain")
    (tmp_path / "secret").write_text("root:x:0:0")
    with pytest.raises(UserError, match=links_out(folder, name)):
        read(folder)


@pytest.mark.parametrize("pattern", ["set/**/*.txt", "set/*/a.txt"])
def test_a_pattern_follows_no_folder_out_of_its_own(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    for folder in ("set/inner", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text("plain")
    assert texts(text.find(pattern)) == ["plain"]
    (tmp_path / "set" / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="^set/out is a link that leads out of set: copy its target into the folder"):
        text.find(pattern)


def test_links_within_a_folder_and_the_folder_itself_are_followed(tmp_path):
    (folder := tmp_path / "set").mkdir()
    (folder / "a.txt").write_text("plain")
    (folder / "b.txt").symlink_to("a.txt")
    (tmp_path / "way").symlink_to(folder)
    assert texts(text.find(str(tmp_path / "way"))) == ["plain"] * 2
    assert texts(text.find(f"{tmp_path}/way/*.txt")) == ["plain"]  # a pattern takes each file once
    (tmp_path / "linked.txt").symlink_to(folder / "a.txt")
    assert texts(text.find(str(tmp_path / "linked.txt"))) == ["plain"]  # named by the user


def test_lists_patterns_and_braces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a-07", "a-08", "a-09", "a-10", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.txt").write_text("c")
    (tmp_path / "odd,name*.txt").write_text("odd")
    for data, found in {
        "b.txt,a-10.txt": ["b", "a-10"],
        "a-*.txt": ["a-07", "a-08", "a-09", "a-10"],
        "a-{08..10}.txt": ["a-08", "a-09", "a-10"],
        "{b,a-07}.txt, deep": ["b", "a-07", "c"],
        "**/c.txt,b.txt,b.txt": ["c", "b"],
        "odd,name*.txt": ["odd"],
    }.items():
        assert texts(text.find(data)) == found, data
        if path_patterns.is_several(data):
            whole = path_patterns.absolute(data)
            monkeypatch.chdir("/")
            assert text.find(whole).hash == text.find(whole).hash
            assert texts(text.find(whole)) == found
            monkeypatch.chdir(tmp_path)
    for data, why in {
        "b.txt,no.txt": r"there is no file or folder no\.txt, which --data b\.txt,no\.txt names",
        "x-*.txt": r"no file matches x-\*\.txt",
        "a-{9..2}.txt": r"\{9\.\.2\} in --data should count up",
    }.items():
        with pytest.raises(UserError, match=why):
            text.find(data)
    (tmp_path / "a-11.txt").write_bytes(b"\x89PNG\r\n")
    assert [path.name for path, _ in text.find("a-*.txt").skipped] == ["a-11.txt"]
    with pytest.raises(UserError, match=r"a-11\.txt cannot be trained on: a picture"):
        text.find("b.txt,a-11.txt")


def test_the_column_of_the_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "t", "body": "b"}\n')
    assert text.find(str(path)).column is None  # read as plain text, as before
    assert "JSON by the name, read as plain text" in text.find(str(path)).notes[0]
    assert texts(text.find(str(path), "body")) == ["b"]
    with pytest.raises(UserError, match=r"a\.jsonl has title, body, and not words: name the column"):
        text.find(str(path), "words")
    path.write_text('{"body": "b", "n": 7}\n')
    assert texts(text.find(str(path))) == ["b"]
    (tmp_path / "b.txt").write_text("words")
    with pytest.raises(UserError, match=r"data\.text_column is for \.jsonl and Parquet files"):
        text.find(str(tmp_path / "b.txt"), "text")
    with pytest.raises(UserError, match=r"data\.text_column is for \.jsonl and Parquet files"):
        text.find("pydoc", "text")


@pytest.mark.parametrize(
    "line, why",
    [
        ("[1]", "not a JSON object"),
        ('{"text"', "not JSON"),
        ('{"text": null}', "text is no text"),
        ('{"word": "a"}', r"text is not there \(it has word\)"),
        ('{"text": "\\ud800"}', "text is not text that can be written as UTF-8"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_by_its_line(tmp_path, line, why):
    path = tmp_path / "a.jsonl"
    path.write_text(lines() + line + "\n" + lines())
    with pytest.raises(UserError, match=rf"a\.jsonl, line 14: {why}") as error:
        text.load(str(path), "byte")
    assert "\n" not in str(error.value)


def test_a_packed_line_that_is_too_long_is_refused_before_it_is_in_memory_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1 << 23)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * (1 << 24) + b'"}\n'))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"a\.jsonl\.gz, line 1: longer than 8,388,608 bytes"):
            next(records.lines_of(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * records.MAX_LINE_BYTES
    monkeypatch.setattr(records, "PIECE_BYTES", 7)  # lines of any length come whole
    whole = [b"a" * length + b"\n" for length in (0, 5, 6, 7, 13, 14, 20)] + [b"the end"]
    path.write_bytes(gzip.compress(b"".join(whole)))
    assert [line for _, line in records.lines_of(path)] == whole


def test_compressed_records_that_are_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(lines([{"text": f"{i * 7919} words"} for i in range(9973)]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a\.jsonl\.gz cannot be read: Compressed file ended"):
        text.load(str(path), "byte")
    path.write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"a\.jsonl\.gz cannot be read: Not a gzipped file"):
        text.load(str(path), "byte")
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1000)
    path.write_bytes(gzip.compress(json.dumps({"text": "a" * 2000}).encode()))
    with pytest.raises(UserError, match="line 1: longer than 1,000 bytes"):
        text.load(str(path), "byte")


def test_lines_that_end_as_on_windows_are_announced(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (tmp_path / "b.txt").write_bytes(b"one\ntwo\r three\n")
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a"}\r\n{"text": "b"}\r\n')
    assert corpus.find(str(tmp_path / "a.txt")).notes == [
        "a.txt: lines end in CR LF, as on Windows, and the CR is learned as a character too; convert to LF (dos2unix) to "
        "leave it out"
    ]
    assert "".join(corpus.find(str(tmp_path / "a.txt")).pieces()) == "one\r\ntwo\r\n"  # as before
    assert corpus.find(str(tmp_path / "b.txt")).notes == []
    assert not any("CR LF" in note for note in corpus.find(str(tmp_path / "c.jsonl")).notes)


def test_a_text_of_two_encodings_is_not_to_be_converted_whole(tmp_path, monkeypatch):
    """What is UTF-8 already would become other letters."""
    monkeypatch.setattr(corpus, "CHUNK", 7)
    for begin, line in (("Käse\nund\n", 3), ("Käse", 1), ("plain\nÄ\nplain and long enough\n", 4)):
        (tmp_path / "a.txt").write_bytes(begin.encode() + "Brot und Öl\n".encode("latin-1"))
        at = len(begin.encode()) + 9
        with pytest.raises(
            UserError, match=rf"\(byte 0xd6 at offset {at}\); .* two encodings: .* in line {line} as UTF-8"
        ):
            corpus.find(str(tmp_path / "a.txt"))
    for begin in ("plain\n", "plain.\n"):  # of the first a block ends within what is no character
        (tmp_path / "a.txt").write_bytes(begin.encode() + "Öl".encode("latin-1"))
        with pytest.raises(UserError, match="convert it: iconv"):
            corpus.find(str(tmp_path / "a.txt"))
    for end in ("Käse und\n", "plain\nKäse\nplain"):
        (tmp_path / "a.txt").write_bytes("Öl\nund Öl\n".encode("latin-1") + end.encode())
        with pytest.raises(
            UserError, match="offset 0\\); other lines are, .* two encodings: save line 1, and the others"
        ):
            corpus.find(str(tmp_path / "a.txt"))
    (tmp_path / "a.csv").write_bytes("text,label\nÖl,b\n".encode("latin-1") + "Käse,a\n".encode())
    with pytest.raises(UserError, match="line 2: byte 0xd6, .* two encodings: save line 2, and the others"):
        load_labelled(str(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_bytes("text,label\nKäse,a\n".encode() + "Öl,b\n".encode("latin-1"))
    with pytest.raises(UserError, match="line 3: byte 0xd6, .* two encodings: save what begins in line 3"):
        load_labelled(str(tmp_path / "a.csv"))


def test_a_large_file_is_checked_once_while_it_stays_the_same(tmp_path, monkeypatch):
    from pencil.data import cache

    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", -(1 << 62))  # as if the files had been there for long
    monkeypatch.setattr(corpus, "LARGE_BYTES", 1)
    path = tmp_path / "a.txt"
    path.write_text("words " * 99)
    read, plain = [], corpus._read
    monkeypatch.setattr(corpus, "_read", lambda path: read.append(path.name) or plain(path))
    first = text.find(str(path)).hash
    assert text.find(str(path)).hash == first
    assert read == ["a.txt"]
    path.write_text("wordy " * 99)
    assert text.find(str(path)).hash != first
    assert len(read) == 2
    path.write_bytes(b"words\0")
    for _ in range(2):
        with pytest.raises(UserError, match="binary data"):
            text.find(str(path))


GPT = ["--model.context", "8", "--model.width", "12", "--model.heads", "2", "--model.depth", "1", "--train.batch", "3",
       "--train.steps", "2", "--train.eval_batches", "1", "--train.warmup", "0", "--tokenizer", "byte"]  # fmt: skip


@pytest.mark.usefixtures("light")
def test_a_run_reads_its_records_again_as_it_did(type_in, fails, tmp_path):
    (tmp_path / "one").mkdir()
    for k in range(3):
        (tmp_path / "one" / f"{k}.jsonl").write_text(lines(ROWS[4 * k : 4 * k + 4]))
    shown = type_in("train", "gpt", "--data", "one/{0..2}.jsonl", "--out", "run", *GPT)
    assert "0.jsonl and 2 more: one document a record, its text from text" in shown.err.replace("\n", " ")
    assert 'text_column = "text"' in (tmp_path / "run" / "config.toml").read_text()
    assert f'data_path = "{tmp_path}/one/{{0..2}}.jsonl"' in (tmp_path / "run" / "config.toml").read_text()
    type_in("resume", "run", "--train.steps", "3")
    (tmp_path / "one" / "1.jsonl").write_text(lines(ROWS[3:]))
    assert "has changed since run was trained on it" in fails("eval", "run")


class OldRun:
    """What a run recorded before Pencil read records: no column."""

    tokenizer = ByteTokenizer()

    def __init__(self, data):
        self.config = {"run": {"data_hash": data, "data": "a.jsonl"}, "model": {}}


class Sizes:
    def read_config(self, model):
        return type("Config", (), {"context": 8})


def test_a_run_of_before_reads_plain_text(tmp_path):
    for name in ("a.jsonl", "a.txt"):
        (tmp_path / name).write_text(lines())
    run = OldRun(text.find(str(tmp_path / "a.txt")).hash)
    task = LanguageModeling.reopen(Sizes(), run, str(tmp_path / "a.jsonl"), None)
    assert bytes(task.data.ids.astype(np.uint8)).decode() == lines()


def test_what_lies_in_a_folder_that_is_named_comes_once(tmp_path):
    (tmp_path / "c" / "a").mkdir(parents=True)
    (tmp_path / "c" / "x.txt").write_text("x\n")
    (tmp_path / "c" / "a" / "y.txt").write_text("y\n")
    c = tmp_path / "c"
    for data in (f"{c}/**", f"{c}/**/*", f"{c},{c}/x.txt", f"{c}/x.txt,{c}/a/y.txt,{c}/x.txt", f"{c}/*,{c}/a/*"):
        assert sorted(texts(text.find(data))) == ["x\n", "y\n"], data


def test_a_file_that_becomes_records_makes_another_corpus(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.jsonl").write_text(lines())
    (tmp_path / "c" / "b.txt").write_text(lines())
    before = text.find(str(tmp_path / "c"))
    (tmp_path / "c" / "b.txt").rename(tmp_path / "c" / "b.jsonl")
    after = text.find(str(tmp_path / "c"))
    assert (before.column, after.column) == ("text", "text")
    assert before.hashes == after.hashes
    assert before.hash != after.hash


def test_a_long_list_is_a_list(tmp_path):
    (tmp_path / "x.txt").write_text("x\n")
    assert len(text.find(",".join([f"{tmp_path}/x.txt"] * 997)).files) == 1


@pytest.mark.usefixtures("light")
def test_other_records_are_evaluated_by_the_column_of_the_run(type_in, tmp_path):
    rows = [{"title": f"title {i}", "body": f"the body of {i}\n" * 9} for i in range(31)]
    (tmp_path / "a.jsonl").write_text(lines(rows))
    settings = tmp_path / "run.toml"
    settings.write_text(f'[run]\nfamily = "gpt"\ndata = "{tmp_path}/a.js*"\n[data]\ntext_column = "body"\n')
    small = ["--model.width", "8", "--model.depth", "1", "--model.heads", "2", "--model.context", "16"]
    type_in("train", "--config", settings, "--out", tmp_path / "run", *small, "--train.steps", "1", "--train.warmup", "0",
            "--train.eval_batches", "1")  # fmt: skip
    (tmp_path / "b.jsonl").write_text(lines([{**row, "text": "not this"} for row in rows]))
    shown = type_in("eval", tmp_path / "run", "--data", tmp_path / "b.jsonl")
    assert "b.jsonl: one document a record, its text from body" in shown.err
