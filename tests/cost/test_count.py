"""FLOPs equal torch's own counter, number for number, and parameters the built model's; all sizes are primes apart."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pencil.config import UserError
from pencil.cost.count import by_group, flops
from pencil.cost.count import parameters as said
from pencil.cost.parts import lengths, parts_of, stepped
from pencil.models import configure, create, parameters

aten = torch.ops.aten
# the counter knows the fused kernels of CUDA, and counts nothing for a CPU's: the same work under another name
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(
        q, k, v
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda g, q, k, v, *_, out_shape=None, **__: sdpa_backward_flop_count(g, q, k, v)
    ),
}

_SIZES = dict(width=66, heads=11, depth=3, hidden=29, dropout=0.0)
_PICTURE = dict(image_size=(21, 10), patch=(7, 5), channels=3)
_TEXT = dict(vocab=31, context=13)
SCHEMES = ("learned", "sincos", "rope", "alibi", "shaw", "t5", "none")
FAMILIES = {
    "gpt": _TEXT, "vit": _PICTURE | dict(classes=5), "captioner": _PICTURE | _TEXT, "reader": _TEXT,
    "seq2seq": _TEXT | dict(source_context=17), "dit": _PICTURE | dict(classes=5),
}  # fmt: skip
_VIDEO = dict(frames=10, patch_frames=2, image_size=(14, 10), patch=(7, 5), channels=3)

CASES = [(family, _SIZES | sizes | dict(positions=scheme)) for family, sizes in FAMILIES.items() for scheme in SCHEMES]
CASES += [
    ("gpt", _SIZES | _TEXT | dict(kv_heads=1, bias=True)),
    ("gpt", _TEXT | dict(width=84, heads=6, kv_heads=3, depth=2, norm="rms", activation="swiglu", tied=False)),
    ("gpt", _SIZES | _TEXT | dict(tied=False, bias=True, positions="shaw", reach=7)),
    ("vit", _SIZES | _PICTURE | dict(pool="mean", norm="rms", activation="swiglu", bias=False)),
    ("captioner", _SIZES | _PICTURE | _TEXT | dict(mask="causal", picture_width=7, types=False, delimiters=False)),
    ("captioner", _SIZES | _PICTURE | _TEXT | dict(kv_heads=1, tied=False, bias=True, picture_positions="learned")),
    ("captioner", _SIZES | _PICTURE | _TEXT | dict(positions="rope", picture_positions="shaw")),
    ("reader", _SIZES | _TEXT | dict(classes=5, types=2, trunk="post", embed_norm=True)),
    ("reader", _SIZES | _TEXT | dict(classes=5, pool="mean", kv_heads=1)),
    ("seq2seq", _SIZES | _TEXT | dict(source_context=7, source_vocab=37, shared=False, tied=False, head_bias=True,
                                      trunk="post", bias=True, kv_heads=1, activation="swiglu")),
    ("dit", _SIZES | _PICTURE),
    ("dit", _SIZES | _PICTURE | dict(vocab=31, context=13)),
    ("dit", _SIZES | _PICTURE | dict(vocab=31, context=13, null=False, ada="plain", variance=True, noise="linear")),
    ("dit", _SIZES | _VIDEO),
    ("dit", _SIZES | _VIDEO | dict(attention="factored", positions="shaw")),
    ("dit", _SIZES | _VIDEO | dict(attention="windowed", window=2, frames=8)),
]  # fmt: skip
NAMES = [f"{family} {i}" for i, (family, _) in enumerate(CASES)]


def counted(family, config, batch, plain):
    model, mapping = create(family, config), {} if plain else FUSED
    with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
        with FlopCounterMode(display=False, custom_mapping=mapping) as forward:
            out = model(*model.example(batch))
        with FlopCounterMode(display=False, custom_mapping=mapping) as backward:
            out.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("family, values", CASES, ids=NAMES)
def test_flops_of_the_plain_route_are_the_counters(family, values):
    config = configure(family, **values)
    ours = flops(parts_of(family, config, 3), recompute=False)
    assert (ours.forward, ours.backward) == counted(family, config, 3, plain=True)


def _fused(values):
    """A CPU has no fused kernel for a bias that is learned; of the other schemes none changes a product."""
    schemes = {values.get("positions", "learned"), values.get("picture_positions", "learned")}
    return schemes <= {"learned", "alibi"}


@pytest.mark.parametrize("family, values", [case for case in CASES if _fused(case[1])])
def test_flops_of_the_fused_kernel_are_the_counters(family, values):
    config = configure(family, **values)
    ours = flops(parts_of(family, config, 3))
    assert (ours.forward, ours.backward) == counted(family, config, 3, plain=False)


@pytest.mark.parametrize("family, values", CASES, ids=NAMES)
def test_parameters_are_the_built_models(family, values):
    config = configure(family, **values)
    assert sum(said(family, config).values()) == parameters(family, config)


@pytest.mark.parametrize("family, preset, published", [
    ("gpt", "gpt2-xl", 1_557_611_200), ("gpt", "llama2-7b", 6_738_415_616), ("gpt", "llama2-13b", 13_015_864_320),
    ("gpt", "llama2-70b", 68_976_648_192), ("gpt", "llama3-8b", 8_030_261_248), ("gpt", "llama3-70b", 70_553_706_496),
    ("vit", "b/16", 86_567_656), ("dit", "xl/2", None), ("reader", "bert-base", None), ("seq2seq", "big", None),
    ("captioner", "base", None),
])  # fmt: skip
def test_parameters_of_public_models(family, preset, published):
    config = configure(family, preset)
    ours = sum(said(family, config).values())
    assert ours == (published or parameters(family, config))


@pytest.mark.parametrize("family, values", [
    ("gpt", FAMILIES["gpt"]), ("gpt", FAMILIES["gpt"] | dict(kv_heads=1, positions="shaw", tied=False)),
    ("captioner", FAMILIES["captioner"]), ("seq2seq", FAMILIES["seq2seq"]),
])  # fmt: skip
def test_one_more_token_costs_what_the_counter_says(family, values):
    config = configure(family, **_SIZES | values)
    model = create(family, config).eval()
    tokens, *given = model.example(3)
    cache = model.new_cache(3)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(tokens[:, :7], *given, cache=cache)
        with FlopCounterMode(display=False) as counter:
            model(tokens[:, :1], cache=cache, last=True)
    assert flops(stepped(family, config, 3, cache.used)).forward == counter.get_total_flops()


def test_a_shorter_text_costs_less_and_learns_the_same():
    config = configure("gpt", **_SIZES | _TEXT, positions="learned")
    model = create("gpt", config)
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        model(torch.zeros(2, 11, dtype=torch.long))
    parts = parts_of("gpt", config, 2, 11)
    assert flops(parts).forward == counter.get_total_flops() == sum(by_group(parts).values())
    assert sum(part.parameters for part in parts) == parameters("gpt", config)


def test_lengths_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="--context must be from 1 to 13, not 17"):
        lengths("gpt", configure("gpt", **_SIZES | _TEXT), 17)
    with pytest.raises(UserError, match="a vit reads 7 tokens of a picture"):
        lengths("vit", configure("vit", **_SIZES | FAMILIES["vit"]), 5)
