"""Shared by the suite: a private cache, one thread a worker, the golden values, and one small trained run."""

import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
import types
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# kernels with two threads on a busy machine can be ten times slower than with one
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# continuous integration tries the same examples every time; at a desk each run tries new ones
settings.register_profile("suite", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("suite")

pytest_plugins = ("shapes", "commands", "several")

HERE = Path(__file__).parent
TEXT = "".join(
    f"line {i}: the pencil draws {i * 7 % 13} strips, and the reader counts {i * 5 % 11} of them.\n" for i in range(400)
)


def pytest_configure(config):
    config.addinivalue_line("markers", "proof(name, family): a row of the proofs table in docs/project/proofs.md")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    os.environ["PENCIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def short_previews():
    """Previews of a few tokens: whole ones take long, the more so with every shape checked. Their usual length."""
    module = importlib.import_module("pencil.train.tasks.language_modeling")
    usual, module.PREVIEW_TOKENS = module.PREVIEW_TOKENS, 19
    return usual


@pytest.fixture
def usual_seconds():
    """Progress is shown after as many seconds as usual: for tests with a clock of their own."""


@pytest.fixture(autouse=True)
def no_matter_how_slow(request, monkeypatch):
    """Work that takes long shows its progress, and a training measures its pace first; a busy machine changes nothing."""
    if "usual_seconds" not in request.fixturenames:
        monkeypatch.setattr("pencil.train.loop.report.FIRST_REPORT_SECONDS", 1e9)
        monkeypatch.setattr("pencil.cli.screens.terminal.QUIET", 1e9)


@contextmanager
def unchecked():
    """Shape checking off, which can make small models several times slower."""
    from jaxtyping import config

    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Shapes are checked where the parts and the models are tested; the other tests run the same code many times."""
    checked = item.path.relative_to(Path(__file__).parent).parts[0] in ("core", "models")
    with nullcontext() if checked else unchecked():
        return (yield)


@pytest.fixture
def fast_training(monkeypatch):
    """For tests that train several times: no shape checking and no plot of the loss."""
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    with unchecked():
        yield


@pytest.fixture(autouse=True)
def same_kernels():
    """Where oneDNN has no kernel for a dtype, torch turns it off for good: it is turned on again for the next test."""
    yield
    torch.backends.mkldnn.enabled = True


@pytest.fixture
def golden():
    return {entry["id"]: entry for entry in json.loads((HERE / "golden.json").read_text())}


# what timm imports of torchvision, which a vision transformer never calls
TORCHVISION = ["", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets", ".models",
               ".models.feature_extraction", ".utils"]  # fmt: skip


@pytest.fixture(scope="session")
def timm():
    """timm; where torchvision is missing, empty modules stand in for it, but only while timm is imported."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    stand_ins = {}
    if importlib.util.find_spec("torchvision") is None:
        for ending in TORCHVISION:
            name = f"torchvision{ending}"
            stand_ins[name] = module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            module.__path__ = []
            module.__getattr__ = _empty_class
            outer, _, inner = name.rpartition(".")
            if outer:
                setattr(stand_ins[outer], inner, module)
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module("timm")
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _Empty(type):
    """A class with nothing in it, whose members (timm lists those of an enumeration) are their own names."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _empty_class(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Empty(name, (), {})


@pytest.fixture(scope="session")
def notes(tmp_path_factory):
    """A text file to train on."""
    path = tmp_path_factory.mktemp("notes") / "notes.txt"
    path.write_text(TEXT)
    return path


TINY = ["--model.width", "24", "--model.heads", "3", "--model.depth", "2", "--model.context", "31"]


@pytest.fixture(scope="session")
def run(notes, tmp_path_factory, short_previews):
    """A small run trained by the command line: read it, do not write into it."""
    path = tmp_path_factory.mktemp("runs") / "notes-gpt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pencil.train.tasks.language_modeling.PREVIEW_TOKENS", short_previews)
        call("train", "gpt", "--data", notes, "--out", path, *TINY, "--train.steps", "30", "--train.eval_every", "15",
             "--train.save_every", "10", "--train.batch", "7", "--train.warmup", "3")  # fmt: skip
    return path


class Done(NamedTuple):
    """A command that ended, like the result of `subprocess.run`."""

    returncode: int
    stdout: str
    stderr: str


def call(*words, code=0):
    """Run the command in this process, without shape checking; what it printed."""
    from pencil.cli.main import main

    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), unchecked():
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code or 0
    done = Done(status, out.getvalue(), err.getvalue())
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def refused(words, folder, seconds=2):
    """Run a command that meets a hostile file: one sentence at the end, soon, and nothing in `folder` executed."""
    before = time.process_time()
    done = call(*words, code=2)
    assert time.process_time() - before < seconds
    assert done.stderr.splitlines()[-1].startswith("pencil: ")
    assert "Traceback" not in done.stderr
    assert not (folder / "executed").exists()
    return done


def pencil(*words, code=0, stdin=None, cwd=None):
    """Run the command in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pencil", *map(str, words)],
        capture_output=True,
        text=True,
        input=stdin,
        cwd=cwd,
        timeout=600,  # against hanging only
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine to open pages with")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()
