"""Settings as frozen dataclasses: built from tables, overridden by dotted words, written as TOML.

A setting has one name, and a version. A config lists the names and values it had before (`RENAMED`, `RENAMED_VALUES`):
a run records which version its settings are of, and an older run is read under its own names (`api/loading.py`).
Tensors that were renamed are mapped by their prefix.
"""

import dataclasses
import difflib
import importlib
import json
import math
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


EXAMPLE_RUNS = Path(__file__).parent / "examples" / "runs"  # the trained models that come with Pencil


class UserError(ValueError):
    """A mistake the user can fix: one sentence that names the file, the value and the fix.

    A trained model that comes with Pencil has in it the name by which it was opened, as in example:english.
    """

    def __str__(self) -> str:
        return super().__str__().replace(f"{EXAMPLE_RUNS}{os.sep}", "example:")


def refuse(*cases: tuple[object, str]) -> None:
    """Refuse the first of these cases that is so; each is a condition and its sentence."""
    for applies, sentence in cases:
        if applies:
            raise UserError(sentence)


LISTED_CHOICES = 16  # choices that an error names one by one
EPOCHS = ("epoch", "epochs", "n_epochs", "num_epochs", "num_train_epochs", "max_epochs")
# settings as other libraries call them, by their name here
OTHER_NAMES = {
    other: name
    for name, others in {
        # of a model
        "width": "dim d_model model_dim embed_dim embedding_dim emb_dim n_embd hidden_size hidden_dim d_hidden",
        "depth": "layers n_layer n_layers num_layers num_hidden_layers n_blocks num_blocks",
        "heads": "n_head n_heads nhead num_heads num_attention_heads",
        "kv_heads": "n_kv_heads num_kv_heads num_key_value_heads",
        "hidden": "d_ff ff_dim ffn_dim mlp_dim intermediate_size dim_feedforward",
        "context": "block_size seq_len seq_length sequence_length max_length max_seq_len max_seq_length context_length "
        "n_ctx n_positions max_position_embeddings",
        "vocab": "vocab_size n_vocab num_tokens num_embeddings",
        "classes": "num_classes n_classes num_labels",
        "image_size": "img_size input_size resolution",
        "channels": "in_channels in_chans num_channels",
        "patch": "patch_size",
        "dropout": "dropout_rate dropout_prob drop_rate resid_pdrop hidden_dropout_prob",
        "attention_dropout": "attn_dropout attn_pdrop attn_drop_rate attention_probs_dropout_prob",
        "activation": "act act_layer hidden_act activation_function",
        "norm": "norm_layer norm_type",
        "window": "sliding_window window_size",
        "rope_theta": "rope_base",
        "tie_embeddings": "tie_word_embeddings tie_weights weight_tying",
        # of training
        "batch": "bs batch_size train_batch_size per_device_train_batch_size micro_batch_size",
        "steps": "max_steps num_steps total_steps train_steps num_train_steps max_train_steps iters max_iters "
        "num_iters iterations num_iterations",
        "lr": "learning_rate base_lr max_lr peak_lr adam_lr",
        "weight_decay": "wd decay l2 adam_weight_decay",
        "warmup": "warmup_steps warmup_iters num_warmup_steps lr_warmup_steps",
        "schedule": "lr_schedule lr_scheduler lr_scheduler_type scheduler",
        "optimizer": "optim opt",
        "beta1": "beta_1 adam_beta1",
        "beta2": "beta_2 adam_beta2",
        "eps": "epsilon adam_eps adam_epsilon norm_eps layer_norm_eps layer_norm_epsilon rms_norm_eps",
        "clip": "grad_clip clip_grad clip_grad_norm max_grad_norm gradient_clip gradient_clipping gradient_clip_val",
        "accumulate": "grad_accum gradient_accumulation gradient_accumulation_steps accumulate_grad_batches",
        "ema": "ema_decay",
        "seed": "random_seed random_state manual_seed",
        "eval_every": "eval_steps eval_interval val_interval val_check_interval",
        "eval_batches": "eval_iters limit_val_batches",
        "save_every": "save_steps save_interval checkpoint_every",
        "keep": "save_total_limit",
        "patience": "early_stopping early_stopping_patience",
        "recompute": "gradient_checkpointing activation_checkpointing grad_checkpointing",
        "dtype": "precision mixed_precision amp bf16",
        "compile": "torch_compile",
        "logger": "report_to log_with",
        "label_smoothing": "label_smoothing_factor",
    }.items()
    for other in others.split()
}


def nearest(word: str, choices: Iterable[str], see: str = "", alike_first: bool = False) -> str:
    """ "did you mean x?" where a choice is close; else the choices, or, of many, where to `see` them."""
    choices = sorted(set(choices))
    if close := closest(word, choices):
        return f"did you mean {close}?"
    return listed(choices, see, near=word if alike_first else "")


def listed(choices: Iterable[str], see: str = "", near: str = "") -> str:
    """The choices; of many, where to `see` them, or those most like a word."""
    choices = sorted(set(choices))
    if len(choices) <= LISTED_CHOICES:
        return f"known: {', '.join(choices)}"
    if see:
        return f"{see} lists them"
    if near:
        choices.sort(key=lambda choice: -difflib.SequenceMatcher(None, near.lower(), choice.lower()).ratio())
    return f"known: {', '.join(choices[:LISTED_CHOICES])}, … ({len(choices)} in all)"


def nearest_setting(word: str, choices: Iterable[str], see: str = "", section: str = "") -> str:
    """As `nearest`, of settings: what another library calls by this word comes first, then a typing error.

    `section` is what a setting of training is written with, such as "train.".
    """
    choices = set(choices)
    if word in EPOCHS and "steps" in choices:
        return f"training is counted in steps, not in epochs: give {section}steps, or {section}minutes for a time"
    other = OTHER_NAMES.get(word)
    return f"did you mean {other}?" if other in choices else nearest(word, choices, see, alike_first=True)


def with_article(word: str) -> str:
    """“an olmo”, “a bert”, “an mt5”: initials are read letter by letter, and their names may begin with a vowel."""
    first = word.lower()[:1]
    initials = not set("aeiou") & set(re.split(r"[^a-z]", word.lower())[0])
    return f"{'an' if first in set('aeio') or (initials and first in set('fhlmnrsx')) else 'a'} {word}"


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that a typing error could have made this word of: one edit, of six letters or more two.

    An edit inserts, removes or changes a letter, or swaps two neighbours. A word of three letters or more that only
    one choice begins with counts as close too.
    """
    word, choices = word.strip(), list(choices)
    edits_of = (
        (distance(word.lower(), choice.lower(), limit), limit, choice)
        for choice in choices
        for limit in [_allowed_edits(word, choice)]
    )
    if near := min(((edits, choice) for edits, limit, choice in edits_of if edits <= limit), default=None):
        return near[1]
    begun = [choice for choice in choices if choice.lower().startswith(word.lower())]
    return begun[0] if len(word) >= 3 and len(begun) == 1 else None


def _allowed_edits(word: str, other: str) -> int:
    letters = max(len(word), len(other))
    return 0 if letters < 2 else 1 if letters < 6 else 2


def distance(a: str, b: str, limit: int) -> int:
    """The edits between two words (optimal string alignment); `limit` + 1 where there are more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row, above = row, [i], before
        for j, y in enumerate(b, 1):
            edits = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def install(extra: str) -> str:
    """The command that installs what an extra needs."""
    return f"pip install '.[{extra}]' in the checkout of Pencil"


def package(name: str, need: str, extra: str) -> Any:
    """A module of a package that comes with an extra; where that is not installed, refuse with the line that installs
    it. `need` says what needs the package."""
    try:
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{need}; {install(extra)}") from None


def first_line(error: Exception) -> str:
    """What a library says of a fault, without what follows in other lines; its type where it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Refuse what a library fails at, which raises many kinds; `what` says what could not be done."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {first_line(error)}") from None


def check_output(option: str, path: Path | None, *endings: str) -> None:
    """Refuse, before any work is done, an output file that is a folder, has no folder, or has the wrong ending."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder; {option} is the file to write")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} in")
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} writes a {endings[0]} file, not {path}")


def expand_path(path: str) -> Path:
    """The path with a ~ at its beginning written out."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} cannot be expanded: {error}") from None


def build(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """The dataclass from a table of plain values, each checked against its field's type."""
    return kind(**fitted(kind, values, where))


def fitted(kind: type, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The values as the dataclass's fields want them; unknown names and wrong types are refused."""
    hints = setting_types(kind)
    for name in values:
        if name not in hints:
            see = "pencil train FAMILY --settings"
            raise UserError(f"{where}{name} is not a setting; {nearest_setting(name, hints, see, where)}")
    # A run that was resumed since may still have true or false for a setting that is one of several words now.
    former = getattr(kind, "FORMER_VALUES", {})
    values = {name: former.get((name, _fit(value, bool)), value) for name, value in values.items()}
    return {name: coerce(value, hints[name], where + name) for name, value in values.items()}


def setting_types(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def upgraded(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings written by an older version under the names and values of this one."""
    renamed, values_renamed = getattr(kind, "RENAMED", {}), getattr(kind, "RENAMED_VALUES", {})
    table = {renamed.get(name, name): value for name, value in values.items()}
    table = {n: values_renamed.get((n, v), v) if isinstance(v, str) else v for n, v in table.items()}
    upgrade = getattr(kind, "upgrade", None)
    return table if upgrade is None else upgrade(table)


def coerce(value: Any, kind: Any, name: str) -> Any:
    """The value as the type says, from TOML's types or from the command line's words; refused when it does not fit."""
    options = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
    if value is None or (isinstance(value, str) and value.lower() == "none" and type(None) in options):
        if type(None) in options:
            return None
        raise UserError(f"{name} cannot be none")
    for option in options:
        if option is not type(None) and (fit := _fit(value, option)) is not None:
            return fit
    wanted = " or ".join(describe_type(option) for option in options if option is not type(None))
    raise UserError(f"{name} must be {wanted}, not {value!r}")


def describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        if get_args(kind)[-1] is Ellipsis:
            return "numbers like 0.5,0.4,0.3"
        return "whole numbers like " + "x".join(("16", "24", "32")[: len(get_args(kind))]) + ", or one for all"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}.get(kind, str(kind))


def _fit(value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if get_origin(kind) is tuple:
        return _fit_each(value, get_args(kind))
    if kind is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        return value if isinstance(value, bool) else words.get(value.lower()) if isinstance(value, str) else None
    if isinstance(value, bool):
        return None
    if kind is str:
        return value if isinstance(value, str) else None
    try:
        number = float(value)
        if kind is float:
            return number if math.isfinite(number) else None
        return (
            int(value)
            if isinstance(value, (int, str)) and str(value).strip("+-").isdigit()
            else int(number)
            if number.is_integer()
            else None
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _fit_each(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Several values as one: [16, 24], "16x24", "16,24", or 16 for all of them."""
    parts = (
        value
        if isinstance(value, (list, tuple))
        else value.lower().replace("×", "x").replace(",", "x").split("x")
        if isinstance(value, str)
        else [value]
    )
    kinds = kinds[:1] * len(parts) if kinds[-1] is Ellipsis else kinds
    parts = list(parts) * len(kinds) if len(parts) == 1 else parts
    if len(parts) != len(kinds):
        return None
    fits = tuple(_fit(part, kind) for part, kind in zip(parts, kinds, strict=True))
    return None if None in fits else fits


def overrides(words: list[str], sections: Iterable[str]) -> dict[str, dict[str, str]]:
    """`--model.depth 6 --train.lr=3e-4` as {"model": {"depth": "6"}, "train": {"lr": "3e-4"}}."""
    values: dict[str, dict[str, str]] = {section: {} for section in sections}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        section, dot, field = name.removeprefix("--").partition(".")
        if not word.startswith("--") or not dot:
            raise UserError(f"unknown option {word}; settings look like --model.depth 6 or --train.lr 3e-4")
        if section not in values:
            only = " and ".join(f"--{section}" for section in values)
            raise UserError(f"unknown option {name}: only {only} settings can be changed here")
        if not equals:
            if not rest:
                raise UserError(f"{name} needs a value")
            value = rest.pop(0)
        values[section][field.replace("-", "_")] = value
    return values


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values, or dataclasses, as TOML; a value that is None is left out."""
    lines = []
    for name, table in tables.items():
        table = dataclasses.asdict(table) if dataclasses.is_dataclass(table) else table  # pyright: ignore[reportArgumentType]
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no bare delete
