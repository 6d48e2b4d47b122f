"""Diffusion: the training task, sampling, and the scores of samples."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from albums import album, cut_short, picture
from pencil.api.run_setup import train_config
from pencil.config import UserError
from pencil.families import family
from pencil.inference.autoencoder import to_bytes
from pencil.inference.diffusion import RectifiedFlow
from pencil.inference.image_sampling import sample_images
from pencil.train.task import Request
from pencil.train.tasks import diffusion
from pencil.train.tasks.diffusion import Diffusion, annotation_kind
from pencil.train.tasks.image_classification import ImageClassification

TINY = dict(width=16, depth=1, heads=2)


def prepare(data="digits", model=None, **train):
    config = train_config(family("dit"), "nano", {"batch": 7, **train})
    return Diffusion.prepare(Request(family("dit"), data, "nano", {**TINY, **(model or {})}, train), config)


def test_a_batch_is_a_function_of_seed_and_step():
    one, other = prepare().task, prepare().task
    for a, b in zip(one.batch(5), other.batch(5), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.batch(5)[0], one.batch(6)[0])


@pytest.mark.parametrize(
    "noise_schedule, prediction", [("flow", "eps"), ("linear", "eps"), ("cosine", "v"), ("linear", "x0")]
)
def test_the_loss_is_the_mean_squared_error_of_the_prediction(noise_schedule, prediction):
    task = prepare(model=dict(noise_schedule=noise_schedule, prediction=prediction)).task
    model = task.build()  # a fresh one predicts zeros
    loss = task.loss(model, task.batch(0))
    x = task.batch(0)[0].float() / 127.5 - 1
    t, eps, _ = task.noise(task.batch(0)[-1], x)
    assert loss.item() == pytest.approx(float((task.process.target(x, eps, t) ** 2).mean()), rel=1e-6)


@pytest.mark.parametrize("noise_schedule, prediction", [("linear", "eps"), ("cosine", "v")])
def test_with_a_learned_variance_the_loss_has_a_share_of_the_bound(noise_schedule, prediction):
    task = prepare(model=dict(noise_schedule=noise_schedule, prediction=prediction, learned_variance=True)).task
    model = task.build()
    loss = task.loss(model, task.batch(0))
    x = task.batch(0)[0].float() / 127.5 - 1
    t, eps, _ = task.noise(task.batch(0)[-1], x)
    zeros = torch.zeros_like(x)
    bound = task.process.variational_bound(x, task.process.add_noise(x, eps, t), zeros, zeros, t).mean()
    expected = (task.process.target(x, eps, t) ** 2).mean() + bound  # 0.001 of what a thousand steps add
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # the prediction is trained by the mean squared error alone, the variance by the bound
    loss.backward()
    rows = model.head.bias.grad.reshape(2, -1)
    assert (rows != 0).any(1).all()
    plain = prepare(model=dict(noise_schedule=noise_schedule, prediction=prediction)).task
    bare = plain.build()
    plain.loss(bare, plain.batch(0)).backward()
    torch.testing.assert_close(bare.head.bias.grad, rows[0], atol=1e-6, rtol=1e-5)


def test_evaluation_uses_the_same_noise_and_leaves_the_random_state_alone():
    task = prepare().task
    model = task.build()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert task.evaluate(model, 2) == task.evaluate(model, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_sample_does_not_depend_on_the_rest_of_the_batch():
    task = prepare().task
    model = task.build()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    many = sample_images(model, RectifiedFlow(), task.condition([3, 1, 4]), 3, guidance=2.0, steps=3)[-1]
    few = sample_images(model, RectifiedFlow(), task.condition([3, 1]), 2, guidance=2.0, steps=3)[-1]
    assert (many[:2] == few).all()
    assert not (many[0] == many[1]).all()
    steps = sample_images(model, RectifiedFlow(), task.condition([3]), 1, steps=5, show_steps=99)
    assert len(steps) == 6
    assert steps[0].dtype == np.uint8


def test_the_noise_of_a_step_is_fresh_and_a_row_keeps_its_own():
    """At every seed, 0 too: the noise of the first step is not that which the row began with."""
    task = prepare(model=dict(noise_schedule="linear")).task
    model, process = task.build(), task.process
    begun, added = [], []

    class Watched(type(process)):
        def ddpm(self, x, predicted, t, previous, noise, variance=None):
            begun.append(x)
            added.append(noise)
            return super().ddpm(x, predicted, t, previous, noise, variance)

    watched = Watched(process.alphas_cumprod, process.prediction, process.clip)
    for count in (1, 3):
        sample_images(model, watched, task.condition([3, 1, 4][:count]), count, steps=5, sampler="ddpm", seed=0)
    assert not torch.isclose(begun[0], added[0]).any()
    assert all(torch.equal(alone[0], among[0]) for alone, among in zip(added[:5], added[5:], strict=True))
    drawn = torch.cat((begun[5], *added[5:])).flatten(1)
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.7  # noise of its own for every row and step


def test_some_steps_are_decoded_together_at_the_end():
    task, calls = prepare().task, []

    def decode(x):
        calls.append(len(x))
        return to_bytes(x)

    model = task.build()
    made = sample_images(model, task.process, task.condition([3, 1]), 2, steps=29, show_steps=7, decode=decode)
    assert [len(part) for part in made] == [1] * 6 + [2]
    assert calls == [6, 2]
    every = sample_images(model, task.process, task.condition([3, 1]), 2, steps=29, show_steps=99)
    assert len(every) == 30
    assert all((made[i] == every[at]).all() for i, at in enumerate((0, 4, 9, 14, 19, 24, 29)))
    calls.clear()
    sample_images(model, task.process, task.condition([3]), 1, steps=29, decode=decode)
    assert calls == [1]


def test_without_the_null_condition_guidance_is_refused():
    task = prepare(model=dict(null_condition=False)).task
    assert task.condition_dropout == 0
    with pytest.raises(UserError, match="without the null condition, so classifier-free guidance is not possible"):
        sample_images(task.build(), task.process, task.condition([1]), 1, guidance=2.0)


def test_the_annotations_follow_from_the_data(tmp_path):
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "a", "label": "b"}\n')
    assert [annotation_kind(name) for name in ("digits", "scenes", "moving-digits", str(tmp_path))] == [
        "label", "caption", "video", "caption",
    ]  # fmt: skip
    task = prepare("scenes", steps=1).task
    assert task.config.vocab == task.tokenizer.vocab
    assert len(task.batch(0)) == 4
    assert torch.isfinite(task.loss(task.build(), task.batch(0)))


def test_a_video_is_a_grid_of_frames_rows_and_columns():
    task = prepare("moving-digits", model=dict(attention="factored", depth=2)).task
    assert task.config.grid == (4, 4, 4)
    assert torch.isfinite(task.loss(task.build(), task.batch(0)))
    made = task.sample(task.build(), [1, 2], steps=2)
    assert made.shape == (2, 1, 8, 16, 16)


def test_the_frechet_distance_is_that_of_gaussians():
    rng = np.random.default_rng(7)
    a = rng.normal(size=(400_003, 3)) * [1, 2, 0.5]
    b = rng.normal(size=(400_003, 3)) * [1, 1, 2] + [3, 0, -1]
    expected = 9 + 1 + (1 - 1) ** 2 + (2 - 1) ** 2 + (0.5 - 2) ** 2
    assert diffusion.frechet(a, b) == pytest.approx(expected, rel=0.02)
    assert diffusion.frechet(a, a) == pytest.approx(0, abs=1e-6)


def test_even_motion_has_no_jerk_and_a_jump_has_some():
    video = np.zeros((1, 1, 5, 11, 13), np.uint8)
    for frame in range(5):
        video[0, 0, frame, frame, 2 * frame] = 255
    assert diffusion.jerk(video) == pytest.approx(0, abs=1e-3)
    video[0, 0, 2] = 0
    video[0, 0, 2, 5, 4] = 255  # three rows off: changes of −3… along one of two axes in three places
    assert diffusion.jerk(video) == pytest.approx((3 + 6 + 3) / 6, rel=1e-3)


@pytest.mark.parametrize("name", ["mixup", "word_dropout", "label_smoothing"])
def test_settings_of_other_families_are_refused(name):
    with pytest.raises(UserError, match=f"train.{name} has no effect on a dit: leave it out"):
        train_config(family("dit"), "nano", {name: 0.5})


# --- the size of images in files


def folders(folder, sizes, counts=(5, 3)):
    """Two classes; image i has the i-th size (height, width), or the first."""
    for k, (name, count) in enumerate(zip(("cat", "dog"), counts, strict=True)):
        for i in range(count):
            height, width = sizes[i] if i < len(sizes) else sizes[0]
            picture(folder / name / f"{i}.png", seed=10 * k + i, size=(width, height))
    return str(folder)


def test_images_of_one_size_give_the_size_and_a_patch_that_divides_it(tmp_path):
    config = prepare(folders(tmp_path / "photos", [(35, 33)])).model
    assert (config.image_size, config.patch, config.channels) == ((35, 33), (5, 3), 3)
    given = dict(image_size="34x17", patch="2x17")
    config = prepare(folders(tmp_path / "photos", [(35, 33)]), model=given).model
    assert (config.image_size, config.patch) == ((34, 17), (2, 17))
    config = prepare(folders(tmp_path / "photos", [(35, 33)]), model=dict(image_size="26")).model
    assert (config.image_size, config.patch) == ((26, 26), (2, 2))
    config = prepare(str(album(tmp_path / "album"))).model
    assert (config.image_size, config.patch) == ((11, 13), (1, 1))


def test_images_of_different_sizes_are_refused_unless_a_size_is_given(tmp_path):
    mixed = folders(tmp_path / "photos", [(37, 41), (53, 29)])
    with pytest.raises(UserError) as refused:
        prepare(mixed)
    assert str(refused.value) == (
        f"the pictures in {mixed} are of different sizes (0.png has 37×41 and 1.png 53×29, height first): "
        "give the size to generate at, such as --size 64 or --size 64x96"
    )
    task = prepare(mixed, model=dict(image_size="22x26")).task
    assert task.batch(0)[0].shape == (7, 3, 22, 26)
    album(tmp_path / "album")
    picture(tmp_path / "album" / "p01.png", size=(29, 53))
    with pytest.raises(UserError, match=r"different sizes .*(11×13 .*53×29|53×29 .*11×13)"):
        prepare(str(tmp_path / "album"))


def test_one_held_out_image_of_another_size_is_found(tmp_path):
    folders(tmp_path / "photos" / "train", [(35, 33)])
    folders(tmp_path / "photos" / "test", [(35, 33)])
    picture(tmp_path / "photos" / "test" / "dog" / "2.png", size=(31, 35))
    with pytest.raises(UserError, match="0.png has 35×33 and 2.png 35×31"):
        prepare(str(tmp_path / "photos"))


def test_a_broken_image_does_not_count_for_the_size(tmp_path):
    data = folders(tmp_path / "photos", [(35, 33)])
    cut_short(tmp_path / "photos" / "cat" / "00.jpg")  # the first, and its header is intact
    (tmp_path / "photos" / "dog" / "words.png").write_text("not a picture")
    (tmp_path / "photos" / "dog" / "empty.png").touch()
    task = prepare(data).task
    assert task.config.image_size == (35, 33)
    assert task.batch(0)[0].shape == (7, 3, 35, 33)


def test_exif_orientation_is_applied_to_the_size(tmp_path):
    data = folders(tmp_path / "photos", [(35, 33)])
    turned = Image.Exif()
    turned[0x0112] = 6
    for kind in ("jpg", "png", "webp", "tif"):
        picture(tmp_path / "photos" / "dog" / f"turned.{kind}", size=(35, 33), exif=turned)
    assert prepare(data).model.image_size == (35, 33)


def test_images_no_patch_divides_are_refused_and_another_size_is_suggested(tmp_path):
    with pytest.raises(UserError, match="at most 16 pixels .* pictures of 127×131 into 1,024 .* --size 128x128"):
        prepare(folders(tmp_path / "photos", [(127, 131)]))


def test_only_headers_are_read_where_all_sizes_agree(tmp_path, monkeypatch):
    data = folders(tmp_path / "photos", [(35, 33)])
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
    assert prepare(data).model.image_size == (35, 33)


def test_sizes_in_a_table_of_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the datasets package (an extra) is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def png(width, height):
        out = io.BytesIO()
        Image.new("RGB", (width, height)).save(out, "PNG")
        return {"bytes": out.getvalue(), "path": None}

    for name, last in (("even", (33, 35)), ("mixed", (29, 53))):
        rows = [png(33, 35)] * 6 + [png(*last)]
        kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            held = datasets.Dataset.from_dict({"image": rows, "label": [0, 1] * 3 + [1]}, features=kinds)
            held.to_parquet(str(tmp_path / name / f"{split}-0.parquet"))
    assert prepare(f"hf:{tmp_path / 'even'}").model.image_size == (35, 33)
    with pytest.raises(UserError, match="train row 0 has 35×33 and train row 6 53×29"):
        prepare(f"hf:{tmp_path / 'mixed'}")


def test_a_classifier_takes_images_of_any_sizes(tmp_path):
    config = train_config(family("vit"), "nano", {"batch": 3})
    mixed = folders(tmp_path / "photos", [(37, 41), (53, 29)])
    assert ImageClassification.prepare(Request(family("vit"), mixed, "nano"), config).model.image_size == (64, 64)
