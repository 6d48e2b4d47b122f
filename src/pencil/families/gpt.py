"""GPT: text in, the next token out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from ..config import UserError
from ..cost.activations import SELF_ATTENTION_FLOPS, Activations, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile, text_length
from ..data.builtin import TEXTS
from ..data.tokenizers.tokenizer import Tokenizer
from ..inference.graphs import Graph, RuntimeProfile, Step, WholeText, step_inputs, text
from ..inference.head_patterns import SELF_ATTENTION, AttentionGroup, HeadProfile, Inputs, line, windows
from ..inference.text_batches import token_label, vocabulary_labels
from ..inference.text_stream import stream
from ..models.gpt import GPT, PRESETS, GPTConfig
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..tracing.loss import next_tokens
from ..train.tasks.language_modeling import LanguageModeling
from ..weights.gpt2 import GPT2
from ..weights.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from ..weights.llama_original import LLAMA_ORIGINAL
from ..weights.nanogpt import NANOGPT
from ..weights.neox import NEOX
from .explore_profile import (
    ExploreProfile,
    Given,
    Prompt,
    TargetInput,
    check_context,
    example_texts,
    named,
    text_of,
    writing_controls,
)
from .family import Family
from .options import (
    GENERATION,
    INPUT,
    REPEATABLE,
    SEPARATOR,
    Decoding,
    Output,
    TextOutput,
    Texts,
    TextTraceInput,
    TokenizerOptions,
    default,
    joined,
)
from .predictions import Text, check_texts, grouped
from .runtime_examples import NEW_TOKENS, empty_cache, encoded, generated, sessions, tokenizer_of

_GPT2 = dict(
    optimizer="adamw",
    lr=6e-4,
    final_lr_fraction=0.1,
    batch=12,
    accumulate=40,
    warmup=2000,
    steps=600_000,
    beta2=0.95,
    save_every=1000,
)
# of the LLaMA papers: batches of four million tokens
_LLAMA = dict(
    optimizer="adamw",
    lr=3e-4,
    final_lr_fraction=0.1,
    batch=1,
    accumulate=1024,
    warmup=2000,
    steps=500_000,
    beta2=0.95,
    save_every=1000,
)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": dict(),
    "nanogpt": dict(optimizer="adamw", lr=1e-3, final_lr_fraction=0.1),
    "seed": dict(),
    "small": dict(batch=16),
    "shakespeare": dict(batch=64, steps=1250, eval_every=125, save_every=500),
    "llama-nano": dict(),
    "gpt2": _GPT2,
    "gpt2-medium": _GPT2 | dict(lr=3e-4),
    "gpt2-large": _GPT2 | dict(lr=2.5e-4),
    "gpt2-xl": _GPT2 | dict(lr=2e-4),
    "llama2-7b": _LLAMA,
    "llama2-13b": _LLAMA,
    "llama2-70b": _LLAMA | dict(lr=1.5e-4),
    "llama3-8b": _LLAMA | dict(accumulate=512),
    "llama3-70b": _LLAMA | dict(lr=1.5e-4, accumulate=512),
}


TEMPERATURE = 0.8


@dataclass(frozen=True)
class SampleOptions(TextOutput, Decoding):
    """What `pencil sample` takes."""

    prompt: Annotated[
        Texts,
        Parameter(group=INPUT, help="The text to continue; may be repeated; - is standard input.", **REPEATABLE),
    ] = None
    temperature: Annotated[
        float | None,
        Parameter(
            group=GENERATION, help="Sampling temperature; 0 is greedy decoding.", show_default=default(TEMPERATURE)
        ),
    ] = None
    slide: Annotated[
        bool,
        Parameter(group=GENERATION, help="When the context is full, drop its older half and continue.", negative=()),
    ] = False


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """Continue each prompt."""
    model, tokenizer, run = loaded
    if tokenizer is None:
        raise run.no_tokenizer()
    begun, reasons = options.prompt or [_default_prompt(tokenizer)], []
    prompts, pieces = _continue(loaded, begun, options, reasons, output.note)
    shown = prompts if options.prompt else [""] * len(prompts)
    if len(prompts) == 1 and output.streams:
        output.stream(shown[0], pieces)
    else:
        texts = joined(shown, pieces)
        output.texts(texts, SEPARATOR)
        output.result([{"prompt": prompt, "text": text} for prompt, text in zip(shown, texts, strict=True)])
    if "context" in reasons:
        output.note(f"(stopped: the context of {model.config.context} tokens is full; --slide continues)")


def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Any]:
    """The continuation of each text, sampled as `pencil sample` does."""
    prompts, pieces = _continue(loaded, check_texts(inputs, "the input of this model"), options, reasons := [])
    new = joined([""] * len(prompts), pieces)
    rows = zip(prompts, new, reasons, strict=True)
    return grouped([Text(begun + text, text, why) for begun, text, why in rows], options.count)


def _continue(
    loaded: Loaded,
    begun: Sequence[str],
    options: SampleOptions,
    reasons: list[str],
    notify: Callable[[str], None] | None = None,
) -> tuple[list[str], Iterator[list[str]]]:
    """Each prompt as often as it is continued, and the pieces of its continuation."""
    count = options.count or 1
    prompts = [text for text in begun for _ in range(count)]
    pieces = stream(
        loaded.model,
        loaded.tokenizer,
        prompts,
        options.max_new_tokens,
        options.sampling(TEMPERATURE),
        stop=options.stop or [],
        samples=[k for _ in begun for k in range(count)],
        slide=options.slide,
        reasons=reasons,
        compile=options.compile,
        notify=notify,
    )
    return prompts, pieces


def _default_prompt(tokenizer: Tokenizer) -> str:
    """A prompt when none is given: what begins a text, else the end of the text before, or a new line."""
    if tokenizer.begin is not None:
        return ""
    if tokenizer.end is not None:
        return tokenizer.token(tokenizer.end)
    return "\n" if "\n" in getattr(tokenizer, "characters", "\n") else tokenizer.decode([0])


def _begin(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.begin is None else [tokenizer.begin]


def _windows(loaded: Loaded, ids: Any) -> list[Inputs]:
    return windows(ids, loaded.model.config.context, _begin(loaded.tokenizer))


def trace_text(loaded: Loaded, options: TextTraceInput, double: bool = False) -> LiveTrace:
    """The model on one text."""
    model, tokenizer, _ = loaded
    ids = [*_begin(tokenizer), *tokenizer.encode(options.given).tolist()]
    if not ids:
        raise UserError("--input is empty: give at least one token")
    check_context(ids, model.config.context, "input")
    return _trace_ids(loaded, ids, double)


def _trace_ids(loaded: Loaded, ids: Sequence[int], double: bool = False) -> LiveTrace:
    model, tokenizer, _ = loaded
    words = _words(tokenizer, ids)
    labels = {"T": words, "S": words, "V": vocabulary_labels(tokenizer, model.config.vocab)}
    tokens, targets = torch.tensor([list(ids)]), next_tokens(ids)
    return trace(model.double() if double else model, tokens, words=labels, targets=targets)


def _activations(c: GPTConfig, batch: int, length: int | None, half: int) -> Activations:
    tokens = text_length(c, length)
    rows = batch * tokens
    blocks = [block_group(c, batch, tokens, c.depth, half)]
    dropped = rows * c.width if c.dropout else 0
    return Activations(blocks, dropped, rows * (norm_bytes(c) + half * c.width), rows * c.vocab)


def _parameter_formulas(c: GPTConfig) -> dict[str, str]:
    norms = f"(2·L + 1)·{'2·' if c.norm == 'layer' and c.bias else ''}D"
    table = {"positions": "context·D"} if c.positions == "learned" else {}  # others have other parameters, or none
    return block_formulas(c) | table | {"embeddings": "V·D", "head": "V·D", "norms": norms}


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [token_label(tokenizer, i) for i in ids]


def _read(loaded: Loaded, given: Given) -> Prompt:
    tokenizer = loaded.tokenizer
    text = text_of(given) or _default_prompt(tokenizer)
    ids = (*_begin(tokenizer), *tokenizer.encode(text).tolist())
    check_context(ids, loaded.model.config.context, "text")
    return Prompt(ids)


EXPLORE = ExploreProfile(
    takes=lambda loaded: {
        "text": {"label": "Text to continue", "longest": loaded.model.config.context, "optional": True}
    },
    output=lambda loaded: "tokens",
    read=_read,
    trace=lambda loaded, prompt, written, options: _trace_ids(loaded, (*prompt.ids, *written[:-1])),
    layout=lambda loaded, prompt, written: (_words(loaded.tokenizer, (*prompt.ids, *written[:-1])), {}),
    examples=lambda loaded: named([{"text": text} for text in example_texts(loaded)], "text"),
    controls=lambda loaded: writing_controls(12, loaded.model.config.context, TEMPERATURE),
    writes=True,
    target=lambda loaded: TargetInput(),  # a text's targets are its next tokens
    with_target=lambda loaded, prompt, target: _trace_ids(loaded, prompt.ids),
)


def _graphs(model: GPT) -> list[Graph]:
    c = model.config
    store = step_inputs(c.vocab, (c.depth, c.kv_head_count, c.head_width))
    return [
        Graph("model", WholeText(model), text(c.vocab), ("logits",)),
        Graph("step", Step(model), store, ("logits", "present")),
    ]


def _example(run: Run, c: GPTConfig) -> str:
    """A text continued."""
    tokenizer, half = run.tokenizer, c.context // 2
    prompt = encoded(tokenizer, () if tokenizer.begin is None else (tokenizer.begin,), longest=half)
    return (
        f"import numpy as np\nimport onnxruntime\n{tokenizer_of(tokenizer)}{sessions('step')}"
        f"{empty_cache(c.depth, c.kv_head_count, c.head_width)}"
        f"{generated(tokenizer, prompt, 'new', min(NEW_TOKENS, half))}"
    )


FAMILY = Family(
    name="gpt",
    summary="text to the next token",
    config=GPTConfig,
    model=GPT,
    presets=PRESETS,
    training=TRAINING,
    task=LanguageModeling,
    data="pydoc",
    data_help="A text file, .jsonl or Parquet, a folder or a pattern of files, hf:OWNER/NAME, - for standard input, or "
    "pydoc (built in).",
    data_decides=False,
    embedded=tuple(TEXTS),
    data_settings=("text_column",),
    eval_help="loss, perplexity, bits per byte",
    train_options=TokenizerOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    trace_options=TextTraceInput,
    trace=trace_text,
    explore=EXPLORE,
    cost=CostProfile(
        tokens=text_length,
        takes_length=True,
        decodes=True,
        activations=_activations,
        parameter_formulas=_parameter_formulas,
        flop_formulas=lambda c: SELF_ATTENTION_FLOPS | {"head": "2·V·D"},
    ),
    heads=HeadProfile(
        lambda model, inputs: [AttentionGroup("", SELF_ATTENTION, line(model.mask, inputs[0].shape[1]))],
        held_out=lambda loaded, task: _windows(loaded, task.data.val),
        from_text=lambda loaded, text: _windows(loaded, loaded.tokenizer.encode(text)),
        induction=lambda model, texts: ([], 0),
    ),
    generates=True,
    checkpoints=(GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, NEOX, LLAMA_ORIGINAL, NANOGPT),
    runtime=RuntimeProfile(_graphs, _example),
)
