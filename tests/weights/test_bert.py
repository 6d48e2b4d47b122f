"""BERT against transformers on random weights, with either head, and its weights there and back."""

import pytest
import torch

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import create
from pencil.models.reader import ReaderConfig
from pencil.weights import bert

# each size is another prime, or a multiple where heads must divide a width
SIZES = dict(vocab_size=101, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, intermediate_size=53,
             max_position_embeddings=23)  # fmt: skip
KINDS = [
    (None, dict()),
    (None, dict(hidden_size=35, num_attention_heads=7, num_hidden_layers=3, type_vocab_size=5, layer_norm_eps=1e-3)),
    (13, dict()),
    (2, dict(hidden_act="gelu_new", hidden_size=65, num_attention_heads=5, num_hidden_layers=1)),
    (17, dict(hidden_act="relu", hidden_size=26, num_attention_heads=1, max_position_embeddings=19, type_vocab_size=3)),
]


def reader(classes, **values):
    """Theirs with random weights and biases, so large that differences matter."""
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

    torch.manual_seed(2)
    made = {**SIZES, **values, "initializer_range": 0.2}
    config = BertConfig(**made) if classes is None else BertConfig(**made, num_labels=classes)
    theirs = (BertForMaskedLM if classes is None else BertForSequenceClassification)(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
    return theirs


def ours_of(theirs, classes):
    config = bert.config_from(theirs.config.to_dict(), classes)
    ours = create("reader", config).eval()
    ours.load_state_dict(bert.from_hf(theirs.state_dict(), config))
    return ours


def draw(high, *shape, seed=7):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.proof("parity with a reference on random weights", "reader")
@pytest.mark.parametrize("classes, values", KINDS)
def test_logits_equal_transformers_bert(classes, values):
    theirs = reader(classes, **values)
    ours = ours_of(theirs, classes)
    ids, types = draw(101, 5, 17), draw(theirs.config.type_vocab_size, 5, 17, seed=8)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
        typed = theirs(ids, token_type_ids=types).logits
        torch.testing.assert_close(ours(ids, types=types), typed, atol=1e-5, rtol=1e-5)
        real = torch.arange(17)[None] < torch.tensor([[17], [2], [11], [1], [7]])
        index = torch.arange(17).expand(5, -1).masked_fill(~real, NOWHERE)
        expected = theirs(ids, attention_mask=real.long(), token_type_ids=types).logits
        found = ours(ids, Span.at(index), types)
    if classes is None:  # padding has no effect
        found, expected, typed = found[real], expected[real], typed[real]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (typed - expected).abs().max() > 1e-2  # the mask has an effect


@pytest.mark.proof("parity with a reference on random weights", "reader")
def test_words_of_a_batch_padded_on_the_left_equal_transformers_bert():
    theirs = reader(None)
    ours, ids = ours_of(theirs, None), draw(101, 3, 13)
    lengths = torch.tensor([[13], [5], [2]])
    place = torch.arange(13)[None] - (13 - lengths)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=(place >= 0).long(), position_ids=place.clamp(min=0)).logits
        found = ours(ids, Span.at(place.masked_fill(place < 0, NOWHERE)))
    torch.testing.assert_close(found[place >= 0], expected[place >= 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("classes, values", KINDS)
def test_weights_there_and_back_are_bit_exact(classes, values, tmp_path):
    from safetensors.torch import load_file

    theirs = reader(classes, **values)
    theirs.save_pretrained(tmp_path)
    config = bert.config_from(theirs.config.to_dict(), classes)
    held = load_file(tmp_path / "model.safetensors")
    back = bert.to_hf(bert.from_hf(held, config), config)
    assert set(back) == set(held)
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())
    ours = bert.from_hf(theirs.state_dict(), config)
    assert set(ours) == set(create("reader", config).state_dict())
    assert all(torch.equal(ours[name], tensor) for name, tensor in bert.from_hf(held, config).items())


@pytest.mark.parametrize("classes", [None, 3])
def test_a_file_we_write_is_read_by_transformers(classes, tmp_path):
    from safetensors.torch import save_file

    theirs = reader(classes)
    ours, ids = ours_of(theirs, classes), draw(101, 2, 11)
    theirs.config.save_pretrained(tmp_path)
    save_file(bert.to_hf(ours.state_dict(), ours.config), tmp_path / "model.safetensors", {"format": "pt"})
    read = type(theirs).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(read(ids).logits, theirs(ids).logits)


def test_the_norms_of_the_first_files_have_other_names():
    theirs = reader(None)
    config = bert.config_from(theirs.config.to_dict())
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in theirs.state_dict().items()
    }
    assert set(old) != set(theirs.state_dict())
    ours = bert.from_hf(theirs.state_dict(), config)
    assert all(torch.equal(ours[name], tensor) for name, tensor in bert.from_hf(old, config).items())


def test_a_missing_head_is_reported():
    words, labels = reader(None), reader(3)
    with pytest.raises(UserError, match="no classifier"):
        bert.from_hf(words.state_dict(), bert.config_from(words.config.to_dict(), 3))
    with pytest.raises(UserError, match="no masked-token head"):
        bert.from_hf(labels.state_dict(), bert.config_from(labels.config.to_dict()))


@pytest.mark.parametrize("classes, values, words", [
    (3, dict(hidden_act="silu"), "'silu', is none of ours"),
    (None, dict(hidden_act="gelu_new"), "exact GELU"),
    (3, dict(position_embedding_type="relative_key"), "'relative_key'"),
    (3, dict(is_decoder=True), "decoder"),
    (None, dict(tie_word_embeddings=False), "output embeddings are not tied"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_in_a_sentence(classes, values, words):
    with pytest.raises(UserError, match=words):
        bert.config_from({"model_type": "bert", **SIZES, **values}, classes)


@pytest.mark.parametrize("values", [
    dict(norm_position="pre"), dict(embed_norm=False), dict(token_types=0), dict(bias=False), dict(positions="sinusoidal"),
    dict(norm="rms"), dict(kv_heads=1), dict(activation="swiglu"), dict(activation="relu"),
    dict(classes=3, pool="mean"),
])  # fmt: skip
def test_what_is_no_bert_is_not_written_as_one(values):
    kept = dict(width=42, heads=3, norm_position="post", embed_norm=True, positions="learned", token_types=2)
    bert.to_hf(create("reader", ReaderConfig(**kept)).state_dict(), ReaderConfig(**kept))
    config = ReaderConfig(**{**kept, **values})
    with pytest.raises(UserError, match="written as a BERT"):
        bert.to_hf(create("reader", config).state_dict(), config)
