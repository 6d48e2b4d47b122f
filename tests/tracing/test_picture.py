"""Attention as pictures: what is drawn is what the trace holds."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pencil import draw
from pencil.config import UserError
from pencil.learn.examples import EXAMPLES
from pencil.tracing import picture
from pencil.tracing.record import trace
from traced import theirs, traced


def opened(content):
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 100
        return np.asarray(image.convert("RGB"), dtype=int)


@pytest.fixture
def figures(monkeypatch):
    """The figures as they are drawn, before they become pictures."""
    seen, before = [], draw.canvas

    def canvas(*size):
        seen.append(before(*size))
        return seen[-1]

    monkeypatch.setattr(draw, "canvas", canvas)
    return seen


def maps(figure):
    return [axes.images[0] for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]


def words(labels):
    return [label.get_text() for label in labels]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_can_be_drawn(name):
    assert opened(picture.attention(traced(f"example:{name}"))).std() > 5


def test_the_heat_maps_hold_the_values_of_the_trace(figures):
    found = traced("example:vit-4x4")
    picture.attention(found)
    (figure,) = figures
    drawn = maps(figure)
    assert len(drawn) == 2
    for head, image in enumerate(drawn):
        np.testing.assert_array_equal(np.asarray(image.get_array()), found["attn.pattern"].value[0, head])
        assert image.get_clim() == (0, found["attn.pattern"].value[0].max())
    axes = figure.axes[0]
    assert words(axes.get_xticklabels()) == found.labels["S"]
    assert words(axes.get_yticklabels()) == found.labels["T"]
    assert [a.get_title() for a in figure.axes[:2]] == ["head 0", "head 1"]
    numbers = {t.get_text() for t in axes.texts}
    assert f"{found['attn.pattern'].value[0, 0, 0, 4]:.2f}" in numbers
    assert len(axes.texts) == 25


def test_scores_are_drawn_as_far_below_nothing_as_above(figures):
    found = traced("example:nanogpt-block")
    picture.attention(found, "blocks.0.attn.scores")
    (image,) = maps(figures[0])
    scores = found["blocks.0.attn.scores"].value[0, 0]
    shown = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
    assert np.array_equal(np.isnan(shown), np.isneginf(scores))  # what may not be seen is left out
    np.testing.assert_array_equal(shown[np.isfinite(scores)], scores[np.isfinite(scores)])
    low, high = image.get_clim()
    assert high == -low == np.abs(scores[np.isfinite(scores)]).max()


def test_the_last_pattern_is_drawn_when_none_is_named(figures):
    found = traced("gpt learned")
    assert picture.last_pattern(found) == "blocks.1.attn.pattern"
    picture.attention(found)
    np.testing.assert_array_equal(
        np.asarray(maps(figures[0])[1].get_array()), found["blocks.1.attn.pattern"].value[0, 1]
    )


def test_a_part_can_be_drawn(figures):
    found = traced("gpt learned")
    picture.attention(found, "blocks.0.attn.pattern[1,1]")
    (image,) = maps(figures[0])
    np.testing.assert_array_equal(np.asarray(image.get_array()), found["blocks.0.attn.pattern"].value[1, 1])


def test_other_peoples_attention_can_be_drawn():
    model, _, given = theirs("gpt2")
    assert opened(picture.attention(trace(model, **given))).std() > 5


def test_many_heads_and_many_tokens(figures):
    found = trace(lambda x: x.softmax(-1), torch.randn(1, 9, 50, 50, generator=torch.Generator().manual_seed(0)))
    opened(picture.attention(found, "output"))
    assert len(maps(figures[0])) == 9
    assert not figures[0].axes[0].texts


@pytest.mark.parametrize("query, row", [("cls", 0), ("strip 3", 3), ("2", 2), ("-1", 4)])
def test_one_query_over_the_picture(monkeypatch, query, row):
    found, seen = traced("example:vit-4x4"), {}

    def overlays(shown, titles, weights):
        seen.update(shown=shown, titles=list(titles), weights=weights)
        return before(shown, titles, weights)

    before = draw.overlays
    monkeypatch.setattr(draw, "overlays", overlays)
    opened(picture.attention(found, None, query))
    np.testing.assert_array_equal(seen["weights"], found["attn.pattern"].value[0, :, row, 1:].reshape(2, 2, 2))
    assert seen["titles"] == ["head 0", "head 1"]
    np.testing.assert_array_equal(np.argsort(seen["shown"].reshape(-1)), np.arange(16))  # brighter as the picture is


def test_a_captioners_query_is_a_word():
    assert opened(picture.attention(traced("example:vit-text"), None, "dark")).std() > 5


@pytest.mark.parametrize("name, query, message", [
    ("example:vit-4x4", "strip 9", "no token is called strip 9; did you mean strip"),
    ("example:vit-4x4", "5", "no token is called 5"),
    ("example:vit-4x4", "-6", "no token is called -6"),
    ("example:vit-4x4", "", "no token is called"),
    ("example:nanogpt-block", "cat", "this trace has no picture as input"),
])  # fmt: skip
def test_queries_that_cannot_be_drawn(name, query, message):
    with pytest.raises(UserError, match=message):
        picture.attention(traced(name), None, query)


@pytest.mark.parametrize("of, message", [
    ("seats[0]", "a heat map has two sides"), ("attn.patern", "did you mean attn.pattern"),
    ("attn.pattern[0,0,0,9]", "its shape is 1×2×5×5"),
])  # fmt: skip
def test_tensors_that_cannot_be_drawn(of, message):
    with pytest.raises(UserError, match=message):
        picture.attention(traced("example:vit-4x4"), of)


def test_no_attention_to_draw():
    with pytest.raises(UserError, match="no attention pattern; name what to draw by --of"):
        picture.attention(trace(lambda x: x * 2, torch.ones(2, 2)))


def test_a_picture_with_nothing_in_it_is_refused():
    found = trace(lambda x: x[:0] * 2, torch.ones(2, 2))
    with pytest.raises(UserError):
        picture.attention(found, "output")


def test_the_curve_of_deviations(figures):
    from pencil.learn.examples import deviations

    opened(picture.curve(deviations()))
    lines = {line.get_label(): line for line in figures[0].axes[0].lines}
    widths, plain, scaled = zip(*deviations(), strict=True)
    plotted = [line.get_ydata() for line in lines.values() if len(line.get_ydata()) == 5]
    np.testing.assert_allclose(plotted, [plain, scaled])
    assert list(next(iter(lines.values())).get_xdata()) == list(widths)
