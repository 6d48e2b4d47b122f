"""docs/reference: the generated pages are what the code gives, every public name has an example that runs, and so on."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pencil
from pencil.train.settings import TrainConfig

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
reference = importlib.util.module_from_spec(spec)
FOLDER = ROOT / "docs" / "reference"
PUBLIC = [name for name in pencil.__all__ if name != "__version__"]


@pytest.fixture(scope="module", autouse=True)
def generator():
    """The script, loaded with the width of the terminal that it sets for itself alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "NO_COLOR", "TERM"):
            patch.setenv(name, "")
        spec.loader.exec_module(reference)
        yield reference


def test_the_pages_are_what_the_code_gives():
    """In a process of its own: the width of a terminal is read when the help is first set."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_public_name_has_an_example():
    assert sorted(reference.examples()) == sorted(PUBLIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as the page promises it: notes.txt, and a run of it."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "notes.txt").write_text("the cat sat on the mat.\n" * 200)
        sizes = dict(width=24, depth=1, heads=3, context=13)
        pencil.train("gpt", "notes.txt", steps=2, batch=2, out="runs/notes-gpt", **sizes)
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_name_runs(name, folder, monkeypatch):
    import torch

    monkeypatch.chdir(folder)
    code = reference.examples()[name]
    assert f"pencil.{name}" in code
    exec(compile(code, f"{name} of python-api.toml", "exec"), {"torch": torch, "pencil": pencil})


def test_nothing_hides_what_it_takes_and_every_setting_has_a_meaning():
    assert "*args" not in (FOLDER / "python-api.md").read_text(encoding="utf-8")
    rows = (FOLDER / "settings.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row.startswith("|") and row.endswith("|  |")] == []


def test_every_setting_and_every_variable_of_the_environment_is_there():
    settings = (FOLDER / "settings.md").read_text(encoding="utf-8")
    assert [
        name for name in (field.name for field in dataclasses.fields(TrainConfig)) if f"| `{name}` |" not in settings
    ] == []
    files = (FOLDER / "files.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "pencil").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"PENCIL_[A-Z_]+", text)}
    # set by Pencil itself, for the processes that it starts
    assert {name for name in named if f"`{name}`" not in files} == {"PENCIL_BEGAN", "PENCIL_LAUNCH"}
