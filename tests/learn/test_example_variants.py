"""Document 001's notes and variants as tensors: the masks of tests/golden.json, and each option by its formula."""

import json
from pathlib import Path

import numpy as np
import pytest

from pencil.learn.worked.examples import example

GOLDEN = Path(__file__).parents[1] / "golden.json"


@pytest.fixture(scope="module")
def variants():
    return example("vit-text-variants")


def test_the_masks_stand_side_by_side(variants):
    masks = next(one for one in json.loads(GOLDEN.read_text(encoding="utf-8")) if one["id"] == "001-masks")["expected"]
    for name, golden in (("causal", "causal"), ("prefix", "bidirectional_vision")):
        mask = variants[f"{name}.blocks.0.attn.mask"]
        assert mask.shape == (1, 1, 7, 7)
        np.testing.assert_array_equal(mask.value[0, 0], np.array(masks[golden], dtype=float))
    for name in ("input", "blocks.0.attn.q", "blocks.0.attn.raw_scores"):  # the same weights and the same input
        np.testing.assert_array_equal(variants[f"causal.{name}"].value, variants[f"prefix.{name}"].value)
    seen = variants["prefix.blocks.0.attn.pattern[0,0,patch 1,patch 4]"]
    assert float(seen) > 0 == float(variants["causal.blocks.0.attn.pattern[0,0,patch 1,patch 4]"])
    np.testing.assert_array_equal(variants["causal.logits"].value, example("vit-text")["logits"].value)


def test_the_other_variants_are_their_formulas(variants):
    """[IMG]; I W_proj + b_proj; [/IMG], then positions and a type; and E[t] W_text with a type of its own."""

    def of(name):
        return variants[f"delimited.{name}"].value

    patches = of("patches.out")[0] @ of("project.map.weight").T + of("project.map.bias")
    marks, types = of("marks"), of("types")
    image = np.concatenate([marks[:1], patches, marks[1:]]) + of("image_positions.table") + types[0]
    text = of("tokens.weight")[:3] @ of("text_project.map.weight").T + of("positions.table") + types[1]
    np.testing.assert_allclose(of("input")[0], np.concatenate([image, text]), atol=1e-12)
    assert variants["delimited.patches.out"].shape[-1] != variants["delimited.embed"].shape[-1] != 8
    i, j = np.indices((9, 9))
    np.testing.assert_array_equal(of("blocks.0.attn.mask")[0, 0], np.where((j <= i) | (j < 6), 0, -np.inf))
    np.testing.assert_allclose(
        of("logits")[0], of("norm")[0] @ of("text_project.map.weight") @ of("tokens.weight").T, atol=1e-12
    )
    assert variants["delimited.picture[0,[IMG],1]"].why().agrees
