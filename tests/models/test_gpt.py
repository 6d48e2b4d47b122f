"""GPT against transformers on random weights, and the proofs every family carries."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import small_models
from conftest import unchecked
from pencil.core.masks import NOWHERE
from pencil.core.notation import Notation
from pencil.core.probe import Probe
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models.gpt import GPTConfig
from pencil.weights.gpt2 import GPT2
from pencil.weights.llama import LLAMA
from pencil.weights.maps import Source, load, write
from small_models import SCHEMES

KINDS = small_models.KINDS["gpt"]


def tiny(**values):
    return small_models.tiny("gpt", **values)


def tokens(*shape, vocab=101):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("sizes", [
    dict(n_embd=33, n_head=3, n_positions=17, vocab_size=101, n_layer=2),
    dict(n_embd=35, n_head=7, n_positions=23, vocab_size=53, n_layer=3, activation_function="gelu"),
    dict(n_embd=65, n_head=5, n_positions=29, vocab_size=211, n_layer=1, n_inner=77, layer_norm_epsilon=1e-3),
    dict(n_embd=26, n_head=1, n_positions=13, vocab_size=37, n_layer=5),
])  # fmt: skip
def test_logits_equal_transformers_gpt2(sizes):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3)).eval()
    ours = load(GPT2, Source(theirs.state_dict()), GPT2.configure(theirs.config.to_dict()))
    ids = tokens(3, sizes["n_positions"], vocab=sizes["vocab_size"])
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    back = dict(write(GPT2, ours.state_dict(), ours.config))
    for name, tensor in theirs.state_dict().items():
        if name != "lm_head.weight":
            assert torch.equal(back[name], tensor)


@pytest.mark.proof("parity with a reference on random weights", "gpt")
@pytest.mark.parametrize("kv_heads, tied", [(1, False), (3, True), (6, False)])
def test_logits_equal_transformers_llama(kv_heads, tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    theirs = LlamaForCausalLM(LlamaConfig(
        vocab_size=103, hidden_size=84, intermediate_size=59, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=kv_heads, max_position_embeddings=31, initializer_range=0.2, tie_word_embeddings=tied,
    )).eval()  # fmt: skip
    ours = load(LLAMA, Source(theirs.state_dict()), LLAMA.configure(theirs.config.to_dict()))
    ids = tokens(2, 29, vocab=103)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    back = dict(write(LLAMA, ours.state_dict(), ours.config))
    assert all(torch.equal(back[n], t) for n, t in theirs.state_dict().items() if not (tied and n == "lm_head.weight"))


@pytest.mark.parametrize("preset, count", [
    ("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200),
])  # fmt: skip
def test_parameter_counts_are_the_published_ones(preset, count):
    assert family("gpt").parameters(configure("gpt", preset)) == count


def test_the_parameters_of_a_nanogpt_are_those_of_its_sum():
    config = configure("gpt", "nanogpt", vocab=65)
    assert family("gpt").parameters(config) == 4 * (12 * 128**2 + 2 * 128) + 65 * 128 + 64 * 128 + 128


def test_the_names_have_the_shapes_of_the_notation(golden):
    """Part I of the notation, at its own sizes; one head, so the head axis is 1."""
    entry = golden["001-nanogpt-shapes"]
    size, shape = entry["inputs"], entry["expected"]
    config = GPTConfig(vocab=size["V"], context=size["T"], width=size["D"], depth=size["L"], heads=1,
                       hidden=size["d_ff"], positions="learned", bias=True)  # fmt: skip
    probe = Probe()
    create("gpt", config)(tokens(size["B"], size["T"], vocab=size["V"]), probe=probe)
    symbols = {"X⁰": "X0", "X̃": "Xtilde", "Q": "Q", "K": "K", "V": "V", "S": "scores", "A": "A", "H": "H", "O": "O",
               "X′": "Xprime", "X̂": "Xhat", "U": "U", "G": "G", "M_mlp": "M_mlp", "X¹": "X_l", "X_f": "X_f", "Z": "Z_tied"}  # fmt: skip
    names = Notation(create("gpt", config), probe.values).names
    seen = set()
    for name, value in probe.values.items():
        if (symbol := names[name].symbol) in symbols:
            squeezed = value.squeeze(1) if value.ndim == 4 else value
            assert list(squeezed.shape) == shape[symbols[symbol]], name
            seen.add(symbol)
    assert seen == set(symbols)


def test_an_edit_reaches_the_logits():
    model, ids = tiny(), tokens(1, 11)

    def knock_out(pattern):
        pattern = pattern.clone()
        pattern[:, 1] = 0
        return pattern

    edited = model(ids, probe=Probe(edit={"blocks.0.attn.pattern": knock_out}))
    by_weight = tiny()
    d = by_weight.config.head_width
    by_weight.blocks[0].attn.out.weight.data[:, d : 2 * d] = 0
    torch.testing.assert_close(edited, by_weight(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "gpt")
@settings(max_examples=50)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
@unchecked()
def test_cached_equals_uncached_under_any_chunking(data, kind):
    model = small_models.exact("gpt", kind)
    total = data.draw(st.integers(1, 17))
    ids = tokens(2, total)
    cache = model.new_cache(2, data.draw(st.integers(total, 19)))
    pieces, at = [], 0
    with torch.no_grad():
        while at < total:
            step = data.draw(st.integers(1, total - at))
            pieces.append(model(ids[:, at : at + step], cache=cache))
            at += step
        torch.testing.assert_close(torch.cat(pieces, 1), model(ids), atol=1e-9, rtol=1e-9)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "gpt")
@settings(max_examples=36)
@given(lengths=st.lists(st.integers(1, 11), min_size=2, max_size=5), steps=st.integers(1, 5),
       kind=st.sampled_from(sorted(KINDS)), right=st.booleans())  # fmt: skip
@unchecked()
def test_a_batch_of_mixed_lengths_equals_each_row_alone(lengths, steps, kind, right):
    model = small_models.exact("gpt", kind)
    longest = max(lengths)
    rows = tokens(len(lengths), longest + steps)
    index = torch.full((len(lengths), longest), NOWHERE)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    for i, n in enumerate(lengths):  # padding may be on either side
        place = slice(0, n) if right else slice(longest - n, longest)
        index[i, place] = torch.arange(n)
        ids[i, place] = rows[i, :n]
    cache = model.new_cache(len(lengths), longest + steps)
    with torch.no_grad():
        model(ids, Span.of(index, index.masked_fill(index >= NOWHERE, 0)[..., None]), cache)
        for step in range(steps):
            new = torch.stack([rows[i, n + step] for i, n in enumerate(lengths)])[:, None]
            together = model(new, cache=cache)[:, -1]
        for i, n in enumerate(lengths):
            alone = model(rows[i : i + 1, : n + steps])[:, -1]
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-9, rtol=1e-9)


def test_only_the_last_logits_when_requested():
    model, ids = tiny(), tokens(2, 13)
    torch.testing.assert_close(model(ids, last=True), model(ids)[:, -1:])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_token_never_sees_a_later_one(scheme):
    model, ids = tiny(positions=scheme), tokens(1, 17)
    changed = ids.clone()
    changed[0, 11:] = (changed[0, 11:] + 1) % 101
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11:], after[:, 11:])


def test_initialisation_is_gpt2s():
    torch.manual_seed(0)
    model = create("gpt", GPTConfig(vocab=997, width=256, depth=8, heads=4, bias=True, positions="learned"))
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert not p.any(), name
        elif p.ndim == 1:
            assert (p == 1).all(), name
        else:
            written = name.endswith(("attn.out.weight", "mlp.down.weight"))
            assert p.std().item() == pytest.approx(0.02 / 4 if written else 0.02, rel=0.03), name


def test_more_tokens_than_positions_are_refused_and_only_a_table_has_a_limit():
    with pytest.raises(ValueError, match="18 tokens and the model's table of positions has 17"):
        tiny(positions="learned")(tokens(1, 18))
    for scheme in set(SCHEMES) - {"learned"}:
        with pytest.warns(UserWarning, match="context is 17 tokens"):
            assert tiny(positions=scheme)(tokens(1, 18)).shape == (1, 18, 101)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_order_of_earlier_tokens_reaches_the_last(scheme):
    """A causal mask alone tells it too, but only from the second block on: one block cannot tell without a scheme."""
    model, ids = tiny(positions=scheme, depth=1), tokens(1, 17)
    order = torch.cat((torch.randperm(16, generator=torch.Generator().manual_seed(3)), torch.tensor([16])))
    with torch.no_grad():
        difference = (model(ids) - model(ids[:, order]))[:, -1].abs().max()
        deeper = tiny(positions=scheme, depth=2)
        assert (deeper(ids) - deeper(ids[:, order]))[:, -1].abs().max() > 1e-3
    assert (difference < 1e-5) == (scheme == "none")
    assert difference < 1e-5 or difference > 1e-3
