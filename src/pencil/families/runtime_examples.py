"""The lines of Python in the README of an ONNX export: they need onnxruntime, NumPy and the tokenizer or Pillow."""

from collections.abc import Sequence
from typing import Any

from ..config import UserError
from ..data.images.picture_code import picture_code
from ..data.tokenizers.sentencepiece import SentencePieceTokenizer
from ..data.tokenizers.tokenizer import Tokenizer
from ..runs.run import Run
from .predictions import transform_of

NEW_TOKENS = 20  # that an example generates at most
TEXTS = ("The pencil", "the ", "a", "1")  # the first that a tokenizer can encode is encoded
BEST = """odds = np.exp(logits - logits.max())
odds /= odds.sum()
labels = json.loads(model.get_modelmeta().custom_metadata_map["labels"])
print(labels[odds.argmax()], odds.max())
"""


def sessions(*names: str) -> str:
    """The lines that open these graphs."""
    return "".join(f'{name} = onnxruntime.InferenceSession("{name}.onnx")\n' for name in names)


def tokenizer_of(tokenizer: Tokenizer) -> str:
    """The lines that open a tokenizer from the folder."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return 'from transformers import AutoTokenizer\n\ntokenizer = AutoTokenizer.from_pretrained(".")\n'
    return 'from tokenizers import Tokenizer\n\ntokenizer = Tokenizer.from_file("tokenizer.json")\n'


def encoded(
    tokenizer: Tokenizer, before: Sequence[int] = (), after: Sequence[int] = (), longest: int | None = None
) -> str:
    """The expression of a text's ids, with those that stand before and after it, cut to the longest."""
    ids = f'tokenizer.encode("{_readable(tokenizer)}", add_special_tokens=False)'
    ids += "" if isinstance(tokenizer, SentencePieceTokenizer) else ".ids"
    ids += "" if longest is None else f"[:{longest - len(before) - len(after)}]"
    return " + ".join([*([str(list(before))] if before else []), ids, *([str(list(after))] if after else [])])


def _readable(tokenizer: Tokenizer) -> str:
    """A text for the example, of what the tokenizer can encode."""
    for text in TEXTS:
        try:
            if len(tokenizer.encode(text)):
                return text
        except UserError:
            continue
    return next(text for i in range(tokenizer.vocab) if (text := tokenizer.decode([i])).isalnum())


def generated(tokenizer: Tokenizer, new: str, old: str, most: int, more: str = "") -> str:
    """The loop of greedy generation with the cache: `new` are the first tokens of the text, `old` those shown too."""
    ends = f"    if new[0] in {list(tokenizer.ends)}:\n        break\n" if tokenizer.ends else ""
    never = f"    logits[..., {list(tokenizer.never)}] = -np.inf\n" if tokenizer.never else ""
    return (
        f"new = {new}\nids = {old}\nfor _ in range({most}):\n"
        '    mask = np.ones((1, past.shape[-2] + len(new)), "int64")  # 0 would be padding\n'
        f'    logits, past = step.run(None, {{"tokens": np.array([new]), "mask": mask, "past": past{more}}})\n'
        f"{never}    new = [int(logits[0, -1, :{tokenizer.vocab}].argmax())]\n"
        f"{ends}    ids = ids + new\nprint(tokenizer.decode(ids))\n"
    )


def empty_cache(layers: int, heads: int, width: int) -> str:
    """The line that makes a cache without tokens."""
    return f'past = np.zeros((2, {layers}, 1, {heads}, 0, {width}), "float32")\n'


def pictures(run: Run, config: Any) -> str:
    """The lines that prepare a picture as the run does."""
    return picture_code(transform_of(run, config)) + "\n\n"
