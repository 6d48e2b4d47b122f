"""More hostile files, kept with those of `hostile`: tokenizers, formulas, traces, checkpoints, and files that are none."""

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

from hostile import CASES, DEEP, GPT, WEIGHTS, Executed, benign_train, case, run_copy, safetensors, trace_bytes

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def bpe(**changes: object) -> dict[str, object]:
    """A byte-level BPE of two tokens, with changes."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "model": model, "decoder": LEVEL, "pre_tokenizer": LEVEL} | changes


def _model(**changes: object) -> dict[str, object]:
    return bpe(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []} | changes)


def _split(pattern: str) -> dict[str, object]:
    return bpe(pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})


TOKENIZERS: dict[str, Callable[[Path], object]] = {
    "an id of 10⁹": lambda f: _model(vocab={"a": 0, "b": 10**9}),
    "an id twice": lambda f: _model(vocab={"a": 0, "b": 0}),
    "a token twice": lambda f: b'{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}}',
    "an added id of 10⁹": lambda f: bpe(added_tokens=[{"id": 10**9, "content": "x", "special": True}]),
    "an added token without letters": lambda f: bpe(added_tokens=[{"id": 2, "content": "", "special": True}]),
    "a normaliser that replaces": lambda f: bpe(
        normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000_000}
    ),
    "normalisers in a sequence of sequences": lambda f: bpe(
        normalizer={"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}] * 100_000}
    ),
    "a pattern of exponential time": lambda f: _split(r"(\w+\s?)+$"),
    "a pattern that refers back": lambda f: _split(r"(\w)\1+"),
    "merges drawn at random": lambda f: _model(dropout=0.5),
    "a decoder that replaces": lambda f: bpe(
        decoder={"type": "Sequence", "decoders": [
            LEVEL, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        ]}
    ),
    "another model": lambda f: bpe(model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}),
    "lists a hundred thousand deep": lambda f: b'{"model": ' + DEEP,
    "lists without end": lambda f: b'{"model": [' + b"[]," * 10_000_000 + b"[]]}",
    "a hundred megabytes": lambda f: b'{"a": "' + b"a" * 100_000_000 + b'"}',
    "characters out of order": lambda f: {"kind": "char", "characters": "ba"},
    "characters that are none": lambda f: {"kind": "char", "characters": ["aa", 7]},
    "a pickle": lambda f: pickle.dumps(Executed(f)),
}  # fmt: skip


def _tokenizer(name: str) -> None:
    @case(f"tokenizer: {name}")
    def make(folder: Path) -> list[str]:
        content = TOKENIZERS[name](folder)
        (folder / "t.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return [*benign_train(folder)[:4], "--tokenizer", "t.json"]


for _name in TOKENIZERS:
    _tokenizer(_name)

STEP = "[[step]]\nname = 'x{}'\nformula = '{}'\n"
FORMULAS: dict[str, Callable[[], str]] = {
    "400 × ones(1000000)": lambda: "".join(STEP.format(i, "ones(1000000)") for i in range(400)),
    "matrix products": lambda: STEP.format(0, "ones(1000,1000)") + STEP.format(1, "@".join(["x0"] * 60)),
    "powers of powers": lambda: STEP.format(0, "ones(1000000)*1.1") + STEP.format(1, "**".join(["x0"] * 70)),
    "functions of functions": lambda: STEP.format(0, "ones(1000000)") + STEP.format(1, "erf(" * 60 + "x0" + ")" * 60),
    "a value of 10¹² numbers": lambda: STEP.format(0, "ones(1000000, 1000000)"),
    "brackets in brackets": lambda: STEP.format(0, "(" * 900 + "1" + ")" * 900),
    "signs before signs": lambda: STEP.format(0, "-" * 1900 + "1"),
    "code": lambda: STEP.format(0, '__import__("os").mkdir("executed")'),
    "code in an attribute": lambda: STEP.format(0, '(1).__class__.__base__.__subclasses__()'),
    "ten thousand steps": lambda: "".join(STEP.format(i, "+".join(["1"] * 40)) for i in range(8_000)),
    "a key of a hundred thousand parts": lambda: "a" + ".a" * 100_000 + " = 1",
    "numbers without end": lambda: "[inputs]\nx = [" + "1," * 450_000 + "1]\n",
    "tables in tables": lambda: "x = " + "[" * 900_000,
}  # fmt: skip


def _formula(name: str) -> None:
    @case(f"formula: {name}")
    def make(folder: Path) -> list[str]:
        (folder / "bad.toml").write_text(FORMULAS[name]())
        return ["check", "bad.toml"]


for _name in FORMULAS:
    _formula(_name)


# ---- traces


def moving(shape: list[int], *plan: object) -> dict[str, object]:
    """A node that only moves values."""
    return {
        "name": "m",
        "op": "x",
        "kind": "move",
        "shape": shape,
        "dtype": "float32",
        "plan": [*plan],
        "key": None,
        "named": True,
    }


def doubling(count: int) -> list[dict[str, object]]:
    """Unnamed nodes, each the sum of many cells of the one before: unfolded, they would never end."""
    made = []
    for i in range(count):
        part: object = ["ref", i + 1, 0, [3, 1], []]
        for _ in range(40):
            part = ["add", part, ["ref", i + 1, 0, [3, 1], []]]
        made.append(
            {"name": f"n{i}", "op": "add", "kind": "", "shape": [2, 3], "dtype": "float32", "plan": part, "key": "1:y"}
        )
    return made


def plans(value: object) -> Callable[[list], object]:
    return lambda nodes: nodes[1].update(plan=value)


TRACES: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "two nodes in a circle": (
        lambda: trace_bytes(moving([2, 3], "ref", 3, 0, [3, 1], []), moving([2, 3], "ref", 2, 0, [3, 1], []) | {"name": "n"}),
        ["show", "m"],
    ),
    "a node that reads itself": (lambda: trace_bytes(moving([2, 3], "ref", 2, 0, [3, 1], [])), ["show", "m"]),
    "a sum of itself": (lambda: trace_bytes(change=plans(["neg", ["ref", 1, 0, [3, 1], []]])), ["why", "y[0,0]"]),
    "a tensor of 10⁹ cells": (lambda: trace_bytes(moving([1000, 1000, 1000], "ref", 0, 0, [0, 0, 0], [])), ["show", "m"]),
    "a sum of 10¹² cells": (
        lambda: trace_bytes(change=plans(["sum", ["ref", 0, 0, [0, 0], [[0, 10**6], [0, 10**6]]]])), ["why", "y[0,0]"]
    ),
    "ten thousand tensors of a million cells": (
        lambda: trace_bytes(*(moving([1000, 1000], "ref", 0, 0, [0, 0], []) for _ in range(10_000))), ["diff"]
    ),
    "a receipt without end": (lambda: trace_bytes(*doubling(9)), ["why", "n8[0,0]"]),
    "cells that are not there": (lambda: trace_bytes(moving([2, 3], "ref", 0, 5, [3, 1], [])), ["trace", "--html", "a.html"]),
    "a plan that is code": (lambda: trace_bytes(change=plans(["__import__('os').mkdir('executed')", 1])), ["why", "y[0,0]"]),
    "a plan a hundred deep": (lambda: trace_bytes(change=plans(_deep(100))), ["why", "y[0,0]"]),
    "a graph a hundred thousand deep": (
        lambda: safetensors({"__metadata__": {"pencil": '{"nodes": ' + DEEP.decode()}}), ["show"]
    ),
    "a graph of empty lists": (
        lambda: safetensors({"__metadata__": {"pencil": '{"nodes": [' + "[]," * 7_000_000 + "[]]}"}}), ["show"]
    ),
    "another hash": (lambda: trace_bytes()[:-1] + b"\xff", ["show"]),
    "a pickle": (lambda: pickle.dumps(Executed(Path("."))), ["show"]),
    "a shape of a hundred axes": (lambda: trace_bytes(moving([1] * 100, "ref", 0, 0, [0] * 100, [])), ["show", "m"]),
}  # fmt: skip


def _deep(count: int) -> object:
    one: object = 1.0
    for _ in range(count):
        one = ["neg", one]
    return one


def _trace(name: str) -> None:
    @case(f"trace: {name}")
    def make(folder: Path) -> list[str]:
        content, (verb, *more) = TRACES[name]
        path = folder / "bad.safetensors"
        path.write_bytes(content())
        return [verb, str(path), *([str(path)] if verb == "diff" else []), *more]


for _name in TRACES:
    _trace(_name)

# ---- checkpoints and manifests, met by resume and verify

JSONS: dict[str, bytes] = {
    "a hundred thousand deep": b'{"files": ' + DEEP,
    "a list": b"[1, 2, 3]",
    "lists without end": b'{"files": [' + b"[]," * 9_000_000 + b"[]]}",
    "a file outside": json.dumps(
        {"step": 4, "files": {"../../../../../etc/passwd": {"size": 1, "sha256": "0"}}}
    ).encode(),
    "no text": b"\xff\xfe\0",
    "a number of 5,000 digits": b'{"step": ' + b"9" * 5000 + b"}",
}
STEP_4 = "checkpoints/step-00000004"
PLACES = {"manifest": "manifest.json", "checkpoint": f"{STEP_4}/manifest.json", "state": f"{STEP_4}/state.json"}


def _json(kind: str, name: str) -> None:
    @case(f"{kind}: {name}")
    def make(folder: Path) -> list[str]:
        run = run_copy(folder)
        (run / PLACES[kind]).write_bytes(JSONS[name])
        if kind == "state":  # with a manifest that fits it
            listed = json.loads((run / PLACES["checkpoint"]).read_text())
            listed["files"]["state.json"] = {
                "size": len(JSONS[name]),
                "sha256": hashlib.sha256(JSONS[name]).hexdigest(),
            }
            (run / PLACES["checkpoint"]).write_text(json.dumps(listed))
        return [
            "sample" if kind == "manifest" else "resume",
            str(run),
            *(["--train.steps", "5"] * (kind != "manifest")),
        ]


for _kind in PLACES:
    for _name in JSONS:
        _json(_kind, _name)


def _shard(name: str) -> None:
    @case(f"shard: {name}")
    def make(folder: Path) -> list[str]:
        run, content = run_copy(folder), WEIGHTS[name](folder)
        (run / STEP_4 / "shard-00000.safetensors").write_bytes(content)
        listed = json.loads((run / PLACES["checkpoint"]).read_text())
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        listed["files"]["shard-00000.safetensors"] = entry
        (run / PLACES["checkpoint"]).write_text(json.dumps(listed))
        return ["resume", str(run), "--train.steps", "5"]


for _name in ("a header of 60 MB", "a header a hundred thousand deep", "a shape of more than its bytes", "a pickle"):
    _shard(_name)

# ---- files that are none: a pipe that nobody writes into, a device without end, a link to itself, a folder


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path)


SPECIAL = {"a pipe": _pipe, "a device": _zeros, "a link to itself": _loop, "a folder": Path.mkdir}
MET: dict[str, Callable[[Path], list[str]]] = {
    "x.safetensors": lambda f: ["show", str(f / "x.safetensors")],
    "x.toml": lambda f: ["check", str(f / "x.toml")],
    "x.json": lambda f: [*benign_train(f)[:4], "--tokenizer", str(f / "x.json")],
    "x.txt": lambda f: ["heads", str(GPT), "--text", str(f / "x.txt"), "--out", str(f / "a.png")],
    "run/config.toml": lambda f: ["sample", str(f / "run")],
    "run/model.safetensors": lambda f: ["sample", str(f / "run")],
    "run/manifest.json": lambda f: ["sample", str(f / "run")],
    "run/tokenizer.json": lambda f: ["sample", str(f / "run")],
}


def _special(name: str, what: str) -> None:
    @case(f"{what}: {name}")
    def make(folder: Path) -> list[str]:
        run = run_copy(folder)
        path = folder / name
        path.unlink(missing_ok=True)
        SPECIAL[what](path)
        return MET[name](folder) if run else []


for _what in SPECIAL:
    for _name in MET:
        _special(_name, _what)

# ---- texts that are none

CASES |= {
    "text: a prompt": lambda f: ["sample", str(GPT), "--prompt", "a\udcff"],
    "text: an input to why": lambda f: ["why", str(GPT), "logits[0,0,0]", "--input", "a\udcff"],
    "text: an input to trace": lambda f: ["trace", str(GPT), "--input", "\udcff\udcfe", "--html", str(f / "a.html")],
    "text: a prompt to heads": lambda f: ["heads", str(GPT), "--prompt", "\udcff", "--out", str(f / "a.png")],
}
