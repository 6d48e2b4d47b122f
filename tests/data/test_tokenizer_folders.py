"""Folders without tokenizer.json: GPT-2's, RoBERTa's and BERT's files, and sentencepiece's, against the originals."""

import contextlib
import json
import random
import sys

import pytest
from tokenizers import Tokenizer, decoders

from pencil.config import UserError
from pencil.data.tokenizers.detokenizer import Detokenizer
from pencil.data.tokenizers.export import tokenizer_files
from pencil.data.tokenizers.from_checkpoint import find_tokenizer, special_tokens
from pencil.data.tokenizers.hf_tokenizers import LibraryTokenizer
from pencil.data.tokenizers.sentencepiece import (
    SentencePieces,
    SentencePieceTokenizer,
    read_sentencepiece,
    write_sentencepiece,
)
from pencil.data.tokenizers.tokenizer import read_json
from random_texts import random_texts
from small_tokenizers import COUNTS, byte_level, llama3, marian_files, roberta, sentencepiece_file, wordpiece, write


def bpe_files(made):
    model = json.loads(made.to_str())["model"]
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""])
    return dict(vocab__json=made.get_vocab(), merges__txt=merges.encode())


def same(ours, theirs, count, decode=True):
    for text in random_texts(count, 23):
        ids = theirs(text)["input_ids"]
        assert ours.encode_with_special(text) == ids
        if decode:
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        made = Detokenizer(ours)
        assert "".join([*(made.add(i) for i in ids), made.rest()]) == ours.decode(ids)


@pytest.mark.parametrize("count", COUNTS)
def test_gpt2s_and_robertas_two_files(tmp_path, count):
    from transformers import GPT2Tokenizer, RobertaTokenizer

    folder = write(tmp_path, **bpe_files(byte_level()))
    ours, table = find_tokenizer(folder)
    same(ours, GPT2Tokenizer.from_pretrained(folder), count)
    assert table == {"end": ours.id_of("<|endoftext|>")}
    assert ours.begin is None
    made = roberta()
    folder = write(tmp_path, config__json={"model_type": "roberta"}, **bpe_files(made))
    ours, table = find_tokenizer(folder)
    same(ours, RobertaTokenizer.from_pretrained(folder), count)
    assert ours.encode_with_special("a <mask>")[-2:] == [ours.mask, ours.id_of("</s>")]
    assert len(ours.encode("a <mask>")) == 2  # the mask token takes the space before it


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}])  # fmt: skip
def test_berts_vocabulary_and_its_settings(tmp_path, settings):
    from transformers import BertTokenizer

    made = wordpiece(settings.get("do_lower_case", True))
    lines = sorted(made.get_vocab(), key=made.get_vocab().get)
    folder = write(tmp_path, vocab__txt="\n".join([*lines, ""]).encode(), tokenizer_config__json=settings)
    ours, table = find_tokenizer(folder)
    same(ours, BertTokenizer.from_pretrained(folder), 200)
    assert table == {"begin": 2, "pad": 0, "mask": 4}
    assert ours.token_types("a", "b b") == [0, 0, 0, 1, 1, 1]


def llama_file():
    return sentencepiece_file(
        "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, vocab_size=479,
        character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True,
    )  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
def test_llamas_file_gives_the_ids_of_sentencepiece(tmp_path, count):
    content = llama_file()
    folder = write(tmp_path, tokenizer__model=content, config__json={"eos_token_id": 2, "pad_token_id": -1})
    ours, table = find_tokenizer(folder)
    assert (ours.kind, table) == ("bpe", {"begin": 1, "end": 2})
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in random_texts(count, 29):
        ids = theirs.encode(text)
        assert ours.encode(text).tolist() == ids
        assert ours.encode_with_special(text) == [1, *ids]
        made = Detokenizer(ours)
        assert "".join([*(made.add(i) for i in ids), made.rest()]) == ours.decode(ids)
        assert ours.decode(ids) == text.replace("▁", " ")
    assert Tokenizer.from_str(ours.to_json()).encode("the strip").ids == ours.encode_with_special("the strip")


@pytest.mark.parametrize("count", COUNTS)
def test_t5s_file_gives_the_ids_of_sentencepiece(tmp_path, count):
    content = sentencepiece_file("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config = {"model_type": "t5", "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    folder = write(tmp_path, spiece__model=content, config__json=config, tokenizer_config__json={"extra_ids": 3})
    ours, table = find_tokenizer(folder)
    assert table == {"end": 1, "pad": 0, "start": 0}
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    again = read_json(ours.to_json(), "x", table)
    for text in random_texts(count, 31):
        ids = theirs.encode(text)
        assert ours.encode(text).tolist() == ids
        assert again.encode_with_special(text) == [*ids, 1]
        known = [i for i in ids if i != 2]  # unknown text is left out, as other special tokens are
        made = Detokenizer(ours)
        assert "".join([*(made.add(i) for i in ids), made.rest()]) == ours.decode(ids)
        assert ours.decode(ids) == decoders.Metaspace().decode([theirs.id_to_piece(i) for i in known])
    size = theirs.get_piece_size()
    assert ours.vocab == size + 3
    assert ours.encode("<extra_id_2><extra_id_0></s>").tolist() == [size, size + 2, 1]
    exported = tokenizer_files(ours)
    assert sentencepiece.SentencePieceProcessor(model_proto=exported["spiece.model"]).encode("the strip") == (
        theirs.encode("the strip")
    )


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    return marian_files(tmp_path_factory.mktemp("marian"))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.filterwarnings("ignore:Recommended")
def test_marians_two_files_with_one_table_of_ids(marian, count):
    from transformers import MarianTokenizer

    theirs, (ours, table) = MarianTokenizer.from_pretrained(marian), find_tokenizer(marian)
    pad = ours.vocab - 1
    assert table == {"end": 0, "pad": pad, "start": pad, "never": [pad]}
    same(ours, theirs, count)
    again = read_json(ours.to_json(), "x", table)
    for text in random_texts(count, 37):
        assert [*again.encode_target(text).tolist(), 0] == theirs(text_target=text)["input_ids"]
    assert ours.encode(">>deu<<the strip").tolist() == theirs(">>deu<<the strip")["input_ids"][:-1]


@pytest.mark.filterwarnings("ignore:Recommended")
def test_marians_files_are_exported_again(marian, tmp_path):
    from transformers import AutoTokenizer

    ours, _ = find_tokenizer(marian)
    for name, content in tokenizer_files(ours).items():
        (tmp_path / name).write_bytes(content)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    same(ours, theirs, 50)


def test_a_sentencepiece_file_is_read_and_written_whole():
    content = llama_file()
    found = read_sentencepiece(content, "x")
    assert read_sentencepiece(write_sentencepiece(found), "x") == found
    for cut in (1, 57, 1000, len(content) - 1):
        with pytest.raises(UserError, match="sentencepiece"):
            read_sentencepiece(content[:cut], "x")
    chance = random.Random(1)
    for _ in range(200):  # any file is read or refused
        mixed = bytearray(content[:2000])
        for _ in range(5):
            mixed[chance.randrange(len(mixed))] = chance.randrange(256)
        with contextlib.suppress(UserError):
            read_sentencepiece(bytes(mixed), "x")


def test_without_the_package_a_folder_and_a_run_are_refused_with_what_to_install(marian, tmp_path, monkeypatch):
    run = find_tokenizer(marian)[0].to_json()
    t5 = write(tmp_path, spiece__model=sentencepiece_file("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for refused in (lambda: find_tokenizer(t5), lambda: find_tokenizer(marian), lambda: read_json(run, "x", {})):
        with pytest.raises(UserError, match=r"sentencepiece.*pip install '\.\[sentencepiece\]'"):
            refused()


@pytest.mark.parametrize(
    "settings, words",
    [(dict(user_defined_symbols=["<x>"]), "user-defined symbols"),
     (dict(treat_whitespace_as_suffix=True), "treat_whitespace_as_suffix"), (dict(model="char"), "words or characters")],
)  # fmt: skip
def test_what_a_file_asks_for_that_is_not_supported_is_named(settings, words):
    content = sentencepiece_file(settings.pop("model", "unigram"), **settings)
    with pytest.raises(UserError, match=words):
        read_sentencepiece(content, "x")


def test_special_tokens_come_from_all_settings(tmp_path):
    llama3().save(str(tmp_path / "tokenizer.json"))
    ours, table = find_tokenizer(tmp_path)
    begin, end, turn = (ours.id_of(f"<|{name}|>") for name in ("begin_of_text", "end_of_text", "eot_id"))
    assert table == {"begin": begin}
    files = {"config.json": {"eos_token_id": end, "bos_token_id": begin}, "tokenizer_config.json": {}}
    assert special_tokens(files, ours) == {"begin": begin, "end": end}
    files["generation_config.json"] = {"eos_token_id": [end, turn], "suppress_tokens": [3, -1]}
    files["special_tokens_map.json"] = {"pad_token": {"content": "<|eot_id|>"}}
    both = special_tokens(files, ours)
    assert both == {"begin": begin, "end": [end, turn], "pad": turn, "never": [3]}
    assert ours.with_tokens(both, "x").ends == (end, turn)
    assert ours.with_tokens(both, "x").end == end
    files["tokenizer_config.json"] = {"add_bos_token": False, "clean_up_tokenization_spaces": True}
    assert "begin" not in special_tokens(files, ours)
    assert "clean" not in special_tokens(files, ours)  # of a BPE it would change the text
    files["tokenizer_config.json"] = {"add_bos_token": True, "bos_token": "<|eot_id|>"}
    assert special_tokens(files, ours)["begin"] == turn
    files["generation_config.json"] = {"bad_words_ids": [[1, 2]]}
    with pytest.raises(UserError, match="generation_config.json has bad_words_ids"):
        special_tokens(files, ours)


def test_what_is_never_generated_is_read_from_one_file():
    """As in transformers: config.json has it in files of before generation_config.json, and beside one it has no say."""
    ours, banned = LibraryTokenizer(llama3()), {"suppress_tokens": [3], "bad_words_ids": [[5]]}
    assert special_tokens({"config.json": banned}, ours) == {"never": [5, 3]}
    assert special_tokens({"config.json": banned, "generation_config.json": {}}, ours) == {}
    with pytest.raises(UserError, match="^config.json has bad_words_ids of several tokens"):
        special_tokens({"config.json": {"bad_words_ids": [[1, 2]]}}, ours)


@pytest.mark.parametrize(
    "table, words",
    [({"begin": 10**6}, "not an id"), ({"end": [1, "x"]}, "not an id"), ({"begn": 1}, "did you mean begin"),
     ({"mask": True}, "not an id"), ({"clean": 1}, "true or false")],
)  # fmt: skip
def test_a_table_of_special_tokens_is_checked(table, words):
    with pytest.raises(UserError, match=words):
        read_json(byte_level().to_str(), "x", table)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert find_tokenizer(tmp_path) is None
    with pytest.raises(UserError, match="not a sentencepiece model"):
        find_tokenizer(write(tmp_path, tokenizer__model=b"IQ== 0\nIg== 1\n"))


def by_hand():
    """Pieces whose best split is known: “ab” is likelier than “a” and “b”."""
    scores = {"▁": -3.0, "a": -2.0, "b": -2.0, "ab": -3.5, "▁ab": -6.0}
    pieces = [("<unk>", 0.0, 2), ("</s>", 0.0, 3), *((piece, score, 1) for piece, score in scores.items())]
    return SentencePieces(pieces, 1, b"", True, True)


def test_the_likeliest_pieces_of_a_text_are_chosen():
    found = by_hand()
    ours = SentencePieceTokenizer(found, added={"</s>": 1}, after=[1], tokens={"end": 1})
    names = [ours.token(i) for i in ours.encode_with_special("  ab  aab\U0001f600</s>a ")]
    # spaces are joined; −6 for “▁ab” is likelier than −3 − 3.5; consecutive unknown text is one token
    assert names == [" ab", " ", "a", "ab", "<unk>", "</s>", " ", "a", "</s>"]
    assert ours.decode(ours.encode("  ab  aab a ")) == "ab aab a"
    assert read_sentencepiece(write_sentencepiece(found), "x") == found
    two = SentencePieceTokenizer(found, found, {"<unk>": 7, "</s>": 0, "▁ab": 3, "a": 5}, {"</s>": 0}, [0])
    assert two.encode_with_special("ab aab") == [3, 7, 5, 7, 0]
    assert two.vocab == 8
    assert two.decode([3, 5, 0]) == "aba"


def test_the_tokenizer_of_an_earlier_run_gives_its_ids():
    pieces = '[["<unk>", 0.0, 2], ["</s>", 0.0, 3], ["▁", -3.0, 1], ["a", -2.5, 1], ["▁a", -4.0, 1]]'
    flags = '"model": 1, "charsmap": "", "dummy_prefix": true, "remove_extra_spaces": true'
    text = (
        f'{{"kind": "sentencepiece", "source": {{"pieces": {pieces}, {flags}}}, "added": {{"</s>": 1}}, "after": [1]}}'
    )
    earlier = read_json(text, "x", {"end": 1})
    assert earlier.to_json() == text
    assert earlier.encode_with_special(" a  aaé a</s>") == [4, 4, 3, 0, 4, 1, 1]
    assert earlier.decode([4, 4, 3, 0, 4, 1, 1]) == "a aa a"


@pytest.mark.parametrize(
    "change",
    [lambda c: c["source"].update(charsmap="AAAA"), lambda c: c["source"].update(charsmap="?"),
     lambda c: c["source"].update(model=3), lambda c: c["source"]["pieces"].append(["a", 0.0, 1]),
     lambda c: c["source"]["pieces"].append(["c", "x", 1]), lambda c: c["source"]["pieces"].append(["c", 0.0, 4]),
     lambda c: c["source"]["pieces"].pop(0), lambda c: c.update(added={"": 1}), lambda c: c.update(added={"x": 10**9}),
     lambda c: c.update(after=[10**9]), lambda c: c.update(ids={"a": 0}), lambda c: c.pop("after"),
     lambda c: c.update(source=7)],
)  # fmt: skip
def test_a_damaged_file_of_pieces_is_refused(change):
    content = json.loads(SentencePieceTokenizer(by_hand(), added={"</s>": 1}).to_json())
    assert read_json(json.dumps(content), "x", {}).encode("ab").tolist() == [6]
    change(content)
    with pytest.raises(UserError, match="is not a tokenizer, or is damaged"):
        read_json(json.dumps(content), "x", {})
