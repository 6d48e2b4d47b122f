"""Every benchmark runs, at its smallest size; one that needs a GPU refuses in a sentence where there is none."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import call

FOLDER = Path(__file__).parents[1] / "benchmarks"
SHORT = {
    "afternoon": "--quick",
    "explore": f"{FOLDER.parent}/tests/runs-0.6/gpt --clients 2 --seconds 2 --receipts 3 --depth 1 --width 48",
    "fine_tuning": "--source-steps 8 --steps 8 --bytes 3000",
    "first_rate": "vit",
    "foreign_modules": "--only Conv",
    "guard": "",
    "importing": "--depth 1",
    "int8": "notes.txt --preset nanogpt --steps 3",
    "little_data": "--task order --sizes 100 --steps 3",
    "live": "gpt:nano --answers 2",
    "loss": "--preset nano --batch 2 --vocab 331 --rounds 2 --chunks 16,64 --eager",
    "one_device": "--preset nano --batch 2 --steps 2 --rounds 1",
    "opening": "",
    "pairs": "run",
    "positions": "2 1 1 learned",
    "predict": "--count 70 --preset nano --size 16",
    "probes": "",
    "processes": "--preset nano --batch 4 --steps 11",
    "screenshots": "--out pictures --only heads",
    "serving": "--clients 3 --seconds 1 --prompts 5 --tokens 7",
    "shakespeare": "notes.txt --presets nanogpt --steps 3",
    "startup": "",
    "steady": "digits 1 1",
}
NEED_GPU = {"cost", "decode_flight", "step_profile"}
WRITES_DOCS = {"lab", "recording"}


def test_every_benchmark_is_in_one_of_the_lists():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SHORT, *NEED_GPU, *WRITES_DOCS}


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_a_benchmark_runs(name, tmp_path):
    if name in ("int8", "shakespeare"):
        (tmp_path / "notes.txt").write_text("".join(f"line {i} of a text to learn from\n" for i in range(400)))
    if name == "pairs":
        call("train", "seq2seq", "--out", str(tmp_path / "run"), "--train.steps", "2", "--train.warmup", "0")
    result = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *shlex.split(SHORT[name])],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert any(character.isdigit() for character in result.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(NEED_GPU))
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run the benchmark itself")
def test_a_benchmark_that_needs_a_gpu_refuses_without_one(name):
    result = subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("this benchmark needs a CUDA GPU")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_the_table_of_the_lab_is_written_between_its_marks(tmp_path):
    spec = importlib.util.spec_from_file_location("benchmark_lab", FOLDER / "lab.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.DOCS.read_text(encoding="utf-8")
    module.DOCS = tmp_path / "lab.md"
    module.DOCS.write_text(page, encoding="utf-8")
    call("lab", "residual", "--quick", "--out", tmp_path / "lab")
    module.main(str(tmp_path / "lab" / "results.json"))
    written = module.DOCS.read_text(encoding="utf-8")
    before, after = page.split(module.BEGIN)[0], page.split(module.END)[1]
    assert written.startswith(before + module.BEGIN)
    assert written.endswith(module.END + after)
    assert "residual" in written[len(before) : -len(after)]
