"""How stable the small figures are: the default settings on other held-out fifths of the handwriting, other seeds.

Settings were chosen on the fifth that `digits` holds out. These fifths were not used for it, so their scores are what
unseen data can expect. `python benchmarks/steady.py [digits|demo] [FIFTHS] [PROCESSES]`
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def one(what: str, fifth: int) -> float:
    """Train with the default settings, the handwriting split by another key; the score on all held-out images."""
    import numpy as np

    from pencil.api.run_setup import new_run
    from pencil.api.training_request import TrainingRequest
    from pencil.cli.demo import TRAINING
    from pencil.data import builtin
    from pencil.data.images import open_images as images
    from pencil.data.images.digits import digits
    from pencil.train.loop.trainer import Trainer

    pictures, labels, _ = digits()
    held = np.zeros(len(pictures), bool)
    held[np.random.Generator(np.random.Philox(key=fifth)).permutation(len(held))[: len(held) // 5]] = True
    builtin.digits = images.digits = lambda: (pictures, labels, held)
    family, settings = ("vit", {}) if what == "digits" else ("captioner", TRAINING)
    with tempfile.TemporaryDirectory() as folder:
        request = TrainingRequest(family, train={**settings, "seed": fifth, "device": "cpu"})
        run, task, config = new_run(request, out=Path(folder) / "run")
        trainer = Trainer(task, run, config)
        trainer.train()
        trainer.model.eval()
        metrics, _ = task.report(trainer.model, Path(folder) / "report")
    return metrics["accuracy" if what == "digits" else "exact_match"]


def main(what: str = "digits", fifths: str = "8", processes: str = "2") -> None:
    waiting, running, scores = list(range(1, int(fifths) + 1)), {}, {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < int(processes):
            fifth = waiting.pop(0)
            command = [sys.executable, __file__, "one", what, str(fifth)]
            running[fifth] = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        fifth = next(iter(running))
        scores[fifth] = float(running.pop(fifth).communicate()[0].split()[-1])
        print(f"{what}, fifth and seed {fifth}: {scores[fifth]:.2%}", flush=True)
    each = list(scores.values())
    print(f"{what}: mean {statistics.mean(each):.2%}, lowest {min(each):.2%}, highest {max(each):.2%} of {len(each)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(one(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
