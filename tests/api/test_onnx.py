"""Forward passes for other runtimes: their caches in torch, and the files of ONNX in onnxruntime."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pencil
from pencil.api.interchange import onnx_export
from pencil.api.interchange.onnx_export import compared, exported, quiet, save
from pencil.families import family
from pencil.inference.graphs import sizes
from small_models import KINDS, pictures, tiny, tokens

CACHED = {
    "gpt": ("llama", "gpt2", "alibi", "shaw", "t5", "further"),
    "seq2seq": ("nano", "separate", "t5"),
    "captioner": ("nano", "far", "biased", "rotated"),
}
EXPORTED = CACHED | {
    "gpt": (*CACHED["gpt"], "plain"),
    "seq2seq": (*CACHED["seq2seq"], "marian"),
    "vit": ("class", "rotated", "alibi", "registers"),
    "reader": ("bert label", "mean", "t5", "roberta", "pool", "states"),
    "dit": ("label", "text", "nothing", "factored text", "windowed", "rope in windows"),
}


def by_kind(table):
    return [pytest.param(name, kind, id=f"{name}, {kind}") for name, kinds in table.items() for kind in kinds]


def readme(folder):
    """The lines of Python in the README of an export."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S))


@pytest.mark.parametrize("name, kind", by_kind(CACHED))
@torch.no_grad()
def test_steps_with_padding_in_the_cache_compute_what_the_model_does(name, kind):
    model = tiny(name, **KINDS[name][kind])
    graphs = {graph.name: graph for graph in family(name).runtime.graphs(model)}
    given = graphs["step"].random(sizes(batch=3, tokens=2, past=graphs["step"].before, source=5))
    ids, more, first = tokens(3, 7, vocab=31), (), given["past"][..., :0, :]
    if name == "seq2seq":
        more = (tokens(3, 5, vocab=31), torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [0] + [1] * 4]))
    elif name == "captioner":
        more = (pictures(3, 3, 6, 10),)
    wanted = graphs["model"].module(ids, *more)
    memory = ()
    if name == "seq2seq":
        memory = graphs["encoder"].module(*more), more[1]
    elif name == "captioner":
        first = graphs["encoder"].module(*more)
    step, seen = graphs["step"].module, torch.ones(3, first.shape[-2], dtype=torch.long)
    # the middle row has two tokens fewer at first, with padding on the right
    mask = torch.tensor([[1] * 4, [1, 1, 0, 0], [1] * 4])
    logits, past = step(ids[:, :4], torch.cat((seen, mask), 1), first, *memory)
    torch.testing.assert_close(logits[mask > 0], wanted[:, :4][mask > 0], atol=1e-4, rtol=1e-4)
    rest = torch.stack((ids[0, 4:6], ids[1, 2:4], ids[2, 4:6]))
    mask = torch.cat((seen, mask, torch.ones(3, 2, dtype=torch.long)), 1)
    logits, past = step(rest, mask, past, *memory)
    expected = torch.stack((wanted[0, 4:6], wanted[1, 2:4], wanted[2, 4:6]))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert past.shape[-2] == mask.shape[1]


def test_a_vit_in_onnxruntime_answers_as_the_run(vit_run, type_in, digit, capsys):
    import onnxruntime

    shown = type_in("export", vit_run, "--to", "onnx", "--out", "there")
    error = float(re.search(r"model.onnx: the largest error is (\S+) of the largest value, and 8 of 8", shown.err)[1])
    assert error < 1e-5
    folder = Path("there")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.onnx"]
    content = (folder / "model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert str(Path(pencil.__file__).parent).encode() not in content
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["labels"]) == list("0123456789")
    assert json.loads(facts["preprocessing"])["size"] == [8, 8]
    run = pencil.load(vit_run)
    for rows in (1, 5):
        x = torch.randn(rows, 1, 8, 8)
        with torch.no_grad():
            wanted = run.model(x)
        np.testing.assert_allclose(session.run(None, {"picture": x.numpy()})[0], wanted.numpy(), atol=1e-5)
    Image.open(digit).save(folder / "picture.png")
    expected = run.predict(digit)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        capsys.readouterr()
        exec(readme(Path(".")), {})
    label, probability = capsys.readouterr().out.split()
    assert label == expected.label
    assert float(probability) == pytest.approx(expected.probability, abs=1e-6)


def test_what_cannot_be_exported_is_refused_in_a_sentence(run, fails, monkeypatch):
    assert "--to is one of hf, timm, diffusers, onnx, not ggml" in fails("export", run, "--to", "ggml")
    assert "--quantize is for --to onnx" in fails("export", run, "--quantize", "int8")
    assert "--quantize is int8, not int4" in fails("export", run, "--to", "onnx", "--quantize", "int4")
    assert "--to onnx writes float32" in fails("export", run, "--to", "onnx", "--dtype", "bfloat16")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refusal = fails("export", run, "--to", "onnx")
    assert "pip install '.[onnx]'" in refusal
    assert not Path("exports").exists()


def test_a_file_that_computes_something_else_is_not_written(vit_run, fails, monkeypatch):
    """The file is compared with the model: here it is of another one."""
    import onnx_ir
    from onnx.parser import parse_model

    another = """<ir_version: 8, opset_import: ["": 18]>
    pixels (float[N, 1, 8, 8] picture) => (float[N, 10] logits)
    <int64[1] first = {0}, int64[1] end = {10}, int64[1] axis = {1}>
    { flat = Flatten (picture) logits = Slice (flat, first, end, axis) }"""
    monkeypatch.setattr(onnx_export, "exported", lambda graph: onnx_ir.from_proto(parse_model(another)))
    assert "model.onnx is not what the model computes" in fails("export", vit_run, "--to", "onnx", "--out", "there")
    assert not Path("there").exists()


@pytest.mark.long
@pytest.mark.parametrize("name, kind", by_kind(EXPORTED))
def test_every_graph_of_every_kind_is_the_model_in_onnxruntime(name, kind, tmp_path):
    graphs = family(name).runtime.graphs(tiny(name, **KINDS[name][kind]).requires_grad_(False))
    with quiet():
        save({graph.name: exported(graph) for graph in graphs}, tmp_path, {})
    for graph in graphs:
        found = compared(graph, tmp_path / f"{graph.name}.onnx")
        assert found.error < 1e-5, graph.name
        assert not found.others, graph.name


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "seq2seq_run", "captioner_run", "classifier_run", "masked_run", "dit_run"])
def test_the_lines_of_every_readme_answer_as_the_run(kind, request, type_in, digit, capsys):
    path = request.getfixturevalue(kind)
    shown = type_in("export", path, "--to", "onnx", "--out", "there")
    assert "model.onnx: the largest error is " in shown.err
    code, loaded = readme(Path("there")), pencil.load(path)
    if kind == "captioner_run":
        Image.open(digit).resize(loaded.model.config.image_size[::-1]).save("there/picture.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("there")
        capsys.readouterr()
        exec(code, {})
    out = capsys.readouterr().out.rstrip("\n")
    text = re.search(r'encode\("(.*?)"', code)
    if kind == "dit_run":
        assert out == str((loaded.model.config.channels, *loaded.model.config.sides))
    elif kind == "classifier_run":
        label, probability = out.split()
        expected = loaded.predict(text[1])
        assert label == expected.label
        assert float(probability) == pytest.approx(expected.probability, abs=1e-6)
    elif kind == "masked_run":
        (expected,) = loaded.predict(f"{text[1]}[mask]")
        assert out == expected.label.replace("␣", " ").rstrip("\n")
    else:
        given = "there/picture.png" if kind == "captioner_run" else text[1]
        most = int(re.search(r"range\((\d+)\)", code)[1])
        assert out == loaded.predict(given, temperature=0, max_new_tokens=most).text.rstrip("\n")


@pytest.mark.long
def test_int8_says_how_far_it_is(run, type_in):
    type_in("export", run, "--to", "onnx")
    full = Path("exports/notes-gpt-onnx/weights.bin").stat().st_size
    shown = type_in("export", run, "--to", "onnx", "--quantize", "int8", "--force")
    error = float(re.search(r"step.onnx in int8: the largest error is (\S+) of the largest value", shown.err)[1])
    assert 1e-4 < error < 0.2
    assert Path("exports/notes-gpt-onnx/weights.bin").stat().st_size < full / 2
