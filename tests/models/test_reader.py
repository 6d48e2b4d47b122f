"""The reader: the proofs every family carries, its two heads, and texts of mixed lengths."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import small_models
from conftest import unchecked
from pencil.config import UserError
from pencil.core.attention import Attention
from pencil.core.masks import NOWHERE
from pencil.core.probe import Probe, declared
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models.reader import ReaderConfig
from small_models import BERT, SCHEMES, padded

KINDS = small_models.KINDS["reader"]


def tiny(**values):
    return small_models.tiny("reader", **values)


def tokens(*shape, vocab=31, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("preset, values, count", [
    ("bert-base", dict(), 109_514_298),  # transformers' BertForMaskedLM
    ("bert-base", dict(classes=2), 109_483_778),  # BertForSequenceClassification: 109,482,240 and a matrix for 2 labels
    ("bert-large", dict(classes=2), 335_143_938),
])  # fmt: skip
def test_parameter_counts_are_the_published_ones(preset, values, count):
    assert family("reader").parameters(configure("reader", preset, **values)) == count


@settings(max_examples=24)
@given(
    lengths=st.lists(st.integers(1, 11), min_size=2, max_size=4),
    kind=st.sampled_from(sorted(KINDS)),
    right=st.booleans(),
)
@unchecked()
def test_a_batch_of_mixed_lengths_equals_each_text_alone(lengths, kind, right):
    """Padding on either side: it is seen by nobody, counted in no mean, and is never the first token."""
    model, rows, count = small_models.exact("reader", kind), tokens(len(lengths), 11), KINDS[kind].get("token_types")
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


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_post_norm_reader_is_initialised_as_the_first_transformer(norm_position):
    torch.manual_seed(0)
    model = create("reader", ReaderConfig(vocab=997, width=192, heads=4, depth=2, norm_position=norm_position))
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in (module.w_q, module.w_k, module.w_v):
                assert matrix.std().item() == pytest.approx(192**-0.5 if norm_position == "post" else 0.02, rel=0.02)
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


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
