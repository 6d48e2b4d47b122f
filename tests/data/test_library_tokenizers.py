"""Tokenizers of the `tokenizers` library against transformers' own: ids, text, streaming, and files given back."""

import json

import numpy as np
import pytest

from pencil.config import UserError
from pencil.data.tokenizers.detokenizer import Detokenizer
from pencil.data.tokenizers.export import tokenizer_files
from pencil.data.tokenizers.from_checkpoint import find_tokenizer
from pencil.data.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, read_json
from random_texts import random_texts
from small_tokenizers import COUNTS, GPT4, GPT4O, QWEN, byte_level, fallback, llama3, roberta, unigram, wordpiece

KINDS = {
    "byte-level": (byte_level, dict(eos_token="<|endoftext|>")),
    "llama3": (llama3, dict(bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")),
    "fallback": (fallback, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")),
    "wordpiece": (lambda: wordpiece(False), dict(mask_token="[MASK]", pad_token="[PAD]", unk_token="[UNK]")),
    "uncased": (
        lambda: wordpiece(True),
        dict(mask_token="[MASK]", pad_token="[PAD]", unk_token="[UNK]", clean_up_tokenization_spaces=True),
    ),
    "roberta": (roberta, dict(eos_token="</s>", mask_token="<mask>", pad_token="<pad>")),
    "unigram": (
        unigram,
        dict(eos_token="</s>", pad_token="<pad>", unk_token="<unk>", clean_up_tokenization_spaces=True),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind, with its tokenizer.json and its settings."""
    found = {}
    for name, (make, settings) in KINDS.items():
        found[name] = tmp_path_factory.mktemp(name)
        make().save(str(found[name] / "tokenizer.json"))
        (found[name] / "tokenizer_config.json").write_text(json.dumps(settings))
    return found


def original(folder):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def streamed(tokenizer, ids):
    made = Detokenizer(tokenizer)
    return "".join([*(made.add(int(i)) for i in ids), made.rest()])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_are_the_originals(folders, kind, count):
    theirs, (ours, table) = original(folders[kind]), find_tokenizer(folders[kind])
    assert read_json(ours.to_json(), "x", table).to_json() == ours.to_json()
    texts = random_texts(count)
    plain, special = theirs(texts, add_special_tokens=False)["input_ids"], theirs(texts)["input_ids"]
    for text, ids, whole in zip(texts, plain, special, strict=True):
        assert ours.encode(text).tolist() == ids
        assert ours.encode_with_special(text) == whole
        assert ours.decode(whole) == theirs.decode(whole, skip_special_tokens=True)
        assert whole == [*ours.around[0], *ids, *ours.around[1]]
    pair = theirs(texts[:50], texts[50:100])
    for i in range(50):
        assert ours.encode_with_special(texts[i], texts[50 + i]) == pair["input_ids"][i]
        if "token_type_ids" in pair:
            assert ours.token_types(texts[i], texts[50 + i]) == pair["token_type_ids"][i]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_is_the_decoded_text(folders, kind, count):
    ours, _ = find_tokenizer(folders[kind])
    for text in random_texts(count, 7):
        ids = ours.encode_with_special(text)
        assert streamed(ours, ids) == ours.decode(ids)
    chance = np.random.default_rng(3)
    for _ in range(count):  # tokens in an order that no text has: parts of characters, special tokens between
        ids = chance.integers(0, ours.vocab, chance.integers(1, 23)).tolist()
        assert streamed(ours, ids) == ours.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_loads_with_equal_ids(folders, kind, tmp_path):
    from transformers import AutoTokenizer

    ours, _ = find_tokenizer(folders[kind])
    for name, content in tokenizer_files(ours, 113).items():
        (tmp_path / name).write_bytes(content)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 113
    for text in random_texts(100, 11):
        ids = ours.encode_with_special(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    again, table = find_tokenizer(tmp_path)
    assert again.to_json() == ours.to_json()
    assert table == ours.special.table


@pytest.mark.parametrize("ended", [False, True])
def test_characters_and_bytes_are_exported_with_equal_ids(tmp_path, ended):
    from transformers import AutoTokenizer

    texts = random_texts(100, 13)
    for tokenizer in (ByteTokenizer(ended), CharTokenizer("".join(texts), ended)):
        for name, content in tokenizer_files(tokenizer).items():
            (tmp_path / name).write_bytes(content)
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        assert len(theirs) == tokenizer.vocab
        for text in texts:
            ids = tokenizer.encode(text).tolist()
            assert theirs(text)["input_ids"] == ids
            assert theirs.decode(ids) == text
        assert theirs.eos_token_id == tokenizer.end


def test_lengths_in_bytes_are_known_where_no_byte_is_lost(folders):
    for kind in ("fallback", "byte-level"):
        ours, _ = find_tokenizer(folders[kind])
        for text in random_texts(200, 17):
            text = text.replace("▁", "")  # which stands for a space
            if text:
                total = int(ours.byte_lengths[ours.encode(text)].sum())
                assert total == len(text.encode()) + (kind == "fallback"), text  # the space before a text
        assert all(ours.byte_lengths[i] == 0 for i in ours.ends)
    for kind in ("wordpiece", "uncased", "unigram"):
        assert find_tokenizer(folders[kind])[0].byte_lengths is None


def test_a_token_as_a_label_shows_special_tokens_and_spaces(folders):
    for kind, text, shown in (
        ("fallback", "the\n", ["<s>", " the", "\n"]),
        ("uncased", "strip", ["[CLS]", "strip", "[SEP]"]),
        ("roberta", " the", ["<s>", " the", "</s>"]),
    ):
        ours, _ = find_tokenizer(folders[kind])
        assert [ours.token(i) for i in ours.encode_with_special(text)] == shown
    assert ours.token(ours.vocab + 5) == ""


@pytest.mark.parametrize("pattern", [GPT4, QWEN, GPT4O])
def test_the_patterns_of_known_tokenizers_are_allowed(pattern):
    assert read_json(byte_level(pattern).to_str(), "x").decode(read_json(byte_level().to_str(), "x").encode("")) == ""


def test_ids_may_have_gaps_but_not_wide_ones():
    content = json.loads(byte_level().to_str())
    top = content["added_tokens"][0] | {"id": 450, "content": "<|x|>"}
    ours = read_json(json.dumps(content | {"added_tokens": [*content["added_tokens"], top]}), "x")
    assert ours.vocab > max(content["model"]["vocab"].values()) + 1 or ours.vocab == 402
    with pytest.raises(UserError, match="most of them stand for nothing"):
        read_json(json.dumps(content | {"added_tokens": [*content["added_tokens"], top | {"id": 5000}]}), "x")


HOSTILE = {
    "random merges": (lambda c: c["model"].update(dropout=0.1), "dropout"),
    "a long replacement": (
        lambda c: c.update(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 99}), "replaces"
    ),
    "a long beginning": (lambda c: c.update(normalizer={"type": "Prepend", "prepend": "a" * 99}), "before a text"),
    "a template of unknown tokens": (
        lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[9999]), "not in its vocabulary"
    ),
    "a long template": (
        lambda c: c["post_processor"].update(single=c["post_processor"]["single"] * 99), "more than 16 tokens"
    ),
    "an unknown token that is none": (lambda c: c["model"].update(unk_token="nothing"), "unknown text"),
    "words without end": (lambda c: c["model"].update(max_input_chars_per_word=10**9), "max_input_chars_per_word"),
    "another decoder": (lambda c: c.update(decoder={"type": "Fuse"}), "does not give the text"),
    "another model": (lambda c: c["model"].update(type="Markov"), "its model is Markov"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_asks_for_too_much_is_refused(name):
    change, words = HOSTILE[name]
    content = json.loads(wordpiece(True).to_str())
    read_json(json.dumps(content), "x")
    change(content)
    with pytest.raises(UserError, match=words):
        read_json(json.dumps(content), "x")


@pytest.mark.parametrize(
    "vocab, unknown, words",
    [([["a", -1.0]], None, "unk_id"), ([["a", -1.0]], 1, "unk_id"), ([["", -1.0]], 0, "no text"),
     ([["a", -1.0], ["a", -2.0]], 0, "two tokens"), ([["a", float("nan")]], 0, "score")],
)  # fmt: skip
def test_a_unigram_that_would_stop_at_a_text_is_refused(vocab, unknown, words):
    content = {"model": {"type": "Unigram", "vocab": vocab, "unk_id": unknown}, "decoder": {"type": "Metaspace"}}
    with pytest.raises(UserError, match=words):
        read_json(json.dumps(content), "x")


def test_a_damaged_normalisation_is_refused():
    content = json.loads(unigram().to_str())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(UserError, match="is not a tokenizer"):
        read_json(json.dumps(content), "x").encode("abc")
