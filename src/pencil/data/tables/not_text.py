"""What a file is by its first bytes, for an error that says how to make a text of it."""

import codecs
import shlex
from pathlib import PurePath

from ...files import LFS_BEGINNING, LFS_FETCH, LFS_POINTER

MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
AS_TEXT = "save its text as a .txt file in UTF-8"
BEGINNINGS: dict[bytes, tuple[str, str]] = {
    b"%PDF": ("a PDF document", AS_TEXT),
    b"{\\rtf": ("an RTF document", AS_TEXT),
    b"\xd0\xcf\x11\xe0": ("an Office document", AS_TEXT),
    b"PAR1": ("a Parquet table", "save its column of text as a .txt file in UTF-8"),
    b"\x1f\x8b": ("a gzip archive", "unpack it first, with gunzip"),
    b"BZh": ("a bzip2 archive", "unpack it first, with bunzip2"),
    b"\xfd7zXZ": ("an xz archive", "unpack it first, with unxz"),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", "unpack it first, with unzstd"),
    b"\x89PNG": ("a picture", "give a text"),
    b"\xff\xd8\xff": ("a picture", "give a text"),
    b"GIF8": ("a picture", "give a text"),
    b"SQLite format 3": ("a database", "export its text"),
    LFS_BEGINNING: (LFS_POINTER, LFS_FETCH),
}
ZIPPED = {
    ".docx": ("a Word document", AS_TEXT), ".odt": ("an OpenDocument text", AS_TEXT), ".epub": ("an e-book", AS_TEXT),
    ".xlsx": ("an Excel workbook", "save its sheet as CSV in UTF-8"),
    ".ods": ("a spreadsheet", "save its sheet as CSV in UTF-8"),
}  # fmt: skip
# text with something besides its words, by the ending of the name
WRITTEN_AS = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), ("a table", "its delimiters and quotes")),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), ("JSON", "its braces and keys")),
    **dict.fromkeys((".html", ".htm", ".xhtml", ".xml", ".svg"), ("markup", "its tags")),
    **dict.fromkeys((".srt", ".vtt"), ("subtitles", "their times")),
    ".ipynb": ("a notebook", "its JSON"),
    ".tex": ("LaTeX", "its commands"),
}


def to_utf8(name: str, line: int, begins: bool, content: bytes) -> str:
    """How to make UTF-8 of a file that is not from this line on; `begins` is whether it has other UTF-8 before.

    The most usual other encoding is Windows-1252, of which Latin-1 is a part. A file of both is not converted whole:
    that would make wrong letters of those that are right. `content` is the file, or the beginning of a large one.
    """
    if begins:
        return (
            f"what comes before is, so the file has two encodings: save what begins in line {line} as UTF-8, and leave "
            "the rest as it is"
        )
    if _partly_utf8(content):
        return (
            f"other lines are, so the file has two encodings: save line {line}, and the others that are not, as UTF-8, "
            "and leave the rest as it is"
        )
    file = shlex.quote(PurePath(name).name)
    return f"if it is Latin-1 or Windows-1252, convert it: iconv -f cp1252 -t utf-8 {file} > utf8-{file}"


def _partly_utf8(content: bytes) -> bool:
    """Whether of the lines with other letters than ASCII's a tenth are UTF-8; in another encoding, one rarely is."""
    others = [line for line in content.split(b"\n") if not line.isascii()]
    in_utf8 = sum(line == line.decode(errors="ignore").encode() for line in others)
    return in_utf8 > 0 and 10 * in_utf8 >= len(others)


def not_text(head: bytes, name: str) -> str | None:
    """What a file is, and the mend, if its first bytes are those of something else than text in UTF-8."""
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            return f"{encoding} text; save it as UTF-8"
    if head.startswith(b"PK\x03\x04"):
        kind, mend = ZIPPED.get(PurePath(name).suffix.lower(), ("a zip archive", "unpack it first, with unzip"))
        return f"{kind}; {mend}"
    for beginning, (kind, mend) in BEGINNINGS.items():
        if head.startswith(beginning):
            return f"{kind}; {mend}"
    sides = [head[side:1000:2] for side in (0, 1)]
    if any(side and side.count(0) > 0.8 * len(side) for side in sides):  # of Latin letters every other byte is zero
        return "UTF-16 text; save it as UTF-8"
    return None
