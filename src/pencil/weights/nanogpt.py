"""Checkpoints of nanoGPT: a GPT-2 with plain matrices and optional biases. No other program reads its files, so it is
only imported."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ..models.gpt import GPT, GPTConfig
from .gpt2 import not_causal, rules
from .maps import MAPPED, NEUTRAL, Architecture, Fields, Use, equal_tensors, only, same, token_inputs

NAME = "nanoGPT"
GPT2_VOCABULARIES = (50257, 50304)  # the second is the first, made a multiple of 64
ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu-tanh"}
# its model_args, what its checkpoint holds beside them, and what a user may add
FIELDS: dict[str, Use] = {
    **dict.fromkeys("vocab_size block_size n_layer n_head n_embd bias activation tie_word_embeddings".split(), MAPPED),
    **dict.fromkeys("dropout iter_num best_val_loss".split(), NEUTRAL),
    "model_type": only("nanogpt"),
}


def settings(theirs: Fields) -> dict[str, Any]:
    return dict(
        **theirs.sizes(vocab="vocab_size", context="block_size", width="n_embd", depth="n_layer", heads="n_head"),
        bias=bool(theirs.given("bias", True)),
        positions="learned",
        tie_embeddings=(tied := bool(theirs.given("tie_word_embeddings", True))),
        head_bias=None if tied else False,
        # model_args name the bias since January 2023; before it, the GELU was the tanh form
        activation=theirs.one_of("activation", ACTIVATIONS, "gelu-tanh" if theirs.get("bias") is None else "gelu"),
    )


def values(read: Callable[[str], Tensor | None]) -> dict[str, Any]:
    """Its head is the table of tokens, and in models made of it perhaps not: its file says so by what it holds."""
    head, table = read("lm_head.weight"), read("transformer.wte.weight")
    return {"tie_word_embeddings": head is None or table is None or equal_tensors(head, table)}


def remarks(c: GPTConfig) -> tuple[str, ...]:
    """What its file leaves open."""
    tokens = "nanoGPT keeps its characters in meta.pkl, which is not read, since a pickle can run code"
    if c.vocab in GPT2_VOCABULARIES:
        tokens = f"{c.vocab} tokens are those of GPT-2: --tokenizer gpt2, if it was trained with them"
    if c.activation == "gelu-tanh":
        return (tokens,)
    return tokens, (
        "its GELU is read as the exact one, which nanoGPT has since May 2023, and its file does not say which it has; "
        'for one trained before, write {"activation": "gelu-tanh"} into a config.json beside it'
    )


NANOGPT = Architecture(
    NAME,
    "nanogpt",
    ("nanogpt",),
    GPT,
    GPTConfig,
    FIELDS,
    settings,
    None,
    partial(rules, matrix=same, always_biased=False),
    tied=lambda c: {"lm_head.weight": "transformer.wte.weight"} if c.tie_embeddings else {},
    values=values,
    unused=lambda c: {r"transformer\.h\.\d+\.attn\.bias": not_causal},
    renamed={r"^_orig_mod\.": ""},  # of a compiled model
    remarks=remarks,
    inputs=token_inputs,
    ask=lambda original, given: original(given[0]),
    outputs=lambda c: {f"blocks.{i}.post": f"transformer.h.{i}" for i in range(c.depth)} | {"norm": "transformer.ln_f"},
)
