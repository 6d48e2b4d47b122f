"""The blocks, against their lines written out by hand from the weights."""

import math
from functools import partial

import pytest
import torch

from pencil.core.attention import Attention
from pencil.core.blocks import AdaBlock, AdaNormBlock, Block, CrossBlock, PostBlock, PostCrossBlock
from pencil.core.cache import Cache
from pencil.core.layers import MLP, LayerNorm
from pencil.core.masks import causal, full
from pencil.core.probe import Probe, branches, declared
from pencil.core.span import Span

D, H, G, F, T, S = 15, 3, 1, 17, 7, 11
CROSSING = [CrossBlock, PostCrossBlock]
KINDS = [Block, PostBlock, *CROSSING]


def made(kind, dropout=0.0):
    torch.manual_seed(0)
    block = kind(lambda: Attention(D, H, G), lambda: MLP(D, F, torch.tanh), lambda: LayerNorm(D), dropout).double()
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return block


def given(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normed(x, w, name):
    out = torch.empty_like(x)
    for t, row in enumerate(x):
        mean = row.sum() / D
        spread = ((row - mean) ** 2).sum() / D
        out[t] = (row - mean) / math.sqrt(spread + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]
    return out


def attended(x, keys, w, name, causal):
    """One head at a time, one query at a time; all heads share one key-value head."""
    weight, bias, d = w[f"{name}.qkv.weight"], w[f"{name}.qkv.bias"], D // H
    k, v = (keys @ weight[at : at + d].T + bias[at : at + d] for at in (D, D + d))
    heads = []
    for h in range(H):
        q = x @ weight[h * d : (h + 1) * d].T + bias[h * d : (h + 1) * d]
        rows = []
        for t in range(len(x)):
            seen = t + 1 if causal else len(keys)
            e = torch.tensor([math.exp(float(q[t] @ k[s]) / math.sqrt(d)) for s in range(seen)], dtype=torch.float64)
            rows.append(sum(e[s] / e.sum() * v[s] for s in range(seen)))
        heads.append(torch.stack(rows))
    return torch.cat(heads, 1) @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]


def fed(x, w):
    hidden = torch.tanh(x @ w["mlp.up.weight"].T + w["mlp.up.bias"])
    return hidden @ w["mlp.down.weight"].T + w["mlp.down.bias"]


def by_hand(kind, x, source, w):
    if kind is Block:
        n = normed(x, w, "attn_norm")
        x = x + attended(n, n, w, "attn", True)
        return x + fed(normed(x, w, "mlp_norm"), w)
    if kind is CrossBlock:
        n = normed(x, w, "attn_norm")
        x = x + attended(n, n, w, "attn", True)
        x = x + attended(normed(x, w, "cross_norm"), source, w, "cross", False)
        return x + fed(normed(x, w, "mlp_norm"), w)
    x = normed(x + attended(x, x, w, "attn", True), w, "attn_norm")
    if kind is PostCrossBlock:
        x = normed(x + attended(x, source, w, "cross", False), w, "cross_norm")
    return normed(x + fed(x, w), w, "mlp_norm")


def here_and_across():
    here = Span.whole(T)
    return here.under(causal), here.across(Span.whole(S)).under(full)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_its_lines(kind):
    block, x, source = made(kind), given(2, T, D), given(2, S, D, seed=2)
    here, across = here_and_across()
    more = (source, across) if kind in CROSSING else ()
    with torch.no_grad():
        found = block(x, here, *more)
        for row in range(2):
            expected = by_hand(kind, x[row], source[row], block.state_dict())
            torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", CROSSING)
def test_a_source_read_once_is_the_source_itself(kind):
    block, x, source = made(kind), given(2, T, D), given(2, S, D, seed=2)
    here, across = here_and_across()
    read = block.cross.read(source)
    assert [tuple(part.shape) for part in read] == [(2, G, S, D // H)] * 2
    torch.testing.assert_close(block(x, here, read, across), block(x, here, source, across), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_in_pieces_is_the_block_whole_and_the_source_takes_no_slot(kind):
    block, x, source = made(kind), given(2, T, D), given(2, S, D, seed=2)
    here, _ = here_and_across()
    cache, pieces = Cache(1, 2, G, T, D // H, dtype=torch.float64), []

    def more(span):
        return (source, span.across(Span.whole(S)).under(full)) if kind in CROSSING else ()

    for step in (3, 1, 1, 2):
        span, at = cache.place(cache.next(step)), sum(p.shape[1] for p in pieces)
        pieces.append(block(x[:, at : at + step], span.under(causal), *more(span), cache=cache[0]))
    torch.testing.assert_close(torch.cat(pieces, 1), block(x, here, *more(here)), atol=1e-12, rtol=1e-12)
    assert cache.used.tolist() == [T, T]


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_is_fired_with_its_shape(kind):
    block, probe = made(kind), Probe()
    here, across = here_and_across()
    block(given(2, T, D), here, *((given(2, S, D), across) if kind in CROSSING else ()), probe=probe)
    sizes, names = {"B": 2, "T": T, "S": T, "s": S, "D": D, "h": H, "g": G, "d": D // H, "F": F}, declared(block)
    sizes |= {"h·d": D, "1": 1}
    assert set(probe.values) | {name for name, entry in names.items() if entry.optional} == set(names)
    for name, value in probe.values.items():
        expected = [sizes[axis] for axis in names[name].axes.split()]
        assert list(value.shape) in (expected, [1, *expected[1:]]), name


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_on_what_is_added_and_never_on_the_residual_stream(kind):
    """With nearly all dropped, what is left is the residual stream, normed where the block norms it."""
    block, x = made(kind, dropout=1 - 1e-12), given(2, T, D)
    here, across = here_and_across()
    found = block(x, here, *((given(2, S, D), across) if kind in CROSSING else ()))
    expected, w = x, block.state_dict()
    for name in {PostBlock: ("attn_norm", "mlp_norm"), PostCrossBlock: ("attn_norm", "cross_norm", "mlp_norm")}.get(
        kind, ()
    ):
        expected = torch.stack([normed(row, w, name) for row in expected])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    assert not torch.allclose(block.eval()(x, here, *((given(2, S, D), across) if kind in CROSSING else ())), expected)


ADAPTIVE = [AdaBlock, AdaNormBlock]


@pytest.mark.parametrize("kind", [*KINDS, *ADAPTIVE])
def test_what_hangs_from_the_stream_is_what_the_block_declares(kind):
    """Each branch adds its result to the stream, and after the last of them the stream is the block's result."""
    adaptive_block, probe = kind in ADAPTIVE, Probe()
    block, x, (here, across) = adaptive(kind) if adaptive_block else made(kind), given(2, T, D), here_and_across()
    more = (given(2, S, D, seed=2), across) if kind in CROSSING else (given(2, D, seed=3),) if adaptive_block else ()
    with torch.no_grad():
        out = block(x, here, *more, probe=probe)
        for branch in branches(block):
            assert branch.norm == ("after" if kind in (PostBlock, PostCrossBlock) else "before")
            assert branch.modulation == ("modulation" if adaptive_block else "")
            added = probe.values[f"{branch.path}.out"] * probe.values.get(f"gate_{branch.path}", 1)
            x = x + added
            if branch.norm == "after":
                x = block.get_submodule(f"{branch.path}_norm")(x)
            torch.testing.assert_close(probe.values[branch.stream], x, atol=1e-12, rtol=1e-12)
    assert torch.equal(probe.values[branch.stream], out)
    parts = [name for name, part in block.named_children() if isinstance(part, Attention | MLP)]
    assert {branch.path for branch in branches(block)} == set(parts)


def adaptive(kind, fresh=False):
    torch.manual_seed(0)
    plain = partial(LayerNorm, D, 1e-5, bias=False, scale=False)
    block = kind(lambda: Attention(D, H, G), lambda: MLP(D, F, torch.tanh), plain, D).double()
    for p in () if fresh else block.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return block


def conditioned(kind, x, condition, w):
    settings = torch.tensor([c / (1 + math.exp(-c)) for c in condition.tolist()], dtype=torch.float64)
    settings = w["ada.weight"] @ settings + w["ada.bias"]
    parts = [settings[at : at + D] for at in range(0, len(settings), D)]
    ones = {f"{name}.{kind}": torch.full((D,), float(kind == "weight"), dtype=torch.float64)
            for name in ("attn_norm", "mlp_norm") for kind in ("weight", "bias")}  # fmt: skip
    if kind is AdaBlock:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = parts
        n = normed(x, ones, "attn_norm") * (1 + scale) + shift
        x = x + gate * attended(n, n, w, "attn", False)
        return x + gate_mlp * fed(normed(x, ones, "mlp_norm") * (1 + scale_mlp) + shift_mlp, w)
    scale, shift, scale_mlp, shift_mlp = parts
    n = normed(x, ones, "attn_norm") * scale + shift
    x = x + attended(n, n, w, "attn", False)
    return x + fed(normed(x, ones, "mlp_norm") * scale_mlp + shift_mlp, w)


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_a_conditioned_block_is_its_lines(kind):
    block, x, condition = adaptive(kind), given(3, T, D), given(3, D, seed=2)
    with torch.no_grad():
        found = block(x, Span.whole(T).under(full), condition)
        for row in range(3):
            expected = conditioned(kind, x[row], condition[row], block.state_dict())
            torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=1e-10)


def test_a_fresh_gated_block_changes_nothing_to_the_last_bit():
    block, x = adaptive(AdaBlock, fresh=True), given(3, T, D)
    for value in (x, x.float()):
        found = block.to(value.dtype)(value, Span.whole(T).under(full), 100 * given(3, D, seed=2).to(value))
        assert torch.equal(found, value)


def test_a_fresh_block_without_gates_is_a_pre_norm_block_whatever_the_condition():
    fresh, x, span = adaptive(AdaNormBlock, fresh=True), given(3, T, D), Span.whole(T).under(full)
    plain = Block(lambda: fresh.attn, lambda: fresh.mlp, lambda: LayerNorm(D)).double()
    for seed in (2, 3):
        found = fresh(x, span, 100 * given(3, D, seed=seed))
        torch.testing.assert_close(found, plain(x, span), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_every_name_of_a_conditioned_block_is_fired_with_its_shape(kind):
    block, probe = adaptive(kind), Probe()
    block(given(2, T, D), Span.whole(T).under(full), given(2, D), probe=probe)
    sizes = {"B": 2, "T": T, "S": T, "D": D, "h": H, "g": G, "d": D // H, "F": F, "m": len(block.ada.bias)}
    sizes |= {"h·d": D, "1": 1}
    names = declared(block)
    assert set(probe.values) | {name for name, entry in names.items() if entry.optional} == set(names)
    for name, value in probe.values.items():
        expected = [sizes[axis] for axis in names[name].axes.split()]
        assert list(value.shape) in (expected, [1, *expected[1:]]), name
