"""Hostile files: each is refused in one sentence, within limits of time and memory, and none is executed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import hostile_files
from conftest import call, refused
from hostile import CASES, benign, faults, run_case, run_copy, signed
from pencil.config import UserError
from pencil.data.tokenizers.tokenizer import read_json
from pencil.files import parse_json, read_bytes, read_toml
from pencil.learn.check.check import check_text
from pencil.tensors import read_tensors
from pencil.tracing.file import write
from pencil.tracing.live_trace import trace

ROOT = Path(__file__).parents[1]
# some of each way to harm, in a process of their own, where time and memory are measured: verbs that start quickly
MEASURED = ("trace: a graph of empty lists", "trace: a tensor of 10⁹ cells", "trace: a receipt without end",
            "formula: 400 × ones(1000000)", "formula: ten thousand steps", "a pipe: x.toml")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory):
    """What the verbs load, loaded."""
    call("sample", run_copy(tmp_path_factory.mktemp("started")), "--prompt", "a", "--max-new-tokens", "1")


# about two seconds of CPU time, the most that a refusal may take here: a slow machine needs more
NEAR_THE_LIMIT = {"formula: ten thousand steps"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in NEAR_THE_LIMIT else name for name in CASES]
)
def test_a_hostile_file_is_refused_in_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = CASES[name](tmp_path)
    done = refused(words, tmp_path)
    assert len(done.stderr.splitlines()) <= 3  # two notes and the sentence
    shutil.rmtree(tmp_path, ignore_errors=True)  # some are large


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What a verb takes on a benign file, measured once."""
    known = {}

    def call(words):
        verb, plain = benign(words, folder := tmp_path_factory.mktemp("benign"))
        if verb not in known:
            known[verb] = run_case(plain, folder)
            assert known[verb].returncode == 0, known[verb].stderr
        return known[verb]

    return call


SLOW = {
    "trace: a receipt without end",
    "trace: a graph of empty lists",
    "trace: a tensor of 10⁹ cells",
    *NEAR_THE_LIMIT,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in MEASURED]
)
def test_a_refusal_takes_little_time_and_memory(name, tmp_path, usual):
    words = CASES[name](tmp_path)
    assert not faults(run_case(words, tmp_path), usual(words), tmp_path)


def test_there_are_enough_cases_of_enough_kinds():
    assert len(CASES) >= 60
    assert len({name.partition(":")[0] for name in CASES}) >= 12


@pytest.mark.long
def test_every_hostile_file_is_refused_within_its_limits():
    script = ROOT / "benchmarks" / "survival" / "hostile.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout[-3000:]


# ---- what is honest is still read


def test_a_tokenizer_that_pads_and_truncates_encodes_every_text_whole():
    asked = hostile_files.bpe(
        padding={"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "a"},
        truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    )  # fmt: skip
    tokenizer = read_json(json.dumps(asked), "t.json")
    assert tokenizer.encode("ab" * 11).tolist() == [0, 1] * 11


@pytest.mark.parametrize("pattern", [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    r"'s|'t|'re| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\(+|\)+|[()]+",
])  # fmt: skip
def test_published_patterns_are_accepted(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = hostile_files.bpe(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})
    assert read_json(json.dumps(content), "t.json").encode("ab").tolist() == [0, 1]


def test_weights_of_every_dtype_and_many_tensors_are_read(tmp_path):
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)  # fmt: skip
    tensors = {f"{i}.{kind}": torch.ones(2, 3).to(kind) for kind in kinds for i in range(101)}
    tensors |= {"nothing": torch.zeros(5, 0, 7), "one": torch.tensor(3.0)}
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    found = read_tensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k].float(), tensors[k].float()) for k in tensors)


def test_a_file_larger_than_its_limit_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 13)
    assert read_bytes(tmp_path / "a.txt", 13) == b"x" * 13
    with pytest.raises(UserError, match=r"a\.txt has more than"):
        read_bytes(tmp_path / "a.txt", 12)


def test_json_and_toml_within_their_limits_are_read(tmp_path):
    assert parse_json('{"a": [1, {"b": "\\ud83d\\ude00"}]}', "x") == {"a": [1, {"b": "😀"}]}
    with pytest.raises(UserError, match="a key stands in it twice"):
        parse_json('{"a": 1, "a": 1}', "x")
    (tmp_path / "a.toml").write_text(f"[a.b.c]\nd.e = 1.5\nf = {[i / 7 for i in range(2000)]}\n")
    assert len(read_toml(tmp_path / "a.toml")["a"]["b"]["c"]["f"]) == 2000


def test_an_example_of_hundreds_of_steps_is_checked():
    steps = "".join(
        f"[[step]]\nname = 'x{i}'\nformula = 'x{i - 1} * 1.5 + {i}'\nprinted = '_'\n" for i in range(1, 500)
    )
    assert not check_text(f"[inputs]\nx0 = 1\n{steps}").steps


def test_values_that_numpy_cannot_hold_are_refused_by_the_tape(tmp_path):
    with pytest.raises(UserError, match="is float8_e4m3fn, which has no receipt yet"):
        trace(lambda x: x.to(torch.float8_e4m3fn).float() * 2, torch.ones(3))
    with pytest.raises(UserError, match="is float8_e5m2, which has no receipt yet"):
        trace(lambda x: x.float() * 2, torch.ones(3).to(torch.float8_e5m2))
    found = trace(lambda x: x + 1, torch.ones(3))
    found.graph.values[0] = torch.ones(3).to(torch.uint16)
    with pytest.raises(UserError, match="uint16, which a trace file cannot hold"):
        write(found, tmp_path / "a.safetensors")


def test_a_large_batch_of_a_received_run_is_refused_before_it_is_trained(tmp_path):
    run = run_copy(tmp_path)
    done = call("resume", signed(run), "--train.steps", "5", "--train.batch", str(10**12), code=2)
    assert "this training needs about" in done.stderr


# ---- Ctrl-C


def test_ctrl_c_during_imports_is_one_line(tmp_path):
    """A library that takes long to import makes the moment certain."""
    (tmp_path / "cyclopts.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(30)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "pencil", "--help"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where the suite runs in the background
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, "pencil: interrupted\n")


def test_ctrl_c_during_a_verb_is_one_line(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pencil.cli.main.run", interrupted)
    assert call("doctor", code=130).stderr == "pencil: interrupted\n"
