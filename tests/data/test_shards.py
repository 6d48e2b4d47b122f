"""Pictures in tar files: the samples that the webdataset package reads, in an order that follows from (seed, step)."""

import io
import json
import os
import tarfile

import numpy as np
import pytest
from PIL import Image

from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images import shards
from pencil.data.images.augment import ImageTransform

wds = pytest.importorskip("webdataset", reason="the webdataset package (an extra) is not installed")
TRANSFORM = ImageTransform((11, 13), 3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def png(seed, size=(13, 11), mode="RGB"):
    rng, made = np.random.default_rng(seed), io.BytesIO()
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(made, "PNG")
    return made.getvalue()


def write(path, samples):
    """A shard, written by the package."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path), encoder=False) as out:
        for sample in samples:
            out.write(sample)
    return path


def labelled(first, count, classes=3):
    return [
        {"__key__": f"a/{i:04}", "png": png(i), "cls": str(i % classes).encode()} for i in range(first, first + count)
    ]


def captioned(first, count):
    return [
        {"__key__": f"{i:04}", "png": png(i), "txt": f"picture {i}\n".encode()} for i in range(first, first + count)
    ]


@pytest.fixture
def three(tmp_path):
    for k in range(3):
        write(tmp_path / "set" / f"part-{k:03}.tar", labelled(100 * k, 11 + k))
    return tmp_path / "set"


def test_the_samples_are_those_that_the_package_reads(three):
    data = images.load(str(three), "label")
    theirs = {}
    for sample in wds.WebDataset([str(p) for p in sorted(three.glob("*.tar"))], shardshuffle=False).decode("rgb8"):
        theirs[sample["png"].tobytes()] = sample["cls"]
    assert len(theirs) == 36
    seen = set()
    for part in (data.train, data.test):
        pictures, targets = part.take(range(len(part)), TRANSFORM)
        for picture, target in zip(pictures, targets, strict=True):
            content = picture.transpose(1, 2, 0).tobytes()
            assert data.classes[target] == str(theirs[content])
            assert content not in seen
            seen.add(content)
    assert seen == set(theirs)
    assert data.classes == ("0", "1", "2")
    assert len(data.test) == 3  # a tenth of each class


def test_any_sample_is_read_at_any_time(three):
    """What a step reads depends on nothing that was read before it."""
    data, again = (images.load(str(three), "label") for _ in range(2))
    order = np.random.default_rng(5).permutation(len(data.train)).tolist()
    whole, _ = data.train.take(range(len(data.train)), TRANSFORM)
    for i in order[:7]:
        assert np.array_equal(again.train.take([i], TRANSFORM)[0][0], whole[i])
    assert [one.name for one in again.train.sources] == [one.name for one in data.train.sources]
    assert {one.name.partition("/")[0] for one in data.train.sources} == {f"part-{k:03}.tar" for k in range(3)}


def test_numbers_are_classes_in_their_order_and_names_are_sorted(tmp_path):
    many = [{"__key__": f"{i}", "png": png(i), "cls": str(i // 2).encode()} for i in range(24)]
    assert images.load(str(write(tmp_path / "n.tar", many)), "label").classes == tuple(map(str, range(12)))
    named = [
        {"__key__": f"{i}", "png": png(i), "json": json.dumps({"label": "dog" if i % 2 else "cat"}).encode()}
        for i in range(8)
    ]
    data = images.load(str(write(tmp_path / "m.tar", named)), "label")
    assert (data.classes, data.name) == (("cat", "dog"), "m")
    write(tmp_path / "c.tar", [{**one, "cls": b"cow" if i < 4 else b"ox"} for i, one in enumerate(named)])
    assert images.load(str(tmp_path / "c.tar"), "label").classes == ("cow", "ox")


@pytest.mark.parametrize("kind", ["txt", "json", "caption"])
def test_captions(tmp_path, kind):
    rows = captioned(0, 13)
    if kind != "txt":
        key = {"json": "text", "caption": "caption"}[kind]
        rows = [
            {"__key__": one["__key__"], "png": one["png"], "json": json.dumps({key: one["txt"].decode()}).encode()}
            for one in rows
        ]
    data = images.load(str(write(tmp_path / "x.tar", rows)), "caption")
    assert sorted([*data.train.targets, *data.test.targets]) == sorted(f"picture {i}" for i in range(13))
    assert images.load(str(tmp_path / "x.tar"), "nothing").train.targets == [""] * 12


def test_parts_by_name_and_braces(tmp_path):
    for name in ("train-00", "train-01", "val-00", "test-00"):
        write(tmp_path / f"{name}.tar", labelled(hash(name) % 1000, 7))
    data = images.load(str(tmp_path), "label")
    assert (len(data.train), len(data.test), data.select_best) == (14, 7, False)
    assert "2 shards to train on, 1 shard (test) to evaluate on; not read: val" in data.notes
    data = images.load(f"{tmp_path}/train-{{00..01}}.tar,{tmp_path}/val-*.tar", "label")
    assert (len(data.train), len(data.test), data.select_best) == (14, 7, True)
    assert len(images.load(f"{tmp_path}/*.tar", "label", whole=True).test) == 28
    with pytest.raises(UserError, match=r"there is no file or folder .*train-02\.tar"):
        images.load(f"{tmp_path}/train-{{00..02}}.tar", "label")


def test_an_index_is_made_once_and_belongs_to_its_content(three, folder, monkeypatch, capsys):
    monkeypatch.setattr(shards, "ANNOUNCED_BYTES", 1)
    first = images.load(str(three), "label")
    assert "indexing 3 shards, once" in capsys.readouterr().err
    kept = sorted(folder.glob("shards-*.json"))
    assert len([path for path in kept if not path.name.endswith(".json.json")]) == 3
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_samples", lambda path: pytest.fail("read again"))
        assert images.load(str(three), "label").hash == first.hash
        (three / "moved").mkdir()
        for path in three.glob("*.tar"):
            path.rename(three / "moved" / path.name)
        assert images.load(str(three / "moved"), "label").hash == first.hash
    victim = kept[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert images.load(str(three / "moved"), "label").hash == first.hash
    assert "it is made again" in capsys.readouterr().err
    write(three / "moved" / "part-001.tar", labelled(500, 12))
    assert images.load(str(three / "moved"), "label").hash != first.hash


def test_a_shard_that_changes_while_training_is_refused(three):
    data = images.load(str(three), "label")
    os.utime(three / "part-001.tar", ns=(1, 1))
    with pytest.raises(UserError, match=r"part-001\.tar has changed since it was read first"):
        data.train.take(range(len(data.train)), TRANSFORM, np.random.default_rng(0))
    (three / "part-001.tar").unlink()
    with pytest.raises(UserError, match=r"part-001\.tar cannot be read any more: No such file"):
        data.train.take(range(len(data.train)), TRANSFORM, np.random.default_rng(0))


def test_names_say_which_part_a_shard_is_of(tmp_path):
    for name in ("imagenet-train-000", "imagenet-val-000"):
        write(tmp_path / f"{name}.tar", labelled(hash(name) % 1000, 7))
    data = images.load(str(tmp_path), "label")
    assert (len(data.train), len(data.test)) == (7, 7)
    write(tmp_path / "more-000.tar", labelled(2000, 7))
    with pytest.raises(
        UserError, match=r"imagenet-val-000\.tar is named as one to evaluate on, and more-000\.tar names no"
    ):
        images.load(str(tmp_path), "label")
    (tmp_path / "imagenet-val-000.tar").unlink()
    data = images.load(str(tmp_path), "label")
    assert (len(data.train) + len(data.test), len(data.test) < 7) == (14, True)


def test_a_limit_that_is_raised_is_used(tmp_path, monkeypatch):
    path = write(tmp_path / "x.tar", [*labelled(0, 13), {"__key__": "large", "png": png(1, (211, 199)), "cls": b"1"}])
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.01")
    assert [name for name, _ in images.load(str(path), "label").skipped] == ["x.tar/large.png"]
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "1")
    assert images.load(str(path), "label").skipped == []


def test_what_is_not_read_is_named(tmp_path):
    path = write(tmp_path / "x.tar", labelled(0, 13))
    with tarfile.open(path, "a") as out:
        for name, content in (
            ("b.png", tarfile.SYMTYPE), ("b.cls", b"1"), ("c.png", tarfile.LNKTYPE), ("d.avif", b"a picture"),
            ("d.cls", b"1"), ("e.png", bytes(997)),
        ):  # fmt: skip
            about = tarfile.TarInfo(name)
            if content in (tarfile.SYMTYPE, tarfile.LNKTYPE) and name.endswith("png"):
                about.type, about.linkname = content, "a/0000.png"
            else:
                about.size = len(content)
            out.addfile(about, io.BytesIO(content))
    data = images.load(str(path), "label")
    assert len(data.train) + len(data.test) == 13
    assert [name for name, _ in data.skipped] == [f"x.tar/{name}" for name in ("b.png", "c.png", "d.avif", "e.png")]
    assert {fault for _, fault in data.skipped[:3]} == {"no picture that is read: a link, or a file of another kind"}


def header(name, size, kind=b"0"):
    """A header of a member, with any size."""
    about = tarfile.TarInfo(name)
    about.type = kind
    content = bytearray(about.tobuf(tarfile.GNU_FORMAT))
    content[124:136] = (
        bytes([128]) + size.to_bytes(11, "big") if size >= 0 else b"\xff" * 1 + size.to_bytes(11, "big", signed=True)
    )
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content):06o}\0 ".encode()
    return bytes(content)


def test_hostile_tar_files_are_one_sentence(tmp_path):
    for name, content in {
        "back": header("a.png", 0) + header("b.png", 0) + header("c.png", -1024),
        "long": header("a.png", 1 << 40, b"L"),
        "longer": header("a.png", 1 << 70, b"L"),
        "about": header("a.png", 1 << 40, b"x"),
        "chain": header("a.png", 1, b"L") + bytes(512),
    }.items():
        content = content * 3001 if name == "chain" else content
        (tmp_path / f"{name}.tar").write_bytes(content + bytes(1024))
        with pytest.raises(UserError, match=f"{name}.tar (is not a whole tar file|is damaged)") as error:
            images.load(str(tmp_path / f"{name}.tar"), "label")
        assert "\n" not in str(error.value)


def test_a_picture_of_very_many_bytes_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_PICTURE_BYTES", 997)
    rows = labelled(0, 13)
    rows[4]["png"] = png(4, (97, 89))
    data = images.load(str(write(tmp_path / "x.tar", rows)), "label")
    assert data.skipped == [("x.tar/a/0004.png", "a file of more than 997 bytes")]


def test_broken_tar_files_are_one_sentence(tmp_path):
    whole = write(tmp_path / "whole.tar", labelled(0, 13)).read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as archive:
        one, second = archive.getmembers()[2], archive.getmembers()[3].offset

    def refused(name, content, match):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=match) as error:
            images.load(str(tmp_path / name), "label")
        assert "\n" not in str(error.value)

    refused("cut.tar", whole[: one.offset_data + 7], "cut.tar is not a whole tar file: unexpected end of data")
    refused("ended.tar", whole[:second], f"ended.tar is damaged at byte {second:,}, or cut short")
    damaged = bytearray(whole)
    damaged[second + 40] ^= 255  # in a header
    refused("damaged.tar", damaged, f"damaged.tar is damaged at byte {second:,}, or cut short")
    refused("text.tar", b"no tar file" * 100, "text.tar is not a whole tar file")
    refused("empty.tar", b"", "empty.tar is not a whole tar file: empty file")
    refused("packed.tar", b"\x1f\x8b" + whole[2:], "packed.tar is compressed.*unpack it with gunzip")


def test_members_that_do_not_fit_are_one_sentence(tmp_path):
    def refused(rows, match, want="label"):
        path = write(tmp_path / "x.tar", rows)
        with pytest.raises(UserError, match=match) as error:
            images.load(str(path), want)
        assert "\n" not in str(error.value)

    rows = labelled(0, 9)
    bare = [{key: value for key, value in one.items() if key != "cls"} for one in rows]
    refused([*rows, {**bare[0], "__key__": "b"}], r"has 1 picture without a label \(b\.png\); each needs a \.cls, or a")
    refused(bare, r"x\.tar has 9 pictures without a label \(a/0000\.png, a/0001\.png, a/0002\.png, …\)")
    refused(rows, r"without a caption .* each needs a \.txt, or a \.json with a text beside it", "caption")
    refused([{**rows[0], "jpg": b"x"}], r"a/0000 has several pictures \(jpg, png\)")
    refused([{**bare[0], "json": b"{"}], r"a/0000\.json is not JSON")
    refused([{**bare[0], "json": b"[1]"}], r"a/0000\.json is not a JSON object")
    refused([{**bare[0], "cls": b"\xff"}], r"a/0000\.cls is not a number or a name")
    refused([{**rows[0], "txt": b"\xff"}], r"a/0000\.txt is not a text in UTF-8", "caption")
    refused([{"__key__": "a", "txt": b"no picture"}], "holds no picture that can be read")
    with tarfile.open(tmp_path / "x.tar", "w") as out:
        for _ in range(2):
            about = tarfile.TarInfo("a.png")
            about.size = len(png(1))
            out.addfile(about, io.BytesIO(png(1)))
    with pytest.raises(UserError, match=r"x\.tar has two members of one name: a\.png"):
        images.load(str(tmp_path / "x.tar"), "label")


def test_a_broken_picture_is_left_out_and_named(tmp_path):
    rows = labelled(0, 13)
    rows[4]["png"] = b"no picture"
    data = images.load(str(write(tmp_path / "x.tar", rows)), "label")
    assert data.skipped == [("x.tar/a/0004.png", "not a picture Pillow can read")]
    assert len(data.train) + len(data.test) == 12


def test_the_package_that_is_missing_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "x.tar", labelled(0, 5))
    monkeypatch.setitem(__import__("sys").modules, "webdataset", None)
    with pytest.raises(
        UserError, match=r"x\.tar is a shard, which needs the webdataset package; pip install '\.\[shards\]'"
    ):
        images.load(str(path), "label")


def test_shards_on_two_drives_are_one_sentence(three, monkeypatch):
    with monkeypatch.context() as patch:  # as on Windows
        patch.setattr(shards.os.path, "commonpath", lambda paths: (_ for _ in ()).throw(ValueError("two drives")))
        with pytest.raises(
            UserError, match=r"part-000\.tar and .*part-002\.tar are on two drives: put all shards on one"
        ):
            shards.from_shards(sorted(three.glob("*.tar")), "label")


def test_tar_files_beside_pictures_are_no_shards(tmp_path):
    for kind in ("cat", "dog"):
        for i in range(3):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{i}.png").write_bytes(png(i))
    (tmp_path / "backup.tar").write_bytes(b"anything")
    assert images.load(str(tmp_path), "label").classes == ("cat", "dog")


def test_a_shard_gives_the_batches_of_a_folder(tmp_path):
    """The same pictures in class folders and in a shard: the same examples at the same places, augmented alike."""
    rows = []
    for kind in ("cat", "dog"):
        for i in range(17):
            content = png(i + 100 * (kind == "dog"), (29, 23))
            (tmp_path / "photos" / kind).mkdir(parents=True, exist_ok=True)
            (tmp_path / "photos" / kind / f"{i:02}.png").write_bytes(content)
            rows.append({"__key__": f"{kind}/{i:02}", "png": content, "cls": kind.encode()})
    one = images.load(str(tmp_path / "photos"), "label")
    two = images.load(str(write(tmp_path / "photos.tar", rows)), "label")
    assert (one.classes, one.model_defaults, one.shapes) == (two.classes, two.model_defaults, two.shapes)
    augmented = ImageTransform((11, 13), 3, flip=True, crop=0.5, augment_ops=1)
    for name in ("train", "test"):
        parts = [getattr(data, name) for data in (one, two)]
        order = np.random.default_rng(3).permutation(len(parts[0]))
        found = [part.take(order, augmented, np.random.default_rng(7)) for part in parts]
        assert np.array_equal(found[0][0], found[1][0])
        assert found[0][1] == found[1][1]


TINY = ["--model.width", "12", "--model.heads", "2", "--model.depth", "1", "--train.batch", "4", "--train.steps", "2",
        "--train.eval_batches", "1", "--train.warmup", "0"]  # fmt: skip


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("family", ["vit", "captioner", "dit"])
def test_a_family_trains_on_shards(type_in, fails, tmp_path, family):
    rows = labelled if family == "vit" else captioned
    for k in range(2):
        write(tmp_path / "set" / f"part-{k}.tar", rows(100 * k, 11))
    size = ["--size", "16"] if family == "dit" else ["--model.image_size", "16x16", "--model.patch", "8x8"]
    shown = type_in("train", family, "--data", "set/part-{0..1}.tar", "--out", "run", *size, *TINY)
    assert "2 shards with 22 pictures" in shown.err
    type_in("resume", "run", "--train.steps", "3")
    write(tmp_path / "set" / "part-1.tar", rows(300, 11))
    assert "has changed since run was trained on it" in fails("resume", "run", "--train.steps", "4")


def test_copies_of_a_picture_are_on_one_side_of_a_split(tmp_path):
    """Nine pictures, each five times and in several shards; one of them also under another label."""
    for k in range(3):
        samples = [
            {"__key__": f"{k}-{i:02}", "png": png(i % 9), "cls": str(i % 9 % 2).encode()}
            for i in range(15 * k, 15 * k + 15)
        ]
        write(tmp_path / "set" / f"part-{k}.tar", samples)
    data = images.load(str(tmp_path / "set"), "label")
    train, test = ({member.open().getvalue() for member in part.sources} for part in (data.train, data.test))
    assert not train & test
    assert (len(train), len(test), sorted(set(data.test.targets))) == (7, 2, [0, 1])
    assert data.notes[1].startswith("36 of the 45 pictures are copies of another (")
    former = images.load(str(tmp_path / "set"), "label", split=1)
    train, test = ({member.open().getvalue() for member in part.sources} for part in (former.train, former.test))
    assert train & test
    write(tmp_path / "set" / "part-3.tar", [{"__key__": "again", "png": png(4), "cls": b"1"}])
    note = images.load(str(tmp_path / "set"), "label").notes[1]
    assert note.startswith("part-0.tar/0-04.png (0) and part-3.tar/again.png (1) are the same picture")
