import cmath
import math
from functools import partial

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from conftest import unchecked
from pencil.core.attention import Attention
from pencil.core.masks import causal, full
from pencil.core.positions import (
    T5,
    Alibi,
    Learned,
    Positions,
    Rope,
    Shaw,
    Sinusoidal,
    interpolate,
    llama3,
    ntk,
    rotate,
    share,
    yarn,
    yarn_strength,
)
from pencil.core.probe import Probe
from pencil.core.span import Span


def coords(*places):
    return torch.tensor(places)[None]


def rotation_of(rope, places):
    angles = rope.angles(places)[:, None]
    return angles.cos(), angles.sin()


def test_sinusoidal_embeddings_are_the_worked_ones(golden):
    for entry, key, width in (("000-kata2-stamps", "stamps", 4), ("003-positional-encoding-code", "pe", 8)):
        embedding = Sinusoidal(width).embedding(torch.arange(4)[None, :, None])[0]
        torch.testing.assert_close(
            embedding, torch.tensor(golden[entry]["expected"][key], dtype=torch.float64), atol=1e-8, rtol=0
        )


def test_an_embedding_further_on_is_a_rotation_of_this_one(golden):
    entry = golden["002-rotation"]
    scheme = Sinusoidal(entry["inputs"]["d"])
    pos, k = entry["inputs"]["pos"], entry["inputs"]["k"]
    here, there = scheme.embedding(coords([pos], [pos + k]))[0]
    torch.testing.assert_close(
        torch.tensor(entry["expected"]["R_k"], dtype=torch.float64) @ here, there, atol=1e-6, rtol=0
    )


def test_sinusoidal_embeddings_stay_exact_at_far_positions():
    """float32 angles would be off by 4e-4 here."""
    embedding = Sinusoidal(512).embedding(torch.tensor([[[4999]]]))[0, 0, :2]
    angle = torch.tensor(4999.0, dtype=torch.float64)
    torch.testing.assert_close(embedding, torch.stack((angle.sin(), angle.cos())), atol=1e-12, rtol=0)


def test_rotated_scores_are_the_worked_ones(golden):
    entry = golden["002-rope"]
    halves = [0, 2, 4, 6, 1, 3, 5, 7]  # the text pairs neighbours, we pair the two halves
    q, k = (torch.tensor(entry["inputs"][name])[halves][None, None, None] for name in "qk")
    rope = Rope(8)
    for (i, j), score in zip(entry["inputs"]["pairs"], entry["expected"]["scores"], strict=True):
        rotated = rotate(q, rotation_of(rope, coords([i]))), rotate(k, rotation_of(rope, coords([j])))
        assert float((rotated[0] * rotated[1]).sum()) == pytest.approx(score, abs=1e-6)


@given(axes=st.integers(1, 3), half=st.integers(3, 13), data=st.data())
@unchecked()
def test_rotations_keep_length_and_scores_depend_only_on_distance(axes, half, data):
    rope = Rope(2 * half, axes)
    assert sum(rope.pairs) == half
    places = [data.draw(st.lists(st.integers(0, 300), min_size=axes, max_size=axes)) for _ in range(3)]
    here, there, shift = (torch.tensor(p)[None, None] for p in places)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    q, k = torch.randn(1, 1, 1, 2 * half), torch.randn(1, 1, 1, 2 * half)

    def score(a, b):
        return float((rotate(q, rotation_of(rope, a)) * rotate(k, rotation_of(rope, b))).sum())

    assert score(here, there) == pytest.approx(score(here + shift, there + shift), abs=1e-4)
    assert float(rotate(q, rotation_of(rope, here)).norm()) == pytest.approx(float(q.norm()), rel=1e-5)
    assert score(here, here) == pytest.approx(float((q * k).sum()), abs=1e-4)


def test_axes_share_pairs_as_evenly_as_they_go():
    assert share(16, 3) == (6, 5, 5)
    assert share(8, 2) == (4, 4)
    two = Sinusoidal(8, axes=2).embedding(coords([3, 5]))[0, 0]
    one = Sinusoidal(4).embedding(coords([3], [5]))[0].flatten()
    torch.testing.assert_close(two, one)


def test_what_each_scheme_does_to_input_queries_and_scores():
    x, span = torch.randn(2, 5, 12), Span.whole(5)
    for scheme, embeds, rotations in ((Positions(), False, False), (Learned(7, 12), True, False),
                                  (Sinusoidal(12), True, False), (Rope(6), False, True)):  # fmt: skip
        y, placed = scheme(x, span)
        assert torch.equal(x, y) != embeds
        assert (placed.rotation is not None) == rotations
        assert placed.bias is None
        assert placed.scale is None


def test_learned_embeddings_are_rows_of_the_table():
    scheme = Learned(7, 3)
    assert torch.equal(scheme.embedding(coords([2], [6], [0]))[0], scheme.table[[2, 6, 0]])


def test_positions_on_a_grid_are_rows_of_the_table_in_reading_order():
    """Three rows of five, the first row of the table for the token before them."""
    scheme = Learned((3, 5), 7, before=1)
    assert scheme.table.shape == (16, 7)
    places = [[0, -1], [0, 0], [0, 4], [1, 0], [2, 3], [2, 4]]
    rows = [0] + [1 + row * 5 + column for row, column in places[1:]]
    assert rows == [0, 1, 5, 6, 14, 15]
    assert torch.equal(scheme.embedding(coords(*places))[0], scheme.table[rows])
    film = Learned((2, 3, 5), 7)
    assert torch.equal(film.embedding(coords([1, 2, 3], [0, 1, 4]))[0], film.table[[1 * 15 + 2 * 5 + 3, 9]])


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_table_is_resized_as_an_image_and_the_rows_before_it_are_kept(before):
    torch.manual_seed(0)
    scheme = Learned((3, 5), 7, before)
    assert scheme.resampled((3, 5)) is scheme.table
    resized = scheme.resampled((5, 2))
    assert resized.shape == (before + 10, 7)
    assert torch.equal(resized[:before], scheme.table[:before])
    for channel in range(7):
        grid = scheme.table[before:, channel].reshape(1, 1, 3, 5)
        expected = torch.nn.functional.interpolate(grid, (5, 2), mode="bicubic", align_corners=False, antialias=True)
        torch.testing.assert_close(resized[before:, channel].reshape(1, 1, 5, 2), expected)


def test_only_the_table_of_an_image_is_resized():
    for sides in (7, (2, 3, 5)):
        with pytest.raises(ValueError, match="only the table of an image"):
            Learned(sides, 3).resampled((3, 5))


def test_widths_that_cannot_be_paired_are_refused():
    for make in (lambda: Sinusoidal(5), lambda: Rope(7), lambda: Rope(2, axes=3)):
        with pytest.raises(ValueError):
            make()


def test_channels_past_the_pairs_stay_as_they_are():
    x = torch.randn(1, 2, 3, 10)
    rotation = rotation_of(Rope(6), torch.arange(3)[None, :, None])
    rotated = rotate(x, rotation)
    assert torch.equal(rotated[..., 6:], x[..., 6:])
    torch.testing.assert_close(rotated[..., :6], rotate(x[..., :6], rotation))


def test_a_double_model_rotates_and_embeds_in_double():
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    _, span = Rope(6)(x, Span.whole(5))
    assert span.rotation[0].dtype == torch.float64
    embedded, _ = Sinusoidal(12)(torch.zeros_like(x), Span.whole(5))
    assert float(embedded[0, 4, 0]) == float(torch.tensor(4.0, dtype=torch.float64).sin())


# what the schemes promise, against the mathematics


def omegas(pairs, base=10000.0):
    return [base ** (-i / pairs) for i in range(pairs)]


def shift(width, moves, base=10000.0):
    """R_k as a matrix: for each axis, a rotation of each of its pairs (sin, cos) by k·ω."""
    pairs, matrix, at = width // 2, torch.zeros(width, width, dtype=torch.float64), 0
    for axis, k in enumerate(moves):
        own = pairs // len(moves) + (1 if axis < pairs % len(moves) else 0)
        for omega in omegas(own, base):
            c, s = math.cos(k * omega), math.sin(k * omega)
            matrix[at : at + 2, at : at + 2] = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
            at += 2
    assert at == width
    return matrix


@settings(max_examples=60)
@given(axes=st.integers(1, 3), pairs=st.integers(3, 11), halves=st.booleans(), data=st.data())
@unchecked()
def test_an_embedding_moved_on_is_the_same_rotation_of_it_at_every_position(axes, pairs, halves, data):
    """PE(pos + k) = R_k PE(pos), for all pos and k, along one axis or several."""
    position = st.lists(st.integers(0, 500), min_size=axes, max_size=axes)
    pos, k = data.draw(position), data.draw(position)
    scheme = Sinusoidal(2 * pairs, axes, halves=halves)
    here, there = scheme.embedding(coords(pos, [a + b for a, b in zip(pos, k, strict=True)]))[0]
    if halves:  # put each sine next to its cosine
        together = [i + half for i in range(pairs) for half in (0, pairs)]
        here, there = here[together], there[together]
    torch.testing.assert_close(shift(2 * pairs, k) @ here, there, atol=1e-9, rtol=0)


def test_halves_are_the_same_sinusoids_in_another_order():
    places = torch.arange(13)[None, :, None]
    side, halves = Sinusoidal(14).embedding(places), Sinusoidal(14, halves=True).embedding(places)
    assert torch.equal(halves[..., :7], side[..., 0::2])
    assert torch.equal(halves[..., 7:], side[..., 1::2])


STRETCHES = {
    "none": lambda frequency: frequency,
    "nearer": partial(interpolate, 3.0),
    "ntk": partial(ntk, 5.0),
    "yarn": partial(yarn, 4.0, 64, 10000.0),
    "llama3": partial(llama3, 8.0, 64),
}


@settings(max_examples=60)
@given(axes=st.integers(1, 3), half=st.integers(3, 7), still=st.integers(0, 5), stretch=st.sampled_from(sorted(STRETCHES)),
       data=st.data())  # fmt: skip
@unchecked()
def test_scores_of_rotated_channels_depend_only_on_distance_and_of_the_others_on_nothing(
    axes, half, still, stretch, data
):
    rope = Rope(2 * half + still, axes, rotary_width=2 * half, stretch=STRETCHES[stretch])
    position = st.lists(st.integers(0, 300), min_size=axes, max_size=axes)
    here, there, moved = (torch.tensor(data.draw(position))[None, None] for _ in range(3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    q, k = torch.randn(2, 1, 1, 1, 2 * half + still, generator=generator, dtype=torch.float64)
    first, second = (rotate(q, rotation_of(rope, at)) for at in (here, here + moved))
    one, two = (rotate(k, rotation_of(rope, at)) for at in (there, there + moved))
    torch.testing.assert_close((first * one).sum(), (second * two).sum(), atol=1e-9, rtol=0)
    assert torch.equal(first[..., 2 * half :], q[..., 2 * half :])
    torch.testing.assert_close(first.norm(), q.norm(), atol=1e-9, rtol=0)


def test_rotations_are_those_written_out_pair_by_pair():
    rope, x = Rope(7, rotary_width=6, base=50.0), torch.randn(1, 1, 3, 7, dtype=torch.float64)
    found = rotate(x, rotation_of(rope, coords([0], [4], [11])))[0, 0]
    for token, position in enumerate((0, 4, 11)):
        expected = x[0, 0, token].tolist()
        for i, omega in enumerate(omegas(3, 50.0)):
            rotated = complex(expected[i], expected[i + 3]) * cmath.exp(1j * position * omega)
            expected[i], expected[i + 3] = rotated.real, rotated.imag
        assert found[token].tolist() == pytest.approx(expected, abs=1e-12)


def frequencies_of(rope):
    """An axis' frequencies are its angles at position 1."""
    return rope.angles(coords([1]))[0, 0].tolist()


def test_interpolated_a_position_is_rotated_as_a_nearer_one_was():
    far, near = Rope(14, stretch=partial(interpolate, 3.0)), Rope(14)
    torch.testing.assert_close(far.angles(coords([21], [6])), near.angles(coords([7], [2])), atol=1e-12, rtol=0)


def test_ntk_is_a_higher_base():
    """The base times factor^(d/(d − 2)), as it was published."""
    found = frequencies_of(Rope(14, base=10000.0, stretch=partial(ntk, 5.0)))
    assert found == pytest.approx(omegas(7, 10000.0 * 5.0 ** (14 / 12)), rel=1e-12)
    assert found[0] == 1
    assert found[-1] == pytest.approx(omegas(7)[-1] / 5, rel=1e-12)
    assert frequencies_of(Rope(2, stretch=partial(ntk, 5.0))) == [1]


@pytest.mark.parametrize("trained", [64, 2048, 50])
def test_yarn_keeps_what_rotates_often_and_slows_what_never_rotates_once(trained):
    factor, n, base = 4.0, 32, 10000.0
    stretch, strength = partial(yarn, factor, trained, base), yarn_strength(factor)
    before, after = omegas(n, base), frequencies_of(Rope(2 * n, base=base, stretch=stretch))
    # where pair i would rotate r times within the trained length, solved for i
    low, high = (n * math.log(trained / (r * 2 * math.pi)) / math.log(base) for r in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * n - 1)
    kept = slowed = 0
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        share = min(max((i - low) / (high - low), 0), 1)
        assert new == pytest.approx(old * (1 - share) + old / factor * share, rel=1e-12)
        rotations = trained * old / (2 * math.pi)
        if rotations > 32:
            assert new == pytest.approx(old, rel=1e-12)
            kept += 1
        if rotations < 1 and i >= high:
            assert new == pytest.approx(old / factor, rel=1e-12)
            slowed += 1
    assert slowed > 0
    assert (kept > 0) == (trained == 2048)
    assert strength == pytest.approx(0.1 * math.log(4) + 1)


def test_llama3_keeps_short_wavelengths_and_slows_long_ones():
    trained, factor = 64, 8.0
    before, after = omegas(32), frequencies_of(Rope(64, stretch=partial(llama3, factor, trained)))
    met = set()
    for old, new in zip(before, after, strict=True):
        length = 2 * math.pi / old
        if length < trained / 4:
            met.add("short")
            assert new == old
        elif length > trained:
            met.add("long")
            assert new == old / factor
        else:
            met.add("between")
            smooth = (trained / length - 1) / (4 - 1)
            assert new == pytest.approx((1 - smooth) * old / factor + smooth * old, rel=1e-12)
    assert met == {"short", "long", "between"}


@pytest.mark.parametrize("rotated", [10, 4])
def test_strength_is_a_factor_on_the_rotated_channels_of_queries_and_keys(rotated):
    """So that part of the scores, which are products of the two, has its square; across, nothing is rotated."""
    x = torch.randn(1, 7, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    attention, found = Attention(30, 3).double(), []
    for strength in (1.3, 1.0):
        probe, (_, here) = (
            Probe("q", "k", "scores"),
            Rope(10, rotary_width=rotated, strength=strength)(x, Span.whole(7)),
        )
        attention(x, here.under(full), probe=probe)
        assert here.across(Span.whole(7)).scale is None
        found.append(probe.values)
    strong, plain = found
    products = torch.einsum("bhtd,bhsd->bhtsd", plain["q"], plain["k"])
    expected = (1.3**2 * products[..., :rotated].sum(-1) + products[..., rotated:].sum(-1)) / math.sqrt(10)
    torch.testing.assert_close(strong["scores"], expected, atol=1e-9, rtol=0)


ORDERED = {
    "learned": lambda: Learned(11, 30),
    "sinusoidal": lambda: Sinusoidal(30),
    "halves": lambda: Sinusoidal(30, halves=True),
    "rope": lambda: Rope(10),
    "rope in part": lambda: Rope(10, rotary_width=4),
    "alibi": lambda: Alibi(3),
    "shaw": lambda: Shaw(10, max_distance=2),
    "t5": lambda: T5(3, buckets=8, max_distance=7),
    "none": Positions,
}


@pytest.mark.parametrize("mask", [full, causal], ids=lambda mask: mask.name)
@pytest.mark.parametrize("kind", ORDERED)
def test_only_without_positions_and_seeing_all_do_the_rows_move_with_the_input(kind, mask):
    """Attention alone does not know the order of its tokens: it needs a mask or a scheme."""
    torch.manual_seed(4)
    scheme, attention = ORDERED[kind](), Attention(30, 3).double()
    for p in [*scheme.parameters(), *attention.parameters()]:
        torch.nn.init.normal_(p, std=0.3)
    scheme, x, order = scheme.double(), torch.randn(2, 11, 30, dtype=torch.float64), torch.randperm(11)
    assert (order != torch.arange(11)).sum() > 5

    def run(x):
        embedded, here = scheme(x, Span.whole(11))
        return attention(embedded, here.under(mask, scheme.bias))

    with torch.no_grad():
        difference = (run(x[:, order]) - run(x)[:, order]).abs().max()
    assert (difference < 1e-12) == (kind == "none" and mask is full)
    assert difference < 1e-12 or difference > 1e-3


def test_more_tokens_than_positions_are_refused_with_both_counts():
    scheme = Learned(7, 3)
    assert scheme.embedding(torch.arange(7)[None, :, None]).shape == (1, 7, 3)
    with pytest.raises(ValueError, match="has 7 rows, and 8 tokens were given"):
        scheme.embedding(torch.arange(8)[None, :, None])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Sinusoidal(7), "must be even, not 7"),
        (lambda: Sinusoidal(2, axes=2), "a width of 2 has no pair of channels for each of 2 axes"),
        (lambda: Rope(7), "7 channels of 7 do not give a pair"),
        (lambda: Rope(10, rotary_width=5), "5 channels of 10"),
        (lambda: Rope(10, rotary_width=12), "12 channels of 10"),
        (lambda: Rope(10, rotary_width=0), "0 channels of 10"),
        (lambda: Rope(4, axes=3), "4 channels of 4 do not give a pair to rotate for each of 3 axes"),
    ],
)
def test_odd_and_narrow_widths_are_refused_in_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()
