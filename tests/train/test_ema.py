"""The exponential moving average of the weights: by a plain loop, over an interruption, and in the run's weights."""

import pytest
import torch
from safetensors import safe_open
from torch import nn

from conftest import unchecked
from pencil.api.loading import load
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.ema import ExponentialMovingAverage
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.task import Preview
from training import interrupt_after

SIZES = dict(width=18, heads=3, depth=1, hidden=11)
PACE = dict(steps=7, batch=5, eval_every=5, save_every=2, warmup=2, eval_batches=1, device="cpu")


def trainer(folder, **train):
    run, task, config = new_run(
        TrainingRequest("dit", "digits", model=SIZES, train={**PACE, "ema": 0.9, **train}), out=folder
    )
    return trainer_of(run, task, config)


def trainer_of(run, task, config):
    task.preview = lambda model: Preview(".txt", b"")  # sampling takes long, and draws no numbers of the training
    return Trainer(task, run, config)


def reopened(folder):
    run = Run.open(folder)
    config = build(TrainConfig, run.config["train"])
    return trainer_of(run, task_of(run, config), config)


def weights_of(folder):
    """The run's own weights and the facts about them."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def kept(folder, step, which):
    found = checkpoint.read(folder, step).tensors
    return {name.removeprefix(f"{which}."): t for name, t in found.items() if name.startswith(f"{which}.")}


def same(one, two):
    return set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.999])
def test_the_average_equals_a_plain_loop(decay):
    """Early the decay is smaller: at step n at most (1 + n)/(10 + n)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double()
    average = ExponentialMovingAverage(model, decay)
    expected = {name: p.detach().tolist() for name, p in model.named_parameters()}

    def mixed(old, new, part):
        if isinstance(old, list):
            return [mixed(a, b, part) for a, b in zip(old, new, strict=True)]
        return part * old + (1 - part) * new

    for step in range(1, 14):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        average.update(step)
        part = min(decay, (1 + step) / (10 + step))
        expected = {name: mixed(expected[name], p.tolist(), part) for name, p in model.named_parameters()}
    assert expected
    for name, value in average.values.items():
        torch.testing.assert_close(value, torch.tensor(expected[name], dtype=torch.float64))


def test_the_model_has_the_average_within_the_context_and_its_own_weights_after():
    torch.manual_seed(0)
    model = nn.Linear(5, 7)
    average, own = ExponentialMovingAverage(model, 0.9), model.weight
    with torch.no_grad():
        model.weight.add_(1)
    before = model.weight.detach().clone()

    def interrupted():
        with average.in_place():
            assert model.weight is own
            assert torch.equal(model.weight, average.values["weight"])
            assert not torch.equal(model.weight, before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(model.weight, before)
    assert own.requires_grad


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run trained from its first step to its last, and the average by a plain loop beside it."""
    made = trainer(tmp_path_factory.mktemp("runs") / "whole")
    update, seen = made.update, [{n: p.detach().clone() for n, p in made.model.named_parameters()}]

    def watched():
        count = update()
        seen.append({n: p.detach().clone() for n, p in made.model.named_parameters()})
        return count

    made.update = watched
    with unchecked():
        assert made.train().finished
    found = seen[0]
    for step, weights in enumerate(seen[1:], 1):
        decay = min(0.9, (1 + step) / (10 + step))
        found = {n: decay * found[n].double() + (1 - decay) * weights[n].double() for n in found}
    return made.run.path, seen[-1], found


def test_the_weights_of_a_run_are_the_average_and_marked_so(whole):
    folder, last, average = whole
    tensors, facts = weights_of(folder)
    assert facts["weights"] == "ema"
    assert facts["step"] == "7"
    assert same(tensors, kept(folder, 7, "ema"))
    assert same(last, kept(folder, 7, "model"))
    assert not same(tensors, last)
    for name, value in average.items():
        torch.testing.assert_close(tensors[name].double(), value, atol=1e-6, rtol=1e-5)
    assert same(dict(load(folder).model.state_dict()), tensors)


@pytest.mark.parametrize("cut", [1, 4])
@pytest.mark.usefixtures("fast_training")
def test_an_interrupted_run_continues_to_the_same_average(tmp_path, whole, cut):
    folder = tmp_path / "cut"
    first = interrupt_after(trainer(folder), cut)
    assert (first.train().finished, first.step) == (False, cut)
    tensors, facts = weights_of(folder)
    assert (facts["weights"], facts["step"]) == ("ema", str(cut))
    assert same(tensors, kept(folder, cut, "ema"))
    torch.manual_seed(99)
    assert reopened(folder).train().finished
    for which in ("model", "ema", "optim"):
        assert same(kept(folder, 7, which), kept(whole[0], 7, which)), which
    assert weights_of(folder)[1] == weights_of(whole[0])[1]
    assert same(weights_of(folder)[0], weights_of(whole[0])[0])


@pytest.mark.usefixtures("fast_training")
def test_without_an_average_the_weights_of_a_run_are_the_last(tmp_path):
    made = trainer(tmp_path / "a", ema=0.0, steps=2)
    made.train()
    tensors, facts = weights_of(tmp_path / "a")
    assert facts["weights"] == "model"
    assert same(tensors, kept(tmp_path / "a", 2, "model"))
    assert not kept(tmp_path / "a", 2, "ema")


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(UserError, match="train.ema must be at least 0 and under 1"):
        TrainConfig(ema=decay)
