"""The worked examples of position schemes, of adaLN from the timestep on, and of a soft lookup."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import pencil
from conftest import call
from pencil.core.token_groups import frames_and_positions, windows
from traced import traced

BLOCK = "blocks.0.attn"


def value(found, name):
    return np.asarray(found[name].value)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected, dtype=float), atol=1e-12, rtol=0)


def test_weights_are_of_one_decimal():
    for name in ("rope", "alibi", "shaw", "t5", "adaln", "adaln-zero"):
        for weight, parameter in traced(f"example:{name}").traced_model.model.named_parameters():
            tenths = parameter.detach().numpy() * (50 if "norm" in weight else 10)
            close(tenths, tenths.round())


def test_rope_rotates_neighbouring_channels_by_the_documents_base():
    found = traced("example:rope")
    before, after = (value(found, f"{BLOCK}.{name}")[0, 0] for name in ("q_unrotated", "q"))
    for position in range(4):
        for pair in range(2):
            angle = position / 10000 ** (2 * pair / 4)
            turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            close(after[position, 2 * pair : 2 * pair + 2], turn @ before[position, 2 * pair : 2 * pair + 2])
    assert not np.allclose(before[1:], after[1:])


def test_alibi_subtracts_each_heads_slope_for_every_step():
    found = traced("example:alibi")
    raw, scores = (value(found, f"{BLOCK}.{name}")[0] for name in ("raw_scores", "scores"))
    steps = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    seen = np.tril(np.ones((4, 4), bool))
    for head, slope in enumerate((2**-4, 2**-8)):
        close(scores[head][seen], (raw[head] / math.sqrt(2) - slope * steps)[seen])


def test_shaw_adds_a_vector_for_each_clipped_distance():
    found = traced("example:shaw")
    table = found.traced_model.model.positions.table.detach().numpy()[0]
    q, k, scores = (value(found, f"{BLOCK}.{name}")[0, 0] for name in ("q", "k", "scores"))
    for i in range(4):
        for j in range(i + 1):
            close(scores[i, j], q[i] @ (k[j] + table[max(j - i, -2) + 2]) / 2)


def test_t5_adds_the_number_of_a_bucket_and_does_not_scale():
    found = traced("example:t5")
    table = found.traced_model.model.positions.table.detach().numpy()[0]
    q, k, scores = (value(found, f"{BLOCK}.{name}")[0] for name in ("q", "k", "scores"))
    buckets = [0, 1, 2, 2]  # two buckets of one distance, then one of several
    for head in range(2):
        for i in range(4):
            for j in range(i + 1):
                close(scores[head, i, j], q[head, i] @ k[head, j] + table[buckets[i - j], head])


@pytest.mark.parametrize("name, parts", [("adaln", 4), ("adaln-zero", 6)])
def test_adaln_from_the_timestep_to_the_block(name, parts):
    found = traced(f"example:{name}")
    model = found.traced_model.model
    t, time, block = 3.0, model.time, model.block
    angles = np.array([t, t / 100])
    features = np.concatenate((np.cos(angles), np.sin(angles)))
    close(value(found, "time.sinusoids")[0], features)
    with torch.no_grad():
        hidden = F.silu(F.linear(torch.tensor(features), time.up.weight, time.up.bias))
        condition = F.linear(hidden, time.down.weight, time.down.bias)
        given = F.linear(F.silu(condition), block.ada.weight, block.ada.bias).numpy().reshape(parts, 4)
    close(value(found, "time.out")[0], condition)
    close(value(found, "block.modulation")[0], given.ravel())
    x = value(found, "x")[0]
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
    out = value(found, "block.attn.out")[0]
    if name == "adaln":  # γ then β, no gate
        close(value(found, "block.attn_norm")[0], normed * given[0] + given[1])
        close(value(found, "block.mid")[0], x + out)
    else:  # β, γ, α
        close(value(found, "block.attn_norm")[0], normed * (1 + given[1]) + given[0])
        close(value(found, "block.mid")[0], x + given[2] * out)


def test_the_lookup_has_the_weights_of_the_figure(golden):
    found = traced("example:soft-lookup")
    q, keys = value(found, "want")[0, 0, 0], value(found, "have")[0, 0]
    raised = np.exp(keys @ q / math.sqrt(2))
    close(value(found, "pattern")[0, 0, 0], raised / raised.sum())
    assert value(found, "pattern")[0, 0, 0].round(2).tolist() == golden["002-figure-weights"]["inputs"]["alpha"]
    angles = [math.degrees(math.acos(q @ k / np.linalg.norm(q) / np.linalg.norm(k))) for k in keys]
    assert angles[0] < 10
    assert angles[1] > 170
    assert abs(angles[2] - 90) < 1e-6


def test_the_stamps_the_strip_and_the_mask_are_those_of_the_page(golden):
    stamps = traced("example:pencil-stamps")
    printed = golden["000-kata2-stamps"]["expected"]["stamps"][:3]  # to 8 decimals
    assert value(stamps, "positions.embedding")[0].round(8).tolist() == printed
    close(value(stamps, "out")[0, 0], golden["000-kata2-yourturn-add"]["expected"]["sum"])
    norm, expected = traced("example:pencil-layernorm"), golden["000-kata4-layernorm"]["expected"]
    close(value(norm, "differences")[0, 0], expected["diffs"])
    close(value(norm, "average_square")[0, 0, 0], expected["var"])
    assert value(norm, "out")[0, 0].round(8).tolist() == expected["normed_eps_1e_6_sqrt_var_plus_eps"]
    strip = torch.tensor([[50.0, 60, 40, 30]], dtype=torch.float64)
    close(value(norm, "out")[0], torch.nn.functional.layer_norm(strip, (4,), eps=1e-6).numpy())
    mask = traced("example:pencil-mask")
    close(value(mask, "pattern")[0, 0], np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None])
    assert np.array_equal(np.isneginf(value(mask, "mask")[0, 0]), np.triu(np.ones((3, 3)), 1) == 1)


def test_the_four_kinds_of_attention_over_a_video_are_attention_in_groups():
    """The masked tables are those of patches in groups that attend only to one another, as a dit computes them."""
    shown = traced("example:video-attention")
    raw = shown.array("full.raw_scores")[0, 0] / 2
    frames, positions = frames_and_positions((2, 2, 2), torch.device("cpu"))
    rows = windows((2, 2, 2), (2, 1, 2), (0, 0, 0), torch.device("cpu"))
    for name, grouping, scores in (("spatial", frames, 32), ("temporal", positions, 16), ("windowed", rows, 32)):
        expected = np.zeros((8, 8))
        for group in grouping.order.unflatten(0, (grouping.count, -1)).numpy():
            e = np.exp(raw[np.ix_(group, group)])
            expected[np.ix_(group, group)] = e / e.sum(-1, keepdims=True)
        assert np.allclose(shown.array(f"{name}.pattern")[0, 0], expected, rtol=0, atol=1e-12)
        assert (shown.array(f"{name}.pattern") > 0).sum() == scores
    e = np.exp(raw)
    assert np.allclose(shown.array("full.pattern")[0, 0], e / e.sum(-1, keepdims=True), rtol=0, atol=1e-12)
    assert shown.words("T", 8)[5] == "frame 2, patch 2"


def test_the_video_model_that_comes_with_pencil_makes_a_moving_digit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = pencil.load("example:video")
    assert sum(path.stat().st_size for path in model.run.path.iterdir()) <= 1_000_000
    assert (
        "--label 4, by the seed" in call("sample", "example:video", "--out", "d.gif", "--steps", 5, "--seed", 4).stderr
    )
    refused = call("sample", "example:video", "--label", 11, code=2)
    assert refused.stderr == "pencil: example:video was not trained on a label 11; its labels are 0 to 9\n"
    picture = Image.open(tmp_path / "d.gif")
    assert picture.n_frames == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d-steps.png", "d.gif"]
    centres = []
    for i in range(picture.n_frames):
        picture.seek(i)
        light = np.asarray(picture.convert("L"), dtype=float)
        centres.append((light * np.arange(len(light))[:, None]).sum() / light.sum())
    assert np.ptp(centres) > 0.05 * len(light)  # the digit moves up or down


def test_an_rnns_states_and_the_gradient_behind_them():
    """The states are numpy's, the Jacobians those of autograd, the norms those of an SVD."""
    found = traced("example:rnn")
    w_h, w_x, b = (value(found, name) for name in ("w_h", "w_x", "b"))
    x, state, states = value(found, "x")[0], np.zeros(2), []
    for word in x:
        state = np.tanh(w_h @ state + w_x @ word + b)
        states.append(state)
    close(value(found, "states")[0], states)

    def last(first):
        h = first
        for word in x[1:]:
            h = torch.tanh(torch.tensor(w_h) @ h + torch.tensor(w_x @ word + b))
        return h

    product = torch.autograd.functional.jacobian(last, torch.tensor(states[0]))
    close(value(found, "product")[0], product)
    close(value(found, "product")[0], value(found, "jacobian_3")[0] @ value(found, "jacobian_2")[0])
    close(value(found, "product_norm")[0], np.linalg.svd(product)[1].max())
    close(value(found, "weight_norm")[0], np.linalg.svd(w_h)[1].max())
    close(value(found, "bound")[0], value(found, "weight_norm")[0] ** 2)
    assert value(found, "product_norm")[0] < value(found, "bound")[0] < 1
