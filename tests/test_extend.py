"""docs/guides/extend.md: its code is put into a copy of Pencil, and its commands run there."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import call
from pencil import families
from pencil.cli import main
from pencil.core import positions
from pencil.core.positions import Rope
from pencil.cost.activations import score_bias
from pencil.families import configure, create
from pencil.inference import sampling
from pencil.models import build
from test_docs import ROOT, SHORT, blocks, commands, sandbox, words_of  # noqa: F401

PAGE = ROOT / "docs" / "guides" / "extend.md"
DRIVER = """
import json, os, sys
import uvicorn
from starlette.testclient import TestClient
from pencil.cli.main import main
from pencil.explore.attention_views import attention
from pencil.explore.cells import contributions, receipt
from pencil.explore.outline import outline
from pencil.explore.picture import picture
from pencil.explore.session import Session

def explore(run=None):
    '''The views of the page, which the verb would serve until it is stopped.'''
    session = Session.open(run) if run else Session.of_examples()[0]
    state = {"model": session.id, "input": session.about()["example"], "edits": []}
    session.answer(state)
    session.record(state)
    key = session.state(state).key
    start = outline(session, key)["start"]
    assert receipt(session, key, start)["agrees"]
    attention(session, key), picture(session, key), contributions(session, key, start)

def ask(server, sockets):
    '''What the server would answer, were it not for the network.'''
    with TestClient(server.config.app, base_url=f"http://127.0.0.1:{sockets[0].getsockname()[1]}") as client:
        (model,) = client.get("/v1/models").raise_for_status().json()["data"]
        if model["id"] == "ker":
            print(client.post("/v1/completions", json={"model": "ker", "prompt": "the"}).raise_for_status().json())

uvicorn.Server.run, os._exit = ask, print

for code, *words in json.loads(sys.argv[1]):
    print("$", *words, flush=True)
    if words[0] == "explore" and not code:
        explore(*words[1:])
        continue
    try:
        main(words)
    except SystemExit as ended:
        if (ended.code or 0) != code:
            sys.exit(f"{words} ended with {ended.code}, not with {code}")
"""
RECEIPT = "--input", "cat.png"
# what each verb does with the additions, beside what the page itself says
VERBS = {
    "mixer": [
        ("train", "mixer", "--name", "mix"), ("resume", "runs/mix", "--train.steps", "3"), ("verify", "runs/mix"),
        ("eval", "runs/mix"), ("sample", "runs/mix", "--image", "cat.png"), ("shapes", "mixer:nano"), ("cost", "mixer:nano"),
        ("cost", "mixer:wide", "--json"), ("trace", "runs/mix", *RECEIPT), ("why", "runs/mix", "logits[0,1]", *RECEIPT),
        ("show", "runs/mix", "logits", *RECEIPT), ("trace", "runs/mix", "--out", "mix.safetensors", *RECEIPT),
        ("diff", "mix.safetensors", "mix.safetensors"), ("walk", "004", "--run", "runs/mix", *RECEIPT),
        ("predict", "runs/mix", "cat.png", "--out", "mix.csv"), ("serve", "runs/mix", "--port", "0"),
    ],
    "kerple": [
        ("train", "gpt", "--data", "notes.txt", "--model.positions", "kerple", "--name", "ker"),
        ("resume", "runs/ker", "--train.steps", "3"), ("verify", "runs/ker"), ("eval", "runs/ker"),
        ("sample", "runs/ker", "--prompt", "the", "--max-new-tokens", "5"), ("trace", "runs/ker", "--input", "the"),
        ("show", "runs/ker", "blocks.0.attn.bias", "--input", "the"), ("cost", "gpt:nano", "--model.positions", "kerple"),
        ("shapes", "captioner:nano", "--model.positions", "kerple"),
        *(("train", name, "--model.positions", "kerple", "--name", f"ker-{name}")
          for name in ("captioner", "seq2seq", "reader", "dit")),
        ("why", "runs/ker", "blocks.0.attn.bias[0,0,2,1]", "--input", "the"), ("embed", "runs/ker-reader", "--prompt", "the"),
        ("trace", "runs/ker", "--out", "ker.safetensors", "--input", "the"), ("diff", "ker.safetensors", "ker.safetensors"),
        ("heads", "runs/ker"), ("walk", "003", "--run", "runs/ker", "--input", "the"), ("explore", "runs/ker"), ("slides", "runs/ker", "--out", "ker-talk.html"),
        ("explore", "runs/ker-captioner"),
        ("predict", "runs/ker-seq2seq", "notes.txt", "--out", "ker.csv", "--max-new-tokens", "3"),
        ("serve", "runs/ker", "--port", "0"),
    ],
    "po": [
        ("train", "seq2seq", "--data", "app.po", "--name", "po"), ("resume", "runs/po", "--train.steps", "3"),
        ("verify", "runs/po"), ("eval", "runs/po", "--data", "app.po"), ("sample", "runs/po", "--source", "Open"),
        ("shapes", "runs/po"), ("cost", "runs/po"), ("trace", "runs/po", "--out", "po.safetensors", "--input", "Open"),
        ("diff", "po.safetensors", "po.safetensors"), ("why", "runs/po", "logits[0,0,1]", "--input", "Open"),
        ("show", "runs/po", "logits", "--input", "Open"), ("heads", "runs/po"), ("explore", "runs/po"), ("slides", "runs/po", "--out", "po-talk.html"),
        ("walk", "003", "--run", "runs/po", "--input", "Open"),
        ("predict", "runs/po", "notes.txt", "--out", "po.csv", "--max-new-tokens", "3"), ("serve", "runs/po", "--port", "0"),
    ],
}  # fmt: skip
# the same of those that are a part of a model, or a rule
PARTS = {
    "dyt": [
        ("train", "gpt", "--data", "notes.txt", "--model.norm", "dyt", "--name", "dyt-long"),
        ("resume", "runs/dyt-long", "--train.steps", "3"), ("verify", "runs/dyt-long"), ("eval", "runs/dyt-long"),
        ("why", "runs/dyt-long", "blocks.0.mlp_norm[0,1,3]", "--input", "the"), ("cost", "gpt:nano", "--model.norm", "dyt"),
        *(("train", name, "--model.norm", "dyt", "--name", f"dyt-{name}") for name in ("vit", "captioner", "seq2seq", "reader")),
    ],
    "relu2": [
        ("train", "vit", "--model.activation", "relu2", "--name", "relu2-vit"), ("eval", "runs/relu2-vit"),
        ("resume", "runs/relu2-vit", "--train.steps", "3"), ("cost", "gpt:nano", "--model.activation", "relu2"),
        ("shapes", "gpt:nano", "--model.activation", "relu2"),
    ],
    "typical": [
        ("train", "seq2seq", "--name", "typical"),
        ("sample", "runs/typical", "--source", "1 May 2020", "--temperature", "1", "--typical-p", "0.5", "--max-new-tokens", "5"),
    ],
}  # fmt: skip
REFUSED = {
    "mixer": [("export", "runs/mix", "--to", "timm"), ("explore", "runs/mix", "--no-browser"), ("slides", "runs/mix", "--out", "mix-talk.html"), ("heads", "runs/mix"),
              ("embed", "runs/mix", "--prompt", "a")],
    "kerple": [("export", "runs/ker", "--to", "hf"), ("predict", "runs/ker", "notes.txt", "--out", "ker.csv")],
    "po": [("export", "runs/po", "--to", "hf"), ("embed", "runs/po", "--prompt", "a")],
    "typical": [("sample", "runs/ker", "--prompt", "the", "--typical-p", "2"),
                ("sample", "runs/typical", "--source", "1 May 2020", "--beams", "2", "--typical-p", "0.5")],
}  # fmt: skip
# verbs that take no run, family or trace: nothing of them depends on an addition
OTHERS = {"average", "demo", "doctor", "import", "bench", "kata", "figures", "check", "lab"}


def applied(text: str, root: Path) -> None:
    """Apply a diff: each part after @@ replaces the lines that it shows, which must be there exactly once."""
    head, *parts = text.split("@@\n")
    path = root / head.splitlines()[1].removeprefix("+++ ")
    for part in parts:
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        source = path.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{path.name} has not exactly one\n{old}"
        path.write_text(source.replace(old, new), encoding="utf-8")


def put(text: str, root: Path) -> None:
    """A block of Python: a new file, or the end of one, as its first line says."""
    first, code = text.split("\n", 1)
    place = first.removeprefix("# ")
    path = root / place.removeprefix("at the end of ")
    before = path.read_text(encoding="utf-8") + "\n\n" if place.startswith("at the end of ") else ""
    assert bool(before) == path.exists()
    path.write_text(before + code, encoding="utf-8")


def extended(folder: Path) -> Path:
    """A copy of the source with the code of the page in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for language, text in blocks(PAGE):
        if language in ("python", "diff"):
            (put if language == "python" else applied)(text, folder)
    return folder / "src"


def test_what_the_page_replaces_is_in_the_source(tmp_path):
    assert (extended(tmp_path) / "pencil" / "families" / "mixer.py").is_file()


@pytest.mark.parametrize("addition", VERBS)
def test_no_verb_is_left_out(addition):
    assert {words[0] for words in VERBS[addition] + REFUSED[addition]} == {verb for _, verb, *_ in main.VERBS} - OTHERS


@pytest.mark.long
def test_the_additions_of_the_page_work(sandbox, tmp_path):  # noqa: F811
    source = extended(tmp_path)
    entries = [f'msgid "Open file {i}"\nmsgstr "Datei {i} öffnen"\n' for i in range(40)]
    work = tmp_path / "work"
    shutil.copytree(sandbox, work)
    (work / "app.po").write_text("\n".join(entries), encoding="utf-8")
    lines = [words_of(line) for line, _ in commands(PAGE)]
    more = [words for table in (VERBS | PARTS).values() for words in table]
    short = [
        [0, *words, *(SHORT if words in more else SHORT[2:]), "--force"] if words[0] == "train" else [0, *words]
        for words in [*lines, *more]
    ]
    short += [[2, *words] for table in REFUSED.values() for words in table]
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(short)],
        cwd=work, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "kerple" in (work / "runs" / "kerple" / "config.toml").read_text()
    assert "gettext; source from msgid" in result.stdout + result.stderr
    assert 'family = "mixer"' in (work / "runs" / "photos-mixer" / "config.toml").read_text()
    assert result.stdout.count("✓") >= 6  # all receipts agree
    assert "DyT_attn(X⁰)" in result.stdout
    assert "ReLU²(U)" in result.stdout
    assert "typical-p must be at least 1e-09 and at most 1, not 2.0" in result.stdout + result.stderr
    assert "--typical-p has no effect on a beam search" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert "B_img within the" in result.stdout  # the formula of a captioner's bias


def code_of(page_place: str) -> str:
    """The block of Python that the page puts there."""
    (code,) = (text for language, text in blocks(PAGE) if language == "python" and text.startswith(f"# {page_place}"))
    return code


@pytest.fixture
def mixer():
    """The family of the page, registered in this process."""
    module = ModuleType("pencil.families.mixer")
    module.__package__ = "pencil.families"
    sys.modules[module.__name__] = module
    exec(compile(code_of("src/pencil/families/mixer.py"), "mixer.py", "exec"), module.__dict__)
    families.register(module.FAMILY)
    yield module
    del families.FAMILIES["mixer"], sys.modules[module.__name__]


def test_the_rule_of_the_page_keeps_the_most_typical_tokens():
    rules = dict(vars(sampling))
    exec(code_of("at the end of src/pencil/inference/sampling.py"), rules)
    # the mean surprise of these is 1.16 nats; that of 0.25 is 1.39, of 0.2 is 1.61, of 0.5 is 0.69 and of 0.05 is 3.00
    p = torch.tensor([[0.5, 0.25, 0.05, 0.2]], dtype=torch.float64)
    found = [rules["_typical"](p, mass)[0].tolist() for mass in (0.2, 0.3, 0.6, 1.0)]
    assert found[0] == [0, 1, 0, 0]
    assert found[1] == pytest.approx([0, 0.25 / 0.45, 0, 0.2 / 0.45])
    assert found[2] == pytest.approx([0.5 / 0.95, 0.25 / 0.95, 0, 0.2 / 0.95])
    assert found[3] == pytest.approx(p[0].tolist())


def test_every_verb_takes_a_family_without_attention(mixer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save("cat.png")
    for words in VERBS["mixer"]:
        if words[0] in ("resume", "eval", "serve"):  # of any image classifier: with the rest, in the long form
            continue
        done = call(*words, *([*SHORT, "--model.width", 6, "--model.depth", 1] if words[0] == "train" else []))
        if words[:2] == ("cost", "mixer:nano"):
            assert "L 4 blocks · D 64 width\n" in done.stdout
        if words[0] == "why":
            assert "✓" in done.stdout
    for words in REFUSED["mixer"]:
        assert call(*words, code=2).stderr.startswith("pencil: ")


def test_a_scheme_of_the_page_is_counted_and_in_every_formula(monkeypatch):
    """KERPLE in the place of ALiBi: as large a bias, and as many formulas."""
    alike = dict(vars(positions))
    exec(code_of("at the end of src/pencil/core/positions.py"), alike)
    sizes = dict(width=12, depth=1, heads=3, positions="alibi", image_positions="rope", context=7)
    gpt = configure("gpt", None, vocab=11, context=13, width=12, depth=1, heads=3, positions="alibi")
    bias, plain = score_bias(gpt, 5, 13, 2), score_bias(replace(gpt, positions="rope"), 5, 13, 2)
    assert (bias, plain) == (2 * 3 * 13 * 13, 0)
    assert score_bias(replace(gpt, positions="shaw"), 5, 13, 2) == 5 * bias
    captioner = configure("captioner", None, vocab=11, image_size=(4, 6), patch=(2, 2), channels=1, **sizes)
    # the image's bias alone is a matrix over the whole sequence, too
    swapped = replace(captioner, positions="rope", image_positions="alibi")
    assert score_bias(captioner, 5, 13, 2) == score_bias(swapped, 5, 13, 2) == bias
    before = create("captioner", captioner)
    monkeypatch.setattr(build, "Alibi", alike["Kerple"])
    after = create("captioner", captioner)
    assert type(after.positions).__name__ == "Kerple"
    name = "blocks.0.attn.bias"
    assert after.INNER[name] == before.INNER[name] == ("B h T S", "B", "B_txt within the text")
    assert score_bias(gpt, 5, 13, 2) == bias


def test_a_scheme_of_ones_own_that_rotates_is_counted_as_rope_is(monkeypatch):
    class Turned(Rope):
        """Rope under another name."""

    for name in ("gpt", "dit"):
        config = configure(name, "nano" if name == "gpt" else "s/2", positions="alibi")
        rope, activations = replace(config, positions="rope"), families.family(name).cost.activations
        expected = activations(rope, 5, None, 2)
        assert activations(config, 5, None, 2) != expected
        with monkeypatch.context() as patch:
            patch.setattr(build, "Alibi", lambda heads, axes, config=config: Turned(config.head_width, axes))
            assert activations(config, 5, None, 2) == expected
