"""Frozen parameters: bit-equal after training, without gradient, optimizer state or average; refusals by name."""

import json

import pytest
import torch
from safetensors.torch import load_file

from conftest import call
from pencil.config import UserError
from pencil.families import FAMILIES
from pencil.runs.run import Run
from pencil.train.freezing import describe_parts, freeze_parameters, frozen_names
from pencil.train.loop.ema import ExponentialMovingAverage
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig

pytestmark = pytest.mark.usefixtures("fast_training")
SHORT = [
    "--train.steps",
    3,
    "--train.eval_every",
    3,
    "--train.save_every",
    2,
    "--train.batch",
    5,
    "--train.eval_batches",
    1,
]


def tiny(**values):
    torch.manual_seed(3)
    return FAMILIES["gpt"].create({"vocab": 13, "context": 11, "width": 20, "heads": 5, "depth": 3, **values})


def checkpoint(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "shard-00000.safetensors")


def test_patterns():
    names = [f"blocks.{i}.mlp.up.weight" for i in range(12)] + ["tokens.weight", "norm.weight"]
    assert frozen_names(names, None) == set()
    assert frozen_names(names, "blocks.[0-5].*") == set(names[:6])  # not blocks 10 and 11
    assert frozen_names(names, "blocks.1") == {names[1]}  # a part's name is a pattern too, and 10 is another part
    assert frozen_names(names, " tokens , norm.*") == {"tokens.weight", "norm.weight"}


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        ("token.*", r"train.freeze token.\* matches no parameter of this model; did you mean tokens.\*\?"),
        ("block.1", r"did you mean blocks.1\?"),
        ("blocks.0,head", "train.freeze head matches no parameter of this model; its parts are tokens, blocks 0–2 and norm"),
        ("*", "matches every parameter"),
        ("blocks,tokens,norm", "matches every parameter"),
    ],
)  # fmt: skip
def test_patterns_are_refused(freeze, said):
    with pytest.raises(UserError, match=said):
        freeze_parameters(tiny(), freeze)


def test_parts_in_words():
    names = [name for name, _ in tiny(depth=8).named_parameters()]
    some = [name for name in names if not name.startswith(("tokens", "blocks.0.", "blocks.4."))]
    assert describe_parts(some, names) == "blocks 1–3 and 5–7 and norm"
    assert describe_parts([name for name in names if ".mlp." in name], names) == "part of blocks 0–7"
    reader = FAMILIES["reader"].create({"vocab": 7, "width": 20, "heads": 5, "depth": 1, "positions": "learned"})
    found = describe_parts([name for name, _ in reader.named_parameters()])
    assert found == "tokens, encoder.positions, encoder block 0, encoder.norm and head"


def test_no_gradient_no_state_no_average():
    model = tiny()
    frozen = freeze_parameters(model, "tokens,blocks.[0-1].*")
    config = TrainConfig(optimizer="muon", ema=0.5)
    optimizers, average = make_optimizers(model, config), ExponentialMovingAverage(model, 0.5)
    outputs = {}
    for name, part in model.named_modules():
        if name.startswith("blocks.") and name.count(".") == 1:
            part.register_forward_hook(lambda module, given, output, name=name: outputs.update({name: output}))
    model(torch.arange(11)[None]).sum().backward()
    named = dict(model.named_parameters())
    assert all(named[name].grad is None for name in frozen)
    assert all(p.grad is not None for name, p in named.items() if name not in frozen)
    # autograd recorded nothing in the frozen first blocks
    assert [outputs[f"blocks.{i}"].requires_grad for i in range(3)] == [False, False, True]
    updated = {id(p) for optimizer in optimizers.values() for group in optimizer.param_groups for p in group["params"]}
    assert updated == {id(p) for name, p in named.items() if name not in frozen}
    assert average.values.keys() == named.keys() - frozen


def test_only_blocks_may_train_with_muon():
    model = tiny(bias=False, norm="rms")
    freeze_parameters(model, "tokens,norm,blocks.*.attn_norm,blocks.*.mlp_norm")
    assert list(make_optimizers(model, TrainConfig(optimizer="muon"))) == ["muon"]


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_frozen_weights_stay_and_the_others_move(run, notes, tmp_path, ema):
    out = tmp_path / "b"
    said = call("train", "gpt", "--from", run, "--data", notes, "--out", out, *SHORT, "--freeze", "blocks.0.*", "--freeze",
                "tokens", "--train.weight_decay", "0.5", "--train.ema", ema).stderr  # fmt: skip
    before, after, last = load_file(run / "model.safetensors"), load_file(out / "model.safetensors"), checkpoint(out, 3)
    for name, tensor in before.items():
        still = name.startswith(("blocks.0.", "tokens."))
        assert torch.equal(tensor, last[f"model.{name}"]) is still, name
        assert torch.equal(tensor, after[name]) or not still
    moments = {name for name in last if name.startswith(("optim.", "ema."))}
    assert moments
    assert not any("blocks.0." in name or "tokens." in name for name in moments)
    count = sum(t.numel() for name, t in before.items() if name.startswith(("blocks.1.", "norm.")))
    assert f"{count / 1000:.1f} k of " in said
    assert "parameters train (block 1 and norm); about " in said


def test_the_setting_is_recorded_and_can_be_changed(run, notes, tmp_path):
    out, words = tmp_path / "b", ["--train.optimizer", "muon", "--train.muon_lr", "0.01"]
    call("train", "gpt", "--from", run, "--data", notes, "--out", out, *SHORT, *words, "--freeze", "blocks.0.*,tokens")
    assert Run.open(out).config["train"]["freeze"] == "blocks.0.*,tokens"
    at3 = checkpoint(out, 3)
    done = call("resume", out, "--train.steps", 5, "--train.freeze", "blocks.1")
    assert "train.freeze is blocks.1 from step 3 on; it was blocks.0.*,tokens" in done.stderr
    assert any("train.freeze" in line for line in Run.open(out).config["run"]["changes"])
    at5 = checkpoint(out, 5)
    for name in at3:
        if name.startswith("model."):
            assert torch.equal(at3[name], at5[name]) == name.startswith("model.blocks.1."), name
    assert not any("blocks.1." in name for name in at5 if name.startswith("optim."))
    call("resume", out, "--train.steps", 6, "--train.freeze", "none")
    assert not torch.equal(at5["model.blocks.1.mlp.up.weight"], checkpoint(out, 6)["model.blocks.1.mlp.up.weight"])


def test_refusals_write_nothing(run, notes, tmp_path):
    out = tmp_path / "b"
    start = ["train", "gpt", "--data", notes, "--out", out]
    said = call(*start, "--from", run, "--freeze", "blocks.7", code=2).stderr
    assert "train.freeze blocks.7 matches no parameter of this model" in said
    assert "every parameter" in call(*start, "--freeze", "*", code=2).stderr
    both = call(*start, "--freeze", "tokens", "--train.freeze", "norm", code=2).stderr
    assert "--freeze is the same as --train.freeze: give one of the two" in both
    assert not out.exists()


def test_cost_prices_what_the_run_trains(run, notes, tmp_path):
    out = tmp_path / "b"
    call("train", "gpt", "--from", run, "--data", notes, "--out", out, *SHORT, "--freeze", "blocks.0,tokens",
         "--train.recompute", "blocks")  # fmt: skip
    before, found = (json.loads(call("cost", path, "--json").stdout) for path in (run, out))
    count = sum(
        t.numel() for name, t in load_file(run / "model.safetensors").items() if name.startswith(("blocks.1.", "norm."))
    )
    assert found["parameters"]["trained"] == count
    step = found["train_step_bytes"]
    assert (step["gradients"], step["adamw"], step["recompute"]) == (4 * count, 8 * count, "blocks")
    assert (
        step["total"]
        == step["total_recomputed"]
        == step["weights"] + 12 * count + step["activations"]["peak_recomputed"]
    )
    assert before["parameters"]["trained"] == before["parameters"]["total"]
    # no gradient of the first block's matrices, nor of what comes before it
    assert found["flops"]["backward"] < 0.6 * before["flops"]["backward"]
    shown = call("cost", out).stdout
    assert "trained: P_trained" in shown
    assert "total, recompute blocks" in shown
