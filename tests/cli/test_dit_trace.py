"""why, trace and show of a diffusion transformer, at one denoising step."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import spreadsheet
from commands import is_png
from pencil.api.loading import load
from pencil.data.tokenizers.tokenizer import learn
from pencil.families import create
from pencil.inference.diffusion import GaussianDiffusion, classifier_free_guidance, linear, sample_steps
from pencil.models.dit import DiTConfig
from pencil.runs.run import Run
from pencil.tracing.trace import read
from pencil.train.settings import TrainConfig
from pencil.train.tasks.diffusion import normal
from traced import stirred, unchecked

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

SHARED = dict(width=12, depth=2, heads=3, hidden=7, positions="learned")
FILM = dict(channels=2, frames=10, patch_frames=2, image_size=(6, 14), patch=(2, 7), classes=11)
RUNS = {
    "picture": dict(image_size=(6, 10), patch=(2, 5), classes=11),
    "frames": FILM | dict(attention="factored"),
    "windows": dict(frames=4, image_size=(6, 30), patch=(3, 5), classes=11, attention="windowed", window=2),
    "whole": FILM,
    "steps": dict(image_size=(6, 10), patch=(2, 5), classes=11, noise_schedule="linear"),
    "latents": dict(image_size=(6, 10), channels=2, patch=(2, 5), classes=11, noise_schedule="linear"),
    "text": dict(
        image_size=(6, 10), patch=(2, 5), context=19, text_encoder_depth=1, noise_schedule="cosine", prediction="v"
    ),
}
AT = ("--step", 3, "--steps", 5, "--seed", 7)  # of a flow: two steps of a fifth were made, and the timestep is 600
TEXT = "a one"


@pytest.fixture(scope="module", autouse=True)
def quickly():
    with unchecked():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a small dit with weights that do something: read it, do not write into it."""
    folder = tmp_path_factory.mktemp("runs")

    def made(name):
        if not (folder / name).exists():
            tokenizer = learn("char", ["a one above a two"], 29, ended=True) if name == "text" else None
            sizes = SHARED | RUNS[name] | ({"vocab": tokenizer.vocab} if tokenizer else {})
            model = create("dit", DiTConfig(**sizes))
            stirred(model, 0.2)
            facts = {"family": "dit"} | ({} if tokenizer else {"classes": CLASSES})
            facts |= {"vae": "elsewhere"} if name == "latents" else {}
            held = Run.create(folder / name, {"run": facts, "model": model.config, "train": TrainConfig()}, tokenizer)
            held.write_weights(model, {})
        return folder / name

    return made


@pytest.fixture
def traced(type_in, run, tmp_path):
    def made(name, *words):
        type_in("trace", run(name), *words, "--out", "a.trace.safetensors")
        return read(tmp_path / "a.trace.safetensors")

    return made


def near(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def sampled(model, label, made, steps, seed):
    """x after so many of a flow's steps, by hand."""
    generator = torch.Generator().manual_seed(seed * 1_000_003)
    x = torch.randn((1, model.config.channels, *model.config.sides), generator=generator)
    for k in range(made):
        x = x - model(x, torch.tensor([1000 * (1 - k / steps)]), torch.tensor([label])) / steps
    return x


# what is traced


@pytest.mark.parametrize("name", ["picture", "frames", "windows", "whole"])
def test_the_traced_input_is_that_of_the_sampling_step(run, traced, name):
    found, model = traced(name, "--label", "seven", *AT), load(run(name)).model
    x = sampled(model, 7, 2, 5, 7)
    near(found["picture"].value, x)
    assert found["timestep"].value == pytest.approx([600])
    assert found["given"].value == [7]
    with torch.no_grad():
        near(found["output"].value, model(x, torch.tensor([600.0]), torch.tensor([7])))
    assert np.ptp(found["output"].value) > 0.01


@torch.no_grad()
@pytest.mark.parametrize("name, clip", [("steps", 1.0), ("latents", None)])
def test_images_are_clipped_while_sampling_and_latents_are_not(run, traced, name, clip):
    found, model = traced(name, "--label", "seven", "--step", 2, "--steps", 3), load(run(name)).model
    noise = sampled(model, 7, 0, 3, 0)
    expected, other = (
        next(
            sample_steps(
                GaussianDiffusion(linear(), "eps", c), classifier_free_guidance(model, torch.tensor([7]), 1), noise, 3
            )
        )
        for c in (clip, None if clip else 1.0)
    )
    near(found["picture"].value, expected)
    assert (other - expected).abs().max() > 0.1


def test_the_last_step_ends_at_the_image_that_sample_writes(type_in, run, traced, tmp_path):
    found = traced("picture", "--label", "two", "--step", 5, "--steps", 5, "--seed", 3)
    made = found["picture"].value - found["output"].value / 5
    expected = np.round((made[0, 0].clip(-1, 1) + 1) * 127.5)
    type_in("sample", run("picture"), "--label", "two", "--guidance", 1, "--steps", 5, "--seed", 3, "--out", "two.png")
    with Image.open(tmp_path / "two.png") as image:
        drawn = np.asarray(image.convert("L").resize((10, 6), Image.Resampling.NEAREST), dtype=float)
    assert np.abs(drawn - expected).max() <= 1  # a byte may round either way
    assert np.ptp(drawn) > 50


def test_the_middle_step_is_traced_by_default(type_in, run):
    for words, timestep in (((), 520), (("--steps", 5), 600), (("--steps", 1), 1000)):
        assert type_in("show", run("picture"), "timestep[0]", "--label", "seven", *words).out.strip() == str(timestep)


@torch.no_grad()
def test_guidance_traces_the_conditional_and_the_unconditional_pass(run, traced):
    found, model = (
        traced("picture", "--label", "seven", "--guidance", 3, "--step", 2, "--steps", 2),
        load(run("picture")).model,
    )
    noise, label, dropped = sampled(model, 7, 0, 2, 0), torch.tensor([7]), torch.tensor([True])
    begun = torch.tensor([1000.0])
    conditional, plain = model(noise, begun, label), model(noise, begun, label, drop_condition=dropped)
    x = noise - (plain + 3 * (conditional - plain)) / 2
    near(found["picture"].value, torch.cat((x, x)))
    timestep = torch.tensor([500.0])
    near(
        found["output"].value, torch.cat((model(x, timestep, label), model(x, timestep, label, drop_condition=dropped)))
    )
    assert found.labels["B"] == ["seven", "unconditional"]


@torch.no_grad()
def test_a_text_condition_is_traced_with_its_words(type_in, run, traced):
    found, loaded = traced("text", "--prompt", TEXT, "--step", 2, "--steps", 3), load(run("text"))
    ids = [loaded.tokenizer.end, *loaded.tokenizer.encode(TEXT).tolist()]
    x, timestep = (torch.tensor(found[one].value) for one in ("picture", "timestep"))
    near(found["output"].value, loaded.model(x, timestep, torch.tensor([ids])))  # without the padding
    words = found.labels["s"]
    assert words[0] == "begin"
    assert "".join(words[1 : len(ids)]).replace("␣", " ") == TEXT
    assert {*words[len(ids) :]} == {"(padding)"}
    out = type_in("why", run("text"), "text_encoder.blocks.0.attn.pattern[0,2,1,2]", "--prompt", TEXT, "--steps", 1).out
    assert f"s {words[1]!r}  s {words[2]!r}" in out
    assert "✓" in out


# receipts


def test_every_named_tensor_has_receipts_that_hold(type_in, run, traced):
    random = np.random.default_rng(0)
    for name, words in (("frames", ("--label", "three")), ("text", ("--prompt", TEXT, "--guidance", 2))):
        found = traced(name, *words, "--steps", 2)
        for tensor in found.names:
            at = random.integers(0, found[tensor].shape)
            assert found[f"{tensor}[{','.join(map(str, at))}]"].why().agrees


def test_an_output_is_traced_back_to_the_noise(type_in, run, traced):
    found = traced("picture", "--label", "seven", *AT)
    out = type_in("why", run("picture"), "output[0,0,5,8]", "--label", "seven", *AT).out
    assert "output[0,0,5,8] = patches_out[0,5,8]" in out  # of 3×2 patches of 2×5 pixels
    shown = type_in("why", run("picture"), "patches_out[0,5,8]", "--label", "seven", *AT, "--digits", 7).out
    assert "N 'patch 3,2'" in shown
    by_hand = found["norm[0,5]"].value @ found["head.weight[8]"].value + float(found["head.bias[8]"])
    assert float(re.search(r"recorded (\S+) ✓", shown)[1].replace("−", "-")) == pytest.approx(by_hand, rel=1e-5)
    assert (
        "(given to the model)"
        in type_in("why", run("picture"), "picture[0,0,5,8]", "--label", "seven", "--steps", 1).out
    )


def test_an_edit_of_the_modulation(type_in, run):
    words = (
        "--label",
        "seven",
        "--steps",
        1,
        "--edit",
        "blocks.0.modulation=0",
    )  # the gates closed: the block adds nothing
    out = type_in("why", run("picture"), "blocks.0.post[0,3,5]", *words).out
    assert re.search(r"= (\S+) \+ 0·\S+ = \1$", out, re.M)


# names


def patch_of(found, at):
    """The index of the patch at this place, which its name counts from 1."""
    return found.labels["T"].index("patch " + ",".join(str(i + 1) for i in at))


def test_a_patch_of_a_video_is_labelled_by_its_position(traced):
    found = traced("frames", "--label", "three", "--steps", 2)
    patch = found["patches.flat"].value[0, patch_of(found, (3, 2, 1))]
    there = found["picture"].value[0, :, 6:8, 4:6, 7:14]
    assert sorted(patch.tolist()) == sorted(there.reshape(-1).tolist())


def normed(x, found, block, row):
    shift, scale = found[f"blocks.{block}.modulation"].value[row].reshape(6, -1)[:2]
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * (1 + scale) + shift


def test_groups_are_labelled_by_their_patches(traced):
    """A block's norm is of the patch that the labels of its group and place name."""
    found = traced("frames", "--label", "three", "--steps", 2)
    frame, place = found.labels["B·w"].index("frames 7–8"), found.labels["n"].index("patch 3,2")
    x = found["input"].value[0, patch_of(found, (3, 2, 1))]
    near(found["blocks.0.attn_norm"].value[frame, place], normed(x, found, 0, frame))
    time, at = found.labels["w"].index("frames 7–8"), found.labels["B·n"].index("patch 3,2")
    x = found["blocks.0.post"].value[frame, place]
    near(found["blocks.1.attn_norm"].value[at, time], normed(x, found, 1, at))

    found = traced("windows", "--label", "three", "--guidance", 2, "--steps", 2)
    window, place = found.labels["B·w"].index("unconditional, window 2,1,3"), found.labels["n"].index("place 1,2,2")
    x = found["input"].value[1, patch_of(found, (2, 1, 5))]
    near(found["blocks.0.attn_norm"].value[window, place], normed(x, found, 0, window))


# what is written


def test_trace_writes_the_requested_files(type_in, run, tmp_path):
    type_in("trace", run("picture"), "--label", "seven", *AT, "--html", "a.html", "--xlsx", "a.xlsx", "--png", "a.png",
            "--query", "patch 2,2")  # fmt: skip
    assert "<title>picture: seven, step 3 of 5, seed 7</title>" in (tmp_path / "a.html").read_text()
    assert is_png(tmp_path / "a.png")
    sheets = spreadsheet.read(tmp_path / "a.xlsx")
    at = {name: spreadsheet.located(sheets)[name] for name in ("picture", "output")}
    x, output = (
        [[sheets[sheet].values[row + i, column + j] for j in range(10)] for i in range(6)]
        for sheet, row, column in at.values()
    )
    model = load(run("picture")).model.double()
    with torch.no_grad():
        expected = model(torch.tensor([[x]], dtype=torch.float64), torch.tensor([600.0]), torch.tensor([7]))
    np.testing.assert_allclose(output, expected[0, 0], atol=1e-12)


def test_heat_maps_of_a_video(type_in, fails, run, tmp_path):
    type_in("trace", run("frames"), "--label", "three", "--steps", 1, "--png", "a.png")
    type_in("trace", run("whole"), "--label", "three", "--steps", 1, "--png", "b.png", "--query", "patch 4,3,2")
    assert is_png(tmp_path / "a.png")
    assert is_png(tmp_path / "b.png")
    shown = fails("trace", run("frames"), "--label", "three", "--steps", 1, "--png", "a.png", "--query", "frames 1–2")
    assert "blocks.1.attn.pattern is not attention to the whole image: leave --query out" in shown


# a training step


@pytest.mark.parametrize("name", ["picture", "steps"])
def test_a_training_step_on_an_image(type_in, run, tmp_path, name):
    """A flow, and discrete steps whose model predicts the noise: the loss and its gradients are those worked out."""
    pixels = np.random.default_rng(5).integers(0, 256, (6, 10), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    type_in("trace", run(name), "--update", "--label", "three", "--target", "p.png", "--time", 0.4, "--seed", 7,
            "--out", "s.trace.safetensors")  # fmt: skip
    step = read(tmp_path / "s.trace.safetensors")
    x = torch.tensor(pixels / 127.5 - 1, dtype=torch.float32)[None, None]
    noise = normal(torch.tensor([7]), (1, 6, 10))
    model = load(run(name)).model
    if name == "picture":
        noised, time, target = 0.6 * x + 0.4 * noise, 400.0, noise - x
    else:
        betas = np.linspace(1e-4, 0.02, 1000)[:401]  # 0.4 of the last step, 999, is step 400
        left = float(np.prod(1 - betas))
        noised, time, target = left**0.5 * x + (1 - left) ** 0.5 * noise, 400, noise
    loss = (model(noised, torch.tensor([time]), torch.tensor([3])) - target).square().mean()
    loss.backward()
    near(step["loss"].value, loss.detach())
    near(step["grad:blocks.0.attn.out.weight"].value, model.blocks[0].attn.out.weight.grad)


# what fails


@pytest.mark.parametrize("words, sentence", [
    ((), "--label is missing: "),
    (("--label", "eleven"), "was not trained on a label eleven; did you mean seven?"),
    (("--prompt", "seven"), "is conditioned on labels: use --label, not --prompt"),
    (("--label", "seven", "--prompt", "seven"), "is conditioned on labels: use --label, not --prompt"),
    (("--label", "seven", "--input", "a.png"), "is a dit: it takes no --input"),
    (("--label", "seven", "--text", "seven"), "is a dit: it takes no --text"),
    (("--label", "seven", "--step", 0), "--step must be from 1 to 50, not 0"),
    (("--label", "seven", "--step", 6, "--steps", 5), "--step must be from 1 to 5, not 6"),
    (("--label", "seven", "--steps", 0), "--steps must be at least 1, not 0"),
    (("--label", "seven", "--step", "last"), "last"),
    (("--label", "seven", "--time", 0.5), "give one, or leave it out"),
    (("--label", "seven", "--target", "a.png", "--time", 1.5), "--time must be from 0 to 1, not 1.5"),
    (("--label", "seven", "--target", "a.png", "--step", 5), "--step is of sampling"),
    (("--label", "seven", "--seed", -1), "--seed must be from 0 to"),
    (("--label", "seven", "--seed", 10**13), "--seed must be from 0 to"),
])  # fmt: skip
def test_trace_options_that_are_refused(fails, run, words, sentence):
    assert sentence in fails("show", run("picture"), *words)


def test_every_verb_refuses(fails, run):
    for words in (("trace", run("picture")), ("why", run("picture"), "timestep[0]")):
        assert "--step must be from 1 to 5, not 6" in fails(*words, "--label", "seven", "--step", 6, "--steps", 5)


def test_conditions_that_a_text_model_refuses(fails, run):
    assert "is conditioned on texts: use --prompt, not --label" in fails("show", run("text"), "--label", "seven")
    assert "tokens with its first token, and the context is 19" in fails("show", run("text"), "--prompt", "a one " * 60)
    assert "--steps 1001 is more than the 1000 noise steps the model was trained with" in fails(
        "show", run("text"), "--prompt", TEXT, "--steps", 1001, "--step", 1
    )


def test_an_example_takes_no_step(fails):
    shown = fails("show", "example:vit-4x4", "--label", "seven", "--step", 3)
    assert "example:vit-4x4 has its own input: leave --label out" in shown
