"""What the fields of another library's config mean here: read, without effect, or refused by name.

Every field of a config has a use, or the config is refused; and what ours has and theirs cannot say is refused, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..config import UserError, with_article
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
