"""The diffusion transformer against diffusers' on random weights, and weights there and back."""

import pytest
import torch

from pencil.config import UserError
from pencil.families import create
from pencil.models.dit import DiTConfig
from pencil.weights import dit

pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")

# each size is another prime, or a multiple where heads, patches and sinusoids must divide it
KINDS = [
    dict(num_attention_heads=3, attention_head_dim=20, in_channels=3, out_channels=6, num_layers=2, sample_size=14,
         patch_size=2, num_embeds_ada_norm=11),
    dict(num_attention_heads=5, attention_head_dim=4, in_channels=4, num_layers=3, sample_size=15, patch_size=3,
         num_embeds_ada_norm=7, norm_eps=1e-3),
    dict(num_attention_heads=1, attention_head_dim=44, in_channels=4, out_channels=8, num_layers=1, sample_size=26,
         patch_size=2, num_embeds_ada_norm=13, norm_eps=1e-6),
    dict(num_attention_heads=7, attention_head_dim=12, in_channels=3, out_channels=3, num_layers=5, sample_size=9,
         patch_size=3, num_embeds_ada_norm=5),
]  # fmt: skip
FULL = {"norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate", "attention_bias": True, **KINDS[0]}


def theirs_of(values, seed=1):
    """Theirs with random weights and biases, and one embedding of time and label in every block."""
    from diffusers import DiTTransformer2DModel

    torch.manual_seed(seed)
    theirs = DiTTransformer2DModel(**values).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.1)
    one = theirs.transformer_blocks[0].norm1.emb.state_dict()
    for block in theirs.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(one)
    return theirs


def ours_of(theirs):
    config = dit.config_from(dict(theirs.config))
    ours = create("dit", config).eval()
    ours.load_state_dict(dit.from_diffusers(theirs.state_dict(), config))
    return ours


def drawn(config, count=5, dtype=torch.float32):
    """Pictures, and labels of which one is the null class."""
    draws = torch.Generator().manual_seed(7)
    picture = torch.randn(count, config.channels, *config.image_size, generator=draws, dtype=dtype)
    label = torch.randint(config.classes, (count,), generator=draws)
    label[2] = config.classes
    return picture, label


def exact_sinusoids(t):
    """The timestep's sinusoids in float64; theirs are float32, whose cosine of 999/ω is off by 6e-5."""
    angles = t[:, None].double() * 10000.0 ** (-torch.arange(128, dtype=torch.float64) / 127)
    return torch.cat((angles.cos(), angles.sin()), -1)


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("values", KINDS)
def test_its_output_equals_diffusers_dit(values):
    theirs = theirs_of(values)
    ours = ours_of(theirs)
    picture, label = drawn(ours.config)
    timestep = torch.tensor([0, 1, 2, 3, 5])
    with torch.no_grad():
        expected = theirs(picture, timestep, label).sample
        found = ours(picture, timestep, label)
        assert found.shape == expected.shape == (5, ours.config.out_channels, *ours.config.image_size)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        dropped = torch.tensor([False, False, True, False, False])
        plain = label.masked_fill(dropped, 1)
        assert torch.equal(ours(picture, timestep, plain, drop_condition=dropped), found)
        assert (ours(picture, timestep, plain) - found)[2].abs().max() > 1e-3  # the null class has an effect


@pytest.mark.proof("parity with a reference on random weights", "dit")
@pytest.mark.parametrize("values", KINDS)
def test_at_every_timestep_it_equals_diffusers_dit_with_exact_sinusoids(values, monkeypatch):
    theirs = theirs_of(values).double()
    ours = ours_of(theirs).double()
    picture, label = drawn(ours.config, dtype=torch.float64)
    timestep = torch.tensor([999, 0, 501, 97, 772])
    table = ours.positions.table.detach()
    torch.testing.assert_close(table, theirs.pos_embed.pos_embed[0], atol=1e-7, rtol=0)
    with torch.no_grad():
        ours.positions.table.copy_(theirs.pos_embed.pos_embed[0])
        rounded = theirs(picture, timestep, label).sample
        for block in theirs.transformer_blocks:
            monkeypatch.setattr(block.norm1.emb.time_proj, "forward", exact_sinusoids)
        found = ours(picture, timestep, label)
        # their weights are float64 and their sinusoids are cut to that width, so nothing is rounded on either side
        torch.testing.assert_close(found, theirs(picture, timestep, label).sample, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(found, rounded, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("values", KINDS)
def test_weights_there_and_back_are_bit_exact(values, tmp_path):
    from safetensors.torch import load_file

    theirs = theirs_of(values)
    theirs.save_pretrained(tmp_path)
    config = dit.config_from(dict(theirs.config))
    held = load_file(tmp_path / "diffusion_pytorch_model.safetensors")
    ours = dit.from_diffusers(held, config)
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in create("dit", config).state_dict().items()}
    back = dit.to_diffusers(ours, config)
    assert set(back) == set(held)
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())
    again = dit.from_diffusers(back, config)
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())


def test_a_file_we_write_is_read_by_diffusers(tmp_path):
    from diffusers import DiTTransformer2DModel
    from safetensors.torch import save_file

    theirs = theirs_of(KINDS[0])
    ours = ours_of(theirs)
    theirs.save_config(tmp_path)
    held = dit.to_diffusers(ours.state_dict(), ours.config)
    save_file(held, tmp_path / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    read = DiTTransformer2DModel.from_pretrained(tmp_path, low_cpu_mem_usage=False).eval()
    picture, label = drawn(ours.config)
    with torch.no_grad():
        output = [model(picture, torch.full((5,), 37), label).sample for model in (read, theirs)]
    assert torch.equal(*output)


def test_a_table_of_positions_in_a_file_is_taken_as_it_is():
    theirs = theirs_of(KINDS[0])
    config = dit.config_from(dict(theirs.config))
    table = torch.randn(1, 49, 60, generator=torch.Generator().manual_seed(3))
    held = {**theirs.state_dict(), "pos_embed.pos_embed": table}
    ours = dit.from_diffusers(held, config)
    assert torch.equal(ours["positions.table"], table[0])
    with pytest.raises(UserError, match="trained away"):
        dit.to_diffusers(ours, config)


def test_blocks_with_different_timestep_or_label_embeddings_are_refused():
    theirs = theirs_of(KINDS[1])
    config = dit.config_from(dict(theirs.config))
    for part in ("timestep_embedder.linear_2.bias", "class_embedder.embedding_table.weight"):
        held = dict(theirs.state_dict())
        name = f"transformer_blocks.2.norm1.emb.{part}"
        held[name] = held[name] + 1
        with pytest.raises(UserError, match=f"{name} is another than block 0's"):
            dit.from_diffusers(held, config)


def test_tensors_too_few_or_too_many_are_refused():
    theirs = theirs_of(KINDS[0])
    config = dit.config_from(dict(theirs.config))
    held = dict(theirs.state_dict())
    with pytest.raises(UserError, match="second attention"):
        dit.from_diffusers({**held, "transformer_blocks.0.attn2.to_q.weight": torch.zeros(2)}, config)
    with pytest.raises(UserError, match="also has caption.weight"):
        dit.from_diffusers({**held, "caption.weight": torch.zeros(2)}, config)
    del held["transformer_blocks.1.attn1.to_k.bias"]
    with pytest.raises(UserError, match="has no transformer_blocks.1.attn1.to_k.bias"):
        dit.from_diffusers(held, config)


@pytest.mark.parametrize("values, words", [
    (dict(norm_type="ada_norm_single"), "norm_type is 'ada_norm_single'"),
    (dict(activation_fn="geglu"), "activation_fn is 'geglu'"),
    (dict(cross_attention_dim=17), "second attention"),
    (dict(double_self_attention=True), "second attention"),
    (dict(num_embeds_ada_norm=None), "embeds no classes"),
    (dict(attention_bias=False), "attention without bias"),
    (dict(norm_elementwise_affine=True), "norms with weights"),
    (dict(out_channels=7), "has 3 input and 7 output channels"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    dit.config_from(FULL)
    with pytest.raises(UserError, match=words):
        dit.config_from({**FULL, **values})


@pytest.mark.parametrize("values", [
    dict(image_size=(6, 10)), dict(patch=(2, 3)), dict(frames=2), dict(attention="windowed", window=3), dict(adaln="plain"),
    dict(eps=1e-5), dict(hidden=53), dict(classes=None), dict(null_condition=False), dict(positions="sinusoidal"),
    dict(downscale_freq_shift=False), dict(classes=None, vocab=31),
])  # fmt: skip
def test_what_is_no_dit_of_diffusers_is_not_written_as_one(values):
    kept = dict(image_size=(6, 6), channels=3, patch=(2, 2), classes=5, width=28, depth=1, heads=7, positions="learned",
                downscale_freq_shift=True)  # fmt: skip
    config = DiTConfig(**kept)
    fresh = {**create("dit", config).state_dict(), "positions.table": dit.sinusoids(config).float()}
    dit.to_diffusers(fresh, config)
    with pytest.raises(UserError, match="trained away"):
        dit.to_diffusers({**fresh, "positions.table": fresh["positions.table"] + 1e-3}, config)
    config = DiTConfig(**{**kept, **values})
    with pytest.raises(UserError, match="written for diffusers"):
        dit.to_diffusers(create("dit", config).state_dict(), config)


def test_a_width_without_sinusoids_for_rows_and_columns_is_refused():
    with pytest.raises(UserError, match="a width divisible by 4, not 42"):
        dit.sinusoids(DiTConfig(width=42, heads=3))
