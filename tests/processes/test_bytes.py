"""The bytes that `pencil cost` counts are those that the collectives of a training are handed, on 2 and 4 processes."""

import json

import pytest

SCRIPT = """
import json, os, sys
sys.path.insert(0, {tests!r})
from counted_bytes import CountedBytes
from pencil.cli.main import main
from pencil.cost.parallel import Plan, handed, units_of
from pencil.cost.profile import on_meta
from pencil.train.loop.trainer import Trainer

update, counts = Trainer.update, []

def counted(self):
    with CountedBytes() as bytes:
        units = update(self)
    config = self.config
    dtype = "bf16" if config.dtype == "bfloat16" else "fp32"
    sync = getattr(self.gradients, "sync", "")
    plan = Plan(self.mode, self.here.size, config.accumulate, config.optimizer, dtype=dtype, sync=sync)
    expected = handed(units_of(on_meta(self.task.family.create, self.task.config)), plan)
    counts.append({{"found": bytes.found, "few": sum(bytes.few.values()), "expected": expected}})
    return units

Trainer.update = counted
try:
    main(sys.argv[1:])
finally:
    with open(f"counted-{{os.environ['RANK']}}.json", "w") as file:
        json.dump(counts, file)
"""
SMALL = ["--model.width", 44, "--model.heads", 11, "--model.depth", 3, "--model.hidden", 29, "--model.context", 13,
         "--train.steps", 2, "--train.eval_every", 2, "--train.eval_batches", 1, "--train.save_every", 2, "--train.warmup", 0,
         "--train.batch", 8, "--train.accumulate", 3]  # fmt: skip


@pytest.mark.parametrize("size, parallel, optimizer, dtype, sync", [
    (2, "ddp", "muon", "float32", "auto"), (2, "fsdp", "adamw", "float32", "auto"),
    pytest.param(4, "ddp", "adamw", "bfloat16", "auto", marks=pytest.mark.long),
    pytest.param(4, "fsdp", "muon", "bfloat16", "batch", marks=pytest.mark.long),
])  # fmt: skip
def test_collectives_are_handed_what_cost_counts(together, tmp_path, request, size, parallel, optimizer, dtype, sync):
    (tmp_path / "notes.txt").write_text("".join(f"the cat sat on mat {i}.\n" for i in range(200)))
    script = SCRIPT.format(tests=str(request.config.rootpath / "tests" / "helpers"))
    words = ["train", "gpt", "--data", "notes.txt", "--out", "run", *SMALL]
    together(size, script, arguments=[
        *words, "--train.parallel", parallel, "--train.optimizer", optimizer, "--train.dtype", dtype,
        "--train.sync", sync,
    ])  # fmt: skip
    counted = [json.loads((tmp_path / f"counted-{rank}.json").read_text()) for rank in range(size)]
    for step in zip(*counted, strict=True):
        expected = step[0]["expected"]
        assert expected.keys() == {*step[0]["found"]}
        for kind, size_of_one in expected.items():
            found = [rank["found"][kind] for rank in step]
            if kind == "all-to-all":  # each process works some matrices whole: the mean is counted
                assert sum(found) == size * size_of_one
            else:
                assert set(found) == {size_of_one}
        assert all(rank["few"] < 1024 for rank in step)
