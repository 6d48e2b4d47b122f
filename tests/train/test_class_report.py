"""What an evaluation writes of a classifier: calibration against sums by hand, and the table of all answers."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from test_image_tasks import prepare

from albums import photos
from commands import REVIEWS, write_pairs
from pencil.config import UserError, build
from pencil.data.tables.pairs import another_column, load_labelled
from pencil.families import family
from pencil.train.settings import TrainConfig
from pencil.train.task import Request
from pencil.train.tasks.class_report import (
    BINS,
    Answers,
    calibration,
    class_files,
    describe_calibration,
    group_metrics,
    group_table,
)


def answers(labels, predicted, probability):
    return Answers(torch.tensor(labels), torch.tensor(predicted), torch.tensor(probability))


def test_the_calibration_error_is_the_sum_over_the_bins():
    rng = np.random.default_rng(3)
    probability, right = rng.uniform(0.5, 1, 211), rng.random(211) < 0.6
    probability[:4] = 1.0, 0.0, 1 / BINS, 2 / BINS
    expected, counts = 0.0, []
    for low in range(BINS):
        last = low == BINS - 1
        inside = (probability * BINS >= low) & ((probability * BINS < low + 1) | last)
        counts.append(inside.sum())
        if inside.any():
            expected += inside.sum() / 211 * abs(right[inside].mean() - probability[inside].mean())
    found = calibration(torch.from_numpy(probability), torch.from_numpy(right))
    assert found.error == pytest.approx(expected, rel=1e-12)
    assert found.counts.tolist() == counts
    assert 0 in counts


def test_the_calibration_error_of_known_answers():
    """Nine tenths sure and always right is 0.1 off; of two bins each counts by its answers."""
    assert answers([1, 1], [1, 1], [0.9, 0.9]).calibration.error == pytest.approx(0.1)
    mixed = answers([0, 0, 1], [0, 1, 1], [0.5, 0.5, 0.8])
    assert mixed.calibration.error == pytest.approx(0.2 / 3)
    assert "0.0667" in describe_calibration({"calibration_error": mixed.calibration.error})


def test_every_answer_is_in_the_table():
    given = answers([0, 1, 1], [0, 2, 1], [0.625, 0.5, 1.0])
    rows = [["7", 'a "b", c'], ["9", "line\nbreak"], ["11", "half \ud800"]]
    files = class_files(given, ["line", "text"], rows, ["good", "so bad"], "films")
    assert sorted(files) == ["calibration.png", "confusion.png", "predictions.csv"]
    assert list(csv.reader(io.StringIO(files["predictions.csv"].decode(), newline=""))) == [
        ["line", "text", "truth", "answer", "probability"],
        ["7", 'a "b", c', "good", "good", "0.625000"],
        ["9", "line\nbreak", "so bad", "2", "0.500000"],  # the model has room for more classes than there are names
        ["11", "half \\ud800", "so bad", "so bad", "1.000000"],
    ]


def test_the_accuracy_of_each_group():
    found = group_metrics(answers([0, 1, 1, 0, 1], [0, 0, 1, 0, 0], [1.0] * 5), ["b.c", "a", "b.c", "a", "a"])
    assert found["group_accuracy.b.c"] == 1
    assert found["group_accuracy.a"] == pytest.approx(1 / 3)
    assert found["group_low.a"] < 1 / 3 < found["group_high.a"]
    table = [line.split() for line in group_table(found, "place")]
    assert [row[:3] for row in table] == [
        ["place", "evaluated", "accuracy"],
        ["a", "3", "0.3333"],
        ["b.c", "2", "1.0000"],
    ]
    assert group_table({"accuracy": 0.5}, None) == []


def test_files_are_named_in_the_table_without_broken_ones(tmp_path):
    folder = photos(tmp_path / "photos", {"cat": 5, "dog": 4})
    whole = (folder / "cat" / "2.png").read_bytes()
    (folder / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    task = prepare("vit", folder, dict(image_size="16"))
    model = task.build().eval()
    every = [*task.data.test.sources, *task.data.train.sources]
    task.data.test.sources, task.data.test.targets = every, [*task.data.test.targets, *task.data.train.targets]
    task.report(model, tmp_path / "eval")
    rows = list(csv.DictReader((tmp_path / "eval" / "predictions.csv").open()))
    assert [row["image"] for row in rows] == [str(path) for path in every if path != folder / "cat" / "2.png"]
    assert len(rows) == 8
    assert all(row["truth"] in row["image"] for row in rows)


def table(path, ending):
    """Texts with a class and a place, of which every third is in the north."""
    rows = [(f"{text} {i}", label, "north" if i % 3 else "south") for i, (text, label) in enumerate(REVIEWS * 2)]
    if ending == "jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(("text", "label", "place"), row, strict=True))) + "\n" for row in rows)
        )
    elif ending == "parquet":
        from pyarrow import parquet, table

        columns = zip(("text", "label", "place"), zip(*rows, strict=True), strict=True)
        parquet.write_table(table({name: list(column) for name, column in columns}), path)
    else:
        path.write_text("text;label;place\n" + "".join(f'"{text}";{label};{place}\n' for text, label, place in rows))
    return {text: place for text, _, place in rows}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("whole", [False, True])
def test_another_column_of_a_table_is_that_of_each_text(ending, whole, tmp_path):
    path = tmp_path / f"films.{ending}"
    places = table(path, ending)
    reading = {"text_column": "text", "label_column": "label"}
    data = load_labelled(str(path), whole=whole, reading=reading)
    assert another_column(str(path), data, "place") == [places[text] for text, _ in data.test]
    if ending == "csv":
        lines = path.read_text().splitlines()
        assert all(text in lines[line - 1] for line, (text, _) in zip(data.lines, data.test, strict=True))
    with pytest.raises(UserError, match=r"nothing"):
        another_column(str(path), data, "nothing")


def test_a_table_of_tabs_of_an_old_run_counts_its_header():
    from pencil.data.tables.pairs import FORMER, LABELLED, read_pairs

    assert list(read_pairs(b"text\tlabel\none\tgood\ntwo\tbad\n", "old.tsv", ".tsv", LABELLED, FORMER).lines) == [2, 3]
    assert list(read_pairs(b"one\tgood\ntwo\tbad\n", "old.tsv", ".tsv", LABELLED, FORMER).lines) == [1, 2]


def test_a_report_by_a_column(tmp_path):
    places = table(tmp_path / "films.csv", "csv")
    sizes = dict(width=24, heads=3, depth=1)
    request = Request(family("reader"), str(tmp_path / "films.csv"), "nano", sizes, dict(steps=3, batch=5))
    task = family("reader").task.prepare(request, build(TrainConfig, dict(steps=3, batch=5))).task
    task.groups = another_column(str(tmp_path / "films.csv"), task.data, "place")
    metrics, _ = task.report(task.build().eval(), tmp_path / "eval")
    rows = list(csv.DictReader((tmp_path / "eval" / "predictions.csv").open()))
    assert [row["text"] for row in rows] == [text for text, _ in task.data.test]
    for place in ("north", "south"):
        right = [row["truth"] == row["answer"] for row in rows if places[row["text"]] == place]
        assert metrics[f"group_held_out.{place}"] == len(right) > 0
        assert metrics[f"group_accuracy.{place}"] == pytest.approx(sum(right) / len(right))


def test_a_column_where_there_is_none_is_refused(classifier_run, vit_run, fails, type_in, tmp_path):
    assert "--by place is for texts with labels in a table, which " in fails("eval", vit_run, "--by", "place")
    other = write_pairs(tmp_path / "other.tsv", REVIEWS[1:])
    assert (
        "other.tsv has no column place" in type_in("eval", classifier_run, "--data", other, "--by", "place", code=2).err
    )
