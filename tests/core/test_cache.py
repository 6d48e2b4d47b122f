import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from conftest import unchecked
from pencil.core.attention import Attention
from pencil.core.blocks import CrossBlock
from pencil.core.cache import Cache, Memory
from pencil.core.layers import MLP, LayerNorm
from pencil.core.masks import NOWHERE, causal, padding
from pencil.core.positions import T5, Alibi, Positions, Rope, Shaw
from pencil.core.span import Span


def new(batch=2, length=11):
    return Cache(3, batch, 5, length, 7)


def test_slots_fill_in_order_and_empty_ones_have_no_index():
    cache = new()
    span = cache.place(cache.next(4))
    assert span.slots.tolist() == [[0, 1, 2, 3]]
    assert span.start == 0
    span = cache.place(cache.next(3))
    assert span.index.tolist() == [[4, 5, 6]]
    assert span.key_index.shape == (2, 7)
    assert (cache.index[:, 7:] == NOWHERE).all()
    k = torch.randn(2, 5, 3, 7)
    keys, values = cache[1].write(span, k, -k)
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
    assert seen[0].tolist() == [[True, True, False, False, False], [True, True, True, False, False]]
    assert seen[1].tolist() == [[True, True, True, True, False], [True, True, True, True, True]]


def test_more_tokens_than_slots_are_refused():
    cache = new(length=5)
    cache.place(cache.next(4))
    with pytest.raises(ValueError, match="has room for 5 tokens: 4 are in it, and 2 more"):
        cache.place(cache.next(2))


def test_picked_rows_are_kept_in_their_order_as_often_as_requested():
    cache = Cache(3, 5, 2, 11, 7, axes=2)
    span = cache.place(Span.at(torch.tensor([[NOWHERE, 0], [0, 1], [0, 1], [NOWHERE, 0], [0, 1]])))
    for layer in cache.layers:
        layer.write(span, torch.randn(5, 2, 2, 7), torch.randn(5, 2, 2, 7))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    index, coords, rows = cache.index.clone(), cache.coords.clone(), torch.tensor([3, 1, 3])
    cache.pick(rows)
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[rows])
        assert torch.equal(layer.values, values[rows])
    assert torch.equal(cache.index, index[rows])
    assert torch.equal(cache.coords, coords[rows])
    assert cache.used.tolist() == [1, 2, 1]
    assert (cache.filled, cache.length, cache.even) == (2, 11, False)
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
@unchecked()
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


spans = st.lists(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=4), max_size=4)


@settings(max_examples=30)
@given(spans=spans, static=st.booleans())
@unchecked()
def test_rows_fill_from_slot_0_without_gaps_wherever_the_padding_is(spans, static):
    """Each span is a list of tokens, of which each row has one, or padding."""
    cache, held = Cache(1, 2, 1, 17, 1, axes=2), [[], []]
    cache.fix(16 if static else None)
    for real in spans:
        real = torch.tensor(real).T
        index = torch.where(real, cache.used[:, None] + real.cumsum(1) - 1, NOWHERE)
        span = cache.place(Span.at(index))
        k = torch.randn(2, 1, real.shape[1], 1)
        keys, values = cache[0].write(span, k, -k)
        for row in range(2):
            held[row] += k[row, 0, real[row], 0].tolist()
        assert span.reach == (16 if static else cache.filled) == keys.shape[2] == span.key_index.shape[1]
        assert torch.equal(keys, -values)
        for row, numbers in enumerate(held):
            n = len(numbers)
            assert keys[row, 0, :n, 0].tolist() == numbers
            assert span.key_index[row].tolist() == [*range(n), *[NOWHERE] * (span.reach - n)]
            assert span.key_coords[row, :n].tolist() == [[i, 0] for i in range(n)]
    assert cache.used.tolist() == [len(numbers) for numbers in held]
    assert cache.next(1).index.expand(2, -1).tolist() == [[len(numbers)] for numbers in held]


def test_rows_that_ended_do_not_use_up_the_room_of_the_others():
    cache = new(length=7)
    cache.place(Span.at(torch.tensor([[0, 1, 2, 3, 4], [0, *[NOWHERE] * 4]])))
    for index in range(1, 7):
        span = cache.place(Span.at(torch.tensor([[NOWHERE], [index]])))
        assert max(5, index + 1) <= cache.filled == span.reach <= 7
    assert cache.used.tolist() == [5, 7]
    with pytest.raises(ValueError, match="has room for 7 tokens: 7 are in it, and 1 more"):
        cache.place(cache.next(1))
    assert cache.used.tolist() == [5, 7]


def test_static_shapes_change_no_number_in_python_but_by_advance():
    cache = new(length=13)
    cache.place(cache.next(3))
    cache.fix(7)
    state = {name: value for name, value in vars(cache).items() if not isinstance(value, torch.Tensor)}
    for used in (3, 4, 5):
        span = cache.place(cache.next(1))
        assert (span.start, span.reach) == (None, 7)
        assert span.slots.tolist() == [[used], [used]]
    assert {name: value for name, value in vars(cache).items() if not isinstance(value, torch.Tensor)} == state
    cache.advance(3)
    cache.advance(1)
    with pytest.raises(ValueError, match="has room for 7 tokens: 6 are in it, and 2 more"):
        cache.advance(2)
    with pytest.raises(ValueError, match="6 to 13 slots here"):
        cache.fix(5)
    with pytest.raises(ValueError, match="6 to 13 slots here, those filled to all, not 14"):
        cache.fix(14)
    cache.fix(None)
    assert cache.place(cache.next(1)).reach == 7


def test_as_many_rows_are_picked_in_the_same_storage():
    cache, rows = Cache(3, 3, 2, 11, 7), torch.tensor([2, 0, 2])
    span = cache.place(Span.at(torch.tensor([[0, 1], [0, NOWHERE], [0, 1]])))
    for layer in cache.layers:
        layer.write(span, torch.randn(3, 2, 2, 7), torch.randn(3, 2, 2, 7))
    held = cache.store, cache.index, cache.coords, cache.used
    before = [t.clone() for t in held]
    cache.pick(rows)
    assert [t.data_ptr() for t in held] == [t.data_ptr() for t in (cache.store, cache.index, cache.coords, cache.used)]
    assert torch.equal(cache.store[..., :-1, :], before[0][:, :, rows][..., :-1, :])
    assert all(torch.equal(t, old[rows]) for t, old in zip(held[1:], before[1:], strict=True))
    assert torch.equal(cache[1].keys, cache.store[0, 1])


def test_an_emptied_row_begins_again_and_the_others_go_on():
    cache = new()
    cache[0].write(cache.place(cache.next(3)), torch.full((2, 5, 3, 7), torch.nan), torch.ones(2, 5, 3, 7))
    cache.empty(torch.tensor([0]))
    assert not cache.store[:, :, 0].any()
    assert cache[0].keys[1, :, :3].isnan().all()
    span = cache.place(cache.next(1))
    assert span.slots.tolist() == [[0], [3]]
    assert span.key_index.tolist() == [[0, NOWHERE, NOWHERE, NOWHERE], [0, 1, 2, 3]]


def test_keys_of_another_dtype_are_written_in_the_caches():
    cache = Cache(1, 2, 1, 5, 3)
    k = torch.randn(2, 1, 2, 3, dtype=torch.bfloat16)
    keys, _ = cache[0].write(cache.place(cache.next(2)), k, k)
    assert torch.equal(keys, k.float())
    cache.fix(5)
    keys, _ = cache[0].write(cache.place(cache.next(2)), k, k)
    assert torch.equal(keys[:, :, 2:4], k.float())


def test_a_cache_that_is_reset_is_as_new_in_the_same_storage():
    cache, fresh = new(), new()
    address = cache.store.data_ptr()
    cache[0].write(cache.place(cache.next(3)), torch.ones(2, 5, 3, 7), torch.ones(2, 5, 3, 7))
    cache.fix(7)
    cache.reset()
    assert cache.unwritten
    assert (cache.filled, cache.even, cache.store.data_ptr()) == (0, True, address)
    for mine, other in ((cache.store, fresh.store), (cache.index, fresh.index), (cache.used, fresh.used)):
        assert torch.equal(mine, other)
