"""What other libraries' checkpoints have and ours cannot represent is refused by name; the rest is read exactly."""

import pytest
import torch
from safetensors.torch import load_file

from pencil.config import UserError
from pencil.families import create
from pencil.models.vit import ViTConfig
from pencil.weights import bert, dit, gpt2, llama, marian, vit

# each size is another prime, or a multiple where heads must divide a width
GPT2 = dict(n_embd=33, n_head=3, n_positions=17, vocab_size=101, n_layer=2)
LLAMA = dict(vocab_size=103, hidden_size=84, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=3, max_position_embeddings=31)  # fmt: skip
BERT = dict(vocab_size=101, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, intermediate_size=53,
            max_position_embeddings=29)  # fmt: skip
MARIAN = dict(vocab_size=101, d_model=42, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
              decoder_attention_heads=3, encoder_ffn_dim=53, decoder_ffn_dim=53, max_position_embeddings=31,
              pad_token_id=97, decoder_start_token_id=97, eos_token_id=7)  # fmt: skip
VIT = dict(hidden_size=33, num_attention_heads=3, num_hidden_layers=2, intermediate_size=53, image_size=(14, 15),
           patch_size=(7, 5), num_channels=2, num_labels=11)  # fmt: skip
DIT = dict(num_attention_heads=5, attention_head_dim=12, in_channels=3, num_layers=2, sample_size=14, patch_size=2,
           num_embeds_ada_norm=11)  # fmt: skip


def built(kind):
    """Another library's small model with random weights, and the fields of its config."""
    import transformers as hf

    torch.manual_seed(3)
    if kind == "dit":
        from diffusers import DiTTransformer2DModel

        theirs = DiTTransformer2DModel(**DIT)
        one = theirs.transformer_blocks[0].norm1.emb.state_dict()
        for block in theirs.transformer_blocks:
            block.norm1.emb.load_state_dict(one)
        return theirs.eval(), dict(theirs.config)
    model, config = {
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)),
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA)),
        "bert": (hf.BertForMaskedLM, hf.BertConfig(**BERT)),
        "marian": (hf.MarianMTModel, hf.MarianConfig(**MARIAN)),
        "vit": (hf.ViTForImageClassification, hf.ViTConfig(**VIT)),
    }[kind]
    return model(config).eval(), config.to_dict()


MAPS = {"gpt2": gpt2, "llama": llama, "bert": bert, "marian": marian, "vit": vit, "dit": dit}
READ = {kind: getattr(module, "from_diffusers" if kind == "dit" else "from_hf") for kind, module in MAPS.items()}
# a tensor that has no other name, and one that every one of these models needs a field for
TENSOR = {"gpt2": "transformer.h.1.mlp.c_fc.bias", "llama": "model.layers.1.self_attn.k_proj.weight",
          "bert": "bert.encoder.layer.1.attention.self.key.bias", "marian": "model.decoder.layers.1.encoder_attn.v_proj.bias",
          "vit": "classifier.weight", "dit": "transformer_blocks.1.attn1.to_k.bias"}  # fmt: skip
FIELD = {"gpt2": "n_embd", "llama": "rms_norm_eps", "bert": "vocab_size", "marian": "d_model",
         "vit": "patch_size", "dit": "sample_size"}  # fmt: skip


@pytest.mark.parametrize("kind", MAPS)
def test_tensors_and_fields_that_do_not_fit_are_refused_by_name(kind):
    theirs, fields = built(kind)
    read, config, held, name = READ[kind], MAPS[kind].config_from(fields), theirs.state_dict(), TENSOR[kind]
    read(held, config)
    short = name.removeprefix("transformer.")
    with pytest.raises(UserError, match=f"has no {short}"):
        read({n: t for n, t in held.items() if n != name}, config)
    with pytest.raises(UserError, match="also has adapter.0.weight"):
        read({**held, "adapter.0.weight": torch.zeros(3)}, config)
    with pytest.raises(UserError, match=f"{short} has shape .*7.*wants"):
        read({**held, name: torch.zeros(7)}, config)
    with pytest.raises(UserError, match=f"{short} is torch.int8"):
        read({**held, name: held[name].to(torch.int8)}, config)
    with pytest.raises(UserError, match=f"has no {FIELD[kind]}"):
        MAPS[kind].config_from({n: v for n, v in fields.items() if n != FIELD[kind]})
    with pytest.raises(UserError, match="must be"):
        MAPS[kind].config_from({**fields, FIELD[kind]: "many"})


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "marian", "vit"])
def test_a_config_of_another_type_is_refused(kind):
    import transformers as hf

    _, fields = built(kind)
    for other in ("mistral", "gpt_neox", "roberta", "bart", "deit"):
        with pytest.raises(UserError, match=f"model_type '{other}': only '{kind}'"):
            MAPS[kind].config_from({**fields, "model_type": other})
    with pytest.raises(UserError, match="has no model_type"):
        MAPS[kind].config_from({n: v for n, v in fields.items() if n != "model_type"})
    with pytest.raises(UserError, match="model_type 'qwen2'"):  # its q, k and v have biases that its config never names
        MAPS[kind].config_from(hf.Qwen2Config().to_dict())
    with pytest.raises(UserError, match="is quantized"):
        MAPS[kind].config_from({**fields, "quantization_config": {"bits": 4}})


@pytest.mark.parametrize("kind, values, words", [
    ("gpt2", dict(tie_word_embeddings=False), "tie_word_embeddings is False"),
    ("gpt2", dict(activation_function="relu"), "activation_function is 'relu'"),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is True"),
    ("gpt2", dict(scale_attn_weights=False), "scale_attn_weights is False"),
    ("gpt2", dict(add_cross_attention=True), "add_cross_attention is True"),
    ("llama", dict(mlp_bias=True), "mlp_bias is True"),
    ("marian", dict(normalize_before=True), "normalize_before is True"),
    ("marian", dict(static_position_embeddings=False), "static_position_embeddings is False"),
    ("vit", dict(hidden_act="relu"), "hidden_act is 'relu'"),
    ("vit", dict(qkv_bias=False), "qkv_bias is False"),
    ("dit", dict(_class_name="PixArtTransformer2DModel"), "_class_name is 'PixArtTransformer2DModel'"),
    ("dit", dict(caption_channels=17), "caption_channels is 17"),
    ("dit", dict(use_additional_conditions=True), "use_additional_conditions is True"),
])  # fmt: skip
def test_a_field_ours_cannot_represent_is_refused(kind, values, words):
    with pytest.raises(UserError, match=words):
        MAPS[kind].config_from({**built(kind)[1], **values})


def test_an_untied_gpt2_is_refused_by_its_tensors_too():
    """Its config may not name it: the head in the file is another than the table."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    untied = GPT2LMHeadModel(GPT2Config(**GPT2, tie_word_embeddings=False))
    config = gpt2.config_from(built("gpt2")[1])
    with pytest.raises(UserError, match="not tied: lm_head.weight is not wte.weight"):
        gpt2.from_hf(untied.state_dict(), config)


def test_a_gpt2_with_the_head_of_another_task_is_refused():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    labels = GPT2ForSequenceClassification(GPT2Config(**GPT2, num_labels=5))
    with pytest.raises(UserError, match="also has score.weight"):
        gpt2.from_hf(labels.state_dict(), gpt2.config_from(built("gpt2")[1]))


def test_masks_and_frequencies_of_older_files_are_read_where_they_are_the_usual_ones():
    theirs, fields = built("gpt2")
    config, held = gpt2.config_from(fields), theirs.state_dict()
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 17, 17).tril().byte(),
             "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}  # fmt: skip
    assert gpt2.from_hf({**held, **masks}, config).keys() == create("gpt", config).state_dict().keys()
    masks["transformer.h.0.attn.bias"][..., 3, 5] = 1
    with pytest.raises(UserError, match="h.0.attn.bias is another mask"):
        gpt2.from_hf({**held, **masks}, config)
    theirs, fields = built("llama")
    config, held = llama.config_from(fields), theirs.state_dict()
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    frequencies = 10000.0 ** (-torch.arange(0, 14, 2) / 14)
    for found in (frequencies, frequencies.half()):
        assert llama.from_hf({**held, name: found}, config).keys() == create("gpt", config).state_dict().keys()
    with pytest.raises(UserError, match="inv_freq is another"):
        llama.from_hf({**held, name: 500.0 ** (-torch.arange(0, 14, 2) / 14)}, config)


def test_tables_that_should_be_tied_and_differ_are_refused():
    theirs, fields = built("llama")
    config, held = llama.config_from({**fields, "tie_word_embeddings": True}), theirs.state_dict()
    with pytest.raises(UserError, match="lm_head.weight is not model.embed_tokens.weight"):
        llama.from_hf(held, config)
    theirs, fields = built("marian")
    held = theirs.state_dict()
    held["model.decoder.embed_tokens.weight"] = held["model.decoder.embed_tokens.weight"] + 1
    with pytest.raises(UserError, match="model.decoder.embed_tokens.weight is not model.shared.weight"):
        marian.from_hf(held, marian.config_from(fields))
    theirs, fields = built("bert")
    held = theirs.state_dict()
    held["cls.predictions.decoder.weight"] = held["cls.predictions.decoder.weight"] + 1
    with pytest.raises(UserError, match="decoder.weight is not bert.embeddings.word_embeddings.weight"):
        bert.from_hf(held, bert.config_from(fields))


def test_a_bert_as_pre_trained_is_read_for_its_masked_tokens_and_not_as_a_classifier(tmp_path):
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    torch.manual_seed(7)
    BertForPreTraining(BertConfig(**BERT)).save_pretrained(tmp_path)
    held, theirs = load_file(tmp_path / "model.safetensors"), BertForMaskedLM.from_pretrained(tmp_path).eval()
    assert "cls.seq_relationship.weight" in held
    config = bert.config_from(theirs.config.to_dict())
    ours, ids = create("reader", config).eval(), torch.arange(23)[None]
    ours.load_state_dict(bert.from_hf(held, config))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    labels = bert.config_from(theirs.config.to_dict(), 2)
    with pytest.raises(UserError, match="no classifier"):
        bert.from_hf(held, labels)
    heads = {"classifier.weight": torch.zeros(2, 33), "classifier.bias": torch.zeros(2)}
    with pytest.raises(UserError, match="also has cls"):
        bert.from_hf(held | heads, labels)


@pytest.mark.parametrize("extra, words", [
    (dict(reg_tokens=3), "also has reg_token"),
    (dict(no_embed_class=True), "pos_embed has shape"),
    (dict(pre_norm=True), "no patch_embed.proj.bias"),
    (dict(global_pool="avg"), "fc_norm|no norm"),
    (dict(num_classes=0), "no head.bias"),
    (dict(qkv_bias=False), "no blocks.0.attn.qkv.bias"),
])  # fmt: skip
def test_a_timm_model_with_other_parts_is_refused_by_the_tensor(timm, extra, words):
    sizes = dict(img_size=6, patch_size=3, embed_dim=14, depth=1, num_heads=1, num_classes=11) | extra
    theirs = timm.models.VisionTransformer(**sizes)
    config = ViTConfig(image_size=(6, 6), channels=3, patch=(3, 3), classes=11, width=14, depth=1, heads=1)
    with pytest.raises(UserError, match=words):
        vit.from_timm(theirs.state_dict(), config)


@pytest.mark.parametrize("values", [
    dict(positions="rope"), dict(bias=False), dict(norm="rms"), dict(tie_embeddings=False), dict(kv_heads=1),
    dict(activation="swiglu"),
])  # fmt: skip
def test_a_gpt_that_is_no_gpt2_is_not_written_as_one(values):
    from pencil.models.gpt import GPTConfig

    plain = dict(vocab=11, context=7, width=6, depth=1, heads=3, bias=True, positions="learned")
    model = create("gpt", GPTConfig(**{**plain, **values}))
    with pytest.raises(UserError, match="can be written as a GPT-2"):
        gpt2.to_hf(model.state_dict(), model.config)
    with pytest.raises(UserError, match="can be written as a LLaMA"):
        llama.to_hf(model.state_dict(), model.config)
