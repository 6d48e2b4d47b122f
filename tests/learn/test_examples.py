"""The worked examples as traces: the numbers in print, and every one of them with its arithmetic."""

import numpy as np
import pytest

from pencil.config import UserError
from pencil.learn.worked.examples import EXAMPLES, deviations, example
from pencil.tracing.receipt import receipt
from traced import traced, unchecked

TRAINED = {"english-sentence"}  # a million numbers: every ten thousandth
# every seventh cell; all in the long form
LARGE = {
    "vit-text-variants",
    "video-attention",
    "original-transformer",
    "vit-text",
    "mha-demo",
    "nanogpt-block",
    "rope",
    "alibi",
    "shaw",
    "t5",
    "adaln",
    "adaln-zero",
}


@pytest.mark.parametrize(
    "name, stride",
    [*((name, 10007 if name in TRAINED else 7 if name in LARGE else 1) for name in EXAMPLES),
     *(pytest.param(name, 1, marks=pytest.mark.long) for name in sorted(LARGE))],
)  # fmt: skip
def test_every_cell_of_every_example_agrees(name, stride):
    found = traced(f"example:{name}")
    # ALiBi's bias is computed in float32 in every model; powers of two times whole numbers are exact in it
    kinds = {n.dtype for n in found.graph.nodes if n.named and (name, n.name) != ("alibi", "positions.bias")}
    assert {kind for kind in kinds if kind.startswith("float")} == {"float64"}
    count = 0
    with unchecked():
        for node, n in enumerate(found.graph.nodes):
            if n.named:
                for place in range(0, n.size, stride):
                    assert receipt(found, node, place).agrees, (n.name, place)
                    count += 1
    assert count > 10
    for letter, words in found.labels.items():
        prefix, _, axis = letter.rpartition(".")
        nodes = [n for n in found.graph.nodes if n.name.startswith(prefix)]
        assert any(axis in n.axes.split() and len(words) in n.shape for n in nodes), letter


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_the_same_every_time(name):
    one, two = traced(f"example:{name}"), example(name)
    assert one.names == two.names
    assert all(np.array_equal(one[n].value, two[n].value) for n in one.names)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected, dtype=float), atol=1e-8, rtol=0)


def test_vit_4x4(golden):
    found = traced("example:vit-4x4")
    close(found["picture"].value[0, 0], golden["004-patchify"]["inputs"]["image"])
    close(found["patches.flat"].value[0], golden["004-patchify"]["expected"]["patches"])
    close(found["patches.out"].value[0], golden["004-embed"]["expected"]["z"])
    close(found["input"].value[0], golden["004-Z0"]["expected"]["Z0"])
    for head in (1, 2):
        close(found["attn.q"].value[0, head - 1], golden[f"004-head{head}-qkv"]["expected"][f"Q{head}"])
        close(found["attn.scores"].value[0, head - 1], golden[f"004-head{head}-scores"]["expected"]["scores"])
        close(found["attn.pattern"].value[0, head - 1], golden[f"004-head{head}-attn"]["expected"]["attn"])
        close(found["attn.z"].value[0, head - 1], golden[f"004-head{head}-out"]["expected"]["out"])
    close(found["attn.out"].value[0], golden["004-msa"]["expected"]["msa_out"])
    close(found["out"].value[0], golden["004-residual"]["expected"]["Z_after_msa"])
    assert found.labels["T"] == ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]


def test_pencil_attention(golden):
    found, expected = traced("example:pencil-attention"), golden["000-kata3-attention"]["expected"]
    for name, key in (("want", "WANT"), ("have", "HAVE"), ("give", "GIVE")):
        close(found[name].value[0, 0], golden["000-kata3-attention"]["inputs"][key])
    close(found["scores"].value[0, 0], expected["scaled"])
    close(found["pattern"].value[0, 0], expected["weights"])
    close(found["z"].value[0, 0], expected["output"])
    steps = {s.word: s.value for s in found["pattern[0,0,0,1]"].why().steps}
    close(steps["total"] * np.exp(steps["max"]), expected["totals"][0])


def test_mha_demo(golden):
    found, expected = traced("example:mha-demo"), golden["002-code-demo"]["expected"]
    close(found["x"].value[0], golden["002-code-demo"]["inputs"]["X"])
    close(found["one.scores"].value[0, 0], expected["scores"])
    close(found["one.pattern"].value[0, 0], expected["weights"])
    close(found["one.z"].value[0, 0], expected["output"])
    close(found["many.pattern"].value[0], expected["head_weights"])
    close(found["many.out"].value[0], expected["mha_output"])
    close(np.asarray(found["one.scores"].value).std(), expected["std_of_the_36_scaled_scores"])
    widths, plain, scaled = zip(*deviations(), strict=True)
    assert widths == (4, 16, 64, 256, 1024)
    close(plain, expected["score_stds_unscaled"])
    close(scaled, expected["score_stds_scaled"])


def test_vit_text_is_masked_as_in_the_notation(golden):
    found, expected = traced("example:vit-text"), golden["001-masks"]["expected"]["causal"]
    blind = np.asarray([[cell == "-inf" for cell in row] for row in expected])
    scores = found["blocks.0.attn.scores"].value[0, 0]
    assert np.array_equal(np.isneginf(scores), blind)
    assert not found["blocks.0.attn.pattern"].value[0, 0][blind].any()
    assert found["logits"].shape == (1, 3, 5)  # of the text alone


def test_kv_cache_gives_what_reading_all_at_once_gives():
    import torch

    found = traced("example:kv-cache")
    model = found.traced_model.model.model
    with torch.no_grad():
        whole = model(torch.arange(4)[None])
    close(found["next.logits"].value[0, 0], whole[0, 3].numpy())
    close(found["read.logits"].value[0], whole[0, :3].numpy())
    assert found["next.blocks.0.attn.k"].shape == (1, 1, 1, 4)  # one new row
    assert found["next.blocks.0.attn.scores"].shape == (1, 1, 1, 4)  # that looks at all four
    said = found["next.blocks.0.attn.k_all[0,0,1,0]"].why()
    assert any(t.where.startswith("read.blocks.0.attn.k[0,0,1") for t in said.terms)  # kept, not computed again
    # the new token has its word, and so have the three before it
    assert found.words("T", 1, "next.blocks.0.attn.q") == ["on"]
    assert found.words("T", 3, "read.blocks.0.attn.q") == ["the", "cat", "sat"]


def test_nanogpt_block_has_every_line_of_the_notation():
    found = traced("example:nanogpt-block")
    symbols = {n.symbol for n in found.graph.nodes if n.symbol}
    assert symbols >= {
        "E[t]",
        "P",
        "X⁰",
        "X̃",
        "Q",
        "K",
        "V",
        "S",
        "A",
        "H",
        "O",
        "X′",
        "X̂",
        "U",
        "G",
        "M",
        "M_mlp",
        "X¹",
        "X_f",
        "Z",
    }


def test_an_example_that_does_not_exist():
    with pytest.raises(UserError, match="there is no example vit-4x5; did you mean vit-4x4?"):
        example("vit-4x5")
