"""The diffusion transformer against diffusers' on random weights, and weights there and back."""

import pytest
import torch

from both_ways import both_ways, check_refused
from pencil.config import UserError
from pencil.families import create
from pencil.inference.diffusion import make_process, sample_steps, split_variance
from pencil.models.dit import DiTConfig
from pencil.weights.dit import DIT, FLOW, USUAL, describe_schedule, schedule_settings, sinusoids
from pencil.weights.maps import Source, load, read, write

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
    dict(num_attention_heads=1, attention_head_dim=4, in_channels=1, num_layers=1, sample_size=5, patch_size=5,
         num_embeds_ada_norm=1),
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
    for block in theirs.transformer_blocks[1:]:
        block.norm1.emb = theirs.transformer_blocks[0].norm1.emb
    return theirs


def rebuilt(described):
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel.from_config(described)


def ours_of(theirs):
    return load(DIT, Source(theirs.state_dict()), DIT.configure(dict(theirs.config)))


@pytest.mark.parametrize("values", KINDS)
def test_every_block_equals_diffusers_and_it_reads_what_we_write(values):
    theirs = theirs_of(values)
    both_ways(DIT, theirs, dict(theirs.config), rebuilt)


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
        plain = label.masked_fill(dropped, 0)
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


def test_a_file_we_write_is_read_by_diffusers(tmp_path):
    import json

    from diffusers import DiTTransformer2DModel
    from safetensors.torch import load_file, save_file

    theirs = theirs_of(KINDS[0])
    ours = ours_of(theirs)
    (tmp_path / "config.json").write_text(json.dumps(DIT.describe(ours.config)))
    held = {name: tensor.clone() for name, tensor in write(DIT, ours.state_dict(), ours.config)}
    save_file(held, tmp_path / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    back = DiTTransformer2DModel.from_pretrained(tmp_path, low_cpu_mem_usage=False).eval()
    picture, label = drawn(ours.config)
    with torch.no_grad():
        output = [model(picture, torch.full((5,), 37), label).sample for model in (back, theirs)]
    assert torch.equal(*output)
    back.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "diffusion_pytorch_model.safetensors")
    assert set(saved) == set(held)
    assert all(torch.equal(held[name], tensor) for name, tensor in saved.items())


def test_a_table_of_positions_in_a_file_must_be_the_one_that_is_computed():
    theirs = theirs_of(KINDS[0])
    config = DIT.configure(dict(theirs.config))
    table = theirs.pos_embed.pos_embed
    for found in (table, table.half(), table.bfloat16()):
        held = {**theirs.state_dict(), "pos_embed.pos_embed": found}
        ours = dict(read(DIT, Source(held), config))
        torch.testing.assert_close(ours["positions.table"], table[0], atol=1e-6, rtol=0)
    for other in (table + 1e-2, table[:, 1:]):
        with pytest.raises(UserError, match="pos_embed.pos_embed holds other positions"):
            dict(read(DIT, Source({**theirs.state_dict(), "pos_embed.pos_embed": other}), config))


def test_blocks_with_different_timestep_or_label_embeddings_are_refused():
    theirs = theirs_of(KINDS[1])
    config = DIT.configure(dict(theirs.config))
    for part in ("timestep_embedder.linear_2.bias", "class_embedder.embedding_table.weight"):
        held = dict(theirs.state_dict())
        name = f"transformer_blocks.2.norm1.emb.{part}"
        held[name] = held[name] + 1
        with pytest.raises(UserError, match=f"{name} is another than transformer_blocks.0.norm1.emb.{part}"):
            dict(read(DIT, Source(held), config))


def test_a_second_attention_is_refused_by_its_tensors_too():
    theirs = theirs_of(KINDS[0])
    held = {**theirs.state_dict(), "transformer_blocks.0.attn2.to_q.weight": torch.zeros(2)}
    with pytest.raises(UserError, match="also has transformer_blocks.0.attn2.to_q.weight"):
        dict(read(DIT, Source(held), DIT.configure(dict(theirs.config))))


@pytest.mark.parametrize("values, words", [
    (dict(norm_type="ada_norm_single"), "norm_type is 'ada_norm_single'"),
    (dict(activation_fn="geglu"), "activation_fn is 'geglu'"),
    (dict(cross_attention_dim=17), "cross_attention_dim is 17"),
    (dict(double_self_attention=True), "double_self_attention is True"),
    (dict(num_embeds_ada_norm=None), "num_embeds_ada_norm must have a value, not null"),
    (dict(attention_bias=False), "attention_bias is False"),
    (dict(norm_elementwise_affine=True), "norm_elementwise_affine is True"),
    (dict(out_channels=7), "has 3 input and 7 output channels"),
    (dict(interpolation_scale=2), "interpolation_scale is 2"),
    (dict(_class_name="Transformer2DModel"), "has no norm_elementwise_affine"),  # whose default is another
    (dict(_class_name="Transformer2DModel", norm_elementwise_affine=False, sample_size=128), "scales its positions"),
    (dict(_class_name="Transformer2DModel", norm_elementwise_affine=False, norm_type=None), "norm_type must have a value"),
    (dict(scheduler=dict(beta_schedule="scaled_linear")), "beta_schedule is 'scaled_linear'"),
    (dict(scheduler=dict(beta_end=0.012)), "beta_end is 0.012"),
    (dict(scheduler=dict(prediction_type="flow")), "prediction_type is 'flow'"),
    (dict(scheduler=dict(num_train_timesteps=500)), "num_train_timesteps is 500"),
    (dict(scheduler=dict(rescale_betas_zero_snr=True)), "rescale_betas_zero_snr is True"),
    (dict(scheduler=dict(trained_betas=[0.1, 0.2])), "trained_betas"),
    (dict(scheduler=dict(prediction_type=None)), "prediction_type is None"),
    (dict(scheduler=dict(_class_name="CogVideoXDDIMScheduler")), "is a CogVideoXDDIMScheduler, whose noise schedule"),
    (dict(scheduler=3), "scheduler must be a table of fields, not 3"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    DIT.configure({**FULL, "_class_name": "Transformer2DModel", "norm_elementwise_affine": False})
    check_refused(DIT, FULL, values, words)


@pytest.mark.parametrize("values, name", [
    (dict(image_size=(6, 10)), "image_size"), (dict(patch=(2, 3)), "patch"), (dict(frames=2), "frames"),
    (dict(attention="windowed", window=3), "attention"), (dict(adaln="plain"), "adaln"), (dict(eps=1e-5), "eps"),
    (dict(hidden=53), "mlp_width"), (dict(classes=None), "classes"), (dict(null_condition=False), "null_condition"),
    (dict(positions="sinusoidal"), "positions"), (dict(downscale_freq_shift=False), "downscale_freq_shift"),
    (dict(classes=None, vocab=31), "vocab"),
])  # fmt: skip
def test_what_is_no_dit_of_diffusers_is_not_written_as_one(values, name):
    kept = dict(image_size=(6, 6), channels=3, patch=(2, 2), classes=5, width=28, depth=1, heads=7, positions="learned",
                downscale_freq_shift=True)  # fmt: skip
    DIT.describe(DiTConfig(**kept))
    with pytest.raises(UserError, match=f"model.{name} is .* a DiT of diffusers"):
        DIT.describe(DiTConfig(**{**kept, **values}))


def test_positions_that_were_trained_are_not_written():
    config = DiTConfig(image_size=(6, 6), channels=3, patch=(2, 2), classes=5, width=28, depth=1, heads=7,
                       positions="learned", downscale_freq_shift=True)  # fmt: skip
    fresh = {**create("dit", config).state_dict(), "positions.table": sinusoids(config).float()}
    assert "pos_embed.proj.weight" in dict(write(DIT, fresh, config))
    with pytest.raises(UserError, match="--freeze positions.table"):
        dict(write(DIT, {**fresh, "positions.table": fresh["positions.table"] + 1e-3}, config))


def test_a_width_without_sinusoids_for_rows_and_columns_is_refused():
    with pytest.raises(UserError, match="a width divisible by 4, not 42"):
        sinusoids(DiTConfig(width=42, heads=3))


@pytest.mark.parametrize(
    "schedule, prediction", [("linear", "eps"), ("cosine", "v"), ("linear", "x0"), ("flow", "eps")]
)
def test_an_imported_model_is_sampled_as_with_its_own_scheduler(schedule, prediction):
    """Their transformer with their scheduler, and our sampler with the settings read from the scheduler's config."""
    import diffusers

    theirs = theirs_of(KINDS[1])
    named = describe_schedule(DiTConfig(noise_schedule=schedule, prediction=prediction), latents=True)
    config = DIT.configure({**theirs.config, "scheduler": named})
    assert (config.noise_schedule, config.prediction) == (schedule, prediction)
    ours = load(DIT, Source(theirs.state_dict()), config)
    scheduler = getattr(diffusers, named["_class_name"]).from_config(named)
    scheduler.set_timesteps(5, **({"sigmas": [1, 0.8, 0.6, 0.4, 0.2]} if schedule == "flow" else {}))
    noise, label = drawn(config, 3)
    x, process = noise, make_process(schedule, config.prediction, None)
    with torch.no_grad():
        for t in scheduler.timesteps:
            output = theirs(x, t.reshape(1).expand(3), label).sample
            x = scheduler.step(split_variance(output, 4)[0], t, x).prev_sample
        found = noise
        if schedule == "flow":
            found = list(sample_steps(process, lambda x, t: ours(x, t, label), noise, 5))[-1]
        else:
            for t in (800, 600, 400, 200, 0):  # every step from the timestep to the one that they take before it
                output = ours(found, torch.full((3,), t), label)
                found = process.ddim(found, split_variance(output, 4)[0], t, t - 200)
    assert scheduler.timesteps[0] == (1000 if schedule == "flow" else 800)
    # their schedule is in float32, and so are the sines of their timesteps
    assert (found - x).abs().max() <= 1e-4 * x.abs().max()


def test_a_scheduler_without_fields_is_the_published_one():
    assert schedule_settings(None) == schedule_settings({}) == dict(noise_schedule="linear", prediction="eps")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_a_scheduler_leaves_out_is_the_default_of_its_class(every):
    """Classes of diffusers without fields: our settings are their defaults, or they are refused by name."""
    import inspect

    import diffusers

    some = ["DDIMScheduler", "DDPMScheduler", "HeunDiscreteScheduler", "LCMScheduler", FLOW]
    taken = set()
    for name in [one for one in dir(diffusers) if one.endswith("Scheduler")] if every else some:
        parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
        usual = {key: one.default for key, one in parameters.items()}
        try:
            found = schedule_settings({"_class_name": name})
        except UserError:
            continue
        taken.add(name)
        if found == dict(noise_schedule="flow"):
            assert "beta_schedule" not in usual
            continue
        assert found == dict(noise_schedule="linear", prediction="eps")
        for key, value in dict(num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02, beta_schedule="linear",
                               prediction_type="epsilon", trained_betas=None).items():  # fmt: skip
            assert usual[key] == value, (name, key)
    assert taken == USUAL | {FLOW} if every else taken == {*some[:2], FLOW}
    given = dict(_class_name="HeunDiscreteScheduler", beta_schedule="linear", prediction_type="v_prediction")
    assert schedule_settings(given | dict(beta_start=1e-4, beta_end=0.02))["prediction"] == "v"
    with pytest.raises(UserError, match="HeunDiscreteScheduler without beta_end"):
        schedule_settings(given | dict(beta_start=1e-4))
    with pytest.raises(UserError, match="use_flow_sigmas is True"):
        schedule_settings(dict(_class_name="UniPCMultistepScheduler", use_flow_sigmas=True))
