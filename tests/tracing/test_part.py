"""A part of a trace: the workbook, the page and the file of chosen tensors, and what they read from outside."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import spreadsheet
from pencil.config import UserError
from pencil.families import configure, create
from pencil.tracing import html, xlsx
from pencil.tracing import trace as opened
from pencil.tracing.file import write as write_file
from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import receipt
from pencil.tracing.subgraph import extract
from traced import unchecked

CLOSE = 1e-12
BIG = 1e307  # how a sheet holds an infinity
TOKENS = ["the", "cat", "sat", "on"]
# what is chosen, and of each tensor that is computed the part that must be in the workbook
PARTS = {
    "block": ["blocks.1.*"],
    "head": ["blocks.0.attn.*[0,head 2]"],
    "rows": ["blocks.1.attn.pattern[0,1,2:]", "logits[0,sat]"],
    "moved": ["norm", "blocks.1.mlp.*"],
}


def _two(keep="auto"):
    torch.manual_seed(0)
    sizes = dict(vocab=11, context=5, width=16, depth=2, heads=4, kv_heads=2, hidden=7)
    model = create("gpt", configure("gpt", None, **sizes)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return trace(model, torch.tensor([[3, 1, 4, 1]]), words={"T": TOKENS}, keep=keep)


@pytest.fixture(scope="module", autouse=True)
def quickly():
    with unchecked():
        yield


@pytest.fixture(scope="module")
def two(quickly):
    return _two()


@pytest.fixture(scope="module")
def books(two, tmp_path_factory):
    """The workbook of each part as it was written; and recalculated from corrupted values, where LibreOffice is."""
    folder, t = tmp_path_factory.mktemp("parts"), two
    paths, written = [], {}
    for name, of in PARTS.items():
        xlsx.write(t, folder / "whole.xlsx", of)
        written[name] = spreadsheet.read(folder / "whole.xlsx")
        paths.append(spreadsheet.poisoned(folder / "whole.xlsx", folder / f"{name}.xlsx"))
    return t, written, spreadsheet.recalculated(paths, folder) if spreadsheet.OFFICE else {}


def _address(text):
    """The name and the index of a part as a workbook writes it."""
    name, _, inside = text.partition("[")
    parts = [slice(*(int(b) if b else None for b in p.split(":"))) if ":" in p else slice(int(p), int(p) + 1)
             for p in inside.rstrip("]").split(",") if p]  # fmt: skip
    return name, tuple(parts)


def _compared(sheets, t, formulas):
    """The largest difference of the cells of named tensors to the trace; the names with formulas, and those without."""
    worst, computed, typed = 0.0, set(), set()
    for text, (sheet, row, column) in spreadsheet.located(sheets).items():
        if "…" in text:
            continue
        name, index = _address(text)
        values = np.clip(t.array(name).astype(float)[index], -BIG, BIG)
        width = values.shape[-1] if values.ndim else 1
        places = [(row + i // width, column + i % width) for i in range(values.size)]
        found = np.array([sheets[sheet].values[at] for at in places])
        worst = max(worst, np.abs(found - values.reshape(-1)).max())
        (computed if any(at in formulas[sheet].formulas for at in places) else typed).add(text)
    return worst, computed, typed


@pytest.mark.parametrize("name", PARTS)
def test_a_part_recalculated_gives_what_the_model_gave(books, name):
    t, written, again = books
    if not again:
        pytest.skip("LibreOffice (soffice) is not installed")
    worst, computed, _ = _compared(again[f"{name}.xlsx"], t, written[name])
    assert computed
    assert worst <= CLOSE
    assert not any(sheet.errors for sheet in again[f"{name}.xlsx"].values())


def _named(t, names):
    """Those of a workbook's names that the model has given."""
    return {name for name in names if t.graph.nodes[t.find(_address(name)[0])].named}


def test_a_block_has_its_own_tensors_and_reads_the_rest_as_values(books):
    t, written, _ = books
    worst, computed, typed = _compared(written["block"], t, written["block"])
    assert worst == 0
    mine = {name for name in t.names if name.startswith("blocks.1.")}
    moving = {name for name in mine if t.graph.nodes[t.find(name)].moves}
    assert (
        _named(t, computed) - moving == {n for n in mine - moving if t.graph.nodes[t.find(n)].plan is not None} - typed
    )
    assert "blocks.0.post" in typed
    assert "blocks.1.attn.mask" in typed | computed
    assert not any(name.startswith(("logits", "tokens", "blocks.0.attn")) for name in computed | typed)
    cells = written["block"]["Map"].values
    row = next(at[0] for at, value in cells.items() if value == "blocks.0.post")
    assert (cells[row, 5], cells[row, 7]) == (
        "recorded values",
        "computed outside of the chosen part: here it is a value",
    )


def test_a_head_has_only_its_own_rows_and_columns(books):
    t, written, _ = books
    worst, computed, typed = _compared(written["head"], t, written["head"])
    assert worst == 0
    assert {f"blocks.0.attn.{one}[0,1]" for one in ("q", "scores", "pattern", "z")} <= computed
    assert {f"blocks.0.attn.{one}[0,0]" for one in ("k", "v")} <= computed  # two heads share them
    assert "blocks.0.attn_norm" in typed
    whole = [name for name in computed if "[" not in name and t.graph.nodes[t.find(name)].named]
    assert not whole
    sheet, row, column = spreadsheet.located(written["head"])["blocks.0.attn.pattern[0,1]"]
    values = written["head"][sheet].values
    assert [values[row + i, column - 1] for i in range(4)] == [f"h1 · {word}" for word in TOKENS]


def test_of_a_table_only_the_rows_that_are_read(books):
    """The logits of one token need one row of the stream, and every row of the table."""
    t, written, _ = books
    _, computed, typed = _compared(written["rows"], t, written["rows"])
    assert {"blocks.1.attn.pattern[0,1,2:4]", "logits[0,2]"} <= computed
    assert "blocks.1.attn.scores[0,1,2:4]" in typed
    assert "norm[0,2]" in typed


def test_a_model_kept_by_its_blocks_opens_only_what_is_chosen(two, tmp_path):
    t = _two(keep="blocks")
    xlsx.write(t, tmp_path / "lazy.xlsx", ["blocks.1.attn.*"])
    assert set(t.graph.opened) == {"blocks.1"}
    xlsx.write(two, tmp_path / "all.xlsx", ["blocks.1.attn.*"])
    lazy, whole = (spreadsheet.read(tmp_path / name) for name in ("lazy.xlsx", "all.xlsx"))
    assert lazy["blocks.1"] == whole["blocks.1"]


def test_a_trace_that_is_too_large_names_a_part_that_fits(two, tmp_path, monkeypatch):
    t = two
    for most in (3_000, 2_000, 400, 150):
        monkeypatch.setattr(xlsx, "CELLS", most)
        with pytest.raises(UserError, match=f"no more than {most:,}; choose a part of it, such as --of") as refused:
            xlsx.write(t, tmp_path / "large.xlsx")
        address = re.search("--of '(.+)'", str(refused.value))[1]
        xlsx.write(t, tmp_path / f"{most}.xlsx", [address])
    with pytest.raises(UserError, match="more than the 150 values of a workbook that still opens; choose a part of it"):
        xlsx.write(t, tmp_path / "large.xlsx", ["blocks.1.*"])
    assert not (tmp_path / "large.xlsx").exists()


@pytest.mark.parametrize(
    "address, message",
    [
        ("blcks.1.*", "no tensor of the trace is called blcks.1.*; did you mean blocks.1.*?"),
        ("*.nosuch", "no tensor of the trace is called *.nosuch; "),
        ("blocks.1.attn.patern", "did you mean blocks.1.attn.pattern?"),
        ("blocks.1.attn.pattern[0,7]", "blocks.1.attn.pattern has no cell [0, 7]"),
        ("blocks.*[0,head 5]", "no tensor called blocks.* has such a part: no label along h of "),
    ],
)
def test_an_address_that_chooses_nothing_is_refused(two, tmp_path, address, message):
    with pytest.raises(UserError, match=re.escape(message)):
        xlsx.write(two, tmp_path / "none.xlsx", [address])
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_part_unfolds_it_alone(two, tmp_path):
    t = two
    write_file(extract(t, ["blocks.1.mlp.*"])[0], tmp_path / "part.safetensors")
    write_file(t, tmp_path / "whole.safetensors")
    again = opened.read(tmp_path / "part.safetensors")
    assert {n for n in again.names if not n.startswith("blocks.1.mlp.")} == {"blocks.1.mlp_norm"}
    assert again["blocks.1.mlp.act[0,2,3]"].why().agrees
    assert again.array("blocks.1.mlp.act").tolist() == t.array("blocks.1.mlp.act").tolist()
    assert receipt(again, again.find("blocks.1.mlp_norm"), 5).terms == ()
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("part", "whole")]
    assert sizes[0] < sizes[1] / 3


def test_the_page_of_a_part(browser, two, tmp_path):
    two.to_html(tmp_path / "part.html", of=["blocks.1.attn.pattern"])
    text = (tmp_path / "part.html").read_text()
    graph = json.loads(re.search(r'id="graph">(.*?)</script>', text, re.DOTALL)[1])
    assert [n["name"] for n in graph["nodes"] if n.get("named")] == ["blocks.1.attn.scores", "blocks.1.attn.pattern"]
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "part.html").as_uri())
    page.wait_for_selector("#app table, #app canvas, #app button")
    assert not errors
    assert "blocks.1.attn.pattern" in page.inner_text("body")
    page.close()


# ---- progress


def test_progress_only_rises_and_ends_whole(two, tmp_path):
    for write in (xlsx.write, html.write):
        shares = []
        write(two, tmp_path / "one", progress=shares.append)
        assert shares == sorted(shares)
        assert shares[-1] == 1
        assert len(shares) > 3 or write is html.write


@pytest.mark.parametrize("write", [xlsx.write, html.write])
def test_an_interrupt_leaves_no_file(tmp_path, write):
    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(trace(torch.exp, torch.rand(3, 5)), tmp_path / "one", progress=interrupt)
    assert not list(tmp_path.iterdir())
