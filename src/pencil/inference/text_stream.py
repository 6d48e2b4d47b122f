"""Generated text, streamed as it is decoded: whole characters, stop strings, and the continuation whole."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from ..config import UserError, build
from ..data.tokenizers.detokenizer import Detokenizer
from ..data.tokenizers.tokenizer import Tokenizer
from .generation import Generation
from .sampling import Sampling


class TextStream:
    """One row's tokens as text, holding back what may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], prompt: Sequence[int] = ()):
        self.text, self.stop = Detokenizer(tokenizer, prompt), stop
        self.held = ""

    def add(self, *tokens: int) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string was met."""
        self.held += self.text.add(*tokens)
        met = [at for word in self.stop if (at := self.held.find(word)) >= 0]
        if met:
            shown, self.held = self.held[: min(met)], ""
            return shown, True
        keep = max((n for word in self.stop for n in range(1, len(word)) if self.held.endswith(word[:n])), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def rest(self) -> str:
        return self.held + self.text.rest()


def stream(
    model: Any,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    *,
    stop: str | Sequence[str] = (),
    samples: Sequence[int] | None = None,
    slide: bool = False,
    cached: bool = True,
    reasons: list[str] | None = None,
    begin: int | None = None,
    given: Mapping[str, Any] | None = None,
    compile: bool = False,
    notify: Callable[[str], None] | None = None,
    **settings: Any,
) -> Iterator[list[str]]:
    """Each step's new text, one piece a prompt; `reasons`, if given, is filled with why each row ended.

    A string is one prompt. How tokens are sampled is a `Sampling`, or its settings as keywords: temperature, top_k, …
    Bad input is refused before the first piece. `begin` is put before every prompt: the tokenizer's, unless given.
    `compile` compiles the decode step first, and `notify` is called with a line that says how long it took.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    stop = [stop] if isinstance(stop, str) else stop
    sampling = _sampling(sampling, settings)
    begin = tokenizer.begin if begin is None else begin
    ids = [([] if begin is None else [begin]) + tokenizer.encode(prompt).tolist() for prompt in prompts]
    generation = Generation(
        model,
        ids,
        max_new_tokens,
        sampling,
        samples=samples,
        end=tokenizer.ends,
        never=tokenizer.never,
        vocab=tokenizer.vocab,
        slide=slide,
        cached=cached,
        given=given,
        compile=compile,
        notify=notify,
    )
    texts = [TextStream(tokenizer, stop, prompt) for prompt in ids]
    return _pieces(generation, tokenizer, texts, [] if reasons is None else reasons)


def _pieces(
    generation: Generation, tokenizer: Tokenizer, texts: list[TextStream], reasons: list[str]
) -> Iterator[list[str]]:
    for step in generation:
        pieces = [""] * len(texts)
        for i, token in enumerate(step):
            if token is not None and token not in tokenizer.ends:
                pieces[i], met = texts[i].add(token)
                if met:
                    generation.finish(i, "stop")
        yield pieces
    yield ["" if reason == "stop" else text.rest() for text, reason in zip(texts, generation.reasons, strict=True)]
    reasons[:] = [reason or "length" for reason in generation.reasons]


def _sampling(sampling: Sampling | None, settings: Mapping[str, Any]) -> Sampling:
    """The sampling rules, as one object or as keywords."""
    if sampling is not None and not isinstance(sampling, Sampling):
        raise UserError(
            f"sampling is a pencil.Sampling, not {sampling!r}; its settings can be keywords: temperature=0.2"
        )
    if sampling is not None and settings:
        raise UserError(f"{next(iter(settings))} is a setting of sampling: give one of the two")
    return sampling or build(Sampling, settings)


def complete(
    model: Any, tokenizer: Tokenizer, prompts: str | Sequence[str], *args: Any, **options: Any
) -> str | list[str]:
    """The continuation of a prompt, or of each of several, whole; takes what `stream` takes."""
    texts = ["".join(row) for row in zip(*stream(model, tokenizer, prompts, *args, **options), strict=True)]
    return texts[0] if isinstance(prompts, str) else texts


complete.__signature__ = signature(stream).replace(return_annotation=str | list[str])  # pyright: ignore[reportFunctionMemberAccess]
