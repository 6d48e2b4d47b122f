"""The diffusion transformer: the proofs every family carries, its condition, and which patch attends to which."""

from dataclasses import replace

import pytest
import torch

import small_models
from pencil.core.masks import NOWHERE, Mask
from pencil.core.probe import Probe
from pencil.core.span import Span
from pencil.families import configure, create, family
from pencil.models import dit
from pencil.models.dit import DiTConfig, groupings
from small_models import LABEL, SCHEMES, SOME_DITS, TEXT, conditions, noised

SIZES = small_models.SIZES["dit"]
KINDS = small_models.KINDS["dit"]


def tiny(**values):
    return small_models.tiny("dit", **values)


def test_the_parameter_count_is_the_published_one():
    """Of xl/2, where the paper's code counts its sinusoids for 16×16 patches too; written out, and in one sum."""
    config = configure("dit", "xl/2")
    d = config.width
    block = 4 * (d * d + d) + (d * 4 * d + 4 * d) + (4 * d * d + d) + (d * 6 * d + 6 * d)
    time, labels, patches = (256 * d + d) + (d * d + d), 1001 * d, 16 * d + d
    last = (d * 2 * d + 2 * d) + (d * 32 + 32)
    assert family("dit").parameters(config) == time + labels + patches + 28 * block + last == 675_129_632 - 16 * 16 * d


@pytest.mark.parametrize("kind", SOME_DITS)
def test_a_fresh_model_predicts_exactly_zero(kind):
    torch.manual_seed(0)
    model = create("dit", DiTConfig(**{**SIZES, **KINDS[kind]}))
    output = model(*noised(model.config, 3), *conditions(model.config, 3))
    assert output.shape == (3, model.config.out_channels, *model.config.sides)
    assert not output.any()


@pytest.mark.parametrize("ada", ["zero", "plain"])
def test_at_first_a_gated_block_changes_nothing_and_a_plain_one_is_not_conditioned(ada):
    torch.manual_seed(0)
    model, probe, other = create("dit", DiTConfig(**SIZES, **LABEL, adaln=ada)), Probe(), Probe()
    picture, timestep = noised(model.config, 2)
    model(picture, timestep, torch.tensor([3, 5]), probe=probe)
    model(picture, timestep.flip(0), torch.tensor([5, 7]), probe=other)
    assert not torch.equal(probe.values["condition"], other.values["condition"])
    assert torch.equal(probe.values["blocks.2.post"], other.values["blocks.2.post"])
    assert torch.equal(probe.values["input"], probe.values["blocks.2.post"]) == (ada == "zero")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("kind", ["text", "factored text"])
def test_a_batch_of_padded_texts_equals_each_alone(kind, right):
    model = tiny(**KINDS[kind]).double()
    c, lengths = model.config, (2, 7, 5)
    picture, timestep = noised(c, 3)
    picture, timestep = picture.double(), timestep.double()
    rows, _, _ = conditions(c, 3)
    ids, index = torch.full((3, 7), 29), torch.full((3, 7), NOWHERE)
    for i, n in enumerate(lengths):
        place = slice(0, n) if right else slice(7 - n, 7)
        ids[i, place], index[i, place] = rows[i, :n], torch.arange(n)
    with torch.no_grad():
        together = model(picture, timestep, ids, Span.at(index))
        for i, n in enumerate(lengths):
            alone = model(picture[i : i + 1], timestep[i : i + 1], rows[i : i + 1, :n])
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-9, rtol=1e-9)


def test_a_row_without_its_condition_is_one_with_the_null_label():
    model, labels = tiny(**LABEL), torch.tensor([3, 5, 7])
    inputs = noised(model.config, 3)
    with torch.no_grad():
        left_out = model(*inputs, labels, drop_condition=torch.tensor([False, True, False]))
        assert torch.equal(left_out, model(*inputs, torch.tensor([3, 11, 7])))
        assert not torch.allclose(left_out[1], model(*inputs, labels)[1], atol=1e-3)


def test_a_row_without_its_condition_does_not_depend_on_its_text():
    model, probe = tiny(**TEXT), Probe("condition", "time.out")
    inputs, (ids, places, dropped) = noised(model.config, 3), conditions(model.config, 3)
    with torch.no_grad():
        output = model(*inputs, ids, places, dropped, probe=probe)
        after = model(*inputs, (ids + 1) % 31, places, dropped)
    assert [torch.equal(a, b) for a, b in zip(output, after, strict=True)] == [False, True, False]
    assert torch.equal(probe.values["condition"][1], probe.values["time.out"][1] + model.null_text)


def test_without_a_null_condition_none_can_be_dropped():
    model = tiny(**KINDS["no null"])
    with pytest.raises(ValueError, match="no null condition"):
        model(*noised(model.config, 2), torch.tensor([3, 5]), drop_condition=torch.tensor([True, False]))


@pytest.mark.parametrize("kind, given", [
    ("label", None), ("text", None), ("nothing", torch.tensor([3, 5])),
])  # fmt: skip
def test_a_condition_that_is_missing_or_too_much_is_refused(kind, given):
    model = tiny(**KINDS[kind])
    with pytest.raises(ValueError, match="with every call to a model that takes one, and with no other"):
        model(*noised(model.config, 2), given)


def changed_patches(model):
    """For each patch, which patches of the last block's output change when it does."""
    model, (picture, timestep) = model.double(), noised(model.config, 1)
    given, found = conditions(model.config, 1)[:2], []

    def after(changed):
        def change(x):
            other = x.clone()
            other[0, changed, 0] += 1
            return other

        probe = Probe("norm", edit={"input": change} if changed is not None else {})
        with torch.no_grad():
            model(picture.double(), timestep.double(), *given, probe=probe)
        return probe.values["norm"][0]

    before = after(None)
    for changed in range(len(before)):
        found.append((after(changed) != before).any(-1))
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["factored", "windowed", "windowed video"])
def test_patches_gathered_in_groups_and_scattered_are_where_they_were(kind):
    config = DiTConfig(**{**SIZES, **KINDS[kind]})
    x = torch.arange(2.0 * config.sizes["N"]).reshape(2, -1, 1)
    groups = groupings(config, x.device)
    assert len(groups) == 2
    for grouping in groups:
        assert grouping.gather(x).shape == (2 * grouping.count, grouping.size, 1)
        assert torch.equal(grouping.scatter(grouping.gather(x)), x)


@pytest.mark.parametrize("kind, depth", [("factored", 1), ("factored", 2), ("windowed", 1), ("windowed", 2)])
def test_a_patch_is_seen_by_its_own_group_alone_and_then_by_those_its_group_meets(kind, depth):
    model = tiny(**{**KINDS[kind], "depth": depth})
    reached = changed_patches(model)
    places = [tuple(p) for p in torch.cartesian_prod(*(torch.arange(n) for n in model.config.grid)).tolist()]
    for i, a in enumerate(places):
        for j, b in enumerate(places):
            if kind == "factored":
                expected = a[0] == b[0] or depth == 2
            else:
                first = {(x // 2, y // 2) for x, y in (a,)}
                near = {p for p in places if (p[0] // 2, p[1] // 2) in first}
                moved = {((x - 1) % 6 // 2, (y - 1) % 4 // 2) for x, y in near}
                expected = b in near if depth == 1 else ((b[0] - 1) % 6 // 2, (b[1] - 1) % 4 // 2) in moved
            assert bool(reached[i, j]) == expected, (a, b)


@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("grouping", ["factored", "windowed"])
def test_attention_in_groups_is_attention_to_all_under_a_mask(grouping, scheme, second, monkeypatch):
    """One block, which attends as the first does, or as the second."""
    kind = KINDS[grouping] | dict(positions=scheme, depth=1)
    model = tiny(**kind).double()
    plain = create("dit", replace(model.config, attention="full")).double().eval()
    plain.load_state_dict(model.state_dict())
    coords = torch.cartesian_prod(*(torch.arange(n) for n in model.config.grid))
    if grouping == "factored":
        group = coords[:, 1:] @ torch.tensor([2, 1]) if second else coords[:, 0]
    else:
        moved = (coords - second) % torch.tensor(model.config.grid)
        group = moved // 2 @ torch.tensor([2, 1])
    plain.mask = Mask("of one group", lambda query, key: group[query] == group[key])
    monkeypatch.setattr(dit, "groupings", lambda *given: groupings(*given)[second:] or [None])
    inputs = [t.double() for t in noised(model.config, 2)], conditions(model.config, 2)
    with torch.no_grad():
        output, expected = (one(*inputs[0], *inputs[1]) for one in (model, plain))
    torch.testing.assert_close(output, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind, name", [
    ("rope in groups", "positions.angles"), ("rope in windows", "positions.angles"),
    ("alibi in groups", "positions.bias"), ("alibi in windows", "positions.next.bias"),
    ("shaw in groups", "positions.next.distance"), ("t5 in windows", "positions.bucket"),
    ("sinusoidal in groups", "positions.embedding"), ("learned in full", "positions.embedding"),
])  # fmt: skip
def test_an_edit_of_the_positions_reaches_the_output(kind, name):
    model = tiny(**KINDS[kind])
    inputs = *noised(model.config, 2), *conditions(model.config, 2)
    with torch.no_grad():
        output, edited = model(*inputs), model(*inputs, probe=Probe(edit={name: torch.zeros_like}))
    assert not torch.allclose(output, edited, atol=1e-3)


@pytest.mark.parametrize("shape", [(2, 10, 6), (3, 6, 10), (2, 10, 6, 10)])
def test_pictures_of_another_shape_are_refused_with_both_shapes_named(shape):
    with pytest.raises(ValueError, match=f"{'×'.join(map(str, shape))} .* takes 2×6×10"):
        tiny()(torch.zeros(1, *shape), torch.zeros(1))
