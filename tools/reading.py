"""docs/learn/reading.md: the source in the order of the computation, with a paragraph beside each excerpt.

The page marks each excerpt by a comment, `<!-- source: core/attention.py attend -->`, and has the code below it. This
script puts the code of today there, so that the page cannot drift from the source:

    python tools/reading.py            write the excerpts of the page anew
    python tools/reading.py --check    say which of them are not those of the source, and end with 1
    python tools/reading.py --html F   the page as one HTML file, prose and code side by side
"""

import argparse
import ast
import html
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pencil"
PAGE = ROOT / "docs" / "learn" / "reading.md"
EXCERPT = re.compile(r"<!-- source: (\S+) (\S+) -->\n```python\n(.*?)```\n", re.S)


class Excerpt(NamedTuple):
    """A definition of the source: its file, its name (`Class.method` for a method), and its first line."""

    file: str
    name: str
    line: int
    code: str


def excerpt(file: str, name: str) -> Excerpt:
    """The source of a definition as it is now, with its decorators, at the left margin."""
    text = (SOURCE / file).read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((one for one in body if part in names_of(one)), None)
        if node is None:
            raise LookupError(f"{file} has no {name}: docs/learn/reading.md names it")
        body = getattr(node, "body", [])
    assert node is not None
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    code = "".join(f"{line[node.col_offset :]}\n" for line in lines)
    return Excerpt(file, name, first, code)


def names_of(node: ast.stmt) -> set[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def refreshed(page: str) -> str:
    """The page with the code of today."""

    def put(found: re.Match[str]) -> str:
        return f"<!-- source: {found[1]} {found[2]} -->\n```python\n{excerpt(found[1], found[2]).code}```\n"

    return EXCERPT.sub(put, page)


def stale(page: str) -> list[str]:
    """The excerpts of the page that are not what the source has."""
    return [
        f"{found[1]}: {found[2]}" for found in EXCERPT.finditer(page) if excerpt(found[1], found[2]).code != found[3]
    ]


def count_lines(page: str) -> int:
    """How many lines of source the page shows."""
    return sum(found[3].count("\n") for found in EXCERPT.finditer(page))


STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --code: light-dark(#f6f5f1, #1d1d1f) }
body { font: 17px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 1500px; padding: 1rem 1.5rem 4rem }
section { border-top: 1px solid var(--line); display: grid; gap: 2rem }
section { grid-template-columns: minmax(0, 5fr) minmax(0, 8fr) }
section > div { padding: .6rem 0 }
section > div:first-child { align-self: start; position: sticky; top: 0 }
section.prose { border: 0; display: block; max-width: 46rem }
pre { background: var(--code); font: 13px/1.5 ui-monospace, monospace; margin: .6rem 0; overflow-x: auto }
pre { padding: .8rem 1rem }
code { font-family: ui-monospace, monospace; font-size: .92em } h3 { margin: .6rem 0 .2rem }
.where { color: light-dark(#666, #aaa); font: 13px ui-monospace, monospace }
@media (max-width: 900px) { section { display: block } }
"""


def paragraph(text: str) -> str:
    """Markdown of one paragraph or heading, as far as the page uses it."""
    heading = re.match(r"(#+) (.*)", text)
    if heading:
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>"
    return f"<p>{inline(' '.join(text.split()))}</p>"


def inline(text: str) -> str:
    """Code and emphasis within a line; a link to another page is its words."""
    text = html.escape(text, quote=False)
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def as_html(page: str) -> str:
    """The page as one HTML file: each excerpt beside the paragraphs before it."""
    parts, end = [], 0
    for found in EXCERPT.finditer(page):
        blocks = [one.strip() for one in page[end : found.start()].split("\n\n") if one.strip()]
        chapters = [i for i, one in enumerate(blocks) if re.match(r"#{1,2} ", one)]
        split = next((i for i, one in enumerate(blocks) if one.startswith("### ")), chapters[-1] + 1 if chapters else 0)
        if blocks[:split]:
            parts.append(f'<section class="prose">{"".join(map(paragraph, blocks[:split]))}</section>')
        now = excerpt(found[1], found[2])
        where = f'<p class="where">src/pencil/{now.file}, line {now.line}</p>'
        code = f"<pre>{html.escape(now.code, quote=False)}</pre>"
        parts.append(f"<section><div>{''.join(map(paragraph, blocks[split:]))}</div><div>{where}{code}</div></section>")
        end = found.end()
    rest = [paragraph(one.strip()) for one in page[end:].split("\n\n") if one.strip()]
    parts.append(f'<section class="prose">{"".join(rest)}</section>')
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Reading Pencil</title><style>{STYLE}</style>'
    return f'{head}<meta name="viewport" content="width=device-width"><main>{"".join(parts)}</main></html>\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--html", type=Path)
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if options.check:
        old = stale(page)
        print("\n".join(old) or f"{count_lines(page)} lines of source, all as they are")
        return int(bool(old))
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(as_html(page), encoding="utf-8")
    else:
        PAGE.write_text(refreshed(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
