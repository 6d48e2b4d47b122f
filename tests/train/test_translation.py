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

from pencil.config import UserError, build
from pencil.core.masks import NOWHERE
from pencil.data.dates import Dates
from pencil.runs import Run
from pencil.train import checkpoint, losses, pairs
from pencil.train.loop import Trainer
from pencil.train.pairs import PairTask, best, padded, sources_of, write
from pencil.train.report import Metrics
from pencil.train.settings import TrainConfig
from pencil.train.start import new_run, task_of
from pencil.train.tasks import Asked, Task, random_of

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
    """Forty words, each beside itself from its end to its beginning."""
    path = tmp_path_factory.mktemp("pairs") / "backwards.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words()))
    return path


def begin(data, model=None, tokenizer="char", **train):
    """The task the command line would make."""
    train = {**PACE, **train}
    asked = Asked("seq2seq", str(data), "nano", tokenizer, 290, {**SIZES, **(model or {})}, train)
    return PairTask.begin(asked, build(TrainConfig, train)).task


def lively(task, seed=1, spread=0.3):
    """The task's model with weights so large that every token matters."""
    torch.manual_seed(seed)
    model = task.build().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * spread)
    return model


def same(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_batch_of_pairs_is_a_function_of_seed_and_step_alone(backwards):
    task = begin(backwards)
    assert isinstance(task, Task)
    later = task.batch(4)
    for step in (2, 0, 1, 3):
        task.batch(step)
    assert same(later, task.batch(4))
    assert same(later, begin(backwards).batch(4))
    assert not same(later, task.batch(5))
    assert not same(later, begin(backwards, seed=4).batch(4))
    two = begin(backwards, accumulate=2)
    assert not same(two.batch(4), two.batch(4, 1))
    assert task.count(later) == later[0].numel() + later[2].numel()


def test_dates_are_drawn_anew_each_step_by_seed_and_step_alone():
    task = begin("dates", seed=11)
    later = task.batch(4)
    task.batch(3)
    assert same(later, task.batch(4))
    assert same(later, task.tokens(Dates().draw(random_of(11, 4, 0), 5)))
    assert not same(later, task.batch(5))
    assert not same(later, task.batch(4, 1))


def test_every_pair_comes_once_an_epoch(backwards):
    task = begin(backwards, batch=7)
    task.data.train = task.data.train[:28]
    seen = []
    for step in range(4):
        source, places, *_ = task.batch(step)
        for row, index in zip(source, places, strict=True):
            seen.append(task.tokenizer.decode(row[index < NOWHERE].tolist()[:-1]))
    assert sorted(seen) == sorted(one for one, _ in task.data.train)


def test_rows_are_filled_up_on_the_right_by_what_stands_nowhere():
    tokens, places = padded([[5, 3, 2], [7], [1] * 11], 9, 31)
    assert tokens.shape == places.shape == (3, 16)
    assert tokens[0].tolist() == [5, 3, 2] + [9] * 13
    assert places[0].tolist() == [0, 1, 2] + [NOWHERE] * 13
    assert places[1].tolist() == [0] + [NOWHERE] * 15
    assert tokens[2].tolist() == [1] * 11 + [9] * 5
    assert padded([[1] * 11, [2]], 9, 13)[0].shape == (2, 13)  # no longer than there is room


def test_what_is_read_and_what_is_to_be_said(backwards):
    task = begin(backwards)
    rows = [("abc", "cba"), ("e", "e"), ("abcde", "edcba")]
    source, places, read, say = task.tokens(rows)
    end = task.tokenizer.end
    for i, (one, other) in enumerate(rows):
        there, ids = task.tokenizer.encode(one).tolist(), task.tokenizer.encode(other).tolist()
        assert source[i, places[i] < NOWHERE].tolist() == [*there, end]
        assert read[i, : len(ids) + 1].tolist() == [end, *ids]
        assert say[i, : len(ids) + 1].tolist() == [*ids, end]
        assert (say[i, len(ids) + 1 :] == -100).all()


@pytest.mark.parametrize("positions", ["rope", "learned", "sinusoidal", "alibi", "shaw", "t5", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_each_sentence_alone_over_all_its_tokens(backwards, positions, smoothing):
    task = begin(backwards, dict(positions=positions), label_smoothing=smoothing)
    model, batch = lively(task), task.batch(3)
    source, places, read, say = batch
    total = count = 0
    with torch.no_grad():
        found = float(task.loss(model, batch))
        for i in range(len(read)):
            kept = int((say[i] >= 0).sum())
            likely = model(read[i : i + 1, :kept], source[i : i + 1, places[i] < NOWHERE])[0].log_softmax(-1)
            for at in range(kept):
                right, others = likely[at, say[i, at]], likely[at].mean()
                total -= float((1 - smoothing) * right + smoothing * others)
                count += 1
    assert found == pytest.approx(total / count, rel=1e-5)


def test_label_smoothing_is_cross_entropy_with_a_share_spread_over_all_words():
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


def test_what_is_judged_by_is_not_smoothed(backwards):
    plain, smoothed = begin(backwards), begin(backwards, label_smoothing=0.4)
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


def test_exact_matches_and_the_loss_are_those_of_a_plain_loop(backwards, monkeypatch):
    monkeypatch.setattr("pencil.train.pairs.JUDGED", 5)
    task = begin(backwards)
    model = lively(task)
    sources = words(11, seed=5)
    said = [greedy(task, model, source) for source in sources]
    # what it says is taken for right every third time
    rows = [
        (source, text if i % 3 == 0 and text else "abc")
        for i, (source, text) in enumerate(zip(sources, said, strict=True))
    ]
    task.data.test = rows
    measures = task.evaluate(model)
    right = [text == target for text, (_, target) in zip(said, rows, strict=True)]
    assert 0 < sum(right) < len(rows)
    assert measures["exact_match"] == pytest.approx(sum(right) / len(rows))
    total = count = 0
    with torch.no_grad():
        for row in rows:
            source, places, read, say = task.tokens([row])
            kept = int((say >= 0).sum())
            total += (
                float(losses.next_token(model(read[:, :kept], source[:, places[0] < NOWHERE]), say[:, :kept])) * kept
            )
            count += kept
    assert measures["val_loss"] == pytest.approx(total / count, rel=1e-5)
    few = task.evaluate(model, 1)  # one batch, spread evenly
    assert few["exact_match"] == pytest.approx(sum(right[i] for i in (0, 2, 5, 7, 10)) / 5)


def test_a_beam_of_one_without_a_penalty_writes_what_is_likeliest_word_by_word(backwards):
    task = begin(backwards)
    model = lively(task)
    sources = words(7, seed=8)
    plain = write(model, task.tokenizer, sources)
    assert plain == [greedy(task, model, source) for source in sources]
    assert [rows[0][0] for rows in best(model, task.tokenizer, sources, 1, 0.0)] == plain
    assert all(len(rows) == 3 for rows in best(model, task.tokenizer, sources, 3, 0.6))
    for rows in best(model, task.tokenizer, sources, 3, 0.6, new=2):
        assert all(len(found.tokens) <= 2 for _, found in rows)


def test_sources_of_one_length_are_not_padded(backwards):
    task = begin(backwards)
    model = task.build()
    assert set(sources_of(model, task.tokenizer, ["abc", "cab"])) == {"source"}
    given = sources_of(model, task.tokenizer, ["abc", "c"])
    assert (given["source_span"].index[1] == NOWHERE).sum() == given["source"].shape[1] - 2


@pytest.mark.parametrize("positions", ["learned", "rope", "t5"])
@pytest.mark.parametrize("room", [None, 17, 19])
def test_targets_that_just_fit_train_and_are_written(tmp_path, positions, room):
    """A batch is filled up to a round length, which may not be more than the tables have seats for."""
    rows = [(word * 3, (word * 8)[:15]) for word in words(20)]
    (tmp_path / "long.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    model = dict(positions=positions) | ({} if room is None else dict(context=room, source_context=room))
    task = begin(tmp_path / "long.tsv", model)
    assert task.config.context == (16 if room is None else room)
    net = lively(task)
    task.loss(net, task.batch(0)).backward()
    assert all(p.grad is not None for p in net.parameters())
    assert 0 <= task.evaluate(net)["exact_match"] <= 1


def test_contexts_are_taken_from_the_data_unless_given(backwards, tmp_path):
    task = begin(backwards)
    assert (task.config.source_context, task.config.context) == (16, 16)
    (tmp_path / "long.tsv").write_text("a\tb\n" + "c" * 29 + "\t" + "d" * 41 + "\n")
    task = begin(tmp_path / "long.tsv")
    assert (task.config.source_context, task.config.context) == (32, 48)


@pytest.mark.parametrize("side, name, words", [
    ("source", "source_context", "2 sources of long will not fit into model.source_context 16: the longest needs 32; "
     "the first begins “ccccc"),
    ("target", "context", "1 target of long will not fit into model.context 16: the longest needs 42; the first begins "
     "“ddddd"),
])  # fmt: skip
def test_pairs_that_do_not_fit_are_counted_and_the_longest_is_told(tmp_path, side, name, words):
    rows = {"source": [("c" * 29, "b"), ("d" * 31, "b")], "target": [("c", "d" * 41)]}[side]
    rows += [(f"{a}{b}", "b") for a in "ab" for b in "abcdefg"]
    (tmp_path / "long.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    with pytest.raises(UserError) as refused:
        begin(tmp_path / "long.tsv", {name: 16})
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
    task = begin(tmp_path / f"mine{suffix}", tokenizer=tokenizer)
    assert task.tokenizer.kind == tokenizer
    source, places, _, say = task.tokens(rows[:3])
    for i, (one, other) in enumerate(rows[:3]):
        assert task.tokenizer.decode(source[i, places[i] < NOWHERE].tolist()[:-1]) == one
        assert task.tokenizer.decode(say[i, say[i] >= 0].tolist()[:-1]) == other
    model = task.build().eval()
    assert set(task.evaluate(model, 1)) == {"val_loss", "exact_match"}
    assert task.evaluate(model, 1)["val_loss"] == pytest.approx(math.log(task.config.vocab), rel=0.1)


def test_the_report_tells_what_differs_and_shows_where_it_looked(backwards, tmp_path, monkeypatch):
    task = begin(backwards)
    model = lively(task)
    sources = words(5, seed=9)
    said = [greedy(task, model, source) for source in sources]
    task.data.test = [(source, said[i] if i == 2 and said[i] else "abba") for i, source in enumerate(sources)]
    measures, files = task.report(model, tmp_path / "deep" / "eval")
    assert {"val_loss", "exact_match", "character_error_rate"} <= set(measures)
    assert [path.name for path in files] == ["mistakes.txt", *(f"attention-{i}.png" for i in (1, 2, 3))]
    told = files[0].read_text().splitlines()
    right = sum(text == target for text, (_, target) in zip(said, task.data.test, strict=True))
    assert told[0] == f"{5 - right} of 5 differ"
    assert told[2] == f"{sources[0]}\t{said[0]}\t(is: abba)"
    for path in files[1:]:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"


def test_a_text_that_was_cut_short_never_said_its_end(backwards, monkeypatch):
    task = begin(backwards)
    model, tokenizer, drawn = lively(task), task.tokenizer, []
    monkeypatch.setattr(
        pairs.draw, "heat_maps", lambda maps, names, rows, *_: drawn.append((len(maps[0]), rows)) or b""
    )
    source = "abde"
    whole = write(model, tokenizer, [source])[0]
    for said in (whole, whole[:-1], "abcde" * 9):
        pairs.looks(model, tokenizer, source, said)
        count, rows = drawn.pop()
        assert count == len(rows)
        ids = [tokenizer.end, *tokenizer.encode(said).tolist()][: task.config.context]
        next_word = int(model(torch.tensor([ids]), sources_of(model, tokenizer, [source])["source"])[0, -1].argmax())
        assert (rows[-1] == "end") == (next_word == tokenizer.end)
        assert rows[: len(said)] == list(said)[: len(rows)]


def tensors(folder, step):
    kept = checkpoint.read(folder, step)
    lines = [{k: v for k, v in line.items() if k not in ("rate", "time")} for line in Metrics.read(folder)]
    return {name: t.tolist() for name, t in kept.tensors.items()}, lines


def run_of(folder, data, **train):
    model = {**SIZES, "dropout": 0.1}
    return new_run("seq2seq", str(data), "char", model=model, train={**PACE, **train}, out=folder)


def test_a_run_of_pairs_killed_with_no_warning_ends_as_one_never_killed(tmp_path, backwards):
    pace = dict(steps=500, eval_every=250, save_every=1, warmup=0, schedule="constant", accumulate=2,
                label_smoothing=0.1)  # fmt: skip
    for name in ("killed", "whole"):
        run_of(tmp_path / name, backwards, **pace)
    process = subprocess.Popen(
        [sys.executable, "-m", "pencil", "resume", str(tmp_path / "killed")], stderr=subprocess.DEVNULL
    )
    while not checkpoint.saved(tmp_path / "killed"):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    reached = checkpoint.saved(tmp_path / "killed")[-1]
    assert reached < 500
    steps = reached + 5
    for name in ("killed", "whole"):
        run = Run.open(tmp_path / name)
        config = build(TrainConfig, {**run.config["train"], "steps": steps})
        assert Trainer(task_of(run, config), run, config).train().finished
    assert tensors(tmp_path / "killed", steps) == tensors(tmp_path / "whole", steps)


def test_forty_words_are_learned_by_heart(tmp_path, backwards):
    fast = dict(steps=90, batch=19, eval_every=90, save_every=90, warmup=11, muon_lr=0.04, lr=0.01)
    model = {**SIZES, "dropout": 0.0}
    run, task, config = new_run(
        "seq2seq", str(backwards), "char", model=model, train={**PACE, **fast}, out=tmp_path / "a"
    )
    trainer = Trainer(task, run, config)
    task.data.test = task.data.train
    assert task.evaluate(trainer.model.eval())["exact_match"] < 0.1
    trainer.train()
    assert task.evaluate(trainer.model)["exact_match"] > 0.9


def test_a_tokenizer_without_an_end_is_refused(backwards):
    task = begin(backwards)
    task.tokenizer.end = None
    with pytest.raises(UserError, match="has no <|endoftext|>"):
        PairTask(task.data, task.config, task.train, task.tokenizer)
