"""BPE on texts without spaces: trained on words in parts, in little time; other texts as the library alone does."""

import json
import logging
import random
import resource

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pencil.data.text import text_data as texts
from pencil.data.tokenizers import hf_tokenizers
from pencil.data.tokenizers import tokenizer as tokenizers
from pencil.data.tokenizers.tokenizer import END, LONGEST_WORD, train_bpe


def plainly(parts, vocab):
    """The `tokenizers` library's own byte-level BPE."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    inner.train_from_iterator(parts, trainer)
    return inner


def letters(count, seed=1, alphabet="abcdefghijklmnop"):
    return "".join(random.Random(seed).choices(alphabet, k=count))


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("text", [
    texts.TEXTS["pydoc"]()[:200_000],
    "\n\n".join(letters(LONGEST_WORD, seed) for seed in range(3)),  # exactly as long as a word may be
    " ".join(letters(LONGEST_WORD - 1, seed) for seed in range(3)),
    "吾輩は猫である。名前はまだ無い。" * 97 + "one's  two\n\n\t three " * 89,
    ("x = 7\n" + " " * 499 + "y\n") * 5,
])  # fmt: skip
def test_normal_texts_have_the_merges_of_the_library_alone(text, caplog):
    parts = [text[:7919], text[7919:]]
    assert json.loads(train_bpe(parts, 600).to_json()) == json.loads(plainly(parts, 600).to_str())
    assert not caplog.records


def test_300_kb_without_a_space_take_seconds_and_a_sentence(caplog):
    """As one word, it took two silent minutes."""
    text, before = letters(300_000), cpu()
    with caplog.at_level(logging.WARNING, "pencil"):
        tokenizer = train_bpe([text], 4096)
    assert cpu() - before < 20
    assert [record.getMessage() for record in caplog.records] == [
        "the text has words of more than 1000 characters, without a space: the BPE is trained on parts of them, each of "
        "1000 characters"
    ]
    assert tokenizer.vocab == 4096
    ids = tokenizer.encode(text)
    assert len(ids) < len(text) / 2
    assert tokenizer.decode(ids.tolist()) == text


@pytest.mark.parametrize("word", ["=-" * 1009, " " * 2003, "漢字" * 1013, "31" * 1021, "a" * 1999])
def test_a_long_word_counts_as_parts_and_its_neighbours_as_they_are(word):
    """The same merges as the library's, given every word and part on its own."""
    before, after = "one two\n\n", "\n\n  it's three"
    found = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(before + word + after)
    whole = before + word + after
    parts = [
        whole[i : min(end, i + LONGEST_WORD)] for _, (start, end) in found for i in range(start, end, LONGEST_WORD)
    ]
    assert max(map(len, parts)) == LONGEST_WORD
    assert "".join(parts) == whole
    assert train_bpe([whole], 300).to_json() == tokenizers.BPETokenizer(plainly(parts, 300)).to_json()


def test_a_large_text_shows_its_progress(monkeypatch, caplog):
    monkeypatch.setattr(hf_tokenizers, "PROGRESS", 1_000_000)
    with caplog.at_level(logging.WARNING, "pencil"):
        train_bpe(["seven words make a line of text\n" * 20_000] * 4, 270)
    assert [record.getMessage() for record in caplog.records] == [
        "training a BPE: 1 million characters read",
        "training a BPE: 2 million characters read",
    ]
