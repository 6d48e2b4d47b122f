"""The verbs as a user types them, on text."""

import io
import json
import re
import signal
import subprocess
import sys
import tomllib

import pytest

from commands import is_png
from conftest import TEXT, TINY

QUICK = [*TINY, "--train.steps", "4", "--train.eval_batches", "1", "--train.batch", "3"]


def test_train_sample_evaluate_and_resume(type_in, tmp_path, notes):
    shown = type_in("train", "gpt", "--data", notes, "--tokenizer", "bpe", "--vocab", 300, "--preset", "small", *QUICK)
    assert "the run is in runs/notes-gpt" in shown.err
    assert (tmp_path / "runs" / "notes-gpt" / "model.safetensors").is_file()
    shown = type_in(
        "sample", "runs/notes-gpt", "--prompt", "line 3", "--temperature", 0.8, "--top-p", 0.95, "--max-new-tokens", 9
    )
    assert shown.out.startswith("line 3")
    assert len(shown.out) > len("line 3\n")
    lines = dict(line.split() for line in type_in("eval", "runs/notes-gpt").out.splitlines())
    assert set(lines) == {"val_loss", "perplexity", "bits_per_byte"}
    again = json.loads(type_in("eval", "runs/notes-gpt", "--json").out)
    assert {k: round(v, 6) for k, v in again.items()} == {k: float(v) for k, v in lines.items()}
    assert (
        "runs/notes-gpt has made 4 steps and train.steps is 4; a larger --train.steps continues it"
        in type_in("resume", "runs/notes-gpt").err
    )
    assert "Trained 7 steps" in type_in("resume", "runs/notes-gpt", "--train.steps", 7).err
    assert "steps = 7" in (tmp_path / "runs" / "notes-gpt" / "config.toml").read_text()
    type_in("eval", "runs/notes-gpt")
    shown = type_in("train", "gpt", "--data", notes, *QUICK)
    assert "the run is in runs/notes-gpt-2" in shown.err


@pytest.mark.usefixtures("light")
def test_a_folder_names_what_it_skipped(type_in, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.bin").write_bytes(b"\0\1\2")
    shown = type_in("train", "gpt", "--data", "notes/", *QUICK)
    assert re.search(r"skipped .*b\.bin: binary data", shown.err)
    assert "runs/notes-gpt" in shown.err


@pytest.mark.usefixtures("light")
def test_standard_input_trains_evaluates_and_resumes(type_in, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode()), encoding="utf-8"))
    assert "runs/stdin-gpt" in type_in("train", "gpt", "--data", "-", *QUICK).err
    assert "val_loss" in type_in("eval", "runs/stdin-gpt").out
    assert "Trained 6 steps" in type_in("resume", "runs/stdin-gpt", "--train.steps", 6).err
    assert not list((tmp_path / "runs" / "stdin-gpt").glob(".*.*"))


@pytest.mark.usefixtures("light")
def test_a_run_is_used_from_any_folder(type_in, tmp_path, monkeypatch):
    (tmp_path / "tale.txt").write_text(TEXT)
    type_in("train", "gpt", "--data", "tale.txt", *QUICK)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "val_loss" in type_in("eval", "../runs/tale-gpt").out


def test_every_setting_can_be_listed(type_in, tmp_path):
    shown = tomllib.loads(type_in("train", "gpt", "--preset", "llama-nano", "--settings").out)
    assert shown["model"]["kv_heads"] == 2
    assert shown["train"]["optimizer"] == "muon"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("light")
def test_sampling_options(type_in, run, tmp_path):
    one = type_in("sample", run, "--prompt", "line", "--seed", 4, "--max-new-tokens", 12).out
    assert one == type_in("sample", run, "--prompt", "line", "--seed", 4, "--max-new-tokens", 12).out
    assert one != type_in("sample", run, "--prompt", "line", "--seed", 5, "--max-new-tokens", 12).out
    both = type_in("sample", run, "--prompt", "line", "--prompt", "the pencil", "--seed", 4, "--max-new-tokens", 12).out
    assert both.split("\n" + "-" * 40 + "\n")[0] + "\n" == one
    many = type_in("sample", run, "--prompt", "line", "--seed", 4, "--max-new-tokens", 12, "--count", 3).out
    assert len(set(many.split("\n" + "-" * 40 + "\n"))) == 3
    full = type_in("sample", run, "--prompt", "line", "--max-new-tokens", 99)
    assert "the context of 31 tokens is full; --slide continues" in full.err
    slid = type_in("sample", run, "--prompt", "line", "--max-new-tokens", 99, "--slide")
    assert len(slid.out) == len("line") + 99 + 1
    assert not slid.err
    type_in("sample", run, "--prompt", "line", "--out", tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text().startswith("line")
    assert type_in("sample", run, "--max-new-tokens", 5).out.strip("\n") != ""
    stopped = type_in("sample", run, "--prompt", "line", "--max-new-tokens", 25, "--temperature", 0, "--stop", " ").out
    assert " " not in stopped


@pytest.mark.long
def test_text_streams_as_it_decodes(run):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pencil",
            "sample",
            str(run),
            "--prompt",
            "line",
            "--max-new-tokens",
            "100000",
            "--slide",
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout.read(8).startswith(b"line")
    assert process.poll() is None  # a pipe holds less than all of it, so the process cannot have ended
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    process.wait(timeout=600)  # against hanging only


@pytest.mark.parametrize("what", ["gpt2", "gpt:nano", "llama-nano", "b/16", "captioner:nano", "captioner:seed"])
def test_shapes_of_a_preset(type_in, what, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    shown = type_in("shapes", what, "--batch", 3).out
    own = ("X_fold", "X_swap", "X_patch", "I", "X⁰", "y", "z_cls") if what == "b/16" else ("E[t]", "X⁰")
    if what in ("captioner:seed", "captioner:nano"):
        own = ("X_patch", "I", "I⁰", "E[t]", "X_txt⁰", "X⁰", "X_f,txt")
    for symbol in (*own, "X̃", "Q", "K", "V", "S", "A", "H", "O", "X′", "X̂", "U", "G", "M_mlp", "Z"):
        assert re.search(rf"^ *{re.escape(symbol)} ", shown, re.M), symbol
    if what == "gpt2":
        assert "124,439,808 parameters" in shown
        assert "3×12×1024×1024" in shown
        assert "W_Q W_K W_V" in shown


def test_a_preset_of_several_families_must_be_named_in_full(type_in):
    shown = type_in("shapes", "nano", code=2)
    assert "use gpt:nano, vit:nano, captioner:nano, dit:nano, reader:nano or seq2seq:nano" in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_shapes_of_a_run(type_in, run):
    assert "1×3×31×31" in type_in("shapes", run).out


def test_doctor_names_what_is_here_and_what_is_missing(type_in, monkeypatch):
    monkeypatch.setattr("pencil.cli.doctor.EXTRAS", {})  # see test_packaging.py
    shown = type_in("doctor").out
    for word in ("python", "torch", "device", "threads", "cache"):
        assert re.search(rf"^{word} +\S", shown, re.M)


def test_help_and_version(type_in):
    from pencil import __version__

    shown = type_in("--help").out
    for verb in ("demo", "train", "resume", "sample", "eval", "shapes", "doctor"):
        assert verb in shown
    assert __version__ in type_in("--version").out


@pytest.mark.long
def test_the_demo(monkeypatch, type_in, tmp_path):
    from pencil.cli import demo

    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "steps": 3, "batch": 5})
    shown = type_in("demo")
    assert re.search(r"Exact match: \d\.\d% of 1,000 held-out images \(exact_match 0\.", shown.err)
    assert shown.out.count("\n") > 4 * 16  # four pictures, drawn in the terminal
    run = tmp_path / "runs" / "scenes-captioner"
    assert str(run.relative_to(tmp_path)) in shown.err
    for name in ("loss.png", "samples/step-00000003.png", "eval/attention-1.png", "eval/mistakes.png"):
        assert is_png(run / name)
    for name in ("eval/picture.png", "eval/caption.html"):
        assert (run / name).stat().st_size > 100
    command = next(line for line in shown.err.splitlines() if line.startswith("Next:"))
    words = command.partition("sample")[2].split()
    type_in("sample", *words)
    assert (tmp_path / "attention.png").is_file()


def test_the_same_in_python(run):
    import pencil as library

    model, tokenizer, opened = library.load(run)
    (text,) = library.complete(model, tokenizer, ["line 1"], 7)
    assert len(text) == 7
    assert opened.path == run
