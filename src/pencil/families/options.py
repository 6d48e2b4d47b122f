"""Options of the verbs that only some families take, as small dataclasses; a family's options join several of them.

And what a family's `sample` writes to: text as it is decoded, whole texts, the same as data, files and notes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from cyclopts import Group, Parameter

from ..config import UserError, check_output
from ..data.tokenizers.tokenizer import VOCAB
from ..inference.sampling import Sampling

Texts = list[str] | None
MOST_SAMPLES, MOST_TOKENS, MOST_STEPS = 10_000, 10_000_000, 10_000  # of one command
REPEATABLE: dict[str, Any] = dict(allow_leading_hyphen=True, negative=())

# the panels of --help, in their order
DATA, MODEL, RUN, INPUT, GENERATION, SAMPLING, OUTPUT, DEVICE = (
    Group(name, sort_key=i)
    for i, name in enumerate(
        ("Data", "Model and training", "Run", "Input", "Generation", "Sampling", "Output", "Device")
    )
)


def default(value: Any) -> Callable[[Any], str]:
    """The default of an option that is unset until the family decides, as --help shows it."""
    return lambda _: str(value)


@dataclass(frozen=True)
class NoOptions:
    """A verb without options of its own."""

    REQUIRED: ClassVar[Mapping[str, str]] = {}  # the options that must be given, and the refusals where they are not

    def check(self) -> None:
        """Refuse values that cannot be used, before anything is loaded."""
        for name, refusal in self.REQUIRED.items():
            if vars(self)[name] in (None, []):
                raise UserError(refusal)


# ---- train


@dataclass(frozen=True)
class TokenizerOptions(NoOptions):
    """The tokenizer of a text model."""

    tokenizer: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="char, byte, bpe (trained on the data), gpt2, or the path of a tokenizer.json.",
            show_default=default("depends on the data"),
        ),
    ] = None
    vocab: Annotated[
        int | None,
        Parameter(group=DATA, help="Vocabulary size of a trained bpe tokenizer.", show_default=default(VOCAB)),
    ] = None


@dataclass(frozen=True)
class ImageSizeOptions(NoOptions):
    """The size images are read at."""

    size: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="Image size: 64, or 64x96 for height and width; the same as --model.image_size.",
        ),
    ] = None


# ---- sample


@dataclass(frozen=True)
class TextOutput(NoOptions):
    """Where generated text goes."""

    out: Annotated[
        Path | None, Parameter(group=OUTPUT, help="Write the text to this file instead of the terminal.")
    ] = None

    def check(self) -> None:
        super().check()
        check_output("--out", self.out)


@dataclass(frozen=True)
class AttentionOutput(NoOptions):
    """A picture of the attention."""

    attention: Annotated[
        Path | None,
        Parameter(
            group=OUTPUT,
            help="Write the attention at the step that produced each word to this .png file.",
        ),
    ] = None

    def check(self) -> None:
        super().check()
        check_output("--attention", self.attention, ".png")

    def require_one_image(self, outputs: int) -> None:
        """Refuse a picture of the attention where there are several outputs."""
        if self.attention and outputs > 1:
            raise UserError(f"--attention shows one image and its output, and {outputs} were requested")


@dataclass(frozen=True)
class Decoding(NoOptions):
    """How text is generated."""

    max_new_tokens: Annotated[int, Parameter(group=GENERATION, help="Maximum number of tokens to generate.")] = 256
    count: Annotated[
        int | None, Parameter(group=GENERATION, help="Number of samples for each input.", show_default=default(1))
    ] = None
    temperature: Annotated[
        float | None,
        Parameter(group=GENERATION, help="Sampling temperature; 0 is greedy decoding.", show_default=default(0)),
    ] = None
    top_k: Annotated[int | None, Parameter(group=GENERATION, help="Sample from the k most likely tokens.")] = None
    top_p: Annotated[
        float | None,
        Parameter(group=GENERATION, help="Sample from the most likely tokens that together have this probability."),
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(group=GENERATION, help="Sample from tokens at least this fraction as likely as the most likely."),
    ] = None
    repetition_penalty: Annotated[
        float, Parameter(group=GENERATION, help="Above 1 makes tokens that already occurred less likely.")
    ] = 1.0
    stop: Annotated[
        Texts, Parameter(group=GENERATION, help="Stop before this string; may be repeated.", **REPEATABLE)
    ] = None
    seed: Annotated[int, Parameter(group=GENERATION, help="Random seed; the same seed gives the same output.")] = 0
    compile: Annotated[
        bool,
        Parameter(
            group=GENERATION,
            negative=(),
            help="Compile the model first: it takes a minute or more, and pays for long or many texts.",
        ),
    ] = False

    def check(self) -> None:
        super().check()
        check_count("--max-new-tokens", self.max_new_tokens, MOST_TOKENS)
        check_count("--count", self.count, MOST_SAMPLES)
        if self.stop and "" in self.stop:
            raise UserError("--stop cannot be empty")
        self.sampling()

    def sampling(self, temperature: float = 0.0) -> Sampling:
        """The sampling rules, each the option of its name, with this temperature unless one was given."""
        rules: dict[str, Any] = {one.name: vars(self)[one.name] for one in fields(Sampling)}
        rules["temperature"] = temperature if self.temperature is None else self.temperature
        return Sampling(**rules)


@dataclass(frozen=True)
class ImageInput(NoOptions):
    """Images to read."""

    REQUIRED = {"image": "--image is missing: give an image file"}
    image: Annotated[
        list[Path] | None,
        Parameter(group=INPUT, help="An image file, or several of them.", negative=(), consume_multiple=True),
    ] = None


# ---- trace, why and show


@dataclass(frozen=True)
class TextTraceInput(NoOptions):
    """The text a model reads."""

    REQUIRED = {"given": "--input is missing: give the text the model reads"}
    given: Annotated[
        str | None, Parameter(name="--input", group=INPUT, help="The text the model reads.", allow_leading_hyphen=True)
    ] = None


@dataclass(frozen=True)
class ImageTraceInput(NoOptions):
    """The image a model reads."""

    REQUIRED = {"given": "--input is missing: give the image file the model reads"}
    given: Annotated[str | None, Parameter(name="--input", group=INPUT, help="The image file the model reads.")] = None


Target = Annotated[
    str | None,
    Parameter(
        group=INPUT,
        help="The right class, for the loss: its name, or its index. Default: no loss.",
        allow_leading_hyphen=True,
    ),
]


def check_count(option: str, value: int | None, most: int) -> None:
    """Refuse a number of things to make that is none, or more than is made at once: all of them are in memory."""
    if value is not None and not 1 <= value <= most:
        bound = "at least 1" if value < 1 else f"at most {most:,}"
        raise UserError(f"{option} must be {bound}, not {value:,}")


# ---- what `sample` writes to

SEPARATOR = "\n" + "-" * 40 + "\n"


@runtime_checkable
class Output(Protocol):
    """The terminal, or a file, of `pencil sample`."""

    @property
    def streams(self) -> bool:
        """Whether one text can be shown as it is decoded."""
        ...

    def stream(self, prompt: str, pieces: Iterator[list[str]]) -> None:
        """One text, as it is decoded."""

    def texts(self, texts: Sequence[str], between: str = "\n") -> None:
        """Several texts."""

    def result(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The same as data, for --json: one row for each output, with what it is of."""

    def file(self, path: Path, content: bytes) -> None:
        """A file, whole; its path is reported."""

    def note(self, line: str) -> None:
        """A line for the user, apart from the result."""


def context_full(context: int) -> str:
    """The note on a text that the context ended."""
    return f"(stopped: the context of {context} tokens is full)"


def joined(prompts: Sequence[str], pieces: Iterator[list[str]]) -> list[str]:
    """Each prompt and its continuation, whole."""
    texts = list(prompts)
    for step in pieces:
        texts = [text + piece for text, piece in zip(texts, step, strict=True)]
    return texts
