"""Words of others (prompts, labels, names) stay words: in the page, driven in a browser, and in a spreadsheet."""

import re

import pytest
import torch
from torch import nn

import spreadsheet
from pencil.tracing import file, html
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import read
from pencil.tracing.xlsx import write
from traced import unchecked

ATTACKS = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "'-window.hacked=1-'",
    "javascript:window.hacked=1",
    "<!--<script>",
    "${window.hacked=1}",
]
FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", '=HYPERLINK("http://x")', "\t=1+1", "'=1+1", "\x1b[31m=1", "{=1+1}"]


@unchecked()
def hostile(words, **more):
    """A trace whose labels, tensors, facts and modules have these names."""
    torch.manual_seed(5)
    count = len(words)
    model = nn.Sequential()
    model.add_module(words[0].replace(".", ""), nn.Linear(count, 3, dtype=torch.float64))
    model.add_module(words[1].replace(".", ""), nn.Softmax(-1))
    t = trace(model, torch.rand(2, count, dtype=torch.float64), words={"T": words, **more}, facts={"text": words[0]})
    for i, n in enumerate(t.graph.nodes):
        n.symbol, n.formula = words[i % count], words[(i + 1) % count]
        if len(n.shape) == 2 and n.shape[-1] == count:
            n.axes = "B T"
    return t


@pytest.mark.parametrize("policy", [True, pytest.param(False, marks=pytest.mark.long)])
def test_nothing_in_a_page_runs(browser, tmp_path, policy):
    """The policy of the page would stop most of it: what is shown is inert without the policy, too."""
    made = html.page(hostile(ATTACKS), ATTACKS[0], ATTACKS[1], start=ATTACKS[2])
    if not policy:
        made, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", made)
        assert count == 1
    (tmp_path / "page.html").write_text(made, encoding="utf-8")
    page, wrong = browser.new_page(), []
    page.set_default_timeout(10_000)
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#tensors a")
    assert page.title() == f"Numbers · {ATTACKS[0]}"
    assert page.inner_text("h1") == ATTACKS[0]
    assert page.inner_text("header p") == ATTACKS[1]
    page.check(".every input")
    for link in page.locator("#tensors a").all():
        link.click()
        page.locator("#tensor td").first.click()
        page.locator("#receipt a").first.click() if page.locator("#receipt a").count() else None
    shown = page.inner_text("body")
    assert all(attack in shown for attack in ATTACKS[:3])
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, svg, iframe, [onerror], [onload], a[href^=javascript]").count() == 0
    assert page.locator("script").count() == 4
    page.close()
    assert wrong == []


@unchecked()
def test_a_table_in_a_notebook_is_inert():
    t = hostile(ATTACKS)
    for name in t.names:
        for made in (html.table(t[name]), t._repr_html_(), html.frame(t, ATTACKS[0], ATTACKS[1])):
            assert not re.search(r"<(script|img|svg)", made)


@unchecked()
def test_words_stay_words_in_a_spreadsheet(tmp_path):
    t = hostile(FORMULAS)
    write(t, tmp_path / "words.xlsx")
    books = [spreadsheet.read(tmp_path / "words.xlsx")]
    if spreadsheet.OFFICE:
        books += spreadsheet.recalculated([tmp_path / "words.xlsx"], tmp_path / "office").values()
    formulas = {sheet: set(found.formulas) for sheet, found in books[0].items()}
    for sheets in books:
        texts = {value for found in sheets.values() for value in found.values.values() if isinstance(value, str)}
        for word in FORMULAS:
            assert word.replace("\x1b", "\\x1b") in texts
        assert {sheet: set(found.formulas) for sheet, found in sheets.items()} == formulas
        assert not any(found.errors for found in sheets.values())
        assert not any("HYPERLINK" in formula for found in sheets.values() for formula in found.formulas.values())


@unchecked()
def test_a_trace_file_with_words_of_others_gives_the_same_page_and_workbook(tmp_path):
    t = hostile(FORMULAS)
    file.write(t, tmp_path / "t.safetensors")
    again = read(tmp_path / "t.safetensors")
    assert html.page(again, "a") == html.page(t, "a")


@unchecked()
def test_words_that_are_no_text_are_written_out(tmp_path):
    html.write(hostile(["half \ud800", "\x9b31m", "\u202egnp"]), tmp_path / "page.html", "\x1b[31m \udcff")
    made = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>\\x1b[31m \\udcff</title>" in made
    assert "half \\ud800" in made
    assert not {"\x1b", "\x9b", "\u202e"} & set(made)


@unchecked()
def test_long_words_and_odd_names_of_sheets_are_written(tmp_path):
    words = ["a" * 40_000, "\ud800", "b\0c", "[x]:*?/\\'"]
    t = hostile(words)
    for i, n in enumerate(t.graph.nodes):
        n.name = f"\x1b[1m.{i}.x"
    write(t, tmp_path / "odd.xlsx")
    sheets = spreadsheet.read(tmp_path / "odd.xlsx")
    texts = {value for found in sheets.values() for value in found.values.values() if isinstance(value, str)}
    assert "a" * 32_766 + "…" in texts
    assert "\\ud800" in texts
    assert not any("\x1b" in name for name in sheets)
