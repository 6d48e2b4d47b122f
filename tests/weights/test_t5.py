"""T5 and its later versions against transformers: in, every block beside the original, back, and what they generate."""

import pytest
import torch
from torch import nn

from both_ways import both_ways, check_refused, check_unwritten, randomise
from pencil.config import UserError
from pencil.models.seq2seq import Seq2SeqConfig
from pencil.weights.maps import Source, load, read, write
from pencil.weights.t5 import T5
from translators import built, check_generated, check_padded, enliven

# heads and their width are no divisors of the width
SIZES = dict(model_type="t5", vocab_size=101, d_model=37, d_kv=7, d_ff=53, num_layers=2, num_heads=3, n_positions=31,
             relative_attention_num_buckets=10, relative_attention_max_distance=17, decoder_start_token_id=0,
             pad_token_id=0, eos_token_id=7)  # fmt: skip
OWN_HEAD = dict(tie_word_embeddings=False)
KINDS = [
    dict(num_decoder_layers=1, num_layers=3),
    dict(feed_forward_proj="gated-gelu", **OWN_HEAD),
    dict(vocab_size=2, eos_token_id=1, num_heads=1, n_positions=1, num_layers=1, num_decoder_layers=2),
    dict(feed_forward_proj="gated-silu", layer_norm_epsilon=1e-3, relative_attention_num_buckets=32,
         relative_attention_max_distance=128, d_kv=5, **OWN_HEAD),
    dict(feed_forward_proj="gelu", d_model=42, d_kv=14, relative_attention_num_buckets=7),
    dict(feed_forward_proj="gated-gelu", dense_act_fn="gelu", is_gated_act=True, n_positions=59),
]  # fmt: skip
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"


def original(described):
    """A T5 of transformers; where its config unties the head, the head is a matrix of its own, as its files have it."""
    theirs = built(described)
    if not theirs.config.scale_decoder_outputs:
        theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.detach().clone())
        theirs.tie_weights = lambda: None  # the library would tie it again, except from a file
    return theirs


def ours_of(theirs):
    return load(T5, Source(theirs.state_dict()), T5.configure(theirs.config.to_dict()))


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", [*KINDS[:-1], pytest.param(KINDS[-1], marks=pytest.mark.long)])
def test_t5_in_and_back(values):
    theirs = original({**SIZES, **values})
    ours = both_ways(T5, theirs, theirs.config.to_dict(), original)
    assert (
        ours.config.tie_embeddings == theirs.config.scale_decoder_outputs == (values.get("tie_word_embeddings") is None)
    )
    if ours.config.context > 19:
        check_padded(theirs, ours)


@pytest.mark.parametrize("values", [{}, OWN_HEAD | dict(feed_forward_proj="gated-gelu")])
def test_files_are_read_and_written_as_transformers_does(values, tmp_path):
    """Also with the config that today's version writes, which says by another field whether the head is its own."""
    import json

    from safetensors.torch import load_file, save_file
    from transformers import T5ForConditionalGeneration

    theirs = original({**SIZES, **values})
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    held, written = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert written["tie_word_embeddings"]
    config = T5.configure(written)
    assert config == T5.configure({**SIZES, **values})
    ours = dict(read(T5, Source(held), config))
    back = {name: tensor.contiguous() for name, tensor in write(T5, ours, config)}
    assert back.keys() == held.keys()
    save_file(back, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(T5.describe(config)))
    again = T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert again.config.scale_decoder_outputs == config.scale_logits
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", [
    KINDS[0], KINDS[1], pytest.param(KINDS[3], marks=pytest.mark.long), pytest.param(KINDS[5], marks=pytest.mark.long),
])  # fmt: skip
def test_generation_equals_transformers(values):
    theirs = original({**SIZES, **values, "n_positions": 59})
    randomise(theirs)
    enliven(theirs)
    check_generated(theirs, ours_of(theirs))


def test_a_file_without_a_head_has_the_table_again():
    theirs = built({**SIZES, **OWN_HEAD})
    held = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    ours = load(T5, Source(held), T5.configure({**SIZES, **OWN_HEAD}))
    assert torch.equal(ours.head.weight, ours.tokens.weight)
    assert ours.head.weight.data_ptr() != ours.tokens.weight.data_ptr()


def test_a_head_of_its_own_in_a_first_t5_is_refused():
    theirs = built(SIZES)
    held = theirs.state_dict()
    held["lm_head.weight"] = held["lm_head.weight"] + 1
    with pytest.raises(UserError, match=r"lm_head\.weight is not shared\.weight"):
        dict(read(T5, Source(held), T5.configure(SIZES)))


def test_the_table_is_found_under_any_of_its_names_and_unused_tensors_are_left_out():
    theirs = built(SIZES)
    names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    rest = {name: tensor for name, tensor in theirs.state_dict().items() if name not in names}
    rest["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(10, 3)
    for name in names:
        found = dict(read(T5, Source({**rest, name: theirs.shared.weight.detach()}), T5.configure(SIZES)))
        assert torch.equal(found["tokens.weight"], theirs.shared.weight)
    with pytest.raises(UserError, match=r"has no shared\.weight"):
        dict(read(T5, Source(rest), T5.configure(SIZES)))
    bias = f"decoder.block.1.{BIAS}"  # every block after the first shares the first one's
    with pytest.raises(UserError, match=f"also has {bias}"):
        dict(read(T5, Source({**theirs.state_dict(), bias: torch.zeros(10, 3)}), T5.configure(SIZES)))


@pytest.mark.parametrize("values, words", [
    (dict(feed_forward_proj="tanh"), "feed_forward_proj is 'tanh'"),
    (dict(feed_forward_proj="gated-relu"), r"feed_forward_proj is 'gated-relu' \(gated relu\)"),
    (dict(dense_act_fn="mish"), "feed_forward_proj is 'relu' .mish."),
    (dict(relative_attention_num_buckets=3), "relative_attention_num_buckets must be at least 4, not 3"),
    (dict(relative_attention_max_distance=5), "relative_attention_max_distance must be over 5, not 5"),
    (dict(is_encoder_decoder=False), "is_encoder_decoder is False"),
    (dict(tie_encoder_decoder=True), "tie_encoder_decoder is True"),
    (dict(is_decoder=True), "is_decoder is True"),
    (dict(num_layers=0), "num_layers must be a whole number above 0"),
    (dict(head_dim=11), "two values of d_kv: 7 and 11"),
    (dict(brand_new=1), "brand_new = 1"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    check_refused(T5, SIZES, values, words)


@pytest.mark.parametrize("values", [
    dict(norm_position="post"), dict(positions="alibi"), dict(bias=True), dict(head_bias=True), dict(kv_heads=1),
    dict(norm="layer"), dict(scale_logits=False), dict(scale_embeddings=True),
    dict(share_embeddings=False),
])  # fmt: skip
def test_what_is_no_t5_is_not_written_as_one(values):
    kept = dict(width=42, heads=3, norm="rms", positions="t5", activation="relu", scale_logits=True)
    described = T5.describe(Seq2SeqConfig(**kept, source_context=97))
    assert (described["d_kv"], described["n_positions"]) == (14, 97)
    check_unwritten(T5, kept, values)


@pytest.mark.parametrize("name, fields", [
    ("t5-small", dict(architectures=["T5ForConditionalGeneration"], d_ff=2048, d_kv=64, d_model=512, decoder_start_token_id=0,
                      dropout_rate=0.1, eos_token_id=1, initializer_factor=1.0, is_encoder_decoder=True,
                      layer_norm_epsilon=1e-6, model_type="t5", n_positions=512, num_heads=8, num_layers=6,
                      output_past=True, pad_token_id=0, relative_attention_num_buckets=32,
                      task_specific_params={"summarization": {"num_beams": 4}}, vocab_size=32128)),
    ("t5-v1_1-small", dict(architectures=["T5ForConditionalGeneration"], d_ff=1024, d_kv=64, d_model=512,
                           decoder_start_token_id=0, dropout_rate=0.1, eos_token_id=1, feed_forward_proj="gated-gelu",
                           initializer_factor=1.0, is_encoder_decoder=True, layer_norm_epsilon=1e-6, model_type="t5",
                           num_decoder_layers=8, num_heads=6, num_layers=8, output_past=True, pad_token_id=0,
                           relative_attention_num_buckets=32, tie_word_embeddings=False, vocab_size=32128)),
])  # fmt: skip
def test_configs_as_published(name, fields):
    """The number of parameters is the published one."""
    from pencil.families import family

    config = T5.configure(fields)
    assert family("seq2seq").parameters(config) == {"t5-small": 60_506_624, "t5-v1_1-small": 76_961_152}[name]
    assert (config.context, config.scale_logits) == (512, name == "t5-small")


def test_every_field_of_the_config_class_has_a_use():
    from transformers import T5Config

    assert T5Config().to_dict().keys() <= T5.fields.keys() | T5.aliases.keys()
