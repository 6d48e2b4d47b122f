"""Kills and damage: the small forms of benchmarks/survival; the long forms are those of the promises."""

import os
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
    shown = survival("kills", "--kills", 20, "--families", "gpt", "vit", "dit")
    assert "20 kills in 3 families: 0 bad; 3 of 3 runs equal to the bit" in shown


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
def test_two_hundred_kills_in_five_families():
    assert "200 kills in 5 families: 0 bad; 5 of 5 runs equal to the bit" in survival("kills")


def test_random_damage_is_found_by_name():
    assert "60 mutations: 60 found by name, 0 missed" in survival("damage", "--mutations", 60)


@pytest.mark.long
def test_a_thousand_mutations_are_found_by_name():
    assert "1000 mutations: 1000 found by name, 0 missed" in survival("damage")
