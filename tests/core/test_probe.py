import torch

from pencil.core.probe import OFF, Probe


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


def test_every_public_function_of_the_core_says_its_shapes():
    import importlib
    import inspect
    import pkgutil

    import pencil.core

    silent = []
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
                said = inspect.signature(function)
                hints = [p.annotation for n, p in said.parameters.items() if n not in ("self", "cls")] + [
                    said.return_annotation
                ]
                if any(hint in (inspect.Parameter.empty, torch.Tensor) for hint in hints):
                    silent.append(f"{module.__name__}.{name}")
    assert not silent
