"""One word, one meaning: family names only in their records, and none of the words that were replaced."""

import ast
import re
from pathlib import Path

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


def record_of(name: str) -> Path:
    """The file that has the record of a family."""
    return next(p for p in (SRC / "families" / f"{name}.py", SRC / "families" / name / "record.py") if p.is_file())


def test_a_familys_name_is_a_literal_only_in_its_record():
    found = []
    for path in FILES:
        where = path.relative_to(SRC).as_posix()
        if where.startswith("weights/"):
            continue  # other libraries' model_type
        # in its record, its own name; in the others none
        allowed = {name for name in FAMILIES if path == record_of(name)}
        found += [f"{where}:{line}: {text}" for line, text in named(path) if text not in allowed]
    assert not found, "\n".join(found)


def test_every_record_has_its_name_once():
    for name in FAMILIES:
        assert any(text == name for _, text in literals(record_of(name))), name


def test_replaced_words_are_gone():
    found = []
    for path in FILES:
        where = path.relative_to(SRC).as_posix()
        if not where.startswith(PAGE):
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            found += [f"{where}:{i}: {line.strip()}" for i, line in lines if REPLACED.search(line)]
    assert not found, "\n".join(found)
