"""`shapes RUN` and `cost RUN` show the run's own sizes, whatever preset it was made with, as its weights have them."""

import json
import re

import pytest
from safetensors import safe_open

from conftest import call
from pencil.families import family
from pencil.runs.run import Run

TEXT = dict(vocab=23, context=11)
IMAGE = dict(image_size=(6, 10), channels=1, patch=(3, 5))
# no preset is the default one, and most leave sizes unset that the default one sets
MADE = [
    ("captioner", "small", dict(width=42, heads=3, depth=2, **TEXT, **IMAGE)),
    ("captioner", "seed", dict(width=26, depth=1, **TEXT, **IMAGE)),
    ("captioner", "base", dict(width=66, heads=3, depth=1, **TEXT, **IMAGE)),
    ("gpt", "llama-nano", dict(width=84, heads=6, depth=1, **TEXT)),
    ("gpt", "shakespeare", dict(width=46, heads=1, depth=3, **TEXT)),
    ("gpt", "gpt2", dict(width=33, heads=3, depth=1, **TEXT)),
    ("vit", "small", dict(width=35, heads=7, depth=2, classes=13, **IMAGE)),
    ("vit", "ti/16", dict(width=33, heads=3, depth=1, classes=7, **IMAGE)),
    ("dit", "small", dict(width=42, heads=3, depth=2, **IMAGE)),
    ("dit", "s/4", dict(width=44, heads=2, depth=1, classes=11, **IMAGE)),
    ("reader", "small", dict(width=26, heads=1, depth=2, classes=5, **TEXT)),
    ("reader", "bert-base", dict(width=39, heads=3, depth=1, **TEXT)),
    ("seq2seq", "small", dict(width=34, heads=1, depth=2, source_context=13, **TEXT)),
    ("seq2seq", "base", dict(width=58, heads=1, depth=1, source_context=7, **TEXT)),
]


LONG = ("captioner seed", "gpt shakespeare", "seq2seq small")


@pytest.mark.parametrize("name, preset, sizes", [
    pytest.param(*made, id=label, marks=[pytest.mark.long] if label in LONG else [])
    for made in MADE for label in [f"{made[0]} {made[1]}"]
])  # fmt: skip
def test_shapes_and_cost_of_a_run_are_those_of_its_weights(name, preset, sizes, tmp_path):
    record = family(name)
    assert preset != record.default_preset
    config = record.configure(preset, **sizes)
    run = Run.create(tmp_path / "run", {"run": {"family": name}, "model": config, "train": {}}, None)
    run.write_weights(record.create(config), {})
    with safe_open(run.path / "model.safetensors", "pt") as file:
        held = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    total = sum(_product(shape) for shape in held.values())
    shown = call("shapes", run.path).stdout
    assert f"{name}, {total:,} parameters" in shown
    learned = shown[shown.index("Learned") :]
    for key, shape in held.items():
        if not re.search(r"blocks\.[1-9]", key):
            line = next(
                line for line in learned.splitlines() if line.split()[-1:] == [key.replace("blocks.0.", "blocks.ℓ.")]
            )
            assert "×".join(map(str, shape)) in line.split()
    report = json.loads(call("cost", run.path, "--json").stdout)
    assert report["parameters"]["total"] == total
    assert report["config"]["width"] == sizes["width"]
    assert report["config"]["hidden"] == config.hidden


def _product(shape):
    result = 1
    for size in shape:
        result *= size
    return result
