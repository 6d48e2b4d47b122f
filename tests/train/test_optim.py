import pytest
import torch

from pencil.families import create
from pencil.models.gpt import GPTConfig
from pencil.train.losses.cross_entropy import next_token
from pencil.train.optim import Muon, load_state_tensors, make_optimizers, orthogonalise, state_tensors
from pencil.train.settings import TrainConfig


@pytest.mark.parametrize("shape", [(11, 29), (29, 11), (7, 31)])
def test_newton_schulz_brings_every_singular_value_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, *shape)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_muon_equals_torch_muon_except_for_bfloat16():
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(s)) for s in ((23, 17), (17, 23), (23, 17))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    a = Muon(mine, lr=0.02, weight_decay=0.1)
    b = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95)
    for step in range(5):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            q.grad = p.grad.clone()
        before = [p.detach().clone() for p in mine]
        a.step()
        b.step()
        for p, q, was in zip(mine, theirs, before, strict=True):
            assert (p - q).norm() < 0.03 * (p - was).norm() * (step + 1)


def test_a_joined_matrix_is_orthogonalised_part_by_part():
    torch.manual_seed(0)
    joined = torch.nn.Parameter(torch.zeros(21, 11))
    parts = [torch.nn.Parameter(torch.zeros(n, 11)) for n in (11, 5, 5)]
    joined.grad = torch.randn(21, 11)
    for part, gradient in zip(parts, joined.grad.split([11, 5, 5]), strict=True):
        part.grad = gradient.clone()
    Muon([joined], 0.1, parts={joined: [11, 5, 5]}).step()
    Muon(parts, 0.1).step()
    torch.testing.assert_close(joined.detach(), torch.cat([p.detach() for p in parts]))


def tiny():
    torch.manual_seed(0)
    return create("gpt", GPTConfig(vocab=31, context=11, width=20, depth=2, heads=2, bias=True, positions="learned"))


def test_which_parameters_each_optimizer_trains():
    model = tiny()
    made = make_optimizers(model, TrainConfig(optimizer="muon"))
    names = {p: n for n, p in model.named_parameters()}
    muon = {names[p] for group in made["muon"].param_groups for p in group["params"]}
    assert muon == {f"blocks.{i}.{n}.weight" for i in range(2) for n in ("attn.qkv", "attn.out", "mlp.up", "mlp.down")}
    decay = {names[p]: g["weight_decay"] for g in made["adamw"].param_groups for p in g["params"]}
    assert {n for n, d in decay.items() if d} == {"tokens.weight", "positions.table"}
    alone = make_optimizers(model, TrainConfig(optimizer="adamw"))
    assert set(alone) == {"adamw"}
    assert sum(len(g["params"]) for g in alone["adamw"].param_groups) == len(names)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_optimizers_continue_from_their_saved_tensors(optimizer):
    ids = torch.randint(0, 31, (3, 12))

    def step(model, made):
        next_token(model(ids[:, :-1]), ids[:, 1:]).backward()
        for o in made.values():
            o.step()
            o.zero_grad()

    config = TrainConfig(optimizer=optimizer)
    model = tiny()
    made = make_optimizers(model, config)
    for _ in range(3):
        step(model, made)
    again = tiny()
    again.load_state_dict(model.state_dict())
    restored = make_optimizers(again, config)
    load_state_tensors(again, restored, {n: t.clone() for n, t in state_tensors(model, made).items()})
    step(model, made)
    step(again, restored)
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name
