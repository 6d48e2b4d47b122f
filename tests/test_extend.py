"""docs/extend.md: its code is put into a copy of Pencil, and its commands run there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_docs import ROOT, SHORT, blocks, commands, sandbox, words_of  # noqa: F401

PAGE = ROOT / "docs" / "extend.md"
DRIVER = """
import json, sys
from pencil.cli.main import main
for words in json.loads(sys.argv[1]):
    print("$", *words, flush=True)
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{words} ended with {ended.code}")
"""


def applied(text: str, root: Path) -> None:
    """Apply a diff: each part after @@ replaces the lines that it shows, which must be there exactly once."""
    head, *parts = text.split("@@\n")
    path = root / head.splitlines()[1].removeprefix("+++ ")
    for part in parts:
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        source = path.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{path.name} has not exactly one\n{old}"
        path.write_text(source.replace(old, new), encoding="utf-8")


def put(text: str, root: Path) -> None:
    """A block of Python: a new file, or the end of one, as its first line says."""
    first, code = text.split("\n", 1)
    place = first.removeprefix("# ")
    path = root / place.removeprefix("at the end of ")
    before = path.read_text(encoding="utf-8") + "\n\n" if place.startswith("at the end of ") else ""
    assert bool(before) == path.exists()
    path.write_text(before + code, encoding="utf-8")


def extended(folder: Path) -> Path:
    """A copy of the source with the code of the page in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for language, text in blocks(PAGE):
        if language in ("python", "diff"):
            (put if language == "python" else applied)(text, folder)
    return folder / "src"


def test_what_the_page_replaces_is_in_the_source(tmp_path):
    assert (extended(tmp_path) / "pencil" / "families" / "mixer.py").is_file()


@pytest.mark.long
def test_the_additions_of_the_page_work(sandbox, tmp_path):  # noqa: F811
    source = extended(tmp_path)
    entries = [f'msgid "Open file {i}"\nmsgstr "Datei {i} öffnen"\n' for i in range(40)]
    work = tmp_path / "work"
    shutil.copytree(sandbox, work)
    (work / "app.po").write_text("\n".join(entries), encoding="utf-8")
    lines = [words_of(line) for line, _ in commands(PAGE)]
    short = [[*words, *SHORT[2:], "--force"] if words[0] == "train" else words for words in lines]
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(short)],
        cwd=work, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "kerple" in (work / "runs" / "kerple" / "config.toml").read_text()
    assert "gettext; source from msgid" in result.stdout + result.stderr
    assert 'family = "mixer"' in (work / "runs" / "photos-mixer" / "config.toml").read_text()
    assert result.stdout.count("✓") >= 2  # both receipts agree
