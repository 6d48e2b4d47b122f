"""Beam search against every continuation there is, each scored by the model without a cache."""

import itertools
import math
from functools import cache

import pytest
import torch

from conftest import unchecked
from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.families import create
from pencil.inference.beam import search
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.seq2seq import Seq2SeqConfig

END = 3
SIZES = dict(width=24, heads=3, depth=2)


@pytest.fixture(autouse=True)
def fast(request):
    """No shape checking, most of the time of small models, except where all families are searched."""
    if request.node.originalname == "test_as_many_beams_as_texts_find_all_of_them_in_order":
        yield
    else:
        with unchecked():
            yield


def lively(model, seed):
    """Random weights in double precision, with which no two continuations score the same."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                p.add_(torch.randn_like(p) * 0.3)
    return model.double().eval()


def gpt(vocab=5, context=11, positions="rope", seed=1):
    return lively(create("gpt", GPTConfig(vocab=vocab, context=context, positions=positions, **SIZES)), seed)


def seq2seq(vocab=5, context=7, positions="rope", seed=2):
    sizes = dict(vocab=vocab, context=context, source_context=13, positions=positions, **SIZES)
    return lively(create("seq2seq", Seq2SeqConfig(**sizes)), seed)


def captioner(vocab=5, context=7, seed=3):
    config = CaptionerConfig(vocab=vocab, context=context, image_size=(6, 9), patch=(3, 3), channels=1, **SIZES)
    return lively(create("captioner", config), seed)


def drawn(vocab, *shape, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def log_probability(net, prompt, tokens, **given):
    """The sum of each token's, all read at once without a cache."""
    with torch.no_grad():
        likely = net(torch.tensor([[*prompt, *tokens[:-1]]]), **given)[0].log_softmax(-1)
    return sum(likely[n - len(tokens), token].item() for n, token in enumerate(tokens))


def worth(length, penalty):
    return ((5 + length) / 6) ** penalty


def picture_of(seed=5):
    return torch.rand(1, 1, 6, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


FAMILIES = {
    "gpt": (gpt, [2, 0, 1], lambda: {}),
    "seq2seq": (seq2seq, [END], lambda: {"source": drawn(5, 1, 11)}),
    "captioner": (captioner, [END], lambda: {"picture": picture_of()}),
}


@cache
def everything(family, new):
    """The model, its prompt, its other inputs, and the log-probability of every text of at most `new` of five tokens."""
    make, prompt, given = FAMILIES[family]
    net, given, others = make(), given(), [token for token in range(5) if token != END]
    likely, growing = {}, {(): 0.0}
    for length in range(1, new + 1):
        heads = torch.tensor([[*prompt, *head] for head in growing])
        with torch.no_grad():
            beside = {name: value.expand(len(heads), *value.shape[1:]) for name, value in given.items()}
            ahead = net(heads, **beside)[:, -1].log_softmax(-1).tolist()
        texts = {
            (*head, token): before + row[token]
            for (head, before), row in zip(growing.items(), ahead, strict=True)
            for token in range(5)
        }
        likely |= {text: value for text, value in texts.items() if text[-1] == END or length == new}
        growing = {text: value for text, value in texts.items() if text[-1] in others}
    return net, prompt, given, likely


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.3, -0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_beams_as_texts_find_all_of_them_in_order(family, penalty):
    net, prompt, given, likely = everything(family, 3)
    scored = {text: value / worth(len(text), penalty) for text, value in likely.items()}
    expected = sorted(scored, key=scored.__getitem__, reverse=True)
    assert len(expected) == 1 + 4 + 16 * 5
    (found,) = search(net, [prompt], 3, len(expected), end=END, penalty=penalty, given=given)
    assert [tuple(one.tokens) for one in found] == expected
    for one, text in zip(found, expected, strict=True):
        assert one.score == pytest.approx(scored[text], rel=1e-9)
        assert one.log_probability == pytest.approx(likely[text], rel=1e-9)
        assert one.ended == (text[-1] == END)


def test_four_tokens_of_seven_without_an_end():
    net = gpt(vocab=7, seed=4)
    (found,) = search(net, [[6]], 4, 7**3, penalty=0.6)
    with torch.no_grad():
        likely = torch.zeros(1, dtype=torch.float64)
        for n in range(4):
            heads = torch.tensor([[6, *head] for head in itertools.product(range(7), repeat=n)])
            likely = (likely[:, None] + net(heads)[:, -1].log_softmax(-1)).flatten()
    values, places = likely.topk(7**3)
    texts = list(itertools.product(range(7), repeat=4))
    assert [tuple(one.tokens) for one in found] == [texts[i] for i in places.tolist()]
    assert [one.log_probability for one in found] == pytest.approx(values.tolist(), rel=1e-9)
    assert not any(one.ended for one in found)


@pytest.mark.parametrize("positions", ["rope", "alibi", "t5", "shaw"])
def test_hypotheses_are_sorted_distinct_and_scored_by_the_model(positions):
    for net, prompt, given in (
        (gpt(7, 13, positions), [1, 6], {}),
        (seq2seq(7, 13, positions), [END], {"source": drawn(7, 1, 11)}),
    ):
        (found,) = search(net, [prompt], 9, 5, end=END, penalty=0.8, given=given)
        assert len(found) == 5
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({tuple(one.tokens) for one in found}) == 5
        for one in found:
            assert one.log_probability == pytest.approx(log_probability(net, prompt, one.tokens, **given), rel=1e-9)
            assert one.score == pytest.approx(one.log_probability / worth(len(one.tokens), 0.8), rel=1e-12)
            assert one.ended == (one.tokens[-1] == END) == (END in one.tokens)
            assert one.ended or len(one.tokens) == 9


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_without_a_length_penalty_is_greedy(seed):
    for net, prompt, given in (
        (gpt(seed=seed), [2, 0, 1], {}),
        (seq2seq(seed=seed), [END], {"source": drawn(5, 1, 11, seed=seed)}),
    ):
        grown = Generation(net, [prompt], 7, Sampling(0), end=END, given=given)
        for _ in grown:
            pass
        ((found,),) = search(net, [prompt], 7, 1, end=END, penalty=0.0, given=given)
        assert found.tokens == grown.rows[0][len(prompt) :]


def alike(one, other):
    assert [found.tokens for found in one] == [found.tokens for found in other]
    assert [found.score for found in one] == pytest.approx([found.score for found in other], rel=1e-9)


@pytest.mark.parametrize("new", [5, 99])
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_batch_of_prompts_of_different_lengths_equals_one_by_one(positions, new):
    net = gpt(7, 13, positions)
    prompts = [drawn(7, n, seed=n).tolist() for n in (7, 2, 13, 11, 3)]
    together = search(net, prompts, new, 3, end=END)
    for prompt, found in zip(prompts, together, strict=True):
        alike(found, search(net, [prompt], new, 3, end=END)[0])
    ended = {max(len(one.tokens) for one in found) for found in together}
    assert len(ended) > 1  # they do not all stop at once


@pytest.mark.parametrize("positions", ["learned", "t5"])
def test_a_batch_of_sources_of_different_lengths_equals_one_by_one(positions):
    net, lengths = seq2seq(7, 11, positions), [13, 2, 7, 1, 5]
    tokens = drawn(7, 5, 13)
    real = torch.arange(13)[None] < torch.tensor(lengths)[:, None]
    places = torch.arange(13).expand(5, -1).masked_fill(~real, NOWHERE)
    given = {"source": tokens, "source_span": Span.at(places)}
    together = search(net, [[END]] * 5, 10, 3, end=END, given=given)
    for row, length, found in zip(tokens, lengths, together, strict=True):
        alike(found, search(net, [[END]], 10, 3, end=END, given={"source": row[None, :length]})[0])
    assert len({round(found[0].score, 6) for found in together}) == 5


def test_a_batch_of_images_with_different_prompts_equals_one_by_one():
    net, prompts = captioner(7, 11), [[END], [END, 2, 5], [END, 1]]
    pictures = torch.cat([picture_of(seed) for seed in range(3)])
    together = search(net, prompts, 5, 3, end=END, given={"picture": pictures})
    for i, prompt in enumerate(prompts):
        alike(together[i], search(net, [prompt], 5, 3, end=END, given={"picture": pictures[i : i + 1]})[0])


def test_a_text_is_never_longer_than_the_context():
    net = gpt(7, 11)
    together = search(net, [[1, 2], [4] * 9, [5] * 11], 99, 5)
    # the full context still predicts the next token
    assert [[len(one.tokens) for one in found] for found in together] == [[10] * 5, [3] * 5, [1] * 5]


def test_ids_of_a_padded_vocabulary_are_never_found():
    (found,) = search(gpt(7), [[1]], 4, 17, vocab=5)
    assert len(found) == 17
    assert all(token < 5 for one in found for token in one.tokens)


def test_no_more_hypotheses_than_texts_exist():
    (found,) = search(gpt(), [[1]], 1, 10**9)
    assert sorted(one.tokens for one in found) == [[0], [1], [2], [3], [4]]
    assert sum(math.exp(one.log_probability) for one in found) == pytest.approx(1)


def test_a_source_is_encoded_once_and_its_keys_are_kept(monkeypatch):
    net, read, seen = seq2seq(7, 13), [], []
    reading = net.read
    monkeypatch.setattr(net, "read", lambda source, *rest: read.append(len(source)) or reading(source, *rest))
    net.blocks[0].cross.register_forward_pre_hook(lambda _, given: seen.append(given))
    for block in net.blocks:
        projected = block.cross.read
        monkeypatch.setattr(block.cross, "read", lambda x, _, f=projected: read.append("keys") or f(x))
    search(net, [[END]] * 2, 9, 3, end=END, given={"source": drawn(7, 2, 11)})
    assert read == [2, "keys", "keys"]
    assert len(seen) > 3


@pytest.mark.parametrize("penalty", [math.nan, math.inf, -math.inf, 1000.0, -11.0])
def test_a_length_penalty_out_of_range_is_refused(penalty):
    with pytest.raises(UserError, match="length-penalty must be at least"):
        search(gpt(), [[1]], 3, 2, penalty=penalty)


def test_a_search_without_beams_is_refused():
    with pytest.raises(UserError, match="beams must be at least 1, not 0"):
        search(gpt(), [[1]], 3, 0)
    with pytest.raises(UserError, match="12 tokens and the context is 11"):
        search(gpt(), [[1] * 12], 3, 2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("beams", [2, 5])
def test_without_a_length_penalty_marian_equals_transformers(beams, seed):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from pencil.weights.maps import Source, load
    from pencil.weights.marian import MARIAN

    start, end = 17, 7
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=19, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=29, decoder_ffn_dim=29, max_position_embeddings=23, init_std=0.4,
        pad_token_id=start, decoder_start_token_id=start, eos_token_id=end, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = lively(transformers.MarianMTModel(config), seed)
    with torch.no_grad():
        # random weights repeat one token: make all tokens equally likely on average, and a repetition unlikely
        theirs.model.decoder.layers[-1].final_layer_norm.weight.neg_()
        usual = theirs(input_ids=drawn(19, 53, 13), decoder_input_ids=drawn(19, 53, 11, seed=8)).logits
        theirs.final_logits_bias -= usual.mean((0, 1))
        theirs.final_logits_bias[0, end] += 1
        theirs.final_logits_bias[0, start] += 1  # likely, and never generated
    ours = load(MARIAN, Source(theirs.state_dict()), MARIAN.configure(config.to_dict())).double()
    source, lengths = drawn(19, 5, 13), [13, 3, 11, 1, 7]
    real = torch.arange(13)[None] < torch.tensor(lengths)[:, None]
    generated = theirs.generate(
        input_ids=source, attention_mask=real.long(), num_beams=beams, num_return_sequences=beams, length_penalty=0.0,
        early_stopping="never", max_new_tokens=11, bad_words_ids=[[start]], do_sample=False, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    places = torch.arange(13).expand(5, -1).masked_fill(~real, NOWHERE)
    found = search(ours, [[start]] * 5, 11, beams, end=end, never=[start], penalty=0.0,
                   given={"source": source, "source_span": Span.at(places)})  # fmt: skip
    rows = [one for each in found for one in each]
    assert len(rows) == len(generated.sequences) == 5 * beams
    for one, expected, score in zip(
        rows, generated.sequences.tolist(), generated.sequences_scores.tolist(), strict=True
    ):
        assert [start, *one.tokens] == expected[: len(one.tokens) + 1]
        assert set(expected[len(one.tokens) + 1 :]) <= {start}
        assert one.score == pytest.approx(score, rel=1e-5)
    assert len({tuple(one.tokens) for one in rows}) > 2 * beams
    assert {one.ended for one in rows} == {True, False}


def beams_by_hand(net, prompt, new, beams, ends, penalty):
    """Beam search over every candidate: the best `beams` that do not end grow; one that ends counts among the best."""
    live, finished = [((), 0.0)], []
    for length in range(1, new + 1):
        with torch.no_grad():
            ahead = net(torch.tensor([[*prompt, *text] for text, _ in live]))[:, -1].log_softmax(-1).tolist()
        grown = [
            ((*text, token), before + likely)
            for (text, before), row in zip(live, ahead, strict=True)
            for token, likely in enumerate(row)
        ]
        grown.sort(key=lambda one: -one[1])
        finished += [(text, value / worth(length, penalty)) for text, value in grown[:beams] if text[-1] in ends]
        live = [one for one in grown if one[0][-1] not in ends][:beams]
        finished = sorted(finished, key=lambda one: -one[1])[:beams]
    finished += [(text, value / worth(new, penalty)) for text, value in live]
    return sorted(finished, key=lambda one: -one[1])[:beams]


def bigrams(logits):
    """A GPT whose logits after each token are that token's row."""
    config = GPTConfig(vocab=len(logits), context=11, tie_embeddings=False, **SIZES)
    net = lively(create("gpt", config), 1)
    with torch.no_grad():
        for block in net.blocks:
            block.attn.out.weight.zero_()
            block.mlp.down.weight.zero_()
        net.head.weight.copy_((torch.linalg.pinv(net.norm(net.tokens.weight)) @ logits).T)
    return net


@pytest.mark.parametrize("ends", [(3,), (3, 1), (5, 0, 2), (6, 5, 4, 3, 2)])
def test_with_several_end_tokens_as_many_beams_go_on(ends):
    """After the prompt every end token is likely; whatever else comes first goes on nearly without doubt."""
    for seed in range(4):
        torch.manual_seed(seed)
        logits = torch.randn(7, 7, dtype=torch.float64) * 7
        logits[1] = torch.randn(7) * 0.5
        logits[1, list(ends)] += 1
        net = bigrams(logits)
        for beams, penalty in itertools.product((1, 2, 3), (0.6, 3.0)):
            (found,) = search(net, [[2, 0, 1]], 4, beams, end=ends, penalty=penalty)
            expected = beams_by_hand(net, [2, 0, 1], 4, beams, ends, penalty)
            assert [tuple(one.tokens) for one in found] == [text for text, _ in expected]
            assert [one.score for one in found] == pytest.approx([score for _, score in expected], rel=1e-9)
