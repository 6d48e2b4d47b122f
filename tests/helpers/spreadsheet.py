"""Workbooks read, spoilt and changed by hand, and reckoned again by LibreOffice."""

import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from xlsxwriter.utility import xl_rowcol_to_cell

OFFICE = shutil.which("soffice")
SPACE = {
    "m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
}
# without this, LibreOffice believes the values it finds in a file
RECALCULATE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse"><value>0</value></prop></item>
</oor:items>"""


@dataclass
class Sheet:
    """Cells by their place, (row, column) from 0: what they show, and the formulas of those that have one."""

    file: str
    values: dict[tuple[int, int], float | str] = field(default_factory=dict)
    formulas: dict[tuple[int, int], str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def place(cell: str) -> tuple[int, int]:
    letters, digits = re.fullmatch(r"([A-Z]+)(\d+)", cell).groups()
    column = 0
    for letter in letters:
        column = column * 26 + ord(letter) - 64
    return int(digits) - 1, column - 1


def read(path: Path) -> dict[str, Sheet]:
    """A workbook's sheets."""
    with zipfile.ZipFile(path) as book:
        shared = []
        if "xl/sharedStrings.xml" in book.namelist():
            root = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
            shared = [
                "".join(t.text or "" for t in si.iterfind(".//m:t", SPACE)) for si in root.iterfind("m:si", SPACE)
            ]
        links = {
            one.get("Id"): one.get("Target") for one in ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels"))
        }
        sheets = {}
        for entry in ElementTree.fromstring(book.read("xl/workbook.xml")).iterfind(".//m:sheet", SPACE):
            file = "xl/" + links[entry.get(f"{{{SPACE['r']}}}id")].removeprefix("/xl/")
            sheet = sheets[entry.get("name")] = Sheet(file)
            for cell in ElementTree.fromstring(book.read(file)).iterfind(".//m:c", SPACE):
                at, value = place(cell.get("r")), cell.findtext("m:v", None, SPACE)
                kind = cell.get("t", "n")
                if (formula := cell.findtext("m:f", None, SPACE)) is not None:
                    sheet.formulas[at] = formula
                if kind == "e":
                    sheet.errors.append(f"{cell.get('r')}: {value} = {formula}")
                elif value is not None:
                    sheet.values[at] = shared[int(value)] if kind == "s" else float(value) if kind in "nb" else value
        return sheets


def located(sheets: dict[str, Sheet]) -> dict[str, tuple[str, int, int]]:
    """Where each tensor starts, by its name, from the Map."""
    cells = sheets["Map"].values
    head, across = next(at for at, value in cells.items() if value == "cells")
    found = {}
    for (row, column), value in cells.items():
        if column == across and row > head:
            sheet, where = str(value).rsplit("!", 1)
            found[str(cells[row, 1])] = (sheet.strip("'"), *place(where.split(":")[0]))
    return found


def rewritten(path: Path, out: Path, change: Callable[[str, str], str]) -> Path:
    """A copy of a workbook with its parts changed as text."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            raw = old.read(name)
            new.writestr(name, change(name, raw.decode()) if name.endswith(".xml") else raw)
    return out


def poisoned(path: Path, out: Path) -> Path:
    """A copy in which the value of every formula is wrong."""
    return rewritten(path, out, lambda name, text: re.sub(r"(</f><v>)[^<]*(</v>)", r"\g<1>987654321\2", text))


def changed(path: Path, out: Path, file: str, numbers: dict[str, float]) -> Path:
    """A copy in which these typed numbers of one sheet, by their cells, are others."""

    def change(name: str, text: str) -> str:
        if name != file:
            return text
        for cell, value in numbers.items():
            text, count = re.subn(rf'(<c r="{cell}"[^>]*><v>)[^<]*(</v>)', rf"\g<1>{value!r}\2", text)
            assert count == 1, f"{cell} is not a typed number"
        return text

    return rewritten(path, out, change)


def pasted(path: Path, out: Path, source: Sheet, target: Sheet) -> Path:
    """A copy in which the numbers of one sheet are pasted, as values, at the same places of another."""
    numbers = {xl_rowcol_to_cell(*at): v for at, v in source.values.items() if isinstance(v, float)}

    def change(name: str, text: str) -> str:
        if name != target.file:
            return text
        return re.sub(
            r'(<c r="([A-Z]+[0-9]+)"[^>]*><v>)[^<]*(</v>)',
            lambda m: f"{m[1]}{numbers[m[2]]!r}{m[3]}" if m[2] in numbers else m[0],
            text,
        )

    return rewritten(path, out, change)


def recalculated(paths: Sequence[Path], folder: Path) -> dict[str, dict[str, Sheet]]:
    """The workbooks as LibreOffice reckons them, by file name."""
    assert OFFICE
    (folder / "profile/user").mkdir(parents=True)
    (folder / "profile/user/registrymodifications.xcu").write_text(RECALCULATE)
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    command = [OFFICE, profile, "--headless", "--convert-to", "xlsx", "--outdir", str(folder / "out"), *map(str, paths)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {path.name: read(folder / "out" / path.name) for path in paths}
