import codecs
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pencil.config import UserError
from pencil.data.tables import pairs
from pencil.data.tables.generated_dates import CHARACTERS, Dates
from pencil.data.tables.tables import PAIRS
from pencil.data.tokenizers.tokenizer import CharTokenizer

AS_WRITTEN = {"header": False, "text_column": "1", "label_column": "2"}
WORDS = [(f"wort {i}", f"word {i * 7 % 97}") for i in range(307)]


def write(path, rows, end="\n"):
    path.write_bytes("".join(f"{source}\t{target}{end}" for source, target in rows).encode())
    return str(path)


def objects(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def in_order(data):
    return sorted(data.train + data.test)


def refused(read, data):
    """The one sentence a file is refused with."""
    with pytest.raises(UserError) as caught:
        read(str(data))
    message = str(caught.value)
    assert "\n" not in message
    assert not re.search(r"[.!?] [A-Z]", message), message
    return message


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["bare", "mark"])
@pytest.mark.parametrize("more", ["", "\n", "\r\n\r\n\n"], ids=["", "one", "three"])
def test_a_file_of_tabs_is_its_pairs(tmp_path, end, mark, more):
    rows = [*WORDS, ("naïve café \u2028 …", "crème\x0bbrûlée 🙂"), (" spaces ", " stay ")]
    path = tmp_path / "german.tsv"
    write(path, rows, end)
    path.write_bytes(mark + path.read_bytes() + more.encode())
    data = pairs.load(str(path))
    assert in_order(data) == sorted(rows)
    assert data.name == "german"
    assert data.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.select_best
    assert data.classes == ()


def test_the_last_line_needs_no_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\tb\nc\td")
    assert in_order(pairs.load(str(path))) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("keys", PAIRS.names, ids="-".join)
@pytest.mark.parametrize("ending", ["jsonl", "json", "JSONL"])
def test_a_file_of_objects_is_its_pairs(tmp_path, keys, ending):
    rows = [*WORDS, ("two\nlines\tand a tab", "fine “here”")]
    path = objects(tmp_path / f"a.{ending}", [{"id": 5, keys[1]: target, keys[0]: source} for source, target in rows])
    assert in_order(pairs.load(path)) == sorted(rows)


def test_the_first_pair_of_keys_there_is_taken(tmp_path):
    row = {"src": "e", "tgt": "f", "text": "a", "target": "b", "input": "c", "output": "d"}
    path = objects(tmp_path / "a.jsonl", [row, {"source": "x", "target": "y", "text": "z"}])
    assert in_order(pairs.load(path)) == [("a", "b"), ("x", "y")]


@given(st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip),
    st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2, max_size=13,
))  # fmt: skip
def test_any_texts_come_back_from_objects(tmp_path_factory, rows):
    path = objects(tmp_path_factory.mktemp("pairs") / "a.jsonl", [{"source": a, "target": b} for a, b in rows.items()])
    assert in_order(pairs.load(path)) == sorted(rows.items())


def test_labels_are_the_classes(tmp_path):
    rows = [(f"review {i}", ("good", "bad", "so so")[i % 3]) for i in range(401)]
    data = pairs.load_labelled(write(tmp_path / "reviews.tsv", rows))
    assert data.classes == ("bad", "good", "so so")
    assert in_order(data) == sorted(rows)
    assert data.select_best
    few = pairs.load_labelled(write(tmp_path / "few.tsv", rows[:53]))
    assert len(few.test) < pairs.MIN_TO_SELECT_BEST
    assert not few.select_best
    assert few.last_because == f"{len(few.test)} held-out texts are too few to select the best by (20 are enough)"


def test_a_label_may_be_a_number_or_true(tmp_path):
    labels = ["1", 1, True, " 1 ", "true", -3]
    path = objects(tmp_path / "a.jsonl", [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)])
    data = pairs.load_labelled(path)
    assert dict(in_order(data)) == dict(
        zip((f"text {i}" for i in range(6)), ("1", "1", "True", "1", "true", "-3"), strict=True)
    )
    assert data.classes == ("-3", "1", "True", "true")


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path / "a.tsv", WORDS)
    assert in_order(pairs.load("~/a.tsv")) == sorted(WORDS)


def test_a_tenth_of_the_sources_is_held_out_and_none_of_them_trained_on(tmp_path):
    rows = [(f"source {i % 1009}", f"target {i}") for i in range(2503)]
    data = pairs.load(write(tmp_path / "a.tsv", rows))
    trained, tested = {s for s, _ in data.train}, {s for s, _ in data.test}
    assert not trained & tested
    assert len(trained) + len(tested) == 1009
    assert 0.07 < len(tested) / 1009 < 0.13
    assert in_order(data) == sorted(rows)
    assert data.train == [row for row in rows if row[0] in trained]  # in the file's order


def test_what_is_held_out_stays_so_when_lines_are_added_moved_or_given_another_target(tmp_path):
    first = pairs.load(write(tmp_path / "a.tsv", WORDS))
    more = [(f"neu {i}", "new") for i in range(211)]
    second = pairs.load(write(tmp_path / "b.tsv", [*more, *((s, t + "!") for s, t in reversed(WORDS))]))
    held = {s for s, _ in first.test}
    assert {s for s, _ in second.test if s.startswith("wort")} == held
    # fixed for every machine and Python version
    assert sorted(held, key=lambda s: int(s.split()[1]))[:5] == ["wort 11", "wort 16", "wort 18", "wort 20", "wort 21"]


@given(st.integers(2, 23), st.integers(0, 10**6))
def test_both_parts_have_something_however_few_there_are(tmp_path_factory, count, begin):
    rows = [(f"s{begin + i}", "t") for i in range(count)]
    data = pairs.load(write(tmp_path_factory.mktemp("pairs") / "a.tsv", rows))
    assert data.train
    assert data.test
    assert in_order(data) == sorted(rows)


@given(st.lists(st.tuples(st.integers(0, 40).map("t{}".format), st.sampled_from("abcdefg")), min_size=2, max_size=61))
def test_every_class_is_trained_on_and_no_text_is_in_both_parts(tmp_path_factory, rows):
    path = write(tmp_path_factory.mktemp("pairs") / "a.tsv", rows)
    texts = defaultdict(set)
    for text, label in rows:
        texts[label].add(text)
    spare = [t for t, _ in rows if all(own != {t} for own in texts.values())]
    if len(texts) == 1 or not spare:  # one class, or no text that its classes can do without
        refused(partial(pairs.load_labelled, reading=AS_WRITTEN), path)
        return
    data = pairs.load_labelled(path, reading=AS_WRITTEN)
    assert {label for _, label in data.train} == set(texts) == set(data.classes)
    assert data.test
    assert not {t for t, _ in data.train} & {t for t, _ in data.test}
    assert in_order(data) == sorted(rows)


def test_a_class_whose_texts_would_all_be_held_out_gets_all_but_one_back(tmp_path):
    held = [s for s, _ in pairs.load(write(tmp_path / "a.tsv", WORDS)).test]
    rows = [(s, "rare" if s in held[:3] else "common") for s, _ in WORDS]
    data = pairs.load_labelled(write(tmp_path / "b.tsv", rows))
    back = {s for s, label in data.train if label == "rare"}
    assert back < set(held[:3])
    assert len(back) == 2
    assert {s for s, _ in data.test} == set(held) - back


BAD = {
    "no tab": ("a.tsv", b"a\tb\nc\td\ne f\n", "line 3: no tab in 'e f'; write the source, one tab, and the target"),
    "two tabs": ("a.tsv", b"a\tb\nc\td\te\n", "line 2: 2 tabs in"),
    "no source": ("a.tsv", b"a\tb\n \td\n", "line 2: the source is empty; fill it in"),
    "no target": ("a.tsv", b"a\tb\nc\td\ne\t\r\n", "line 3: the target is empty; fill it in"),
    "a gap": ("a.tsv", b"a\tb\r\n\r\nc\td\n", "line 2: empty; take the line out"),
    "a gap of objects": ("a.jsonl", b'{"source": "a", "target": "b"}\n\n{"source": "c", "target": "d"}\n', "line 2: empty"),
    "spaces": ("a.jsonl", b'{"source": "a", "target": "b"}\n  \n', "line 2: not JSON (Expecting value at column 3); write one object a line"),
    "bad JSON": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a", "target"}\n', "line 2: not JSON (Expecting ':' delimiter at column 25)"),
    "deep": ("a.jsonl", b"[" * 100_000 + b"\n", "line 1: a number too long or lists too deep; write one object a line"),
    "long": ("a.jsonl", b"9" * 5003, "line 1: a number too long or lists too deep"),
    "a list": ("a.json", b'[{"source": "a", "target": "b"}]\n', "line 1: a list, not an object; write one object a line"),
    "keys": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"en": "c", "de": "d"}\n', "line 2: the keys 'en', 'de', not source and target; write {"),
    "no keys": ("a.jsonl", b"{}\n", "line 1: no keys, not source and target"),
    "a number": ("a.jsonl", b'{"source": "a", "target": 5}\n', "line 1: the target is a number, not a text"),
    "null": ("a.jsonl", b'{"source": null, "target": "b"}\n', "line 1: the source is null, not a text"),
    "an empty answer": ("a.jsonl", b'{"question": "a", "answer": ""}\n', "line 1: the answer is empty"),
    "half": ("a.jsonl", b'{"source": "a\\ud83d", "target": "b"}\n', "line 1: the source has half a character, \\ud83d; write"),
    "latin": ("a.tsv", "a\tb\ncafé\td\n".encode("latin-1"), "line 2: byte 0xe9, number 4 of the line, is not UTF-8; if it is Latin-1"),
    "cut": ("a.tsv", b"a\tb\nc\td\xc3", "line 2: byte 0xc3, number 4 of the line, is not UTF-8"),
    "UTF-16": ("a.tsv", "a\tb\nc\td\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "UTF-16, large end first": ("a.tsv", codecs.BOM_UTF16_BE + "a\tb".encode("utf-16-be"), "is UTF-16 text; save it as UTF-8"),
    "UTF-32": ("a.tsv", "a\tb\nc\td\n".encode("utf-32"), "is UTF-32 text; save it as UTF-8"),
    "binary": ("a.tsv", b"a\tb\n\x89PNG\0", "line 2: binary data (a zero byte at 8); give a text in UTF-8"),
    "nothing": ("a.tsv", b"", "is empty; write one pair a line"),
    "only ends": ("a.jsonl", b"\r\n\n", "is empty; write one pair a line"),
    "only a mark": ("a.tsv", codecs.BOM_UTF8, "is empty; write one pair a line"),
    "one": ("a.tsv", b"a\tb\n", "has one pair; at least two are needed"),
    "one source": ("a.tsv", b"a\tb\na\tc\na\tb\n", "has the same source, 'a', in all its 3 lines, so none can be held out"),
}  # fmt: skip


@pytest.mark.parametrize("name, content, words", BAD.values(), ids=BAD)
def test_a_file_of_pairs_that_cannot_be_used_is_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(pairs.load, path)
    assert message.startswith(str(path))
    assert words in message
    assert len(message) - len(str(path)) < 200


BAD_LABELS = {
    "no tab": ("a.tsv", b"a\tb\nc\n", "line 2: no tab in 'c'; write the text, one tab, and the label"),
    "no text": ("a.tsv", b"\tb\n", "line 1: the text is empty"),
    "no label": ("a.tsv", b"a\t \n", "line 1: the label is empty"),
    "no key": ("a.jsonl", b'{"text": "a", "goal": "b"}\n', "line 1: the keys 'text', 'goal', not text and label"),
    "half": ("a.jsonl", b'{"text": "a", "label": 0.5}\n', "line 1: the label is a number, not a text"),
    "null": ("a.jsonl", b'{"text": "a", "label": null}\n', "line 1: the label is null, not a text"),
    "text": ("a.jsonl", b'{"text": true, "label": true}\n', "line 1: the text is true, not a text"),
    "one class": ("a.tsv", b"a\tgood\nb\tgood \n", "has only one class, 'good'; a classifier needs at least two"),
    "one text": ("a.tsv", b"a\tgood\na\tbad\n", "has the same text, 'a', in all its 2 lines"),
    "one of each": ("a.tsv", b"a\tgood\nb\tbad\n", "has a single text of each class, so none can be held out"),
}  # fmt: skip


@pytest.mark.parametrize("name, content, words", BAD_LABELS.values(), ids=BAD_LABELS)
def test_a_file_of_labels_that_cannot_be_used_is_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(pairs.load_labelled, path)
    assert message.startswith(str(path))
    assert words in message


def test_what_is_not_a_file_is_refused(tmp_path):
    assert "is a folder; give a file with one source, a tab and its target a line" in refused(pairs.load, tmp_path)
    assert refused(pairs.load, "date") == (
        "there is no file date, and no embedded pairs of that name; did you mean dates?"
    )  # fmt: skip
    assert "known: dates" in refused(pairs.load, tmp_path / "none.tsv")
    assert "--data is empty" in refused(pairs.load, "")
    assert "cannot be read" in refused(pairs.load, tmp_path / ("x" * 5003))
    assert "there is no file" in refused(pairs.load_labelled, tmp_path / "none.tsv")
    assert "dates has no labels" in refused(pairs.load_labelled, "dates")
    assert "cannot be expanded" in refused(pairs.load, "~nobody-of-this-name/a.tsv")


def test_a_long_line_is_quoted_short(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("x" * 10_007)
    assert len(refused(pairs.load, path)) < len(str(path)) + 150


def test_dates_hold_out_days_never_trained_on():
    data, again = pairs.load("dates"), pairs.load("dates")
    assert (data.name, data.select_best, data.classes) == ("dates", False, ())
    assert (data.hash, data.test) == (again.hash, again.test)
    assert re.fullmatch("[0-9a-f]{64}", data.hash)
    assert len(data.test) == len({source for source, _ in data.test}) == 1000
    assert isinstance(data.train, Dates)
    trained = {target for _, target in data.train.draw(np.random.Generator(np.random.Philox(key=23)), 20_000)}
    assert not trained & {target for _, target in data.test}
    # fixed for every machine and numpy version
    assert data.test[:3] == [("3.8.1992", "1992-08-03"), ("6 Dec. 1998", "1998-12-06"), ("16.11.2087", "2087-11-16")]


def test_a_tokenizer_can_be_learned_from_all_there_is(tmp_path):
    data = pairs.load(write(tmp_path / "a.tsv", WORDS))
    assert sorted(data.texts()) == sorted(text for pair in WORDS for text in pair)
    dates = pairs.load("dates")
    texts = list(dates.texts())
    assert texts[0] == CHARACTERS
    assert len(texts) > 2000
    assert texts == list(dates.texts())
    assert not {target for _, target in dates.test} & set(texts)
    tokenizer = CharTokenizer(set("".join(texts)), ended=True)
    assert "".join(tokenizer.characters) == CHARACTERS
    for pair in dates.test:
        assert [tokenizer.decode(tokenizer.encode(text).tolist()) for text in pair] == list(pair)


def test_pairs_need_no_torch():
    code = "import sys, pencil.data.tables.pairs; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False"]


@pytest.mark.parametrize("head", ["source\ttarget", "Source\tTarget", "src\ttgt"])
def test_a_line_of_headings_is_no_pair(tmp_path, head):
    path = tmp_path / "pairs.tsv"
    path.write_text(head + "\nun\tone\ndeux\ttwo\ntrois\tthree\n")
    data = pairs.load(str(path))
    assert {*data.train, *data.test} == {("un", "one"), ("deux", "two"), ("trois", "three")}
    path.write_text(head + "\nun\tone\nno tab here\n")
    with pytest.raises(UserError, match="line 3"):
        pairs.load(str(path))
