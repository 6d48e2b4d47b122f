"""Other systems, simulated: no verb needs a call that Windows or macOS lacks, and a second writer is noticed there too."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from conftest import HERE

SMALL = ["--model.width", "8", "--model.heads", "2", "--model.depth", "1", "--train.save_every", "2",
         "--train.eval_every", "3", "--train.batch", "3", "--train.eval_batches", "1"]  # fmt: skip


def elsewhere(*commands, cwd, mode="missing", code=0, **env):
    """Run commands one after another in a process that lacks what other systems lack; what it printed."""
    words = [[str(word) for word in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", HERE / "helpers" / "windows.py", mode, json.dumps(words)],
        capture_output=True, text=True, encoding="utf-8", cwd=cwd, timeout=600, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    return done


def _files(folder):
    """A text of different lines, and pictures of two classes."""
    (folder / "notes.txt").write_text("".join(f"line {i}: the pencil draws {i * 7 % 13}\n" for i in range(61)))
    for label in "ab":
        (folder / "pictures" / label).mkdir(parents=True)
        for i in range(7):
            pixels = np.random.default_rng(i).integers(0, 256, (9, 11, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / label / f"{i}.png")


@pytest.mark.long
def test_the_verbs_need_no_call_that_windows_lacks(tmp_path):
    """Train, resume from a checkpoint that is then removed, start again with --force, and look at what was made."""
    _files(tmp_path)
    text = ["train", "gpt", "--data", "notes.txt", "--out", "r", "--model.context", "7", *SMALL, "--train.steps", "3"]
    done = elsewhere(
        text,
        ["resume", "r", "--train.steps", "7"],
        ["verify", "r"],
        ["eval", "r"],
        ["sample", "r", "--prompt", "the", "--max-new-tokens", "3"],
        [
            "trace",
            "r",
            "--input",
            "the",
            "--xlsx",
            "a.xlsx",
            "--html",
            "a.html",
            "--png",
            "a.png",
            "--out",
            "a.safetensors",
        ],
        ["why", "a.safetensors", "logits[0,1,2]"],
        [*text, "--force"],
        ["kata", "--print", "3", "--out", "k.html"],
        ["doctor"],
        cwd=tmp_path,
        PYTHONIOENCODING="cp1252",
    )
    assert "✓" in done.stdout  # which the encoding of the system lacks
    made = {path.name for path in tmp_path.iterdir()}
    assert {"a.xlsx", "a.html", "a.png", "a.safetensors", "k.html", "r"} <= made
    assert not [name for name in made if name.startswith(".r")]
    steps = [json.loads(line)["step"] for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 3


@pytest.mark.long
def test_pictures_heads_and_the_lab_need_no_call_that_windows_lacks(tmp_path):
    _files(tmp_path)
    run = ["--data", "pictures", "--out", "v", *SMALL, "--train.steps", "3"]
    elsewhere(
        ["train", "vit", *run],
        ["resume", "v", "--train.steps", "5"],
        ["eval", "v"],
        ["heads", "v"],
        ["sample", "v", "--image", "pictures/a/1.png"],
        ["train", "dit", "--out", "d", *SMALL, "--train.steps", "2"],
        ["sample", "d", "--label", "7", "--out", "d.png"],
        ["walk", "004", "--html", "w.html"],
        ["lab", "scaling", "--quick", "--seeds", "3", "--out", "l"],
        cwd=tmp_path,
    )
    assert (tmp_path / "l" / "results.json").is_file()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["missing", "nolock"])
def test_a_second_writer_is_refused_where_the_system_can_lock(run, tmp_path, mode):
    """The lock is held by this process; a system without any lock writes all the same."""
    import shutil

    from pencil.runs.run import Run

    shutil.copytree(run, tmp_path / "r")
    with Run.open(tmp_path / "r").writing():
        done = elsewhere(
            ["resume", "r", "--train.steps", "31"], cwd=tmp_path, mode=mode, code=1 if mode == "missing" else 0
        )
    assert ("r is being written by another process" in done.stderr) == (mode == "missing")


# what only some systems have, and where it may be named: there it is guarded
GUARDED = {
    "fcntl": {"files.py"}, "msvcrt": {"files.py"}, "sysconf": {"files.py"},
    "SIGHUP": {"train/loop/trainer.py", "cli/launch.py"},
    "O_DIRECTORY": {"files.py", "runs/files.py"}, "pthread_sigmask": {"learn/lab/runner.py"},
    "getloadavg": {"learn/lab/runner.py"}, "/proc/": {"runs/files.py", "files.py", "learn/lab/runner.py", "cost/measure.py"},
    "import resource": {"files.py"}, "os.kill(": {"cli/launch.py"}, "SIGKILL": {"cli/launch.py"},
}  # fmt: skip
NOWHERE = ("os.fork", "os.getuid", "os.mkfifo", "os.statvfs", "os.fchmod", "SIGALRM", "import pwd", "import termios",
           "/dev/", "os.symlink")  # fmt: skip


def test_calls_of_one_system_are_only_where_they_are_guarded():
    top = HERE.parent / "src" / "pencil"
    for path in top.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(top).as_posix()
        for word, where in GUARDED.items():
            assert name in where or not re.search(rf"(?<!\w){re.escape(word)}", text), (name, word)
        for word in NOWHERE:
            assert word not in text, (name, word)


@pytest.mark.long
def test_the_simulation_refuses_what_windows_refuses(tmp_path):
    """The check can fail: a mapped file is not replaced, and a name with a colon is not made."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import windows, os, numpy as np; windows.take_away(True)\n"
        "from pathlib import Path\n"
        "Path('one').write_bytes(b'12345678'); kept = np.memmap('one', np.uint8, 'r')\n"
        "for call in (lambda: os.replace('one', 'two'), lambda: Path('a:b').write_bytes(b''), lambda: os.open('.', os.O_RDONLY)):\n"
        "    try: call()\n"
        "    except OSError as error: print(type(error).__name__, error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, HERE / "helpers"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.split() == ["PermissionError", "13", "OSError", "22", "PermissionError", "13"]
