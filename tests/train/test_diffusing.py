"""Training on noise, drawing from it, and judging what was drawn."""

import numpy as np
import pytest
import torch

from pencil.config import UserError
from pencil.diffusion import Flow
from pencil.train import judging
from pencil.train.diffusing import DiffusionTask, paint, wanted_of
from pencil.train.settings import TrainConfig
from pencil.train.start import train_config
from pencil.train.tasks import Asked

TINY = dict(width=16, depth=1, heads=2)


def begun(data="digits", model=None, **train):
    config = train_config("dit", "nano", {"batch": 7, **train})
    return DiffusionTask.begin(Asked("dit", data, "nano", model={**TINY, **(model or {})}, train=train), config)


def test_a_batch_is_a_function_of_seed_and_step():
    one, other = begun().task, begun().task
    for a, b in zip(one.batch(5), other.batch(5), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.batch(5)[0], one.batch(6)[0])


@pytest.mark.parametrize("noise, says", [("flow", "eps"), ("linear", "eps"), ("cosine", "v"), ("linear", "x0")])
def test_the_loss_is_the_mean_square_of_what_is_said_wrong(noise, says):
    task = begun(model=dict(noise=noise, says=says)).task
    model = task.build()  # a fresh one says zeros
    torch.manual_seed(3)
    loss = task.loss(model, task.batch(0))
    torch.manual_seed(3)
    x = task.batch(0)[0].float() / 127.5 - 1
    t, eps = task.process.draw(len(x)), torch.randn_like(x)
    assert float(loss) == pytest.approx(float((task.process.target(x, eps, t) ** 2).mean()), rel=1e-6)


def test_held_out_pictures_are_judged_with_the_same_noise_and_leave_the_seed_alone():
    task = begun().task
    model = task.build()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert task.evaluate(model, 2) == task.evaluate(model, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_row_of_noise_is_its_own_whatever_stands_beside_it():
    task = begun().task
    model = task.build()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    many = paint(model, Flow(), task.given([3, 1, 4]), guidance=2.0, steps=3)[-1]
    few = paint(model, Flow(), task.given([3, 1]), guidance=2.0, steps=3)[-1]
    assert (many[:2] == few).all()
    assert not (many[0] == many[1]).all()
    stops = paint(model, Flow(), task.given([3]), steps=5, films=True)
    assert len(stops) == 6
    assert stops[0].dtype == np.uint8


def test_a_model_without_the_null_class_cannot_be_guided():
    task = begun(model=dict(null=False)).task
    assert task.left_out == 0
    with pytest.raises(UserError, match="without the null class"):
        paint(task.build(), task.process, task.given([1]), guidance=2.0)


def test_what_comes_with_the_pictures_is_found_by_the_data(tmp_path):
    (tmp_path / "metadata.jsonl").write_text("")
    assert [wanted_of(name) for name in ("digits", "scenes", "moving-digits", str(tmp_path))] == [
        "label", "caption", "video", "caption",
    ]  # fmt: skip
    task = begun("scenes", steps=1).task
    assert task.config.vocab == task.tokenizer.vocab
    assert len(task.batch(0)) == 3
    assert torch.isfinite(task.loss(task.build(), task.batch(0)))


def test_a_video_is_learned_as_a_grid_of_frames_rows_and_columns():
    task = begun("moving-digits", model=dict(attention="factored", depth=2)).task
    assert task.config.grid == (4, 4, 4)
    assert torch.isfinite(task.loss(task.build(), task.batch(0)))
    made = task.paint(task.build(), [1, 2], steps=2)
    assert made.shape == (2, 1, 8, 16, 16)


def test_the_frechet_distance_is_that_of_gaussians():
    rng = np.random.default_rng(7)
    a = rng.normal(size=(400_003, 3)) * [1, 2, 0.5]
    b = rng.normal(size=(400_003, 3)) * [1, 1, 2] + [3, 0, -1]
    expected = 9 + 1 + (1 - 1) ** 2 + (2 - 1) ** 2 + (0.5 - 2) ** 2
    assert judging.frechet(a, b) == pytest.approx(expected, rel=0.02)
    assert judging.frechet(a, a) == pytest.approx(0, abs=1e-6)


def test_even_motion_has_no_jerk_and_a_jump_has():
    video = np.zeros((1, 1, 5, 11, 13), np.uint8)
    for frame in range(5):
        video[0, 0, frame, frame, 2 * frame] = 255
    assert judging.jerk(video) == pytest.approx(0, abs=1e-3)
    video[0, 0, 2] = 0
    video[0, 0, 2, 5, 4] = 255  # three rows off: changes of −3… along one of two axes in three places
    assert judging.jerk(video) == pytest.approx((3 + 6 + 3) / 6, rel=1e-3)


@pytest.mark.parametrize("name", ["mixup", "word_dropout", "label_smoothing"])
def test_settings_of_other_families_are_refused(name):
    with pytest.raises(UserError, match=f"train.{name}"):
        DiffusionTask.begin(Asked("dit", "digits", "nano"), TrainConfig(**{name: 0.5}))
