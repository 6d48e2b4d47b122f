"""What a model of an imported run reads: its texts with the special tokens that the original puts around them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pencil.config import build
from pencil.data.text import text_data as text
from pencil.data.tokenizers.tokenizer import read_json
from pencil.families import configure, create, family, gpt, reader
from pencil.inference import decode_step
from pencil.inference.beam import search
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.inference.text_batches import source_inputs, target_ids, text_ids
from pencil.inference.text_stream import complete
from pencil.runs.run import Loaded
from pencil.train.settings import TrainConfig
from pencil.train.tasks.language_modeling import LanguageModeling
from pencil.train.tasks.masked_language_modeling import MaskedLanguageModeling
from small_tokenizers import byte_level, fallback, llama3, roberta, unigram, wordpiece

SIZES = dict(width=24, heads=3, depth=1, context=31)


def loaded(kind, made, **tokens):
    tokenizer = read_json(made.to_str(), "x", tokens)
    model = create(kind, configure(kind, "nano", vocab=tokenizer.vocab + 5, **SIZES))
    return Loaded(model.eval(), tokenizer, SimpleNamespace(path="x", config={"run": {}}))


def spoken(found, monkeypatch):
    """The tokens of each call of a model."""
    calls, forward = [], type(found.model).forward
    monkeypatch.setattr(
        type(found.model), "forward", lambda self, t, *a, **k: calls.append(t.tolist()) or forward(self, t, *a, **k)
    )
    return calls


def test_a_prompt_begins_with_the_begin_token(monkeypatch):
    found = loaded("gpt", fallback(), begin=1, end=2)
    calls, ids = spoken(found, monkeypatch), found.tokenizer.encode("the strip").tolist()
    one, _two = gpt.predict(found, ["the strip", ""], gpt.SampleOptions(max_new_tokens=1, temperature=0.0))
    assert calls[0] == [[1, *ids], [1, *([0] * len(ids))]]
    assert one.text.startswith("the strip")
    traced = gpt.trace_text(found, SimpleNamespace(given="the strip"))
    assert traced.labels["T"][:2] == ["<s>", "␣the"]
    rows = gpt.FAMILY.heads.from_text(found, "the strip has a seat " * 30)
    assert all(row[0, 0] == 1 and row[0, 1] != 1 for (row,) in rows)
    plain = loaded("gpt", byte_level(), end=0)
    assert plain.tokenizer.begin is None
    assert gpt.FAMILY.heads.from_text(plain, "the strip has a seat " * 30)[0][0][0, 0] != 0


def test_each_of_several_end_tokens_ends_a_text_and_some_are_never_written():
    class Counting(torch.nn.Module):
        """Prefers token n + 1 after token n, and token 50 most of all."""

        config, p = SimpleNamespace(context=64, vocab=53), torch.nn.Parameter(torch.zeros(1))

        def parameters(self):
            return iter([self.p])

        def forward(self, tokens, **_):
            logits = torch.zeros(*tokens.shape, 53)
            logits.scatter_(-1, (tokens[..., None] + 1) % 53, 9.0)
            logits[..., 50] = 99.0
            return logits

    rows = Generation(Counting(), [[3], [11]], 30, Sampling(0), end=[7, 17], never=[50], cached=False)
    for _ in rows:
        pass
    assert rows.rows == [[3, 4, 5, 6, 7], [11, 12, 13, 14, 15, 16, 17]]
    assert rows.reasons == ["end", "end"]


def test_a_beam_search_ends_at_each_end_token_and_leaves_tokens_out():
    model = create("gpt", configure("gpt", "nano", vocab=13, width=24, heads=3, depth=1, context=11)).eval()
    best = search(model, [[1]], 5, 3)[0][0].tokens
    without = [one.tokens for one in search(model, [[1]], 5, 3, never=[best[0]])[0]]
    assert without
    assert all(best[0] not in tokens for tokens in without)
    ends = set(range(13)) - {best[0]}
    for one in search(model, [[1]], 5, 3, end=ends)[0]:
        assert one.ended == (one.tokens[-1] in ends)
        assert not ends & set(one.tokens[:-1])


def test_special_tokens_are_not_shown():
    tokenizer = read_json(llama3().to_str(), "x", {"begin": 0})
    ids = [0, *tokenizer.encode("the strip").tolist(), tokenizer.id_of("<|eot_id|>")]
    assert tokenizer.decode(ids) == "the strip"
    assert read_json(llama3().to_str(), "x").decode(ids) == "<|begin_of_text|>the strip<|eot_id|>"


@pytest.mark.parametrize("made, mask", [(wordpiece(True), "[MASK]"), (roberta(), "<mask>")])
def test_a_masked_word_stands_between_the_special_tokens(made, mask):
    tokens = {"mask": made.token_to_id(mask)}
    found = loaded("reader", made, **tokens)
    want = made.encode(f"the {mask} has a seat").ids
    for written in ("[mask]", "[MASK]", mask):
        assert reader.token_ids(found.model, found.tokenizer, f"the {written} has a seat") == want
    (masks,) = reader.predict(found, ["the [mask] has a seat"], reader.SampleOptions())
    assert len(masks) == 1
    with torch.no_grad():
        logits = found.model(torch.tensor([want]))[0, want.index(made.token_to_id(mask))]
    np.testing.assert_allclose(
        np.asarray(masks[0].probabilities), logits.softmax(-1)[: found.tokenizer.vocab].numpy(), rtol=1e-4, atol=1e-7
    )


def test_a_text_that_is_too_long_keeps_its_special_tokens():
    tokenizer = read_json(wordpiece(True).to_str(), "x", {})
    ids = tokenizer.encode("the strip has a seat the strip has a seat").tolist()
    assert text_ids(tokenizer, "the strip has a seat the strip has a seat", 7) == [2, *ids[:5], 3]
    assert text_ids(tokenizer, "the strip", 31) == tokenizer.encode_with_special("the strip")


def test_a_source_ends_and_a_target_starts_as_the_original_does():
    made = unigram()
    tokenizer = read_json(made.to_str(), "x", {"end": 1, "pad": 0, "start": 0})
    model = create("seq2seq", configure("seq2seq", "nano", vocab=tokenizer.vocab, source_context=31, **SIZES))
    given = source_inputs(model, tokenizer, ["the strip"])["source"]
    assert given.tolist() == [made.encode("the strip").ids]
    assert given[0, -1] == 1
    assert target_ids(tokenizer, "a seat") == [0, *made.encode("a seat", add_special_tokens=False).ids]


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("The pencil draws a strip; the strip has a seat.\nIs it a question?\n" * 60)
    return path


def test_a_window_of_text_begins_with_the_begin_token(notes):
    found = loaded("gpt", fallback(), begin=1, end=2)
    data = text.load(str(notes), found.tokenizer)
    assert data.ids[-1] == 2
    assert data.ids[:-1].tolist() == found.tokenizer.encode(notes.read_text()).tolist()
    task = LanguageModeling(family("gpt"), data, found.model.config, build(TrainConfig, {"batch": 5}))
    tokens, targets = task.batch(3)
    assert tokens.shape == targets.shape == (5, 31)
    assert (tokens[:, 0] == 1).all()
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    starts = task._starts(3, 0)
    assert targets.tolist() == [data.train[at : at + 31].tolist() for at in starts]
    metrics = task.evaluate(found.model)
    total = len(data.tokenizer.plain(data.val.tolist()).encode())
    assert metrics["bits_per_byte"] == pytest.approx(metrics["val_loss"] / np.log(2) * len(data.val) / total, rel=0.01)


def test_bits_per_byte_are_left_out_where_text_is_lost(notes):
    found = loaded("gpt", unigram(), end=1)
    data = text.load(str(notes), found.tokenizer)
    task = LanguageModeling(family("gpt"), data, found.model.config, build(TrainConfig, {"batch": 5}))
    assert "bits_per_byte" not in task.evaluate(found.model)
    assert "no bits per byte" in task.about()


def test_masked_words_are_learned_between_the_special_tokens(notes):
    made = wordpiece(True)
    found = loaded("reader", made, mask=4)
    data = text.load(str(notes), found.tokenizer)
    train = build(TrainConfig, {"batch": 5})
    task = MaskedLanguageModeling(family("reader"), data, found.model.config, train)
    tokens, targets = task.batch(3)
    assert tokens.shape == targets.shape == (5, 31)
    assert (tokens[:, 0] == 2).all()
    assert (tokens[:, -1] == 3).all()
    assert (targets[:, 0] == -100).all()
    assert (targets[:, -1] == -100).all()
    assert (tokens == 4).any()
    assert (targets[tokens == 4] >= 0).all()
    assert tokens.max() < found.tokenizer.vocab
    assert set(task.evaluate(found.model)) == {"val_loss", "perplexity", "accuracy"}
    assert b"predicted:" in task.preview(found.model).content


def test_a_continuation_streams_the_text_of_its_tokens(monkeypatch):
    found = loaded("gpt", fallback(), begin=1, end=2)
    ids = found.tokenizer.encode("the 👍 strip").tolist()
    for prompt in ("", "a", "a\n", "👍"):  # after a prompt the first word keeps its space
        script = iter(ids)
        monkeypatch.setattr(decode_step, "choose", lambda *_, script=script: torch.tensor([next(script)]))
        made = complete(found.model, found.tokenizer, prompt, len(ids))
        assert made == (" " if prompt else "") + "the 👍 strip"
