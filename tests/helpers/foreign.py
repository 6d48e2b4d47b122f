"""Small checkpoints of other libraries with random weights: folders as their own loaders write them."""

import json

import torch

from both_ways import randomise
from small_tokenizers import byte_level, fallback, llama3, marian_files, roberta, unigram, wordpiece

SIZES = dict(hidden_size=24, intermediate_size=37, num_hidden_layers=2, num_attention_heads=3)
LLAMA = SIZES | dict(hidden_size=30, num_key_value_heads=1, max_position_embeddings=47)
ENCODER = SIZES | dict(max_position_embeddings=47)
CLASSES = {0: "cat", 1: "dog", 2: "so it goes", 3: "owl", 4: "emu"}
LABELS = dict(num_labels=5, id2label=CLASSES, label2id={name: i for i, name in CLASSES.items()})


def _kept(folder, kind, values, tokenizer=None, **special):
    """A model of transformers, saved with its tokenizer."""
    import transformers

    if tokenizer is not None:
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
        ids = {f"{name}_id": made.convert_tokens_to_ids(token) for name, token in special.items()}
        values = {"vocab_size": len(made), **ids, **values}
        made.save_pretrained(folder)
    model_kind = getattr(transformers, kind)
    theirs = model_kind(model_kind.config_class(**values)).eval()
    randomise(theirs)
    theirs.save_pretrained(folder)
    return folder


def _gpt2(folder, **values):
    end = "<|endoftext|>"
    sizes = dict(n_positions=47, n_embd=26, n_layer=2, n_head=2)
    return _kept(folder, "GPT2LMHeadModel", sizes | values, byte_level(), bos_token=end, eos_token=end)


def _llama(folder, kind, tokenizer, begin, end, **values):
    return _kept(folder, f"{kind}ForCausalLM", LLAMA | values, tokenizer, bos_token=begin, eos_token=end)


def _neox(folder):
    end = "<|endoftext|>"
    sizes = SIZES | dict(max_position_embeddings=47, use_parallel_residual=False, hidden_size=42)
    sizes["rope_parameters"] = dict(rope_theta=10000.0, partial_rotary_factor=1.0)
    return _kept(folder, "GPTNeoXForCausalLM", sizes, byte_level(), bos_token=end, eos_token=end)


def _bert(folder, kind, **values):
    special = dict(pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")
    return _kept(folder, kind, ENCODER | values, wordpiece(True), **special)


def _roberta(folder):
    special = dict(pad_token="<pad>", mask_token="<mask>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return _kept(
        folder,
        "RobertaForMaskedLM",
        ENCODER | dict(type_vocab_size=1, max_position_embeddings=449),
        roberta(),
        **special,
    )


def _vit(folder, kind="ViT"):
    import transformers

    _kept(folder, f"{kind}ForImageClassification", SIZES | LABELS | dict(image_size=22, patch_size=11))
    sizes = dict(size={"height": 22, "width": 22})
    if kind == "DeiT":
        sizes = dict(size={"height": 26, "width": 26}, crop_size={"height": 22, "width": 22})
    processor = getattr(transformers, f"{kind}ImageProcessorPil", None) or getattr(
        transformers, f"{kind}ImageProcessor"
    )
    processor(**sizes).save_pretrained(folder)
    return folder


def _timm(folder):
    import timm
    from safetensors.torch import save_file

    args = dict(img_size=32, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    theirs = timm.create_model("vit_tiny_patch16_224", **args).eval()
    randomise(theirs)
    folder.mkdir()
    cfg = {**theirs.pretrained_cfg, "input_size": [3, 32, 32], "num_classes": 5}
    cfg = {key: value for key, value in cfg.items() if isinstance(value, str | int | float | list | tuple)}
    config = dict(architecture="vit_tiny_patch16_224", num_classes=5, num_features=24, global_pool="token",
                  model_args=args, pretrained_cfg=cfg, label_names=list(CLASSES.values()))  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(theirs.state_dict(), folder / "model.safetensors")
    return folder


def _t5(folder):
    values = dict(d_model=24, d_kv=7, d_ff=37, num_layers=2, num_heads=3, decoder_start_token_id=0)
    special = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    return _kept(folder, "T5ForConditionalGeneration", values, unigram(), **special)


def _marian(folder):
    folder.mkdir()
    ids = json.loads((marian_files(folder) / "vocab.json").read_text())
    pad = ids["<pad>"]
    values = dict(vocab_size=len(ids), decoder_vocab_size=len(ids), d_model=24, encoder_layers=2, decoder_layers=2,
                  encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=37, decoder_ffn_dim=37,
                  max_position_embeddings=47, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad,
                  forced_eos_token_id=None, scale_embedding=True)  # fmt: skip
    return _kept(folder, "MarianMTModel", values)


def _dit(folder):
    import diffusers

    torch.manual_seed(3)
    theirs = diffusers.DiTTransformer2DModel(
        num_attention_heads=3, attention_head_dim=4, in_channels=3, out_channels=6, num_layers=2, sample_size=6,
        patch_size=3, num_embeds_ada_norm=5,
    )  # fmt: skip
    randomise(theirs)
    for block in theirs.transformer_blocks:
        block.norm1.emb.load_state_dict(theirs.transformer_blocks[0].norm1.emb.state_dict())
    theirs.save_pretrained(folder / "transformer")
    diffusers.DDIMScheduler(clip_sample=False).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "DiTPipeline"}))
    return folder


MAKERS = {
    "GPT-2": _gpt2,
    "GPT-2 untied": lambda folder: _gpt2(folder, tie_word_embeddings=False),
    "GPT-NeoX": _neox,
    "LLaMA": lambda folder: _llama(folder, "Llama", fallback(), "<s>", "</s>"),
    "Mistral": lambda folder: _llama(folder, "Mistral", fallback(), "<s>", "</s>", sliding_window=11),
    "Qwen2": lambda folder: _llama(folder, "Qwen2", byte_level(), "<|endoftext|>", "<|endoftext|>"),
    "Qwen3": lambda folder: _llama(folder, "Qwen3", llama3(), "<|begin_of_text|>", "<|end_of_text|>", head_dim=22),
    "BERT": lambda folder: _bert(folder, "BertForMaskedLM"),
    "BERT with labels": lambda folder: _bert(folder, "BertForSequenceClassification", **LABELS),
    "RoBERTa": _roberta,
    "MiniLM": lambda folder: _bert(folder, "BertModel"),
    "ViT": _vit,
    "DeiT": lambda folder: _vit(folder, "DeiT"),
    "timm ViT": _timm,
    "Marian": _marian,
    "T5": _t5,
    "DiT": _dit,
}  # fmt: skip
