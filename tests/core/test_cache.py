import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pencil.core.attention import Attention
from pencil.core.biases import T5, Alibi, Shaw
from pencil.core.blocks import CrossBlock
from pencil.core.cache import Cache, Memory
from pencil.core.layers import MLP, LayerNorm
from pencil.core.masks import NOWHERE, causal, padding
from pencil.core.positions import Positions, Rope
from pencil.core.span import Span


def new(batch=2, length=11):
    return Cache(3, batch, 5, length, 7)


def test_slots_fill_in_order_and_empty_ones_have_no_index():
    cache = new()
    span = cache.place(cache.next(4))
    assert span.slots == slice(0, 4)
    assert span.start == 0
    span = cache.place(cache.next(3))
    assert span.index.tolist() == [[4, 5, 6]]
    assert span.key_index.shape == (2, 7)
    assert (cache.index[:, 7:] == NOWHERE).all()
    k = torch.randn(2, 5, 3, 7)
    keys, values = cache[1].write(span.slots, k, -k)
    assert keys.shape == (2, 5, 7, 7)
    assert torch.equal(keys[:, :, 4:], k)
    assert torch.equal(values[:, :, 4:], -k)
    assert not cache[0].keys.any()


def test_rows_of_different_lengths_go_on_from_their_own_last_token():
    cache = new()
    cache.place(Span.of(torch.tensor([[NOWHERE, NOWHERE, 0], [0, 1, 2]])))
    assert not cache.even
    span = cache.place(cache.next(2))
    assert span.index.tolist() == [[1, 2], [3, 4]]
    assert span.start is None
    seen = causal.over(span.index, span.key_index).matrix()[:, 0]
    assert seen[0].tolist() == [[False, False, True, True, False], [False, False, True, True, True]]
    assert seen[1].tolist() == [[True, True, True, True, False], [True, True, True, True, True]]


def test_more_tokens_than_slots_are_refused():
    cache = new(length=5)
    cache.place(cache.next(4))
    with pytest.raises(ValueError, match="has room for 5 tokens: 4 are in it, and 2 more"):
        cache.place(cache.next(2))


def test_picked_rows_are_kept_in_their_order_as_often_as_requested():
    cache = Cache(3, 5, 2, 11, 7, axes=2)
    cache.place(Span.at(torch.tensor([[NOWHERE, 0], [0, 1], [0, 1], [NOWHERE, 0], [0, 1]])))
    for layer in cache.layers:
        layer.write(slice(0, 2), torch.randn(5, 2, 2, 7), torch.randn(5, 2, 2, 7))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    index, coords, rows = cache.index.clone(), cache.coords.clone(), torch.tensor([3, 1, 3])
    cache.pick(rows)
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[rows])
        assert torch.equal(layer.values, values[rows])
    assert torch.equal(cache.index, index[rows])
    assert torch.equal(cache.coords, coords[rows])
    assert (cache.used, cache.length, cache.even) == (2, 11, False)
    # a row that came twice is two rows: writing to one leaves the other
    cache[0].keys[0] = 0
    assert cache[0].keys[2].any()


def remembered(batch=3):
    layers = [(torch.randn(batch, 2, 5, 7), torch.randn(batch, 2, 5, 7)) for _ in range(2)]
    return Memory(
        layers, Span.at(torch.tensor([[0, 1, 2, 3, 4], [0, 1, NOWHERE, NOWHERE, NOWHERE], [0, 1, 2, NOWHERE, NOWHERE]]))
    )


def test_a_memory_is_picked_with_its_rows_unless_sources_stay():
    memory, rows = remembered(), torch.tensor([2, 2, 0, 1])
    cache = new(3)
    cache.memory = memory
    cache.pick(torch.tensor([1, 0, 2]), sources=False)
    assert cache.memory is memory
    cache.pick(rows)
    for (k, v), (keys, values) in zip(cache.memory.layers, memory.layers, strict=True):
        assert torch.equal(k, keys[rows])
        assert torch.equal(v, values[rows])
    assert torch.equal(cache.memory.span.index, memory.span.index[rows])
    assert len(memory.layers[0][0]) == 3  # what was picked from is as it was


SCHEMES = {
    "rope": lambda: Rope(10),
    "alibi": lambda: Alibi(3),
    "shaw": lambda: Shaw(10, max_distance=2),
    "t5": lambda: T5(3, both=False, buckets=6, max_distance=7),
    "none": Positions,
}


@settings(max_examples=15)
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=5), kind=st.sampled_from(sorted(SCHEMES)), data=st.data())
def test_going_on_with_picked_rows_is_going_on_with_those_rows_alone(rows, kind, data):
    """A block with self- and cross-attention, both padded; then two tokens more of the rows picked."""
    torch.manual_seed(0)
    scheme = SCHEMES[kind]().double()
    block = CrossBlock(lambda: Attention(30, 3, 1), lambda: MLP(30, 7), lambda: LayerNorm(30)).double()
    for p in [*scheme.parameters(), *block.parameters()]:
        torch.nn.init.normal_(p, std=0.3)
    x, source = (torch.randn(3, n, 30, dtype=torch.float64) for n in (7, 5))
    lengths, sources = data.draw(st.tuples(*[st.integers(1, 5)] * 3)), data.draw(st.tuples(*[st.integers(1, 5)] * 3))
    index, there = torch.full((3, 5), NOWHERE), torch.full((3, 5), NOWHERE)
    for i, (n, s) in enumerate(zip(lengths, sources, strict=True)):
        index[i, 5 - n :], there[i, :s] = torch.arange(n), torch.arange(s)

    def begin(which):
        cache = Cache(1, len(which), 1, 7, 10, dtype=torch.float64)
        cache.memory = Memory([block.cross.read(source[which])], Span.at(there[which]))
        go(cache, x[which, :5], Span.at(index[which]))
        return cache

    def go(cache, x, span):
        x, here = scheme(x, cache.place(span))
        across = here.across(cache.memory.span).under(padding)
        return block(x, here.under(causal, scheme.bias), cache.memory.layers[0], across, cache[0])

    with torch.no_grad():
        picked = begin([0, 1, 2])
        picked.pick(torch.tensor(rows))
        alone = [begin([row]) for row in rows]
        for step in (5, 6):
            together = go(picked, x[rows, step : step + 1], picked.next(1))
            for i, row in enumerate(rows):
                by_itself = go(alone[i], x[[row], step : step + 1], alone[i].next(1))
                torch.testing.assert_close(together[i], by_itself[0], atol=1e-10, rtol=1e-10)
