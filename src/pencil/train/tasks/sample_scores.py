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
CLASSIFIER_BATCH = 256  # images
SHEET_SAMPLES = 80


@torch.no_grad()
def features(classifier: Any, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classifier's pooled features of each image, and the predicted class; of a video, over all frames."""
    parts, labels = [], []
    for i in range(0, len(pictures), CLASSIFIER_BATCH):
        batch = torch.from_numpy(np.ascontiguousarray(pictures[i : i + CLASSIFIER_BATCH]))
        frames = batch.shape[2] if batch.ndim == 5 else 1
        probe = Probe("pooled")
        logits = classifier(normalize(batch.transpose(1, 2).flatten(0, 1) if batch.ndim == 5 else batch), probe=probe)
        parts.append(probe.values["pooled"].double().unflatten(0, (-1, frames)).mean(1).numpy())
        labels.append(logits.log_softmax(-1).unflatten(0, (-1, frames)).mean(1).argmax(-1).numpy())
    return np.concatenate(parts), np.concatenate(labels)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance between two sets of features, each as a Gaussian: ‖μ−ν‖² + tr(A + B − 2√(AB))."""
    mean = ((a.mean(0) - b.mean(0)) ** 2).sum()
    cov_a, cov_b = (np.cov(x, rowvar=False) for x in (a, b))
    values, vectors = np.linalg.eigh(cov_a)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    trace_of_root = np.sqrt(np.clip(np.linalg.eigvalsh(root @ cov_b @ root), 0, None)).sum()
    return float(mean + np.trace(cov_a) + np.trace(cov_b) - 2 * trace_of_root)


def score_samples(task: Diffusion, model: Any, classifier: Any) -> tuple[dict[str, float], dict[str, bytes]]:
    """The share of samples classified as their label, their Fréchet distance to real images, and a sheet of samples."""
    targets = task.sample_targets(SAMPLES)
    samples = task.sample(model, targets, guidance=GUIDANCE if task.config.null_condition else 1.0, steps=STEPS)
    held, true = task.data.test.take(range(len(task.data.test)), task.transform.without_augmentation)
    # as many real ones as samples: the distance between small sets is larger
    if isinstance(task.data.train, MovingDigits):
        real, _ = task.data.train.draw(random_of(0, 0), len(samples))
    else:
        indices = random_of(0, 0).permutation(len(task.data.train))[: len(samples)]
        real, _ = task.data.train.take(indices, task.transform.without_augmentation)
    (sampled, predicted), (reference, named), (baseline, _) = (
        features(classifier, part) for part in (samples, held, real)
    )
    # a sample without a label is named by what it is classified as
    labels = targets if task.conditional else predicted.tolist()
    right = predicted == np.asarray(labels)
    lines = [
        task.target_name(t) if ok else f"{task.target_name(t)}, classified as {task.target_name(int(n))}"
        for t, n, ok in zip(labels, predicted, right, strict=True)
    ]
    pictures = middle_frames(samples)[:SHEET_SAMPLES]
    title = (
        f"{int(right.sum())} of {len(samples)} classified as their label" if task.conditional else "predicted classes"
    )
    sheet = draw.sheet(list(pictures), lines[: len(pictures)], [bool(ok) for ok in right[: len(pictures)]], title)
    metrics = {"sample_accuracy": float(right.mean())} if task.conditional else {}
    metrics["classifier_accuracy"] = float((named == np.asarray(true)).mean())
    if min(len(reference), len(baseline)) > 1:  # one point has no covariance
        metrics |= {"frechet": frechet(sampled, reference), "frechet_of_real": frechet(baseline, reference)}
    if samples.ndim == 5:
        metrics |= {"jerk": jerk(samples), "jerk_of_real": jerk(held)}
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
