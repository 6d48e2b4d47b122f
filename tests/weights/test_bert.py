"""BERT and RoBERTa of transformers: in, beside the original, and back; with each head, and without."""

import pytest
import torch

from both_ways import both_ways, randomise
from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.models.reader import ReaderConfig
from pencil.weights.bert import BERT, ROBERTA
from pencil.weights.maps import Source, load, read, write

# each size is another prime, or a multiple where heads must divide a width
SIZES = dict(vocab_size=101, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, intermediate_size=53,
             max_position_embeddings=23)  # fmt: skip
KINDS = {"bert": BERT, "roberta": ROBERTA}
BERTS = [
    ("BertForMaskedLM", dict()),
    ("BertForMaskedLM", dict(hidden_size=35, num_attention_heads=7, type_vocab_size=5, layer_norm_eps=1e-3)),
    ("BertForMaskedLM", dict(vocab_size=2, hidden_size=13, num_attention_heads=1, max_position_embeddings=1)),
    ("BertForPreTraining", dict(num_hidden_layers=1, hidden_size=34, num_attention_heads=17)),
    ("BertForSequenceClassification", dict(num_labels=13)),
    ("BertForSequenceClassification", dict(num_labels=2, hidden_act="gelu_new", hidden_size=65, num_attention_heads=5)),
    ("BertForSequenceClassification", dict(num_labels=17, hidden_act="relu", type_vocab_size=1)),
    ("BertModel", dict()),
    ("BertModel", dict(hidden_act="silu", num_hidden_layers=3, hidden_size=22, num_attention_heads=11)),
]  # fmt: skip
ROBERTAS = [
    ("RobertaForMaskedLM", dict(type_vocab_size=1)),
    ("RobertaForMaskedLM", dict(pad_token_id=0, hidden_act="relu", hidden_size=35, num_attention_heads=5)),
    ("RobertaForMaskedLM", dict(vocab_size=3, pad_token_id=2, max_position_embeddings=4, hidden_size=13, num_attention_heads=1)),
    ("RobertaForSequenceClassification", dict(num_labels=7, pad_token_id=5)),
    ("RobertaModel", dict(layer_norm_eps=1e-3, num_hidden_layers=1)),
]  # fmt: skip


def kind_of(name):
    return "roberta" if name.startswith("Roberta") else "bert"


def built(name, values, **options):
    """One of theirs, random, and its config as a file has it."""
    import transformers

    config = transformers.AutoConfig.for_model(kind_of(name), **{**SIZES, **values})
    config._attn_implementation = "eager"
    theirs = getattr(transformers, name)(config, **options)
    randomise(theirs)
    return theirs.eval(), {**theirs.config.to_dict(), "architectures": [name]}


def rebuilt(described):
    import transformers

    name = described["architectures"][0]
    values = {key: value for key, value in described.items() if key not in ("model_type", "architectures")}
    return getattr(transformers, name)(transformers.AutoConfig.for_model(kind_of(name), **values))


def ours_of(theirs, config):
    architecture, source = KINDS[config["model_type"]], Source(theirs.state_dict())
    return load(architecture, source, architecture.configure(config, source))


@pytest.mark.proof("parity with a reference on random weights", "reader")
@pytest.mark.parametrize("name, values", [one for one in BERTS + ROBERTAS if one[0] != "BertForPreTraining"])
def test_in_beside_the_original_and_back(name, values):
    theirs, config = built(name, values)
    both_ways(KINDS[kind_of(name)], theirs, config, rebuilt)


def draw(high, *shape, seed=7):
    return torch.randint(3, high, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.proof("parity with a reference on random weights", "reader")
@pytest.mark.parametrize("name, values", [
    ("BertForMaskedLM", dict(type_vocab_size=5)), ("BertForSequenceClassification", dict(num_labels=3)),
    ("BertModel", {}), ("RobertaForMaskedLM", {}), ("RobertaForSequenceClassification", dict(num_labels=3)),
])  # fmt: skip
def test_padded_batches_and_token_types_equal_transformers(name, values):
    theirs, config = built(name, values)
    ours, ids = ours_of(theirs, config), draw(101, 5, 17)
    types = draw(config["type_vocab_size"] + 3, 5, 17, seed=8) - 3
    real = torch.arange(17)[None] < torch.tensor([[17], [2], [11], [1], [7]])
    ids = ids.masked_fill(~real, config["pad_token_id"])
    index = torch.arange(17).expand(5, -1).masked_fill(~real, NOWHERE)
    with torch.no_grad():
        answer = theirs(ids, attention_mask=real.long(), token_type_ids=types)
        expected = answer.pooler_output if name == "BertModel" else answer.logits
        found = ours(ids, Span.at(index), types)
        untyped = ours(ids, Span.at(index))
    if found.ndim == 3:  # what stands at padding has no meaning
        found, expected, untyped = found[real], expected[real], untyped[real]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (untyped - expected).abs().max() > 1e-2  # the types have an effect


@pytest.mark.proof("parity with a reference on random weights", "reader")
def test_words_of_a_batch_padded_on_the_left_equal_transformers_bert():
    theirs, config = built("BertForMaskedLM", {})
    ours, ids = ours_of(theirs, config), draw(101, 3, 13)
    place = torch.arange(13)[None] - (13 - torch.tensor([[13], [5], [2]]))
    with torch.no_grad():
        expected = theirs(ids, attention_mask=(place >= 0).long(), position_ids=place.clamp(min=0)).logits
        found = ours(ids, Span.at(place.masked_fill(place < 0, NOWHERE)))
    torch.testing.assert_close(found[place >= 0], expected[place >= 0], atol=1e-5, rtol=1e-5)


def test_the_pooler_and_the_head_are_found_by_the_tensors():
    theirs, config = built("BertModel", {}, add_pooling_layer=False)
    ours, ids = ours_of(theirs, config), draw(101, 2, 11)
    assert ours.config.output == "states"
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).last_hidden_state, atol=1e-5, rtol=1e-5)
    held = theirs.state_dict()
    assert not any(name.startswith("pooler") for name in held)
    back = dict(write(BERT, ours.state_dict(), ours.config))
    assert back.keys() == held.keys()
    assert all(torch.equal(back[name], held[name]) for name in held)
    for name, output in (("BertForPreTraining", "words"), ("BertForSequenceClassification", "label"),
                         ("BertModel", "pool"), ("RobertaForSequenceClassification", "label")):  # fmt: skip
        theirs, config = built(name, {})
        assert ours_of(theirs, {**config, "architectures": None}).config.output == output
    with pytest.raises(UserError, match="no architectures: one of BertForMaskedLM"):
        BERT.configure({**SIZES, "model_type": "bert"})


def test_a_bert_as_pre_trained_is_read_for_its_masked_tokens_and_not_as_a_classifier():
    theirs, config = built("BertForPreTraining", {})
    assert "cls.seq_relationship.weight" in theirs.state_dict()
    ours, ids = ours_of(theirs, config), draw(101, 2, 19)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).prediction_logits, atol=1e-5, rtol=1e-5)
    labels = BERT.configure({**config, "architectures": ["BertForSequenceClassification"]})
    with pytest.raises(UserError, match="has no classifier"):
        load(BERT, Source(theirs.state_dict()), labels)
    heads = {"classifier.weight": torch.zeros(2, 33), "classifier.bias": torch.zeros(2)}
    with pytest.raises(UserError, match="also has cls"):
        load(BERT, Source(theirs.state_dict() | heads), labels)


def test_norms_of_the_first_files_have_other_names():
    theirs, config = built("BertForMaskedLM", {})
    held = theirs.state_dict()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in held.items()
    }
    assert set(old) != set(held)
    settings = BERT.configure(config)
    for (name, tensor), (other, same) in zip(
        read(BERT, Source(held), settings), read(BERT, Source(old), settings), strict=True
    ):
        assert name == other
        assert torch.equal(tensor, same)


def test_numbers_of_positions_in_a_file_are_checked():
    theirs, config = built("RobertaModel", {})
    held, settings = theirs.state_dict(), ROBERTA.configure(config)
    load(ROBERTA, Source(held | {"embeddings.position_ids": torch.arange(23)[None]}), settings)
    for wrong in (torch.arange(23).flip(0)[None], torch.arange(21)[None]):
        with pytest.raises(UserError, match="position_ids is not 0, 1, 2"):
            load(ROBERTA, Source(held | {"embeddings.position_ids": wrong}), settings)


def test_a_head_that_is_not_tied_is_refused():
    theirs, config = built("BertForMaskedLM", {})
    held = dict(theirs.state_dict())
    held["cls.predictions.decoder.weight"] = held["cls.predictions.decoder.weight"] + 1
    with pytest.raises(UserError, match="decoder.weight is not bert.embeddings.word_embeddings.weight"):
        load(BERT, Source(held), BERT.configure(config))


@pytest.mark.parametrize("name, values, words", [
    ("BertForMaskedLM", dict(hidden_act="quick_gelu"), "hidden_act is 'quick_gelu'"),
    ("BertForMaskedLM", dict(hidden_act="gelu_new"), "hidden_act is 'gelu_new', and our head of masked tokens"),
    ("BertForMaskedLM", dict(tie_word_embeddings=False), "tie_word_embeddings is False"),
    ("BertModel", dict(position_embedding_type="relative_key"), "position_embedding_type is 'relative_key'"),
    ("BertModel", dict(is_decoder=True), "is_decoder is True"),
    ("BertModel", dict(rotary=True), "rotary = True, which Pencil does not know"),
    ("BertForSequenceClassification", dict(num_labels=1), "one label"),
    ("BertForSequenceClassification", dict(problem_type="multi_label_classification"), "problem_type is 'multi_label"),
    ("BertForTokenClassification", {}, "architectures is 'BertForTokenClassification'"),
    ("RobertaModel", dict(pad_token_id=None), "pad_token_id is None"),
    ("RobertaModel", dict(pad_token_id=22), "pad_token_id is 22"),
    ("RobertaModel", dict(hidden_size=None), "hidden_size must be a whole number"),
])  # fmt: skip
def test_what_ours_cannot_do_is_refused_by_the_field(name, values, words):
    kind = kind_of(name)
    with pytest.raises(UserError, match=words):
        KINDS[kind].configure({"model_type": kind, "architectures": [name], **SIZES, **values})


@pytest.mark.parametrize("values, words", [
    (dict(norm_position="pre"), "norm_position is 'pre'"), (dict(embed_norm=False), "embed_norm is False"),
    (dict(token_types=0), "token_types is 0"), (dict(bias=False), "bias is False"),
    (dict(positions="sinusoidal"), "positions is 'sinusoidal'"), (dict(norm="rms"), "norm is 'rms'"),
    (dict(kv_heads=1), "kv_heads is 1"), (dict(activation="swiglu"), "activation is 'swiglu'"),
    (dict(activation="relu"), "activation is 'relu', which a BERT for masked tokens"),
    (dict(classes=3, pool="mean"), "pool is 'mean'"), (dict(position_offset=2), "position_offset is 2"),
])  # fmt: skip
def test_what_is_no_bert_is_not_written_as_one(values, words):
    kept = dict(width=42, heads=3, norm_position="post", embed_norm=True, positions="learned", token_types=2)
    assert BERT.describe(ReaderConfig(**kept))["hidden_size"] == 42
    with pytest.raises(UserError, match=words):
        BERT.describe(ReaderConfig(**{**kept, **values}))
    with pytest.raises(UserError, match="position_offset is 0, which a RoBERTa"):
        ROBERTA.describe(ReaderConfig(**kept))
