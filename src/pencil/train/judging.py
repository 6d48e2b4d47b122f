"""Samples judged without a download: a classifier of ours, trained on the same pictures, says what each one shows."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import draw
from ..core.patches import by
from ..core.probe import Probe
from ..data.moving import MovingDigits
from ..data.sizes import patch_for
from ..data.text import cache_folder
from ..models.parts import numbers
from ..runs import Run
from . import checkpoint
from .loop import Trainer
from .start import new_run
from .tasks import random_of

SAMPLES, GUIDANCE, STEPS = 200, 3.0, 50
JUDGE = dict(steps=800, eval_every=400)  # of pictures with no pace of their own: a judge need not be the best there is


def judge_of(task: Any) -> Any:
    """A vit of the task's pictures, at the size they are drawn in, trained once and kept in the cache."""
    size = {"image_size": task.look.size, "channels": task.look.channels}
    native = all(task.data.native.get(name) == value for name, value in size.items())
    path = (
        cache_folder() / f"judge-{task.data.hash[:32]}{'' if native else '-' + by((size['channels'], *task.look.size))}"
    )
    if not _finished(path):
        sizes = {} if native else size | {"patch": patch_for(task.look.size)}
        pace = {} if task.data.pace else JUDGE
        run, vit, config = new_run("vit", task.source, model=sizes, train=pace, out=path, force=path.exists())
        if not Trainer(vit, run, config).train().finished:
            raise KeyboardInterrupt  # a judge that has not learned all it shall would be taken at its word
    return Run.open(path).load_model()


def _finished(path: Path) -> bool:
    steps = checkpoint.saved(path)
    return bool(steps) and steps[-1] == Run.open(path).config["train"]["steps"]


@torch.no_grad()
def features(judge: Any, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the judge makes of each picture just before it says the label, and the label; of a video, of all frames."""
    parts, labels = [], []
    for i in range(0, len(pictures), 256):
        few = torch.from_numpy(np.ascontiguousarray(pictures[i : i + 256]))
        frames = few.shape[2] if few.ndim == 5 else 1
        probe = Probe("pooled")
        said = judge(numbers(few.transpose(1, 2).flatten(0, 1) if few.ndim == 5 else few), probe=probe)
        parts.append(probe.values["pooled"].double().unflatten(0, (-1, frames)).mean(1).numpy())
        labels.append(said.log_softmax(-1).unflatten(0, (-1, frames)).mean(1).argmax(-1).numpy())
    return np.concatenate(parts), np.concatenate(labels)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance between two clouds of points, each taken for a Gaussian: ‖μ−ν‖² + tr(A + B − 2√(AB))."""
    mean = ((a.mean(0) - b.mean(0)) ** 2).sum()
    one, other = (np.cov(x, rowvar=False) for x in (a, b))
    values, vectors = np.linalg.eigh(one)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    both = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0, None)).sum()
    return float(mean + np.trace(one) + np.trace(other) - 2 * both)


def judge_samples(task: Any, model: Any) -> tuple[dict[str, float], dict[str, bytes]]:
    """How many samples show what was asked for, and how far they are from real pictures as the judge sees them."""
    judge = judge_of(task)
    targets = task.wanted(SAMPLES)
    made = task.paint(model, targets, guidance=GUIDANCE if task.config.null else 1.0, steps=STEPS)
    held, _ = task.data.test.take(range(len(task.data.test)), task.look.plain)
    # as many real ones as samples: a distance between few pictures and many is the larger the fewer they are
    if isinstance(task.data.train, MovingDigits):
        own, _ = task.data.train.draw(random_of(0, 0), len(made))
    else:
        some = random_of(0, 0).permutation(len(task.data.train))[: len(made)]
        own, _ = task.data.train.take(some, task.look.plain)
    (seen, said), (real, _), (again, _) = (features(judge, pictures) for pictures in (made, held, own))
    # of what was drawn untold each is as good as what it is seen as
    asked = targets if task.told else said.tolist()
    right = said == np.asarray(asked)
    lines = [
        task.named(t) if ok else f"{task.named(t)}, seen as {task.named(int(n))}"
        for t, n, ok in zip(asked, said, right, strict=True)
    ]
    shown = middle(made)[:80]
    title = f"{int(right.sum())} of {len(made)} seen as what was asked for" if task.told else "what each is seen as"
    sheet = draw.sheet(list(shown), lines[: len(shown)], [bool(ok) for ok in right[: len(shown)]], title)
    measures = {"asked_for": float(right.mean())} if task.told else {}
    if min(len(real), len(again)) > 1:  # one point has no spread
        measures |= {"frechet": frechet(seen, real), "frechet_of_real": frechet(again, real)}
    if made.ndim == 5:
        measures |= {"jerk": jerk(made), "jerk_of_real": jerk(held)}
    return measures, {"samples.png": sheet}


def middle(made: np.ndarray) -> np.ndarray:
    """Pictures as they are; of videos the frame in the middle."""
    return made if made.ndim == 4 else made[:, :, made.shape[2] // 2]


def jerk(videos: np.ndarray) -> float:
    """How unevenly what is bright moves: the mean change, in dots, of its centre's step from one frame to the next.

    A digit that goes on at an even pace has none but where it bounces.
    """
    light = videos[:, 0].astype(float) + 1e-6
    total = light.sum((2, 3))
    places = [
        (light * np.arange(light.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])).sum((2, 3)) / total
        for axis in (2, 3)
    ]
    return float(np.abs(np.diff(np.stack(places), 2, axis=2)).mean())
