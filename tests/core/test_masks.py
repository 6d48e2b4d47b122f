import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from pencil.core.masks import NOWHERE, causal, full, padding, prefix, window


def table(mask, n):
    i = torch.arange(n)
    return mask(i[:, None], i[None, :]).expand(n, n)


@pytest.mark.parametrize("name, mask", [("causal", causal), ("bidirectional_vision", prefix(4))])
def test_the_two_masks_of_the_notation(golden, name, mask):
    printed = torch.tensor([[cell == 0 for cell in row] for row in golden["001-masks"]["expected"][name]])
    assert torch.equal(table(mask, 7), printed)


def test_each_predicate_by_its_definition():
    n = 11
    for q in range(n):
        for k in range(n):
            assert bool(table(causal, n)[q, k]) == (k <= q)
            assert bool(table(prefix(5), n)[q, k]) == (k <= q or k < 5)
            assert bool(table(window(3), n)[q, k]) == (abs(q - k) < 3)
            assert bool(table(causal & window(3), n)[q, k]) == (q - 3 < k <= q)
    assert table(full, n).all()


@pytest.mark.parametrize("mask", [causal, prefix(3), window(4), causal & window(4), full & padding])
def test_no_mask_admits_a_token_that_stands_nowhere(mask):
    query = torch.arange(13)[:, None]
    assert not mask(query, torch.tensor([[NOWHERE]])).any()


@given(n=st.integers(1, 23), count=st.integers(0, 29), size=st.integers(1, 29))
def test_the_cheapest_route_says_the_same_as_the_predicate(n, count, size):
    index = torch.arange(n)[None]
    for mask in (full, causal, padding, prefix(count), window(size), causal & window(size), prefix(count) & padding):
        seen = mask.over(index, start=0)
        said = {"all": torch.ones(n, n, dtype=torch.bool), "causal": torch.ones(n, n, dtype=torch.bool).tril()}
        claimed = said.get(seen.route, seen.allowed)
        assert torch.equal(claimed.expand(1, 1, n, n), table(mask, n).expand(1, 1, n, n)), (mask.name, seen.route)


@pytest.mark.parametrize("mask, route", [
    (full, "all"), (causal, "causal"), (prefix(0), "causal"), (prefix(99), "all"), (causal & window(99), "causal"),
    (prefix(3), "dense"), (causal & window(3), "dense"), (full & padding, "all"),
])  # fmt: skip
def test_routes(mask, route):
    assert mask.over(torch.arange(17)[None], start=0).route == route


def test_one_new_token_needs_no_mask_and_a_ragged_batch_needs_one():
    assert causal.over(torch.tensor([[9]]), torch.arange(10)[None], start=9).route == "all"
    assert causal.over(torch.tensor([[9]]), torch.arange(10)[None]).route == "dense"
    assert causal.over(torch.arange(5, 9)[None], torch.arange(9)[None], start=5).route == "dense"


def test_padding_costs_one_row_not_a_square():
    index = torch.tensor([[0, 1, 2, NOWHERE], [0, 1, 2, 3]])
    assert (full & padding).over(index).allowed.shape == (2, 1, 1, 4)
