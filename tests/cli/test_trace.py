"""why, trace, show and diff as a user types them; every failure is one sentence and exit status 2."""

import io
import json
import re
import shutil
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from commands import is_png
from conftest import pencil
from pencil import trace
from pencil.tracing.file import write
from pencil.tracing.trace import read
from traced import traced, unchecked


@pytest.fixture(scope="module", autouse=True)
def quickly():
    with unchecked():
        yield


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "vit.trace.safetensors"
    write(traced("example:vit-4x4"), path)
    return path


@pytest.fixture
def scene(tmp_path):
    path = tmp_path / "scene.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)).save(path)
    return path


# why


def test_why_of_an_example(type_in):
    out = type_in("why", "example:vit-4x4", "attn.scores[0,0,0,2]").out
    assert "S[0,2] = (0.6·3 + 0.5·2)/√2 = 1.98" in out.splitlines()
    assert "recorded 1.98 ✓" in out.splitlines()
    assert "attn.q[0,0,0,0]" in out
    assert "\x1b" not in out


def test_why_of_the_cells_that_a_receipt_names(type_in):
    """The links of one receipt are the cells of the next."""
    where, seen = "out[0,1,2]", []
    for _ in range(6):
        out = type_in("why", "example:vit-4x4", where).out
        assert "✓" in out or "(given" in out or "(learned)" in out
        links = re.findall(r"^ *\S+ +([a-z_.]+\[[\d,]+\])$", out, re.M)
        seen.append(where)
        if not links:
            break
        where = links[0]
    assert len(seen) > 2


def test_why_with_digits_and_an_edit(type_in):
    out = type_in("why", "example:vit-4x4", "attn.scores[0,0,0,2]", "--digits", 9).out
    assert "= 1.97989899" in out
    out = type_in("why", "example:vit-4x4", "attn.z[0,1,2,0]", "--edit", "attn.pattern[:,1]=0").out
    assert re.search(r"^H\[2,0\] = .* = 0$", out, re.M)
    out = type_in("why", "example:vit-4x4", "attn.pattern[0,1,2,0]", "--edit", "attn.pattern[:,1]=-0.5").out
    assert "A[2,0] = −0.5   (changed by an edit)" in out
    both = ("--edit", "attn.pattern[:,1]=0", "--edit", "attn.pattern[:,0]=0")
    assert re.search(r"^O\[1,1\] = .* = 0$", type_in("why", "example:vit-4x4", "attn.out[0,1,1]", *both).out, re.M)


def test_why_of_a_gpt(type_in, run):
    out = type_in("why", run, "blocks.1.attn.pattern[0,2,5,3]", "--input", "line 12").out
    assert out.splitlines()[0] == "blocks.1.attn.pattern[0,2,5,3]   softmax(S)"
    assert "T '1'" in out
    assert "S 'e'" in out
    assert "✓" in out


def test_values_become_their_mean_or_those_of_another_input(type_in, run, tmp_path):
    """With all of the last stream from another text the logits are that text's; a mean is of the positions so far."""
    type_in("trace", run, "--input", "line 12", "--edit", "blocks.1.post=patch", "--patch-from", "the end", "--edit",
            "blocks.0.attn.z[:,1]=mean", "--out", "a.safetensors")  # fmt: skip
    a, plain, other = read("a.safetensors"), trace(run, "line 12"), trace(run, "the end")
    np.testing.assert_allclose(a.array("logits"), other.array("logits"), atol=1e-4)
    z = plain.array("blocks.0.attn.z")[0, 1]
    np.testing.assert_allclose(a.array("blocks.0.attn.z")[0, 1, 4], z[:5].mean(0), atol=1e-5)


def test_why_of_a_vit(type_in, vit_run, digit):
    out = type_in("why", vit_run, "logits[0,3]", "--input", digit).out
    assert "K '3'" in out
    assert "✓" in out


def test_why_of_a_captioner(type_in, captioner_run, scene):
    out = type_in("why", captioner_run, "blocks.0.attn.pattern[0,1,2,2]", "--input", scene, "--text", "a red").out
    assert "T 'patch 1,2'" in out
    assert "✓" in out
    assert "✓" in type_in("why", captioner_run, "logits[0,0,7]", "--input", scene).out


def test_why_of_a_file(type_in, saved):
    live = type_in("why", "example:vit-4x4", "attn.pattern[0,1,2,3]").out
    assert type_in("why", saved, "attn.pattern[0,1,2,3]").out == live


def damaged(path):
    content = bytearray(path.read_bytes())
    where = np.asarray(traced("example:vit-4x4")["attn.pattern"].value, "<f8").tobytes()
    content[bytes(content).index(where) + 6] ^= 8
    path.write_bytes(bytes(content))


def test_a_damaged_number_is_found_when_the_file_is_opened(type_in, saved):
    damaged(saved)
    for words in (["why", saved, "attn.pattern[0,0,0,0]"], ["show", saved], ["diff", saved, saved]):
        assert "its SHA-256 is another than when it was written" in type_in(*words, code=2).err


def test_why_of_a_damaged_number_fails_where_the_file_has_no_hash(type_in, saved):
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    meta = json.loads(header["__metadata__"]["pencil"])
    del meta["checked"]
    text = json.dumps({**header, "__metadata__": {"pencil": json.dumps(meta)}}).encode()
    saved.write_bytes(len(text).to_bytes(8, "little") + text + body)
    damaged(saved)
    shown = type_in("why", saved, "attn.pattern[0,0,0,0]", code=1)
    assert re.search(r"✗ \(off by \S+, \S+ allowed\)", shown.out)
    assert "has no hash to check it by" in shown.err


# trace


def test_trace_lists_the_names(type_in):
    out = type_in("trace", "example:vit-4x4").out
    assert re.search(r"^attn\.pattern +A +1×2×5×5 +B h T S +softmax\(S\) *$", out, re.M)
    assert "\x1b" not in out


def test_trace_writes_the_requested_files(type_in, tmp_path):
    shown = type_in("trace", "example:vit-4x4", "--png", "a.png", "--out", "a.trace.safetensors", "--html", "a.html",
                   "--xlsx", "a.xlsx")  # fmt: skip
    assert not shown.out
    for name in ("a.png", "a.trace.safetensors", "a.html", "a.xlsx"):
        assert re.search(rf"^{re.escape(name)}", shown.err, re.M)
    assert is_png(tmp_path / "a.png")
    assert read(tmp_path / "a.trace.safetensors")["attn.scores[0,0,0,2]"].why().agrees
    assert "<html" in (tmp_path / "a.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.png", "a.trace.safetensors", "a.xlsx"]


def test_trace_of_a_gpt(type_in, run, tmp_path):
    type_in("trace", run, "--input", "line 12", "--out", "a.safetensors", "--png", "a.png")
    found = read(tmp_path / "a.safetensors")
    assert found.labels["T"] == ["l", "i", "n", "e", "␣", "1", "2"]
    assert found["logits"].shape[1] == 7
    assert is_png(tmp_path / "a.png")


def test_trace_of_a_vit(type_in, vit_run, digit, tmp_path):
    type_in("trace", vit_run, "--input", digit, "--out", "a.safetensors", "--png", "a.png", "--query", "class")
    found = read(tmp_path / "a.safetensors")
    assert found.labels["K"] == [str(i) for i in range(10)]
    assert found.facts["grid"] == [4, 4]
    assert is_png(tmp_path / "a.png")
    with Image.open(digit) as image:
        pixels = np.asarray(image, dtype=float)
    picture = found["picture"].value[0, 0]
    assert np.corrcoef(pixels.reshape(-1), picture.reshape(-1))[0, 1] > 0.999


def test_trace_of_a_captioner_reads_the_caption_it_generates(type_in, fails, captioner_run, scene, tmp_path):
    caption = type_in("sample", captioner_run, "--image", scene, "--temperature", 0).out.strip()
    type_in("trace", captioner_run, "--input", scene, "--out", "a.safetensors", "--png", "a.png", "--query", "[IMG]")
    found = read(tmp_path / "a.safetensors")
    assert found.facts["text"].strip() == caption
    assert found.labels["t"][0] == "begin"
    assert is_png(tmp_path / "a.png")
    type_in("trace", captioner_run, "--input", scene, "--text", "a dot", "--out", "b.safetensors")
    found = read(tmp_path / "b.safetensors")
    assert found.facts["text"] == "a dot"
    words = ("trace", captioner_run, "--input", scene, "--text", "a dot", "--png", "b.png", "--query")
    type_in(*words, found.labels["t"][1])
    assert is_png(tmp_path / "b.png")
    assert "begin is the first token, which no step produced" in fails(*words, "begin")


def test_what_png_draws_can_be_chosen(type_in, tmp_path):
    type_in("trace", "example:vit-4x4", "--png", "a.png")
    type_in("trace", "example:vit-4x4", "--png", "b.png", "--of", "attn.scores")
    type_in("trace", "example:vit-4x4", "--png", "c.png", "--query", "patch 2")
    pictures = [(tmp_path / f"{n}.png").read_bytes() for n in "abc"]
    assert len(set(pictures)) == 3
    assert all(is_png(tmp_path / f"{n}.png") for n in "abc")


# show


def test_show_of_a_file(type_in, saved):
    out = type_in("show", saved, "attn.pattern").out
    assert "0.7686" in out
    assert "patch 4" in out
    assert "\x1b" not in out
    assert "0.7686004" in type_in("show", saved, "attn.pattern", "--digits", 7).out
    assert type_in("show", saved, "attn.scores[0,0,0,2]").out.strip() == "1.98"


def test_show_lists_the_names(type_in, saved):
    out = type_in("show", saved).out
    assert out == type_in("show", "example:vit-4x4").out
    assert "attn.pattern" in out


def test_show_of_a_run(type_in, run):
    out = type_in("show", run, "blocks.0.attn.pattern[0,0]", "--input", "line").out
    assert re.search(r"^ +l +i +n +e$", out, re.M)


@pytest.mark.long
def test_show_is_plain_when_piped(saved):
    done = pencil("show", saved, "attn.pattern")
    assert "\x1b" not in done.stdout
    assert not done.stderr
    assert "0.7686" in done.stdout


# diff


def test_two_traces_that_are_the_same(type_in, saved, tmp_path):
    shutil.copy(saved, tmp_path / "b.safetensors")
    out = type_in("diff", saved, "b.safetensors").out
    assert re.fullmatch(r"the same: \d+ tensors, to the last bit\n", out)


def test_the_first_tensor_that_differs(type_in, saved):
    type_in("trace", "example:vit-4x4", "--edit", "attn.z[0,1,2,0]=7", "--out", "b.safetensors")
    out = type_in("diff", saved, "b.safetensors", code=1).out
    value = float(traced("example:vit-4x4")["attn.z[0,1,2,0]"])
    found = re.match(
        r"attn\.z differs by at most (\S+), at \[0,1,2,0\] \(T 'patch 2'\): (\S+) and 7$", out.splitlines()[0]
    )
    assert float(found[1]) == pytest.approx(abs(value - 7), rel=1e-3)
    assert re.search(r"^and 3 more after it, of \d+ \(--all\)$", out, re.M)
    every = type_in("diff", saved, "b.safetensors", "--all", code=1).out
    assert [line.split()[0] for line in every.splitlines()] == ["attn.z", "attn.concat", "attn.out", "out"]


def test_diff_of_a_gpt_on_two_texts(type_in, run):
    type_in("trace", run, "--input", "line", "--out", "a.safetensors")
    type_in("trace", run, "--input", "lint", "--out", "b.safetensors")
    out = type_in("diff", "a.safetensors", "b.safetensors", code=1).out
    assert out.startswith("tokens differs by at most")
    type_in("trace", run, "--input", "lines", "--out", "c.safetensors")
    out = type_in("diff", "a.safetensors", "c.safetensors", code=1).out
    assert "tokens differs: its shape is 1×4 and 1×5" in out


# what fails


@pytest.mark.parametrize("words, sentence", [
    (["why", "example:vit-4x5", "x[0]"], "there is no example vit-4x5; did you mean vit-4x4?"),
    (["why", "nowhere", "x[0]"], "nowhere is no run's folder, no trace file and no example:NAME"),
    (["why", "nowhere.safetensors", "x[0]"], "there is no trace nowhere.safetensors"),
    (["why", "example:vit-4x4", "attn.patern[0]"], "nothing in the trace is called attn.patern; did you mean attn.pattern?"),
    (["why", "example:vit-4x4", "attn.pattern"], "a receipt is of one cell, and attn.pattern here has 50"),
    (["why", "example:vit-4x4", "attn.pattern[0,0,0,5]"], "its shape is 1×2×5×5 (B h T S)"),
    (["why", "example:vit-4x4", "attn.pattern[0,0,0"], "is not a name with an index"),
    (["why", "example:vit-4x4", "attn.pattern[a,b]"], "B of attn.pattern has no labels: give an index from 0 to 0 instead of a"),
    (["why", "example:vit-4x4", "attn.pattern[0"], "is not a name with an index"),
    (["why", "example:vit-4x4", "attn.pattern[0,0,clas,0]"], "no label along T of attn.pattern is clas; did you mean cls? The labels are cls, patch 1, patch 2, patch 3, patch 4"),
    (["show", "example:vit-4x4", "attn.pattern[0,head 3]"], "no label along h of attn.pattern is head 3"),
    (["trace", "example:vit-4x4", "--edit", "attn.pattern[0,0,\"cls,0]=1"], "is not closed in attn.pattern"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--digits", "0"], "--digits must be from 1 to 17, not 0"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--digits", "99"], "--digits must be from 1 to 17, not 99"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--digits", "many"], "many"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--input", "cat"], "has its own input"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--text", "cat"], "has its own input"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--edit", "attn.pattern"], "'attn.pattern' is not an edit"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--edit", "attn.pattern=much"], "'attn.pattern=much' is not an edit"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--edit", "attn.patern=0"], "did you mean attn.pattern?"),
    (["why", "example:vit-4x4", "out[0,0,0]", "--edit", "=0"], "is not a name with an index"),
    (["why", "example:vit-4x4"], "CELL"),
    (["trace", "example:vit-4x4", "--png", "nowhere/a.png"], "there is no folder nowhere to write a.png in"),
    (["trace", "example:vit-4x4", "--out", "."], "is a folder; --out is the file to write"),
    (["trace", "example:vit-4x4", "--html", "."], "is a folder; --html is the file to write"),
    (["trace", "example:vit-4x4", "--html", "a.txt"], "--html writes a .html file, not a.txt"),
    (["trace", "example:vit-4x4", "--xlsx", "a.png"], "--xlsx writes a .xlsx file, not a.png"),
    (["trace", "example:vit-4x4", "--png", "a"], "--png writes a .png file, not a"),
    (["trace", "example:vit-4x4", "--out", "a.html"], "--out writes a .safetensors file, not a.html"),
    (["trace", "example:vit-4x4", "--of", "attn.scores"], "--of chooses what --html, --xlsx, --png or --out writes: give one of them too"),
    (["trace", "example:vit-4x4", "--png", "a.png", "--of", "attn.scores", "--of", "attn.q"], "--png draws one tensor: give --of once"),
    (["trace", "example:vit-4x4", "--xlsx", "a.xlsx", "--of", "atn.*"], "no tensor of the trace is called atn.*; did you mean attn.*?"),
    (["trace", "example:vit-4x4", "--html", "a.html", "--of", "attn.score"], "nothing in the trace is called attn.score; did you mean attn.scores?"),
    (["trace", "example:vit-4x4", "--out", "a.safetensors", "--of", "attn.*[0,head 3]"], "no tensor called attn.* has such a part: no label along h of"),
    (["trace", "example:vit-4x4", "--query", "cls"], "--query chooses what --png draws: give --png too"),
    (["trace", "example:vit-4x4", "--png", "a.png", "--query", "dog"], "no token is called dog"),
    (["trace", "example:vit-4x4", "--png", "a.png", "--of", "positions[0]"], "a heat map needs rows and columns"),
    (["trace", "example:nanogpt-block", "--png", "a.png", "--query", "cat"], "the input of this trace is no image: leave --query out"),
    (["show", "nowhere"], "nowhere is no run's folder"),
    (["show", "example:vit-4x4", "nothing"], "nothing in the trace is called nothing"),
    (["show", "example:vit-4x4", "out[9]"], "out has no cell [9]: its shape is 1×5×4"),
    (["diff", "a.safetensors", "b.safetensors"], "there is no trace a.safetensors"),
])  # fmt: skip
def test_commands_that_are_refused(fails, tmp_path, words, sentence):
    assert sentence in fails(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["attn.pattern[:,9]=0", "attn.pattern[0,0,0,0,0]=0"])
def test_an_edit_out_of_range(fails, where):
    assert "its shape is 1×2×5×5" in fails("why", "example:vit-4x4", "out[0,0,0]", "--edit", where)


def test_runs_need_their_input(fails, run, vit_run, captioner_run, scene, tmp_path):
    assert "--input is missing: give the text the model reads" in fails("why", run, "logits[0,0,0]")
    assert "--input is missing: give the image file the model reads" in fails("why", vit_run, "logits[0,0]")
    assert "--input is missing: give the image file the model reads" in fails("trace", captioner_run)
    assert "give one too, --edit 'blocks.0.post=patch'" in fails("trace", run, "--input", "a", "--patch-from", "b")
    assert "name one, with --patch-from" in fails("trace", run, "--input", "a", "--edit", "blocks.0.post=patch")
    assert "--input is empty" in fails("why", run, "logits[0,0,0]", "--input", "")
    assert "'ß' is not among the" in fails("why", run, "logits[0,0,0]", "--input", "aß")
    assert "the input has 40 tokens and the context is 31; shorten it" in fails("show", run, "--input", "e" * 40)
    assert "is a gpt: it takes no --text" in fails("why", run, "logits[0,0,0]", "--input", "a", "--text", "b")
    assert "is a vit: it takes no --text" in fails("why", vit_run, "logits[0,0]", "--input", scene, "--text", "b")
    (tmp_path / "not.png").write_text("words")
    assert "not.png" in fails("why", vit_run, "logits[0,0]", "--input", "not.png")
    assert "nowhere.png" in fails("why", vit_run, "logits[0,0]", "--input", "nowhere.png")
    assert "the caption with its first token has 302 tokens and the context is 16; shorten it" in fails(
        "trace", captioner_run, "--input", scene, "--text", "a dot " * 60
    )


def test_a_folder_that_is_not_a_run(fails, tmp_path):
    (tmp_path / "bare").mkdir()
    assert "bare is not a run" in fails("why", "bare", "x[0]", "--input", "a")


def test_a_recorded_trace_takes_no_input(fails, saved):
    assert "is a recorded trace: leave " in fails("why", saved, "out[0,0,0]", "--input", "cat")
    assert "is a recorded trace: leave " in fails("why", saved, "out[0,0,0]", "--edit", "out=0")
    assert "is a recorded trace: leave " in fails("show", saved, "--input", "cat")


def test_a_trace_that_was_recorded_has_its_text(fails, saved):
    assert "is a recorded trace: leave " in fails("show", saved, "--text", "cat")


def test_damaged_and_foreign_files(fails, saved, run, tmp_path):
    content = saved.read_bytes()
    for name, part in (("short", content[:-9]), ("empty", b""), ("words", b"hello world"), ("long", b"\xff" * 16)):
        (tmp_path / f"{name}.safetensors").write_bytes(part)
        for words in (["show"], ["diff", saved]):
            shown = fails(*words, f"{name}.safetensors")
            assert f"{name}.safetensors is not a trace file, or is damaged" in shown
    assert "is not a trace file" in fails("show", run / "model.safetensors")
    assert "is not a trace file" in fails("show", run / "config.toml")


def test_traces_of_different_models(fails, type_in, saved):
    type_in("trace", "example:pencil-attention", "--out", "b.safetensors")
    assert "have no name in common: they are of different models" in fails("diff", saved, "b.safetensors")


@pytest.mark.long
def test_one_sentence_from_a_process_of_its_own(tmp_path):
    done = pencil("why", "example:vit-4x4", "attn.patern[0,0,0,0]", code=2, cwd=tmp_path)
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_model_whose_operation_has_no_receipt_is_refused_in_one_sentence(fails, run, monkeypatch):
    from pencil.tracing import tape

    monkeypatch.setattr(tape, "RULES", {k: v for k, v in tape.RULES.items() if k != "native_layer_norm"})
    shown = fails("why", run, "logits[0,0,0]", "--input", "line")
    assert "the operation native_layer_norm (at blocks.0.attn_norm" in shown
    assert "has no receipt" in shown


def test_help_names_the_verbs(type_in):
    shown = type_in("--help").out
    for verb in ("why", "trace", "show", "diff"):
        assert re.search(rf"\b{verb}\b", shown)
    for verb in ("why", "trace", "show", "diff"):
        assert verb in type_in(verb, "--help").out


def test_heads_are_drawn_side_by_side(type_in, tmp_path):
    type_in("trace", "example:mha-demo", "--png", "a.png", "--of", "many.pattern")
    with Image.open(io.BytesIO((tmp_path / "a.png").read_bytes())) as image:
        assert image.size[0] > 2 * image.size[1]  # four heads side by side


@pytest.mark.usefixtures("usual_seconds")
def test_long_work_shows_its_progress_over_a_pipe_and_short_work_nothing(type_in, monkeypatch):
    for second, lines in ((0.0, []), (1.0, [2, 12])):
        clock = SimpleNamespace(monotonic=partial(next, count(100.0, second)))  # moves when it is looked at
        monkeypatch.setattr("pencil.cli.screens.terminal.time", clock)
        *shown, last = type_in("trace", "example:vit-4x4", "--xlsx", "a.xlsx").err.splitlines()
        found = [re.fullmatch(r"a\.xlsx: (\d+)% after (\d+) s", line) for line in shown]
        assert [int(line[2]) for line in found][:2] == lines
        assert all(0 < int(line[1]) < 100 for line in found)
        assert last == "a.xlsx"
