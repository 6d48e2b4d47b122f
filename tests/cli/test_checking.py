"""`pencil check` as an author types it: its report, its exit status, and one sentence for a file it cannot read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pencil.learn.check.check import shipped
from pencil.learn.check.functions import COUNTED, FUNCTIONS

RIGHT = """\
title = "Two numbers"
[inputs]
x = [1, 2]

[[step]]
name = "third"
formula = "x / 3"
printed = "0.333 0.667"
line = 12
"""
SLIP = RIGHT.replace("0.667", "0.670")
ROUNDED = RIGHT + '\n[[step]]\nname = "back"\nformula = "third * 3"\nprinted = "0.999 2.001"\n'


@pytest.fixture
def write(tmp_path):
    def call(content, name="post.toml"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return call


def test_right_is_exit_0(type_in, write):
    said = type_in("check", write(RIGHT))
    assert said.out.splitlines() == [
        "Two numbers  post.toml",
        "  line 12   third  2 right",
        "",
        "2 right, 0 rounded along the way, 0 wrong",
    ]


def test_rounded_is_exit_0_too(type_in, write):
    said = type_in("check", write(ROUNDED))
    assert "[0]  0.999  should be 1.000  rounded along the way" in said.out
    assert said.out.endswith("2 right, 2 rounded along the way, 0 wrong\n")


def test_wrong_is_exit_1_and_shows_the_true_value(type_in, write):
    said = type_in("check", write(SLIP), code=1)
    assert re.search(r"third +1 right, 1 wrong\n +\[1\]  0\.670  should be 0\.6667  wrong\n", said.out)
    assert said.out.endswith("1 right, 0 rounded along the way, 1 wrong\n")
    assert not said.err


def test_several_files_are_added_up(type_in, write):
    said = type_in("check", write(RIGHT, "a.toml"), write(SLIP, "b.toml"), code=1)
    assert said.out.endswith("\n3 right, 0 rounded along the way, 1 wrong\n")


def test_json_says_the_same(type_in, write):
    told = json.loads(type_in("check", write(SLIP), "--json", code=1).out)
    assert told["counts"] == {"right": 1, "rounded along the way": 0, "wrong": 1}
    (file,) = told["files"]
    (step,) = file["steps"]
    assert (file["file"], file["title"], step["name"], step["line"]) == ("post.toml", "Two numbers", "third", 12)
    wrong = step["numbers"][1]
    assert (wrong["index"], wrong["printed"], wrong["true"], wrong["verdict"]) == ([1], "0.670", "0.6667", "wrong")
    assert wrong["exact"] == 2 / 3
    infinite = RIGHT.replace("x / 3", "x / 0").replace("0.333 0.667", "inf inf")
    text = type_in("check", write(infinite), "--json").out
    assert json.loads(text, parse_constant=pytest.fail)["files"][0]["steps"][0]["numbers"][0]["exact"] == "inf"


def test_the_shipped_examples_by_name_by_beginning_and_all(type_in):
    names = list(shipped())
    assert [name[:3] for name in names] == ["000", "001", "002", "003", "004"]
    by_name = type_in("check", "002-first-principles", code=1).out
    assert by_name == type_in("check", "002", code=1).out
    assert re.search(r"about_in_GB +10  should be 10.7  wrong\n", by_name)
    together = type_in("check", "--all", code=1).out
    assert all(f"  {name}\n" in together for name in names)
    assert by_name.rsplit("\n\n", 1)[0] in together
    assert re.search(
        r"\nnumbers: \d+ right, 3 rounded along the way, \d+ wrong\nclaims: \d+ shown, \d+ not shown, \d+ wrong\n$",
        together,
    )


def test_plain_when_piped_and_colours_only_where_wanted(write, tmp_path):
    write(SLIP)

    def shown(**wanted):
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        words = [sys.executable, "-m", "pencil", "check", "post.toml"]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=kept | wanted).stdout

    assert "\x1b" not in shown()
    coloured = shown(FORCE_COLOR="1", TERM="xterm-256color")
    assert re.search(r"\x1b\[[0-9;]*31m", coloured)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1"))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == shown()


def test_nothing_heavy_is_loaded():
    """Unless a formula counts what a model costs."""
    code = (
        "import sys\nfrom pencil.cli.main import main\n"
        "try: main(['check', '000', '001', '004'])\nexcept SystemExit: print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "False False"


def step(formula="x", **keys):
    lines = [f'{key} = "{value}"' for key, value in keys.items()]
    return "\n".join(["[inputs]", "x = [1, 2]", "", "[[step]]", f'formula = "{formula}"', *lines])


@pytest.mark.parametrize("content, said", [
    ("", "line 1: there is no [[step]] to check, and no [[claim]]"),
    ("title = 'x'\n[inputs]\nx = = 3\n", "line 3: invalid value"),
    ("title = 'x\n", "line 1: "),
    ("title = 'x'\n\nprinted = [1,\n\n\n", "line 3: "),
    ("[inputs]\nx = 1\nx = 2\n", "line 3: cannot overwrite a value"),
    ("x = " + "[\n" * 2000, "line 2000: nested too deeply"),
    ("\nx = " + "9" * 5000, "line 2: a number has too many digits"),
    (b"title = 'caf\xe9'", "line 1: not UTF-8 text"),
    (b"title = 'x'\nsource = '\xff'", "line 2: not UTF-8 text"),
    (b"\0\1\2", "line 1: "),
    ("title = 3\n[[step]]\nformula = '1'", "line 1: title must be text in quotes"),
    ("titel = 'x'\n[[step]]\nformula = '1'", "line 1: titel is not understood here; did you mean title?"),
    ("[[step]]\nformula = '1'\n\n[input]\nx = 1", "line 4: input is not understood here; did you mean inputs?"),
    ("inputs = 3\n[[step]]\nformula = '1'", "line 1: inputs must be a table, [inputs]"),
    ("\n[step]\nformula = '1'", "line 2: each step must be a table, [[step]]"),
    ("[[step]]\nformula = '1'\n[[step]]\nname = 'b'", "line 3: this step has no formula"),
    ("[[step]]\nformula = 1", "line 2: formula must be text in quotes"),
    ("[[step]]\nformula = '1'\nline = '7'", "line 3: line must be a whole number"),
    ("[[step]]\nformula = '1'\nprinted = 1\nprited = 2", "line 4: prited is not understood here; did you mean printed?"),
    ('[[step]]\nformula = "1"\n"a\\nb\\u001b" = 2', "line 1: a b is not understood here"),
    ("[inputs]\nd-k = 2\n[[step]]\nformula = '1'", "line 2: 'd-k' cannot be used in a formula"),
    ("[inputs]\nx = [[1, 2],\n  [3]]\n[[step]]\nformula = '1'", "line 2: row 1 is 1, and the rows before it 2"),
    ("[inputs]\ny = 1\nx = []\n[[step]]\nformula = '1'", "line 3: there are no numbers here"),
    ("[inputs]\nx = true\n[[step]]\nformula = '1'", "line 2: True is not a number"),
    ("[inputs]\nx = [1,\n  'a']\n[[step]]\nformula = '1'", "line 3: a is not a number"),
    ("[inputs]\nx = 1e999\n[[step]]\nformula = '1'", "line 2: 1e999 is too large"),
    (step("z"), "line 5: nothing above is named z; known: e, inf, pi, x"),
    (step("xx[0] * 2"), "line 5: nothing above is named xx; did you mean x?"),
    (step("sofmax(x)"), "line 5: sofmax is not a function of formulas; did you mean softmax?"),
    (step("softmax(x, x)"), "line 5: softmax(x, x) is not understood; write softmax(x, *, axis=-1)"),
    (step("x +"), "line 5: the formula x + is not understood: invalid syntax"),
    (step("x.sum()"), "line 5: x.sum() is not understood in a formula"),
    (step("x.real"), "line 5: .real is not understood: only .T"),
    (step("x ^ 2"), "line 5: in x ^ 2 ^ is not a power; write **"),
    (step("x @ [1, 2, 3]"), "line 5: in x @ [1, 2, 3] the shapes 2 and 3 do not fit"),
    (step("x + [1, 2, 3]"), "line 5: in x + [1, 2, 3] the shapes 2 and 3 do not fit"),
    (step("[x, 1]"), "line 5: the rows of [x, 1] differ in shape"),
    (step("x[2]"), "line 5: there is no x[2]: the shape is 2"),
    (step("sum(x, axis=4)"), "line 5: sum(x, axis=4) cannot be worked out: axis 4 is out of bounds"),
    (step("arange(1e12)"), "line 5: a value of 1,000,000,000,000 numbers is more than"),
    (step("-" * 1000 + "1"), "line 5: the formula is nested too deeply"),
    (step("(" * 300 + "1" + ")" * 300), "line 5: the formula ((((((("),
    (step("1+" * 2000 + "1"), "line 5: a formula of 4,001 letters is too long"),
    (step("9**9**9", printed="1"), "line 6: the formula gives inf, which cannot be compared with a printed number"),
    (step("x / [1, 0] * 0", printed="0 0"), "line 6: the formula gives nan at [1], which"),
    (step(printed="1 2 3"), "line 6: the printed numbers are 3, and the formula gives 2"),
    (step(printed="1"), "line 6: the printed numbers are a single number, and the formula gives 2"),
    (step("[x, x]", printed="1 2 1 2"), "line 6: the printed numbers are 4, and the formula gives 2×2"),
    (step(printed="1 2,1x"), "line 6: the printed numbers are 3"),
    (step(printed="1 2,,1x".replace("2,", "")), "line 6: 1x is not a number, nor made of the names above"),
    (step(printed="1 2.0.0"), "line 6: 2.0.0 is not a number"),
    (step(printed="1 nan"), "line 6: nan is not a number"),
    (step(printed="1 x"), "line 6: x is not a number"),
    (step(printed=""), "line 6: there are no numbers here"),
    (step(name="x"), "line 6: x is already the name of a value above"),
    (step(name="in"), "line 6: 'in' cannot be used in a formula"),
    ('[[step]]\nformula = "[[1, 2], [3, 4]]"\nprinted = """\n1 2\n3 4,0\n"""', "line 3: row 1 is 3, and the rows before it 2"),
    ('[[step]]\nformula = "[[1, 2], [3, 4]]"\nprinted = """\n1 2\n3 4_?\n"""', "line 5: 4_? is not a number"),
    ('inputs.x = 1\nstep = [\n  {formula = "y"},\n]', "line 2: nothing above is named y"),
])  # fmt: skip
def test_a_file_that_cannot_be_checked_is_named_with_its_line(type_in, write, content, said):
    write(RIGHT, "good.toml")
    shown = type_in("check", "good.toml", write(content), code=2)
    assert not shown.out
    sentence = shown.err.rstrip("\n")
    assert sentence.startswith("pencil: post.toml, " + said)
    assert sentence.isprintable()
    assert len(sentence) < 600


@pytest.mark.parametrize("words, said", [
    ([], "name a file to check, or --all for those that come with pencil: 000-from-pencil, "),
    (["nowhere.toml"], "there is no file nowhere.toml, nor an example of that name"),
    (["002-frist-principles"], "did you mean 002-first-principles?"),
    (["00"], "there is no file 00, nor an example of that name; the examples are 000-from-pencil, 001-notation, 002-"),
    (["005"], "there is no file 005, nor an example of that name; the examples are 000-from-pencil, 001-notation, 002-"),
    (["."], ". is a folder, not an example file"),
    (["big.toml"], "big.toml is larger than the 1,000,000 bytes an example may have"),
    (["--wat"], "--wat"),
])  # fmt: skip
def test_words_that_name_no_file(type_in, write, words, said):
    write(b"#" * 1_000_001, "big.toml")
    shown = type_in("check", *words, code=2)
    assert not shown.out
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_the_report_in_the_docs_is_what_is_printed(type_in, write):
    page = (Path(__file__).parents[2] / "docs" / "teach" / "check-an-example.md").read_text(encoding="utf-8")
    example, report = re.search(r"```toml\n(.*?)```\n\n```\n\$ pencil check strips.toml\n(.*?)```", page, re.S).groups()
    assert type_in("check", write(example, "strips.toml"), code=1).out == report


def test_the_report_of_claims_in_the_docs_is_what_is_printed(type_in, write):
    page = (Path(__file__).parents[2] / "docs" / "teach" / "check-an-example.md").read_text(encoding="utf-8")
    example, report = re.search(
        r"```toml\n([^`]*?)```\n\n```\n\$ pencil check words.toml\n(.*?)```", page, re.S
    ).groups()
    assert type_in("check", write(example, "words.toml"), code=1).out == report


def test_the_docs_name_every_function_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "teach" / "check-an-example.md").read_text(encoding="utf-8")
    table = page[page.index("| number by number") : page.index("`var` and `std` divide")]
    quoted = " ".join(re.findall(r"`([^`]*)`", table))
    assert set(FUNCTIONS) <= set(re.findall(r"\w+", quoted))
    assert set(re.findall(r"(\w+)\(", quoted)) <= set(FUNCTIONS)
    counted = page[page.index("What a model costs is counted") : page.index("## Claims")]
    assert set(re.findall(r"\| `(\w+)\(", counted)) == set(COUNTED)
