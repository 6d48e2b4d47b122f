"""Attention pictures: the attention at the step that produced each word, on one scale for all panels.

One convention for attention pictures. A word is shown with the attention at the step that produced it, all panels of a
picture have one scale, attention is orange, and the second occurrence of a word is `a#2`.
"""

from typing import Any

import numpy as np
import torch

from .. import draw
from ..data.tokenizers.tokenizer import Tokenizer
from ..models import captioner, seq2seq, vit
from ..models.build import normalize
from .text_batches import source_inputs, target_ids, token_label


def class_attention(model: Any, picture: np.ndarray, x: torch.Tensor, label: str) -> bytes:
    """An image, and the same image under the attention of the pooled token: the last block, averaged over heads.

    `x` is the image as the model reads it.
    """
    attention = vit.attention_maps(model, x)[0].float().cpu().numpy()
    return draw.overlays(picture, [label], attention[None])


def caption_attention(model: Any, tokenizer: Tokenizer, picture: np.ndarray, text: str) -> bytes:
    """An image, once for each word of its caption, under the attention at the step that produced the word."""
    ids = [tokenizer.end, *tokenizer.encode(text).tolist()][: model.config.context]
    x = _batch(model, picture)
    attention = captioner.attention_maps(model, x, torch.tensor([ids], device=x.device))[0].float().cpu().numpy()
    words = draw.numbered([tokenizer.decode([token]).strip() or "·" for token in ids[1:]])
    return draw.overlays(picture, words, attention[: len(words)])


def source_attention(model: Any, tokenizer: Tokenizer, source: str, text: str) -> bytes:
    """A heat map: for each word of the target, the attention to the source at the step that produced the word."""
    given = source_inputs(model, tokenizer, [source])["source"]
    ids = target_ids(tokenizer, text)[: model.config.context]
    tokens = torch.tensor([ids], device=given.device)
    maps = seq2seq.attention_maps(model, given, tokens)[0].float().cpu().numpy()
    with torch.no_grad():
        ended = int(model(tokens, given)[0, -1].argmax()) in tokenizer.ends
    rows = [token_label(tokenizer, token) for token in ids[1:]]
    if ended or not rows:  # a target that was cut short has no end
        rows.append("end")
    columns = [*(token_label(tokenizer, token) for token in given[0, :-1].tolist()), "end"]
    title = "attention to the source at the step that produced each word"
    return draw.heat_maps(
        [maps[: len(rows)]], [""], draw.numbered(rows), draw.numbered(columns), title, axes=("source", "produced word")
    )


def _batch(model: Any, picture: np.ndarray) -> torch.Tensor:
    device = next(model.parameters()).device
    return normalize(torch.from_numpy(np.ascontiguousarray(picture[None])).to(device))
