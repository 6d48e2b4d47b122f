"""vit: images classified and trained on, beside timm's model."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ..config import UserError
from ..families.vit import FAMILY
from .equality import compare
from .images import call_ours, forward, train_step
from .models import fast_products, make, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = FAMILY.name


def run(plan: Plan) -> Iterator[Row]:
    preset = plan.preset or ("b/16" if plan.cuda and not plan.quick else "ti/16")
    config = FAMILY.configure(preset)
    ours = make(FAMILY, config, plan.device)
    inference, training = (256, 128) if plan.cuda and not plan.quick else (4, 2) if plan.quick else (16, 8)
    theirs = None
    try:
        theirs = plan.peers.timm_vit(ours)
    except UserError as error:
        plan.notify(f"timm is left out: {error}")
    models = {OURS: ours} | ({} if theirs is None else {"timm": theirs})
    given = torch.randn(3, config.channels, *config.image_size, device=plan.device)
    same = None
    if theirs is not None:
        same = compare(lambda: ours(given), lambda: theirs(given), torch.float32, config.width, config.depth)
    with fast_products():
        batch = plan.batch or training
        pictures = torch.randn(batch, config.channels, *config.image_size, device=plan.device)
        labels = torch.randint(config.classes, (batch,), device=plan.device)
        contenders = [
            Contender(
                who,
                train_step(plan, model, call_ours, (pictures,), lambda out: F.cross_entropy(out, labels)),
                [model],
                None if model is ours else same,
            )
            for who, model in models.items()
        ]
        work = work_of(FAMILY, config, batch, plan)["train_step"]
        yield from run_case(plan, JOB, f"{preset}, train step, batch {batch}", "images/s", batch, contenders, work)
    batch = plan.batch or inference
    for model in models.values():
        model.to(plan.dtype).eval()
    pictures = torch.randn(batch, config.channels, *config.image_size, device=plan.device, dtype=plan.dtype)
    if theirs is not None and same is not None and plan.dtype != torch.float32:
        small = pictures[:3]
        same |= compare(lambda: ours(small), lambda: theirs(small), plan.dtype, config.width, config.depth)
    contenders = [
        Contender(who, forward(plan, model, call_ours, (pictures,)), [model], None if model is ours else same)
        for who, model in models.items()
    ]
    work = work_of(FAMILY, config, batch, plan)["forward"]
    yield from run_case(plan, JOB, f"{preset}, inference, batch {batch}", "images/s", batch, contenders, work)
