"""The answer of a model to one input, computed as `pencil sample` computes it, without recording anything."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..data.tokenizers.detokenizer import Detokenizer
from ..families.embedding import embed_texts, settings_of
from ..families.explore_inputs import data_address
from ..families.explore_profile import ExploreProfile, Prompt
from ..inference.generation import Generation
from ..inference.sampling import Sampling
from ..inference.text_batches import token_label
from ..runs.run import Loaded
from .denoising import drawn
from .edited import Edit, Edited, Watched
from .plain import address, number
from .state import State
from .threads import one_thread
from .token_choice import bars, drawing, sampling_of

OnEvent = Callable[[str, dict[str, Any]], None]
LARGEST_VECTOR = 8192  # numbers of a vector that is sent
SHORT = 64  # tokens of a prompt that a small model reads on one thread


class Stopped(Exception):
    """Whoever asked does not want the answer any more."""


@dataclass(frozen=True)
class Job:
    """One question to a model, and who listens to the answer."""

    loaded: Loaded
    profile: ExploreProfile
    state: State
    edits: Sequence[Edit] = ()
    live: bool = False  # a small model, whose answer is wanted at once
    on_event: OnEvent = lambda name, content: None
    stopped: Callable[[], bool] = lambda: False

    def step(self, done: int, total: int, text: str) -> None:
        """Say how far the work is; end it when nobody waits for it."""
        if self.stopped():
            raise Stopped
        self.on_event("progress", {"done": done, "total": total, "text": text})


@dataclass
class Found:
    """An answer, and the tokens it wrote, which its trace reads again."""

    answer: dict[str, Any]
    prompt: Prompt
    written: list[int] = field(default_factory=list)


@torch.no_grad()
def answer(job: Job) -> Found:
    """The answer to a state."""
    began = time.perf_counter()
    prompt = job.profile.read(job.loaded, job.state.input)
    model = Edited(job.loaded.model, job.edits) if job.edits else job.loaded.model
    written: list[int] = []
    if job.profile.draws:
        about = drawn(job.loaded, model, prompt, job.state.options, job.on_event, job.step)
    elif job.profile.writes:
        with ExitStack() as threads:
            about, written = _written(job, model, prompt, threads)
    else:
        with one_thread(job.live):
            about = _vector(job, model, prompt) if prompt.texts else _read(job, model, prompt)
    if isinstance(model, Edited):
        model.check()
    words, facts = job.profile.layout(job.loaded, prompt, written)
    notes = [*about.pop("notes", [])]
    if prompt.picture is not None:
        about["picture"] = data_address(prompt.picture)
    found = {
        "state": job.state.as_json(),
        "milliseconds": round(1000 * (time.perf_counter() - began), 1),
        "words": words,
        **about,
        **{name: facts[name] for name in ("grid", "first_patch", "first_word") if name in facts},
        "notes": notes,
    }
    return Found(found, prompt, written)


def _written(job: Job, model: Any, prompt: Prompt, threads: ExitStack) -> tuple[dict[str, Any], list[int]]:
    """A text, token by token, each with the way it was drawn.

    A small model writes on one thread; a long prompt is read on all of them.
    """
    tokenizer, how = job.loaded.tokenizer, sampling_of(job.state.options)
    watched, most = Watched(model), int(job.state.options["tokens"])
    generation = Generation(
        watched,
        [list(prompt.ids)],
        most,
        how,
        end=tokenizer.ends,
        never=tokenizer.never,
        vocab=tokenizer.vocab,
        given=prompt.given,
        cached=not isinstance(model, Edited),
        capture=False,
    )
    # a picture's tokens come before the text, and logits are of the text alone
    before = job.loaded.model.config.before if "picture" in prompt.given else 0
    first = len(prompt.ids) - 1
    text, tokens, written = Detokenizer(tokenizer, prompt.ids), [], []
    pieces = []
    job.step(0, most, "reading")
    if len(prompt.ids) < SHORT:
        threads.enter_context(one_thread(job.live))
    for i, (token,) in enumerate(generation):
        assert token is not None
        if i == 0:
            threads.enter_context(one_thread(job.live))
        uniform = None if how.temperature == 0 else _uniform(generation)
        one = _token(
            job.loaded,
            watched.logits[0],
            generation.allowed(watched.logits)[0],
            how,
            uniform,
            token,
            (0, first + i),
            before,
        )
        tokens.append(one)
        written.append(token)
        if token not in tokenizer.ends:
            pieces.append(text.add(token))
        job.on_event("token", one)
        job.step(i + 1, most, "writing")
    pieces.append(text.rest())
    notes = []
    if "context" in generation.reasons:
        notes.append(f"The context of {job.loaded.model.config.context} tokens is full.")
    return {"text": "".join(pieces), "tokens": tokens, "notes": notes}, written


def _uniform(generation: Generation) -> float:
    """The random number that drew the latest token."""
    return float(generation.state.uniforms[0, int(generation.state.turn) - 1])


def _token(
    loaded: Loaded,
    logits: Tensor,
    allowed: Tensor,
    how: Sampling,
    uniform: float | None,
    token: int,
    where: tuple[int, int],
    before: int = 0,
) -> dict[str, Any]:
    """A token that was chosen, with its rivals."""
    tokenizer = loaded.tokenizer

    def label(i: int) -> str:
        if i >= tokenizer.vocab:
            return "·"
        return "end" if i in tokenizer.ends else token_label(tokenizer, i)

    *top, mine = bars(logits, label, where, also=[token])
    return {
        "text": label(token),
        "id": token,
        "position": before + where[1],
        "cell": address("logits", (*where, token)),
        "probability": mine["probability"],
        "top": top,
        "chosen": drawing(allowed, how, uniform, token, label),
    }


def _inputs(prompt: Prompt, loaded: Loaded) -> dict[str, Any]:
    tokens = {"tokens": torch.tensor([list(prompt.ids)], device=loaded.device)} if prompt.ids else {}
    return {**tokens, **prompt.given}


def _read(job: Job, model: Any, prompt: Prompt) -> dict[str, Any]:
    """Classes, or the token at each masked position."""
    job.step(0, 1, "reading")
    logits = model(**_inputs(prompt, job.loaded))[0]
    if prompt.masked:
        vocab = job.loaded.tokenizer.vocab
        rows = [(at, logits[at][:vocab]) for at in prompt.masked]
        tokens = [_token(job.loaded, row, row, Sampling(0.0), None, int(row.argmax()), (0, at)) for at, row in rows]
        return {"tokens": tokens, "text": " ".join(one["text"] for one in tokens)}
    names = job.loaded.classes
    return {"classes": bars(logits, lambda i: names[i] if i < len(names) else str(i), (0,), None)}


def _vector(job: Job, model: Any, prompt: Prompt) -> dict[str, Any]:
    """The vector of the first text, and how alike those of the others are."""
    notes: list[str] = []
    how = settings_of(job.loaded)
    found = embed_texts(job.loaded._replace(model=model), prompt.texts, how, notes.append)
    if found.shape[1] > LARGEST_VECTOR:
        raise UserError(f"a vector of {found.shape[1]:,} numbers is too long to be shown")
    unit = torch.nn.functional.normalize(found.double(), dim=-1)
    alike = (unit[1:] @ unit[0]).tolist()
    nearest = sorted(zip(prompt.texts[1:], alike, strict=True), key=lambda pair: -pair[1])
    return {
        "vector": [number(one) for one in found[0].tolist()],
        "nearest": [{"text": text, "similarity": number(value)} for text, value in nearest],
        "notes": notes,
    }
