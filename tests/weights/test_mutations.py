"""Configs with a field that is missing, null, given twice or changed: ours is resolved as by the library's own class, or
refused; never silently something else."""

import random
import warnings
from collections import Counter

import pytest
import torch

from both_ways import CLOSE
from conftest import unchecked
from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.families.family import FAMILIES
from pencil.models.build import make_positions
from pencil.weights.maps import COMMON, MAPPED, Only, Source, load

KINDS = {
    kind: one
    for record in FAMILIES.values()
    for one in record.checkpoints
    if one.library == "transformers"
    for kind in one.types
}
# the class with the most to resolve; one with labels beside those that have none
CLASSES = {
    "gpt2": ["GPT2LMHeadModel"], "llama": ["LlamaForCausalLM"], "mistral": ["MistralForCausalLM"],
    "qwen2": ["Qwen2ForCausalLM"], "qwen3": ["Qwen3ForCausalLM"], "gpt_neox": ["GPTNeoXForCausalLM"],
    "vit": ["ViTForImageClassification"], "deit": ["DeiTForImageClassification"],
    "bert": ["BertForMaskedLM", "BertForSequenceClassification"],
    "roberta": ["RobertaForMaskedLM", "RobertaForSequenceClassification"], "marian": ["MarianMTModel"],
    "t5": ["T5ForConditionalGeneration"],
}  # fmt: skip
# small sizes, for whichever of these fields a config has
SMALL = dict(
    vocab_size=97, hidden_size=36, n_embd=36, d_model=36, num_hidden_layers=2, n_layer=2, num_layers=2, encoder_layers=2,
    decoder_layers=2, num_decoder_layers=2, num_attention_heads=3, n_head=3, num_heads=3, encoder_attention_heads=3,
    decoder_attention_heads=3, num_key_value_heads=3, intermediate_size=53, d_ff=53, encoder_ffn_dim=53,
    decoder_ffn_dim=53, d_kv=12, head_dim=12, max_position_embeddings=31, n_positions=31, image_size=14, patch_size=7,
    num_channels=3, pad_token_id=1, eos_token_id=2, bos_token_id=3, decoder_start_token_id=1, decoder_vocab_size=97,
    sliding_window=5, max_window_layers=0, use_sliding_window=True, forced_eos_token_id=2, use_parallel_residual=False,
)  # fmt: skip
ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh", "quick_gelu", "gelu_fast", "tanh"]
SAME_ACTIVATION = {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}
ROPE = dict(rope_type="default", rope_theta=10000.0)
YARN = ROPE | dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=16)
LLAMA3 = YARN | dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0)
ROTATIONS = [
    ROPE | dict(rope_theta=300.0), ROPE | dict(partial_rotary_factor=0.5), ROPE | dict(rope_type="linear", factor=3.0),
    ROPE | dict(rope_type="dynamic", factor=2.0), YARN, YARN | dict(beta_fast=8), YARN | dict(attention_factor=1.3),
    YARN | dict(truncate=False), YARN | dict(mscale=0.7, mscale_all_dim=1.0), LLAMA3, LLAMA3 | dict(low_freq_factor=2.0),
    LLAMA3 | dict(rope_theta=77.0), {"type": "linear", "factor": 2.0}, {"type": "linear", "rope_type": "default"},
    {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8},
    YARN | dict(truncate=None), {"rope_type": "linear"}, {"factor": 2.0}, {"rope_theta": None}, {}, None,
]  # fmt: skip
# the legal values of fields that are no number and no boolean
CHOICES = {
    "hidden_act": ACTIVATIONS, "activation_function": ACTIVATIONS, "dense_act_fn": ACTIVATIONS, "pooler_act": ACTIVATIONS,
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu_new", "gated-relu"],
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query"],
    "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2, ["full_attention", "sliding_attention"]],
    "rope_parameters": ROTATIONS, "rope_scaling": ROTATIONS, "image_size": [21, [14, 21]], "patch_size": [2, [7, 14]],
    "summary_type": ["mean", "first"], "problem_type": ["regression", "single_label_classification"],
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"0": "a", "1": "b"}, {}],
}  # fmt: skip
# other names of what a config has already, or of what it leaves out: (a field that says the same, name, values)
TWICE = [
    ("rope_parameters", "rope_scaling", ROTATIONS), ("rope_parameters", "rope_theta", [300.0, 10000.0, 10000]),
    ("rope_parameters", "partial_rotary_factor", [1.0, 0.5]), ("rope_parameters", "rotary_emb_base", [300, 10000]),
    ("rope_parameters", "rotary_pct", [0.25, 0.5, 1.0]),
    ("rope_parameters", "original_max_position_embeddings", [8, 16, 31]), ("id2label", "num_labels", [2, 3, 5, 1]),
    ("num_labels", "id2label", CHOICES["id2label"]), ("dtype", "torch_dtype", ["float16", "float32"]),
    ("feed_forward_proj", "is_gated_act", [True, False, None]), ("feed_forward_proj", "dense_act_fn", ACTIVATIONS),
    ("feed_forward_proj", "scale_decoder_outputs", [True, False, None]), ("n_positions", "n_ctx", [31, 64]),
    ("feed_forward_proj", "tie_word_embeddings", [True, False, None]),
]  # fmt: skip
NOT_TO_CHANGE = {"architectures", "model_type", "transformers_version", "dtype", "label2id", "_name_or_path",
                 "pruned_heads"}  # fmt: skip
MISSING = object()


def others(name, value):
    """Other legal values of a field, and some that are not."""
    if name in CHOICES:
        return [one for one in CHOICES[name] if one != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [one for one in dict.fromkeys((value + 1, 2 * value, 1, 0)) if one != value]
    if isinstance(value, float):
        return [one for one in (2 * value, 0.1, 1.0) if one != value]
    if isinstance(value, str):
        return ["another"]
    return [1, 3, 12, True, 0.1]


def small(kind):
    """The sizes of a small config, and every field of it."""
    from transformers import CONFIG_MAPPING

    known = CONFIG_MAPPING[kind]().to_dict()
    sizes = {name: value for name, value in SMALL.items() if name in known}
    if kind == "gpt_neox":
        sizes["hidden_size"] = 48  # a quarter of a head is rotated, which must be even
    every = CONFIG_MAPPING[kind](**sizes).to_dict()
    return sizes, every


def mutations(kind):
    """Changes of single fields: a name and its value, or MISSING."""
    from transformers import CONFIG_MAPPING

    every = small(kind)[1]
    own = [name for name in every if name not in NOT_TO_CHANGE and (name not in COMMON or name in KINDS[kind].defaults)]
    for name in own:
        yield name, MISSING
        yield name, None
        for value in others(name, every[name]):
            yield name, value
    for alias, name in CONFIG_MAPPING[kind].attribute_map.items():
        for value in (every[name], *others(name, every[name])[:2], None):
            yield alias, value
    for beside, name, values in TWICE:
        if beside in every or beside == "num_labels":
            for value in values:
                yield name, value
    yield "num_labels", MISSING
    yield "id2label", MISSING
    yield "a_field_that_nobody_has", 3


def cases(count, seed):
    """Configs of every kind: each change alone, in a file with every field and in one with the sizes only; and then
    several changes at once. What was changed, the kind and the fields."""
    draw, singles = random.Random(seed), {kind: list(mutations(kind)) for kind in sorted(KINDS)}
    bases, made = {kind: small(kind) for kind in singles}, 0
    for several, base in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (2, 0), (3, 1)):
        every = [(kind, one) for kind, each in singles.items() for one in each]
        draw.shuffle(every)
        for kind, one in every[: max(0, count - made)]:
            changed = dict([one, *draw.sample(singles[kind], several - 1)])
            named = {"model_type": kind, "architectures": [draw.choice(CLASSES[kind])]}
            fields = bases[kind][base] | named | changed
            yield changed, kind, {name: value for name, value in fields.items() if value is not MISSING}
        made += len(every)


def library_config(kind, fields):
    """The library's config of these fields, with what its model's constructor adds; None where the library refuses."""
    from copy import deepcopy

    from transformers import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[kind](**deepcopy(fields))  # what from_pretrained does with a file's fields
        if hasattr(config, "rope_parameters"):
            config.standardize_rope_params()
        return config
    except Exception:
        return None


def rotation(config):
    """The library's frequencies and the factor of its attention; None where its model refuses them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = config.rope_parameters["rope_type"]
    rotary = GPTNeoXRotaryEmbedding if config.model_type == "gpt_neox" else LlamaRotaryEmbedding
    try:
        return (rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind])(config)
    except Exception:
        return None


def plain(name, value):
    """A field's value without the differences that no model has."""
    if name == "id2label":
        return len(value)
    if name in ("image_size", "patch_size"):
        return list(value) if isinstance(value, list | tuple) else [value, value]
    return SAME_ACTIVATION.get(value, value) if isinstance(value, str) else value


def differences(architecture, ours, theirs):
    """Fields of the library's config that the config of ours does not stand for."""
    described, found = architecture.describe(ours), {}
    wanted = {name: getattr(theirs, name, None) for name in described if architecture.fields.get(name) == MAPPED}
    for name in ("architectures", "rope_parameters", "use_sliding_window", "max_window_layers", "is_encoder_decoder"):
        wanted.pop(name, None)
    if "layer_types" in wanted:  # a window that no layer has does not count
        wanted["sliding_window"] = theirs.sliding_window if "sliding_attention" in theirs.layer_types else None
    if "n_inner" in wanted:
        wanted["n_inner"] = 4 * theirs.n_embd if theirs.n_inner is None else theirs.n_inner
    if theirs.model_type == "t5":
        wanted.pop("n_positions")  # a length that its library does not have
        wanted.pop("feed_forward_proj")  # what the next two are made of
        wanted["is_gated_act"] = bool(theirs.is_gated_act)
        wanted["tie_word_embeddings"] = bool(theirs.scale_decoder_outputs)
    if theirs.model_type == "marian" and theirs.share_encoder_decoder_embeddings:
        wanted["decoder_vocab_size"] = theirs.vocab_size
    if getattr(ours, "output", None) == "words":
        wanted["tie_word_embeddings"], described["tie_word_embeddings"] = theirs.tie_word_embeddings, True
    for name, value in wanted.items():
        if plain(name, value) != plain(name, described[name]):
            found[name] = (value, described[name])
    for name, use in architecture.fields.items():
        value = getattr(theirs, name, None)
        if isinstance(use, Only) and value is not None and value not in use.values:
            found[name] = (value, "not there")
    if hasattr(theirs, "rope_parameters") and (rotated := rotation(theirs)) is not None:
        rope = make_positions("rope", ours, (ours.context,))
        angles = rope.angles(torch.ones(1, 1, 1))[0, 0].float()
        if angles.shape != rotated[0].shape or not torch.allclose(angles, rotated[0], rtol=1e-5, atol=0):
            found["frequencies"] = (rotated[0], angles)
        if abs(rope.strength**2 - rotated[1] ** 2) > 1e-6:
            found["attention factor"] = (rotated[1], rope.strength)
    return found


def check(count, seed, compared):
    """Of so many configs each is refused, or what `compared` finds to be the library's; returns how many are."""
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    equal = Counter()
    with unchecked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for changed, kind, fields in cases(count, seed):
            if compared(kind, fields, changed):
                equal[kind] += 1
    # neither everything refused nor everything without effect
    assert 0.3 * count < equal.total() < 0.8 * count, equal
    assert all(equal[kind] > count / 200 for kind in KINDS), equal


def resolved(kind, fields, changed):
    try:
        ours = KINDS[kind].configure(fields)
    except UserError:
        return False
    if (theirs := library_config(kind, fields)) is None:
        return False
    assert not (found := differences(KINDS[kind], ours, theirs)), (kind, changed, found)
    return True


def test_fields_are_resolved_as_by_the_library_or_refused():
    check(2000, 7, resolved)


@pytest.mark.long
def test_10000_configs_are_resolved_as_by_the_library_or_refused():
    check(10000, 8, resolved)


def test_what_a_file_says_is_what_its_fields_say(tmp_path):
    """The library's class, called with the fields, is what it makes of a folder."""
    import json

    from transformers import AutoConfig

    for number, (_, kind, fields) in enumerate(cases(40, seed=9)):
        if (direct := library_config(kind, fields)) is None:
            continue
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text(json.dumps(fields))
        read = AutoConfig.from_pretrained(tmp_path / str(number))
        read.standardize_rope_params() if hasattr(read, "rope_parameters") else None
        assert read.to_dict() == direct.to_dict() | {"_name_or_path": str(tmp_path / str(number))}


def original(kind, fields):
    """The library's own model of a config with random weights, or None where the library itself refuses it."""
    import transformers as hf

    config = library_config(kind, fields)
    try:
        torch.manual_seed(1)
        found = getattr(hf, (fields.get("architectures") or CLASSES[kind])[0])
        model = found._from_config(config, dtype=torch.get_default_dtype(), attn_implementation="eager").eval()
    except Exception:
        return None
    # not as initialised, which the config decides too; a frozen one is computed, not learned
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        torch.nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 0.5, 0.1 if parameter.ndim > 1 else 0.3)
    return model


def computes_the_same(kind, fields, changed):
    """Refused, or equal in every block; also False where the original cannot be built or run."""
    architecture = KINDS[kind]
    try:
        architecture.configure(fields)
        if (theirs := original(kind, fields)) is None:
            return False
        source = Source(theirs.state_dict())
        ours = load(architecture, source, architecture.configure(fields, source))
    except UserError:
        return False
    asked = architecture.inputs(ours.config, torch.Generator().manual_seed(0), getattr(ours.config, "context", 0))
    try:
        with torch.no_grad():
            if not architecture.ask(theirs, asked).isfinite().all():
                return False
    except Exception:
        return False
    for difference in compare(architecture, theirs, ours):
        assert difference.relative <= CLOSE, (kind, changed, difference)
    return True


@pytest.mark.long
def test_600_configs_compute_the_same_or_are_refused():
    torch.set_default_dtype(torch.float64)  # so that rounding in odd models is not taken for a difference
    try:
        check(600, 5, computes_the_same)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3"])
def test_a_window_that_the_file_leaves_out_is_the_librarys(kind):
    """4,096 tokens, seen by a text that is longer."""
    fields = {name: value for name, value in small(kind)[0].items() if name != "sliding_window"}
    fields |= dict(architectures=CLASSES[kind], max_position_embeddings=5003, num_hidden_layers=1)
    fields |= {} if kind == "mistral" else dict(use_sliding_window=True)
    theirs = original(kind, fields)
    ours = load(KINDS[kind], Source(theirs.state_dict()), KINDS[kind].configure(fields))
    assert ours.config.window == 4096
    tokens = torch.randint(97, (1, 4201), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, other = ours(tokens), theirs(input_ids=tokens).logits
    assert (mine - other).abs().max() <= CLOSE * other.abs().max()
