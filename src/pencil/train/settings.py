"""Training settings: one frozen dataclass for every family."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..config import UserError

FEWEST_SNAPSHOTS = 3  # the untrained weights, those after the first step, and the newest
UNDECIDED = ("steps", "eval_every", "save_every")  # what a time budget decides when the pace has been measured
Plan = dict[str, int]  # what a time budget decided of these, and the "step" after which it did


@dataclass(frozen=True)
class TrainConfig:
    """How a run is trained; "auto" is decided by the device."""

    steps: int = 2000  # optimizer updates; if minutes is set, 0 until the speed is measured
    minutes: float | None = None  # time budget of the whole command; the steps follow from it
    batch: int = 12  # examples in a micro-batch
    accumulate: int = 1  # micro-batches in an update (gradient accumulation)
    optimizer: Literal["muon", "adamw"] = "muon"  # muon: Muon for the matrices of the blocks, AdamW for the rest
    lr: float = 3e-3  # AdamW's peak learning rate
    muon_lr: float = 0.02  # Muon's peak learning rate
    final_lr_fraction: float = 0.0  # of the peak learning rate, at the last step
    beta1: float = 0.9  # decay of AdamW's mean of the gradients
    beta2: float = 0.99  # decay of AdamW's mean of the squared gradients
    eps: float = 1e-8  # AdamW's, added to the root of the second moment
    weight_decay: float = 0.1  # each update shrinks the matrices by this times the learning rate; 0 does not
    schedule: Literal["cosine", "wsd", "inverse-sqrt", "constant"] = "cosine"  # of the learning rate, after warm-up
    warmup: int = 100  # steps of linear warm-up
    clip: float = 1.0  # of the gradient's norm; 0 does not clip
    nonfinite: Literal["stop", "skip"] = "stop"  # at a NaN or infinite loss or gradient; skip: its update is left out
    max_skipped: int = 10  # updates left out by nonfinite = "skip" before training stops
    freeze: str | None = None  # parameters that are not trained: patterns such as blocks.[0-5].*, with commas between
    recompute: Literal["none", "blocks"] = "none"  # blocks: run each block again backwards, to keep only its input
    ema: float = 0.0  # decay of the exponential moving average of the weights; 0 keeps none
    seed: int = 1337  # of the first weights, the order of the examples, the augmentation and the dropout
    eval_every: int = 250  # steps from one evaluation to the next
    eval_batches: int = 50  # batches of held-out data in an evaluation while training, at most
    patience: int = 0  # evaluations without a better validation loss after which training stops; 0 never stops early
    save_every: int = 250  # steps from one checkpoint to the next
    keep: int = 2  # newest checkpoints that stay; older ones are removed
    snapshots: int = 24  # at most, of the weights on the way, for pencil explore; up to 10 M parameters; 0 keeps none
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # bfloat16 is autocast over float32 weights
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile; auto compiles on CUDA
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"  # of several processes: whole copies, or the model cut up (FSDP2)
    sync: Literal["auto", "update", "batch"] = "auto"  # fsdp: sum gradients over devices once an update, or each batch
    exact: bool = False  # the same bits on 1, 2, 4, … processes: slots of the batch, summed in one order
    slots: int = 0  # of a micro-batch if exact, a power of two; 0: 8, or as many as divide the batch
    deterministic: bool = False  # on CUDA: the same bits every time, at some cost in speed; a CPU always gives them
    logger: Literal["none", "tensorboard", "trackio", "wandb"] = "none"  # writes the metrics too, beside metrics.jsonl
    # settings of some families only; unset, the data decides
    flip: bool | None = None  # mirror images, half the time
    crop: float | None = None  # random crops that keep at least this share of the area
    augment_ops: int | None = None  # random small affine or colour changes an image
    mixup: float | None = None  # blend two images and their labels, by a weight from Beta(mixup, mixup)
    word_dropout: float | None = None  # share of the input words replaced, so that the image must be used
    mask_fraction: float | None = None  # share of the tokens masked, to be predicted
    condition_dropout: float | None = None  # share of labels or texts dropped, for classifier-free guidance
    label_smoothing: float | None = None  # probability spread evenly over all tokens
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None  # in the loss; balanced: by 1/frequency
    balanced_batches: bool | None = None  # draw each class equally often; examples of rare ones come more often

    RENAMED: ClassVar[dict[str, str]] = {"min_lr": "final_lr_fraction", "randaugment": "augment_ops"}
    RENAMED_VALUES: ClassVar[dict[tuple[str, str], str]] = {("schedule", "paper"): "inverse-sqrt"}

    def __post_init__(self):
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"train.minutes must be above 0, not {self.minutes:g}")
        for name in ("steps", "batch", "accumulate", "eval_every", "eval_batches", "save_every"):
            undecided = self.minutes is not None and name in UNDECIDED and getattr(self, name) == 0
            if getattr(self, name) < 1 and not undecided:
                raise UserError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "warmup",
            "weight_decay",
            "lr",
            "muon_lr",
            "clip",
            "seed",
            "max_skipped",
            "patience",
            "augment_ops",
            "mixup",
        ):
            if not (getattr(self, name) or 0) >= 0:
                raise UserError(f"train.{name} cannot be negative, not {getattr(self, name)}")
        for name in ("ema", "beta1", "beta2", "word_dropout", "mask_fraction", "condition_dropout", "label_smoothing"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise UserError(f"train.{name} must be at least 0 and under 1, not {getattr(self, name)}")
        if self.mask_fraction == 0:
            raise UserError("train.mask_fraction 0 masks nothing, so there is nothing to predict: 0.15 is usual")
        if not self.eps > 0:
            raise UserError(f"train.eps must be above 0, not {self.eps}")
        if not 0 <= self.final_lr_fraction <= 1:
            raise UserError(
                f"train.final_lr_fraction is a share of the peak learning rate, from 0 to 1, not "
                f"{self.final_lr_fraction}"
            )
        if self.crop is not None and not 0 < self.crop <= 1:
            raise UserError(f"train.crop must be above 0 and at most 1 (the whole picture), not {self.crop}")
        if self.sync != "auto" and (self.parallel != "fsdp" or self.accumulate == 1):
            raise UserError(
                f"train.sync {self.sync} has no effect without fsdp and a --train.accumulate above 1: use auto"
            )
        if self.exact:
            object.__setattr__(self, "deterministic", True)
            slots_of(self)
        elif self.slots:
            raise UserError("train.slots has no effect without --train.exact true: leave it out, or 0")
        if isinstance(self.class_weights, tuple) and not min(self.class_weights, default=0) > 0:
            raise UserError(f"train.class_weights must be above 0, not {min(self.class_weights, default=0)}")
        if self.class_weights == "balanced" and self.balanced_batches:
            raise UserError(
                "train.class_weights balanced and train.balanced_batches both make rare classes count as much as "
                "common ones: choose one of them"
            )
        if self.snapshots and self.snapshots < FEWEST_SNAPSHOTS:
            raise UserError(
                f"train.snapshots must be 0, which keeps none, or at least {FEWEST_SNAPSHOTS}, not {self.snapshots}"
            )
        if self.keep < 2:
            raise UserError(
                f"train.keep must be at least 2, so that one good checkpoint always exists, not {self.keep}"
            )

    @staticmethod
    def upgrade(values: dict) -> dict:
        """Settings of a run made before 0.7, whose warm-up never exceeded a fifth of the steps."""
        if values.get("schedule") != "inverse-sqrt" and "warmup" in values and "steps" in values:
            values = values | {"warmup": min(values["warmup"], values["steps"] // 5)}
        return values


MOST_SLOTS = 8  # unless set


def slots_of(config: TrainConfig) -> int:
    """The slots of a micro-batch in exact mode: they follow from the settings, never from the number of processes."""
    if not config.slots:
        return min(MOST_SLOTS, config.batch & -config.batch)  # the largest power of two that divides the batch
    if config.slots < 1 or config.slots & (config.slots - 1) or config.batch % config.slots:
        raise UserError(
            f"train.slots {config.slots} must be a power of two that divides train.batch {config.batch}: "
            f"{config.batch & -config.batch} or a smaller one would"
        )
    return config.slots


def check_processes(config: TrainConfig, size: int) -> None:
    """Refuse a number of processes that the batch cannot be divided among."""
    if config.batch % size:
        below = config.batch // size * size
        near = f"{below} or {below + size}" if below else str(size)
        raise UserError(f"train.batch {config.batch} cannot be divided among {size} processes: {near} can")
    if not config.exact:
        return
    if config.parallel == "fsdp":
        raise UserError("train.exact sums whole gradients, and fsdp cuts them up: use --train.parallel ddp")
    if size & (size - 1):
        raise UserError(f"train.exact is for 1, 2, 4, 8, … processes, not {size}: start as many, or leave it out")
    if size > (slots := slots_of(config)):
        raise UserError(
            f"train.exact has {slots} slots in a batch, fewer than the {size} processes: choose --train.slots {size}"
        )


OPTIONAL = (
    "flip", "crop", "augment_ops", "mixup", "word_dropout", "mask_fraction", "condition_dropout", "label_smoothing",
    "class_weights", "balanced_batches",
)  # settings of some families only  # fmt: skip


def plain_names(record: Any) -> dict[str, list[str]]:
    """The names of a family's settings by section."""
    left_out = set(OPTIONAL) - set(record.train_settings)
    return {
        "options": [one.name for one in fields(record.train_options)],
        "model": [one.name for one in fields(record.config)],
        "train": [one.name for one in fields(TrainConfig) if one.name not in left_out],
        "data": list(record.data_settings),
    }


RENAMED_FOR_MASKS = {"word_dropout": "mask_fraction"}  # before 0.7 one setting had both meanings


def check_settings(config: TrainConfig, taken: tuple[str, ...], family: str) -> None:
    """Refuse a setting that would have no effect on this family."""
    for name in OPTIONAL:
        if name not in taken and getattr(config, name) is not None:
            if RENAMED_FOR_MASKS.get(name) in taken:
                raise UserError(f"train.{name} is now called train.{RENAMED_FOR_MASKS[name]} for a {family}")
            raise UserError(f"train.{name} has no effect on a {family}: leave it out")


def with_budget(train: Mapping[str, Any]) -> dict[str, Any]:
    """The settings chosen, with what a time budget leaves to the measured pace set to 0."""
    if train.get("minutes") in (None, "none"):
        return dict(train)
    if "steps" in train:
        raise UserError("train.steps and train.minutes both say how long to train: give one of the two")
    return {**dict.fromkeys(UNDECIDED, 0), **train}


def resumed(
    run: Path, recorded: Mapping[str, Any], changed: Mapping[str, Any], option: str = "--train.steps"
) -> dict[str, Any]:
    """The settings of a run that goes on: a number of steps takes the place of a time budget, with its plans."""
    decided = recorded.get("steps")
    if decided and changed.get("minutes") not in (None, recorded.get("minutes")):
        budget = ""
        if minutes := recorded.get("minutes"):
            budget = f" in a budget of {minutes:g} minute" + "s" * (minutes != 1)
        raise UserError(f"{run} is trained for {decided} steps{budget}: {option} sets another number")
    if "steps" not in changed or recorded.get("minutes") is None:
        return {**recorded, **changed}
    every = {name: getattr(TrainConfig, name) for name in UNDECIDED if not recorded.get(name)}
    return {**recorded, "minutes": None, **every, **changed}


NOT_DECAYING = ("constant", "inverse-sqrt")  # schedules that do not end at train.final_lr_fraction


def check_final_rate(config: TrainConfig, chosen: Mapping[str, Any]) -> None:
    """Refuse a final learning rate that was chosen with a schedule that has none."""
    if "final_lr_fraction" in chosen and config.schedule in NOT_DECAYING:
        raise UserError(
            f"train.final_lr_fraction has no effect with train.schedule {config.schedule}: leave it out, or use cosine "
            "or wsd"
        )


def check_patience(config: TrainConfig, why_last: str) -> None:
    """Refuse early stopping where the validation loss does not select the weights."""
    if config.patience and why_last:
        raise UserError(f"train.patience stops by the validation loss, and here {why_last}: leave it out")


def idle_patience(config: TrainConfig) -> list[str]:
    """A note where there are too few evaluations for early stopping to happen."""
    count = -(-config.steps // config.eval_every) if config.steps and config.eval_every else config.patience
    if count >= config.patience:
        return []
    many = "is 1 evaluation" if count == 1 else f"are {count} evaluations"
    return [
        f"train.patience {config.patience} has no effect: there {many} in {config.steps} steps (--train.eval_every "
        f"{config.eval_every})"
    ]


def fit_warmup(config: TrainConfig, chosen: bool) -> tuple[TrainConfig, list[str]]:
    """A preset's warm-up shortened for a short run, and a note of it; one the user chose is kept, or refused."""
    if not config.steps:  # a time budget: fitted when the steps are known
        return config, []
    if config.warmup > config.steps and chosen:
        raise UserError(f"train.warmup {config.warmup} exceeds train.steps {config.steps}: choose a shorter warm-up")
    most = config.steps // 5
    if chosen or config.schedule == "inverse-sqrt" or config.warmup <= most:
        return config, []
    steps = f"{most} step" + "s" * (most != 1)
    note = f"warm-up shortened from {config.warmup} to {steps}, a fifth of the run; --train.warmup sets another"
    return replace(config, warmup=most), [note]
