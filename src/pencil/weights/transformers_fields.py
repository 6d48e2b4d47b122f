"""Fields that every config of transformers may have and that change none of its outputs, today's and older ones."""

from ..config import UserError
from .fields import MAPPED, NEUTRAL, Fields, Use, only

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
