"""docs/reference/{cli,settings,python-api}.md, generated from the code.

    python tools/reference.py            write the pages anew
    python tools/reference.py --check    say which of them are not what the code gives, and end with 1

The text of a verb is its own `--help`; a setting's type, default and meaning are those that `pencil train --settings`
prints; a public name has its signature, with the shapes that the suite enforces, its docstring, and an example of
docs/reference/python-api.toml, which the suite runs.
"""

import argparse
import dataclasses
import importlib
import inspect
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

import pencil
from pencil.api.loading import NOT_TAKEN
from pencil.cli.main import VERBS
from pencil.cli.main import main as run_verb
from pencil.cli.screens.settings_list import describe_setting, field_comments, option_help
from pencil.config import setting_types
from pencil.data.settings import DataConfig
from pencil.families import FAMILIES
from pencil.families.family import Family
from pencil.train.settings import OPTIONAL, TrainConfig

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
GENERATED = "<!-- written by `python tools/reference.py` -->\n"


def help_of(*words: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        run_verb([*words, "--help"])
    lines = [line.rstrip() for line in out.getvalue().strip().splitlines()]
    return "\n".join(lines)


def cli_page() -> str:
    parts = [
        GENERATED + "# Commands\n",
        "What each command prints with `--help`. `pencil train FAMILY --help` and `pencil sample RUN --help` list the "
        "options of that family too, and `pencil train FAMILY --settings` every setting ([Settings](settings.md)).\n",
        "A command ends with 0 where it did what was asked; with 1 where what it compares or verifies differs (`diff`, "
        "`check`, `verify`, `import --parity`); with 2 after an error that you can fix, which is one sentence on "
        "standard error; and with 130 after Ctrl-C.\n",
    ]
    for _, verb, _, _ in VERBS:
        parts.append(f"## pencil {verb}\n\n```text\n{help_of(verb)}\n```\n")
    return "\n".join(parts)


def rows(kind: type, names: Iterable[str] | None = None) -> list[str]:
    """A table of the fields of a config: name, type, default, meaning."""
    comments = {**option_help(kind), **field_comments(kind)}
    types = setting_types(kind)
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        if names is not None and field.name not in names:
            continue
        default = "" if field.default is dataclasses.MISSING else shown(field.default)
        about = comments.get(field.name, "")
        described = plain_type(describe_setting(types[field.name]))
        lines.append(f"| `{field.name}` | {cell(described)} | {cell(default)} | {cell(about)} |")
    return lines


def plain_type(text: str) -> str:
    """A type in words, also those of options that the settings do not have."""
    for name, words in (("list[pathlib.Path]", "paths"), ("<class 'pathlib.Path'>", "a path"), ("list[str]", "words")):
        text = text.replace(name, words)
    return text


def shown(value: Any) -> str:
    if value is None:
        return "unset"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def settings_page() -> str:
    """Every setting of a training; OPTIONAL ones belong to the families that list them."""
    common = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in OPTIONAL]
    parts = [
        GENERATED + "# Settings\n",
        "On the command line a setting is `--train.NAME VALUE`, `--model.NAME VALUE` or `--data.NAME VALUE`; in a "
        "config file it stands in the section of that name (`pencil train FAMILY --settings` writes one); in Python it "
        'is a keyword, `pencil.train("gpt", "notes.txt", lr=1e-3)`. A name that does not exist, or has no effect, is '
        "an error. In Python two names are of two sections: `vocab` is the tokenizer's, and `eps` is given as "
        '`model={"eps": …}` or `train={"eps": …}`.\n',
        "The defaults below are those of the code; a preset sets others: "
        "`pencil train FAMILY --preset NAME --settings` shows them.\n",
        "## train\n",
        *rows(TrainConfig, common),
        "\nThese are settings of some families only:\n",
        "| setting | families |\n|---|---|",
        *(f"| `{name}` | {', '.join(families_with(name))} |" for name in OPTIONAL),
        "",
        *rows(TrainConfig, OPTIONAL),
        "\n## data\n",
        *rows(DataConfig),
        "",
    ]
    for name, record in FAMILIES.items():
        parts += [f"\n## model, {name}\n", f"{record.summary[:1].upper()}{record.summary[1:]}.\n", *rows(record.config)]
        presets = ", ".join(f"`{preset}`" for preset in record.presets)
        parts += [f"\nPresets: {presets}."]
        for title, options in (("train", record.train_options), ("sample", record.sample_options)):
            if dataclasses.is_dataclass(options) and dataclasses.fields(options):
                parts += [f"\nOptions of `pencil {title}`:\n", *rows(options)]
    return "\n".join(parts) + "\n"


def families_with(setting: str) -> list[str]:
    """The families that have a training setting which not all have."""
    return [f"`{family}`" for family, record in FAMILIES.items() if setting in record.train_settings]


def examples() -> dict[str, str]:
    """The example of each public name."""
    return tomllib.loads((FOLDER / "python-api.toml").read_text(encoding="utf-8"))


def signature(name: str, value: Any) -> str:
    """How a name is called, with the shapes of its tensors."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return f"pencil.{name}"
    return f"pencil.{name}{readable(text)}"


def readable(text: str) -> str:
    """A signature without the modules of its types and the addresses of its defaults."""
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    text = re.sub(r"<[\w.]*NullProbe object at 0x\w+>", "OFF", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z~])", "", text)


def forward(value: Any) -> str:
    """The shapes of a module's forward pass, which is what one calls."""
    if not inspect.isclass(value) or "forward" not in vars(value):
        return ""
    return f"forward{readable(str(inspect.signature(value.forward)))}".replace("(self, ", "(")


def names_of(kind: type, left_out: Iterable[str] = ()) -> str:
    return ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind) if field.name not in left_out)


def by_family(kind_of: Callable[[Family], type | None], left_out: Iterable[str] = ()) -> list[str]:
    """A line for each family: the names that a dataclass of its record has."""
    lines = {name: names_of(kind, left_out) for name, record in FAMILIES.items() if (kind := kind_of(record))}
    return [f"- {name}: {names}" for name, names in lines.items() if names]


def listed(name: str) -> str:
    """A line for one name of `pencil.listings`: how it is called, and what it is."""
    value = getattr(pencil.listings, name)
    parameters = inspect.signature(value).parameters.values()
    called = ", ".join(str(one.replace(annotation=one.empty)) for one in parameters)
    about = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    return f"- `{name}({called})`: {about}"


def takes(name: str) -> list[str]:
    """What a name takes by keyword besides its own arguments: settings and options, by their names."""
    sampling = [f"The settings of sampling: {names_of(pencil.Sampling)}."]
    training = f"The settings of training ([Settings](settings.md) explains them): {names_of(TrainConfig, OPTIONAL)}."
    return {
        "configure": ["The settings of each family's model:\n", *by_family(lambda record: record.config)],
        "stream": sampling,
        "complete": sampling,
        "predict": ["The options, by family:\n", *by_family(lambda record: record.sample_options, NOT_TAKEN)],
        "trace": [
            "The options of a run, by family, besides its input:\n",
            *by_family(lambda record: record.trace_options if record.trace else None, ["given"]),
        ],
        "fit": [training],
        "listings": ["Arrays in, arrays out:\n", *map(listed, pencil.listings.__all__)],
        "train": [
            f"{training}\n",
            f"Those of some families: {', '.join(f'`{one}`' for one in OPTIONAL)}.\n",
            f"Those of the data: {names_of(DataConfig)}.\n",
            "Those of the model are what `configure` takes. The options, by family:\n",
            *by_family(lambda record: record.train_options),
        ],
    }.get(name, [])


def python_page() -> str:
    shown_by = examples()
    parts = [
        GENERATED + "# Python reference\n",
        "Every public name of `pencil`, with the shapes of its tensors: B sequences in a batch, T tokens that ask, S "
        "tokens that are attended to, D the width, h heads of width d, V the vocabulary. [Python](../guides/python.md) "
        "is the guide. Torch is loaded when a name is first used. The examples run in a folder with `notes.txt` and "
        "`runs/notes-gpt`.\n",
    ]
    for name in pencil.__all__:
        if name == "__version__":
            continue
        value = getattr(pencil, name)
        if inspect.isclass(value) and dataclasses.is_dataclass(value):
            call = f"pencil.{name}(…)"
        else:
            call = signature(name, value)
        lines = [call, *filter(None, [forward(value)])]
        about = inspect.getdoc(inspect.unwrap(value)) or ""  # the package `pencil.train` wraps the function
        about = "" if about.startswith(f"{name}(") else about  # a dataclass without a docstring has its fields there
        parts.append(
            f"## {name}\n\n```text\n"
            + "\n".join(lines)
            + "\n".join([f"\n```\n\n{about}\n", *takes(name)]).rstrip("\n")
            + f"\n\n```python\n{shown_by[name].strip()}\n```\n"
        )
    return "\n".join(parts)


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "python-api.md": python_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            old.append(name)
    if old:
        print(f"{', '.join(old)}: not what the code gives; python tools/reference.py writes them anew")
    return int(bool(old))


if __name__ == "__main__":
    importlib.import_module("torch")
    sys.exit(main())
