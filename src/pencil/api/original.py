"""What an imported run keeps of the original beside its model, so that an export hands it back as it was.

Settings of generation and of the tokenizer that have no place here (a chat template, a temperature) change nothing that
the run computes. They are kept as data, in one file, and a training that starts from the run keeps them too.
"""

import json
from typing import Any

from ..data.tokenizers.from_checkpoint import SENTENCEPIECE_FILES
from ..families.family import Family
from ..files import read_json, read_text
from ..runs.files import ORIGINAL
from ..runs.run import Run
from ..weights.checkpoint_files import LARGEST_CONFIG, Checkpoint, inside
from ..weights.maps import Architecture

GENERATION, TOKENIZER, TOKENS = "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
MADE = "from_sentencepiece"  # whether the tokenizer was read from a file of sentencepiece
# of config.json: ids of special tokens, and what a task of the original puts before a text
CONFIG = (
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "task_specific_params", "prefix",
)  # fmt: skip
# of config.json, too, in files of before generation_config.json
OLDER = (
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "suppress_tokens",
    "begin_suppress_tokens", "exponential_decay_length_penalty", "remove_invalid_values",
)  # fmt: skip
# of generation_config.json: what the run has as its [tokens], and what changes no text
APPLIED = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "suppress_tokens", "bad_words_ids")
WITHOUT_EFFECT = (
    "transformers_version", "_from_model_config", "_commit_hash", "bos_token_id", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "return_legacy_cache", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "assistant_ensemble_weight", "speculation_type", "use_mtp", "generation_kwargs",
)  # fmt: skip
# values that change nothing; of every other field these are null, false and what is empty
USUAL = {
    "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1, "encoder_repetition_penalty": 1, "num_beams": 1, "num_beam_groups": 1, "max_length": 20,
    "guidance_scale": 1, "num_return_sequences": 1,
}  # fmt: skip
# what counts only where tokens are drawn at random, or several texts are followed: the values that change nothing
WHEN_SAMPLING = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "epsilon_cutoff": 0,
                 "eta_cutoff": 0, "top_h": None, "renormalize_logits": False}  # fmt: skip
WITH_BEAMS = {"length_penalty": 1, "early_stopping": False, "diversity_penalty": 0}
OPTIONS = {"repetition_penalty": "repetition_penalty", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p",
           "min_p": "min_p", "num_beams": "beams", "max_new_tokens": "max_new_tokens"}  # fmt: skip
# code, and places on the machine that made the checkpoint
LEFT_OUT = ("auto_map", "name_or_path", "_name_or_path", "_commit_hash", "tokenizer_file", "vocab_file", "merges_file",
            "special_tokens_map_file")  # fmt: skip


def original_files(checkpoint: Checkpoint, architecture: Architecture, with_tokenizer: bool) -> dict[str, bytes]:
    """The file of a run with what it keeps of a checkpoint; without its tokenizer, if another one is used."""
    if architecture.library != "transformers":
        return {}
    contents: dict[str, Any] = {"architecture": architecture.name}
    contents["config.json"] = {name: checkpoint.config[name] for name in (*CONFIG, *OLDER) if name in checkpoint.config}
    for name in (GENERATION, *([TOKENIZER, TOKENS] if with_tokenizer else [])):
        if (checkpoint.folder / name).exists():
            content = read_json(inside(checkpoint.folder, name), LARGEST_CONFIG)
            contents[name] = {key: value for key, value in content.items() if key not in LEFT_OUT}
    if with_tokenizer and not (checkpoint.folder / "tokenizer.json").exists():
        contents[MADE] = any((checkpoint.folder / name).exists() for name in SENTENCEPIECE_FILES)
    if with_tokenizer and (checkpoint.folder / TEMPLATE).exists():
        contents[TEMPLATE] = read_text(inside(checkpoint.folder, TEMPLATE), LARGEST_CONFIG)
    return {ORIGINAL: json.dumps(contents, indent=2, ensure_ascii=False).encode()}


def about_generation(checkpoint: Checkpoint, architecture: Architecture, record: Family) -> tuple[str, ...]:
    """A sentence about the settings of generation that change what the original writes and are not applied here."""
    options = record.sample_options.__dataclass_fields__
    if architecture.library != "transformers" or "max_new_tokens" not in options:
        return ()
    name, settings = (
        "config.json",
        {key: checkpoint.config[key] for key in (*CONFIG, *OLDER) if key in checkpoint.config},
    )
    if (checkpoint.folder / GENERATION).exists():
        name, settings = GENERATION, read_json(inside(checkpoint.folder, GENERATION), LARGEST_CONFIG)
    without = {"task_specific_params", "prefix", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id"}
    usual = dict(USUAL)
    for table, counts in (
        (WHEN_SAMPLING, settings.get("do_sample")),
        (WITH_BEAMS, (settings.get("num_beams") or 1) > 1),
    ):
        usual |= table if counts else {}
        without |= set() if counts else set(table)
    used = {
        key: value
        for key, value in settings.items()
        if key not in (*APPLIED, *WITHOUT_EFFECT, *without) and _counts(value, usual.get(key))
    }
    if not used:
        return ()
    listed = ", ".join(f"{key} {json.dumps(value)}" for key, value in used.items())
    arguments = [f"--{OPTIONS[key].replace('_', '-')} {used[key]}" for key in used if OPTIONS.get(key) in options]
    how = f"; pencil sample takes {' '.join(arguments)}" if arguments else ""
    return (f"settings of its {name} that change what is generated are not applied: {listed}{how}",)


def _counts(value: Any, usual: Any) -> bool:
    """Whether a setting changes anything; 0 does where it is a token."""
    return value is not None and value is not False and value not in ([], {}, "") and value != usual


def read_original(run: Run) -> dict[str, Any]:
    """What a run keeps of the original, by the names of its files; nothing where it keeps none."""
    path = run.path / ORIGINAL
    return read_json(path, 4 * LARGEST_CONFIG) if path.is_file() else {}


def origin_of(run: Run) -> dict[str, Any]:
    """Where a run's weights are from, if they or those it was trained from were imported: as a new run records it."""
    imported, facts = run.config.get("import"), run.config["run"]
    names = {"from_origin": "from", "from_hub": "hub", "from_licence": "licence", "from_architecture": "architecture"}
    return {ours: facts.get(ours) if imported is None else imported.get(theirs) for ours, theirs in names.items()}
