"""Schemes that bias the scores, against loops written out in float64; and every scheme on every road to attention."""

import math
from functools import partial
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from conftest import unchecked
from pencil.core.attention import Attention
from pencil.core.cache import Cache
from pencil.core.masks import NOWHERE, causal, full, padding, prefix
from pencil.core.positions import (
    T5,
    Alibi,
    Learned,
    Positions,
    Rope,
    Shaw,
    Sinusoidal,
    interpolate,
    ladder,
    ntk,
    slopes,
    within_segments,
    yarn,
    yarn_strength,
)
from pencil.core.probe import Probe
from pencil.core.span import Span

WIDTH, HEADS, GROUPS = 30, 3, 1  # heads of 10 channels


def span_at(places):
    """A span of tokens at these positions."""
    return Span.whole(len(places), coords=torch.tensor(places)[None])


def places(axes, least=1, most=7, far=40):
    position = st.tuples(*[st.integers(0, far)] * axes)
    return st.lists(position, min_size=least, max_size=most)


anywhere = st.integers(1, 3).flatmap(places)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ALiBi


def test_the_slopes_are_the_papers():
    assert slopes(8) == [1 / 2**i for i in range(1, 9)]
    assert slopes(16) == pytest.approx([2 ** (-i / 2) for i in range(1, 17)], rel=1e-15)
    assert slopes(1) == [1 / 256]
    assert slopes(2) == [1 / 16, 1 / 256]


def test_the_slopes_of_twelve_heads_are_those_of_eight_and_every_other_of_sixteen():
    between = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert slopes(12) == pytest.approx([1 / 2**i for i in range(1, 9)] + between, rel=1e-15)


def authors_slopes(n):
    """As the authors publish it."""

    def of_a_power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return of_a_power(n)
    power = 2 ** math.floor(math.log2(n))
    return of_a_power(power) + authors_slopes(2 * power)[0::2][: n - power]


@pytest.mark.parametrize("heads", range(1, 41))
def test_the_slopes_of_any_number_of_heads_are_the_authors(heads):
    assert slopes(heads) == pytest.approx(authors_slopes(heads), rel=1e-12)


@settings(max_examples=30)
@given(positions=anywhere, heads=st.sampled_from([1, 2, 3, 8, 12]))
def test_alibi_takes_a_slope_for_every_step_between_query_and_key(positions, heads):
    bias = Alibi(heads, len(positions[0])).bias(span_at(positions))(torch.zeros(1, heads, len(positions), 2))
    assert bias.shape == (1, heads, len(positions), len(positions))
    for h, slope in enumerate(authors_slopes(heads)):
        for i, query in enumerate(positions):
            for j, key in enumerate(positions):
                expected = -slope * math.dist(query, key)
                assert float(bias[0, h, i, j]) == pytest.approx(expected, rel=1e-6, abs=1e-9)


# Shaw


@settings(max_examples=30)
@given(positions=anywhere, max_distance=st.integers(1, 13), seed=st.integers(0, 99))
@unchecked()
def test_shaws_scores_are_those_of_keys_with_a_vector_of_their_distance_added(positions, max_distance, seed):
    """q·(k + a)/√d, distances clipped to max_distance; each axis has vectors of its own."""
    axes, n, d = len(positions[0]), len(positions), 5
    scheme = Shaw(d, axes, max_distance).double()
    assert scheme.table.shape == (axes, 2 * max_distance + 1, d)
    torch.nn.init.normal_(scheme.table)
    q, k = normal(1, 2, n, d, seed=seed), normal(1, 2, n, d, seed=seed + 100)
    found = (q @ k.mT / math.sqrt(d) + scheme.bias(span_at(positions))(q)).detach()
    for h in range(2):
        for i, query in enumerate(positions):
            for j, key in enumerate(positions):
                added = k[0, h, j].clone()
                for axis in range(axes):
                    distance = max(-max_distance, min(max_distance, key[axis] - query[axis]))
                    added += scheme.table[axis, distance + max_distance].detach()
                expected = sum(float(a * b) for a, b in zip(q[0, h, i], added, strict=True)) / math.sqrt(d)
                assert float(found[0, h, i, j]) == pytest.approx(expected, abs=1e-12)


# T5


def bucket_of(distance, buckets, max_distance, both):
    """By its definition, in whole numbers: half the buckets are one distance each; the k-th of the others begins where
    the distance is as many times the first half as (max_distance over that half)^(k/all the others)."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
    far = abs(distance) if both else max(-distance, 0)
    half = buckets // 2
    others = buckets - half
    if far < half:
        return first + far
    begun = [k for k in range(others) if far**others * half**k >= max_distance**k * half**others]
    return first + half + max(begun)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (12, 47), (8, 20), (32, 300)])
def test_the_bucket_of_a_distance_is_its_definition(buckets, max_distance, both):
    scheme = T5(3, both=both, buckets=buckets, max_distance=max_distance)
    distances = list(range(-2 * max_distance, 2 * max_distance + 1))
    found = scheme.bucket(torch.tensor(distances)).tolist()
    assert found == [bucket_of(d, buckets, max_distance, both) for d in distances]
    assert set(found) == set(range(buckets)) - ({buckets // 2} if both else set())  # 0 steps ahead is no distance ahead


def test_the_ladder_climbs_one_step_at_a_time_and_ends_at_the_last():
    steps = ladder(16, 128)
    assert steps[:8] == list(range(8))
    assert all(b - a in (0, 1) for a, b in pairwise(steps))
    assert steps[-1] == 15


@settings(max_examples=20)
@given(positions=anywhere, both=st.booleans())
@unchecked()
def test_t5_adds_a_scalar_of_each_axis_bucket_and_divides_by_nothing(positions, both):
    """In attention itself: the scores are q·k + Σ table, at whatever width of a head."""
    axes, n = len(positions[0]), len(positions)
    scheme = T5(HEADS, axes, both, buckets=12, max_distance=20).double()
    torch.nn.init.normal_(scheme.table)
    torch.manual_seed(1)
    attention, probe = Attention(WIDTH, HEADS).double(), Probe("q", "k", "scores")
    x, here = scheme(normal(1, n, WIDTH), span_at(positions))
    attention(x, here.under(full, scheme.bias), probe=probe)
    q, k, scores = (probe.values[name][0].detach() for name in ("q", "k", "scores"))
    for h in range(HEADS):
        for i, query in enumerate(positions):
            for j, key in enumerate(positions):
                expected = sum(float(a * b) for a, b in zip(q[h, i], k[h, j], strict=True))
                for axis in range(axes):
                    bucket = bucket_of(key[axis] - query[axis], 12, 20, both)
                    expected += scheme.table[axis, bucket, h].item()
                assert float(scores[h, i, j]) == pytest.approx(expected, abs=1e-9)


# several schemes in one sequence


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 11), min_size=4, max_size=4).map(sorted), silent=st.sampled_from([None, 0, 1]))
@unchecked()
def test_a_segment_is_biased_among_its_own_tokens_and_between_segments_nothing_is_added(cuts, silent):
    torch.manual_seed(2)
    schemes = [T5(HEADS).double(), Shaw(10).double()]
    for scheme in schemes:
        torch.nn.init.normal_(scheme.table)
    if silent is not None:
        schemes[silent] = Positions()
    segments = [(schemes[0].bias, cuts[0], cuts[1]), (schemes[1].bias, cuts[2], cuts[3])]
    span, q = Span.whole(11), normal(2, HEADS, 11, 10)
    with torch.no_grad():
        _each_among_its_own(segments, span, q)


def _each_among_its_own(segments, span, q):
    found = within_segments(segments)(span)(q)
    expected = torch.zeros(2, HEADS, 11, 11, dtype=torch.float64)
    for scheme, first, last in segments:
        added = scheme(span)
        if added is not None:
            bias = added(q)
            for i in range(first, last):
                for j in range(first, last):
                    expected[:, :, i, j] = bias[:, :, i, j]
    assert torch.equal(found.expand(2, -1, -1, -1), expected)


def test_segments_without_any_bias_have_none():
    assert within_segments([(Positions().bias, 0, 5), (Sinusoidal(4).bias, 5, 7)])(Span.whole(7)) is None


def test_padding_belongs_to_no_segment():
    span = Span.at(torch.tensor([[NOWHERE, NOWHERE, 0, 1, 2]]))
    added = within_segments([(Alibi(2).bias, 0, NOWHERE)])(span)(torch.zeros(1, 2, 5, 3))
    assert not added[:, :, :2].any()
    assert not added[:, :, :, :2].any()
    assert added[0, :, 2:, 2:].count_nonzero() == 2 * 6


# every scheme, on every road

FAR, KEEP = partial(yarn, 3.0, 5, 10000.0), yarn_strength(3.0)
SCHEMES = {
    "learned": lambda: Learned(19, WIDTH),
    "sinusoidal": lambda: Sinusoidal(WIDTH),
    "halves": lambda: Sinusoidal(WIDTH, halves=True),
    "rope": lambda: Rope(10),
    "rope in part": lambda: Rope(10, rotary_width=6, stretch=partial(ntk, 2.0)),
    "rope further": lambda: Rope(10, stretch=FAR, strength=KEEP),
    "rope nearer": lambda: Rope(10, stretch=partial(interpolate, 3.0)),
    "alibi": lambda: Alibi(HEADS),
    "shaw": lambda: Shaw(10, max_distance=3),
    "t5": lambda: T5(HEADS, both=False, buckets=6, max_distance=7),
    "none": Positions,
}


def attending(kind, seed=0):
    """An attention with its scheme, and the two as one function of (x, span)."""
    torch.manual_seed(seed)
    scheme, attention = SCHEMES[kind]().double(), Attention(WIDTH, HEADS, GROUPS).double()
    for p in [*scheme.parameters(), *attention.parameters()]:
        torch.nn.init.normal_(p, std=0.4)

    def run(x, span, mask=causal, cache=None, probe=None):
        placed = span if cache is None else cache.place(span)
        embedded, here = scheme(x, placed)
        layer = None if cache is None else cache[0]
        extra = {} if probe is None else {"probe": probe}
        return attention(embedded, here.under(mask, scheme.bias), cache=layer, **extra)

    return run, [*scheme.parameters(), *attention.parameters()]


def rows(*shape):
    return normal(*shape, seed=3)


@pytest.mark.parametrize("mask", [full, causal, prefix(5)], ids=lambda mask: mask.name)
@pytest.mark.parametrize("kind", SCHEMES)
def test_observed_is_fast_in_values_and_gradients(kind, mask):
    run, parameters = attending(kind)
    x, weight, found = rows(2, 13, WIDTH), rows(2, 13, WIDTH).flip(0), []
    for probe in (None, Probe()):
        out = run(x, Span.whole(13), mask, probe=probe)
        found.append([out, *torch.autograd.grad((out * weight).sum(), parameters)])
    assert "scores" in probe.values
    for fast, observed in zip(*found, strict=True):
        assert fast.any()
        torch.testing.assert_close(fast, observed, atol=1e-10, rtol=1e-10)


@settings(max_examples=30)
@given(data=st.data(), kind=st.sampled_from(sorted(SCHEMES)))
@unchecked()
def test_what_came_in_pieces_is_what_came_whole(data, kind):
    run, _ = attending(kind)
    total = data.draw(st.integers(1, 17))
    x, cache, pieces, at = rows(2, total, WIDTH), Cache(1, 2, GROUPS, 17, 10, dtype=torch.float64), [], 0
    with torch.no_grad():
        while at < total:
            step = data.draw(st.integers(1, total - at))
            pieces.append(run(x[:, at : at + step], cache.next(step), cache=cache))
            at += step
        torch.testing.assert_close(torch.cat(pieces, 1), run(x, Span.whole(total)), atol=1e-10, rtol=1e-10)


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 11), min_size=2, max_size=3), later=st.integers(0, 3), right=st.booleans(),
       kind=st.sampled_from(sorted(SCHEMES)))  # fmt: skip
@unchecked()
def test_rows_of_mixed_lengths_are_as_each_alone(lengths, later, right, kind):
    """Padding on either side; then a few tokens one by one. Without a cache, every token sees all that are none."""
    run, _ = attending(kind)
    longest = max(lengths)
    x = rows(len(lengths), longest + later, WIDTH)
    padded, index = rows(len(lengths), longest, WIDTH) * 7, torch.full((len(lengths), longest), NOWHERE)
    slots = [slice(0, n) if right else slice(longest - n, longest) for n in lengths]
    for i, (n, slot) in enumerate(zip(lengths, slots, strict=True)):
        padded[i, slot], index[i, slot] = x[i, :n], torch.arange(n)
    cache = Cache(1, len(lengths), GROUPS, longest + later, 10, dtype=torch.float64)
    with torch.no_grad():
        together = run(padded, Span.at(index), cache=cache)
        both_directions = run(padded, Span.at(index), padding)
        after = []
        for step in range(later):
            new = torch.stack([x[i, n + step] for i, n in enumerate(lengths)])[:, None]
            after.append(run(new, cache.next(1), cache=cache))
        for i, (n, slot) in enumerate(zip(lengths, slots, strict=True)):
            alone = run(x[i : i + 1, : n + later], Span.whole(n + later))[0]
            torch.testing.assert_close(together[i, slot], alone[:n], atol=1e-10, rtol=1e-10)
            for step, row in enumerate(after):
                torch.testing.assert_close(row[i, 0], alone[n + step], atol=1e-10, rtol=1e-10)
            alone = run(x[i : i + 1, :n], Span.whole(n), full)[0]
            torch.testing.assert_close(both_directions[i, slot], alone, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", ["alibi", "shaw", "t5"])
def test_a_bias_follows_the_type_of_the_queries(kind):
    scheme, span = SCHEMES[kind](), Span.whole(5)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert scheme.bias(span)(torch.zeros(1, HEADS, 5, 10, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("heads", [3, 8, 12])
def test_slopes_are_exact_in_a_model_of_any_dtype_and_in_no_checkpoint(heads):
    with torch.device("meta"):
        scheme = Alibi(heads)
    exact = torch.tensor(slopes(heads))
    for cast in (scheme.to(torch.bfloat16), scheme.double(), scheme.half().float()):
        assert torch.equal(cast.slopes, exact)
    assert scheme.to("meta").slopes.is_meta
    assert not scheme.state_dict()
    assert list(T5(3).state_dict()) == ["table"]
