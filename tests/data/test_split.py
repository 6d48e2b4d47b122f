"""What is held out: equal examples on one side, one of each class, and for older runs what they had."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albums import album, idx, photos, picture, write_rows
from pencil.api.loading import open_run
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.data.images import open_images as images
from pencil.data.split import hold_out, hold_out_texts
from pencil.data.tables import pairs
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.tasks.latents import latents_path

ROWS = st.lists(st.tuples(st.integers(0, 23), st.sampled_from("abc")), min_size=1, max_size=61)
FORMER = ["a6", "a10", "b0", "c0"]  # of 23, 13, 2 and 1 pictures of four classes, by version 0.7


@settings(max_examples=29)
@given(ROWS)
def test_equal_pictures_are_on_one_side_and_each_class_that_can_spare_one_is_evaluated(rows):
    """A row is a content and a class; each row is a file of its own."""
    files = [(Path(f"{i}.png"), label) for i, (_, label) in enumerate(rows)]
    held, kept = hold_out(files, "label", [f"content {content}" for content, _ in rows])
    content = {Path(f"{i}.png"): content for i, (content, _) in enumerate(rows)}
    assert Counter([*held, *kept]) == Counter(files)
    assert not {content[path] for path, _ in held} & {content[path] for path, _ in kept}
    assert {label for _, label in kept} == {label for _, label in files}
    classes = {one: {label for other, label in rows if other == one} for one, _ in rows}
    own = Counter(min(labels) for labels in classes.values() if len(labels) == 1)
    assert {label for label, count in own.items() if count > 1} <= {label for _, label in held}
    assert (held, kept) == hold_out(files, "label", [f"content {content}" for content, _ in rows])


@settings(max_examples=29)
@given(ROWS)
def test_pictures_that_all_differ_are_split_as_before(rows):
    files = [(Path(f"{i}.png"), label) for i, (_, label) in enumerate(rows)]
    contents = [str(i) for i in range(len(files))]
    for want in ("label", "caption"):
        assert hold_out(files, want, contents) == hold_out(files, want, contents, split=1)


@settings(max_examples=29)
@given(ROWS)
def test_equal_texts_are_on_one_side_and_each_class_that_can_spare_one_is_evaluated(rows):
    texts = [(f"text {i}", label) for i, label in rows]
    held = hold_out_texts(texts, labelled=True)
    assert {label for text, label in texts if text not in held} == {label for _, label in texts}
    own = Counter(label for text, label in set(texts) if len({other for t, other in texts if t == text}) == 1)
    assert {label for label, count in own.items() if count > 1} <= {label for text, label in texts if text in held}
    assert hold_out_texts(texts, labelled=False) == hold_out_texts(texts, labelled=False, split=1)


def test_the_rule_of_older_runs_is_kept():
    files = [(Path(f"{k}{i}"), k) for k, n in (("a", 23), ("b", 13), ("c", 2), ("d", 1)) for i in range(n)]
    assert [path.name for path, _ in hold_out(files, "label", ["equal"] * len(files), split=1)[0]] == FORMER
    texts = [(f"text {i}", "rare" if i % 17 == 3 else "common") for i in range(53)]
    assert hold_out_texts(texts, True, split=1) == {"text 28", "text 29"}
    rare = hold_out_texts(texts, True) - {"text 28", "text 29"}
    assert len(rare) == 1
    assert rare < {"text 3", "text 20", "text 37"}


def copied(folder, count=11, times=5):
    """Different pictures of two classes, each several times."""
    for i in range(count):
        first = picture(folder / "ab"[i % 2] / f"{i}_0.png", seed=i)
        for k in range(1, times):
            shutil.copy(first, first.with_name(f"{i}_{k}.png"))
    return folder


def sides(data):
    return ({path.read_bytes() for path in part.sources} for part in (data.train, data.test))


def test_copies_of_a_picture_are_all_trained_on_or_all_held_out(tmp_path):
    data = images.load(str(copied(tmp_path / "labels")), "label")
    train, test = sides(data)
    assert not train & test
    assert (len(data.train), len(data.test)) == (45, 10)
    assert sorted(set(data.test.targets)) == [0, 1]
    former = images.load(str(tmp_path / "labels"), "label", split=1)
    train, test = sides(former)
    assert train & test
    captions = album(tmp_path / "captions", [f"dot {i}" for i in range(23)])
    for i in range(23):
        shutil.copy(captions / f"p{i:02}.png", captions / f"copy{i:02}.png")
    write_rows(captions, [{"file_name": f"{a}{i:02}.png", "text": "a dot"} for a in ("p", "copy") for i in range(23)])
    for want in ("caption", "nothing"):
        train, test = sides(images.load(str(captions), want))
        assert len(test) == 2
        assert not train & test


def test_a_picture_in_two_classes_is_named_with_both_its_files(tmp_path):
    photos(tmp_path, {"cat": 7, "dog": 5, "owl": 3})
    shutil.copy(tmp_path / "cat" / "3.png", tmp_path / "dog" / "same.png")
    note, copies = images.load(str(tmp_path), "label").notes
    assert copies == (
        "1 of the 16 pictures is a copy of another (dog/same.png of cat/3.png): a picture and its copies are all "
        "trained on or all held out"
    )
    assert note == (
        "cat/3.png (cat) and dog/same.png (dog) are the same picture: no model can be right about both; remove one of "
        "them"
    )
    shutil.copy(tmp_path / "owl" / "1.png", tmp_path / "cat" / "owl.png")
    note = images.load(str(tmp_path), "label").notes[0]
    assert "are the same picture, and 1 more are in two classes:" in note


def test_parts_that_a_data_set_has_itself_are_kept_and_what_they_share_is_said(tmp_path):
    for part, first in (("train", 0), ("test", 5)):
        for label in "ab":
            for i in range(first, first + 7):
                picture(tmp_path / "set" / part / label / f"{i}.png", seed=i + 100 * (label == "b"))
    data = images.load(str(tmp_path / "set"), "label")
    assert (len(data.train), len(data.test), data.split) == (14, 14, 1)
    assert data.notes[1] == (
        "4 of the 14 held-out pictures are trained on too (test/a/5.png is train/a/5.png): the figures are not those "
        "of unseen pictures"
    )


def test_what_idx_files_share_is_said(tmp_path):
    arrays = idx(tmp_path)
    assert images.load(str(tmp_path), "label").notes == []
    name = tmp_path / "t10k-images-idx3-ubyte"
    content = bytearray(name.read_bytes())
    size = arrays["train", "images-idx3"][0].size
    content[16 : 16 + size] = arrays["train", "images-idx3"][3].tobytes()
    name.write_bytes(content)
    (note,) = images.load(str(tmp_path), "label").notes
    assert note.startswith("1 of the 11 held-out pictures are trained on too (t10k picture 0 is train picture 3)")
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    content = bytearray(labels.read_bytes())
    content[8] = (arrays["train", "labels-idx1"][3] + 1) % 3
    labels.write_bytes(content)
    first, second = images.load(str(tmp_path), "label").notes
    assert second == note
    assert first.startswith("train picture 3 (")
    assert ") and t10k picture 0 (" in first


def test_copies_in_a_table_are_on_one_side(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the datasets package (an extra) is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    cells = [{"bytes": picture(tmp_path / f"{i}.png", seed=i % 13).read_bytes(), "path": None} for i in range(39)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    rows = {"image": cells, "label": [i % 13 % 2 for i in range(39)]}
    (tmp_path / "table").mkdir()
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    table.to_parquet(str(tmp_path / "table" / "train-00000.parquet"))
    data = images.load(f"hf:{tmp_path / 'table'}", "label")
    train, test = ({cell.open().read() for cell in part.sources} for part in (data.train, data.test))
    assert not train & test
    assert (len(train), len(test), sorted(set(data.test.targets))) == (11, 2, [0, 1])
    former = images.load(f"hf:{tmp_path / 'table'}", "label", split=1)
    assert (len(former.train), len(former.test)) == (35, 4)


def test_a_class_without_a_held_out_text_is_named(tmp_path):
    rows = [f"ordinary message number {i} about nothing,ham" for i in range(200)]
    rows += [f"win money prize {i} now,spam" for i in range(6)]
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(["text,label", *rows]))
    data = pairs.load_labelled(str(path))
    assert Counter(label for _, label in data.test) == {"ham": 14, "spam": 1}
    assert data.unevaluated == []
    assert {label for _, label in pairs.load_labelled(str(path), reading=pairs.Recorded("", {})).test} == {"ham"}
    path.write_text("\n".join(["text,label", *rows[:201]]))
    (note,) = pairs.load_labelled(str(path)).unevaluated
    assert note == "spam has too few different texts to hold one out: it is trained on, and not evaluated"


def test_a_text_in_two_classes_is_named(tmp_path):
    rows = [f"message {i}\t{'ham' if i % 3 else 'spam'}" for i in range(30)]
    path = tmp_path / "two.tsv"
    path.write_text("\n".join([*rows, "message 7\tspam", "message 8\tham", ""]))
    (note,) = pairs.load_labelled(str(path)).unevaluated
    assert note == "'message 7' is labelled ham and spam: no model can be right about both; remove one of them"
    path.write_text("\n".join([*rows, "message 7\tspam", "message 9\tham", ""]))
    (note,) = pairs.load_labelled(str(path)).unevaluated
    assert "ham and spam, and 1 more texts have two labels:" in note


def test_a_run_records_its_rule_and_one_without_keeps_the_former(tmp_path):
    place = str(copied(tmp_path / "set"))
    run, task, config = new_run(TrainingRequest("vit", place, model={"image_size": (8, 8)}), out=tmp_path / "run")
    assert run.config["run"]["split"] == task.data.split == 2
    again = task_of(open_run(run.path), build(TrainConfig, run.config["train"]))
    assert again.data.test.sources == task.data.test.sources
    settings = run.path / "config.toml"
    settings.write_text(settings.read_text().replace("split = 2\n", ""))
    former = task_of(open_run(run.path), config)
    assert former.data.test.sources == images.load(place, "label", split=1).test.sources
    assert former.data.test.sources != task.data.test.sources
    # what is cached for one rule is not used for the other
    assert len({latents_path("data", "vae", (8, 8), 3, "train", split=rule) for rule in (1, 2)}) == 2


@pytest.mark.parametrize("name", ["gpt", "reader"])
def test_how_many_tokens_of_a_text_are_trained_on_is_no_rule(tmp_path, notes, name):
    run, task, _ = new_run(
        TrainingRequest(name, str(notes), model={"width": 24, "heads": 3, "depth": 1}), out=tmp_path / "run"
    )
    assert task.data.split > 2
    assert "split" not in run.config["run"]


@pytest.mark.usefixtures("fast_training")
def test_what_starts_from_an_older_run_is_not_evaluated_on_what_that_was_trained_on(tmp_path):
    """On the same data the rule of the run that it starts from holds, on other data today's."""
    rows = [f"text {i},{'rare' if i % 17 == 3 else 'common'}" for i in range(53)]
    for name in ("same", "other"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]))
    copied(tmp_path / "set")
    for family, data, name in (("reader", "same.csv", "old"), ("vit", "set", "seen")):
        model = {"width": 24, "heads": 3, "depth": 1} | ({"image_size": (8, 8)} if family == "vit" else {})
        train = {"steps": 2, "batch": 3, "warmup": 0}
        made = new_run(
            TrainingRequest(family, str(tmp_path / data), model=model, train=train), out=tmp_path / name, split=1
        )
        assert Trainer(made[1], made[0], made[2], quiet=True).train().finished

    def begun(family, data, source, said=lambda line: None):
        out = tmp_path / f"{source}-{data}"
        run, task, _ = new_run(
            TrainingRequest(family, str(tmp_path / data), from_run=str(tmp_path / source)), out=out, notify=said
        )
        again = task_of(open_run(run.path), task.train)
        assert again.data.test == task.data.test or again.data.test.sources == task.data.test.sources
        return run.config["run"].get("split"), task.data

    rule, same = begun("reader", "same.csv", "old")
    assert (rule, {label for _, label in same.test}) == (None, {"common"})
    rule, other = begun("reader", "other.csv", "old")
    assert (rule, {label for _, label in other.test}) == (2, {"common", "rare"})
    lines = []
    rule, pictures = begun("vit", "set", "seen", lines.append)
    assert rule is None
    assert pictures.test.sources == images.load(str(tmp_path / "set"), "label", split=1).test.sources
    assert any("of the 5 held-out pictures are trained on too" in line for line in lines)


def test_copies_that_are_held_out_are_known_to_the_interval(tmp_path):
    rows = [f"text {i % 53},{'ab'[i % 53 % 2]}" for i in range(3 * 53)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    small = {"width": 24, "heads": 3, "depth": 1}
    for family, data, more, count in (
        ("vit", copied(tmp_path / "set"), {"image_size": (8, 8)}, 10),
        ("reader", tmp_path / "texts.csv", {}, 6),
    ):
        _, task, _ = new_run(TrainingRequest(family, str(data), model=small | more), out=tmp_path / family)
        model = task.build().eval()
        for found in (task.evaluate(model), task.report(model, tmp_path / "eval")[0]):
            assert (found["accuracy.examples"], found["accuracy.different"]) == (count, 2)


def test_one_picture_many_times_cannot_be_divided(tmp_path):
    for label in "ab":
        for k in range(3):
            picture(tmp_path / label / f"{k}.png", seed="ab".index(label))
    with pytest.raises(UserError, match="none is left to evaluate on; .*; 4 of the 6 pictures are copies of another"):
        images.load(str(tmp_path), "label")
