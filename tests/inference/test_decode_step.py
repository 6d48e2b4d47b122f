"""Decode steps with static shapes, and tokens read behind the device: the same tokens as one step at a time."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from conftest import unchecked
from pencil.config import UserError
from pencil.core.span import Span
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.families import create
from pencil.inference import decode_step
from pencil.inference.decode_step import bucket_of
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.inference.text_stream import stream
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.seq2seq import Seq2SeqConfig

SCHEMES = ("learned", "sinusoidal", "rope", "alibi", "shaw", "t5", "none")
SIZES = dict(vocab=41, context=29, width=24, depth=1, heads=2)


def made(name, config):
    torch.manual_seed(0)
    net = create(name, config).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return net


@pytest.fixture(scope="module")
def net():
    return made("gpt", GPTConfig(**SIZES))


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Several buckets within a short context."""
    monkeypatch.setattr(decode_step, "MIN_BUCKET_SLOTS", 8)
    with unchecked():
        yield


def grow(net, prompts, new, how, behind=None, **options):
    """What was yielded, the rows, and why they ended."""
    generation = Generation(net, prompts, new, how, **options)
    if behind is not None:
        generation.behind = behind
    return list(generation), generation.rows, generation.reasons


def models():
    torch.manual_seed(1)
    for positions in SCHEMES:
        yield positions, made("gpt", GPTConfig(**SIZES, positions=positions)), {}
    narrow = GPTConfig(**SIZES, window=5, kv_heads=1, norm="rms", activation="swiglu")
    yield "window", made("gpt", narrow), {}
    captioner = CaptionerConfig(image_size=(6, 10), patch=(3, 5), kv_heads=1, **SIZES)
    yield "captioner", made("captioner", captioner), {"picture": torch.randn(3, 1, 6, 10)}
    seq2seq = made("seq2seq", Seq2SeqConfig(source_context=13, **SIZES))
    yield "seq2seq", seq2seq, {"source": torch.randint(0, 41, (3, 7))}
    index = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 1 << 30, 1 << 30, 1 << 30], [0, 1, 2, 1 << 30, 1 << 30]])
    padded = {"source": torch.randint(0, 41, (3, 5)), "source_span": Span.at(index)}
    yield "seq2seq, padded", seq2seq, padded


@pytest.mark.parametrize("name, net, given", [pytest.param(*one, id=one[0]) for one in models()])
def test_static_shapes_generate_the_same(name, net, given):
    prompts, how = [[5, 3, 8], [1], [2, 4, 6, 8, 10, 12, 14]], Sampling(0.9, top_k=17, seed=3)
    plain = grow(net, prompts, 32, how, given=given, end=7)
    assert grow(net, prompts, 32, how, given=given, end=7, capture=True) == plain
    assert "context" in plain[2]
    if name in SCHEMES:
        return
    # the step is kept, and serves other prompts with other sources
    kept, rows = decode_step.idle_steps[net], torch.tensor([2, 0, 1])
    places = [k.data_ptr() for both in kept.memory.layers for k in both] if kept.memory else []
    other = {key: one.pick(rows) if isinstance(one, Span) else one[rows] for key, one in given.items()}
    plain = grow(net, prompts[::-1], 32, how, given=other, end=7)
    assert grow(net, prompts[::-1], 32, how, given=other, end=7, capture=True) == plain
    assert decode_step.idle_steps[net] is kept
    # a captured step reads the source where it was
    assert not places or places == [k.data_ptr() for both in kept.cache.memory.layers for k in both]


@pytest.mark.parametrize("slide", [False, True])
@pytest.mark.parametrize(
    "how", [Sampling(0), Sampling(1.1, top_p=0.9, repetition_penalty=1.4, seed=2)], ids=["greedy", "sampled"]
)
def test_tokens_read_behind_are_the_same(net, slide, how):
    prompts = [[5, 3, 8], [1], [2, 4, 6, 8, 10, 12, 14]]
    plain = grow(net, prompts, 45, how, slide=slide, end=11)
    for behind in (1, 8):
        assert grow(net, prompts, 45, how, behind, slide=slide, end=11, capture=True) == plain


class Speller(torch.nn.Module):
    """Says its text, a byte at a time, after a prompt of one; and counts its calls."""

    config = GPTConfig(vocab=256, context=64, width=2, heads=1, depth=1)

    def __init__(self, text):
        super().__init__()
        self.text, self.calls = text.encode(), 0
        self.inner = create("gpt", self.config)

    def new_cache(self, *sizes):
        return self.inner.new_cache(*sizes)

    def forward(self, tokens, span=None, cache=None, last=True):
        self.inner(tokens, span=span, cache=cache, last=last)
        at = cache.used - 1
        self.calls += 1
        letters = torch.tensor(list(self.text))[at.clamp(max=len(self.text) - 1)]
        return torch.nn.functional.one_hot(letters, 256).float()[:, None]


@pytest.mark.parametrize("behind", [0, 5])
def test_nothing_after_a_stop_string_is_shown_though_it_was_computed(monkeypatch, behind):
    real = Generation.__init__

    def init(self, *args, **options):
        real(self, *args, **options, capture=True)
        self.behind = behind

    monkeypatch.setattr(Generation, "__init__", init)  # on the CPU nothing is behind by itself
    net, reasons = Speller("one two three four five"), []
    pieces = list(stream(net, ByteTokenizer(), ["x"], 23, Sampling(0), stop=["thr"], reasons=reasons))
    assert "".join(piece for (piece,) in pieces) == "one two "
    assert reasons == ["stop"]
    assert net.calls == len("one two thr") + behind


def test_a_row_ended_by_the_host_is_padding_on_the_device(net):
    generation = Generation(net, [[1], [2]], 20, Sampling(0), capture=True)
    for number, _ in enumerate(generation):
        if number == 4:
            generation.finish(1, "stop")
            held = int(generation.cache.used[1])
    assert int(decode_step.idle_steps[net].cache.used[1]) == held
    assert generation.reasons == ["length", "stop"]
    assert len(generation.rows[1]) == 6


def test_rows_that_end_write_nothing_more(net):
    (*_, last), *_ = grow(net, [[1]], 6, Sampling(0))
    generation = Generation(net, [[1], [2] * 27], 24, Sampling(0), end=last[0], capture=True)
    generation.behind = 8
    list(generation)
    assert set(generation.reasons) == {"end", "context"}
    used = decode_step.idle_steps[net].cache.used
    # the newest token of a row is not read by the model
    assert used.tolist() == [len(row) - 1 for row in generation.rows]


@pytest.mark.parametrize("capture", [False, True])
def test_every_token_of_a_row_is_penalized_but_the_end(net, capture):
    penalty, row = 1.7, [5, 3, 11, 3]
    how = Sampling(0, repetition_penalty=penalty)
    made = grow(net, [row], 15, how, end=11, capture=capture)[1][0]
    with torch.no_grad():
        for length in range(len(row), len(made)):
            logits = net(torch.tensor([made[:length]]))[0, -1]
            seen = sorted(set(made[:length]) - {11})
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
            assert made[length] == int(logits.argmax())
    assert len(made) > len(row) + 4


def test_two_generations_at_once_do_not_share_a_step(net):
    how = Sampling(0.8, seed=4)
    grow(net, [[1]], 20, how, capture=True)  # leaves a step behind
    first, second = (Generation(net, [[token]], 20, how, capture=True) for token in (5, 9))
    both = [(a[0], b[0]) for a, b in zip(first, second, strict=True)]
    assert [a for a, _ in both] == [a for (a,) in grow(net, [[5]], 20, how)[0]]
    assert [b for _, b in both] == [b for (b,) in grow(net, [[9]], 20, how)[0]]


def test_a_step_is_kept_for_the_same_sizes_and_weights_only(net):
    how = Sampling(0.8)
    grow(net, [[1]], 20, how, capture=True)
    kept = decode_step.idle_steps[net]
    grow(net, [[3, 4]], 20, Sampling(0.8, seed=9), capture=True)  # other tokens and another seed
    assert decode_step.idle_steps[net] is kept
    grow(net, [[1], [2]], 20, how, capture=True)
    assert decode_step.idle_steps[net] is not kept
    kept = decode_step.idle_steps[net]
    weight = net.norm.weight
    try:
        net.norm.weight = torch.nn.Parameter(weight.detach() * -3)
        changed = grow(net, [[1], [2]], 20, how, capture=True)
        assert decode_step.idle_steps[net] is not kept
        assert changed == grow(net, [[1], [2]], 20, how)
    finally:
        net.norm.weight = weight


def test_a_model_that_nobody_uses_is_freed_with_its_step():
    net = made("gpt", GPTConfig(**SIZES))
    grow(net, [[1]], 20, Sampling(0), capture=True)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_leaving_a_generation_and_going_on_continues_it(net):
    how, prompts = Sampling(0.7, top_k=9, seed=1), [[1, 2], [3]]
    whole = grow(net, prompts, 20, how)[1]
    generation = Generation(net, prompts, 20, how, capture=True)
    generation.behind = 4
    for number, _ in enumerate(generation):
        if number == 6:
            break
    assert [row[: len(cut)] for row, cut in zip(whole, generation.rows, strict=True)] == generation.rows


def test_more_random_numbers_than_are_drawn_at_a_time(net, monkeypatch):
    how = Sampling(1.2, seed=8)
    plain = grow(net, [[1], [2]], 40, how, slide=True)
    monkeypatch.setattr(decode_step, "CHUNK", 7)
    monkeypatch.setattr("pencil.inference.generation.CHUNK", 7)
    assert grow(net, [[1], [2]], 40, how, slide=True) == plain


@pytest.mark.parametrize(
    "slots, most, bucket", [(1, 1024, 128), (128, 1024, 128), (129, 1024, 256), (513, 600, 600), (9, 23, 23)]
)
def test_a_bucket_is_a_power_of_two_or_the_whole_cache(slots, most, bucket, monkeypatch):
    monkeypatch.setattr(decode_step, "MIN_BUCKET_SLOTS", 128)
    assert bucket_of(slots, most) == bucket


COMPILED = """
import sys
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from pencil.families import configure, create
from pencil.inference import decode_step
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling

decode_step.MIN_BUCKET_SLOTS = 8
graphs, real = CompileCounterWithBackend(sys.argv[1]), torch.compile
torch.compile = lambda call, dynamic: real(call, dynamic=dynamic, backend=graphs, fullgraph=True)
torch.manual_seed(0)
net = create("gpt", configure("gpt", None, vocab=41, context=29, width=24, depth=2, heads=2)).eval()
for p in net.parameters():
    p.data.add_(torch.randn_like(p) * 0.2)

def rows(**options):
    how = Sampling(0.9, top_k=17, repetition_penalty=1.2, seed=3)
    generation = Generation(net, [[5, 3, 8], [1]], 26, how, end=7, **options)
    list(generation)
    return generation.rows, generation.reasons

lines, plain = [], rows()
assert rows(compile=True, notify=lines.append) == plain
print(graphs.frame_count, lines[0])
assert rows(capture=True) == plain  # a compiled step that is there is used
assert rows(compile=True, notify=lines.append) == plain
print(graphs.frame_count)
"""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_step_is_compiled_once_for_each_bucket(backend):
    """In a process of its own: what checks shapes cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED, backend], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    # 8, 16 and 29 key slots, and what a choice does to the state
    assert done.stdout.splitlines() == ["4 (compiling the decoder; this takes a minute or more)", "4"]


def test_options_that_exclude_one_another_are_refused(net):
    with pytest.raises(UserError, match="needs the cache"):
        Generation(net, [[1]], 5, compile=True, cached=False)
    with pytest.raises(UserError, match="leave capture=False out"):
        Generation(net, [[1]], 5, compile=True, capture=False)


def test_a_cache_that_does_not_fit_is_refused_with_what_would(net, monkeypatch):
    slot = 2 * 24 * 4  # keys and values, one block, width 24 in float32
    monkeypatch.setattr("pencil.inference.generation.free_memory", lambda device: 7 * 24 * slot)
    Generation(net, [[1, 2, 3]] * 7, 20)  # 23 tokens and a slot for padding
    with pytest.raises(
        UserError, match="of 8 sequences of 23 tokens needs .* GB .* 7 such sequences or 8 of 20 tokens would fit"
    ):
        Generation(net, [[1, 2, 3]] * 8, 20)
    with pytest.raises(UserError, match="of 14 sequences of 23 tokens needs"):  # of each prompt two branches
        Generation(net, [[1, 2, 3]] * 7, 20).branch(2)
    monkeypatch.setattr("pencil.inference.generation.free_memory", lambda device: 7 * 24 * slot - 1)
    with pytest.raises(UserError, match="6 such sequences or 7 of 22 tokens would fit"):
        Generation(net, [[1, 2, 3]] * 7, 20)
    monkeypatch.setattr("pencil.inference.generation.free_memory", lambda device: 15 * slot)
    with pytest.raises(UserError, match="; 14 tokens would fit"):
        Generation(net, [[1, 2, 3]], 20)
    monkeypatch.setattr("pencil.inference.generation.free_memory", lambda device: slot)
    with pytest.raises(UserError, match="no cache of this model fits"):
        Generation(net, [[1, 2, 3]], 20)
