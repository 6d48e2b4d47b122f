"""GPT against transformers on random weights, and the proofs every family carries."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.notation import Notation
from pencil.core.probe import Probe, declared
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models.gpt import PRESETS, GPTConfig
from pencil.train.losses.vocabulary import next_token
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig
from pencil.weights.gpt2 import GPT2
from pencil.weights.llama import LLAMA
from pencil.weights.maps import Source, load, write

SCHEMES = ["learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]
KINDS = {
    "gpt2": dict(positions="learned", bias=True, activation="gelu-tanh"),
    "plain": dict(positions="sinusoidal", tie_embeddings=False, bias=True),
    "llama": dict(positions="rope", norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False),
    "none": dict(positions="none"),
    "halves": dict(positions="sinusoidal-halves", activation="silu"),
    "alibi": dict(positions="alibi", kv_heads=1),
    "shaw": dict(positions="shaw", bias=True, activation="relu"),
    "t5": dict(positions="t5", norm="rms", tie_embeddings=False),
    "further": dict(positions="rope", rope_fraction=0.6, rope_scaling="yarn", rope_factor=2.0),
}


def tiny(**values):
    torch.manual_seed(0)
    sizes = dict(vocab=101, context=17, width=30, depth=2, heads=3)
    model = create("gpt", GPTConfig(**{**sizes, **values})).eval()
    with torch.no_grad():  # a fresh model's scores are nearly even: make the differences matter
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


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


def test_every_preset_builds():
    for preset in PRESETS:
        assert family("gpt").parameters(configure("gpt", preset, vocab=211)) > 0
    nanogpt = configure("gpt", "nanogpt", vocab=65)

    assert family("gpt").parameters(nanogpt) == 4 * (12 * 128**2 + 2 * 128) + 65 * 128 + 64 * 128 + 128


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proof("declared names = fired names", "gpt")
def test_declared_names_are_fired_with_their_declared_shapes(kind):
    model = tiny(**KINDS[kind])
    probe = Probe()
    model(tokens(2, 17), probe=probe)
    names = declared(model)
    assert set(probe.values) | {name for name, entry in names.items() if entry.optional} == set(names)
    sizes = {"B": 2, **model.config.sizes}
    for name, value in probe.values.items():
        expected = [sizes[axis] for axis in names[name].axes.split()]
        assert list(value.shape) in (expected, [1, *expected[1:]]), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proof("observed = fast to rounding, values and gradients", "gpt")
def test_observing_changes_answer_and_gradients_by_rounding_alone(kind):
    model, ids = tiny(**KINDS[kind]), tokens(2, 17)
    fast = model(ids)
    next_token(fast, ids).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    observed = model(ids, probe=Probe())
    next_token(observed, ids).backward()
    torch.testing.assert_close(fast, observed, atol=1e-5, rtol=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], atol=1e-5, rtol=1e-4)


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
def test_cached_equals_uncached_under_any_chunking(data, kind):
    model = tiny(**KINDS[kind]).double()
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
def test_a_batch_of_mixed_lengths_equals_each_row_alone(lengths, steps, kind, right):
    model = tiny(**KINDS[kind]).double()
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


GOLDEN_LOSSES = {
    ("nanogpt", "adamw"): [4.11231, 3.85415, 3.71385, 3.60931, 3.51502, 3.42574, 3.33305, 3.24121, 3.14927, 3.05575],
    ("nanogpt", "muon"): [4.11231, 3.89057, 3.73212, 3.61148, 3.50704, 3.40942, 3.31342, 3.21473, 3.11692, 3.02129],
    ("llama-nano", "muon"): [4.11708, 3.9286, 3.76104, 3.61431, 3.48333, 3.36395, 3.26024, 3.15006, 3.03503, 2.92187],
}  # fmt: skip


def ten_steps(preset, optimizer):
    torch.manual_seed(1234)
    model = create("gpt", configure("gpt", preset, vocab=61, width=40, depth=2, hidden=None, context=19))
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    ids = torch.randint(0, 61, (5, 20), generator=torch.Generator().manual_seed(5))
    losses = []
    for _ in range(10):
        loss = next_token(model(ids[:, :-1]), ids[:, 1:])
        loss.backward()
        for o in optimizers.values():
            o.step()
            o.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("preset, optimizer", [("nanogpt", "adamw"), ("nanogpt", "muon"), ("llama-nano", "muon")])
@pytest.mark.proof("golden ten-step loss", "gpt")
def test_ten_steps_of_training_give_the_same_losses_as_ever(preset, optimizer):
    assert ten_steps(preset, optimizer) == pytest.approx(GOLDEN_LOSSES[preset, optimizer], abs=1e-4)


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


@pytest.mark.parametrize("values, words", [
    (dict(width=100, heads=3), "heads 3 does not divide"),
    (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
    (dict(width=30, heads=2, positions="rope"), "even"),
    (dict(width=21, heads=3, positions="sinusoidal"), "even"),
    (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
    (dict(width=30, heads=3, rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 5"),
    (dict(width=30, heads=3, rope_fraction=0.1), "rope_fraction 0.1 rotates must be even, not 1"),
    (dict(rope_fraction=1.5), "rope_fraction must be above 0 and at most 1"),
    (dict(rope_factor=-2.0), "rope_factor must be above 0"),
    (dict(depth=0), "depth must be at least 1"),
    (dict(dropout=1.0), "dropout"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        GPTConfig(**values)


@pytest.mark.parametrize("scheme", ["learned", "alibi", "shaw", "t5", "none"])
def test_an_odd_width_is_no_matter_to_schemes_that_pair_nothing(scheme):
    assert tiny(width=21, positions=scheme)(tokens(2, 11)).shape == (2, 11, 101)


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
