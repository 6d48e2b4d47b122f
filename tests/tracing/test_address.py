"""Cells by the labels of their tokens: every label can be written, and what is written finds it and nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pencil.config import UserError
from pencil.learn.worked.examples import example
from pencil.tracing.address import parse, written
from pencil.tracing.graph import Graph, Node
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import Trace

LETTERS = "ab3#,[]\"'\\: -+␣·="


def labelled(labels: list[str], more: dict[str, list[str]] | None = None, name: str = "logits") -> Trace:
    """A trace of one tensor (2, labels, 3) whose middle axis has these labels."""

    class Held(Graph):
        def stored(self, node: int) -> np.ndarray:
            return np.arange(2 * len(labels) * 3).reshape(2, -1, 3)

    n = Node(name, "", "input", (2, len(labels), 3), "int64", named=True, axes="B T d")
    return Trace(Held([n], {name: 0}), {"T": labels, **(more or {})})


labels = st.lists(st.text(LETTERS, min_size=1, max_size=4) | st.integers(-3, 12).map(str), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(labels, st.data())
def test_what_is_written_for_a_label_finds_it(labels, data):
    i = data.draw(st.integers(0, len(labels) - 1))
    t = labelled(labels)
    address = f"logits[1, {written(labels, i)} ,2]"
    assert t.locate(address) == ("logits", (1, i, 2))
    assert float(t[address]) == (len(labels) + i) * 3 + 2


@settings(max_examples=100, deadline=None)
@given(labels, st.integers(-3, 12))
def test_a_number_is_an_index_whatever_the_labels(labels, i):
    assert labelled(labels).locate(f"logits[0,{i}]") == ("logits", (0, i))


def test_words_find_their_tokens():
    t = labelled(["the", "cat", "a", "␣the", "a", "3", "class"])
    for word, i in {"the": 0, "cat": 1, "a#1": 2, "a#2": 4, '"a"#2': 4, '"3"': 5, "'3'": 5, "3": 3, " cat ": 1,
                    '" the"': 3, "␣the": 3, "class": 6}.items():  # fmt: skip
        assert t.locate(f"logits[0,{word},1:]") == ("logits", (0, i, slice(1, None))), word
    assert t["logits"][1, "a#2", 0].value == t["logits[1,4,0]"].value
    assert labelled(["␣a", "b"]).locate("logits[0,a]")[1] == (0, 0)  # the space before a word may be left out


def test_a_label_of_another_axis_is_found_there():
    """As the rows of a table of embeddings have no labels, and the logits have those of the vocabulary."""
    t = labelled(["the", "cat"], {"V": ["a", "b", "c"]})
    with pytest.raises(UserError, match="give an index from 0 to 2 instead of b; along V it is 1$"):
        t.locate("logits[0,cat,b]")


def test_a_label_with_commas_needs_no_quotes():
    grid = ["patch 1,1", "patch 1,2", "patch 2,1", "patch 2,2"]
    t = labelled(grid)
    assert t.locate("logits[0,patch 2,1,2]")[1] == (0, 2, 2)
    assert t.locate('logits[0,"patch 2,1",2]')[1] == (0, 2, 2)
    assert t.locate("logits[0,patch 3,2]")[1] == (0, 2, 2)  # the third in reading order
    with pytest.raises(UserError, match="no label along T of logits is patch 5"):
        t.locate("logits[0,patch 5]")


@pytest.mark.parametrize("where, sentence", [
    ("logits[0,a]", "a occurs 2 times along T of logits: write a#1, a#2"),
    ("logits[0,a#3]", "a occurs only 2 times along T of logits, so there is no a#3"),
    ("logits[0,cat#2]", "cat occurs only once along T of logits, so there is no cat#2"),
    ("logits[0,caat]", 'no label along T of logits is caat; did you mean cat? The labels are the, cat, a#1, a#2, "b#1", b'),
    ("logits[0,zzz]", 'no label along T of logits is zzz; the labels are the, cat, a#1, a#2, "b#1", b'),
    ("logits[0,b#1]", 'b#1 is a label and the number of one: write "b#1" or "b"#…'),
    ("logits[0,cat,x]", "d of logits has no labels: give an index from 0 to 2 instead of x"),
    ("logits[0,cat,0,x]", "logits has 3 axes, and x stands for one more"),
    ("logits[0,,1]", "an index is missing in logits[0,,1]"),
    ('logits[0,"cat]', 'the quote " is not closed in logits[0,"cat]; a label that begins with it is "\\"cat"'),
    ('logits[0,"cat"x]', '"cat"x in logits[0,"cat"x] is not a label in quotes, such as "the cat"'),
    ("logits[0,9]", "logits has no cell [0, 9]: its shape is 2×6×3 (B T d)"),
    ("logits[0", "'logits[0' is not a name with an index"),
])  # fmt: skip
def test_refusals_name_the_mend(where, sentence):
    t = labelled(["the", "cat", "a", "a", "b#1", "b"])
    with pytest.raises(UserError) as found:
        t[where]
    assert sentence in str(found.value)


def test_labels_of_a_part_of_the_trace_come_first():
    more = {"next.T": ["on", "a"], "next.blocks.0.T": ["inner", "x"]}
    assert labelled(["the", "cat"], more).locate("logits[0,cat]")[1] == (0, 1)
    assert labelled(["the", "cat"], more, "next.q").locate("next.q[0,on]")[1] == (0, 0)
    assert labelled(["the", "cat"], more, "next.blocks.0.q").locate("next.blocks.0.q[0,x]")[1] == (0, 1)
    assert labelled(["the", "cat"], more, "next.blocks.1.q").words("T", 2, "next.blocks.1.q") == ["on", "a"]


def test_the_new_token_of_the_cache_has_its_word():
    t = example("kv-cache")
    assert t["next.blocks.0.attn.pattern[0,head 1,on,sat]"].value == t["next.blocks.0.attn.pattern[0,0,0,2]"].value
    assert t["read.blocks.0.attn.q[0,0,cat,1]"].value == t["read.blocks.0.attn.q[0,0,1,1]"].value
    with pytest.raises(UserError, match="no label along T of read.blocks.0.attn.q is on"):
        t["read.blocks.0.attn.q[0,0,on,1]"]


def test_heads_have_names_counted_from_1():
    t = example("vit-4x4")
    np.testing.assert_array_equal(t["attn.q[0,head 2]"].value, t["attn.q[0,1]"].value)
    with pytest.raises(UserError, match="no label along h of attn.q is head 0"):
        t["attn.q[0,head 0]"]


def test_an_edit_is_addressed_by_word():
    t = example("vit-4x4")
    edited = t.edit("attn.pattern[0,head 2,patch 1,cls]", 0.5)
    pattern = edited.array("attn.pattern")
    assert pattern[0, 1, 1, 0] == 0.5
    assert np.sum(pattern != t.array("attn.pattern")) == 1


def test_labels_survive_a_file(tmp_path):
    t = trace(lambda x: x * 2, torch.ones(2, 3), words={"a.T": ["x", "y"]})
    t.save(tmp_path / "a.safetensors")
    from pencil.tracing.trace import read

    assert read(tmp_path / "a.safetensors").labels == {"a.T": ["x", "y"]}


def test_an_address_with_a_bracket_in_it():
    assert parse("logits[0,[mask],1]")[1][1].text == "[mask]"
    assert labelled(["[mask]", "a]"]).locate("logits[0,[mask]]")[1] == (0, 0)
