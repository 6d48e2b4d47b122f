"""A pipeline of diffusers (transformer, scheduler, autoencoder, names of classes), and pictures of an imported model."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import pencil
from conftest import call
from pencil.api.loading import SETTINGS_VERSION
from pencil.config import UserError
from pencil.families.dit import imported
from pencil.runs.run import Run
from pencil.weights.checkpoint_files import open_checkpoint
from pencil.weights.dit import DIT
from pencil.weights.maps import load

diffusers = pytest.importorskip("diffusers", reason="diffusers (an extra) is not installed")
SIZES = dict(num_attention_heads=3, attention_head_dim=4, in_channels=4, out_channels=8, num_layers=1, sample_size=6,
             patch_size=3, num_embeds_ada_norm=3)  # fmt: skip
NAMES = {"0": "tench", "1": "goldfish", "2": "great white shark"}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The folder of one with random weights."""
    folder = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(3)
    transformer = diffusers.DiTTransformer2DModel(**SIZES)
    with torch.no_grad():
        transformer.proj_out_2.weight.normal_(std=0.1)
    transformer.save_pretrained(folder / "transformer")
    diffusers.DDIMScheduler(clip_sample=False).save_pretrained(folder / "scheduler")
    vae = diffusers.AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, norm_num_groups=3,
        block_out_channels=[6, 9], latent_channels=4, layers_per_block=1, scaling_factor=0.37,
    )  # fmt: skip
    vae.save_pretrained(folder / "vae")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "DiTPipeline", "id2label": NAMES}))
    return folder


def as_run(pipeline, path, **facts):
    with open_checkpoint(pipeline) as found:
        config = DIT.configure(found.config, found.source)
        tables = imported(found, config)
        model = load(DIT, found.source, config)
        facts = {"family": "dit", "preset": "imported", "settings": SETTINGS_VERSION, **tables["run"], **facts}
    facts = {name: value for name, value in facts.items() if value is not None}
    run = Run.create(path, {"run": facts, "model": config, "train": {}}, None)
    run.write_weights(model, {"family": "dit", "step": 0})
    return run


def test_it_is_sampled_as_by_the_pipeline(pipeline, tmp_path):
    run = as_run(pipeline, tmp_path / "dit")
    assert run.config["run"]["classes"] == list(NAMES.values())
    assert run.config["model"]["noise_schedule"] == "linear"
    found = pencil.load(run.path).predict("great white shark", steps=2, guidance=2)
    # the same with the pipeline's own parts, from the noise of that seed
    noise = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    transformer = diffusers.DiTTransformer2DModel.from_pretrained(pipeline / "transformer").eval()
    vae = diffusers.AutoencoderKL.from_pretrained(pipeline / "vae")
    alphas, x = diffusers.DDIMScheduler.from_pretrained(pipeline / "scheduler").alphas_cumprod, noise
    with torch.no_grad():
        for t, then in ((999, alphas[0]), (0, torch.tensor(1.0))):
            both = transformer(torch.cat((x, x)), torch.full((2,), t), torch.tensor([2, 3])).sample[:, :4]
            eps = both[1:] + 2 * (both[:1] - both[1:])
            image = (x - (1 - alphas[t]).sqrt() * eps) / alphas[t].sqrt()
            x = then.sqrt() * image + (1 - then).sqrt() * eps
        expected = (vae.decode(x / 0.37).sample[0].clamp(-1, 1) + 1) * 127.5
    shown = np.asarray(found.convert("RGB")).transpose(2, 0, 1).astype(float)
    assert shown.shape == expected.shape == (3, 12, 12)
    assert np.abs(shown - expected.numpy()).max() <= 1


def test_without_its_autoencoder_it_says_so(pipeline, tmp_path):
    run = as_run(pipeline, tmp_path / "dit", vae=None, vae_hash=None)
    told = call("sample", run.path, "--label", "tench", "--steps", "1", code=2).stderr
    assert "makes latents of 4 channels and has no autoencoder" in told
    assert "--vae" in told
    call("sample", run.path, "--label", "tench", "--steps", "1", "--out", tmp_path / "a.png", "--vae", pipeline)
    assert Image.open(tmp_path / "a.png").getbbox()
    other = diffusers.AutoencoderKL(norm_num_groups=3, block_out_channels=[6], latent_channels=5)
    other.save_pretrained(tmp_path / "other")
    told = call("sample", run.path, "--label", "tench", "--vae", tmp_path / "other", code=2).stderr
    assert "takes latents of 5 channels" in told
    own = as_run(pipeline, tmp_path / "own")
    assert "leave --vae out" in call("sample", own.path, "--label", "tench", "--vae", pipeline, code=2).stderr


def test_an_autoencoder_of_other_latents_is_refused(pipeline, tmp_path):
    import shutil

    shutil.copytree(pipeline, tmp_path / "pipe")
    held = load_file(pipeline / "transformer" / "diffusion_pytorch_model.safetensors")
    save_file(held, tmp_path / "pipe" / "transformer" / "diffusion_pytorch_model.safetensors")
    diffusers.AutoencoderKL(norm_num_groups=3, block_out_channels=[6], latent_channels=5).save_pretrained(
        tmp_path / "pipe" / "vae"
    )
    with open_checkpoint(tmp_path / "pipe") as found, pytest.raises(UserError, match="latents of 5 channels"):
        imported(found, DIT.configure(found.config, found.source))


@pytest.mark.parametrize(
    "names", [{"0": "a", "1": "b"}, {"0": "a", "1": "b", "3": "c"}, {"0": 1, "1": 2, "2": 3}, [], None]
)
def test_names_that_are_not_one_for_each_class_are_left_out(pipeline, tmp_path, names):
    import shutil

    shutil.copytree(pipeline, tmp_path / "pipe", ignore=shutil.ignore_patterns("vae"))
    (tmp_path / "pipe" / "model_index.json").write_text(json.dumps({"id2label": names}))
    with open_checkpoint(tmp_path / "pipe") as found:
        assert imported(found, DIT.configure(found.config, found.source)) == {"run": {}}


def test_another_schedule_is_refused_by_its_field(pipeline, tmp_path):
    import shutil

    shutil.copytree(pipeline, tmp_path / "pipe", ignore=shutil.ignore_patterns("vae"))
    diffusers.DDIMScheduler(beta_schedule="scaled_linear").save_pretrained(tmp_path / "pipe" / "scheduler")
    with (
        open_checkpoint(tmp_path / "pipe") as found,
        pytest.raises(UserError, match="beta_schedule is 'scaled_linear'"),
    ):
        DIT.configure(found.config, found.source)
