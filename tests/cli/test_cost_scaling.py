"""`pencil cost --gpus` as it is typed: what each device holds and sends, from 1 to 1,024 of them."""

import json
import re

import pytest


@pytest.mark.parametrize("words", [
    ("gpt2-xl", "--gpus", "64", "--parallel", "fsdp", "--batch", "8", "--train.recompute", "blocks", "--train.ema", "0.999"),
    ("vit:b/16", "--gpus", "3", "--batch", "64", "--train.accumulate", "40", "--device", "rtx4090"),
    ("llama2-70b", "--gpus", "65536", "--parallel", "fsdp", "--bandwidth", "12.5"),
], ids=lambda words: words[0])  # fmt: skip
def test_a_report_fits_into_eighty_columns(type_in, words):
    shown = type_in("cost", *words).out
    assert max(map(len, shown.splitlines())) <= 80
    for title in ("Memory of each device", "Sent by each device", "From 1 to "):
        assert f"\n{title}" in shown
    rows = re.findall(r"^ *([\d,]+) .*[B*] .*%$", shown, re.M)
    assert {"2", "1,024", f"{int(words[2]):,}"} <= {*rows}
    assert ("fused loss" in shown) == (words[0] == "gpt2-xl")
    assert ("plain loss" in shown) == (words[0] == "llama2-70b")
    if words[0] == "llama2-70b":
        assert re.search(r"^ +1 +1 +[\d.]+ TB\* +[\d.]+ TB\* ", shown, re.M)
        assert "* does not fit into 141 GB" in shown
        assert "each device sends 12.5 GB/s\n" in shown


def test_ddp_and_fsdp_of_gpt2_by_hand(type_in):
    def asked(*words):
        given = ("gpt2", "--gpus", "48", "--device", "h100", "--context", "17", "--json", *words)
        found = json.loads(type_in("cost", *given).out)
        return {one["devices"]: one for one in found["devices"]}

    parameters, table = 124_439_808, (50257 + 1024) * 768 + 2 * 768
    ddp = asked("--train.accumulate", "5")
    assert [*ddp] == [1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512, 1024]
    assert ddp[48]["sent_bytes"] == 2 * 47 * 4 * parameters // 48
    assert ddp[1]["sent_bytes"] == 0
    assert ddp[48]["memory_bytes"]["none"]["weights"] == 4 * parameters
    fsdp = asked("--parallel", "fsdp", "--train.accumulate", "5")
    # 48 divides every row but those of the token table, 50,257, and of the positions, 1,024
    padding = (47 + 32) * 768
    assert fsdp[48]["handed_bytes"]["reduce-scatter"] == 4 * (parameters + padding)
    often = asked("--parallel", "fsdp", "--train.accumulate", "5", "--train.sync", "batch")
    assert often[48]["handed_bytes"]["reduce-scatter"] == 5 * 4 * (parameters + padding)
    assert fsdp[48]["handed_bytes"]["all-gather"] == 5 * (2 * 2 * (parameters - table) + 4 * (table + padding))
    assert fsdp[48]["sent_bytes"] == 47 * sum(fsdp[48]["handed_bytes"].values()) // 48
    assert fsdp[48]["sending_seconds"] == pytest.approx(fsdp[48]["sent_bytes"] / 50e9)
    assert fsdp[8]["sending_seconds"] == pytest.approx(fsdp[8]["sent_bytes"] / 450e9)


def test_a_run_and_frozen_parameters_are_counted(type_in, run):
    words = ("cost", str(run), "--gpus", "2", "--json")
    whole, part = (json.loads(type_in(*words, *more).out)["devices"][1] for more in ((), ("--train.freeze", "tokens")))
    assert part["sent_bytes"] < whole["sent_bytes"]
    assert part["memory_bytes"]["none"]["weights"] == whole["memory_bytes"]["none"]["weights"]


@pytest.mark.parametrize("words, sentence", [
    (("--gpus", "0"), "--gpus must be from 1 to 65,536, not 0"),
    (("--gpus", "2", "--parallel", "fdsp"), "--parallel must be ddp or fsdp, not fdsp"),
    (("--parallel", "fsdp"), "--parallel is of several devices: give their number with --gpus"),
    (("--bandwidth", "50"), "--bandwidth is of several devices: give their number with --gpus"),
    (("--gpus", "2", "--bandwidth", "-1"), "--bandwidth is in GB/s and above 0, not -1"),
    (("--gpus", "2", "--measure"), "--measure is of this machine: leave it or --gpus out"),
    (("--gpus", "2", "--device", "m1-max"), "no machine has several m1-max: --bandwidth says how many GB/s"),
    (("--train.batch", "8"), "train.batch is of all devices together: --batch says how many rows one device takes"),
    (("--train.lr", "1e-3"), "train.lr does not change a cost: leave it out"),
    (("--train.acumulate", "2"), "train.acumulate is not a setting; did you mean accumulate?"),
    (("--train.accumulate", "0"), "train.accumulate must be at least 1, not 0"),
], ids=lambda words: " ".join(words) if isinstance(words, tuple) else "")  # fmt: skip
def test_an_error_is_one_sentence(type_in, words, sentence):
    shown = type_in("cost", "gpt2", *words, code=2)
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
