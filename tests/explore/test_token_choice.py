"""How a token is drawn, checked against numpy and against the drawing itself."""

import numpy as np
import pytest
import torch
from json_shapes import CHOSEN, check

from pencil.explore.answers import bars, drawing, largest, ranked, sampling_of
from pencil.inference.sampling import Sampling, choose, probabilities

RULES = [
    Sampling(0.7), Sampling(1.3, top_k=5), Sampling(0.9, top_p=0.6), Sampling(1.1, min_p=0.2),
    Sampling(1.0, top_k=9, top_p=0.8, min_p=0.1), Sampling(2.0, top_k=1), Sampling(1.0, top_p=1e-9), Sampling(0),
]  # fmt: skip


def logits(seed, ties=False):
    z = torch.randn(41, generator=torch.Generator().manual_seed(seed)) * 3
    return z.round() if ties else z


@pytest.mark.parametrize("how", RULES, ids=str)
def test_the_interval_of_the_drawn_token_holds_the_random_number(how):
    rng = np.random.default_rng(3)
    for seed in range(12):
        z = logits(seed, ties=seed % 2 == 1)
        u = None if how.temperature == 0 else float(rng.random())
        token = int(choose(z[None], how, None if u is None else torch.tensor([u], dtype=torch.float64))[0])
        found = drawing(z, how, u, token, str)
        check(found, CHOSEN)
        (mine,) = [row for row in found["rows"] if row["drawn"]]
        assert mine["id"] == token
        assert mine["kept"]
        assert mine["cut"] == ""
        if u is not None:
            assert mine["from"] <= u < mine["to"]
        # what is kept is what can be drawn, and the probabilities are numpy's
        t = how.temperature or 1
        p = np.exp((z.double().numpy() - z.max().item()) / t)
        p /= p.sum()
        final = (
            probabilities(z[None], how)[0] if how.temperature else torch.nn.functional.one_hot(torch.tensor(token), 41)
        )
        for row in found["rows"]:
            assert row["probability"] == pytest.approx(p[row["id"]], rel=1e-12)
            assert row["scaled"] == pytest.approx(float(z[row["id"]]) / t)
            assert row["final"] == pytest.approx(float(final[row["id"]]))
            assert row["kept"] == (row["final"] > 0)
            assert (row["cut"] == "") == (row["kept"] or how.temperature == 0)
        listed = [row["id"] for row in found["rows"]]
        assert found["rest"] == pytest.approx(1 - p[listed].sum(), abs=1e-12)
        assert listed[:5] == sorted(range(41), key=lambda i: (-float(z[i]), i))[:5]


def test_each_rule_says_what_it_left_out():
    z = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, -1.0])
    p = np.exp(z.numpy() - 4)
    p /= p.sum()

    def cuts(**rules):
        found = drawing(z, Sampling(1.0, **rules), 0.0, 0, str)["rows"]
        return [row["cut"] for row in found]

    assert cuts() == [""] * 6
    assert cuts(top_k=2) == ["", "", *["top-k"] * 4]
    assert cuts(top_p=float(p[:2].sum()) + 0.01) == ["", "", "", *["top-p"] * 3]
    assert cuts(min_p=0.1) == ["", "", "", *["min-p"] * 3]  # e⁻² is 0.135, e⁻³ is 0.05
    assert cuts(top_k=4, min_p=0.2) == ["", "", "min-p", "min-p", "top-k", "top-k"]


def test_the_drawn_token_is_listed_even_if_it_is_unlikely():
    z = logits(5)
    last = int(z.argsort()[0])
    rows = drawing(z, Sampling(9.0), 0.5, last, str)["rows"]
    assert rows[-1]["id"] == last
    assert len(rows) == 13


def test_masked_logits_are_words_and_bars_have_cells():
    z = logits(7)
    z[4] = -torch.inf
    rows = drawing(z, Sampling(1.0), 0.5, int(z.argmax()), str)
    check(rows, CHOSEN)
    found = bars(z, str, (0, 3), None)
    assert [one for one in found if one["id"] == 4] == [
        {"label": "4", "id": 4, "logit": "-inf", "probability": 0.0, "cell": "logits[0,3,4]"}
    ]


def test_options_that_are_off():
    off = {"temperature": 0.5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 3}
    assert sampling_of(off) == Sampling(0.5, seed=3)
    assert sampling_of({**off, "top_k": 4, "top_p": 0.5, "min_p": 0.1}) == Sampling(0.5, 4, 0.5, 0.1, seed=3)


def test_the_largest_are_the_first_of_the_order_also_among_equal_ones():
    rng = np.random.default_rng(3)
    for logits in (
        rng.integers(7, size=(31, 53)),
        rng.normal(size=(31, 53)),
        np.full((1, 53), -np.inf),
        np.full((1, 5), np.nan),
    ):
        for row in logits.astype(float):
            assert largest(row, 11).tolist() == ranked(row)[:11].tolist()
