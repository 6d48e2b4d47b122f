"""What a map between another library's checkpoints and ours is made of: rules for tensors, and what reads and writes by
them.

Every rule is read in both directions, so import and export cannot differ. Every tensor of a file is read by exactly one
rule, or is named as unused and checked. Every field of a config has a use, or the config is refused; and what ours has
and theirs cannot say is refused, too.

A map is data, read in both directions. An `Architecture` has rules (their tensors ↔ ours: renamed, transposed, joined,
reshaped), a use for every field of their config (read, without effect, without effect only at these values, or
refused), our settings from theirs and theirs from ours. Import checks names and shapes of all tensors before the first
is read, then converts one rule at a time; export runs the same rules backwards. A family's record lists its
architectures, so the verbs, `--list`, the tables of docs/guides/import-export.md, the walk over the libraries' config
classes and the random mutations of configs find a new one by themselves.
`api/interchange/importing.py` and `api/interchange/exporting.py` make folders of it: under another name, renamed when
they are whole. A model without biases is exported with zeros for them: that is what our own presets need to be a GPT-2
or a GPT-NeoX.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config import UserError, build, with_article
from ..models.config import BlockConfig


class Only(NamedTuple):
    """A field that changes nothing at these values, and what we do not have at every other."""

    values: tuple[Any, ...]


def only(*values: object) -> Only:
    return Only(values)


MAPPED = "mapped"  # read into our config
NEUTRAL = "neutral"  # changes no output: names, training, generation, what is returned
Use = str | Only


class Fields(dict[str, Any]):
    """The fields of another library's config; one that is needed and missing is refused by name."""

    def __init__(self, theirs: Mapping[str, Any], what: str):
        super().__init__(theirs)
        self.what = what

    def __missing__(self, name: str) -> Any:
        raise UserError(f"the config of this {self.what} has no {name}")

    def size(self, name: str, default: int | None = None) -> int:
        """A field that is a whole number above zero."""
        value = self[name] if default is None else self.get(name, default)
        if type(value) is not int or value < 1:
            raise UserError(f"this {self.what}'s {name} must be a whole number above 0, not {value!r}")
        return value

    def sizes(self, **names: str) -> dict[str, int]:
        """Our settings that are such fields, each by the name it has there."""
        return {ours: self.size(theirs) for ours, theirs in names.items()}

    def one_of(self, name: str, choices: Mapping[str, Any], default: str | None = None) -> Any:
        """Our word for a field that is one of several."""
        value = self[name] if default is None else self.get(name) or default
        if value not in choices:
            raise UserError(
                f"this {self.what}'s {name} is {value!r}, which ours does not have: only {_either(choices)}"
            )
        return choices[value]

    def given(self, name: str, default: Any) -> Any:
        """A field, or the library's default where a file leaves it out or has null."""
        return default if self.get(name) is None else self[name]


# fields whose null is a value of its own (all heads, no window); elsewhere the libraries refuse null
NULLABLE = ("num_key_value_heads", "sliding_window", "pad_token_id", "out_channels")


def with_defaults(theirs: Mapping[str, Any], defaults: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields of a config, and the library's defaults for those that it leaves out."""
    for name, default in defaults.items():
        if default is not None and name in theirs and theirs[name] is None and name not in NULLABLE:
            raise UserError(
                f"this {what}'s {name} must have a value, not null: leave it out for the library's default, {default!r}"
            )
    return {**defaults, **theirs}


def their_word(choices: Mapping[str, object], ours: object) -> str:
    """What `one_of` reads, backwards: of several words for one thing, the first."""
    return next(word for word, meaning in choices.items() if meaning == ours)


def check_fields(theirs: Mapping[str, Any], uses: Mapping[str, Use], what: str) -> None:
    """Refuse a config with a field that has no use here, or one set to what ours does not have."""
    if theirs.get("quantization_config"):
        raise UserError(f"this {what} is quantized (quantization_config), and only whole weights can be converted")
    for name, value in theirs.items():
        use = uses.get(name)
        if use is None and value is not None:
            raise UserError(f"this {what}'s config has {name} = {value!r}, which Pencil does not know")
        if isinstance(use, Only) and value is not None and value not in use.values:
            allowed = f": only {_either(use.values)}" if use.values else ""
            raise UserError(f"this {what}'s {name} is {value!r}, which ours does not have{allowed}")


class Unfit(UserError):
    """A setting of ours that another architecture does not have."""

    def __init__(self, name: str, value: object, what: str, values: tuple[object, ...]):
        super().__init__(f"model.{name} is {value!r}, which {with_article(what)} does not have: only {_either(values)}")
        self.setting, self.what, self.only = f"model.{name} is {value!r}", what, _either(values)


def must_have(config: BlockConfig, what: str, **wanted: object) -> None:
    """Refuse a config of ours that another architecture cannot express, by the setting's name."""
    for name, values in wanted.items():
        values = values if isinstance(values, tuple) else (values,)
        if (value := getattr(config, name)) not in values:
            raise Unfit(name, value, what, values)


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(repr, values))


# that every config of transformers may have and that change none of its outputs, today's and older ones
_NEUTRAL = (
    # names and versions
    "_name_or_path", "name_or_path", "architectures", "model_type", "transformers_version", "auto_map", "dtype",
    "torch_dtype", "tokenizer_class", "task_specific_params", "finetuning_task", "problem_type", "id2label", "label2id",
    "num_labels", "prefix", "_commit_hash", "_attn_implementation_autoset", "attn_implementation",
    # what a call returns
    "return_dict", "output_attentions", "output_hidden_states", "use_cache", "torchscript",
    "chunk_size_feed_forward", "gradient_checkpointing", "use_bfloat16", "tf_legacy_loss", "_num_labels",
    # training
    "initializer_range", "pretraining_tp",
    # special tokens: they belong to the tokenizer
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    # generation, in configs of before its own file
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id",
)  # fmt: skip

COMMON: dict[str, Use] = {
    **dict.fromkeys(_NEUTRAL, NEUTRAL),
    "pruned_heads": only({}, []),
    "is_decoder": only(False),
    "is_encoder_decoder": only(False),
    "add_cross_attention": only(False),
    "cross_attention_hidden_size": only(),
    "tie_encoder_decoder": only(False),
    "quantization_config": only(),
}


def count_labels(theirs: Fields) -> int:
    """The number of labels: of names in `id2label`, or `num_labels`; two where a config has neither."""
    names = theirs.get("id2label")
    if names is None:
        return theirs.size("num_labels", 2)
    if not isinstance(names, dict) or not names:
        raise UserError(f"this {theirs.what}'s id2label must be a table of names, not {str(names)[:60]}")
    if theirs.get("num_labels") not in (None, len(names)):
        raise UserError(
            f"this {theirs.what}'s id2label has {len(names)} names, and its num_labels is {theirs['num_labels']!r}"
        )
    return len(names)


def fields(mapped: str, neutral: str = "", **others: Use) -> dict[str, Use]:
    """The table of an architecture: names read into our config, names without effect, and the rest one by one."""
    return COMMON | dict.fromkeys(mapped.split(), MAPPED) | dict.fromkeys(neutral.split(), NEUTRAL) | others


Tensors = Sequence[Tensor]
SHORT = 64  # tokens of a first comparison


class Rule(NamedTuple):
    """Some tensors of theirs that are some of ours: how each side follows from the other."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Callable[[Tensors], Tensors]  # theirs to ours
    write: Callable[[Tensors], Tensors]  # ours to theirs


def same(theirs: str, ours: str) -> Rule:
    """One tensor under another name."""
    return Rule((theirs,), (ours,), tuple, tuple)


def transposed(theirs: str, ours: str) -> Rule:
    """A matrix that is stored input-first there."""
    return Rule((theirs,), (ours,), lambda t: [t[0].mT], lambda t: [t[0].mT])


def joined(theirs: Sequence[str], ours: str, sizes: Sequence[int]) -> Rule:
    """Several tensors there, of these many rows, that are one here."""
    return Rule(tuple(theirs), (ours,), lambda t: [torch.cat(tuple(t))], lambda t: t[0].split(list(sizes)))


def reshaped(theirs: str, ours: str, there: Sequence[int], here: Sequence[int]) -> Rule:
    """The same values in the same order, in another shape."""
    return Rule((theirs,), (ours,), lambda t: [_shaped(t[0], here)], lambda t: [_shaped(t[0], there)])


def _shaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return tensor.reshape(tuple(shape))


def zeros(theirs: str, shape: Sequence[int]) -> Rule:
    """A tensor there that ours has not, and that changes nothing where it is zero."""

    def read(tensors: Tensors) -> Tensors:
        if not tensors[0].is_meta and tensors[0].any():
            raise UserError(f"{theirs} is not zero, and ours has none")
        return []

    return Rule((theirs,), (), read, lambda _: [torch.zeros(tuple(shape))])


def parts(rule: Callable[[str, str], Rule], theirs: str, ours: str, kinds: Sequence[str] = ("weight", "bias")):
    """The rule for the weight and the bias of a layer."""
    return [rule(f"{theirs}.{kind}", f"{ours}.{kind}") for kind in kinds]


def layers(theirs: str, ours: str, table: Mapping[str, str]) -> list[Rule]:
    """The rules for the weights and the biases of several layers, by their names within a module."""
    return [rule for there, here in table.items() for rule in parts(same, f"{theirs}.{there}", f"{ours}.{here}")]


def projections(
    theirs: Sequence[str], ours: str, sizes: Sequence[int], kinds: Sequence[str] = ("weight", "bias")
) -> list[Rule]:
    """The rules for query, key and value, layers of their own there and one here."""
    return [joined([f"{name}.{kind}" for name in theirs], f"{ours}.{kind}", sizes) for kind in kinds]


def with_bias(
    theirs: str, ours: str, biased: bool, rows: int | None, matrix: Callable[[str, str], Rule] = same
) -> list[Rule]:
    """The weight and the bias of a layer; where ours has none, theirs is zeros in `rows` rows, or absent without."""
    if biased:
        return [matrix(f"{theirs}.weight", f"{ours}.weight"), same(f"{theirs}.bias", f"{ours}.bias")]
    return [matrix(f"{theirs}.weight", f"{ours}.weight"), *([] if rows is None else [zeros(f"{theirs}.bias", (rows,))])]


@dataclass(frozen=True)
class Architecture:
    """One architecture of another library, mapped to a model of ours and back."""

    name: str  # as people call it
    library: str  # where it is defined: transformers, timm, diffusers, …
    types: tuple[str, ...]  # how a config names it: model_type, architecture or _class_name
    model: type[nn.Module]  # ours
    config: type  # ours
    fields: Mapping[str, Use]
    settings: Callable[[Fields], dict[str, Any]]  # our settings from their fields
    # their fields from our config, and what they cannot express is refused; None for one that is only imported
    describe: Callable[[Any], dict[str, Any]] | None
    rules: Callable[[Any], Iterable[Rule]]  # for a config of ours
    tied: Callable[[Any], Mapping[str, str]] = lambda config: {}  # tensors that are another one again
    # tensors a file may have and ours does not need, by a pattern of their names: what is wrong with one, or nothing
    unused: Callable[[Any], Mapping[str, Callable[[Tensor, Any], str | None]]] = lambda config: {}
    # tensors a file may lack: the name of the one that they are then a copy of, or None for zeros
    absent: Callable[[Any], Mapping[str, str | None]] = lambda config: {}
    renamed: Mapping[str, str] = field(default_factory=dict)  # patterns of names in older files or in memory
    written: Callable[[Any], Mapping[str, str]] = lambda config: {}  # patterns of the rules' names, and what files have
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of fields, in older files
    # of files without a config: tensors that tell the architecture, and fields that follow from the shapes
    marks: tuple[str, ...] = ()
    sizes: Callable[[Mapping[str, tuple[int, ...]]], dict[str, Any]] = lambda shapes: {}
    # fields that follow from the values of tensors, which it reads by name; None for one that is not there
    values: Callable[[Callable[[str], Tensor | None]], dict[str, Any]] = lambda read: {}
    untie: str = ""  # the field that, when false, gives the head a matrix of its own and changes nothing else
    remarks: Callable[[Any], tuple[str, ...]] = lambda config: ()  # what a file leaves open, shown at import
    classes: tuple[str, ...] = ()  # that a config may name in `architectures`, the one with a head first; () for any
    # their fields of dropout: our setting of each, and the library's value where a config has none
    dropout: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of fields that a config may leave out, in the library
    # to compare the original with ours: random inputs of ours (of a length, where they are texts), its answer to them,
    # and modules of it whose outputs are values of ours, by the names of our values
    inputs: Callable[[Any, torch.Generator, int], tuple[Tensor, ...]] = lambda config, generator, length: ()
    ask: Callable[[nn.Module, tuple[Tensor, ...]], Tensor] = lambda original, given: original(*given)
    outputs: Callable[[Any], Mapping[str, str]] = lambda config: {}
    # modules of it that round more than the rest does, by the ends of their names, and hooks that compute their outputs
    # exactly; and in words what they round
    exact: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    rounds: str = ""

    def configure(self, theirs: Mapping[str, Any], source: "Source | None" = None) -> Any:
        """Our config from theirs; a field that nobody knows, or whose value ours cannot represent, is refused.

        What the config leaves out may follow from the tensors of a source.
        """
        theirs = self._plain(theirs)
        if source is not None:
            shapes, places = source.shapes(), _placed(self, source)
            from_values = self.values(lambda name: source.read(places[name]) if name in places else None)
            theirs = self.sizes({name: shapes[place] for name, place in places.items()}) | from_values | theirs
        theirs = with_defaults(theirs, self.defaults, self.name)
        check_fields(theirs, self.fields, self.name)
        self._check_classes(theirs.get("architectures") or ())
        settings = self.settings(Fields(theirs, self.name))
        try:
            return build(self.config, settings, "model.")
        except UserError as error:
            sentence = re.sub(
                r"(?:--)?model\.(\w+)( \d+(?:\.\d+)?(?![\d×]|\.\d))?",
                lambda m: self._in_theirs(m, theirs, settings),
                str(error),
            )
            raise UserError(f"this {self.name}'s {CONFIG_FILES.get(self.library, 'config.json')}: {sentence}") from None

    def dropout_fields(self, config: BlockConfig) -> dict[str, float]:
        """Their fields of dropout at our settings, so that a library's default does not take their place."""
        attention = config.dropout if config.attention_dropout is None else config.attention_dropout
        own = {"dropout": config.dropout, "attention_dropout": attention}
        return {theirs: own[ours] for theirs, (ours, _) in self.dropout.items()}

    def about_dropout(self, theirs: Mapping[str, Any]) -> tuple[str, ...]:
        """A sentence about dropout that the original has: it changes no output, and ours is 0 until it is set."""
        rates = {
            name: default if theirs.get(name) is None else theirs[name] for name, (_, default) in self.dropout.items()
        }
        used = ", ".join(f"{name} {rate}" for name, rate in rates.items() if rate)
        note = f"its dropout ({used}) is not taken over: training from it has none unless --model.dropout sets it"
        return (note,) if used else ()

    def _in_theirs(self, found: re.Match[str], theirs: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
        """A setting of ours, and its value where it is given, as the field that it comes from: the one whose change
        changes it, and the fewest others."""
        changes: dict[tuple[str, ...], int] = {}
        for place, value in _places(theirs):
            for factor in (2, 3, 0.5):
                try:
                    made = self.settings(Fields(_changed(theirs, place, _times(value, factor)), self.name))
                except (UserError, TypeError):
                    continue
                if made.get(found[1]) != settings.get(found[1]):
                    changes[place] = sum(made[key] != settings.get(key) for key in made)
                    break
        if not changes:
            return found[0]
        place = min(changes, key=lambda one: changes[one])
        return f"{place[-1]} {dict(_places(theirs))[place]}" if found[2] else place[-1]

    def _check_classes(self, named: str | Sequence[str]) -> None:
        for name in [named] if isinstance(named, str) else named:
            if self.classes and name not in self.classes:
                raise UserError(
                    f"this {self.name}'s architectures has {name!r}, which ours does not have: only "
                    f"{' or '.join(self.classes)}"
                )

    def _plain(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The fields under their usual names."""
        plain = {}
        for name, value in theirs.items():
            usual = self.aliases.get(name, name)
            if usual in plain and plain[usual] != value:
                raise UserError(f"this {self.name}'s config has two values of {usual}: {plain[usual]!r} and {value!r}")
            plain[usual] = value
        return plain


# where a library keeps its fields
CONFIG_FILES = {"llama": "params.json", "nanogpt": "model_args"}


def _places(theirs: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields by their names, those of a table after its own."""
    for name, value in theirs.items():
        if isinstance(value, Mapping):
            yield from _places(value, (*inside, name))
        else:
            yield (*inside, name), value


def _changed(theirs: Mapping[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = place
    return {**theirs, first: _changed(theirs[first], tuple(rest), value) if rest else value}


def _times(value: Any, factor: float) -> Any:
    """A number, or each of several, times a factor; a whole number stays one."""
    if isinstance(value, list | tuple):
        return [_times(one, factor) for one in value]
    if isinstance(value, str | bool) or value is None:
        raise TypeError
    return type(value)(value * factor)


class Source:
    """Tensors to be read one at a time, by name; their shapes and dtypes are known before."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: tensor.dtype for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def skeleton(kind: Callable[[Any], nn.Module], config: BlockConfig) -> nn.Module:
    """A model without the values of its tensors."""
    with torch.device("meta"):
        return kind(config)


def read(architecture: Architecture, source: Source, config: BlockConfig) -> Iterator[tuple[str, Tensor]]:
    """Our tensors from theirs, one rule at a time; everything is checked by name and shape before the first is read."""
    what, rules = architecture.name, list(architecture.rules(config))
    places = _placed(architecture, source)
    empty = skeleton(architecture.model, config).state_dict()
    _check_unused(architecture, source, places, config, rules)
    wanted = {
        name: tuple(tensor.shape)
        for rule in rules
        for name, tensor in zip(rule.theirs, rule.write([empty[ours] for ours in rule.ours]), strict=True)
    }
    absent = {name: other for name, other in architecture.absent(config).items() if name not in places}
    shapes = {name: source.shapes()[place] for name, place in places.items()}
    _check_shapes(wanted, shapes | {name: wanted[name] for name in absent}, what)
    for name, place in places.items():
        if not source.dtypes()[place].is_floating_point:
            raise UserError(f"this {what}'s {name} is {source.dtypes()[place]}, and weights are floating-point numbers")
    for rule in rules:
        tensors = rule.read(
            [
                _filled(absent[name], wanted[name], source, places) if name in absent else source.read(places[name])
                for name in rule.theirs
            ]
        )
        yield from zip(rule.ours, tensors, strict=True)


def _filled(other: str | None, shape: tuple[int, ...], source: Source, places: Mapping[str, str]) -> Tensor:
    """What a tensor is that the file lacks."""
    if other is not None:
        return source.read(places[other]).clone()
    return torch.zeros(shape, dtype=next(iter(source.dtypes().values())))


def write(
    architecture: Architecture, tensors: Mapping[str, Tensor], config: BlockConfig
) -> Iterator[tuple[str, Tensor]]:
    """Their tensors from ours, as their own file has them."""
    patterns = architecture.written(config)
    for rule in architecture.rules(config):
        names = [_renamed(name, patterns) for name in rule.theirs]
        yield from zip(names, rule.write([tensors[name] for name in rule.ours]), strict=True)


def _renamed(name: str, patterns: Mapping[str, str]) -> str:
    for pattern, replacement in patterns.items():
        name = re.sub(pattern, replacement, name)
    return name


def renamed_names(architecture: Architecture, source: Source) -> list[str]:
    """The names of a source's tensors as the rules of an architecture have them."""
    return [_renamed(name, architecture.renamed) for name in source.shapes()]


def _placed(architecture: Architecture, source: Source) -> dict[str, str]:
    """Where each tensor is in the source, by the name that the rules use."""
    places: dict[str, str] = {}
    for place in source.shapes():
        name = _renamed(place, architecture.renamed)
        if name in places:
            raise UserError(f"this {architecture.name} has {name} twice, under two names")
        places[name] = place
    return places


def _check_unused(
    architecture: Architecture, source: Source, places: dict[str, str], config: BlockConfig, rules: Sequence[Rule]
) -> None:
    """Take out of `places` what the rules do not read: tensors tied to others, and those ours does not need."""
    what, needed = architecture.name, {name for rule in rules for name in rule.theirs}
    for name, table in architecture.tied(config).items():
        if name not in places:
            continue
        if table not in places:  # a file may hold a tied pair under either name
            places[table] = places.pop(name)
        elif not equal_tensors(source.read(places[name]), source.read(places[table])):
            fix = f": write {architecture.untie}: false into its config" if architecture.untie else ""
            raise UserError(f"this {what} is not tied: {name} is not {table}, and ours has one for both{fix}")
        else:
            del places[name]
    for pattern, fault in architecture.unused(config).items():
        for name in [name for name in places if name not in needed and re.fullmatch(pattern, name)]:
            if wrong := fault(source.read(places[name]), config):
                raise UserError(f"this {what}'s {name} {wrong}")
            del places[name]


def equal_tensors(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (a.is_meta or b.is_meta or torch.equal(a, b.to(a)))


def _check_shapes(wanted: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Refuse, by name, a tensor that is missing, one too many, and one of another shape."""
    for name in sorted(wanted.keys() - shapes.keys()):
        raise UserError(f"this {what} has no {name}")
    for name in sorted(shapes.keys() - wanted.keys()):
        raise UserError(f"this {what} also has {name}, for which ours has no place")
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise UserError(f"this {what}'s {name} has shape {shapes[name]}, and its config wants {shape}")


def load(architecture: Architecture, source: Source, config: BlockConfig) -> nn.Module:
    """Our model with their weights, each in its own dtype."""
    model = skeleton(architecture.model, config)
    model.load_state_dict(
        {name: tensor.contiguous() for name, tensor in read(architecture, source, config)}, assign=True
    )
    return model.eval()


def token_ids(vocab: int, length: int, generator: torch.Generator) -> Tensor:
    """Random tokens: two rows of a short text, and one of a long one."""
    return torch.randint(vocab, (2 if length <= SHORT else 1, length), generator=generator)


def token_inputs(config: BlockConfig, generator: torch.Generator, length: int) -> tuple[Tensor, ...]:
    """For `inputs`: a text of so many tokens."""
    return (token_ids(config.vocab, length, generator),)


def anything(tensor: Tensor, config: BlockConfig) -> None:
    """For `unused`: whatever it holds."""
