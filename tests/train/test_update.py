"""The trainer's update against a plain loop written here: gradients, clipping, accumulation, schedule, decay and EMA."""

import math

import pytest
import torch
import torch.nn.functional as F

from albums import album, photos
from conftest import unchecked
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.core.span import Span
from pencil.models.build import normalize
from pencil.train.loop.trainer import Trainer
from pencil.train.optim import Muon

STEPS = 20
TRAIN = dict(steps=29, batch=3, accumulate=3, optimizer="adamw", lr=3e-3, final_lr_fraction=0.1, warmup=5, clip=0.05,
             weight_decay=0.2, beta2=0.97, ema=0.9, eval_every=100, save_every=100)  # fmt: skip
EPSILON = 1e-3  # so large that rounding in a gradient near zero cannot become a whole step of Adam
SIZES = dict(width=24, heads=3, depth=2)


def token_losses(logits, targets):
    """The sum of the cross-entropy over the targets that are not masked, and their number."""
    chosen = targets >= 0
    log = logits.float().log_softmax(-1)[chosen]
    return -log.gather(-1, targets[chosen][:, None]).sum(), int(chosen.sum())


def language_model(task, model, batch):
    return token_losses(model(batch[0]), batch[1])


def captions(task, model, batch):
    return token_losses(model(batch[1], normalize(batch[0])), batch[2])


def translation(task, model, batch):
    source, places, inputs, targets = batch
    return token_losses(model(inputs, source, Span.at(places)), targets)


def text_classes(task, model, batch):
    return token_losses(model(batch[0], Span.at(batch[1])), batch[2])


def image_classes(task, model, batch):
    return token_losses(model(normalize(batch[0])), batch[1])


def diffusion(task, model, batch):
    x = batch[0].float() / 127.5 - 1
    t, noise, chance = task.noise(batch[-1], x)
    dropped = chance < task.condition_dropout
    output = model(task.process.add_noise(x, noise, t), task.process.timestep(t), batch[1], None, dropped)
    return ((output - task.process.target(x, noise, t)) ** 2).flatten(1).mean(1).sum(), len(x)


CASES = {
    "gpt": (language_model, dict(context=31)),
    "vit": (image_classes, dict(image_size="16")),
    "captioner": (captions, dict(image_size="16")),
    "seq2seq": (translation, {}),
    "reader": (text_classes, {}),
    "reader, masked": (language_model, dict(context=31)),
    "dit": (diffusion, dict(image_size="16")),
}


def data_of(name, folder, notes):
    lengths = [1, 2, 3, 29, 31, 37, 1, 2, 41, 5]
    if name == "seq2seq":
        rows = [f"{'ab' * n} {i}\t{'xyz' * (n // 2)}{i}" for i in range(7) for n in lengths]
    elif name == "reader":
        rows = [f"{'so ' * n}{i}\t{'good' if n % 2 else 'bad'}" for i in range(7) for n in lengths]
    elif name == "captioner":
        return album(folder / "album", [f"{'a very ' * n}small {n}" for n in (0, 1, 2, 3, 5, 7)] * 3)
    elif name in ("vit", "dit"):
        return photos(folder / "photos", {"cat": 11, "dog": 13})
    else:
        return notes
    path = folder / "rows.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


def trainer(name, folder, notes, **settings):
    model = {**SIZES, **CASES[name][1]}
    settings |= {"mixup": 0.0} if name == "vit" else {}
    run, task, config = new_run(TrainingRequest(name.split(",")[0], str(data_of(name, folder, notes)), model=model, train={**TRAIN, **settings}), out=folder / "run")  # fmt: skip
    made = Trainer(task, run, config)
    for group in made.optimizers["adamw"].param_groups:
        group["eps"] = EPSILON
    return made


def learning_rate_factor(step):
    if step < TRAIN["warmup"]:
        return (step + 1) / (TRAIN["warmup"] + 1)
    along = (step - TRAIN["warmup"]) / (TRAIN["steps"] - TRAIN["warmup"])
    return 0.1 + 0.9 * (1 + math.cos(math.pi * along)) / 2


def plain_optimizers(model, made):
    """torch's AdamW over matrices with decay and the rest without; with Muon, for the matrices outside the blocks."""
    named = dict(model.named_parameters())
    in_blocks = [p for n, p in named.items() if p.ndim == 2 and "blocks." in n] if "muon" in made.optimizers else []
    rest = [p for p in named.values() if not any(p is one for one in in_blocks)]
    groups = [
        dict(params=[p for p in rest if p.ndim >= 2], weight_decay=TRAIN["weight_decay"]),
        dict(params=[p for p in rest if p.ndim < 2], weight_decay=0.0),
    ]
    adamw = torch.optim.AdamW(groups, lr=TRAIN["lr"], betas=(0.9, TRAIN["beta2"]), eps=EPSILON, foreach=False)
    if not in_blocks:
        return [(adamw, TRAIN["lr"])]
    parts = {m.qkv.weight: m.sizes for m in model.modules() if hasattr(m, "qkv")}
    return [(adamw, TRAIN["lr"]), (Muon(in_blocks, 0.02, TRAIN["weight_decay"], parts=parts), 0.02)]


def plain_loop(made, total, steps=STEPS):
    """The same training with torch's optimizers, the gradient of all micro-batches as one batch."""
    model = made.task.build()
    model.load_state_dict(made.model.state_dict())
    optimizers = plain_optimizers(model, made)
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    norms = []
    for step in range(steps):
        made._seed(step)  # the noise of diffusion and dropout
        model.train()
        parts = [total(made.task, model, made.task.batch(step, micro)) for micro in range(TRAIN["accumulate"])]
        (sum(part for part, _ in parts) / sum(count for _, count in parts)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip"])))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * learning_rate_factor(step)
            optimizer.step()
            optimizer.zero_grad()
        decay = min(TRAIN["ema"], (2 + step) / (11 + step))
        for name, p in model.named_parameters():
            average[name] = decay * average[name] + (1 - decay) * p.detach()
    return dict(model.named_parameters()), average, norms


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in ("captioner", "vit", "reader") else name for name in CASES],
)
def test_twenty_updates_equal_a_plain_loop(tmp_path, notes, name):
    with unchecked():
        made = trainer(name, tmp_path, notes)
        if name.startswith(("seq2seq", "captioner", "reader,")):
            counts = {made.task.targets(made.task.batch(0, micro)) for micro in range(3)}
            assert len(counts) > 1, "the micro-batches should have unequal numbers of targets"
        started = {n: p.detach().clone() for n, p in made.model.named_parameters()}
        expected, average, norms = plain_loop(made, CASES[name][0])
        for _ in range(STEPS):
            made.update()
    assert min(norms) > TRAIN["clip"], "clipping should act on every step"
    assert made.guard.read(made.step).norms == pytest.approx(norms, rel=1e-4)
    moved = max((p - started[n]).abs().max().item() for n, p in expected.items())
    assert moved > 0.005
    for n, p in made.model.named_parameters():
        assert (p - expected[n]).abs().max().item() < 1e-4 * moved, n
        assert (made.ema.values[n] - average[n]).abs().max().item() < 1e-4 * moved, n


def test_with_muon_too(tmp_path, notes):
    with unchecked():
        made = trainer("gpt", tmp_path, notes, optimizer="muon")
        expected, _, _ = plain_loop(made, language_model, 5)
        for _ in range(5):
            made.update()
    for n, p in made.model.named_parameters():
        assert (p - expected[n]).abs().max().item() < 1e-4, n


def test_a_micro_batch_weighs_as_much_as_it_has_targets(tmp_path, notes):
    """One target in one micro-batch and dozens in the other: the gradient is that of the whole batch."""
    with unchecked():
        made = trainer("seq2seq", tmp_path, notes, accumulate=2, batch=1, clip=0.0)
        rows = [[("ab", "x")], [("abababab", "zzyyxx102030")]]
        batches = [made.task.tokens(few) for few in rows]
        made.batch = lambda step, micro: batches[micro]
        gradients = {}
        for optimizer in made.optimizers.values():
            optimizer.step = lambda: gradients.update({n: p.grad.clone() for n, p in made.model.named_parameters()})
        made.update()
        few, many = (made.task.targets(batch) for batch in batches)
        assert many > 5 * few
        source, places, inputs, targets = made.task.tokens([row for few in rows for row in few])
        logits = made.model(inputs, source, Span.at(places))
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100).backward()
    for n, p in made.model.named_parameters():
        torch.testing.assert_close(gradients[n], p.grad, atol=1e-6, rtol=1e-4)


def test_a_micro_batch_without_targets_is_left_out(tmp_path, notes):
    with unchecked():
        made = trainer("reader, masked", tmp_path, notes, accumulate=2)
        tokens, targets = made.task.batch(0, 0)
        empty = (tokens, torch.full_like(targets, -100))
        made.batch = lambda step, micro: (tokens, targets) if micro else empty
        made._seed(0)  # dropout
        total, count = token_losses(made.model.train()(tokens).detach(), targets)
        made.update()
        losses, _, left_out = made.guard.read(made.step)
    assert not left_out
    assert losses == [pytest.approx(float(total) / count, rel=1e-5)]
