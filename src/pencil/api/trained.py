"""What can be done with a run as methods of what `pencil.load` and `pencil.train` give."""

from importlib import import_module
from pathlib import Path
from typing import Any

from ..train.loop.state import Trained


def _verb(name: str) -> Any:
    """A verb by its public name: some stand above this file."""
    return getattr(import_module(__name__.partition(".")[0]), name)


class RunVerbs:
    """The verbs on a run, which this is."""

    def evaluate(self, data: Any = None, **options: Any) -> dict[str, float]:
        """Its metrics on its held-out data, or on other data; see `pencil.evaluate`."""
        return _verb("evaluate")(self, data, **options)

    def export(self, to: str = "hf", **options: Any) -> Path:
        """Export it to another library; see `pencil.export`."""
        return _verb("export")(self, to, **options)


class TrainedRun(RunVerbs, Trained):
    """A training that ended, with the verbs on its run."""

    def predict(self, inputs: Any = None, **options: Any) -> Any:
        """What its model says of the inputs; see `pencil.predict`."""
        return _verb("predict")(self, inputs, **options)

    def resume(self, data: Any = None, **options: Any) -> "TrainedRun":
        """Continue it; see `pencil.resume`."""
        return _verb("resume")(self, data, **options)
