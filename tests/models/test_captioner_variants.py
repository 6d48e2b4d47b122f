"""The captioner's variants against the notation written out: both projections, each delimiter, with or without a position.

The reference below is written from the formulas, in float64 and with torch's own unfold, norm, GELU and softmax; it
shares nothing with the model but its weights.
"""

import math
from dataclasses import replace
from itertools import cycle, product

import pytest
import torch
import torch.nn.functional as F

from pencil.config import UserError, build
from pencil.core.masks import NOWHERE
from pencil.core.positions import Learned
from pencil.core.probe import Probe, declared, symbols
from pencil.core.span import Span
from pencil.data.tokenizers.tokenizer import learn
from pencil.families import configure, create, family
from pencil.families.captioner import trace_image
from pencil.families.explore_profile import grid_labels
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.models.captioner import CaptionerConfig, attention_maps
from pencil.runs.run import Loaded
from pencil.train.losses.cross_entropy import next_token
from traced import disagreeing

SCHEMES = ("learned", "sinusoidal", "rope", "alibi", "shaw", "t5", "none")
SIZES = dict(image_size=(4, 9), channels=3, patch=(2, 3), vocab=13, context=7, width=20, depth=2, heads=2, hidden=17)
ROWS, COLUMNS, WORDS, MAX_DISTANCE = 2, 3, 5, 2
# every delimiter, with and without a position
MARKS = [("none", False), *product(("begin", "end", "both"), (False, True))]
WIDTHS = [*product((None, 7), (None, 29)), (23, 11)]  # of token and patch embeddings; the stream is 20 wide


def tiny(**values):
    torch.manual_seed(0)
    values = {
        "max_distance": MAX_DISTANCE if "shaw" in values.values() and "t5" not in values.values() else None,
        **values,
    }
    model = create("captioner", CaptionerConfig(**{**SIZES, **values})).double().eval()
    with torch.no_grad():  # so that every weight matters
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model


def inputs(batch=2, words=WORDS):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 13, (batch, words), generator=generator)
    return ids, torch.randn(batch, 3, 4, 9, generator=generator, dtype=torch.float64)


def waves(places, pairs, base):
    """position·base^(−i/n), the first axes with the pairs left over."""
    columns, axes = [], len(places[0])
    for axis in range(axes):
        n = pairs // axes + (axis < pairs % axes)
        columns += [[place[axis] * base ** (-i / n) for place in places] for i in range(n)]
    return torch.tensor(columns, dtype=torch.float64).T


def embedding(scheme, table, places, width):
    """P: what a scheme adds to tokens at these places, which are in the order of the table's rows."""
    if scheme == "learned":
        return table[: len(places)]
    if scheme == "sinusoidal":
        angles = waves(places, width // 2, 10000.0)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return 0


def bucket(distance, both):
    count = 16 if both else 32
    far, half = abs(distance) if both else max(-distance, 0), count // 2
    return (far if far < half else half) + count * (
        both and distance > 0
    )  # no distance here is beyond the first wide bucket


def bias(scheme, table, places, both, q):
    """What a scheme adds to the scores among tokens at these places: (heads, n, n)."""
    steps = [[[b - a for a, b in zip(query, key, strict=True)] for key in places] for query in places]
    if scheme == "alibi":
        far = torch.tensor([[math.hypot(*step) for step in row] for row in steps]).double()  # float32, as in the model
        return -far * torch.tensor([1 / 16, 1 / 256], dtype=torch.float64)[:, None, None]
    if scheme == "shaw":
        rows = torch.tensor(steps).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
        vectors = sum(table[axis, rows[..., axis]] for axis in range(len(places[0])))
        return torch.einsum("hid,ijd->hij", q, vectors) / math.sqrt(q.shape[-1])
    if scheme == "t5":
        found = torch.tensor([[[bucket(n, both) for n in step] for step in row] for row in steps])
        return sum(table[axis, found[..., axis]] for axis in range(len(places[0]))).permute(2, 0, 1)
    return 0


def reference(c, w, ids, picture):
    """The logits of one text after one picture."""
    begun, ended = c.delimiters in ("begin", "both"), c.delimiters in ("end", "both")
    scheme, d, half = c.image_positions or c.positions, c.width // c.heads, c.width // c.heads // 2
    image = F.unfold(picture[None], c.patch, stride=c.patch)[0].T @ w["patches.proj.weight"].T + w["patches.proj.bias"]
    if c.image_width:
        image = image @ w["project.map.weight"].T + w["project.map.bias"]
    places = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    begin, end = ([w["marks"][:1]] if begun else []), ([w["marks"][-1:]] if ended else [])
    if c.delimiter_positions:
        image, places = torch.cat((*begin, image, *end)), [*[(0, -1)] * begun, *places, *[(ROWS - 1, COLUMNS)] * ended]
    image = image + embedding(scheme, w.get("image_positions.table"), places, c.width)
    angles = waves(places, half, c.rope_theta) if scheme == "rope" else torch.zeros(len(places), half)
    inside = slice(0, len(places))
    if not c.delimiter_positions:
        image = torch.cat((*begin, image, *end))
        angles = F.pad(angles, (0, 0, int(begun), int(ended)))
        inside = slice(int(begun), int(begun) + len(places))
    image = image + w["types"][0]

    words = w["tokens.weight"][ids]
    words = words @ w["text_project.map.weight"].T if c.text_width else words
    at = [(position,) for position in range(len(ids))]
    words = words + embedding(c.positions, w.get("positions.table"), at, c.width) + w["types"][1]
    turned = waves(at, half, c.rope_theta) if c.positions == "rope" else torch.zeros(len(at), half)

    x, angles, before = torch.cat((image, words)), torch.cat((angles, turned)).double(), len(image)
    allowed = torch.ones(len(x), len(x)).tril().bool()
    if c.mask == "prefix":
        allowed[:before, :before] = True
    scale = 1.0 if c.positions == "t5" else 1 / math.sqrt(d)

    def rotated(q):
        a, b = q.split(half, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)

    for i in range(c.depth):
        normed = F.layer_norm(x, (c.width,), w[f"blocks.{i}.attn_norm.weight"], eps=c.eps)
        q, k, v = ((normed @ part.T).unflatten(1, (c.heads, d)).transpose(0, 1)
                   for part in w[f"blocks.{i}.attn.qkv.weight"].chunk(3))  # fmt: skip
        q, k = rotated(q), rotated(k)
        scores = q @ k.mT * scale
        scores[:, inside, inside] += bias(scheme, w.get("image_positions.table"), places, True, q[:, inside])
        scores[:, before:, before:] += bias(c.positions, w.get("positions.table"), at, False, q[:, before:])
        z = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
        x = x + z.transpose(0, 1).flatten(1) @ w[f"blocks.{i}.attn.out.weight"].T
        normed = F.layer_norm(x, (c.width,), w[f"blocks.{i}.mlp_norm.weight"], eps=c.eps)
        x = x + F.gelu(normed @ w[f"blocks.{i}.mlp.up.weight"].T) @ w[f"blocks.{i}.mlp.down.weight"].T
    x = F.layer_norm(x[before:], (c.width,), w["norm.weight"], eps=c.eps)
    if not c.tie_embeddings:
        return x @ w["head.weight"].T
    x = x @ w["text_project.map.weight"] if c.text_width else x
    return x @ w["tokens.weight"].T


def check(model):
    ids, picture = inputs(1)
    with torch.no_grad():
        found, expected = model(ids, picture)[0], reference(model.config, model.state_dict(), ids[0], picture[0])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9, msg=lambda text: f"{model.config}\n{text}")


@pytest.mark.parametrize("mask", ["prefix", "causal"])
@pytest.mark.parametrize("marks", MARKS)
def test_every_width_with_every_delimiter_is_the_notation(marks, mask):
    """Narrower and wider than the stream, each alone and both; schemes and tying take turns."""
    turn = cycle(product(("learned", "rope", "sinusoidal"), (True, False)))
    for (text_width, image_width), (scheme, tied) in zip(WIDTHS, turn, strict=False):
        check(tiny(text_width=text_width, image_width=image_width, delimiters=marks[0], delimiter_positions=marks[1],
                   mask=mask, positions=scheme, tie_embeddings=tied))  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mask", ["prefix", pytest.param("causal", marks=pytest.mark.long)])
def test_every_scheme_with_every_delimiter_is_the_notation(scheme, mask):
    """The text has another scheme than the image each time; its second block reads the image after the first."""
    others = cycle(one for one in ("rope", "learned", "none", "alibi", "sinusoidal") if one != scheme)
    for (delimiters, placed), other in zip(MARKS, others, strict=False):
        if not (placed and scheme == "none"):
            check(tiny(delimiters=delimiters, delimiter_positions=placed, mask=mask, image_positions=scheme,
                       positions=other, text_width=7))  # fmt: skip


VARIANTS = [
    dict(delimiters=delimiters, delimiter_positions=placed, text_width=text, image_width=image, image_positions=scheme)
    for (delimiters, placed), (text, image), scheme in zip(
        MARKS, cycle([(None, None), (7, None), (23, 11)]), cycle(["learned", "rope", "t5"]), strict=False
    )
]


@pytest.mark.parametrize("values", VARIANTS, ids=str)
def test_cached_and_observed_are_the_same_as_whole_and_fast(values):
    model, (ids, picture) = tiny(**values), inputs(2, 7)
    cache, ragged, probe = model.new_cache(2), model.new_cache(2), Probe()
    index, shifted = torch.tensor([[0, 1, 2, 3], [NOWHERE, NOWHERE, 0, 1]]), ids.clone()
    shifted[1] = ids[1].roll(2)
    with torch.no_grad():
        whole, short = model(ids, picture), model(ids[1:, :5], picture[1:])
        torch.testing.assert_close(model(ids, picture, probe=probe), whole, atol=1e-9, rtol=1e-9)
        pieces = [model(ids[:, a:b], None if a else picture, cache=cache) for a, b in ((0, 1), (1, 4), (4, 7))]
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(model(ids, picture, last=True), whole[:, -1:], atol=1e-9, rtol=1e-9)
        begun = model(shifted[:, :4], picture, Span.at(index), ragged)
        together = torch.cat([begun, *(model(shifted[:, at : at + 1], cache=ragged) for at in (4, 5, 6))], 1)
        torch.testing.assert_close(together[0], whole[0], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(together[1, 2:], short[0], atol=1e-9, rtol=1e-9)
    # the names that are declared, with their sizes
    names, sizes = declared(model), {"B": 2, **model.config.sizes}
    for name in ("embed", "text", "picture", "input", "norm", "logits", "text_project.out", "text_project.back",
                 "project.out", "image_positions.embedding", "image_positions.angles"):  # fmt: skip
        assert (name in names) == (name in probe.values), name
        if name in names:
            expected = [sizes[axis] for axis in names[name].axes.split()]
            assert list(probe.values[name].shape) in (expected, [1, *expected[1:]]), name
    for p in model.parameters():
        p.requires_grad_()
    next_token(model(ids, picture), ids).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("values", VARIANTS[-3:], ids=str)
def test_generation_reads_the_picture_once(values):
    model, (ids, picture) = tiny(**values), inputs(2, 1)
    made = Generation(model, ids.tolist(), 4, Sampling(0), given={"picture": picture})
    for _ in made:
        pass
    for row, image in zip(made.rows, picture, strict=True):
        slow = row[:1]
        while len(slow) < 5:
            with torch.no_grad():
                slow.append(int(model(torch.tensor([slow]), image[None])[0, -1].argmax()))
        assert row == slow


@pytest.mark.parametrize("delimiters, places", [
    ("begin", [[0, -1], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]),
    ("end", [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]),
    ("both", [[0, -1], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]),
])  # fmt: skip
def test_a_delimiter_stands_before_the_first_patch_and_after_the_last(delimiters, places):
    model, (ids, picture) = tiny(delimiters=delimiters, delimiter_positions=True, positions="learned"), inputs()
    cache = model.new_cache(2)
    model(ids, picture, cache=cache)
    assert cache.coords[0, : len(places)].tolist() == places
    # in a learned table, one row for each, in the order of the sequence
    assert len(model.image_positions.table) == len(places) == model.config.before
    probe = Probe("image_positions.embedding")
    model(ids, picture, probe=probe)
    assert torch.equal(probe.values["image_positions.embedding"][0], model.image_positions.table)


def test_a_table_of_another_grid_keeps_the_rows_around_it():
    scheme = Learned((2, 3), 5, before=1, after=1)
    resized = scheme.resampled((4, 6))
    assert resized.shape == (26, 5)
    assert torch.equal(resized[[0, -1]], scheme.table[[0, -1]])
    middle = scheme.table[1:-1].T.unflatten(1, (2, 3))[None]
    expected = F.interpolate(middle, (4, 6), mode="bicubic", align_corners=False, antialias=True)[0].flatten(1).T
    torch.testing.assert_close(resized[1:-1], expected)


@pytest.mark.parametrize("delimiters, first", [("none", 0), ("begin", 1), ("end", 0), ("both", 1)])
def test_maps_heads_and_labels_find_the_patches(delimiters, first):
    model, (ids, picture) = tiny(delimiters=delimiters), inputs(1)
    probe = Probe("blocks.*.pattern")
    with torch.no_grad():
        model(ids, picture, probe=probe)
    pattern = torch.stack(list(probe.values.values())).mean((0, 2))[0]
    before = model.config.before
    torch.testing.assert_close(attention_maps(model, picture, ids)[0].flatten(1), pattern[before:, first : first + 6])
    (group,) = family("captioner").heads.groups(model, (ids, picture))
    marked = group.layout.targets["picture"][0].nonzero().flatten().tolist()
    assert marked == list(range(first, first + 6))
    assert group.layout.rows.nonzero().flatten().tolist() == list(range(before, before + WORDS))


@pytest.mark.parametrize("delimiters", ["begin", "end"])
def test_a_trace_names_each_delimiter(delimiters):
    tokenizer = learn("char", ["abcdefghij"], 0, ended=True)
    model = tiny(vocab=tokenizer.vocab, delimiters=delimiters, delimiter_positions=True, text_width=7)
    picture = (torch.arange(108).reshape(3, 4, 9) % 256).to(torch.uint8).numpy()
    found = trace_image(Loaded(model, tokenizer, None), picture, "abc")  # pyright: ignore[reportArgumentType]
    patches, mark = grid_labels("patch", (2, 3)), "[IMG]" if delimiters == "begin" else "[/IMG]"
    image = [mark, *patches] if delimiters == "begin" else [*patches, mark]
    assert found.labels["M"] == image
    assert found.labels["T"] == [*image, "begin", "a", "b", "c"]
    assert found.facts["first_patch"] == image.index(patches[0])
    assert symbols(model)["marks"] == mark
    assert not disagreeing(found, 60)
    assert symbols(model)["text_project.map.weight"] == "W_text"


def test_what_a_captioner_of_other_widths_costs():
    from pencil.cost.count import count

    record = family("captioner")
    N, t, D, V, narrow, wide = 6, 7, 20, 13, 7, 29
    base = dict(SIZES, delimiters="end", text_width=narrow, image_width=wide)
    for tied in (True, False):
        counts = count(record.create, record.cost, record.configure(**base, tie_embeddings=tied))
        projected = 2 * N * 18 * wide + 2 * N * wide * D + 2 * t * narrow * D
        back = 2 * t * D * narrow if tied else 0
        assert counts.forward.by_group["embeddings"] == projected + back
        assert counts.forward.by_group["head"] == 2 * t * (narrow if tied else D) * V
        assert counts.parameters["embeddings"] == 18 * wide + wide + wide * D + D + V * narrow + narrow * D + 3 * D
        model = record.create(record.configure(**base, tie_embeddings=tied))
        assert sum(counts.parameters.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("values, words", [
    (dict(delimiter_positions=True, delimiters="none"), "model.delimiter_positions is of delimiters, and model.delimiters is none"),
    (dict(delimiter_positions=True, positions="none"), "model.delimiter_positions needs positions in the image, and its scheme is"),
    (dict(delimiter_positions=True, image_positions="none"), "choose another model.image_positions"),
    (dict(text_width=0), "model.text_width must be at least 1, not 0"),
    (dict(text_width=1 << 19), "model.text_width must be at most 262,144, not 524288"),
])  # fmt: skip
def test_impossible_settings_are_refused_in_a_sentence(values, words):
    with pytest.raises(UserError) as refused:
        CaptionerConfig(**values)
    assert words in str(refused.value)


@pytest.mark.parametrize("given, word", [
    (True, "both"), (False, "none"), ("true", "both"), ("false", "none"), ("yes", "both"), ("off", "none"),
    ("begin", "begin"), ("end", "end"),
])  # fmt: skip
def test_true_and_false_of_earlier_versions_are_still_read(given, word):
    assert build(CaptionerConfig, {"delimiters": given}, "model.").delimiters == word
    assert configure("captioner", "seed", delimiters=given).delimiters == word


def test_true_and_false_from_python_are_read_too():
    config = CaptionerConfig()
    for given, word in ((True, "both"), (False, "none")):
        object.__setattr__(config, "delimiters", given)  # the annotation alone would be refused in this suite
        config.__post_init__()
        assert config.delimiters == word
        assert config.before == 16 + 2 * given


def test_a_fresh_factorised_table_is_as_large_as_a_whole_one():
    """With 0.02 for both factors the embeddings would be near nothing, and a training would begin far slower."""
    torch.manual_seed(0)
    model = create("captioner", configure("captioner", "nano", text_width=24))
    table = model.tokens(torch.arange(512)[None]) @ model.text_project.map.weight.T
    assert table.std().item() == pytest.approx(0.02, rel=0.1)


def test_a_width_that_is_the_models_needs_no_projection():
    same = tiny(text_width=20, image_width=20)
    assert not any("project" in name for name, _ in same.named_parameters())
    ids, picture = inputs()
    assert torch.equal(same(ids, picture), tiny()(ids, picture))
    assert replace(same.config, text_width=None).sizes == same.config.sizes
