import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from pencil.core.positions import Learned, Positions, Rope, SinCos, rotate, share
from pencil.core.span import Span


def coords(*places):
    return torch.tensor(places)[None]


def turn_of(rope, places):
    angles = rope.angles(places)[:, None]
    return angles.cos(), angles.sin()


def test_sine_and_cosine_stamps_are_the_worked_ones(golden):
    for entry, key, width in (("000-kata2-stamps", "stamps", 4), ("003-positional-encoding-code", "pe", 8)):
        stamp = SinCos(width).stamp(torch.arange(4)[None, :, None])[0]
        torch.testing.assert_close(
            stamp, torch.tensor(golden[entry]["expected"][key], dtype=torch.float64), atol=1e-8, rtol=0
        )


def test_a_stamp_further_on_is_a_rotation_of_this_one(golden):
    entry = golden["002-rotation"]
    scheme = SinCos(entry["inputs"]["d"])
    pos, k = entry["inputs"]["pos"], entry["inputs"]["k"]
    here, there = scheme.stamp(coords([pos], [pos + k]))[0]
    torch.testing.assert_close(
        torch.tensor(entry["expected"]["R_k"], dtype=torch.float64) @ here, there, atol=1e-6, rtol=0
    )


def test_sine_stamps_stay_exact_at_far_seats():
    """float32 angles would be off by 4e-4 here."""
    stamp = SinCos(512).stamp(torch.tensor([[[4999]]]))[0, 0, :2]
    angle = torch.tensor(4999.0, dtype=torch.float64)
    torch.testing.assert_close(stamp, torch.stack((angle.sin(), angle.cos())), atol=1e-12, rtol=0)


def test_rotated_scores_are_the_worked_ones(golden):
    entry = golden["002-rope"]
    halves = [0, 2, 4, 6, 1, 3, 5, 7]  # the text pairs neighbours, we pair the two halves
    q, k = (torch.tensor(entry["inputs"][name])[halves][None, None, None] for name in "qk")
    rope = Rope(8)
    for (i, j), score in zip(entry["inputs"]["pairs"], entry["expected"]["scores"], strict=True):
        turned = rotate(q, turn_of(rope, coords([i]))), rotate(k, turn_of(rope, coords([j])))
        assert float((turned[0] * turned[1]).sum()) == pytest.approx(score, abs=1e-6)


@given(axes=st.integers(1, 3), half=st.integers(3, 13), data=st.data())
def test_rotations_keep_length_and_scores_depend_only_on_distance(axes, half, data):
    rope = Rope(2 * half, axes)
    assert sum(rope.pairs) == half
    places = [data.draw(st.lists(st.integers(0, 300), min_size=axes, max_size=axes)) for _ in range(3)]
    here, there, shift = (torch.tensor(p)[None, None] for p in places)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    q, k = torch.randn(1, 1, 1, 2 * half), torch.randn(1, 1, 1, 2 * half)

    def score(a, b):
        return float((rotate(q, turn_of(rope, a)) * rotate(k, turn_of(rope, b))).sum())

    assert score(here, there) == pytest.approx(score(here + shift, there + shift), abs=1e-4)
    assert float(rotate(q, turn_of(rope, here)).norm()) == pytest.approx(float(q.norm()), rel=1e-5)
    assert score(here, here) == pytest.approx(float((q * k).sum()), abs=1e-4)


def test_axes_share_pairs_as_evenly_as_they_go():
    assert share(16, 3) == (6, 5, 5)
    assert share(8, 2) == (4, 4)
    two = SinCos(8, axes=2).stamp(coords([3, 5]))[0, 0]
    one = SinCos(4).stamp(coords([3], [5]))[0].flatten()
    torch.testing.assert_close(two, one)


def test_the_three_moments_of_each_scheme():
    x, span = torch.randn(2, 5, 12), Span.whole(5)
    for scheme, stamps, turns in ((Positions(), False, False), (Learned(7, 12), True, False),
                                  (SinCos(12), True, False), (Rope(6), False, True)):  # fmt: skip
        y, placed = scheme(x, span)
        assert torch.equal(x, y) != stamps
        assert (placed.turn is not None) == turns
        assert placed.bias is None
        assert placed.scale is None


def test_learned_stamps_are_rows_of_the_table():
    scheme = Learned(7, 3)
    assert torch.equal(scheme.stamp(coords([2], [6], [0]))[0], scheme.table[[2, 6, 0]])


def test_seats_on_a_grid_are_rows_of_the_table_in_reading_order():
    """Three rows of five, the first row of the table for what stands before them."""
    scheme = Learned((3, 5), 7, before=1)
    assert scheme.table.shape == (16, 7)
    places = [[0, -1], [0, 0], [0, 4], [1, 0], [2, 3], [2, 4]]
    rows = [0] + [1 + row * 5 + column for row, column in places[1:]]
    assert rows == [0, 1, 5, 6, 14, 15]
    assert torch.equal(scheme.stamp(coords(*places))[0], scheme.table[rows])
    film = Learned((2, 3, 5), 7)
    assert torch.equal(film.stamp(coords([1, 2, 3], [0, 1, 4]))[0], film.table[[1 * 15 + 2 * 5 + 3, 9]])


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_table_is_stretched_as_a_picture_and_what_stands_before_it_is_kept(before):
    torch.manual_seed(0)
    scheme = Learned((3, 5), 7, before)
    assert scheme.resampled((3, 5)) is scheme.table
    stretched = scheme.resampled((5, 2))
    assert stretched.shape == (before + 10, 7)
    assert torch.equal(stretched[:before], scheme.table[:before])
    for channel in range(7):
        grid = scheme.table[before:, channel].reshape(1, 1, 3, 5)
        expected = torch.nn.functional.interpolate(grid, (5, 2), mode="bicubic", align_corners=False)
        torch.testing.assert_close(stretched[before:, channel].reshape(1, 1, 5, 2), expected)


def test_only_the_table_of_a_picture_is_stretched():
    for seats in (7, (2, 3, 5)):
        with pytest.raises(ValueError, match="only the table of a picture"):
            Learned(seats, 3).resampled((3, 5))


def test_widths_that_cannot_be_paired_are_refused():
    for make in (lambda: SinCos(5), lambda: Rope(7), lambda: Rope(2, axes=3)):
        with pytest.raises(ValueError):
            make()


def test_channels_past_the_pairs_stay_as_they_are():
    x = torch.randn(1, 2, 3, 10)
    turn = turn_of(Rope(6), torch.arange(3)[None, :, None])
    turned = rotate(x, turn)
    assert torch.equal(turned[..., 6:], x[..., 6:])
    torch.testing.assert_close(turned[..., :6], rotate(x[..., :6], turn))


def test_a_double_model_turns_and_stamps_in_double():
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    _, span = Rope(6)(x, Span.whole(5))
    assert span.turn[0].dtype == torch.float64
    stamped, _ = SinCos(12)(torch.zeros_like(x), Span.whole(5))
    assert float(stamped[0, 4, 0]) == float(torch.tensor(4.0, dtype=torch.float64).sin())
