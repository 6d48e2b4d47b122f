"""Claims of the documents: their verdicts against golden values and against computations written here."""

import math
import re
import shlex
import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from conftest import call, unchecked
from pencil.families import FAMILIES
from pencil.learn import katas, lab
from pencil.learn.check.check import check, check_text, shipped
from pencil.learn.check.claims import NOT_SHOWN, SHOWN, WRONG, count_claims
from pencil.learn.lab.claims_attention import softmax_gradients
from pencil.learn.lab.runner import FIRST
from pencil.learn.worked.examples import EXAMPLES

WALKS = files("pencil") / "examples" / "walks"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def documents():
    with unchecked():
        return {name[:3]: check(path).claims for name, path in shipped().items()}


@pytest.fixture(scope="module")
def verdict(documents):
    """The verdict of the claim that begins so."""

    def find(document, words):
        found = [claim for claim in documents[document] if claim.text.startswith(words)]
        assert len(found) == 1, f"{len(found)} claims of {document} begin with {words}"
        return found[0].verdict

    return find


def test_claims_are_many_and_whole(documents):
    everything = [claim for claims in documents.values() for claim in claims]
    assert len(everything) >= 30
    assert all(documents.values())
    assert set(count_claims(everything)) == {SHOWN, NOT_SHOWN, WRONG}
    assert all(count_claims(everything).values())
    for claim in everything:
        assert claim.line
        assert claim.text.endswith(".")
        assert (claim.verdict != SHOWN) == bool(claim.note), claim
        assert (claim.verdict == NOT_SHOWN) != bool(claim.formula), claim
    for claims in documents.values():
        assert len({claim.text for claim in claims}) == len(claims)


def test_no_verdict_opens_with_a_comparison_and_what_was_measured_is_a_sentence(documents):
    sentences = [claim.values for claims in documents.values() for claim in claims if claim.values]
    assert len(sentences) > 80
    for said in sentences:
        assert re.fullmatch(r"[A-Z0-9].*\.", said), said
        assert not re.search(r"[=≠<>≤≥{}]", said), said
        assert len(said.split()) > 4, said
    for claim in (claim for claims in documents.values() for claim in claims):
        assert claim.evidence == f"{claim.note} {claim.values}".strip()
        assert not re.match(r"\S+ [=≠<>≤≥] ", claim.evidence), claim.text


def test_labelled_claims_have_the_golden_verdict(documents, golden):
    expected = {f"{e['id']}/{key}": status for e in golden.values() for key, status in e["status"].items()}
    seen = Counter()
    for claim in (claim for claims in documents.values() for claim in claims if claim.label):
        if claim.verdict != NOT_SHOWN:
            assert claim.verdict == {"ok": SHOWN, "wrong": WRONG}[expected[claim.label]], claim
        assert claim.label in expected
        seen[claim.verdict] += 1
    assert min(seen[SHOWN], seen[WRONG]) >= 15
    assert seen[NOT_SHOWN] == 2


def test_every_golden_claim_in_words_is_a_claim(documents, golden):
    """Except shapes, which are steps, and that a listing runs."""
    labels = {claim.label for claims in documents.values() for claim in claims}
    missing = {
        f"{entry['id']}/{key}"
        for entry in golden.values()
        for key, tolerance in entry["printed_tolerance"].items()
        if tolerance is None and not entry["id"].endswith("shapes")
    } - labels
    assert missing <= {
        "001-patch-embed-numeric/equivalence", "002-mha-cost/single_total", "002-mha-cost/per_head_qkv",
        "002-mha-cost/per_head_qk", "002-kv-cache-llama2-70b/formula_values", "002-code-demo/runs",
        "003-positional-encoding-code/formula", "003-mha-code/runs", "003-mha-code/scores_shape",
        "003-position-blind/code_runs_3d",
    }  # fmt: skip


@pytest.fixture(scope="module")
def commands(documents):
    return sorted({tuple(shlex.split(c.command)) for claims in documents.values() for c in claims if c.command})


def test_the_commands_name_what_exists(commands):
    presets = {f"{name}:{preset}" for name, record in FAMILIES.items() for preset in record.presets}
    known = {
        "lab": lab.claims(), "kata": katas.KATAS, "shapes": presets, "cost": presets,
        "show": {f"example:{name}" for name in EXAMPLES}, "why": {f"example:{name}" for name in EXAMPLES},
    }  # fmt: skip
    for pencil, verb, first, *_ in commands:
        assert pencil == "pencil"
        assert first in known[verb] or f"gpt:{first}" in known[verb], first
    assert {words[1] for words in commands} == set(known)


@pytest.mark.long
def test_the_commands_run(commands):
    for _, verb, *words in commands:
        if verb not in ("lab", "kata"):
            call(verb, *words)


# ---- each statement decided once more, by other means


def encoding(position, width):
    return [f(position / 10000 ** (2 * i / width)) for i in range(width // 2) for f in (math.sin, math.cos)]


def test_the_encoding_of_a_sum_is_a_rotation(verdict):
    width, k = 8, 3
    turn = np.zeros((width, width))
    for i in range(width // 2):
        angle = k / 10000 ** (2 * i / width)
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [math.cos(angle), math.sin(angle)],
            [-math.sin(angle), math.cos(angle)],
        ]
    assert np.linalg.det(turn) == pytest.approx(1)
    same = all(np.allclose(turn @ encoding(p, width), encoding(p + k, width), atol=1e-12) for p in range(50))
    assert verdict("002", "The encoding of pos + k") == verdict("003", "The encoding of pos + k") == SHOWN
    assert same
    forth, back = (np.dot(encoding(10, width), encoding(10 + far, width)) for far in (k, -k))
    assert forth == pytest.approx(back)
    assert verdict("002", "So it tells how two tokens stand") == WRONG


def test_rope_by_complex_numbers(verdict):
    random = np.random.default_rng(0)
    q, k = random.normal(size=(2, 4)) + 1j * random.normal(size=(2, 4))
    speed = 10000.0 ** (-np.arange(4) / 4)

    def score(i, j):
        return (q * np.exp(1j * speed * i) * np.conj(k * np.exp(1j * speed * j))).sum().real

    assert score(2, 5) == pytest.approx(score(10, 13))
    assert abs(score(2, 5) - score(5, 2)) > 1e-3
    assert verdict("002", "With RoPE a score") == verdict("003", "RoPE puts the relative position") == SHOWN


def test_the_listing_is_equivariant_and_a_causal_mask_is_not(documents, verdict):
    np.random.seed(42)
    x = np.random.randn(6, 8)
    w = [np.random.randn(8, 4) * 0.5 for _ in range(3)]
    order = [3, 0, 5, 1, 4, 2]

    def attention(x, mask=None):
        q, k, v = (torch.tensor(x @ part)[None] for part in w)
        return F.scaled_dot_product_attention(q, k, v, is_causal=bool(mask))[0].numpy()

    assert np.abs(attention(x[order]) - attention(x)[order]).max() < 1e-14
    assert np.abs(attention(x[order], "causal") - attention(x, "causal")[order]).max() > 1
    assert verdict("002", "The listing's check") == SHOWN
    assert verdict("002", "Attention has no notion of order") == WRONG
    assert verdict("003", "Attention is permutation-invariant") == WRONG
    (claim,) = (c for c in documents["002"] if c.text.startswith("The listing's check"))
    assert float(re.search(r"[\d.]+(e-\d+)?", claim.values)[0]) < 1e-14


def test_masks_have_the_blocks(verdict):
    n, t = 6, 5
    causal = torch.full((n + t, n + t), -math.inf).triu(1)
    assert causal[:n, n:].max() == -math.inf
    assert causal[n:, :n].abs().max() == 0
    open_image = causal.clone()
    open_image[:n, :n] = 0
    assert torch.equal(open_image[n:], causal[n:])
    for words in ("An image token sees", "A text token sees", "With the picture open"):
        assert verdict("001", words) == SHOWN


def test_the_first_word_is_predicted_with_a_begin_token_only(verdict):
    def predicted(sequence):
        """The words that a logit at a text position predicts: the token after it."""
        start = sequence.index("|") + 1 if "|" in sequence else sequence.index("a")
        read = range(sequence.index("|") if "|" in sequence else start, len(sequence))
        return [sequence[i + 1] for i in read if i + 1 < len(sequence)]

    assert predicted([*"####", *"abc"]) == ["b", "c"]
    assert predicted([*"####", "|", *"abc"]) == ["a", "b", "c"]
    assert verdict("001", "Read at the text positions") == WRONG


def test_convolution_is_unfold_and_product(verdict):
    random = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 6, 10, generator=random, dtype=torch.float64)
    kernel = torch.randn(7, 3, 2, 2, generator=random, dtype=torch.float64)
    convolved = F.conv2d(image, kernel, stride=2)
    tokens = F.unfold(image, 2, stride=2).mT @ kernel.flatten(1).T
    assert torch.allclose(convolved.flatten(2).mT, tokens)
    assert convolved.flatten(2).shape != tokens.shape
    assert not torch.allclose(convolved.reshape(tokens.shape), tokens)
    assert verdict("001", "A convolution with kernel") == SHOWN
    assert verdict("001", "Flattening the convolution") == WRONG


def attention_flops(n, d, heads):
    """By torch's counter, on torch's own products."""
    x, w = torch.empty(n, d, device="meta"), torch.empty(d, d, device="meta")
    with FlopCounterMode(display=False) as counter:
        q, k, v = ((x @ w).view(n, heads, d // heads).transpose(0, 1) for _ in range(3))
        _ = ((q @ k.mT) @ v).transpose(0, 1).reshape(n, d) @ w
    return counter.get_total_flops()


def test_heads_cost_what_one_costs(verdict):
    assert attention_flops(512, 512, 8) == attention_flops(512, 512, 1) == 2 * (4 * 512**3 + 2 * 512**3)
    assert verdict("002", "h heads cost what one head") == verdict("002", "With W_O it is") == SHOWN
    assert verdict("003", "The matrix products of 8 heads") == SHOWN
    only_projections = attention_flops(1, 512, 1) - 4 * 512
    assert math.log2((attention_flops(1, 1024, 1) - 4 * 1024) / only_projections) == 2
    assert verdict("002", "With the cache, Q, K and V") == WRONG
    scores = [attention_flops(n, d, 8) - 8 * n * d**2 for n, d in ((512, 512), (1024, 512), (512, 1024))]
    assert (scores[1] / scores[0], scores[2] / scores[0]) == (4, 2)
    assert verdict("002", "Q Kᵀ, and A V with it, grows") == verdict("002", "And linearly with the width") == SHOWN


def test_the_cache_of_llama(documents, verdict):
    full, grouped = (2 * 2 * 80 * 4096 * heads * 128 for heads in (64, 8))
    assert (full, full / 2**30, grouped / 2**30) == (10_737_418_240, 10, 1.25)
    (bytes_, model) = (c for c in documents["002"] if "kv_cache_bytes" in c.formula and c.line in (653, 656))
    assert (bytes_.verdict, bytes_.values) == (
        SHOWN,
        f"The counted cache has {full:,} bytes, and the formula gives {full:,}.",
    )
    assert (model.verdict, model.values) == (WRONG, f"The model's cache has {grouped:,} bytes, not {full:,}.")
    assert verdict("002", "10.7·10⁹ bytes are about") == WRONG
    weights = 2 * 68_976_648_192
    assert weights // (full // 4096) == 52_625 > 4096
    assert verdict("002", "The cache is what takes most") == WRONG


def test_the_longest_wave(documents, verdict):
    longest = 2 * math.pi / (1 / 10000 ** (510 / 512))
    assert round(longest) == 60_611
    assert verdict("003", "The lowest frequency") == WRONG
    (number,) = next(
        s for s in check(shipped()["003-understanding"]).steps if s.name == "longest_in_thousand_positions"
    ).numbers
    assert (number.verdict, number.true) == ("wrong", "60.61")
    waves = [2 * math.pi * 10000 ** (2 * i / 512) for i in range(256)]
    assert sum(wave < 10_000 for wave in waves) == 205
    assert verdict("003", "Up to 10,000 tokens") == WRONG


def test_generation_without_a_cache_is_cubic(verdict):
    def scores(n, cached):
        return sum(1 for t in range(1, n + 1) for _ in range(1 if cached else t) for _ in range(t))

    assert (scores(8, False), scores(8, True)) == (204, 36)
    assert math.log2(scores(64, False) / scores(32, False)) == pytest.approx(3, abs=0.05)
    assert verdict("002", "Generating n tokens without a cache") == WRONG


def test_variances(verdict):
    random = np.random.default_rng(1)
    entries = random.normal(size=(2, 20_000, 64))
    unit = entries / np.linalg.norm(entries, axis=-1, keepdims=True)
    assert (unit[0] * unit[1]).sum(-1).var() == pytest.approx(1 / 64, rel=0.05)
    assert (entries[0] * entries[1]).sum(-1).var() == pytest.approx(64, rel=0.05)
    assert verdict("003", "The dot product of two random unit") == WRONG
    assert verdict("002", "The standard deviation of the dot") == SHOWN
    layer = torch.nn.Linear(400, 400, bias=False)
    assert layer.weight.var().item() * 400 == pytest.approx(1 / 3, rel=0.02)
    assert verdict("002", "After standard initialisation") == WRONG


def test_at_the_width_of_the_documents_gradients_do_not_vanish(documents, verdict):
    """At d_k = 64, from which both argue; only far wider heads pass less, and the measured numbers are the lab's."""
    size = lab.claims()["scaling"].quick | {"widths": (64,)}
    seeds = range(FIRST, FIRST + 5)
    each = {arm: [softmax_gradients(arm, seed, size) for seed in seeds] for arm in ("with", "without")}
    with_, without = (np.mean([one["slope"] for one in each[arm]]) for arm in each)
    assert without == pytest.approx(with_, rel=0.05)
    quoted = f"{without:.3f} without the division and {with_:.3f} with it"
    queries = {arm: np.mean([one["at queries by width"][0][1] for one in each[arm]]) for arm in each}
    assert queries["without"] > 5 * queries["with"]
    at_queries = f"{queries['without']:.2f} against {queries['with']:.3f}"
    table = DOCS.joinpath("explain", "ablations.md").read_text(encoding="utf-8")
    trained = re.search(r"heads of width 64 \(nats per answer\): without ([\d.]+), with ([\d.]+)", table)
    for number, correction in (("002", 56), ("003", 57)):
        (claim,) = [one for one in documents[number] if "gradient at the scores" in one.text]
        assert "d_k = 64" in claim.text
        assert claim.verdict == WRONG
        assert quoted in claim.note
        assert at_queries in claim.note
        sections = tomllib.loads(WALKS.joinpath(f"{number}.toml").read_text(encoding="utf-8"))["section"]
        words = dict(one for section in sections for one in section.get("corrections", ()))
        assert quoted in words[correction]
        assert at_queries in words[correction]
        assert f"{trained[2]} with it and {trained[1]} without" in words[correction]
        assert f"{trained[2]} with it and {trained[1]} without" in claim.note
    assert verdict("002", "Where it saturates") == SHOWN  # at d_k = 512, as it says
    assert "d_k = 512" in next(one.text for one in documents["002"] if one.text.startswith("Where it saturates"))


def test_epsilon_is_inside_the_root(verdict):
    x = torch.tensor([0.001, -0.001, 0.002, -0.002], dtype=torch.float64)
    ours = F.layer_norm(x, (4,), eps=1e-5)
    printed = (x - x.mean()) / (x.std(correction=0) + 1e-5)
    assert (printed / ours).max().item() == pytest.approx(2.222, abs=1e-3)
    assert verdict("002", "LayerNorm divides by") == verdict("002", "Its denominator, too") == WRONG


def test_what_the_worked_vit_says(golden, verdict):
    printed = np.array(golden["004-head1-out"]["printed"]["out"])
    assert (printed.max(0) > [11.05, 6.05]).all()
    assert verdict("004", "The printed outputs of head 1") == verdict("004", "The printed outputs of head 2") == WRONG
    residual = golden["004-residual"]["printed"]
    sums = np.add(residual["Z0_cls"], residual["msa_out_cls"])
    assert np.abs(sums - residual["Z_after_cls"]).max() > 5
    assert verdict("004", "The last row is just the sum") == WRONG
    assert verdict("004", "In head 1 the class token puts 76.86") == SHOWN


def test_what_the_pencil_page_says(verdict):
    image = np.arange(1, 17).reshape(4, 4)
    folded = image.reshape(2, 2, 2, 2)
    assert (folded.ravel() == image.ravel()).all()
    assert (folded.swapaxes(1, 2).reshape(4, 4)[0] == [1, 2, 5, 6]).all()
    assert verdict("000", "The fold moves no dot") == verdict("000", "Without the swap the rows") == SHOWN
    assert verdict("000", "Without the swap, a strip is a slice") == WRONG
    with np.errstate(all="ignore"):
        for kind, most, over in ((np.float64, 709.78, 709.79), (np.float32, 88.72, 88.73)):
            assert np.exp(kind(most)) / np.exp(kind(most)) == 1
            assert np.isnan(np.exp(kind(over)) / np.exp(kind(over)))
    stamps = np.array([encoding(seat, 4) for seat in range(500)])
    assert len(np.unique(stamps.round(9), axis=0)) == 500
    assert verdict("000", "Every seat has a stamp of its own") == SHOWN


def test_a_claim_is_decided_from_the_steps_and_from_what_is_printed():
    text = """
    [[step]]
    name = "third"
    formula = "1 / 3"
    printed = "0.4"
    [[claim]]
    text = "a"
    formula = "abs(third - 1 / 3) < 1e-12"
    [[claim]]
    text = "b"
    formula = "abs(printed(third) - 0.4) < 1e-12"
    """
    assert [claim.verdict for claim in check_text(text).claims] == [SHOWN, SHOWN]
    first = check_text(text).claims[0]
    assert (first.line, first.label, first.note, first.command) == (None, "", "", "")
    assert first.values == "Measured: 0 < 1e-12."
