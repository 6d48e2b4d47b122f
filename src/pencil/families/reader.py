"""The reader, an encoder alone: text in, its class or its masked tokens out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from cyclopts import Parameter
from torch import Tensor

from ..config import UserError
from ..core.layers import evaluating
from ..core.masks import full
from ..core.span import Span
from ..cost.activations import FULL, SELF_ATTENTION_FLOPS, Activations, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile, text_length
from ..data.builtin import TEXTS
from ..data.tables.pairs import is_table
from ..data.tokenizers.tokenizer import Tokenizer
from ..files import parse_json, read_text
from ..inference.graphs import Graph, MaskedText, RuntimeProfile, masked_text
from ..inference.head_patterns import (
    SELF_ATTENTION,
    AttentionGroup,
    HeadProfile,
    Inputs,
    line,
    spread,
    whole_texts,
    windows,
)
from ..inference.text_batches import end_token, mask_token, pad, shorten, text_ids, token_label, vocabulary_labels
from ..models.build import refuse_output
from ..models.reader import PRESETS, Reader, ReaderConfig, first_of, mean_of
from ..progress import track
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..tracing.loss import NONE
from ..train.settings import TrainConfig
from ..train.task import Prepared, Request
from ..train.tasks.masked_language_modeling import MaskedLanguageModeling
from ..train.tasks.text_classification import TextClassification
from ..weights.bert import BERT, ROBERTA
from ..weights.checkpoint_files import LARGEST_CONFIG, Checkpoint, inside
from .explore_profile import ExploreProfile, Given, Prompt, TargetInput, example_texts, named, text_of
from .family import Family
from .options import INPUT, REPEATABLE, Output, Target, TextOutput, Texts, TextTraceInput, TokenizerOptions
from .predictions import (
    BATCH,
    TOP_CLASSES,
    Prediction,
    check_texts,
    class_lines,
    class_row,
    classify,
    place_in,
    target_class,
)
from .runtime_examples import BEST, encoded, sessions, tokenizer_of

Pool = Literal["mean", "class"]
POOLS: dict[str, Any] = {"mean": mean_of, "class": first_of}
SECTION = "embed"  # of a run's config: pool, normalize and context, as the original has them


class Vectors(NamedTuple):
    """How texts become vectors."""

    pool: Pool = "mean"  # the mean of all tokens, or the first one
    normalize: bool = False  # whether each vector has length 1
    context: int | None = None  # tokens read of a text, where that is fewer than the model's context


def settings_of(loaded: Loaded, pool: str | None = None, normalize: bool | None = None) -> Vectors:
    """How this run's texts become vectors: as the run says, unless given."""
    c, table = loaded.model.config, loaded.run.config.get(SECTION, {})
    usual = c.pool if c.output == "label" else "mean"
    pool = pool or table.get("pool", usual)
    if pool not in POOLS:
        raise UserError(f"pool is mean (of all tokens) or class (the first token), not {pool}")
    context = min(int(table.get("context", c.context)), c.context)
    return Vectors(pool, bool(table.get("normalize", False)) if normalize is None else normalize, context)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def embed_texts(
    loaded: Loaded, texts: Sequence[str], how: Vectors, notify: Callable[[str], None] = lambda line: None
) -> Tensor:
    """The vector of each text (n, D), in float32; the end of a text that is too long is left out."""
    model, tokenizer = loaded.model, loaded.tokenizer
    longest = how.context or model.config.context
    rows = [token_row(model, tokenizer, text) for text in texts]
    long = sum(len(row) > longest for row in rows)
    if long:
        which = f"{long} of {len(rows)} texts" if len(rows) > 1 else "the text"
        notify(f"cut at {longest} tokens, which the model reads at most: {which}")
        rows = [
            row if len(row) <= longest else token_row(model, tokenizer, text, longest)
            for row, text in zip(rows, texts, strict=True)
        ]
    pooled = torch.empty(len(rows), model.config.width)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # texts of one length together: little padding
    for begin in track(range(0, len(rows), BATCH)):
        few = order[begin : begin + BATCH]
        tokens, places = (t.to(loaded.device) for t in pad([rows[i] for i in few], tokenizer.pad or 0, longest))
        span = Span.at(places)
        with evaluating(model.modules()):
            vectors = POOLS[how.pool](model.states(tokens, span).float(), span)
        pooled[few] = (F.normalize(vectors, dim=-1) if how.normalize else vectors).cpu()
    if not pooled.isfinite().all():
        refuse_output(model, "the vectors")
    return pooled


def token_row(model: Any, tokenizer: Tokenizer, text: str, longest: int | None = None) -> list[int]:
    """The tokens of a text as the model was trained on them, at most `longest`."""
    text = text.strip()
    ends = tokenizer.special is not None or model.config.output == "label"
    row = text_ids(tokenizer, text, longest) if ends else tokenizer.encode(text).tolist()[:longest]
    if not text or not row:
        raise UserError("a text is empty: give at least one word")
    check_padding(model, tokenizer, text, row)
    return row


def check_padding(model: Any, tokenizer: Tokenizer, text: str, row: Sequence[int]) -> None:
    """Refuse padding inside a text, where the original gives it no position of its own."""
    if model.config.position_offset and tokenizer.pad is not None and tokenizer.pad in row:
        word = tokenizer.token(tokenizer.pad)
        raise UserError(f"the text “{shorten(text)}” has {word}, which is this model's padding: leave it out")


MODULES, POOLING, CUT = "modules.json", "1_Pooling", "sentence_bert_config.json"
# the words for ways of pooling, of today and of older versions
POOL_NAMES = {"mean": "mean", "cls": "class", "mean_tokens": "mean", "cls_token": "class"}


def imported(checkpoint: Checkpoint, config: ReaderConfig) -> dict[str, Any]:
    """What a run keeps of a checkpoint besides its model: the names of its classes, and how texts become vectors."""

    def read(name: str) -> Any:
        if not (checkpoint.folder / name).exists():
            return None
        text = read_text(inside(checkpoint.folder, name), LARGEST_CONFIG)
        return parse_json(f'{{"content": {text}}}', str(checkpoint.folder / name))["content"]  # which may be a list

    tables = {SECTION: sentence_settings(read, config.context)}
    names = checkpoint.config.get("id2label")
    if config.classes and names:
        if sorted(names) != sorted(map(str, range(config.classes))):
            raise UserError(
                f"id2label of {checkpoint.where} has no name for each number from 0 to {config.classes - 1}"
            )
        tables["run"] = {"classes": [str(names[str(i)]) for i in range(config.classes)]}
    return tables


def exported(
    run: Run, config: ReaderConfig, library: str, described: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The files beside the weights by name: the config with the names of classes, and how the tokens are pooled."""
    names = list(map(str, run.config["run"].get("classes") or ()))
    if config.classes and len(names) == config.classes:
        described = described | {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    table = run.config.get(SECTION)
    if not table:
        return {"config.json": described}, []
    kinds = ["Transformer", "Pooling", *["Normalize"] * bool(table.get("normalize"))]
    paths = ["", POOLING, "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pool = table.get("pool", "mean")
    pooling = {
        "word_embedding_dimension": config.width,
        "pooling_mode_cls_token": pool == "class",
        "pooling_mode_mean_tokens": pool == "mean",
    }
    cut = {"max_seq_length": table.get("context", config.context), "do_lower_case": False}
    return {"config.json": described, MODULES: modules, f"{POOLING}/config.json": pooling, CUT: cut}, []


def sentence_settings(read: Callable[[str], Any], context: int) -> dict[str, Any]:
    """The `[embed]` table of a folder of sentence-transformers; empty for another folder.

    `read` gives the content of a JSON file of the folder, or None. A module or a way of pooling that is not known is
    refused by name: the vectors would be others.
    """
    modules = read(MODULES)
    if modules is None:
        return {}
    kinds = [(str(one.get("type", "")).rpartition(".")[2], str(one.get("path", ""))) for one in modules]
    names = [kind for kind, _ in kinds]
    for name in names:
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise UserError(
                f"modules.json has a {name}, which ours does not have: only Transformer, Pooling, Normalize"
            )
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"modules.json has {', '.join(names) or 'nothing'}: only Transformer, Pooling and Normalize fit"
        )
    pooling = kinds[1][1]
    table: dict[str, Any] = {"pool": _pool(read(f"{pooling}/config.json") or {}), "normalize": "Normalize" in names}
    prompts = read("config_sentence_transformers.json") or {}
    if prompts.get("default_prompt_name"):
        raise UserError(
            f"config_sentence_transformers.json puts the prompt {prompts['default_prompt_name']!r} before every text, "
            "which ours does not"
        )
    cut = read(CUT) or {}
    if cut.get("do_lower_case"):
        raise UserError("sentence_bert_config.json has do_lower_case, which ours does not have: only false")
    longest = cut.get("max_seq_length") or (read("tokenizer_config.json") or {}).get("model_max_length")
    if isinstance(longest, int) and 0 < longest < context:
        table["context"] = longest
    return table


def _pool(config: Mapping[str, Any]) -> str:
    """Our word for the way of pooling, which older versions spread over several fields."""
    ways = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    given = config.get("pooling_mode")
    ways += given if isinstance(given, list) else [given] if given else []
    if len(ways) != 1 or ways[0] not in POOL_NAMES:
        raise UserError(f"this model pools its tokens by {' and '.join(ways) or 'no way'}, and ours by mean or cls")
    return POOL_NAMES[ways[0]]


_SMALL = dict(batch=32, weight_decay=0.1)
_BERT = dict(
    optimizer="adamw",
    lr=1e-4,
    beta2=0.999,
    weight_decay=0.01,
    warmup=10_000,
    batch=256,
    steps=1_000_000,
    eval_every=5000,
    save_every=5000,
)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _SMALL,
    "small": _SMALL | dict(steps=8000, eval_every=1000, save_every=1000),
    "bert-base": _BERT,
    "bert-large": _BERT,
}
MASK = re.compile(r"\[mask\]", re.IGNORECASE)


class ReaderTask:
    """Classification for a file of texts with labels, masked language modelling for text without."""

    @staticmethod
    def prepare(request: Request, train: TrainConfig) -> Prepared:
        return (TextClassification if is_table(request.data) else MaskedLanguageModeling).prepare(request, train)

    @staticmethod
    def reopen(family: Family, run: Run, source: str, train: TrainConfig, whole: bool = False) -> Any:
        if family.read_config(run.config["model"]).output not in ("words", "label"):
            raise UserError(_no_head(run.path))
        labelled = "classes" in run.config["run"]
        return (TextClassification if labelled else MaskedLanguageModeling).reopen(family, run, source, train, whole)


@dataclass(frozen=True)
class SampleOptions(TextOutput):
    """What `pencil sample` takes."""

    REQUIRED = {"prompt": "--prompt is missing: give the text to read"}
    prompt: Annotated[
        Texts,
        Parameter(
            group=INPUT,
            help="The text to classify; for a run without labels, a text with [mask] for each token to predict. May be "
            "repeated; - is standard input.",
            **REPEATABLE,
        ),
    ] = None
    truncate: Annotated[
        bool,
        Parameter(
            group=INPUT,
            negative=(),
            help="Of a text that is longer than the context, read the beginning. Default: it is refused.",
        ),
    ] = False


def token_ids(model: Any, tokenizer: Tokenizer, text: str, truncate: bool | None = None) -> list[int]:
    """The input: a text with its special tokens, and with the mask token where it has [mask].

    One that is longer than the context is cut, or refused; `truncate` is None where it is not the user's choice.
    """
    longest = model.config.context if truncate else None
    if tokenizer.special is not None:
        masked = tokenizer.mask is not None and model.config.classes is None
        written = MASK.sub(lambda _: tokenizer.token(mask_token(tokenizer)), text) if masked else text
        ids = text_ids(tokenizer, written, longest)
    elif model.config.classes is not None:
        ids = text_ids(tokenizer, text, longest)
    else:
        first, *rest = (tokenizer.encode(part).tolist() for part in MASK.split(text))
        ids = (first + [token for part in rest for token in (tokenizer.vocab, *part)])[:longest]
    if not text:
        raise UserError("the text is empty: give at least one word")
    check_padding(model, tokenizer, text, ids)
    if len(ids) > model.config.context:
        raise UserError(too_long(text, len(ids), model.config.context, truncate is not None))
    return ids


def too_long(text: str, count: int, longest: int, cuts: bool) -> str:
    """The sentence about a text that would not be read whole."""
    mend = "shorten it, or have it cut with truncate" if cuts else "shorten it"
    return f"the text “{shorten(text)}” has {count} tokens and the context is {longest}; {mend}"


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """The most likely classes of each text, or the most likely tokens for each [mask]."""
    texts = [text.strip("\n") for text in options.prompt or []]
    labelled, lines, data = loaded.model.config.classes is not None, [], []
    for text, predicted in zip(texts, predict(loaded, texts, options), strict=True):
        head = [f"{text}:"] if len(texts) > 1 else []
        each = [predicted] if isinstance(predicted, Prediction) else predicted
        lines.append("\n".join([*head, "\n\n".join("\n".join(class_lines(one)) for one in each)]))
        rows = [class_row(one, None if labelled else TOP_CLASSES) for one in each]
        data.append({"prompt": text, **(rows[0] if labelled else {"masks": rows})})
    output.texts(lines, "\n" if labelled else "\n\n")
    output.result(data)


def _no_head(path: Path | str) -> str:
    return (
        f"{path} has no head that predicts tokens or a class: pencil embed {path} gives vectors of texts, and pencil "
        f"train --from {path} trains a new head"
    )


@torch.no_grad()
def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Any]:
    """The classes of each text; for a run without labels a list of its [mask]s, each with the tokens it may be."""
    model, tokenizer, run = loaded
    if model.config.output not in ("words", "label"):
        raise UserError(_no_head(run.path))
    texts, labelled = check_texts(inputs, "the input of this model"), model.config.classes is not None
    rows = []
    for i, text in enumerate(texts):
        try:
            rows.append(token_ids(model, tokenizer, text, options.truncate))
        except UserError as error:
            raise UserError(f"{place_in(texts, i)}{error}") from None
    for text, ids in zip(texts, rows, strict=True):
        if not labelled and mask_token(tokenizer) not in ids:
            raise UserError(
                f"{run.path} predicts masked tokens: write [mask] where one is to be predicted, in “{text[:40]}”"
            )
    results = []
    for i in range(0, len(rows), BATCH):
        few = rows[i : i + BATCH]
        tokens, places = (t.to(loaded.device) for t in pad(few, 0, model.config.context))
        logits = model(tokens, Span.at(places))
        if labelled:
            results += classify(logits, loaded.classes, model)
        else:
            likely = logits.float().softmax(-1).cpu().numpy()[..., : tokenizer.vocab]
            if not np.isfinite(likely).all():
                refuse_output(model, "the logits")
            results += [_guesses(tokenizer, ids, row) for ids, row in zip(few, likely, strict=True)]
    return results


def _guesses(tokenizer: Tokenizer, ids: Sequence[int], likely: np.ndarray) -> list[Prediction]:
    """The prediction of each masked token of a text."""
    masked = [at for at, token in enumerate(ids) if token == mask_token(tokenizer)]
    return [Prediction(likely[at], lambda i: token_label(tokenizer, i)) for at in masked]


@dataclass(frozen=True)
class TraceOptions(TextTraceInput):
    """What `pencil trace` reads."""

    text: Annotated[
        str | None,
        Parameter(
            group=INPUT,
            help="The text without [mask], for the loss at the masked tokens. Default: no loss.",
            allow_leading_hyphen=True,
        ),
    ] = None
    target: Target = None


def trace_text(loaded: Loaded, options: TraceOptions, double: bool = False) -> LiveTrace:
    """The model on one text, with the loss where its class, or the whole text of one with masked tokens, is given."""
    model, tokenizer, _ = loaded
    ids = token_ids(model, tokenizer, str(options.given))
    targets = None if options.text is None else _masked_targets(loaded, ids, options.text)
    return _trace_ids(loaded, ids, double, target_class(loaded, options.target) if targets is None else targets)


def _masked_targets(loaded: Loaded, ids: Sequence[int], text: str) -> torch.Tensor:
    """The tokens of a text at the masked ones of the same text."""
    if loaded.model.config.output != "words":
        raise UserError("--text has what stands at [mask], and this model predicts no masked tokens: leave it out")
    mask, whole = mask_token(loaded.tokenizer), token_ids(loaded.model, loaded.tokenizer, text)
    if mask not in ids:
        raise UserError("--text has what stands at [mask], and --input has none: put one there")
    pairs = list(zip(ids, whole, strict=False))
    if len(ids) != len(whole) or any(one not in (mask, other) for one, other in pairs):
        raise UserError("--text must be --input with one token for each [mask], and all else the same")
    return torch.tensor([[other if one == mask else NONE for one, other in pairs]])


def _trace_ids(
    loaded: Loaded, ids: Sequence[int], double: bool = False, targets: torch.Tensor | None = None
) -> LiveTrace:
    model, tokenizer, run = loaded
    labelled = model.config.classes is not None
    words = _words(loaded, ids)
    labels = {"T": words, "S": words}
    if labelled:
        labels["K"] = run.config["run"].get("classes") or []
    elif model.config.output == "words":
        labels["V"] = vocabulary_labels(tokenizer, model.config.vocab)
    return trace(model.double() if double else model, torch.tensor([list(ids)]), words=labels, targets=targets)


def _activations(c: ReaderConfig, batch: int, length: int | None, half: int) -> Activations:
    tokens = text_length(c, length)
    rows = batch * tokens
    blocks = [block_group(c, batch, tokens, c.depth, half)]
    before = rows * (c.width if c.dropout else 0) + rows * norm_bytes(c) * c.embed_norm
    after = rows * norm_bytes(c) * (c.norm_position == "pre")
    if c.output == "words":
        return Activations(blocks, before, after + rows * (3 * half * c.width + norm_bytes(c)), rows * c.vocab)
    # a vector sliced out of all tokens keeps them all, unless autocast copies it
    pooled = rows * FULL * c.width if half == FULL and c.pool == "class" and c.output != "states" else 0
    return Activations(blocks, before, after + pooled)


def _held_out(loaded: Loaded, task: Any) -> list[Inputs]:
    if loaded.model.config.classes is None:
        return windows(task.data.val, task.config.context, *loaded.tokenizer.around)
    texts = [task.data.test[i][0] for i in spread(len(task.data.test)).tolist()]
    return whole_texts(texts, loaded.tokenizer, task.config.context)


def _from_text(loaded: Loaded, text: str) -> list[Inputs]:
    context = loaded.model.config.context
    if loaded.model.config.classes is None:
        return windows(loaded.tokenizer.encode(text), context, *loaded.tokenizer.around)
    return whole_texts([line for line in text.split("\n") if line.strip()], loaded.tokenizer, context)


def _words(loaded: Loaded, ids: Sequence[int]) -> list[str]:
    model, tokenizer, _ = loaded
    words = ["[mask]" if i == mask_token(tokenizer) else token_label(tokenizer, i) for i in ids]
    begun = model.config.classes is not None and tokenizer.special is None
    return ["begin", *words[1:]] if begun else words


def _read(loaded: Loaded, given: Given) -> Prompt:
    """The first line is what the model reads; without a head its vector is compared with those of the other lines."""
    model, tokenizer, _ = loaded
    text = text_of(given)
    if model.config.output not in ("words", "label"):
        texts = tuple(line for line in text.split("\n") if line.strip()) or ("",)
        return Prompt(tuple(token_ids(model, tokenizer, texts[0].strip())), texts=texts)
    ids = token_ids(model, tokenizer, text)
    masked = tuple(at for at, one in enumerate(ids) if one == mask_token(tokenizer))
    if model.config.output == "words" and not masked:
        raise UserError("this model predicts masked tokens: write [mask] where one is to be predicted")
    return Prompt(tuple(ids), masked=masked if model.config.output == "words" else ())


def _takes(loaded: Loaded) -> dict[str, Any]:
    kind = loaded.model.config.output
    label = {"words": "Text with [mask]", "label": "Text to classify"}.get(kind, "Text, one a line")
    return {"text": {"label": label, "longest": loaded.model.config.context, "optional": False}}


def _examples(loaded: Loaded) -> list[tuple[str, dict[str, Any]]]:
    texts = example_texts(loaded)
    if loaded.model.config.output == "words":
        texts = [f"{text[: len(text) // 2]}[mask]{text[len(text) // 2 + 1 :]}" for text in texts]
    elif loaded.model.config.output != "label":
        texts = ["\n".join(texts), *texts]
    return named([{"text": text} for text in texts], "text")


def _target(loaded: Loaded) -> TargetInput | str:
    kind = loaded.model.config.output
    if kind == "label":
        return TargetInput("The right class", loaded.classes)
    return TargetInput("The text without [mask]") if kind == "words" else "A model without a head has no loss."


def _trace_target(loaded: Loaded, prompt: Prompt, target: str) -> LiveTrace:
    labelled = loaded.model.config.classes is not None
    targets = target_class(loaded, target) if labelled else _masked_targets(loaded, prompt.ids, target)
    return _trace_ids(loaded, prompt.ids, targets=targets)


EXPLORE = ExploreProfile(
    takes=_takes,
    output=lambda loaded: {"words": "tokens", "label": "classes"}.get(loaded.model.config.output, "vector"),
    read=_read,
    trace=lambda loaded, prompt, written, options: _trace_ids(loaded, prompt.ids),
    layout=lambda loaded, prompt, written: (_words(loaded, prompt.ids), {}),
    examples=_examples,
    target=_target,
    with_target=_trace_target,
)


def _graphs(model: Reader) -> list[Graph]:
    output = {"states": "states", "pool": "vector"}.get(model.config.output, "logits")
    return [Graph("model", MaskedText(model), masked_text(model.config.vocab), (output,))]


def _example(run: Run, c: ReaderConfig) -> str:
    """The class of a text, the token for a mask, or the vector of a text."""
    tokenizer, output = run.tokenizer, c.output
    begun = (end_token(tokenizer),) if output == "label" else ()  # as `token_ids` has it
    before, after = (begun, ()) if tokenizer.special is None else tokenizer.around
    head = "import json\n\n" if output == "label" else ""
    masked = (mask_token(tokenizer),) if output == "words" else ()
    table = run.config.get(SECTION, {})
    vector = "vector = states[0]\n" if table.get("pool") == "class" else "vector = states.mean(0)\n"
    length = "vector /= np.linalg.norm(vector)\n" if table.get("normalize") else ""
    name, shown = {
        "label": ("logits", BEST),
        "words": (
            "logits",
            f"print(tokenizer.decode([int(logits[-{1 + len(after)}, : {tokenizer.vocab}].argmax())]))\n",
        ),
        "pool": ("vector", f"{length}print(vector)\n"),
        "states": ("states", f"{vector}{length}print(vector)\n"),
    }[output]
    return (
        f"{head}import numpy as np\nimport onnxruntime\n{tokenizer_of(tokenizer)}{sessions('model')}"
        f"tokens = np.array([{encoded(tokenizer, before, (*masked, *after), c.context)}])\n"
        'mask = np.ones(tokens.shape, "int64")  # 0 would be padding\n'
        f'{name} = model.run(None, {{"tokens": tokens, "mask": mask}})[0][0]\n{shown}'
    )


FAMILY = Family(
    name="reader",
    summary="a text to its class, or to its masked tokens",
    config=ReaderConfig,
    model=Reader,
    presets=PRESETS,
    training=TRAINING,
    task=ReaderTask,
    data="pydoc",
    data_help="A table of texts with labels to classify (.csv, .tsv, .jsonl or .parquet); or text without labels, "
    "whose masked tokens are predicted: a file, a folder, a pattern of files, hf:OWNER/NAME, - for standard input, or "
    "pydoc (built in).",
    embedded=tuple(TEXTS),
    eval_help="with labels accuracy with its interval, precision and recall per class, the confusion matrix and "
    "mistakes; else loss, perplexity and accuracy",
    train_settings=("mask_fraction", "class_weights", "balanced_batches"),
    data_settings=("delimiter", "header", "text_column", "label_column"),
    train_options=TokenizerOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    embed=embed_texts,
    trace_options=TraceOptions,
    trace=trace_text,
    explore=EXPLORE,
    cost=CostProfile(
        tokens=text_length,
        takes_length=True,
        activations=_activations,
        parameter_formulas=block_formulas,
        flop_formulas=lambda c: SELF_ATTENTION_FLOPS,
    ),
    heads=HeadProfile(
        lambda model, inputs: [AttentionGroup("", f"encoder.{SELF_ATTENTION}", line(full, inputs[0].shape[1]))],
        _held_out,
        _from_text,
    ),
    checkpoints=(BERT, ROBERTA),
    imported=imported,
    exported=exported,
    runtime=RuntimeProfile(_graphs, _example),
)
