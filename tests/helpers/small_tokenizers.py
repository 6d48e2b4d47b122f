"""Small tokenizers of every kind that the `tokenizers` library trains."""

import io
import json
import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pencil.data.tokenizers.sentencepiece import read_sentencepiece
from random_texts import TRAINING

COUNTS = [pytest.param(300, id="300"), pytest.param(10_000, id="10000", marks=pytest.mark.long)]
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN = GPT4.replace("{1,3}", "")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(split=None, special="<|endoftext|>"):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split:
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=401, special_tokens=[special], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TRAINING, trainer)
    return made


def llama3():
    made = byte_level(GPT4, "<|begin_of_text|>")
    made.add_special_tokens(["<|end_of_text|>", "<|eot_id|>"])
    first = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", first)],
    )  # fmt: skip
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return made


def fallback():
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    alphabet = list("abcdefghijklmnopqrstuvwxyz▁.,")
    trainer = trainers.BpeTrainer(
        vocab_size=401, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=40, show_progress=False
    )
    made.train_from_iterator(TRAINING, trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are tokens as others are
    content["pre_tokenizer"] = None
    made = Tokenizer.from_str(json.dumps(content))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return made


def wordpiece(lower):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        TRAINING, trainers.WordPieceTrainer(vocab_size=301, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def roberta():
    made = byte_level(special="<s>")
    made.add_special_tokens(["<pad>", "</s>", AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(
        ("</s>", made.token_to_id("</s>")), ("<s>", made.token_to_id("<s>"))
    )
    return made


def unigram():
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        TRAINING,
        trainers.UnigramTrainer(vocab_size=251, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return made


def write(folder, **files):
    for name, content in files.items():
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(text)
    return folder


def sentencepiece_file(kind, seed=0, **settings):
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = [line for text in TRAINING for line in text.split("\n")]
    random.Random(seed).shuffle(lines)
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines[: len(lines) - 7 * seed]), model_writer=made, model_type=kind, minloglevel=2,
        vocab_size=settings.pop("vocab_size", 263), hard_vocab_limit=False, **settings,
    )  # fmt: skip
    return made.getvalue()


def marian_files(folder):
    """Two files of pieces, one table of ids, and the settings that go with them."""
    source, target = sentencepiece_file("unigram", 1), sentencepiece_file("unigram", 2, vocab_size=241)
    pieces = {p for content in (source, target) for p, *_ in read_sentencepiece(content, "x").pieces}
    words = [*sorted(pieces - {"<s>", "</s>", "<unk>"})[3:], ">>deu<<"]  # some pieces have no id
    ids = {"</s>": 0, "<unk>": 1} | {word: 2 + i for i, word in enumerate(words)}
    ids["<pad>"] = len(ids)
    config = {"decoder_start_token_id": ids["<pad>"], "eos_token_id": 0, "pad_token_id": ids["<pad>"]}
    return write(
        folder, source__spm=source, target__spm=target, vocab__json=ids, config__json=config,
        generation_config__json={"bad_words_ids": [[ids["<pad>"]]]},
        tokenizer_config__json={"source_lang": "en", "target_lang": "de"},
    )  # fmt: skip
