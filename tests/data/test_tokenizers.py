import json
import sys
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pencil.config import UserError
from pencil.data.tokenizers.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    from_name,
    learn,
    pieces,
    read_json,
    train_bpe,
)
from pencil.inference.autoencoder import Autoencoder

TEXT = "The pencil draws a strip; the strip has a seat. naïve café, 日本, 👍!\n\n  def f(x):\n\treturn x\n" * 20
BPE = train_bpe([TEXT], 300)


@given(st.text())
def test_bytes_and_bpe_give_any_text_back(text):
    for tokenizer in (ByteTokenizer(), BPE):
        ids = tokenizer.encode(text).tolist()
        assert tokenizer.decode(ids) == text
        assert sum(tokenizer.byte_lengths[i] for i in ids) == len(text.encode())


@given(st.text(alphabet=TEXT))
def test_characters_give_their_text_back(text):
    tokenizer = CharTokenizer(TEXT)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids.tolist()) == text
    assert len(ids) == len(text)
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())


def test_a_strange_character_is_named():
    with pytest.raises(UserError, match="'ß' is not among the 3 characters"):
        CharTokenizer("abc").encode("abßc")
    with pytest.raises(UserError, match="'👍'"):
        CharTokenizer("abc").encode("👍")


def test_bpe_learns_merges_within_its_size_and_can_end_a_text():
    assert 257 <= BPE.vocab <= 300
    assert len(BPE.encode(TEXT)) < len(TEXT.encode()) / 2
    assert BPE.decode([BPE.end]) == "<|endoftext|>"
    assert BPE.byte_lengths[BPE.end] == 0
    with pytest.raises(UserError, match="at least 257"):
        train_bpe([TEXT], 100)


@pytest.mark.parametrize(
    "between",
    ["", "\n\nSecond paragraph", "\n   indented", "\r\n\r\n", pytest.param(" y" * 20_000, marks=pytest.mark.long)],
)
def test_long_text_is_encoded_as_the_library_encodes_it_whole(between):
    text = (TEXT + between) * 60
    assert len(list(pieces([text], 1 << 15))) > 1
    assert np.array_equal(BPE.encode(text), BPE.inner.encode(text).ids)


@given(st.lists(st.text(alphabet="ab \n"), max_size=30), st.integers(2, 9))
def test_pieces_join_to_the_text_however_it_comes(blocks, size):
    made = list(pieces(blocks, size))
    assert "".join(made) == "".join(blocks)
    assert all(len(piece) <= 2 * size for piece in made)
    assert made == list(pieces(["".join(blocks)], size))


def test_a_tokenizer_that_would_leave_text_out_is_refused():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    inner = Tokenizer(models.BPE({"a": 0}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    with pytest.raises(UserError, match="no token for unknown text"):
        read_json(inner.to_str(), "x.json")


@pytest.mark.parametrize("tokenizer", [CharTokenizer(TEXT), ByteTokenizer(), BPE], ids=lambda t: t.kind)
def test_each_is_read_back_from_its_json(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    for again in (read_json(path.read_text(encoding="utf-8"), "x"), from_name(str(path))):
        assert again.kind == tokenizer.kind
        assert again.vocab == tokenizer.vocab
        assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


def test_the_saved_bpe_is_a_plain_file_of_the_tokenizers_library(tmp_path):
    from tokenizers import Tokenizer

    path = tmp_path / "tokenizer.json"
    path.write_text(BPE.to_json())
    assert Tokenizer.from_file(str(path)).encode("the strip").ids == BPE.encode("the strip").tolist()


@pytest.mark.parametrize(
    "name, words", [("bqe", "did you mean bpe"), ("nowhere.json", "no tokenizer file"), ("gpt2", "hub")]
)
def test_a_tokenizer_that_is_not_available_is_refused(name, words):
    with pytest.raises(UserError, match=words):
        from_name(name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "char"}', json.dumps({"model": {"type": "BPE"}})])
def test_a_file_that_is_no_tokenizer_is_refused(text):
    with pytest.raises(UserError, match="is not a tokenizer"):
        read_json(text, "x.json")


def test_gpt2s_tokenizer_is_the_hubs_file(tmp_path, monkeypatch):
    import huggingface_hub

    path = tmp_path / "tokenizer.json"
    path.write_text(BPE.to_json())
    requested = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *words: requested.append(words) or str(path))
    assert from_name("gpt2").vocab == BPE.vocab
    assert requested == [("openai-community/gpt2", "tokenizer.json")]


@pytest.mark.parametrize("what", ["tokenizer", "autoencoder"])
def test_a_hub_that_gives_no_answer_is_not_asked_again_for_a_model(monkeypatch, what):
    """The library would ask for half a minute, and print it; its cache is still looked into."""
    import huggingface_hub

    def load(*_, **__):
        seen.append(huggingface_hub.constants.HF_HUB_OFFLINE)
        raise OSError("it is not in the cache")

    def ask(*_, **__):
        raise OSError("no route")

    seen = []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", load)
    kind = SimpleNamespace(AutoencoderKL=SimpleNamespace(from_pretrained=load))  # diffusers takes seconds to import
    monkeypatch.setitem(sys.modules, "diffusers.models.autoencoders.autoencoder_kl", kind)
    with pytest.raises(UserError, match="(could not be downloaded|cannot be loaded)"):
        from_name("gpt2") if what == "tokenizer" else Autoencoder.open("owner/name")
    assert seen == [True]
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("name", ["char", "byte", "bpe"])
def test_every_learned_tokenizer_can_end_a_text(name):
    tokenizer = learn(name, [TEXT], 300, ended=True)
    assert tokenizer.end == {"char": len(set(TEXT)), "byte": 256}.get(name, tokenizer.end)
    assert 0 <= tokenizer.end < tokenizer.vocab
    assert len(tokenizer.byte_lengths) == tokenizer.vocab
    assert tokenizer.byte_lengths[tokenizer.end] == 0
    ids = tokenizer.encode(TEXT).tolist()
    assert tokenizer.end not in ids  # no character has this id
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode([*ids, tokenizer.end]) == TEXT + "<|endoftext|>"
    again = read_json(tokenizer.to_json(), "x")
    assert (again.end, again.vocab, again.kind) == (tokenizer.end, tokenizer.vocab, name)
    assert again.encode(TEXT).tolist() == ids


def test_there_is_no_end_token_unless_requested():
    assert learn("char", [TEXT], 0).end is None
    assert learn("byte", [TEXT], 0).end is None
    assert learn("char", [TEXT], 0).vocab == len(set(TEXT))
    assert "ended" not in json.loads(learn("byte", [], 0).to_json())


def test_characters_are_learned_from_every_text():
    assert learn("char", ["ab", "bc", "", "d"], 0).characters == list("abcd")
