"""The task of a diffusion transformer: say what is noise in a noised picture; and pictures drawn from noise."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from .. import draw
from ..config import UserError, coerce
from ..core.patches import by
from ..core.span import Span
from ..data import images
from ..data.augment import Look
from ..data.folders import brought
from ..data.moving import MovingDigits
from ..data.sizes import common_size, patch_for
from ..data.tokenizers import Tokenizer, learn
from ..diffusion import Flow, with_spread
from ..files import write_all
from ..models import configure, preset_of
from ..models.parts import numbers
from ..runs import Run
from .captions import longest
from .latents import Codec, as_latents, codec_of
from .loop import pick_device
from .painting import drawing_of, finish_of, paint
from .pairs import end_of, padded
from .pictures import PictureTask
from .settings import TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, random_of

PACES: dict[str, dict[str, Any]] = {
    "digits": dict(steps=480, ema=0.99, eval_every=480, save_every=240),
    "mnist": dict(steps=3000, batch=128, eval_every=1000),
    "moving-digits": dict(steps=6000, eval_every=1000),
}
BOUND = 0.001  # the share of the variational bound in the loss, where the variance is learned too
LEFT_OUT = 0.1  # of the labels or texts, where nothing else is said


class DiffusionTask(PictureTask):
    """Say what is noise in a noised picture, given the time, and a label or a text if there is."""

    family, headline = "dit", "val_loss"

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        refuse(config, ("mixup", "word_dropout", "label_smoothing"), "not for a dit")
        want = wanted_of(asked.data, coerce(asked.model.get("classes"), int | None, "model.classes") is not None)
        worded, data = want == "caption", images.load(asked.data, want)
        config = cls.settings_for(asked, data, config)
        tokenizer, found, facts = None, {}, {}
        if worded:
            tokenizer = learn(asked.tokenizer or "bpe", data.captions(), asked.vocab, ended=True)
            found = {"vocab": tokenizer.vocab, "context": max(16, -(-(longest(data, tokenizer) + 1) // 8) * 8)}
            facts = {"tokenizer": tokenizer.kind}
        else:
            if asked.tokenizer is not None:
                have = "labels" if data.classes else "no captions"
                raise UserError(f"--tokenizer is for text, and these pictures have {have}")
            found = {"classes": len(data.classes) or None}
        codec = None
        if asked.vae is not None:
            if not hasattr(data.train, "targets"):
                raise UserError(f"{data.name} is made on the fly, so it cannot be encoded before training")
            refuse(
                config, ("flip", "crop", "randaugment"), "not with --vae: pictures are encoded once, before training"
            )
            codec = Codec.open(asked.vae, pick_device(config.device))
            facts |= {"vae": codec.source, "vae_hash": codec.hash}
        sizes = cls.sizes_for(asked, data, found, codec)
        if sizes.classes:
            facts |= {"classes": data.classes}
        task = cls(data, sizes, config, tokenizer, asked.data, codec)
        return Begun(task, data.name, data.hash, sizes, config, tokenizer, facts)

    @classmethod
    def sizes_for(
        cls, asked: Asked, data: images.PictureData, found: dict[str, Any], codec: Codec | None = None
    ) -> Any:
        """As for other pictures, but only the shape of the data is taken from it."""
        preset = preset_of(asked.family, asked.preset)
        suggested = {} if "image_size" in preset else shape_for(asked, data)
        if codec is not None:
            size = coerce(asked.size, tuple[int, int] | None, "--size") or suggested.pop("image_size", None)
            suggested |= {"channels": codec.channels} | ({"image_size": codec.latents_of(size)} if size else {})
            if "image_size" not in preset:
                even = not any(side % 2 for side in suggested["image_size"])
                suggested["patch"] = (2, 2) if even else (1, 1)
        sizes = configure(asked.family, asked.preset, **{**suggested, **found, **asked.model})
        if "says" in asked.model and sizes.says != "eps" and sizes.noise == "flow":
            raise UserError("model.says is for noise in steps: --model.noise linear or cosine")
        check_fit(sizes, data, "vocab" in found)
        # where nothing is told there is nothing to leave out
        return sizes if sizes.classes or sizes.vocab else replace(sizes, null=False)

    @classmethod
    def settings_for(cls, asked: Asked, data: images.PictureData, config: TrainConfig) -> TrainConfig:
        """At a pace that suits the data; pictures are drawn as they are learned, so none is varied unless asked for."""
        pace = PACES.get(data.name, {}) if asked.preset == "nano" else {}
        return replace(config, **{n: v for n, v in pace.items() if n not in asked.train})

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "DiffusionTask":
        sizes = configure(run.family, None, **run.config["model"])
        worded = sizes.vocab is not None
        data = images.load(source, wanted_of(source, sizes.classes is not None))
        codec = codec_of(run, pick_device(config.device))
        return cls(data, sizes, config, run.tokenizer if worded else None, source, codec)

    def __init__(
        self,
        data: images.PictureData,
        sizes: Any,
        config: TrainConfig,
        tokenizer: Tokenizer | None,
        source: str,
        codec: Codec | None = None,
    ):
        self.codec = codec
        super().__init__(data, sizes, config)
        self.source = source
        self.process, self.tokenizer = drawing_of(sizes, codec is not None), tokenizer
        self.told = bool(sizes.classes or sizes.vocab)  # of a label or a text; else pictures are drawn untold
        if tokenizer is not None:
            self.end = end_of(tokenizer)
            self.encoded = lru_cache(1 << 16)(lambda text: tokenizer.encode(text).tolist())
        self.left_out = LEFT_OUT if config.condition_dropout is None else config.condition_dropout
        if not sizes.null:
            self.left_out = 0.0

    def _look(self) -> Look:
        if self.codec is None:
            return super()._look()
        if self.config.channels != self.codec.channels:
            raise UserError(
                f"the latents have {self.codec.channels} channels, and model.channels is {self.config.channels}"
            )
        height, width = (side * self.codec.factor for side in self.config.image_size)
        return Look((height, width), self.codec.colours)

    @cached_property
    def learned(self) -> images.PictureData:
        if self.codec is None:
            return self.data
        return as_latents(self.data, self.codec, self.look, Console(stderr=True).print)

    def build(self) -> nn.Module:
        _ = self.learned  # latents are made before the training's clock starts
        return super().build()

    def about(self) -> str:
        if self.codec is None:
            return super().about()
        latents = by((self.config.channels, *self.config.image_size))
        return f"{super().about()}, as latents of {latents}"

    @property
    def chooses(self) -> bool:
        return False

    @property
    def usage(self) -> str:
        if not self.told:
            return "--count 16"
        return f"--prompt {self.data.test.targets[0]!r}" if self.tokenizer else f"--label {self.data.classes[0]}"

    def draw(self, step: int, micro: int) -> tuple[np.ndarray, list[Any]]:
        if isinstance(self.data.train, MovingDigits):
            return self.data.train.draw(random_of(self.train.seed, step, micro), self.train.batch)
        return super().draw(step, micro)

    def given(self, targets: Sequence[Any]) -> tuple[Tensor, ...]:
        """The labels, or the texts' tokens and their places; or nothing."""
        if not self.told:
            return ()
        if self.tokenizer is None:
            return (torch.tensor(targets),)
        return padded([[self.end, *self.encoded(str(text))] for text in targets], self.end, self.config.context)

    def batch(self, step: int, micro: int = 0) -> Batch:
        pictures, targets = self.draw(step, micro)
        return torch.from_numpy(np.ascontiguousarray(pictures)), *self.given(targets)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean square of what is said wrong; times, noise and what is left out follow from torch's own seed."""
        pictures, *given = batch
        return self._loss(model, read(pictures), given, self.left_out)

    def _loss(self, model: nn.Module, x: Tensor, given: Sequence[Tensor], left_out: float) -> Tensor:
        t, noise = self.process.draw(len(x), x.device), torch.randn_like(x)
        nothing = torch.rand(len(x), device=x.device) < left_out if left_out else None
        places = Span.at(given[1]) if len(given) > 1 else None
        noised = self.process.noised(x, noise, t)
        both = model(noised, self.process.clock(t), given[0] if given else None, places, nothing).float()
        said, spread = with_spread(both, x.shape[1])
        loss = F.mse_loss(said, self.process.target(x, noise, t))
        if spread is None or isinstance(self.process, Flow):
            return loss
        bound = self.process.bound(x, noised, said, spread, t, levels=256 if self.codec is None else None)
        # times are drawn evenly: so many times the mean of what one step adds stands for what all of them add
        return loss + BOUND * len(self.process) * bound.mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """The loss on held-out pictures, each time with the same noise."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            for pictures, targets in self.judged(self.learned.test, batches):
                x = read(torch.from_numpy(np.ascontiguousarray(pictures)).to(device))
                given = [t.to(device) for t in self.given(targets)]
                total, count = total + float(self._loss(model, x, given, 0.0)) * len(x), count + len(x)
        return {"val_loss": total / count}

    def preview(self, model: nn.Module) -> Preview:
        """A few pictures for the first labels or texts, in a few steps."""
        targets = self.wanted(20)
        made = self.paint(model, targets, guidance=2.0 if self.config.null else 1.0, steps=20)
        # of a video, its middle frame
        shown = list(made if made.ndim == 4 else made[:, :, made.shape[2] // 2])
        names = [self.named(target) for target in targets]
        return Preview(".png", draw.sheet(shown, names, [True] * len(shown), self.data.name))

    def wanted(self, count: int) -> list[Any]:
        """Labels in turn, or the first held-out texts; or nothing, so many times."""
        if not self.told:
            return [None] * count
        if self.tokenizer is None:
            return [i % len(self.data.classes) for i in range(count)]
        return list(self.data.test.targets[:count])

    def named(self, target: Any) -> str:
        if target is None:
            return ""
        return str(self.data.classes[target]) if self.tokenizer is None else str(target)

    def paint(self, model: nn.Module, targets: Sequence[Any], **how: Any) -> np.ndarray:
        given, finish = self.given(targets), finish_of(self.codec)
        return paint(model, self.process, given, len(targets), finish=finish, **how)[-1]

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """The loss, and samples judged by a classifier trained on the same pictures; others only to look at."""
        from .judging import judge_samples

        folder.mkdir(parents=True, exist_ok=True)
        measures = self.evaluate(model)
        if self.tokenizer is not None or not self.data.classes:
            return measures, write_all(folder, {"samples.png": self.preview(model).content})
        measured, files = judge_samples(self, model)
        return measures | measured, write_all(folder, files)

    @property
    def notes(self) -> list[str]:
        """What to know of the measures."""
        if self.data.classes:
            return [] if self.told else ["no label was asked for, so none is judged: look at samples.png yourself"]
        what = "captions" if self.told else "pictures alone"
        return [f"{what} have no label to judge samples by: look at samples.png yourself"]


def check_fit(sizes: Any, data: images.PictureData, captions: bool) -> None:
    """Refuse a model that is told what its data does not say, or reads pictures of a shape they do not have."""
    if sizes.vocab and not captions:
        raise UserError(f"model.vocab is for pictures with captions, and {data.name} has none")
    if sizes.classes and not data.classes:
        raise UserError(f"model.classes is for pictures with labels, and {data.name} has none")
    if sizes.classes and sizes.classes < len(data.classes):
        raise UserError(f"model.classes {sizes.classes} is fewer than the {len(data.classes)} classes of {data.name}")
    made, frames = data.native, data.native.get("frames", 1)
    if sizes.frames != frames and frames == 1:
        raise UserError(f"model.frames {sizes.frames} is for video, and {data.name} has pictures that do not move")
    for name in ("frames", "image_size", "channels") if frames > 1 else ():
        if getattr(sizes, name) != made[name]:
            said = "x".join(map(str, made[name])) if name == "image_size" else made[name]
            raise UserError(f"{data.name} is made with model.{name} {said}, and no other: leave it out")


def shape_for(asked: Asked, data: images.PictureData) -> dict[str, Any]:
    """What the data suggests: pictures in files are drawn at the size they all have, cut by a patch that divides it."""
    names = ("image_size", "channels", "patch", "frames", "patch_frames")
    shape = {name: value for name, value in data.native.items() if name in names}
    size = asked.size or asked.model.get("image_size")
    if size is None:
        shape["image_size"] = common_size(data, asked.data) or shape["image_size"]
    elif asked.vae is None:
        shape["image_size"] = coerce(size, tuple[int, int], "model.image_size")
    fresh = tuple(shape["image_size"]) != tuple(data.native["image_size"]) and min(shape["image_size"]) > 0
    if fresh and asked.vae is None and "patch" not in asked.model:
        shape["patch"] = patch_for(shape["image_size"])
    return shape


def wanted_of(data: str, labels: bool = False) -> str:
    """What comes with the pictures: a label, a caption, or nothing; or whether they move. Of both, `labels` are taken
    where they are wished for."""
    path = Path(data).expanduser()
    for want in ("video", "caption"):
        if data in images.EMBEDDED[want]:
            return want
    found = brought(path) if path.is_dir() else "label"
    return "label" if labels and found == "caption" else found


def read(pictures: Tensor) -> Tensor:
    """Pictures' bytes as numbers; latents are numbers already."""
    return numbers(pictures) if pictures.dtype == torch.uint8 else pictures
