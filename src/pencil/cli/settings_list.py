"""Every setting of a training with its value, its choices and what it means, as TOML with comments."""

import ast
import dataclasses
import inspect
import io
import tokenize
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from ..config import describe_type, setting_types, to_toml


def settings_list(sections: dict[str, Any], left_out: Collection[str] = ()) -> str:
    """The sections' settings, one a line; one that is unset is a comment."""
    lines = []
    for section, config in sections.items():
        kind, comments = type(config), field_comments(type(config))
        types = setting_types(kind)
        rows = []
        for field in dataclasses.fields(config):
            if field.name in left_out:
                continue
            value = getattr(config, field.name)
            shown = f"# {field.name} =" if value is None else _line(field.name, value)
            about = "; ".join(filter(None, (describe_setting(types[field.name]), comments.get(field.name, ""))))
            rows.append((shown, about if value is not None else f"unset; {about}"))
        wide = min(44, max(len(shown) for shown, _ in rows))
        lines += [f"[{section}]", *(f"{shown:{wide}}  # {about}" for shown, about in rows), ""]
    return "\n".join(lines).rstrip()


def describe_setting(kind: Any) -> str:
    """What a setting may be: its choices, or its type."""
    options = [option for option in getattr(kind, "__args__", (kind,)) if option is not type(None)]
    if getattr(kind, "__origin__", None) is not None and str(kind).startswith(("typing.Literal", "tuple")):
        options = [kind]
    text = " or ".join(describe_type(option) for option in options).removeprefix("one of ")
    return f"{text} or none" if type(None) in getattr(kind, "__args__", ()) else text


def _line(name: str, value: Any) -> str:
    return to_toml({"x": {name: value}}).splitlines()[1]


@lru_cache
def field_comments(kind: type) -> dict[str, str]:
    """The comment at the end of each field's line in the source."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
    except OSError:
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    fields = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AnnAssign)]
    return {
        node.target.id: comments[node.end_lineno]
        for node in fields
        if isinstance(node.target, ast.Name) and node.end_lineno in comments
    }
