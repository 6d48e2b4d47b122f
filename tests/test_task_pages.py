"""What the task pages quote and count is what the source has: error sentences, and how much data is enough."""

import ast
import re
from functools import cache

import pytest

from pencil.config import UserError, build
from pencil.families import family
from pencil.runs.run import Run
from pencil.train.model_selection import MOST_PASSES, MOST_PASSES_AUGMENTED, MOST_PASSES_NOISED
from pencil.train.settings import TrainConfig
from test_docs import ROOT

FIELD = "\0"  # a variable part of a sentence in the source


@cache
def sentences() -> str:
    """Every text of the source, one a line; the parts of an f-string are one text."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else FIELD for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(one.replace("\n", " ") for one in found)


def occurs(quoted: str) -> bool:
    """Whether one text of the source has these words; … is any part of it that varies, or that is left out."""
    parts = [re.escape(part.strip()) for part in quoted.split("…") if part.strip()]
    return bool(re.search(".*".join(parts), sentences()))


def quoted(name: str) -> list[str]:
    """What the first column of the tables quotes."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return [one for one in re.findall(r"^\| `([^`]+)` \|", text, re.M) if " " in one and not one.startswith("pencil ")]


@pytest.mark.parametrize("page", ["guides/troubleshooting.md", "guides/images.md"])
def test_the_sentences_of_a_page_are_those_of_the_source(page):
    found = [one for one in quoted(page) if page == "guides/troubleshooting.md" or "…" in one]
    assert len(found) >= 4
    assert [one for one in found if not occurs(one)] == []
    assert [one for one in found if max(len(part.strip()) for part in one.split("…")) < 12] == []


def test_a_sentence_that_nothing_says_is_noticed():
    assert occurs("there is no run …")
    assert not occurs("there is no run … at all")
    assert not occurs("is being written … choose another --out")  # parts of two sentences


def test_how_much_data_is_enough_follows_from_the_preset():
    text = (ROOT / "docs" / "guides" / "plan-a-run.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) (\w+).* \| ([\d,]+) times \|", text, re.M)
    assert len(rows) == 6
    most = {MOST_PASSES, MOST_PASSES_AUGMENTED, MOST_PASSES_NOISED}
    assert {int(passes.replace(",", "")) for *_, passes in rows} == most
    for name, enough, unit, passes in rows:
        record = family(name)
        train = build(TrainConfig, record.training["nano"])
        each = record.configure("nano").context if unit == "tokens" else 1
        counted = train.steps * train.batch * each // int(passes.replace(",", ""))
        assert int(enough.replace(",", "")) == counted, name


def test_the_name_of_a_run_without_its_folder_is_recognised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "notes-gpt").mkdir(parents=True)
    (tmp_path / "runs" / "notes-gpt" / "config.toml").touch()
    with pytest.raises(UserError, match="^there is no run notes-gpt; did you mean runs/notes-gpt\\?$"):
        Run.open("notes-gpt")
    with pytest.raises(UserError, match="^there is no run runs/other; known: runs/notes-gpt$"):
        Run.open("runs/other")
