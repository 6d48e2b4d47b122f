"""Parameters and FLOPs counted on the meta device, against closed formulas, real models and public sizes; the sizes are different primes."""

from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pencil.config import UserError
from pencil.cost.count import count
from pencil.cost.profile import CostProfile
from pencil.families import FAMILIES, family
from pencil.models.build import Scheme

aten = torch.ops.aten
# the counter knows the fused attention kernels of CUDA, not those of a CPU: the same work under another name
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(
        q, k, v
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda g, q, k, v, *_, out_shape=None, **__: sdpa_backward_flop_count(g, q, k, v)
    ),
}

L, D, H, d, F = 2, 66, 11, 6, 29
T, V, K, N, C = 13, 31, 5, 6, 105  # text, vocabulary, classes; patches, and values in a patch
SIZES = dict(width=D, heads=H, depth=L, hidden=F, dropout=0.0)
IMAGE = dict(image_size=(21, 10), patch=(7, 5), channels=3)
TEXT = dict(vocab=V, context=T)
VIDEO = dict(frames=10, patch_frames=2, image_size=(14, 10), patch=(7, 5), channels=3)


def counted(name, length=None, short=True, **values):
    record = family(name)
    config = record.configure(**SIZES | values)
    return count(record.create, record.cost, config, length, short)


def product(rows, inside, outside):
    return 2 * rows * inside * outside


def check(counts, groups, first=0):
    """Forward by group; backward twice that, less the gradients of `first` inputs, and five products of attention for two."""
    assert counts.forward.by_group == groups
    scores = sum(flops for group, flops in groups.items() if "Kᵀ" in group)
    assert counts.unfused_backward == 2 * sum(groups.values()) - first
    assert counts.backward == 2 * sum(groups.values()) - first + scores // 2


@pytest.mark.parametrize("scheme", ["sinusoidal", "rope", "alibi", "t5"])
def test_gpt_flops_are_the_closed_formula(scheme):
    n = 7
    check(counted("gpt", n, **TEXT, positions=scheme), {
        "attention": L * product(n, D, 4 * D), "attention: Q Kᵀ, A V": 4 * L * n * n * D,
        "MLP": L * 2 * product(n, D, F), "head": product(n, D, V),
    })  # fmt: skip


def test_gpt_with_shared_kv_heads_gates_and_shaw():
    n, reach = 11, 7
    counts = counted("gpt", n, **TEXT, kv_heads=1, activation="swiglu", tie_embeddings=False, bias=True, positions="shaw",
                     max_distance=reach)  # fmt: skip
    check(counts, {
        "positions": L * product(n * H, d, 2 * reach + 1), "attention": L * product(n, D, D + D + 2 * d),
        "attention: Q Kᵀ, A V": 4 * L * n * n * D, "MLP": L * 3 * product(n, D, F), "head": product(n, D, V),
    })  # fmt: skip
    assert counts.parameters == {
        "embeddings": V * D, "positions": (2 * reach + 1) * d, "attention": L * ((2 * D + 2 * d) * D + 2 * D + 2 * d),
        "MLP": L * (3 * D * F + 2 * F + D), "norms": (2 * L + 1) * 2 * D, "head": (D + 1) * V,
    }  # fmt: skip
    assert counts.block_matrices == L * ((2 * D + 2 * d) * D + 3 * D * F)


def test_gpt_with_a_head_width_of_its_own_and_norms_of_queries_and_keys():
    n, wide = 11, 10
    counts = counted("gpt", n, **TEXT, kv_heads=1, head_dim=wide, qk_norm=True, qkv_bias=True, norm="rms", window=5,
                     positions="rope")  # fmt: skip
    check(counts, {
        "attention": L * (product(n, D, (H + 2) * wide) + product(n, H * wide, D)),
        "attention: Q Kᵀ, A V": 4 * L * n * n * H * wide, "MLP": L * 2 * product(n, D, F), "head": product(n, D, V),
    })  # fmt: skip
    rows = (H + 2) * wide
    assert counts.parameters == {
        "embeddings": V * D, "attention": L * (rows * D + rows + H * wide * D + 2 * wide),
        "MLP": L * 2 * D * F, "norms": (2 * L + 1) * D,
    }  # fmt: skip


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_vit_flops_are_the_closed_formula(pool):
    n, patches = N + (pool == "class"), product(N, C, D)
    counts = counted("vit", **IMAGE, classes=K, pool=pool)
    check(counts, {
        "embeddings": patches, "attention": L * product(n, D, 4 * D), "attention: Q Kᵀ, A V": 4 * L * n * n * D,
        "MLP": L * 2 * product(n, D, F), "head": product(1, D, K),
    }, first=patches)  # fmt: skip
    assert counts.forward.matrices == C * D + L * (4 * D * D + 2 * D * F) + D * K
    assert counts.prefill is counts.decode is None
    assert counts.parameters["embeddings"] == (C + 1) * D + D * (pool == "class")


def test_captioner_prefix_is_counted_in_two_parts():
    image, t, narrow = N + 2, 7, 17
    n, given = image + t, product(N, C, narrow)
    rest = {
        "embeddings": given + product(N, narrow, D), "attention": L * product(n, D, 4 * D),
        "MLP": L * 2 * product(n, D, F), "head": product(t, D, V),
    }  # fmt: skip
    counts = counted("captioner", t, **IMAGE, **TEXT, image_width=narrow)
    check(counts, rest | {"attention: Q Kᵀ, A V": 4 * L * D * (image * image + t * n)}, given)
    # a bias needs the whole square, and so does a causal mask
    for values in (dict(positions="alibi"), dict(mask="causal")):
        counts = counted("captioner", t, **IMAGE, **TEXT, image_width=narrow, **values)
        check(counts, rest | {"attention: Q Kᵀ, A V": 4 * L * D * n * n}, given)


def test_reader_heads():
    blocks = {
        "attention": L * product(T, D, 4 * D),
        "attention: Q Kᵀ, A V": 4 * L * T * T * D,
        "MLP": L * 2 * product(T, D, F),
    }
    check(counted("reader", **TEXT), blocks | {"head": product(T, D, D) + product(T, D, V)})
    check(counted("reader", **TEXT, classes=K, token_types=2, norm_position="post", embed_norm=True), blocks | {
        "head": product(1, D, D) + product(1, D, K)
    })  # fmt: skip
    assert counted("reader", **TEXT).parameters["head"] == (D + 1) * D + 2 * D + V
    check(counted("reader", **TEXT, head="pool"), blocks | {"head": product(1, D, D)})
    check(counted("reader", **TEXT, head="states"), blocks)


def test_seq2seq_reads_its_source_once():
    s, t, source_vocab = 17, 7, 37
    counts = counted("seq2seq", t, **TEXT, source_context=s, source_vocab=source_vocab, share_embeddings=False)
    s = t  # the source is cut to the length too
    check(counts, {
        "attention": L * product(s + t, D, 4 * D), "attention: Q Kᵀ, A V": 4 * L * (s * s + t * t) * D,
        "cross-attention": L * (product(t, D, 2 * D) + product(s, D, 2 * D)),
        "cross-attention: Q Kᵀ, A V": 4 * L * s * t * D, "MLP": L * 2 * product(s + t, D, F), "head": product(t, D, V),
    })  # fmt: skip
    assert counts.decode.by_group["cross-attention"] == L * product(1, D, 2 * D)
    assert counts.decode.by_group["cross-attention: Q Kᵀ, A V"] == 4 * L * s * D
    assert counts.decode.matrices == L * (4 * D * D + 2 * D * D + 2 * D * F) + D * V
    assert counts.prefill.matrices == L * (2 * 4 * D * D + 4 * D * D + 4 * D * F) + D * V
    assert counts.parameters["embeddings"] == (V + source_vocab) * D


def test_seq2seq_with_a_shorter_decoder_and_heads_of_another_width():
    n, depth, wide, short = 7, 5, 7 * H, 1
    values = TEXT | dict(depth=depth, decoder_depth=short, head_dim=7, activation="geglu", positions="t5")
    counts = counted("seq2seq", n, **values)
    assert counts == counted("seq2seq", n, **values, short=False)
    check(counts, {
        "attention": (depth + short) * product(n, D, 4 * wide),
        "attention: Q Kᵀ, A V": 4 * (depth + short) * n * n * wide,
        "cross-attention": short * product(n, D, 4 * wide), "cross-attention: Q Kᵀ, A V": 4 * short * n * n * wide,
        "MLP": (depth + short) * 3 * product(n, D, F), "head": product(n, D, V),
    })  # fmt: skip
    assert counts.decode.by_group["attention: Q Kᵀ, A V"] == 4 * short * n * wide
    formulas = family("seq2seq").cost.parameter_formulas(family("seq2seq").configure(**SIZES | values))
    sizes = dict(L=depth, D=D, h=H, g=H, d=7, F=F)
    for group in ("attention", "cross-attention", "MLP"):
        assert eval(formulas[group].replace("·", "*"), {}, sizes) == counts.parameters[group]


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_the_formulas_of_a_gpt_are_its_numbers_of_parameters(scheme):
    values = TEXT | dict(positions=scheme, bias=False, kv_heads=1, tie_embeddings=False)
    formulas = family("gpt").cost.parameter_formulas(family("gpt").configure(**SIZES | values))
    sizes = dict(L=L, D=D, h=H, g=1, d=d, F=F, V=V, context=T)
    counts, parts = counted("gpt", 7, **values).parameters, {"embeddings", "attention", "MLP", "norms", "head"}
    for group in parts | ({"positions"} if scheme == "learned" else set()):
        assert eval(formulas[group].replace("·", "*"), {}, sizes) == counts[group], group
    assert ("positions" in formulas) == (scheme == "learned")


@pytest.mark.parametrize("attention, changed, groups", [
    ("full", {}, ((1, 20), (1, 20))), ("factored", {}, ((5, 4), (4, 5))),
    ("windowed", dict(image_size=(70, 10), frames=4, window=2), ((5, 8), (5, 8))),
])  # fmt: skip
def test_dit_attention_in_groups(attention, changed, groups):
    patches, values, steps = groups[0][0] * groups[0][1], 2 * C, 256
    given = product(patches, values, D) + product(1, steps, D)
    condition = product(1, steps, D) + product(1, D, D) + product(1, D, 2 * D)
    check(counted("dit", **VIDEO | changed, attention=attention), {
        "embeddings": product(patches, values, D),
        "condition": condition + sum(product(many, D, 6 * D) for many, _ in groups),
        "attention": L * product(patches, D, 4 * D),
        "attention: Q Kᵀ, A V": sum(4 * many * size * size * D for many, size in groups),
        "MLP": L * 2 * product(patches, D, F), "head": product(patches, D, values),
    }, given)  # fmt: skip


def test_dit_condition_is_a_group_of_its_own():
    labels = counted("dit", **IMAGE, classes=K)
    # 256 frequencies; a label for no label; six vectors a block, and two at the end
    time = (256 + 1) * D + (D + 1) * D + L * (D + 1) * 6 * D + (D + 1) * 2 * D
    assert labels.parameters["condition"] == time + (K + 1) * D
    text = counted("dit", **IMAGE, vocab=V, context=T, text_encoder_depth=1)
    assert text.forward.by_group["condition: Q Kᵀ, A V"] == 4 * T * T * D
    encoder = 4 * (D + 1) * D + (D + 1) * F + (F + 1) * D + 3 * 2 * D
    assert text.parameters["condition"] == time + (V + 1) * D + encoder
    assert set(text.parameters) == set(labels.parameters) == {"embeddings", "condition", "attention", "MLP", "head"}


@pytest.mark.parametrize("name, values", [
    ("gpt", TEXT), ("gpt", TEXT | dict(kv_heads=1, positions="shaw", tie_embeddings=False)),
    ("captioner", IMAGE | TEXT), ("seq2seq", TEXT | dict(source_context=17)),
])  # fmt: skip
def test_prefill_and_decode(name, values):
    record = family(name)
    config = record.configure(**SIZES | values)
    n, counts = 7, count(record.create, record.cost, config, 7)
    kv, before = (config.kv_heads or H) * d, getattr(config, "before", 0)
    decode = counts.decode.by_group
    # one token, with the keys of all before it and its own
    assert decode["attention"] == L * product(1, D, 2 * D + 2 * kv)
    assert decode["attention: Q Kᵀ, A V"] == 4 * L * (before + n) * D
    assert (decode["MLP"], decode["head"]) == (L * 2 * product(1, D, F), product(1, D, V))
    assert decode.get("positions", 0) == (L * product(H, d, 33) if config.positions == "shaw" else 0)
    # a prefill is a forward pass with the head for one token
    assert counts.prefill.by_group == counts.forward.by_group | {"head": product(1, D, V)}
    assert counts.prefill.matrices == counts.forward.matrices


def _case(name):
    values = {"gpt": TEXT | dict(kv_heads=1), "vit": IMAGE | dict(classes=K), "captioner": IMAGE | TEXT,
              "reader": TEXT, "seq2seq": TEXT | dict(source_context=17), "dit": VIDEO | dict(attention="factored", classes=K)}  # fmt: skip
    return SIZES | dict(positions="alibi" if name == "reader" else "learned") | values.get(name, {})


@pytest.mark.parametrize("name", ["gpt", "vit", "captioner", "reader", "seq2seq", "dit"])
def test_a_real_batch_with_fused_attention_counts_the_same(name):
    """On a CPU with memory and fused kernels, three sequences at once: three times what the meta device says of one."""
    record, batch = FAMILIES[name], 3
    config = record.configure(**_case(name))
    model, counts = record.create(config), count(record.create, record.cost, config)
    with FlopCounterMode(display=False, custom_mapping=FUSED) as forward:
        output = model(*model.example(batch))
    with FlopCounterMode(display=False, custom_mapping=FUSED) as backward:
        output.sum().backward()
    assert forward.get_total_flops() == batch * counts.forward.flops
    assert backward.get_total_flops() == batch * counts.backward
    assert sum(p.numel() for p in model.parameters()) == counts.total_parameters


@pytest.mark.parametrize("name, depth", [
    ("gpt", 5), ("dit", 6),
    *(pytest.param(name, 5, marks=pytest.mark.long) for name in ("vit", "captioner", "reader", "seq2seq", "dit")),
])  # fmt: skip
def test_short_models_count_a_deep_one_exactly(name, depth):
    values = _case(name) | dict(depth=depth)
    assert counted(name, **values) == counted(name, **values, short=False)


@pytest.mark.parametrize("name, preset, published", [
    ("gpt", "gpt2-xl", 1_557_611_200), ("vit", "b/16", 86_567_656), ("gpt", "llama2-70b", 68_976_648_192),
    pytest.param("gpt", "llama3-8b", 8_030_261_248, marks=pytest.mark.long),
    pytest.param("gpt", "llama3-70b", 70_553_706_496, marks=pytest.mark.long),
])  # fmt: skip
def test_parameters_of_public_models(name, preset, published):
    record = family(name)
    assert count(record.create, record.cost, record.configure(preset), None).total_parameters == published


def test_a_long_context_takes_no_memory_and_one_too_long_is_an_error():
    record = family("gpt")
    config = replace(record.configure("llama2-70b"), context=1 << 17)
    counts, n = count(record.create, record.cost, config), 1 << 17
    assert counts.forward.by_group["attention: Q Kᵀ, A V"] == 4 * 80 * n * n * 64 * 128
    with pytest.raises(UserError, match="model.context must be at most 134,217,728, not 1000000000000"):
        count(record.create, record.cost, replace(config, context=10**12))


def test_lengths_that_a_model_cannot_take():
    with pytest.raises(UserError, match="--context must be from 1 to 13, not 17"):
        counted("gpt", 17, **TEXT)
    with pytest.raises(UserError, match="--context is for text: this model takes 7 tokens of an image"):
        counted("vit", 5, **IMAGE, classes=K)


@dataclass(frozen=True)
class ToyConfig:
    depth: int = 3
    sizes: tuple = ()


class Toy(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.mine = nn.Linear(7, 5)
        self.blocks = nn.ModuleList(nn.Linear(5, 5, bias=False) for _ in range(config.depth))

    def example(self, batch=1):
        return (torch.zeros(batch, 11, 7, device=self.mine.weight.device),)

    def forward(self, x):
        x = self.mine(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_new_family_needs_no_description_of_its_products():
    counts = count(Toy, CostProfile(groups={"blocks": "MLP"}), ToyConfig(depth=9))
    assert counts.parameters == {"MLP": 9 * 25, "other": 40}
    assert counts.forward.by_group == {"MLP": 9 * product(11, 5, 5), "other": product(11, 7, 5)}
    assert counts.backward == 2 * 9 * product(11, 5, 5) + product(11, 7, 5)
