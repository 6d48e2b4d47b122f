from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from jaxtyping import TypeCheckError

from pencil.core.attention import Attention, attend
from pencil.core.masks import causal, full, padding, prefix, window
from pencil.core.positions import Rope, rotate
from pencil.core.probe import Probe
from pencil.core.span import Span

B, H, G, T, S, D = 2, 6, 3, 5, 7, 11


def by_hand(q, k, v, allowed=None, bias=None, scale=None):
    """The formula, cell by cell, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            for t in range(q.shape[2]):
                seen = [s for s in range(k.shape[2]) if allowed is None or allowed[b, h, t, s]]
                scores = torch.tensor(
                    [
                        q[b, h, t] @ k[b, g, s] * (scale or q.shape[-1] ** -0.5)
                        + (0 if bias is None else bias[b, h, t, s])
                        for s in seen
                    ],
                    dtype=torch.float64,
                )
                for s, weight in zip(seen, (scores - scores.max()).exp() if seen else [], strict=True):
                    out[b, h, t] += weight / (scores - scores.max()).exp().sum() * v[b, g, s]
    return out


@pytest.mark.parametrize("fault", [torch.nan, torch.inf])
@pytest.mark.parametrize("mask", ["random", "padding", causal, prefix(3), window(2), causal & window(3)])
def test_what_is_behind_a_given_mask_has_no_effect(mask, fault):
    """In keys and in values, on both routes: each query's answer is as if the keys masked for it did not exist."""
    torch.manual_seed(0)
    q, k, v = torch.randn(B, H, S, D), torch.randn(B, G, S, D), torch.randn(B, G, S, D)
    k[0, 1, 4, 3] = v[1, 0, S - 1, 2] = v[1, 2, 2] = fault
    if isinstance(mask, str):
        mask = torch.rand(B, H, S, S) < 0.6 if mask == "random" else (torch.arange(S) != 4) & (torch.arange(S) != 2)
        mask = mask.expand(B, 1, 1, S) if mask.ndim == 1 else mask
    index = torch.arange(S)
    allowed = mask if isinstance(mask, torch.Tensor) else mask(index[:, None], index)
    allowed = allowed.expand(B, H, S, S)
    expected = by_hand(q, k, v, allowed)
    finite = (k.isfinite() & v.isfinite()).all(-1).repeat_interleave(H // G, 1)
    whole = (finite[:, :, None] | ~allowed).all(-1)
    q.requires_grad_()
    for route in (attend(q, k, v, mask), attend(q, k, v, mask, probe=Probe())):
        assert torch.equal(~route.isnan().any(-1), whole)
        torch.testing.assert_close(route[whole].double(), expected[whole], atol=1e-5, rtol=1e-5)
        (gradient,) = torch.autograd.grad(route[whole].sum(), q)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("mask", ["key 2", causal])
@pytest.mark.parametrize("observed", [False, True])
def test_a_masked_key_whose_score_is_infinite_has_no_effect_on_gradients(mask, observed):
    """Its weight is exp(−∞) = 0 without any mask, so the result is finite; the gradient of q would be 0·∞."""
    torch.manual_seed(0)
    last = 2 if mask == "key 2" else S - 1
    mask = torch.arange(S).expand(S, S) != 2 if mask == "key 2" else mask
    q, k, v = torch.randn(B, H, S, D), torch.randn(B, G, S, D), torch.randn(B, G, S, D)
    q[..., 3].abs_()
    found = []
    for fault in (0, -torch.inf):
        k[:, :, last, 3] = fault
        given = [one.clone().requires_grad_() for one in (q, k, v)]
        rows = attend(*given, mask, probe=Probe()) if observed else attend(*given, mask)
        rows = rows[:, :, :-1]  # all are blind to that key, and the last query of a causal mask is left out
        found.append([rows, *torch.autograd.grad(rows.square().sum(), given)])
    for expected, one in zip(*found, strict=True):
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-5)


def test_a_module_with_a_given_mask_does_not_read_what_it_masks():
    torch.manual_seed(0)
    attention, x = Attention(12, 3), torch.randn(2, 5, 12)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3] = False
    expected = attention(x, mask=mask)
    x[1, 3] = torch.nan
    found = attention(x, mask=mask)
    rest = [0, 1, 2, 4]
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, rest], expected[1, rest])
    assert found[1, 3].isnan().all()  # a query that is NaN itself


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), groups=st.sampled_from([1, 2, 3, 6]), masked=st.booleans(), biased=st.booleans())
def test_both_routes_are_the_formula_even_for_a_row_that_sees_nothing(seed, groups, masked, biased):
    torch.manual_seed(seed)
    q, k, v = torch.randn(B, H, T, D), torch.randn(B, H // groups, S, D), torch.randn(B, H // groups, S, D)
    allowed = torch.rand(B, H, T, S) < 0.4 if masked else None
    if masked:
        allowed[0, :, 2] = False
    bias = torch.randn(B, H, T, S) if biased else None
    expected = by_hand(q, k, v, allowed, bias, scale=0.37)
    probe = Probe()
    for route in (attend(q, k, v, allowed, bias, 0.37), attend(q, k, v, allowed, bias, 0.37, probe=probe)):
        torch.testing.assert_close(route.double(), expected, atol=1e-5, rtol=1e-5)
        if masked:
            assert (route[0, :, 2] == 0).all()
    given = {"mask": masked, "bias": biased}
    assert set(probe.values) == {"raw_scores", "scores", "pattern"} | {name for name in given if given[name]}
    if masked:
        assert probe.values["scores"][0, :, 2].isneginf().all()
        assert (probe.values["pattern"][0, :, 2] == 0).all()


@pytest.mark.parametrize("mask", [full, causal, prefix(3), window(2), causal & window(2), full & padding])
def test_gradients_agree_between_the_routes(mask):
    torch.manual_seed(3)
    first = [torch.randn(B, h, S, D, requires_grad=True) for h in (H, G, G)]
    second = [t.detach().clone().requires_grad_() for t in first]
    seen = mask.over(torch.arange(S)[None], start=0)
    weight = torch.randn(B, H, S, D)
    (attend(*first, seen) * weight).sum().backward()
    (attend(*second, seen, probe=Probe()) * weight).sum().backward()
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)


@settings(max_examples=60)
@given(total=st.integers(1, 13), near=st.integers(-13, 2), groups=st.sampled_from([1, 2, 6]), data=st.data())
def test_a_prefix_in_two_parts_is_the_prefix_whole(total, near, groups, data):
    """Values and gradients of the fused route against the formula, with prefixes up to and past the last token."""
    first = max(0, total + near)
    seen = prefix(first).over(torch.arange(total)[None], start=0)
    assert seen.route == ("all" if first >= total or total == 1 else "causal" if first < 2 else "prefix")
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    one = [torch.randn(B, n, total, d, requires_grad=True) for n, d in ((H, D), (H // groups, D), (H // groups, 5))]
    two = [t.detach().double().requires_grad_() for t in one]
    weight = torch.randn(B, H, total, 5)
    fast = attend(*one, seen, scale=0.37)
    allowed = torch.tensor([[key <= query or key < first for key in range(total)] for query in range(total)])
    scores = two[0] @ two[1].repeat_interleave(groups, 1).mT * 0.37
    slow = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ two[2].repeat_interleave(groups, 1)
    torch.testing.assert_close(fast.double(), slow, atol=1e-5, rtol=1e-5)
    (fast * weight).sum().backward()
    (slow * weight).sum().backward()
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=1e-5, rtol=1e-5)


def test_a_prefix_observed_is_the_prefix_fast():
    torch.manual_seed(5)
    q, k, v = torch.randn(B, H, 13, D), torch.randn(B, G, 13, D), torch.randn(B, G, 13, D)
    seen = prefix(7).over(torch.arange(13)[None], start=0)
    assert (seen.route, seen.first, seen.allowed) == ("prefix", 7, None)
    probe = Probe()
    torch.testing.assert_close(attend(q, k, v, seen), attend(q, k, v, seen, probe=probe), atol=1e-5, rtol=1e-5)
    pattern = probe.values["pattern"]
    assert (pattern[:, :, :7, 7:] == 0).all()
    assert (pattern[:, :, :7, :7] > 0).all()
    bias = torch.randn(1, H, 13, 13)
    torch.testing.assert_close(
        attend(q, k, v, seen, bias), attend(q, k, v, seen, bias, probe=Probe()), atol=1e-5, rtol=1e-5
    )


def test_a_blind_row_has_no_nan_gradient_in_either_route():
    allowed = torch.ones(T, S, dtype=torch.bool)
    allowed[1] = False
    for probe in ((), (Probe(),)):
        q, k, v = (torch.randn(1, 1, n, D, requires_grad=True) for n in (T, S, S))
        attend(q, k, v, allowed[None, None], None, None, 0.0, *probe).sum().backward()
        assert all(t.grad.isfinite().all() for t in (q, k, v))
        assert (q.grad[0, 0, 1] == 0).all()


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("head", [1, 2])
def test_the_heads_of_the_worked_vit_example(golden, head):
    """The 4×4 picture's two heads: scores, pattern and weighted sum."""
    inputs = golden["004-head1-qkv"]["inputs"]
    q, k, v = (exact(inputs["Z0"]) @ exact(inputs[f"W_{part}{head}"]) for part in "QKV")
    probe = Probe()
    z = attend(q[None, None], k[None, None], v[None, None], probe=probe)
    found = {"scores": probe.values["scores"], "attn": probe.values["pattern"], "out": z}
    for name, value in found.items():
        expected = exact(golden[f"004-head{head}-{name}"]["expected"][name])
        torch.testing.assert_close(value[0, 0], expected, atol=1e-8, rtol=1e-8)


def test_pencil_attention_with_want_have_and_give(golden):
    inputs, expected = golden["000-kata3-attention"]["inputs"], golden["000-kata3-attention"]["expected"]
    probe = Probe()
    z = attend(*(exact(inputs[name])[None, None] for name in ("WANT", "HAVE", "GIVE")), probe=probe)
    torch.testing.assert_close(probe.values["scores"][0, 0], exact(expected["scaled"]), atol=1e-8, rtol=0)
    torch.testing.assert_close(probe.values["pattern"][0, 0], exact(expected["weights"]), atol=1e-8, rtol=0)
    torch.testing.assert_close(z[0, 0], exact(expected["output"]), atol=1e-8, rtol=0)


def test_agrees_with_torch_multihead_attention():
    torch.manual_seed(0)
    ours, theirs = Attention(21, 3), torch.nn.MultiheadAttention(21, 3, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.out.weight.data, ours.out.bias.data
    x, memory = torch.randn(B, T, 21), torch.randn(B, S, 21)
    torch.testing.assert_close(ours(x, Span.whole(T).under(full)), theirs(x, x, x)[0], atol=1e-5, rtol=1e-5)
    crossing = Span.whole(T).across(Span.whole(S)).under(full)
    expected = theirs(x, memory, memory)[0]
    torch.testing.assert_close(ours(x, crossing, source=memory), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(x, crossing, source=ours.read(memory)), expected, atol=1e-5, rtol=1e-5)


def test_the_joined_product_has_its_three_named_views():
    attention = Attention(30, 6, kv_heads=2, bias=False)
    assert [w.shape for w in (attention.w_q, attention.w_k, attention.w_v)] == [(30, 30), (10, 30), (10, 30)]
    with torch.no_grad():
        attention.w_k.fill_(7.0)
    assert (attention.qkv.weight[30:40] == 7).all()
    x = torch.randn(B, T, 30)
    probe = Probe("k")
    attention(x, Span.whole(T).under(causal), probe=probe)
    torch.testing.assert_close(probe.values["k"].transpose(1, 2).flatten(-2), x @ attention.w_k.T)


def test_keys_are_rotated_by_their_own_positions_in_cross_attention():
    torch.manual_seed(1)
    attention, rope = Attention(24, 3), Rope(8)
    x, memory = torch.randn(B, T, 24), torch.randn(B, S, 24)
    here, there = Span.whole(T), Span.whole(S)
    _, queries = rope(x, here)
    _, keys = rope(memory, there)
    crossing = replace(here.across(there), rotation=queries.rotation, key_rotation=keys.rotation).under(full)
    q = rotate(attention.split_heads(x @ attention.w_q.T + attention.qkv.bias[:24]), queries.rotation)
    k, v = attention.read(memory)
    z = attend(q, rotate(k, keys.rotation), v)
    expected = attention.out(z.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(attention(x, crossing, source=memory), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", [causal, prefix(3), causal & window(2)])
def test_a_bias_joins_any_mask_once_for_all_blocks(mask):
    bias = torch.randn(1, 3, T, T)
    span = Span.whole(T).under(mask, lambda span: lambda q: bias)
    assert span.seen.route == "dense"
    attention, x = Attention(24, 3), torch.randn(B, T, 24)
    probe = Probe()
    torch.testing.assert_close(attention(x, span), attention(x, span, probe=probe), atol=1e-5, rtol=1e-5)
    scores = probe.values["q"] @ probe.values["k"].mT / 8**0.5 + bias
    seen = mask.over(torch.arange(T)[None]).matrix().expand_as(scores)
    torch.testing.assert_close(probe.values["scores"][seen], scores[seen], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", [full, causal, prefix(3)])
def test_key_dropout_drops_the_same_keys_for_every_query_in_both_routes(mask):
    """A cell of the pattern counts for nothing or for more, and which it is depends on its key alone."""
    torch.manual_seed(0)
    attention, x = Attention(24, 3, key_dropout=0.4), torch.randn(B, 29, 24)
    span, probe = Span.whole(29).under(mask), Probe()
    torch.manual_seed(7)
    fast = attention(x, span)
    torch.manual_seed(7)
    torch.testing.assert_close(attention(x, span, probe=probe), fast, atol=1e-5, rtol=1e-5)
    pattern, v, z = (probe.values[name] for name in ("pattern", "v", "z"))
    torch.manual_seed(7)
    kept = (torch.nn.functional.dropout(torch.ones_like(v[..., :1]), 0.4) > 0).float()
    assert 0 < kept.mean() < 1
    torch.testing.assert_close(z, pattern @ (v * kept / 0.6), atol=1e-5, rtol=1e-5)
    attention.eval()
    plain = Attention(24, 3).eval()
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, span), plain(x, span))


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not divide"):
        Attention(10, 3)
    with pytest.raises(ValueError, match="cannot serve"):
        Attention(12, 6, kv_heads=4)


def test_the_suite_enforces_the_annotated_shapes():
    q, k = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 11)
    with pytest.raises(TypeCheckError, match="parameter 'k'"):
        attend(q, k, torch.randn(2, 3, 5, 7))
