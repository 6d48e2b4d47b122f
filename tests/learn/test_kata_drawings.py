"""The drawings of exercises, and the document's words in place of the field's."""

import re
from xml.etree import ElementTree

import pytest

from pencil.learn.katas import KATAS
from pencil.learn.katas.document_words import worded
from pencil.learn.katas.drawings import SKETCHES, drawing
from pencil.learn.katas.sheet_html import page
from pencil.learn.katas.sheets import make


@pytest.mark.parametrize("name", KATAS)
def test_every_exercise_has_a_drawing_with_its_tables_to_scale(name):
    question = KATAS[name].make(7)
    root = ElementTree.fromstring(drawing(question))
    cells = root.findall(".//{*}rect")
    drawn = [int(digit) for digit in re.findall(r"(?<!\S)\d(?=[#|ᵀ\s])", f"{SKETCHES[name]} ")]
    given = sum(min(len(question.tables[i].rows), 8) * min(len(question.tables[i].rows[0]), 8) for i in drawn)
    mask = len(question.tables[0].rows) ** 2 if " M " in SKETCHES[name] else 0
    assert len(cells) - given - mask == sum(min(n, 8) for _, n in question.rows or [("", len(question.blanks))])
    # nothing that the policy of a sheet would not draw, and no answer
    assert not {"style", "href"} & {key for part in root.iter() for key in part.attrib}
    said = "".join(root.itertext())
    assert not any(blank.written in said for blank in question.blanks if not blank.words and len(blank.written) > 3)


def test_the_document_speaks_of_want_have_and_give_and_the_numbers_stay():
    for name in ("match", "attention", "kv-cache", "causal", "cut", "layernorm"):
        question = KATAS[name].make(3)
        other = worded(question, "document")
        texts = " ".join([other.title, other.ask, *(t.name for t in other.tables), *(b.label for b in other.blanks)])
        assert not re.search(r"\b(query|queries|key|keys|patch|patches|LayerNorm)\b", texts, re.IGNORECASE), texts
        assert [b.value for b in other.blanks] == [b.value for b in question.blanks]
        assert [t.rows for t in other.tables] == [t.rows for t in question.tables]
        assert worded(question) == question
    assert {"WANT", "HAVE", "GIVE"} <= {t.name for t in worded(KATAS["attention"].make(3), "document").tables}


def test_a_sheet_has_the_drawings_and_the_words_that_were_chosen():
    sheet = make("attention", 1, 5)
    field, document = page([("", sheet)]), page([("", sheet)], words="document")
    assert field.count("<svg") == document.count("<svg") == 1
    assert "queries (Q)" in field
    assert "queries" not in document.partition('class="key"')[0]
    assert "WANT" in document
    assert sheet.code in field
    assert sheet.code in document
