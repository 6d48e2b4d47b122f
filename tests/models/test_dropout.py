"""Dropout in every family: the attention weights and activations of a training pass, worked out from what went in.

A head is wider than its keys are many, so that the weights it really used follow from its output: W = H V⁺.
"""

import math
from itertools import product

import pytest
import torch

from pencil.core.probe import Probe
from pencil.data.images import open_images as images
from pencil.families import create, family
from pencil.models.captioner import CaptionerConfig
from pencil.models.gpt import GPTConfig
from pencil.models.reader import ReaderConfig
from pencil.models.seq2seq import Seq2SeqConfig
from pencil.models.vit import ViTConfig

B, T, S = 29, 11, 7  # rows, tokens, source tokens
SIZES = dict(width=39, heads=3, depth=1)  # heads of 13
IMAGE = dict(image_size=(4, 6), patch=(2, 2), channels=2)  # 6 patches


def tokens(count):
    return torch.randint(0, 23, (B, count), generator=torch.Generator().manual_seed(count))


def picture():
    return torch.rand(B, 2, 4, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2 - 1


def causal(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool).tril()


def full(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool)


def image_first(rows, columns):
    """Six patches that see one another, then text."""
    return causal(rows, columns) | (torch.arange(columns) < 6)


def gpt(**values):
    config = GPTConfig(vocab=23, context=T, positions="learned", **SIZES, **values)
    return config, (tokens(T),), {"blocks.0.attn": causal}


def vit(**values):
    config = ViTConfig(classes=5, **IMAGE, **SIZES, **values)
    return config, (picture(),), {"blocks.0.attn": full}


def captioner(**values):
    config = CaptionerConfig(vocab=23, context=5, delimiters="none", positions="learned", **IMAGE, **SIZES, **values)
    return config, (tokens(5), picture()), {"blocks.0.attn": image_first}


def reader(**values):
    config = ReaderConfig(vocab=23, context=T, positions="learned", **SIZES, **values)
    return config, (tokens(T),), {"encoder.blocks.0.attn": full}


def seq2seq(**values):
    config = Seq2SeqConfig(vocab=23, context=T, source_context=S, positions="learned", **SIZES, **values)
    seen = {"encoder.blocks.0.attn": full, "blocks.0.attn": causal, "blocks.0.cross": full}
    return config, (tokens(T), tokens(S)), seen


CASES = {"gpt": gpt, "vit": vit, "captioner": captioner, "reader": reader, "seq2seq": seq2seq}


def passed(name, training=True, seed=1, **values):
    """The values of a pass by the fused route, and who may see whom in each attention."""
    config, inputs, seen = CASES[name](**values)
    torch.manual_seed(seed)
    model = create(name, config).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    # asking for the pattern would take the plain route
    probe = Probe(lambda named: not named.endswith(("scores", "pattern")))
    with torch.no_grad():
        model.train(training)(*inputs, probe=probe)
    return probe.values, seen


def used(values, path, allowed):
    """For each attention weight the softmax gives, by what dropout multiplied it."""
    q, k, v, z = (values[f"{path}.{part}"] for part in "qkvz")
    seen = allowed(q.shape[2], k.shape[2])
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~seen, -torch.inf)
    assert v.shape[3] >= v.shape[2]
    return (z @ torch.linalg.pinv(v) / scores.softmax(-1))[:, :, seen], seen


def near(share, rate, count):
    return abs(share - rate) < 4.5 * math.sqrt(max(rate * (1 - rate), 1e-9) / count)


def check_scale(factor, rate):
    """Each value is dropped, or kept and scaled up, as often as the rate has it."""
    dropped = factor.abs() < 1e-6
    torch.testing.assert_close(
        factor[~dropped], torch.full_like(factor[~dropped], 1 / (1 - rate)), atol=1e-5, rtol=1e-5
    )
    assert near(float(dropped.double().mean()), rate, factor.numel())
    return dropped


def check_sum(found, parts, rate):
    """`found` is the sum of the parts, after dropout of each."""
    kept = torch.tensor(list(product((0.0, 1 / (1 - rate)), repeat=len(parts))), dtype=torch.float64)
    sums = torch.einsum("cp,p...->c...", kept, torch.stack(parts))
    off, which = (sums - found).abs().min(0)
    assert off.max() < 1e-9
    # of a query whose weights are all dropped the attention gives zero, dropped or not
    clear = torch.stack(parts).abs().amin(0) > 1e-6
    for part in range(len(parts)):
        dropped = kept[which, part][clear] == 0
        assert near(float(dropped.double().mean()), rate, dropped.numel())


RATES = [
    dict(dropout=0.3),
    dict(dropout=0.3, attention_dropout=0.0),
    dict(dropout=0.2, attention_dropout=0.4),
    dict(attention_dropout=0.4),
]


@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dropout_zeroes_single_attention_weights_unless_they_have_a_rate_of_their_own(name, rates):
    rate = rates.get("attention_dropout", rates.get("dropout", 0.0))
    values, seen = passed(name, **rates)
    for path, allowed in seen.items():
        factor, where = used(values, path, allowed)
        dropped = torch.zeros(*factor.shape[:2], *where.shape, dtype=torch.bool)
        dropped[:, :, where] = check_scale(factor, rate)
        if rate:
            # each query drops its own keys: the last two, which see the same, agree as often as independent draws do
            both = where[-1] & where[-2]
            agree = (dropped[:, :, -1] == dropped[:, :, -2])[..., both]
            assert near(float(agree.double().mean()), rate**2 + (1 - rate) ** 2, agree.numel())


@pytest.mark.parametrize(
    "rates", [dict(key_dropout=0.35), dict(dropout=0.2, attention_dropout=0.0, key_dropout=0.35)], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_key_dropout_zeroes_keys_for_all_queries_alike(name, rates):
    values, seen = passed(name, **rates)
    for path, allowed in seen.items():
        factor, where = used(values, path, allowed)
        full_factor = torch.full((*factor.shape[:2], *where.shape), torch.nan, dtype=torch.float64)
        full_factor[:, :, where] = factor
        column = full_factor.nan_to_num(-1).amax(2)  # the factor of a key for any query that sees it
        check_scale(column[..., where.any(0)], 0.35)
        expected = column[:, :, None].expand_as(full_factor)[:, :, where]
        torch.testing.assert_close(factor, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dropout_zeroes_embeddings_and_the_outputs_of_attention_and_mlp(name, rates):
    rate = rates.get("dropout", 0.0)
    values, seen = passed(name, **rates)
    for path in {path.rpartition(".")[0] for path in seen}:
        before = values[f"{path.rpartition('blocks')[0]}input"]
        steps = [("attn", "mid"), ("cross", "cross_mid"), ("mlp", "post")]
        steps = [(part, after) for part, after in steps if f"{path}.{after}" in values]
        (first, mid), *later = steps
        check_sum(values[f"{path}.{mid}"], [before, values[f"{path}.{first}.out"]], rate)
        for part, after in later:
            check_sum(values[f"{path}.{after}"] - values[f"{path}.{mid}"], [values[f"{path}.{part}.out"]], rate)
            mid = after


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_dropped_outside_training(name):
    values, seen = passed(name, training=False, dropout=0.3, attention_dropout=0.4, key_dropout=0.2)
    for path, allowed in seen.items():
        factor, _ = used(values, path, allowed)
        torch.testing.assert_close(factor, torch.ones_like(factor), atol=1e-6, rtol=1e-6)
    plain, _ = passed(name, training=True)
    assert torch.equal(values[next(reversed(values))], plain[next(reversed(plain))])


def test_the_head_of_a_reader_drops_what_it_pools():
    config = ReaderConfig(vocab=23, context=T, classes=39, pool="mean", positions="learned", dropout=0.3, **SIZES)
    torch.manual_seed(1)
    model, probe = create("reader", config).double().train(), Probe("head.pooled")
    with torch.no_grad():
        model.head.label.weight.copy_(torch.eye(39))
        logits = model(tokens(T), probe=probe)
    check_scale(logits / probe.values["head.pooled"], 0.3)


def test_the_small_vit_and_the_digits_drop_keys_rather_than_single_weights():
    """On a CPU single weights cost a fused kernel; whole keys do not."""
    small = family("vit").configure("small")
    assert (small.dropout, small.attention_dropout, small.key_dropout) == (0.1, 0.0, 0.1)
    digits = family("vit").configure("nano", classes=10, **images.load("digits", "label").model_defaults)
    assert digits.attention_dropout == 0.0
    assert digits.dropout == digits.key_dropout > 0
    for config in (small, digits):
        blocks = create("vit", config).blocks
        assert {(b.attn.dropout, b.attn.key_dropout, b.drop.p) for b in blocks} == {
            (0.0, config.key_dropout, config.dropout)
        }


@pytest.mark.parametrize("setting", ["dropout", "attention_dropout", "key_dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_rate_out_of_range_is_refused(setting, value):
    with pytest.raises(ValueError, match=f"model.{setting} must be at least 0 and under 1, not {value}"):
        GPTConfig(**{setting: value})
