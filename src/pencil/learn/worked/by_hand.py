"""Weights for work by hand: given numbers, or drawn ones of one decimal."""

from typing import Any

import numpy as np
import torch


def set_weight(parameter: Any, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(np.asarray(values, dtype=float)))


def one_decimal(model: Any, seed: int) -> Any:
    """The model with weights of one decimal; those that scale a norm are near 1."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    for name, parameter in model.named_parameters():
        drawn = np.round(rng.normal(0, 0.5, parameter.shape), 1)
        set_weight(parameter, 1 + drawn / 5 if "norm" in name and name.endswith("weight") else drawn)
    return model.eval()
