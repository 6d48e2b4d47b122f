"""Vectors of texts, and classes of texts and pictures: each input by itself, so that no other changes its answer.

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
from .openai_format import new_id

FORMATS = ("float", "base64")


def format_of(data: Mapping[str, Any]) -> str:
    """How a vector is written: as numbers, or as base64, which OpenAI's own client asks for."""
    form = data.get("encoding_format") or "float"
    if form not in FORMATS:
        raise RequestError("encoding_format must be float or base64", field="encoding_format")
    if data.get("dimensions") is not None:
        raise RequestError("dimensions is not computed here; leave it out", field="dimensions")
    return form


def vector_of(loaded: Loaded, text: str) -> tuple[np.ndarray, int]:
    """The vector of one text, and how many tokens it has; a text that the model would not read whole is refused."""
    try:
        vectors, how = embedder(loaded.run.family, "it"), settings_of(loaded)
        count = len(token_row(loaded.model, loaded.tokenizer, text))
        longest = how.context or loaded.model.config.context
        if count > longest:
            raise RequestError(
                f"a text has {count} tokens and the context is {longest}; shorten it", 400, "input",
                "context_length_exceeded",
            )  # fmt: skip
        return vectors(loaded, [text], how)[0].numpy(), count
    except RequestError:
        raise
    except UserError as error:
        raise RequestError(str(error), field="input") from None


def embeddings(model: str, found: Sequence[tuple[np.ndarray, int]], form: str) -> dict[str, Any]:
    """The answer of /v1/embeddings."""
    data = [{"object": "embedding", "index": i, "embedding": _written(row, form)} for i, (row, _) in enumerate(found)]
    count = sum(tokens for _, tokens in found)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def _written(row: np.ndarray, form: str) -> Any:
    return row.tolist() if form == "float" else base64.b64encode(row.astype("<f4").tobytes()).decode()


def class_of(loaded: Loaded, one: Any) -> Prediction:
    """The class of one text or picture."""
    try:
        return predict_loaded(loaded, one, {})
    except UserError as error:
        raise RequestError(str(error), field="input") from None


def classes(model: str, found: Sequence[Prediction]) -> dict[str, Any]:
    """The answer of /v1/classify: every class with its probability, the likeliest first."""
    data = []
    for i, one in enumerate(found):
        top = one.top(len(one.probabilities))
        likely = [{"label": name, "probability": p} for _, name, p in top]
        data.append({"index": i, "label": one.label, "probability": one.probability, "classes": likely})
    return {"id": new_id("classify"), "object": "list", "created": int(time.time()), "model": model, "data": data}


def picture(address: str) -> Image.Image:
    """A picture that was decoded apart, from its data URL."""
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
