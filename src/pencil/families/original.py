"""What an imported run keeps of the original beside its model, so that an export hands it back as it was.

Settings of generation and of the tokenizer that have no place here (a chat template, a temperature) change nothing that
the run computes. They are kept as data, in one file, and a training that starts from the run keeps them too.
"""

import json
from typing import Any

from ..data.tokenizer_folders import SENTENCEPIECE_FILES
from ..files import read_json, read_text
from ..manifest import ORIGINAL
from ..runs import Run
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
# code, and places on the machine that made the checkpoint
LEFT_OUT = ("auto_map", "name_or_path", "_name_or_path", "_commit_hash", "tokenizer_file", "vocab_file", "merges_file",
            "special_tokens_map_file")  # fmt: skip


def kept_of(found: Checkpoint, architecture: Architecture, with_tokenizer: bool) -> dict[str, bytes]:
    """The file of a run with what it keeps of a checkpoint; without its tokenizer, if another one is used."""
    if architecture.library != "transformers":
        return {}
    kept: dict[str, Any] = {"architecture": architecture.name}
    kept["config.json"] = {name: found.config[name] for name in (*CONFIG, *OLDER) if name in found.config}
    for name in (GENERATION, *([TOKENIZER, TOKENS] if with_tokenizer else [])):
        if (found.folder / name).exists():
            content = read_json(inside(found.folder, name), LARGEST_CONFIG)
            kept[name] = {key: value for key, value in content.items() if key not in LEFT_OUT}
    if with_tokenizer and not (found.folder / "tokenizer.json").exists():
        kept[MADE] = any((found.folder / name).exists() for name in SENTENCEPIECE_FILES)
    if with_tokenizer and (found.folder / TEMPLATE).exists():
        kept[TEMPLATE] = read_text(inside(found.folder, TEMPLATE), LARGEST_CONFIG)
    return {ORIGINAL: json.dumps(kept, indent=2, ensure_ascii=False).encode()}


def read_kept(run: Run) -> dict[str, Any]:
    """What a run keeps of the original, by the names of its files; nothing where it keeps none."""
    path = run.path / ORIGINAL
    return read_json(path, 4 * LARGEST_CONFIG) if path.is_file() else {}


def origin_of(run: Run) -> dict[str, Any]:
    """Where a run's weights are from, if they or those it was trained from were imported: as a new run records it."""
    imported, facts = run.config.get("import"), run.config["run"]
    names = {"from_origin": "from", "from_hub": "hub", "from_licence": "licence", "from_architecture": "architecture"}
    return {ours: facts.get(ours) if imported is None else imported.get(theirs) for ours, theirs in names.items()}
