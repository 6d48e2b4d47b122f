"""docs/proofs.md is generated from the tests that carry a proof mark: python tests/test_proofs.py writes it."""

import ast
from pathlib import Path

import pytest

from pencil.families import FAMILIES

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "proofs.md"
HEAD = """# Proofs

What is proved of each family, and the test that proves it. This page is written by `python tests/test_proofs.py` from
the tests themselves, and the suite fails when it is out of date.

"""


def marked():
    """(proof, family, file, test) for every test that carries a proof mark."""
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.proof":
                    proof, family = (ast.literal_eval(argument) for argument in mark.args)
                    yield proof, family, path.relative_to(HERE.parent).as_posix(), node.name


def page() -> str:
    found = sorted(marked())
    families = sorted({family for _, family, _, _ in found})
    lines = ["| proof | " + " | ".join(families) + " |", "|---" * (len(families) + 1) + "|"]
    for proof in sorted({proof for proof, *_ in found}):
        cells = []
        for family in families:
            tests = [
                f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"
                for p, f, path, name in found
                if (p, f) == (proof, family)
            ]
            cells.append("<br>".join(tests) or "–")
        lines.append(f"| {proof} | " + " | ".join(cells) + " |")
    return HEAD + "\n".join(lines) + "\n"


def test_the_page_of_proofs_is_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page()


CACHED = "cached = uncached under random chunking and mixed lengths"
PROOFS = {
    "parity with a reference on random weights",
    CACHED,
    "observed = fast, values and gradients",
    "one compiled graph, no breaks",
    "declared names = fired names",
    "golden ten-step loss",
    "no operation without a receipt",
}
# a picture, or a text that is all there, is read in one go: there is nothing to cache
WITHOUT = {"vit": {CACHED}, "reader": {CACHED}, "dit": {CACHED}}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_proof_of_the_design_is_there_for_each_family(family):
    found = {proof for proof, its, *_ in marked() if its == family}
    assert found == PROOFS - WITHOUT.get(family, set())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
