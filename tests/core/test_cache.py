import pytest
import torch

from pencil.core.cache import Cache
from pencil.core.masks import NOWHERE, causal
from pencil.core.span import Span


def new(batch=2, length=11):
    return Cache(3, batch, 5, length, 7)


def test_slots_fill_in_order_and_empty_ones_stand_nowhere():
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
    with pytest.raises(ValueError, match="holds 5 tokens, 4 are in it, and 2 more"):
        cache.place(cache.next(2))
