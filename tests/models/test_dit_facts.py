"""What is known of the diffusion transformer from its paper, and which patch attends to which, written out from the weights."""

import math
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import unchecked
from pencil.config import UserError
from pencil.core.embed import TimestepEmbedding
from pencil.core.masks import full
from pencil.core.patches import grid_positions
from pencil.core.positions import rotate
from pencil.core.probe import Probe
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models.dit import DiTConfig

# of the paper: millions of parameters, and billions of multiplications to read 32×32×4 once
MILLIONS = {"s": 33, "b": 130, "l": 458, "xl": 675}
BILLIONS = {
    "s/8": 0.36, "s/4": 1.41, "s/2": 6.06, "b/8": 1.42, "b/4": 5.56, "b/2": 23.01, "l/8": 5.01, "l/4": 19.70,
    "l/2": 80.71, "xl/8": 7.39, "xl/4": 29.05, "xl/2": 118.64,
}  # fmt: skip


@pytest.mark.parametrize("size", MILLIONS)
def test_parameters_are_those_of_the_paper(size):
    counts = {patch: family("dit").parameters(configure("dit", f"{size}/{patch}")) for patch in (2, 4, 8)}
    assert round(counts[2] / 1e6) == MILLIONS[size]
    width = configure("dit", f"{size}/2").width
    for patch in (4, 8):  # only the patches are longer: 4 channels in, 8 out
        assert counts[patch] - counts[2] == (patch**2 - 4) * (4 * width + 8 * (width + 1))


def test_parameters_of_the_smallest_are_known_to_the_last():
    assert family("dit").parameters(configure("dit", "s/2")) == 32_865_056


@cache
@unchecked()
def operations(preset):
    """What one picture costs, counted without computing it."""
    with torch.device("meta"):
        model = create("dit", configure("dit", preset)).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*model.example())
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "preset", [name if name in ("s/8", "b/2") else pytest.param(name, marks=pytest.mark.long) for name in BILLIONS]
)
def test_operations_are_those_of_the_paper(preset):
    """To the table's last digit, and where that is the sixth or so, to two parts in ten thousand."""
    found = operations(preset) / 2e9
    assert abs(found - BILLIONS[preset]) < 0.005 + 2e-4 * BILLIONS[preset], found


def test_operations_of_the_largest():
    assert abs(operations("xl/2") / 1e9 - 237.2) < 0.1


def test_a_video_has_the_patches_of_all_its_frames():
    config = DiTConfig(image_size=(32, 32), patch=(2, 2), frames=16, patch_frames=1, channels=4)
    assert config.grid == (16, 16, 16)
    assert config.sizes["N"] == len(grid_positions(config.grid)) == 4096
    with torch.device("meta"):
        model = create("dit", config)
        probe = Probe("input")
        model(*model.example(), probe=probe)
    assert probe.values["input"].shape == (1, 4096, 128)


@pytest.mark.parametrize("exact", [False, True])
def test_the_timestep_is_cosines_and_sines_through_two_matrices(exact):
    torch.manual_seed(0)
    part = TimestepEmbedding(13, frequencies=14, downscale_freq_shift=exact).double()
    probe, timestep = Probe("sinusoids"), [0.0, 1.0, 0.37, 999.0]
    found = part(torch.tensor(timestep, dtype=torch.float64), probe)
    w = part.state_dict()
    for row, t in enumerate(timestep):
        omegas = [math.exp(-math.log(10000) * i / (6 if exact else 7)) for i in range(7)]
        sinusoids = [math.cos(t * s) for s in omegas] + [math.sin(t * s) for s in omegas]
        torch.testing.assert_close(probe.values["sinusoids"][row].tolist(), sinusoids, atol=1e-12, rtol=0)
        hidden = w["up.weight"] @ torch.tensor(sinusoids, dtype=torch.float64) + w["up.bias"]
        hidden = hidden / (1 + torch.exp(-hidden))
        expected = w["down.weight"] @ hidden + w["down.bias"]
        torch.testing.assert_close(found[row], expected, atol=1e-12, rtol=1e-12)
    assert exact == math.isclose(omegas[-1], 1e-4)


def test_integer_timesteps_equal_float_timesteps():
    part = TimestepEmbedding(13)
    assert torch.equal(part(torch.tensor([0, 7, 999])), part(torch.tensor([0.0, 7.0, 999.0])))


SIZES = dict(channels=2, width=30, depth=4, heads=3, hidden=17, classes=5)
GROUPED = {
    "factored": dict(image_size=(6, 10), patch=(2, 5), frames=10, patch_frames=2, attention="factored"),
    "windowed": dict(image_size=(12, 45), patch=(2, 5), attention="windowed", window=3),
    "windowed video": dict(image_size=(16, 20), patch=(2, 5), frames=2, attention="windowed", window=4),
    "windowed long video": dict(image_size=(4, 10), patch=(2, 5), frames=8, attention="windowed", window=2),
}


def together(config, i):
    """Whether two patches attend to each other in block i, from their positions alone."""
    places, grid, odd = grid_positions(config.grid).tolist(), config.grid, i % 2

    def group(place):
        if config.attention == "factored":
            return place[1:] if odd else place[:1]
        found = []
        for at, side in zip(place, grid, strict=True):
            size = min(config.window, side)
            moved = size // 2 if odd and size < side else 0
            found.append((at - moved) % side // size)
        return found

    return torch.tensor([[group(a) == group(b) for b in places] for a in places])


def by_hand(model, x, condition):
    """The blocks over all patches at once, with what a patch may not attend to masked; one row of a batch."""
    c, w = model.config, {name: tensor.double() for name, tensor in model.state_dict().items()}
    whole = Span.whole(len(x), coords=grid_positions(c.grid)[None])
    rotation = model.positions.rotated(whole, torch.float64).rotation
    bias = model.positions.bias(whole.under(full))

    def normed(x):
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + c.eps)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    for i in range(c.depth):
        settings = linear(condition / (1 + torch.exp(-condition)), f"blocks.{i}.ada")
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = settings.chunk(6)
        qkv = linear(normed(x) * (1 + scale) + shift, f"blocks.{i}.attn.qkv").chunk(3, -1)
        q, k, v = (part.unflatten(-1, (c.heads, c.head_width)).transpose(0, 1)[None] for part in qkv)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        scores = q @ k.transpose(-1, -2) * (model.positions.scale or 1 / math.sqrt(c.head_width))
        scores = scores if bias is None else scores + bias(q)
        pattern = scores.masked_fill(~together(c, i), -math.inf).softmax(-1)
        x = x + gate * linear((pattern @ v)[0].transpose(0, 1).flatten(1), f"blocks.{i}.attn.out")
        hidden = linear(normed(x) * (1 + scale_mlp) + shift_mlp, f"blocks.{i}.mlp.up")
        hidden = hidden / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + gate_mlp * linear(hidden, f"blocks.{i}.mlp.down")
    return x


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi", "shaw", "t5", "learned"])
@pytest.mark.parametrize("kind", GROUPED)
def test_groups_that_attend_among_themselves_are_a_mask_over_all(kind, positions):
    config = DiTConfig(**SIZES, **GROUPED[kind], positions=positions)
    torch.manual_seed(0)
    model = create("dit", config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
        probe = Probe("input", "condition", f"blocks.{config.depth - 1}.post", "norm")
        picture = torch.randn(2, 2, *config.sides, dtype=torch.float64)
        timestep, label = torch.tensor([13, 701]), torch.tensor([5, 3])
        model(picture, timestep, label, probe=probe)
        for row in range(2):
            condition = probe.values["condition"][row]
            x = by_hand(model, probe.values["input"][row], condition)
            shift, scale = model.last(torch.nn.functional.silu(condition)).chunk(2)
            expected = model.norm(x) * (1 + scale) + shift
            torch.testing.assert_close(probe.values["norm"][row], expected, atol=1e-9, rtol=1e-9)
    seen = together(config, 0)
    assert not seen.all()
    assert not torch.equal(seen, together(config, 1))


@pytest.mark.parametrize("values, words", [
    (dict(mlp_eps=0.0), "model.mlp_eps must be above 0, not 0.0"),
    (dict(attention="windowed", window=0), "model.window must be at least 1, not 0"),
    (dict(dropout=0.1), "this model has no dropout, and model.dropout is 0.1"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        DiTConfig(**SIZES, **values)


def test_the_norm_before_the_mlp_may_have_an_eps_of_its_own():
    model = create("dit", DiTConfig(**SIZES, mlp_eps=1e-3))
    assert {(block.attn_norm.eps, block.mlp_norm.eps) for block in model.blocks} == {(1e-6, 1e-3)}
    assert create("dit", DiTConfig(**SIZES)).state_dict().keys() == model.state_dict().keys()
