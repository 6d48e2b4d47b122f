"""The next token against the same rules written with a sort of the whole vocabulary, ties included."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings

from pencil.inference.decode_step import CHUNK, DecodeState
from pencil.inference.sampling import Sampling, choose, penalize, probabilities


def sorted_probabilities(logits, how):
    """Temperature, top-k, top-p and min-p over the sorted vocabulary; equal tokens by their ids."""
    logits = logits.double()
    p = ((logits - logits.amax(-1, keepdim=True)) / how.temperature).softmax(-1)
    order = p.sort(dim=-1, descending=True, stable=True)
    sorted_p, keep = order.values, torch.ones_like(order.values, dtype=torch.bool)
    if how.top_k is not None:
        keep[:, how.top_k :] = False
    edges = []
    if how.top_p is not None:
        kept = sorted_p * keep
        kept = kept / kept.sum(-1, keepdim=True)
        before = kept.cumsum(-1) - kept
        edges.append((before - how.top_p)[keep])
        keep &= before < how.top_p
    if how.min_p is not None:
        edges.append(sorted_p / sorted_p[:, :1] - how.min_p)
        keep &= sorted_p >= how.min_p * sorted_p[:, :1]
    p = torch.zeros_like(p).scatter(-1, order.indices, sorted_p * keep)
    # where rounding decides, either decision is right
    nearest = min((float(edge.abs().min()) for edge in edges), default=1.0)
    return p / p.sum(-1, keepdim=True), nearest


# half-precision numbers, and few of them: many are equal
few = st.sampled_from([-7.0, -0.0, 0.0, 0.5, 0.5625, 3.0, -torch.inf])
half = st.floats(-9, 9, width=16, allow_subnormal=False)


@settings(max_examples=50, deadline=None)
@given(
    data=st.data(),
    vocab=st.integers(1, 23),
    temperature=st.sampled_from([1e-3, 0.7, 1.0, 2.5]),
    k=st.none() | st.integers(1, 29),
    p=st.none() | st.floats(0.01, 1),
    m=st.none() | st.floats(0, 1),
    kind=st.sampled_from([few, half]),
)
def test_the_same_tokens_are_chosen_as_from_a_sorted_vocabulary(data, vocab, temperature, k, p, m, kind):
    rows = data.draw(st.lists(st.lists(kind, min_size=vocab, max_size=vocab), min_size=1, max_size=3))
    logits = torch.tensor(rows)
    assume(bool((logits.amax(-1) > -torch.inf).all()))
    uniforms = torch.rand(len(rows), 8, generator=torch.Generator().manual_seed(vocab), dtype=torch.float64)
    how = Sampling(temperature, k, p, m)
    expected, nearest = sorted_probabilities(logits, how)
    assume(nearest > 1e-12)
    found = probabilities(logits, how)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    cumulative = expected.cumsum(-1)
    for u in uniforms.unbind(1):
        drawn = torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True)[:, 0]
        assert choose(logits, how, u).tolist() == drawn.clamp(max=vocab - 1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_tokens_top_k_keeps_those_with_lower_ids(dtype):
    logits = torch.tensor([[1.0, -0.0, 2.0, 0.0, 1.0, 1.0, 0.0]], dtype=dtype)
    for k, kept in ((1, {2}), (2, {0, 2}), (3, {0, 2, 4}), (5, {0, 1, 2, 4, 5}), (6, {0, 1, 2, 3, 4, 5})):
        found = probabilities(logits, Sampling(1.0, top_k=k))[0]
        assert set(found.nonzero()[:, 0].tolist()) == kept


def test_a_large_vocabulary_keeps_the_same_tokens():
    logits = torch.randn(3, 50257, generator=torch.Generator().manual_seed(0)).bfloat16()  # with thousands of ties
    for how in (Sampling(0.8, top_k=50), Sampling(1.0, top_p=0.9), Sampling(0.9, top_k=997, top_p=0.8, min_p=0.03)):
        expected, _ = sorted_probabilities(logits, how)
        torch.testing.assert_close(probabilities(logits, how), expected, rtol=1e-12, atol=0)


def test_only_a_nucleus_of_the_whole_vocabulary_is_sorted(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("sorted")

    monkeypatch.setattr(torch.Tensor, "sort", refuse)
    logits = torch.randn(2, 31)
    for how in (Sampling(0.7), Sampling(1, min_p=0.1), Sampling(1, top_k=5), Sampling(1, top_k=5, top_p=0.9)):
        probabilities(logits, how)
    with pytest.raises(AssertionError, match="sorted"):
        probabilities(logits, Sampling(1, top_p=0.9))


def test_the_penalty_is_of_each_row():
    logits = torch.tensor([[2.0, -1.0, 0.5], [2.0, -1.0, 0.5]])
    seen = torch.tensor([[True, True, False], [False, False, True]])
    assert penalize(logits, seen, 2.0).tolist() == [[1.0, -2.0, 0.5], [2.0, -1.0, 0.25]]
    assert choose(logits, Sampling(0, repetition_penalty=8.0), None, seen).tolist() == [2, 0]


def test_random_numbers_drawn_ahead_are_those_drawn_one_at_a_time():
    seeds = [3, 1_000_003 * 5 + 2]
    state = DecodeState(2, Sampling(), vocab=5, context=9)
    random = [torch.Generator().manual_seed(seed) for seed in seeds]
    found = []
    for _ in range(2):
        state.draw(random)
        found.append(state.uniforms.clone())
    for row, seed in zip(torch.cat(found, 1), seeds, strict=True):
        one = torch.Generator().manual_seed(seed)
        assert row.tolist() == [torch.rand((), generator=one, dtype=torch.float64).item() for _ in range(2 * CHUNK)]
