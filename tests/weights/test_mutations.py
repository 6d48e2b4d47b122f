"""Valid configs with one field set to another legal value: ours equals the original, or is refused; never silently
wrong."""

import random
import warnings

import pytest
import torch

from both_ways import CLOSE
from conftest import unchecked
from pencil.config import UserError
from pencil.families.registry import FAMILIES
from pencil.weights.maps import Source, load
from pencil.weights.parity import compare
from pencil.weights.transformers_fields import COMMON

KINDS = {
    kind: one
    for record in FAMILIES.values()
    for one in record.checkpoints
    if one.library == "transformers"
    for kind in one.types
}
# small sizes, for whichever of these fields a config has
SMALL = dict(
    vocab_size=97, hidden_size=36, n_embd=36, d_model=36, num_hidden_layers=2, n_layer=2, num_layers=2, encoder_layers=2,
    decoder_layers=2, num_decoder_layers=2, num_attention_heads=3, n_head=3, num_heads=3, encoder_attention_heads=3,
    decoder_attention_heads=3, num_key_value_heads=3, intermediate_size=53, d_ff=53, encoder_ffn_dim=53,
    decoder_ffn_dim=53, d_kv=12, head_dim=12, max_position_embeddings=31, n_positions=31, image_size=14, patch_size=7,
    pad_token_id=1, eos_token_id=2, bos_token_id=3, decoder_start_token_id=1, decoder_vocab_size=97, sliding_window=5,
    max_window_layers=0, forced_eos_token_id=2,
)  # fmt: skip
ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh", "quick_gelu", "gelu_fast", "tanh"]
ROPE = dict(rope_type="default", rope_theta=10000.0)
YARN = ROPE | dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=16)
LLAMA3 = YARN | dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0)
# the legal values of fields that are no number and no boolean
CHOICES = {
    "hidden_act": ACTIVATIONS, "activation_function": ACTIVATIONS, "dense_act_fn": ACTIVATIONS, "pooler_act": ACTIVATIONS,
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu_new", "gated-relu"],
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query"],
    "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2, ["full_attention", "sliding_attention"]],
    "rope_parameters": [
        ROPE | dict(rope_theta=300.0), ROPE | dict(partial_rotary_factor=0.5), ROPE | dict(rope_type="linear", factor=3.0),
        ROPE | dict(rope_type="dynamic", factor=2.0), YARN, YARN | dict(beta_fast=8), YARN | dict(attention_factor=1.3),
        YARN | dict(truncate=False), YARN | dict(mscale=0.7, mscale_all_dim=1.0), LLAMA3, LLAMA3 | dict(low_freq_factor=2.0),
        LLAMA3 | dict(rope_theta=77.0),
    ],
    "image_size": [21, [14, 21]], "patch_size": [2, [7, 14]], "summary_type": ["mean", "first"],
}  # fmt: skip
NOT_TO_CHANGE = {"architectures", "model_type", "transformers_version", "dtype", "id2label", "label2id", "_name_or_path",
                 "num_labels", "problem_type", "pruned_heads"}  # fmt: skip


def another(draw, name, value):
    """Another legal value of a field."""
    if name in CHOICES:
        return draw.choice([one for one in CHOICES[name] if one != value])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(
            [one for one in (value + 1, value - 1, 2 * value, 3 * value, value // 3, 1, 0) if one != value]
        )
    if isinstance(value, float):
        return draw.choice([one for one in (2 * value, value / 3, 0.1, 1e-3, 1.0) if one != value])
    if isinstance(value, str):
        return "another"
    return draw.choice([1, 3, 5, 12, 24, True, 0.1])


def mutated(draw):
    """A kind, the fields of a small config of it with one of them changed, and the name of that one."""
    from transformers import AutoConfig

    kind = draw.choice(sorted(KINDS))
    every = AutoConfig.for_model(kind).to_dict()
    given = {name: value for name, value in SMALL.items() if name in every}
    names = sorted((set(every) | set(AutoConfig.for_model(kind).attribute_map)) - NOT_TO_CHANGE)
    # fields that every config has concern generation and training: only some of the draws
    own = [name for name in names if name not in COMMON] if draw.random() < 0.85 else names
    name = draw.choice(own)
    return kind, given | {name: another(draw, name, (every | given).get(name))}, name


def original(kind, given):
    """The library's own model of a config, or None where the library itself refuses it."""
    import transformers as hf

    config = hf.AutoConfig.for_model(kind, **given)
    tasks = (
        hf.AutoModelForSeq2SeqLM,
        hf.AutoModelForImageClassification,
        hf.AutoModelForMaskedLM,
        hf.AutoModelForCausalLM,
    )
    found = next(one._model_mapping[type(config)] for one in tasks if type(config) in one._model_mapping)
    torch.manual_seed(1)
    model = (found[0] if isinstance(found, tuple) else found)._from_config(config, attn_implementation="eager").eval()
    config.architectures = [type(model).__name__]
    for parameter in model.parameters():  # not as initialised, which the config decides too
        torch.nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 0.5, 0.1 if parameter.ndim > 1 else 0.3)
    return model


def outcome(draw):
    """What became of one mutation: equal, refused, or None where the original cannot be built or run."""
    kind, given, name = mutated(draw)
    architecture, results = KINDS[kind], set()
    try:
        theirs = original(kind, given)
    except Exception:
        return None
    named = {"model_type": kind, "architectures": theirs.config.architectures}
    # as a file has it, with every field; and as one that leaves out what is the library's default
    for config in (theirs.config.to_dict(), named | given):
        source = Source(theirs.state_dict())
        try:
            ours = load(architecture, source, architecture.configure(config, source))
        except UserError as refusal:
            results.add(f"refused: {refusal}")
            continue
        asked = architecture.inputs(ours.config, torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                if not architecture.ask(theirs, asked).isfinite().all():
                    return None
        except Exception:
            return None
        for difference in compare(architecture, theirs, ours):
            assert difference.relative <= CLOSE, (kind, name, given[name], difference)
        results.add("equal")
    return kind, name, given[name], sorted(results)


def check(count, seed):
    import transformers

    transformers.logging.set_verbosity_error()
    draw, found = random.Random(seed), []
    torch.set_default_dtype(torch.float64)  # so that rounding in odd models is not taken for a difference
    try:
        with unchecked(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while len(found) < count:
                if (one := outcome(draw)) is not None:
                    found.append(one)
    finally:
        torch.set_default_dtype(torch.float32)
    equal = sum(results == ["equal"] for *_, results in found)
    # neither everything refused nor everything without effect
    assert 0.2 * count < equal < 0.95 * count, [(kind, name, results) for kind, name, _, results in found]
    return found


def test_a_mutated_config_is_equal_or_refused():
    check(25, seed=18)


@pytest.mark.long
def test_200_mutated_configs_are_equal_or_refused():
    check(200, seed=5)
