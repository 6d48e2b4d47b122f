import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from conftest import unchecked
from pencil.config import UserError
from pencil.data.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, train_bpe
from pencil.families import create
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling, penalize, probabilities
from pencil.inference.text_stream import TextStream, complete, stream
from pencil.models.gpt import GPTConfig

SCHEMES = ["learned", "sinusoidal", "rope", "none"]


def model(context=23, vocab=41, positions="rope"):
    torch.manual_seed(0)
    made = create(
        "gpt", GPTConfig(vocab=vocab, context=context, width=24, depth=2, heads=2, positions=positions)
    ).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return made


def grow(net, prompts, new, how=None, **options):
    """The new tokens of each row and why it ended; without shape checking, most of the time of small models."""
    made = Generation(net, prompts, new, how, **options)
    rows = [[] for _ in prompts]
    with unchecked():
        for step in made:
            for row, token in zip(rows, step, strict=True):
                if token is not None:
                    row.append(token)
    return rows, made.reasons


@pytest.mark.parametrize("positions", SCHEMES)
def test_greedy_is_the_argmax_of_the_whole_sequence_each_time(positions):
    net = model(positions=positions)
    (row,), reasons = grow(net, [[5, 3, 8]], 15, Sampling(temperature=0))
    ids = [5, 3, 8]
    with torch.no_grad():
        for token in row:
            assert token == int(net(torch.tensor([ids]))[0, -1].argmax())
            ids.append(token)
    assert len(row) == 15
    assert reasons == ["length"]


@pytest.mark.parametrize("slide", [False, True])
@pytest.mark.parametrize("positions", SCHEMES)
@settings(max_examples=3)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
)
def test_a_batch_of_prompts_of_different_lengths_generates_the_same_as_one_by_one(
    positions, slide, lengths, seed, temperature
):
    net = model(context=13, positions=positions)
    prompts = [
        torch.randint(0, 41, (n,), generator=torch.Generator().manual_seed(i)).tolist() for i, n in enumerate(lengths)
    ]
    how = Sampling(temperature, top_p=0.9, seed=seed)
    together, reasons = grow(net, prompts, 17, how, slide=slide)
    for i, prompt in enumerate(prompts):
        (alone,), (reason,) = grow(net, [prompt], 17, how, slide=slide)
        assert together[i] == alone
        assert reasons[i] == reason


@pytest.mark.parametrize("slide", [False, True])
def test_cached_and_uncached_generate_the_same(slide):
    net = model()
    how = Sampling(0.9, top_k=7, repetition_penalty=1.3, seed=3)
    assert grow(net, [[1, 2], [3]], 40, how, slide=slide) == grow(
        net, [[1, 2], [3]], 40, how, slide=slide, cached=False
    )


def test_a_full_context_stops_or_slides():
    net = model(context=11)
    (row,), reasons = grow(net, [[1, 2, 3]], 50)
    assert reasons == ["context"]
    assert len(row) == 9  # eight fill the context, and the full context still predicts the next token
    (row,), reasons = grow(net, [[1, 2, 3]], 50, slide=True)
    assert reasons == ["length"]
    assert len(row) == 50


def test_the_smallest_context_slides_too():
    assert len(grow(model(context=1), [[1]], 9, slide=True)[0][0]) == 9


def test_a_temperature_near_zero_is_greedy():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert probabilities(logits, Sampling(1e-320)).argmax() == 1


def test_the_same_seed_generates_the_same_and_samples_differ():
    net = model()
    how = Sampling(seed=5)
    assert grow(net, [[1]], 12, how) == grow(net, [[1]], 12, how)
    assert grow(net, [[1]], 12, how) != grow(net, [[1]], 12, Sampling(seed=6))
    rows, _ = grow(net, [[1], [1]], 12, how, samples=[0, 1])
    assert rows[0] != rows[1]
    assert grow(net, [[1]], 12, how)[0][0] == rows[0]


def test_the_end_token_ends_a_row_and_the_others_continue():
    net = model()
    (first, second), _ = grow(net, [[1], [2]], 12, Sampling(0))
    rows, reasons = grow(net, [[1], [2]], 12, Sampling(0), end=first[3])
    cut = first.index(first[3]) + 1
    assert rows[0] == first[:cut]
    assert reasons[0] == "end"
    if first[3] not in second:
        assert rows[1] == second
        assert reasons[1] == "length"


logit_rows = st.lists(st.floats(-9, 9), min_size=7, max_size=7)


@settings(max_examples=50)
@given(row=logit_rows, temperature=st.floats(0.1, 3), k=st.integers(1, 9), p=st.floats(0.05, 1), m=st.floats(0, 1))
def test_top_k_top_p_and_min_p_keep_the_tokens_they_should(row, temperature, k, p, m):
    logits = torch.tensor([row])
    even = (logits.double() / temperature).softmax(-1)[0]
    order = logits[0].argsort(descending=True, stable=True)
    cut = probabilities(logits, Sampling(temperature, top_k=k))[0]
    assert int((cut > 0).sum()) <= k
    assert float(cut.sum()) == pytest.approx(1)
    nucleus = probabilities(logits, Sampling(temperature, top_p=p))[0]
    kept = nucleus > 0
    assert float(even[kept].sum()) >= p - 1e-9
    assert float(even[kept].sum() - even[kept].min()) < p + 1e-9  # no smaller set would do
    floor = probabilities(logits, Sampling(temperature, min_p=m))[0] > 0
    assert torch.equal(floor, even >= m * even.max()) or (even - m * even.max()).abs().min() < 1e-12
    assert kept[order[0]]
    assert floor[order[0]]


def test_samples_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    p = probabilities(logits, Sampling())[0]

    class Fixed(torch.nn.Linear):
        config = GPTConfig(vocab=4, context=2, width=2, heads=1, depth=1)

        def forward(self, tokens, *_, **__):
            return logits.expand(len(tokens), 1, 4)

    rows, _ = grow(Fixed(1, 1), [[0]] * 3000, 1, Sampling(), samples=range(3000), cached=False)
    counts = torch.bincount(torch.tensor(rows)[:, 0], minlength=4) / 3000
    assert (counts - p).abs().max() < 0.03


def test_the_repetition_penalty_makes_repeated_tokens_less_likely():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    seen = torch.tensor([[True, True, False]])
    assert penalize(logits, seen, 2.0).tolist() == [[1.0, -2.0, 0.5]]
    assert logits.tolist() == [[2.0, -1.0, 0.5]]


class Parrot(torch.nn.Module):
    """Generates a fixed text, one byte after another, whatever the prompt."""

    config = GPTConfig(vocab=256, context=4096, width=2, heads=1, depth=1)

    def __init__(self, text):
        super().__init__()
        self.text = text.encode()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens, *_, **__):
        logits = torch.zeros(len(tokens), 1, 256)
        logits[:, :, self.text[min(tokens.shape[1] - 1, len(self.text) - 1)]] = 99
        return logits


@pytest.mark.parametrize("text", ["héllo wörld", "日本語です", "a👍b", "plain"])
def test_streamed_pieces_are_whole_characters_and_join_to_the_text(text):
    pieces = [p[0] for p in stream(Parrot(text), ByteTokenizer(), ["x"], len(text.encode()), Sampling(0), cached=False)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("vocab", [257, 290, 320])
def test_byte_pairs_that_end_within_a_character_are_streamed_whole(vocab):
    text = "日本語の文章は、とても長いです。" * 3
    tokenizer = train_bpe([text * 9], vocab)
    shown = TextStream(tokenizer, ())
    pieces = [shown.add(int(token))[0] for token in tokenizer.encode(text)] + [shown.rest()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_invalid_bytes_are_shown_as_replacement_characters():
    shown = TextStream(ByteTokenizer(), ())
    assert "".join(shown.add(b)[0] for b in b"a\xff\xffb\xe3") + shown.rest() == "a\ufffd\ufffdb\ufffd"


@pytest.mark.parametrize("stop, expected", [(["stop"], "go on, "), (["ops"], "go on, st"), (["zz"], "go on, stops here"),
                                            (["here", "on"], "go ")])  # fmt: skip
def test_a_stop_string_ends_the_text_and_is_not_shown(stop, expected):
    text = "go on, stops here"
    reasons = []
    pieces = stream(
        Parrot(text), ByteTokenizer(), ["x"], len(text), Sampling(0), stop=stop, cached=False, reasons=reasons
    )
    assert "".join(p[0] for p in pieces) == expected
    assert reasons == ["stop" if expected != text else "length"]


def test_ids_of_a_padded_vocabulary_are_never_sampled():
    tokenizer = CharTokenizer("abc")
    text = complete(model(vocab=41), tokenizer, ["ab"], 20, Sampling(3.0))[0]
    assert len(text) == 20
    assert set(text) <= set("abc")


def test_complete_takes_texts():
    tokenizer = CharTokenizer("abcdefghijklmnopqrstuvwxyz ,.")
    net = model(vocab=tokenizer.vocab)
    one, two = complete(net, tokenizer, ["the cat", "a"], 9, Sampling(0.5))
    assert len(one) == len(two) == 9


class Witness(torch.nn.Module):
    """A model that records its inputs and ignores those besides the tokens."""

    config = GPTConfig(vocab=41, context=11, width=24, depth=2, heads=2)

    def __init__(self):
        super().__init__()
        self.inner, self.calls = model(context=11), []

    def new_cache(self, *sizes):
        return self.inner.new_cache(*sizes)

    def forward(self, tokens, picture=None, **options):
        self.calls.append((tokens.tolist(), picture))
        return self.inner(tokens, **options)


@pytest.mark.parametrize("cached", [True, False])
def test_other_inputs_are_passed_with_the_prefill_only(cached):
    net, picture = Witness(), torch.zeros(2, 3, 5, 7)
    rows, _ = grow(net, [[1, 2], [3]], 5, Sampling(0), given={"picture": picture}, cached=cached)
    assert len(net.calls) == 5
    if cached:
        assert [seen is picture for _, seen in net.calls] == [True] + [False] * 4
        assert [seen is None for _, seen in net.calls] == [False] + [True] * 4
    else:  # without a cache every step is a prefill
        assert all(seen is picture for _, seen in net.calls)
    assert rows == grow(model(context=11), [[1, 2], [3]], 5, Sampling(0))[0]


def test_other_inputs_are_passed_again_when_the_context_slides():
    net, picture = Witness(), torch.zeros(1, 3, 5, 7)
    grow(net, [[1, 2]], 20, Sampling(0), given={"picture": picture}, slide=True)
    for tokens, seen in net.calls:
        assert (seen is picture) == (len(tokens[0]) > 1)
    assert sum(seen is picture for _, seen in net.calls) > 1


def test_begin_is_put_before_every_prompt_and_allows_an_empty_one():
    tokenizer, net = CharTokenizer("abcdefghijklmnopqrstuvwxyz ,."), Witness()
    complete(net, tokenizer, ["", "ab"], 1, Sampling(0), begin=17)
    a, b = tokenizer.encode("ab").tolist()
    assert net.calls[0][0] == [[17, 0, 0], [17, a, b]]
    with pytest.raises(UserError, match="empty"):
        complete(net, tokenizer, ["", "ab"], 1, Sampling(0))


@pytest.mark.parametrize(
    "prompt, words", [([], "empty"), ([1] * 24, "24 tokens and the context is 23"), ([41], "outside the vocabulary")]
)
def test_prompts_that_cannot_be_used_are_refused(prompt, words):
    with pytest.raises(UserError, match=words):
        Generation(model(), [prompt], 5)


@pytest.mark.parametrize(
    "values",
    [dict(temperature=-1), dict(top_k=0), dict(top_p=0), dict(top_p=1.5), dict(min_p=2), dict(repetition_penalty=0)],
)
def test_sampling_out_of_range_is_refused(values):
    with pytest.raises(UserError, match="must be at least"):
        Sampling(**values)
