"""What `--parity` compares: the whole context, past windows, the last timestep; and what it says of the rest."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from both_ways import CLOSE, randomise
from pencil.api.interchange.parity import compare, compare_lengths
from pencil.models.gpt import GPT
from pencil.weights.dit import DIT
from pencil.weights.gpt2 import GPT2
from pencil.weights.llama import MISTRAL
from pencil.weights.maps import Source, load

PLENTY = 1 << 40


@pytest.fixture(scope="module")
def mistral():
    """A Mistral whose window is beyond the first comparison, and ours."""
    import transformers

    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=36, intermediate_size=53, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=331, sliding_window=151,
    )  # fmt: skip
    theirs = transformers.MistralForCausalLM(config).eval()
    randomise(theirs)
    return theirs, load(MISTRAL, Source(theirs.state_dict()), MISTRAL.configure(config.to_dict()))


def worst(rows):
    return max(row.relative for row in rows)


def test_a_text_is_read_to_the_end_of_the_context_and_past_the_window(mistral):
    theirs, ours = mistral
    reached = compare_lengths(MISTRAL, theirs, ours, PLENTY)
    assert (reached.length, reached.unread) == (331, "")
    assert worst(reached.rows) <= CLOSE
    without = GPT(replace(ours.config, window=None))
    without.load_state_dict(ours.state_dict())
    assert worst(compare(MISTRAL, theirs, without.eval())) <= CLOSE  # 64 tokens do not tell
    assert worst(compare_lengths(MISTRAL, theirs, without, PLENTY).rows) > 100 * CLOSE


def test_the_last_learned_position_is_compared():
    import transformers

    config = transformers.GPT2Config(vocab_size=97, n_positions=71, n_embd=36, n_layer=1, n_head=3)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    randomise(theirs)
    ours = load(GPT2, Source(theirs.state_dict()), GPT2.configure(config.to_dict()))
    assert worst(compare_lengths(GPT2, theirs, ours, PLENTY).rows) <= CLOSE
    ours = deepcopy(ours)  # whose tensors are theirs until now
    ours.positions.table.data[70] *= 2
    assert worst(compare(GPT2, theirs, ours)) <= CLOSE
    assert worst(compare_lengths(GPT2, theirs, ours, PLENTY).rows) > 100 * CLOSE


@pytest.mark.parametrize("memory, step, length, words", [
    (PLENTY, 10.0, 128, "positions beyond 128 and the window of 151 were not compared: the time and the memory"),
    (PLENTY, 6.5, 256, "positions beyond 256 were not compared: the time and the memory do not suffice"),
    (0, 0.0, 64, "positions beyond 64 and the window of 151 were not compared: the time and the memory"),
])  # fmt: skip
def test_what_the_time_or_the_memory_leaves_out_is_named(mistral, memory, step, length, words):
    """A clock on which every look takes a while."""
    now = iter(range(1000))
    reached = compare_lengths(MISTRAL, *mistral, memory, seconds=60, clock=lambda: step * next(now))
    assert reached.length == length
    assert reached.unread.startswith(words)


def test_positions_whose_angles_float32_cannot_hold_are_named(mistral, monkeypatch):
    monkeypatch.setattr("pencil.api.interchange.parity.MAX_ROTATED_POSITIONS", 173)
    reached = compare_lengths(MISTRAL, *mistral, PLENTY)
    assert reached.length == 173
    assert reached.unread == "positions beyond 173 were not compared: the library rounds their angles in float32"


def test_the_last_timestep_is_compared_with_exact_sines():
    """As diffusers rounds them they are further away than the limit."""
    from diffusers import DiTTransformer2DModel

    values = dict(num_attention_heads=3, attention_head_dim=12, in_channels=3, num_layers=2, sample_size=6, patch_size=2,
                  num_embeds_ada_norm=7)  # fmt: skip
    torch.manual_seed(0)
    theirs = DiTTransformer2DModel(**values).eval()
    randomise(theirs)
    theirs.transformer_blocks[0].norm1.emb.timestep_embedder.linear_1.weight.data *= 5  # a model that heeds the time
    for block in theirs.transformer_blocks[1:]:
        block.norm1.emb = theirs.transformer_blocks[0].norm1.emb
    ours = load(DIT, Source(theirs.state_dict()), DIT.configure(dict(theirs.config)))
    assert DIT.inputs(ours.config, torch.Generator().manual_seed(0), 0)[1].max() == 999
    reached = compare_lengths(DIT, theirs, ours, PLENTY)
    assert (reached.length, reached.unread) == (0, "")
    assert worst(reached.rows) <= CLOSE
    assert CLOSE < worst(compare(DIT, theirs, ours, exact=False)) < 1e-3
