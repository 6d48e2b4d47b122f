"""The proofs every family carries, for ViT, and the worked example."""

import importlib.util
import math
import re
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import small_models
from pencil.config import UserError
from pencil.core.patches import cut, join
from pencil.core.probe import Probe
from pencil.families import configure, create, family
from pencil.models.vit import ViTConfig, attention_maps
from small_models import SCHEMES

SIZES = small_models.SIZES["vit"]


def tiny(**values):
    return small_models.tiny("vit", **values)


def stirred(model):
    """A fresh model's scores are nearly even: make the differences matter."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


def pictures(count, channels=2, height=6, width=25):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("preset, count", [
    ("ti/16", 5_717_416), ("s/16", 22_050_664), ("b/16", 86_567_656), ("b/32", 88_224_232), ("l/16", 304_326_632),
])  # fmt: skip
def test_parameter_counts_are_the_published_ones(preset, count):
    assert family("vit").parameters(configure("vit", preset)) == count


def shuffled(picture, patch=(2, 5)):
    """The same squares in another order."""
    patches = cut(picture, patch)
    order = torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(3))
    assert (order != torch.arange(len(order))).any()
    return join(patches[:, order], picture.shape[2:], patch)


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_without_positions_does_the_order_of_the_patches_not_matter(scheme, pool):
    model, picture = tiny(positions=scheme, pool=pool), pictures(2)
    with torch.no_grad():
        same = torch.allclose(model(picture), model(shuffled(picture)), atol=1e-5, rtol=1e-5)
    assert same == (scheme == "none")


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_distances_between_patches_are_euclidean(pool):
    """The class token is one position to the left of the first patch."""
    model, probe = tiny(positions="alibi", pool=pool), Probe("positions.bias")
    model(pictures(2), probe=probe)
    coords = [(0, -1)] * (pool == "class") + [(row, column) for row in range(3) for column in range(5)]
    bias = probe.values["positions.bias"][0]
    assert bias.shape == (3, len(coords), len(coords))
    for head, slope in enumerate((1 / 16, 1 / 256, 1 / 4)):
        for i, query in enumerate(coords):
            for j, key in enumerate(coords):
                assert float(bias[head, i, j]) == pytest.approx(-slope * math.dist(query, key), rel=1e-6)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_token_that_is_read_is_the_first_or_the_mean_of_all(pool):
    model, probe = tiny(pool=pool), Probe("norm", "pooled", "logits")
    model(pictures(2), probe=probe)
    final = probe.values["norm"]
    assert final.shape[1] == 15 + (pool == "class")
    read = final[:, 0] if pool == "class" else final.sum(1) / 15
    torch.testing.assert_close(probe.values["pooled"], read)
    torch.testing.assert_close(probe.values["logits"], read @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_resized_to_its_own_size_a_model_is_itself_and_to_another_it_runs(scheme, pool):
    model = tiny(positions=scheme, pool=pool)
    same = model.resized((6, 25))
    with torch.no_grad():
        assert torch.equal(same(pictures(2)), model(pictures(2)))
        larger = model.resized((14, 35))
        assert larger.config.grid == (7, 7)
        assert larger(pictures(2, height=14, width=35)).shape == (2, 11)
    assert not larger.training
    for name, tensor in model.state_dict().items():
        if name != "positions.table":
            assert torch.equal(larger.state_dict()[name], tensor), name


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("size", [(14, 35), (4, 10), (2, 65)])
def test_a_learned_table_is_stretched_as_a_picture_is(size, pool):
    model = tiny(pool=pool)
    first, rows, columns = int(pool == "class"), size[0] // 2, size[1] // 5
    table, stretched = model.positions.table.detach(), model.resized(size).positions.table.detach()
    assert stretched.shape == (first + rows * columns, 42)
    assert torch.equal(stretched[:first], table[:first])
    for channel in range(42):
        grid = table[first:, channel].reshape(1, 1, 3, 5)
        expected = F.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)
        found = stretched[first:, channel].reshape(1, 1, rows, columns)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("size", [(14, 35), (4, 10), (2, 65)])
def test_a_learned_table_is_stretched_as_timm_does(size, pool, timm):
    model, first = tiny(pool=pool), int(pool == "class")
    resample, grid = timm.layers.resample_abs_pos_embed, (size[0] // 2, size[1] // 5)
    expected = resample(model.positions.table.detach()[None], grid, old_size=(3, 5), num_prefix_tokens=first)[0]
    assert torch.equal(model.resized(size).positions.table, expected)


def test_rotations_and_sinusoids_at_a_new_size_are_those_of_a_model_made_for_it():
    for scheme in ("rope", "sinusoidal"):
        model = tiny(positions=scheme)
        made = create("vit", ViTConfig(**{**SIZES, "image_size": (14, 35), "positions": scheme})).eval()
        made.load_state_dict(model.state_dict())
        picture = pictures(2, height=14, width=35)
        assert torch.equal(model.resized((14, 35))(picture), made(picture))


@pytest.mark.parametrize("shape", [(2, 25, 6), (3, 6, 25), (2, 6, 30)])
def test_a_picture_of_another_shape_is_refused_with_both_shapes_named(shape):
    with pytest.raises(ValueError, match=f"{shape[0]}×{shape[1]}×{shape[2]} .* takes 2×6×25"):
        tiny()(torch.zeros(1, *shape))


def test_registers_attend_and_are_left_out_of_the_maps_and_of_the_mean():
    model, picture, probe = tiny(pool="mean", registers=2, class_token=True), pictures(2), Probe()
    model(picture, probe=probe)
    pattern = probe.values["blocks.1.attn.pattern"].detach()
    assert pattern.shape[-2:] == (18, 18)
    expected = pattern[:, :, 3:, 3:].mean((1, 2)).unflatten(1, (3, 5))
    torch.testing.assert_close(attention_maps(model, picture), expected)
    torch.testing.assert_close(probe.values["pooled"], probe.values["norm"][:, 3:].mean(1))
    with torch.no_grad():
        before = model(picture)
        model.registers.mul_(-1)
        assert not torch.allclose(model(picture), before, atol=1e-3)


def test_tokens_without_a_position_are_the_same_wherever_the_table_is():
    model, probe = tiny(registers=2, token_positions=False), Probe("input")
    assert model.positions.table.shape == (15, 42)
    model(pictures(2), probe=probe)
    tokens = torch.cat((model.class_token, model.registers), 1)
    assert torch.equal(probe.values["input"][:, :3], tokens.expand(2, -1, -1))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_attention_maps_are_the_recorded_pattern(pool):
    model, picture, probe = tiny(pool=pool), pictures(2), Probe()
    model(picture, probe=probe)
    maps = attention_maps(model, picture)
    assert maps.shape == (2, 3, 5)
    pattern = probe.values["blocks.1.attn.pattern"].detach()
    for row in range(3):
        for column in range(5):
            patch = row * 5 + column
            if pool == "class":
                expected = pattern[:, :, 0, 1 + patch].sum(1) / 3
            else:
                expected = pattern[:, :, :, patch].sum((1, 2)) / (3 * 15)
            torch.testing.assert_close(maps[:, row, column], expected)
    totals = maps.sum((1, 2))
    assert (totals <= 1 + 1e-6).all()
    if pool == "mean":
        torch.testing.assert_close(totals, torch.ones(2))
    else:
        torch.testing.assert_close(totals, 1 - pattern[:, :, 0, 0].mean(1))


def test_an_edit_reaches_the_logits():
    picture = pictures(2)
    edited = tiny()(picture, probe=Probe(edit={"blocks.1.attn.z": lambda z: z.index_fill(1, torch.tensor([1]), 0)}))
    by_weight = tiny()
    by_weight.blocks[1].attn.out.weight.data[:, 14:28] = 0
    torch.testing.assert_close(edited, by_weight(picture), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(edited, tiny()(picture), atol=1e-3)


@pytest.mark.parametrize(
    "image, patch", [((28, 28), (5, 5)), ((6, 25), (4, 5)), ((6, 25), (2, 7)), ((3, 3), (7, 7)), ((28, 30), (8, 8))]
)
def test_a_patch_that_does_not_divide_the_picture_is_refused_and_what_would_is_named(image, patch):
    with pytest.raises(UserError, match="does not divide a picture") as refusal:
        ViTConfig(image_size=image, patch=patch)
    printed = re.search(r"a patch of ([\d, ×]+) would, or a model.image_size of ([\dx]+)$", str(refusal.value))
    for named in printed[1].split(", "):
        configure("vit", image_size=image, patch=named)
    configure("vit", image_size=printed[2], patch=patch)


@pytest.mark.parametrize("image, patch", [((28, 30), 8), ((30, 28), 8), ((224, 160), 24)])
def test_a_patch_named_for_a_picture_of_two_sides_divides_both(image, patch):
    """A square patch is mended by a square patch."""
    with pytest.raises(UserError, match="does not divide a picture") as refusal:
        ViTConfig(image_size=image, patch=(patch, patch))
    for named in map(int, re.search(r"a patch of ([\d, ]+) would", str(refusal.value))[1].split(", ")):
        assert [side % named for side in image] == [0, 0], str(refusal.value)


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_worked_example_from_the_picture_to_the_residual(golden):
    """The 4×4 picture through the whole model; the example has no norms and no MLP, so those are set to do nothing."""
    sizes, weights = golden["004-patchify"]["expected"], golden["004-head1-qkv"]["inputs"]
    model = create("vit", ViTConfig(
        image_size=(4, 4), patch=(2, 2), width=sizes["D"], heads=sizes["heads"], depth=1, hidden=7, classes=3,
    )).double()  # fmt: skip
    block = model.blocks[0]
    block.attn_norm = block.mlp_norm = model.norm = nn.Identity()
    with torch.no_grad():
        model.patches.proj.weight.copy_(exact(golden["004-embed"]["inputs"]["E"]))
        model.class_token.copy_(exact(golden["004-Z0"]["inputs"]["z_cls"]))
        model.positions.table.copy_(exact(golden["004-Z0"]["inputs"]["P"]))
        block.attn.w_q.copy_(torch.cat([exact(weights["W_Q1"]), exact(weights["W_Q2"])], 1).T)
        block.attn.w_k.copy_(torch.cat([exact(weights["W_K1"]), exact(weights["W_K2"])], 1).T)
        block.attn.w_v.copy_(torch.cat([exact(weights["W_V1"]), exact(weights["W_V2"])], 1).T)
        block.attn.out.weight.copy_(exact(golden["004-msa"]["inputs"]["W_O"]).T)
        block.mlp.down.weight.zero_()
    probe = Probe()
    model(exact(golden["004-patchify"]["inputs"]["image"])[None, None], probe=probe)
    found = {name: value[0] for name, value in probe.values.items()}
    assert found["tokens"].shape == (sizes["tokens"], sizes["D"])
    for name, entry, key in [
        ("patches.flat", "004-patchify", "patches"),
        ("patches.out", "004-embed", "z"),
        ("input", "004-Z0", "Z0"),
        ("blocks.0.attn.out", "004-msa", "msa_out"),
        ("blocks.0.mid", "004-residual", "Z_after_msa"),
        ("blocks.0.post", "004-residual", "Z_after_msa"),
    ]:
        torch.testing.assert_close(found[name], exact(golden[entry]["expected"][key]), atol=1e-8, rtol=0)
    for head in (1, 2):
        queries = exact(golden[f"004-head{head}-qkv"]["expected"][f"Q{head}"])
        torch.testing.assert_close(found["blocks.0.attn.q"][head - 1], queries, atol=1e-8, rtol=0)
        for name, key in (("scores", "scores"), ("pattern", "attn"), ("z", "out")):
            expected = exact(golden[f"004-head{head}-{key}"]["expected"][key])
            torch.testing.assert_close(found[f"blocks.0.attn.{name}"][head - 1], expected, atol=1e-8, rtol=1e-8)


def test_no_stand_in_for_torchvision_is_left(timm):
    """transformers asks whether torchvision is there, and would believe it."""
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision itself is installed")
    assert timm.__version__
    assert not [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
