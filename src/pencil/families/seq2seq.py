"""Encoder–decoder: a source text in, a target text out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from ..config import UserError
from ..core.masks import causal, full
from ..cost.activations import FULL, Activations, block_formulas, block_group, norm_bytes, with_cross_attention
from ..cost.profile import CostProfile, text_length
from ..data.tables import pairs
from ..data.tokenizers.tokenizer import Tokenizer
from ..inference.attention_overlays import source_attention
from ..inference.beam import Hypothesis
from ..inference.graphs import (
    Encoded,
    Graph,
    Input,
    RuntimeProfile,
    Step,
    Translated,
    gaussian,
    source_text,
    step_inputs,
    text,
)
from ..inference.head_patterns import SELF_ATTENTION, AttentionGroup, HeadProfile, Inputs, every, line, row, spread
from ..inference.sampling import Sampling
from ..inference.text_batches import (
    beam_targets,
    end_token,
    greedy_targets,
    source_inputs,
    start_token,
    target_ids,
    token_label,
    vocabulary_labels,
)
from ..inference.text_stream import stream
from ..models.seq2seq import PRESETS, Seq2Seq, Seq2SeqConfig
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..tracing.loss import NONE, next_tokens
from ..train.schedule import published_peak
from ..train.tasks.translation import Translation
from ..weights.marian import MARIAN
from ..weights.t5 import T5
from .explore_profile import (
    ExploreProfile,
    Given,
    Prompt,
    TargetInput,
    check_context,
    example_sources,
    named,
    text_of,
    writing_controls,
)
from .family import Family
from .options import (
    GENERATION,
    INPUT,
    MOST_SAMPLES,
    REPEATABLE,
    AttentionOutput,
    Decoding,
    Output,
    TextOutput,
    Texts,
    TextTraceInput,
    TokenizerOptions,
    check_count,
    context_full,
    default,
    joined,
)
from .predictions import Text, check_texts, grouped
from .runtime_examples import NEW_TOKENS, empty_cache, encoded, generated, sessions, tokenizer_of


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
    # a text as long as the context may be read as more tokens than were generated
    return _trace_target(loaded._replace(model=model), given, target, cut=options.text is None)


def _trace_target(loaded: Loaded, source: torch.Tensor, target: str, cut: bool = False) -> LiveTrace:
    """The model on the tokens of a source, and on a whole target."""
    tokenizer, context = loaded.tokenizer, loaded.model.config.context
    ids = target_ids(tokenizer, target)
    ids = ids[:context] if cut else ids
    check_context(ids, context, "target with its first token")
    last = tokenizer.end if len(ids) < context else NONE  # a target that was cut does not end there
    return _trace_ids(loaded, source, ids, target, last)


def _trace_ids(loaded: Loaded, source: torch.Tensor, ids: Sequence[int], target: str, last: int = NONE) -> LiveTrace:
    """The model on the tokens of a source and of its target; `last` is the token after them."""
    model, tokenizer, _ = loaded
    words = _words(tokenizer, ids)
    labels = {
        "T": words,
        "S": words,
        "s": [*(token_label(tokenizer, i) for i in source[0, :-1].tolist()), "end"],
        "V": vocabulary_labels(tokenizer, model.config.vocab),
    }
    facts = {"text": target, "first_word": 0}
    tokens, targets = torch.tensor([list(ids)]), next_tokens(ids, last)
    return trace(model, tokens, source, words=labels, facts=facts, targets=targets)


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
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
    target=lambda loaded: TargetInput("The right target"),
    with_target=lambda loaded, prompt, target: _trace_target(loaded, prompt.given["source"], target),
)


# of the 2017 paper, which does not clip; where width or warm-up are others, run_setup.py sets lr by the paper's formula
_PAPER = dict(
    optimizer="adamw",
    beta1=0.9,
    beta2=0.98,
    eps=1e-9,
    clip=0.0,
    schedule="inverse-sqrt",
    warmup=4000,
    weight_decay=0.0,
    label_smoothing=0.1,
    batch=256,
    accumulate=8,
    steps=100_000,
    eval_every=1000,
    save_every=1000,
)
_SMALL = dict(batch=64, weight_decay=0.1, label_smoothing=0.0)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _SMALL,
    "small": _SMALL | dict(steps=8000, label_smoothing=0.1, eval_every=1000, save_every=1000),
    "base": _PAPER | dict(lr=published_peak(512, 4000)),
    "big": _PAPER | dict(lr=published_peak(1024, 4000), steps=300_000),
}
# without effect on a beam search: the sampling rules that are off unless they are given, and --stop
SAMPLING_ONLY = (*(one.name for one in fields(Decoding) if one.default is None and hasattr(Sampling, one.name)), "stop")
LENGTH_PENALTY = 0.6
EMPTY = "(empty)"  # a target without a token, where it stands in a list


@dataclass(frozen=True)
class SampleOptions(TextOutput, AttentionOutput, Decoding):
    """What `pencil sample` takes."""

    REQUIRED = {"source": "--source is missing: give the text to translate"}
    source: Annotated[
        Texts,
        Parameter(
            group=INPUT, help="The source text; may be repeated; - is standard input, one source a line.", **REPEATABLE
        ),
    ] = None
    beams: Annotated[
        int | None,
        Parameter(
            group=GENERATION,
            help="Beam search with this many beams; each target is printed with its score, the log-probability divided "
            "by ((5 + length)/6)^length-penalty. Default: no beam search.",
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        Parameter(
            group=GENERATION,
            help="Of a beam search: above 0 favours longer targets.",
            show_default=default(LENGTH_PENALTY),
        ),
    ] = None
    count: Annotated[
        int | None,
        Parameter(
            group=GENERATION,
            help="Number of samples for each source; with --beams, number of targets to show.",
            show_default=default("1, or all beams"),
        ),
    ] = None

    def check(self) -> None:
        super().check()
        check_count("--beams", self.beams, MOST_SAMPLES)
        if self.beams is None:
            if self.length_penalty is not None:
                raise UserError("--length-penalty is for a beam search: give --beams too")
            return
        if self.count is not None and self.count > self.beams:
            raise UserError(
                f"--count {self.count} is more than the {self.beams} targets that --beams {self.beams} returns"
            )
        for name in SAMPLING_ONLY:
            if getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} has no effect on a beam search: leave it or --beams out")
        if self.repetition_penalty != 1:
            raise UserError("--repetition-penalty has no effect on a beam search: leave it or --beams out")
        if self.compile:
            raise UserError("--compile has no effect on a beam search: leave it or --beams out")


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """The target of each source; with beams the highest-scoring ones, with their scores."""
    model, tokenizer, _ = loaded
    sources = [line for text in options.source or [] for line in text.strip("\n").split("\n")]
    if options.attention and len(sources) > 1:
        raise UserError(f"--attention shows one source and its target, and {len(sources)} were given")
    most, reasons, first = _most(loaded, options), [], ""
    if options.beams is not None:
        searched, lines = _search(loaded, sources, options), []
        for source, rows in zip(sources, searched, strict=True):
            head = [f"{source}:"] if len(sources) > 1 else []
            shown = [f"{one.score:.4f}  {text or EMPTY}" for text, one in rows[: options.count]]
            lines.append("\n".join(head + shown))
            reasons += ["end" if one.ended else "length" for _, one in rows[: options.count]]
        penalty = _length_penalty(options)
        per_length = f", divided by ((5 + length)/6)^{penalty:g}" if penalty else ""
        output.note(f"(before each target its score, the log-probability{per_length})")
        output.texts(lines)
        output.result(
            [
                {"source": source, "text": text, "score": one.score}
                for source, rows in zip(sources, searched, strict=True)
                for text, one in rows[: options.count]
            ]
        )
        first = searched[0][0][0]
    else:
        rows, pieces = _translate(loaded, sources, options, reasons, output.note)
        if len(rows) == 1 and output.streams and options.attention is None:
            output.stream("", pieces)
        else:
            texts = joined([""] * len(rows), pieces)
            output.texts([f"{s}: {t}" if len(sources) > 1 else t for s, t in zip(rows, texts, strict=True)])
            output.result([{"source": source, "text": text} for source, text in zip(rows, texts, strict=True)])
            first = texts[0]
    if "length" in reasons and most < options.max_new_tokens:
        output.note(context_full(model.config.context))
    if options.attention:
        output.file(options.attention, source_attention(model, tokenizer, sources[0], first))


def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Any]:
    """The target of each source; with beams a list of the highest-scoring ones."""
    sources = check_texts(inputs, "a source")
    if options.beams is not None:
        return [
            [Text(text, text, "end" if one.ended else "length", one.score) for text, one in rows[: options.count]]
            for rows in _search(loaded, sources, options)
        ]
    rows, pieces = _translate(loaded, sources, options, reasons := [])
    texts = joined([""] * len(rows), pieces)
    return grouped([Text(text, text, why) for text, why in zip(texts, reasons, strict=True)], options.count)


def _most(loaded: Loaded, options: SampleOptions) -> int:
    return min(options.max_new_tokens, loaded.model.config.context - 1)


def _length_penalty(options: SampleOptions) -> float:
    return LENGTH_PENALTY if options.length_penalty is None else options.length_penalty


def _search(loaded: Loaded, sources: Sequence[str], options: SampleOptions) -> list[list[tuple[str, Hypothesis]]]:
    """The beam search of each source."""
    return beam_targets(
        loaded.model, loaded.tokenizer, sources, options.beams or 1, _length_penalty(options), _most(loaded, options)
    )


def _translate(
    loaded: Loaded,
    sources: Sequence[str],
    options: SampleOptions,
    reasons: list[str],
    notify: Callable[[str], None] | None = None,
) -> tuple[list[str], Iterator[list[str]]]:
    """Each source as often as it is translated, and the pieces of its target."""
    model, tokenizer, _ = loaded
    count = options.count or 1
    rows = [source for source in sources for _ in range(count)]
    return rows, stream(
        model,
        tokenizer,
        [""] * len(rows),
        _most(loaded, options),
        options.sampling(),
        stop=options.stop or [],
        samples=[k for _ in sources for k in range(count)],
        begin=start_token(tokenizer),
        given=source_inputs(model, tokenizer, rows),
        reasons=reasons,
        compile=options.compile,
        notify=notify,
    )


def _source_length(c: Seq2SeqConfig, length: int | None) -> int:
    return min(length or c.source_context, c.source_context)


def _tokens(c: Seq2SeqConfig, length: int | None) -> int:
    return text_length(c, length) + _source_length(c, length)


def _activations(c: Seq2SeqConfig, batch: int, length: int | None, half: int) -> Activations:
    target, source = text_length(c, length), _source_length(c, length)
    decoder = block_group(c, batch, target, c.decoder_blocks, half)
    blocks = [
        block_group(c, batch, source, c.depth, half),
        with_cross_attention(decoder, c, batch, target, source, half),
    ]
    rows = batch * (target + source)
    states = batch * source * FULL * c.width if half == FULL else 0  # the encoder's output
    after = rows * norm_bytes(c) * (c.norm_position == "pre") + states + batch * target * half * c.width
    return Activations(blocks, rows * c.width if c.dropout else 0, after, batch * target * c.vocab)


def _parameter_formulas(c: Seq2SeqConfig) -> dict[str, str]:
    if c.decoder_blocks == c.depth:
        return block_formulas(c, "2·L")
    return block_formulas(c, f"(L + {c.decoder_blocks})", str(c.decoder_blocks))


def _attention_groups(model: Seq2Seq, inputs: Inputs) -> list[AttentionGroup]:
    length, source = inputs[0].shape[1], inputs[1].shape[1]
    key = torch.arange(source).expand(length, -1)
    return [
        AttentionGroup("encoder", f"encoder.{SELF_ATTENTION}", line(full, source)),
        AttentionGroup("decoder", SELF_ATTENTION, line(causal, length)),
        AttentionGroup(
            "cross", "blocks.{}.cross.pattern", every(length, source, {"first": key == 0, "last": key == source - 1})
        ),
    ]


def _held_out(loaded: Loaded, task: Translation) -> list[Inputs]:
    pairs = [task.data.test[i] for i in spread(len(task.data.test)).tolist()]
    sides = [(task.target(target)[:-1], task.source(source)) for source, target in pairs]
    return [(row(target), row(source)) for target, source in sides if min(len(target), len(source)) > 2]


def _graphs(model: Seq2Seq) -> list[Graph]:
    c = model.config
    source = source_text(c.source_vocab or c.vocab)
    store = (c.decoder_blocks, c.kv_head_count, c.head_width)
    memory = Input((2, store[0], "batch", store[1], "source", store[2]), gaussian)
    step = step_inputs(c.vocab, store) | {"memory": memory, "source_mask": source["source_mask"]}
    return [
        Graph("model", Translated(model), text(c.vocab) | source, ("logits",)),
        Graph("encoder", Encoded(model), source, ("memory",)),
        Graph("step", Step(model), step, ("logits", "present")),
    ]


def _example(run: Run, c: Seq2SeqConfig) -> str:
    """A source and its target."""
    tokenizer = run.tokenizer
    before, after = ((), (end_token(tokenizer),)) if tokenizer.special is None else tokenizer.around
    return (
        f"import numpy as np\nimport onnxruntime\n{tokenizer_of(tokenizer)}{sessions('encoder', 'step')}"
        f"source = np.array([{encoded(tokenizer, before, after, c.source_context)}])\n"
        'source_mask = np.ones(source.shape, "int64")\n'
        'memory = encoder.run(None, {"source": source, "source_mask": source_mask})[0]\n'
        'read = {"memory": memory, "source_mask": source_mask}\n'
        f"{empty_cache(c.decoder_blocks, c.kv_head_count, c.head_width)}"
        f"{generated(tokenizer, f'[{start_token(tokenizer)}]', '[]', min(NEW_TOKENS, c.context - 1), ', **read')}"
    )


FAMILY = Family(
    name="seq2seq",
    summary="a text to another text",
    config=Seq2SeqConfig,
    model=Seq2Seq,
    presets=PRESETS,
    training=TRAINING,
    task=Translation,
    data="dates",
    data_help="dates (built in), or a table of sources and targets: .tsv, .csv, .jsonl or .parquet.",
    embedded=pairs.EMBEDDED,
    eval_help="exact match, character error rate, chrF and BLEU, the mistakes, and the attention at each word",
    train_settings=("label_smoothing",),
    data_settings=("delimiter", "header", "source_column", "target_column"),
    train_options=TokenizerOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    trace_options=TraceOptions,
    trace=trace_pair,
    explore=EXPLORE,
    cost=CostProfile(
        tokens=_tokens,
        takes_length=True,
        decodes=True,
        activations=_activations,
        parameter_formulas=_parameter_formulas,
    ),
    heads=HeadProfile(_attention_groups, _held_out, unit="pairs"),
    generates=True,
    checkpoints=(MARIAN, T5),
    runtime=RuntimeProfile(_graphs, _example),
)
