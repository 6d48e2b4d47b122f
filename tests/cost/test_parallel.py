"""Several devices against FSDP2's own code: it runs here on torch's fake process group, whose others are not there."""

from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from counted_bytes import CountedBytes
from pencil.cost.count import count
from pencil.cost.devices import DEVICES, device
from pencil.cost.fitting import USABLE, fitting
from pencil.cost.memory import train_memory
from pencil.cost.parallel import Plan, device_memory, handed, sent, units_of
from pencil.cost.profile import CostProfile, on_meta
from pencil.cost.scaling import COMPUTE, NETWORK_BYTES_PER_SECOND, scale
from pencil.device import sync_of
from pencil.families import FAMILIES, configure, family
from pencil.train.freezing import frozen_model
from pencil.train.loop.trainer import shard
from pencil.train.recompute import model_blocks, recompute_blocks
from pencil.train.settings import TrainConfig

CPU = torch.device("cpu")
GPT = dict(width=352, heads=11, hidden=499, vocab=509, context=127, depth=5)


@contextmanager
def among(devices):
    """A process among so many, of which only it exists."""
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@lru_cache
def gpt():
    """A small GPT: its record, config, counts and units."""
    record, config = family("gpt"), configure("gpt", **GPT)
    return record, config, count(record.create, record.cost, config), units_of(on_meta(record.create, config))


@pytest.mark.parametrize("name", FAMILIES)
def test_units_are_the_blocks_and_the_rest(name):
    config = configure(name, **dict(width=44, heads=11, depth=3, hidden=29))
    model = on_meta(family(name).create, config)
    units = units_of(model)
    assert sum(unit.times for unit in units if unit.gathers == 2) == len(model_blocks(model))
    assert sum(unit.times * unit.pieces(1) for unit in units) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "name, devices",
    [("gpt", 2), ("gpt", 7), ("gpt", 1024), ("dit", 13), ("seq2seq", 13), ("captioner", 3), ("reader", 5), ("vit", 64)],
)
def test_bytes_are_those_that_fsdp2_hands_to_its_collectives(name, devices):
    config, half = configure(name, **dict(width=44, heads=11, depth=3, hidden=29)), devices == 13
    with among(devices):
        model = family(name).create(config)
        units = units_of(model)
        shard(model, CPU, devices, half)
        inputs = model.example(2)
        with CountedBytes() as counted:
            for _ in range(3):
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    out = model(*inputs)
                out.float().sum().backward()
    plan = Plan("fsdp", devices, accumulate=3, dtype="bf16" if half else "fp32")
    assert counted.found == handed(units, plan)
    if name == "seq2seq":
        return
    # and by hand: a block's rows are dealt out, each parameter for itself, and gathered twice, the rest once
    padded = lambda parameters: sum(-(-len(p) // devices) * devices * p[0].numel() for p in parameters)  # noqa: E731
    model = family(name).create(config)
    blocks = [p for block in model_blocks(model) for p in block.parameters()]
    rest = [p for p in model.parameters() if not any(p is other for other in blocks)]
    assert counted.found["all-gather"] == 3 * ((2 if half else 4) * 2 * padded(blocks) + 4 * padded(rest))
    assert counted.found["reduce-scatter"] == 3 * 4 * (padded(blocks) + padded(rest))


@pytest.mark.parametrize("rows, recompute, devices, accumulate, sync", [
    (1, False, 1024, 1, "batch"), *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (1, False, 1, 1, "batch"), (3, False, 2, 1, "batch"), (3, True, 13, 1, "batch"), (3, True, 1, 1, "batch"),
        (1, False, 1024, 3, "update"), (3, True, 13, 2, "update"), (3, False, 2, 3, "batch"),
    ))
])  # fmt: skip
def test_memory_is_what_torchs_tracker_finds(rows, recompute, devices, accumulate, sync):
    record, config, counts, units = gpt()
    with among(devices):
        model = record.create(config)
        if recompute:
            recompute_blocks(model)
        shard(model, CPU, devices)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(rows, 127, dtype=torch.long)

        def step(tracker=None):
            for micro in range(accumulate):
                model.set_requires_gradient_sync(sync == "batch" or micro == accumulate - 1)
                if tracker is not None:
                    tracker.reset_mod_stats()  # it asks for it before each pass; the peak stays
                F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_external(tokens)
        with tracker:
            step(tracker)
        found = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    held = train_memory(record.cost, config, counts, rows, dtype="fp32").activations
    plan = Plan("fsdp", devices, accumulate, dtype="fp32", sync=sync)
    counted = device_memory(units, plan, held, recompute)
    assert counted.total == pytest.approx(found, rel=0.06)


def test_ddp_has_the_whole_model_on_every_device_and_sums_once_an_update():
    record, config, counts, units = gpt()
    held = train_memory(record.cost, config, counts, 3).activations
    parameters = sum(p.numel() for p in record.create(config).parameters())
    for accumulate in (1, 5):
        plan = Plan("ddp", 8, accumulate, "adamw", ema=True)
        memory = device_memory(units, plan, held)
        # gradients of the micro-batches before lie beside those that are summed
        assert memory.total == (20 + 4 * (accumulate > 1)) * parameters + held.peak
        assert handed(units, plan) == {"all-reduce": 4 * parameters}
        assert sent(handed(units, plan), 8) == 2 * 7 * 4 * parameters // 8
    assert not handed(units, Plan("ddp", 1))
    # one device gets its gradients while it gives back activations
    assert device_memory(units, Plan("ddp", 1), held).total < device_memory(units, Plan("ddp", 2), held).total


def test_pieces_shrink_with_the_devices_and_so_do_accumulated_gradients():
    record, config, counts, units = gpt()
    held = train_memory(record.cost, config, counts, 3).activations
    one, many = (device_memory(units, Plan("fsdp", n), held) for n in (1, 16))
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(one, name) == pytest.approx(16 * getattr(many, name), rel=0.01)
    again = device_memory(units, Plan("fsdp", 16, accumulate=2), held)
    assert 0 <= again.total - many.total <= many.gradients
    # with more devices than rows the fullest has one row of each
    assert device_memory(units, Plan("fsdp", 2048), held).weights == 4 * sum(
        unit.times * sum(p.shape[1] if len(p.shape) > 1 else 1 for p in unit.parameters) for unit in units
    )


def test_gradients_are_summed_once_an_update_where_whole_ones_have_room():
    record, config, counts, units = gpt()
    trained = sum(p.numel() for p in record.create(config).parameters())
    assert sync_of("auto", trained, 40 * trained) == "update"
    assert sync_of("auto", trained, 40 * trained - 1) == "batch"
    assert sync_of("update", trained, 1) == "update"
    held = train_memory(record.cost, config, counts, 3).activations
    often, once = (Plan("fsdp", 16, accumulate=5, sync=sync) for sync in ("batch", "update"))
    assert handed(units, often)["reduce-scatter"] == 5 * handed(units, once)["reduce-scatter"]
    assert handed(units, often)["all-gather"] == handed(units, once)["all-gather"]
    assert device_memory(units, once, held).gradients == 4 * trained
    more = device_memory(units, once, held).total - device_memory(units, often, held).total
    assert 0.5 * 4 * trained < more < 4 * trained


def test_muon_has_one_moment_and_sends_its_matrices_there_and_back():
    _, _, _, units = gpt()
    adamw, muon = (device_memory(units, Plan("fsdp", 4, optimizer=kind), None) for kind in ("adamw", "muon"))
    # of a block: W_QKV, W_O and two of the MLP
    matrices = 5 * (4 * 352**2 + 2 * 352 * 499)
    assert adamw.optimizer - muon.optimizer == 4 * 5 * (88 * 352 * 4 + 125 * 352 + 88 * 499)
    assert handed(units, Plan("fsdp", 4, optimizer="muon"))["all-to-all"] == 2 * 4 * matrices // 4


def test_what_is_frozen_has_no_gradient_and_is_not_reduced():
    record, config, _, whole = gpt()
    build = frozen_model(record.create, "tokens,blocks.[0-2].*")
    counts, units = count(build, record.cost, config, short=False), units_of(on_meta(build, config))
    plan = Plan("fsdp", 2)
    memory, all_trained = device_memory(units, plan, None), device_memory(whole, plan, None)
    assert memory.weights == all_trained.weights
    assert memory.gradients < 0.5 * all_trained.gradients
    found, all_found = handed(units, plan, counts.trained.share), handed(whole, plan)
    assert found["reduce-scatter"] < 0.5 * all_found["reduce-scatter"]
    assert found["all-gather"] < all_found["all-gather"]


def test_efficiency_is_bounded_by_what_can_be_sent_meanwhile():
    _, _, counts, units = gpt()
    h100 = device("h100")
    near, far = (scale(units, Plan("ddp", n), counts, None, 7, h100) for n in (8, 16))
    flops = 7 * (counts.forward.flops + counts.backward)
    assert near.compute == far.compute == flops / (COMPUTE * 989e12)
    assert near.communication == near.sent / 450e9
    assert far.communication == far.sent / NETWORK_BYTES_PER_SECOND
    least, most = far.efficiency
    assert least == pytest.approx(far.compute / (far.compute + far.communication))
    hidden = far.compute * 2 / 3
    assert most == pytest.approx(far.compute / (far.compute + max(0, far.communication - hidden)))
    given = scale(units, Plan("fsdp", 16), counts, None, 7, h100, bandwidth=1e15)
    assert given.efficiency[1] == 1
    assert scale(units, Plan("fsdp", 1), counts, None, 7, h100).efficiency == (1, 1)


def test_recomputation_costs_compute():
    _, _, counts, units = gpt()
    plain, again = (scale(units, Plan(), counts, None, 7, device("l4"), recompute=r).compute for r in (False, True))
    assert again > 1.2 * plain


def test_every_device_with_a_link_sends_no_faster_than_it_computes_from_memory():
    assert all(one.link < one.bandwidth for one in DEVICES.values())


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """It is counted once for all tests."""
    monkeypatch.setattr("pencil.cost.fitting.count", lambda *given: gpt()[2])


def fit(memory, devices=1, parallel="ddp", **train):
    record, config, counts, units = gpt()
    train = TrainConfig(parallel=parallel, **train)
    found = fitting(record.create, record.cost, config, train, memory, devices, parallel)
    if found is not None:
        sync = sync_of(found.sync, counts.trained.parameters, memory)
        plan = Plan(found.parallel, devices, found.accumulate, train.optimizer, sync=sync)
        held = train_memory(record.cost, config, counts, found.batch // devices, sharded=plan.sharded).activations
        assert device_memory(units, plan, held, found.recompute == "blocks").total == found.bytes <= USABLE * memory
        assert found.batch * found.accumulate == train.batch * train.accumulate
        assert found.batch % devices == 0
    return found


def test_what_fits_keeps_the_rows_of_an_update():
    roomy = fit(1e9, batch=60, accumulate=2)
    assert roomy.recompute == "none"
    assert roomy.batch < 60
    tight = fit(250e6, batch=60, accumulate=2)
    assert tight.batch < roomy.batch
    assert fit(1e6, batch=60) is None


def test_settings_that_did_not_fit_are_not_proposed_again():
    found = fit(1e15, batch=60)
    assert (found.batch, found.accumulate, found.recompute) == (30, 2, "none")
    assert found.words(TrainConfig(batch=60)) == "--train.batch 30 --train.accumulate 2"
    again = fit(1e15, batch=1)
    assert (again.batch, again.recompute) == (1, "blocks")
    assert again.words(TrainConfig(batch=1)) == "--train.recompute blocks"
    assert fit(1e15, batch=1, recompute="blocks") is None


def test_several_devices_divide_the_batch_and_may_need_fsdp():
    found = fit(1e9, devices=4, batch=120)
    assert found.parallel == "ddp"
    least = fit(1e15, devices=4, batch=4, recompute="blocks")
    assert least.parallel == "fsdp"
    assert least.words(TrainConfig(batch=4, recompute="blocks")) == "--train.parallel fsdp"
    assert least.bytes < fit(1e15, devices=4, batch=4).bytes
    whole = dict(parallel="fsdp", sync="update", batch=4, accumulate=3, recompute="blocks")
    assert fit(1e15, devices=4, **whole).words(TrainConfig(**whole), "fsdp") == "--train.sync batch"


def test_in_exact_mode_a_batch_that_cannot_be_cut_into_the_slots_is_not_proposed():
    record, config, counts, units = gpt()
    train, room = TrainConfig(batch=48, exact=True, slots=8), 1e15
    slots = lambda batch: 0 if batch % 8 else 8  # noqa: E731
    found = fitting(record.create, record.cost, config, train, room, 2, slots=slots)
    assert (found.batch, found.accumulate) == (24, 2)
    # each runs four of the eight slots, three rows at a time, and holds up to three sums beside the gradient
    held = train_memory(record.cost, config, counts, 3, cuda=True).activations
    gradient = 4 * counts.trained.parameters
    assert found.bytes == device_memory(units, Plan("ddp", 1, 2, train.optimizer), held).total + 3 * gradient
    assert fitting(record.create, record.cost, config, replace(train, batch=8), room, 2, slots=slots).batch == 8
    assert fitting(record.create, record.cost, config, replace(train, batch=8), room, 16, slots=slots) is None


def test_a_family_without_formulas_proposes_nothing():
    record, config, *_ = gpt()
    assert fitting(record.create, CostProfile(), config, TrainConfig(), 1e12) is None
