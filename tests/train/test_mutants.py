"""The mutation testing of benchmarks/survival/mutants.py: its mutants are faults, and only what no test sees survives."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "survival" / "mutants.py"
EVERY = '''
"""Nothing at import is changed."""
LIMIT = 3 + 4

def every(a: int, b, *, c=5) -> int:
    """Docstrings stay."""
    if not a < b:
        raise ValueError(f"{a - b} is too few, by {1 + 1}")
    total: int = 0
    for k in range(b):
        if k % 2 == 1 and k is not None or k > 9:
            total += max(k, -c)
    with open("x"):
        print(a + b)
    a = a if a in (1, 2) else ~b
    return total

class Toy:
    size = 7

    def flag(self) -> bool:
        self.on = True
        return self.on
'''
TOY = """
def clipped(value, most):
    if value > most:
        return most
    return value

def unseen(value):
    return value + 1
"""
TOY_TEST = """
import pytest
from toy import clipped

@pytest.fixture(scope="module")
def shared():
    return clipped(11, 5)

def test_large(shared):
    assert shared == 5

def test_small():
    assert clipped(3, 5) == 3
"""


@pytest.fixture
def mutation(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import mutation

    return mutation


def test_every_mutant_is_valid_and_differs_in_one_place(mutation, tmp_path):
    (tmp_path / "every.py").write_text(EVERY)
    mutants = mutation.mutants_of(tmp_path, "every.py")
    original, seen = ast.dump(ast.parse(EVERY)), set()
    for mutant in mutants:
        text = mutation.mutated(tmp_path, mutant)
        compile(text, "every.py", "exec")
        assert ast.dump(ast.parse(text)) != original
        assert mutant.before != mutant.after
        assert EVERY.splitlines()[mutant.lines[0] - 1].strip()
        seen.add(text)
    assert len(seen) == len(mutants)
    changes = {(m.operator, m.before, m.after) for m in mutants}
    assert {
        ("not or sign removed", "if not a < b:", "if a < b:"),
        ("comparison", "if not a < b:", "if not a <= b:"),
        ("number", "total: int = 0", "total: int = 1"),
        ("arithmetic", "total += max(k, -c)", "total -= max(k, -c)"),
        ("assignment deleted", "total += max(k, -c)", "pass"),
        ("min/max", "total += max(k, -c)", "total += min(k, -c)"),
        ("not or sign removed", "total += max(k, -c)", "total += max(k, c)"),
        ("context dropped", "with open('x'):", "if True:"),
        ("call deleted", "print(a + b)", "pass"),
        ("return value", "return total", "return total + 1"),
        ("True/False", "self.on = True", "self.on = False"),
        ("return value", "return self.on", "return not self.on"),
    } <= changes
    assert {m.operator for m in mutants} >= {"and/or", "condition negated"}


def test_what_runs_at_import_and_what_is_only_words_is_left_alone(mutation, tmp_path):
    (tmp_path / "every.py").write_text(EVERY)
    for mutant in mutation.mutants_of(tmp_path, "every.py"):
        text = mutation.mutated(tmp_path, mutant)
        assert "LIMIT = 3 + 4" in text
        assert "c=5" in text
        assert "size = 7" in text
        assert "Docstrings stay." in text
        assert "{a - b} is too few, by {1 + 1}" in text
        assert "total: int = " in text


def test_a_seed_chooses_the_same_mutants_again(mutation, tmp_path):
    (tmp_path / "every.py").write_text(EVERY)
    mutants = mutation.mutants_of(tmp_path, "every.py")
    chosen = mutation.choose(mutants, 7, 3)
    assert chosen == mutation.choose(mutants, 7, 3) != mutation.choose(mutants, 7, 4)
    assert len(set(chosen)) == 7


def test_a_copy_has_every_package_and_no_outputs(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from forked_tests import copy_project

    for name in ("src/toy/runs/run.py", "runs/one/weights.bin", "build/lib.py", ".git/HEAD", "src/__pycache__/a.pyc"):
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    copy = copy_project(tmp_path / "project", tmp_path / "copy")
    assert [path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()] == ["src/toy/runs/run.py"]


def hunt(*words, cwd=None):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, cwd=cwd)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.mark.long
def test_a_fault_of_a_toy_is_caught_and_an_equivalent_one_survives(tmp_path):
    toy = tmp_path / "project"
    (toy / "src" / "toy").mkdir(parents=True)
    (toy / "tests").mkdir()
    (toy / "src" / "toy" / "__init__.py").write_text(TOY)
    (toy / "tests" / "test_toy.py").write_text(TOY_TEST)
    (toy / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['long: slow']\n")
    (tmp_path / "known.toml").write_text(
        '[[survivor]]\nfile = "src/toy/__init__.py"\nfunction = "clipped"\nbefore = "if value > most:"\n'
        'after = "if value >= most:"\nreason = "equal values give the same"\n'
    )
    done = hunt(
        "--root", toy, "--sources", "src/toy/*.py", "--tests", "tests", "--options", "", "--preload", "pytest",
        "--coverage", tmp_path / "coverage.json", "--results", tmp_path / "fates.json", "--survivors", tmp_path / "known.toml",
    )  # fmt: skip
    fates = {(f, b, a): by for _, _, f, _, b, a, by, _ in json.loads((tmp_path / "fates.json").read_text())}
    negated = ("clipped", "if value > most:", "if not value > most:")
    assert fates[negated] is not None
    assert fates[negated].startswith("tests/test_toy.py::")
    assert fates["clipped", "if value > most:", "if value >= most:"] is None
    assert fates["unseen", "return value + 1", "return value - 1"] is None
    assert "equal values give the same" in done.stdout
    assert done.returncode == 1  # `unseen` is in no list
    assert "not listed" in done.stdout
    assert (toy / "src" / "toy" / "__init__.py").read_text() == TOY
    # what a shared fixture covers, every test that uses it covers
    coverage = json.loads((tmp_path / "coverage.json").read_text())["tests/test_toy.py"]
    assert any(key.startswith("fixture") for key in coverage["lines"]["src/toy/__init__.py"]["4"])


@pytest.mark.long
def test_the_tests_catch_mutants_of_training_and_generation(tmp_path):
    hunt("--count", 12, "--seed", 1, "--results", tmp_path / "fates.json")
    fates = json.loads((tmp_path / "fates.json").read_text())
    assert len(fates) == 12
    assert sum(by is not None for *_, by, _ in fates) >= 10
