"""What is printed: control characters of names and texts are written out, colours stay."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from pencil.cli.screens.terminal import TerminalOutput
from pencil.console import Console, note, visible
from pencil.train.loop.report import ProgressBar

SRC = Path(__file__).parents[1] / "src" / "pencil"
HOSTILE = "\x1b[31mcat\x07\r\x9b2J\x7f\u202egnp\u2066"
SHOWN = "\\x1b[31mcat\\x07\\x0d\\u009b2J\\u007f\\u202egnp\\u2066"


def test_control_characters_are_written_out():
    assert visible(HOSTILE) == SHOWN
    assert visible("two\nlines\tand a tab") == "two\nlines\tand a tab"
    assert visible("two\nlines\t\u2028", one_line=True) == "two\\x0alines\\x09\\u2028"
    assert visible("caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f600") == "caf\u00e9 \u05e9\u05dc\u05d5\u05dd \U0001f600"
    assert visible("caf\udce9") == "caf\\udce9"  # a byte of a name that is no UTF-8


def test_there_is_one_console():
    """Rich's own console prints whatever it is given."""
    found = [
        path.name
        for path in SRC.rglob("*.py")
        if "rich.console" in path.read_text() or "rich import console" in path.read_text()
    ]
    assert found == ["console.py"]


def test_json_stays_json():
    written = visible(json.dumps({"name": HOSTILE}, ensure_ascii=False))
    assert json.loads(written) == {"name": HOSTILE}
    assert "\x9b" not in written


def test_tables_and_texts_keep_their_colours_and_lose_those_of_others():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=200)
    table = Table(title=Text(HOSTILE))
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE, "bold red"))
    console.print(table)
    console.print(HOSTILE, markup=False)
    shown = out.getvalue()
    assert "\x1b[1;31m\\x1b[31mcat" in shown  # our colour, then theirs written out
    assert not {"\x07", "\r", "\x9b", "\x7f", "\u202e", "\u2066"} & set(shown)
    assert "\x1b[31mcat" not in shown.replace("\\x1b[31mcat", "")


def test_notes_and_lines_beside_the_bar(capsys):
    note(f"[bold]skipped[/] {HOSTILE}", "runs/a\nwhole    runs/b")  # a name cannot make a line of its own
    assert capsys.readouterr().err == f"[bold]skipped[/] {SHOWN}\nruns/a\\x0awhole    runs/b\n"
    out = io.StringIO()
    ProgressBar(3, 0, "tokens", Console(file=out, width=200)).print(f"step 1 {HOSTILE}\n")
    assert out.getvalue() == f"step 1 {SHOWN}\\x0a\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_generated_text_is_exact_in_a_file_and_written_out_in_a_terminal(terminal, monkeypatch, tmp_path):
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", out)
    TerminalOutput(None).stream(HOSTILE, iter([["a"], ["\x1b[2J"]]))
    TerminalOutput(None).texts([HOSTILE])
    expected = f"{HOSTILE}a\x1b[2J\n{HOSTILE}\n"
    assert out.getvalue() == (visible(expected) if terminal else expected)
    TerminalOutput(tmp_path / "text.txt").texts([HOSTILE])
    assert (tmp_path / "text.txt").read_bytes() == f"{HOSTILE}\n".encode()
