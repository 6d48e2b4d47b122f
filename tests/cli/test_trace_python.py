"""`pencil.trace` of a run: the same trace, with the same labels, as the command line makes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pencil
from conftest import call
from pencil.config import UserError
from pencil.tracing.trace import read

RUNS = Path(__file__).parents[1] / "runs-0.6"
TEXT = "line one"


@pytest.fixture(scope="module")
def gpt():
    return pencil.load(RUNS / "gpt")


@pytest.mark.parametrize("name, words, given", [
    ("gpt", ["--input", TEXT], dict(input=TEXT)),
    ("reader", ["--input", TEXT], dict(input=TEXT)),
    ("seq2seq", ["--input", "01.02.03", "--text", "1"], dict(input="01.02.03", text="1")),
])  # fmt: skip
def test_a_run_has_the_labels_of_the_command_line(tmp_path, name, words, given):
    call("trace", RUNS / name, *words, "--out", tmp_path / "a.safetensors")
    theirs, ours = read(tmp_path / "a.safetensors"), pencil.trace(RUNS / name, **given)
    assert ours.labels == theirs.labels
    assert ours.labels["T"]
    assert ours.facts == theirs.facts
    assert ours.names == theirs.names
    np.testing.assert_array_equal(ours.array("logits"), theirs.array("logits"))


def test_a_token_is_found_by_its_word(gpt):
    t = pencil.trace(gpt, TEXT)
    vocabulary = t.labels["V"]
    cell = t["logits[0,l,e]"]
    assert cell.value == t["logits"].value[0, 0, vocabulary.index("e")]
    assert t["logits"][0, "n#2", "e"].value == t["logits"].value[0, 6, vocabulary.index("e")]
    with pytest.raises(UserError, match="n occurs 2 times along T of logits: write n#1, n#2"):
        t["logits[0,n,e]"]
    assert t.edit("blocks.0.post[0,l]", 0).array("blocks.0.post")[0, 0].any() == False  # noqa: E712


def test_double_precision_leaves_the_callers_model_alone(gpt):
    t = pencil.trace(gpt, TEXT, double=True)
    assert t["logits"].node.dtype == "float64"
    assert next(gpt.model.parameters()).dtype == torch.float32


def test_a_module_is_traced_as_before(gpt):
    ids = torch.tensor([gpt.tokenizer.encode(TEXT).tolist()])
    t = pencil.trace(gpt.model, ids, words={"T": list(TEXT)})
    assert t.labels == {"T": list(TEXT)}
    np.testing.assert_array_equal(t.array("logits"), pencil.trace(gpt, TEXT).array("logits"))


@pytest.mark.parametrize("inputs, given, sentence", [
    ((), {}, "--input is missing"),
    ((TEXT, TEXT), {}, "a run is traced with input=…; it takes no further input"),
    ((TEXT,), {"input": TEXT}, "a run is traced with input=…; it takes no further input"),
    ((TEXT,), {"inptu": TEXT}, "inptu is not an option of this run's trace; did you mean input?"),
    ((torch.ones(1),), {}, "the input of a run is a text or the path of an image; tensors: pencil.trace(model, …)"),
    (("",), {}, "--input is empty"),
])  # fmt: skip
def test_what_is_refused(gpt, inputs, given, sentence):
    with pytest.raises(UserError) as found:
        pencil.trace(gpt, *inputs, **given)
    assert sentence in str(found.value)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(UserError):
        pencil.trace(tmp_path, TEXT)
