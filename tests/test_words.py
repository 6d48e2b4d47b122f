"""One word, one meaning: family names only in their records, and none of the words that were replaced."""

import ast
import re
from pathlib import Path

import pytest

from pencil.families import FAMILIES

SRC = Path(__file__).parents[1] / "src" / "pencil"
FILES = sorted(SRC.rglob("*.py"))
PAGE = ("learn/katas/", "examples/")  # document 000's own words
REPLACED = re.compile(r"\b(said|told|untold)\b", re.IGNORECASE)


def literals(path: Path) -> list[tuple[int, str]]:
    """The string literals of a file that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [(node.lineno, node.value) for node in found if id(node) not in docs]


def named(path: Path) -> list[tuple[int, str]]:
    return [(line, text) for line, text in literals(path) if text in FAMILIES]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_familys_name_is_a_literal_only_in_its_record(path):
    where = path.relative_to(SRC).as_posix()
    if where.startswith("families/"):
        # its own name, as the name of its record; and the keys of other libraries' checkpoint maps
        assert {text for _, text in named(path)} <= {path.stem}, named(path)
        return
    if where.startswith("weights/"):
        return  # other libraries' model_type
    assert named(path) == []


def test_every_record_has_its_name_once():
    for name in FAMILIES:
        path = SRC / "families" / f"{name}.py"
        assert any(text == name for _, text in literals(path)), path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_replaced_words_are_gone(path):
    where = path.relative_to(SRC).as_posix()
    if where.startswith(PAGE):
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{where}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if REPLACED.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "word",
    ["classifier-free guidance", "sinusoidal", "prefetch", "arithmetic intensity", "activation recomputation",
     "perplexity", "exact match", "prediction target", "logits", "prefill", "decode"],
)  # fmt: skip
def test_the_fields_words_stand_in_the_source(word):
    assert any(word in path.read_text(encoding="utf-8").lower() for path in FILES)
