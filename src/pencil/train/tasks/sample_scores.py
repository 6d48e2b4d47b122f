"""Samples of a diffusion model scored by a classifier of the same data: accuracy, and the Fréchet distance."""

from typing import Any

import numpy as np
import torch

from ... import draw
from ...core.probe import Probe
from ...data.images.moving_digits import MovingDigits
from ...models.parts import normalize
from ..task import random_of
from .diffusion import Diffusion, middle_frames

SAMPLES, GUIDANCE, STEPS = 200, 3.0, 50


@torch.no_grad()
def features(classifier: Any, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classifier's pooled features of each image, and the predicted class; of a video, over all frames."""
    parts, labels = [], []
    for i in range(0, len(pictures), 256):
        few = torch.from_numpy(np.ascontiguousarray(pictures[i : i + 256]))
        frames = few.shape[2] if few.ndim == 5 else 1
        probe = Probe("pooled")
        logits = classifier(normalize(few.transpose(1, 2).flatten(0, 1) if few.ndim == 5 else few), probe=probe)
        parts.append(probe.values["pooled"].double().unflatten(0, (-1, frames)).mean(1).numpy())
        labels.append(logits.log_softmax(-1).unflatten(0, (-1, frames)).mean(1).argmax(-1).numpy())
    return np.concatenate(parts), np.concatenate(labels)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance between two sets of features, each as a Gaussian: ‖μ−ν‖² + tr(A + B − 2√(AB))."""
    mean = ((a.mean(0) - b.mean(0)) ** 2).sum()
    one, other = (np.cov(x, rowvar=False) for x in (a, b))
    values, vectors = np.linalg.eigh(one)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    both = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0, None)).sum()
    return float(mean + np.trace(one) + np.trace(other) - 2 * both)


def score_samples(task: Diffusion, model: Any, classifier: Any) -> tuple[dict[str, float], dict[str, bytes]]:
    """How many samples are classified as their label, and their Fréchet distance to real images."""
    targets = task.sample_targets(SAMPLES)
    made = task.sample(model, targets, guidance=GUIDANCE if task.config.null_condition else 1.0, steps=STEPS)
    held, true = task.data.test.take(range(len(task.data.test)), task.transform.without_augmentation)
    # as many real ones as samples: the distance between small sets is larger
    if isinstance(task.data.train, MovingDigits):
        real, _ = task.data.train.draw(random_of(0, 0), len(made))
    else:
        some = random_of(0, 0).permutation(len(task.data.train))[: len(made)]
        real, _ = task.data.train.take(some, task.transform.without_augmentation)
    (sampled, predicted), (reference, named), (baseline, _) = (
        features(classifier, part) for part in (made, held, real)
    )
    # a sample without a label is named by what it is classified as
    labels = targets if task.conditional else predicted.tolist()
    right = predicted == np.asarray(labels)
    lines = [
        task.target_name(t) if ok else f"{task.target_name(t)}, classified as {task.target_name(int(n))}"
        for t, n, ok in zip(labels, predicted, right, strict=True)
    ]
    shown = middle_frames(made)[:80]
    title = f"{int(right.sum())} of {len(made)} classified as their label" if task.conditional else "predicted classes"
    sheet = draw.sheet(list(shown), lines[: len(shown)], [bool(ok) for ok in right[: len(shown)]], title)
    metrics = {"sample_accuracy": float(right.mean())} if task.conditional else {}
    metrics["classifier_accuracy"] = float((named == np.asarray(true)).mean())
    if min(len(reference), len(baseline)) > 1:  # one point has no covariance
        metrics |= {"frechet": frechet(sampled, reference), "frechet_of_real": frechet(baseline, reference)}
    if made.ndim == 5:
        metrics |= {"jerk": jerk(made), "jerk_of_real": jerk(held)}
    return metrics, {"samples.png": sheet}


def jerk(videos: np.ndarray) -> float:
    """How unevenly the bright part moves: the mean change, in pixels, of its centre's step from frame to frame.

    A digit that moves at constant speed has none except where it bounces.
    """
    light = videos[:, 0].astype(float) + 1e-6
    total = light.sum((2, 3))
    places = [
        (light * np.arange(light.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])).sum((2, 3)) / total
        for axis in (2, 3)
    ]
    return float(np.abs(np.diff(np.stack(places), 2, axis=2)).mean())
