"""Training on several processes: what one process computes, within rounding; in exact mode to the bit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import training_cases
from safetensors.torch import load_file
from training_cases import SCRIPT, train

from albums import album, photos
from pencil.api.run_setup import prepare, train_config
from pencil.collectives.processes import World
from pencil.config import UserError, build
from pencil.cost.parallel import Plan, device_memory, units_of
from pencil.data.images import decoding
from pencil.families import family
from pencil.train.parallel.fsdp import build_sharded
from pencil.train.parallel.gradients import TreeSum, cut_rows, own_batch, own_rows, tree_sum
from pencil.train.settings import TrainConfig, check_processes, slots_of
from pencil.train.task import Request

FAMILIES = ("gpt", "vit", "captioner", "seq2seq", "reader", "dit")


@pytest.fixture
def on_processes(together, tmp_path):
    """Train each case on so many processes: (tensors, facts) of each rank, case by case."""

    def run(size, cases):
        out = tmp_path / f"out-{size}"
        out.mkdir(exist_ok=True)
        here = str(Path(training_cases.__file__).parent)
        together(size, SCRIPT, arguments=[here, out, json.dumps(cases)], timeout=600)
        return [
            [(load_file(f"{at}.safetensors"), json.loads(Path(f"{at}.json").read_text())) for at in ranks]
            for ranks in ([out / f"{number}-{rank}" for rank in range(size)] for number in range(len(cases)))
        ]

    return run


def assert_close(found, expected):
    """Weights, averages and moments of all ranks, losses and metrics, against those of one process."""
    tensors, facts = expected
    for own, said in found:
        assert own.keys() == tensors.keys()
        for name, tensor in tensors.items():
            off = float((own[name].double() - tensor.double()).norm() / tensor.double().norm().clamp(min=1e-6))
            assert off < 1e-4, (name, off)
        # the first evaluation is of the same weights: its parts are added in the same order
        assert said["first"] == facts["first"]
        assert said["losses"] == pytest.approx(facts["losses"], rel=1e-5)
        assert said["last"] == pytest.approx(facts["last"], rel=1e-3, abs=1e-3)


def compare(on_processes, cases):
    for case, found in zip(cases, on_processes(2, cases), strict=True):
        alone = {name: value for name, value in case.items() if name not in ("parallel", "sync")}
        assert_close(found, train(**alone))


def test_two_processes_train_as_one(on_processes, notes):
    text = str(notes)
    compare(on_processes, [
        dict(name="gpt", text=text, parallel="ddp", optimizer="adamw", accumulate=2),
        dict(name="gpt", text=text, parallel="fsdp", optimizer="muon", accumulate=2, recompute="blocks"),
        dict(name="captioner", text=text, parallel="fsdp", optimizer="adamw", steps=2),
        # the two processes have rows of unequal weights
        dict(name="vit", text=text, parallel="ddp", optimizer="adamw", accumulate=2, mixup=0.7, steps=2,
             class_weights=[0.1, 3.0, 1.0, 7.0, 0.3, 2.0, 5.0, 0.2, 1.5, 9.0]),
        # few masked tokens: at many steps one of the two processes has no target
        dict(name="reader", text=text, parallel="fsdp", optimizer="adamw", batch=2, mask_fraction=0.02, steps=7,
             model=dict(context=13)),
        dict(name="reader", text=text, parallel="ddp", optimizer="adamw", batch=2, mask_fraction=0.02, steps=7,
             model=dict(context=13)),
    ])  # fmt: skip


@pytest.mark.long
def test_fsdp_evaluates_and_shows_samples_with_one_whole_block_at_a_time(on_processes, notes):
    """Three batches for two processes; texts of other lengths on each; samples by one process alone."""
    cases = [
        dict(name="gpt", text=str(notes), eval_batches=3, model=dict(depth=3), dtype="bfloat16", fused=True),
        dict(name="seq2seq", text=str(notes), eval_batches=17),
    ]
    cases = [{**case, "parallel": "fsdp", "preview": True, "steps": 2} for case in cases]
    for case, ranks in zip(cases, on_processes(2, cases), strict=True):
        half = case.get("dtype") == "bfloat16"
        _, alone = train(**{**case, "parallel": "auto", "fused": False})
        for rank, (_, said) in enumerate(ranks):
            assert said["whole blocks"] == 1 or (rank == 1 and said["whole blocks"] == 0)  # which may have no batch
            if half:  # in one process the norms are in float32, and a preview, too
                assert said["first"]["val_loss"] == pytest.approx(alone["first"]["val_loss"], rel=1e-4)
                assert said["losses"] == pytest.approx(alone["losses"], rel=1e-3)
            else:
                assert said["first"] == alone["first"]
                assert said["preview"] == (alone["preview"] if rank == 0 else None)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", FAMILIES)
def test_all_families_train_on_two_processes_as_on_one(on_processes, notes, name, optimizer):
    compare(on_processes, [
        dict(name=name, text=str(notes), optimizer=optimizer, parallel=parallel, accumulate=accumulate, recompute=how)
        for parallel in ("ddp", "fsdp")
        for accumulate, how in ((2, "none"), (1, "blocks"))
    ] + [dict(name=name, text=str(notes), optimizer=optimizer, parallel="fsdp", accumulate=2, sync="batch")])  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("which", "parallel"), [("gpt", "ddp"), ("gpt", "fsdp"), ("seq2seq", "fsdp"), ("dit", "ddp"), ("dit", "fsdp")]
)
def test_a_compiled_model_trains_on_two_processes_as_on_one(on_processes, notes, which, parallel):
    case = dict(name=which, text=str(notes), optimizer="muon", parallel=parallel, recompute="blocks")
    (found,) = on_processes(2, [{**case, "compile": "on", "preview": True}])
    expected = train(**{**case, "parallel": "auto"})
    for own, facts in found:
        assert facts["losses"] == pytest.approx(expected[1]["losses"], rel=1e-4)
        for name, tensor in expected[0].items():
            assert float((own[name] - tensor).norm() / tensor.norm().clamp(min=1e-6)) < 1e-3, name


def test_one_process_with_fsdp_or_ddp_is_one_without(notes):
    expected = train("gpt", notes, optimizer="muon", accumulate=2)
    for parallel in ("ddp", "fsdp"):
        assert_close([train("gpt", notes, optimizer="muon", accumulate=2, parallel=parallel)], expected)


def test_ddp_holds_what_it_accumulates_beside_its_own_gradients(notes):
    made, seen = training_cases.make("gpt", notes, parallel="ddp", accumulate=2), []
    summing, finish = made.gradients.summing, made.gradients.finish

    def look():
        stored = [p.grad.untyped_storage() for p in made.model.parameters() if p.grad is not None]
        seen.append({storage.data_ptr(): storage.nbytes() for storage in stored})

    def summed(last):
        look()
        return summing(last)

    def finished(loss):
        look()
        return finish(loss)

    made.gradients.summing, made.gradients.finish = summed, finished
    with made.group:
        made.update()
    before, accumulated, held = seen
    assert not before
    assert not accumulated.keys() & held.keys()
    assert sum(accumulated.values()) == sum(held.values())
    units, plan = units_of(made.model), Plan("ddp", 2)
    once, twice = (device_memory(units, replace(plan, accumulate=n), None).total for n in (1, 2))
    assert twice - once == sum(accumulated.values())


def same_bits(on_processes, case):
    expected, facts = train(**case)
    for size in (2, 4):
        (found,) = on_processes(size, [case])
        for own, said in found:
            assert own.keys() == expected.keys()
            assert [name for name, t in expected.items() if not torch.equal(t, own[name])] == []
            assert said == json.loads(json.dumps(facts))
    return expected, facts


def test_exact_mode_has_the_same_bits_on_1_2_and_4_processes(on_processes, notes):
    case = dict(name="gpt", text=str(notes), exact=True, accumulate=2, model=dict(dropout=0.1))
    expected, _ = same_bits(on_processes, case)
    other, _ = train(**{**case, "exact": False})
    assert not torch.equal(other["norm.weight"], expected["norm.weight"])


@pytest.mark.long
def test_exact_mode_with_class_weights(on_processes, notes):
    weights = [0.1, 3.0, 1.0, 7.0, 0.3, 2.0, 5.0, 0.2, 1.5, 9.0]
    case = dict(name="vit", text=str(notes), exact=True, accumulate=2, mixup=0.7, class_weights=weights)
    same_bits(on_processes, case)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["gpt", "captioner", "dit"])
def test_exact_mode_of_other_families(on_processes, notes, name, optimizer):
    model = {} if name == "dit" else dict(dropout=0.1)
    same_bits(
        on_processes, dict(name=name, text=str(notes), exact=True, optimizer=optimizer, accumulate=2, model=model)
    )


def test_exact_mode_has_the_same_bits_with_any_number_of_threads(notes):
    """A process alone has all the cores of a machine, each of several its share."""
    case = dict(name="gpt", text=str(notes), exact=True, model=dict(width=192, context=61), steps=1)
    expected, _ = train(**case)
    torch.set_num_threads(2)
    try:
        found, _ = train(**case)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_exact_mode_computes_the_gradients_of_the_batch(notes):
    """Without dropout it differs from the usual training only by the order of sums."""
    assert_close([train("gpt", notes, exact=True)], train("gpt", notes))


def test_a_loss_that_is_not_finite_on_one_process_is_left_out_on_all(on_processes, notes):
    case = dict(name="gpt", text=str(notes), nonfinite="skip", poison=[1, 1])
    cases = [{**case, "parallel": "ddp"}, {**case, "parallel": "fsdp"}]
    expected = train("gpt", notes, nonfinite="skip", poison=[0, 1])
    for found in on_processes(2, cases):
        for own, facts in found:
            assert facts["left out"] == [[2, "loss is nan"]]
            for name, tensor in expected[0].items():
                off = float((own[name] - tensor).norm() / tensor.norm().clamp(min=1e-6))
                assert off < 1e-4, (name, off)


# without other processes


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("here", [World(0, 2, 0), World(2, 3, 2)])
def test_a_model_built_in_parts_has_the_weights_of_one_process(name, here, notes):
    record = family(name)
    post = dict(norm_position="post") if name == "seq2seq" else {}
    sizes = record.configure(record.default_preset, **{**training_cases.SIZES, **post})

    class Build:
        def build(self):
            return record.create(sizes)

    torch.manual_seed(7)
    expected, after = Build().build(), torch.rand(3)
    torch.manual_seed(7)
    model, values = build_sharded(Build(), here)
    assert torch.equal(torch.rand(3), after)
    assert values is not None
    assert any(p.is_meta for p in model.parameters())
    for key, parameter in expected.named_parameters():
        parts = [part for part in parameter.detach().chunk(here.size)] + [parameter[:0].detach()] * here.size
        assert torch.equal(values[key], parts[here.rank]), key


def test_a_model_initialised_in_another_way_is_built_whole():
    class Build:
        def build(self):
            model = torch.nn.Linear(5, 3)
            with torch.no_grad():
                model.weight.mul_(2)
            return model

    torch.manual_seed(7)
    expected = Build().build()
    torch.manual_seed(7)
    model, values = build_sharded(Build(), World(0, 2, 0))
    assert values is None
    assert torch.equal(model.weight, expected.weight)


@pytest.mark.parametrize(
    "line", ["linear.weight.sum().item()", "linear.register_buffer('b', torch.empty(7).normal_())"]
)
def test_a_model_that_looks_at_its_values_is_built_whole(line):
    class Build:
        def build(self):
            linear = torch.nn.Linear(5, 3)
            exec(line)
            return linear

    model, values = build_sharded(Build(), World(0, 2, 0))
    assert values is None
    assert not model.weight.is_meta


def test_slots_of_a_blended_batch_are_blended_as_the_whole(tmp_path):
    folder = photos(tmp_path / "photos", {"cat": 11, "dog": 13})
    task = image_task("vit", folder, mixup=0.3, exact=True)
    whole, size = task.batch(3, 1), task.train.batch
    for rank in range(4):
        rows = own_rows(size, World(rank, 4, rank))
        for found, expected in zip(task.batch(3, 1, rows), cut_rows(whole, rows, size), strict=True):
            assert torch.equal(found, expected)


def image_task(name, folder, **train):
    record, chosen = family(name), {**training_cases.TRAIN, "accumulate": 2, **train}
    config = train_config(record, record.default_preset, chosen)
    model = {**training_cases.SIZES, "image_size": "16"}
    return prepare(Request(record, str(folder), record.default_preset, model, chosen), config).task


@pytest.mark.parametrize(
    "name, train", [("vit", dict(mixup=0.3)), ("vit", {}), ("captioner", dict(word_dropout=0.4)), ("dit", {})]
)
def test_a_process_makes_its_rows_alone_and_they_are_those_of_the_batch(tmp_path, monkeypatch, name, train):
    if name == "captioner":
        folder = album(tmp_path / "album", [f"{'a very ' * n}small {n}" for n in (0, 1, 2, 3, 5, 7)] * 3)
    else:
        folder = photos(tmp_path / "photos", {"cat": 11, "dog": 13})
    augmented = dict(flip=True, crop=0.6, augment_ops=2)
    whole = image_task(name, folder, **augmented, **train).batch(3, 1)
    mixed = bool(train.get("mixup"))
    for rank in range(4):
        task, decoded = image_task(name, folder, **augmented, **train), []
        monkeypatch.setattr(
            "pencil.data.images.datasets.decode", lambda *a, found=decoded: found.append(1) or decoding.decode(*a)
        )
        own = own_batch(task, 3, 1, World(rank, 4, rank))
        assert 0 < len(decoded) <= 2 * (1 + mixed)
        rows = slice(2 * rank, 2 * rank + 2)
        for mine, all_ in zip(own, cut_rows(whole, rows, 8), strict=not mixed):
            assert torch.equal(mine, all_)
        if mixed:
            assert torch.equal(own[3], whole[0].flip(0)[rows])
            assert torch.equal(own[4], whole[1].flip(0)[rows])


def test_values_are_summed_by_a_binary_tree():
    values = [torch.tensor(v) for v in (1.0, 1e8, -1e8, 1.0, 3.0, 1e8, 7.0, -1e8)]
    a, b, c, d, e, f, g, h = values
    assert tree_sum(values) == ((a + b) + (c + d)) + ((e + f) + (g + h))
    tree = TreeSum()
    for value in values[:6]:
        tree.add(value)
    assert [count for count, _ in tree.sums] == [4, 2]


@pytest.mark.parametrize(
    "settings, size, sentence",
    [
        (dict(batch=12), 5, "train.batch 12 cannot be divided among 5 processes: 10 or 15 can"),
        (dict(batch=3), 4, "train.batch 3 cannot be divided among 4 processes: 4 can"),
        (dict(batch=12, exact=True), 3, "train.exact is for 1, 2, 4, 8, … processes, not 3"),
        (dict(batch=32, exact=True), 16, "train.exact has 8 slots in a batch, fewer than the 16 processes"),
        (dict(batch=8, exact=True, parallel="fsdp"), 2, "train.exact sums whole gradients"),
    ],
)
def test_a_number_of_processes_that_does_not_fit_is_refused(settings, size, sentence):
    with pytest.raises(UserError, match=sentence):
        check_processes(build(TrainConfig, settings), size)


def test_slots_follow_from_the_settings():
    assert [slots_of(build(TrainConfig, dict(batch=n, exact=True))) for n in (1, 6, 12, 24, 64)] == [1, 2, 4, 8, 8]
    assert slots_of(build(TrainConfig, dict(batch=64, exact=True, slots=32))) == 32
    assert build(TrainConfig, dict(exact=True)).deterministic
    for settings in (dict(slots=4), dict(batch=12, slots=8, exact=True), dict(batch=12, slots=3, exact=True)):
        with pytest.raises(UserError, match="train.slots"):
            build(TrainConfig, settings)
