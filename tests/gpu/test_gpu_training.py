"""Training on a GPU: compiled against eager, bfloat16, interrupted and resumed, and what is not finite."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from conftest import unchecked
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.runs.run import Run
from pencil.train.loop.trainer import Trainer
from pencil.train.task import Preview
from training import bits, interrupt_after

SIZES = dict(width=56, heads=7, depth=2, dropout=0.0)
TRAIN = dict(steps=20, batch=11, eval_every=20, eval_batches=1, save_every=20, warmup=3, lr=1e-3)
FAMILIES = ["gpt", "vit", "captioner", "seq2seq", "reader", "dit"]


pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Compiled code draws random numbers as eager code does; what a test sets on the device is undone."""
    from torch._inductor import config

    torch.compiler.reset()
    before, config.fallback_random = config.fallback_random, True
    with unchecked():
        yield
    config.fallback_random = before
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.empty_cache()


def trainer(name, folder, notes, **settings):
    data = {"gpt": str(notes), "reader": str(folder.parent / "rows.tsv")}.get(name)
    if name == "reader":
        rows = [f"{'so ' * (i % 23)}{i}\t{'good' if i % 2 else 'bad'}" for i in range(97)]
        Path(data).write_text("\n".join(rows) + "\n")
    model = SIZES | ({"context": 31} if name == "gpt" else {})
    run, task, config = new_run(TrainingRequest(name, data, model=model, train={**TRAIN, **settings}), out=folder)
    task.preview = lambda model: Preview(".txt", b"")
    return Trainer(task, run, config)


def losses(made):
    for _ in range(TRAIN["steps"]):
        made.update()
    found, _, left_out = made.guard.read(made.step)
    assert not left_out
    return torch.tensor(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_compiled_training_follows_eager_training(tmp_path, notes, name, dtype):
    eager = losses(trainer(name, tmp_path / "eager", notes, compile="off", dtype=dtype))
    compiled = losses(trainer(name, tmp_path / "compiled", notes, compile="on", dtype=dtype))
    assert eager[-5:].mean() < eager[:5].mean(), "it should learn"
    torch.testing.assert_close(compiled, eager, rtol=0.03 if dtype == "bfloat16" else 0.01, atol=0.01)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_follows_float32(tmp_path, notes, name):
    whole = losses(trainer(name, tmp_path / "a", notes, compile="off", dtype="float32"))
    half = losses(trainer(name, tmp_path / "b", notes, compile="off", dtype="bfloat16"))
    assert not torch.equal(whole, half)
    torch.testing.assert_close(half, whole, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype, compiled", [("float32", "off"), ("bfloat16", "on")])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_group_of_one_process_trains_as_without(tmp_path, notes, name, parallel, dtype, compiled):
    given = dict(dtype=dtype, compile=compiled)
    plain = losses(trainer(name, tmp_path / "plain", notes, **given))
    made = trainer(name, tmp_path / parallel, notes, parallel=parallel, **given)
    with made.group:
        found = losses(made)
    torch.testing.assert_close(found, plain, rtol=0.03 if dtype == "bfloat16" else 1e-3, atol=0.01)


def test_fsdp_compiles_one_graph_for_all_blocks(tmp_path, notes):
    from torch._dynamo.utils import counters

    counters.clear()
    made = trainer("gpt", tmp_path / "run", notes, parallel="fsdp", compile="on", dtype="bfloat16")
    with made.group:
        losses(made)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_cut_on_the_gpu_resumes_to_the_same_bits(tmp_path, notes, name, monkeypatch):
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    same = dict(deterministic=True, steps=13, eval_every=13)
    assert trainer(name, tmp_path / "whole", notes, **same).train().finished
    cut = interrupt_after(trainer(name, tmp_path / "cut", notes, **same), 7)
    assert not cut.train().finished
    run = Run.open(tmp_path / "cut")
    task = task_of(run, cut.config)
    task.preview = cut.task.preview
    assert Trainer(task, run, cut.config).train().finished
    assert bits(tmp_path / "cut", 13)[:2] == bits(tmp_path / "whole", 13)[:2]


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_bad_update_is_left_out_without_waiting_for_the_gpu(tmp_path, notes, optimizer):
    made = trainer("gpt", tmp_path / "a", notes, optimizer=optimizer, nonfinite="skip", compile="off", ema=0.9)
    clean = made.gradients.loss
    made.gradients.loss = lambda batch: clean(batch) * (float("nan") if made.step == 5 else 1.0)
    for _ in range(5):
        made.update()
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    average = {n: v.clone() for n, v in made.ema.values.items()}
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # an update that waits for the GPU fails
    made.update()
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(p, before[n]) for n, p in made.model.named_parameters())
    assert all(torch.equal(v, average[n]) for n, v in made.ema.values.items())
    for state in (s for o in made.optimizers.values() for s in o.state.values()):
        assert all(value.isfinite().all() for value in state.values())
    made.update()
    assert not torch.equal(made.model.tokens.weight, before["tokens.weight"])
    assert [found.step for found in made.guard.read(made.step).left_out] == [6]


def test_an_update_without_targets_changes_nothing(tmp_path, notes):
    made = trainer("gpt", tmp_path / "a", notes, compile="off")
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    made.task.targets = lambda batch: 0
    made.update()
    assert made.guard.read(made.step) == ([0.0], [0.0], [])
    assert all(torch.equal(p, before[n]) for n, p in made.model.named_parameters())


CASES = ["gpt2, batch 1", "vit b/16", "dit b/2", "bert-base", "seq2seq base", "captioner base"]


@pytest.mark.parametrize("name", CASES)
def test_memory_and_flops_are_as_cost_computes_them(name):
    spec = importlib.util.spec_from_file_location(
        "cost_benchmark", Path(__file__).parents[2] / "benchmarks" / "cost.py"
    )
    module = sys.modules["cost_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = module.Case(*module.CASES[name])
    flops = case.batch * case.counts.forward.flops, case.batch * case.counts.backward
    assert tuple(case.measured_flops()) == flops
    assert 0.93 < case.memory.activations.peak / case.peak() < 1.07
    case.recompute()
    assert 0.93 < case.memory.activations.peak_recomputed / case.peak() < 1.07
