"""A decode step with static shapes is compiled once for a bucket, and equal to the forward pass without a cache."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conftest import unchecked
from pencil.core.masks import NOWHERE, Mask, Rows, causal, padding, prefix, window
from pencil.core.span import Span
from static_steps import MODELS, VOCAB, decode, made, right_padded


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


# of rotations the scaled ones are one more table of frequencies
LONG = {"gpt rope": pytest.mark.long, "gpt rope ntk": pytest.mark.long}


def with_long(names):
    return [pytest.param(name, marks=LONG.get(name, ())) for name in names]


@pytest.mark.parametrize("name", with_long(MODELS))
def test_a_step_of_static_shapes_gives_what_the_whole_text_gives(name):
    with unchecked():
        decode(*made(name), None)


@pytest.mark.parametrize(
    "name", with_long(["gpt rope", "gpt grouped", "gpt window", "captioner rope", "seq2seq learned"])
)
def test_a_kernel_is_given_what_it_needs_to_attend_to_each_rows_own_keys(name):
    calls, written = [], []

    def attend(q, k, v, scale, index, key_index, held, first, within):
        """Row by row over the filled slots alone, with the mask written out."""
        calls.append(len(q))
        z = torch.zeros_like(q)
        for b, filled in enumerate(held.tolist()):
            keys, values = (t[b, :, :filled].repeat_interleave(q.shape[1] // k.shape[1], 0) for t in (k, v))
            there, here = key_index[b, :filled], int(index[b, 0])
            seen = [(int(j) <= here or int(j) < first) and here - int(j) < within for j in there]
            if any(seen):
                scores = (q[b] @ keys.mT * scale)[..., seen]
                z[b] = scores.softmax(-1) @ values[:, seen]
        return z

    def write(keys, values, k, v, slots):
        for b, (slot,) in enumerate(slots.tolist()):
            keys[b, :, slot], values[b, :, slot] = k[b, :, 0], v[b, :, 0]
            written.append(slot)

    with unchecked():
        decode(*made(name), None, attend)
        decode(*made(name), None, attend, write)
    assert calls == [3] * 22
    assert len(written) == 33


def test_a_bias_or_another_mask_is_never_left_to_a_kernel():
    def refused(*_, **__):
        raise AssertionError("it knows no bias")

    with unchecked():
        decode(*made("gpt alibi"), None, refused)
    rows = Rows(torch.tensor([3]), refused)
    odd = causal & Mask("even", lambda q, k: k % 2 == 0)
    for mask in (odd, padding, prefix(3) & window(2)):
        assert mask.over(torch.tensor([[5]]), torch.arange(7)[None], rows=rows).attend is None


def graphs(backend, names):
    script = Path(__file__).parents[1] / "helpers" / "static_steps.py"
    done = subprocess.run([sys.executable, script, backend, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_step_is_compiled_once_for_a_bucket():
    names = "gpt window", "captioner alibi, t5", "seq2seq learned"
    assert graphs("eager", names) == {name: 2 for name in names}  # two buckets


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_step_of_every_kind_gives_what_the_whole_text_gives(backend):
    assert graphs(backend, MODELS) == {name: 2 for name in MODELS}


@pytest.mark.parametrize("name", ["gpt learned", "gpt t5", "gpt window"])
def test_a_row_can_be_emptied_and_given_to_another_sequence_while_others_go_on(name):
    """Row 1 holds a sequence that is not a number; then it is another's, whose prompt is read with the others' steps."""
    model, _ = made(name)
    drawn = torch.Generator().manual_seed(3)
    texts = [torch.randint(VOCAB, (n,), generator=drawn).tolist() for n in (3, 5, 2)]
    cache = model.new_cache(3, 17)
    tokens, span, last = right_padded(texts)
    model(tokens, span=span, cache=cache, last=last)
    cache.store[:, :, 1] = torch.nan
    cache.fix(13)
    cache.empty(torch.tensor([1]))
    texts[1] = []
    for count in (4, 1, 1, 1):
        new = [torch.randint(VOCAB, (count if row == 1 else 1,), generator=drawn).tolist() for row in range(3)]
        index = [
            [*range(len(a), len(a) + len(b)), *[NOWHERE] * (count - len(b))] for a, b in zip(texts, new, strict=True)
        ]
        texts = [text + part for text, part in zip(texts, new, strict=True)]
        tokens, _, last = right_padded(new)
        cache.advance(count)
        logits = model(tokens, span=Span.at(torch.tensor(index)), cache=cache, last=last)[:, -1]
        for row, text in enumerate(texts):
            alone = model(torch.tensor([text]), last=True)[0, -1]
            torch.testing.assert_close(logits[row], alone, atol=1e-9, rtol=1e-9)
    assert cache.used.tolist() == [7, 7, 6]


class OnOneDevice(TorchDispatchMode):
    """Refuses tensors on the CPU, but for single numbers, which a kernel takes by value."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, kwargs, out)):
            assert not isinstance(one, torch.Tensor) or one.is_meta or one.ndim == 0, f"{func} on the {one.device}"
        return out


@pytest.mark.parametrize("name", MODELS)
def test_a_step_makes_no_tensor_on_the_cpu(name, monkeypatch):
    """The meta device stands for a GPU: a tensor on the CPU would have to be copied there at every step."""
    with unchecked():
        model, given = made(name)
        model, device = model.to("meta"), torch.device("meta")
        given = {name: value.to(device) for name, value in given.items() if isinstance(value, torch.Tensor)}
        cache = model.new_cache(3)
        model(torch.zeros(3, 5, dtype=torch.long, device=device), cache=cache, last=True, **given)
        cache.fix(cache.filled + 7)
        tokens = torch.zeros(3, 1, dtype=torch.long, device=device)
        for made_of_a_list in ("tensor", "as_tensor", "Tensor.new_tensor"):
            monkeypatch.setattr(f"torch.{made_of_a_list}", None)
        with OnOneDevice():
            assert model(tokens, span=Span.at(tokens), cache=cache, last=True).is_meta
            assert model(tokens, cache=cache, last=True).is_meta
