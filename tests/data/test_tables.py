"""Tables of texts: any of them reads back as it was written, or is refused with the mend."""

import csv
import io
import re
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pencil.config import UserError
from pencil.data.tables import pairs
from pencil.data.tables.pairs import read_pairs
from pencil.data.tables.tables import DELIMITERS, LABELLED, LABELS, TEXTS, Format, NamedColumns
from pencil.data.text import text_data as text

ROWS = [(f"the film was {'good' if i % 3 else 'bad'}, number {i}", "pos" if i % 3 else "neg") for i in range(101)]
UNCLEAR = ("--data.delimiter", "--data.header", "--data.label_column", "--data.text_column")


def written(rows, **dialect):
    out = io.StringIO(newline="")
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue().encode()


def save(path, rows, **dialect):
    path.write_bytes(written(rows, **dialect))
    return str(path)


def everything(data):
    return sorted(data.train + data.test)


def refused(read, path, **given):
    with pytest.raises(UserError) as caught:
        read(str(path), **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LETTERS = st.characters(codec="utf-8", exclude_characters="\0\r\ufeff")
TEXT = st.text(LETTERS | st.sampled_from('",;|\t\n a'), min_size=1, max_size=13).filter(str.strip)
LABEL = st.sampled_from(["pos", "neg", "so, so", 'a "b"', "x;y", "p|q", "t\tu", "two\nlines"])


@given(
    st.lists(st.tuples(TEXT, LABEL), min_size=2, max_size=23),
    st.sampled_from(sorted(DELIMITERS)),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.none() | st.sampled_from([("text", "label"), ("Review", "Sentiment"), ("comment", "class")]),
    st.sampled_from([".csv", ".tsv"]),
)
def test_any_texts_with_labels_read_back_as_they_were_written(rows, name, quoting, end, head, suffix):
    assume(not any(cell.strip().lower() in (*TEXTS, *LABELS) for cell in rows[0]))
    dialect = dict(delimiter=DELIMITERS[name], quoting=quoting, lineterminator=end)
    content = written([head, *rows] if head else rows, **dialect)
    # with everything given, there is nothing to recognise
    given = Format(name, head is not None)
    assert read_pairs(content, "a", suffix, LABELLED, given, NamedColumns("1", "2")).pairs == rows
    found, fault = None, ""
    try:
        found = read_pairs(content, "a", suffix, LABELLED)
    except UserError as error:
        fault = str(error)
    if found is None:
        assert any(option in fault for option in UNCLEAR), fault
    elif suffix == ".csv" or name == "tab" or found.facts["delimiter"] != "tab":
        # the columns of a few rows may look the other way round, which is announced
        assert found.pairs in (rows, [(label, text) for text, label in rows])
        assert (found.facts["delimiter"], found.facts["header"]) == (name, head is not None)


@pytest.mark.parametrize("name", DELIMITERS)
@pytest.mark.parametrize("head", [None, ("review", "sentiment")], ids=["bare", "header"])
@pytest.mark.parametrize("mark", [b"", "\ufeff".encode()], ids=["", "mark"])
def test_the_delimiter_and_the_header_are_recognised(tmp_path, name, head, mark):
    rows = [(f'{text}; he wrote: “{label}” | "so"\nand\tmore', label) for text, label in ROWS]
    path = tmp_path / "reviews.csv"
    path.write_bytes(mark + written([head, *rows] if head else rows, delimiter=DELIMITERS[name]))
    data = pairs.load_labelled(str(path))
    assert everything(data) == sorted(rows)
    assert data.classes == ("neg", "pos")
    columns = ("review", "sentiment") if head else ("1", "2")
    assert data.reading == {
        "delimiter": name, "header": bool(head), "text_column": columns[0], "label_column": columns[1]
    }  # fmt: skip
    assert data.note == (
        f"reviews.csv: {name}-separated {'with' if head else 'without'} a header; text from column {columns[0]}, "
        f"label from column {columns[1]} (2 classes)"
    )


HEADERS = {
    "label first": ((1, 0), ["sentiment", "review"]),
    "label first, no header": ((1, 0), None),
    "more columns": ((None, 0, 1, None), ["id", "text", "label", "date"]),
    "one known name": ((0, 1), ["kommentar", "label"]),
    "unknown names": ((0, 1), ["kommentar", "klasse"]),
}


@pytest.mark.parametrize("order, head", HEADERS.values(), ids=HEADERS)
def test_the_columns_are_found(tmp_path, order, head):
    rows = [[str(i) if k is None else row[k] for k in order] for i, row in enumerate(ROWS)]
    data = pairs.load_labelled(save(tmp_path / "a.csv", [head, *rows] if head else rows))
    assert everything(data) == sorted(ROWS)
    assert data.reading["header"] == (head is not None)


def test_a_header_over_numbers(tmp_path):
    rows = [(words, str(int(label == "pos"))) for words, label in ROWS]
    assert everything(pairs.load_labelled(save(tmp_path / "a.csv", [("x", "y"), *rows]))) == sorted(rows)


def test_columns_can_be_named(tmp_path):
    rows = [(words, label, "even" if i % 2 else "odd") for i, (words, label) in enumerate(ROWS)]
    path = save(tmp_path / "a.csv", [("body", "mood", "parity"), *rows])
    unclear = refused(pairs.load_labelled, path)
    assert re.search(
        r"has the columns body \('.*'\), mood \('\w+'\), parity \('odd'\), and which is the label", unclear
    )
    assert re.search(r"name it with --data.label_column (mood|parity), whose values repeat$", unclear)
    for name in ("parity", "3", " Parity"):
        data = pairs.load_labelled(path, reading={"label_column": name})
        assert everything(data) == sorted((words, parity) for words, _, parity in rows)
    assert "has no column party; did you mean parity?" in refused(
        pairs.load_labelled, path, reading={"label_column": "party"}
    )
    assert "has no column 4" in refused(pairs.load_labelled, path, reading={"label_column": "4"})
    assert "the same column" in refused(
        pairs.load_labelled, path, reading={"label_column": "mood", "text_column": "mood"}
    )


def test_a_class_of_its_own_in_the_first_line_is_a_question(tmp_path):
    rows = [("Ruhe", "selten"), *((f"w{i}", "ab"[i % 2]) for i in range(31))]
    path = save(tmp_path / "a.csv", rows)
    assert "whether the first line, 'Ruhe' and 'selten', is a header is not clear" in refused(pairs.load_labelled, path)
    assert everything(pairs.load_labelled(path, reading={"header": True})) == sorted(rows[1:])
    assert everything(pairs.load_labelled(path, reading={"header": False})) == sorted(rows)


def test_two_delimiters_that_both_make_a_table_are_a_question(tmp_path):
    rows = [(f"w{i};v", "ab"[i % 2]) for i in range(31)]
    path = save(tmp_path / "a.csv", rows)
    for name, columns in (("comma", rows), ("semicolon", [(f"w{i}", f"v,{'ab'[i % 2]}") for i in range(31)])):
        assert everything(pairs.load_labelled(path, reading={"delimiter": name})) == sorted(columns)
    assert "can be read by its commas and by its semicolons: say which with --data.delimiter comma" in refused(
        pairs.load_labelled, path
    )


FAULTS = {
    "ragged": (b"text,label\ngood,pos\nbad, bad,neg\nfine,pos\n", "line 3: 3 columns where most lines have 2, by its commas; a text with a comma in it goes in quotes"),
    "after a text of two lines": (b'text,label\n"a\nb",pos\nbad,neg,x\nfine,pos\n', "line 4: 3 columns"),
    "short": (b"text,label\ngood,pos\nbad\nfine,pos\n", "line 3: 1 column where"),
    "a gap": (b"text,label\ngood,pos\n\nfine,pos\n", "line 3: empty"),
    "no label": (b"text,label\ngood,pos\nbad, \nfine,pos\n", "line 3: the label is empty; fill it in"),
    "one column": (b"good\nbad\nfine\n", "has a single column; write the text and the label in two, or give text without labels as a .txt"),
    "UTF-16": ("text,label\na,b\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "UTF-16 without a mark": ("text,label\na,b\n".encode("utf-16-le"), "is UTF-16 text; save it as UTF-8"),
    "a workbook": (b"PK\x03\x04" + bytes(40), "is a zip archive; unpack it first"),
    "nothing": (b"", "is empty"),
    "only a header": (b"text,label\n", "has a header and nothing below it; write one text a line"),
}  # fmt: skip


@pytest.mark.parametrize("content, words", FAULTS.values(), ids=FAULTS)
def test_a_table_that_cannot_be_read_is_refused_with_its_line(tmp_path, content, words):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    message = refused(pairs.load_labelled, path)
    assert message.startswith(str(path))
    assert words in message


@pytest.mark.parametrize("head", [("english", "german"), ("src", "tgt"), ("target", "source")])
def test_pairs_in_a_table(tmp_path, head):
    rows = [(f"cat, {i}", f"Katze; {i * 7 % 31}") for i in range(31)]
    data = pairs.load(save(tmp_path / "a.csv", [head, *rows]))
    swapped = head[0] == "target"
    assert everything(data) == sorted((b, a) if swapped else (a, b) for a, b in rows)
    path = save(tmp_path / "b.csv", [("id", "en", "de"), *((i, *row) for i, row in enumerate(rows))])
    assert "which is the source and which the target is not clear; name them with --data.source_column en " in refused(
        pairs.load, path
    )
    named = pairs.load(path, reading={"source_column": "de", "target_column": "en"})
    assert everything(named) == sorted((b, a) for a, b in rows)


def test_objects_of_other_keys(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"review": "{words}", "sentiment": "{label}", "n": 5}}\n' for words, label in ROWS))
    data = pairs.load_labelled(str(path))
    assert everything(data) == sorted(ROWS)
    assert data.note == "a.jsonl: one JSON object a line; text from review, label from sentiment (2 classes)"
    assert "data.delimiter and data.header are for a table" in refused(
        pairs.load_labelled, path, reading={"header": True}
    )


def test_a_run_reads_its_file_as_it_did(tmp_path):
    rows = [(f'"word {i}"', "ab"[i % 2]) for i in range(31)]
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    now = pairs.load_labelled(str(path))
    assert everything(now) == sorted((a.strip('"'), b) for a, b in rows)
    # before formats were recognised, a quote was a letter like any other
    old = pairs.load_labelled(str(path), reading=pairs.Recorded(now.hash, {}))
    assert everything(old) == sorted(rows)
    again = pairs.load_labelled(str(path), reading=pairs.Recorded(now.hash, now.reading))
    assert everything(again) == everything(now)


def test_another_file_is_read_by_the_columns_of_the_run_if_it_has_them(tmp_path):
    rows = [(words, label, "even" if i % 2 else "odd") for i, (words, label) in enumerate(ROWS)]
    run = pairs.Recorded("0" * 64, {"delimiter": "comma", "header": True, "text_column": "a", "label_column": "c"})
    path = save(tmp_path / "b.csv", [("c", "b", "a"), *(row[::-1] for row in rows)], delimiter=";")
    data = pairs.load_labelled(path, whole=True, reading=run)
    assert sorted(data.test) == sorted((words, parity) for words, _, parity in rows)
    plain = pairs.load_labelled(save(tmp_path / "c.csv", ROWS), whole=True, reading=run)
    assert sorted(plain.test) == sorted(ROWS)


def test_a_parquet_table(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the datasets package (an extra) is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    kinds = {"review": datasets.Value("string"), "mark": datasets.ClassLabel(names=["neg", "pos"])}
    columns = {"review": [a for a, _ in ROWS], "mark": [int(b == "pos") for _, b in ROWS]}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    (tmp_path / "parts").mkdir()
    for i in range(2):
        table.shard(2, i).to_parquet(str(tmp_path / "parts" / f"{i}.parquet"))
    for path in (tmp_path / "parts", tmp_path / "all.parquet"):
        if path.suffix:
            table.to_parquet(str(path))
        assert pairs.is_table(str(path))
        data = pairs.load_labelled(str(path))
        assert everything(data) == sorted(ROWS)
        assert data.note.endswith("a Parquet table; text from column review, label from column mark (2 classes)")
    changed = table.select(range(90))
    changed.to_parquet(str(tmp_path / "all.parquet"))
    assert pairs.load_labelled(str(tmp_path / "all.parquet")).hash != data.hash
    (tmp_path / "bad.parquet").write_bytes(b"words")
    assert "bad.parquet cannot be read: " in refused(pairs.load_labelled, tmp_path / "bad.parquet")


def test_parquet_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = refused(pairs.load_labelled, tmp_path / "a.parquet")
    assert message.endswith("needs the datasets package; pip install '.[hub-data]' in the checkout of Pencil")


NOT_TEXT = {
    "a.pdf": (b"%PDF-1.4 words", "a PDF document; save its text as a .txt file in UTF-8"),
    "a.docx": (b"PK\x03\x04" + bytes(9), "a Word document; save its text"),
    "a.gz": (b"\x1f\x8b\x08words", "a gzip archive; unpack it first, with gunzip"),
    "a.rtf": (b"{\\rtf1 words}", "an RTF document; save its text"),
    "a.txt": ("words in UTF-16".encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    "b.txt": ("words in UTF-16".encode("utf-16-be"), "UTF-16 text; save it as UTF-8"),
    "c.txt": ("café au lait".encode("latin-1"), "not UTF-8 text (byte 0xe9 at offset 3); if it is Latin-1"),
    "d.txt": (b"words" * 300 + b"\0", "binary data (a zero byte at 1500); give a text in UTF-8"),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_a_file_that_is_no_text_says_what_it_is(tmp_path, name):
    content, words = NOT_TEXT[name]
    (tmp_path / name).write_bytes(content)
    assert f"{name} cannot be trained on: {words}" in refused(text.find, tmp_path / name)


def test_text_that_is_written_as_something_else_is_announced(tmp_path):
    for name in ("a.csv", "b.csv", "c.html", "d.txt"):
        (tmp_path / name).write_text("some words\n")
    assert text.find(str(tmp_path)).notes == [
        "a.csv and 1 more: a table by the name, read as plain text, with its delimiters and quotes",
        "c.html: markup by the name, read as plain text, with its tags",
    ]


def test_plain_text_that_looks_like_texts_with_labels_is_announced(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in ROWS))
    assert str(text.labelled(text.find(str(path)))).startswith("reviews.txt has one tab in every line")
    path.write_text("".join(f"{a}\t{a}\n" for a, b in ROWS))
    assert text.labelled(text.find(str(path))) is None
    path.write_text("no tab\n" * 9)
    assert text.labelled(text.find(str(path))) is None
