"""The worked examples of KV caches: what is appended, and the three smaller forms, against NumPy."""

import numpy as np
import pytest

from pencil.learn.worked.examples import example
from traced import disagreeing, holds


def attended(q, k, v):
    """One query over keys and values, as a formula."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ v


@pytest.fixture(scope="module")
def caches():
    return example("kv-caches")


def test_every_form_gives_the_attention_over_what_it_has(caches):
    q, k, v = (caches[name].value[0] for name in ("query", "keys", "values"))

    def eight_bits(x):
        scale = np.abs(x).max(-1, keepdims=True) / 127
        return np.round(x / scale), np.round(x / scale) * scale

    (whole_k, k_again), (_, v_again) = eight_bits(k), eight_bits(v)
    np.testing.assert_array_equal(caches["int8_keys"].value[0], whole_k)
    assert np.abs(whole_k).max() == 127
    expected = {
        "full": attended(q, k, v),
        "int8": attended(q, k_again, v_again),
        "window": attended(q, k[-2:], v[-2:]),
        "pages": attended(q, k, v),
    }
    for name, output in expected.items():
        np.testing.assert_allclose(caches[f"{name}.z"].value[0, 0], output, rtol=1e-12, atol=1e-14)
    far = {name: np.abs(output - expected["full"]).max() for name, output in expected.items()}
    assert 0 < far["int8"] < 0.01 < far["window"]
    assert np.abs(k_again - k).max() <= np.abs(k).max() / 127 / 2 + 1e-12  # half a step


def test_a_page_table_finds_every_key(caches):
    """Page i of the keys is stored at page_table[i]: the first at the last place, and each is read back."""
    table, keys = caches["page_table"].value.astype(int), caches["keys"].value[0]
    assert table.tolist() != list(range(3))
    for page, place in enumerate(table):
        np.testing.assert_array_equal(caches["key_pages"].value[place], keys[2 * page : 2 * page + 2])
    np.testing.assert_array_equal(caches["read_keys"].value[0], keys)
    holds(caches, count=10**6)
    assert not disagreeing(caches)


def test_the_cache_appends_and_its_output_is_that_of_the_whole_text():
    """Step 2 of document 002's three, and the output: the keys so far with the new one after them."""
    t = example("kv-cache")
    for letter in "kv":
        before, new = t[f"read.blocks.0.attn.{letter}"].value, t[f"next.blocks.0.attn.{letter}"].value
        np.testing.assert_array_equal(t[f"next.blocks.0.attn.{letter}_all"].value, np.concatenate([before, new], 2))
    q, k, v = (t[f"next.blocks.0.attn.{name}"].value[0, 0] for name in ("q", "k_all", "v_all"))
    np.testing.assert_allclose(t["next.blocks.0.attn.z"].value[0, 0], attended(q, k, v), rtol=1e-12)
    w_o, b_o = (
        t["blocks.0.attn.out.weight" if "blocks.0.attn.out.weight" in t else "model.blocks.0.attn.out.weight"],
        0.0,
    )
    output = attended(q, k, v) @ w_o.value.T + b_o
    np.testing.assert_allclose(t["next.blocks.0.attn.out"].value[0], output, rtol=1e-12)
