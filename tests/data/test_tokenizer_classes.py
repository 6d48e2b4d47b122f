"""Folders whose tokenizer_config.json says otherwise than their tokenizer.json: ids equal AutoTokenizer's, or refused."""

import itertools
import json
import random

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from pencil.config import UserError
from pencil.data.tokenizers.from_checkpoint import find_tokenizer
from random_texts import random_texts
from small_tokenizers import GPT4, QWEN, byte_level, fallback, llama3, roberta, unigram, wordpiece, write

TEXTS = [
    "The trace of a matrix", " a leading space", "Zürich naïve ÇA", "e\u0301 is two letters", "日本語 in a text",
    "12345 and 3.14", "A<mask>B [MASK] C", "the <|im_start|> strip <ent> has <e2>", "<s>the</s> [CLS] seat<|endoftext|>",
    "tabs\tand\n\nlines  ", "", "don't I'LL", "<extra_id_0> ▁ <pad>", "👍 emoji <0x41>", "the <|endoftext|> seat",
    *random_texts(7, 5),
]  # fmt: skip


def like(made, **stages):
    """A tokenizer with other stages and the same vocabulary."""
    made = Tokenizer.from_str(made.to_str())
    for name, stage in stages.items():
        setattr(made, name, stage)
    return made


def bases():
    plain, uncased, bytes_too = byte_level(), wordpiece(True), fallback()
    level, nfc = pre_tokenizers.ByteLevel(False, use_regex=False), normalizers.NFC()
    splits = {
        name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), level])
        for name, split in (("qwen", QWEN), ("gpt4", GPT4))
    }
    return {
        "bytes": plain, "bytes-space": like(plain, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        **{name: like(plain, normalizer=nfc, pre_tokenizer=split) for name, split in splits.items()},
        "digits": like(plain, pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level])),
        "llama3": llama3(), "roberta": roberta(), "uncased": uncased,
        "cased": like(uncased, normalizer=normalizers.BertNormalizer(lowercase=False)), "fallback": bytes_too,
        "metaspace": like(bytes_too, normalizer=normalizers.Replace("x", "x"),
                          pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        "unigram": unigram(), "letters": Tokenizer(models.BPE({"A": 0, "B": 1, "C": 2}, [])),
    }  # fmt: skip


ENT = {"content": "<ent>", "single_word": False, "lstrip": False, "rstrip": True, "normalized": False, "special": True}


def added(made, *tokens):
    """added_tokens_decoder as the library writes it: every added token, and some more after the vocabulary."""
    known = {t["id"]: {k: v for k, v in t.items() if k != "id"} for t in json.loads(made.to_str())["added_tokens"]}
    after = max(made.get_vocab().values()) + 1
    return {str(i): t for i, t in (known | {after + n: t for n, t in enumerate(tokens)}).items()}


def others(folder, made, settings, config=None, **files):
    """The texts whose ids are not those of AutoTokenizer."""
    from transformers import AutoTokenizer

    for path in folder.iterdir():
        path.unlink()
    if made is not None:
        made.save(str(folder / "tokenizer.json"))
    write(folder, tokenizer_config__json=settings, config__json=config or {}, **files)
    ours, _ = find_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    return [text for text in TEXTS if ours.encode_with_special(text) != theirs(text)["input_ids"]]


DISAGREE = [
    ("uncased", "BertTokenizer", {"do_lower_case": False}), ("cased", "BertTokenizer", {"do_lower_case": True}),
    ("cased", "BertTokenizer", {}), ("uncased", "BertTokenizer", {"strip_accents": False}),
    ("uncased", "BertTokenizer", {"tokenize_chinese_chars": False}),
    ("bytes", "GPT2Tokenizer", {"add_prefix_space": True}), ("roberta", "RobertaTokenizer", {"add_prefix_space": True}),
    ("bytes-space", "GPT2Tokenizer", {"add_prefix_space": False}), ("bytes-space", "GPT2Tokenizer", {}),
    ("fallback", "LlamaTokenizer", {"add_prefix_space": False}),
    ("bytes", "GPT2Tokenizer", {"additional_special_tokens": ["<ent>"]}), ("bytes", "GPT2Tokenizer", "decoder"),
    ("bytes", "PreTrainedTokenizerFast", {"additional_special_tokens": ["<ent>"]}),
    ("uncased", "PreTrainedTokenizerFast", "decoder"), ("fallback", "LlamaTokenizer", {}),
    ("letters", "GPT2Tokenizer", {}), ("digits", "GPT2Tokenizer", {}), ("unigram", "T5Tokenizer", {"extra_ids": 3}),
]  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return bases()


def settings_of(base, name, given):
    named = {} if name is None else {"tokenizer_class": name}
    return named | ({"added_tokens_decoder": added(base, ENT)} if given == "decoder" else given)


def test_settings_that_disagree_with_a_tokenizer_json_are_followed(made, tmp_path):
    for base, name, given in DISAGREE:
        assert others(tmp_path, made[base], settings_of(made[base], name, given)) == [], (base, name, given)
    older = {"additional_special_tokens": ["<ent>"]}
    named = {"tokenizer_class": "T5Tokenizer"}
    assert others(tmp_path, made["unigram"], named, special_tokens_map__json=older) == []


OPTIONS = [
    {}, {"do_lower_case": False}, {"strip_accents": False}, {"add_prefix_space": True}, {"add_prefix_space": False},
    {"legacy": True}, {"extra_special_tokens": {"image_token": "<ent>"}}, {"image_token": "<e2>"}, "decoder",
    {"pad_token": "<e2>"}, {"add_bos_token": False}, {"add_bos_token": True, "bos_token": "<s>"}, "map", "added",
]  # fmt: skip
NAMES = ("BertTokenizerFast", "GPT2Tokenizer", "RobertaTokenizer", "LlamaTokenizerFast", "GPTNeoXTokenizer",
         "Qwen2Tokenizer", "T5Tokenizer", "PreTrainedTokenizerFast", None)  # fmt: skip
MODELS = (None, "bert", "roberta", "gpt2", "gpt_neox", "qwen2", "qwen3", "llama", "mistral", "t5")


@pytest.mark.parametrize("count", [pytest.param(25, id="25"), pytest.param(2_000, id="2000", marks=pytest.mark.long)])
def test_no_folder_gives_other_ids_silently(made, tmp_path, count):
    cases = list(itertools.product(made, NAMES, MODELS, OPTIONS))
    equal = 0
    for base, name, model, given in random.Random(7).sample(cases, count):
        after = max(made[base].get_vocab().values()) + 1
        files, settings = {}, given
        if given == "map":
            files = {"special_tokens_map__json": {"additional_special_tokens": ["<ent>"], "mask_token": "<e2>"}}
        if given == "added":
            files = {"added_tokens__json": {"<ent>": after}}
        settings = settings_of(made[base], name, {} if files else given)
        try:
            found = others(tmp_path, made[base], settings, {} if model is None else {"model_type": model}, **files)
        except UserError:
            continue
        assert found == [], (base, name, model, given)
        equal += 1
    assert equal > count // 3


def test_older_files_have_the_tokens_that_only_the_settings_list(made, tmp_path):
    vocabulary = made["uncased"].get_vocab()
    lines = "\n".join([*sorted(vocabulary, key=vocabulary.get), ""]).encode()
    settings = {"tokenizer_class": "BertTokenizer", "additional_special_tokens": ["<ent>"]}
    assert others(tmp_path, None, settings, vocab__txt=lines) == []
    ours, _ = find_tokenizer(tmp_path)
    assert ours.id_of("<ent>") == len(vocabulary)
    write(tmp_path, config__json={"vocab_size": len(vocabulary)})  # the model has no row for it
    ours, _ = find_tokenizer(tmp_path)
    assert ours.vocab == len(vocabulary)


@pytest.mark.parametrize(
    "base, settings, words",
    [("bytes", {"tokenizer_class": "CodeLlamaTokenizer"}, "tokenizer_class CodeLlamaTokenizer .*PreTrainedTokenizerFast"),
     ("bytes", {"tokenizer_class": "BertTokenizer"}, "is a BPE, and the tokenizer_class BertTokenizer is a WordPiece"),
     ("bytes", {"tokenizer_class": "RobertaTokenizer"}, "'</s>' is not there"),
     ("bytes", {"split_special_tokens": True}, "split_special_tokens"),
     ("bytes", {"added_tokens_decoder": {"907": ENT}}, "'<ent>' cannot have the id 907"),
     ("bytes", {"added_tokens_decoder": []}, "the added or special tokens in the files beside it cannot be read;"),
     ("bytes", {"added_tokens_decoder": {"x": {}}}, "cannot be read; see tokenizer_config.json"),
     ("bytes", {"added_tokens_decoder": {"5": {}}}, "cannot be read \\('content' is not there\\)"),
     ("unigram", {"tokenizer_class": "T5Tokenizer", "extra_ids": "a"}, "cannot be read|can be made of")],
)  # fmt: skip
def test_what_cannot_be_followed_is_named(made, tmp_path, base, settings, words):
    made[base].save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, tokenizer_config__json=settings)
    with pytest.raises(UserError, match=words):
        find_tokenizer(tmp_path)


def test_a_stage_that_a_class_replaces_is_announced(made, tmp_path):
    for base, words in (("digits", "GPT2Tokenizer makes the pre_tokenizer"), ("bytes", None)):
        made[base].save(str(tmp_path / "tokenizer.json"))
        write(tmp_path, tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer"})
        notes = []
        find_tokenizer(tmp_path, notes.append)
        assert len(notes) == (words is not None)
        assert words is None or words in notes[0]
