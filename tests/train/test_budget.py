"""A time budget: the steps are planned again while training, by a clock that counts from the start of the command.

The clock is injected: a machine on which everything takes so many seconds, more at times.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_loop import trainer

from conftest import TINY, call
from pencil.api import fit as own_task
from pencil.api import train as train_run
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.cli import launch
from pencil.cli.main import main
from pencil.families import FAMILIES, family
from pencil.progress import track
from pencil.runs.run import Run
from pencil.train.loop import checkpoint, time_budget
from pencil.train.loop import trainer as loop
from pencil.train.loop.report import Metrics
from pencil.train.loop.time_budget import Budget, Pace, plans_of, with_plans
from pencil.train.schedule import factor, step_of_first_plan
from pencil.train.settings import TrainConfig
from training import Killed, bits, interrupt_after, kill_after

UNDECIDED = dict(minutes=1.0, steps=0, eval_every=0, save_every=0, warmup=5, eval_batches=1)
START = 1009.0  # what the clock says when the command begins
MACHINES = {
    "steady": lambda t: 1.0,
    "slow at first": lambda t: 5.0 if t < 13 else 1.0,
    "slow in the end": lambda t: 4.0 if t > 37 else 1.0,
    "slower and slower": lambda t: 1 + t / 19,
    "faster and faster": lambda t: 5 / (1 + t / 11),
    "loaded by turns": lambda t: 3.0 if int(t / 7) % 2 else 1.0,
}


class Machine:
    """A clock, and what takes how long by it: an update, an evaluation, the rest; `slow` is how much more at a time."""

    def __init__(self, slow, update=0.31, evaluation=0.7, rest=0.5, spikes=0.0):
        self.now, self.slow, self.spikes, self.random = START, slow, spikes, random.Random(7)
        self.update, self.evaluation, self.rest = update, evaluation, rest

    def __call__(self):
        return self.now

    def work(self, seconds):
        spike = 10 if self.random.random() < self.spikes else 1
        self.now += seconds * self.slow(self.now - START) * self.random.uniform(0.95, 1.05) * spike

    @property
    def used(self):
        return self.now - START


@pytest.fixture
def at(monkeypatch):
    """Let a trainer run on a machine; without `compute` nothing is trained and written, and it only takes its time."""

    def run(machine, made, compute=True):
        update, evaluate, save = made.update, made.task.evaluate, made.checkpointer.save

        def timed_update():
            machine.work(machine.update)
            if compute:
                return update()
            made.state.step += 1
            return 5

        def timed_evaluation(model, batches):
            for _ in track(range(7)):
                machine.work(machine.evaluation / 7)
            return evaluate(model, batches) if compute else {"val_loss": 2.0}

        def timed_save():
            machine.work(machine.rest / 2)
            save()

        if not compute:
            made.checkpointer._start_saving = made._write_config = lambda: None
            made.checkpointer.write_weights = lambda facts: None
        made.update, made.task.evaluate, made.checkpointer.save = timed_update, timed_evaluation, timed_save
        monkeypatch.setattr(loop, "plot_losses", lambda run: machine.work(machine.rest / 2))
        monkeypatch.setattr(time_budget, "clock", machine)
        made.began = START
        return made

    return run


def whole_time(config, budget):
    """What a training takes, step by step."""
    total = budget.save + budget.plot
    for step in range(1, config.steps + 1):
        total += budget.update
        total += budget.evaluation * (step % config.eval_every == 0 or step == config.steps)
    return total


@pytest.mark.parametrize("chosen", [{}, {"eval_every": 7}, {"save_every": 11}, {"eval_every": 13, "save_every": 5}])
def test_the_steps_of_a_plan_take_as_long_as_the_budget(chosen, monkeypatch):
    rng = random.Random(3)
    for _ in range(13):
        monkeypatch.setattr(time_budget, "clock", lambda: START)
        budget = Budget(rng.uniform(1, 10), START)
        budget.updates, budget.busy, budget.plot = 3, rng.uniform(0.03, 1.5), rng.uniform(0, 0.5)
        budget.count_evaluation(rng.uniform(0.0, 3.0), rng.uniform(0.0, 0.5))
        config = TrainConfig(**{**UNDECIDED, "minutes": budget.minutes, **chosen})
        plan = budget.plan(0, config, [name for name in ("eval_every", "save_every") if name not in chosen])
        found = replace(config, **{name: value for name, value in plan.items() if name != "step"})
        one = budget.update + budget.evaluation
        assert 0.99 * budget.seconds - one <= whole_time(found, budget) <= 0.99 * budget.seconds + 1e-6
        assert budget.need(0, found.steps, found.eval_every) == pytest.approx(whole_time(found, budget))
        assert {name: getattr(found, name) for name in chosen} == chosen
        if "eval_every" not in chosen:
            evaluations = -(-found.steps // found.eval_every)
            assert evaluations == 1 or (
                evaluations <= 10 and evaluations * budget.evaluation <= 0.1 * budget.seconds + 1e-6
            )


def test_the_time_left_counts_what_is_still_to_come():
    pace, config = Pace(2, 6.0, 1, 5.0, 7.0), TrainConfig(steps=23, eval_every=5, save_every=10)
    # evaluated at 15, 20 and 23, saved at 20 and 23
    assert pace.left(12, config) == 11 * 3 + 3 * 5 + 2 * 7


@pytest.mark.parametrize(
    "update, evaluation",
    [(0.53, 0.7), *(pytest.param(*each, marks=pytest.mark.long) for each in ((0.07, 0.1), (0.31, 5.0), (1.9, 1.1)))],
)
@pytest.mark.usefixtures("fast_training")
def test_the_whole_command_takes_its_time_on_any_machine(tmp_path, notes, at, update, evaluation):
    long = (update, evaluation) != (0.53, 0.7)
    for machine, slow in list(MACHINES.items())[:: 1 if long else 2]:
        clock = Machine(slow, update, evaluation)
        made = at(clock, trainer(tmp_path / machine, notes, **UNDECIDED), compute=False)
        clock.work(5.0)  # importing, tokenizing
        outcome = made.train()
        steady = machine in ("steady", "slow at first")
        least, most = (0.9, 1.02) if steady else (0.7, 1.3)
        assert least * 60 <= clock.used <= most * 60, machine
        assert outcome.finished or (evaluation == 5.0 and not steady)
        assert outcome.step == made.config.steps == made.state.plans[-1]["steps"] > 5
        assert outcome.used == f"{clock.used:.0f} of 60 s used"
        if steady:  # no sudden stop: the rate has decayed
            assert factor(made.step, made.config, made.state.plans) < 1e-9


@pytest.mark.usefixtures("fast_training")
def test_the_time_is_kept_on_a_machine_with_spikes(tmp_path, notes, at):
    clock = Machine(MACHINES["steady"], update=0.19, spikes=0.03)
    made = at(clock, trainer(tmp_path / "a", notes, **UNDECIDED), compute=False)
    assert made.train().finished
    assert 0.8 * 60 <= clock.used <= 1.3 * 60
    assert 2 < len(made.state.plans) <= 50


@pytest.mark.usefixtures("fast_training")
def test_an_evaluation_far_beyond_the_time_is_left_out_and_made_by_resume(tmp_path, notes, at, capsys):
    clock = Machine(lambda t: 8.0 if t > 50 else 1.0, update=2.3, evaluation=6.0)
    made = at(clock, trainer(tmp_path / "a", notes, **UNDECIDED))
    outcome = made.train()
    assert not outcome.finished
    assert clock.used <= 1.3 * 60
    assert f"the time is up: the evaluation of step {made.step} is left out" in capsys.readouterr().err
    again = trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **{**UNDECIDED, **decided(tmp_path / "a")})
    at(clock, again).began = clock.now
    assert again.train().finished
    assert again.step == made.step


def decided(folder):
    """What a run has recorded of its steps."""
    return {name: Run.open(folder).config["train"][name] for name in ("steps", "eval_every", "save_every", "warmup")}


def following(folder, notes, plans, **settings):
    """A run of which these plans are recorded before its first step."""
    first = {name: value for name, value in plans[0].items() if name != "step"}
    made = trainer(folder, notes, **{**UNDECIDED, **settings, **first})
    made.run.write_config(with_plans(made.run.config, plans))
    return made


@pytest.mark.parametrize(
    "end, cut, save_every",
    [
        (kill_after, 17, 0),
        pytest.param(interrupt_after, 13, 0, marks=pytest.mark.long),
        pytest.param(kill_after, 11, 100, marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("fast_training")
def test_a_run_taken_up_again_follows_its_plans_to_the_same_bits(
    tmp_path, notes, at, monkeypatch, end, cut, save_every
):
    """Where it was interrupted all time counts; where it was killed, what was not saved is made again as it was."""
    folder, clock = tmp_path / "cut", Machine(lambda t: 1 + t / 30, update=1.1, evaluation=1.3)
    first = end(at(clock, trainer(folder, notes, **{**UNDECIDED, "save_every": save_every})), cut)
    if end is kill_after:
        with pytest.raises(Killed):
            first.train()
    else:
        assert not first.train().finished
    recorded = plans_of(Run.open(folder).config)
    assert len(recorded) > 1
    saved = checkpoint.saved_steps(folder)
    assert bool(saved) == (not save_every)
    spent = checkpoint.read(folder, saved[-1]).state["budget"]["used"] if saved else 0.0
    again = trainer(folder, notes, run=Run.open(folder), **{**UNDECIDED, **decided(folder)})
    at(clock, again).began = begins = clock.now
    assert again.train().finished
    plans = plans_of(Run.open(folder).config)
    assert plans[: len(recorded)] == recorded
    assert len(plans) > len(recorded)
    assert again.state.plans == plans
    assert 0.8 * 60 <= spent + clock.now - begins <= 1.3 * 60
    state = json.loads((checkpoint.folder_of(folder, again.step) / "state.json").read_text())
    assert state["plans"] == plans
    now = factor(again.step - 1, again.config, plans)
    assert now != factor(again.step - 1, again.config)
    groups = [group for optimizer in again.optimizers.values() for group in optimizer.param_groups]
    assert [group["lr"] for group in groups] == [group["peak"] * now for group in groups]

    chosen = {"save_every": save_every} if save_every else {}
    whole = following(tmp_path / "whole", notes, plans, warmup=decided(folder)["warmup"], **chosen)
    monkeypatch.setattr(Budget, "due", lambda *_: False)  # it only follows
    at(Machine(MACHINES["steady"], 1.1), whole).train()
    assert whole.state.plans == plans
    assert bits(tmp_path / "whole", again.step) == bits(folder, again.step)


@pytest.mark.parametrize("more", [{}, {"lr": 0.0007}])
@pytest.mark.usefixtures("fast_training")
def test_what_is_chosen_when_a_budget_goes_on_stays_chosen(tmp_path, notes, at, more):
    """Also beside another change, which is recorded first; and after a kill, with the plans of an older checkpoint."""
    folder, clock = tmp_path / "a", Machine(lambda t: 1 + t / 30, update=1.1, evaluation=1.3)

    def go_on(cut=None, **chosen):
        kept = {"lr": Run.open(folder).config["train"]["lr"]} if (folder / "config.toml").exists() else {}
        run = Run.open(folder) if kept else None
        made = trainer(folder, notes, run=run, **{**UNDECIDED, **(decided(folder) if kept else {}), **kept, **chosen})
        at(clock, made).began = clock.now
        if cut is None:
            assert made.train().finished
        else:
            with pytest.raises(Killed):
                kill_after(made, cut).train()
        return made

    go_on(13)
    assert Run.open(folder).config["train"]["eval_every"] != 3
    saved = checkpoint.saved_steps(folder)[-1]
    second = go_on(saved + 1, eval_every=3, save_every=1009, **more)
    assert second.config.eval_every == 3
    recorded = plans_of(Run.open(folder).config)
    last = go_on()
    assert (last.config.eval_every, last.config.save_every) == (3, 1009)
    assert plans_of(Run.open(folder).config)[: len(recorded)] == recorded
    steps = [line["step"] for line in Metrics.read(folder) if "val_loss" in line and line["step"] > saved]
    assert [step for step in steps if step % 3] in ([], [last.step])


@pytest.mark.usefixtures("fast_training")
def test_an_evaluation_that_writes_no_weights_does_not_forget_how_long_a_checkpoint_takes(tmp_path, notes, at):
    clock, folder = Machine(MACHINES["steady"], update=1.1), tmp_path / "a"

    def made(**settings):
        made = trainer(folder, notes, **{**UNDECIDED, **settings})
        write = made.checkpointer.write_weights
        made.task.evaluate = lambda *_: {"val_loss": 2.0 + made.step}  # never better than at first
        made.checkpointer.write_weights = lambda facts: (clock.work(0.3), write(facts))
        at(clock, made).began = clock.now
        return made

    with pytest.raises(Killed):
        kill_after(made(), 23).train()
    again = made(run=Run.open(folder), **decided(folder))
    assert again.train().finished
    assert again.state.budget.save == pytest.approx(time_budget.CHECKPOINT_PER_WEIGHTS * 0.3, rel=0.1)


@pytest.mark.usefixtures("fast_training")
def test_one_plan_is_a_run_with_so_many_steps(tmp_path, notes, at):
    clock = Machine(MACHINES["steady"], update=4.9)
    made = at(clock, trainer(tmp_path / "budget", notes, **UNDECIDED))
    made.train()
    assert len(made.state.plans) == 1
    assert f"{made.step} steps in a budget of 1 minute" in (tmp_path / "budget" / "README.md").read_text()
    trainer(tmp_path / "plain", notes, eval_batches=1, **decided(tmp_path / "budget")).train()
    assert bits(tmp_path / "budget", made.step) == bits(tmp_path / "plain", made.step)


@pytest.mark.usefixtures("fast_training")
def test_a_budget_that_an_older_version_decided_stays_as_it_is(tmp_path, notes, at):
    at(Machine(MACHINES["steady"], update=90.0), trainer(tmp_path / "old", notes, minutes=1.0)).train()
    trainer(tmp_path / "plain", notes).train()
    assert bits(tmp_path / "old", 12) == bits(tmp_path / "plain", 12)


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_the_rate_makes_no_jump_at_a_plan_and_has_decayed_at_the_last_step(schedule):
    rng = random.Random(11)
    for _ in range(30):
        plans, config = [{"step": 0, "steps": rng.randrange(40, 400)}], TrainConfig(schedule=schedule, warmup=7)
        config = replace(config, steps=plans[0]["steps"])
        assert [factor(s, config, plans) for s in range(40)] == [factor(s, config) for s in range(40)]
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(plans[-1]["step"], plans[-1]["steps"])
            before, place = factor(at, config, plans), step_of_first_plan(at, plans)
            past = [factor(step, config, plans) for step in range(at)]
            plans.append({"step": at, "steps": at + rng.randrange(1, 400)})
            assert factor(at, config, plans) == before
            assert step_of_first_plan(at, plans) == place
            assert [factor(step, config, plans) for step in range(at)] == past
        last = plans[-1]["steps"]
        assert step_of_first_plan(last, plans) == pytest.approx(plans[0]["steps"])
        assert factor(last, config, plans) == pytest.approx(1 if schedule == "constant" else 0, abs=1e-9)
        places = [step_of_first_plan(step, plans) for step in range(plans[-1]["step"], last)]
        assert places == sorted(places)
    # a schedule that does not depend on the number of steps is the same under any plan
    published = TrainConfig(schedule="inverse-sqrt", warmup=7)
    assert factor(23, published, plans) == factor(23, published)


def test_a_budget_without_room_for_a_step_makes_one(monkeypatch):
    monkeypatch.setattr(time_budget, "clock", lambda: START)
    budget = Budget(1.0, START - 3)
    budget.updates, budget.busy = 1, 2.0
    budget.count_evaluation(64.0, 0.1)
    assert budget.plan(0, TrainConfig(**UNDECIDED), ["eval_every", "save_every"])["steps"] == 1
    said = budget.too_little()
    assert said.startswith(
        "train.minutes 1 is too little here: 3.0 s were used before the first step (a step 2.0 s, an ev"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_far_too_few_steps_for_a_preset_are_announced(name, monkeypatch):
    record = family(name)
    preset = record.default_preset
    usual = record.training[preset].get("steps", TrainConfig.steps)
    run = type("Made", (), {"config": {"run": {"preset": preset}}})
    task = type("Made", (), {"family": record})
    assert train_run.usual_steps(run, task) == usual
    assert train_run.usual_steps(type("Made", (), {"config": {"run": {"preset": preset, "from": "a"}}}), task) is None
    monkeypatch.setattr(time_budget, "clock", lambda: START)
    budget = Budget(4.0, START)
    budget.updates, budget.busy = 1, 2.7
    assert budget.too_few(usual // 10, usual, preset, name) is None
    line = budget.too_few(52, usual, preset, name)
    assert line.startswith(
        f"52 steps will hardly train a {name}: the preset nano trains for {usual:,} steps, which takes"
    )
    minutes = float(line.partition("--train.minutes ")[2].split()[0])
    assert minutes * 60 == pytest.approx(usual * 2.7 / 0.9, rel=0.05)


def test_the_data_decides_the_usual_steps_where_it_decides_those_of_a_run():
    data = type("Made", (), {"training_defaults": {"steps": 700}})
    task = type("Made", (), {"family": family("vit"), "data": data})
    for preset, steps in (("nano", 700), ("b/16", 50_000)):
        assert train_run.usual_steps(type("Made", (), {"config": {"run": {"preset": preset}}}), task) == steps


@pytest.mark.usefixtures("fast_training")
def test_updates_that_were_only_timed_leave_no_trace(tmp_path, notes):
    settings = dict(ema=0.9, nonfinite="skip")
    trainer(tmp_path / "plain", notes, **settings).train()
    made = trainer(tmp_path / "timed", notes, **settings)
    state, pace, polled = torch.random.get_rng_state(), Pace(), []
    made.time_updates(pace, 0.0, lambda: polled.append(made.step))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert polled == [1, 2]  # one to warm up, and one that counts
    assert (pace.updates, pace.units) == (1, 5 * 31)
    made.train()
    assert bits(tmp_path / "timed", 12) == bits(tmp_path / "plain", 12)


@pytest.mark.usefixtures("fast_training")
def test_a_budget_that_was_killed_before_its_first_plan_is_planned_anew(tmp_path, notes, at, monkeypatch):
    clock = Machine(MACHINES["steady"], update=4.9)
    with monkeypatch.context() as patch:

        def killed(*_):
            raise Killed

        patch.setattr(Budget, "plan", killed)
        with pytest.raises(Killed):
            at(clock, trainer(tmp_path / "a", notes, **UNDECIDED)).train()
    assert Run.open(tmp_path / "a").config["train"]["steps"] == 0
    again = at(clock, trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **UNDECIDED))
    again.began = clock.now
    outcome = again.train()
    assert outcome.finished
    assert outcome.step == Run.open(tmp_path / "a").config["train"]["steps"] > 1


@pytest.mark.usefixtures("light")
def test_a_budget_from_the_command_line(tmp_path, notes, monkeypatch):
    ticks = iter(range(10**9))
    monkeypatch.setattr(time_budget, "clock", lambda: 0.25 * next(ticks))  # each look at it takes a quarter of a second
    monkeypatch.setattr("pencil.cli.train.began", lambda: 0.0)
    out, words = tmp_path / "run", ("--data", notes, *TINY, "--train.minutes", "0.5", "--train.eval_batches", "1")
    made = call("train", "gpt", *words, "--out", out)
    steps = Run.open(out).config["train"]["steps"]
    assert 1 < steps < 120
    assert f"Trained {steps} steps in " in made.stderr
    assert " of 30 s used)" in made.stderr
    assert "steps will hardly train a gpt: the preset nano trains for 2,000 steps" in made.stderr
    assert (
        f"has made {steps} steps and train.steps is {steps}; a larger --train.steps continues"
        in call("resume", out).stderr
    )
    refusal = call("resume", out, "--train.minutes", "3", code=2).stderr
    assert f"is trained for {steps} steps in a budget of 0.5 minutes: --train.steps sets another number" in refusal
    call("resume", out, "--train.steps", steps + 3)
    config = Run.open(out).config
    assert (config["train"]["steps"], config["train"].get("minutes"), config.get("plans")) == (steps + 3, None, None)
    both = ("train", "gpt", "--data", notes, "--train.minutes", "1", "--train.steps", "7")
    assert "train.steps and train.minutes both say how long to train" in call(*both, code=2).stderr
    assert "train.minutes must be above 0, not -1" in call(*both[:-2], "--train.minutes", "-1", code=2).stderr


@pytest.mark.usefixtures("fast_training")
def test_fewer_steps_than_the_warm_up_of_a_budget_shorten_it_unless_it_is_chosen(tmp_path, notes):
    plans = [{"step": 0, "steps": 31, "eval_every": 7}, {"step": 2, "steps": 3, "eval_every": 7}]
    settings = dict(minutes=1.0, warmup=13, batch=3, eval_batches=1)
    request = TrainingRequest("gpt", str(notes), model=dict(depth=1, width=24, heads=3, context=11), train=settings)
    for name, steps, warmup in ("a", 11, 2), ("b", 17, 13):  # the second has room for it: it stays
        run, _, _ = new_run(request, out=tmp_path / name)
        run.write_config(
            with_plans({**run.config, "train": {**run.config["train"], "steps": 31, "eval_every": 7}}, plans)
        )
        if warmup < 13:
            chosen = call("resume", run.path, "--train.steps", steps, "--train.warmup", 13, code=2).stderr
            assert f"train.warmup 13 exceeds train.steps {steps}" in chosen
        shown = call("resume", run.path, "--train.steps", steps).stderr
        shortened = f"warm-up shortened from 13 to {warmup} steps, a fifth of the run; --train.warmup sets another"
        assert (shortened in shown) == (warmup < 13)
        config = Run.open(run.path).config["train"]
        assert (config["steps"], config["warmup"]) == (steps, warmup)


def test_a_run_of_a_budget_can_be_trained_anew_from_its_file(tmp_path, notes):
    from pencil.api.training_request import read_config

    plans = [{"step": 0, "steps": 31, "eval_every": 7}, {"step": 5, "steps": 23, "eval_every": 7}]
    made = following(tmp_path / "a", notes, plans)
    assert plans_of(Run.open(tmp_path / "a").config) == plans
    assert read_config(made.run.path / "config.toml").train["steps"] == 31


class Began(Exception):
    """Stands for a training that begins."""


def test_the_time_counts_from_the_start_of_the_command_or_the_call(tmp_path, notes, monkeypatch):
    found = {}

    class Trainer:
        def __init__(self, *_, began, **__):
            found["began"] = began
            raise Began

    monkeypatch.setattr(train_run, "Trainer", Trainer)
    monkeypatch.setattr(own_task, "Trainer", Trainer)
    words = ["train", "gpt", "--data", str(notes), *TINY, "--train.minutes", "1", "--out"]
    with pytest.raises(Began):
        main([*words, str(tmp_path / "a")], began=START)
    assert found["began"] == START
    # a process that was started by another counts from when that one was
    with launch._environment(2, tmp_path), pytest.raises(Began):
        main([*words, str(tmp_path / "b")])
    assert found["began"] == START
    clock = Machine(MACHINES["steady"])
    monkeypatch.setattr(time_budget, "clock", clock)
    usual = train_run.start_training
    monkeypatch.setattr(train_run, "start_training", lambda *given: clock.work(31.0) or usual(*given))
    with pytest.raises(Began):
        train_run.train("gpt", notes, out=tmp_path / "c", minutes=1, width=24, depth=1, heads=3, quiet=True)
    assert found["began"] == START
    assert clock.used > 29
    with pytest.raises(Began):
        own_task.fit(own_task.Task(), tmp_path / "d", minutes=1, quiet=True)
    assert found["began"] == clock.now


def test_a_process_that_is_started_again_does_not_count_its_time_twice(monkeypatch):
    clock = Machine(MACHINES["steady"])
    monkeypatch.setattr(time_budget, "clock", clock)
    first = Budget(1.0, START, {"used": 7.0, "command": 3.0})
    clock.now += 11
    state = json.loads(json.dumps(first.state()))
    clock.now += 5
    assert Budget(1.0, float(repr(START)), state).used() == 7 + 11 + 5
    assert Budget(1.0, clock.now, state).used() == 7 + 11  # another command


@pytest.mark.long
@pytest.mark.usefixtures("fast_training")
def test_processes_with_other_clocks_follow_the_plans_of_the_first(tmp_path, notes, together, monkeypatch):
    """Two processes in exact mode end with the bits of one that follows the plans that rank 0 has recorded."""
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[1] / name) for name in ("train", ".", "helpers")]!r}
from pencil.collectives.processes import process_group, world
from pencil.train.loop import time_budget
from test_budget import Machine, START, UNDECIDED, trainer
from pencil.runs.run import Run
import torch
machine = Machine(lambda t: 1 + t / 30, 1.1 if world().is_rank0 else 1e-3)
time_budget.clock = machine
with process_group(torch.device("cpu")):
    folder = __import__("pathlib").Path(sys.argv[1])
    made = trainer(folder, sys.argv[2], run=Run.open(folder), **UNDECIDED, batch=6, exact=True)
    made.began, update = START, made.update
    def timed():
        machine.work(machine.update)
        return update()
    made.update = timed
    assert made.train().finished
    print(made.state.plans)
"""
    folder = tmp_path / "two"
    trainer(folder, notes, **UNDECIDED, batch=6, exact=True).group.close()
    printed = {one.out for one in together(2, script, arguments=[folder, notes])}
    plans = plans_of(Run.open(folder).config)
    assert printed == {f"{plans}\n"}
    assert len(plans) > 1
    whole = following(tmp_path / "one", notes, plans, warmup=decided(folder)["warmup"], batch=6, exact=True)
    monkeypatch.setattr(Budget, "due", lambda *_: False)
    whole.train()
    assert bits(tmp_path / "one", whole.step)[0] == bits(folder, plans[-1]["steps"])[0]


@pytest.mark.usefixtures("fast_training")
def test_a_budget_that_was_used_before_the_first_step_makes_one(tmp_path, notes, at, capsys):
    for waits, evaluation in ((61.0, 0.7), (11.0, 99.0)):
        clock = Machine(MACHINES["steady"], evaluation=evaluation)
        made = at(clock, trainer(tmp_path / str(waits), notes, **UNDECIDED), compute=False)
        clock.now += waits
        made.train()
        assert (made.step, made.config.steps) == (1, 1)
        assert "train.minutes 1 is too little here" in capsys.readouterr().err
        assert clock.used < 60 + 99 / 7 * 1.1  # an evaluation ends between two batches
