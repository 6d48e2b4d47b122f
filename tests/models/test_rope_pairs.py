"""Both conventions of RoPE: against complex numbers, against transformers, and the conversion between them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pencil
from conftest import HERE, unchecked
from pencil.api.loading import open_run
from pencil.config import UserError
from pencil.core.positions import Rope, rotate, share
from pencil.core.span import Span
from pencil.families import create
from pencil.models.rope_pairs import channel_order, convert_rope
from pencil.weights.llama import LLAMA
from pencil.weights.llama_original import LLAMA_ORIGINAL
from pencil.weights.maps import Source, load, write


def rotation_of(rope, coords):
    return rope.rotated(Span.whole(coords.shape[1], coords=coords), torch.float64).rotation


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    pairs=st.integers(2, 7),
    rest=st.sampled_from([0, 1, 3]),
    axes=st.sampled_from([1, 2]),
    adjacent=st.booleans(),
)
def test_a_pair_is_a_complex_number_times_a_unit_one(seed, pairs, rest, axes, adjacent):
    torch.manual_seed(seed)
    x, coords = torch.randn(2, 3, 5, 2 * pairs + rest, dtype=torch.float64), torch.randint(97, (1, 5, axes))
    rope = Rope(2 * pairs + rest, axes, rotary_width=2 * pairs, adjacent=adjacent)
    found = rotate(x, rotation_of(rope, coords), adjacent)
    angle = torch.cat(
        [coords[0, :, a, None] * 10000.0 ** (-torch.arange(n).double() / n) for a, n in enumerate(share(pairs, axes))],
        1,
    )
    real, imaginary = (x[..., i : 2 * pairs : 2] if adjacent else x[..., i * pairs : (i + 1) * pairs] for i in (0, 1))
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    parts = torch.stack((turned.real, turned.imag), -1 if adjacent else -2).flatten(-2)
    torch.testing.assert_close(found, torch.cat((parts, x[..., 2 * pairs :]), -1), atol=1e-12, rtol=1e-12)
    # the other convention is the same numbers in another order, to the last bit
    order = channel_order(2 * pairs + rest, 2 * pairs, "halves" if adjacent else "adjacent")
    assert torch.equal(rotate(x[..., order], rotation_of(rope, coords), not adjacent), found[..., order])
    # and the length of each vector stays
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("adjacent", [False, True])
def test_scores_depend_on_the_distance_alone(adjacent):
    q, k = torch.randn(2, 1, 1, 1, 14, dtype=torch.float64)
    rope = Rope(14, adjacent=adjacent)

    def score(i, j):
        a, b = (rotation_of(rope, torch.full((1, 1, 1), place)) for place in (i, j))
        return float((rotate(q, a, adjacent) * rotate(k, b, adjacent)).sum())

    assert score(3, 10) == pytest.approx(score(1003, 1010), rel=1e-9) == pytest.approx(score(0, 7), rel=1e-9)
    assert abs(score(3, 10) - score(3, 11)) > 1e-3
    # pairs taken for the other convention's are not distances any more
    a, b, c, d = (rotation_of(rope, torch.full((1, 1, 1), place)) for place in (3, 10, 103, 110))
    mixed = [float((rotate(q, i, adjacent) * rotate(k, j, not adjacent)).sum()) for i, j in ((a, b), (c, d))]
    assert abs(mixed[0] - mixed[1]) > 1e-3


def test_halves_are_llamas_and_adjacent_pairs_gptjs():
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halved

    x = torch.randn(2, 3, 5, 14, dtype=torch.float64)
    cos, sin = rotation_of(Rope(14), torch.arange(5)[None, :, None])
    theirs, _ = halved(x, x, torch.cat((cos, cos), -1)[:, 0], torch.cat((sin, sin), -1)[:, 0])
    torch.testing.assert_close(rotate(x, (cos, sin)), theirs, atol=1e-12, rtol=1e-12)
    theirs = interleaved(x.transpose(1, 2), sin[:, 0], cos[:, 0]).transpose(1, 2)
    torch.testing.assert_close(rotate(x, (cos, sin), adjacent=True), theirs, atol=1e-12, rtol=1e-12)


CASES = {
    "gpt": dict(vocab=23, context=13, width=48, depth=2, heads=4, kv_heads=2, positions="rope", bias=True),
    "gpt in part": dict(vocab=23, context=13, width=40, depth=2, heads=2, kv_heads=1, positions="rope", rope_fraction=0.6),
    "gpt with norms": dict(vocab=23, context=13, width=40, depth=2, heads=4, kv_heads=2, positions="rope", qk_norm=True,
                           rope_fraction=0.6, bias=True),
    "vit": dict(image_size=(12, 8), patch=(4, 4), channels=1, classes=5, width=36, depth=2, heads=2, positions="rope"),
    "vit in part": dict(image_size=(12, 8), patch=(4, 4), channels=1, classes=5, width=48, depth=1, heads=2,
                        positions="rope", rope_fraction=0.75, bias=False),
    "captioner": dict(vocab=19, context=11, image_size=(8, 8), patch=(4, 4), channels=1, width=32, depth=2, heads=2,
                      positions="rope", image_positions="rope"),
    "captioner beside shaw": dict(vocab=19, context=11, image_size=(8, 8), patch=(4, 4), channels=1, width=32, depth=1,
                                  heads=2, positions="rope", image_positions="shaw"),
    "captioner, shaw text": dict(vocab=19, context=11, image_size=(8, 8), patch=(4, 4), channels=1, width=32, depth=1,
                                 heads=2, positions="shaw", image_positions="rope"),
    "reader": dict(vocab=19, context=11, width=28, depth=2, heads=2, positions="rope"),
    "seq2seq": dict(vocab=19, context=11, source_context=13, width=44, depth=2, heads=2, positions="rope", bias=True),
    "dit": dict(image_size=(8, 8), patch=(2, 2), channels=1, width=32, depth=2, heads=2, positions="rope", vocab=7, context=5,
                attention="windowed", window=2),
    "dit of learned positions": dict(image_size=(8, 8), patch=(4, 4), channels=1, width=32, depth=1, heads=2,
                                     positions="learned", vocab=7, context=5),
}  # fmt: skip


def inputs(name):
    family, draws = name.split()[0].rstrip(","), torch.Generator().manual_seed(3)

    def ids(top, *shape):
        return torch.randint(top, shape, generator=draws)

    def image(*shape):
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    return {
        "gpt": lambda: (ids(23, 2, 11),),
        "vit": lambda: (image(2, 1, 12, 8),),
        "captioner": lambda: (ids(19, 2, 7), image(2, 1, 8, 8)),
        "reader": lambda: (ids(19, 2, 7),),
        "seq2seq": lambda: (ids(19, 2, 7), ids(19, 2, 11)),
        "dit": lambda: (image(2, 1, 8, 8), torch.tensor([3, 700]), ids(7, 2, 5)),
    }[family]()


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_has_the_same_logits(name):
    torch.manual_seed(11)
    family = name.split()[0].rstrip(",")
    model = create(family, pencil.configure(family, **CASES[name])).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    given = inputs(name)
    converted = convert_rope(model, "adjacent")
    assert converted.config == replace(model.config, rope_pairs="adjacent")
    assert not converted.training
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    expected = model(*given)
    torch.testing.assert_close(converted(*given), expected, atol=1e-10, rtol=1e-10)
    back = convert_rope(converted, "halves")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))
    # without the reordering the same weights are another model
    other = create(family, converted.config).double().eval()
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(other(*given), expected, atol=1e-4)


def test_a_converted_model_shares_no_memory_and_the_same_convention_is_a_copy():
    model = create("gpt", pencil.configure("gpt", **CASES["gpt"]))
    for pairs in ("halves", "adjacent"):
        copy = convert_rope(model, pairs)
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.fill_(0)
    assert all(parameter.any() for name, parameter in model.named_parameters() if not name.endswith("bias"))


def test_what_has_no_pairs_is_refused():
    words = "rope_pairs is halves or adjacent, not adjcent: did you mean adjacent"
    with unchecked(), pytest.raises(UserError, match=words):
        convert_rope(create("gpt", pencil.configure("gpt", **CASES["gpt"])), "adjcent")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="Linear has no rope_pairs"):
        convert_rope(torch.nn.Linear(2, 2), "adjacent")


def test_tokens_one_by_one_with_a_cache_in_adjacent_pairs():
    torch.manual_seed(5)
    model = create("gpt", pencil.configure("gpt", **CASES["gpt"], rope_pairs="adjacent")).eval()
    tokens, cache = torch.randint(23, (2, 9)), model.new_cache(2)
    steps = [model(one, cache=cache) for one in tokens.split([4, 1, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_llama_files_of_both_kinds_are_the_same_model(pairs):
    """Hugging Face's, and its authors': the rows of W_Q and W_K of each head in the other order."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    sizes = dict(vocab_size=37, hidden_size=48, intermediate_size=59, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=31)  # fmt: skip
    theirs = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    tokens = torch.randint(37, (2, 13))
    expected, tensors = theirs(tokens).logits.detach(), theirs.state_dict()
    config = replace(LLAMA.configure(theirs.config.to_dict()), rope_pairs=pairs)
    model = load(LLAMA, Source(tensors), config)
    torch.testing.assert_close(model(tokens), expected, atol=2e-5, rtol=1e-4)
    written = dict(write(LLAMA, model.state_dict(), config))
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)

    original = {"tok_embeddings.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"],
                "output.weight": tensors["lm_head.weight"], "rope.freqs": 10000.0 ** (-torch.arange(6) / 6)}  # fmt: skip
    for i in range(2):
        layer = f"model.layers.{i}."
        for part, heads in (("q", 4), ("k", 2)):
            # halves first, then its pairs: (2, 6) of each head becomes (6, 2)
            weight = tensors[f"{layer}self_attn.{part}_proj.weight"].view(heads, 2, 6, 48)
            original[f"layers.{i}.attention.w{part}.weight"] = weight.transpose(1, 2).reshape(-1, 48)
        for ours, name in (("attention.wv", "self_attn.v_proj"), ("attention.wo", "self_attn.o_proj"),
                           ("feed_forward.w1", "mlp.gate_proj"), ("feed_forward.w3", "mlp.up_proj"),
                           ("feed_forward.w2", "mlp.down_proj"), ("attention_norm", "input_layernorm"),
                           ("ffn_norm", "post_attention_layernorm")):  # fmt: skip
            original[f"layers.{i}.{ours}.weight"] = tensors[f"{layer}{name}.weight"]
    params = dict(
        dim=48, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=-1, multiple_of=1, norm_eps=1e-6, max_seq_len=31
    )
    found = LLAMA_ORIGINAL.configure(params, Source(original))
    assert found.rope_pairs == "adjacent"
    with pytest.raises(UserError, match="rope.freqs is another than its config's rope_theta 10000 gives"):
        load(LLAMA_ORIGINAL, Source({**original, "rope.freqs": torch.ones(6)}), found)
    assert LLAMA_ORIGINAL.configure(LLAMA_ORIGINAL.describe(found)) == found
    config = replace(found, rope_pairs=pairs)
    model = load(LLAMA_ORIGINAL, Source(original), config)
    torch.testing.assert_close(model(tokens), expected, atol=2e-5, rtol=1e-4)
    written = dict(write(LLAMA_ORIGINAL, model.state_dict(), config))
    assert set(written) == set(original) - {"rope.freqs"}
    assert all(torch.equal(written[name], original[name]) for name in written)


@pytest.mark.parametrize("params, words", [
    (dict(use_scaled_rope=True), "use_scaled_rope"), (dict(moe={"experts": 8}), "moe"), (dict(head_dim=5, rope_theta=100), "must be even"),
    (dict(head_dim=12), "write rope_theta into it"),
    (dict(dim=None), "dim must be a whole number"), (dict(max_seq_len=None), "write max_seq_len into it"),
    (dict(n_experts=3), "n_experts = 3, which Pencil does not know"),
])  # fmt: skip
def test_an_original_llama_that_ours_cannot_be_is_refused(params, words):
    tensors = {name: torch.zeros(37, 48) for name in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight")}
    plain = dict(dim=48, n_layers=2, n_heads=4, norm_eps=1e-5, max_seq_len=31)
    LLAMA_ORIGINAL.configure(plain, Source(tensors))
    with pytest.raises(UserError, match=words):
        LLAMA_ORIGINAL.configure({**plain, **params}, Source(tensors))
    with pytest.raises(UserError, match="has no tok_embeddings"):
        LLAMA_ORIGINAL.configure(plain, Source({}))
    with pytest.raises(UserError, match="model.norm is 'layer'"):
        LLAMA_ORIGINAL.describe(pencil.configure("gpt", "nano"))


def test_runs_made_before_mean_halves():
    path = HERE / "runs-0.6" / "gpt"
    assert "rope_pairs" not in open_run(path).config["model"]
    assert pencil.load(path)[0].config.rope_pairs == "halves"
