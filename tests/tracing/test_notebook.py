"""What a notebook shows of a run, a model, a trace, a tensor and a cell, as HTML without a script; and in treescope."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from pencil.api.loading import load
from pencil.config import UserError
from pencil.runs.run import Run
from pencil.tracing.live_trace import trace
from traced import ours, traced

OLD = Path(__file__).parents[1] / "runs-0.6"


def test_a_cell_is_its_receipt_with_all_its_terms():
    found = traced("gpt learned")
    cell = found["blocks.0.mlp.pre"][0, 2, 3]
    html = cell._repr_html_()
    receipt = cell.why()
    assert unescape(html).startswith(f"<pre>{receipt}")
    assert all(f"<code>{term.where}</code>" in html for term in receipt.terms)
    assert "more</summary>" in html
    assert "<script" not in html


def test_a_tensor_has_words_on_its_axes_and_says_how_to_see_the_rest():
    model, inputs = ours("gpt learned")
    words = [f"word<{i}>" for i in range(inputs[0].shape[1])]
    found = trace(model, *inputs, words={"T": words, "S": words})
    html = found["blocks.0.attn.pattern"]._repr_html_()
    assert "word&lt;3&gt;" in html
    assert "word<3>" not in html
    # every address in the sentence leads to cells that were not shown
    addresses = [unescape(one) for one in re.findall(r"<code>(t\[.*?)</code>", html)]
    assert addresses == ['t["blocks.0.attn.pattern"][1]']
    html = found["blocks.0.mlp.pre"]._repr_html_()
    addresses = [unescape(one) for one in re.findall(r"<code>(t\[.*?)</code>", html)]
    assert addresses == ['t["blocks.0.mlp.pre"][1]', 't["blocks.0.mlp.pre"][0, :, 24:]']
    for address in addresses:
        assert eval(address, {"t": found}).shape
    small = found["blocks.0.attn.pattern"][0, 1]
    assert "The rest" not in small._repr_html_()


def test_a_trace_and_its_tensors_can_be_gone_through():
    found = traced("vit class")
    assert list(found) == found.names
    assert len(found) == len(found.names)
    assert all(name in found for name in found)
    for wrong in (0, -1, None, ("logits", 0), slice(3)):
        with pytest.raises(UserError, match=r"a trace has names.*t\.names lists them"):
            found[wrong]
    pattern = found["blocks.0.attn.pattern"]
    heads = list(pattern[0])
    assert len(heads) == len(pattern[0]) == pattern.shape[1]
    assert (np.stack([head.value for head in heads]) == pattern.value[0]).all()
    with pytest.raises(UserError, match="is one number here"):
        list(pattern[0, 0, 0, 0])


def test_a_trace_lists_every_name_and_shows_its_page():
    found = traced("vit class")
    html = found._repr_html_()
    assert all(f"<td>{name}</td>" in html for name in found.names)
    shown, _, unfolded = html.partition("<details>")
    assert f"<summary>… and {unfolded.count('<tr><td>')} more</summary>" in unfolded
    assert shown.count("<tr><td>") + unfolded.count("<tr><td>") == len(found.names) > 20 == shown.count("<tr><td>")
    counts = f"{len(found.names)} named tensors, of {len(found.graph.nodes)} that were computed or read"
    assert counts in repr(found)
    assert counts in html
    shown = found.explore("a <title>", start="logits[0,1]", height=300)
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert "height:300px" in frame
    assert 'sandbox="allow-scripts"' in frame
    assert "logits[0,1]" in unescape(frame)
    assert "to_html" in repr(shown)


@pytest.mark.parametrize("name", ["gpt", "vit", "captioner", "seq2seq", "reader", "dit"])
def test_a_run_and_its_model_are_trees_of_their_parts(name):
    run = load(OLD / name)
    html = run.model._repr_html_()
    assert all(f"<code>{path}</code>" in html for path, _ in run.model.named_parameters())
    count = sum(p.numel() for p in run.model.parameters())
    assert f"{count:,} parameters" in html
    assert "W_O" in html
    whole = run._repr_html_()
    assert html in whole
    assert f"a {name}" in whole
    assert html.count("<details") == html.count("</details>")
    folder = run.run._repr_html_()
    assert all(part in folder for part in (str(OLD / name), f"a {name}", *map(str, run.run.config["model"])))
    assert repr(run.run) == f"Run({str(OLD / name)!r})"


def test_what_a_run_is_called_stays_text(tmp_path):
    folder = tmp_path / "<b>"
    folder.mkdir()
    (folder / "config.toml").write_text('[run]\nfamily = "gpt"\ndata = "<script>"\n[model]\nwidth = "<i>"\n[train]\n')
    shown = Run.open(folder)._repr_html_()
    assert not any(tag in shown for tag in ("<b>", "<script>", "<i>"))
    (folder / "config.toml").unlink()
    assert "no run here any more" in Run(folder)._repr_html_()


def test_in_treescope_tensors_have_our_letters_and_words_and_models_our_symbols():
    treescope = pytest.importorskip("treescope", reason="treescope is not installed")
    model, inputs = ours("gpt learned")
    words = [f"word-{i}" for i in range(inputs[0].shape[1])]
    found = trace(model, *inputs, words={"T": words, "S": words})
    shown = treescope.render_to_html(found["blocks.0.attn.pattern"], compressed=False)
    assert "blocks.0.attn.pattern" in shown
    assert "word-3" in shown
    assert "softmax" in shown
    assert "blocks.0.attn.pattern" in treescope.render_to_text(found["blocks.0.attn.pattern"][0, 1])
    assert "W_O" in treescope.render_to_html(model, compressed=False)


def test_a_receipt_of_several_cells_is_still_refused():
    with pytest.raises(UserError, match="one cell"):
        traced("vit class")["logits"].why()
