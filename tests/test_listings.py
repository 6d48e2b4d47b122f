"""`pencil.listings`: every row of the tables of docs/guides/python.md, against the documents' own code and formulas."""

import contextlib
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pencil
from conftest import unchecked
from pencil import listings
from test_docs import ROOT

# ---- the documents' listings, as printed


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def three_lines(query, key, value):
    """Document 000."""
    scores = query @ key.T / np.sqrt(query.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    return weights @ value, weights, scores


def layer_norm(x, gamma, beta, eps=1e-6):
    """Document 000."""
    mu = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return gamma * ((x - mu) / np.sqrt(var + eps)) + beta


def self_attention(X, W_Q, W_K, W_V):
    """Document 002."""
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    scores = Q @ K.T / np.sqrt(Q.shape[-1])
    weights = softmax(scores, axis=-1)
    return weights @ V, weights, scores


def multi_head_attention(X, W_Qs, W_Ks, W_Vs, W_O):
    """Document 002."""
    head_outputs, all_weights = [], []
    for W_Q, W_K, W_V in zip(W_Qs, W_Ks, W_Vs):  # noqa: B905
        out, w, _ = self_attention(X, W_Q, W_K, W_V)
        head_outputs.append(out)
        all_weights.append(w)
    return np.concatenate(head_outputs, axis=-1) @ W_O, all_weights


def scaled_dot_product_attention(Q, K, V, mask=None):
    """Document 003."""
    scores = Q @ K.transpose(0, 2, 1) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    weights = softmax(scores, axis=-1)
    return weights @ V, weights


class MultiHeadAttention(nn.Module):
    """Document 003."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split_heads(self, x, batch_size):
        return x.view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        B = query.size(0)
        Q = self.split_heads(self.W_q(query), B)
        K = self.split_heads(self.W_k(key), B)
        V = self.split_heads(self.W_v(value), B)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        attn_weights = torch.softmax(scores, dim=-1)
        context = (attn_weights @ V).transpose(1, 2).contiguous().view(B, -1, self.d_model)
        return self.W_o(context), attn_weights


def positional_encoding(max_len, d_model):
    """Document 003, in double precision."""
    pe = torch.zeros(max_len, d_model).double()
    pos = torch.arange(0, max_len).unsqueeze(1).double()
    div = torch.exp(torch.arange(0, d_model, 2).double() * -(math.log(10000.0) / d_model))
    pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
    return pe


# ---- what the documents have as formulas alone


def rotated(x):
    """R_i x_i: a block-diagonal matrix of rotations by position·10000^(−2i/d) for each row."""
    out = np.empty_like(x)
    for place, row in enumerate(x):
        matrix = np.zeros((len(row), len(row)))
        for i in range(0, len(row), 2):
            angle = place * 10000 ** (-i / len(row))
            matrix[i : i + 2, i : i + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        out[place] = matrix @ row
    return out


def mlp(x, W_1, b_1, W_2, b_2):
    u = x @ W_1 + b_1
    return u * (1 + np.vectorize(math.erf)(u / math.sqrt(2))) / 2 @ W_2 + b_2


def noised(x_0, noise, t):
    left = np.prod(1 - np.linspace(1e-4, 0.02, 1000)[: t + 1])
    return math.sqrt(left) * x_0 + math.sqrt(1 - left) * noise


def strips(picture, p):
    """The squares of one image (C, H, W), each as channel, row, column."""
    _, height, width = picture.shape
    corners = [(i, j) for i in range(0, height, p) for j in range(0, width, p)]
    return np.stack([picture[:, i : i + p, j : j + p].reshape(-1) for i, j in corners])


def masked(scores, value, allowed):
    return softmax(np.where(allowed, scores, -np.inf)) @ value


def as_printed(n):
    """The document's class of 003 with the weights of the page's."""
    printed = MultiHeadAttention(6, 3).double()
    printed.load_state_dict(n["three"].state_dict())
    out, weights = printed(*map(torch.from_numpy, (n["Q"], n["K"], n["V"], n["mask"])))
    return out.detach().numpy(), weights.detach().numpy()


LATER = np.triu(np.ones((7, 7), dtype=bool), 1)
ROUNDED = 5e-9  # the numbers of golden.json have eight decimals
GOLDEN = {one["id"]: one for one in json.loads((ROOT / "tests" / "golden.json").read_text(encoding="utf-8"))}

# the row of a table -> its value, of the names that the page has given
REFERENCE = {
    "000 scores, weights, output": lambda n: three_lines(n["query"], n["key"], n["value"]),
    "000 `layer_norm`": lambda n: layer_norm(n["strip"], n["gamma"], n["beta"]),
    "000 fold": lambda n: n["photo"].reshape(2, 2, 3, 2),
    "000 fold, swap, glue": lambda n: strips(n["photo"][None], 2),
    "000 without the swap": lambda n: n["photo"].reshape(-1, 6),
    "000 stamp": lambda n: positional_encoding(7, 4).numpy(),
    "000 portions under the triangle": lambda n: masked(n["scores"], np.eye(7), ~LATER),
    "001 𝒰(X_img)": lambda n: np.stack([strips(one, 2) for one in n["X_img"]]),
    "001 LN(X)": lambda n: layer_norm(n["X"], n["gamma"], n["beta"], 1e-5),
    "001 A V, causal M": lambda n: masked(n["scores"], n["value"], ~LATER),
    "001 A V, bidirectional vision": lambda n: masked(n["scores"], n["value"], ~LATER | (np.arange(7) < 4)),
    "001 MLP": lambda n: mlp(n["X"], n["W_1"], n["b_1"], n["W_2"], n["b_2"]),
    "002 `softmax`": lambda n: softmax(n["scores"], axis=0),
    "002 `self_attention`": lambda n: self_attention(n["X"], n["W_Q"], n["W_K"], n["W_V"]),
    "002 `multi_head_attention`": lambda n: multi_head_attention(n["X"], n["W_Qs"], n["W_Ks"], n["W_Vs"], n["W_O"]),
    "002 permuted rows": lambda n: multi_head_attention(n["X"][n["order"]], n["W_Qs"], n["W_Ks"], n["W_Vs"], n["W_O"]),
    "002 R_i q_i": lambda n: rotated(n["q"]),
    "002 FFN": lambda n: mlp(n["X"], n["W_1"], n["b_1"], n["W_2"], n["b_2"]),
    "002 KV cache": lambda n: three_lines(n["query"][6:], n["key"], n["values"]),
    "002 adaLN": lambda n: layer_norm(n["X"], n["gamma"], n["beta"], 1e-5),
    "002 diffusion's noise": lambda n: noised(n["x_0"], n["noise"], 700),
    "003 `softmax`": lambda n: softmax(n["scores"]),
    "003 `scaled_dot_product_attention`": lambda n: scaled_dot_product_attention(n["Q"], n["K"], n["V"], n["mask"]),
    "003 `MultiHeadAttention`": as_printed,
    "003 `positional_encoding`": lambda n: positional_encoding(7, 6).numpy(),
    "003 `TokenPlusPositionEmbedding`": lambda n: (
        n["embedded"].token_emb.weight.detach().numpy()[n["ids"]] * math.sqrt(6) + positional_encoding(3, 6).numpy()
    ),
    "003 ALiBi": lambda n: np.stack([-m * abs(np.arange(7)[:, None] - np.arange(7)) for m in (1 / 16, 1 / 256, 1 / 4)]),
    "004 patches": lambda n: strips(n["image"][None], 2),
    "004 multi-head attention": lambda n: np.array(GOLDEN["004-msa"]["expected"]["msa_out"]),
}


@pytest.fixture(scope="module")
def rows():
    """Each row of the tables: what both of its calls give, and the names as they were there."""
    text = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    text = text[text.index("### The listings of the documents") :]
    names, out = {}, {}
    for block, row in re.findall(r"^```python\n(.*?)^```|^\| (00\d [^\n]*) \|$", text, re.M | re.S):
        if block:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), unchecked():
                exec(block, names)
            assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.+)$", block, re.M)
        else:
            name, *calls = row.split(" | ")
            with unchecked():
                out[name] = (*(eval(call.strip("`"), names) for call in calls), dict(names))
    return out


def test_every_row_has_a_reference(rows):
    assert list(rows) == list(REFERENCE)
    assert {name[:3] for name in rows} == {"000", "001", "002", "003", "004"}


def parts_of(value):
    return [part for one in value for part in parts_of(one)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize("name", REFERENCE)
def test_a_row_gives_what_the_document_gives(name, rows):
    called, parts, names = rows[name]
    expected = REFERENCE[name](names)
    close = 2 * ROUNDED if name == "004 multi-head attention" else 1e-12
    of_float32 = 1e-6 if name == "003 `TokenPlusPositionEmbedding`" else 0  # its table of tokens
    if not isinstance(expected, tuple):
        called = parts_of(called)[0]  # the reference has the output alone
    assert len(parts_of(called)) == len(parts_of(expected))
    for one, other in zip(parts_of(called), parts_of(expected), strict=True):
        assert isinstance(one, np.ndarray)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=max(close, of_float32))
    output = np.asarray(parts_of(expected)[0])
    np.testing.assert_allclose(
        parts.detach().numpy().reshape(output.shape), output, rtol=1e-9, atol=max(close, of_float32)
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), masked=st.booleans())
def test_the_listings_of_attention_are_those_of_the_documents(seed, masked):
    """On sizes that are different primes, of arrays and of tensors alike."""
    rng = np.random.default_rng(seed)
    X, *W = (rng.standard_normal(shape) for shape in ((7, 11), (11, 5), (11, 5), (11, 3)))
    for one, other in zip(listings.self_attention(X, *W), self_attention(X, *W), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    Q, K, V = (rng.standard_normal(shape) for shape in ((2, 3, 5), (2, 7, 5), (2, 7, 11)))
    mask = rng.integers(0, 2, (2, 3, 7)) if masked else None
    if masked:
        mask[..., seed % 7] = 1  # no query is left without a key
    ours = listings.scaled_dot_product_attention(Q, K, V, mask)
    for one, other in zip(ours, scaled_dot_product_attention(Q, K, V, mask), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    given_mask = {} if mask is None else {"mask": torch.from_numpy(mask)}
    tensors = listings.scaled_dot_product_attention(*map(torch.from_numpy, (Q, K, V)), **given_mask)
    assert all(np.array_equal(t.numpy(), one) for t, one in zip(tensors, ours, strict=True))


def test_the_masks_are_those_of_the_notation():
    for name, mask in (("causal", listings.causal_mask(7)), ("bidirectional_vision", listings.prefix_mask(4, 3))):
        assert np.array_equal(mask, np.array(GOLDEN["001-masks"]["expected"][name], dtype=float))


def test_where_a_listing_and_pencil_differ():
    """A query without a key gets zeros; scores over 709 do not overflow; a mask is one for each row of the batch."""
    rng = np.random.default_rng(3)
    Q, K, V = (rng.standard_normal(shape) for shape in ((2, 3, 5), (2, 7, 5), (2, 7, 11)))
    output, weights = listings.scaled_dot_product_attention(Q, K, V, np.zeros((3, 7), dtype=int))
    assert not output.any()
    assert not weights.any()
    assert np.isfinite(listings.attention([[2000.0, 0]], [[1.0, 0], [0, 1]], [[1.0], [2.0]])[0]).all()
    three = listings.MultiHeadAttention(6, 2).double()
    x, mask = rng.standard_normal((2, 5, 6)), np.tril(np.ones((2, 5, 5), dtype=int))
    mask[1] = 1
    rows = [three(x[i : i + 1], x[i : i + 1], x[i : i + 1], mask[i])[0] for i in (0, 1)]
    np.testing.assert_allclose(three(x, x, x, mask)[0], np.concatenate(rows), atol=1e-12)


def test_gradients_flow_through_tensors():
    x = torch.randn(5, 3, requires_grad=True)
    listings.attention(x, x, x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


ARRAY = np.ones((3, 4))
REFUSED = [
    (lambda: pencil.attend(ARRAY, ARRAY, ARRAY), "q is of the type ndarray: .* pencil.listings"),
    (lambda: pencil.Attention(4, 2)(ARRAY), "x is of the type ndarray: .* pencil.listings"),
    (lambda: pencil.Attention(4, 2)(torch.ones(3, 4), torch.ones(3, 4)), "source=keys, values=values.*MultiHeadAtt"),
    (lambda: pencil.Attention(4, 2)(*[torch.ones(3, 4)] * 3), "called with a query, a key and a value, .*MultiHeadAtt"),
    (
        lambda: pencil.Attention(4, 2)(ARRAY, ARRAY, ARRAY, mask=None),
        "called with a query, a key and a value, .*MultiHeadAtt",
    ),
    (lambda: pencil.fold(ARRAY, (2, 2)), "pencil.listings.fold takes arrays"),
    (lambda: pencil.Patches(1, 2, 4), r"\(2, 2\) instead of 2"),
    (lambda: listings.swap(ARRAY), r"swap\(fold\(photo, 2\)\)"),
    (lambda: listings.glue(ARRAY), r"glue\(swap\(fold\(photo, 2\)\)\)"),
    (lambda: listings.fold(np.ones(7), 2), r"\(H, W\)"),
    (lambda: listings.fold(np.ones((5, 3)), 2), "cannot be cut into patches of 2×2"),
    (lambda: listings.MultiHeadAttention(7, 2), "2 heads do not divide a width of 7"),
    (lambda: listings.TokenPlusPositionEmbedding(5, 4, max_len=2)(np.ones((1, 3), dtype=int)), "max_len=3"),
    (lambda: listings.positional_encoding(3, 5), "width must be even"),
    (lambda: listings.KVCache(1, 2).append(np.ones((2, 2)), np.ones((2, 2))), "for 1 tokens"),
]


@pytest.mark.parametrize("call, words", REFUSED)
def test_what_a_listing_cannot_take_is_refused_in_a_sentence(call, words):
    with unchecked(), pytest.raises(ValueError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)
