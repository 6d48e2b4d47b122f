import json
import math
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

from pencil import draw
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.core.masks import NOWHERE
from pencil.data.tables.generated_dates import Dates
from pencil.families import family
from pencil.inference import attention_overlays
from pencil.inference.text_batches import beam_targets, greedy_targets, pad, source_inputs
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.trainer import Trainer
from pencil.train.losses import cross_entropy as losses
from pencil.train.settings import TrainConfig
from pencil.train.task import Request, Task, random_of
from pencil.train.tasks.translation import Translation
from training import Killed, bits, kill_after

SIZES = dict(width=24, heads=3, depth=1)
PACE = dict(steps=7, batch=5, eval_every=3, save_every=2, warmup=2, eval_batches=1)


def words(count=40, letters="abcde", longest=5, seed=3):
    """Short words, each once."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        found["".join(rng.choices(letters, k=rng.randint(1, longest)))] = None
    return list(found)


@pytest.fixture(scope="session")
def backwards(tmp_path_factory):
    """Forty words, each with its reverse as the target."""
    path = tmp_path_factory.mktemp("pairs") / "backwards.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words()))
    return path


def options(tokenizer="char"):
    return family("seq2seq").train_options(tokenizer=tokenizer, vocab=290 if tokenizer == "bpe" else None)


def prepare(data, model=None, tokenizer="char", **train):
    """The task the command line would make."""
    train = {**PACE, **train}
    request = Request(family("seq2seq"), str(data), "nano", {**SIZES, **(model or {})}, train, options(tokenizer))
    return Translation.prepare(request, build(TrainConfig, train)).task


def lively(task, seed=1, std=0.3):
    """The task's model with weights so large that every token matters."""
    torch.manual_seed(seed)
    model = task.build().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * std)
    return model


def same(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_batch_of_pairs_is_a_function_of_seed_and_step_alone(backwards):
    task = prepare(backwards)
    assert isinstance(task, Task)
    later = task.batch(4)
    for step in (2, 0, 1, 3):
        task.batch(step)
    assert same(later, task.batch(4))
    assert same(later, prepare(backwards).batch(4))
    assert not same(later, task.batch(5))
    assert not same(later, prepare(backwards, seed=4).batch(4))
    two = prepare(backwards, accumulate=2)
    assert not same(two.batch(4), two.batch(4, 1))
    assert task.count(later) == later[0].numel() + later[2].numel()


def test_dates_are_a_function_of_seed_and_step_alone():
    task = prepare("dates", seed=11)
    later = task.batch(4)
    task.batch(3)
    assert same(later, task.batch(4))
    assert same(later, task.tokens(Dates().draw(random_of(11, 4, 0), 5)))
    assert not same(later, task.batch(5))
    assert not same(later, task.batch(4, 1))


def test_every_pair_comes_once_an_epoch(backwards):
    task = prepare(backwards, batch=7)
    task.data.train = task.data.train[:28]
    seen = []
    for step in range(4):
        source, places, *_ = task.batch(step)
        for row, index in zip(source, places, strict=True):
            seen.append(task.tokenizer.decode(row[index < NOWHERE].tolist()[:-1]))
    assert sorted(seen) == sorted(one for one, _ in task.data.train)


def test_rows_are_padded_on_the_right_with_a_place_nowhere():
    tokens, places = pad([[5, 3, 2], [7], [1] * 11], 9, 31)
    assert tokens.shape == places.shape == (3, 16)
    assert tokens[0].tolist() == [5, 3, 2] + [9] * 13
    assert places[0].tolist() == [0, 1, 2] + [NOWHERE] * 13
    assert places[1].tolist() == [0] + [NOWHERE] * 15
    assert tokens[2].tolist() == [1] * 11 + [9] * 5
    assert pad([[1] * 11, [2]], 9, 13)[0].shape == (2, 13)  # no longer than the context


def test_sources_inputs_and_targets(backwards):
    task = prepare(backwards)
    rows = [("abc", "cba"), ("e", "e"), ("abcde", "edcba")]
    source, places, inputs, targets = task.tokens(rows)
    end = task.tokenizer.end
    for i, (one, other) in enumerate(rows):
        there, ids = task.tokenizer.encode(one).tolist(), task.tokenizer.encode(other).tolist()
        assert source[i, places[i] < NOWHERE].tolist() == [*there, end]
        assert inputs[i, : len(ids) + 1].tolist() == [end, *ids]
        assert targets[i, : len(ids) + 1].tolist() == [*ids, end]
        assert (targets[i, len(ids) + 1 :] == -100).all()


@pytest.mark.parametrize("positions", ["rope", "learned", "sinusoidal", "alibi", "shaw", "t5", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_a_batch_equals_that_of_each_pair_alone(backwards, positions, smoothing):
    task = prepare(backwards, dict(positions=positions), label_smoothing=smoothing)
    model, batch = lively(task), task.batch(3)
    source, places, inputs, targets = batch
    total = count = 0
    with torch.no_grad():
        found = float(task.loss(model, batch))
        for i in range(len(inputs)):
            kept = int((targets[i] >= 0).sum())
            likely = model(inputs[i : i + 1, :kept], source[i : i + 1, places[i] < NOWHERE])[0].log_softmax(-1)
            for at in range(kept):
                right, others = likely[at, targets[i, at]], likely[at].mean()
                total -= float((1 - smoothing) * right + smoothing * others)
                count += 1
    assert found == pytest.approx(total / count, rel=1e-5)


def test_label_smoothing_spreads_a_share_of_the_target_over_all_tokens():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[2, -100, 6], [0, 5, -100]])
    wanted = []
    for row, aims in zip(logits, targets.tolist(), strict=True):
        for z, aim in zip(row, aims, strict=True):
            if aim >= 0:
                share = torch.full((7,), 0.3 / 7)
                share[aim] += 0.7
                wanted.append(-float((share * z.log_softmax(-1)).sum()))
    assert float(losses.next_token(logits, targets, 0.3)) == pytest.approx(sum(wanted) / 4, rel=1e-5)


def test_evaluation_has_no_label_smoothing(backwards):
    plain, smoothed = prepare(backwards), prepare(backwards, label_smoothing=0.4)
    model = lively(plain)
    assert smoothed.evaluate(model) == plain.evaluate(model)
    with torch.no_grad():
        assert float(smoothed.loss(model, plain.batch(0))) != float(plain.loss(model, plain.batch(0)))


def greedy(task, model, source):
    """One source at a time, without a cache or padding."""
    end, ids = task.end, [task.end]
    given = torch.tensor([[*task.tokenizer.encode(source).tolist(), end]])
    with torch.no_grad():
        while len(ids) < task.config.context:
            ids.append(int(model(torch.tensor([ids]), given)[0, -1, : task.tokenizer.vocab].argmax()))
            if ids[-1] == end:
                break
    return task.tokenizer.decode([i for i in ids if i != end])


@pytest.mark.usefixtures("fast_training")
def test_exact_match_and_loss_equal_a_plain_loop(backwards, monkeypatch):
    monkeypatch.setattr("pencil.train.tasks.translation.EVAL_BATCH", 5)
    task = prepare(backwards)
    model = lively(task)
    sources = words(11, seed=5)
    predictions = [greedy(task, model, source) for source in sources]
    # every third prediction is made the reference
    rows = [
        (source, text if i % 3 == 0 and text else "abc")
        for i, (source, text) in enumerate(zip(sources, predictions, strict=True))
    ]
    task.data.test = rows
    metrics = task.evaluate(model)
    right = [text == target for text, (_, target) in zip(predictions, rows, strict=True)]
    assert 0 < sum(right) < len(rows)
    assert metrics["exact_match"] == pytest.approx(sum(right) / len(rows))
    total = count = 0
    with torch.no_grad():
        for row in rows:
            source, places, inputs, targets = task.tokens([row])
            kept = int((targets >= 0).sum())
            logits = model(inputs[:, :kept], source[:, places[0] < NOWHERE])
            total += float(losses.next_token(logits, targets[:, :kept])) * kept
            count += kept
    assert metrics["val_loss"] == pytest.approx(total / count, rel=1e-5)
    few = task.evaluate(model, 1)  # one batch, spread evenly
    assert few["exact_match"] == pytest.approx(sum(right[i] for i in (0, 2, 5, 7, 10)) / 5)


@pytest.mark.usefixtures("fast_training")
def test_one_beam_without_a_length_penalty_is_greedy_decoding(backwards):
    task = prepare(backwards)
    model = lively(task)
    sources = words(7, seed=8)
    plain = greedy_targets(model, task.tokenizer, sources)
    assert plain == [greedy(task, model, source) for source in sources]
    assert [rows[0][0] for rows in beam_targets(model, task.tokenizer, sources, 1, 0.0)] == plain
    assert all(len(rows) == 3 for rows in beam_targets(model, task.tokenizer, sources, 3, 0.6))
    for rows in beam_targets(model, task.tokenizer, sources, 3, 0.6, max_new_tokens=2):
        assert all(len(found.tokens) <= 2 for _, found in rows)


def test_sources_of_one_length_are_not_pad(backwards):
    task = prepare(backwards)
    model = task.build()
    assert set(source_inputs(model, task.tokenizer, ["abc", "cab"])) == {"source"}
    given = source_inputs(model, task.tokenizer, ["abc", "c"])
    assert (given["source_span"].index[1] == NOWHERE).sum() == given["source"].shape[1] - 2


@pytest.mark.parametrize("positions", ["learned", "rope", "t5"])
@pytest.mark.parametrize("room", [None, 17, 19])
def test_targets_that_just_fit_can_be_trained_on_and_decoded(tmp_path, positions, room):
    """A batch is padded to a round length, but to no more than the context."""
    rows = [(word * 3, (word * 8)[:15]) for word in words(20)]
    (tmp_path / "long.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    model = dict(positions=positions) | ({} if room is None else dict(context=room, source_context=room))
    task = prepare(tmp_path / "long.tsv", model)
    assert task.config.context == (16 if room is None else room)
    net = lively(task)
    task.loss(net, task.batch(0)).backward()
    assert all(p.grad is not None for p in net.parameters())
    assert 0 <= task.evaluate(net)["exact_match"] <= 1


def test_contexts_are_taken_from_the_data_unless_given(backwards, tmp_path):
    task = prepare(backwards)
    assert (task.config.source_context, task.config.context) == (16, 16)
    (tmp_path / "long.tsv").write_text("a\tb\n" + "c" * 29 + "\t" + "d" * 41 + "\n")
    task = prepare(tmp_path / "long.tsv")
    assert (task.config.source_context, task.config.context) == (32, 48)


@pytest.mark.parametrize("side, name, words", [
    ("source", "source_context", "2 sources of long will not fit into model.source_context 16: the longest needs 32; "
     "the first begins “ccccc"),
    ("target", "context", "1 target of long will not fit into model.context 16: the longest needs 42; the first begins "
     "“ddddd"),
])  # fmt: skip
def test_pairs_that_do_not_fit_are_counted_and_the_longest_is_reported(tmp_path, side, name, words):
    rows = {"source": [("c" * 29, "b"), ("d" * 31, "b")], "target": [("c", "d" * 41)]}[side]
    rows += [(f"{a}{b}", "b") for a in "ab" for b in "abcdefg"]
    (tmp_path / "long.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    with pytest.raises(UserError) as refused:
        prepare(tmp_path / "long.tsv", {name: 16})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_every_tokenizer_reads_tables_and_json(tmp_path, tokenizer, suffix):
    rows = [(f"où est le chat {i}?", f"der Hund {i} 犬") for i in range(23)]
    lines = (
        [json.dumps({"source": a, "target": b}) for a, b in rows]
        if suffix == ".jsonl"
        else [f"{a}\t{b}" for a, b in rows]
    )
    (tmp_path / f"mine{suffix}").write_text("\n".join(lines) + "\n")
    task = prepare(tmp_path / f"mine{suffix}", tokenizer=tokenizer)
    assert task.tokenizer.kind == tokenizer
    source, places, _, targets = task.tokens(rows[:3])
    for i, (one, other) in enumerate(rows[:3]):
        assert task.tokenizer.decode(source[i, places[i] < NOWHERE].tolist()[:-1]) == one
        assert task.tokenizer.decode(targets[i, targets[i] >= 0].tolist()[:-1]) == other
    model = task.build().eval()
    assert set(task.evaluate(model, 1)) == {"val_loss", "exact_match"}
    assert task.evaluate(model, 1)["val_loss"] == pytest.approx(math.log(task.config.vocab), rel=0.1)


@pytest.mark.usefixtures("fast_training")
def test_the_report_lists_mistakes_and_shows_the_attention(backwards, tmp_path):
    task = prepare(backwards)
    model = lively(task)
    sources = words(5, seed=9)
    predictions = [greedy(task, model, source) for source in sources]
    task.data.test = [
        (source, predictions[i] if i == 2 and predictions[i] else "abba") for i, source in enumerate(sources)
    ]
    metrics, files = task.report(model, tmp_path / "deep" / "eval")
    assert {"val_loss", "exact_match", "character_error_rate"} <= set(metrics)
    assert [path.name for path in files] == ["mistakes.txt", *(f"attention-{i}.png" for i in (1, 2, 3))]
    lines = files[0].read_text().splitlines()
    right = sum(text == target for text, (_, target) in zip(predictions, task.data.test, strict=True))
    assert lines[0] == f"{5 - right} of 5 differ"
    assert lines[2] == f"{sources[0]}\t{predictions[0]}\t(is: abba)"
    for path in files[1:]:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"


@pytest.mark.usefixtures("fast_training")
def test_the_attention_has_a_row_for_the_end_only_where_it_is_predicted(backwards, monkeypatch):
    task = prepare(backwards)
    model, tokenizer, drawn = lively(task), task.tokenizer, []
    monkeypatch.setattr(
        draw, "heat_maps", lambda maps, names, rows, *_, **__: drawn.append((len(maps[0]), rows)) or b""
    )
    source = "abde"
    whole = greedy_targets(model, tokenizer, [source])[0]
    for text in (whole, whole[:-1], "abcde" * 9):
        attention_overlays.source_attention(model, tokenizer, source, text)
        count, rows = drawn.pop()
        assert count == len(rows)
        ids = [tokenizer.end, *tokenizer.encode(text).tolist()][: task.config.context]
        given = source_inputs(model, tokenizer, [source])["source"]
        predicted = int(model(torch.tensor([ids]), given)[0, -1].argmax())
        assert (rows[-1] == "end") == (predicted == tokenizer.end)
        assert rows[: len(text)] == draw.numbered(list(text))[: len(rows)]


def new_trainer(folder, data, **train):
    """A run with dropout, label smoothing and accumulation, whose schedule does not depend on the number of steps."""
    pace = dict(eval_every=6, save_every=1, warmup=0, schedule="constant", accumulate=2, label_smoothing=0.1)
    model = {**SIZES, "dropout": 0.1}
    run, task, config = new_run(
        TrainingRequest(
            "seq2seq", str(data), options={"tokenizer": "char"}, model=model, train={**PACE, **pace, **train}
        ),
        out=folder,
    )
    return Trainer(task, run, config)


def continued(folder, steps):
    run = Run.open(folder)
    config = build(TrainConfig, {**run.config["train"], "steps": steps})
    return Trainer(task_of(run, config), run, config)


@pytest.mark.usefixtures("fast_training")
def test_a_killed_run_on_pairs_ends_as_one_never_killed(tmp_path, backwards):
    """Steps 3 and 4 are lost: a checkpoint is written every second step, and the kill comes before that of step 4."""
    with pytest.raises(Killed):
        kill_after(new_trainer(tmp_path / "killed", backwards, save_every=2), 4).train()
    assert checkpoint.saved_steps(tmp_path / "killed") == [2]
    torch.manual_seed(99)
    assert continued(tmp_path / "killed", 7).train().finished
    assert new_trainer(tmp_path / "whole", backwards, save_every=2).train().finished
    assert bits(tmp_path / "killed", 7) == bits(tmp_path / "whole", 7)


@pytest.mark.long
@pytest.mark.usefixtures("fast_training")
def test_a_process_killed_while_training_on_pairs_ends_as_one_never_killed(tmp_path, backwards):
    for name in ("killed", "whole"):
        new_trainer(tmp_path / name, backwards, steps=100_000, eval_every=250)
    process = subprocess.Popen(
        [sys.executable, "-m", "pencil", "resume", str(tmp_path / "killed")], stderr=subprocess.DEVNULL
    )
    while not checkpoint.saved_steps(tmp_path / "killed"):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    steps = checkpoint.saved_steps(tmp_path / "killed")[-1] + 5
    for name in ("killed", "whole"):
        assert continued(tmp_path / name, steps).train().finished
    assert bits(tmp_path / "killed", steps) == bits(tmp_path / "whole", steps)


@pytest.mark.usefixtures("fast_training")
@pytest.mark.long
def test_forty_words_are_memorized(tmp_path, backwards):
    fast = dict(steps=90, batch=19, eval_every=90, save_every=90, warmup=11, muon_lr=0.04, lr=0.01)
    model = {**SIZES, "dropout": 0.0}
    run, task, config = new_run(
        TrainingRequest("seq2seq", str(backwards), options={"tokenizer": "char"}, model=model, train={**PACE, **fast}),
        out=tmp_path / "a",
    )
    trainer = Trainer(task, run, config)
    task.data.test = task.data.train
    assert task.evaluate(trainer.model.eval())["exact_match"] < 0.1
    trainer.train()
    assert task.evaluate(trainer.model)["exact_match"] > 0.9


def test_a_tokenizer_without_an_end_token_is_refused(backwards):
    task = prepare(backwards)
    task.tokenizer.end = None
    with pytest.raises(UserError, match="has no <|endoftext|>"):
        Translation(family("seq2seq"), task.data, task.config, task.train, task.tokenizer)
