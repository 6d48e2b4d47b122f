"""One sequence after another: where the tokens stand, how they are turned, and what is still known of them."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from pencil.core.masks import NOWHERE, causal, prefix
from pencil.core.patches import seats
from pencil.core.positions import Rope
from pencil.core.span import Span


def picture(rows=2, columns=3):
    """A grid of strips, numbered from the first."""
    return Span.whole(rows * columns, coords=seats((rows, columns))[None])


def text(count, at):
    """Words at seats 0, 1, … that stand in the sequence from `at`."""
    return replace(Span.whole(count), index=torch.arange(at, at + count)[None], start=at)


def turned(span, axes, head_width=14):
    return Rope(head_width, axes)(torch.zeros(1, span.index.shape[1], 3), span)[1]


def test_the_tokens_of_both_stand_in_one_line_and_face_one_another():
    joined = picture().then(text(5, at=6))
    assert joined.index.tolist() == [list(range(11))]
    assert torch.equal(joined.key_index, joined.index)
    assert torch.equal(joined.key_coords, joined.coords)


def test_a_world_of_fewer_axes_is_filled_up_with_zeros_on_either_side():
    words = [[seat, 0] for seat in range(3)]
    strips = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert picture().then(text(3, at=6)).coords.tolist() == [strips + words]
    assert text(3, at=0).then(picture()).coords.tolist() == [words + strips]


@given(start=st.integers(0, 7), first=st.integers(1, 7), gap=st.integers(-3, 3), second=st.integers(1, 5))
def test_where_it_starts_is_known_only_when_the_second_goes_on_where_the_first_ends(start, first, gap, second):
    joined = text(first, start).then(text(second, start + first + gap))
    assert joined.start == (start if gap == 0 else None)


def test_where_it_starts_is_unknown_when_either_start_is():
    known, unknown = text(3, at=2), replace(text(3, at=2), start=None)
    assert unknown.then(text(5, at=5)).start is None
    assert known.then(replace(text(5, at=5), start=None)).start is None


def test_both_turns_are_joined_token_by_token():
    strips, words = turned(picture(), 2), turned(text(5, at=6), 1)
    joined = strips.then(words)
    for part in (0, 1):
        assert joined.turn[part].shape == (1, 1, 11, 7)
        assert torch.equal(joined.turn[part][:, :, :6], strips.turn[part])
        assert torch.equal(joined.turn[part][:, :, 6:], words.turn[part])
        assert torch.equal(joined.key_turn[part], joined.turn[part])


@pytest.mark.parametrize("second", [False, True])
def test_a_half_without_a_turn_stands_still(second):
    strips, words = picture(), text(5, at=6)
    joined = strips.then(turned(words, 1)) if second else turned(strips, 2).then(words)
    still = slice(0, 6) if second else slice(6, 11)
    cos, sin = (part[0, 0] for part in joined.turn)
    assert (cos[still] == 1).all()
    assert (sin[still] == 0).all()
    assert (sin[[10 if second else 5]] != 0).any()


def test_without_any_turn_there_is_none():
    joined = picture().then(text(5, at=6))
    assert joined.turn is None
    assert joined.key_turn is None


def test_one_picture_span_stands_before_every_row_of_a_ragged_batch():
    index = torch.tensor([[NOWHERE, 6, 7], [6, 7, 8]])
    coords = torch.tensor([[0, 0, 1], [0, 1, 2]])[..., None]
    joined = turned(picture(), 2).then(turned(Span.of(index, coords), 1))
    assert joined.index.tolist() == [[*range(6), NOWHERE, 6, 7], [*range(6), 6, 7, 8]]
    assert joined.coords.shape == (2, 9, 2)
    assert joined.turn[0].shape == (2, 1, 9, 7)
    assert torch.equal(joined.turn[1][0, :, :6], joined.turn[1][1, :, :6])
    assert not torch.equal(joined.turn[1][0, :, 6:], joined.turn[1][1, :, 6:])
    assert joined.start is None
    seen = joined.under(prefix(6)).seen
    assert seen.route == "dense"
    assert not seen.matrix()[0, 0, :6, 6:].any()
    assert not seen.matrix()[0, 0, 7:, 6].any()  # the padding is seen by no token that stands somewhere


def test_a_joined_span_takes_the_cheap_routes():
    joined = picture().then(text(5, at=6))
    assert joined.under(causal).seen.route == "causal"
    assert joined.under(prefix(6)).seen.route == "prefix"
    assert joined.under(prefix(11)).seen.route == "all"
