"""Marian's translators against transformers on random weights: logits, weights there and back, and greedy translation."""

import pytest
import torch

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import create
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.models.seq2seq import Seq2SeqConfig
from pencil.weights import marian

# each size is another prime, or a multiple where heads must divide a width
SIZES = dict(vocab_size=101, d_model=42, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
             decoder_attention_heads=3, encoder_ffn_dim=53, decoder_ffn_dim=53, max_position_embeddings=31,
             pad_token_id=97, decoder_start_token_id=97, eos_token_id=7, forced_eos_token_id=None)  # fmt: skip
KINDS = [
    dict(activation_function="swish", scale_embedding=True),
    dict(activation_function="relu", d_model=70, encoder_attention_heads=7, decoder_attention_heads=7, encoder_layers=3,
         decoder_layers=3, max_position_embeddings=29),
    dict(activation_function="gelu", d_model=26, encoder_attention_heads=1, decoder_attention_heads=1, encoder_layers=1,
         decoder_layers=1, encoder_ffn_dim=41, decoder_ffn_dim=41, scale_embedding=True),
    dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=89, pad_token_id=83, decoder_start_token_id=83),
    dict(share_encoder_decoder_embeddings=False, tie_word_embeddings=False, activation_function="gelu_new"),
]  # fmt: skip


def translator(seed=1, **values):
    """Theirs with random weights and biases, so large that differences matter, and the tables they tie still tied."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    theirs = MarianMTModel(MarianConfig(**{**SIZES, **values}, init_std=0.2)).eval()
    with torch.no_grad():
        theirs.final_logits_bias.normal_()
        for name, p in theirs.named_parameters():
            if p.ndim == 1 or "embed_tokens" in name or "shared" in name:
                p.add_(torch.randn_like(p) * 0.2)
    return theirs


def ours_of(theirs):
    config = marian.config_from(theirs.config.to_dict())
    ours = create("seq2seq", config).eval()
    ours.load_state_dict(marian.from_hf(theirs.state_dict(), config))
    return ours


def draw(vocab, *shape, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def padded(lengths, longest):
    """The index of each row's tokens, with padding after them, and the same mask for theirs."""
    real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return torch.arange(longest).expand(len(lengths), -1).masked_fill(~real, NOWHERE), real.long()


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", KINDS)
def test_logits_equal_transformers_marian(values):
    theirs = translator(**values)
    ours, config = ours_of(theirs), theirs.config
    source, target = draw(config.vocab_size, 5, 19), draw(config.decoder_vocab_size, 5, 13, seed=8)
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(ours(target, source), expected, atol=1e-5, rtol=1e-5)
        index, mask = padded([19, 2, 11, 1, 7], 19)
        expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        found = ours(target, source, Span.at(index))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        unpadded = theirs(input_ids=source, decoder_input_ids=target).logits
    assert (unpadded - expected)[1].abs().max() > 1e-2  # the mask has an effect


@pytest.mark.parametrize("values", KINDS)
def test_weights_there_and_back_are_bit_exact(values, tmp_path):
    from safetensors.torch import load_file

    theirs = translator(**values)
    theirs.save_pretrained(tmp_path)
    config = marian.config_from(theirs.config.to_dict())
    held = load_file(tmp_path / "model.safetensors")
    back = marian.to_hf(marian.from_hf(held, config), config)
    assert set(back) == set(held)
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())
    memory = theirs.state_dict()
    assert all(torch.equal(tensor, memory[name]) for name, tensor in back.items())
    ours = marian.from_hf(memory, config)
    assert set(ours) == set(create("seq2seq", config).state_dict())
    assert all(torch.equal(ours[name], tensor) for name, tensor in marian.from_hf(held, config).items())


def test_a_file_we_write_is_read_by_transformers(tmp_path):
    from safetensors.torch import save_file
    from transformers import MarianMTModel

    theirs = translator(**KINDS[0])
    ours = ours_of(theirs)
    theirs.config.save_pretrained(tmp_path)
    save_file(marian.to_hf(ours.state_dict(), ours.config), tmp_path / "model.safetensors", {"format": "pt"})
    read = MarianMTModel.from_pretrained(tmp_path).eval()
    source, target = draw(101, 3, 17), draw(101, 3, 11, seed=8)
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        assert torch.equal(read(input_ids=source, decoder_input_ids=target).logits, expected)


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("values", KINDS)
def test_greedy_translation_equals_transformers_marian(values):
    theirs = translator(seed=3, **values)
    config = theirs.config
    start, end, words = config.decoder_start_token_id, config.eos_token_id, config.decoder_vocab_size
    with torch.no_grad():
        # random weights repeat one word for ever: make no word likelier than others, and not the last one again
        theirs.model.decoder.layers[-1].final_layer_norm.weight.neg_()
        usual = theirs(input_ids=draw(config.vocab_size, 53, 17), decoder_input_ids=draw(words, 53, 23, seed=8)).logits
        theirs.final_logits_bias -= usual.mean((0, 1))
        theirs.final_logits_bias[0, end] += 1
        theirs.final_logits_bias[0, start] = -1e4  # padding is never generated: their files list it as a bad word
    ours = ours_of(theirs)
    source, lengths = draw(config.vocab_size, 11, 17), [17, 3, 11, 1, 7, 13, 2, 5, 16, 4, 9]
    index, mask = padded(lengths, 17)
    output = theirs.generate(input_ids=source, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=23)
    grown = Generation(ours, [[start]] * 11, 23, Sampling(0), end=end,
                       given={"source": source, "source_span": Span.at(index)})  # fmt: skip
    for _ in grown:
        pass
    for row, expected in zip(grown.rows, output.tolist(), strict=True):
        assert row == expected[: len(row)]
        assert set(expected[len(row) :]) <= {start}  # theirs are filled up to the longest
    assert len({tuple(row) for row in grown.rows}) > 5
    assert set(grown.reasons) == {"end", "length"}


def test_a_file_without_a_bias_of_the_logits_has_none():
    theirs = translator()
    config = marian.config_from(theirs.config.to_dict())
    held = {name: t for name, t in theirs.state_dict().items() if name != "final_logits_bias"}
    assert not marian.from_hf(held, config)["head_bias"].any()


@pytest.mark.parametrize("left", [
    ["model.shared.weight"], ["model.encoder.embed_tokens.weight"], ["model.decoder.embed_tokens.weight"],
    ["lm_head.weight"],
])  # fmt: skip
def test_the_shared_table_is_found_under_any_of_its_names(left):
    theirs = translator()
    config = marian.config_from(theirs.config.to_dict())
    tables = ["model.shared.weight", "lm_head.weight", *(f"model.{s}coder.embed_tokens.weight" for s in ("en", "de"))]
    held = {name: t for name, t in theirs.state_dict().items() if name not in tables or name in left}
    assert torch.equal(marian.from_hf(held, config)["tokens.weight"], theirs.lm_head.weight)
    with pytest.raises(UserError, match="has no model.shared.weight"):
        marian.from_hf({name: t for name, t in held.items() if name not in left}, config)


def test_positions_that_are_not_our_sinusoids_are_refused():
    theirs = translator()
    config = marian.config_from(theirs.config.to_dict())
    held = theirs.state_dict()
    assert held["model.encoder.embed_positions.weight"].any()
    held["model.encoder.embed_positions.weight"] = held["model.encoder.embed_positions.weight"].flip(1)
    with pytest.raises(UserError, match="table of positions"):
        marian.from_hf(held, config)


@pytest.mark.parametrize("values, words", [
    (dict(decoder_layers=5), "encoder_layers 2 and decoder_layers 5"),
    (dict(decoder_attention_heads=7), "decoder_attention_heads 7"),
    (dict(decoder_ffn_dim=59), "decoder_ffn_dim 59"),
    (dict(activation_function="tanh"), "'tanh', is none of ours"),
    (dict(tie_word_embeddings=False), "shares its embeddings and does not tie them"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        marian.config_from({"model_type": "marian", **SIZES, **values})


@pytest.mark.parametrize("values", [
    dict(norm_position="pre"), dict(positions="sinusoidal"), dict(bias=False), dict(head_bias=False), dict(kv_heads=1),
    dict(activation="swiglu"), dict(tie_embeddings=False), dict(eps=1e-3), dict(norm="rms"),
])  # fmt: skip
def test_what_is_no_marian_is_not_written_as_one(values):
    kept = dict(
        width=42,
        heads=3,
        norm_position="post",
        positions="sinusoidal-halves",
        bias=True,
        head_bias=True,
        activation="relu",
    )
    marian.to_hf(create("seq2seq", Seq2SeqConfig(**kept)).state_dict(), Seq2SeqConfig(**kept))
    config = Seq2SeqConfig(**{**kept, **values})
    with pytest.raises(UserError, match="written as a Marian"):
        marian.to_hf(create("seq2seq", config).state_dict(), config)
