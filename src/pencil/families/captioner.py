"""The single-stream captioner: an image in, its description out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter

from ..cost.activations import Activations, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile, text_length
from ..data.images.open_images import EMBEDDED
from ..data.tokenizers.tokenizer import Tokenizer
from ..inference.attention_overlays import caption_attention
from ..inference.graphs import (
    Graph,
    Input,
    Pictured,
    PicturedStep,
    RuntimeProfile,
    WholeText,
    gaussian,
    masks,
    step_inputs,
    text,
)
from ..inference.head_patterns import (
    SELF_ATTENTION,
    AttentionGroup,
    HeadProfile,
    Inputs,
    held_out_images,
    line,
    row,
)
from ..inference.sampling import Sampling
from ..inference.text_batches import vocabulary_labels
from ..inference.text_stream import complete, stream
from ..models.build import normalize
from ..models.captioner import PRESETS, Captioner, CaptionerConfig
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..tracing.loss import NONE, next_tokens
from ..train.tasks.captioning import Captioning
from .explore_profile import (
    ExploreProfile,
    Given,
    Prompt,
    TargetInput,
    check_context,
    example_pictures,
    grid_labels,
    patch_facts,
    picture_input,
    picture_of,
    text_of,
    writing_controls,
)
from .family import Family
from .options import (
    INPUT,
    REPEATABLE,
    AttentionOutput,
    Decoding,
    ImageInput,
    ImageSizeOptions,
    ImageTraceInput,
    Output,
    TextOutput,
    Texts,
    TokenizerOptions,
    context_full,
    joined,
)
from .predictions import Text, grouped, input_transform, picture_tensor, read_pictures
from .runtime_examples import NEW_TOKENS, generated, pictures, sessions, tokenizer_of

Row = tuple[int, str, int]  # the number of a picture, how its description begins, which of its samples
_SCENES = dict(batch=64, steps=2000, weight_decay=0.2)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _SCENES,
    "seed": _SCENES,
    "small": _SCENES | dict(batch=128, steps=8000, eval_every=2000, save_every=2000, word_dropout=0.4),
    "base": dict(batch=128, steps=50_000, lr=1e-3, warmup=1000, weight_decay=0.1, eval_every=1000, save_every=1000),
}


@dataclass(frozen=True)
class TrainOptions(TokenizerOptions, ImageSizeOptions):
    """What `pencil train` takes."""


@dataclass(frozen=True)
class SampleOptions(TextOutput, AttentionOutput, Decoding, ImageInput):
    """What `pencil sample` takes."""

    prompt: Annotated[
        Texts,
        Parameter(group=INPUT, help="How the description begins; may be repeated; - is standard input.", **REPEATABLE),
    ] = None


@dataclass(frozen=True)
class TraceOptions(ImageTraceInput):
    """What `pencil trace` reads."""

    text: Annotated[
        str | None,
        Parameter(
            group=INPUT, help="The description. Default: the one the model generates.", allow_leading_hyphen=True
        ),
    ] = None


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """The description of each image, after each prompt."""
    model, tokenizer, _ = loaded
    paths, prompts = options.image or [], options.prompt or [""]
    rows = [(i, prompt, k) for i in range(len(paths)) for prompt in prompts for k in range(options.count or 1)]
    options.require_one_image(len(rows))
    pictures = read_pictures(paths, input_transform(loaded))
    begun, reasons = [prompt for _, prompt, _ in rows], []
    pieces = _describe(loaded, pictures, rows, options, reasons, output.note)
    if len(rows) == 1 and output.streams and options.attention is None:
        output.stream(begun[0], pieces)
    else:
        texts = joined(begun, pieces)
        named = [f"{paths[i]}: {text}" if len(paths) > 1 else text for (i, *_), text in zip(rows, texts, strict=True)]
        output.texts(named)
        output.result(
            [
                {"image": str(paths[i]), "prompt": prompt, "text": text}
                for (i, prompt, _), text in zip(rows, texts, strict=True)
            ]
        )
        if options.attention:
            output.file(options.attention, caption_attention(model, tokenizer, pictures[0], texts[0]))
    if "context" in reasons:
        output.note(context_full(model.config.context))


def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Any]:
    """The description of each picture."""
    rows = [(i, "", k) for i in range(len(inputs)) for k in range(options.count or 1)]
    pictures, reasons = read_pictures(inputs, input_transform(loaded)), []
    new = joined([""] * len(rows), _describe(loaded, pictures, rows, options, reasons))
    return grouped([Text(text, text, why) for text, why in zip(new, reasons, strict=True)], options.count)


def _describe(
    loaded: Loaded,
    pictures: np.ndarray,
    rows: Sequence[Row],
    options: SampleOptions,
    reasons: list[str],
    notify: Callable[[str], None] | None = None,
) -> Iterator[list[str]]:
    x, tokenizer = picture_tensor(pictures, loaded), loaded.tokenizer
    return stream(
        loaded.model,
        tokenizer,
        [prompt for _, prompt, _ in rows],
        options.max_new_tokens,
        options.sampling(),
        stop=options.stop or [],
        samples=[k for *_, k in rows],
        begin=tokenizer.end,
        given={"picture": x[[i for i, *_ in rows]]},
        reasons=reasons,
        compile=options.compile,
        notify=notify,
    )


def trace_caption(loaded: Loaded, options: TraceOptions, double: bool = False) -> LiveTrace:
    """The model on one image and its description."""
    model = loaded.model.double() if double else loaded.model
    (picture,) = read_pictures([str(options.given)], input_transform(loaded))
    return trace_image(loaded._replace(model=model), picture, options.text)


def trace_image(loaded: Loaded, picture: np.ndarray, text: str | None = None) -> LiveTrace:
    """The model on an image (C, H, W) of bytes, and on its description, generated unless it is given."""
    model, tokenizer, _ = loaded
    x = normalize(torch.from_numpy(np.array(picture[None]))).to(next(model.parameters()).dtype)
    if text is None:
        text = complete(model, tokenizer, [""], 64, Sampling(0.0), begin=tokenizer.end, given={"picture": x})[0]
    return _trace_description(loaded, x, text)


def _trace_description(loaded: Loaded, x: torch.Tensor, text: str) -> LiveTrace:
    """The model on an image as it reads it, and on a whole description."""
    tokenizer, context = loaded.tokenizer, loaded.model.config.context
    ids = [tokenizer.end, *tokenizer.encode(text).tolist()]
    check_context(ids, context, "caption with its first token")
    return _trace_ids(loaded, x, ids, text, tokenizer.end if len(ids) < context else NONE)


def _trace_ids(loaded: Loaded, x: torch.Tensor, ids: Sequence[int], text: str, last: int = NONE) -> LiveTrace:
    """The model on an image as it reads it, and on the tokens of its description; `last` is the one after them."""
    model, tokenizer, _ = loaded
    c, patches = model.config, grid_labels("patch", model.config.grid)
    before, words = _words(c, tokenizer, ids)
    labels = {
        "T": before + words,
        "S": before + words,
        "N": patches,
        "M": before,
        "t": words,
        "V": vocabulary_labels(tokenizer, c.vocab),
    }
    facts = _facts(c) | {"text": text}
    tokens, targets = torch.tensor([list(ids)]), next_tokens(ids, last)
    return trace(model, tokens, x, words=labels, facts=facts, targets=targets)


def _words(c: CaptionerConfig, tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], list[str]]:
    """The labels of the image's tokens, and of the text's."""
    before = ["[IMG]"] * c.begin_marks + grid_labels("patch", c.grid) + ["[/IMG]"] * c.end_marks
    return before, ["begin", *(tokenizer.decode([i]).strip() or "␣" for i in ids[1:])]


def _facts(c: CaptionerConfig) -> dict[str, Any]:
    return patch_facts(c.begin_marks, c.grid) | {"first_word": c.before}


def _tokens(c: CaptionerConfig, length: int | None) -> int:
    return c.before + text_length(c, length)


def _activations(c: CaptionerConfig, batch: int, length: int | None, half: int) -> Activations:
    tokens, predictions = _tokens(c, length), batch * text_length(c, length)
    blocks = [block_group(c, batch, tokens, c.depth, half)]
    # the inputs of the matrices before the blocks, and of those after them
    image = batch * prod(c.grid) * half * (c.sizes["c"] + (c.sizes["E"] if c.sizes["E"] != c.width else 0))
    text = predictions * half * c.sizes["e"] if c.sizes["e"] != c.width else 0
    before = image + text + (batch * tokens * c.width if c.dropout else 0)
    after = predictions * (norm_bytes(c) + half * c.width) + (text if c.tie_embeddings else 0)
    return Activations(blocks, before, after, predictions * c.vocab)


def _attention_groups(model: Captioner, inputs: Inputs) -> list[AttentionGroup]:
    """Words, which attend to one another and to the patches before them."""
    c, length = model.config, inputs[0].shape[1]
    layout = line(model.mask, c.before + length, c.before)
    key = torch.arange(c.before + length)
    patches = (key >= c.begin_marks) & (key < c.before - c.end_marks)
    layout = layout._replace(targets=layout.targets | {"picture": patches.expand(len(key), -1)})
    return [AttentionGroup("", SELF_ATTENTION, layout)]


def _held_out(loaded: Loaded, task: Captioning) -> list[Inputs]:
    pictures, captions = held_out_images(task)
    ids = [[task.end, *loaded.tokenizer.encode(text).tolist()] for text in captions]
    return [(row(one), picture) for one, picture in zip(ids, pictures, strict=True) if len(one) > 2]


def _induction_start(model: Captioner, texts: Sequence[Inputs]) -> tuple[list[int], int]:
    first = texts[0][0][0, :1].tolist()
    return first, len(first) + model.config.before


def _read(loaded: Loaded, given: Given) -> Prompt:
    tokenizer, picture = loaded.tokenizer, picture_of(loaded, given)
    ids = (tokenizer.end, *tokenizer.encode(text_of(given)).tolist())
    check_context(ids, loaded.model.config.context, "beginning of the description with its first token")
    return Prompt(ids, {"picture": picture_tensor(picture[None], loaded)}, picture)


def _trace_answer(loaded: Loaded, prompt: Prompt, written: Sequence[int], options: Any) -> LiveTrace:
    ids = (*prompt.ids, *written[:-1])
    return _trace_ids(loaded, prompt.given["picture"], ids, loaded.tokenizer.decode(list(ids[1:])))


def _trace_target(loaded: Loaded, prompt: Prompt, text: str) -> LiveTrace:
    return _trace_description(loaded, prompt.given["picture"], text)


def _layout(loaded: Loaded, prompt: Prompt, written: Sequence[int]) -> tuple[list[str], dict[str, Any]]:
    c = loaded.model.config
    before, words = _words(c, loaded.tokenizer, (*prompt.ids, *written[:-1]))
    return before + words, _facts(c)


EXPLORE = ExploreProfile(
    takes=lambda loaded: {
        **picture_input(loaded.model.config),
        "text": {"label": "How the description begins", "longest": loaded.model.config.context - 1, "optional": True},
    },
    output=lambda loaded: "tokens",
    read=_read,
    trace=_trace_answer,
    layout=_layout,
    examples=example_pictures,
    controls=lambda loaded: writing_controls(64, loaded.model.config.context, 0.0),
    writes=True,
    target=lambda loaded: TargetInput("The right description"),
    with_target=_trace_target,
)


def _graphs(model: Captioner) -> list[Graph]:
    c = model.config
    picture = {"picture": Input(("batch", c.channels, *c.image_size), gaussian)}
    store = (c.depth, c.kv_heads or c.heads, c.head_width)

    def mask(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """All of the picture, and some of the text."""
        drawn = masks(shape, generator)
        drawn[:, : c.before] = 1
        return drawn

    return [
        Graph("model", WholeText(model), text(c.vocab) | picture, ("logits",)),
        Graph("encoder", Pictured(model), picture, ("present",)),
        Graph("step", PicturedStep(model), step_inputs(c.vocab, store, mask), ("logits", "present"), c.before),
    ]


def _example(run: Run, c: CaptionerConfig) -> str:
    """The description of a picture."""
    tokenizer = run.tokenizer
    return (
        f"import onnxruntime\n{tokenizer_of(tokenizer)}{sessions('encoder', 'step')}{pictures(run, c)}"
        'past = encoder.run(None, {"picture": pixels("picture.png")})[0]\n'
        f"{generated(tokenizer, f'[{tokenizer.end}]', '[]', min(NEW_TOKENS, c.context - 1))}"
    )


FAMILY = Family(
    name="captioner",
    summary="an image to its description",
    config=CaptionerConfig,
    model=Captioner,
    presets=PRESETS,
    training=TRAINING,
    task=Captioning,
    data="scenes",
    data_help="scenes or scenes-hard (built in), a folder of images with a metadata.jsonl (a line has file_name and "
    "text), .tar files of webdataset, or hf:OWNER/NAME. --data.fit crop, pad or squash: what becomes of images of "
    "another shape.",
    embedded=EMBEDDED["caption"],
    eval_help="exact match, token accuracy, chrF and BLEU, the mistakes, and the attention at each word",
    train_settings=("flip", "crop", "augment_ops", "word_dropout"),
    data_settings=("fit",),
    train_options=TrainOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    trace_options=TraceOptions,
    trace=trace_caption,
    explore=EXPLORE,
    cost=CostProfile(
        tokens=_tokens,
        takes_length=True,
        decodes=True,
        activations=_activations,
        groups={"text_project": "embeddings"},
        parameter_formulas=block_formulas,
    ),
    heads=HeadProfile(_attention_groups, _held_out, unit="images and captions", induction=_induction_start),
    runtime=RuntimeProfile(_graphs, _example),
)
