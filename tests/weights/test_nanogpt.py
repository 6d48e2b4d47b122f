"""Checkpoints of nanoGPT: against its model, written out here from its description, and against GPT-2."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import CLOSE, randomise
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.families import configure
from pencil.weights.gpt2 import GPT2
from pencil.weights.maps import Source, load
from pencil.weights.nanogpt import NANOGPT

KINDS = [
    dict(n_layer=2, n_head=3, n_embd=33, block_size=17, bias=True, vocab_size=101, dropout=0.1),
    dict(n_layer=3, n_head=1, n_embd=13, block_size=5, bias=False, vocab_size=2, dropout=0.0),
    dict(n_layer=1, n_head=7, n_embd=35, block_size=1, bias=False, vocab_size=53, dropout=0.2),
    dict(n_layer=2, n_head=2, n_embd=22, block_size=71, bias=True, vocab_size=67, dropout=0.0),
    dict(n_layer=5, n_head=2, n_embd=26, block_size=19, bias=False, vocab_size=65, dropout=0.0),
    dict(n_layer=2, n_head=5, n_embd=35, block_size=11, vocab_size=37),  # before it had a choice of biases
]


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Block(nn.Module):
    def __init__(self, width, heads, bias, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.ln_1, self.ln_2 = Norm(width, bias), Norm(width, bias)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.attn.c_attn(self.ln_1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / (d // self.heads) ** 0.5).masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
        x = x + self.attn.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate=self.gelu))


class Reference(nn.Module):
    def __init__(self, n_layer, n_head, n_embd, block_size, vocab_size, bias=None, dropout=0.0):
        super().__init__()
        gelu = "tanh" if bias is None else "none"
        self.transformer = nn.Module()
        self.transformer.wte, self.transformer.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.transformer.h = nn.ModuleList(Block(n_embd, n_head, bias is not False, gelu) for _ in range(n_layer))
        self.transformer.ln_f = Norm(n_embd, bias is not False)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe.weight[: ids.shape[1]]
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def made(values):
    torch.manual_seed(3)
    theirs = Reference(**values).eval()
    randomise(theirs)
    return theirs


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("values, prefix", [*((values, "") for values in KINDS), (KINDS[0], "_orig_mod.")])
def test_every_block_equals_nanogpt(values, prefix):
    theirs = made(values)
    held = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    masks = {f"{prefix}transformer.h.{i}.attn.bias": torch.ones(1, 1, 5, 5).tril() for i in range(values["n_layer"])}
    for tensors in (held, held | masks):  # older files hold the masks too
        ours = load(NANOGPT, Source(tensors), NANOGPT.configure(values))
        for difference in compare(NANOGPT, theirs, ours):
            assert difference.relative <= CLOSE, difference
    assert ours.config.activation == ("gelu" if "bias" in values else "gelu-tanh")
    masks[f"{prefix}transformer.h.0.attn.bias"][..., 2, 3] = 1
    with pytest.raises(UserError, match="h.0.attn.bias is another mask than the causal one"):
        load(NANOGPT, Source(held | masks), NANOGPT.configure(values))


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("values", [KINDS[0], KINDS[1]])
def test_a_head_of_its_own_is_found_by_its_values(values):
    theirs = made(values)
    theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.flip(0))
    source = Source(theirs.state_dict())
    ours = load(NANOGPT, source, NANOGPT.configure(values, source))
    assert not ours.config.tie_embeddings
    for difference in compare(NANOGPT, theirs, ours):
        assert difference.relative <= CLOSE, difference
    tied = Source(made(values).state_dict())
    assert NANOGPT.configure(values, tied) == NANOGPT.configure(values)


def test_with_biases_it_is_a_gpt2_with_its_matrices_transposed():
    """Against transformers: their matrices are input-first."""
    from transformers import GPT2Config, GPT2LMHeadModel

    values = KINDS[0]
    theirs = made(values)
    named = ("vocab_size", "n_embd", "n_layer", "n_head")
    config = GPT2Config(**{name: values[name] for name in named}, n_positions=17, activation_function="gelu")
    other = GPT2LMHeadModel(config).eval()
    turned = {n: t.mT if ".c_" in n and n.endswith("weight") else t for n, t in theirs.state_dict().items()}
    other.load_state_dict(turned)
    ours, ids = load(NANOGPT, Source(theirs.state_dict()), NANOGPT.configure(values)), torch.arange(17)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), other(ids).logits, atol=1e-5, rtol=1e-5)
    assert ours.config == GPT2.configure(config.to_dict()) or ours.config.hidden is None


def test_it_is_our_preset_of_its_name():
    """Its default without biases, at the sizes of our preset."""
    values = dict(n_layer=4, n_head=4, n_embd=128, block_size=64, bias=False, vocab_size=65, dropout=0.0)
    assert NANOGPT.configure(values) == configure("gpt", "nanogpt", vocab=65)


@pytest.mark.parametrize("change, words", [
    (dict(n_embd=None), "n_embd must be a whole number above 0, not None"),
    (dict(n_experts=8), "n_experts = 8, which Pencil does not know"),
    (dict(n_head=2), "this nanoGPT's model_args: n_head 2 does not divide n_embd 33"),
    (dict(activation="relu"), "activation is 'relu'"),
])  # fmt: skip
def test_fields_ours_cannot_represent_are_refused(change, words):
    with pytest.raises(UserError, match=words):
        NANOGPT.configure(KINDS[0] | change)


def test_tensors_that_do_not_fit_are_refused():
    theirs = made(KINDS[0])
    held, config = theirs.state_dict(), NANOGPT.configure(KINDS[0])
    with pytest.raises(UserError, match="not tied"):
        load(NANOGPT, Source({**held, "lm_head.weight": held["lm_head.weight"] + 1}), config)
    with pytest.raises(UserError, match="also has transformer.h.0.attn.c_attn.bias"):
        load(NANOGPT, Source(held), NANOGPT.configure(KINDS[0] | dict(bias=False)))
    turned = {n: t.mT.contiguous() if n.endswith("c_fc.weight") else t for n, t in held.items()}
    with pytest.raises(UserError, match=r"c_fc.weight has shape \(33, 132\), and its config wants \(132, 33\)"):
        load(NANOGPT, Source(turned), config)


def test_what_a_file_leaves_open_is_said():
    """Its tokenizer, and which GELU it was trained with."""
    characters, gelu = NANOGPT.remarks(NANOGPT.configure(KINDS[0]))
    assert "meta.pkl, which is not read" in characters
    assert "gelu-tanh" in gelu
    of_gpt2, _ = NANOGPT.remarks(NANOGPT.configure(KINDS[0] | dict(vocab_size=50304)))
    assert "--tokenizer gpt2" in of_gpt2
    assert NANOGPT.configure(KINDS[0] | dict(activation="gelu-tanh")).activation == "gelu-tanh"
    assert len(NANOGPT.remarks(NANOGPT.configure(KINDS[-1]))) == 1
    assert NANOGPT.describe is None  # nothing reads one back
