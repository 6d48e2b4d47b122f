"""The proofs that the models of all families carry, each by one body."""

import pytest
import torch
import torch.nn.functional as F

from conftest import unchecked
from pencil.config import UserError
from pencil.core.masks import NOWHERE
from pencil.core.probe import Probe, declared
from pencil.families import FAMILIES, configure, create, family
from pencil.train.losses.cross_entropy import next_token
from pencil.train.optim import make_optimizers
from pencil.train.settings import TrainConfig
from small_models import KINDS, SIZES, SOME_DITS, conditions, noised, padded, pictures, tiny, tokens

EVERY_KIND = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
OBSERVED = [(name, kind) for name, kind in EVERY_KIND if name != "dit" or kind in SOME_DITS]
LENGTHS = {"gpt": (17,), "vit": (), "captioner": (11,), "reader": (11,), "seq2seq": (7, 11)}  # of their texts


@pytest.mark.parametrize("name", FAMILIES)
def test_every_preset_builds(name):
    """Of any depth the blocks are alike, so two of them are built."""
    for preset in family(name).presets:
        for values in ({"vocab": 211}, {"vocab": 211, "classes": 3}) if name == "reader" else ({},):
            assert configure(name, preset, **values).depth > 1
            assert family(name).parameters(configure(name, preset, **values, depth=2)) > 0


def plain_inputs(name, model):
    """Two rows without padding, but of a DiT's texts."""
    c = model.config
    if name == "dit":
        return *noised(c, 2), *conditions(c, 2)
    picture = [pictures(2, c.channels, *c.image_size)] if name in ("vit", "captioner") else []
    return *(tokens(2, n, vocab=c.vocab) for n in LENGTHS[name]), *picture


@pytest.mark.parametrize("name, kind", EVERY_KIND)
@pytest.mark.proof("declared names = fired names", "gpt")
@pytest.mark.proof("declared names = fired names", "vit")
@pytest.mark.proof("declared names = fired names", "captioner")
@pytest.mark.proof("declared names = fired names", "reader")
@pytest.mark.proof("declared names = fired names", "seq2seq")
@pytest.mark.proof("declared names = fired names", "dit")
def test_declared_names_are_fired_with_their_declared_shapes(name, kind):
    model, probe = tiny(name, **KINDS[name][kind]), Probe()
    model(*plain_inputs(name, model), probe=probe)
    names = declared(model)
    assert set(probe.values) | {name for name, entry in names.items() if entry.optional} == set(names)
    sizes = {"B": 2, **model.config.sizes}
    sizes |= {f"B·{letter}": 2 * sizes[letter] for letter in "wn" if letter in sizes}
    for value_name, value in probe.values.items():
        expected = [sizes[axis] for axis in names[value_name].axes.split()]
        assert list(value.shape) in (expected, [1, *expected[1:]]), value_name


def observed_inputs(name, model):
    """Inputs in double precision, and a loss of the output. Where a family pads, so that both routes have a mask to keep to;
    and with types where there are some."""
    c = model.config
    if name == "dit":
        target = pictures(3, c.out_channels, *c.sides, seed=5).double()
        picture, timestep = noised(c, 3)
        return (picture.double(), timestep.double(), *conditions(c, 3)), lambda z: F.mse_loss(z, target)
    if name == "vit":
        picture = pictures(2, c.channels, *c.image_size).double()
        return (picture,), lambda z: F.cross_entropy(z, torch.tensor([3, 10]))
    if name == "reader":
        (ids, span), count = padded(tokens(3, 11, vocab=31), (11, 4, 7), right=True), c.token_types
        labels = ids.masked_fill(span.index >= NOWHERE, -100)

        def loss(z):
            return next_token(z, labels) if z.ndim == 3 else (z * pictures(*z.shape, seed=1)).sum()

        return (ids, span, torch.arange(33).reshape(3, 11) % count if count else None), loss
    if name == "seq2seq":
        source, there = padded(tokens(2, 11, vocab=31), (11, 5), right=True)
        ids, here = padded(tokens(2, 7, vocab=31), (4, 7), right=False)
        labels = ids.masked_fill(here.index >= NOWHERE, -100)
        return (ids, source, there, here), lambda z: next_token(z, labels)
    inputs = plain_inputs(name, model)
    inputs = tuple(one.double() if one.is_floating_point() else one for one in inputs)
    return inputs, lambda z: next_token(z, inputs[0])


@pytest.mark.parametrize("name, kind", OBSERVED)
@pytest.mark.proof("observed = fast to rounding, values and gradients", "gpt")
@pytest.mark.proof("observed = fast to rounding, values and gradients", "vit")
@pytest.mark.proof("observed = fast to rounding, values and gradients", "captioner")
@pytest.mark.proof("observed = fast to rounding, values and gradients", "reader")
@pytest.mark.proof("observed = fast to rounding, values and gradients", "seq2seq")
@pytest.mark.proof("observed = fast to rounding, values and gradients", "dit")
def test_observing_changes_answer_and_gradients_by_rounding_alone(name, kind):
    """The shapes of these passes are checked by the test before."""
    with unchecked():
        model = tiny(name, **KINDS[name][kind]).double()
        inputs, loss = observed_inputs(name, model)
        fast = model(*inputs)
        loss(fast).backward()
        gradients = {n: p.grad for n, p in model.named_parameters()}
        model.zero_grad()
        observed = model(*inputs, probe=Probe())
        loss(observed).backward()
    torch.testing.assert_close(fast, observed, atol=1e-9, rtol=1e-9)
    for parameter, p in model.named_parameters():
        assert p.grad.any(), parameter
        torch.testing.assert_close(p.grad, gradients[parameter], atol=1e-9, rtol=1e-9)


GOLDEN_LOSSES = {
    "gpt": {
        ("nanogpt", "adamw"): [4.11231, 3.85415, 3.71385, 3.60931, 3.51502, 3.42574, 3.33305, 3.24121, 3.14927, 3.05575],
        ("nanogpt", "muon"): [4.11231, 3.89057, 3.73212, 3.61148, 3.50704, 3.40942, 3.31342, 3.21473, 3.11692, 3.02129],
        ("llama-nano", "muon"): [4.11708, 3.9286, 3.76104, 3.61431, 3.48333, 3.36395, 3.26024, 3.15006, 3.03503, 2.92187],
    },
    "vit": {
        ("class", "adamw"): [2.44191, 2.31467, 2.23278, 2.00874, 1.85536, 1.75937, 1.65075, 1.56746, 1.47716, 1.389],
        ("class", "muon"): [2.44191, 2.3323, 2.26312, 2.15214, 1.92131, 1.7257, 1.63916, 1.50824, 1.4266, 1.32025],
        ("rotated", "muon"): [2.39814, 2.29423, 2.17138, 1.99515, 1.77855, 1.58104, 1.44737, 1.34619, 1.25564, 1.15676],
    },
    "captioner": {
        ("nano", "muon"): [4.67292, 4.47168, 4.29744, 4.13767, 3.99477, 3.86196, 3.73382, 3.61145, 3.48615, 3.3628],
        ("seed", "adamw"): [4.63522, 4.36704, 4.18624, 4.04702, 3.91302, 3.78531, 3.66652, 3.54887, 3.4306, 3.31342],
        ("rotated", "muon"): [4.65531, 4.42659, 4.26061, 4.10625, 3.96064, 3.83868, 3.71565, 3.59135, 3.46632, 3.3428],
    },
    "reader": {
        ("bert", "adamw"): [3.44858, 3.32486, 3.24554, 3.17249, 3.08542, 3.01082, 2.93264, 2.85964, 2.78876, 2.70989],
        ("nano", "muon"): [1.60864, 1.57766, 1.53672, 1.49607, 1.45526, 1.41098, 1.36294, 1.31213, 1.26137, 1.20926],
        ("mean", "adamw"): [1.62297, 1.52014, 1.40388, 1.26784, 1.1525, 1.06214, 0.98055, 0.91044, 0.84707, 0.78843],
        ("t5", "muon"): [3.41185, 3.31806, 3.26105, 3.19, 3.10737, 3.04173, 2.99445, 2.92548, 2.87205, 2.82546],
    },
    "seq2seq": {
        ("nano", "muon"): [3.45824, 3.2901, 3.1808, 3.0969, 3.02295, 2.95458, 2.87958, 2.81516, 2.73696, 2.65729],
        ("first", "adamw"): [3.87744, 3.29853, 3.14061, 3.0001, 2.87434, 2.79372, 2.72938, 2.63802, 2.53525, 2.42782],
        ("t5", "muon"): [3.4229, 3.22214, 3.08489, 2.96749, 2.86275, 2.77637, 2.68724, 2.60304, 2.52062, 2.42322],
    },
    "dit": {
        ("label", "muon"): [0.91678, 0.8903, 0.86509, 0.84081, 0.81706, 0.7933, 0.76899, 0.74319, 0.71503, 0.68355],
        ("text", "adamw"): [0.91678, 0.89193, 0.86616, 0.83842, 0.80822, 0.77493, 0.73746, 0.69594, 0.65148, 0.60418],
        ("factored", "muon"): [1.01119, 0.99894, 0.9874, 0.97644, 0.96588, 0.95556, 0.94526, 0.93473, 0.92369, 0.91181],
    },
}  # fmt: skip


def golden_inputs(name, model):
    """Inputs, and a loss of the output; of a reader labels, or words of which every third is masked by the first word."""
    c = model.config
    if name == "dit":
        picture, timestep = noised(c, 5)
        return (picture, timestep, *conditions(c, 5)), lambda z: F.mse_loss(z, picture.flip(-1))
    if name == "vit":
        return (pictures(13, c.channels, *c.image_size),), lambda z: F.cross_entropy(z, torch.arange(13) % 11)
    if name == "reader":
        ids, hidden = tokens(7, 11, vocab=31), torch.arange(77).reshape(7, 11) % 3 == 0
        if c.classes:
            return (ids,), lambda z: F.cross_entropy(z, torch.arange(7) % 5)
        return (ids.masked_fill(hidden, 0),), lambda z: next_token(z, ids.masked_fill(~hidden, -100))
    ids = tokens(5, c.context + 1, vocab=c.vocab, seed=5 if name == "gpt" else 7)
    others = {"captioner": lambda: [pictures(5, c.channels, *c.image_size, seed=5)],
              "seq2seq": lambda: [tokens(5, 11, vocab=31, seed=8)]}  # fmt: skip
    return (ids[:, :-1], *others.get(name, list)()), lambda z: next_token(z, ids[:, 1:])


@pytest.mark.parametrize(
    "name, kind, optimizer", [(name, *which) for name, all in GOLDEN_LOSSES.items() for which in all]
)
@pytest.mark.proof("golden ten-step loss", "gpt")
@pytest.mark.proof("golden ten-step loss", "vit")
@pytest.mark.proof("golden ten-step loss", "captioner")
@pytest.mark.proof("golden ten-step loss", "reader")
@pytest.mark.proof("golden ten-step loss", "seq2seq")
@pytest.mark.proof("golden ten-step loss", "dit")
def test_ten_steps_of_training_give_the_same_losses_as_ever(name, kind, optimizer):
    torch.manual_seed(1234)
    if name == "gpt":  # by its presets
        config = configure("gpt", kind, vocab=61, width=40, depth=2, hidden=None, context=19)
    else:
        config = family(name).config(**{**SIZES[name], **KINDS[name][kind]})
    with unchecked():
        model, losses = create(name, config), []
        optimizers = make_optimizers(model, TrainConfig(optimizer=optimizer))
        inputs, loss_of = golden_inputs(name, model)
        for _ in range(10):
            loss = loss_of(model(*inputs))
            loss.backward()
            for one in optimizers.values():
                one.step()
                one.zero_grad()
            losses.append(loss.item())
    assert losses == pytest.approx(GOLDEN_LOSSES[name][kind, optimizer], abs=1e-4)


REFUSED = {
    "gpt": [
        (dict(width=100, heads=3), "heads 3 does not divide"),
        (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
        (dict(width=30, heads=2, positions="rope"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
        (dict(width=30, heads=3, rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 5"),
        (dict(width=30, heads=3, rope_fraction=0.1), "rope_fraction 0.1 rotates must be even, not 1"),
        (dict(rope_fraction=1.5), "rope_fraction must be above 0 and at most 1"),
        (dict(rope_factor=-2.0), "rope_factor must be above 0"),
        (dict(depth=0), "depth must be at least 1"),
        (dict(dropout=1.0), "dropout"),
    ],
    "vit": [
        (dict(width=100, heads=3), "heads 3 does not divide"),
        (dict(width=30, heads=2, positions="rope"), "even"),
        (dict(width=6, heads=3, positions="rope"), "at least 4, not 2"),
        (dict(width=21, heads=3, positions="sinusoidal"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
        (dict(width=42, heads=3, positions="rope", rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 7"),
        (dict(width=42, heads=3, positions="rope", rope_fraction=0.2), "at least 4, not 2"),
        (dict(width=2, heads=1, positions="sinusoidal"), "at least 4, not 2"),
        (dict(patch=(0, 4)), "patch must be at least 1"),
        (dict(image_size=(0, 4)), "image_size must be at least 1"),
        (dict(classes=0), "classes must be at least 1"),
        (dict(channels=0), "channels must be at least 1"),
        (dict(dropout=1.0), "dropout"),
        (dict(registers=-1), "registers must be at least 0"),
        (dict(class_token=False), "pool class reads a class token"),
        (dict(token_positions=False, positions="rope"), "token_positions has no effect with positions rope"),
        (dict(token_positions=False, pool="mean"), "no class token and no registers"),
        (dict(distilled=True), "needs model.registers 1 or more"),
        (dict(distilled=True, registers=1, pool="mean", class_token=True), "model.pool class"),
    ],
    "captioner": [
        (dict(width=100, heads=3), "heads 3 does not divide"),
        (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
        (dict(width=6, heads=3), "at least 4, not 2"),
        (dict(width=6, heads=3, positions="learned", image_positions="rope"), "at least 4, not 2"),
        (dict(width=9, heads=3), "even"),
        (dict(width=21, heads=3, positions="sinusoidal"), "even"),
        (dict(width=21, heads=3, positions="alibi", image_positions="sinusoidal-halves"), "even"),
        (dict(width=42, heads=3, positions="rope", rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 7"),
        (dict(width=2, heads=1, positions="none", image_positions="sinusoidal"), "at least 4, not 2"),
        (dict(image_width=0), "image_width must be at least 1"),
        (dict(context=0), "context must be at least 1"),
        (dict(patch=(5, 4)), "does not divide a picture"),
    ],
    "reader": [
        (dict(width=100, heads=3), "heads 3 does not divide"),
        (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
        (dict(width=30, heads=2, positions="rope"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
        (dict(width=30, heads=3, rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 5"),
        (dict(token_types=-1), "token_types must be at least 0, not -1"),
        (dict(classes=0), "classes must be at least 1"),
        (dict(context=0), "context must be at least 1"),
        (dict(dropout=1.0), "dropout"),
    ],
    "seq2seq": [
        (dict(width=100, heads=3), "heads 3 does not divide"),
        (dict(heads=4, kv_heads=3), "kv_heads 3 does not divide"),
        (dict(width=30, heads=2, positions="rope"), "even"),
        (dict(width=30, heads=3, rope_fraction=0.5), "rope_fraction 0.5 rotates must be even, not 5"),
        (dict(width=21, heads=3, positions="sinusoidal"), "even"),
        (dict(width=21, heads=3, positions="sinusoidal-halves"), "even"),
        (dict(rope_fraction=0.0), "rope_fraction must be above 0"),
        (dict(rope_factor=0.0), "rope_factor must be above 0"),
        (dict(source_context=0), "source_context must be at least 1"),
        (dict(vocab=31, source_vocab=37), "cannot share one table"),
        (dict(depth=0), "depth must be at least 1"),
        (dict(decoder_depth=0), "decoder_depth must be at least 1"),
        (dict(decoder_depth=1001), "decoder_depth must be at most 1,000"),
        (dict(head_dim=0), "head_dim must be at least 1"),
        (dict(buckets=8), "buckets is for --model.positions t5, and the positions are rope"),
        (dict(positions="t5", buckets=3), "buckets must be at least 4, not 3"),
        (dict(positions="t5", buckets=256), "max_distance must be over 128, not 128"),
        (dict(dropout=1.0), "dropout"),
    ],
    "dit": [
        (dict(classes=11, vocab=31), "a label or a text, not both"),
        (dict(learned_variance=True), "model.learned_variance needs --model.noise_schedule linear or cosine"),
        (dict(frames=7, patch_frames=2), "patch_frames 2 does not divide model.frames 7"),
        (dict(attention="factored"), "is for video"),
        (dict(attention="windowed", window=2), "window 2 does not divide a grid of 3×2"),
        (dict(width=32), "heads 3 does not divide"),
        (dict(patch=(4, 5)), "does not divide a picture"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name, values, words", [(name, *row) for name, rows in REFUSED.items() for row in rows])
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(name, values, words):
    with pytest.raises(UserError, match=words):
        family(name).config(**(SIZES["dit"] if name == "dit" else {}) | values)


@pytest.mark.parametrize("scheme", ["learned", "alibi", "shaw", "t5", "none"])
@pytest.mark.parametrize("name", ["gpt", "reader", "seq2seq"])
def test_an_odd_width_is_no_matter_to_schemes_that_pair_nothing(name, scheme):
    model = tiny(name, width=21, positions=scheme)
    inputs = plain_inputs(name, model)
    assert model(*inputs).shape == (*inputs[0].shape, model.config.vocab)
