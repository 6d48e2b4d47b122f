"""Checkpoints written beside the training, and files of tensors cut into pieces, in one process."""

import errno
import json
import threading

import pytest
import torch
from safetensors.torch import load_file, save
from test_loop_details import SMALL, trainer

from pencil.config import UserError
from pencil.files import entry_of
from pencil.runs.files import Manifest, RunFiles, list_checkpoints
from pencil.tensors import torch_dtypes
from pencil.train.loop import checkpoint
from pencil.train.loop.checkpointer import BackgroundWriter
from pencil.train.parallel import dtensor_files


def test_a_file_has_the_bytes_that_the_safetensors_library_writes(tmp_path):
    torch.manual_seed(0)
    tensors = {f"{word}.{name}": torch.randn(3, 5).to(dtype) for name, dtype in torch_dtypes().items() for word in "ba"}
    tensors |= {"scalar": torch.tensor(7.0), "none": torch.empty(0, 11), "turned": torch.randn(5, 7).mT}
    dtensor_files.write_file(tmp_path / "one", tensors)
    assert (tmp_path / "one").read_bytes() == save({n: t.contiguous() for n, t in tensors.items()}, {"format": "pt"})


def test_weights_that_fsdp_has_cut_are_written_whole(tmp_path, notes):
    given = {**SMALL, "ema": 0.9, "steps": 4, "save_every": 2}
    for name, parallel in (("plain", "auto"), ("cut", "fsdp")):
        assert trainer(tmp_path / name, notes, **given, parallel=parallel).train().finished
    plain, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "cut"))
    assert plain.keys() == cut.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(cut[name], tensor, rtol=1e-5, atol=1e-6)


def watched(made, monkeypatch, write):
    """A trainer whose checkpoints go through `write(real, step)`, with the lines that it prints."""
    real, lines = checkpoint.write, []
    monkeypatch.setattr(
        checkpoint, "write", lambda run, step, *rest: write(lambda: real(run, step, *rest), step)
    )  # fmt: skip
    monkeypatch.setattr("pencil.train.loop.report.ProgressBar.print", lambda bar, line: lines.append(line))
    return lines


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, notes, monkeypatch):
    going_on, made_after = threading.Event(), []
    made = trainer(tmp_path / "a", notes, **{**SMALL, "steps": 6, "save_every": 2, "keep": 9, "schedule": "constant"})

    def write(real, step):
        assert threading.current_thread() is not threading.main_thread()
        if step == 2:
            assert going_on.wait(60)
        real()

    def on_step(step, _):
        if step == 3:
            made_after.append(checkpoint.saved_steps(tmp_path / "a"))
            going_on.set()

    watched(made, monkeypatch, write)
    made.on_step = on_step
    made.train()
    assert made_after == [[]]
    assert checkpoint.saved_steps(tmp_path / "a") == [2, 4, 6]
    monkeypatch.undo()
    trainer(tmp_path / "b", notes, **{**SMALL, "steps": 2, "save_every": 2, "schedule": "constant"}).train()
    kept = [{n: t.tolist() for n, t in checkpoint.read(tmp_path / one, 2).tensors.items()} for one in "ab"]
    assert kept[0] == kept[1]  # of the step it is named by, though it was written after a later one


def test_a_failure_of_the_writing_ends_the_training_at_the_next_step(tmp_path, notes, monkeypatch):
    made, failed = trainer(tmp_path / "a", notes, **{**SMALL, "steps": 9, "save_every": 2}), threading.Event()

    def write(real, step):
        try:
            raise OSError(errno.EIO, "Input/output error")
        finally:
            failed.set()

    watched(made, monkeypatch, write)
    made.on_step = lambda step, _: step != 3 or made.checkpointer.writer.thread.join(60)
    with pytest.raises(OSError, match="Input/output error"):
        made.train()
    assert made.step == 3
    assert failed.is_set()


def test_a_full_disk_is_reported_with_the_step_of_the_checkpoint(tmp_path, notes, monkeypatch):
    made = trainer(tmp_path / "a", notes, **{**SMALL, "steps": 7, "save_every": 2, "keep": 9})

    def write(real, step):
        if step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real()

    lines = watched(made, monkeypatch, write)
    made.train()
    assert checkpoint.saved_steps(tmp_path / "a") == [2, 6, 7]
    found = [line for line in lines if "disk is full" in line]
    assert found == [
        "the disk is full: the checkpoint of step 4 could not be written; the checkpoint of step 2 is kept; "
        "training goes on"
    ]


def test_an_error_waits_for_the_writing_and_is_not_hidden_by_its_failure():
    ended = []

    def work():
        ended.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(background):
        with background:
            background.start(work)
            raise ValueError("first")

    background = BackgroundWriter()
    with pytest.raises(ValueError, match="first"):
        train(background)
    assert ended == [1]
    with pytest.raises(OSError, match="No space left"):
        background.wait()


def test_a_checkpoint_that_is_listed_while_a_file_is_replaced_stays_listed(tmp_path):
    run = RunFiles(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"[run]\n[model]\n[train]\n")
    Manifest("7" * 16, {"config.toml": [entry_of(b"")]}, {}).write(tmp_path)
    listing = threading.Thread(target=list_checkpoints, args=(tmp_path, {5: "a" * 64}))

    def put():
        listing.start()
        listing.join(0.3)  # time enough to be overwritten, where nothing keeps the two apart

    run._list("tokenizer.json", entry_of(b"{}"), put)
    listing.join()
    manifest = Manifest.read(tmp_path)
    assert manifest.checkpoints == {5: "a" * 64}
    assert manifest.files["tokenizer.json"] == [entry_of(b"{}")]


def cut(tmp_path, pieces, step=1):
    """A checkpoint whose files hold these pieces of tensors: [{name: (tensor, cut)}, …]."""
    folder = tmp_path / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    for rank, tensors in enumerate(pieces):
        cuts = {n: dtensor_files.Cut(*place) for n, (_, place) in tensors.items() if place}
        dtensor_files.write_file(
            folder / f"shard-{rank:05d}.safetensors", {n: t for n, (t, _) in tensors.items()}, cuts or None
        )
    files = {path.name: entry_of(path.read_bytes()) for path in folder.iterdir()}
    (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    return folder


def test_parts_of_a_tensor_are_read_from_the_pieces_that_have_them(tmp_path):
    whole, other = torch.arange(7 * 5.0).reshape(7, 5), torch.arange(11)
    cut(tmp_path, [
        {"a": (whole[:, :2], (1, 0, 5)), "b": (other, None)}, {"a": (whole[:, 2:4], (1, 2, 5))},
        {"a": (whole[:, 4:], (1, 4, 5))},
    ])  # fmt: skip
    found = checkpoint.read(tmp_path, 1).tensors
    assert found.shapes == {"a": (7, 5), "b": (11,)}
    assert found["a"].equal(whole)
    assert found["b"].equal(other)
    for axis, size in ((0, 7), (1, 5)):
        for start in range(size):
            for count in range(size - start + 1):
                assert found.part("a", axis, start, count).equal(whole.narrow(axis, start, count))


@pytest.mark.parametrize("second", [
    {"a": (torch.zeros(3, 5), (0, 3, 7))},  # overlaps
    {"a": (torch.zeros(2, 5), (0, 5, 7))},  # leaves a gap
    {"a": (torch.zeros(2, 5), (0, 4, 7))},  # does not reach the end
    {"a": (torch.zeros(3, 3), (0, 4, 7))},  # is narrower
    {"a": (torch.zeros(3, 5), (0, 4, 8))},  # is of a longer one
    {"a": (torch.zeros(4, 1), (1, 4, 5))},  # is cut along another axis
    {"a": (torch.zeros(3, 5, dtype=torch.float64), (0, 4, 7))},
    {"a": (torch.zeros(7, 5), None)},  # is the whole
    {},
])  # fmt: skip
def test_pieces_that_are_no_whole_are_refused(tmp_path, second):
    folder = cut(tmp_path, [{"a": (torch.zeros(4, 5), (0, 0, 7))}, second])
    with pytest.raises(UserError, match=r"shard-0000[01].safetensors does not fit .* the pieces of a are no whole"):
        checkpoint.read(tmp_path, 1)
    assert folder.is_dir()


@pytest.mark.parametrize("places", ['{"a": [0, 5, 7]}', '{"a": [2, 0, 7]}', '{"a": [0, -1, 7]}', '{"a": [0.0, 0, 7]}',
                                    '{"b": [0, 0, 7]}', '{"a": 3}', "[]", "{", '{"a": [0, 0, 9223372036854775807]}'])  # fmt: skip
def test_an_impossible_list_of_pieces_is_refused(tmp_path, places):
    path = tmp_path / "one"
    path.write_bytes(save({"a": torch.zeros(4, 5)}, {"pieces": places}))
    with pytest.raises(UserError, match="one is damaged: its list of pieces cannot be read"):
        dtensor_files.Pieces([path])


def test_a_huge_whole_takes_no_memory(tmp_path):
    cut(tmp_path, [{"a": (torch.zeros(4, 5), (0, 0, 1 << 60))}])
    with pytest.raises(UserError, match="the pieces of a are no whole"):
        checkpoint.read(tmp_path, 1)
