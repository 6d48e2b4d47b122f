"""A trace in the terminal: tables, receipts with their links, differences; in colour on a terminal, plain elsewhere."""

import io
import re

import numpy as np
import pytest
import torch

from pencil.console import Console
from pencil.tracing.live_trace import trace
from pencil.tracing.receipt import format_number
from pencil.tracing.show import differences, names, only_in, receipt, tables
from pencil.tracing.trace import Trace
from traced import ours, traced


def printed(call, *args, terminal=False, width=200):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    call(*args, console)
    return file.getvalue()


def shown(view, digits=4, **how):
    return printed(lambda console: tables(view, console, digits), **how)


@pytest.fixture(scope="module")
def vit():
    return traced("example:vit-4x4")


def test_a_table_holds_the_recorded_numbers(vit):
    out = shown(vit["attn.pattern[0,1]"])
    assert "attn.pattern" in out
    assert "A = softmax(S)" in out
    values = vit["attn.pattern"].value[0, 1]
    rows = [line for line in out.splitlines() if re.match(r"(cls|patch \d)\s", line)]
    assert len(rows) == 5
    for row, line in zip(values, rows, strict=True):
        assert re.sub(r"^(cls|patch \d)\s+", "", line).split() == [format_number(v) for v in row]
    assert re.search(r"cls +patch 1 +patch 2 +patch 3 +patch 4", out)


def test_a_whole_tensor_is_a_table_for_each_of_its_first_places(vit):
    out = shown(vit["attn.pattern"])
    assert len(re.findall(r"^B 0, h [01]$", out, re.M)) == 2
    assert out.count("patch 4") == 2 * 2  # a column and a row of each
    assert len(re.findall(r"^patch 4 ", out, re.M)) == 2


def test_a_part_is_labelled_by_the_places_it_has(vit):
    out = shown(vit["attn.pattern[0,0,3:5,1:3]"])
    assert re.search(r"^ +patch 1 +patch 2$", out, re.M)
    assert len(re.findall(r"^patch [34] ", out, re.M)) == 2
    assert format_number(vit["attn.pattern"].value[0, 0, 3, 1]) in out
    column = shown(vit["attn.pattern[0,0,:,2]"])
    assert format_number(vit["attn.pattern"].value[0, 0, 3, 2]) in column


def test_one_number_and_one_row(vit):
    assert shown(vit["attn.scores[0,0,0,2]"]).split() == ["1.98"]
    row = shown(vit["positions[4]"])
    assert row.split()[-4:] == ["0.05"] * 4


def test_digits(vit):
    assert "1.979899" in shown(vit["attn.scores[0,0]"], 7)
    assert "1.98 " in shown(vit["attn.scores[0,0]"], 3)


def test_colour_is_for_terminals_only(vit):
    plain = shown(vit["attn.scores[0,0]"])
    assert "\x1b" not in plain
    heated = shown(vit["attn.scores[0,0]"], terminal=True)
    assert "\x1b[" in heated
    bare = re.sub(r"\x1b\[[0-9;]*m", "", heated)
    assert bare.split() == plain.split()


def backgrounds(out):
    """The colour behind each number."""
    return {word: tuple(map(int, rgb.split(";"))) for rgb, word in re.findall(r"48;2;(\d+;\d+;\d+)m *(\S+?)\x1b", out)}


def test_the_further_from_nothing_the_stronger_and_two_colours_for_two_signs():
    found = trace(lambda x: x * 1, torch.tensor([[4.0, 2.0, 0.0, -2.0, -4.0]]))
    seen = backgrounds(shown(found["output"], terminal=True))
    assert seen["4"][0] == 255
    assert seen["4"][1] < seen["2"][1] < seen["0"][1] == 255
    assert seen["−4"][2] == 255
    assert seen["−4"][0] < seen["−2"][0] < 255


def test_what_may_not_be_seen_is_not_coloured():
    found = traced("example:nanogpt-block")
    out = shown(found["blocks.0.attn.scores[0,0]"], terminal=True)
    assert "−∞" in re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "−∞" not in backgrounds(out)


def test_a_large_tensor_is_cut_on_a_terminal_with_a_note():
    found = trace(lambda x: x * 1, torch.arange(43.0 * 37).reshape(43, 37))
    out = re.sub(r"\x1b\[[0-9;]*m", "", shown(found["output"], terminal=True, width=100))
    assert "cut" in out
    assert "output[:,16:32]" in out
    assert all(len(line.rstrip()) <= 100 for line in out.splitlines() if "cut" not in line)
    assert len(out.splitlines()) < 60
    whole = shown(found["output"], width=10_000)
    assert "1590" in whole
    assert "cut" not in whole


@pytest.mark.parametrize("program", [
    lambda x: torch.view_as_complex(x.reshape(-1, 2)), lambda x: x > 0, lambda x: x / 0, lambda x: x.long(),
])  # fmt: skip
def test_every_kind_of_tensor_can_be_shown(program):
    found = trace(lambda x: program(x) if program(x).dtype == torch.bool else program(x) * 1, torch.tensor([1.5, -2.0]))
    for terminal in (False, True):
        assert "output" in shown(found["output"], terminal=terminal)


@pytest.mark.parametrize("where", ["out[0:0]", "out[0,0,0:0]"])
def test_a_part_with_nothing_in_it_can_be_shown(vit, where):
    assert "out" in shown(vit[where])


def test_names_are_listed_with_what_they_mean(vit):
    out = printed(lambda console: names(vit, console))
    for name in vit.names:
        assert re.search(rf"^{re.escape(name)}\s", out, re.M)
    assert re.search(r"^attn\.scores +S +1×2×5×5 +B h T S +Q Kᵀ/√d *$", out, re.M)


def test_a_receipt_with_its_links(vit):
    out = printed(lambda console: receipt(vit["attn.scores[0,0,0,2]"].why(), vit, console))
    lines = out.splitlines()
    assert lines[0] == "attn.scores[0,0,0,2]   Q Kᵀ/√d"
    assert lines[1] == "B 0  h 0  T 'cls'  S 'patch 2'"
    assert lines[2] == "S[0,2] = (0.6·3 + 0.5·2)/√2 = 1.98"
    assert lines[3] == "recorded 1.98 ✓"
    links = [line.split() for line in lines[5:] if line.strip()]
    assert links == [
        ["0.6", "attn.q[0,0,0,0]"],
        ["3", "attn.k[0,0,2,0]"],
        ["0.5", "attn.q[0,0,0,1]"],
        ["2", "attn.k[0,0,2,1]"],
    ]
    for value, where in links:
        assert format_number(float(vit[where])) == value


def test_of_many_links_the_largest():
    found = traced("gpt learned")
    one = found["blocks.0.mlp.out[0,1,1]"].why()
    out = printed(lambda console: receipt(one, found, console))
    assert re.search(r"… and (\d+) more", out)
    assert int(re.search(r"… and (\d+) more", out)[1]) == len(one.terms) - 16


def test_square_brackets_are_not_taken_for_markup():
    found = trace(lambda x: x * 2, torch.ones(3), words={})
    out = printed(lambda console: receipt(found["output[1]"].why(), found, console))
    assert "output[1] = 2·1 = 2" in out


# two traces


def test_a_trace_does_not_differ_from_itself(vit):
    assert not list(differences(vit, vit))
    assert not only_in(vit, vit)


def test_the_first_difference_and_where_it_is_largest():
    model, inputs = ours("gpt learned")
    one = trace(model, *inputs)
    two = one.edit("blocks.1.attn.z[1, 0, 3, 2]", lambda v: v + 0.5)
    found = list(differences(one, two))
    assert found[0].name == "blocks.1.attn.z"
    assert found[0].index == (1, 0, 3, 2)
    assert found[0].most == pytest.approx(0.5, abs=1e-6)
    assert found[0].second - found[0].first == pytest.approx(0.5, abs=1e-6)
    assert [d.name for d in found][-1] == "logits"
    assert not {d.name for d in found} & {"embed", "blocks.0.post", "blocks.1.attn.pattern"}
    logits = found[-1]
    gap = np.abs(one["logits"].value - two["logits"].value)
    assert logits.most == gap.max()
    assert gap[logits.index] == gap.max()


def test_shapes_that_differ_and_names_of_one_alone():
    one = trace(lambda x: x * 2, torch.ones(3))
    two = trace(lambda x, y: (x * 2, y)[0], torch.ones(4), torch.ones(2))
    found = {d.name: d for d in differences(one, two)}
    assert found["x"].shapes == ((3,), (4,))
    assert only_in(two, one) in ([], ["y"])


def test_not_a_number_equals_itself_and_differs_from_a_number():
    one, two = (trace(lambda x: x * 1, torch.tensor([torch.nan, v, torch.inf])) for v in (1.0, 1.0))
    assert not list(differences(one, two))
    three = trace(lambda x: x * 1, torch.tensor([1.0, torch.nan, torch.inf]))
    (first, *_) = differences(one, three)
    assert first.most == np.inf


def test_a_trace_is_shown_without_its_model(vit, tmp_path):
    from pencil.tracing.file import write
    from pencil.tracing.trace import read

    write(vit, tmp_path / "a.safetensors")
    back = read(tmp_path / "a.safetensors")
    assert type(back) is Trace
    assert shown(back["attn.pattern"]) == shown(vit["attn.pattern"])
    assert not list(differences(vit, back))
