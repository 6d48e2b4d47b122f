"""Marian's translators against transformers: in, every block beside the original, back, and what they generate."""

from contextlib import nullcontext

import pytest
import torch

from both_ways import both_ways, check_refused, check_unwritten, randomise
from pencil.config import UserError
from pencil.models.seq2seq import Seq2SeqConfig
from pencil.weights.maps import Source, load, read, write
from pencil.weights.marian import MARIAN
from translators import built, check_generated, check_padded, draw, enliven

# each size is another prime, or a multiple where heads must divide a width
SIZES = dict(model_type="marian", vocab_size=101, d_model=42, encoder_layers=2, decoder_layers=2,
             encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=53, decoder_ffn_dim=53,
             max_position_embeddings=31, pad_token_id=97, decoder_start_token_id=97, eos_token_id=7,
             forced_eos_token_id=None)  # fmt: skip
KINDS = [
    dict(activation_function="swish", scale_embedding=True, decoder_layers=1, encoder_layers=3),
    dict(activation_function="relu", d_model=70, encoder_attention_heads=7, decoder_attention_heads=7,
         max_position_embeddings=29),
    dict(activation_function="gelu", d_model=26, encoder_attention_heads=1, decoder_attention_heads=1, encoder_layers=1,
         decoder_layers=1, encoder_ffn_dim=41, decoder_ffn_dim=41, scale_embedding=True),
    dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=89, pad_token_id=83, decoder_start_token_id=83),
    dict(share_encoder_decoder_embeddings=False, tie_word_embeddings=False, activation_function="gelu_new"),
    dict(vocab_size=2, pad_token_id=1, decoder_start_token_id=1, eos_token_id=0, max_position_embeddings=1,
         encoder_layers=1, decoder_layers=2),
]  # fmt: skip
LONG = pytest.mark.long


def some_long(cases, fast):
    return [case if i < fast else pytest.param(case, marks=LONG) for i, case in enumerate(cases)]


def translator(**values):
    theirs = built({**SIZES, **values})
    randomise(theirs)
    with torch.no_grad():
        theirs.final_logits_bias.normal_(generator=torch.Generator().manual_seed(5))
    return theirs


def ours_of(theirs, config=None):
    return load(MARIAN, Source(theirs.state_dict()), config or MARIAN.configure(theirs.config.to_dict()))


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", KINDS)
def test_marian_in_and_back(values):
    theirs = translator(**values)
    ours = both_ways(MARIAN, theirs, theirs.config.to_dict(), lambda described: built({**SIZES, **values} | described))
    assert ours.head_bias.any()
    if ours.config.context > 19:
        check_padded(theirs, ours)


def test_files_are_read_and_written_as_transformers_does(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import MarianMTModel

    theirs = translator(**KINDS[0])
    theirs.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    config = MARIAN.configure(theirs.config.to_dict())
    ours = dict(read(MARIAN, Source(held), config))
    back = {name: tensor.contiguous() for name, tensor in write(MARIAN, ours, config)}
    assert back.keys() == held.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())
    save_file(back, tmp_path / "model.safetensors", {"format": "pt"})
    again = MarianMTModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", some_long([KINDS[0], KINDS[3], KINDS[1], KINDS[2], KINDS[4]], 2))
def test_generation_equals_transformers(values):
    theirs = translator(**values)
    enliven(theirs)
    words = theirs.lm_head.out_features
    with torch.no_grad():  # no word likelier than others, and not the last one again
        theirs.model.decoder.layers[-1].final_layer_norm.weight.neg_()
        source = draw(theirs.config.vocab_size, 53, 17)
        usual = theirs(input_ids=source, decoder_input_ids=draw(words, 53, 23, seed=8)).logits
        theirs.final_logits_bias -= usual.mean((0, 1))
    check_generated(theirs, ours_of(theirs))


def test_a_file_without_a_bias_of_the_logits_has_none():
    theirs = translator()
    held = {name: t for name, t in theirs.state_dict().items() if name != "final_logits_bias"}
    config = MARIAN.configure(theirs.config.to_dict())
    assert not load(MARIAN, Source(held), config).head_bias.any()


@pytest.mark.parametrize("left", [
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
])  # fmt: skip
def test_the_shared_table_is_found_under_any_of_its_names(left):
    theirs = translator()
    config = MARIAN.configure(theirs.config.to_dict())
    tables = ["model.shared.weight", "lm_head.weight", *(f"model.{s}coder.embed_tokens.weight" for s in ("en", "de"))]
    held = {name: t for name, t in theirs.state_dict().items() if name not in tables or name == left}
    assert torch.equal(dict(read(MARIAN, Source(held), config))["tokens.weight"], theirs.lm_head.weight)
    with pytest.raises(UserError, match=r"has no model\.shared\.weight"):
        dict(read(MARIAN, Source({name: t for name, t in held.items() if name != left}), config))


def test_tables_that_should_be_one_and_differ_are_refused():
    theirs = translator()
    held, name = theirs.state_dict(), "model.decoder.embed_tokens.weight"
    held[name] = held[name] + 1
    with pytest.raises(UserError, match=rf"{name} is not model\.shared\.weight"):
        dict(read(MARIAN, Source(held), MARIAN.configure(theirs.config.to_dict())))


@pytest.mark.parametrize("change, words", [
    (lambda table: table.flip(1), "another table of positions"), (lambda table: table[:, :7], "not length × width"),
    (lambda table: table.half(), None),
])  # fmt: skip
def test_only_our_sinusoids_are_taken_for_positions(change, words):
    theirs = translator()
    config, held, name = (
        MARIAN.configure(theirs.config.to_dict()),
        theirs.state_dict(),
        "model.encoder.embed_positions.weight",
    )
    assert held[name].any()
    held[name] = change(held[name])
    with pytest.raises(UserError, match=words) if words else nullcontext():
        dict(read(MARIAN, Source(held), config))


@pytest.mark.parametrize("values, words", [
    (dict(decoder_attention_heads=7), "decoder_attention_heads 7"),
    (dict(decoder_ffn_dim=59), "decoder_ffn_dim 59"),
    (dict(activation_function="tanh"), "activation_function is 'tanh'"),
    (dict(tie_word_embeddings=False), "shares its embeddings and does not tie them"),
    (dict(normalize_before=True), "normalize_before is True"),
    (dict(normalize_embedding=True), "normalize_embedding is True"),
    (dict(add_final_layer_norm=True), "add_final_layer_norm is True"),
    (dict(static_position_embeddings=False), "static_position_embeddings is False"),
    (dict(is_encoder_decoder=False), "is_encoder_decoder is False"),
    (dict(is_decoder=True), "is_decoder is True"),
    (dict(num_hidden_layers=5), "two values of encoder_layers: 2 and 5"),
    (dict(d_model=43), "model.heads 3 does not divide|pairs"),
    (dict(brand_new=1), "brand_new = 1"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    check_refused(MARIAN, SIZES, values, words)


@pytest.mark.parametrize("values", [
    dict(norm_position="pre"), dict(positions="sinusoidal"), dict(bias=False), dict(head_bias=False), dict(kv_heads=1),
    dict(activation="swiglu"), dict(tie_embeddings=False), dict(eps=1e-3), dict(norm="rms"), dict(scale_logits=True),
])  # fmt: skip
def test_what_is_no_marian_is_not_written_as_one(values):
    kept = dict(width=42, heads=3, norm_position="post", positions="sinusoidal-halves", bias=True, head_bias=True,
                activation="relu")  # fmt: skip
    assert MARIAN.describe(Seq2SeqConfig(**kept, source_context=97))["max_position_embeddings"] == 97
    check_unwritten(MARIAN, kept, values)
    with pytest.raises(UserError, match="model.head_width is 17, which a Marian does not have"):
        MARIAN.describe(Seq2SeqConfig(**kept, head_dim=17))


def test_every_field_of_the_config_class_has_a_use():
    from transformers import MarianConfig

    assert MarianConfig().to_dict().keys() <= MARIAN.fields.keys() | MARIAN.aliases.keys()
