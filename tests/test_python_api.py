"""The parts that `pencil` exports: docs/guides/python.md as it stands, and the listings of 002 and 003 against numpy."""

import ast
import contextlib
import importlib
import io
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pencil
from conftest import unchecked
from test_docs import ROOT, blocks, prepare, sandbox  # noqa: F401

PRINTED = re.compile(r"^(.*)  # (.+)$")


def prints(source: str, names: dict) -> tuple[str, list[str]]:
    """What a block of Python prints, and what the comments behind its prints say."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), unchecked():
        exec(compile(ast.parse(source), "page", "exec"), names)
    said = [found[2] for line in source.splitlines() if line.startswith("print(") and (found := PRINTED.match(line))]
    return out.getvalue(), said


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("guides/python.md", marks=pytest.mark.long),
        pytest.param("guides/import-export.md", marks=pytest.mark.long),
        "explain/positions.md",
        "guides/images.md",
        "guides/text.md",
        "guides/inspect.md",
        "guides/explore.md",
    ],
)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, sandbox, capsys, monkeypatch):  # noqa: F811
    monkeypatch.chdir(sandbox)
    monkeypatch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
    names = {"__name__": "page"}
    found = [text for language, text in blocks(ROOT / "docs" / page) if language == "python"]
    assert found
    prepare(re.findall(r'"(runs/[\w-]+)"', "".join(found)), capsys)
    for text in found:
        out, said = prints(text, names)
        assert out.splitlines() == said


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def formula(q, k, v, allowed=None):
    """softmax(q kᵀ/√d) v in numpy, over any leading axes; and the weights."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    weights = softmax(scores if allowed is None else np.where(allowed, scores, -np.inf))
    return weights @ v, weights


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def close(found, expected, atol=1e-12):
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=atol, rtol=1e-9)


def test_one_head_of_002_with_values_of_another_width():
    x, w_q, w_k, w_v = drawn(0, (7, 11), (11, 5), (11, 5), (11, 3))
    expected, weights = formula(x @ w_q, x @ w_k, x @ w_v)
    t, *w = map(torch.from_numpy, (x, w_q, w_k, w_v))
    probe = pencil.Probe("pattern")
    close(pencil.attend(t @ w[0], t @ w[1], t @ w[2]), expected)
    close(pencil.attend(t @ w[0], t @ w[1], t @ w[2], probe=probe), expected)
    close(probe.values["pattern"][0, 0], weights)


def joined(w_qs, w_ks, w_vs, w_o, biases=None):
    """An Attention with the heads' matrices as the documents write them: X W_Q."""
    h, d, k = w_qs.shape
    made = pencil.Attention(d, h, head_width=k, bias=biases is not None).double()
    with torch.no_grad():
        made.qkv.weight.copy_(
            torch.from_numpy(np.concatenate([w.transpose(0, 2, 1).reshape(-1, d) for w in (w_qs, w_ks, w_vs)]))
        )
        made.out.weight.copy_(torch.from_numpy(w_o.T))
        if biases is not None:
            made.qkv.bias.copy_(torch.from_numpy(np.concatenate(biases[:3])))
            made.out.bias.copy_(torch.from_numpy(biases[3]))
    return made


def test_several_heads_of_002_and_that_order_passes_through_them():
    x, w_qs, w_ks, w_vs, w_o = drawn(1, (7, 6), (3, 6, 5), (3, 6, 5), (3, 6, 5), (15, 6))
    heads = [formula(x @ q, x @ k, x @ v)[0] for q, k, v in zip(w_qs, w_ks, w_vs, strict=True)]
    expected = np.concatenate(heads, -1) @ w_o
    attention, t = joined(w_qs, w_ks, w_vs, w_o), torch.from_numpy(x)
    close(attention(t), expected)
    close(attention(t[None].expand(2, -1, -1))[1], expected)
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    assert (attention(t[order]) - attention(t)[order]).abs().max() < 1e-12


@pytest.mark.parametrize("masked", [None, "rows", "heads", "all"])
def test_the_class_of_003_with_query_key_and_value_apart(masked):
    """As many rows as heads, where broadcasting a (B, T, S) mask over (B, h, T, S) scores would take the wrong axis."""
    query, key, value, *w = drawn(2, (3, 5, 6), (3, 7, 6), (3, 7, 6), (3, 6, 2), (3, 6, 2), (3, 6, 2), (6, 6))
    b = drawn(3, 6, 6, 6, 6)
    shape = {None: (5, 7), "rows": (3, 5, 7), "heads": (1, 3, 5, 7), "all": (5, 7)}[masked]
    mask = np.random.default_rng(4).integers(0, 2, shape) if masked else np.ones(shape)
    mask[..., 2] = 1  # nobody is left without a key
    full = np.broadcast_to(mask[:, None] if masked == "rows" else mask, (3, 3, 5, 7))
    outs = []
    for h in range(3):
        part = slice(2 * h, 2 * h + 2)
        q, k, v = (x @ m[h] + bias[part] for x, m, bias in zip((query, key, value), w, b, strict=False))
        outs.append(formula(q, k, v, full[:, h] != 0)[0])
    expected = np.concatenate(outs, -1) @ w[3] + b[3]
    attention = joined(*w, biases=b)
    q, k, v = map(torch.from_numpy, (query, key, value))
    given = {} if masked is None else {"mask": torch.from_numpy(mask)}
    close(attention(q, source=k, values=v, **given), expected)
    if masked != "heads":  # one text alone
        row = {"mask": torch.from_numpy(full[1, 0].copy())} if masked else {}
        close(attention(q[1], source=k[1], values=v[1], **row), expected[1])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    axes=st.sampled_from([2, 3, 4]),
    kind=st.sampled_from(["bool", "int", "float", "half", "added"]),
)
def test_the_function_of_003_with_masks_of_every_kind(seed, axes, kind):
    lead = (3, 2)[: axes - 2]
    q, k, v = drawn(seed, (*lead, 5, 4), (*lead, 7, 4), (*lead, 7, 11))
    allowed = np.random.default_rng(seed).random((5, 7)) < 0.6
    allowed[:, seed % 7], allowed[0, (seed + 1) % 7] = True, False
    mask = torch.from_numpy(allowed)
    if kind == "added":
        mask = torch.zeros(5, 7).masked_fill(~mask, -torch.inf)
    elif kind != "bool":
        mask = mask.to({"int": torch.int32, "float": torch.float32, "half": torch.bfloat16}[kind])
    expected, weights = formula(q, k, v, allowed)
    probe = pencil.Probe("pattern")
    for z in (pencil.attend(*map(torch.from_numpy, (q, k, v)), mask=mask),
              pencil.attend(*map(torch.from_numpy, (q, k, v)), mask=mask, probe=probe)):  # fmt: skip
        close(z, expected, 1e-10)
    close(probe.values["pattern"].reshape(weights.shape), weights, 1e-10)
    if axes == 3:  # one mask a row
        rows = np.random.default_rng(seed).random((3, 5, 7)) < 0.5
        rows[..., 1] = True
        close(pencil.attend(*map(torch.from_numpy, (q, k, v, rows))), formula(q, k, v, rows)[0], 1e-10)


@pytest.mark.parametrize("count, total", [(5, 5), (2, 7), (1, 7)])
@pytest.mark.parametrize("mask", [pencil.causal, pencil.prefix(3), pencil.causal & pencil.window(2), pencil.full])
def test_named_masks_where_queries_are_the_last_of_the_keys(count, total, mask):
    q, k, v = drawn(5, (2, count, 4), (2, total, 4), (2, total, 3))
    at, keys = np.arange(total - count, total)[:, None], np.arange(total)
    allowed = {"causal": keys <= at, "prefix(3)": (keys <= at) | (keys < 3), "full": keys >= 0 * at,
               "causal & window(2)": (keys <= at) & (at - keys < 2)}[mask.name]  # fmt: skip
    close(pencil.attend(*map(torch.from_numpy, (q, k, v)), mask=mask), formula(q, k, v, allowed)[0])


def test_a_query_that_may_attend_to_nothing_gets_zeros():
    q, k, v = (torch.randn(2, n, 4) for n in (3, 5, 5))
    assert not pencil.attend(q, k, v, mask=torch.zeros(3, 5, dtype=torch.int)).any()
    assert not pencil.Attention(4, 2, bias=False)(q, source=k, mask=torch.zeros(3, 5, dtype=torch.bool)).any()


HEADS, MASK = torch.randn(3, 2, 5, 4), torch.ones(5, 5)
REFUSED = [
    (dict(mask=torch.ones(3, 5, 5)), r"\(3, 5, 5\) could be one for each row of the batch or for each head: give mask\["),
    (dict(mask=torch.ones(5, 7)), r"shape \(5, 7\) does not fit 5 queries and 5 keys in 3 rows and 2 heads"),
    (dict(mask=torch.ones(5, 1)), "does not fit"),
    (dict(mask=torch.ones(2, 3, 5, 5)), "does not fit"),
    (dict(mask=torch.ones(5)), "does not fit"),
    (dict(mask=MASK * -1e9), r"a mask holds True and False, .* this one has -1e\+09; what else .* is a bias"),
    (dict(mask=MASK * 2), "this one has 2;"),
    (dict(mask=MASK.tril().masked_fill(MASK.triu(1) > 0, -torch.inf)), "this one mixes 1 and −∞"),
    (dict(mask=MASK * torch.nan), "this one has nan"),
    (dict(mask=torch.zeros(5, 5)), "zeros alone masks every key as 1 and 0, and none as 0 and −∞: give it as booleans"),
    (dict(k=HEADS[:, :, :3], v=HEADS[:, :, :3], mask=pencil.causal), "causal over 5 queries and 3 keys"),
    (dict(k=HEADS[0]), r"q, k and v have 4, 3 and 4 axes"),
    (dict(q=HEADS[0, 0, 0], k=HEADS[0, 0, 0], v=HEADS[0, 0, 0]), r"have 1, 1 and 1 axes"),
]  # fmt: skip


@pytest.mark.parametrize("changed, words", REFUSED)
def test_what_cannot_be_meant_is_refused_in_a_sentence(changed, words):
    with unchecked(), pytest.raises(ValueError, match=words) as refused:
        pencil.attend(**{"q": HEADS, "k": HEADS, "v": HEADS, **changed})
    assert "\n" not in str(refused.value)


def test_calls_that_would_leave_something_out_are_refused():
    attention, x = pencil.Attention(4, 2), torch.randn(1, 3, 4)
    span, cache = pencil.Span.whole(3), pencil.Cache(1, 1, 2, 3, 2)
    parts = lambda: pencil.Attention(4, 2), lambda: pencil.MLP(4, 5), lambda: pencil.LayerNorm(4)
    for call, words in (
        (lambda: attention(x, span, mask=pencil.causal), "span.under"),
        (lambda: attention(x, span, source=x, values=x), "without a span"),
        (lambda: attention(x, cache=cache[0]), "a cache needs a span"),
        (lambda: pencil.CrossBlock(*parts)(x), "needs source="),
        (lambda: pencil.PostCrossBlock(*parts)(x), "needs source="),
        (lambda: pencil.AdaBlock(*parts, 4)(x), "needs condition="),
        (lambda: pencil.AdaNormBlock(*parts, 4)(x), "needs condition="),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("kind", ["Block", "PostBlock", "CrossBlock", "PostCrossBlock", "AdaBlock", "AdaNormBlock"])
def test_a_block_without_a_span_is_the_block_with_a_whole_one(kind):
    torch.manual_seed(3)
    x, source, condition = torch.randn(2, 5, 6), torch.randn(2, 7, 6), torch.randn(2, 6)
    parts = lambda: pencil.Attention(6, 3), lambda: pencil.MLP(6, 11), lambda: pencil.LayerNorm(6)
    block = getattr(pencil, kind)(*parts, *([6] if "Ada" in kind else []))
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    span, more = pencil.Span.whole(5), {}
    if "Cross" in kind:
        more = dict(source=source, across=span.across(pencil.Span.whole(7)))
    if "Ada" in kind:
        more = dict(condition=condition)
    plain = {name: value for name, value in more.items() if name != "across"}
    assert torch.equal(block(x, **plain), block(x, span, **more))
    masked = block(x, mask=pencil.causal, **plain)
    assert torch.equal(masked, block(x, span.under(pencil.causal), **more))
    torch.testing.assert_close(block(x, mask=torch.ones(5, 5).tril(), **plain), masked, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(masked, block(x, **plain), atol=1e-3)


def test_the_table_and_the_embedding_of_003():
    ids = torch.tensor([[3, 1, 4], [1, 5, 9]])
    table = np.zeros((13, 10))
    for place in range(13):
        for i in range(5):
            angle = place / 10000 ** (2 * i / 10)
            table[place, 2 * i : 2 * i + 2] = np.sin(angle), np.cos(angle)
    positions, tokens = pencil.Sinusoidal(10), pencil.Tokens(11, 10).double()
    close(positions.embedding(torch.arange(13)[None, :, None])[0], table)
    embedded, _ = positions(tokens(ids) * np.sqrt(10))
    close(embedded, tokens.weight.detach().numpy()[ids.numpy()] * np.sqrt(10) + table[:3])


def test_everything_named_in_the_docs_is_exported():
    text = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bpencil\.(\w+)", text)) <= set(pencil.__all__)
    wanted = {"Attention", "attend", "causal", "full", "prefix", "window", "padding", "Learned", "Sinusoidal", "Rope", "Alibi",
              "Shaw", "T5", "Cache", "Span", "Block", "CrossBlock", "PostBlock", "PostCrossBlock", "AdaBlock", "AdaNormBlock",
              "MLP", "GatedMLP", "LayerNorm", "RMSNorm", "Patches", "TimestepEmbedding", "diffusion"}  # fmt: skip
    assert wanted <= set(pencil.__all__)
    assert pencil.diffusion.GaussianDiffusion.__module__ == "pencil.inference.diffusion"


def test_the_python_that_the_page_shows_imports_what_is_there():
    """Pages that were shared have it too, so these names stay."""
    web = ROOT / "web" / "src"
    shown = {
        match
        for path in web.rglob("*.ts")
        for match in re.findall(r"from (pencil[\w.]*) import (\w+)", path.read_text())
    }
    assert ("pencil.tracing.file", "load") in shown
    for module, name in shown:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
