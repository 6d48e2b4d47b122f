"""train: optimizer updates of a GPT, by Pencil's trainer and by nanoGPT's loop or one of transformers' model."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..families.gpt import FAMILY
from ..train.loop.trainer import Trainer
from ..train.settings import TrainConfig
from .equality import matmul_precision
from .models import Ask, Pair, work_of
from .plan import Plan, Row
from .timing import OURS, Contender, run_case

JOB = "train"
UPDATES = 10  # in a call, since the trainer reads the losses that often
TOKENS = 1_000_003  # of the random text


def run(plan: Plan) -> Iterator[Row]:
    large = plan.cuda and not plan.quick
    preset = plan.preset or ("gpt2" if large else "nanogpt")
    batch = plan.batch or (64 if large else 12)
    values = dict(FAMILY.preset_values(preset))
    # as nanoGPT trains: no biases, a vocabulary that is a multiple of 64, the exact GELU
    vocab = {"vocab": 50304 if values.get("vocab") == 50257 else values.get("vocab", 65)}
    plain = {"bias": False, "activation": "gelu"} if values.get("positions") == "learned" else {}
    config = FAMILY.configure(preset, **vocab, **plain, dropout=0.0)
    text = np.random.default_rng(0).integers(0, config.vocab, TOKENS, dtype=np.int32)
    settings = TrainConfig(steps=10**6, batch=batch, optimizer="adamw", lr=6e-4, beta2=0.95, device=str(plan.device))
    trainer = _trainer(config, text, settings)
    with matmul_precision("high") if plan.cuda else nullcontext():
        work = work_of(FAMILY, config, batch, plan)["train_step"].repeated(UPDATES)
        ours = Contender(OURS, partial(_updates, trainer), [trainer.model])
        contenders = [ours, *_peers(plan, trainer, text, settings)]
        case = f"{preset}, {batch} × {config.context}, AdamW"
        yield from run_case(plan, JOB, case, "tokens/s", work.tokens, contenders, work)
    getattr(trainer.batch, "close", lambda: None)()


def _trainer(config: Any, text: np.ndarray, settings: TrainConfig) -> Any:
    """Pencil's trainer on a random text, without a run."""
    data: Any = SimpleNamespace(
        train=text, val=text, whole=False, tokenizer=SimpleNamespace(begin=None), corpus=SimpleNamespace(name="text")
    )
    nowhere: Any = None
    return Trainer(FAMILY.task(FAMILY, data, config, settings), nowhere, settings, quiet=True)


def _updates(trainer: Any) -> None:
    for _ in range(UPDATES):
        trainer.update()
    trainer.guard.read(trainer.step)


def _peers(plan: Plan, trainer: Any, text: np.ndarray, settings: TrainConfig) -> Iterator[Contender]:
    ours, c = trainer.model.eval(), trainer.model.config
    inputs = torch.randint(c.vocab, (2, c.context), device=plan.device)
    for name, maker, ask in (
        ("nanoGPT", plan.peers.nanogpt, lambda model, x: model(x, x)[0]),  # without targets it has only the last logits
        ("transformers", plan.peers.transformers_gpt, lambda model, x: model(input_ids=x).logits),
    ):
        pair = Pair(plan, ours, name, maker, ask, (inputs,))
        for theirs in pair.theirs.values():
            yield Contender(name, _Loop(plan, theirs, ask, text, settings, c), [theirs], pair.equality)


class _Loop:
    """Updates as nanoGPT's train.py makes them: random windows, autocast, clipped gradients, AdamW."""

    def __init__(self, plan: Plan, model: Any, ask: Ask, text: np.ndarray, settings: TrainConfig, c: Any):
        self.plan, self.model, self.text, self.settings, self.context = plan, model, text, settings, c.context
        decayed = [p for p in model.parameters() if p.ndim >= 2]
        plain = [p for p in model.parameters() if p.ndim < 2]
        groups = [dict(params=decayed, weight_decay=settings.weight_decay), dict(params=plain, weight_decay=0.0)]
        betas = (settings.beta1, settings.beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=betas, fused=plan.cuda)
        compiled = torch.compile(model) if plan.cuda else model
        self.ask = partial(ask, compiled)
        self.loss = (lambda x, y: compiled(x, y)[1]) if hasattr(model, "crop_block_size") else self._loss
        self.random = np.random.default_rng(1)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.ask(x).flatten(0, 1), y.flatten())

    def _batch(self) -> tuple[Tensor, Tensor]:
        starts = self.random.integers(0, len(self.text) - self.context, self.settings.batch)
        rows = [torch.from_numpy(self.text[i : i + self.context + 1].astype(np.int64)) for i in starts]
        both = torch.stack(rows)
        pair = both[:, :-1].contiguous(), both[:, 1:].contiguous()
        if not self.plan.cuda:
            return pair
        x, y = (t.pin_memory().to(self.plan.device, non_blocking=True) for t in pair)
        return x, y

    def __call__(self) -> None:
        self.model.train()
        batch, loss = self._batch(), torch.zeros(())
        for _ in range(UPDATES):
            with torch.autocast("cuda", torch.bfloat16) if self.plan.cuda else nullcontext():
                loss = self.loss(*batch)
            batch = self._batch()  # while the device computes
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        loss.item()
