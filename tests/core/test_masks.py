from itertools import product

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from conftest import unchecked
from pencil.core.attention import attend
from pencil.core.masks import NOWHERE, Mask, causal, full, padding, prefix, window


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


MASKS = [full, causal, padding, prefix(3), window(4)]


def test_the_words_of_a_mask_say_what_it_masks():
    """Read as Python, whose "and" binds tighter than "or"."""
    keys = [*range(7), NOWHERE]
    indices = torch.arange(7)[:, None], torch.tensor(keys)
    for masks in product(MASKS, repeat=3):
        mask = masks[0] & masks[1] & masks[2]
        spelled = mask.words.replace("≤", "<=").replace("−", "-").replace("|i - j|", "abs(i - j)")
        condition = compile(spelled.replace("key j is not padding", f"j < {NOWHERE}") or "True", "words", "eval")
        for i, row in enumerate(mask(*indices).expand(7, 8).tolist()):
            assert [eval(condition, {"i": i, "j": j}) for j in keys] == row, mask.words


@pytest.mark.parametrize("mask", [causal, prefix(3), window(4), causal & window(4), full & padding])
def test_no_mask_admits_padding(mask):
    query = torch.arange(13)[:, None]
    assert not mask(query, torch.tensor([[NOWHERE]])).any()


@given(n=st.integers(1, 23), count=st.integers(0, 29), size=st.integers(1, 29))
@unchecked()
def test_the_cheapest_route_equals_the_predicate(n, count, size):
    index = torch.arange(n)[None]
    for mask in (full, causal, padding, prefix(count), window(size), causal & window(size), prefix(count) & padding):
        seen = mask.over(index, start=0)
        expected = {"all": torch.ones(n, n, dtype=torch.bool), "causal": torch.ones(n, n, dtype=torch.bool).tril()}
        expected["prefix"] = expected["causal"].clone()
        expected["prefix"][: seen.first, : seen.first] = True
        claimed = expected.get(seen.route, seen.allowed)
        assert torch.equal(claimed.expand(1, 1, n, n), table(mask, n).expand(1, 1, n, n)), (mask.name, seen.route)


@pytest.mark.parametrize("mask, route", [
    (full, "all"), (causal, "causal"), (prefix(0), "causal"), (prefix(99), "all"), (causal & window(99), "causal"),
    (prefix(3), "prefix"), (prefix(3) & causal, "dense"), (causal & window(3), "dense"), (full & padding, "all"),
])  # fmt: skip
def test_routes(mask, route):
    assert mask.over(torch.arange(17)[None], start=0).route == route


def test_one_new_token_needs_no_mask_and_a_ragged_batch_needs_one():
    for mask, route in ((causal, "all"), (prefix(4), "all"), (causal & padding, "all"), (causal & window(3), "dense")):
        seen = mask.over(torch.tensor([[9]]), torch.arange(10)[None], start=9)
        assert seen.route == route
        claimed = torch.ones(1, 10, dtype=torch.bool) if route == "all" else seen.allowed
        assert torch.equal(claimed.expand(1, 1, 1, 10), table(mask, 10)[9].expand(1, 1, 1, 10))
    assert causal.over(torch.tensor([[9]]), torch.arange(10)[None]).route == "dense"
    assert causal.over(torch.arange(5, 9)[None], torch.arange(9)[None], start=5).route == "dense"


def test_full_needs_no_mask_across_two_sequences():
    assert full.over(torch.arange(5)[None], torch.arange(9)[None]).route == "all"


def test_masks_are_distinguished_by_identity_not_by_name():
    one, two = Mask("mine", lambda q, k: k <= q), Mask("mine", lambda q, k: k < q)
    assert one != two
    assert prefix(3) is prefix(3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the block route runs on CUDA")
@pytest.mark.parametrize("mask", [prefix(97), causal & window(61)])
def test_the_block_route_is_the_predicate(mask):
    seen = mask.over(torch.arange(251, device="cuda")[None], start=0)
    assert seen.route == "blocks"
    q, k, v = (torch.randn(2, 3, 251, 64, device="cuda") for _ in "qkv")
    torch.testing.assert_close(attend(q, k, v, seen), attend(q, k, v, seen.matrix()), atol=1e-4, rtol=1e-4)


def test_padding_costs_one_row_not_a_square():
    index = torch.tensor([[0, 1, 2, NOWHERE], [0, 1, 2, 3]])
    assert (full & padding).over(index).allowed.shape == (2, 1, 1, 4)
