"""Continuous batching: the same tokens at any load, as alone and as `Generation` gives them; and what ends a row."""

import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.inference.generation import Generation
from pencil.inference.sampling import NOT_FINITE, Sampling, choose
from pencil.serve import engine as engine_module
from pencil.serve import tile as tile_module
from pencil.serve.errors import RequestError
from pencil.serve.row_sampling import RowRules, Rules
from pencil.serve.tile import Tile, steady
from serving import MODELS, changed, continuation, finish, inputs, small_engine, small_gpt, tokens_of

SHORT = ("rope", "learned", "captioner", "seq2seq with biases")


@pytest.mark.parametrize("kind", SHORT)
def test_the_same_answer_at_any_load(kind):
    assert changed(MODELS[kind](depth=1), 5, 1, most=11, ahead=1 if kind == "rope" else 3) == 0


@pytest.mark.long
@pytest.mark.parametrize("ahead", [1, 7])
@pytest.mark.parametrize("kind", MODELS)
def test_ten_thousand_answers_are_the_same_at_any_load(kind, ahead):
    assert changed(MODELS[kind](), 111, 16, ahead=ahead) == 0


@pytest.mark.parametrize("depends", ["place", "neighbours", "keys"])
def test_a_kernel_whose_sums_depend_on_the_load_is_found(depends, monkeypatch):
    tile, step = Tile(small_gpt(depth=1), 3, 101, 16), Tile.step

    def other(tile, longest):
        logits = step(tile, longest)
        if depends == "place":
            logits[2] *= 1 + 1e-6
        elif {"neighbours": (tile.index < NOWHERE).sum() > 1, "keys": tile.cache.bucket > 64}[depends]:
            logits *= 1 + 1e-6
        return logits

    assert steady(tile, 257)
    monkeypatch.setattr(Tile, "step", other)
    assert not steady(tile, 257)


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_tokens_are_those_of_a_generation_alone(temperature):
    model = small_gpt(positions="rope", kv_heads=1).double()
    engine, how = small_engine(model), Sampling(temperature=temperature, seed=11)
    prompts = [[5, 3, 2], list(range(70))]
    mine = [continuation(prompt, 17, Rules(how), sample=2) for prompt in prompts]
    for one in mine:
        engine.add(one)
    finish(engine)
    for prompt, one in zip(prompts, mine, strict=True):
        generation = Generation(model, [prompt], 17, how, samples=[2], end=256, vocab=257)
        assert [id for id, _ in tokens_of(one)] == [row[0] for row in generation]


@pytest.mark.parametrize("kind", ["captioner", "captioner with biases", "seq2seq", "seq2seq with biases"])
def test_pictures_and_sources_are_continued_as_by_a_generation(kind):
    model = MODELS[kind](depth=1).double()
    engine, mine = small_engine(model), []
    for seed, length in ((3, 1), (5, 20)):  # a prompt of one piece, and one of two
        mine.append((continuation([256, *range(length)], 11, given=inputs(model, seed)), inputs(model, seed)))
        engine.add(mine[-1][0])
    finish(engine)
    for one, given in mine:
        generation = Generation(model, [one.prompt], 11, Sampling(0), end=256, vocab=257, given=given)
        assert [id for id, _ in tokens_of(one)] == [row[0] for row in generation]


def test_rows_are_sampled_by_their_own_rules():
    r, rows, vocab = random.Random(3), 7, 43
    rules = RowRules(rows, vocab, torch.device("cpu"))
    for _ in range(19):
        logits = (torch.randn(rows, vocab) * 3).round(decimals=1)  # with equal ones
        hows = [Sampling(temperature=r.choice([0, 0.5, 1.0, 2.0]), top_k=r.choice([None, 1, 4, 100]),
                         top_p=r.choice([None, 0.3, 0.95, 1]), min_p=r.choice([None, 0.1]),
                         repetition_penalty=r.choice([1.0, 1.7])) for _ in range(rows)]  # fmt: skip
        seen = [[r.randrange(vocab) for _ in range(9)] for _ in range(rows)]
        uniforms = [r.random() for _ in range(rows)]
        for row, (how, ids) in enumerate(zip(hows, seen, strict=True)):
            rules.set(row, Rules(how), ids)
        before = deepcopy(rules)
        choices = rules.choose(logits, torch.tensor(uniforms, dtype=torch.float64))
        for row, how in enumerate(hows):
            alone = before.choose(
                logits[row : row + 1],
                torch.tensor(uniforms[row : row + 1], dtype=torch.float64),
                slice(row, row + 1),
                before.kinds[row],
            )
            assert [one[0] for one in alone] == [one[row] for one in choices]
            held = torch.zeros(1, vocab, dtype=torch.bool)
            held[0, seen[row]] = True
            held = held if how.repetition_penalty != 1 else None
            drawn = torch.tensor([uniforms[row]], dtype=torch.float64)
            assert choices.tokens[row] == choose(logits[row : row + 1], how, drawn, held).item()
            likely = logits[row].double().log_softmax(-1)[choices.tokens[row]].item()
            assert choices.logprobs[row] == pytest.approx(likely, abs=1e-12)
            if how.temperature:
                assert choices.low[row] - 1e-12 <= uniforms[row] <= choices.high[row] + 1e-12


def test_penalties_and_biases_are_added_to_the_logits():
    rules = RowRules(2, 5, torch.device("cpu"))
    rules.set(0, Rules(Sampling(0), presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 2.0}), [1])
    drawn = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        assert rules.choose(torch.tensor([[0.0, 0.0, 0.0, 0.0, 9.0]] * 2), drawn).tokens.tolist() == [4, 4]
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, 2.9]] * 2)
    choices = rules.choose(logits, drawn)
    assert choices.tokens.tolist() == [3, 4]  # 2 against 2.9 − 0.5 − 2·0.25
    assert choices.margins[0] == pytest.approx(0.1, abs=1e-6)
    rules.set(0, Rules(Sampling(0)), [])
    assert rules.choose(logits, drawn).tokens.tolist() == [4, 4]


def test_a_row_whose_logits_are_not_finite_has_no_token():
    rules = RowRules(2, 3, torch.device("cpu"))
    logits = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 2.0, 1.0]])
    assert rules.choose(logits, torch.full((2,), 0.5, dtype=torch.float64)).tokens.tolist() == [NOT_FINITE, 1]


def test_common_beginnings_are_read_once_in_whole_pieces():
    engine = small_engine()
    first, second = continuation([7] * 40 + [1]), continuation([7] * 40 + [2])
    for one in (first, second):
        engine.add(one)
        finish(engine)
    assert (first.reused, second.reused) == (0, 32)  # of 40, in pieces of 16
    fresh = small_engine()
    again = continuation([7] * 40 + [2])
    fresh.add(again)
    finish(fresh)
    assert tokens_of(second) == tokens_of(again)


def test_the_least_recently_used_beginnings_make_room():
    engine = small_engine(prefixes=2)
    for first in (1, 2, 3):
        engine.add(continuation([first] * 17))
        finish(engine)
    kept = [continuation([first] * 17) for first in (3, 2, 1)]
    for one in kept:
        engine.add(one)
        finish(engine)
    assert [one.reused for one in kept] == [16, 16, 0]


@pytest.mark.parametrize("prompt, most, length", [([3], 5, 5), ([3] * 99, 9, 3), ([3] * 101, 2, 1)])
def test_a_text_ends_at_its_limit_or_where_the_context_is_full(prompt, most, length):
    engine, one = small_engine(), continuation(prompt, most)
    engine.add(one)
    finish(engine)
    assert len(tokens_of(one)) == length
    assert one.got[-1].reason == "length"


def test_the_end_token_and_stop_strings_end_a_text():
    model, greedy = small_gpt(), Rules(Sampling(0))
    whole = continuation("abc", 9, greedy)
    engine = small_engine(model)
    engine.add(whole)
    finish(engine)
    text = "".join(piece.text for piece in whole.got)
    stopped = continuation("abc", 9, greedy, stop=(text[2:4],))
    ended = continuation("abc", 9, replace(greedy, logit_bias={256: 1e4}))
    for one in (stopped, ended):
        engine.add(one)
    finish(engine)
    assert "".join(piece.text for piece in stopped.got) == text[:2]
    assert [id for id, _ in tokens_of(ended)] == [256]
    assert (stopped.got[-1].reason, ended.got[-1].reason, ended.got[-1].text) == ("stop", "stop", "")


def test_who_does_not_wait_or_waited_too_long_leaves_the_rows():
    engine = small_engine(tiles=1, rows=2)
    gone, late, waits = continuation("a", 50), continuation("b", 50), continuation("c", 50)
    stays = continuation("d", 5)
    for one in (gone, late, waits, stays):
        engine.add(one)
    engine.round()
    gone.cancelled, waits.cancelled, late.deadline = True, True, 0.0
    finish(engine)
    assert [one.got[-1].error.status for one in (gone, waits, late)] == [499, 499, 504]
    assert len(tokens_of(stays)) == 5
    assert engine.rows == [[None, None]]


def test_what_fails_in_one_tile_ends_its_rows_alone(monkeypatch):
    engine, step = small_engine(tiles=2, rows=2), Tile.step
    ones = [continuation([i + 1], 6) for i in range(3)]
    failing, seen = engine.tiles[0], []

    def broken(tile, longest):
        if tile is failing and not seen and (tile.index < NOWHERE).all():
            raise RuntimeError("a path /etc/x")
        return step(tile, longest)

    engine.on_failure = seen.append
    monkeypatch.setattr(Tile, "step", broken)
    for one in ones:
        engine.add(one)
    finish(engine)
    errors = [one.got[-1].error for one in ones]
    assert [error and error.status for error in errors] == [500, 500, None]
    assert "/etc" not in str(errors[0])
    assert len(seen) == 1


def test_weights_that_are_not_finite_are_an_error_of_the_request():
    model = small_gpt()
    engine = small_engine(model)
    with torch.no_grad():
        model.norm.weight.fill_(torch.nan)
    one = continuation("a")
    engine.add(one)
    finish(engine)
    assert one.got[-1].error.status == 500


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(engine_module, "free_memory", lambda device: 1000)
    with pytest.raises(UserError, match="give fewer --rows"):
        small_engine()


def test_prompts_that_are_read_at_once_keep_their_answers(monkeypatch):
    """As on a GPU: in every row of the reader, beside any other prompts, in a batch of one shape."""
    for module in (tile_module, engine_module):
        monkeypatch.setattr(module, "prompts_at_once", lambda model, device: 3)
    model = small_gpt(depth=1)
    assert small_engine(model).tiles[0].reader.rows == 3
    assert changed(model, 13, 1, most=7, ahead=5, rows=5) == 0


def test_a_step_of_a_tile_writes_no_other_rows():
    tile = Tile(small_gpt(depth=1), 3, 101, 16)
    for place in range(3):
        tile.reader.begin()
        tile.reader.prefill({0: [4, 2]})
        tile.seat(place)
    before = tile.cache.store[:, :, 2].clone()
    tile.put(0, 5, 2)
    tile.step(3)
    assert torch.equal(tile.cache.store[:, :, 2, :, : tile.cache.length], before[..., : tile.cache.length, :])
    assert tile.cache.used.tolist() == [3, 2, 2]


def test_an_error_inside_keeps_its_status():
    assert RequestError.inside(RequestError("a", 429)).status == 429
    assert RequestError.inside(MemoryError()).status == 503


def test_a_tokenizer_without_an_end_generates_to_the_limit():
    engine = small_engine(small_gpt(vocab=256), ByteTokenizer())
    one = continuation("a", 4)
    engine.add(one)
    finish(engine)
    assert len(tokens_of(one)) == 4
