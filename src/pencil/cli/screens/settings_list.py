"""Every setting of a training with its value, its choices and what it means, as TOML with comments."""

import ast
import dataclasses
import inspect
import io
import shlex
import tokenize
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ...config import UserError, build, check_output, describe_type, setting_types, to_toml
from ...console import note

if TYPE_CHECKING:
    from ...api.training_request import TrainingRequest


def write_settings(request: "TrainingRequest", out: Path | None, force: bool) -> None:
    """Every setting of a training, printed, or written into a file."""
    from ...api.loading import SETTINGS_VERSION
    from ...api.run_setup import settings_of
    from ...api.training_request import FROM_DATA
    from ...data.settings import DataConfig
    from ...files import write_aside
    from ...train.settings import OPTIONAL

    check_output("--out", out, ".toml")
    if out is not None and out.exists() and not force:
        raise UserError(f"{out} exists already; choose another --out, or --force to replace it")
    record, options = request.record, request.train_options()
    preset = request.preset or (record.default_preset if request.from_run is None else None)
    model, train = settings_of(request)
    # where sizes follow from the data, those listed are of the usual data unless other is named
    data = record.data if request.data is None and record.data_decides else request.data
    start = RunSection(record.name, preset, data, request.from_run, SETTINGS_VERSION)
    sections: dict[str, Any] = {"run": start, "options": options, "model": model, "train": train}
    if record.data_settings:
        sections["data"] = build(DataConfig, request.data_settings, "data.")
    unknown = {name: BY_DATA for name in FROM_DATA if data is None and name not in request.model}
    others = set(setting_types(DataConfig)) - set(record.data_settings)
    text = settings_list(sections, set(OPTIONAL) - set(record.train_settings) | others, unknown)
    if out is None:
        print(text)
    else:
        write_aside(out, f"{text}\n".encode())
        note(f"{out}: pencil train --config {shlex.quote(str(out))} trains with it")


BY_DATA = "unset; follows from the data: name it with --data to see it here"


@dataclasses.dataclass(frozen=True)
class RunSection:
    """What is trained, on what."""

    family: str
    preset: str | None  # sizes and training settings where none are given below
    data: str | None  # a relative path is relative to the working folder
    from_: str | None  # the run whose weights it begins with
    settings: str  # the version that these names of settings are of


def settings_list(
    sections: dict[str, Any], left_out: Collection[str] = (), unknown: Mapping[str, str] | None = None
) -> str:
    """The sections' settings, one a line; one that is unset, or unknown before the data is, is a comment."""
    lines = []
    for section, config in sections.items():
        kind = type(config)
        comments = {**option_help(kind), **field_comments(kind)}
        types = setting_types(kind)
        rows = []
        for field in dataclasses.fields(config):
            if field.name in left_out:
                continue
            value, name = getattr(config, field.name), field.name.rstrip("_")  # from is a word of Python's
            if section == "model" and field.name in (unknown or {}) and value is not None:
                rows.append((f"# {field.name} =", (unknown or {})[field.name]))
                continue
            shown = f"# {name} =" if value is None else to_toml({"x": {name: value}}).splitlines()[1]
            about = "; ".join(filter(None, (describe_setting(types[field.name]), comments.get(field.name, ""))))
            rows.append((shown, about if value is not None else f"unset; {about}"))
        if not rows:
            continue
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


def option_help(kind: type) -> dict[str, str]:
    """The help of each field that is an option of the command line."""
    hints = get_type_hints(kind, include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: help for name, one in metadata.items() if one and (help := getattr(one[0], "help", None))}


@lru_cache
def field_comments(kind: type) -> dict[str, str]:
    """The comment at the end of each field's line in the source, its own or that of a class it inherits from."""
    inherited = {
        name: text for base in kind.__bases__ if base is not object for name, text in field_comments(base).items()
    }
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
    except OSError:
        return inherited
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    fields = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AnnAssign)]
    return inherited | {
        node.target.id: comments[node.end_lineno]
        for node in fields
        if isinstance(node.target, ast.Name) and node.end_lineno in comments
    }
