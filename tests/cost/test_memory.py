"""Bytes against what is really held: tensors kept for the backward pass, optimizers' states, caches; and seed 002's."""

import pytest
import torch
import torch.nn.functional as F

from pencil.cost.devices import DEVICES, Work, device, works
from pencil.cost.memory import cache, shared, training
from pencil.models import configure, create
from pencil.train.optim import make_optimizers, state_tensors
from pencil.train.settings import TrainConfig

_SIZES = dict(width=352, heads=11, depth=2, hidden=499, dropout=0.0)
_TEXT = dict(vocab=509, context=127)
_PICTURE = dict(image_size=(77, 65), patch=(7, 5), channels=3)


def kept(family, config, batch):
    """Bytes of all storages that autograd keeps, but for the parameters and the inputs."""
    model = create(family, config).train()
    given = model.example(batch)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *given)}
    held = {}

    def pack(t):
        place = t.untyped_storage()
        if place.data_ptr() not in own:
            held[place.data_ptr()] = (place.nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        said = model(*given)
        if family == "dit":
            loss = F.mse_loss(said, torch.zeros_like(said))
        else:
            said = said.flatten(0, -2)
            loss = F.cross_entropy(said, torch.zeros(len(said), dtype=torch.long))
    assert loss.requires_grad
    return sum(size for size, _ in held.values())


@pytest.mark.parametrize("family, values", [
    ("gpt", _TEXT | dict(positions="learned", bias=True)),
    ("gpt", _TEXT | dict(activation="swiglu", kv_heads=1, tied=False)),
    ("gpt", _TEXT | dict(activation="relu")),
    ("vit", _PICTURE | dict(classes=13)),
    ("reader", _TEXT | dict(trunk="post", embed_norm=True)),
    ("reader", _TEXT | dict(classes=13)),
    ("seq2seq", _TEXT | dict(source_context=101)),
    ("dit", _PICTURE | dict(classes=13)),
    ("dit", _PICTURE | dict(vocab=13, context=31)),
    ("dit", dict(image_size=(28, 20), patch=(7, 5), frames=10, classes=13, attention="factored", ada="plain",
                 positions="rope")),
])  # fmt: skip
def test_what_is_kept_in_float32_is_what_autograd_keeps(family, values):
    config = configure(family, **_SIZES | values)
    assert training(family, config, 3, dtype="fp32").kept == pytest.approx(kept(family, config, 3), rel=0.01)


@pytest.mark.parametrize("family", ["gpt", "dit", "seq2seq"])
def test_what_the_optimizers_hold_is_what_is_said(family):
    config = configure(family, **dict(width=44, heads=11, depth=2, hidden=29, dropout=0.0))
    said = training(family, config, 1)
    for name, bytes_said in (("adamw", said.adamw), ("muon", said.muon)):
        model = create(family, config)
        optimizers = make_optimizers(model, TrainConfig(optimizer=name))
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for optimizer in optimizers.values():
            optimizer.step()
        held = {n: t for n, t in state_tensors(model, optimizers).items() if not n.endswith(".step")}
        assert sum(t.nbytes for t in held.values()) == bytes_said
        assert sum(p.nbytes for p in model.parameters()) == said.weights == said.gradients


@pytest.mark.parametrize("heads", [12, 4, 1])
def test_a_cache_is_as_large_as_said(heads):
    values = dict(width=84, heads=12, depth=3, hidden=29, positions="learned")
    gpt = configure("gpt", **values, kv_heads=heads, context=13)
    captioner = configure("captioner", **values, kv_heads=heads, context=13)
    for family, config in (("gpt", gpt), ("captioner", captioner)):
        made = create(family, config).new_cache(5, 11)
        assert cache(config, 5, made.length, "fp32") == made.store.nbytes
    assert cache(gpt, 5, 11, "bf16") * 2 == cache(gpt, 5, 11, "fp32")


def test_ways_to_share_heads():
    assert shared(configure("gpt", "llama2-70b")) == {"full": 64, "grouped": 8, "multi-query": 1}
    assert shared(configure("gpt", "gpt2")) == {"full": 12, "grouped": 4, "multi-query": 1}
    assert shared(configure("gpt", width=22, heads=11)) == {"full": 11, "multi-query": 1}
    assert shared(configure("gpt", width=22, heads=1)) == {"full": 1}


def test_seed_002s_cache_in_its_true_units():
    """It prints ≈10 GB and ≈312 GB for LLaMA-2 70B: these are GiB, and of 64 key-value heads, where the model has 8."""
    config = configure("gpt", "llama2-70b")
    full, own = cache(config, 1, 4096, heads=64), cache(config, 1, 4096)
    assert full == 4 * 4096 * 8192 * 80 == 10_737_418_240 == 10 * 2**30
    assert own == 1_342_177_280 == 1.25 * 2**30
    assert (cache(config, 1, 1, heads=64), cache(config, 1, 1)) == (2_621_440, 327_680)
    assert cache(config, 1, 128_000, heads=64) == 312.5 * 2**30 == 335_544_320_000
    assert cache(config, 1, 131_072, heads=64) == 320 * 2**30
    assert cache(config, 1, 131_072) == 40 * 2**30
    weights = training("gpt", config, 1).weights // 2
    assert weights == 2 * 68_976_648_192
    assert (round(weights / 2_621_440), round(weights / 327_680, -3)) == (52_625, 421_000)


def test_checkpointing_saves_where_blocks_are_many():
    config = configure("gpt", "gpt2-xl")
    said = training("gpt", config, 8, 1024)
    assert said.checkpointed < said.peak / 3
    # it cannot keep less than the input of every block, and the loss's three numbers a word
    assert said.checkpointed > 8 * 1024 * 4 * (48 * 1600 + 3 * 50257)


def test_less_precision_keeps_less_of_long_texts():
    config = configure("gpt", "gpt2")
    assert training("gpt", config, 8, dtype="bf16").kept < training("gpt", config, 8, dtype="fp32").kept


def test_the_roofline_is_the_longer_of_two_times():
    h200 = device("H200")
    assert h200 is DEVICES["h200"]
    counting, moving = Work(989 * 10**12, 48 * 10**8, 7), Work(989 * 10**9, 48 * 10**11, 7)
    assert counting.seconds(h200, "bf16") == 1
    assert counting.bound(h200, "bf16") == "arithmetic"
    assert moving.seconds(h200, "bf16") == 1
    assert moving.bound(h200, "bf16") == "memory"
    assert counting.seconds(h200, "fp32") == pytest.approx(989 / 67)
    assert moving.intensity == pytest.approx(989 / 4800)


def test_a_training_step_moves_one_moment_less_where_muon_works():
    config = configure("vit", "b/16")
    # 12 blocks of 4·768² and 2·768·3072; the other numbers of 86,567,656 are tables, norms, biases and both ends
    inside, rest = 84_934_656, 1_633_000
    kept = training("vit", config, 3).kept
    muon, adamw = (works("vit", config, 3, optimizer=name)["training"] for name in ("muon", "adamw"))
    assert muon.bytes - 2 * kept == 32 * inside + 40 * rest == 2_783_228_992
    assert adamw.bytes - 2 * kept == 40 * (inside + rest) == 3_462_706_240
    assert muon.flops == adamw.flops


def test_reading_a_prompt_asks_the_head_for_the_last_token_only():
    reading = works("gpt", configure("gpt", "gpt2"), 3, 1000)["reading"]
    # 12 blocks of 12·768², and 4·n·D a token and block for the scores and what they weigh
    assert reading.flops == 3000 * (2 * 12 * 12 * 768**2 + 12 * 4 * 1000 * 768) + 3 * 2 * 50257 * 768


def test_writing_reads_every_matrix_and_the_cache_for_one_token():
    config = configure("gpt", "llama2-70b")
    writing = works("gpt", config, 1, 4096)["writing"]
    # the table of words is not multiplied with: one row of it is looked up
    matrices = 68_976_648_192 - 32000 * 8192 - 161 * 8192
    assert writing.bytes == 2 * matrices + cache(config, 1, 4096)
    assert writing.flops == 2 * matrices + 4 * 80 * 4096 * 64 * 128
    assert "writing" not in works("vit", configure("vit", "b/16"), 1)
