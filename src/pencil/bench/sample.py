"""sample: whole guided samples of a diffusion transformer, beside diffusers' transformer with its DDIM scheduler."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..cost.devices import Workload
from ..families.dit import FAMILY
from ..inference.image_sampling import process_of, sample_images
from ..weights.dit import describe_schedule
from .dit import PEER, models, to_dtype
from .models import work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = "sample"
GUIDANCE = 4.0


def run(plan: Plan) -> Iterator[Row]:
    preset, ours, theirs, same = models(plan)
    same = to_dtype(plan, ours, theirs, same)
    steps = 4 if plan.quick else 50
    batch = plan.batch or (8 if plan.cuda and not plan.quick else 1)
    c = ours.config
    labels = torch.randint(c.classes, (batch,), device=plan.device)
    contenders = [Contender(OURS, partial(_ours, ours, labels, steps, plan.cuda), [ours])]
    if plan.cuda:
        contenders.append(Contender(f"{OURS}, not compiled", partial(_ours, ours, labels, steps, False), [ours]))
    if theirs is not None:
        loop = _Diffusers(plan, theirs, c, labels, steps)
        contenders.append(Contender(PEER, loop, [theirs], same))
    # every step runs the model twice: with the label and without it
    one = work_of(FAMILY, c, 2 * batch, plan)["forward"]
    work = Workload(steps * one.flops, steps * one.bytes, batch)
    case = f"{preset}, {steps} guided DDIM steps, batch {batch}"
    yield from run_case(plan, JOB, case, "images/s", batch, contenders, work)


def _ours(model: Any, labels: Tensor, steps: int, compiled: bool) -> Any:
    return sample_images(
        model,
        process_of(model.config, True),
        (labels,),
        len(labels),
        GUIDANCE,
        steps,
        "ddim",
        decode=_latents,
        compile=compiled,
    )


def _latents(x: Tensor) -> Any:
    """Latents as they are: the autoencoder is another model."""
    return x.float().cpu().numpy()


class _Diffusers:
    """The loop of diffusers' DiTPipeline without its autoencoder; on CUDA the transformer is compiled."""

    def __init__(self, plan: Plan, model: nn.Module, config: Any, labels: Tensor, steps: int):
        fields = {name: value for name, value in describe_schedule(config, True).items() if not name.startswith("_")}
        self.plan, self.config, self.steps = plan, config, steps
        self.scheduler = plan.peers.package(PEER).DDIMScheduler(**fields)
        self.call: Any = torch.compile(model) if plan.cuda else model
        self.labels = torch.cat((labels, torch.full_like(labels, config.classes)))

    @torch.no_grad()
    def __call__(self) -> Any:
        c, count = self.config, len(self.labels) // 2
        x = torch.randn(count, c.channels, *c.image_size, device=self.plan.device, dtype=self.plan.dtype)
        self.scheduler.set_timesteps(self.steps)
        for t in self.scheduler.timesteps:
            timestep = t.to(self.plan.device).expand(2 * count)
            output = self.call(torch.cat((x, x)), timestep, self.labels, return_dict=False)[0]
            conditional, unconditional = output[:, : c.channels].chunk(2)
            guided = unconditional + GUIDANCE * (conditional - unconditional)
            x = self.scheduler.step(guided, t, x).prev_sample
        return _latents(x)
