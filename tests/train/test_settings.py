"""Training settings: the warm-up of short runs, and the names and values of versions before 0.7."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import call
from pencil.api.loading import open_run
from pencil.api.run_setup import new_run, settings_of, train_config
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build, upgraded
from pencil.families import FAMILIES, family
from pencil.runs.run import Run
from pencil.train.schedule import factor
from pencil.train.settings import TrainConfig, check_settings, fit_warmup

SIZES = dict(width=24, heads=3, depth=1, context=31)
COUNTS = ("steps", "batch", "accumulate", "eval_every", "eval_batches", "save_every")

# ---- refused values


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_of_zero_is_refused_unless_a_time_budget_decides_it(name):
    message = f"train.{name} must be at least 1, not "
    with pytest.raises(UserError, match=f"^{message}0$"):
        TrainConfig(**{name: 0})
    with pytest.raises(UserError, match=f"^{message}-1$"):
        TrainConfig(minutes=3, **{name: -1})
    if name in ("steps", "eval_every", "save_every"):
        assert getattr(TrainConfig(minutes=3, **{name: 0}), name) == 0
    else:
        with pytest.raises(UserError, match=f"^{message}0$"):
            TrainConfig(minutes=3, **{name: 0})


@pytest.mark.parametrize("minutes", [0, -1, math.nan])
def test_a_time_budget_must_be_above_0(minutes):
    with pytest.raises(UserError, match=f"^train.minutes must be above 0, not {minutes}$"):
        TrainConfig(minutes=minutes)


@pytest.mark.parametrize("parallel, accumulate", [("fsdp", 1), ("ddp", 3), ("ddp", 1)])
def test_when_gradients_are_summed_is_refused_where_it_changes_nothing(parallel, accumulate):
    with pytest.raises(UserError, match="^train.sync batch has no effect without fsdp and .*: use auto$"):
        TrainConfig(sync="batch", parallel=parallel, accumulate=accumulate)
    assert TrainConfig(sync="batch", parallel="fsdp", accumulate=3).sync == "batch"


# ---- warm-up


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_the_warm_up_of_a_preset_is_shortened_to_a_fifth_of_the_steps(steps, warmup):
    config, notes = fit_warmup(TrainConfig(steps=steps, warmup=warmup), chosen=False)
    assert config == TrainConfig(steps=steps, warmup=min(warmup, steps // 5))
    assert len(notes) == (warmup > steps // 5)


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_a_warm_up_the_user_set_is_kept_or_refused(steps, warmup):
    config = TrainConfig(steps=steps, warmup=warmup)
    if warmup <= steps:
        assert fit_warmup(config, chosen=True) == (config, [])
    else:
        with pytest.raises(UserError, match=f"train.warmup {warmup} exceeds train.steps {steps}"):
            fit_warmup(config, chosen=True)


def test_the_warm_up_of_the_inverse_square_root_sets_its_scale_and_is_not_shortened():
    config = TrainConfig(steps=11, warmup=4000, schedule="inverse-sqrt")
    assert fit_warmup(config, chosen=False) == (config, [])


def test_a_short_run_with_a_preset_announces_its_shorter_warm_up(tmp_path, notes):
    announced = []
    run, task, config = new_run(
        TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=60)),
        out=tmp_path / "a",
        notify=announced.append,
    )
    assert config.warmup == 12
    assert announced[0] == f"Writing {tmp_path / 'a'}."
    assert announced[-1] == "warm-up shortened from 100 to 12 steps, a fifth of the run; --train.warmup sets another"
    assert run.config["train"]["warmup"] == 12
    assert task.train == config
    assert max(factor(step, config) for step in range(60)) == 1
    assert settings_of(TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=60)))[1] == config


def test_a_warm_up_on_the_command_line_is_used_as_it_is(tmp_path, notes):
    announced = []
    train = dict(steps="60", warmup="50")  # words, as from the command line
    _, _, config = new_run(
        TrainingRequest("gpt", str(notes), model=SIZES, train=train), out=tmp_path / "a", notify=announced.append
    )
    assert config.warmup == 50
    assert not [line for line in announced if "warm-up" in line]
    assert settings_of(TrainingRequest("gpt", str(notes), model=SIZES, train=train))[1].warmup == 50
    with pytest.raises(UserError, match="train.warmup 61 exceeds train.steps 60"):
        new_run(TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=60, warmup=61)), out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_the_data_shortens_a_run_and_with_it_the_warm_up(tmp_path):
    """The steps may come from the data: the warm-up is fitted to those."""
    _, task, config = new_run(TrainingRequest("vit", "digits", train=dict(device="cpu")), out=tmp_path / "a")
    assert config.steps == task.data.training_defaults["steps"]
    assert config.warmup == min(TrainConfig().warmup, config.steps // 5)


@pytest.mark.parametrize(
    "schedule, old, new", [("cosine", 100, 12), ("wsd", 7, 7), ("constant", 100, 12), ("paper", 100, 100)]
)
def test_the_warm_up_of_an_older_run_is_read_as_it_was_trained(schedule, old, new):
    """Before 0.7 the warm-up was at most a fifth of the steps, whatever was set."""
    values = dict(steps=60, warmup=old, schedule=schedule)
    config = build(TrainConfig, upgraded(TrainConfig, values), "train.")
    assert config.warmup == new
    assert values["warmup"] == old  # the table itself is not changed
    assert config.schedule == {"paper": "inverse-sqrt"}.get(schedule, schedule)
    for step in range(60):
        assert factor(step, config) == pytest.approx(old_factor(step, 60, old, schedule))


def old_factor(step, steps, warmup, schedule):
    """The schedules of 0.6, in its words."""
    if schedule == "paper":
        return min((step + 1) / max(1, warmup), math.sqrt(max(1, warmup) / (step + 1)))
    warmup = min(warmup, steps // 5)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    along = (step - warmup) / max(1, steps - warmup)
    if schedule == "cosine":
        return (1 + math.cos(math.pi * min(1.0, along))) / 2
    return min(1.0, (steps - step) / max(1, steps // 5)) if schedule == "wsd" else 1.0


def test_an_upgraded_run_is_not_upgraded_again(tmp_path, notes):
    """A run of today keeps the warm-up the user set, however long."""
    new_run(TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=60, warmup=50)), out=tmp_path / "a")
    assert open_run(tmp_path / "a").config["train"]["warmup"] == 50
    path = tmp_path / "a" / "config.toml"
    path.write_text(path.read_text().replace('settings = "0.7"\n', "").replace('pencil = "0.7', 'pencil = "0.6'))
    opened = open_run(tmp_path / "a")
    assert opened.config["train"]["warmup"] == 12
    opened.write_config(opened.config)
    assert open_run(tmp_path / "a").config["train"]["warmup"] == 12
    assert Run.open(tmp_path / "a").config["run"]["settings"] == "0.7"


@pytest.mark.usefixtures("fast_training")
def test_resuming_keeps_the_warm_up_and_refuses_steps_it_exceeds(tmp_path, notes):
    short = dict(batch=3, eval_batches=1, eval_every=9)
    new_run(
        TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=2, schedule="inverse-sqrt", **short)),
        out=tmp_path / "a",
    )
    call("resume", tmp_path / "a")  # with the warm-up of the preset, longer than the run
    assert open_run(tmp_path / "a").config["train"]["warmup"] == 100
    new_run(
        TrainingRequest("gpt", str(notes), model=SIZES, train=dict(steps=60, warmup=50, **short)), out=tmp_path / "b"
    )
    refused = call("resume", tmp_path / "b", "--train.steps", "40", code=2).stderr
    assert "train.warmup 50 exceeds train.steps 40" in refused
    refused = call("resume", tmp_path / "b", "--train.warmup", "61", code=2).stderr
    assert "train.warmup 61 exceeds train.steps 60" in refused


# ---- names and values before 0.7

KINDS = {**{f"model of {name}": record.config for name, record in FAMILIES.items()}, "train": TrainConfig}
NAMES = [(where, old, new) for where, kind in KINDS.items() for old, new in kind.RENAMED.items()]
VALUES = [(where, *key, new) for where, kind in KINDS.items() for key, new in kind.RENAMED_VALUES.items()]


def settings(where):
    return {field.name for field in fields(KINDS[where])}


@pytest.mark.parametrize("where, old, new", NAMES)
def test_an_old_name_is_refused_and_upgraded(where, old, new):
    prefix = f"{where.split()[0]}."
    assert old not in settings(where)
    with pytest.raises(UserError) as refused:
        build(KINDS[where], {old: 1}, prefix)
    assert str(refused.value).startswith(f"{prefix}{old} is not a setting")
    assert upgraded(KINDS[where], {old: 7})[new] == 7


@pytest.mark.parametrize("where, name, old, new", VALUES)
def test_an_old_value_is_refused_and_upgraded(where, name, old, new):
    prefix = f"{where.split()[0]}."
    with pytest.raises(UserError) as refused:
        build(KINDS[where], {name: old}, prefix)
    if name in settings(where):
        assert f"{prefix}{name} must be one of " in str(refused.value)
        assert new in str(refused.value)
        assert getattr(build(KINDS[where], {name: new}, prefix), name) == new
        assert upgraded(KINDS[where], {name: old})[name] == new
    else:
        assert f"{prefix}{name} is not a setting" in str(refused.value)


def test_every_model_and_the_training_have_old_names():
    assert {where for where, *_ in NAMES} == set(KINDS)
    assert {where for where, *_ in VALUES} == set(KINDS)


def test_an_old_name_and_its_old_value_are_upgraded_together():
    values = {"picture_positions": "sincos-halves", "types": False, "positions": "learned"}
    assert upgraded(family("captioner").config, values) == {
        "image_positions": "sinusoidal-halves", "type_embeddings": False, "positions": "learned",
    }  # fmt: skip


def test_the_dropout_of_an_older_vit_was_of_activations_and_whole_keys():
    config = build(family("vit").config, upgraded(family("vit").config, {"dropout": 0.2}))
    assert (config.dropout, config.attention_dropout, config.key_dropout) == (0.2, 0.0, 0.2)
    plain = build(family("vit").config, upgraded(family("vit").config, {}))
    assert (plain.dropout, plain.attention_dropout, plain.key_dropout) == (0.0, 0.0, 0.0)


# ---- settings of some families only


def test_the_masked_fraction_of_a_reader_has_its_own_name():
    with pytest.raises(UserError, match="^train.word_dropout is now called train.mask_fraction for a reader$"):
        train_config(family("reader"), "nano", {"word_dropout": 0.2})
    assert train_config(family("reader"), "nano", {"mask_fraction": 0.2}).mask_fraction == 0.2
    assert train_config(family("captioner"), "nano", {"word_dropout": 0.2}).word_dropout == 0.2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_setting_without_effect_on_a_family_is_refused(name):
    record = family(name)
    values = dict(flip=True, crop=0.5, augment_ops=1, mixup=0.4, word_dropout=0.1, mask_fraction=0.1,
                  condition_dropout=0.1, label_smoothing=0.1)  # fmt: skip
    for setting, value in values.items():
        config = TrainConfig(**{setting: value})
        if setting in record.train_settings:
            check_settings(config, record.train_settings, name)
        else:
            with pytest.raises(UserError, match=f"train.{setting} (has no effect on a {name}|is now called)"):
                check_settings(config, record.train_settings, name)
