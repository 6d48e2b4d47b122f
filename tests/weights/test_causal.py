"""GPT-2, LLaMA, Mistral, Qwen2 and Qwen3 of transformers: in, beside the original, and back."""

import pytest
import torch

from both_ways import both_ways, randomise
from pencil.models.gpt import GPT, GPTConfig
from pencil.weights.gpt2 import GPT2
from pencil.weights.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from pencil.weights.maps import Source, load, write
from pencil.weights.neox import NEOX

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GPT2S = [
    dict(vocab_size=103, n_positions=37, n_embd=42, n_layer=2, n_head=6, n_inner=59),
    dict(vocab_size=2, n_positions=5, n_embd=13, n_layer=3, n_head=1, activation_function="relu"),
    dict(vocab_size=53, n_positions=1, n_embd=34, n_layer=1, n_head=2, layer_norm_epsilon=1e-3),
    dict(vocab_size=71, n_positions=19, n_embd=35, n_layer=2, n_head=5, tie_word_embeddings=False),
    dict(vocab_size=67, n_positions=23, n_embd=26, n_layer=2, n_head=2, activation_function="gelu"),
]
SIZES = dict(vocab_size=103, hidden_size=84, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=3, max_position_embeddings=37)  # fmt: skip
LLAMAS = [
    SIZES,
    SIZES | dict(vocab_size=2, hidden_size=22, num_attention_heads=1, num_key_value_heads=1),
    SIZES | dict(max_position_embeddings=1, num_hidden_layers=1, tie_word_embeddings=True),
    SIZES | dict(num_key_value_heads=1, rms_norm_eps=1e-3),
    SIZES | dict(num_key_value_heads=6, head_dim=22),
]
KINDS = {
    "llama": (LLAMA, [*LLAMAS, SIZES | dict(attention_bias=True, mlp_bias=True)]),
    "mistral": (MISTRAL, [*LLAMAS, SIZES | dict(sliding_window=7)]),
    "qwen2": (QWEN2, [*LLAMAS[:4], SIZES | dict(use_sliding_window=True, sliding_window=5, max_window_layers=0)]),
    "qwen3": (QWEN3, [*LLAMAS, SIZES | dict(head_dim=26, use_sliding_window=True, sliding_window=5, max_window_layers=0)]),
}  # fmt: skip


def causal(described):
    """A model of transformers, made from a plain config."""
    import transformers

    config = transformers.AutoConfig.for_model(**described)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def check(architecture, kind, sizes):
    theirs = causal({"model_type": kind, **sizes})
    return both_ways(architecture, theirs, theirs.config.to_dict(), causal)


@pytest.mark.parametrize("sizes", GPT2S)
def test_gpt2(sizes):
    check(GPT2, "gpt2", sizes)


# sizes that LLaMA's cases in the short form have, in models that differ from it in other things
AGAIN = [
    pytest.param(kind, sizes, marks=pytest.mark.long if kind != "llama" and sizes in LLAMAS[1:4] else ())
    for kind, (_, all) in KINDS.items()
    for sizes in all
]


@pytest.mark.parametrize("kind, sizes", AGAIN)
def test_llama_and_its_kin(kind, sizes):
    check(KINDS[kind][0], kind, sizes)


NEOXES = [
    dict(vocab_size=103, hidden_size=42, intermediate_size=59, num_hidden_layers=2, num_attention_heads=3,
         max_position_embeddings=37, rope_parameters=dict(rope_theta=10000.0, partial_rotary_factor=1.0)),
    dict(vocab_size=2, hidden_size=16, intermediate_size=5, num_hidden_layers=3, num_attention_heads=1,
         max_position_embeddings=5, tie_word_embeddings=True),
    dict(vocab_size=53, hidden_size=34, intermediate_size=11, num_hidden_layers=1, num_attention_heads=1,
         max_position_embeddings=1, layer_norm_eps=1e-3),
    dict(vocab_size=71, hidden_size=140, intermediate_size=13, num_hidden_layers=2, num_attention_heads=5,
         max_position_embeddings=19, hidden_act="relu", rope_parameters=dict(rope_theta=97.0, partial_rotary_factor=0.5)),
    dict(vocab_size=67, hidden_size=52, intermediate_size=17, num_hidden_layers=2, num_attention_heads=2,
         max_position_embeddings=23, hidden_act="gelu_new"),
]  # fmt: skip


@pytest.mark.parametrize("sizes", NEOXES)
def test_neox(sizes):
    check(NEOX, "gpt_neox", sizes | dict(use_parallel_residual=False))


@pytest.mark.parametrize("architecture, kind", [(GPT2, "gpt2"), (NEOX, "gpt_neox")])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_biases_is_exported_with_zeros_for_them(architecture, kind, tied):
    positions = "learned" if kind == "gpt2" else "rope"
    config = GPTConfig(vocab=101, context=19, width=42, depth=2, heads=3, positions=positions, bias=False,
                       tie_embeddings=tied)  # fmt: skip
    torch.manual_seed(5)
    ours = GPT(config).eval()
    randomise(ours)
    theirs = causal(architecture.describe(config)).eval()
    theirs.load_state_dict(dict(write(architecture, ours.state_dict(), config)), strict=not tied)
    theirs.tie_weights()
    ids = torch.randint(101, (3, 19))
    expected = theirs(input_ids=ids).logits
    assert (ours(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()
    # taken in again it has the biases, and is the same model
    again = load(architecture, Source(theirs.state_dict()), architecture.configure(theirs.config.to_dict()))
    assert again.config.bias
    assert (again(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()
