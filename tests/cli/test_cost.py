"""`pencil cost` as it is typed: a bill that fits into a terminal, its JSON, a run's, and one sentence for a slip."""

import json
import re

import pytest
from test_verbs import type_in  # noqa: F401


@pytest.mark.parametrize("words", [
    ("gpt2-xl", "--context", "1024", "--batch", "8", "--dtype", "bf16"), ("llama2-70b", "--context", "131072"),
    ("vit:b/16", "--device", "a100", "--batch", "64"), ("dit:xl/2",), ("seq2seq:base", "--device", "l4"), ("bert-base",),
    ("captioner:nano", "--dtype", "float32"),
], ids=lambda words: words[0])  # fmt: skip
def test_a_bill_fits_into_eighty_columns(type_in, words):  # noqa: F811
    said = type_in("cost", *words).out
    assert max(map(len, said.splitlines())) <= 80
    for title in ("Parameters", "FLOPs of a token", "Memory to train", "FLOPs for each byte", "The least time"):
        assert f"\n{title}" in said


def test_both_units_are_told_and_differ(type_in):  # noqa: F811
    said = type_in("cost", "llama2-70b", "--device", "h200").out
    assert "68,976,648,192 parameters" in said
    assert re.search(r"cache, full: g 64 +10\.74 GB = +10\.00 GiB", said)
    assert re.search(r"cache, grouped: g 8 +1\.34 GB = +1\.25 GiB .*this model", said)
    assert re.search(r"weights +137\.95 GB = +128\.48 GiB +2·P", said)
    assert "does not fit" in said


def test_json_has_the_numbers_themselves(type_in):  # noqa: F811
    said = json.loads(type_in("cost", "gpt2", "--context", "1000", "--batch", "3", "--device", "h100", "--json").out)
    assert said["parameters"]["all"] == 124_439_808
    assert said["tokens"] == 3000
    assert said["cache_bytes"]["full"] == {"kv_heads": 12, "bytes": 2 * 12 * 3 * 1000 * 768 * 2}
    # 2 FLOPs a number of every matrix, and 4·n·D a block and token for the scores and what they weigh
    assert said["flops"]["forward"] == 3000 * (2 * (12 * 12 * 768**2 + 50257 * 768) + 12 * 4 * 1000 * 768)
    assert said["training_bytes"]["adamw"] == 8 * 124_439_808
    writing = said["works"]["writing"]
    assert said["least_seconds"]["h100"]["writing"] == {"seconds": writing["bytes"] / 3.35e12, "bound": "memory"}
    assert said["measured_seconds"] is None


def test_the_bytes_of_a_step_are_its_optimizers(type_in):  # noqa: F811
    assert re.search(r"training +[\d.]+  bytes: 40·P \(Muon: 32\), 2 × what is kept\n", type_in("cost", "vit:b/16").out)
    said = type_in("cost", "gpt2").out
    assert re.search(r"training +[\d.]+  bytes: 40·P, 2 × what is kept\n", said)
    assert "  its head: for the last token only\n" in said
    step = json.loads(type_in("cost", "vit:b/16", "--json").out)
    moved = step["works"]["training"]["bytes"] - 2 * step["training_bytes"]["kept"]
    assert moved == 32 * 84_934_656 + 40 * 1_633_000


def test_huge_and_single_numbers_are_readable(type_in):  # noqa: F811
    said = type_in("cost", "gpt2", "--context", "1", "--batch", "1000000000000").out
    assert "n 1 token · B 1,000,000,000,000 at once" in said
    assert re.search(r"activations, at the peak +940\.24 PB = +835\.10 PiB +538\.19 PB of it kept", said)
    assert "741.32 EFLOP" in said
    assert not re.search(r"\d{5}", said)
    assert "  1 token\n" in type_in("cost", "gpt2", "--context", "1").out


def test_a_longer_context_than_it_was_made_for_is_told(type_in):  # noqa: F811
    assert "note: it was made for 4,096 tokens\n" in type_in("cost", "llama2-7b", "--context", "8192").out
    said = type_in("cost", "gpt2", "--context", "2048").out
    assert f"{124_439_808 + 1024 * 768:,} parameters" in said
    assert "table of positions" in said


def test_a_run_costs_what_its_config_says(type_in, run):  # noqa: F811
    from pencil.runs import Run

    said = json.loads(type_in("cost", str(run), "--json").out)
    held = Run.open(run)
    assert said["parameters"]["all"] == sum(p.numel() for p in held.load_model().parameters())
    assert said["training_bytes"]["optimizer"] == held.config["train"]["optimizer"]


def test_measured_stands_beside_what_could_be(type_in):  # noqa: F811
    said = json.loads(type_in("cost", "captioner:nano", "--context", "17", "--measure", "--json").out)
    assert said["least_seconds"].keys() == {"here"}
    for name in ("training", "reading", "writing"):
        assert said["measured_seconds"][name] > 0


def test_what_cannot_be_measured_says_why():
    import torch

    from pencil.cost import measure
    from pencil.cost.devices import Device, works
    from pencil.cost.memory import training
    from pencil.models import configure

    config = configure("captioner", "nano")
    asked = ("captioner", config, 2, 3, "fp32", torch.device("cpu"))
    need, said = training("captioner", config, 2, 3, "fp32"), works("captioner", config, 2, 3, "fp32")
    slow, small, fine = Device("", 1, 1, 1, 1e12), Device("", 1e9, 1e9, 1e9, 11), Device("", 1e9, 1e9, 1e9, 1e12)
    assert set(measure.model(*asked, slow, need, said).values()) == {"would take too long"}
    assert set(measure.model(*asked, small, need, said).values()) == {"does not fit"}
    writing = {"writing": said["writing"]}
    assert measure.model(*asked, fine, need, writing) == {"writing": "the context is too short"}


@pytest.mark.parametrize("words, sentence", [
    (("gtp2",), "gtp2 is neither a preset nor a run's folder; did you mean gpt2?"),
    (("nonsense",), "nonsense is neither a preset nor a run's folder; known: captioner:base, "),
    (("dit",), "dit is a family; say one of dit:nano, "),
    (("dit", "xl/2"), "a family and its preset are one word: say dit:xl/2"),
    (("gpt2", "gpt2-xl"), "cost is of one preset or run at a time, not of gpt2 and gpt2-xl"),
    (("gpt2", "--bach", "7"), "--bach"),
    (("nano",), "nano is a preset of several families; say gpt:nano, "),
    (("gpt2", "--device", "h20"), "h20 is not a device whose figures are known; did you mean h200?"),
    (("gpt2", "--device", "toaster"), "toaster is not a device whose figures are known; known: a100, h100, h200, l4, "),
    (("gpt2", "--dtype", "int8"), "--dtype must be bf16 or fp32, not int8"),
    (("gpt2", "--batch", "0"), "--batch must be at least 1, not 0"),
    (("gpt2", "--context", "0"), "--context must be at least 1, not 0"),
    (("vit:b/16", "--context", "7"), "--context is for text: a vit reads 197 tokens of a picture"),
    (("gpt2", "--context", "many"), "many"),
], ids=lambda words: " ".join(words) if isinstance(words, tuple) else "")  # fmt: skip
def test_a_slip_is_one_sentence(type_in, words, sentence):  # noqa: F811
    said = type_in("cost", *words, code=2)
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not said.out
