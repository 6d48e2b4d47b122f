"""The encoder–decoder: the proofs every family carries, a source read once, and padding on both sides."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import small_models
from conftest import unchecked
from pencil.core.attention import Attention
from pencil.core.probe import Probe
from pencil.families import configure, create, family
from pencil.models.seq2seq import Seq2SeqConfig, attention_maps
from small_models import SCHEMES, padded

SIZES = small_models.SIZES["seq2seq"]
KINDS = small_models.KINDS["seq2seq"]


def tiny(**values):
    return small_models.tiny("seq2seq", **values)


def tokens(*shape, vocab=31, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("preset, count", [("base", 63_082_496), ("big", 214_245_376)])
def test_parameter_counts_are_those_of_the_first_transformer(preset, count):
    """A shared table of 37,000 words, tied; written out, and in one sum."""
    config = configure("seq2seq", preset, vocab=37000)
    d, f = config.width, config.mlp_width
    attention, mlp, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder, decoder = attention + mlp + 2 * norm, 2 * attention + mlp + 3 * norm
    assert family("seq2seq").parameters(config) == 6 * (encoder + decoder) + 37000 * d == count


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "seq2seq")
@settings(max_examples=24)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
@unchecked()
def test_cached_equals_uncached_under_any_chunking(data, kind):
    """The source comes with the first chunk, and with no other."""
    model, source = small_models.exact("seq2seq", kind), tokens(2, data.draw(st.integers(1, 11)))
    total = data.draw(st.integers(1, 7))
    ids, cache, pieces, at = tokens(2, total), model.new_cache(2, data.draw(st.integers(total, 13))), [], 0
    with torch.no_grad():
        while at < total:
            step = data.draw(st.integers(1, total - at))
            pieces.append(model(ids[:, at : at + step], None if at else source, cache=cache))
            at += step
        torch.testing.assert_close(torch.cat(pieces, 1), model(ids, source), atol=1e-9, rtol=1e-9)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "seq2seq")
@settings(max_examples=20)
@given(data=st.data(), lengths=st.lists(st.integers(1, 5), min_size=2, max_size=3), later=st.integers(0, 2),
       kind=st.sampled_from(sorted(KINDS)), right=st.booleans())  # fmt: skip
@unchecked()
def test_a_batch_of_mixed_lengths_equals_each_row_alone(data, lengths, later, kind, right):
    """Targets padded on one side, sources on the other; every token, not only the last."""
    model, count = small_models.exact("seq2seq", kind), len(lengths)
    seen_until = [data.draw(st.integers(1, 11)) for _ in lengths]
    rows, sources = tokens(count, 7), tokens(count, 11, seed=8)
    ids, here = padded(rows, lengths, not right)
    source, there = padded(sources, seen_until, right)
    cache = model.new_cache(count, max(lengths) + later)
    with torch.no_grad():
        together = model(ids, source, there, here, cache)
        uncached = model(ids, source, there, here)
        after = []
        for step in range(later):
            new = torch.stack([rows[i, n + step] for i, n in enumerate(lengths)])[:, None]
            after.append(model(new, cache=cache)[:, 0])
        for i, (n, s) in enumerate(zip(lengths, seen_until, strict=True)):
            alone = model(rows[i : i + 1, : n + later], sources[i : i + 1, :s])[0]
            place = slice(0, n) if not right else slice(max(lengths) - n, max(lengths))
            for batch in (together, uncached):
                torch.testing.assert_close(batch[i, place], alone[:n], atol=1e-9, rtol=1e-9)
            for step, row in enumerate(after):
                torch.testing.assert_close(row[i], alone[n + step], atol=1e-9, rtol=1e-9)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "seq2seq")
@settings(max_examples=12)
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=4), kind=st.sampled_from(sorted(KINDS)))
@unchecked()
def test_going_on_with_picked_rows_is_going_on_with_those_rows_alone(rows, kind):
    """A row may come several times, as the best beginnings of a beam do; its source comes with it."""
    model, all_ids, sources = small_models.exact("seq2seq", kind), tokens(3, 7), tokens(3, 11, seed=8)
    seen_until, cache = (11, 3, 7), model.new_cache(3)
    source, there = padded(sources, seen_until, right=True)
    with torch.no_grad():
        model(all_ids[:, :4], source, there, cache=cache)
        cache.pick(torch.tensor(rows))
        found = [model(all_ids[rows, at : at + 1], cache=cache) for at in (4, 5)]
        for i, row in enumerate(rows):
            alone = model(all_ids[row : row + 1, :6], sources[row : row + 1, : seen_until[row]])
            torch.testing.assert_close(torch.cat(found, 1)[i], alone[0, 4:], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("cached", [True, False])
def test_the_source_is_read_once_however_much_is_generated(monkeypatch, cached):
    """With a cache, one reading of keys and values for each block of the decoder, and one pass of the encoder."""
    model, reads, passes = tiny(), [], []
    read, encode = Attention.read, model.encoder.forward
    monkeypatch.setattr(Attention, "read", lambda self, source, probe: reads.append(self) or read(self, source))
    monkeypatch.setattr(model.encoder, "forward", lambda *args, **given: passes.append(1) or encode(*args, **given))
    ids, source, cache = tokens(2, 2), tokens(2, 11), model.new_cache(2) if cached else None
    with torch.no_grad():
        for output in range(5):
            if cached:
                z = model(ids if output == 0 else ids[:, -1:], None if output else source, cache=cache, last=True)
            else:
                z = model(ids, source, last=True)
            ids = torch.cat((ids, z[:, -1].argmax(-1, keepdim=True)), 1)
    times = 1 if cached else 5
    assert len(passes) == times
    assert [sum(one is block.cross for one in reads) for block in model.blocks] == [times, times]
    assert len(reads) == 2 * times


def test_a_source_given_again_or_never_is_refused():
    model, ids, source = tiny(), tokens(2, 3), tokens(2, 5)
    cache = model.new_cache(2)
    for first in (None, cache):
        with pytest.raises(ValueError, match="read once"):
            model(ids, cache=first)
    with torch.no_grad():
        model(ids, source, cache=cache)
    with pytest.raises(ValueError, match="read once"):
        model(ids, source, cache=cache)
    assert cache.filled == 3


def test_only_the_last_logits_when_requested():
    for kind in ("nano", "first"):
        model, ids, source = tiny(**KINDS[kind]), tokens(2, 7), tokens(2, 11)
        torch.testing.assert_close(model(ids, source, last=True), model(ids, source)[:, -1:])


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_sees_whom(scheme, norm_position):
    """A target token never sees a later one and sees all of the source; a source token sees all of it, and no target."""
    model, ids, source = tiny(positions=scheme, norm_position=norm_position), tokens(1, 7), tokens(1, 11)

    def inside(ids, source):
        probe = Probe("encoder.out")
        with torch.no_grad():
            logits = model(ids, source, probe=probe)
        return probe.values["encoder.out"], logits

    states, logits = inside(ids, source)
    other = ids.clone()
    other[0, 4:] = (other[0, 4:] + 1) % 31
    after, output = inside(other, source)
    assert torch.equal(states, after)
    assert torch.equal(logits[:, :4], output[:, :4])
    assert all(not torch.equal(logits[:, at], output[:, at]) for at in range(4, 7))
    for changed in (0, 10):
        another = source.clone()
        another[0, changed] = (another[0, changed] + 1) % 31
        after, output = inside(ids, another)
        assert all(not torch.equal(states[:, at], after[:, at]) for at in range(11))
        assert all(not torch.equal(logits[:, at], output[:, at]) for at in range(7))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_order_of_the_source_matters_unless_it_has_no_positions(scheme):
    """The encoder attends to all, so only a scheme gives it the order; the decoder's mask is not on the source."""
    model, ids, source = tiny(positions=scheme), tokens(2, 5), tokens(2, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        difference = (model(ids, source) - model(ids, source[:, order])).abs().max()
    assert (difference < 1e-5) == (scheme == "none")
    assert difference < 1e-5 or difference > 1e-3


@pytest.mark.parametrize("kind", [*(dict(positions=scheme) for scheme in SCHEMES), KINDS["further"]], ids=str)
def test_the_scheme_acts_within_each_half_and_between_them_nothing_is_added(kind):
    """Scores across are q·k/√d, or q·k where the scheme divides by nothing."""
    model, probe = tiny(**kind), Probe("blocks.*.cross.*")
    model(tokens(2, 7), tokens(2, 11), probe=probe)
    for i in range(2):
        q, k, scores = (probe.values[f"blocks.{i}.cross.{name}"] for name in ("q", "k", "scores"))
        expected = torch.einsum("bhtd,bhsd->bhts", q, k) / (1 if kind.get("positions") == "t5" else math.sqrt(10))
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


def test_only_the_encoder_has_buckets_for_keys_ahead():
    """A causal decoder has all 32 for the keys before it: the first 16 are one distance each."""
    model, probe = tiny(positions="t5", context=23, source_context=23), Probe("*.bucket")
    model(tokens(2, 23), tokens(2, 23), probe=probe)
    mine, theirs = (probe.values[f"{part}positions.bucket"][0, :, :, 0] for part in ("", "encoder."))
    assert mine[22, 10:].tolist() == list(range(12, -1, -1))
    assert theirs[22, 15:].tolist() == list(range(7, -1, -1))
    assert theirs[0, 1:8].tolist() == list(range(17, 24))
    assert theirs[22].max() < 16 < theirs[0, 1:].min()


def test_words_are_read_times_the_root_of_the_width():
    model, probe = tiny(scale_embeddings=True), Probe("source", "embed")
    ids, source = tokens(2, 7), tokens(2, 11)
    model(ids, source, probe=probe)
    for name, read in (("source", source), ("embed", ids)):
        torch.testing.assert_close(probe.values[name], model.tokens.weight[read] * math.sqrt(30))


def test_source_and_target_have_tables_of_their_own_unless_shared():
    separate = tiny(share_embeddings=False, source_vocab=37)
    assert separate.source_tokens.weight.shape == (37, 30)
    probe, source = Probe("source"), tokens(2, 11, vocab=37)
    separate(tokens(2, 7), source, probe=probe)
    assert torch.equal(probe.values["source"], separate.source_tokens.weight[source])
    assert tiny(share_embeddings=False).source_tokens.weight.shape == (31, 30)
    assert tiny().source_tokens is None


def test_initialisation_is_the_first_transformers():
    """Xavier uniform for every matrix, Q, K and V each by itself; words as large as sinusoids once they are scaled."""
    torch.manual_seed(0)
    model = create(
        "seq2seq", Seq2SeqConfig(vocab=997, width=192, heads=4, hidden=400, **{**KINDS["first"], "depth": 3})
    )
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in (module.w_q, module.w_k, module.w_v, module.out.weight):
                bound = math.sqrt(6 / (192 + 192))
                assert 0.99 * bound < matrix.abs().max() <= bound
                assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    for block in [*model.blocks, *model.encoder.blocks]:
        bound = math.sqrt(6 / (192 + 400))
        for matrix in (block.mlp.up.weight, block.mlp.down.weight):
            assert 0.99 * bound < matrix.abs().max() <= bound
    assert model.tokens.weight.std().item() == pytest.approx(192**-0.5, rel=0.02)
    for name, p in model.named_parameters():
        if p.ndim == 1:
            assert (p == (0 if name.endswith("bias") else 1)).all(), name


def test_attention_maps_are_the_recorded_pattern():
    model, ids, source, probe = tiny(), tokens(2, 7), tokens(2, 11), Probe()
    model(ids, source, probe=probe)
    maps = attention_maps(model, source, ids)
    assert maps.shape == (2, 7, 11)
    patterns = [probe.values[f"blocks.{i}.cross.pattern"].detach() for i in range(2)]
    for word in range(7):
        for there in range(11):
            expected = sum(pattern[:, :, word, there].sum(1) for pattern in patterns) / 6
            torch.testing.assert_close(maps[:, word, there], expected)
    torch.testing.assert_close(maps.sum(2), torch.ones(2, 7))


def test_more_tokens_than_positions_are_refused():
    model = tiny(positions="learned")
    with pytest.raises(ValueError, match="8 tokens and the model's table of positions has 7"):
        model(tokens(1, 8), tokens(1, 11))
    with pytest.raises(ValueError, match="12 tokens and the model's table of positions has 11"):
        model(tokens(1, 7), tokens(1, 12))


@pytest.mark.parametrize("depths", [(2, None), (2, 7), (5, 1)])
def test_the_residual_projections_of_each_stack_are_scaled_by_its_own_depth(depths):
    depth, decoder = depths
    torch.manual_seed(0)
    sizes = {**SIZES, "width": 90, "hidden": 89, "depth": depth, "decoder_depth": decoder}
    model = create("seq2seq", Seq2SeqConfig(**sizes))
    for stack, blocks in ((model.encoder.blocks, depth), (model.blocks, decoder or depth)):
        assert len(stack) == blocks
        for name, parameter in stack.named_parameters():
            if name.endswith(("attn.out.weight", "cross.out.weight", "mlp.down.weight")):
                # the deviation of n numbers is known to about 1/√(2n)
                assert float(parameter.detach().std()) == pytest.approx(0.02 / math.sqrt(2 * blocks), rel=0.05), name
