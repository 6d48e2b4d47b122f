"""The headings of a document in a reader's own file: Markdown, the text of a page, or the feed of a blog."""

import html
import re
from pathlib import Path

from ...config import UserError
from ...files import check_regular
from .data import Document

MAX_BYTES = 20_000_000
FEED = re.compile(r"<entry><title[^>]*>(?P<post>.*?)</title>|<h(?P<n>[23])[^>]*>(?P<part>.*?)</h(?P=n)>")
MARKS = re.compile(r"\s*(?P<marks>#{1,6}|>>) +(?P<title>\S.*?)\s*(?:\{#[^}]*\})?$")
BOLD = re.compile(r"\*\*(?P<title>[^*]+)\*\*$")
SIGNS = {"**": "", "$": "", "\\(": "", "\\)": "", "\\ell": "ℓ", "\\dots": "…", "\\rightarrow": "→"}


def headings(text: str) -> list[tuple[int, str]]:
    """The headings of a text with their line numbers, with a mark for every level."""
    read: list[tuple[int, str]] = []
    lines = text.split("\n")
    feed = "<feed" in text[:2000]
    code = False
    for number, line in enumerate(lines, 1):
        if feed:
            for one in FEED.finditer(line):
                read.append((number, "#" * int(one["n"] or 1) + " " + _plain(one["post"] or one["part"])))
            continue
        code ^= line.lstrip().startswith("```")
        if code:
            continue
        if one := MARKS.match(line):
            marks = one["marks"].replace(">>", "###")
            # quoted remarks begin with >> too; only the reader's turn is a heading
            if one["marks"] != ">>" or one["title"].startswith("YOUR TURN"):
                read.append((number, f"{marks} {_plain(one['title'])}"))
        elif not read and (one := BOLD.match(line)):
            read.append((number, f"# {_plain(one['title'])}"))
    return read


def _plain(title: str) -> str:
    """A heading without its markup."""
    title = html.unescape(re.sub(r"<[^>]+>", "", title))
    title = re.sub(r"\\sqrt\{(\w+)\}", r"√\1", title).replace("^{(", "^(").replace(")}", ")")
    for sign, letter in SIGNS.items():
        title = title.replace(sign, letter)
    return title.strip()


def check_headings(document: Document, path: Path) -> None:
    """Refuse a file that is not the document of a walk: with other headings, or with these on other lines."""
    if not path.exists() or path.is_dir():
        raise UserError(f"there is no file {path}")
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is larger than the {MAX_BYTES:,} bytes a document may have")
    read = headings(content.decode("utf-8-sig", errors="replace"))
    entries = sorted(document.sections, key=lambda entry: entry.lines)
    for at, entry in enumerate(entries):
        if at >= len(read):
            raise UserError(f"{path} is not the document of this walk: it has no heading {entry.heading!r}")
        line, heading = read[at]
        if heading != entry.heading:
            raise UserError(
                f"{path} is not the document of this walk: heading {at + 1} is {heading!r} (line {line}), "
                f"and in the walk {entry.heading!r}"
            )
        if entry.lines[1] and not entry.lines[0] <= line <= entry.lines[1]:
            raise UserError(
                f"{path} has {heading!r} on line {line}; the walk has it in lines {entry.lines[0]}–{entry.lines[1]}"
            )
    if len(read) > len(entries):
        line, heading = read[len(entries)]
        raise UserError(f"{path} is not the document of this walk: it has one more heading, {heading!r} (line {line})")
