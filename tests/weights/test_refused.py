"""What other libraries' checkpoints have and ours cannot represent is refused by name; the rest is read exactly."""

import pytest
import torch

from pencil.config import UserError
from pencil.families import create
from pencil.families.family import FAMILIES
from pencil.weights.gpt2 import GPT2
from pencil.weights.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from pencil.weights.llama_original import LLAMA_ORIGINAL
from pencil.weights.maps import Source, read
from pencil.weights.neox import NEOX

# each size is another prime, or a multiple where heads must divide a width
SIZES = {
    "gpt2": dict(n_embd=33, n_head=3, n_positions=17, vocab_size=101, n_layer=2),
    "llama": dict(vocab_size=103, hidden_size=84, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
                  num_key_value_heads=3, max_position_embeddings=31),
    "bert": dict(vocab_size=101, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, intermediate_size=53,
                 max_position_embeddings=29),
    "marian": dict(vocab_size=101, d_model=42, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
                   decoder_attention_heads=3, encoder_ffn_dim=53, decoder_ffn_dim=53, max_position_embeddings=31,
                   pad_token_id=97, decoder_start_token_id=97, eos_token_id=7),
    "t5": dict(vocab_size=101, d_model=33, d_kv=7, d_ff=53, num_layers=2, num_heads=3, decoder_start_token_id=0),
    "vit": dict(hidden_size=33, num_attention_heads=3, num_hidden_layers=2, intermediate_size=53, image_size=(14, 15),
                patch_size=(7, 5), num_channels=2, num_labels=11),
    "dit": dict(num_attention_heads=5, attention_head_dim=12, in_channels=3, num_layers=2, sample_size=14, patch_size=2,
                num_embeds_ada_norm=11),
}  # fmt: skip
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bert": "BertForMaskedLM", "marian": "MarianMTModel",
           "t5": "T5ForConditionalGeneration", "vit": "ViTForImageClassification"}  # fmt: skip
# a tensor that has no other name, and a field without a default
TENSOR = {"gpt2": "transformer.h.1.mlp.c_fc.bias", "llama": "model.layers.1.self_attn.k_proj.weight",
          "bert": "bert.encoder.layer.1.attention.self.key.bias", "marian": "model.decoder.layers.1.encoder_attn.v_proj.bias",
          "t5": "decoder.block.1.layer.1.EncDecAttention.v.weight", "vit": "classifier.weight",
          "dit": "transformer_blocks.1.attn1.to_k.bias"}  # fmt: skip
FIELD = {"gpt2": "n_embd", "llama": "hidden_size", "bert": "vocab_size", "marian": "d_model", "t5": "d_model",
         "vit": "patch_size", "dit": "sample_size"}  # fmt: skip
MAPS = {
    named: one
    for record in FAMILIES.values()
    for one in record.checkpoints
    for kind in one.types
    if (named := "dit" if kind == "DiTTransformer2DModel" else kind) in SIZES
}


def built(kind):
    """Another library's small model with random weights, and the fields of its config."""
    import transformers as hf

    torch.manual_seed(3)
    if kind == "dit":
        from diffusers import DiTTransformer2DModel

        theirs = DiTTransformer2DModel(**SIZES[kind])
        for block in theirs.transformer_blocks:
            block.norm1.emb = theirs.transformer_blocks[0].norm1.emb
        return theirs.eval(), dict(theirs.config)
    config = hf.AutoConfig.for_model(kind, **SIZES[kind], architectures=[CLASSES[kind]])
    return getattr(hf, CLASSES[kind])(config).eval(), config.to_dict()


def tensors_of(kind, held, config):
    return dict(read(MAPS[kind], Source(held), config))


@pytest.mark.parametrize("kind", SIZES)
def test_tensors_and_fields_that_do_not_fit_are_refused_by_name(kind):
    theirs, fields = built(kind)
    configure, held, name = MAPS[kind].configure, theirs.state_dict(), TENSOR[kind]
    config = configure(fields, Source(held))
    tensors_of(kind, held, config)
    with pytest.raises(UserError, match=f"has no {name}"):
        tensors_of(kind, {n: t for n, t in held.items() if n != name}, config)
    with pytest.raises(UserError, match="also has adapter.0.weight"):
        tensors_of(kind, {**held, "adapter.0.weight": torch.zeros(3)}, config)
    with pytest.raises(UserError, match=f"{name} has shape .*7.*wants"):
        tensors_of(kind, {**held, name: torch.zeros(7)}, config)
    with pytest.raises(UserError, match=f"{name} is torch.int8"):
        tensors_of(kind, {**held, name: held[name].to(torch.int8)}, config)
    with pytest.raises(UserError, match="must be"):
        configure({**fields, FIELD[kind]: "many"}, Source(held))
    if kind != "dit":  # whose class has a default for every size
        with pytest.raises(UserError, match=f"has no {FIELD[kind]}"):
            configure({n: v for n, v in fields.items() if n != FIELD[kind]}, Source(held))


@pytest.mark.parametrize("kind", SIZES)
def test_a_field_nobody_knows_and_quantized_weights_are_refused(kind):
    _, fields = built(kind)
    with pytest.raises(UserError, match="attention_sinks = 3, which Pencil does not know"):
        MAPS[kind].configure({**fields, "attention_sinks": 3})
    MAPS[kind].configure({**fields, "attention_sinks": None})
    with pytest.raises(UserError, match="is quantized"):
        MAPS[kind].configure({**fields, "quantization_config": {"bits": 4}})


@pytest.mark.parametrize("kind, values, words", [
    ("gpt2", dict(activation_function="silu"), "activation_function is 'silu'"),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is True"),
    ("gpt2", dict(scale_attn_weights=False), "scale_attn_weights is False"),
    ("gpt2", dict(add_cross_attention=True), "add_cross_attention is True"),
    ("gpt2", dict(hidden_size=34), "two values of n_embd: 33 and 34"),
    ("llama", dict(mlp_bias=True), "attention_bias False and mlp_bias True"),
    ("llama", dict(hidden_act="gelu"), "hidden_act is 'gelu'"),
    ("marian", dict(static_position_embeddings=False), "static_position_embeddings is False"),
    ("vit", dict(hidden_act="selu"), "hidden_act is 'selu'"),
    ("dit", dict(caption_channels=17), "caption_channels is 17"),
    ("dit", dict(use_additional_conditions=True), "use_additional_conditions is True"),
])  # fmt: skip
def test_a_field_ours_cannot_represent_is_refused(kind, values, words):
    with pytest.raises(UserError, match=words):
        MAPS[kind].configure({**built(kind)[1], **values})


def test_an_untied_gpt2_is_refused_by_its_tensors_too():
    """Its config may not name it: the head in the file is another than the table."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    untied = GPT2LMHeadModel(GPT2Config(**SIZES["gpt2"], tie_word_embeddings=False))
    with pytest.raises(
        UserError,
        match="not tied: lm_head.weight is not transformer.wte.weight, .*: write tie_word_embeddings: false",
    ):
        tensors_of("gpt2", untied.state_dict(), GPT2.configure(built("gpt2")[1]))


def test_a_gpt2_with_the_head_of_another_task_is_refused():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    labels = GPT2ForSequenceClassification(GPT2Config(**SIZES["gpt2"], num_labels=5))
    with pytest.raises(UserError, match="also has score.weight"):
        tensors_of("gpt2", labels.state_dict(), GPT2.configure(built("gpt2")[1]))


def test_masks_and_frequencies_of_older_files_are_read_where_they_are_the_usual_ones():
    theirs, fields = built("gpt2")
    config, held = GPT2.configure(fields), theirs.state_dict()
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 17, 17).tril().byte(),
             "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}  # fmt: skip
    assert tensors_of("gpt2", {**held, **masks}, config).keys() == create("gpt", config).state_dict().keys()
    masks["transformer.h.0.attn.bias"][..., 3, 5] = 1
    with pytest.raises(UserError, match="h.0.attn.bias is another mask"):
        tensors_of("gpt2", {**held, **masks}, config)
    theirs, fields = built("llama")
    config, held = LLAMA.configure(fields), theirs.state_dict()
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    frequencies = 10000.0 ** (-torch.arange(0, 14, 2) / 14)
    for found in (frequencies, frequencies.half()):
        assert tensors_of("llama", {**held, name: found}, config).keys() == create("gpt", config).state_dict().keys()
    with pytest.raises(UserError, match="inv_freq is another"):
        tensors_of("llama", {**held, name: 500.0 ** (-torch.arange(0, 14, 2) / 14)}, config)


@pytest.mark.parametrize("kind, fields, copy, table", [
    ("llama", dict(tie_word_embeddings=True), "lm_head.weight", "model.embed_tokens.weight"),
    ("marian", {}, "model.decoder.embed_tokens.weight", "model.shared.weight"),
    ("bert", {}, "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
])  # fmt: skip
def test_tables_that_should_be_tied_and_differ_are_refused(kind, fields, copy, table):
    theirs, named = built(kind)
    held = theirs.state_dict()
    held[copy] = held[copy] + 1
    with pytest.raises(UserError, match=f"{copy} is not {table}"):
        tensors_of(kind, held, MAPS[kind].configure({**named, **fields}, Source(held)))


@pytest.mark.parametrize("values, name", [
    (dict(positions="rope"), "positions"), (dict(norm="rms"), "norm"),
    (dict(tie_embeddings=False), "head_bias"), (dict(kv_heads=1), "kv_heads"), (dict(activation="swiglu"), "activation"),
    (dict(qk_norm=True), "qk_norm"), (dict(window=3), "window"), (dict(qkv_bias=False), "qkv_bias"),
    (dict(head_dim=4), "head_width"),
])  # fmt: skip
def test_a_gpt_that_is_no_gpt2_is_not_written_as_one(values, name):
    from pencil.models.gpt import GPTConfig

    plain = dict(vocab=11, context=7, width=6, depth=1, heads=3, bias=True, positions="learned")
    GPT2.describe(GPTConfig(**plain))
    config = GPTConfig(**{**plain, **values})
    with pytest.raises(UserError, match=f"model.{name} is .*, which a GPT-2 does not have"):
        GPT2.describe(config)
    for other in (LLAMA, MISTRAL, QWEN2, QWEN3, LLAMA_ORIGINAL):
        with pytest.raises(UserError, match=f"which an? {other.name} does not have"):
            other.describe(config)


@pytest.mark.parametrize(
    "kind, change, words",
    [("llama", dict(num_attention_heads=4, head_dim=22), "num_key_value_heads 3 does not divide num_attention_heads 4"),
     ("llama", dict(rms_norm_eps=-1.0), "rms_norm_eps must be above 0"),
     ("gpt2", dict(n_head=2), "n_head 2 does not divide n_embd 33"),
     ("bert", dict(num_attention_heads=7, architectures=["BertModel"]), "num_attention_heads 7 does not divide hidden_size 33"),
     ("vit", dict(patch_size=(7, 4)), "patch_size 7×4 does not divide a picture of 14×15"),
     ("t5", dict(relative_attention_num_buckets=2), "relative_attention_num_buckets must be at least 4, not 2"),
     ("marian", dict(d_model=39), "d_model must be even, not 39"),
     ("gpt_neox", dict(rotary_pct=0.25), "the part of a head that rotary_pct 0.25 rotates must be even, not 3")],
)  # fmt: skip
def test_sizes_that_no_model_has_are_refused_by_the_fields_of_the_checkpoint(kind, change, words):
    """A setting of ours is shown as the field that it comes from."""
    fields = SIZES["llama"] | dict(use_parallel_residual=False) if kind == "gpt_neox" else SIZES[kind]
    if kind == "gpt_neox":
        fields = {name: value for name, value in fields.items() if name != "num_key_value_heads"}
    architecture = NEOX if kind == "gpt_neox" else MAPS[kind]
    with pytest.raises(UserError, match=f"^this {architecture.name}'s config.json: .*{words}"):
        architecture.configure(fields | change)
