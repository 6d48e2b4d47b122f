"""Generation where one comparison or one constant decides: streams of random numbers, ties, limits, stop strings."""

from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from conftest import unchecked
from pencil.config import UserError
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.families import create
from pencil.inference.beam import search
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling, choose, probabilities
from pencil.inference.text_stream import TextStream, stream
from pencil.models.gpt import GPTConfig


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = create("gpt", GPTConfig(vocab=41, context=23, width=24, depth=1, heads=2)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return made


@pytest.mark.parametrize("seed, sample", [(0, 0), (5, 0), (5, 3), (2, 11)])
def test_a_sample_draws_from_the_stream_of_its_seed_and_number(net, seed, sample):
    """Recorded seeds must give the same text in every version: sample k of seed s has the stream s·1000003 + k."""
    how = Sampling(1.3, seed=seed)
    with unchecked():
        made = [step[0] for step in Generation(net, [[5, 3, 8]], 7, how, samples=[sample])]
    stream, ids = torch.Generator().manual_seed(seed * 1_000_003 + sample), [5, 3, 8]
    for token in made:
        with torch.no_grad(), unchecked():
            p = (net(torch.tensor([ids]))[0, -1].double() / 1.3).softmax(-1)
        u = torch.rand((), generator=stream, dtype=torch.float64)
        assert token == int((p.cumsum(-1) <= u).sum())
        ids.append(token)


@pytest.mark.parametrize("drawn, token", [(0.0, 1), (1 - 2**-53, 3)])
def test_a_token_without_probability_is_never_drawn(drawn, token):
    """Not even where the random number is exactly 0, or the largest below 1."""
    logits = torch.tensor([[-1.0, 4.0, 2.0, 3.0, -2.0]])
    kept = Sampling(1.0, top_k=3)
    assert (probabilities(logits, kept)[0] > 0).tolist() == [False, True, True, True, False]
    assert choose(logits, kept, torch.tensor([drawn], dtype=torch.float64)).tolist() == [token]


def test_top_p_is_a_share_of_what_top_k_left():
    logits = torch.tensor([[0.4, 0.1, 0.3, 0.2]]).log()
    for most, left in ((0.5, [1, 0, 0, 0]), (0.6, [4 / 7, 0, 3 / 7, 0]), (1.0, [4 / 7, 0, 3 / 7, 0])):
        found = probabilities(logits, Sampling(1.0, top_k=2, top_p=most))
        torch.testing.assert_close(found, torch.tensor([left], dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("stop", [("lo", "el"), ("el", "lo")])
def test_of_several_stop_strings_the_first_in_the_text_ends_it(stop):
    class Whole(ByteTokenizer):
        def decode(self, ids):
            return "hello there"

    assert TextStream(Whole(), stop).add(1) == ("h", True)


def test_the_ends_of_each_range_are_allowed():
    for values in (dict(temperature=0), dict(temperature=1e6), dict(top_k=1), dict(top_p=1), dict(top_p=1e-9),
                   dict(min_p=0), dict(min_p=1), dict(seed=0), dict(repetition_penalty=1e-9)):  # fmt: skip
        Sampling(**values)
    for values in (dict(temperature=-1e-9), dict(temperature=2e6), dict(top_k=0), dict(top_p=0), dict(top_p=1.01),
                   dict(min_p=-0.01), dict(min_p=1.01), dict(seed=-1), dict(repetition_penalty=0)):  # fmt: skip
        with pytest.raises(UserError, match="must be at least"):
            Sampling(**values)


def test_an_end_token_beyond_the_best_beams_is_no_hypothesis(net):
    """A text that ends counts only if it is among the `beams` best, except at the last token, where all count."""
    logits = torch.full((41,), -torch.inf)
    logits[[7, 8, 9]] = torch.tensor([3.0, 2.0, 1.0])

    class Same:
        config = net.config
        parameters = net.parameters
        modules = net.modules
        new_cache = net.new_cache

        def __call__(self, tokens, span=None, cache=None, last=True):
            with torch.no_grad():
                net(tokens, span=span, cache=cache, last=last)  # fills the cache
            return logits.expand(len(tokens), 1, 41)

    with unchecked():
        ended = [(one.tokens, one.ended) for one in search(Same(), [[5]], 2, 2, end=9, penalty=0)[0]]
        second = [(one.tokens, one.ended) for one in search(Same(), [[5]], 2, 2, end=8, penalty=0)[0]]
    # 7 7 and 7 8 are the best of all; 9 alone is third at the first token and is left out there
    assert ended == [([7, 7], False), ([7, 8], False)]
    # 8 alone is second at the first token: it counts, and beats 7 7
    assert second[0] == ([7, 7], False)
    assert ([8], True) in second


class Scripted(torch.nn.Module):
    """A model that says a text, a byte at a time, after a prompt of one."""

    config = SimpleNamespace(context=31, vocab=256)

    def __init__(self, text):
        super().__init__()
        self.bytes, self.unused = text.encode(), torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens, span=None, cache=None, last=True):
        following = self.bytes[tokens.shape[1] - 1]
        return torch.nn.functional.one_hot(torch.full((len(tokens), 1), following), 256).float()


@pytest.mark.parametrize("stop, shown, reason", [
    ((), "abc he", "length"),
    (("help",), "abc he", "length"),  # its beginning was held back, and is shown when nothing follows
    (("c h",), "ab", "stop"),
    (("e", "zz"), "abc h", "stop"),
])  # fmt: skip
def test_what_was_held_back_is_shown_at_the_end_unless_it_stopped_there(stop, shown, reason):
    reasons = []
    pieces = list(
        stream(Scripted("abc he"), ByteTokenizer(), ["x"], 6, Sampling(0), stop=stop, cached=False, reasons=reasons)
    )
    assert "".join(piece for (piece,) in pieces) == shown
    assert reasons == [reason]


@pytest.mark.parametrize("capture", [False, True])
def test_a_generation_goes_on_with_its_own_random_numbers_after_another_had_its_step(net, capture, monkeypatch):
    """Stopped in the middle of a chunk of numbers, and after one, with another generation in between."""
    for module in ("generation", "decode_step"):
        monkeypatch.setattr(f"pencil.inference.{module}.CHUNK", 13)

    def sampled(seed):
        return Generation(net, [[5, 3, 8], [2]], 41, Sampling(1.7, seed=seed), capture=capture, slide=True)

    with unchecked():
        whole, stopped, found = list(islice(sampled(5), 30)), sampled(5), []
        for count in (7, 10, 13):
            found += islice(stopped, count)
            list(islice(sampled(2), 5))
    assert found == whole


@pytest.fixture
def dropping():
    torch.manual_seed(1)
    made = create("gpt", GPTConfig(vocab=41, context=23, width=24, depth=1, heads=2, dropout=0.6))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.4)
    return made


@pytest.mark.parametrize("capture", [False, True])
def test_a_model_in_training_mode_generates_without_dropout_and_stays_in_it(dropping, capture):
    def greedy():
        found = []
        for tokens in Generation(dropping, [[5, 3, 8]], 11, Sampling(0), capture=capture):
            assert modes == [m.training for m in dropping.modules()]  # between two tokens, too
            found += tokens
        return found

    with unchecked():
        dropping.eval()
        modes = [m.training for m in dropping.modules()]
        expected, searched = greedy(), search(dropping, [[5, 3]], 5, 3)
        dropping.train()
        dropping.blocks[0].mlp.eval()
        modes = [m.training for m in dropping.modules()]
        assert greedy() == greedy() == expected
        assert search(dropping, [[5, 3]], 5, 3) == searched
        assert modes == [m.training for m in dropping.modules()]


HOW = [
    Sampling(0), Sampling(1.0), Sampling(0.7, top_k=5), Sampling(0.7, top_p=0.9), Sampling(0.7, min_p=0.1),
    Sampling(0, repetition_penalty=1.3),
]  # fmt: skip


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("fault", [torch.nan, -torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_an_error_and_no_token(dropping, how, fault):
    for capture in (False, True):
        with torch.no_grad():
            dropping.tokens.weight[7, 2] = torch.tensor(fault)
        words = "the weights are not finite: tokens.weight holds NaN or infinity"
        with unchecked(), pytest.raises(UserError, match=words):
            list(Generation(dropping, [[5, 3, 8], [2]], 11, how, capture=capture))
    logits = torch.randn(3, 41)
    logits[1, 30] = fault
    tokens = choose(
        logits, how, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), torch.zeros(3, 41, dtype=torch.bool)
    )
    assert tokens[1] < 0 <= min(tokens[0], tokens[2])


def test_finite_weights_with_logits_that_are_not_are_named_as_such(dropping):
    with torch.no_grad():
        dropping.norm.weight.fill_(3e38)
        dropping.tokens.weight.mul_(9)
    for call in (lambda: list(Generation(dropping, [[5]], 3, Sampling(0))), lambda: search(dropping, [[5]], 3, 2)):
        words = "the logits of token 1 of the model are not finite, though its weights are: .* float32 can hold"
        with unchecked(), pytest.raises(UserError, match=words):
            call()


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_rule_of_sampling_takes_finite_numbers_only(name, value):
    with pytest.raises(UserError, match=f"{name.replace('_', '-')} must be at least .*, not {value}"):
        Sampling(**{name: value})
