"""Decoding on a GPU: captured and compiled steps against eager ones, tokens read behind, tokens chosen as on the CPU."""

import copy
import gc
import os
import subprocess
import sys

import pytest
import torch

from conftest import unchecked
from pencil.core.masks import NOWHERE
from pencil.core.span import Span
from pencil.data.tokenizers.tokenizer import ByteTokenizer
from pencil.device import free_memory
from pencil.families import create
from pencil.inference import decode_step
from pencil.inference.beam import search
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling, choose, probabilities
from pencil.inference.text_stream import stream
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.seq2seq import Seq2SeqConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")

DEVICE = "cuda"
SIZES = dict(vocab=211, context=301, width=112, depth=3, heads=7)
PROMPTS = [[5, 3, 8], [1], [2, 4, 6, 8, 10, 12, 14]]
SCHEMES = ["learned", "sinusoidal", "rope", "alibi", "shaw", "t5", "none"]
# in half precision sums are made in float32, and results are rounded; in float32 a sum of n numbers rounds √n times
ROUNDINGS = {torch.float32: 64, torch.bfloat16: 8}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def exact():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with unchecked():
        yield
    torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.set_sync_debug_mode("default")


def made(kind, dtype=torch.float32):
    """A model with random weights, and its other inputs for three rows."""
    torch.manual_seed(0)
    given = {}
    if kind == "captioner":
        net = create(kind, CaptionerConfig(image_size=(6, 10), patch=(3, 5), kv_heads=1, **SIZES))
        given = {"picture": torch.randn(3, 1, 6, 10, device=DEVICE, dtype=dtype)}
    elif kind.startswith("seq2seq"):
        net = create("seq2seq", Seq2SeqConfig(source_context=13, **SIZES))
        given = {"source": torch.randint(0, 211, (3, 5), device=DEVICE)}
        if kind.endswith("padded"):
            index = torch.tensor([[0, 1, 2, 3, 4], [0, 1, NOWHERE, NOWHERE, NOWHERE], [0, 1, 2, NOWHERE, NOWHERE]])
            given["source_span"] = Span.at(index.to(DEVICE))
    elif kind == "llama":
        net = create("gpt", GPTConfig(**SIZES, kv_heads=1, norm="rms", activation="swiglu", window=37))
    else:
        net = create("gpt", GPTConfig(**SIZES, positions=kind, bias=True))
    for p in net.parameters():
        p.data.add_(torch.randn_like(p) * 0.05)
    return net.to(DEVICE, dtype).eval(), given


KINDS = [*SCHEMES, "llama", "captioner", "seq2seq", "seq2seq padded"]


def grow(net, prompts, new, how, **options):
    generation = Generation(net, prompts, new, how, **options)
    return list(generation), generation.rows, generation.reasons


@dtypes
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_is_the_step_itself(kind, dtype, monkeypatch):
    """The same kernels, so the same tokens, in half precision too."""
    net, given = made(kind, dtype)
    how = Sampling(0.9, top_k=31, seed=3)
    generation = Generation(net, PROMPTS, 300, how, given=given, end=7, capture=True)
    captured = list(generation), generation.rows, generation.reasons
    step = decode_step.idle_steps.pop(net)
    assert len(step.graphs) >= (
        2 if max(map(len, generation.rows)) > 130 else 1
    )  # one for each bucket that was reached
    assert generation.startup > 0
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)  # nothing is captured then
    assert grow(net, PROMPTS, 300, how, given=given, end=7, capture=True) == captured
    assert not decode_step.idle_steps[net].graphs


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_generate_what_eager_ones_do(kind):
    net, given = made(kind)
    for how in (Sampling(0), Sampling(0.9, top_k=31, seed=3)):
        eager = grow(net, PROMPTS, 280, how, given=given, capture=False)
        assert grow(net, PROMPTS, 280, how, given=given, capture=True) == eager


def test_an_older_graph_that_is_garbage_does_not_end_a_capture():
    """Python collects garbage at any allocation; CUDA destroys no graph while a stream is capturing."""
    from pencil.inference.cuda_graph import Captured

    def function(x):
        for _ in range(100_000):  # enough cycles of references for the collector to start many times
            cycle = []
            cycle.append(cycle)
        return x * 3

    x = torch.arange(7.0, device=DEVICE)
    captured = Captured(function)
    captured(x)  # as it is; the next call is captured
    older: list = [Captured(lambda x: x + 1)]
    older[0](x), older[0](x)
    older.append(older)  # only the collector can free it
    del older
    assert [captured(x).tolist() for _ in range(3)] == [(x * 3).tolist()] * 3


@dtypes
@pytest.mark.parametrize("kind", [*SCHEMES, "llama"])
@torch.no_grad()
def test_a_captured_prefill_reads_other_prompts(kind, dtype):
    """Of other lengths and tokens than the captured one, against float64 over each prompt alone."""
    net, _ = made(kind, dtype)
    double = copy.deepcopy(net).double()
    for turn, lengths in enumerate([(3, 1, 7), (16, 2, 5), (1, 1, 1), (13, 11, 9)]):
        prompts = [torch.randint(0, 211, (n,)).tolist() for n in lengths]
        generation = Generation(net, prompts, 20, Sampling(0), capture=True)
        found = generation.prefill().double()
        assert (generation.step.prefills[16].graph is not None) == (turn > 0)
        assert generation.cache.filled == max(lengths)
        assert generation.cache.used.tolist() == list(lengths)
        for i, prompt in enumerate(prompts):
            whole = double(torch.tensor([prompt], device=DEVICE))[0, -1]
            assert (found[i] - whole).abs().max() / whole.std() < ROUNDINGS[dtype] * torch.finfo(dtype).eps
        generation.release()


@pytest.mark.parametrize("kind", [*SCHEMES, "llama"])
def test_generations_after_a_captured_prefill_are_eager_ones(kind):
    net, _ = made(kind)
    for turn in range(4):
        prompts = [[(token * 3 + turn) % 211 for token in row] + [turn] * turn for row in PROMPTS]
        eager = grow(net, prompts, 70, Sampling(0), capture=False)
        assert grow(net, prompts, 70, Sampling(0), capture=True) == eager


def test_a_captured_graph_shares_no_workspace_with_one_that_is_gone():
    """cuBLAS's is in the memory of a graph; when all workspaces are cleared it must not be freed under another's."""
    first, _ = made("rope", torch.bfloat16)
    net, _ = made("learned", torch.bfloat16)
    for _ in range(3):
        grow(first, PROMPTS, 70, Sampling(0), capture=True)
    expected = [grow(net, PROMPTS, 70, Sampling(0), capture=True) for _ in range(3)][-1]
    del first
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    filled = [torch.full((1 << 20,), torch.nan, device=DEVICE) for _ in range(64)]
    assert grow(net, PROMPTS, 70, Sampling(0), capture=True) == expected
    assert all(one.isnan().all() for one in filled)


@dtypes
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_logits_of_captured_steps_are_those_of_whole_passes(kind, dtype, monkeypatch):
    """Of given tokens, against float64 over each whole row alone."""
    net, given = made(kind, dtype)
    rows = [torch.randint(0, 211, (n,)).tolist() for n in (12, 10, 16)]
    begun, real = [row[:-9] for row in rows], decode_step.DecodeState.choose
    generation = Generation(net, begun, 20, Sampling(0), given=given, capture=True)
    first = generation.prefill()
    state, held = generation.state, torch.zeros_like(first)

    def choose(self, logits):
        held.copy_(logits)
        return real(self, logits)

    monkeypatch.setattr(decode_step.DecodeState, "choose", choose)
    state.begin(begun, [False] * 3)
    state.take(first)
    found = [held.double()]
    for number in range(9):
        state.tokens.copy_(torch.tensor([[row[number - 9]] for row in rows]))  # instead of the chosen one
        generation.step(net)
        found.append(held.double())
    double = copy.deepcopy(net).double()
    for i, row in enumerate(rows):
        whole = double(torch.tensor([row], device=DEVICE), **alone(given, i))[0, -10:]
        error = (torch.stack([logits[i] for logits in found]) - whole).abs().max() / whole.std()
        assert error < ROUNDINGS[dtype] * torch.finfo(dtype).eps


def alone(given, i):
    """The other inputs of one row, without padding, in float64."""
    if "picture" in given:
        return {"picture": given["picture"][i : i + 1].double()}
    if "source_span" in given:
        return {"source": given["source"][i : i + 1, given["source_span"].index[i] < NOWHERE]}
    return {key: one[i : i + 1] for key, one in given.items()}


def test_a_batch_is_each_row_alone():
    net, _ = made("rope")
    how = Sampling(0.8, top_p=0.9, seed=5)
    together = grow(net, PROMPTS, 200, how, capture=True)[1]
    for i, prompt in enumerate(PROMPTS):
        assert grow(net, [prompt], 200, how, capture=True)[1] == [together[i]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_logits_choose_the_same_tokens_as_on_the_cpu(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(61, 50257, generator=generator).to(dtype) * 3  # in half precision thousands are equal
    uniforms = torch.rand(61, generator=generator, dtype=torch.float64)
    seen = torch.rand(61, 50257, generator=generator) < 0.1
    rules = (Sampling(0), Sampling(0.8), Sampling(0.8, top_k=50), Sampling(1.0, top_p=0.9), Sampling(1.0, min_p=0.05),
             Sampling(0.7, top_k=997, top_p=0.8, min_p=0.01), Sampling(1.1, top_k=1), Sampling(0.9, top_k=50, repetition_penalty=1.3))  # fmt: skip
    for how in rules:
        before = seen if how.repetition_penalty != 1 else None
        here = choose(logits, how, uniforms, before)
        there = choose(logits.cuda(), how, uniforms.cuda(), None if before is None else before.cuda())
        assert here.tolist() == there.tolist(), how
        if how.temperature > 0:
            kept, also = probabilities(logits, how) > 0, probabilities(logits.cuda(), how) > 0
            assert torch.equal(kept, also.cpu()), how


def test_a_captured_step_does_not_wait_for_the_device():
    net, _ = made("rope")
    generation = Generation(net, PROMPTS, 200, Sampling(0.9, top_k=31, repetition_penalty=1.1), end=7)
    assert generation.static
    for number, _ in enumerate(generation):
        if number == 20:  # prefill and capture are behind
            torch.cuda.set_sync_debug_mode("error")  # events do not count: they wait for the tokens of earlier steps
        if number == 100:
            torch.cuda.set_sync_debug_mode("default")


def test_a_second_generation_of_the_same_sizes_needs_no_startup():
    net, given = made("seq2seq padded")
    how = Sampling(0.9, seed=1)
    grow(net, PROMPTS, 200, how, given=given)
    other = {"source": given["source"].flip(1), "source_span": given["source_span"]}
    again = Generation(net, PROMPTS, 200, Sampling(0.9, seed=2), given=other)
    rows = list(again)
    assert again.startup == 0
    assert rows == grow(net, PROMPTS, 200, Sampling(0.9, seed=2), given=other, capture=False)[0]


def test_weights_that_change_in_place_are_those_of_the_next_generation():
    net, _ = made("learned")
    first = grow(net, PROMPTS, 100, Sampling(0))
    with torch.no_grad():
        net.norm.weight.mul_(-1)
    second = grow(net, PROMPTS, 100, Sampling(0))
    assert second != first
    assert second == grow(net, PROMPTS, 100, Sampling(0), capture=False)


@pytest.mark.parametrize("slide", [False, True])
def test_ends_and_full_contexts_with_tokens_read_behind(slide):
    net, _ = made("rope")
    for how in (Sampling(0), Sampling(1.1, top_p=0.9, repetition_penalty=1.2, seed=2)):
        eager = grow(net, PROMPTS, 700, how, end=(7, 77), slide=slide, capture=False)
        assert grow(net, PROMPTS, 700, how, end=(7, 77), slide=slide, capture=True) == eager
        none = grow(net, PROMPTS, 700, how, slide=slide, capture=False)
        assert grow(net, PROMPTS, 700, how, slide=slide, capture=True) == none


def test_stop_strings_with_tokens_read_behind():
    torch.manual_seed(0)
    net = create("gpt", GPTConfig(vocab=256, context=300, width=64, depth=2, heads=2)).cuda().eval()
    for p in net.parameters():
        p.data.add_(torch.randn_like(p) * 0.1)

    def text(**options):
        pieces = list(
            stream(net, ByteTokenizer(), ["x", "yy"], 150, Sampling(1.5, seed=1), reasons=(why := []), **options)
        )
        return ["".join(row) for row in zip(*pieces, strict=True)], why

    whole, _ = text()
    stop = whole[0][60:62]
    cut, why = text(stop=[stop])
    assert why[0] == "stop"
    assert cut[0] == whole[0][: whole[0].index(stop)]
    assert cut[1] == (whole[1][: whole[1].index(stop)] if stop in whole[1] else whole[1])


def test_beams_are_the_same_as_on_the_cpu():
    net, given = made("seq2seq padded")
    there = search(net, [[1]] * 3, 70, 4, end=7, given=given)
    on_cpu = {"source": given["source"].cpu(), "source_span": Span.at(given["source_span"].index.cpu())}
    here = search(net.cpu(), [[1]] * 3, 70, 4, end=7, given=on_cpu)
    assert [[one.tokens for one in rows] for rows in there] == [[one.tokens for one in rows] for rows in here]


COMPILED = """
import sys
import torch
import test_gpu_decode as tests
from pencil.inference import decode_step
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling

torch.backends.cuda.matmul.allow_tf32 = False
for kind in ("learned", "rope", "t5", "shaw", "llama", "captioner", "seq2seq padded"):
    net, given = tests.made(kind)
    eager, lines = tests.grow(net, tests.PROMPTS, 100, Sampling(0.8, top_k=31), given=given, capture=False), []
    compiled = tests.grow(net, tests.PROMPTS, 100, Sampling(0.8, top_k=31), given=given, compile=True, notify=lines.append)
    assert compiled == eager, kind
    assert decode_step.idle_steps[net].compiled
    print(kind, "the same;", *lines)
"""


def test_compiled_steps_generate_what_eager_ones_do():
    """In a process of its own: what checks shapes cannot be compiled."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(here), os.path.join(os.path.dirname(here), "helpers"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    net, _ = made("rope")
    free = free_memory(torch.device("cuda"))
    assert 0 < free <= torch.cuda.mem_get_info()[1]
    monkeypatch.setattr("pencil.inference.generation.free_memory", lambda device: 1_000_000)
    with pytest.raises(Exception, match="GB are free on the GPU; .* would fit"):
        Generation(net, PROMPTS, 200)
