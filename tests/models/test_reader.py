"""The reader: the proofs every family carries, its two heads, and texts of mixed lengths."""

import math

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from pencil.config import UserError
from pencil.core.attention import Attention
from pencil.core.masks import NOWHERE
from pencil.core.probe import Probe, declared
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models.reader import PRESETS, ReaderConfig
from pencil.train.losses.vocabulary import next_token
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig

SCHEMES = ["learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]
SIZES = dict(vocab=31, context=11, width=30, depth=2, heads=3, hidden=17)
BERT = dict(norm_position="post", embed_norm=True, positions="learned", token_types=2, eps=1e-12)
KINDS = {
    "bert": dict(**BERT),
    "bert label": dict(**BERT, classes=5),
    "nano": dict(classes=5),
    "mean": dict(classes=5, pool="mean", positions="alibi", norm="rms", activation="swiglu", bias=False, kv_heads=1),
    "mean words": dict(pool="mean", positions="sinusoidal", token_types=3, activation="gelu-tanh"),
    "shaw": dict(classes=5, positions="shaw", norm_position="post", pool="mean"),
    "t5": dict(positions="t5", activation="relu", bias=False, norm="rms"),
    "halves": dict(positions="sinusoidal-halves", norm_position="post", classes=1, activation="silu"),
    "none": dict(positions="none", classes=5, embed_norm=True, token_types=1),
    "roberta": dict(**BERT, position_offset=2),
    "pool": dict(**BERT, head="pool"),
    "states": dict(head="states"),
    "further": dict(rope_fraction=0.6, rope_scaling="llama3", rope_factor=2.0, classes=5),
}


def tiny(**values):
    torch.manual_seed(0)
    model = create("reader", ReaderConfig(**{**SIZES, **values})).eval()
    with torch.no_grad():  # a fresh model's scores are nearly even: make the differences matter
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


def tokens(*shape, vocab=31, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows, lengths, right):
    """Rows cut to their lengths with padding on one side, and the index of each token."""
    ids, index = tokens(len(rows), max(lengths), seed=99), torch.full((len(rows), max(lengths)), NOWHERE)
    for i, n in enumerate(lengths):
        place = slice(0, n) if right else slice(max(lengths) - n, max(lengths))
        ids[i, place], index[i, place] = rows[i, :n], torch.arange(n)
    return ids, Span.at(index)


def wrong(output, ids):
    """Something to be made less, of either head."""
    if output.ndim == 3:
        return next_token(output, ids)
    return (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(1))).sum()


@pytest.mark.parametrize("preset, values, count", [
    ("bert-base", dict(), 109_514_298),  # transformers' BertForMaskedLM
    ("bert-base", dict(classes=2), 109_483_778),  # BertForSequenceClassification: 109,482,240 and a matrix for 2 labels
    ("bert-large", dict(classes=2), 335_143_938),
])  # fmt: skip
def test_parameter_counts_are_the_published_ones(preset, values, count):
    assert family("reader").parameters(configure("reader", preset, **values)) == count


def test_every_preset_builds():
    for preset in PRESETS:
        for classes in (None, 3):
            assert family("reader").parameters(configure("reader", preset, vocab=211, classes=classes)) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proof("declared names = fired names", "reader")
def test_declared_names_are_fired_with_their_declared_shapes(kind):
    model, probe = tiny(**KINDS[kind]), Probe()
    model(tokens(2, 11), probe=probe)
    names = declared(model)
    assert set(probe.values) | {name for name, entry in names.items() if entry.optional} == set(names)
    sizes = {"B": 2, **model.config.sizes}
    for name, value in probe.values.items():
        expected = [sizes[axis] for axis in names[name].axes.split()]
        assert list(value.shape) in (expected, [1, *expected[1:]]), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.proof("observed = fast to rounding, values and gradients", "reader")
def test_observing_changes_answer_and_gradients_by_rounding_alone(kind):
    """With padding, so that both routes have a mask to keep to, and with types where there are some."""
    model = tiny(**KINDS[kind])
    (ids, span), count = padded(tokens(3, 11), (11, 4, 7), right=True), model.config.token_types
    types = torch.arange(33).reshape(3, 11) % count if count else None
    labels, found = ids.masked_fill(span.index >= NOWHERE, -100), []
    for probe in ({}, {"probe": Probe()}):
        output = model(ids, span, types, **probe)
        model.zero_grad()
        wrong(output, labels).backward()
        found.append((output, {n: p.grad.clone() for n, p in model.named_parameters()}))
    (fast, gradients), (observed, others) = found
    torch.testing.assert_close(fast, observed, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        assert gradient.any(), name
        torch.testing.assert_close(others[name], gradient, atol=1e-5, rtol=1e-4)


@settings(max_examples=24)
@given(
    lengths=st.lists(st.integers(1, 11), min_size=2, max_size=4),
    kind=st.sampled_from(sorted(KINDS)),
    right=st.booleans(),
)
def test_a_batch_of_mixed_lengths_equals_each_text_alone(lengths, kind, right):
    """Padding on either side: it is seen by nobody, counted in no mean, and is never the first token."""
    model, rows, count = tiny(**KINDS[kind]).double(), tokens(len(lengths), 11), KINDS[kind].get("token_types")
    ids, span = padded(rows, lengths, right)
    types = ids % count if count else None
    with torch.no_grad():
        together = model(ids, span, types)
        for i, n in enumerate(lengths):
            own = rows[i : i + 1, :n]
            alone = model(own, types=own % count if count else None)[0]
            place = slice(0, n) if right else slice(max(lengths) - n, max(lengths))
            mine = together[i] if together.ndim == 2 else together[i, place]
            torch.testing.assert_close(mine, alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_token_sees_every_other_and_the_order_matters_unless_there_are_no_positions(scheme, norm_position):
    model, ids = tiny(positions=scheme, norm_position=norm_position), tokens(1, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        output = model(ids)
        for changed in (0, 10):
            other = ids.clone()
            other[0, changed] = (other[0, changed] + 1) % 31
            assert all(not torch.equal(output[:, at], model(other)[:, at]) for at in range(11))
        difference = (model(ids[:, order]) - output[:, order]).abs().max()
    assert (difference < 1e-5) == (scheme == "none")
    assert difference < 1e-5 or difference > 1e-3


def test_the_label_is_read_from_the_first_token_or_from_the_mean_of_all():
    for pool in ("class", "mean"):
        model, probe = tiny(classes=5, pool=pool), Probe("encoder.out", "head.pooled", "logits")
        model(tokens(2, 11), probe=probe)
        final, head = probe.values["encoder.out"], model.head
        if pool == "class":
            read = torch.tanh(final[:, 0] @ head.pool.weight.T + head.pool.bias)
        else:
            read = final.sum(1) / 11
        torch.testing.assert_close(probe.values["head.pooled"], read)
        torch.testing.assert_close(probe.values["logits"], read @ head.label.weight.T + head.label.bias)


def test_words_are_predicted_by_the_table_they_are_embedded_with():
    model, probe = tiny(eps=1e-3), Probe("encoder.out", "head.guess", "logits")
    model(tokens(2, 11), probe=probe)
    final, head = probe.values["encoder.out"].double(), model.double().head
    u = final @ head.map.weight.T + head.map.bias
    g = u * (1 + torch.erf(u / math.sqrt(2))) / 2
    g = (g - g.mean(-1, keepdim=True)) / (g.var(-1, correction=0, keepdim=True) + 1e-3).sqrt()
    guess = g * head.norm.weight + head.norm.bias
    torch.testing.assert_close(probe.values["head.guess"].double(), guess, atol=1e-5, rtol=1e-5)
    output = guess @ model.tokens.weight.T + head.bias
    torch.testing.assert_close(probe.values["logits"].double(), output, atol=1e-4, rtol=1e-5)


def test_the_type_of_a_token_is_added_to_its_embedding_and_the_first_type_unless_given():
    model, ids, probe = tiny(token_types=3), tokens(2, 11), Probe("embed")
    types = torch.arange(22).reshape(2, 11) % 3
    model(ids, types=types, probe=probe)
    torch.testing.assert_close(probe.values["embed"], model.tokens.weight[ids] + model.types.weight[types])
    torch.testing.assert_close(model(ids), model(ids, types=torch.zeros_like(ids)))
    assert not torch.allclose(model(ids), model(ids, types=types), atol=1e-3)


def test_the_input_is_normed_after_positions_and_kinds_were_added():
    model, ids, probe = tiny(**BERT), tokens(2, 11), Probe("encoder.input", "embed", "encoder.positions.embedding")
    model(ids, probe=probe)
    x = probe.values["embed"] + model.encoder.positions.table
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    norm = model.encoder.embed_norm
    torch.testing.assert_close(probe.values["encoder.input"], x * norm.weight + norm.bias, atol=1e-5, rtol=1e-5)


GOLDEN_LOSSES = {
    ("bert", "adamw"): [3.44858, 3.32486, 3.24554, 3.17249, 3.08542, 3.01082, 2.93264, 2.85964, 2.78876, 2.70989],
    ("nano", "muon"): [1.60864, 1.57766, 1.53672, 1.49607, 1.45526, 1.41098, 1.36294, 1.31213, 1.26137, 1.20926],
    ("mean", "adamw"): [1.62297, 1.52014, 1.40388, 1.26784, 1.1525, 1.06214, 0.98055, 0.91044, 0.84707, 0.78843],
    ("t5", "muon"): [3.41185, 3.31806, 3.26105, 3.19, 3.10737, 3.04173, 2.99445, 2.92548, 2.87205, 2.82546],
}


def ten_steps(kind, optimizer):
    """Labels, or words of which every third is masked by the first of the table."""
    torch.manual_seed(1234)
    model = create("reader", ReaderConfig(**SIZES, **KINDS[kind]))
    optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
    ids, hidden = tokens(7, 11), torch.arange(77).reshape(7, 11) % 3 == 0
    losses = []
    for _ in range(10):
        if model.config.classes:
            loss = F.cross_entropy(model(ids), torch.arange(7) % 5)
        else:
            loss = next_token(model(ids.masked_fill(hidden, 0)), ids.masked_fill(~hidden, -100))
        loss.backward()
        for o in optimizers.values():
            o.step()
            o.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind, optimizer", [("bert", "adamw"), ("nano", "muon"), ("mean", "adamw"), ("t5", "muon")])
@pytest.mark.proof("golden ten-step loss", "reader")
def test_ten_steps_of_training_give_the_same_losses_as_ever(kind, optimizer):
    assert ten_steps(kind, optimizer) == pytest.approx(GOLDEN_LOSSES[kind, optimizer], abs=1e-4)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_post_norm_reader_is_initialised_as_the_first_transformer(norm_position):
    torch.manual_seed(0)
    model = create("reader", ReaderConfig(vocab=997, width=192, heads=4, depth=2, norm_position=norm_position))
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in (module.w_q, module.w_k, module.w_v):
                assert matrix.std().item() == pytest.approx(192**-0.5 if norm_position == "post" else 0.02, rel=0.02)
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("values, words", [
    (dict(width=100, heads=3), "heads 3 does not divide"),
    (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
    (dict(width=30, heads=2, positions="rope"), "even"),
    (dict(width=21, heads=3, positions="sinusoidal"), "even"),
    (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
    (dict(width=30, heads=3, rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 5"),
    (dict(token_types=-1), "token_types must be at least 0, not -1"),
    (dict(classes=0), "classes must be at least 1"),
    (dict(context=0), "context must be at least 1"),
    (dict(dropout=1.0), "dropout"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        ReaderConfig(**values)


@pytest.mark.parametrize("scheme", ["learned", "alibi", "shaw", "t5", "none"])
def test_an_odd_width_is_no_matter_to_schemes_that_pair_nothing(scheme):
    assert tiny(width=21, positions=scheme)(tokens(2, 11)).shape == (2, 11, 31)


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ValueError, match="12 tokens and the model's table of positions has 11"):
        tiny(positions="learned")(tokens(1, 12))


@pytest.mark.parametrize("values, words", [
    (dict(head="label"), "head label does not fit model.classes None"), (dict(head="pool", classes=5), "leave model.head"),
    (dict(position_offset=2), "only for model.positions learned"), (dict(**BERT, position_offset=-1), "at least 0"),
    (dict(head="tokens"), "model.head"),
])  # fmt: skip
def test_heads_and_offsets_that_make_no_sense_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        configure("reader", **values)


def test_rows_before_the_first_position_are_read_by_no_token():
    model, ids = tiny(**BERT, position_offset=2), tokens(2, 11)
    assert model.encoder.positions.table.shape == (13, 30)
    before = model(ids)
    with torch.no_grad():
        model.encoder.positions.table[:2] += 5
        assert torch.equal(model(ids), before)
        model.encoder.positions.table[2] += 5
        assert not torch.equal(model(ids), before)


def test_a_reader_without_logits_gives_the_pooled_vector_or_the_hidden_states():
    pooled, ids = tiny(**BERT, head="pool"), tokens(2, 11)
    probe = Probe("encoder.out")
    found, states = pooled(ids, probe=probe), probe.values["encoder.out"]
    weight, bias = pooled.head.pool.weight, pooled.head.pool.bias
    torch.testing.assert_close(found, torch.tanh(states[:, 0] @ weight.T + bias))
    plain = tiny(**BERT, head="states")
    plain.load_state_dict({name: t for name, t in pooled.state_dict().items() if not name.startswith("head")})
    assert torch.equal(plain(ids), states)
    assert "logits" not in declared(pooled)


def test_a_row_of_padding_alone_is_zeros_and_not_nan():
    from pencil.models.reader import mean_of

    x, index = torch.randn(3, 5, 7), torch.tensor([[0, 1, 2, 3, 4], [0, 1, NOWHERE, NOWHERE, NOWHERE], [NOWHERE] * 5])
    found = mean_of(x, Span.at(index))
    torch.testing.assert_close(found[0], x[0].mean(0))
    torch.testing.assert_close(found[1], x[1, :2].mean(0))
    assert (found[2] == 0).all()
