"""What a notebook shows of a model: its parts as a tree, each learned tensor with its symbol and its shape."""

from html import escape
from typing import Any

from torch import nn

from ..core.probe import symbols


def model_html(model: nn.Module) -> str:
    """A model as a tree that unfolds: modules, their learned tensors by symbol and shape, and parameters counted."""
    return _module(model, "", type(model).__name__, symbols(model), True)


def _module(module: nn.Module, path: str, title: str, learned: dict[str, str], opened: bool) -> str:
    place = f"{path}." if path else ""
    lines = [
        f"<li>{escape(learned.get(place + name, name))} <code>{escape(place + name)}</code> "
        f"{'×'.join(map(str, p.shape))}</li>"
        for name, p in module.named_parameters(recurse=False)
    ]
    lines += [
        f"<li>{_module(child, place + name, f'{name}: {type(child).__name__}', learned, False)}</li>"
        for name, child in module.named_children()
    ]
    count = sum(p.numel() for p in module.parameters())
    head = f"<b>{escape(title)}</b> {count:,} parameters"
    if not lines:
        return head
    return f"<details{' open' if opened else ''}><summary>{head}</summary><ul>{''.join(lines)}</ul></details>"


class Shown(nn.Module):
    """Of a model: what a notebook shows, by itself or through treescope."""

    def _repr_html_(self) -> str:
        return model_html(self)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        from treescope import repr_lib

        return repr_lib.render_object_constructor(
            object_type=type(self),
            attributes=_tree(self, "", symbols(self)),
            path=path,
            subtree_renderer=subtree_renderer,
            roundtrippable=False,
        )


def _tree(module: nn.Module, path: str, learned: dict[str, str]) -> dict[str, Any]:
    """A module as plain data: learned tensors by symbol and shape, and the modules in it."""
    place = f"{path}." if path else ""
    own = {
        name: f"{learned.get(place + name, name)} {'×'.join(map(str, p.shape))}"
        for name, p in module.named_parameters(recurse=False)
    }
    inner = {f"{name}": _tree(child, place + name, learned) for name, child in module.named_children()}
    return own | {name: child for name, child in inner.items() if child}
