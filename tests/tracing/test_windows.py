"""Convolutions, pooling, interpolation and the norms of convolution nets: every cell, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

import pencil
from pencil.tracing import rules
from traced import drawn, same, unchecked, wrong

LINE, IMAGE, CUBE = drawn(2, 6, 17), drawn(2, 6, 13, 11), drawn(2, 6, 5, 7, 3)

WINDOWS = {
    "in groups": (IMAGE, lambda x: F.conv2d(x, drawn(9, 2, 3, 2), drawn(9), groups=3, padding=1, stride=2)),
    "each channel": (IMAGE, lambda x: F.conv2d(x, drawn(6, 1, 3, 3), groups=6, padding=(1, 2), dilation=2)),
    "two of each channel": (LINE, lambda x: F.conv1d(x, drawn(12, 1, 3), drawn(12), groups=6)),
    "transposed": (IMAGE, lambda x: F.conv_transpose2d(x, drawn(6, 5, 3, 4), drawn(5), (2, 3), 1, output_padding=1)),
    "transposed in groups, cut": (LINE, lambda x: F.conv_transpose1d(x, drawn(6, 5, 3), drawn(15), 2, 5, 0, 3, 2)),
    "transposed, each channel": (LINE, lambda x: F.conv_transpose1d(x, drawn(6, 1, 4), None, 2, groups=6)),
    "transposed cube": (CUBE, lambda x: F.conv_transpose3d(x, drawn(6, 2, 2, 1, 3), stride=(2, 1, 3))),
    "largest": (IMAGE, lambda x: F.max_pool2d(x, 3, 2, 1) + F.max_pool2d(-x, (3, 2), 2, 1, 1, True)[..., :7, :6]),
    "largest, spread": (IMAGE, lambda x: F.max_pool2d(x, (3, 2), 1, dilation=(2, 3))),
    "place of the largest": (IMAGE, lambda x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True, return_indices=True)[1]),
    "largest of a line and a cube": (CUBE, lambda x: F.max_pool3d(x, 2)[..., 0] + F.max_pool1d(x[0, 0], 2)[:, None, None, None, :1, 0]),
    "mean": (IMAGE, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "mean without padding": (IMAGE, lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False)),
    "mean of a cube": (CUBE, lambda x: F.avg_pool3d(x, 2, divisor_override=3) + F.avg_pool3d(x, (2, 2, 1), 2)),
    "mean of a part": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, (7, 3)) + F.adaptive_avg_pool2d(x, (1, 3))),
    "mean of equal parts": (CUBE, lambda x: F.adaptive_avg_pool3d(x, (5, 1, 1))),
    "largest of a part": (IMAGE, lambda x: F.adaptive_max_pool2d(x, (7, 3)) * F.adaptive_max_pool2d(x, (13, 1))[:, :, :7]),
    "its place": (IMAGE, lambda x: F.adaptive_max_pool2d(x, (7, 3), return_indices=True)[1]),
    "powers of a window": (IMAGE, lambda x: F.lp_pool2d(x, 2, 3)),
    "nearest": (IMAGE, lambda x: F.interpolate(x, (17, 19)) * 2 + F.interpolate(x, (17, 19), mode="nearest-exact")),
    "nearest of a line and a cube": (CUBE, lambda x: F.interpolate(x, scale_factor=2)[..., 0, 0, :5] + F.interpolate(x[:, :, 0, 0], 5)),
    "between two": (LINE, lambda x: F.interpolate(x, 31, mode="linear")),
    "between four": (IMAGE, lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
    "from corner to corner": (IMAGE, lambda x: F.interpolate(x, (17, 5), mode="bilinear", align_corners=True)),
    "between eight": (CUBE, lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")),
    "between sixteen": (IMAGE, lambda x: F.interpolate(x, (17, 7), mode="bicubic")),
    "smaller": (IMAGE, lambda x: F.interpolate(x, (5, 7), mode="bilinear", antialias=True)),
    "patches": (IMAGE, lambda x: F.unfold(x, 3, padding=1, stride=2) * 2),
    "padding": (IMAGE, lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect") + F.pad(x, (1, 2, 3, 1), mode="replicate")),
    "back to their places": (IMAGE, lambda x: F.max_unpool2d(*F.max_pool2d(x[..., 1:, 1:], 2, return_indices=True), 2) * 2),
    "group norm": (IMAGE, lambda x: F.group_norm(x, 3, drawn(6), drawn(6)) + F.group_norm(x, 1) + F.group_norm(x, 6)),
    "far from nothing": (IMAGE, lambda x: F.group_norm(1e3 + x, 2, drawn(6), drawn(6)) + F.instance_norm(1e3 + x)),
    "instance norm": (LINE, lambda x: F.instance_norm(x, weight=drawn(6), bias=drawn(6))),
    "batch norm, far from nothing": (
        IMAGE, lambda x: F.batch_norm(x + 100, drawn(6) + 100, drawn(6).abs(), drawn(6), drawn(6))
    ),
    "batch norm of the batch": (IMAGE, lambda x: F.batch_norm(x, None, None, drawn(6), drawn(6), training=True)),
    "a direction and a length": (LINE, lambda x: F.conv1d(x, torch._weight_norm(drawn(5, 6, 3), drawn(5, 1, 1), 0))),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
@unchecked()
def test_every_cell_of_a_window(name):
    given, program = WINDOWS[name]
    same(program, given, receipts=5, cells=200)


def test_batch_norm_that_counts_along():
    """What it remembers is written beside its output, which its schema does not say."""

    def program(x):
        mean, variance = torch.zeros(6), torch.ones(6)
        out = F.batch_norm(x, mean, variance, training=True, momentum=0.3)
        return out.mean((0, 2)) + mean * 2 + variance

    found = same(program, LINE, cells=200)
    assert {"native_batch_norm.running_mean", "native_batch_norm.running_var"} <= {n.op for n in found.graph.nodes}


def test_whole_numbers_and_half_precision():
    same(
        lambda x: (
            F.avg_pool2d(x.bfloat16(), 3) + F.conv2d(x.bfloat16(), drawn(6, 1, 3, 3).bfloat16(), groups=6, stride=3)
        ),
        IMAGE,
    )
    same(
        lambda x: F.interpolate(x, (17, 19), mode="bilinear") + F.conv_transpose2d(x, drawn(6, 1, 5, 9).double()),
        IMAGE.double(),
    )


@pytest.mark.parametrize("op", ["convolution", "avg_pool2d", "native_group_norm", "upsample_bilinear2d"])
@unchecked()
def test_a_wrong_rule_is_caught(op, monkeypatch):
    kind, right = rules.RULES[op]
    wrong_once = {
        "convolution": lambda call: right(call) if call.get("transposed") else right(_changed(call, dilation=[1, 1])),
        "avg_pool2d": lambda call: right(_changed(call, count_include_pad=False)),
        "native_group_norm": lambda call: right(_changed(call, eps=1e-3)),
        "upsample_bilinear2d": lambda call: right(_changed(call, align_corners=True)),
    }
    monkeypatch.setitem(rules.RULES, op, (kind, wrong_once[op]))

    def program(x):
        x = F.conv2d(x, drawn(6, 2, 3, 3), groups=3, dilation=2)
        x = F.group_norm(F.avg_pool2d(x, 3, 2, 1), 2)
        return F.interpolate(x, (7, 5), mode="bilinear")

    _, bad = wrong(pencil.trace(program, IMAGE).graph)
    assert {found for found, _, _ in bad} == {op}


def _changed(call, **arguments):
    call.args = {**call.args, **arguments}
    run = call.run
    call.run = lambda **changed: run(**{**arguments, **changed})
    return call
