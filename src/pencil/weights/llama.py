"""LLaMA and its kin as transformers names them: Mistral, Qwen2 and Qwen3 are LLaMAs with a part more each.

Separate query, key and value there, one joined matrix here. Their rotated pairs are halves; a model of ours with
adjacent pairs has the rows of W_Q and W_K reordered on the way.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..core.positions import yarn_strength
from ..models.config import RopePairs
from ..models.gpt import GPT, GPTConfig
from ..models.rope_pairs import reordered_rows
from .maps import Architecture, Fields, Rule, Use, check_fields, fields, joined, must_have, only, same, token_inputs

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}
BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.o_proj": "attn.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
NORMS = ("input_layernorm", "post_attention_layernorm")
MAPPED = (
    "vocab_size max_position_embeddings hidden_size num_hidden_layers num_attention_heads num_key_value_heads "
    "intermediate_size rms_norm_eps hidden_act head_dim tie_word_embeddings rope_parameters rope_scaling rope_theta "
    "original_max_position_embeddings"
)
# of rope_parameters; the kinds of scaling that ours has use the rest of them, and the others are refused as such
ROPE: dict[str, Use] = {
    **dict.fromkeys(
        "rope_theta rope_type type factor original_max_position_embeddings attention_factor beta_fast beta_slow "
        "low_freq_factor high_freq_factor truncate mscale mscale_all_dim".split(),
        "mapped",
    ),
    **dict.fromkeys(("short_factor", "long_factor"), "neutral"),  # of longrope alone
    "mrope_section": only(),
    "partial_rotary_factor": only(1),  # the library's LLaMA rotates whole heads, whatever this is
}
THETA = 10000.0  # the library's default
ORIGINAL_CONTEXT = ("llama3", "yarn", "longrope")  # kinds of scaling that read the context before it
DEFAULTS: dict[str, Any] = dict(
    num_key_value_heads=None, head_dim=None, rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=False
)
SLIDING: dict[str, Any] = dict(
    num_key_value_heads=32, use_sliding_window=False, sliding_window=4096, max_window_layers=28, layer_types=None
)
WINDOWS: dict[str, Use] = dict.fromkeys(
    ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"), "mapped"
)


def settings(theirs: Fields, kind: str) -> dict[str, Any]:
    width, heads = theirs.size("hidden_size"), theirs.size("num_attention_heads")
    rope = rotations(theirs)
    check_fields(rope, ROPE, theirs.what)
    head_width = theirs["head_dim"]
    if head_width is None and width % heads:
        raise UserError(f"this {theirs.what}'s num_attention_heads {heads} does not divide its hidden_size {width}")
    biased = bool(theirs.get("attention_bias"))
    if biased != bool(theirs.get("mlp_bias")) and kind == "llama":
        raise UserError(
            f"this {theirs.what} has attention_bias {biased} and mlp_bias {not biased}, and ours has biases in both or "
            "in none"
        )
    if biased and kind != "llama":
        raise UserError(f"this {theirs.what}'s attention_bias is True, which ours does not have: only False")
    return dict(
        **theirs.sizes(
            vocab="vocab_size", context="max_position_embeddings", depth="num_hidden_layers", hidden="intermediate_size"
        ),
        width=width,
        heads=heads,
        kv_heads=theirs["num_key_value_heads"],
        head_dim=None if head_width in (None, width / heads) else head_width,
        norm="rms",
        eps=theirs["rms_norm_eps"],
        activation=theirs.one_of("hidden_act", ACTIVATIONS),
        bias=biased,
        qkv_bias=True if kind == "qwen2" else None,
        qk_norm=kind == "qwen3",
        window=_window(theirs, kind),
        positions="rope",
        rope_theta=rope["rope_theta"],
        **_scaling(theirs, rope),
        tie_embeddings=theirs["tie_word_embeddings"],
        head_bias=False if biased and not theirs["tie_word_embeddings"] else None,
    )


def rotations(theirs: Fields, base: str = "rope_theta", fraction: str = "partial_rotary_factor") -> dict[str, Any]:
    """The table of rotations as the library's classes put it together.

    `rope_scaling`, where it is not empty, takes the place of the whole of `rope_parameters`; what the table lacks is in
    the fields beside it, by these names. The context before scaling is read beside it first.
    """
    name = "rope_scaling" if theirs.get("rope_scaling") else "rope_parameters"
    table = theirs.get(name) or {}
    if not isinstance(table, Mapping):
        raise UserError(f"this {theirs.what}'s {name} must be a table of fields, not {table!r}")
    rope = {"rope_theta": theirs.get(base, THETA), "rope_type": table.get("type", "default"), **table}
    if fraction in theirs:
        rope.setdefault("partial_rotary_factor", theirs[fraction])
    if type(rope["rope_theta"]) not in (int, float):
        raise UserError(f"this {theirs.what}'s rope_theta must be a number, not {rope['rope_theta']!r}")
    if rope["rope_type"] in ORIGINAL_CONTEXT:
        beside = theirs.get("original_max_position_embeddings")
        usual = rope.get("original_max_position_embeddings", theirs["max_position_embeddings"])
        rope["original_max_position_embeddings"] = usual if beside is None else beside
    return {**rope, "rope_theta": float(rope["rope_theta"])}


def _window(theirs: Fields, kind: str) -> int | None:
    """How many tokens each token attends to; None for all before it."""
    if kind == "llama":
        return None
    used = theirs["sliding_window"] is not None and (kind == "mistral" or theirs["use_sliding_window"])
    layers = theirs.get("layer_types")
    if layers is None:
        first = theirs["max_window_layers"] if kind != "mistral" else 0
        depth = theirs.size("num_hidden_layers")
        layers = ["sliding_attention" if used and i >= first else "full_attention" for i in range(depth)]
    kinds = set(layers)
    if kinds <= {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise UserError(
            f"this {theirs.what}'s layer_types differ between layers, and ours has one window for all blocks"
        )
    if not used:
        raise UserError(
            f"this {theirs.what}'s layer_types are sliding_attention, and use_sliding_window or sliding_window is off"
        )
    return theirs.size("sliding_window")


def _scaling(theirs: Fields, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings for rotations scaled to a longer context; empty where they are not."""
    what, kind = theirs.what, rope["rope_type"]
    if kind == "default":
        return {}
    if kind not in ("linear", "yarn", "llama3"):
        raise UserError(f"this {what}'s rotations are scaled as {kind!r}, and ours can be linear, yarn or llama3")
    trained = 1 if kind == "linear" else Fields(rope, what).size("original_max_position_embeddings")
    factor = rope.get("factor")
    if kind == "yarn" and "factor" in rope and factor is None:
        factor = theirs.size("max_position_embeddings") / trained
    if not isinstance(factor, int | float) or factor < 1:
        raise UserError(f"this {what}'s rotations have the factor {factor!r}, and ours take one of at least 1")
    if kind == "yarn" and not (
        rope["rope_theta"] > 1 and 2 * math.pi <= trained < 64 * math.pi * rope["rope_theta"] ** 2
    ):
        raise UserError(
            f"this {what}'s yarn rotations have original_max_position_embeddings {trained} and rope_theta "
            f"{rope['rope_theta']:g}, for which ours are others than the library's"
        )
    usual: dict[str, tuple[Any, ...]] = {}  # the values of their other settings that ours has
    if kind == "llama3":
        usual = {"low_freq_factor": (1,), "high_freq_factor": (4,)}
    if kind == "yarn":
        usual = {"beta_fast": (None, 0, 32), "beta_slow": (None, 0, 1)}
        if "truncate" in rope:
            usual["truncate"] = (True,)
        stated, strength = rope.get("attention_factor"), yarn_strength(factor)
        if stated is not None and not math.isclose(stated, strength, rel_tol=1e-6):
            usual["attention_factor"] = (strength,)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            usual["mscale"] = (None,)
    for name, allowed in usual.items():
        if rope.get(name) not in allowed:
            raise UserError(f"this {what}'s {kind} rotations have {name} {rope.get(name)}, which ours do not")
    return dict(
        rope_scaling=kind, rope_factor=float(factor), rope_original_context=None if kind == "linear" else trained
    )


def describe(c: GPTConfig, kind: str, name: str) -> dict[str, Any]:
    must_have(
        c,
        name,
        norm="rms",
        activation="swiglu",
        positions="rope",
        qk_norm=kind == "qwen3",
        rope_fraction=1,
        rope_scaling=(None, "linear", "yarn", "llama3"),
    )
    if kind != "llama":
        must_have(c, name, bias=False)
    must_have(c, name, qkv_bias=True if kind == "qwen2" else (None, c.bias))
    if c.bias and not c.tie_embeddings:
        must_have(c, name, head_bias=False)
    if kind == "llama":
        must_have(c, name, window=None)
    if kind == "qwen2":
        must_have(c, name, head_width=c.width // c.heads)
    rope: dict[str, Any] = {"rope_theta": c.rope_theta, "rope_type": c.rope_scaling or "default"}
    if c.rope_scaling is not None:
        rope["factor"] = c.rope_factor
        if c.rope_scaling != "linear":
            rope["original_max_position_embeddings"] = c.rope_original_context or round(c.context / c.rope_factor)
        if c.rope_scaling == "llama3":
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs: dict[str, Any] = dict(
        model_type=kind,
        architectures=[CLASSES[kind]],
        vocab_size=c.vocab,
        max_position_embeddings=c.context,
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads or c.heads,
        intermediate_size=c.mlp_width,
        rms_norm_eps=c.eps,
        hidden_act="silu",
        rope_parameters=rope,
        tie_word_embeddings=c.tie_embeddings,
    )
    if kind != "qwen2":
        theirs["head_dim"] = c.head_width
    if kind == "llama":
        theirs |= dict(attention_bias=c.bias, mlp_bias=c.bias)
    elif kind == "mistral":
        theirs["sliding_window"] = c.window
    else:
        layer = "sliding_attention" if c.window else "full_attention"
        theirs |= dict(
            use_sliding_window=c.window is not None,
            sliding_window=c.window,
            max_window_layers=0,
            layer_types=[layer] * c.depth,
        )
    return theirs


CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM"}  # fmt: skip
OLDER = {"llama": ("LLaMAForCausalLM",)}  # names of the classes in files of before


def rules(c: GPTConfig, pairs: RopePairs = "halves") -> Iterator[Rule]:
    """The tensors of a LLaMA whose rotated pairs are these, halves in transformers."""
    yield same("model.embed_tokens.weight", "tokens.weight")
    kv = (c.kv_heads or c.heads) * c.head_width
    sizes = [c.heads * c.head_width, kv, kv]
    for i in range(c.depth):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        for kind in ("weight", *["bias"] * (c.bias if c.qkv_bias is None else c.qkv_bias)):
            names = [f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            yield _paired(joined(names, f"{ours}.attn.qkv.{kind}", sizes), c, pairs)
        if c.qk_norm:
            for part in "qk":
                norm = same(f"{theirs}.self_attn.{part}_norm.weight", f"{ours}.attn.{part}_norm.weight")
                yield _paired(norm, c, pairs)
        for part, named in BLOCK.items():
            yield same(f"{theirs}.{part}.weight", f"{ours}.{named}.weight")
            if c.bias and part not in NORMS:
                yield same(f"{theirs}.{part}.bias", f"{ours}.{named}.bias")
    yield same("model.norm.weight", "norm.weight")
    if not c.tie_embeddings:
        yield same("lm_head.weight", "head.weight")


def _paired(rule: Rule, c: GPTConfig, theirs: RopePairs) -> Rule:
    """The rule for a model whose rotated pairs may be others than theirs."""
    if c.rope_pairs == theirs:
        return rule
    rotated_heads = c.heads + (c.kv_heads or c.heads)
    reorder = partial(reordered_rows, head_width=c.head_width, rotary_width=c.rotary_width, heads=rotated_heads)
    return Rule(
        rule.theirs,
        rule.ours,
        lambda tensors: [reorder(t, pairs=c.rope_pairs) for t in rule.read(tensors)],
        lambda tensors: rule.write([reorder(t, pairs=theirs) for t in tensors]),
    )


def other_frequencies(frequencies: Tensor, c: GPTConfig) -> str | None:
    rotated = c.rotary_width
    ours = c.rope_theta ** (-torch.arange(0, rotated, 2).double() / rotated)
    # a file may have rounded them to half precision
    if frequencies.shape != ours.shape or not torch.allclose(frequencies.to(ours), ours, rtol=1e-2, atol=0):
        return f"is another than its config's rope_theta {c.rope_theta:g} gives"
    return None


def _architecture(name: str, kind: str, defaults: dict[str, Any], **others: Use) -> Architecture:
    return Architecture(
        name,
        "transformers",
        (kind,),
        GPT,
        GPTConfig,
        fields(MAPPED, "attention_dropout rope_interleaved", partial_rotary_factor=only(1), **others),
        partial(settings, kind=kind),
        partial(describe, kind=kind, name=name),
        rules,
        tied=lambda c: {"lm_head.weight": "model.embed_tokens.weight"} if c.tie_embeddings else {},
        unused=lambda c: {r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq": other_frequencies},
        classes=(CLASSES[kind], CLASSES[kind].replace("ForCausalLM", "Model"), *OLDER.get(kind, ())),
        untie="tie_word_embeddings",
        dropout={"attention_dropout": ("attention_dropout", 0.0)},
        defaults=DEFAULTS | defaults,
        renamed={r"^(?=(embed_tokens|layers|norm)\.)": "model."},
        inputs=token_inputs,
        ask=lambda original, given: original(input_ids=given[0]).logits,
        outputs=lambda c: {f"blocks.{i}.post": f"model.layers.{i}" for i in range(c.depth)} | {"norm": "model.norm"},
    )


LLAMA = _architecture(
    "LLaMA",
    "llama",
    dict(attention_bias=False, mlp_bias=False),
    attention_bias="mapped",
    mlp_bias="mapped",
    rope_interleaved=only(False),
)
MISTRAL = _architecture("Mistral", "mistral", dict(num_key_value_heads=8, sliding_window=4096), sliding_window="mapped")
QWEN2 = _architecture("Qwen2", "qwen2", SLIDING, **WINDOWS)
QWEN3 = _architecture(
    "Qwen3", "qwen3", SLIDING | dict(head_dim=128, attention_bias=False), attention_bias="mapped", **WINDOWS
)
