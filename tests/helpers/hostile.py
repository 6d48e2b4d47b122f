"""Hostile files: weights, runs, traces, tokenizers and formulas that must be refused in a sentence; and the runner.

Each case makes its files in a folder and returns the words of the command that meets them. What would be executed, if
anything were, makes a file or folder called `executed` there. `hostile_data` has the cases of data.
"""

import hashlib
import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

GPT = Path(__file__).parents[1] / "runs-0.6" / "gpt"
SECONDS, BYTES = 2.0, 300_000_000  # of CPU time, and of memory, beyond those of the verb on a benign file
DEEP = b"[" * 100_000
CASES: dict[str, Callable[[Path], list[str]]] = {}


class Outcome(NamedTuple):
    """A command that ended, and what it took."""

    returncode: int
    stderr: str
    cpu_seconds: float
    rss_bytes: int


def run_case(words: list[str], cwd: Path) -> Outcome:
    """Run the command in a process of its own; its CPU time and its peak of memory."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pencil", *map(os.fsencode, words)],
            cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
            preexec_fn=_limited,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        shown = errors.read().decode(errors="replace")
    per_unit = 1 if sys.platform == "darwin" else 1024
    return Outcome(process.returncode, shown, used.ru_utime + used.ru_stime, used.ru_maxrss * per_unit)


def _limited() -> None:
    """So that a case that is not refused harms nobody: a minute of CPU time, and files of at most 1 GB."""
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def faults(outcome: Outcome, benign: Outcome, folder: Path) -> list[str]:
    """What is wrong with how a case ended; nothing, if it was refused as it should be."""
    lines = outcome.stderr.splitlines()
    found = []
    if outcome.returncode != 2 or not lines or not lines[-1].startswith("pencil: "):
        found.append(f"exit {outcome.returncode}, not refused: {(lines or [''])[-1][:200]}")
    if "Traceback" in outcome.stderr:
        found.append("a traceback")
    if (folder / "executed").exists():
        found.append("executed")
    if (seconds := outcome.cpu_seconds - benign.cpu_seconds) > SECONDS:
        found.append(f"{seconds:.1f} s of CPU time")
    if (more := outcome.rss_bytes - benign.rss_bytes) > BYTES:
        found.append(f"{more / 1e6:.0f} MB")
    return found


# ---- benign commands: what a verb takes to start


def run_copy(folder: Path) -> Path:
    """A small gpt that can be spoiled."""
    return Path(shutil.copytree(GPT, folder / "run", dirs_exist_ok=True))


def benign_train(folder: Path) -> list[str]:
    (folder / "notes.txt").write_text("the pencil draws strips. " * 200)
    small = ["--model.width", "12", "--model.heads", "3", "--model.depth", "1", "--model.context", "13"]
    return ["train", "gpt", "--data", "notes.txt", *small, "--train.steps", "1", "--train.eval_batches", "1"]


def benign_resume(folder: Path) -> list[str]:
    """Of a run made here: that of `run_copy` was trained on Python's documentation, another text in another Python."""
    words = [*benign_train(folder), "--out", "run"]
    subprocess.run([sys.executable, "-m", "pencil", *words], cwd=folder, check=True, capture_output=True)
    return ["resume", "run", "--train.steps", "5"]


def benign_check(folder: Path) -> list[str]:
    (folder / "good.toml").write_text("[[step]]\nformula = '1 + 1'\nprinted = 2\n")
    return ["check", "good.toml"]


BENIGN: Mapping[str, Callable[[Path], list[str]]] = {
    "check": benign_check,
    "train": benign_train,
    "cost": lambda folder: ["cost", str(run_copy(folder))],
    "shapes": lambda folder: ["shapes", str(run_copy(folder))],
    "resume": benign_resume,
    "eval": lambda folder: ["eval", str(run_copy(folder))],
    "sample": lambda folder: ["sample", str(run_copy(folder)), "--prompt", "a"],
    "heads": lambda folder: ["heads", str(run_copy(folder)), "--prompt", "import a b import a b", "--out", "heads.png"],
    "show": lambda folder: ["show", trace_file(folder)],
    "diff": lambda folder: ["diff", trace_file(folder), trace_file(folder)],
    "why a file": lambda folder: ["why", trace_file(folder), "y[0,0]"],
    "why": lambda folder: ["why", str(run_copy(folder)), "logits[0,0,0]", "--input", "a"],
    "trace a file": lambda folder: ["trace", trace_file(folder), "--html", "a.html"],
    "trace": lambda folder: ["trace", str(run_copy(folder)), "--input", "a", "--html", "a.html"],
}


def benign(words: list[str], folder: Path) -> tuple[str, list[str]]:
    """The same verb on a benign file, and a name for it; a trace file takes less to open than a run."""
    verb = f"{words[0]} a file" if words[1].endswith(".safetensors") and words[0] in ("why", "trace") else words[0]
    return verb, BENIGN[verb](folder)


# ---- cases


def case(name: str) -> Callable:
    """A case by its name, `kind: what`."""

    def keep(make: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
        assert name not in CASES
        CASES[name] = make
        return make

    return keep


def signed(run: Path) -> Path:
    """The run with a manifest that fits whatever its files are now, as by a writer of bad faith."""
    files = {}
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        path = run / name
        if path.is_file() and path.stat().st_size < 1 << 28:
            content = path.read_bytes()
            files[name] = [{"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}]
        elif path.exists():
            files[name] = [{"size": path.stat().st_size, "sha256": "0" * 64}]
    (run / "manifest.json").write_text(json.dumps({"files": files}))
    return run


def safetensors(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def trace_bytes(*more: dict[str, object], change: Callable[[list], object] = lambda nodes: None) -> bytes:
    """A trace of x, y = −x and these nodes, with the hash of what it holds."""
    x = {"name": "x", "op": "input", "kind": "input", "shape": [2, 3], "dtype": "float32", "plan": None, "key": "0:x"}
    y = x | {
        "name": "y",
        "op": "neg",
        "kind": "",
        "plan": ["neg", ["ref", 0, 0, [3, 1], []]],
        "key": "1:y",
        "named": True,
    }
    nodes = [x, y, *more]
    change(nodes)
    names = {node["name"]: i for i, node in enumerate(nodes)}
    graph = json.dumps(
        {"format": "pencil trace 1", "nodes": nodes, "names": names, "labels": {}, "facts": {}, "checked": "sha256"}
    )
    entries = {"0:x": tensor([2, 3], 0, 24), "1:y": tensor([2, 3], 24, 48)}
    body = struct.pack("<12f", *range(6), *(-i for i in range(6)))
    whole = hashlib.sha256(graph.encode() + json.dumps(entries, sort_keys=True).encode() + body).hexdigest()
    return safetensors({"__metadata__": {"pencil": graph, "sha256": whole}} | entries, body)


def trace_file(folder: Path) -> str:
    (folder / "good.safetensors").write_bytes(trace_bytes())
    return str(folder / "good.safetensors")


class Executed:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder / "executed"),))


WEIGHTS: dict[str, Callable[[Path], bytes]] = {
    "a header without end": lambda f: struct.pack("<Q", 1 << 63) + b"{}",
    "a header of 60 MB": lambda f: safetensors(b"{}" + b" " * 60_000_000),
    "a header of a million tensors": lambda f: safetensors(
        b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(400_000)) + b"}"
    ),
    "a header of empty lists": lambda f: safetensors(b'{"a":[' + b"[]," * 8_000_000 + b"[]]}"),
    "a header a hundred thousand deep": lambda f: safetensors(b'{"a":' + DEEP),
    "a name twice": lambda f: safetensors(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"ab"
    ),
    "tensors that overlap": lambda f: safetensors({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)),
    "a tensor beyond the file": lambda f: safetensors({"a": tensor([2**40], 0, 2**42)}, bytes(8)),
    "a shape of more than its bytes": lambda f: safetensors({"a": tensor([10**6, 10**6], 0, 8)}, bytes(8)),
    "a shape that overflows": lambda f: safetensors({"a": tensor([2**32, 2**32, 2], 0, 0)}),
    "a negative shape": lambda f: safetensors({"a": tensor([-1, -2], 0, 8)}, bytes(8)),
    "a gap": lambda f: safetensors({"a": tensor([2], 8, 16)}, bytes(16)),
    "a dtype of its own": lambda f: safetensors({"a": tensor([2], 0, 8, "__import__('os')")}, bytes(8)),
    "a pickle": lambda f: pickle.dumps(Executed(f)),
    "no bytes": lambda f: b"",
}  # fmt: skip


def _weights(name: str) -> None:
    @case(f"weights: {name}")
    def make(folder: Path) -> list[str]:
        run = run_copy(folder)
        (run / "model.safetensors").write_bytes(WEIGHTS[name](folder))
        return ["sample", str(signed(run)), "--prompt", "a"]


for _name in WEIGHTS:
    _weights(_name)


@case("weights: a terabyte of nothing")
def _sparse(folder: Path) -> list[str]:
    run = run_copy(folder)
    with (run / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    return ["sample", str(signed(run)), "--prompt", "a"]


CONFIGS: dict[str, tuple[list[str], str, str]] = {
    "depth 3,000,000, to sample": (["sample"], "depth = 1", "depth = 3000000"),
    "depth 3,000,000, to cost": (["cost"], "depth = 1", "depth = 3000000"),
    "depth 3,000,000, to shapes": (["shapes"], "depth = 1", "depth = 3000000"),
    "depth 3,000,000, to resume": (["resume"], "depth = 1", "depth = 3000000"),
    "depth 900, to sample": (["sample"], "depth = 1", "depth = 900"),
    "width 10⁹, to sample": (["sample"], "width = 12", "width = 1000000002"),
    "width 10⁹, to cost": (["cost"], "width = 12", "width = 1000000002"),
    "width 10⁵, to resume": (["resume"], "width = 12", "width = 100002"),
    "heads 10⁹, to shapes": (["shapes"], "heads = 3", "heads = 1000000000"),
    "vocab 10¹², to heads": (["heads"], "vocab = 103", "vocab = 1000000000000"),
    "context 10¹⁵, to eval": (["eval"], "context = 13", "context = 1000000000000000"),
    "a number of 5,000 digits": (["sample"], "depth = 1", "depth = " + "9" * 5000),
    "nested a hundred thousand deep": (["sample"], "depth = 1", "depth = " + DEEP.decode()),
    "a key of a hundred thousand parts": (["sample"], "depth = 1", "a" + ".a" * 100_000 + " = 1"),
    "a million settings": (["cost"], "depth = 1", "depth = [" + "1," * 1_000_000 + "]"),
    "a family of its own": (["sample"], 'family = "gpt"', 'family = "../../../etc/passwd"'),
    "a setting that is code": (["sample"], 'positions = "rope"', "positions = \"__import__('os').mkdir('executed')\""),
}


def _config(name: str) -> None:
    @case(f"config: {name}")
    def make(folder: Path) -> list[str]:
        run = run_copy(folder)
        words, old, new = CONFIGS[name]
        text = (run / "config.toml").read_text()
        assert old in text
        (run / "config.toml").write_text(text.replace(old, new, 1))
        return [*words, str(signed(run))]


for _name in CONFIGS:
    _config(_name)


@case("config: bytes that are no text")
def _no_text(folder: Path) -> list[str]:
    run = run_copy(folder)
    (run / "config.toml").write_bytes(b"\xff\xfe[run]\0")
    return ["sample", str(signed(run))]


for _word, _value in (("depth", "3000000"), ("width", "1000000000"), ("vocab", str(10**15)), ("context", str(10**12))):
    CASES[f"setting: {_word} {int(_value):,}"] = lambda folder, word=_word, value=_value: [
        *benign_train(folder)[:4], f"--model.{word}", value
    ]  # fmt: skip
