"""An encoder–decoder traced on a source and its target, and as the explorer shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from ...inference.text_batches import (
    greedy_targets,
    source_inputs,
    start_token,
    target_ids,
    token_label,
    vocabulary_labels,
)
from ...runs.run import Loaded
from ...tracing.live_trace import LiveTrace, trace
from ..explore_inputs import example_sources, named, text_of
from ..explore_profile import ExploreProfile, Given, Prompt, writing_controls
from ..options import INPUT, TextTraceInput
from ..trace_labels import check_context


@dataclass(frozen=True)
class TraceOptions(TextTraceInput):
    """What `pencil trace` reads."""

    text: Annotated[
        str | None,
        Parameter(group=INPUT, help="The target. Default: the one the model generates.", allow_leading_hyphen=True),
    ] = None


def trace_pair(loaded: Loaded, options: TraceOptions, double: bool = False) -> LiveTrace:
    """The model on a source and its target."""
    model, tokenizer, _ = loaded
    source = str(options.given)
    model = model.double() if double else model
    target = greedy_targets(model, tokenizer, [source])[0] if options.text is None else options.text
    given = source_inputs(model, tokenizer, [source])["source"]
    ids = target_ids(tokenizer, target)
    if options.text is None:  # a text as long as the context may be read as more tokens than were generated
        ids = ids[: model.config.context]
    check_context(ids, model.config.context, "target with its first token")
    return _trace_ids(loaded._replace(model=model), given, ids, target)


def _trace_ids(loaded: Loaded, source: torch.Tensor, ids: Sequence[int], target: str) -> LiveTrace:
    """The model on the tokens of a source and of its target."""
    model, tokenizer, _ = loaded
    words = _words(tokenizer, ids)
    labels = {
        "T": words,
        "S": words,
        "s": [*(token_label(tokenizer, i) for i in source[0, :-1].tolist()), "end"],
        "V": vocabulary_labels(tokenizer, model.config.vocab),
    }
    facts = {"text": target, "first_word": 0}
    return trace(model, torch.tensor([list(ids)]), source, words=labels, facts=facts)


def _words(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return ["begin", *(token_label(tokenizer, i) for i in ids[1:])]


def _read(loaded: Loaded, given: Given) -> Prompt:
    model, tokenizer, _ = loaded
    ids = (start_token(tokenizer), *tokenizer.encode_target(text_of(given)).tolist())
    check_context(ids, model.config.context, "beginning of the target with its first token")
    return Prompt(ids, source_inputs(model, tokenizer, [text_of(given, "source")]))


def _trace_answer(loaded: Loaded, prompt: Prompt, written: Sequence[int], options: Any) -> LiveTrace:
    ids = (*prompt.ids, *written[:-1])
    return _trace_ids(loaded, prompt.given["source"], ids, loaded.tokenizer.decode(list(ids[1:])))


EXPLORE = ExploreProfile(
    takes=lambda loaded: {
        "source": {"label": "Source", "longest": loaded.model.config.source_context - 1},
        "text": {"label": "How the target begins", "longest": loaded.model.config.context - 1, "optional": True},
    },
    output=lambda loaded: "tokens",
    read=_read,
    trace=_trace_answer,
    layout=lambda loaded, prompt, written: (_words(loaded.tokenizer, (*prompt.ids, *written[:-1])), {"first_word": 0}),
    examples=lambda loaded: named([{"source": text} for text in example_sources(loaded)], "source"),
    controls=lambda loaded: writing_controls(loaded.model.config.context - 1, loaded.model.config.context - 1, 0.0),
    writes=True,
)
