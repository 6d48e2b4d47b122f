"""Positions beyond the context: a table refuses them in a sentence, the other schemes announce them once."""

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.positions import Learned
from pencil.core.span import Span
from pencil.families import create
from pencil.models.captioner import CaptionerConfig
from pencil.models.dit import DiTConfig
from pencil.models.gpt import GPTConfig
from pencil.models.reader import ReaderConfig
from pencil.models.seq2seq import Seq2SeqConfig

SCHEMES = ["sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]
TEXT = dict(vocab=23, context=11, width=14, depth=1, heads=1, hidden=13)
PICTURE = torch.zeros(1, 1, 6, 10)
DELIMITED = dict(image_size=(6, 10), channels=1, patch=(3, 5))


def ids(length):
    return torch.arange(length)[None] % 23


def gpt(**values):
    return create("gpt", GPTConfig(**TEXT, **values)).eval()


# each family's model, and its inputs with a text of some length
FAMILIES = {
    "gpt": (GPTConfig(**TEXT), lambda n: (ids(n),)),
    "reader": (ReaderConfig(**TEXT), lambda n: (ids(n),)),
    "captioner": (CaptionerConfig(**TEXT, **DELIMITED), lambda n: (ids(n), PICTURE)),
    "target": (Seq2SeqConfig(**TEXT, source_context=7), lambda n: (ids(n), ids(5))),
    "source": (Seq2SeqConfig(**{**TEXT, "context": 7}, source_context=11), lambda n: (ids(5), ids(n))),
    "dit": (DiTConfig(**TEXT, **DELIMITED), lambda n: (PICTURE, torch.zeros(1), ids(n))),
}


def built(kind, scheme):
    """The model, and its inputs as a function of the length."""
    config, inputs = FAMILIES[kind]
    name = {"target": "seq2seq", "source": "seq2seq"}.get(kind, kind)
    return create(name, replace(config, positions=scheme)).eval(), inputs


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - {"dit"}))  # whose text has no table
def test_a_text_longer_than_the_table_is_refused_in_every_family(kind):
    model, inputs = built(kind, "learned")
    with torch.no_grad():
        model(*inputs(11))
        with pytest.raises(UserError, match="12 tokens and the model's table of positions has 11: give at most 11"):
            model(*inputs(12))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_text_longer_than_the_context_is_announced_once_in_every_family(kind):
    model, inputs = built(kind, "rope")
    with torch.no_grad(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model(*inputs(11))
        assert not found
        model(*inputs(12))
        model(*inputs(13))
    assert [str(one.message) for one in found] == [
        "the model's context is 11 tokens and the text is longer: it was not trained on such positions"
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_but_a_table_goes_on(scheme):
    with torch.no_grad(), pytest.warns(UserWarning, match="context is 11 tokens"):
        assert gpt(positions=scheme)(ids(13)).isfinite().all()


@pytest.mark.parametrize("padded", [False, True])
def test_one_token_after_a_full_context_is_refused_before_it_enters_the_cache(padded):
    """Prefill and decode: the cache has room, the table has not."""
    model = gpt(positions="learned")
    cache = model.new_cache(2, 19)
    lengths = [10, 7] if padded else [10, 10]
    index = torch.tensor([[NOWHERE] * (10 - n) + list(range(n)) for n in lengths])
    with torch.no_grad():
        model(ids(10).expand(2, -1), span=Span.at(index) if padded else None, cache=cache, last=True)
        model(ids(1).expand(2, -1), cache=cache, last=True)
        with pytest.raises(UserError, match="12 tokens and the model's table of positions has 11"):
            model(ids(1).expand(2, -1), cache=cache, last=True)
    assert cache.filled == 11


def test_a_caption_after_its_picture_is_counted_without_the_picture():
    model = create("captioner", CaptionerConfig(**TEXT, **DELIMITED, positions="learned")).eval()
    cache = model.new_cache(1, 19)
    with torch.no_grad():
        model(ids(10), PICTURE, cache=cache, last=True)
        model(ids(1), cache=cache, last=True)
        with pytest.raises(UserError, match="12 tokens"):
            model(ids(1), cache=cache, last=True)


def test_positions_of_the_callers_own_are_checked_too():
    model, span = gpt(positions="learned"), Span.at(torch.tensor([[3, 5, 11]]))
    with pytest.raises(UserError, match="12 tokens"):
        model(ids(3), span=span)
    with torch.no_grad():
        assert model(ids(3), span=Span.at(torch.tensor([[3, NOWHERE, 10]]))).isfinite().all()
    with pytest.warns(UserWarning, match="context is 11"):
        gpt(positions="rope")(ids(3), span=span)
    words = "rows, and a token is before or beyond it"
    for table, positions in ((Learned(5, 6), [2, 5]), (Learned(5, 6), [2, -1]), (Learned(5, 6, before=2), [-2, -3])):
        coords = torch.tensor(positions)[None, :, None]
        with pytest.raises(ValueError, match=words):
            table.embedding(coords)
        assert table.embedding(coords[:, :1]).shape == (1, 1, 6)


CODE = """
import torch
from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import configure, create

ids = torch.arange(12)[None]
for scheme in ("learned", "rope"):
    model = create("gpt", configure("gpt", None, vocab=23, context=11, width=14, heads=1, positions=scheme)).eval()
    whole = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    padded = Span.at(torch.tensor([[NOWHERE, 0, 1, 2, 3]]))
    with torch.no_grad():
        assert torch.equal(whole(ids[:, :11]), model(ids[:, :11]))
        assert torch.equal(whole(ids[:, :5], span=padded), model(ids[:, :5], span=padded))
        try:
            assert torch.compile(model, backend="eager")(ids).shape == (1, 12, 23)
            print("went on")
        except UserError as error:
            print(error)
    torch.compiler.reset()
"""


@pytest.mark.long
def test_the_check_breaks_no_compiled_graph_and_still_refuses():
    """In a process of its own: the suite's shape checks cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [
        "the text has 12 tokens and the model's table of positions has 11: give at most 11",
        "went on",
    ], done.stderr
