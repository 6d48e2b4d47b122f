"""Models of one's own on several processes: parts that only some rows use, and what processes cannot share."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from pencil.collectives.processes import RankError, World
from pencil.config import UserError
from pencil.train.parallel import gradients as parallel

# rows are sorted by the expert that they need; an expert without rows is not run
SCRIPT = """
import json, os, sys, torch
from torch import nn
from pencil import fit
from pencil.api.fit import Task

settings, part, first = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])

    def forward(self, x, chosen):
        found = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if (chosen == i).any():
                found[chosen == i] = expert(x[chosen == i])
        return x + found

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 5), nn.Linear(5, 1)
        self.norm = nn.BatchNorm1d(5) if part == "norm" else nn.Identity()
        if part == "number":
            self.number = nn.Parameter(torch.tensor(1.0))
        self.blocks = nn.ModuleList([Block()])

    def forward(self, x, chosen):
        return self.out(torch.relu(self.blocks[0](self.norm(self.inner(x)), chosen)))

class Experts(Task):
    def build(self):
        return Net()

    def batch(self, step, micro=0):
        rows = self.train.batch
        x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(13 * step + micro))
        chosen = (torch.arange(rows) >= rows // 2).long()
        if step < first:  # both on every process
            chosen = torch.arange(rows) % 2
        return x, x.sum(1, keepdim=True), chosen

    def loss(self, model, batch):
        return ((model(batch[0], batch[2]) - batch[1]) ** 2).mean()

    def held_out(self):
        yield self.batch(10_007)

fit(Experts(), sys.argv[4], steps=5, eval_every=5, batch=6, device="cpu", quiet=True, lr=0.01, warmup=0, eps=1e-4,
    **settings)
"""


@pytest.fixture
def trained(together, tmp_path):
    def run(size, out, part="", first=0, code=0, **settings):
        ended = together(size, SCRIPT, arguments=[json.dumps(settings), part, first, out], code=code)
        return load_file(tmp_path / out / "model.safetensors") if code == 0 else "".join(one.err for one in ended)

    return run


@pytest.mark.parametrize("first", [2, pytest.param(0, marks=pytest.mark.long)])  # steps in which all of them use all
@pytest.mark.long
def test_ddp_and_exact_mode_train_parts_that_only_some_processes_use(trained, first):
    expected = trained(1, "one", first=first)
    for out, settings in (("copies", {"parallel": "ddp"}), ("exact", {"exact": True})):
        found = trained(2, out, first=first, **settings)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)


def test_fsdp_refuses_parts_that_only_some_processes_use(trained):
    said = trained(2, "cut", code=None, parallel="fsdp")
    assert "blocks.0.experts.0.weight has a gradient on some processes only, and fsdp sums the same ones on all" in said


@pytest.mark.parametrize("settings", [{"parallel": "ddp"}, {"parallel": "fsdp"}, {"exact": True}])
def test_running_statistics_are_refused(trained, settings):
    said = trained(2, "norm", "norm", code=None, **settings)
    assert "norm is a BatchNorm1d, whose running statistics the processes would not share: use nn.GroupNorm" in said


def test_fsdp_refuses_a_parameter_that_is_a_single_number(trained):
    said = trained(2, "number", "number", code=None, parallel="fsdp")
    assert "number is a single number, which fsdp cannot cut: give it a shape of 1, or use ddp" in said


def test_rows_that_never_have_targets_end_the_search(monkeypatch):
    monkeypatch.setattr(parallel, "own_batch", lambda task, step, micro, here: step)
    for size, error in ((1, UserError), (2, RankError)):
        gradients = object.__new__(parallel.Gradients)
        gradients.task, gradients.here = SimpleNamespace(targets=lambda step: step == 1007), World(0, size, 0)
        assert gradients.filler(9) == 1007
        with pytest.raises(error, match="its rows of 1,000 batches have no targets"):
            gradients.filler(5)
