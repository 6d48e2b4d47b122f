"""The authors' diffusion transformer: against the published architecture, written out here, on random weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import CLOSE, randomise
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.models.dit import DiTConfig
from pencil.weights.dit import sinusoids
from pencil.weights.dit_original import DIT_ORIGINAL
from pencil.weights.maps import Source, load, write

# the arguments of its constructor; widths are multiples of 4·heads, for the sinusoids of rows and columns
KINDS = [
    dict(input_size=14, patch_size=2, in_channels=3, hidden_size=60, depth=2, num_heads=5, num_classes=11),
    dict(input_size=15, patch_size=3, in_channels=4, hidden_size=44, depth=3, num_heads=1, num_classes=7, mlp_ratio=2.5),
    dict(input_size=26, patch_size=13, in_channels=1, hidden_size=28, depth=1, num_heads=7, num_classes=1),
    dict(input_size=5, patch_size=5, in_channels=3, hidden_size=12, depth=2, num_heads=3, num_classes=2, learn_sigma=False),
    dict(input_size=8, patch_size=2, in_channels=4, hidden_size=384, depth=1, num_heads=6, num_classes=13),
]  # fmt: skip


def shifted(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class Parts(nn.Module):
    """Submodules by name."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Block(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attn = Parts(qkv=nn.Linear(width, 3 * width), proj=nn.Linear(width, width))
        self.mlp = Parts(fc1=nn.Linear(width, hidden), fc2=nn.Linear(hidden, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        (b, n, d), norm = x.shape, lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-6)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.adaLN_modulation(condition).chunk(6, 1)
        qkv = self.attn.qkv(shifted(norm(x), shift, scale)).reshape(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        pattern = (q @ k.mT / math.sqrt(d // self.heads)).softmax(-1)
        x = x + gate[:, None] * self.attn.proj((pattern @ v).transpose(1, 2).reshape(b, n, d))
        hidden = F.gelu(self.mlp.fc1(shifted(norm(x), mlp_shift, mlp_scale)), approximate="tanh")
        return x + mlp_gate[:, None] * self.mlp.fc2(hidden)


class Reference(nn.Module):
    """What the paper describes, under the names of the published files."""

    def __init__(self, input_size, patch_size, in_channels, hidden_size, depth, num_heads, num_classes, mlp_ratio=4.0,
                 learn_sigma=True):  # fmt: skip
        super().__init__()
        width, out = hidden_size, in_channels * (2 if learn_sigma else 1)
        self.patch = patch_size
        self.x_embedder = Parts(proj=nn.Conv2d(in_channels, width, patch_size, patch_size))
        self.t_embedder = Parts(mlp=nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width)))
        self.y_embedder = Parts(embedding_table=nn.Embedding(num_classes + 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (input_size // patch_size) ** 2, width), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, num_heads, int(width * mlp_ratio)) for _ in range(depth))
        last = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.final_layer = Parts(linear=nn.Linear(width, patch_size**2 * out), adaLN_modulation=last)

    def forward(self, picture, timestep, label):
        angles = timestep[:, None] * torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float64) / 128)
        condition = self.t_embedder.mlp(torch.cat((angles.cos(), angles.sin()), -1).to(picture))
        condition = condition + self.y_embedder.embedding_table(label)
        x = self.x_embedder.proj(picture).flatten(2).mT + self.pos_embed
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.final_layer.adaLN_modulation(condition).chunk(2, 1)
        x = self.final_layer.linear(shifted(F.layer_norm(x, x.shape[-1:], eps=1e-6), shift, scale))
        side, p = math.isqrt(x.shape[1]), self.patch
        x = x.reshape(len(x), side, side, p, p, -1).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(len(x), -1, side * p, side * p)


def made(values):
    torch.manual_seed(3)
    theirs = Reference(**values).eval()
    randomise(theirs)
    return theirs, Source(theirs.state_dict())


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("values", KINDS)
def test_every_block_equals_the_published_architecture(values):
    theirs, source = made(values)
    # the sizes follow from the tensors; the heads only where the width is a published one
    given = {} if values["hidden_size"] == 384 else {"num_heads": values["num_heads"]}
    config = DIT_ORIGINAL.configure(given, source)
    ours = load(DIT_ORIGINAL, source, config)
    for difference in compare(DIT_ORIGINAL, theirs, ours):
        assert difference.relative <= CLOSE, difference
    back = dict(write(DIT_ORIGINAL, ours.state_dict(), config))
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.state_dict().items())
    assert not config.downscale_freq_shift  # unlike diffusers' copy of it
    assert config == DIT_ORIGINAL.configure(values)


def test_a_published_file_has_the_sizes_of_our_preset():
    """DiT-XL/2 at 256×256, by the shapes of its tensors alone."""
    from pencil.models.dit import PRESETS

    with torch.device("meta"):
        theirs = Reference(32, 2, 4, 1152, 28, 16, 1000)
    config = DIT_ORIGINAL.configure({}, Source(theirs.state_dict()))
    xl = DiTConfig(**PRESETS["xl/2"], positions="learned")
    assert config == DiTConfig(**{**PRESETS["xl/2"], "positions": "learned", "hidden": 4 * 1152})
    assert xl.mlp_width == config.mlp_width


def test_a_width_that_was_never_published_needs_its_heads():
    _, source = made(KINDS[0])
    with pytest.raises(UserError, match='60 wide.*{"num_heads": N} into a config.json beside it'):
        DIT_ORIGINAL.configure({}, source)
    with pytest.raises(UserError, match="heads 7 does not divide"):
        DIT_ORIGINAL.configure({"num_heads": 7}, source)
    with pytest.raises(UserError, match="mlp_ratio must be a number above 0, not 'four'"):
        DIT_ORIGINAL.configure({"num_heads": 5, "mlp_ratio": "four"}, source)
    with pytest.raises(UserError, match="num_experts = 8, which Pencil does not know"):
        DIT_ORIGINAL.configure({"num_heads": 5, "num_experts": 8}, source)


def test_a_file_without_its_parts_is_refused():
    theirs, _ = made(KINDS[0])
    held = theirs.state_dict()
    for name in ("pos_embed", "x_embedder.proj.weight", "y_embedder.embedding_table.weight"):
        with pytest.raises(UserError, match=f"no {name}"):
            DIT_ORIGINAL.configure({"num_heads": 5}, Source({n: t for n, t in held.items() if n != name}))


def test_its_positions_are_the_sinusoids_that_diffusers_computes():
    """The published file holds them; a file with others would be read as it is."""
    diffusers = pytest.importorskip("diffusers.models.embeddings", reason="diffusers (an extra) is not installed")
    config = DIT_ORIGINAL.configure(KINDS[0])
    theirs = diffusers.get_2d_sincos_pos_embed(60, 7, base_size=7, output_type="pt")
    torch.testing.assert_close(sinusoids(config), theirs.double(), atol=1e-6, rtol=0)
