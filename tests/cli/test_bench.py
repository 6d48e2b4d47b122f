"""pencil bench: rates, ratios and equality as JSON; a peer with other outputs; exponents; the page; what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import unchecked
from pencil.bench import JOBS
from pencil.bench.decode import fit_exponent
from pencil.bench.equality import bound, compare, relative_error
from pencil.bench.page import EMPTY, write_page
from pencil.bench.peers import Peers
from pencil.bench.plan import Plan
from pencil.bench.timing import Contender, run_case
from pencil.config import UserError
from pencil.cost.devices import Device, Workload

ROOT = Path(__file__).parents[2]
NANOGPT = """
import torch
from dataclasses import dataclass
from torch import nn

@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    bias: bool
    dropout: float
"""


@pytest.fixture(autouse=True)
def fixed_rates(monkeypatch):
    """A machine whose rates are known, so that no test waits for them."""
    monkeypatch.setattr("pencil.bench.plan.local_device", lambda device, dtype: Device("local", 1e12, 1e12, 1e10, 1e9))
    torch.manual_seed(0)
    with unchecked():
        yield


@pytest.fixture
def bench(type_in, tmp_path):
    def call(*words):
        out = tmp_path / "result.json"
        shown = type_in("bench", *words, "--json", out)
        return json.loads(out.read_text(encoding="utf-8")), shown

    return call


@pytest.mark.long
def test_decode_beside_transformers(bench):
    pytest.importorskip("transformers", reason="transformers is not installed")
    words = "decode --quick --peers --batch 2 --tokens 3 --repeat 2 --device cpu".split()
    result, shown = bench(*words)
    assert result["command"] == "pencil bench decode --peers --quick --repeat 2 --batch 2 --tokens 3"
    assert result["job"] == "decode"
    machine = result["machine"]
    assert machine["torch"] == torch.__version__
    assert machine["threads"] == torch.get_num_threads()
    assert machine["dtype"] == "float32"
    assert machine["matmul_flops"] == 1e12
    assert [row["who"] for row in result["rows"]] == ["pencil", "transformers"] * 2
    for ours, theirs in zip(result["rows"][::2], result["rows"][1::2], strict=True):
        assert ours["case"] == theirs["case"]
        assert ours["low"] <= ours["rate"] <= ours["high"]
        assert ours["rate"] == pytest.approx(2 * 3 / ours["seconds"])
        assert theirs["equal"] is True
        assert theirs["errors"]["float32"] <= theirs["bounds"]["float32"]
        assert theirs["ratio"] > 0
        assert "ratio" not in ours
        # the fewest bytes of a step are at least the matrices, once, in float32
        assert ours["bandwidth_share"] * ours["seconds"] * 1e10 >= 3 * 4 * (4 * 12 * 128**2 + 4099 * 128)
    greedy = result["rows"][1]
    assert (greedy["same_tokens"], greedy["of_tokens"]) == (6, 6)
    assert "outputs equal" in shown.out
    assert "× as fast" in shown.out


@pytest.mark.long
def test_a_peer_with_other_outputs_gets_no_ratio(bench, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    real = Peers.transformers_gpt

    def other(self, ours):
        theirs = real(self, ours)
        with torch.no_grad():
            theirs.transformer.h[1].mlp.c_proj.bias[3] += 0.01  # of one channel: a norm takes away what all have
        return theirs

    monkeypatch.setattr(Peers, "transformers_gpt", other)
    result, shown = bench(*"decode --quick --peers --batch 1 --tokens 2 --repeat 1 --device cpu".split())
    theirs = result["rows"][1]
    assert theirs["equal"] is False
    assert "ratio" not in theirs
    assert "not compared" in shown.out
    assert "as fast" not in shown.out


@pytest.mark.long
def test_train_beside_nanogpt_of_a_folder(bench, tmp_path, monkeypatch):
    """A model.py with nanoGPT's names, written here: plain matrices, exact GELU, tied output."""
    monkeypatch.setattr("pencil.bench.train.UPDATES", 3)
    folder = tmp_path / "nanoGPT"
    folder.mkdir()
    (folder / "model.py").write_text(NANOGPT + NANOGPT_MODEL)
    result, _ = bench(*"train --quick --batch 2 --repeat 1 --device cpu --peer-path".split(), folder)
    ours, theirs = result["rows"]
    assert (ours["who"], theirs["who"]) == ("pencil", "nanoGPT")
    assert theirs["equal"] is True
    assert theirs["ratio"] > 0
    assert result["command"].endswith("--peer-path nanoGPT --quick --repeat 1 --batch 2")
    assert ours["rate"] == pytest.approx(3 * 2 * 64 / ours["seconds"])


NANOGPT_MODEL = """
class Norm(nn.LayerNorm):
    def __init__(self, size, bias):
        super().__init__(size, bias=bias)

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
        self.heads = c.n_head

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        pattern = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return self.c_proj((pattern @ v).transpose(1, 2).flatten(2))

class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x)))

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = Norm(c.n_embd, c.bias), Attention(c)
        self.ln_2, self.mlp = Norm(c.n_embd, c.bias), MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        print("number of parameters")
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(c.vocab_size, c.n_embd), wpe=nn.Embedding(c.block_size, c.n_embd),
            h=nn.ModuleList(Block(c) for _ in range(c.n_layer)), ln_f=Norm(c.n_embd, c.bias)))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, x, targets):
        h = self.transformer.wte(x) + self.transformer.wpe(torch.arange(x.shape[1]))
        for block in self.transformer.h:
            h = block(h)
        logits = self.lm_head(self.transformer.ln_f(h))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS[2:])
def test_every_other_job_runs(bench, timm, job):
    words = [] if job == "attention" else ["--batch", "1"]
    result, _ = bench(job, "--quick", "--peers", "--repeat", "1", "--device", "cpu", *words)
    theirs = [row for row in result["rows"] if row["who"] != "pencil"]
    assert theirs
    assert all(row["equal"] for row in result["rows"] if "equal" in row)
    assert all(row["ratio"] > 0 for row in theirs)


@pytest.mark.long
def test_attention_is_compared_with_float64(bench):
    result, _ = bench(*"attention --quick --repeat 1 --device cpu".split())
    ours = [row for row in result["rows"] if row["who"] == "pencil"]
    assert [row["route"] for row in ours] == ["causal", "all", "prefix", "dense", "all"]
    assert all(row["equal"] and row["errors"]["float32"] > 0 for row in ours)


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0, 3.7])
def test_the_exponent_of_exact_powers(power):
    sizes = np.array([3, 7, 31, 257, 1009])
    assert fit_exponent(sizes, 0.013 * sizes**power) == pytest.approx(power, abs=1e-12)


@pytest.mark.long
def test_a_scan_ends_with_the_exponents(bench, monkeypatch):
    monkeypatch.setattr("pencil.bench.decode.VALUES", {"depth": ([1, 2, 4], [])})
    result, shown = bench(*"decode --scan depth --quick --repeat 1 --device cpu".split())
    assert [row["value"] for row in result["rows"]] == [1, 2, 4]
    # 12·D² weights a block, and the keys and values of its tokens; the table and the norms do not grow
    each = 4 * (12 * 384**2 + 2 * 384 + 2 * 384 * (64 + 17))
    sizes = [row["memory_bytes"] for row in result["rows"]]
    assert np.diff(sizes).tolist() == [each, 2 * each]
    exponents = result["rows"][-1]["exponents"]
    assert exponents["memory_bytes"] == pytest.approx(fit_exponent([1, 2, 4], sizes))
    assert "memory grows as depth^" in shown.out


def plan(**options):
    return Plan(torch.device("cpu"), **{"repeat": 3, **options})


def test_shares_of_the_rates():
    """Half a TFLOP in 2 s of a machine of 1 TFLOP/s, and a billion bytes at 10 GB/s."""
    assert plan().shares(Workload(int(5e11), int(1e9), 1), 2.0) == {"mfu": 0.25, "bandwidth_share": 0.05}


def test_contenders_are_timed_in_turn():
    order = []
    names = "abc"
    one = [Contender(name, lambda name=name: order.append(name)) for name in names]
    import pencil.bench.timing as timing

    enough, timing.LEAST_SECONDS = timing.LEAST_SECONDS, 0.0
    try:
        run_case(plan(), "job", "case", "calls/s", 1, one)
    finally:
        timing.LEAST_SECONDS = enough
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_errors_are_relative_and_unequal_shapes_are_not_equal():
    a = torch.tensor([3.0, 4.0])
    assert relative_error(a, a) == 0
    assert relative_error(a + torch.tensor([0.0, 0.5]), a) == pytest.approx(0.1)
    assert relative_error(a, a[None]) == float("inf")
    assert not compare(lambda: a * float("nan"), lambda: a, torch.float32, 4, 1).equal
    assert bound(torch.bfloat16, 768, 12) == pytest.approx(2 * 2**-7 * 12**0.5)


def test_the_page_is_written_from_its_files():
    """The committed page is what its files give."""
    text = (ROOT / "docs" / "project" / "results.md").read_text(encoding="utf-8")
    page = ROOT / "docs" / "project" / "results.md"
    write_page(page)
    assert page.read_text(encoding="utf-8") == text


def test_a_page_of_ones_own(type_in, fails, tmp_path):
    rows = [
        {"job": "decode", "case": "x", "who": "pencil", "unit": "tokens/s", "rate": 1234.5, "low": 1000.0,
         "high": 2000.0, "seconds": 0.1, "startup_seconds": 7.0, "mfu": 0.5, "bandwidth_share": 0.25,
         "peak_bytes": 3e9},
        {"job": "decode", "case": "x", "who": "other", "unit": "tokens/s", "rate": 10.0, "low": 9.0, "high": 11.0,
         "seconds": 0.1, "equal": True, "errors": {"float32": 2e-7}, "bounds": {"float32": 1e-5}, "ratio": 2.5},
        {"job": "decode", "case": "x", "who": "wrong", "unit": "tokens/s", "rate": 10.0, "low": 9.0, "high": 11.0,
         "seconds": 0.1, "equal": False, "errors": {"float32": 0.3}, "bounds": {"float32": 1e-5}},
    ]  # fmt: skip
    machine = {"device": "a GPU", "kind": "cuda", "threads": 4, "torch": "2", "dtype": "bfloat16",
               "matmul_flops": 8e14, "copy_bytes": 4e12}  # fmt: skip
    (tmp_path / "a.json").write_text(
        json.dumps({"machine": machine, "command": "pencil bench decode", "job": "decode", "rows": rows})
    )
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: a.json -->\nold\n<!-- end -->\n<!-- bench: b.json -->\n<!-- end -->\nafter\n")
    shown = type_in("bench", "--write-page", page)
    assert "b.json is not there" in shown.err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- bench: a.json -->\n`pencil bench decode` on a GPU, torch 2, bfloat16. ")
    assert text.endswith(f"<!-- bench: b.json -->\n{EMPTY}<!-- end -->\nafter\n")
    assert "| x | pencil | 1,234 (1,000–2,000) tokens/s |  | 50 % | 25 % | 3 GB | 7.0 s |  |" in text
    assert "| x | other | 10 (9–11) tokens/s | 2.50 × |" in text
    assert "not compared: outputs differ" in text
    assert "old" not in text
    (tmp_path / "a.json").write_text("{}")
    assert "a.json was not written by pencil bench --json" in fails("bench", "--write-page", page)


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("decod", "decod is not a job; did you mean decode?"),
        ("decode --device cuda:99", "device cuda:99 is not available on this machine; try auto or cpu"),
        ("--batch 3", "--batch is for one job: name train or decode or vit or dit or sample or serve before it"),
        ("attention --batch 3", "attention takes no --batch: it is for train or decode or vit or dit or sample"),
        ("vit --tokens 3", "vit takes no --tokens: it is for decode"),
        ("decode --tokens 121 --quick", "--tokens 121 after a prompt of 8 do not fit the context of 128; at most 120"),
        ("decode --scan depth --preset gpt2", "--scan has sizes of its own: leave --preset out"),
        ("decode --scan batch --batch 2", "--scan batch tries several batch sizes: leave --batch out"),
        ("decode --preset gpt3", "gpt3 is not a preset of gpt; did you mean gpt2?"),
        ("dit --preset nano", "nano takes its sizes from data; these have their own: s/2"),
        ("decode --repeat 0", "--repeat must be at least 1, not 0"),
        ("decode --json a.txt", "--json writes a .json file, not a.txt"),
        ("--write-page no.md", "there is no file no.md to write tables into"),
    ],
)
def test_what_is_refused(fails, words, sentence):
    assert sentence in fails("bench", *words.split())


def test_folders_of_other_libraries(fails, tmp_path):
    assert f"{tmp_path} has no model.py; --peer-path is a folder with nanoGPT" in fails(
        "bench", "train", "--peer-path", tmp_path
    )
    (tmp_path / "model.py").write_text("x = 1\n")
    assert "model.py is neither nanoGPT's" in fails("bench", "train", "--peer-path", tmp_path)
    (tmp_path / "model.py").write_text("import no_such_module\n")
    assert "model.py cannot be imported: ModuleNotFoundError" in fails("bench", "train", "--peer-path", tmp_path)
    (tmp_path / "model.py").write_text("GPT = GPTConfig = int\n")
    assert "nanoGPT is compared with in train only" in fails("bench", "decode", "--peer-path", tmp_path)


def test_a_library_that_is_missing_is_named(monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "timm", None)
    peers = Peers(True, (), said.append)
    assert peers.timm_vit(None) is None
    assert peers.timm_vit(None) is None
    assert len(said) == 1
    assert said[0].startswith("timm is left out: ")


@pytest.mark.long
def test_a_preset_that_a_peer_does_not_have_is_measured_alone(bench):
    pytest.importorskip("transformers", reason="transformers is not installed")
    result, shown = bench(*"decode --preset nano --quick --peers --batch 1 --tokens 2 --repeat 1 --device cpu".split())
    assert {row["who"] for row in result["rows"]} == {"pencil"}
    assert "transformers is left out: model.positions is 'rope'" in shown.err


def test_a_refusal_does_not_load_torch():
    code = (
        "import sys\nfrom pencil.cli.main import main\n"
        "try: main(['bench', 'decod'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.stdout.split() == ["False"]


def test_weights_that_a_peer_has_no_place_for_are_refused(monkeypatch):
    from pencil.bench.models import make
    from pencil.bench.peers import filled
    from pencil.families.gpt import FAMILY
    from pencil.weights.nanogpt import NANOGPT as MAP

    config = FAMILY.configure("nanogpt", vocab=17, width=8, depth=1, heads=2)
    with pytest.raises(UserError, match="has no transformer.wte.weight"):
        filled(torch.nn.Linear(2, 2), MAP, make(FAMILY, config, torch.device("cpu")))
