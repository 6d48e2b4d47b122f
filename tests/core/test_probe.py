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
            config = configure(family, None, positions=positions, **(extra if family == "reader" else {}))
            with torch.device("meta"):
                model = create(family, config)
            for name, entry in declared(model).items():
                assert set(entry.axes.split()) <= {*LEGEND, "d/2", "1"}, name
