"""The trace file: what is read is what was written; torch is not needed; anything else is refused by name."""

import hashlib
import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pencil.config import UserError
from pencil.tracing.file import pack, write
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import read
from traced import disagreeing, theirs, traced, unchecked, wrong

NAMES = ["gpt learned", "vit class", "captioner prefix", "example:vit-4x4", "example:kv-cache"]
LONG_NAMES = [pytest.param(name, marks=pytest.mark.long) for name in ("gpt grouped", "example:mha-demo")]


def cells(found, count=40, seed=0):
    """Some cells by name, of every named tensor at least one."""
    rng = np.random.default_rng(seed)
    for name in found.names:
        shape = found[name].shape
        if 0 not in shape:
            yield name, tuple(int(rng.integers(n)) for n in shape)


@pytest.fixture
def again(tmp_path):
    def call(found):
        write(found, tmp_path / "a.trace.safetensors")
        return read(tmp_path / "a.trace.safetensors")

    return call


@pytest.mark.parametrize("name", [*NAMES, *LONG_NAMES])
def test_what_is_read_is_what_was_written(name, again):
    found = traced(name)
    back = again(found)
    assert back.names == found.names
    assert back.labels == found.labels
    assert back.facts == json.loads(json.dumps(found.facts))
    for one in found.names:
        value = found[one].value
        assert np.array_equal(back[one].value, value, equal_nan=True)
        assert back[one].value.dtype == value.dtype
        assert back[one].shape == found[one].shape
        node = back[one].node
        assert (node.axes, node.symbol, node.formula, node.kind) == (
            found[one].node.axes, found[one].node.symbol, found[one].node.formula, found[one].node.kind
        )  # fmt: skip
    with unchecked():
        for one, cell in cells(found):
            assert back[one][cell].why() == found[one][cell].why()
    assert not wrong(back.graph, 200)[1]
    assert not disagreeing(back, 40)


@pytest.mark.parametrize(
    "name", ["gpt2", "t5", *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "vit", "llama"))]
)
def test_other_peoples_models(name, again):
    model, inputs, given = theirs(name)
    found = trace(model, *inputs, **given)
    back = again(found)
    assert back.names == found.names
    assert not wrong(back.graph, 200)[1]
    for one, cell in list(cells(found))[::5]:
        with unchecked():
            assert str(back[one][cell].why()) == str(found[one][cell].why())


def test_a_trace_that_was_read_can_be_written_again(again):
    once = again(traced("example:vit-4x4"))
    twice = again(once)
    assert twice.names == once.names
    assert np.array_equal(twice["attn.pattern"].value, once["attn.pattern"].value)
    assert twice["attn.pattern[0,1,2,3]"].why() == once["attn.pattern[0,1,2,3]"].why()


def test_what_nobody_named_and_nothing_needs_is_left_out():
    def program(x):
        _ = x.exp().sin()
        return x * 2

    meta, arrays = pack(trace(program, torch.ones(3)))
    assert [n["name"] for n in meta["nodes"]] == ["x", "output"]
    assert len(arrays) == 2


KINDS = {
    "bfloat16": lambda x: x.bfloat16() * 3,
    "float16": lambda x: x.half() / 3,
    "float64": lambda x: x.double() / 3,
    "complex64": lambda x: torch.view_as_complex(x.reshape(-1, 2)) * 2j,
    "complex128": lambda x: torch.view_as_complex(x.double().reshape(-1, 2)) * 2j,
    "bool": lambda x: x > 0,
    "int64": lambda x: (x * 100).long() + 2**40,
    "int32": lambda x: (x * 100).int(),
    "int16": lambda x: (x * 100).short(),
    "int8": lambda x: (x * 10).to(torch.int8),
    "uint8": lambda x: (x.abs() * 10).byte(),
    "nothing": lambda x: x[:0] * 2,
    "one": lambda x: x.sum(),
    "not finite": lambda x: x / 0 + torch.tensor([torch.nan, 0, 0, 0]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_number(kind, again):
    found = trace(KINDS[kind], torch.tensor([1.5, -2.25, 0.0, 0.1]))
    back = again(found)
    assert back["output"].node.dtype == found["output"].node.dtype
    if kind in ("bfloat16", "float16", "complex64", "bool", "int64"):
        assert back["output"].node.dtype == kind
    assert np.array_equal(back["output"].value, found["output"].value, equal_nan=True)
    for i in range(found["output"].node.size):
        where = "output" if not found["output"].shape else f"output[{i}]"
        assert str(back[where].why()) == str(found[where].why())


WITHOUT_TORCH = """
import sys
from pencil.tracing.trace import read
t = read(sys.argv[1])
r = t["attn.scores[0,0,0,2]"].why()
assert r.agrees and r.formula == "(0.6·3 + 0.5·2)/√2", r
assert t["attn.pattern"].value.shape == (1, 2, 5, 5)
assert not {"torch", "transformers", "jax", "tensorflow", "safetensors"} & set(sys.modules)
print("read")
"""


def test_it_is_read_without_torch(tmp_path):
    path = tmp_path / "a.safetensors"
    write(traced("example:vit-4x4"), path)
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, path], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "read", done.stderr


def test_the_safetensors_package_reads_it_too(tmp_path):
    path = tmp_path / "a.safetensors"
    found = traced("example:vit-4x4")
    write(found, path)
    arrays = load_file(path)
    key = next(k for k in arrays if k.endswith(":attn.pattern"))
    assert np.array_equal(arrays[key], found["attn.pattern"].value)
    with safe_open(path, "numpy") as file:
        meta = json.loads(file.metadata()["pencil"])
    assert meta["format"].startswith("pencil trace")
    assert set(arrays) >= {n["key"] for n in meta["nodes"] if n["key"]}
    assert meta["names"]["attn.pattern"] == next(i for i, n in enumerate(meta["nodes"]) if n["key"] == key)


def test_every_kind_of_number_is_read_by_the_safetensors_package(tmp_path):
    for kind, program in KINDS.items():
        write(trace(program, torch.tensor([1.5, -2.25, 0.0, 0.1])), tmp_path / f"{kind}.safetensors")
        assert load_file(tmp_path / f"{kind}.safetensors")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write(traced("example:vit-4x4"), path)
    before = path.read_bytes()
    with pytest.raises(Exception):  # noqa: B017
        write(object(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


# what is refused


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.trace.safetensors"
    write(traced("example:vit-4x4"), path)
    return path


def refused(path, content=None, match="is not a trace file, or is damaged"):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=match) as refusal:
        read(path)
    assert "\n" not in str(refusal.value)
    assert path.name in str(refusal.value)


def parts(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_no_file(tmp_path):
    refused(tmp_path / "nowhere.safetensors", match="there is no trace")
    refused(tmp_path, match="there is no trace")


def test_files_that_end_too_soon(good):
    content = good.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1, len(content) - 8):
        refused(good, content[:length])


@pytest.mark.parametrize("content", [
    b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 100, b"PK\x03\x04" + b"\0" * 100, b"\xff" * 64,
    b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0null", b"\x01\0\0\0\0\0\0\x001",
    (1 << 40).to_bytes(8, "little") + b"{}", (1 << 63).to_bytes(8, "little") + b"{}",
    b"\x04\0\0\0\0\0\0\0\xff\xfe\xfd\xfc",
])  # fmt: skip
def test_files_of_something_else(tmp_path, content):
    refused(tmp_path / "other.safetensors", content)


def test_a_file_of_weights(tmp_path):
    save_file({"w": np.ones((2, 3), np.float32)}, tmp_path / "weights.safetensors")
    refused(tmp_path / "weights.safetensors")
    save_file({"w": np.ones((2, 3), np.float32)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    refused(tmp_path / "other.safetensors")


def test_a_header_that_lies(good):
    header, body = parts(good)
    meta = json.loads(header["__metadata__"]["pencil"])
    key = next(k for k in header if k.endswith(":attn.pattern"))

    def changed(**about):
        return joined({**header, key: {**header[key], **about}}, body)

    refused(good, changed(dtype="F8"))
    refused(good, changed(shape=[7, 7]))
    refused(good, changed(data_offsets=[0, 10**9]))
    refused(good, changed(data_offsets=None))
    refused(good, changed(shape="large"))
    refused(good, joined({**header, "__metadata__": {"pencil": "not json"}}, body))
    refused(good, joined({**header, "__metadata__": {"pencil": "[]"}}, body))
    other = {**meta, "format": "pencil trace 99"}
    refused(
        good,
        joined({**header, "__metadata__": {"pencil": json.dumps(other)}}, body),
        match="record it again with this version",
    )
    for missing in ("nodes", "names", "format"):
        less = {k: v for k, v in meta.items() if k != missing}
        refused(good, joined({**header, "__metadata__": {"pencil": json.dumps(less)}}, body))


def altered(good, change):
    """The file with its graph changed, as by a writer of bad faith: with the hash of what it holds."""
    header, body = parts(good)
    about = header.pop("__metadata__")
    meta = json.loads(about["pencil"])
    change(meta, header)
    graph = json.dumps(meta)
    whole = hashlib.sha256(graph.encode() + json.dumps(header, sort_keys=True).encode() + body).hexdigest()
    return joined({"__metadata__": {"pencil": graph, "sha256": whole}, **header}, body)


def swapped(meta, header):
    """Two nodes that only move values, each from the other."""
    shape = [2, 3]
    for one, other in ((0, 1), (1, 0)):
        meta["nodes"][one] |= {"shape": shape, "plan": ["ref", other, 0, [3, 1], []], "key": None}


def plan(*what):
    return lambda meta, header: meta["nodes"][-1].update(plan=[*what])


def moving(shape, *what):
    def change(meta, header):
        meta["nodes"].append({"name": "large", "op": "x", "kind": "move", "shape": shape, "dtype": "float64",
                              "plan": [*what], "key": None, "named": True})  # fmt: skip
        meta["names"]["large"] = len(meta["nodes"]) - 1

    return change


def deep(count):
    one = 1.0
    for _ in range(count):
        one = ["neg", one]
    return one


HARMS = {
    "a name that leads nowhere": lambda meta, header: meta["names"].update({"attn.pattern": 10**6}),
    "a plan of nodes that are not there": lambda meta, header: meta["nodes"][-1].update(plan=["ref", 10**6, 0, [0, 0, 1], []]),
    "a function that does not exist": lambda meta, header: meta["nodes"][-1].update(plan=["explode", 1]),
    "an array that is not there": lambda meta, header: header.pop(next(k for k in header if k.endswith(":attn.pattern"))),
    "a table that is not there": lambda meta, header: meta["nodes"][-1].update(plan=["list", 0, "table.99", 1]),
    "a plan that is a string": lambda meta, header: meta["nodes"][-1].update(plan="ref"),
    "two nodes that move from each other": swapped,
    "a node that moves from itself": lambda meta, header: meta["nodes"][-1].update(
        plan=["ref", len(meta["nodes"]) - 1, 0, [20, 4, 1], []]
    ),
    "a node that is computed from itself": lambda meta, header: meta["nodes"][-1].update(
        plan=["neg", ["ref", len(meta["nodes"]) - 1, 0, [20, 4, 1], []]]
    ),
    "a cell before the first": plan("ref", 0, -1, [0, 0, 1], []),
    "a cell after the last": plan("ref", 0, 0, [0, 0, 10**6], []),
    "places without end": plan("sum", ["ref", 0, 0, [0, 0, 0], [[0, 10**6], [0, 10**6]]]),
    "strides of other axes": plan("ref", 0, 0, [1], []),
    "a function of too many": plan("neg", 1, 2),
    "a list where one value belongs": plan("ref", 0, 0, [0, 0, 0], [[1, 3]]),
    "lists of different lengths": plan("sum", ["mul", ["ref", 0, 0, [0, 0, 0], [[1, 3]]], ["ref", 0, 0, [0, 0, 0], [[1, 2]]]]),
    "an axis that is not there": plan("neg", ["axis", 7]),
    "arithmetic a thousand deep": lambda meta, header: meta["nodes"][-1].update(plan=deep(500)),
    "a number that is none": plan("num", "__import__('os')"),
    "a tensor of a billion cells": moving([1000, 1000, 1000], "ref", 0, 0, [0, 0, 0], []),
    "a side without end": moving([10**15, 0], "ref", 0, 0, [0, 0], []),
    "thousands of tensors of millions of cells": lambda meta, header: [
        moving([1000, 1000], "ref", 0, 0, [0, 0], [])(meta, header) for _ in range(1000)
    ],
    "a name that is a number": lambda meta, header: meta["nodes"][-1].update(name=7),
    "labels that are numbers": lambda meta, header: meta["labels"].update(T=[1, 2, 3, 4, 5]),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_graph_that_leads_nowhere(good, harm):
    refused(good, altered(good, HARMS[harm]))


def test_a_changed_graph_with_its_hash_is_read(good):
    """So that what is refused above is not refused for its hash."""
    good.write_bytes(altered(good, lambda meta, header: meta["nodes"][-1].update(symbol="changed")))
    assert read(good)["out"].node.symbol == "changed"


def test_a_header_without_end(tmp_path):
    text = b"[" * 100_000
    refused(tmp_path / "deep.safetensors", struct.pack("<Q", len(text)) + text)


def flipped(content, at, bit):
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return bytes(changed)


def test_a_flipped_bit_is_found_wherever_it_is(good):
    content = good.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    rng = np.random.default_rng(3)
    places = [*rng.integers(8 + length, len(content), 40), *rng.integers(0, 8 + length, 60)]
    for at, bit in zip(places, rng.integers(0, 8, 100), strict=True):
        with pytest.raises(UserError, match=r"good\.trace\.safetensors"):
            read(good.parent / named(good, flipped(content, int(at), int(bit))))


def named(good, content):
    good.write_bytes(content)
    return good.name


def unhashed(good):
    """The file as it was written before there were hashes."""
    header, body = parts(good)
    meta = json.loads(header.pop("__metadata__")["pencil"])
    del meta["checked"]
    return joined({"__metadata__": {"pencil": json.dumps(meta)}, **header}, body)


def test_a_file_without_a_hash_is_opened_and_announced(good):
    good.write_bytes(unhashed(good))
    lines = []
    assert read(good, lines.append)["attn.pattern[0,0,1,2]"].why().agrees
    assert len(lines) == 1
    assert "has no hash to check it by" in lines[0]
    with pytest.warns(UserWarning, match="has no hash to check it by"):
        read(good)


def test_in_a_file_without_a_hash_a_damaged_number_is_found_by_its_receipt(good):
    content = bytearray(unhashed(good))
    good.write_bytes(content)
    header, body = parts(good)
    key = next(k for k in header if k.endswith(":attn.pattern"))
    content[len(content) - len(body) + header[key]["data_offsets"][0] + 8 * 7 + 5] ^= 1
    good.write_bytes(content)
    found = read(good, lambda line: None)
    assert not found["attn.pattern[0,0,1,2]"].why().agrees
    assert found["attn.pattern[0,0,1,1]"].why().agrees


def test_a_running_sum_reads_its_own_cell_before(again):
    back = again(trace(lambda x: x.cumsum(1), torch.arange(1.0, 16).reshape(3, 5)))
    assert back["output[2,3]"].why().agrees


def test_blocks_that_were_not_opened_are_written_as_given(again):
    from traced import ours

    model, inputs = ours("gpt learned")
    back = again(trace(model, *inputs, keep="blocks"))
    assert "blocks.0.attn.pattern" not in back
    assert back["logits[0,1,2]"].why().agrees
    assert back["blocks.0[0,1,2]"].why().reworked is None
