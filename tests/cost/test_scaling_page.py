"""docs/guides/many-devices.md: its job for a cluster is the files beside it, and these are accepted."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from conftest import call

DOCS = Path(__file__).parents[2] / "docs"
SLURM = DOCS / "slurm"


@pytest.mark.parametrize("name", ["big.toml", "train.sbatch"])
def test_the_page_shows_the_files_as_they_are(name):
    shown = re.findall(
        r"^```\w+\n(.*?)^```", (DOCS / "guides" / "many-devices.md").read_text(encoding="utf-8"), re.M | re.S
    )
    assert (SLURM / name).read_text(encoding="utf-8") in shown


def test_the_settings_of_the_job_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("".join(f"the cat sat on mat {i}.\n" for i in range(3000)))
    settings = call("train", "--config", SLURM / "big.toml", "--tokenizer", "char", "--settings").stdout
    found, wanted = tomllib.loads(settings), tomllib.loads((SLURM / "big.toml").read_text())
    assert wanted["train"].items() <= found["train"].items()
    assert found["run"]["preset"] == wanted["run"]["preset"]


def test_the_script_is_bash_and_the_devices_divide_the_batch():
    script = (SLURM / "train.sbatch").read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    nodes, each = (int(re.search(pattern, script)[1]) for pattern in (r"--nodes=(\d+)", r"--nproc-per-node (\d+)"))
    assert int(re.search(r"--gpus-per-node=(\d+)", script)[1]) == each
    assert tomllib.loads((SLURM / "big.toml").read_text())["train"]["batch"] % (nodes * each) == 0
    # time to save: torchrun waits for its processes no longer than SLURM waits for it
    waits = [int(re.search(pattern, script)[1]) for pattern in (r"SHUTDOWN_TIMEOUT=(\d+)", r"TERM@(\d+)")]
    assert waits[0] < waits[1]
    from torch.distributed.run import get_args_parser

    words = script[script.index(" torchrun \\") :].replace("\\\n", " ").split()[1:]
    parsed = get_args_parser().parse_args([word.strip('"') for word in words])
    assert parsed.training_script == "pencil"
