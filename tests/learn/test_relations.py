"""Relations of words in sentences: their heads beside attention computed without Pencil's scores; models that come along."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pencil
from conftest import call
from pencil.config import UserError
from pencil.learn.heads.relations import RELATIONS, relation_scores, tokens_of

ENGLISH = "example:english"


@pytest.fixture(scope="module")
def english():
    return pencil.load(ENGLISH, dtype="auto")


def test_the_words_of_every_pair_are_in_their_sentence_in_that_order():
    for relation in RELATIONS:
        assert len(relation.pairs) % 2 == 0
        assert len({text for text, *_ in relation.pairs}) == len(relation.pairs)
        for text, later, earlier in relation.pairs:
            words = re.findall(r"\w+", text)
            assert words.count(later) == words.count(earlier) == 1
            assert words.index(earlier) < words.index(later)


@pytest.mark.parametrize("cuts, word, places", [
    (["the ", "old ", "st", "reet", "."], "street", [2, 3]), (["a", " cat", " sat"], "cat", [1]),
    (["he", "lps he", "r"], "her", [1, 2]), (["Jo", "hn's"], "John", [0, 1])])  # fmt: skip
def test_the_tokens_of_a_word_are_those_with_a_letter_of_it(cuts, word, places):
    text = "".join(cuts)
    assert tokens_of(word, text, range(len(cuts)), lambda ids: "".join(cuts[i] for i in ids)) == places


def test_the_scores_are_the_traced_attention_of_the_other_half(english):
    """The same shares by a trace, with the places of words counted by hand from the tokens' own texts."""
    some = RELATIONS[:1]
    for relation, score in zip(some, relation_scores(english, some), strict=True):
        shares, chances = [], []
        for text, later, earlier in relation.pairs:
            ids = english.tokenizer.encode(text).tolist()
            trace = pencil.trace(english.model, torch.tensor([ids]))
            patterns = np.stack([trace.array(f"blocks.{layer}.attn.pattern")[0] for layer in range(4)])
            ends = np.cumsum([len(english.tokenizer.decode([i])) for i in ids])
            begins = ends - np.diff(ends, prepend=0)
            spans = [re.search(rf"\b{word}\b", text).span() for word in (later, earlier)]
            of = [np.flatnonzero((ends > start) & (begins < end)) for start, end in spans]
            query = of[0][-1]
            shares.append(patterns[:, :, query, of[1]].sum(-1))
            chances.append(len(of[1]) / (query + 1))
        shares, half = np.array(shares), slice(1, None, 2)
        layer, head = np.unravel_index(shares[::2].mean(0).argmax(), shares.shape[1:])
        assert (score.layer, score.head) == (layer, head)
        assert score.mean == pytest.approx(shares[half, layer, head].mean(), abs=1e-6)
        assert score.chance == pytest.approx(np.mean(chances[half]), abs=1e-12)


def test_an_untrained_model_has_no_relation(english):
    torch.manual_seed(7)
    untrained = type(english.model)(english.model.config).eval()
    for score in relation_scores(SimpleNamespace(model=untrained, tokenizer=english.tokenizer, run=english.run)):
        assert not score.clear


def test_heads_with_relations_says_what_chance_gives(tmp_path):
    (tmp_path / "t.txt").write_text("The sailors saw the white whale, and the captain called the men on deck. " * 9)
    words = ("heads", ENGLISH, "--text", tmp_path / "t.txt", "--relations", "--out", tmp_path / "h.png")
    told = call(*words).stdout
    for relation in RELATIONS:
        assert re.search(rf"{relation.name}: head \d\.\d, \d+ ±\d+ % of its attention, by chance \d+ %: ", told)
    scores = json.loads(call(*words, "--json").stdout)["relations"]
    assert [score["name"] for score in scores] == [relation.name for relation in RELATIONS]


def test_a_model_that_reads_both_ways_is_refused():
    with pytest.raises(UserError, match="does not read a text from left to right: --relations is for a gpt"):
        relation_scores(pencil.load("example:scenes"))


# ---- models that come with Pencil


def test_models_that_come_with_pencil_open_by_their_name_and_are_small(english):
    assert english.run.path.name == "english"
    assert sum(path.stat().st_size for path in english.run.path.iterdir()) <= 2_000_000
    assert 800_000 < sum(p.numel() for p in english.model.parameters()) < 1_200_000
    assert "whole" in call("verify", ENGLISH).stderr
    assert call("sample", ENGLISH, "--prompt", "The captain", "--max-new-tokens", "3").stdout.startswith("The captain")
    with pytest.raises(UserError, match=f"example:englisch; those that come with Pencil: {ENGLISH}, example:scenes"):
        pencil.load("example:englisch")


def test_models_that_come_with_pencil_are_not_written_to(english, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in english.run.path.iterdir()}
    (tmp_path / "t.txt").write_text("The people of the United States read the message. " * 30)
    call("heads", ENGLISH, "--text", "t.txt")
    call("eval", ENGLISH, "--data", "t.txt")
    assert (tmp_path / "english-heads.png").is_file()
    refused = call("resume", ENGLISH, "--train.steps", "20000", code=2).stderr
    assert "stays as it is" in refused
    assert f"--from {ENGLISH}" in refused
    assert {path.name: path.stat().st_mtime_ns for path in english.run.path.iterdir()} == before
