"""A text that the context ends is announced by `sample` of every family that generates text; one that ends itself is not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pencil.data.tokenizers.tokenizer import CharTokenizer
from pencil.families import create, family
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.seq2seq import Seq2SeqConfig
from pencil.runs.run import Loaded

TEXT = dict(vocab=6, context=7, width=14, depth=1, heads=1, hidden=11)
FULL = "(stopped: the context of 7 tokens is full"
CONFIGS = {
    "gpt": GPTConfig(**TEXT, tie_embeddings=False, bias=True),
    "captioner": CaptionerConfig(**TEXT, image_size=(6, 10), patch=(3, 5), tie_embeddings=False, bias=True),
    "seq2seq": Seq2SeqConfig(**TEXT, source_context=5, head_bias=True),
}


class Kept:
    """What was written."""

    def __init__(self, streams):
        self.streams, self.written, self.notes = streams, "", []

    def stream(self, prompt, pieces):
        self.written = prompt + "".join(piece[0] for piece in pieces)

    def texts(self, texts, between="\n"):
        self.written = between.join(texts)

    def result(self, rows):
        assert rows

    def file(self, path, content):
        raise AssertionError("no file was asked for")

    def note(self, line):
        self.notes.append(line)


def sampled(name, tmp_path, ends, streams=True, **options):
    """The output of a random model that ends at once, or never."""
    torch.manual_seed(3)
    model, tokenizer = create(name, CONFIGS[name]).eval(), CharTokenizer("abcde", ended=True)
    bias = model.head_bias if name == "seq2seq" else model.head.bias
    with torch.no_grad():
        bias[tokenizer.end] = 1e4 if ends else -1e4
    Image.fromarray(np.zeros((6, 10), np.uint8)).save(tmp_path / "a.png")
    given = {"gpt": dict(prompt=["ab"]), "captioner": dict(image=[tmp_path / "a.png"]), "seq2seq": dict(source=["ab"])}
    record, output = family(name), Kept(streams)
    chosen = record.sample_options(**given[name], **options)
    chosen.check()
    loaded = Loaded(model, tokenizer, SimpleNamespace(path=tmp_path, config={}))  # pyright: ignore[reportArgumentType]
    assert record.sample is not None
    record.sample(loaded, chosen, output)
    return output


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("streams", [True, False])
def test_a_full_context_is_announced(name, streams, tmp_path):
    output = sampled(name, tmp_path, ends=False, streams=streams)
    assert len(output.written) >= 6
    assert [note.startswith(FULL) for note in output.notes] == [True]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_that_ends_or_is_as_long_as_requested_needs_no_note(name, tmp_path):
    assert not sampled(name, tmp_path, ends=True).notes
    assert not sampled(name, tmp_path, ends=False, max_new_tokens=3).notes


def test_a_beam_search_announces_it_too(tmp_path):
    assert [note.startswith(FULL) for note in sampled("seq2seq", tmp_path, ends=False, beams=3).notes] == [False, True]
    short = sampled("seq2seq", tmp_path, ends=False, beams=3, max_new_tokens=3).notes
    assert not any(note.startswith(FULL) for note in short)
