"""Bytes against what is really held: tensors saved for the backward pass, optimizer states, KV caches; and document 002's."""

import json
import math
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from pencil.cost import memory as cost_memory
from pencil.cost.count import count
from pencil.cost.devices import DEVICES, Workload, device, workloads
from pencil.cost.memory import kv_cache, kv_sharing, smaller_kv_caches, train_memory
from pencil.families import configure, family
from pencil.train.losses import cross_entropy as losses
from pencil.train.optim import make_optimizers, state_tensors
from pencil.train.settings import TrainConfig

ROOT = Path(__file__).parents[1]
_SIZES = dict(width=352, heads=11, depth=2, hidden=499, dropout=0.0)
_TEXT = dict(vocab=509, context=127)
_IMAGE = dict(image_size=(77, 65), patch=(7, 5), channels=3)


@lru_cache
def counts_of(name, config, length=None):
    record = family(name)
    return count(record.create, record.cost, config, length)


def memory_of(name, config, batch, length=None, dtype="bf16"):
    return train_memory(family(name).cost, config, counts_of(name, config, length), batch, length, dtype)


def workloads_of(name, config, batch, length=None, optimizer="muon"):
    counts, memory = counts_of(name, config, length), memory_of(name, config, batch, length)
    return workloads(family(name).cost, config, counts, memory, batch, length, optimizer=optimizer)


def saved_by_autograd(name, config, batch):
    """Bytes of all storages that autograd saves, but for the parameters and the inputs."""
    record = family(name)
    model = record.create(config).train()
    inputs = model.example(batch)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *inputs)}
    held = {}

    def pack(t):
        place = t.untyped_storage()
        if place.data_ptr() not in own:
            held[place.data_ptr()] = (place.nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = record.cost.loss(model(*inputs))
    assert loss.requires_grad
    return sum(size for size, _ in held.values())


@pytest.mark.parametrize("name, values", [
    ("gpt", _TEXT | dict(positions="learned", bias=True)),
    ("gpt", _TEXT | dict(activation="swiglu", kv_heads=1, tie_embeddings=False)),
    ("gpt", _TEXT | dict(activation="relu")),
    ("gpt", _TEXT | dict(kv_heads=1, head_dim=26, qkv_bias=True)),
    ("vit", _IMAGE | dict(classes=13)),
    ("vit", _IMAGE | dict(classes=13, registers=1, distilled=True, embed_norm=True)),
    ("vit", _IMAGE | dict(classes=13, pool="mean", registers=3, norm_pooled=True)),
    ("reader", _TEXT | dict(norm_position="post", embed_norm=True)),
    ("reader", _TEXT | dict(classes=13)),
    ("reader", _TEXT | dict(head="pool", positions="learned", position_offset=2)),
    ("seq2seq", _TEXT | dict(source_context=101)),
    ("seq2seq", _TEXT | dict(source_context=101, decoder_depth=1, head_dim=26, activation="geglu-tanh",
                             scale_logits=True)),
    ("dit", _IMAGE | dict(classes=13)),
    ("dit", _IMAGE | dict(vocab=13, context=31)),
    ("dit", dict(image_size=(28, 20), patch=(7, 5), frames=10, classes=13, attention="factored", adaln="plain",
                 positions="rope")),
])  # fmt: skip
def test_saved_activations_in_float32_are_what_autograd_saves(name, values):
    config = configure(name, **_SIZES | values)
    saved = memory_of(name, config, 3, dtype="fp32").activations.saved
    assert saved == pytest.approx(saved_by_autograd(name, config, 3), rel=0.01)


@pytest.mark.parametrize("name", ["gpt", "dit", "seq2seq"])
def test_optimizer_states_are_what_is_counted(name):
    config = configure(name, **dict(width=44, heads=11, depth=2, hidden=29, dropout=0.0))
    memory = memory_of(name, config, 1)
    for optimizer, counted in (("adamw", memory.adamw), ("muon", memory.muon)):
        model = family(name).create(config)
        optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for each in optimizers.values():
            each.step()
        held = {n: t for n, t in state_tensors(model, optimizers).items() if not n.endswith(".step")}
        assert sum(t.nbytes for t in held.values()) == counted
        assert sum(p.nbytes for p in model.parameters()) == memory.weights == memory.gradients


@pytest.mark.parametrize("heads", [12, 4, 1])
def test_a_kv_cache_is_as_large_as_the_models(heads):
    values = dict(width=84, heads=12, depth=3, hidden=29, positions="learned", kv_heads=heads, context=13)
    for name in ("gpt", "captioner"):
        config = configure(name, **values)
        cache = family(name).create(config).new_cache(5, 11)
        assert kv_cache(config, 5, cache.length, "fp32") == cache.nbytes
        assert kv_cache(config, 5, cache.length, "bf16") * 2 == cache.nbytes


def test_kv_heads_of_each_kind_of_attention():
    assert kv_sharing(configure("gpt", "llama2-70b")) == {"full": 64, "grouped": 8, "multi-query": 1}
    assert kv_sharing(configure("gpt", "gpt2")) == {"full": 12, "grouped": 4, "multi-query": 1}
    assert kv_sharing(configure("gpt", width=22, heads=11)) == {"full": 11, "multi-query": 1}
    assert kv_sharing(configure("gpt", width=22, heads=1)) == {"full": 1}


def test_seed_002s_cache_in_its_true_units():
    """It prints ≈10 GB and ≈312 GB for LLaMA-2 70B: these are GiB, and for 64 KV heads, where the model has 8."""
    config = configure("gpt", "llama2-70b")
    full, own = kv_cache(config, 1, 4096, heads=64), kv_cache(config, 1, 4096)
    assert full == 4 * 4096 * 8192 * 80 == 10_737_418_240 == 10 * 2**30
    assert own == 1_342_177_280 == 1.25 * 2**30
    assert (kv_cache(config, 1, 1, heads=64), kv_cache(config, 1, 1)) == (2_621_440, 327_680)
    assert kv_cache(config, 1, 128_000, heads=64) == 312.5 * 2**30 == 335_544_320_000
    assert kv_cache(config, 1, 131_072, heads=64) == 320 * 2**30
    assert kv_cache(config, 1, 131_072) == 40 * 2**30
    weights = memory_of("gpt", config, 1, 4096).weights // 2
    assert weights == 2 * 68_976_648_192
    assert (round(weights / 2_621_440), round(weights / 327_680, -3)) == (52_625, 421_000)


@pytest.mark.parametrize("length, window", [(23, None), (37, 5), (3, 5)])
def test_the_bytes_of_smaller_caches_are_those_of_their_tensors(length, window):
    """Each built: int8 values with float16 scales, the last tokens alone, and whole pages."""
    config = configure("gpt", width=84, heads=12, depth=3, kv_heads=4, context=13, window=window, positions="learned")
    blocks, batch, heads, width = 3, 5, 4, 7
    whole = torch.zeros(2, blocks, batch, length, heads, width, dtype=torch.bfloat16)
    values, scales = whole.to(torch.int8), torch.zeros(whole.shape[:-1], dtype=torch.float16)
    last = whole[:, :, :, -(window or math.ceil(length / 4)) :].clone()
    pages = torch.zeros(2, blocks, batch, math.ceil(length / 16), 16, heads, width, dtype=torch.bfloat16)
    counted = {one.name: one.bytes for one in smaller_kv_caches(config, batch, length)}
    assert list(counted.values()) == [values.nbytes + scales.nbytes, last.nbytes, pages.nbytes]


def test_smaller_caches_of_the_published_model():
    """LLaMA-2 70B at 4,096 tokens, from the bytes that tests/golden.json has for its own 8 KV heads."""
    golden = {one["id"]: one for one in json.loads((ROOT / "golden.json").read_text(encoding="utf-8"))}
    own = golden["002-kv-cache-llama2-70b"]["expected"]["real_GQA_bytes"]
    config = configure("gpt", "llama2-70b")
    int8, window, pages = (one.bytes for one in smaller_kv_caches(config, 1, 4096))
    assert (int8, window, pages) == (own // 2 * 130 // 128, own // 4, own)
    one_more = smaller_kv_caches(config, 1, 4097)[2].bytes
    assert one_more - own == 16 * golden["002-kv-cache-llama2-70b"]["expected"]["bytes_per_token_GQA"]
    text = (ROOT.parent / "docs" / "explain" / "cost.md").read_text(encoding="utf-8")
    assert all(f"{size:,}" in text for size in (own, int8, window, one_more))


@pytest.mark.parametrize("length", [127, 61])
def test_the_fused_loss_of_many_logits_saves_what_is_counted(monkeypatch, length):
    """In float32 on a CPU, where the matrix is not padded; tokens are taken in chunks of equal size."""
    assert (cost_memory.LARGE, cost_memory.CHUNK, cost_memory.ALIGNED) == (
        losses.LARGE,
        losses.CHUNK,
        losses.ALIGNED,
    )
    rows, width, vocab, chunk = 3 * length, 352, 509, 128
    monkeypatch.setattr(cost_memory, "CHUNK", chunk)
    monkeypatch.setattr(cost_memory, "ALIGNED", 1)
    monkeypatch.setattr(cost_memory, "LARGE", rows * vocab)
    hidden, weight = torch.zeros(rows, width, requires_grad=True), torch.zeros(vocab, width, requires_grad=True)
    targets, saved, made = torch.zeros(rows, dtype=torch.long), [], MemTracker()
    made.track_external(hidden, weight, targets)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        found = losses.linear_cross_entropy(hidden, weight, None, targets, chunk=chunk)
    with made, torch.no_grad():
        losses._summed._init_fn(hidden, weight, None, targets, 0.0, chunk, True, True, False)
    counted = cost_memory.loss_memory(rows * vocab, vocab, width, 4, True)
    assert counted.fused
    assert sum(t.nbytes for t in saved if t.ndim > 1) == counted.saved
    peak = made.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    before = sum(t.nbytes for t in (hidden, weight, targets))
    # the kernel of a GPU makes the gradient where the logits are; here there are log-probabilities for a moment
    each = -(-rows // -(-rows // chunk)) * vocab * 4
    assert counted.forward == pytest.approx(peak - before - each, rel=0.02)
    assert found.requires_grad
    assert not cost_memory.loss_memory(rows * vocab - 1, vocab, width, 4, True).fused
    assert not cost_memory.loss_memory(rows * vocab, vocab, width, 4, False).fused


def test_many_logits_on_cuda_need_less_memory_and_fsdp_no_copies_of_blocks():
    config = configure("gpt", "gpt2")
    counts = counts_of("gpt", config)
    plain, fused, cut = (
        train_memory(family("gpt").cost, config, counts, 8, cuda=cuda, sharded=sharded).activations
        for cuda, sharded in ((False, False), (True, False), (True, True))
    )
    logits = 8 * 1024 * 50257
    assert (plain.fused, fused.fused) == (False, True)
    assert plain.loss == 12 * logits
    assert 2 * logits < fused.loss < 4 * logits
    assert plain.copies - fused.copies == 2 * 50257 * 768
    assert fused.copies - cut.copies == 2 * counts.block_matrices == fused.peak - cut.peak
    assert not train_memory(family("gpt").cost, config, counts, 5, cuda=True).activations.fused


def test_recomputation_saves_where_blocks_are_many():
    activations = memory_of("gpt", configure("gpt", "gpt2-xl"), 8, 1024).activations
    assert activations.peak_recomputed < activations.peak / 3
    # it cannot save less than the input of every block, and the loss needs three values a logit
    assert activations.peak_recomputed > 8 * 1024 * 4 * (48 * 1600 + 3 * 50257)


def test_less_precision_saves_fewer_bytes_of_long_texts():
    config = configure("gpt", "gpt2")
    bf16, fp32 = (memory_of("gpt", config, 8, dtype=dtype).activations.saved for dtype in ("bf16", "fp32"))
    assert bf16 < fp32


def test_the_roofline_is_the_longer_of_two_times():
    h200 = device("H200")
    assert h200 is DEVICES["h200"]
    compute, memory = Workload(989 * 10**12, 48 * 10**8, 7), Workload(989 * 10**9, 48 * 10**11, 7)
    assert compute.seconds(h200, "bf16") == 1
    assert compute.bound(h200, "bf16") == "compute"
    assert memory.seconds(h200, "bf16") == 1
    assert memory.bound(h200, "bf16") == "memory"
    assert compute.seconds(h200, "fp32") == pytest.approx(989 / 67)
    assert memory.intensity == pytest.approx(989 / 4800)


def test_a_train_step_moves_one_moment_less_where_muon_works():
    config = configure("vit", "b/16")
    # 12 blocks of 4·768² and 2·768·3072; the other parameters are tables, norms, biases and both ends
    inside, rest = 84_934_656, 1_633_000
    saved = memory_of("vit", config, 3).saved
    muon, adamw = (workloads_of("vit", config, 3, optimizer=name)["train_step"] for name in ("muon", "adamw"))
    assert muon.bytes - 2 * saved == 32 * inside + 40 * rest == 2_783_228_992
    assert adamw.bytes - 2 * saved == 40 * (inside + rest) == 3_462_706_240
    assert muon.flops == adamw.flops


def test_a_prefill_needs_the_head_for_the_last_token_only():
    prefill = workloads_of("gpt", configure("gpt", "gpt2"), 3, 1000)["prefill"]
    # 12 blocks of 12·768², and 4·n·D a token and block for Q Kᵀ and A V
    assert prefill.flops == 3000 * (2 * 12 * 12 * 768**2 + 12 * 4 * 1000 * 768) + 3 * 2 * 50257 * 768


def test_a_decode_step_reads_every_matrix_and_the_cache_for_one_token():
    config = configure("gpt", "llama2-70b")
    decode = workloads_of("gpt", config, 1, 4096)["decode"]
    # the token table is not multiplied with: one row of it is looked up
    matrices = 68_976_648_192 - 32000 * 8192 - 161 * 8192
    assert decode.bytes == 2 * matrices + kv_cache(config, 1, 4096)
    assert decode.flops == 2 * matrices + 4 * 80 * 4096 * 64 * 128
    assert workloads_of("vit", configure("vit", "ti/16"), 1).keys() == {"train_step", "forward"}
