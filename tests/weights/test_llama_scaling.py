"""Rotations slowed to read further, against transformers: their frequencies, and whole LLaMAs that use them."""

import math
from dataclasses import replace

import pytest
import torch

from pencil.config import UserError
from pencil.core.positions import Rope, frequencies, ntk, rotate
from pencil.core.span import Span
from pencil.families import create
from pencil.models.gpt import GPTConfig
from pencil.weights.llama import LLAMA
from pencil.weights.maps import Source, load

# heads 14 wide: seven pairs, of which some are kept, some are slowed and some are between
SIZES = dict(vocab_size=103, hidden_size=84, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=3, max_position_embeddings=148)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=37)  # fmt: skip
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=37)
SCALINGS = [
    dict(rope_type="linear", rope_theta=100.0, factor=3.0),
    dict(rope_type="linear", rope_theta=10000.0, factor=2.5),
    YARN,
    {**YARN, "original_max_position_embeddings": 1009, "factor": 7.0},
    {**YARN, "rope_theta": 13.0, "original_max_position_embeddings": 499},
    {**YARN, "attention_factor": 0.1 * math.log(4) + 1, "beta_fast": 32, "beta_slow": 1},
    LLAMA3,
    {**LLAMA3, "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 67},
    {**LLAMA3, "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 8192},
]


def config_of(scaling, **values):
    from transformers import LlamaConfig

    length = scaling.get("original_max_position_embeddings", 37) * 4
    return LlamaConfig(**{**SIZES, "max_position_embeddings": length, **values}, rope_parameters=dict(scaling))


def omegas(config):
    """The frequencies of our model: the angle of each pair at position 1."""
    positions = create("gpt", config).positions
    assert isinstance(positions, Rope)
    return positions, positions.angles(torch.ones(1, 1, 1))[0, 0]


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_frequencies_equal_transformers(scaling):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = config_of(scaling)
    expected, strength = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs)
    config = LLAMA.configure(theirs.to_dict())
    positions, found = omegas(config)
    torch.testing.assert_close(found.float(), expected, atol=0, rtol=2e-6)  # theirs are powers in float32
    assert positions.strength == pytest.approx(strength, rel=1e-12)
    plain = frequencies(7, scaling["rope_theta"], torch.device("cpu"))
    assert not torch.allclose(found, plain)


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("scaling", SCALINGS)
def test_logits_equal_transformers_llama_with_scaled_rotations(scaling):
    from transformers import LlamaForCausalLM

    torch.manual_seed(3)
    # smaller weights than elsewhere: their angles are float32, which larger ones would raise above the tolerance
    theirs = LlamaForCausalLM(config_of(scaling, initializer_range=0.1)).eval()
    config = LLAMA.configure(theirs.config.to_dict())
    ours = load(LLAMA, Source(theirs.state_dict()), config)
    ids = torch.randint(0, 103, (2, 61), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        found = ours(ids)
        torch.testing.assert_close(found, theirs(ids).logits, atol=1e-5, rtol=1e-5)
        plain = create("gpt", replace(config, rope_scaling=None)).eval()
        plain.load_state_dict(ours.state_dict())
        assert (plain(ids) - found).abs().max() > 1e-2  # the scaling has an effect


@pytest.mark.parametrize("pairs, base, factor", [(7, 10000.0, 4.0), (2, 100.0, 8.0), (32, 500000.0, 1.7)])
def test_ntk_raises_the_base(pairs, base, factor):
    d = 2 * pairs
    raised = base * factor ** (d / (d - 2))
    found = ntk(factor, frequencies(pairs, base, torch.device("cpu")))
    expected = torch.tensor([raised ** (-2 * i / d) for i in range(pairs)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-12)


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("heads, width, share", [(3, 60, 0.3), (5, 110, 0.55), (7, 98, 1.0)])
def test_rotating_a_part_of_each_head_equals_transformers_gpt_neox(heads, width, share):
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": 313.0, "partial_rotary_factor": share}
    theirs = GPTNeoXRotaryEmbedding(
        GPTNeoXConfig(hidden_size=width, num_attention_heads=heads, max_position_embeddings=53, rope_parameters=rope)
    )
    config = GPTConfig(vocab=11, width=width, heads=heads, depth=1, context=53, rope_theta=313.0, rope_fraction=share)
    torch.manual_seed(5)
    q, k = torch.randn(2, 2, heads, 29, width // heads).unbind()
    cos, sin = theirs(q, torch.arange(29)[None])
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    _, span = create("gpt", config).positions(torch.zeros(1, 29, width), Span.whole(29))
    assert span.rotation is not None
    assert span.rotation[0].shape[-1] == int(share * width // heads) // 2
    for rotated, wanted in zip((rotate(q, span.rotation), rotate(k, span.rotation)), expected, strict=True):
        torch.testing.assert_close(rotated, wanted, atol=1e-5, rtol=1e-5)


def test_the_names_of_older_files_are_read():
    """rope_scaling beside rope_theta, its kind called type, and the trained length beside it."""
    older = {"model_type": "llama", **SIZES, "rms_norm_eps": 1e-6, "rope_theta": 100.0}
    linear = LLAMA.configure({**older, "rope_scaling": {"type": "linear", "factor": 3.0}})
    assert (linear.rope_scaling, linear.rope_factor, linear.rope_theta) == ("linear", 3, 100)
    yarn = LLAMA.configure(
        {**older, "rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 37}
    )
    assert (yarn.rope_scaling, yarn.rope_factor, yarn.rope_original_context) == ("yarn", 4, 37)
    # without a factor it is the ratio of the lengths
    yarn = LLAMA.configure({**older, "rope_scaling": {**YARN, "factor": None}})
    assert (yarn.rope_factor, yarn.rope_original_context) == (4, 37)
    plain = LLAMA.configure({**older, "rope_scaling": None})
    assert (plain.rope_scaling, plain.rope_theta) == (None, 100)


@pytest.mark.parametrize("values, words", [
    (dict(rope_parameters=dict(rope_type="dynamic", factor=2.0)), "scaled as 'dynamic'"),
    (dict(rope_scaling=dict(type="dynamic", factor=2.0)), "scaled as 'dynamic'"),
    (dict(rope_parameters=dict(rope_type="longrope", factor=2.0)), "scaled as 'longrope'"),
    (dict(rope_parameters={**LLAMA3, "low_freq_factor": 2.0}), "low_freq_factor 2.0"),
    (dict(rope_parameters={**LLAMA3, "high_freq_factor": 8.0}), "high_freq_factor 8.0"),
    (dict(rope_parameters={**YARN, "beta_fast": 16}), "beta_fast 16"),
    (dict(rope_parameters={**YARN, "beta_slow": 2}), "beta_slow 2"),
    (dict(rope_parameters={**YARN, "truncate": False}), "truncate False"),
    (dict(rope_parameters={**YARN, "attention_factor": 1.5}), "attention_factor 1.5"),
    (dict(rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}), "mscale 0.7"),
    (dict(rope_parameters=dict(rope_type="linear", factor=0.5)), "at least 1"),
    # the library's LLaMA rotates whole heads all the same
    (dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5)), "partial_rotary_factor is 0.5"),
    (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    (dict(rope_parameters=dict(rope_type="default", mrope_section=[2, 2, 3])), "mrope_section is"),
    (dict(rope_parameters=dict(rope_type="default", spiral=2)), "spiral = 2, which Pencil does not know"),
    (dict(rope_parameters="default"), "rope_parameters must be a table"),
    (dict(attention_bias=True), "attention_bias True and mlp_bias False"),
    (dict(hidden_act="gelu"), "hidden_act is 'gelu'"),
    (dict(head_dim=23), "head width must be even"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        LLAMA.configure({"model_type": "llama", **SIZES, "rms_norm_eps": 1e-6, **values})
