"""int8 weights: how they are rounded, every family with them against the rounded matrices, and what is refused."""

import copy
import json

import pytest
import torch
from torch import nn

import pencil
from conftest import call
from pencil.config import UserError
from pencil.core.span import Span
from pencil.families import create
from pencil.inference.int8 import Int8Linear, Int8Tokens, is_int8, quantize, to_int8

WORDS = dict(width=24, heads=3, depth=2, vocab=41, context=11)
IMAGE = dict(image_size=(6, 6), patch=(3, 3), channels=1)
MODELS = {
    "gpt": ("gpt", WORDS),
    "gpt with a head": ("gpt", WORDS | dict(tie_embeddings=False, bias=True)),
    "captioner": ("captioner", WORDS | IMAGE | dict(text_width=5)),
    "seq2seq": ("seq2seq", WORDS),
    "reader": ("reader", WORDS),
    "classifier": ("reader", WORDS | dict(classes=5)),
    "vit": ("vit", dict(width=24, heads=3, depth=2, classes=5) | IMAGE),
    "dit": ("dit", dict(width=24, heads=3, depth=2, classes=5) | IMAGE),
}


def made(name):
    torch.manual_seed(7)
    kind, values = MODELS[name]
    model = create(kind, values).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    tokens, picture = torch.randint(41, (3, 11)), torch.randn(3, 1, 6, 6)
    source = torch.randint(41, (3, 5)), Span.at(torch.arange(5).repeat(3, 1))
    text = {"captioner": (picture,), "seq2seq": source}
    inputs = {"vit": (picture,), "dit": (picture, torch.tensor([7, 501, 999]), torch.tensor([0, 1, 4]))}
    return model, inputs.get(kind, (tokens, *text.get(kind, ())))


def test_rows_are_rounded_to_nearest_with_a_scale_each():
    weight = torch.randn(13, 29, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 13)[:, None]
    weight[5] = 0
    codes, scale = quantize(weight)
    assert codes.dtype == torch.int8
    assert codes.abs().amax(1).tolist() == [127] * 5 + [0] + [127] * 7
    off = (codes * scale[:, None] - weight).abs()
    assert (off <= 0.5001 * scale[:, None]).all()
    assert torch.equal(quantize(-weight)[0], -codes)
    whole = torch.randint(-126, 127, (7, 11)).float()
    whole[:, 3] = 127
    assert torch.equal(quantize(whole / 8)[0].float(), whole)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_with_its_rounded_matrices(name):
    model, inputs = made(name)
    expected = copy.deepcopy(model).double()
    rounded = to_int8(model, torch.float32)
    matrices = {path: part for path, part in rounded.named_modules() if isinstance(part, (Int8Linear, Int8Tokens))}
    linear = {path for path, part in expected.named_modules() if type(part) is nn.Linear}
    tables = {path for path, part in matrices.items() if isinstance(part, Int8Tokens)}
    assert set(matrices) - tables == linear
    assert tables == ({"tokens"} if name in ("gpt", "captioner", "seq2seq", "reader") else set())
    for path in matrices:
        codes, scale = quantize(expected.get_submodule(path).weight)
        expected.get_submodule(path).weight.data = codes.double() * scale.double()[:, None]
    double = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]
    with torch.no_grad():
        right = expected(*double)
        assert (rounded(*inputs) - right).norm() < 1e-5 * right.norm()
        half, _ = made(name)
        found = to_int8(half, torch.bfloat16)(*inputs)
    assert found.dtype == torch.bfloat16
    assert (found - right).norm() < 0.1 * right.norm()
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_cached_equals_uncached():
    model, (tokens,) = made("gpt")
    to_int8(model, torch.float32)
    cache = model.new_cache(3)
    with torch.no_grad():
        steps = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(11)], 1)
        torch.testing.assert_close(steps, model(tokens), rtol=1e-4, atol=1e-4)


def test_a_run_is_loaded_sampled_and_evaluated_in_int8(run):
    plain, small = pencil.load(run).model, pencil.load(run, dtype="int8").model
    assert is_int8(small)
    assert not is_int8(plain)
    size = sum(t.numel() * t.element_size() for t in small.state_dict().values())
    assert size < 0.4 * sum(t.numel() * t.element_size() for t in plain.state_dict().values())
    words = ("sample", run, "--prompt", "line", "--max-new-tokens", "3")
    assert call(*words, "--dtype", "int8").stdout.startswith("line")
    losses = [json.loads(call("eval", run, "--json", "--dtype", kind).stdout) for kind in ("float32", "int8")]
    losses = [one.get("metrics", one)["val_loss"] for one in losses]
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 0.02


def test_an_int8_model_is_neither_trained_nor_traced_nor_exported(run, tmp_path):
    loaded = pencil.load(run, dtype="int8")
    for what in (loaded, loaded.model):
        with pytest.raises(UserError, match="an int8 model cannot be traced: load the run in another dtype"):
            pencil.trace(what, "line" if what is loaded else torch.zeros(1, 3, dtype=torch.long))

    class Again(pencil.Task):
        def build(self):
            return loaded.model

    with pytest.raises(UserError, match="an int8 model cannot be trained: load the run in another dtype"):
        pencil.fit(Again(), tmp_path / "again", steps=1, quiet=True)
    done = call("export", run, "--to", "hf", "--dtype", "int8", "--out", tmp_path / "out", code=2)
    assert "not int8" in done.stderr
