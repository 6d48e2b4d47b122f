"""The answer of a model to one input, computed as `pencil sample` computes it, without recording anything."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from ..core.span import Span
from ..data.tokenizers.detokenizer import Detokenizer
from ..families.explore_profile import ExploreProfile, Prompt, data_address
from ..families.reader import embed_texts, settings_of
from ..inference.autoencoder import autoencoder_of, has_latents
from ..inference.diffusion import (
    RectifiedFlow,
    classifier_free_guidance,
    draw_noise,
    sample_steps,
    split_variance,
)
from ..inference.generation import Generation
from ..inference.image_sampling import decoder_of, process_of
from ..inference.sampling import Candidates, Sampling, candidates, probabilities
from ..inference.text_batches import token_label
from ..runs.run import Loaded
from ..tracing.address import address
from .edits import Edit, EditedModel
from .json_values import number, packed
from .requests import State

Label = Callable[[int], str]
Model = nn.Module | EditedModel
OnEvent = Callable[[str, dict[str, Any]], object]
MOST_VECTOR_NUMBERS = 8192  # of a vector that is sent
SHORT_PROMPT_TOKENS = 64  # of a prompt that a small model reads on one thread
PICTURE_MOMENTS = 26  # of a picture on its way out of the noise
SLOW_MOMENTS = 7  # of a video, or of a large picture, or where each moment goes through the autoencoder
LARGE_PICTURE = 64 * 64  # pixels
MOST_RIVALS = 8  # bars of the likeliest tokens beside each token of the answer
MOST_ROWS = 12  # rows of the table that leads from the logits to the token


class Stopped(Exception):
    """The client does not want the answer any more."""


@dataclass(frozen=True)
class Listener:
    """Who waits for the end of some work, hears of its events, and may not want it any more."""

    on_event: OnEvent | None = None
    stopped: Callable[[], bool] | None = None

    def tell(self, name: str, content: dict[str, Any]) -> None:
        if self.on_event is not None:
            self.on_event(name, content)

    def step(self, done: int, total: int, text: str) -> None:
        """Say how far the work is; end it when nobody waits for it."""
        if self.stopped is not None and self.stopped():
            raise Stopped
        self.tell("progress", {"done": done, "total": total, "text": text})


NOBODY = Listener()


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Torch on one thread, if wanted: in a small model, waking another one takes longer than what it saves."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Question:
    """A state of a model, who listens to its answer, and whether the model is small: then it computes on one thread."""

    loaded: Loaded
    profile: ExploreProfile
    state: State
    edits: Sequence[Edit]
    live: bool
    listener: Listener


@dataclass
class Answer:
    """An answer as the page shows it, and the tokens that were read and written, which its trace reads again."""

    shown: dict[str, Any]
    prompt: Prompt
    written: list[int] = field(default_factory=list)


@torch.no_grad()
def answer(question: Question) -> Answer:
    """The answer to a state."""
    began = time.perf_counter()
    loaded, profile, state = question.loaded, question.profile, question.state
    prompt = profile.read(loaded, state.input)
    model = EditedModel(loaded.model, question.edits) if question.edits else loaded.model
    written: list[int] = []
    if profile.draws:
        shown = _draw(question, model, prompt)
    elif profile.writes:
        with ExitStack() as threads:
            shown, written = _write(question, model, prompt, threads)
    else:
        with one_thread(question.live):
            shown = _embed(question, model, prompt) if prompt.texts else _read(question, model, prompt)
    if isinstance(model, EditedModel):
        model.check()
    words, facts = profile.layout(loaded, prompt, written)
    notes = [*shown.pop("notes", [])]
    if prompt.picture is not None:
        shown["picture"] = data_address(prompt.picture)
    shown = {
        "state": state.as_json(),
        "milliseconds": round(1000 * (time.perf_counter() - began), 1),
        "words": words,
        **shown,
        **{name: facts[name] for name in ("grid", "first_patch", "first_word") if name in facts},
        "notes": notes,
    }
    return Answer(shown, prompt, written)


# ---- a text, token by token


class Watched:
    """A model that remembers the logits it gave last."""

    def __init__(self, model: Model):
        self.model, self.logits = model, torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        out = self.model(*args, **named)
        self.logits = out[:, -1]
        return out


def _write(question: Question, model: Model, prompt: Prompt, threads: ExitStack) -> tuple[dict[str, Any], list[int]]:
    """A text, token by token, each with the way it was drawn.

    A small model writes on one thread; a long prompt is read on all of them.
    """
    loaded, listener, options = question.loaded, question.listener, question.state.options
    tokenizer, how = loaded.tokenizer, sampling_of(options)
    watched, most = Watched(model), int(options["tokens"])
    generation = Generation(
        watched,
        [list(prompt.ids)],
        most,
        how,
        end=tokenizer.ends,
        never=tokenizer.never,
        vocab=tokenizer.vocab,
        given=prompt.given,
        cached=not isinstance(model, EditedModel),
        capture=False,
    )
    # a picture's tokens come before the text, and logits are of the text alone
    before = loaded.model.config.before if "picture" in prompt.given else 0
    first = len(prompt.ids) - 1
    text, tokens, written = Detokenizer(tokenizer, prompt.ids), [], []
    pieces = []
    listener.step(0, most, "reading")
    if len(prompt.ids) < SHORT_PROMPT_TOKENS:
        threads.enter_context(one_thread(question.live))
    for i, (token,) in enumerate(generation):
        assert token is not None
        if i == 0:
            threads.enter_context(one_thread(question.live))
        # the random number that drew the token
        uniform = None if how.temperature == 0 else float(generation.state.uniforms[0, int(generation.state.turn) - 1])
        drawn = _token(
            loaded,
            watched.logits[0],
            generation.allowed(watched.logits)[0],
            how,
            uniform,
            token,
            (0, first + i),
            before,
        )
        tokens.append(drawn)
        written.append(token)
        if token not in tokenizer.ends:
            pieces.append(text.add(token))
        listener.tell("token", drawn)
        listener.step(i + 1, most, "writing")
    pieces.append(text.rest())
    notes = []
    if "context" in generation.reasons:
        notes.append(f"The context of {loaded.model.config.context} tokens is full.")
    return {"text": "".join(pieces), "tokens": tokens, "notes": notes}, written


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

    *top, drawn = bars(logits, label, where, also=[token])
    return {
        "text": label(token),
        "id": token,
        "position": before + where[1],
        "cell": address("logits", (*where, token)),
        "probability": drawn["probability"],
        "top": top,
        "chosen": drawing(allowed, how, uniform, token, label),
    }


# ---- how a token is drawn: from its logits through temperature, top-k, top-p and min-p to an interval of [0, 1)


def sampling_of(options: Mapping[str, float]) -> Sampling:
    """The sampling rules of the options; 0 for top-k and min-p, and 1 for top-p, are off."""
    top_k, top_p, min_p = int(options["top_k"]), options["top_p"], options["min_p"]
    return Sampling(
        float(options["temperature"]),
        top_k or None,
        None if top_p >= 1 else float(top_p),
        float(min_p) or None,
        seed=int(options["seed"]),
    )


def ranked(logits: np.ndarray) -> np.ndarray:
    """The ids, the largest logit first; of equal ones the lower id first."""
    return np.argsort(-logits, kind="stable")


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """The first ids of `ranked`, without sorting all of a vocabulary at every token."""
    if count >= len(logits):
        return ranked(logits)
    some = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return some[ranked(logits[some])[:count]] if len(some) >= count else ranked(logits)[:count]


def softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max()
    shifted = np.exp(logits - top) if np.isfinite(top) else np.full_like(logits, np.nan)
    return shifted / shifted.sum()


def bars(
    logits: Tensor, label: Label, where: tuple[int, ...], count: int | None = MOST_RIVALS, also: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """The likeliest tokens or classes of one row of logits, then `also` those; `where` is the row's index."""
    z = logits.detach().double().cpu().numpy()
    p, order = softmax(z), largest(z, len(z) if count is None else count)
    return [
        {
            "label": label(int(i)),
            "id": int(i),
            "logit": number(z[i]),
            "probability": number(p[i]),
            "cell": address("logits", (*where, i)),
        }
        for i in (*order, *also)
    ]


def drawing(logits: Tensor, how: Sampling, uniform: float | None, drawn: int, label: Label) -> dict[str, Any]:
    """The way from the logits that may be drawn to the one that was; `uniform` is the random number, if there is one.

    Intervals follow one another in the order of ids, as sampling itself lays them out.
    """
    z = logits.detach().double().cpu().numpy()
    if how.temperature == 0:
        scaled, likely, keep = z, softmax(z), np.arange(len(z)) == drawn
        cuts, final = np.full(len(z), "", object), keep.astype(float)
    else:
        row = logits.detach().cpu()[None]
        scaled, likely = z / how.temperature, softmax((z - z.max()) / how.temperature)
        cuts = _cuts(candidates(row, how), len(z))
        keep = cuts == ""
        final = probabilities(row, how)[0].numpy()
    ends = final.cumsum()
    starts = np.concatenate(([0.0], ends[:-1]))
    listed = list(dict.fromkeys([*largest(z, MOST_ROWS).tolist(), drawn]))
    others = np.ones(len(z), bool)
    others[listed] = False
    rows = [
        {
            "label": label(i),
            "id": i,
            "logit": number(z[i]),
            "scaled": number(scaled[i]),
            "probability": number(likely[i]),
            "kept": bool(keep[i]),
            "cut": str(cuts[i]),
            "final": number(final[i]),
            "from": number(starts[i] / ends[-1]),
            "to": number(ends[i] / ends[-1]),
            "drawn": i == drawn,
        }
        for i in listed
    ]
    return {"rows": rows, "uniform": uniform, "rest": number(likely[others].sum())}


def _cuts(row: Candidates, vocab: int) -> np.ndarray:
    """For each id the rule that leaves it out, or nothing."""
    cuts = np.full(row.probabilities.shape[1], "", object)
    for keep, rule in ((row.within_min_p, "min-p"), (row.within_top_p, "top-p")):
        if keep is not None:
            cuts[~keep[0].numpy()] = rule
    if row.ids is None:
        return cuts
    of_all = np.full(vocab, "top-k", object)
    of_all[row.ids[0].numpy()] = cuts
    return of_all


# ---- what is read at once


def _read(question: Question, model: Model, prompt: Prompt) -> dict[str, Any]:
    """Classes, or the token at each masked position."""
    loaded = question.loaded
    question.listener.step(0, 1, "reading")
    tokens = {"tokens": torch.tensor([list(prompt.ids)], device=loaded.device)} if prompt.ids else {}
    logits = model(**tokens, **prompt.given)[0]
    if prompt.masked:
        vocab = loaded.tokenizer.vocab
        rows = [(at, logits[at][:vocab]) for at in prompt.masked]
        tokens = [_token(loaded, row, row, Sampling(0.0), None, int(row.argmax()), (0, at)) for at, row in rows]
        return {"tokens": tokens, "text": " ".join(token["text"] for token in tokens)}
    names = loaded.classes
    return {"classes": bars(logits, lambda i: names[i] if i < len(names) else str(i), (0,), None)}


def _embed(question: Question, model: Model, prompt: Prompt) -> dict[str, Any]:
    """The vector of the first text, and how alike those of the others are."""
    notes: list[str] = []
    loaded = question.loaded
    vectors = embed_texts(loaded._replace(model=model), prompt.texts, settings_of(loaded), notes.append)
    if vectors.shape[1] > MOST_VECTOR_NUMBERS:
        raise UserError(f"a vector of {vectors.shape[1]:,} numbers is too long to be shown")
    unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
    alike = (unit[1:] @ unit[0]).tolist()
    nearest = sorted(zip(prompt.texts[1:], alike, strict=True), key=lambda pair: -pair[1])
    return {
        "vector": [number(entry) for entry in vectors[0].tolist()],
        "nearest": [{"text": text, "similarity": number(value)} for text, value in nearest],
        "notes": notes,
    }


# ---- a picture, out of the noise


class Painter:
    """What makes pictures that a page can show of what a diffusion model computes."""

    def __init__(self, loaded: Loaded):
        autoencoder = autoencoder_of(loaded.run, loaded.device)
        latents = autoencoder is not None or has_latents(loaded.run, loaded.model.config)
        self.decodes, self.bare = autoencoder is not None, latents and autoencoder is None
        self.process, self._decode = process_of(loaded.model.config, latents), decoder_of(autoencoder)

    def clean(self, x: Tensor, predicted: Tensor, t: Any) -> Tensor:
        """The clean picture that a prediction at time t implies."""
        predicted, _ = split_variance(predicted, x.shape[1])
        if isinstance(self.process, RectifiedFlow):
            return x - t * predicted
        return self.process.split(x, predicted, t)[0]

    def address(self, x: Tensor) -> str:
        """A picture as a data address; the frames of a video stand side by side."""
        return data_address(_side_by_side(self._decode(x[:, :3] if self.bare else x)[0]))


def _draw(question: Question, model: Model, prompt: Prompt) -> dict[str, Any]:
    """The picture that `pencil sample` draws with the same seed, and moments on the way to it.

    A moment has the number of steps before it, the time, the noisy picture there, the clean one that the model predicts
    from it, and, with guidance, how that differs with and without the condition. The frames of a video stand side by
    side.
    """
    loaded, listener, options = question.loaded, question.listener, question.state.options
    c, device, steps = loaded.model.config, loaded.device, int(options["steps"])
    painter = Painter(loaded)
    process = painter.process
    generators = [torch.Generator().manual_seed(int(options["seed"]) * 1_000_003)]
    x = draw_noise((1, c.channels, *c.sides), generators).to(device)
    condition = prompt.condition
    places = Span.at(condition[1].to(device)) if len(condition) > 1 else None
    seen: dict[str, Tensor] = {}

    def watched(*inputs: Any) -> Tensor:
        seen["both"] = model(*inputs)
        return seen["both"]

    guidance = float(options.get("guidance", 1.0))
    guided = classifier_free_guidance(watched, condition[0].to(device) if condition else None, guidance, places)

    def denoise(x: Tensor, timestep: Tensor) -> Tensor:
        seen["x"], seen["predicted"] = x, guided(x, timestep)
        return seen["predicted"]

    quick = c.frames == 1 and not painter.decodes and math.prod(c.sides) <= LARGE_PICTURE
    few = PICTURE_MOMENTS if quick else SLOW_MOMENTS
    moments = set(np.linspace(0, steps, min(few, steps + 1)).astype(int).tolist())
    frames, times = [], process.times(steps)
    listener.step(0, steps, "denoising")
    for done, after in enumerate(sample_steps(process, denoise, x, steps, None, generators)):
        if done in moments:
            clean = painter.clean(seen["x"], seen["predicted"], times[done])
            frame = {
                "step": done,
                "time": float(times[done]),
                "picture": painter.address(seen["x"]),
                "clean": painter.address(clean),
            }
            if len(seen["both"]) > 1:
                conditional, unconditional = (
                    painter.clean(seen["x"], half, times[done]) for half in seen["both"].chunk(2)
                )
                frame["guide"] = signed_map(conditional - unconditional)
            frames.append(frame)
            listener.tell("frame", frame)
        x = after
        listener.step(done + 1, steps, "denoising")
    if not x.isfinite().all():
        raise UserError("the sampling diverged: choose a lower guidance, or take back an edit")
    frames.append({"step": steps, "time": 0.0, "picture": painter.address(x)})
    listener.tell("frame", frames[-1])
    notes = {
        "The frames of the video stand side by side.": c.frames > 1,
        "The run has no autoencoder: three channels of its latents are shown as colours.": painter.bare,
        "The edits are made at every denoising step.": model is not loaded.model,
    }
    shown = [line for line, holds in notes.items() if holds]
    return {"picture": frames[-1]["picture"], "frames": frames, "notes": shown}


def signed_map(difference: Tensor) -> dict[str, Any]:
    """The mean over the channels of a picture that may be negative: bytes, of which 127 stands for `top`."""
    values = _side_by_side(difference[0].double().cpu().numpy()).mean(0)
    top = float(np.abs(values).max())
    scaled = np.rint(127 * values / top) if top else values
    return {"shape": list(values.shape), "values": packed(scaled, "i1"), "top": top}


def _side_by_side(picture: np.ndarray) -> np.ndarray:
    """The frames (C, F, H, W) of a video in a row; a picture as it is."""
    return np.concatenate(list(picture.swapaxes(0, 1)), -1) if picture.ndim == 4 else picture
