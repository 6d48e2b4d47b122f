"""Activation recomputation: the same loss and the same gradients, bit for bit, and blocks that are run twice."""

import pytest
import torch

from pencil.core.probe import Probe
from pencil.families import FAMILIES
from pencil.train.recompute import recompute_blocks

SMALL = {
    "gpt": [dict(positions=p, vocab=13, context=11) for p in ("rope", "t5", "shaw")],
    "vit": [dict(image_size=(10, 14), patch=(5, 7), classes=3)],
    "captioner": [dict(image_size=(10, 14), patch=(5, 7), vocab=13, context=7, positions="alibi")],
    "seq2seq": [dict(vocab=13, context=7, source_context=5), dict(vocab=13, norm_position="post", bias=True)],
    "reader": [dict(vocab=13, context=7), dict(vocab=13, context=7, classes=3, positions="t5")],
    "dit": [dict(image_size=(10, 14), patch=(5, 7), vocab=13, context=5), dict(image_size=(8, 8), attention="windowed", window=2)],
}  # fmt: skip
CASES = [(name, case) for name, cases in SMALL.items() for case in cases]


def passed(name, case, recompute):
    """The loss and the gradients of one pass over random inputs with dropout; how often the first block was run."""
    record = FAMILIES[name]
    dropout = {} if name == "dit" else {"dropout": 0.3}
    config = record.config(**{"width": 20, "heads": 5, "depth": 3, **dropout, **case})
    torch.manual_seed(7)
    model = record.create(config).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # the zeros of adaLN would hide the blocks
    runs = []
    stack = model.blocks if hasattr(model, "blocks") else model.encoder.blocks
    stack[0].attn_norm.register_forward_pre_hook(lambda module, given: runs.append(1))
    if recompute:
        recompute_blocks(model)
    torch.manual_seed(11)
    inputs = [torch.randint(0, 3, x.shape) if x.dtype == torch.long else torch.randn(x.shape) for x in model.example(2)]
    loss = record.cost.loss(model(*inputs))
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters()}, len(runs)


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_the_same_bits_with_blocks_run_twice(name, case):
    loss, gradients, once = passed(name, case, False)
    again, others, twice = passed(name, case, True)
    assert (once, twice) == (1, 2)
    assert torch.equal(loss, again)
    assert gradients.keys() == others.keys()
    for n, gradient in gradients.items():
        assert (gradient is None and others[n] is None) or torch.equal(gradient, others[n]), n
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())


def test_fewer_activations_are_kept():
    """Of all that autograd saves, counted outside the blocks, the inputs of blocks are what remains."""

    def kept(recompute):
        model = FAMILIES["gpt"].create({"vocab": 13, "context": 31, "width": 20, "heads": 5, "depth": 5}).train()
        if recompute:
            recompute_blocks(model)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            model(torch.zeros(3, 31, dtype=torch.long))
        return sum(saved)

    assert kept(True) < kept(False) / 4


def test_probes_and_evaluation_run_as_they_are():
    model = FAMILIES["gpt"].create({"vocab": 13, "context": 11, "width": 20, "heads": 5, "depth": 2}).train()
    recompute_blocks(model)
    probe = Probe("blocks.*.attn.pattern")
    model(torch.zeros(1, 11, dtype=torch.long), probe=probe).sum().backward()
    assert len(probe.values) == 2


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match="needs a model with blocks"):
        recompute_blocks(torch.nn.Linear(2, 3))
