"""How a run is trained: one frozen dataclass, and what each preset changes in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..config import UserError


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run; "auto" is decided by the device."""

    steps: int = 2000
    batch: int = 12
    accumulate: int = 1
    optimizer: Literal["muon", "adamw"] = "muon"
    lr: float = 3e-3
    muon_lr: float = 0.02
    min_lr: float = 0.0  # of the peak, at the end
    beta2: float = 0.99
    weight_decay: float = 0.1
    schedule: Literal["cosine", "wsd", "paper", "constant"] = "cosine"
    warmup: int = 100
    clip: float = 1.0
    ema: float = 0.0  # how much of the average of all weights so far each step keeps; 0 keeps no average
    seed: int = 1337
    eval_every: int = 250
    eval_batches: int = 50
    save_every: int = 250
    keep: int = 2
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    deterministic: bool = False  # on CUDA: the same bits every time, at some cost in speed; a CPU always gives them
    logger: Literal["none", "tensorboard", "trackio"] = "none"
    # of pictures; where one is not given, the data says what suits it
    flip: bool | None = None  # left and right, half the time
    crop: float | None = None  # the smallest share of the area a crop may keep
    randaugment: int | None = None  # small changes of form or colour a picture
    mixup: float | None = None  # two pictures blended, by a weight from Beta(mixup, mixup)
    # of captions: the share of words hidden, so that the picture must be looked at; of a reader: those to be guessed
    word_dropout: float | None = None
    condition_dropout: float | None = None  # of a dit: the share of pictures whose label or text is left out
    label_smoothing: float | None = None  # of pairs: the probability that all words share, right or wrong

    def __post_init__(self):
        for name in ("steps", "batch", "accumulate", "eval_every", "eval_batches", "save_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "lr", "muon_lr", "min_lr", "clip", "seed"):
            if not getattr(self, name) >= 0:
                raise UserError(f"train.{name} cannot be negative, not {getattr(self, name)}")
        for name in ("randaugment", "mixup"):
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"train.{name} cannot be negative, not {getattr(self, name)}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise UserError(f"train.crop must be above 0 and at most 1 (the whole picture), not {self.crop}")
        if not 0 <= (self.word_dropout or 0) < 1:
            raise UserError(f"train.word_dropout must be at least 0 and under 1, not {self.word_dropout}")
        if not 0 <= (self.label_smoothing or 0) < 1:
            raise UserError(f"train.label_smoothing must be at least 0 and under 1, not {self.label_smoothing}")
        if self.keep < 2:
            raise UserError(
                f"train.keep must be at least 2, so that one good checkpoint always stands, not {self.keep}"
            )
        if not 0 <= self.ema < 1:
            raise UserError(f"train.ema must be at least 0 and under 1, not {self.ema}")
        if not 0 <= (self.condition_dropout or 0) < 1:
            raise UserError(f"train.condition_dropout must be at least 0 and under 1, not {self.condition_dropout}")
        if not 0 <= self.beta2 < 1:
            raise UserError(f"train.beta2 must be at least 0 and under 1, not {self.beta2}")


PICTURES = ("flip", "crop", "randaugment", "mixup")  # settings that change how pictures look


def refuse(config: TrainConfig, names: Sequence[str], why: str) -> None:
    """Refuse a setting that was given and would do nothing."""
    for name in names:
        if getattr(config, name) is not None:
            raise UserError(f"train.{name} is {why}")


_GPT2 = dict(
    optimizer="adamw",
    lr=6e-4,
    min_lr=0.1,
    batch=12,
    accumulate=40,
    warmup=2000,
    steps=600_000,
    beta2=0.95,
    save_every=1000,
)

# of the LLaMA papers: batches of four million tokens
_LLAMA = dict(
    optimizer="adamw", lr=3e-4, min_lr=0.1, batch=1, accumulate=1024, warmup=2000, steps=500_000, beta2=0.95,
    save_every=1000,
)  # fmt: skip

_LABELS = dict(batch=64, steps=3200, weight_decay=0.05)
_CAPTIONS = dict(batch=64, steps=2000, weight_decay=0.2)
_VIT = dict(batch=128, steps=50_000, lr=1e-3, warmup=1000, weight_decay=0.1, eval_every=1000, save_every=1000)

# of the 2017 paper: its rate is width^−½ times the schedule, which is (width·warmup)^−½ at the peak
_PAPER = dict(
    optimizer="adamw", beta2=0.98, schedule="paper", warmup=4000, weight_decay=0.0, label_smoothing=0.1, batch=256,
    accumulate=8, steps=100_000, eval_every=1000, save_every=1000,
)  # fmt: skip
_PAIRS = dict(batch=64, weight_decay=0.1, label_smoothing=0.0)
_NOISE = dict(batch=64, weight_decay=0.0, ema=0.999, eval_every=500, save_every=500)
_DIT = dict(
    optimizer="adamw", lr=1e-4, beta2=0.999, weight_decay=0.0, schedule="constant", warmup=0, clip=0.0, batch=256,
    steps=400_000, ema=0.9999, eval_every=10_000, save_every=5000,
)  # fmt: skip
_READING = dict(batch=32, weight_decay=0.1)
_BERT = dict(
    optimizer="adamw", lr=1e-4, beta2=0.999, weight_decay=0.01, warmup=10_000, batch=256, steps=1_000_000,
    eval_every=5000, save_every=5000,
)  # fmt: skip

PRESETS: dict[str, dict[str, dict]] = {
    "gpt": {
        "nano": dict(),
        "nanogpt": dict(optimizer="adamw", lr=1e-3, min_lr=0.1),
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
    },
    "vit": {
        "nano": _LABELS,
        "small": _LABELS | dict(batch=256, steps=3000, eval_every=500, save_every=500, muon_lr=0.01, randaugment=2),
        **{name: _VIT for name in ("ti/16", "s/16", "b/16", "b/32", "l/16")},
    },
    "captioner": {
        "nano": _CAPTIONS,
        "seed": _CAPTIONS,
        "small": _CAPTIONS | dict(batch=128, steps=8000, eval_every=2000, save_every=2000, word_dropout=0.4),
        "base": _VIT,
    },
    "dit": {
        "nano": _NOISE,
        "small": _NOISE | dict(steps=20_000, batch=128, eval_every=2000, save_every=2000),
        **{f"{n}/{p}": _DIT for n in ("s", "b", "l", "xl") for p in (2, 4, 8)},
    },
    "seq2seq": {
        "nano": _PAIRS,
        "small": _PAIRS | dict(steps=8000, label_smoothing=0.1, eval_every=1000, save_every=1000),
        "base": _PAPER | dict(lr=(512 * 4000) ** -0.5),
        "big": _PAPER | dict(lr=(1024 * 4000) ** -0.5, steps=300_000),
    },
    "reader": {
        "nano": _READING,
        "small": _READING | dict(steps=8000, eval_every=1000, save_every=1000),
        "bert-base": _BERT,
        "bert-large": _BERT,
    },
}
