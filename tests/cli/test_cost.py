"""`pencil cost` as it is typed: a report that fits into a terminal, its JSON, that of a run, and one sentence for an error."""

import json
import re
from dataclasses import replace

import pytest


@pytest.mark.parametrize("words", [
    ("gpt2-xl", "--context", "1024", "--batch", "8", "--dtype", "bf16"), ("llama2-70b", "--context", "131072"),
    ("vit:b/16", "--device", "a100", "--batch", "64"), ("dit:xl/2",), pytest.param(("seq2seq:base", "--device", "l4"), marks=pytest.mark.long), ("bert-base",),
    ("captioner:nano", "--dtype", "float32"),
], ids=lambda words: words[0])  # fmt: skip
def test_a_report_fits_into_eighty_columns(type_in, words):
    shown = type_in("cost", *words).out
    assert max(map(len, shown.splitlines())) <= 80
    for title in ("Parameters", "FLOPs per token", "Memory of a train step", "Arithmetic intensity", "Least time"):
        assert f"\n{title}" in shown


def test_both_units_are_shown_and_differ(type_in):
    shown = type_in("cost", "llama2-70b", "--device", "h200").out
    assert "68,976,648,192 parameters" in shown
    assert re.search(r"KV cache, full: g 64 +10\.74 GB = +10\.00 GiB", shown)
    assert re.search(r"KV cache, grouped: g 8 +1\.34 GB = +1\.25 GiB .*this model", shown)
    assert re.search(r"weights +137\.95 GB = +128\.48 GiB +2·P", shown)
    assert "does not fit" in shown
    assert "memory-bound below 206 FLOP/byte" in shown


def test_json_has_exact_values(type_in):
    found = json.loads(type_in("cost", "gpt2", "--context", "1000", "--batch", "3", "--device", "h100", "--json").out)
    assert found["parameters"]["total"] == 124_439_808
    assert found["tokens"] == 3000
    assert found["kv_cache_bytes"]["full"] == {"kv_heads": 12, "bytes": 2 * 12 * 3 * 1000 * 768 * 2}
    # 2 FLOPs a value of every matrix, and 4·n·D a block and token for Q Kᵀ and A V
    assert found["flops"]["forward"] == 3000 * (2 * (12 * 12 * 768**2 + 50257 * 768) + 12 * 4 * 1000 * 768)
    assert found["train_step_bytes"]["adamw"] == 8 * 124_439_808
    assert found["workloads"].keys() == {"train_step", "prefill", "decode"}
    decode = found["workloads"]["decode"]
    assert found["least_seconds"]["h100"]["decode"] == {"seconds": decode["bytes"] / 3.35e12, "bound": "memory"}
    assert found["measured_seconds"] is None


def test_the_bytes_of_a_step_are_its_optimizers(type_in):
    muon = r"train step +[\d.]+  bytes: 40·P \(Muon: 32\), 2 × activations\n"
    assert re.search(muon, type_in("cost", "vit:b/16").out)
    shown = type_in("cost", "gpt2").out
    assert re.search(r"train step +[\d.]+  bytes: 40·P, 2 × activations\n", shown)
    assert "  its head: for the last token only\n" in shown
    found = json.loads(type_in("cost", "vit:b/16", "--json").out)
    assert found["workloads"].keys() == {"train_step", "forward"}
    moved = found["workloads"]["train_step"]["bytes"] - 2 * found["train_step_bytes"]["activations"]["saved"]
    assert moved == 32 * 84_934_656 + 40 * 1_633_000


def test_huge_and_single_values_are_readable(type_in):
    shown = type_in("cost", "gpt2", "--context", "1", "--batch", "1000000000000").out
    assert "n 1 token · B 1,000,000,000,000 batch size" in shown
    assert re.search(r"activations, at the peak +344\.84 PB = +306\.28 PiB +338\.70 PB saved", shown)
    assert "741.32 EFLOP" in shown
    assert not re.search(r"\d{5}", shown)
    assert "  1 token\n" in type_in("cost", "gpt2", "--context", "1").out


def test_a_longer_context_than_it_was_made_for_is_noted(type_in):
    assert "note: the model was made for 4,096 tokens\n" in type_in("cost", "llama2-7b", "--context", "8192").out
    shown = type_in("cost", "gpt2", "--context", "2048").out
    assert f"{124_439_808 + 1024 * 768:,} parameters" in shown
    assert "position table" in shown


def test_a_run_costs_what_its_config_needs(type_in, run):
    from pencil.api.loading import load

    found = json.loads(type_in("cost", str(run), "--json").out)
    loaded = load(run)
    assert found["parameters"]["total"] == sum(p.numel() for p in loaded.model.parameters())
    training = loaded.run.config["train"]
    assert found["train_step_bytes"]["optimizer"] == training["optimizer"]
    assert (found["batch"], found["training"]["train_steps"]) == (training["batch"], training["steps"])
    step = found["least_seconds"]["h200"]["train_step"]["seconds"]
    assert found["training"]["least_seconds"]["h200"] == pytest.approx(training["steps"] * step)
    slower = found["flops"]["forward"] + found["flops"]["backward"]
    assert found["training"]["seconds"]["h200"] == pytest.approx(
        max(training["steps"] * step, training["steps"] * slower / (0.4 * 989e12))
    )
    shown = type_in("cost", str(run), "--batch", "3", "--train.accumulate", "7", "--device", "a100").out
    assert "B 3 batch size" in shown
    assert re.search(
        rf"The whole training: {7 * training['steps']:,} train steps, .*\n  a100 .* at 40 % of its peak; at least",
        shown,
    )
    assert (
        json.loads(type_in("cost", str(run), "--gpus", "2", "--json").out)["rows_of_a_device"] == training["batch"] // 2
    )
    assert json.loads(type_in("cost", "gpt2", "--json").out)["training"] is None


def test_a_family_without_memory_formulas_is_shown_without_activations(type_in, monkeypatch):
    from pencil.cost.profile import CostProfile
    from pencil.families import FAMILIES, family

    monkeypatch.setitem(FAMILIES, "vit", replace(family("vit"), cost=CostProfile()))
    shown = type_in("cost", "vit:b/16", "--device", "a100").out
    assert shown.count("activation memory is not estimated for this family\n") == 1
    assert "86,567,656 parameters" in shown
    assert re.search(r"total without activations +1\.05 GB", shown)
    assert re.search(r"train step +[\d.]+  bytes: 40·P \(Muon: 32\), without activations\n", shown)
    found = json.loads(type_in("cost", "vit:b/16", "--json").out)
    assert found["train_step_bytes"]["activations"] is None


def test_measured_times_are_beside_the_least(type_in):
    found = json.loads(type_in("cost", "captioner:nano", "--context", "17", "--measure", "--json").out)
    assert found["least_seconds"].keys() == {"local"}
    for name in ("train_step", "prefill", "decode"):
        assert found["measured_seconds"][name] > 0


def test_what_cannot_be_measured_is_reported_with_its_reason():
    import torch

    from pencil.cost.count import count
    from pencil.cost.devices import Device, workloads
    from pencil.cost.measure import measure
    from pencil.cost.memory import train_memory
    from pencil.families import family

    record = family("captioner")
    config, profile = record.configure("nano"), record.cost
    counts = count(record.create, profile, config, 3)
    memory = train_memory(profile, config, counts, 2, 3, "fp32")
    works = workloads(profile, config, counts, memory, 2, 3, "fp32")
    request = (record.create, profile, config, 2, 3, "fp32", torch.device("cpu"))
    slow, small, fine = Device("", 1, 1, 1, 1e12), Device("", 1e9, 1e9, 1e9, 11), Device("", 1e9, 1e9, 1e9, 1e12)
    assert set(measure(*request, slow, memory, works).values()) == {"would take too long"}
    assert set(measure(*request, small, memory, works).values()) == {"does not fit"}
    decode = {"decode": works["decode"]}
    assert measure(*request, fine, memory, decode) == {"decode": "the context is too short"}


@pytest.mark.parametrize("words, sentence", [
    (("gtp2",), "gtp2 is neither a preset nor a run's folder; did you mean gpt2?"),
    (("nonsense",), "nonsense is neither a preset nor a run's folder; known: captioner:base, "),
    (("dit",), "dit is a family; use one of dit:nano, "),
    (("dit", "xl/2"), "a family and its preset are one word: use dit:xl/2"),
    (("gpt2", "gpt2-xl"), "cost takes one preset or run at a time, not gpt2 and gpt2-xl"),
    (("gpt2", "--bach", "7"), "--bach"),
    (("nano",), "nano is a preset of several families; use gpt:nano, "),
    (("gpt2", "--device", "h20"), "h20 is not a device whose figures are known; did you mean h200?"),
    (("gpt2", "--device", "toaster"), "toaster is not a device whose figures are known; known: a100, h100, h200, l4, "),
    (("gpt2", "--dtype", "int8"), "--dtype must be bf16 or fp32, not int8"),
    (("gpt2", "--batch", "0"), "--batch must be at least 1, not 0"),
    (("gpt2", "--context", "0"), "--context must be at least 1, not 0"),
    (("gpt2", "--context", "1000000000"), "model.context must be at most 134,217,728, not 1000000000"),
    (("vit:b/16", "--context", "7"), "--context is for text: this model takes 197 tokens of an image"),
    (("gpt2", "--context", "many"), "many"),
], ids=lambda words: " ".join(words) if isinstance(words, tuple) else "")  # fmt: skip
def test_an_error_is_one_sentence(type_in, words, sentence):
    shown = type_in("cost", *words, code=2)
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
