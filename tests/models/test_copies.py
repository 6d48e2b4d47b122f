"""Models that are copied: pickled, saved whole, sent to another process, rebuilt for another config."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import get_args

import pytest
import torch
from test_compiled import KINDS, MORE, SIZES

from pencil.core.masks import causal, full, padding, prefix, window
from pencil.core.positions import Scheme
from pencil.families import configure, create
from pencil.models.config import Scaling
from pencil.models.rope_pairs import convert_rope

VARIANTS = [
    *(("gpt", dict(positions=scheme)) for scheme in get_args(Scheme)),
    *(("gpt", dict(rope_scaling=scaling, rope_factor=3.0, window=5)) for scaling in get_args(Scaling)),
    *((family, values) for family, kinds in KINDS.items() for values in kinds.values()),
]
OTHERS = [
    *((family, dict(positions=scheme)) for family in SIZES for scheme in get_args(Scheme) if family != "gpt"),
    *((family, values) for family, kinds in MORE.items() for values in kinds.values()),
    ("gpt", dict(qk_norm=True, rope_pairs="adjacent")),
    ("captioner", dict(mask="causal", image_positions="shaw")),
]


def made(family, values):
    torch.manual_seed(7)
    model = create(family, configure(family, None, **{"depth": 1, **SIZES[family], **values})).eval()
    inputs = [torch.randn_like(t) if t.is_floating_point() else torch.randint_like(t, 5) for t in model.example(2)]
    return model, inputs


@pytest.mark.parametrize("variants", [VARIANTS, pytest.param(OTHERS, marks=pytest.mark.long)])
@torch.no_grad()
def test_every_model_can_be_pickled_and_gives_the_same_bits(variants):
    for family, values in variants:
        model, inputs = made(family, values)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        expected = model(*inputs)
        copy = pickle.loads(pickle.dumps(model))
        assert torch.equal(copy(*inputs), expected), (family, values)
    # torch.save of the whole model, and what a pool of processes sends
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved, weights_only=False)(*inputs), expected)
    assert torch.equal(pickle.loads(bytes(ForkingPickler.dumps(model)))(*inputs), expected)


@pytest.mark.parametrize("mask", [full, causal, padding, prefix(3), window(2), causal & window(4), prefix(5) & padding])
def test_a_mask_can_be_pickled(mask):
    copy, index = pickle.loads(pickle.dumps(mask)), torch.arange(11)
    assert torch.equal(copy(index[:, None], index), mask(index[:, None], index))
    assert (copy.name, copy.words, copy.bounds, copy.within) == (mask.name, mask.words, mask.bounds, mask.within)
    assert [copy.kernel_form(n) for n in range(9)] == [mask.kernel_form(n) for n in range(9)]


@pytest.mark.parametrize("family, positions", [("gpt", "rope"), ("vit", "learned"), ("vit", "alibi")])
def test_a_rebuilt_model_keeps_what_a_state_dict_does_not_hold(family, positions):
    """Frozen parameters, the mode of each module, and dtypes that differ within the model."""
    model, _ = made(family, dict(positions=positions, dropout=0.1))
    model.train()
    model.blocks[0].mlp.eval()
    model.norm.double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("attn" in name)
    copies = [convert_rope(model, pairs) for pairs in ("halves", "adjacent")]
    copies += [model.resized((6, 25)), model.resized((14, 35))] if family == "vit" else []
    for copy in copies:
        for name, parameter in model.named_parameters():
            other = copy.get_parameter(name)
            kept = (parameter.requires_grad, parameter.dtype, parameter.device)
            assert (other.requires_grad, other.dtype, other.device) == kept, name
            assert other.data_ptr() != parameter.data_ptr(), name
        assert [m.training for m in copy.modules()] == [m.training for m in model.modules()]
        assert not any(tensor.is_meta for tensor in (*copy.parameters(), *copy.buffers()))
