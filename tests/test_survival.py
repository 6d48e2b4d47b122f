"""Kills and damage: the small forms of benchmarks/survival; the long forms are those of the promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "survival"


def survival(name, *words):
    """Run a script in a process of its own: it forks, or changes the cache."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
def test_twenty_kills_leave_whole_runs_that_end_as_if_never_killed():
    shown = survival("kills", "--kills", 20, "--families", "gpt", "vit", "dit", "--longest", 0.5)
    assert "20 kills in 3 families: 0 bad; 3 of 3 runs equal to the bit" in shown


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
def test_two_hundred_kills_in_five_families():
    assert "200 kills in 5 families: 0 bad; 5 of 5 runs equal to the bit" in survival("kills")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
@pytest.mark.long
def test_kills_of_all_processes_at_once_leave_whole_checkpoints():
    shown = survival("group_kills", "--kills", 3, "--kinds", "fsdp on 2")
    assert re.search("3 kills: 0 not whole, 0 mixed, at most [01] checkpoint lost; 1 of 1 runs end as never", shown)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
def test_a_hundred_kills_of_all_processes_at_once():
    shown = survival("group_kills")
    assert re.search("100 kills: 0 not whole, 0 mixed, at most [01] checkpoint lost; 3 of 3 runs end as never", shown)


@pytest.mark.long
def test_random_damage_is_found_by_name():
    assert "60 mutations: 60 found by name, 0 missed" in survival("damage", "--mutations", 60)


@pytest.mark.long
def test_a_thousand_mutations_are_found_by_name():
    assert "1000 mutations: 1000 found by name, 0 missed" in survival("damage")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are read from /proc")
def test_a_killed_process_is_started_again_and_the_training_ends_as_if_never_killed():
    shown = survival("elastic", "--kills", 1)
    assert "1 kills, 1 recoveries, " in shown
    assert "SIGTERM: status 0" in shown
    assert ": equal to one process, never killed" in shown


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are read from /proc")
def test_twenty_killed_processes_are_twenty_recoveries():
    assert "20 kills, 20 recoveries, " in survival("elastic")


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt", "captioner", "dit"])
def test_saved_by_any_number_of_processes_and_resumed_by_any_other(family):
    shown = survival("world_sizes", "--families", family)
    assert f"{family}: 9 of 9 resumed and 3 of 3 uncut runs end with the same bits" in shown
