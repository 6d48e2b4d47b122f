"""The jobs on images, beside another library: train steps, forward passes and samples, compiled on CUDA."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import UserError
from ..cost.devices import Workload
from ..families.dit import FAMILY as DIT_FAMILY
from ..families.family import Family
from ..families.vit import FAMILY as VIT_FAMILY
from ..inference.image_sampling import process_of, sample_images
from ..weights.dit import EPS, describe_schedule, sinusoids
from .equality import matmul_precision
from .models import Ask, Pair, make, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

DIFFUSERS = "diffusers"
GUIDANCE = 4.0  # of the samples
# timesteps of the comparison: sines of later ones, in float32 there, are off by more than the rest together
COMPARED_TIMESTEPS = 100


def run_vit(plan: Plan) -> Iterator[Row]:
    """vit: images classified and trained on, beside timm's model."""
    preset = plan.preset or ("b/16" if plan.cuda and not plan.quick else "ti/16")
    config = VIT_FAMILY.configure(preset)
    inference, training = (256, 128) if plan.cuda and not plan.quick else (4, 2) if plan.quick else (16, 8)

    def pictures(batch: int) -> Tensor:
        return torch.randn(batch, config.channels, *config.image_size, device=plan.device)

    ours = make(VIT_FAMILY, config, plan.device)
    pair = Pair(plan, ours, "timm", plan.peers.timm_vit, lambda model, x: model(x), (pictures(3),))
    batch = plan.batch or training
    labels = torch.randint(config.classes, (batch,), device=plan.device)
    yield from _train_rows(VIT_FAMILY, preset, pair, (pictures(batch),), lambda logits: F.cross_entropy(logits, labels))
    pair.to_inference_dtype()
    yield from _forward_rows(VIT_FAMILY, f"{preset}, inference", pair, (pictures(plan.batch or inference),))


def run_dit(plan: Plan) -> Iterator[Row]:
    """dit: train steps and forward passes of a diffusion transformer, beside diffusers' model."""
    preset, pair = dit_pair(plan)
    config = pair.config
    batch = plan.batch or (32 if plan.cuda and not plan.quick else 2)
    inputs = noised(config, batch, plan.device)
    target = torch.randn(batch, config.out_channels, *config.image_size, device=plan.device)
    yield from _train_rows(DIT_FAMILY, preset, pair, inputs, lambda output: (output - target).square().mean())
    pair.to_inference_dtype()
    yield from _forward_rows(DIT_FAMILY, f"{preset}, forward", pair, inputs)


def dit_pair(plan: Plan) -> tuple[str, Pair]:
    """The preset, and our model beside diffusers'.

    Both are in evaluation mode: in training mode diffusers drops labels, differently in each of its blocks.
    """
    preset = plan.preset or ("xl/2" if plan.cuda and not plan.quick else "s/8")
    if "image_size" not in DIT_FAMILY.preset_values(preset):
        sized = [name for name, values in DIT_FAMILY.presets.items() if "image_size" in values]
        raise UserError(f"{preset} takes its sizes from data; these have their own: {', '.join(sized)}")
    config = DIT_FAMILY.configure(preset, positions="learned", eps=EPS, downscale_freq_shift=True)
    ours = make(DIT_FAMILY, config, plan.device)
    with torch.no_grad():
        ours.positions.table.copy_(sinusoids(config).reshape(ours.positions.table.shape))
    picture, timestep, label = noised(config, 3, plan.device)
    inputs = picture, timestep % COMPARED_TIMESTEPS, label
    maker = plan.peers.diffusers_dit
    return preset, Pair(plan, ours, DIFFUSERS, maker, lambda model, *x: model(*x, return_dict=False)[0], inputs)


def noised(c: Any, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Random inputs of a diffusion transformer: pictures, timesteps and labels."""
    timestep, label = (torch.randint(n, (batch,), device=device) for n in (1000, c.classes))
    return torch.randn(batch, c.channels, *c.image_size, device=device), timestep, label


def _train_rows(
    record: Family, preset: str, pair: Pair, inputs: tuple[Tensor, ...], loss: Callable[[Tensor], Tensor]
) -> Iterator[Row]:
    """Forward, backward and AdamW; on CUDA float32 weights under bfloat16 autocast, as `pencil train` has it."""
    plan, batch = pair.plan, len(inputs[0])
    autocast = partial(torch.autocast, plan.device.type, torch.bfloat16) if plan.cuda else nullcontext

    def step_of(model: Any, ask: Ask) -> Callable[[], None]:
        call: Any = torch.compile(model) if plan.cuda else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            with autocast():
                value = loss(ask(call, *inputs).float())
            value.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    work = work_of(record, pair.config, batch, plan)["train_step"]
    case = f"{preset}, train step, batch {batch}"
    with matmul_precision("high"):
        yield from run_case(plan, record.name, case, "images/s", batch, pair.contenders(step_of), work)


def _forward_rows(record: Family, case: str, pair: Pair, inputs: tuple[Tensor, ...]) -> Iterator[Row]:
    """Passes without gradients, in the dtype of inference."""
    plan, batch = pair.plan, len(inputs[0])
    inputs = (inputs[0].to(plan.dtype), *inputs[1:])

    def pass_of(model: Any, ask: Ask) -> Callable[[], Tensor]:
        call = torch.compile(model) if plan.cuda else model
        return torch.no_grad()(lambda: ask(call, *inputs))

    work = work_of(record, pair.config, batch, plan)["forward"]
    contenders = pair.contenders(pass_of)
    yield from run_case(plan, record.name, f"{case}, batch {batch}", "images/s", batch, contenders, work)


def run_sample(plan: Plan) -> Iterator[Row]:
    """sample: whole guided samples of a diffusion transformer, beside diffusers' model with its DDIM scheduler."""
    preset, pair = dit_pair(plan)
    pair.to_inference_dtype()
    ours = pair.ours
    steps = 4 if plan.quick else 50
    batch = plan.batch or (8 if plan.cuda and not plan.quick else 1)
    c = ours.config
    labels = torch.randint(c.classes, (batch,), device=plan.device)
    contenders = [Contender(OURS, partial(_sample_ours, ours, labels, steps, plan.cuda), [ours])]
    if plan.cuda:
        contenders.append(Contender(f"{OURS}, not compiled", partial(_sample_ours, ours, labels, steps, False), [ours]))
    for who, theirs in pair.theirs.items():
        contenders.append(Contender(who, _Diffusers(plan, theirs, c, labels, steps), [theirs], pair.equality))
    # every step runs the model twice: with the label and without it
    forward = work_of(DIT_FAMILY, c, 2 * batch, plan)["forward"]
    work = Workload(steps * forward.flops, steps * forward.bytes, batch)
    case = f"{preset}, {steps} guided DDIM steps, batch {batch}"
    yield from run_case(plan, "sample", case, "images/s", batch, contenders, work)


def _sample_ours(model: Any, labels: Tensor, steps: int, compiled: bool) -> Any:
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
        self.scheduler = plan.peers.package(DIFFUSERS).DDIMScheduler(**fields)
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


RUNS = {VIT_FAMILY.name: run_vit, DIT_FAMILY.name: run_dit, "sample": run_sample}
