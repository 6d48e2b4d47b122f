"""The trunks against torch's own Transformer, and T5's biases against transformers, on random weights."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pencil.core.attention import Attention
from pencil.core.masks import NOWHERE, causal, padding
from pencil.core.positions import T5
from pencil.core.probe import Probe
from pencil.core.span import Span
from pencil.families import create
from pencil.models.reader import ReaderConfig
from pencil.models.seq2seq import Seq2SeqConfig

# each size is another prime, or a multiple where heads must divide a width
SHAPES = [
    dict(width=33, heads=3, depth=2, hidden=53, activation="relu", eps=1e-5),
    dict(width=35, heads=7, depth=3, hidden=41, activation="gelu", eps=1e-3),
    dict(width=26, heads=1, depth=1, hidden=29, activation="relu", eps=1e-5),
]


def shaken(module):
    with torch.no_grad():  # norms and biases begin as ones and zeros: make them matter
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return module.eval()


def theirs_of(norm_position, width, heads, depth, hidden, activation, eps):
    """torch's, with a norm at the end of each stack only where the residual stream is never normed."""
    torch.manual_seed(1)
    pre = norm_position == "pre"
    given = dict(dim_feedforward=hidden, dropout=0.0, activation=activation, layer_norm_eps=eps, batch_first=True,
                 norm_first=pre)  # fmt: skip
    last = [nn.LayerNorm(width, eps) if pre else None for _ in range(2)]
    first = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, heads, **given), depth, last[0], False)
    second = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, heads, **given), depth, last[1])
    return shaken(nn.Transformer(width, heads, custom_encoder=first, custom_decoder=second, batch_first=True))


def block_from(layer, cross=False):
    """Our state dict of a block, from torch's layer."""
    made = {}
    for ours, theirs in {"attn": "self_attn", **({"cross": "multihead_attn"} if cross else {})}.items():
        part = getattr(layer, theirs)
        made |= {f"{ours}.qkv.weight": part.in_proj_weight, f"{ours}.qkv.bias": part.in_proj_bias}
        made |= {f"{ours}.out.{kind}": getattr(part.out_proj, kind) for kind in ("weight", "bias")}
    parts = ["attn_norm", "cross_norm", "mlp_norm"] if cross else ["attn_norm", "mlp_norm"]
    named = {part: f"norm{i}" for i, part in enumerate(parts, 1)} | {"mlp.up": "linear1", "mlp.down": "linear2"}
    for ours, theirs in named.items():
        made |= {f"{ours}.{kind}": getattr(getattr(layer, theirs), kind) for kind in ("weight", "bias")}
    return made


def prefixed(start, tensors):
    return {f"{start}.{name}": tensor.detach() for name, tensor in tensors.items()}


def encoder_from(encoder):
    made = {}
    for i, layer in enumerate(encoder.layers):
        made |= prefixed(f"blocks.{i}", block_from(layer))
    if encoder.norm is not None:
        made |= prefixed("norm", encoder.norm.state_dict())
    return made


def rows(lengths, longest):
    """The index of each row's tokens, with padding after them, and which are real."""
    real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return torch.arange(longest).expand(len(lengths), -1).masked_fill(~real, NOWHERE), real


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_stacks_equal_torchs_transformer(norm_position, shape):
    theirs = theirs_of(norm_position, **shape)
    config = Seq2SeqConfig(vocab=59, source_vocab=61, share_embeddings=False, context=23, source_context=19, norm_position=norm_position, bias=True,
                           positions="none", **shape)  # fmt: skip
    ours = shaken(create("seq2seq", config))
    state = prefixed("encoder", encoder_from(theirs.encoder))
    for i, layer in enumerate(theirs.decoder.layers):
        state |= prefixed(f"blocks.{i}", block_from(layer, cross=True))
    if norm_position == "pre":
        state |= prefixed("norm", theirs.decoder.norm.state_dict())
    missing, unexpected = ours.load_state_dict(state, strict=False)
    assert set(missing) == {"tokens.weight", "source_tokens.weight"}
    assert not unexpected
    source, target = torch.randint(0, 61, (5, 17)), torch.randint(0, 59, (5, 13))
    x, y = ours.source_tokens(source), ours.tokens(target)
    later = nn.Transformer.generate_square_subsequent_mask(13).isinf()
    probe = Probe("norm", "encoder.out")
    ours(target, source, probe=probe)
    torch.testing.assert_close(probe.values["encoder.out"], theirs.encoder(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(probe.values["norm"], theirs(x, y, tgt_mask=later), atol=1e-5, rtol=1e-5)
    # with padding after some sources and some targets
    places, real = rows([17, 2, 11, 1, 7], 17)
    steps, output = rows([3, 13, 1, 11, 5], 13)
    probe = Probe("norm", "encoder.out")
    ours(target, source, Span.at(places), Span.at(steps), probe=probe)
    expected = theirs(x, y, tgt_mask=later, src_key_padding_mask=~real, memory_key_padding_mask=~real,
                      tgt_key_padding_mask=~output)  # fmt: skip
    torch.testing.assert_close(probe.values["norm"][output], expected[output], atol=1e-5, rtol=1e-5)
    expected = theirs.encoder(x, src_key_padding_mask=~real)
    torch.testing.assert_close(probe.values["encoder.out"][real], expected[real], atol=1e-5, rtol=1e-5)
    assert (theirs.encoder(x) - expected)[1, :2].abs().max() > 1e-2  # the mask has an effect


@pytest.mark.proof("parity with a reference on random weights", "reader")
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_readers_stack_equals_torchs_encoder_with_gradients(norm_position, shape):
    theirs = theirs_of(norm_position, **shape).encoder.double()
    config = ReaderConfig(vocab=59, context=23, norm_position=norm_position, positions="none", **shape)
    ours = create("reader", config).eval().encoder.double()
    ours.load_state_dict(encoder_from(theirs))
    places, real = rows([17, 2, 11], 17)
    x = torch.randn(3, 17, shape["width"], dtype=torch.float64, requires_grad=True)
    found, expected = ours.final(ours(x, Span.at(places)))[real], theirs(x, src_key_padding_mask=~real)[real]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    towards = torch.randn_like(found)
    (mine,), (wanted,) = (torch.autograd.grad(z, x, towards) for z in (found, expected))
    torch.testing.assert_close(mine, wanted, atol=1e-10, rtol=1e-10)


def t5_attention(both, buckets, max_distance, heads=5, head_width=7, width=33):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=width, d_kv=head_width, num_heads=heads, relative_attention_num_buckets=buckets,
                      relative_attention_max_distance=max_distance, is_decoder=not both, dropout_rate=0.0)  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(4)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
    return theirs


T5_SIZES = [(32, 128), (32, 257), (8, 20), (16, 128), (64, 509), (34, 101)]


@pytest.mark.parametrize("buckets, max_distance", T5_SIZES)
@pytest.mark.parametrize("both", [True, False])
def test_t5s_buckets_equal_transformers(both, buckets, max_distance):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-600, 601)
    found = T5(3, both=both, buckets=buckets, max_distance=max_distance).bucket(distance)
    expected = T5Attention._relative_position_bucket(distance, both, buckets, max_distance)
    assert torch.equal(found, expected)
    assert found.max() == buckets - 1  # the last one is reached


@pytest.mark.parametrize("buckets, max_distance", T5_SIZES)
@pytest.mark.parametrize("both", [True, False])
def test_t5s_bias_equals_transformers(both, buckets, max_distance):
    theirs = t5_attention(both, buckets, max_distance)
    ours = T5(5, both=both, buckets=buckets, max_distance=max_distance)
    ours.load_state_dict({"table": theirs.relative_attention_bias.weight[None]})
    for length in (1, 13, 300):
        found = ours.bias(Span.whole(length))(torch.zeros(1))
        assert torch.equal(found, theirs.compute_bias(length, length))


@pytest.mark.proof("parity with a reference on random weights", "seq2seq")
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_layer_of_t5s_attention_equals_transformers(both, padded):
    theirs = t5_attention(both, 32, 128)
    ours = Attention(33, 5, head_width=7, bias=False).eval()
    qkv = torch.cat([theirs.q.weight, theirs.k.weight, theirs.v.weight])
    ours.load_state_dict({"qkv.weight": qkv, "out.weight": theirs.o.weight})
    scheme = T5(5, both=both)
    scheme.load_state_dict({"table": theirs.relative_attention_bias.weight[None]})
    x = torch.randn(3, 211, 33)
    index, real = rows([211, 97, 2] if padded else [211] * 3, 211)
    seen = real[:, None, None] & (torch.ones(211, 211).tril() > 0 if not both else torch.ones(211, 211) > 0)
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    with torch.no_grad():
        expected = theirs(x, mask=mask)[0]
        span = Span.at(index) if padded else Span.whole(211)
        x, here = scheme(x, span)
        assert here.scale == 1
        found = ours(x, here.under(padding if both else causal, scheme.bias))
        torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
        unbiased = ours(x, replace(here.under(padding if both else causal), bias=None))
        assert (unbiased - found)[real].abs().max() > 1e-2  # the bias has an effect
