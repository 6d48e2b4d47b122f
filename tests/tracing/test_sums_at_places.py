"""What is added to places, bags of rows, counts, sampled pictures, spectra, and LSTMs by their products."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pencil
from pencil.config import UserError
from pencil.tracing import rules
from pencil.tracing.file import load
from pencil.tracing.trace import Trace
from traced import drawn, holds, same, unchecked, wrong

ROWS, IMAGE, TABLE = drawn(3, 5), drawn(2, 3, 11, 7), drawn(23, 5)
TWICE = torch.tensor([1, 0, 1])
PLACES = torch.tensor([[0, 1, 2, 0, 0], [2, 2, 2, 3, 1], [0, 1, 1, 1, 1]])
WORDS = torch.tensor([3, 7, 7, 22, 0, 3, 19, 11, 2, 7, 5])
BAGS = torch.tensor([0, 3, 3, 7])

SUMS = {
    "rows": (ROWS, lambda x: torch.ones(4, 5).index_add(0, TWICE, x, alpha=0.3) + torch.ones(4, 5).index_add_(0, TWICE, x)),
    "cells": (ROWS, lambda x: torch.ones(4, 5).scatter_add_(0, PLACES, x) * 2),
    **{
        f"{how} {'with' if own else 'without'} what was there": (
            ROWS, lambda x, how=how, own=own: drawn(4, 5).scatter_reduce(0, PLACES, x, how, include_self=own) * 2
        )
        for how in ("sum", "mean", "prod", "amax", "amin") for own in (True, False)
    },
    **{f"bags, {mode}": (TABLE, lambda t, mode=mode: F.embedding_bag(WORDS, t, BAGS, mode=mode) * 2) for mode in ("sum", "mean", "max")},
    "bags with weights": (
        TABLE, lambda t: F.embedding_bag(WORDS, t, BAGS, mode="sum", per_sample_weights=drawn(11), padding_idx=3) * 2
    ),
    "bags of two": (TABLE, lambda t: F.embedding_bag(WORDS[1:].reshape(5, 2), t, mode="mean") * 2),
    "histogram": (ROWS, lambda x: torch.histc(x, 7, -1, 1) * 2),
    "patches put back": (IMAGE, lambda x: F.fold(F.unfold(x, 3, 1, 1, 2), (11, 7), 3, 1, 1, 2) * 2),
    "a turned picture": (
        IMAGE, lambda x: F.grid_sample(x, F.affine_grid(drawn(2, 2, 3), [2, 3, 5, 13], align_corners=False), align_corners=False)
    ),
    "points beyond the border": (
        IMAGE, lambda x: F.grid_sample(x, drawn(2, 5, 3, 2) * 2, padding_mode="border", align_corners=True)
    ),
    "a spectrum": (ROWS, lambda x: torch.fft.rfft(x) * 2),
    "of two axes": (IMAGE, lambda x: torch.fft.fft2(x, norm="ortho") * 2),
    "and back": (IMAGE, lambda x: torch.fft.irfft2(torch.fft.rfft2(x), (11, 7)) + torch.fft.ifft(torch.fft.fft(x)).real),
    "of an even number": (drawn(3, 6), lambda x: torch.fft.irfft(torch.fft.rfft(x), 6) * 2),
    "of windows": (
        drawn(2, 31), lambda x: torch.stft(x, 7, window=torch.hann_window(7), return_complex=True).abs() * 2
    ),
    "rows of different length": (
        ROWS, lambda x: nn.utils.rnn.pad_packed_sequence(
            nn.utils.rnn.pack_padded_sequence(x[..., None], torch.tensor([5, 3, 2]), batch_first=True), padding_value=0.5
        )[0] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
@unchecked()
def test_every_cell_of_a_sum_at_places(name):
    given, program = SUMS[name]
    same(program, given, receipts=5, cells=200)


@pytest.mark.parametrize("settings", [dict(bidirectional=True, num_layers=2), dict(batch_first=True, proj_size=3), {}])
@unchecked()
def test_an_lstm_by_its_products(settings):
    torch.manual_seed(0)
    model, x = nn.LSTM(5, 7, **settings), drawn(3, 2, 5)
    found = pencil.trace(model, x)
    with torch.no_grad():
        for name, own in zip(("0", "1.0", "1.1"), (model(x)[0], *model(x)[1]), strict=True):
            torch.testing.assert_close(torch.as_tensor(found[name].value), own.double(), atol=1e-6, rtol=1e-6)
    holds(found, 100)
    assert {"addmm", "sigmoid", "tanh"} <= {n.op for n in found.graph.nodes}
    assert torch.backends.mkldnn.enabled


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("of", ["rows", "columns"])
def test_products_in_groups(of):
    one = drawn(11, 16).bfloat16()
    one, two = (one, drawn(3, 16, 8).bfloat16()) if of == "rows" else (one.T, drawn(11, 8).bfloat16())
    ends = torch.tensor([3, 3, 11], dtype=torch.int32)
    found = pencil.trace(lambda a, b: torch._grouped_mm(a, b, ends) * 1, one, two)
    torch.testing.assert_close(found.output, torch._grouped_mm(one, two, ends), atol=0.05, rtol=0.02)
    holds(found, 100)


@pytest.mark.parametrize("op", ["index_add", "_fft_r2c", "grid_sampler_2d", "_embedding_bag_forward_only"])
def test_a_wrong_rule_is_caught(op, monkeypatch):
    kind, right = rules.RULES[op]
    monkeypatch.setitem(rules.RULES, op, (kind, lambda call: right(call) if call.out else right(call) * 1.001))

    def program(x, table):
        x = torch.zeros(4, 5).index_add_(0, TWICE, x) + F.embedding_bag(WORDS, table, BAGS, mode="sum")
        x = torch.fft.rfft(x).abs()
        return F.grid_sample(x[None, None], drawn(1, 3, 2, 2) / 2, align_corners=False)

    _, bad = wrong(pencil.trace(program, ROWS, TABLE).graph)
    assert {found for found, _, _ in bad} == {op}


# what is not described


def inverse(x):
    return (torch.linalg.inv(x @ x.mT + torch.eye(3)) @ x) * 2


def test_an_operation_that_is_not_described_is_refused_with_the_way_out():
    with pytest.raises(UserError, match=r"linalg_inv_ex.*opaque=True"):
        pencil.trace(inverse, ROWS)


def test_a_receipt_above_a_leaf_says_where_the_proof_ends(tmp_path):
    found = pencil.trace(inverse, ROWS, opaque=True)
    assert torch.equal(found.output, inverse(ROWS))
    assert found.graph.undescribed == {"linalg_inv_ex": "linalg_inv_ex"}
    above = found["output"][1, 2].why()
    sentence = "the proof ends at linalg_inv_ex: the operation linalg_inv_ex is not described"
    assert above.agrees
    assert above.ends == (sentence,)
    assert str(above).splitlines()[-1] == sentence
    assert "not described" in str(found["linalg_inv_ex"][1, 2].why())
    assert not found["add"][0, 0].why().ends
    assert not wrong(found.graph)[1]
    found.save(tmp_path / "a.trace.safetensors")
    assert Trace(*load(tmp_path / "a.trace.safetensors"))["output"][1, 2].why().ends == (sentence,)


def test_an_edit_keeps_what_is_opaque():
    found = pencil.trace(inverse, ROWS, opaque=True)
    assert found.edit("x[0,0]", 2.0).graph.undescribed


def test_several_tensors_written_at_once_are_leaves():
    def program(x):
        a, b = torch.zeros(3, 5), torch.zeros(3, 5, dtype=torch.long)
        torch.sort(x, 1, out=(a, b))
        return a * 2 + b

    with pytest.raises(UserError, match=r"several tensors at once.*opaque=True"):
        pencil.trace(program, ROWS)
    found = pencil.trace(program, ROWS, opaque=True)
    assert list(found.graph.undescribed) == ["sort"]
    assert found["output"][1, 2].why().agrees
    assert len(found["output"][1, 2].why().ends) == 2


def test_an_operation_of_another_library_is_not_passed_over(request):
    """It was recorded as a constant, as if nothing had been computed."""
    library = torch.library.Library("pencil_test", "DEF")
    request.addfinalizer(library._destroy)
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    with pytest.raises(UserError, match="the operation twice"):
        pencil.trace(lambda x: torch.ops.pencil_test.twice(x) + 1, ROWS)
    found = pencil.trace(lambda x: torch.ops.pencil_test.twice(x) + 1, ROWS, opaque=True)
    assert list(found.graph.undescribed) == ["twice"]


@pytest.mark.parametrize("opaque", [False, True])
def test_a_step_with_an_operation_that_is_not_described(opaque):
    model = nn.Linear(5, 5)
    batch = (ROWS,)

    def loss(model, x):
        return torch.linalg.inv(model(x)[:, :3] + 3 * torch.eye(3)).square().mean()

    if not opaque:
        with pytest.raises(UserError, match="opaque=True"):
            pencil.trace_step(model, loss, batch)
        return
    found = pencil.trace_step(model, loss, batch, opaque=True)
    assert "linalg_inv_ex" in found.graph.undescribed
    assert found.grad["weight"][1, 2].why().agrees
