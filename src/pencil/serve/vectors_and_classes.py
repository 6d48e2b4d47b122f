"""Vectors of texts, and classes of texts and pictures, in batches that requests share.

**The same answer at any load**, as for texts that are written (`tile.py`): a batch always has the same number of rows,
those that nobody asked for repeat the first, and only texts that are padded to one length by themselves are together.
What is left is that a row's place and its neighbours do not matter, which is measured at the start; where they do, and
for a model that keeps a CPU busy with one input, a batch is one input.
"""

import base64
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..api.loading import predict_loaded
from ..api.predict import embedder
from ..config import UserError
from ..core.layers import evaluating
from ..core.masks import NOWHERE
from ..core.span import Span
from ..families.predictions import Prediction
from ..families.reader import settings_of, token_ids, token_row, too_long
from ..inference.text_batches import padded_length
from ..runs.run import Loaded
from .errors import RequestError
from .openai_format import new_id

FORMATS = ("float", "base64")
ROWS, CUDA_ROWS = 8, 32  # of a batch
SMALL = 2_000_000  # parameters; a larger model keeps a CPU busy with one input


def format_of(data: Mapping[str, Any]) -> str:
    """How a vector is written: as numbers, or as base64, which OpenAI's own client asks for."""
    form = data.get("encoding_format") or "float"
    if form not in FORMATS:
        raise RequestError("encoding_format must be float or base64", field="encoding_format")
    if data.get("dimensions") is not None:
        raise RequestError("dimensions is not computed here; leave it out", field="dimensions")
    return form


class Batches:
    """What one model says of several inputs at once, which have the same key."""

    def __init__(self, loaded: Loaded):
        self.loaded, model = loaded, loaded.model
        small = sum(one.numel() for one in model.parameters()) < SMALL
        self.rows = CUDA_ROWS if next(model.parameters()).is_cuda else ROWS if small else 1
        if self.rows > 1 and not steady(model, self.rows):
            self.rows = 1

    def tokens(self, text: str, truncate: bool, vector: bool) -> int:
        """How many tokens the model reads of a text; one that it would not read whole is refused, or cut."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        try:
            if not vector:
                return len(token_ids(model, tokenizer, text, truncate))
            longest = settings_of(self.loaded).context or model.config.context
            count = len(token_row(model, tokenizer, text, longest if truncate else None))
        except UserError as error:
            raise RequestError(str(error), field="input") from None
        if count > longest:
            raise RequestError(too_long(text, count, longest, True), 400, "input", "context_length_exceeded")
        return count

    def key(self, count: int) -> int:
        """Of a text of so many tokens: the length that it is padded to."""
        return padded_length(count, self.loaded.model.config.context)

    def vectors(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The vectors of some texts of one key."""
        compute = embedder(self.loaded.run.family, "it")
        return [*compute(self.loaded, self._whole(texts), settings_of(self.loaded)).numpy()[: len(texts)]]

    def classes(self, inputs: Sequence[Any]) -> list[Prediction]:
        """The classes of some texts of one key, or of some pictures."""
        how = {"truncate": True} if isinstance(inputs[0], str) else {}  # what must not be cut was refused
        return predict_loaded(self.loaded, self._whole(inputs), how)[: len(inputs)]

    def _whole(self, inputs: Sequence[Any]) -> list[Any]:
        return [*inputs, *[inputs[0]] * (self.rows - len(inputs))]


@torch.no_grad()
def steady(model: Any, rows: int) -> bool:
    """Whether a row's numbers have the same bits in every place and beside any neighbours."""
    random, good = torch.Generator().manual_seed(0), True
    example = model.example(rows)[0]
    if example.is_floating_point():
        inputs = [(torch.randn(example.shape, generator=random).to(example),)]
    else:
        inputs = []
        for length in {padded_length(1, example.shape[1]), example.shape[1]}:
            tokens = torch.randint(model.config.vocab, (rows, length), generator=random)
            places = torch.arange(length).repeat(rows, 1)
            places[places >= torch.randint(1, length + 1, (rows, 1), generator=random)] = NOWHERE
            inputs.append((tokens.to(example.device), places.to(example.device)))

    def computed(*batch: Tensor) -> Tensor:
        with evaluating(model.modules()):
            return model(batch[0], *map(Span.at, batch[1:]))

    for batch in inputs:
        together = computed(*batch)
        for place in range(rows):
            rolled = computed(*(one.roll(place, 0) for one in batch))
            alone = computed(*(one[place : place + 1].expand_as(one).contiguous() for one in batch))
            good = good and torch.equal(rolled.roll(-place, 0), together) and torch.equal(alone[0], together[place])
    return good


def embeddings(model: str, found: Sequence[np.ndarray], count: int, form: str) -> dict[str, Any]:
    """The answer of /v1/embeddings, of texts of so many tokens."""
    data = [{"object": "embedding", "index": i, "embedding": _written(row, form)} for i, row in enumerate(found)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def _written(row: np.ndarray, form: str) -> Any:
    return row.tolist() if form == "float" else base64.b64encode(row.astype("<f4").tobytes()).decode()


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
