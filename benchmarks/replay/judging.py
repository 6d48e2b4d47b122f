"""Run a command, and judge what it said and the card of the run that it wrote."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open


class Failed(Exception):
    """What is wrong with a step."""


def fresh(words: list[str]) -> tuple[int, str]:
    """A command in a process of its own, as it is typed."""
    ended = subprocess.run([sys.executable, "-m", "pencil", *words], capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def here(words: list[str]) -> tuple[int, str]:
    """A command in this process, which has torch loaded already."""
    from pencil.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(words)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return code, out.getvalue()


def judge(text: str, ended: int, code: int, says: tuple[str, ...], never: str = "") -> None:
    last = " / ".join(text.strip().splitlines()[-3:])
    if "Traceback" in text:
        raise Failed(f"a traceback: {last}")
    if ended != code:
        raise Failed(f"status {ended}, not {code}: {last}")
    for sentence in says:
        if not re.search(sentence, text, re.S):
            raise Failed(f"it does not say {sentence!r}: {last}")
    if never and re.search(never, text):
        raise Failed(f"it says {never!r}")


def check_card(run: Path) -> None:
    """Compare the card with what the weights' file and the measurements record."""
    card = (run / "README.md").read_text(encoding="utf-8")
    with safe_open(run / "model.safetensors", "np") as file:
        facts = file.metadata()
    found = re.search(r"are those of step (\d+)", card)
    if not found or found[1] != facts["step"]:
        raise Failed(f"the card of {run} is of step {found and found[1]}, the weights of step {facts['step']}")
    measures = re.search(
        r"^\| measure on held-out data \|.*\n((?:\|.*\n)+)", card, re.M
    )  # below it, a table of classes
    rows = dict(re.findall(r"^\| (\w+) \| ([\d.,-]+)", measures[1] if measures else "", re.M))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = next((one for one in reversed(lines) if one["step"] == int(facts["step"]) and "val_loss" in one), None)
    if measured is None and rows:
        raise Failed(f"the card of {run} has metrics, and step {facts['step']} was never evaluated")
    for name, shown in rows.items():
        if name not in facts or abs(float(shown) - float(facts[name])) > 6e-5:
            raise Failed(f"the card of {run} has {name} {shown}, the weights {facts.get(name)}")
        if measured is not None and abs(float(shown) - measured[name]) > 6e-5:
            raise Failed(f"the card of {run} has {name} {shown}, metrics.jsonl {measured[name]}")


def check_eval(run: str, name: str) -> str:
    """Evaluate the weights themselves against the card."""
    ended, text = here(["eval", run, "--json"])
    judge(text, ended, 0, ())
    found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))[name]
    shown = float(dict(re.findall(r"^\| (\w+) \| ([\d.-]+)", (Path(run) / "README.md").read_text(), re.M))[name])
    if abs(found - shown) > 1e-3:
        raise Failed(f"eval gives {name} {found}, the card {shown}")
    return f"{name} {shown} as the card says"
