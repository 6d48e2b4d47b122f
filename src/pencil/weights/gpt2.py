"""GPT-2 as transformers names it. Its projections are stored input-first, so each is transposed."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..models.gpt import GPT, GPTConfig
from .maps import (
    Architecture,
    Fields,
    Rule,
    fields,
    must_have,
    only,
    same,
    their_word,
    token_inputs,
    transposed,
    with_bias,
)

ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu", "relu": "relu"}
SIZES = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
         "num_hidden_layers": "n_layer"}  # fmt: skip

FIELDS = fields(
    mapped="vocab_size n_positions n_embd n_layer n_head n_inner layer_norm_epsilon activation_function "
    "tie_word_embeddings",
    neutral="resid_pdrop embd_pdrop attn_pdrop summary_type summary_use_proj summary_activation "
    "summary_proj_to_labels summary_first_dropout reorder_and_upcast_attn n_ctx",
    scale_attn_weights=only(True),
    scale_attn_by_inverse_layer_idx=only(False),
)

DEFAULTS = dict(n_inner=None, layer_norm_epsilon=1e-5, activation_function="gelu_new", tie_word_embeddings=True)


def settings(theirs: Fields) -> dict[str, Any]:
    return dict(
        **theirs.sizes(vocab="vocab_size", context="n_positions", width="n_embd", depth="n_layer", heads="n_head"),
        hidden=theirs["n_inner"],
        eps=theirs["layer_norm_epsilon"],
        activation=theirs.one_of("activation_function", ACTIVATIONS),
        bias=True,
        positions="learned",
        tie_embeddings=theirs["tie_word_embeddings"],
        head_bias=None if theirs["tie_word_embeddings"] else False,
    )


def describe(c: GPTConfig) -> dict[str, Any]:
    must_have(
        c,
        "GPT-2",
        norm="layer",
        positions="learned",
        activation=tuple(ACTIVATIONS.values()),
        kv_heads=(None, c.heads),
        head_width=c.width // c.heads,
        qkv_bias=(None, c.bias),
        qk_norm=False,
        window=None,
        **no_head_bias(c),
    )
    return dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        vocab_size=c.vocab,
        n_positions=c.context,
        n_embd=c.width,
        n_layer=c.depth,
        n_head=c.heads,
        n_inner=c.mlp_width,
        layer_norm_epsilon=c.eps,
        activation_function=their_word(ACTIVATIONS, c.activation),
        tie_word_embeddings=c.tie_embeddings,
    )


def no_head_bias(c: GPTConfig) -> dict[str, Any]:
    """For `must_have`: a head of its own has no bias there."""
    return {} if c.tie_embeddings or not c.bias else {"head_bias": False}


def rules(c: GPTConfig, matrix: Callable[[str, str], Rule] = transposed, always_biased: bool = True) -> Iterator[Rule]:
    """The tensors of GPT-2, and of models with its names, whose matrices may be plain, and without biases."""

    def linear(theirs: str, ours: str, rows: int, matrix: Callable[[str, str], Rule] = matrix) -> list[Rule]:
        return with_bias(theirs, ours, c.bias, rows if always_biased else None, matrix)

    def norm(theirs: str, ours: str) -> list[Rule]:
        return linear(theirs, ours, c.width, same)

    yield same("transformer.wte.weight", "tokens.weight")
    yield same("transformer.wpe.weight", "positions.table")
    for i in range(c.depth):
        theirs, ours = f"transformer.h.{i}", f"blocks.{i}"
        yield from norm(f"{theirs}.ln_1", f"{ours}.attn_norm")
        yield from linear(f"{theirs}.attn.c_attn", f"{ours}.attn.qkv", 3 * c.width)
        yield from linear(f"{theirs}.attn.c_proj", f"{ours}.attn.out", c.width)
        yield from norm(f"{theirs}.ln_2", f"{ours}.mlp_norm")
        yield from linear(f"{theirs}.mlp.c_fc", f"{ours}.mlp.up", c.mlp_width)
        yield from linear(f"{theirs}.mlp.c_proj", f"{ours}.mlp.down", c.width)
    yield from norm("transformer.ln_f", "norm")
    if not c.tie_embeddings:
        yield same("lm_head.weight", "head.weight")


def not_causal(mask: Tensor, config: GPTConfig) -> str | None:
    if mask.ndim == 4 and not torch.equal(mask.bool(), torch.ones_like(mask).tril().bool()):
        return "is another mask than the causal one"
    return None


GPT2 = Architecture(
    "GPT-2",
    "transformers",
    ("gpt2",),
    GPT,
    GPTConfig,
    FIELDS,
    settings,
    describe,
    rules,
    tied=lambda c: {"lm_head.weight": "transformer.wte.weight"} if c.tie_embeddings else {},
    unused=lambda c: {r"transformer\.h\.\d+\.attn\.(masked_)?bias": not_causal},
    # files of the model without its head have no prefix
    renamed={r"^(?=(wte|wpe|h|ln_f)\.)": "transformer."},
    aliases=SIZES,
    untie="tie_word_embeddings",
    defaults=DEFAULTS,
    classes=("GPT2LMHeadModel", "GPT2Model"),
    dropout={"resid_pdrop": ("dropout", 0.1), "embd_pdrop": ("dropout", 0.1), "attn_pdrop": ("attention_dropout", 0.1)},
    inputs=token_inputs,
    ask=lambda original, given: original(input_ids=given[0]).logits,
    outputs=lambda c: {f"blocks.{i}.post": f"transformer.h.{i}" for i in range(c.depth)} | {"norm": "transformer.ln_f"},
)
