"""dit: train steps and forward passes of a diffusion transformer, beside diffusers' model."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError
from ..families.dit import FAMILY
from ..weights.dit import EPS, sinusoids
from .equality import Equality, compare
from .images import call_ours, forward, train_step
from .models import fast_products, make, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = FAMILY.name
PEER = "diffusers"
EARLY = 100  # timesteps of the check: sines of later ones, in float32 there, are off by more than the rest together


def run(plan: Plan) -> Iterator[Row]:
    preset, ours, theirs, same = models(plan)
    config = ours.config
    batch = plan.batch or (32 if plan.cuda and not plan.quick else 2)
    both = {OURS: (ours, call_ours)} | ({} if theirs is None else {PEER: (theirs, call_diffusers)})
    given = drawn(config, batch, plan.device)
    target = torch.randn(batch, config.out_channels, *config.image_size, device=plan.device)
    with fast_products():
        contenders = [
            Contender(
                who,
                train_step(plan, model, ask, given, lambda out: (out - target).square().mean()),
                [model],
                None if model is ours else same,
            )
            for who, (model, ask) in both.items()
        ]
        work = work_of(FAMILY, config, batch, plan)["train_step"]
        yield from run_case(plan, JOB, f"{preset}, train step, batch {batch}", "images/s", batch, contenders, work)
    same = to_dtype(plan, ours, theirs, same)
    given = (given[0].to(plan.dtype), *given[1:])
    contenders = [
        Contender(who, forward(plan, model, ask, given), [model], None if model is ours else same)
        for who, (model, ask) in both.items()
    ]
    work = work_of(FAMILY, config, batch, plan)["forward"]
    yield from run_case(plan, JOB, f"{preset}, forward, batch {batch}", "images/s", batch, contenders, work)


def models(plan: Plan) -> tuple[str, Any, nn.Module | None, Equality | None]:
    """The preset, our model, theirs with its weights, and whether the two are equal in float32.

    Both are in evaluation mode: in training mode diffusers drops labels, differently in each of its blocks.
    """
    preset = plan.preset or ("xl/2" if plan.cuda and not plan.quick else "s/8")
    if "image_size" not in FAMILY.preset_values(preset):
        sized = [name for name, values in FAMILY.presets.items() if "image_size" in values]
        raise UserError(f"{preset} takes its sizes from data; these have their own: {', '.join(sized)}")
    config = FAMILY.configure(preset, positions="learned", eps=EPS, downscale_freq_shift=True)
    ours = make(FAMILY, config, plan.device)
    with torch.no_grad():
        ours.positions.table.copy_(sinusoids(config).reshape(ours.positions.table.shape))
    try:
        theirs = plan.peers.diffusers_dit(ours)
    except UserError as error:
        plan.notify(f"{PEER} is left out: {error}")
        theirs = None
    return preset, ours, theirs, _compare(plan, ours, theirs, torch.float32)


def _compare(plan: Plan, ours: Any, theirs: nn.Module | None, dtype: torch.dtype) -> Equality | None:
    if theirs is None:
        return None
    c = ours.config
    picture, timestep, label = drawn(c, 3, plan.device)
    given = picture.to(dtype), timestep % EARLY, label
    return compare(lambda: ours(*given), lambda: call_diffusers(theirs, *given), dtype, c.width, c.depth)


def to_dtype(plan: Plan, ours: Any, theirs: nn.Module | None, same: Equality | None) -> Equality | None:
    """Both in the dtype of inference, and compared in it too."""
    if plan.dtype == torch.float32:
        return same
    ours.to(plan.dtype)
    if theirs is None or same is None:
        return None
    theirs.to(plan.dtype)
    also = _compare(plan, ours, theirs, plan.dtype)
    return same if also is None else same | also


def drawn(c: Any, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    timestep, label = (torch.randint(n, (batch,), device=device) for n in (1000, c.classes))
    return torch.randn(batch, c.channels, *c.image_size, device=device), timestep, label


def call_diffusers(model: Any, *given: Tensor) -> Tensor:
    return model(*given, return_dict=False)[0]
