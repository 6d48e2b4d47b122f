"""Attention as pictures: what is drawn is what the trace holds."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pencil import draw
from pencil.config import UserError
from pencil.data.tokenizers.tokenizer import learn
from pencil.families import create
from pencil.families.captioner import trace_image
from pencil.inference.attention_overlays import caption_attention
from pencil.learn.worked.examples import EXAMPLES
from pencil.models.captioner import CaptionerConfig
from pencil.runs.run import Loaded
from pencil.tracing import attention_heatmaps
from pencil.tracing.live_trace import trace
from traced import stirred, theirs, traced


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


DRAWN = "vit-4x4", "vit-text", "mha-demo", "kv-cache", "adaln"  # the others are drawn in the long form


@pytest.mark.parametrize(
    "name", [name if name in DRAWN else pytest.param(name, marks=pytest.mark.long) for name in EXAMPLES]
)
def test_every_example_can_be_drawn(name):
    """One without attention is refused, with the option that chooses another tensor."""
    found = traced(f"example:{name}")
    if any(one.endswith("pattern") for one in found.names):
        assert opened(attention_heatmaps.attention(found)).std() > 5
    else:
        with pytest.raises(UserError, match="no attention pattern; choose a tensor to draw by --of"):
            attention_heatmaps.attention(found)


def test_the_heat_maps_hold_the_values_of_the_trace(figures):
    found = traced("example:vit-4x4")
    attention_heatmaps.attention(found)
    (figure,) = figures
    drawn = maps(figure)
    assert len(drawn) == 2
    for head, image in enumerate(drawn):
        np.testing.assert_array_equal(np.asarray(image.get_array()), found["attn.pattern"].value[0, head])
        assert image.get_clim() == (0, found["attn.pattern"].value[0].max())
    axes = figure.axes[0]
    assert words(axes.get_xticklabels()) == found.labels["S"]
    assert words(axes.get_yticklabels()) == found.labels["T"]
    assert [a.get_title() for a in figure.axes[:2]] == ["head 1", "head 2"]
    numbers = {t.get_text() for t in axes.texts}
    assert f"{found['attn.pattern'].value[0, 0, 0, 4]:.2f}" in numbers
    assert len(axes.texts) == 25


def test_scores_are_drawn_as_far_below_nothing_as_above(figures):
    found = traced("example:nanogpt-block")
    attention_heatmaps.attention(found, "blocks.0.attn.scores")
    (image,) = maps(figures[0])
    scores = found["blocks.0.attn.scores"].value[0, 0]
    shown = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
    assert np.array_equal(np.isnan(shown), np.isneginf(scores))  # what may not be seen is left out
    np.testing.assert_array_equal(shown[np.isfinite(scores)], scores[np.isfinite(scores)])
    low, high = image.get_clim()
    assert high == -low == np.abs(scores[np.isfinite(scores)]).max()


def test_the_last_pattern_is_drawn_when_none_is_named(figures):
    found = traced("gpt learned")
    assert attention_heatmaps.last_pattern(found) == "blocks.1.attn.pattern"
    attention_heatmaps.attention(found)
    np.testing.assert_array_equal(
        np.asarray(maps(figures[0])[1].get_array()), found["blocks.1.attn.pattern"].value[0, 1]
    )


def test_a_part_can_be_drawn(figures):
    found = traced("gpt learned")
    attention_heatmaps.attention(found, "blocks.0.attn.pattern[1,1]")
    (image,) = maps(figures[0])
    np.testing.assert_array_equal(np.asarray(image.get_array()), found["blocks.0.attn.pattern"].value[1, 1])


def test_other_peoples_attention_can_be_drawn():
    model, _, given = theirs("gpt2")
    assert opened(attention_heatmaps.attention(trace(model, **given))).std() > 5


def test_many_heads_and_many_tokens(figures):
    found = trace(lambda x: x.softmax(-1), torch.randn(1, 9, 50, 50, generator=torch.Generator().manual_seed(0)))
    opened(attention_heatmaps.attention(found, "output"))
    assert len(maps(figures[0])) == 9
    assert not figures[0].axes[0].texts


@pytest.fixture
def overlaid(monkeypatch):
    """What is drawn over an image: the image, the titles and the weights."""
    seen, before = {}, draw.overlays

    def overlays(shown, titles, weights):
        seen.update(shown=shown, titles=list(titles), weights=weights)
        return before(shown, titles, weights)

    monkeypatch.setattr(draw, "overlays", overlays)
    return seen


@pytest.mark.parametrize("query, row", [("cls", 0), ("patch 3", 3), ("2", 2), ("-1", 4)])
def test_one_query_over_the_picture(overlaid, query, row):
    found = traced("example:vit-4x4")
    opened(attention_heatmaps.attention(found, None, query))
    np.testing.assert_array_equal(overlaid["weights"], found["attn.pattern"].value[0, :, row, 1:].reshape(2, 2, 2))
    assert overlaid["titles"] == ["head 1", "head 2"]
    # brighter as the image is
    np.testing.assert_array_equal(np.argsort(overlaid["shown"].reshape(-1)), np.arange(16))


CAPTION = "abac"


IMAGE = np.random.default_rng(5).integers(0, 256, (1, 4, 9), dtype=np.uint8)


@pytest.fixture(scope="module")
def captioner():
    """A small captioner of images of 2×3 patches."""
    tokenizer = learn("char", ["abc"], 29, ended=True)
    sizes = dict(vocab=tokenizer.vocab, context=7, width=20, depth=2, heads=5)
    config = CaptionerConfig(image_size=(4, 9), channels=1, patch=(2, 3), **sizes)
    return Loaded(stirred(create("captioner", config)), tokenizer, None)


@pytest.fixture(scope="module")
def captioned(captioner):
    """Its trace on a caption in which a word occurs twice."""
    return trace_image(captioner, IMAGE, CAPTION)


# [IMG], six patches, [/IMG]; then begin at 8, a at 9, b at 10, a at 11, c at 12
@pytest.mark.parametrize("query, row", [
    ("a", 8), ("b", 9), ("a#2", 10), ("c", 11), ("a#1", 8), ("patch 2,3", 6), ("[IMG]", 0), ("[/IMG]", 7), ("9", 9), ("-1", 12),
])  # fmt: skip
def test_a_words_query_is_the_step_that_produced_it(captioned, overlaid, query, row):
    assert captioned.labels["T"][8:] == ["begin", "a", "b", "a", "c"]
    opened(attention_heatmaps.attention(captioned, None, query))
    pattern = captioned["blocks.1.attn.pattern"].value
    np.testing.assert_array_equal(overlaid["weights"], pattern[0, :, row, 1:7].reshape(5, 2, 3))


def test_the_first_token_was_produced_by_no_step(captioned):
    with pytest.raises(UserError, match="begin is the first token, which no step produced: choose a word after it"):
        attention_heatmaps.attention(captioned, None, "begin")
    with pytest.raises(UserError, match="no token is called a#3; did you mean a#2"):
        attention_heatmaps.attention(captioned, None, "a#3")


def test_trace_and_sample_draw_the_same_attention(captioner, captioned, overlaid, monkeypatch):
    """`trace --query WORD`, averaged over blocks and heads, is the panel of `sample --attention` for that word."""
    caption_attention(captioner.model, captioner.tokenizer, IMAGE, CAPTION)
    words, panels = overlaid["titles"], overlaid["weights"]
    assert words == ["a", "b", "a#2", "c"]
    monkeypatch.setattr(draw, "as_png", lambda figure: b"")  # the figures themselves are tested above
    for word, panel in zip(words, panels, strict=True):
        mean = np.zeros_like(panel)
        for block in range(2):
            attention_heatmaps.attention(captioned, f"blocks.{block}.attn.pattern", word)
            mean += overlaid["weights"].mean(0) / 2
        np.testing.assert_allclose(mean, panel, rtol=1e-4)


def test_all_panels_have_one_scale_and_one_colour(captioned, figures):
    """The same attention is the same orange in every panel, whatever the largest of the panel is."""
    attention_heatmaps.attention(captioned, None, "b")
    weights = captioned["blocks.1.attn.pattern"].value[0, :, 9, 1:7].reshape(5, 2, 3)
    overlaid = [axes.images[1].get_array() for axes in figures[0].axes if len(axes.images) > 1]
    assert len(overlaid) == 5
    for panel, values in zip(overlaid, weights, strict=True):
        np.testing.assert_allclose(panel[..., 3], 0.75 * values / weights.max(), rtol=1e-6)
        assert (np.asarray(panel[..., :3]) == draw.ORANGE).all()
    assert f"full at {weights.max():.1%}" in figures[0].axes[0].get_xlabel()
    attention_heatmaps.attention(captioned)
    drawn = maps(figures[1])
    assert len({image.get_clim() for image in drawn}) == 1
    assert {image.get_cmap().name for image in drawn} == {"attention"}
    assert words(figures[1].axes[0].get_yticklabels())[8:] == ["begin", "a", "b", "a#2", "c"]


def test_a_captioners_query_is_a_word():
    assert opened(attention_heatmaps.attention(traced("example:vit-text"), None, "dark")).std() > 5


@pytest.mark.parametrize("name, query, message", [
    ("example:vit-4x4", "patch 9", "no token is called patch 9; did you mean patch"),
    ("example:vit-4x4", "5", "no token is called 5"),
    ("example:vit-4x4", "-6", "no token is called -6"),
    ("example:vit-4x4", "", "no token is called"),
    ("example:nanogpt-block", "cat", "the input of this trace is no image: leave --query out"),
])  # fmt: skip
def test_queries_that_cannot_be_drawn(name, query, message):
    with pytest.raises(UserError, match=message):
        attention_heatmaps.attention(traced(name), None, query)


@pytest.mark.parametrize("of, message", [
    ("positions[0]", "a heat map needs rows and columns"), ("attn.patern", "did you mean attn.pattern"),
    ("attn.pattern[0,0,0,9]", "its shape is 1×2×5×5"),
])  # fmt: skip
def test_tensors_that_cannot_be_drawn(of, message):
    with pytest.raises(UserError, match=message):
        attention_heatmaps.attention(traced("example:vit-4x4"), of)


def test_no_attention_to_draw():
    with pytest.raises(UserError, match="no attention pattern; choose a tensor to draw by --of"):
        attention_heatmaps.attention(trace(lambda x: x * 2, torch.ones(2, 2)))


def test_a_picture_with_nothing_in_it_is_refused():
    found = trace(lambda x: x[:0] * 2, torch.ones(2, 2))
    with pytest.raises(UserError):
        attention_heatmaps.attention(found, "output")


def test_the_curve_of_deviations(figures):
    from pencil.learn.worked.examples import deviations

    opened(attention_heatmaps.curve(deviations()))
    lines = {line.get_label(): line for line in figures[0].axes[0].lines}
    widths, plain, scaled = zip(*deviations(), strict=True)
    plotted = [line.get_ydata() for line in lines.values() if len(line.get_ydata()) == 5]
    np.testing.assert_allclose(plotted, [plain, scaled])
    assert list(next(iter(lines.values())).get_xdata()) == list(widths)
