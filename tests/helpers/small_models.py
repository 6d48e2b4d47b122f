"""Small models of every family. Their sizes differ as far as they can, and between them their kinds have every option."""

from functools import cache
from typing import get_args

import torch

from pencil.core.masks import NOWHERE
from pencil.core.positions import Scheme
from pencil.core.span import Span
from pencil.families import create, family

SCHEMES = list(get_args(Scheme))
SIZES = {
    "gpt": dict(vocab=101, context=17, width=30, depth=2, heads=3),
    "vit": dict(image_size=(6, 25), channels=2, patch=(2, 5), classes=11, width=42, depth=2, heads=3, hidden=53),
    "captioner": dict(
        image_size=(6, 10), channels=3, patch=(2, 5), vocab=101, context=11, width=42, depth=2, heads=3, hidden=53
    ),
    "reader": dict(vocab=31, context=11, width=30, depth=2, heads=3, hidden=17),
    "seq2seq": dict(vocab=31, context=7, source_context=11, width=30, depth=2, heads=3, hidden=17),
    "dit": dict(image_size=(6, 10), channels=2, patch=(2, 5), width=30, depth=3, heads=3, hidden=17),
}
BERT = dict(norm_position="post", embed_norm=True, positions="learned", token_types=2, eps=1e-12)
LABEL, TEXT = dict(classes=11), dict(vocab=31, context=7, text_encoder_depth=1)
VIDEO = dict(frames=10, patch_frames=2)
FACTORED = VIDEO | dict(attention="factored")
WINDOWED = dict(image_size=(12, 20), attention="windowed", window=2)
KINDS = {
    "gpt": {
        "gpt2": dict(positions="learned", bias=True, activation="gelu-tanh"),
        "plain": dict(positions="sinusoidal", tie_embeddings=False, bias=True),
        "llama": dict(positions="rope", norm="rms", activation="swiglu", kv_heads=1, tie_embeddings=False),
        "none": dict(positions="none"),
        "halves": dict(positions="sinusoidal-halves", activation="silu"),
        "alibi": dict(positions="alibi", kv_heads=1),
        "shaw": dict(positions="shaw", bias=True, activation="relu"),
        "t5": dict(positions="t5", norm="rms", tie_embeddings=False),
        "further": dict(positions="rope", rope_fraction=0.6, rope_scaling="yarn", rope_factor=2.0),
    },
    "vit": {
        "class": dict(),
        "mean": dict(pool="mean", positions="sinusoidal", activation="gelu-tanh"),
        "rotated": dict(positions="rope", norm="rms", activation="swiglu", bias=False),
        "none": dict(pool="mean", positions="none"),
        "halves": dict(positions="sinusoidal-halves", activation="relu"),
        "alibi": dict(positions="alibi", activation="silu"),
        "shaw": dict(pool="mean", positions="shaw", norm="rms"),
        "t5": dict(positions="t5", bias=False),
        "partly rotated": dict(positions="rope", rope_fraction=0.6),
        "distilled": dict(registers=1, distilled=True),
        "registers": dict(pool="mean", registers=3, class_token=True, token_positions=False, embed_norm=True,
                          norm_pooled=True, qkv_bias=False),
        "rotated registers": dict(positions="rope", registers=2, norm_pooled=True),
    },
    "captioner": {
        "nano": dict(),
        "seed": dict(mask="causal", positions="learned", delimiters="none", type_embeddings=False, bias=True),
        "sinusoidal": dict(mask="causal", positions="sinusoidal", tie_embeddings=False, bias=True, type_embeddings=False,
                           image_width=19),
        "still": dict(positions="none", image_positions="learned", tie_embeddings=False, delimiters="none",
                      activation="gelu-tanh"),
        "llama": dict(positions="rope", image_positions="none", norm="rms", activation="swiglu", kv_heads=1,
                      type_embeddings=False),
        "rotated": dict(mask="causal", positions="learned", image_positions="rope", bias=True, image_width=47, kv_heads=1),
        "mixed": dict(positions="sinusoidal", image_positions="rope", delimiters="none", type_embeddings=False, kv_heads=3,
                      eps=1e-3),
        "words": dict(positions="rope", image_positions="sinusoidal", bias=True, tie_embeddings=False, rope_theta=7.0),
        "biased": dict(positions="alibi", image_positions="t5", kv_heads=1),
        "far": dict(mask="causal", positions="shaw", bias=True, delimiters="none"),
        "buckets": dict(positions="t5", tie_embeddings=False, norm="rms"),
        "crow": dict(positions="t5", image_positions="alibi", type_embeddings=False, delimiters="none"),
        "part": dict(positions="rope", image_positions="shaw", rope_fraction=0.6, activation="relu"),
        "halves": dict(positions="sinusoidal-halves", image_positions="rope", rope_fraction=0.3, activation="silu"),
    },
    "reader": {
        "bert": dict(**BERT),
        "bert label": dict(**BERT, classes=5),
        "nano": dict(classes=5),
        "mean": dict(classes=5, pool="mean", positions="alibi", norm="rms", activation="swiglu", bias=False, kv_heads=1),
        "mean words": dict(pool="mean", positions="sinusoidal", token_types=3, activation="gelu-tanh"),
        "shaw": dict(classes=5, positions="shaw", norm_position="post", pool="mean"),
        "t5": dict(positions="t5", activation="relu", bias=False, norm="rms"),
        "halves": dict(positions="sinusoidal-halves", norm_position="post", classes=1, activation="silu"),
        "none": dict(positions="none", classes=5, embed_norm=True, token_types=1),
        "roberta": dict(**BERT, position_offset=2),
        "pool": dict(**BERT, head="pool"),
        "states": dict(head="states"),
        "further": dict(rope_fraction=0.6, rope_scaling="llama3", rope_factor=2.0, classes=5),
    },
    "seq2seq": {
        "nano": dict(),
        "first": dict(norm_position="post", positions="sinusoidal", scale_embeddings=True, activation="relu", bias=True),
        "marian": dict(norm_position="post", positions="sinusoidal-halves", scale_embeddings=True, activation="silu", bias=True,
                       head_bias=True),
        "separate": dict(share_embeddings=False, source_vocab=37, positions="learned", tie_embeddings=False, norm="rms",
                         activation="swiglu", kv_heads=1),
        "t5": dict(positions="t5", norm="rms", activation="relu", tie_embeddings=False, head_bias=True),
        "flan": dict(positions="t5", buckets=6, max_distance=7, norm="rms", activation="geglu-tanh", head_dim=7,
                     decoder_depth=1, scale_logits=True),
        "shaw": dict(positions="shaw", norm_position="post", share_embeddings=False, source_vocab=37),
        "alibi": dict(positions="alibi", kv_heads=1, activation="gelu-tanh", share_embeddings=False),
        "none": dict(positions="none", scale_embeddings=True, eps=1e-3),
        "further": dict(rope_fraction=0.6, rope_scaling="yarn", rope_factor=2.0, norm_position="post", bias=True),
    },
    "dit": {
        "label": LABEL,
        "text": TEXT,
        "nothing": dict(),
        "plain": LABEL | dict(adaln="plain"),
        "plain text": TEXT | dict(adaln="plain", positions="rope", rope_fraction=0.6),
        "no null": LABEL | dict(null_condition=False),
        "variance": LABEL | dict(noise_schedule="linear", learned_variance=True, downscale_freq_shift=True),
        "video": TEXT | VIDEO,
        "factored": LABEL | FACTORED,
        "factored text": TEXT | FACTORED | dict(adaln="plain", noise_schedule="cosine", learned_variance=True),
        "windowed": LABEL | WINDOWED,
        "windowed video": WINDOWED | dict(frames=4, patch_frames=1),
        **{f"{scheme} in {word}": LABEL | grouping | dict(positions=scheme) for scheme in SCHEMES
           for word, grouping in (("full", dict()), ("groups", FACTORED), ("windows", WINDOWED))},
    },
}  # fmt: skip
# of the many kinds of DiT some that between them have every part
SOME_DITS = ["label", "text", "nothing", "plain text", "variance", "factored text", "windowed", "rope in full",
        "shaw in groups", "t5 in windows", "rope in windows", "alibi in groups"]  # fmt: skip


def tiny(name, **values):
    """A model of the family's sizes. A fresh one's scores are nearly even: make the differences matter."""
    torch.manual_seed(0)
    model = create(name, family(name).config(**{**SIZES[name], **values})).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


@cache
def exact(name, kind):
    """A model of a kind in double precision, the same for all examples that only read it."""
    return tiny(name, **KINDS[name][kind]).double()


def tokens(*shape, vocab, seed=7):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def pictures(*shape, seed=7):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def padded(rows, lengths, right):
    """Rows of 31 tokens' ids cut to their lengths with padding on one side, and the span of them."""
    ids, index = tokens(len(rows), max(lengths), vocab=31, seed=99), torch.full((len(rows), max(lengths)), NOWHERE)
    for i, n in enumerate(lengths):
        place = slice(0, n) if right else slice(max(lengths) - n, max(lengths))
        ids[i, place], index[i, place] = rows[i, :n], torch.arange(n)
    return ids, Span.at(index)


def noised(c, rows, seed=7):
    """Pictures or videos and the timestep of each."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, c.channels, *c.sides, generator=generator), torch.rand(rows, generator=generator) * 1000


def conditions(c, rows, seed=3):
    """Labels or texts, the shortest with padding on the left; and that one row has neither."""
    generator = torch.Generator().manual_seed(seed)
    dropped = torch.arange(rows) == 1 if c.null_condition and (c.classes or c.vocab) else None
    if c.classes:
        return torch.randint(0, c.classes, (rows,), generator=generator), None, dropped
    if c.vocab is None:
        return None, None, None
    index = torch.arange(c.context).repeat(rows, 1)
    index[0] = torch.tensor([NOWHERE] * 3 + list(range(c.context - 3)))
    return torch.randint(0, c.vocab, (rows, c.context), generator=generator), Span.at(index), dropped
