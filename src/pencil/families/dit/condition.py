"""What a diffusion transformer is conditioned on: class numbers, or the tokens of texts."""

from typing import Any

import torch

from ...config import UserError, nearest
from ...inference.text_batches import end_token, pad, shorten
from ...runs.run import Loaded


def condition(loaded: Loaded, labels: list[str], texts: list[str], count: int = 1) -> tuple[Any, ...]:
    """The condition, `count` rows of each: class numbers, or the tokens of texts and their places; or nothing."""
    model, tokenizer, run = loaded
    c = model.config
    if not (c.vocab or c.classes):
        if labels or texts:
            raise UserError(f"{run.path} is unconditional: leave {'--label' if labels else '--prompt'} out")
        return ()
    given, other = (texts, labels) if c.vocab else (labels, texts)
    right, wrong = ("--prompt", "--label") if c.vocab else ("--label", "--prompt")
    if other:
        raise UserError(f"{run.path} is conditioned on {'texts' if c.vocab else 'labels'}: use {right}, not {wrong}")
    if not given:
        raise UserError(f"{right} is missing: {run.path} is conditioned on {'texts' if c.vocab else 'labels'}")
    rows = [one for one in given for _ in range(count)]
    if c.vocab:
        return pad([_tokens(tokenizer, text, c.context) for text in rows], end_token(tokenizer), c.context)
    return (torch.tensor([_class_number(label, loaded.classes, run.path) for label in rows]),)


def _class_number(label: str, classes: list[str], path: Any) -> int:
    if label not in classes:
        numbers = classes == [str(i) for i in range(len(classes))]
        known = f"its labels are 0 to {len(classes) - 1}" if numbers else nearest(label, classes)
        raise UserError(f"{path} was not trained on a label {label}; {known}")
    return classes.index(label)


def _tokens(tokenizer: Any, text: str, context: int) -> list[int]:
    ids = [end_token(tokenizer), *tokenizer.encode(text).tolist()]
    if len(ids) > context:
        raise UserError(
            f"the text “{shorten(text)}” has {len(ids)} tokens with its first token, and the context is {context}"
        )
    return ids
