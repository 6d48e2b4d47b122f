"""One sequence after another: the positions of the tokens, their rotations, and what is still known of them."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from pencil.core.masks import NOWHERE, causal, full, padding, prefix, window
from pencil.core.patches import grid_positions
from pencil.core.positions import Positions, Rope
from pencil.core.span import Span


def picture(rows=2, columns=3):
    """A grid of patches, numbered from the first."""
    return Span.whole(rows * columns, coords=grid_positions((rows, columns))[None])


def text(count, at):
    """Text at positions 0, 1, … that is in the sequence from index `at`."""
    return replace(Span.whole(count), index=torch.arange(at, at + count)[None], start=at)


def rotated(span, axes, head_width=14):
    return Rope(head_width, axes)(torch.zeros(1, span.index.shape[1], 3), span)[1]


def test_the_tokens_of_both_are_one_sequence_and_attend_to_one_another():
    joined = picture().then(text(5, at=6))
    assert joined.index.tolist() == [list(range(11))]
    assert torch.equal(joined.key_index, joined.index)
    assert torch.equal(joined.key_coords, joined.coords)


def test_coordinates_with_fewer_axes_are_padded_with_zeros_on_either_side():
    words = [[position, 0] for position in range(3)]
    patches = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert picture().then(text(3, at=6)).coords.tolist() == [patches + words]
    assert text(3, at=0).then(picture()).coords.tolist() == [words + patches]


@given(start=st.integers(0, 7), first=st.integers(1, 7), gap=st.integers(-3, 3), second=st.integers(1, 5))
def test_where_it_starts_is_known_only_when_the_second_goes_on_where_the_first_ends(start, first, gap, second):
    joined = text(first, start).then(text(second, start + first + gap))
    assert joined.start == (start if gap == 0 else None)


def test_where_it_starts_is_unknown_when_either_start_is():
    known, unknown = text(3, at=2), replace(text(3, at=2), start=None)
    assert unknown.then(text(5, at=5)).start is None
    assert known.then(replace(text(5, at=5), start=None)).start is None


def test_both_rotations_are_joined_token_by_token():
    patches, words = rotated(picture(), 2), rotated(text(5, at=6), 1)
    joined = patches.then(words)
    for part in (0, 1):
        assert joined.rotation[part].shape == (1, 1, 11, 7)
        assert torch.equal(joined.rotation[part][:, :, :6], patches.rotation[part])
        assert torch.equal(joined.rotation[part][:, :, 6:], words.rotation[part])
        assert torch.equal(joined.key_rotation[part], joined.rotation[part])


@pytest.mark.parametrize("second", [False, True])
def test_a_half_without_a_rotation_is_not_rotated(second):
    patches, words = picture(), text(5, at=6)
    joined = patches.then(rotated(words, 1)) if second else rotated(patches, 2).then(words)
    still = slice(0, 6) if second else slice(6, 11)
    cos, sin = (part[0, 0] for part in joined.rotation)
    assert (cos[still] == 1).all()
    assert (sin[still] == 0).all()
    assert (sin[[10 if second else 5]] != 0).any()


def test_without_any_rotation_there_is_none():
    joined = picture().then(text(5, at=6))
    assert joined.rotation is None
    assert joined.key_rotation is None


def test_one_picture_span_precedes_every_row_of_a_ragged_batch():
    index = torch.tensor([[NOWHERE, 6, 7], [6, 7, 8]])
    coords = torch.tensor([[0, 0, 1], [0, 1, 2]])[..., None]
    joined = rotated(picture(), 2).then(rotated(Span.of(index, coords), 1))
    assert joined.index.tolist() == [[*range(6), NOWHERE, 6, 7], [*range(6), 6, 7, 8]]
    assert joined.coords.shape == (2, 9, 2)
    assert joined.rotation[0].shape == (2, 1, 9, 7)
    assert torch.equal(joined.rotation[1][0, :, :6], joined.rotation[1][1, :, :6])
    assert not torch.equal(joined.rotation[1][0, :, 6:], joined.rotation[1][1, :, 6:])
    assert joined.start is None
    seen = joined.under(prefix(6)).seen
    assert seen.route == "dense"
    assert not seen.matrix()[0, 0, :6, 6:].any()
    assert not seen.matrix()[0, 0, 7:, 6].any()  # no token attends to the padding


def test_a_joined_span_takes_the_cheap_routes():
    joined = picture().then(text(5, at=6))
    assert joined.under(causal).seen.route == "causal"
    assert joined.under(prefix(6)).seen.route == "prefix"
    assert joined.under(prefix(11)).seen.route == "all"


def test_padding_has_coordinate_zero():
    span = Span.at(torch.tensor([[NOWHERE, 0, 1], [0, 1, 2]]))
    assert span.index.tolist() == [[NOWHERE, 0, 1], [0, 1, 2]]
    assert span.coords.tolist() == [[[0], [0], [1]], [[0], [1], [2]]]
    assert torch.equal(span.key_index, span.index)
    assert torch.equal(span.key_coords, span.coords)
    assert span.start is None  # a row may be padded: nothing is known of all


def test_picked_rows_keep_their_positions_and_nothing_computed_from_them():
    span = Span.at(torch.tensor([[NOWHERE, 0, 1], [0, 1, 2], [NOWHERE, NOWHERE, 0]]))
    ready = replace(Rope(14)(torch.zeros(3, 3, 5), span)[1].under(causal, lambda _: lambda q: q), scale=0.5)
    picked = ready.pick(torch.tensor([2, 0, 2, 1]))
    assert picked.index.tolist() == [span.index[i].tolist() for i in (2, 0, 2, 1)]
    assert picked.coords.tolist() == [span.coords[i].tolist() for i in (2, 0, 2, 1)]
    assert torch.equal(picked.key_index, picked.index)
    assert torch.equal(picked.key_coords, picked.coords)
    assert (picked.seen, picked.rotation, picked.key_rotation, picked.bias, picked.scale) == (
        None,
        None,
        None,
        None,
        None,
    )


def test_one_row_for_all_stays_one_however_many_are_picked():
    picked = Span.whole(5).pick(torch.tensor([6, 0, 3]))
    assert picked.index.tolist() == [[0, 1, 2, 3, 4]]
    assert picked.start == 0


def test_across_to_another_sequence_only_the_scale_comes_along():
    here = replace(rotated(text(3, at=2), 1).under(causal, lambda _: lambda q: q), scale=0.7)
    there = rotated(text(5, at=0), 1)
    crossing = here.across(there)
    assert torch.equal(crossing.index, here.index)
    assert torch.equal(crossing.key_index, there.index)
    assert torch.equal(crossing.key_coords, there.coords)
    assert (crossing.rotation, crossing.key_rotation, crossing.bias, crossing.seen, crossing.start) == (None,) * 5
    assert crossing.scale == 0.7


@pytest.mark.parametrize("mask", [full, causal, prefix(3), causal & window(2), padding], ids=lambda mask: mask.name)
def test_a_bias_is_computed_from_the_span_and_the_mask_stays_the_same(mask):
    called = []

    def scheme(span):
        called.append(span)
        return lambda q: q @ q.mT

    span, plain = Span.whole(7), Span.whole(7).under(mask)
    biased = span.under(mask, scheme)
    assert called == [span]
    q = torch.randn(1, 2, 7, 3)
    assert torch.equal(biased.bias(q), q @ q.mT)
    assert biased.seen.route == ("all" if plain.seen.route == "all" else "dense")
    allowed = mask(torch.arange(7)[:, None], torch.arange(7))
    assert torch.equal(biased.seen.matrix().expand(1, 1, 7, 7)[0, 0], allowed.expand(7, 7))


def test_a_scheme_that_biases_nothing_leaves_the_cheap_route():
    span = Span.whole(7).under(causal, Positions().bias)
    assert span.bias is None
    assert span.seen.route == "causal"
