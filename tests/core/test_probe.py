import re

import pytest
import torch
from torch import nn

from pencil.core.probe import LEGEND, OFF, Name, Probe, declared, symbols


def test_off_gives_every_value_straight_back():
    value = torch.randn(3)
    assert OFF("name", value) is value
    assert (OFF / "inner") is OFF
    assert not OFF.wants("scores")


def test_a_probe_keeps_what_its_patterns_match_under_nested_names():
    probe = Probe("blocks.0.*", lambda name: name.endswith("out"))
    for i in range(2):
        inner = probe / f"blocks.{i}" / "attn"
        inner("q", torch.tensor(float(i)))
        inner("out", torch.tensor(float(i)))
    assert list(probe.values) == ["blocks.0.attn.q", "blocks.0.attn.out", "blocks.1.attn.out"]
    assert (probe / "blocks.0" / "attn").wants("scores")
    assert not (probe / "blocks.1" / "attn").wants("scores", "pattern")


def test_an_edit_replaces_the_value_and_keeps_nothing_else():
    probe = Probe(edit={"*.pattern": torch.zeros_like})
    assert (probe / "attn")("pattern", torch.ones(2)).sum() == 0
    assert (probe / "attn")("scores", torch.ones(2)).sum() == 2
    assert (probe / "attn").wants("pattern")
    assert not probe.values


def small(family="gpt", **values):
    from pencil.families import configure, create

    return create(family, configure(family, None, width=12, depth=2, heads=3, **values)).eval()


TYPOS = {
    "edit": (dict(edit={"blocks.0.attn.patern": torch.zeros_like}), "no value is called blocks.0.attn.patern; did you mean blocks.0.attn.pattern?"),
    "keep": (dict(keep="blocks.0.attn.patern"), "did you mean blocks.0.attn.pattern?"),
    "no such block": (dict(keep="blocks.9.nosuch"), "no value is called blocks.9.nosuch; the names here are embed, "),
    "wildcard": (dict(keep="blocks.*.attn.patern"), "no value matches blocks.*.attn.patern; did you mean blocks.*.attn.pattern?"),
    "another block": (dict(edit={"blocks.2.*": torch.zeros_like}), "no value matches blocks.2.*"),
    "one of two": (dict(keep="logits", edit={"embd": torch.zeros_like}), "no value is called embd; did you mean embed?"),
    "other config": (dict(keep="positions.bias"), "no value is called positions.bias"),
}  # fmt: skip


@pytest.mark.parametrize("wrong, words", TYPOS.values(), ids=TYPOS)
def test_a_name_that_nothing_has_is_refused_with_the_nearest(wrong, words):
    keep, edit = wrong.get("keep"), wrong.get("edit")
    with pytest.raises(ValueError, match=re.escape(words)):
        small(vocab=37, context=11)(torch.arange(7)[None], probe=Probe(*([keep] if keep else []), edit=edit))


def test_a_value_that_only_other_inputs_have_is_refused():
    model = small("reader", vocab=37, context=11, classes=5)  # nothing is padded, so there is no mask
    with pytest.raises(ValueError, match="encoder.blocks.0.attn.mask is not computed in this forward pass"):
        model(torch.arange(7)[None], probe=Probe("encoder.blocks.0.attn.mask"))


@pytest.mark.parametrize("family", ["gpt", "vit", "captioner", "reader", "seq2seq", "dit"])
def test_every_family_refuses_a_name_and_knows_its_own(family):
    from pencil.families import configure, create

    torch.manual_seed(0)
    model = create(family, configure(family, None)).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="no value matches nosuch.*; "):
        model(*model.example(1), probe=Probe("nosuch.*"))
    probe = Probe()
    with torch.no_grad():
        model(*model.example(1), probe=probe)
        name = next(iter(probe.values))
        model(*model.example(1), probe=Probe(name, edit={name: torch.zeros_like}))


def test_names_of_an_earlier_pass_count():
    """With a cache a source is read once, so that the next passes have none of its values."""
    model = small("seq2seq", vocab=37, context=11, source_context=7)
    cache, probe = model.new_cache(1), Probe("encoder.out", "blocks.*.post")
    with torch.no_grad():
        model(torch.tensor([[3, 5]]), torch.tensor([[2, 7, 9]]), cache=cache, probe=probe)
        model(torch.tensor([[8]]), cache=cache, probe=probe)
    assert probe.values["encoder.out"].shape[1] == 3
    assert probe.values["blocks.0.post"].shape[1] == 1
    with pytest.raises(ValueError, match=re.escape("encoder.out")):
        model(torch.tensor([[4]]), cache=cache, probe=Probe("encoder.out"))


def test_a_part_used_alone_checks_too():
    from pencil.core.attention import Attention

    x = torch.randn(1, 5, 6)
    probe = Probe("pattern", "out")
    Attention(6, 2)(x, probe=probe)
    assert set(probe.values) == {"pattern", "out"}
    with pytest.raises(ValueError, match=re.escape("no value is called patern; did you mean pattern?")):
        Attention(6, 2)(x, probe=Probe(edit={"patern": torch.zeros_like}))


def test_every_public_function_of_the_core_annotates_its_shapes():
    import importlib
    import inspect
    import pkgutil

    import pencil.core

    missing = []
    for info in pkgutil.iter_modules(pencil.core.__path__):
        module = importlib.import_module(f"pencil.core.{info.name}")
        if info.name == "probe":  # names any value, whatever its shape
            continue
        for owner in [
            module,
            *(c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__),
        ]:
            for name, function in vars(owner).items():
                function = getattr(function, "__func__", getattr(function, "fget", function))
                if name.startswith("_") or not inspect.isfunction(function) or function.__name__ == "<lambda>":
                    continue
                if function.__module__ != module.__name__:
                    continue
                found = inspect.signature(function)
                hints = [p.annotation for n, p in found.parameters.items() if n not in ("self", "cls")] + [
                    found.return_annotation
                ]
                if any(hint in (inspect.Parameter.empty, torch.Tensor) for hint in hints):
                    missing.append(f"{module.__name__}.{name}")
    assert not missing


class Leaf(nn.Module):
    NAMES = {"out": ("B T D", "y", "f(x)"), "seen": ("B T S", "A", "g(x)")}
    WEIGHTS = {"weight": "W", "bias": "b"}

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


class Middle(nn.Module):
    NAMES = {"post": ("B T D", "X", "x + y")}
    INNER = {"leaf.out": ("B T F", "m", "as in the middle"), "leaf.never": ("B", "?", "?")}

    def __init__(self):
        super().__init__()
        self.leaf = Leaf()


class Outer(nn.Module):
    NAMES = {"logits": ("B V", "Z", "X W")}
    INNER = {"first.leaf.out": ("B T C", "o", "as in the whole")}
    LETTERS = {"second": {"T": "s", "S": "s"}}

    def __init__(self):
        super().__init__()
        self.first, self.second, self.secondary = Middle(), Middle(), Leaf()


def test_an_outer_module_describes_the_values_of_an_inner_one_more_exactly():
    names = declared(Outer())
    assert names["first.leaf.out"] == Name("B T C", "o", "as in the whole")
    assert names["second.leaf.out"] == Name("B s F", "m", "as in the middle")
    assert names["secondary.out"] == Name("B T D", "y", "f(x)")
    assert declared(Middle())["leaf.out"] == Name("B T F", "m", "as in the middle")


def test_letters_are_renamed_in_all_of_a_submodule_and_nowhere_else():
    names = declared(Outer())
    assert names["second.leaf.seen"].axes == "B s s"
    assert names["second.post"].axes == "B s D"
    assert names["first.leaf.seen"].axes == names["secondary.seen"].axes == "B T S"


def test_a_name_of_a_submodule_that_does_not_fire_it_is_not_declared():
    assert set(declared(Outer())) == {
        "logits", "first.post", "first.leaf.out", "first.leaf.seen", "second.post", "second.leaf.out",
        "second.leaf.seen", "secondary.out", "secondary.seen",
    }  # fmt: skip
    assert symbols(Outer()) == {"first.leaf.weight": "W", "second.leaf.weight": "W", "secondary.weight": "W"}


def test_every_letter_of_every_family_is_in_the_legend():
    from pencil.families import FAMILIES, configure, create

    extra = {"classes": 7}
    for family in FAMILIES:
        for positions in ("learned", "rope", "alibi", "shaw", "t5"):
            config = configure(family, None, depth=2, positions=positions, **(extra if family == "reader" else {}))
            with torch.device("meta"):
                model = create(family, config)
            for name, entry in declared(model).items():
                assert set(entry.axes.split()) <= {*LEGEND, "d/2", "1"}, name
