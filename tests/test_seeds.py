"""docs/seeds.md is generated from tests/seeds/*.toml: python tests/test_seeds.py writes it.

Five documents taught what this library does. Each table of tests/seeds has the headings of one of them, in order, and
for each the line of code, the command and the test that carry it, and what the document has wrong there.
"""

import ast
import html
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from pencil.config import UserError
from pencil.learn.check import check, count, shipped

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "pencil"
PAGE = HERE.parent / "docs" / "seeds.md"
LESSONS = HERE.parent / "docs" / "teaching.md"
DOCUMENTS = HERE.parents[1] / "shared" / "seeds"  # not part of the repository
ERRATA = range(1, 56)
HEAD = """# The five documents, heading by heading

Pencil was built from five texts that explain transformers. Here is every heading of each, the line of code that carries
it, a command to see it, a test that proves it, and what the text has wrong. This page is written by
`python tests/test_seeds.py` from the tables in [tests/seeds](../tests/seeds); the suite fails when a line has moved, a
command or a test is gone, or a heading is missing. Corrections are numbered 1 to 55; those of numbers are what
`pencil check` prints, and the right ones are in [tests/golden.json](../tests/golden.json). `runs/notes-gpt` stands for
a run of your own.
"""


@cache
def maps() -> dict[str, dict]:
    """The table of each document, by its number."""
    return {path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted((HERE / "seeds").glob("*.toml"))}


def rows(table: dict) -> list[dict]:
    """Those that something carries."""
    return [row for row in table["row"] if "nothing" not in row]


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def extents(path: Path) -> dict[str, tuple[int, int]]:
    """The first and the last line of each class and function, by its dotted name."""
    found = {}

    def walk(node: ast.AST, inside: str) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.ClassDef | ast.FunctionDef):
                name = f"{inside}{part.name}"
                found[name] = part.lineno, part.end_lineno
                walk(part, f"{name}.")

    walk(ast.parse(text_of(path)), "")
    return found


def line_of(path: Path, quote: str, within: str | None = None) -> int:
    """The line the quoted code stands on; it must be there once, and only once."""
    lines = text_of(path).split("\n")
    first, last = (1, len(lines)) if within is None else extents(path)[within]
    found = [n for n in range(first, last + 1) if quote in lines[n - 1]]
    if len(found) != 1:
        raise LookupError(f"{path.name} has {quote!r} {len(found)} times")
    return found[0]


def page() -> str:
    return HEAD + "".join(section(number, table) for number, table in maps().items())


def section(number: str, table: dict) -> str:
    """One document's part of the page."""
    counted = ", ".join(f"{n} {verdict}" for verdict, n in count(check(shipped()[table["check"]]).steps).items())
    lines = [f"\n## {number} · {table['title']}\n", f"`pencil check {table['check']}`: {counted}.\n"]
    lines += ["| heading | code | command | test | correction |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows(table)]
    without: dict[str, list[str]] = {}
    for row in table["row"]:
        if "nothing" in row:
            without.setdefault(row["nothing"], []).append(row["heading"].lstrip("# "))
    lines += [f"\nCarried by nothing: {'; '.join(titles)} ({why})." for why, titles in without.items()]
    return "\n".join(lines) + "\n"


def cells(row: dict) -> tuple[str, ...]:
    """A row of the page: heading, code, command, test, correction."""
    level, title = row["heading"].split(" ", 1)
    title = title + (f": {row['about']}" if "about" in row else "")
    title = {"#": f"**{title}**", "##": title, "###": f"· {title}"}[level]
    line = line_of(SOURCE / row["code"], row["line"], row.get("within"))
    code = f"{ticked(row['line'])}<br>[{row['code']}:{line}](../src/pencil/{row['code']}#L{line})"
    tests = [test.split("::") for test in row["tests"]]
    named = [f"[{name.removeprefix('test_').replace('_', ' ')}](../tests/{path})" for path, name in tests]
    wrong = [f"{number}. {said}" for number, said in row.get("errata", ())]
    ways = "<br>".join(map(ticked, row["commands"]))
    return title, code, ways, "<br>".join(named), "<br>".join(wrong).replace("|", "\\|") or "—"


def ticked(code: str) -> str:
    return "`" + code.replace("|", "\\|") + "`"


def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/test_seeds.py writes it anew"


def test_every_link_of_the_page_leads_to_the_line_it_quotes():
    links = re.findall(r"`([^`]+)`<br>\[[^\]]+\]\(\.\./(src/[^#)]+)#L(\d+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) == sum(len(rows(table)) for table in maps().values())
    for quote, path, line in links:
        there = text_of(HERE.parent / path).split("\n")[int(line) - 1]
        assert quote.replace("\\|", "|") in there, f"{path}:{line}"


def test_a_quote_that_is_gone_or_there_twice_is_refused(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("def a():\n    return 1\n\n\nclass B:\n    def c(self):\n        return 1\n        return 2\n")
    assert line_of(path, "return 2") == 8
    assert [line_of(path, "return 1", name) for name in ("a", "B.c")] == [2, 7]
    for quote in ("return 1", "return 3"):
        with pytest.raises(LookupError):
            line_of(path, quote)


def test_every_row_says_what_carries_it_or_why_nothing_does():
    whole, allowed = {"heading", "code", "line", "commands", "tests"}, {"about", "within", "errata"}
    for number, table in maps().items():
        assert table.keys() == {"title", "check", "row"}, number
        for row in table["row"]:
            if "nothing" in row:
                assert row.keys() == {"heading", "nothing"}, row["heading"]
                assert row["nothing"], row["heading"]
            else:
                assert whole <= row.keys() <= whole | allowed, row["heading"]
                assert row["commands"], row["heading"]
                assert row["tests"], row["heading"]


@pytest.mark.parametrize(
    "test", sorted({test for table in maps().values() for row in rows(table) for test in row["tests"]})
)
def test_every_test_named_is_there(test):
    path, name = test.split("::")
    assert name.startswith("test_")
    assert name in extents(HERE / path)


def test_every_correction_stands_in_one_document_only_and_none_is_left_out():
    found = [{number for row in rows(table) for number, _ in row.get("errata", ())} for table in maps().values()]
    assert [number for part in found for number in sorted(part)] == list(ERRATA)


@cache
def kept() -> dict:
    """The worked examples, each made once for all commands."""
    from pencil.learn.examples import EXAMPLES

    return {name: cache(make) for name, make in EXAMPLES.items()}


COMMANDS = sorted({way for table in maps().values() for row in rows(table) for way in row["commands"]})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_does_what_it_says(command, tmp_path, monkeypatch, capsys):
    """What takes long, asks, or needs a run is not begun: its words are understood, and what they name is there."""
    from pencil.cli.main import main

    words = understood(command)
    verb = words[0]
    if verb in ("heads", "sample", "train") or (verb in ("kata", "lab") and words[1:]):
        return
    monkeypatch.setattr("pencil.learn.examples.EXAMPLES", kept())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().out
    assert ended.value.code == 0 or (verb == "check" and " wrong" in said)
    assert verb != "why" or "✓" in said
    written = [tmp_path / words[i + 1] for i, word in enumerate(words) if word in ("--png", "--html")]
    assert said.strip() or written
    assert all(path.stat().st_size for path in written)


def understood(command: str) -> list[str]:
    """The words of a command, once its verb, its options and what they name were found."""
    from pencil.cli.main import app
    from pencil.config import fitted, overrides
    from pencil.learn.katas import KATAS, PAGES
    from pencil.learn.lab import claims
    from pencil.models import family as family_of
    from pencil.train.start import NAMED

    first, *words = shlex.split(command)
    assert first == "pencil"
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    topics = {kata.topic for kata in KATAS.values()}
    names = {"kata": {"name": KATAS, "page": PAGES, "topic": topics}, "lab": {"name": {*claims(), "all"}}}
    for word, known in names.get(words[0], {}).items():
        assert bound.arguments.get(word) is None or bound.arguments[word] in known, command
    if words[0] == "train":
        family, data = bound.arguments["family"], bound.arguments["data"]
        assert data in NAMED[family] or data == "notes.txt", command
        fitted(family_of(family).config, overrides(list(bound.arguments.get("settings", ())), ("model",))["model"])
    return words


def test_every_command_of_the_lessons_is_understood():
    found = re.findall(r"(?:^\$ |`)(pencil [^`\n]+)", LESSONS.read_text(encoding="utf-8"), re.M)
    assert len(found) > 20
    for command in found:
        understood(command)
    for slip in ("pencil lab nothing", "pencil kata --topic cooking", "pencil train gpt --data scenes"):
        with pytest.raises(AssertionError):
            understood(slip)
    for slip in ("pencil shew", "pencil lab --slow", "pencil train gpt --data pydoc --model.seats 3"):
        with pytest.raises((CycloptsError, UserError)):
            understood(slip)


needs_documents = pytest.mark.skipif(not DOCUMENTS.is_dir(), reason=f"the documents themselves are not in {DOCUMENTS}")
SIGNS = {"**": "", "$$": "", "\\(": "", "\\)": "", "\\ell": "ℓ", "\\dots": "…", "\\rightarrow": "→"}


def plain(title: str) -> str:
    """A title without its markup."""
    title = re.sub(r"\s*\{#[^}]*\}", "", re.sub("<[^>]+>", "", html.unescape(title)))
    title = re.sub(r"\$?\\sqrt\{(\w+)\}\$?", r"√\1", title).replace("^{(", "^(").replace(")}", ")")
    for sign, letter in SIGNS.items():
        title = title.replace(sign, letter)
    return title.strip()


def headings(number: str, text: str) -> list[str]:
    """The headings of a document, each with a mark for every level."""
    if number == "003":
        found = re.finditer(
            r"<entry><title[^>]*>(?P<post>.*?)</title>|<h(?P<n>[23])[^>]*>(?P<part>.*?)</h(?P=n)>", text
        )
        return [f"{'#' * int(m['n'] or 1)} {plain(m['post'] or m['part'])}" for m in found]
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)  # a comment in code is no heading
    if number == "000":
        return [
            re.sub("^>>", "###", line.strip()) for line in text.split("\n") if re.match(r"\s+(## |>> YOUR TURN)", line)
        ]
    if number == "004":
        text = re.sub(r"^\*\*(Setup .*)\*\*$", r"# \1", text, flags=re.M)
    return [f"{m[1]} {plain(m[2])}" for m in re.finditer(r"^(#+) (.+)$", text, re.M)]


@needs_documents
@pytest.mark.parametrize("number", maps())
def test_the_headings_are_those_of_the_document(number):
    (path,) = DOCUMENTS.glob(f"{number}_*.txt")
    assert [row["heading"] for row in maps()[number]["row"]] == headings(number, path.read_text("utf-8"))


@needs_documents
@pytest.mark.parametrize("number", maps())
def test_the_corrections_are_those_found_in_the_document(number):
    sections = re.split(r"^## ", (DOCUMENTS / "errata.md").read_text("utf-8"), flags=re.M)
    (mine,) = [part for part in sections if part.startswith(number)]
    listed = [int(n) for n in re.findall(r"^(\d+)\. ", mine, re.M)]
    assert sorted({n for row in rows(maps()[number]) for n, _ in row.get("errata", ())}) == listed


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
