"""The task of a diffusion transformer: say what is noise in a noised picture; and pictures drawn from noise."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import draw
from ..config import UserError
from ..core.span import Span
from ..data import images
from ..data.moving import MovingDigits
from ..data.tokenizers import Tokenizer, learn
from ..diffusion import Process, guided, process_of, walk
from ..files import write_all
from ..models import configure, preset_of
from ..models.parts import numbers
from ..runs import Run
from .captions import longest
from .pairs import end_of, padded
from .pictures import PictureTask
from .settings import TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, random_of

PACES: dict[str, dict[str, Any]] = {
    "digits": dict(steps=480, ema=0.99, eval_every=480, save_every=240),
    "moving-digits": dict(steps=2000),
}
LEFT_OUT = 0.1  # of the labels or texts, where nothing else is said


class DiffusionTask(PictureTask):
    """Say what is noise in a noised picture, given the time and a label or a text."""

    family, headline = "dit", "val_loss"

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        refuse(config, ("mixup", "word_dropout", "label_smoothing"), "not for a dit")
        want = wanted_of(asked.data)
        worded, data = want == "caption", images.load(asked.data, want)
        config = cls.settings_for(asked, data, config)
        tokenizer, found, facts = None, {}, {}
        if worded:
            tokenizer = learn(asked.tokenizer or "bpe", data.captions(), asked.vocab, ended=True)
            found = {"vocab": tokenizer.vocab, "context": max(16, -(-(longest(data, tokenizer) + 1) // 8) * 8)}
            facts = {"tokenizer": tokenizer.kind}
        else:
            if asked.tokenizer is not None:
                raise UserError("--tokenizer is for text, and these pictures have labels")
            found, facts = {"classes": len(data.classes)}, {"classes": data.classes}
        sizes = cls.sizes_for(asked, data, found)
        task = cls(data, sizes, config, tokenizer, asked.data)
        return Begun(task, data.name, data.hash, sizes, config, tokenizer, facts)

    @classmethod
    def sizes_for(cls, asked: Asked, data: images.PictureData, found: dict[str, Any]) -> Any:
        """As for other pictures, but only the shape of the data is taken from it."""
        preset = preset_of(asked.family, asked.preset)
        shape = ("image_size", "channels", "patch", "frames", "patch_frames")
        suggested = {} if "image_size" in preset else {n: v for n, v in data.native.items() if n in shape}
        return configure(asked.family, asked.preset, **{**suggested, **found, **asked.model})

    @classmethod
    def settings_for(cls, asked: Asked, data: images.PictureData, config: TrainConfig) -> TrainConfig:
        """At a pace that suits the data; pictures are drawn as they are learned, so none is varied unless asked for."""
        pace = PACES.get(data.name, {}) if asked.preset == "nano" else {}
        return replace(config, **{n: v for n, v in pace.items() if n not in asked.train})

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "DiffusionTask":
        sizes = configure(run.family, None, **run.config["model"])
        worded = sizes.vocab is not None
        data = images.load(source, wanted_of(source))
        return cls(data, sizes, config, run.tokenizer if worded else None, source)

    def __init__(
        self, data: images.PictureData, sizes: Any, config: TrainConfig, tokenizer: Tokenizer | None, source: str
    ):
        super().__init__(data, sizes, config)
        self.source = source
        self.process, self.tokenizer = process_of(sizes.noise, sizes.says), tokenizer
        if tokenizer is not None:
            self.end = end_of(tokenizer)
            self.encoded = lru_cache(1 << 16)(lambda text: tokenizer.encode(text).tolist())
        self.left_out = LEFT_OUT if config.condition_dropout is None else config.condition_dropout
        if not sizes.null:
            self.left_out = 0.0

    @property
    def chooses(self) -> bool:
        return False

    @property
    def usage(self) -> str:
        return f"--label {self.data.classes[0]}" if self.data.classes else f"--prompt {self.data.test.targets[0]!r}"

    def draw(self, step: int, micro: int) -> tuple[np.ndarray, list[Any]]:
        if isinstance(self.data.train, MovingDigits):
            return self.data.train.draw(random_of(self.train.seed, step, micro), self.train.batch)
        return super().draw(step, micro)

    def given(self, targets: Sequence[Any]) -> tuple[Tensor, ...]:
        """The labels, or the texts' tokens and their places."""
        if self.tokenizer is None:
            return (torch.tensor(targets),)
        return padded([[self.end, *self.encoded(str(text))] for text in targets], self.end, self.config.context)

    def batch(self, step: int, micro: int = 0) -> Batch:
        pictures, targets = self.draw(step, micro)
        return torch.from_numpy(np.ascontiguousarray(pictures)), *self.given(targets)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean square of what is said wrong; times, noise and what is left out follow from torch's own seed."""
        pictures, *given = batch
        return self._loss(model, numbers(pictures), given, self.left_out)

    def _loss(self, model: nn.Module, x: Tensor, given: Sequence[Tensor], left_out: float) -> Tensor:
        t, noise = self.process.draw(len(x), x.device), torch.randn_like(x)
        nothing = torch.rand(len(x), device=x.device) < left_out if left_out else None
        places = Span.at(given[1]) if len(given) > 1 else None
        said = model(self.process.noised(x, noise, t), self.process.clock(t), given[0], places, nothing)
        return F.mse_loss(said.float(), self.process.target(x, noise, t))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """The loss on held-out pictures, each time with the same noise."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            for pictures, targets in self.judged(self.data.test, batches):
                x = numbers(torch.from_numpy(np.ascontiguousarray(pictures)).to(device))
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
        """Labels in turn, or the first held-out texts."""
        if self.tokenizer is None:
            return [i % len(self.data.classes) for i in range(count)]
        return list(self.data.test.targets[:count])

    def named(self, target: Any) -> str:
        return str(self.data.classes[target]) if self.tokenizer is None else str(target)

    def paint(self, model: nn.Module, targets: Sequence[Any], **how: Any) -> np.ndarray:
        return paint(model, self.process, [t for t in self.given(targets)], **how)[-1]

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """The loss, and samples judged by a classifier trained on the same pictures."""
        from .judging import judge_samples

        folder.mkdir(parents=True, exist_ok=True)
        measures, files = self.evaluate(model), {}
        if self.tokenizer is None:
            measured, files = judge_samples(self, model)
            measures |= measured
        return measures, write_all(folder, files)


def wanted_of(data: str) -> str:
    """What comes with the pictures: a caption in a folder with metadata.jsonl, else a label; or whether they move."""
    path = Path(data).expanduser()
    for want in ("video", "caption"):
        if data in images.EMBEDDED[want]:
            return want
    return "caption" if path.is_dir() and (path / "metadata.jsonl").is_file() else "label"


@torch.no_grad()
def paint(
    model: Any,
    process: Process,
    given: Sequence[Tensor],
    guidance: float = 1.0,
    steps: int = 50,
    sampler: str | None = None,
    seed: int = 0,
    films: bool = False,
) -> list[np.ndarray]:
    """Pictures from noise, as bytes: the last ones, or those after every step too. A seed gives a row its noise."""
    c, device = model.config, next(model.parameters()).device
    if guidance != 1 and not c.null:
        raise UserError("the model was trained without the null class, so it cannot be guided: leave --guidance at 1")
    count = len(given[0])
    rows = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(count)]
    x = torch.stack([torch.randn((c.channels, *c.sides), generator=g) for g in rows]).to(device)
    places = Span.at(given[1].to(device)) if len(given) > 1 else None
    denoise = guided(model, given[0].to(device), guidance, places)
    stops = [as_bytes(x)] if films else []
    for less in walk(process, denoise, x, steps, sampler, torch.Generator().manual_seed(seed)):
        stops = [*stops, as_bytes(less)] if films else [as_bytes(less)]
    return stops


def as_bytes(x: Tensor) -> np.ndarray:
    """From −1 … 1 to 0 … 255."""
    return ((x.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy()
