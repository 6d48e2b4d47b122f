"""Vectors of texts, and classes of texts and pictures. Each input is computed by itself, so no other changes its answer.

In one batch with others a text would be padded to the longest of them, which changes the last bits of its numbers.
"""

import base64
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..api.loading import predict_loaded
from ..api.predict import embedder
from ..config import UserError
from ..families.predictions import Prediction
from ..families.reader import settings_of, token_row
from ..runs.run import Loaded
from .errors import RequestError
from .openai_format import MOST_CHARACTERS, MOST_PROMPTS, new_id

FORMATS = ("float", "base64")


def inputs_of(data: Mapping[str, Any]) -> list[str]:
    """The texts, or the data URLs of pictures, of a request."""
    given = data.get("input")
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not several or not all(isinstance(one, str) and one for one in several):
        raise RequestError("input must be a string or a list of strings, none of them empty", field="input")
    if len(several) > MOST_PROMPTS:
        raise RequestError(f"input has {len(several)} entries; at most {MOST_PROMPTS} are taken", field="input")
    if any(len(one) > MOST_CHARACTERS for one in several if not one.startswith("data:")):
        raise RequestError(f"input has more than {MOST_CHARACTERS:,} characters; shorten it", 413, "input")
    return several


def format_of(data: Mapping[str, Any]) -> str:
    """How a vector is written: as numbers, or as base64, which OpenAI's own client asks for."""
    form = data.get("encoding_format") or "float"
    if form not in FORMATS:
        raise RequestError("encoding_format must be float or base64", field="encoding_format")
    if data.get("dimensions") is not None:
        raise RequestError("dimensions is not computed here; leave it out", field="dimensions")
    return form


def embeddings(loaded: Loaded, model: str, texts: Sequence[str], form: str) -> dict[str, Any]:
    """The answer of /v1/embeddings."""
    try:
        vectors_of, how = embedder(loaded.run.family, model), settings_of(loaded)
        rows = [vectors_of(loaded, [text], how)[0].numpy() for text in texts]
        count = sum(len(token_row(loaded.model, loaded.tokenizer, text)) for text in texts)
    except UserError as error:
        raise RequestError(str(error), field="input") from None
    data = [{"object": "embedding", "index": i, "embedding": _written(row, form)} for i, row in enumerate(rows)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def _written(row: np.ndarray, form: str) -> Any:
    return row.tolist() if form == "float" else base64.b64encode(row.astype("<f4").tobytes()).decode()


def classes(loaded: Loaded, model: str, inputs: Sequence[Any]) -> dict[str, Any]:
    """The answer of /v1/classify: every class with its probability, the likeliest first."""
    try:
        found = [predict_loaded(loaded, one, {}) for one in inputs]
    except UserError as error:
        raise RequestError(str(error), field="input") from None
    if not all(isinstance(one, Prediction) for one in found):
        raise RequestError(f"{model} has no classes", field="model")
    data = []
    for i, one in enumerate(found):
        top = one.top(len(one.probabilities))
        likely = [{"label": name, "probability": p} for _, name, p in top]
        data.append({"index": i, "label": one.label, "probability": one.probability, "classes": likely})
    return {"id": new_id("classify"), "object": "list", "created": int(time.time()), "model": model, "data": data}


def picture(address: str) -> Image.Image:
    """A picture that was decoded apart, from its data URL."""
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
