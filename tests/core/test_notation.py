"""Every formula printed over a tensor computes that tensor: families, position schemes and variants."""

import itertools

import pytest
import torch

from conftest import unchecked
from pencil.core.notation import Notation
from pencil.core.patches import grid_positions
from pencil.core.probe import Probe, declared
from pencil.core.span import Span
from pencil.families import configure, create
from pencil.models.dit import groupings
from printed_formulas import Formula, Run


@pytest.fixture(autouse=True)
def without_shape_checks():
    with unchecked():
        yield


def rest_long(cases, fast):
    """The other cases in the long form."""
    return [case if fast(case) else pytest.param(case, marks=pytest.mark.long) for case in cases]


SCHEMES = ("learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none")
TEXT = dict(vocab=11, context=7, width=24, depth=2, heads=3, hidden=13)
IMAGE = dict(image_size=(6, 10), channels=3, patch=(2, 5), width=24, heads=3, hidden=13)


def randomised(family, **settings):
    """A model in which no weight is zero or one."""
    torch.manual_seed(5)
    model = create(family, configure(family, None, **settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model


def check(run):
    """All formulas of a run; how many there are."""
    count = 0
    for name, (_, symbol, formula, _) in run.notation.names.items():
        if not formula:
            continue
        assert not set("⟨⟩{}?ˡᴸ") & set(formula + symbol), formula
        assert " or " not in formula.replace("j ≤ i or j <", ""), formula
        found, expected = Formula(formula, run, name).value(), run.values[name].double()
        shape = torch.broadcast_shapes(found.shape, expected.shape)
        assert shape == expected.shape, f"{name} = {formula}: {tuple(found.shape)} is not {tuple(expected.shape)}"
        # ALiBi's bias is computed in float32
        torch.testing.assert_close(
            found.expand(shape),
            expected,
            rtol=1e-6,
            atol=1e-6,
            msg=lambda text: f"{name} = {formula}\n{text}",  # noqa: B023
        )
        count += 1
    return count


def values_of(model, *inputs, **given):
    probe = Probe()
    with torch.no_grad(), unchecked():
        model(*inputs, probe=probe, **given)
    return probe.values


def text_run(model, tokens, **given):
    values = values_of(model, tokens, **given)
    coords = {"text": torch.arange(tokens.shape[1])[None, :, None]}
    return Run(model, Notation(model, values), values, {"t": tokens, "tokens": tokens}, coords)


def tokens(batch, count, vocab=11):
    return torch.randint(vocab, (batch, count), generator=torch.Generator().manual_seed(3))


VARIANTS = {
    "plain": {},
    "biases": dict(bias=True, activation="gelu-tanh"),
    "llama": dict(norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False),
    "gated biases": dict(activation="swiglu", bias=True, tie_embeddings=False),
    "one head": dict(heads=1, activation="relu"),
    "silu": dict(activation="silu"),
    "qwen3": dict(norm="rms", activation="swiglu", kv_heads=1, head_dim=10, qk_norm=True, qkv_bias=True),
    "mistral": dict(norm="rms", activation="swiglu", window=3, bias=True, tie_embeddings=False, head_bias=False),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("variant", rest_long(VARIANTS, lambda variant: variant in ("biases", "llama", "qwen3")))
def test_formulas_of_a_gpt(scheme, variant):
    model = randomised("gpt", **{**TEXT, "positions": scheme, **VARIANTS[variant]})
    assert check(text_run(model, tokens(2, 7))) > 30


ROTATIONS = [
    dict(rope_scaling=s, rope_factor=3.0, rope_original_context=60) for s in ("linear", "ntk", "yarn", "llama3")
]


@pytest.mark.parametrize(
    "change", [*ROTATIONS, dict(rope_fraction=0.5), dict(rope_pairs="adjacent"), dict(rope_theta=50.0)]
)
def test_formulas_of_rotations(change):
    model = randomised("gpt", **{**TEXT, "positions": "rope", **change})
    check(text_run(model, tokens(2, 7)))


@pytest.mark.parametrize("scheme", ["learned", "rope", "shaw"])
def test_formulas_of_a_cached_step(scheme):
    """The keys of earlier calls are part of the formula."""
    model = randomised("gpt", **{**TEXT, "positions": scheme, "bias": True})

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.config = model, model.config

    ids, cache, probe = tokens(2, 5), model.new_cache(2), Probe()
    with torch.no_grad():
        model(ids[:, :3], cache=cache, probe=probe / "read")
        model(ids[:, 3:], cache=cache, probe=probe / "next")
    twice = Twice()
    notation = Notation(twice, probe.values)
    later = {name: entry for name, entry in notation.names.items() if name.startswith("next.")}
    assert later["next.blocks.1.attn.raw_scores"].formula == "Q K_allᵀ"

    class Cached(Run):
        def coords_of(self, name):
            return torch.arange(5)[None, :, None]

        def local(self, token, name):
            if token in ("pos", "pos_i"):
                value = torch.arange(3, 5).double()[None]
                return value[..., None] if token == "pos" else value[:, :, None]
            return super().local(token, name)

        def rows(self, name):
            return torch.arange(3, 5)[None]

    run = Cached(twice, notation, probe.values, {"t": ids[:, 3:], "tokens": ids}, {})
    notation.names = later
    assert check(run) > 30


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pool", rest_long(["class", "mean"], lambda pool: pool == "class"))
def test_formulas_of_a_vit(scheme, pool):
    model = randomised("vit", **IMAGE, depth=1, classes=5, positions=scheme, pool=pool, bias=pool == "class")
    picture = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    values = values_of(model, picture)
    coords = grid_positions((3, 2))
    if pool == "class":
        coords = torch.cat((torch.tensor([[0, -1]]), coords))
    inputs = {"X_img": picture, "picture": picture}
    assert check(Run(model, Notation(model, values), values, inputs, {"text": coords[None]})) > 15


VIT_TOKENS = [
    dict(registers=1, distilled=True),
    dict(pool="mean", class_token=True, registers=2, token_positions=False, embed_norm=True, norm_pooled=True,
         qkv_bias=False),
    dict(registers=2, norm_pooled=True, positions="rope"),
]  # fmt: skip


@pytest.mark.parametrize("values", VIT_TOKENS, ids=["distilled", "mean", "class"])
def test_formulas_of_a_vit_with_registers(values):
    model = randomised("vit", **IMAGE, depth=1, classes=5, **values)
    picture = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    found = values_of(model, picture)
    left = torch.tensor([[0, column] for column in range(-model.config.before, 0)])
    coords = torch.cat((left, grid_positions((3, 2))))
    inputs = {"X_img": picture, "picture": picture}
    assert check(Run(model, Notation(model, found), found, inputs, {"text": coords[None]})) > 15


class StreamRun(Run):
    """Image and text in one sequence."""

    def coords_of(self, name):
        if name.endswith(("embedding", "angles")):
            return super().coords_of(name)
        return self.coords["both, image" if name.startswith("image_positions") else "both, text"]

    def segment(self, where):
        c = self.model.config
        index = torch.arange(self.size("T"))
        first, last = (0, c.before) if c.delimiter_positions else (c.begin_marks, c.before - c.end_marks)
        inside = (index >= first) & (index < last) if where == "image" else index >= c.before
        return inside[:, None] & inside[None]

    def angles(self, name, count):
        pairs = max(value.shape[-1] for name, value in self.values.items() if name.endswith("angles"))
        image, text = (
            self.values.get(f"{path}.angles", torch.zeros(1, n, pairs)).double()
            for path, n in (("image_positions", self.size("N")), ("positions", self.size("t")))
        )
        c = self.model.config
        if not (c.delimiter_positions and "image_positions.angles" in self.values):
            marks = [torch.zeros(1, n, pairs).double() for n in (c.begin_marks, c.end_marks)]
            image = torch.cat((marks[0], image, marks[1]), 1)
        return torch.cat((image, text), 1)


def stream_run(model):
    c = model.config
    ids, picture = tokens(2, c.context), torch.randn(2, 3, 6, 10, dtype=torch.float64)
    values = values_of(model, ids, picture)
    inside = grid_positions((3, 2))
    ends = torch.tensor([[0, -1], [2, 2]])
    placed = torch.cat((ends[: c.begin_marks], inside, ends[2 - c.end_marks :])) if c.delimiter_positions else inside
    zero = torch.zeros(1, 2, dtype=torch.long)
    around = placed
    if not c.delimiter_positions:
        around = torch.cat((zero.expand(c.begin_marks, 2), placed, zero.expand(c.end_marks, 2)))
    text = torch.stack((torch.arange(c.context), torch.zeros(c.context, dtype=torch.long)), -1)
    both = torch.cat((around, text))[None]
    coords = {"text": torch.arange(c.context)[None, :, None], "image": placed[None],
              "both, image": both, "both, text": both[..., :1]}  # fmt: skip
    inputs = {"t": ids, "tokens": ids, "X_img": picture, "picture": picture}
    return StreamRun(model, Notation(model, values), values, inputs, coords)


STREAMS = {
    "plain": {},
    "causal": dict(mask="causal", type_embeddings=False, delimiters="none"),
    "widths": dict(image_width=16, text_width=14, delimiters="begin"),
    "untied": dict(text_width=14, tie_embeddings=False, bias=True, delimiters="end"),
    "placed": dict(delimiters="both", delimiter_positions=True),
}
STREAM_SCHEMES = [(a, b) for a, b in itertools.product(SCHEMES, SCHEMES) if a == b or "rope" in (a, b) or a == "shaw"]


@pytest.mark.parametrize("schemes", rest_long(STREAM_SCHEMES, lambda pair: pair[0] == pair[1]))
def test_formulas_of_a_captioner(schemes):
    image, text = schemes
    settings = {**IMAGE, "vocab": 11, "context": 5, "depth": 1, "positions": text, "image_positions": image}
    assert check(stream_run(randomised("captioner", **settings))) > 20


@pytest.mark.parametrize("variant", STREAMS)
@pytest.mark.parametrize("scheme", rest_long(["learned", "rope", "t5"], lambda scheme: scheme == "rope"))
def test_formulas_of_a_captioner_s_variants(variant, scheme):
    settings = {**IMAGE, "vocab": 11, "context": 5, "depth": 1, "positions": scheme, **STREAMS[variant]}
    assert check(stream_run(randomised("captioner", **settings))) > 20


class CrossRun(Run):
    def indices(self, name):
        if ".cross." not in name and not name.startswith("encoder."):
            return super().indices(name)
        key = torch.where(torch.arange(5)[None] < torch.tensor([[5], [3]]), torch.arange(5), 1 << 30)
        return torch.arange(self.values[name].shape[2])[None], key

    def coords_of(self, name):
        return torch.arange(5)[None, :, None] if name.startswith("encoder") else self.coords["text"]


def padded_source():
    source = tokens(2, 5)
    index = torch.where(torch.arange(5)[None] < torch.tensor([[5], [3]]), torch.arange(5), 1 << 30)
    return source, Span.at(index)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("variant", rest_long([
    {}, dict(norm_position="post", bias=True, activation="relu", scale_embeddings=True),
    dict(share_embeddings=False, source_vocab=11, head_bias=True, tie_embeddings=False, kv_heads=1),
], lambda variant: "norm_position" in variant))  # fmt: skip
def test_formulas_of_an_encoder_decoder(scheme, variant):
    model = randomised("seq2seq", **{**TEXT, "source_context": 5, "positions": scheme, **variant})
    ids, (source, there) = tokens(2, 7), padded_source()
    values = values_of(model, ids, source, there)
    inputs = {"t": ids, "tokens": ids, "s": source, "source": source}
    run = CrossRun(model, Notation(model, values), values, inputs, {"text": torch.arange(7)[None, :, None]})
    # where the source is padded its own positions are 0, which no formula of positions says
    for name in [n for n in run.notation.names if n.startswith("encoder.positions")]:
        run.notation.names.pop(name)
    assert check(run) > 60


FLAN = dict(positions="t5", buckets=6, max_distance=7, norm="rms", activation="geglu-tanh", head_dim=5,
            decoder_depth=1, scale_logits=True)  # fmt: skip


@pytest.mark.parametrize("variant", [
    *rest_long([dict(positions=scheme) for scheme in SCHEMES], lambda variant: variant["positions"] == "rope"),
    FLAN, pytest.param(FLAN | dict(tie_embeddings=False, head_bias=True, activation="geglu"), marks=pytest.mark.long),
])  # fmt: skip
def test_formulas_of_an_encoder_decoder_s_own_positions(variant):
    model = randomised("seq2seq", **{**TEXT, "source_context": 5, **variant})
    ids, source = tokens(2, 7), tokens(2, 5)
    values = values_of(model, ids, source)
    inputs = {"t": ids, "tokens": ids, "s": source, "source": source}
    check(CrossRun(model, Notation(model, values), values, inputs, {"text": torch.arange(7)[None, :, None]}))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("variant", rest_long([
    dict(classes=5, pool="mean"), dict(classes=5, pool="class", norm_position="post", token_types=2),
    dict(embed_norm=True, norm_position="post"), dict(norm="rms", activation="swiglu"),
], lambda variant: "token_types" in variant or "norm" in variant))  # fmt: skip
def test_formulas_of_a_reader(scheme, variant):
    model = randomised("reader", **{**TEXT, "positions": scheme, **variant})
    assert check(text_run(model, tokens(2, 7))) > 30


@pytest.mark.parametrize("variant", rest_long([
    dict(head="pool", position_offset=2), dict(head="pool", pool="mean"), dict(head="states"),
], lambda variant: "position_offset" in variant))  # fmt: skip
def test_formulas_of_a_reader_without_logits(variant):
    bert = dict(positions="learned", norm_position="post", embed_norm=True, token_types=2)
    model = randomised("reader", **{**TEXT, **bert, **variant})
    assert check(text_run(model, tokens(2, 7))) > 30


class GroupedRun(Run):
    """Patches in the groups of each block."""

    def coords_of(self, name):
        return torch.arange(5)[None, :, None] if name.startswith("text_encoder") else self.coords["text"]

    def angles(self, name, count):
        found, groups = super().angles(name, count), groupings(self.model.config, torch.device("cpu"))
        if groups[0] is None or not name.startswith("blocks."):
            return found
        group = groups[int(name.split(".")[1]) % 2]
        return found[0, group.order].unflatten(0, (group.count, -1)).repeat(2, 1, 1)

    def regrouped(self, word, x, name):
        groups, batch = groupings(self.model.config, torch.device("cpu")), 2
        if word == "repeat":
            return torch.cat([x[b].expand(groups[int(name.split(".")[1]) % 2].count, -1) for b in range(batch)])
        at = self.model.config.depth if word == "ungroup" else int(self.notation.own[name].split(".")[1])
        if at:
            x = self.ungrouped(x, groups[(at - 1) % 2], batch)
        return x if word == "ungroup" else torch.cat([x[b, groups[at % 2].order].unflatten(0, (groups[at % 2].count, -1))
                                                     for b in range(batch)])  # fmt: skip

    def ungrouped(self, x, group, batch):
        out = torch.zeros(batch, group.count * group.size, x.shape[-1], dtype=x.dtype)
        for b, rows in enumerate(x.unflatten(0, (batch, group.count)).flatten(1, 2)):
            out[b, group.order] = rows
        return out


CONDITIONS = {
    "labels": dict(classes=5), "nothing": dict(classes=None), "texts": dict(classes=None, vocab=11, context=5),
    "plain": dict(classes=5, adaln="plain", mlp_eps=1e-3), "shifted": dict(classes=5, downscale_freq_shift=True),
    "factored": dict(classes=5, frames=4, attention="factored"), "windowed": dict(classes=5, attention="windowed", window=2),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONDITIONS)
@pytest.mark.parametrize(
    "scheme", rest_long(["rope", "learned", "sinusoidal", "none"], lambda scheme: scheme == "rope")
)
def test_formulas_of_a_diffusion_transformer(kind, scheme):
    model = randomised(
        "dit", **{**IMAGE, "image_size": (8, 12), "patch": (2, 2), "depth": 2, "positions": scheme, **CONDITIONS[kind]}
    )
    c = model.config
    picture = torch.randn(2, c.channels, *c.sides, dtype=torch.float64)
    given = {"texts": (tokens(2, 5),), "nothing": ()}.get(kind, (torch.tensor([3, 1]),))
    when = torch.tensor([17.0, 801.0])
    values = values_of(model, picture, when, *given)
    inputs = {"t": when, "timestep": when, "X_img": picture, "picture": picture}
    inputs |= {"y": given[0], "given": given[0]} if given else {}
    coords = {"text": grid_positions(c.grid)[None]}
    assert check(GroupedRun(model, Notation(model, values), values, inputs, coords)) > 30


def test_every_optional_name_is_fired_by_some_model():
    """What no variant above fires is declared for nothing."""
    model = randomised("gpt", **{**TEXT, "positions": "rope", "bias": True})
    optional = {name for name, entry in declared(model).items() if entry.optional and name.startswith("blocks.0")}
    fired = set(values_of(model, tokens(2, 7)))
    biased = randomised("gpt", **{**TEXT, "positions": "alibi"})
    fired |= set(values_of(biased, tokens(2, 7)))
    normed = randomised("gpt", **{**TEXT, "positions": "rope", "qk_norm": True})
    fired |= set(values_of(normed, tokens(2, 7)))
    probe, cache = Probe(), model.new_cache(2)
    model(tokens(2, 3), cache=cache, probe=probe)
    assert optional <= fired | set(probe.values)
