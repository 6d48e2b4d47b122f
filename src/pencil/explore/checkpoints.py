"""A run's model with the weights of one of its checkpoints."""

from pathlib import Path
from typing import Any

from ..config import UserError
from ..families import family
from ..runs.run import Loaded
from ..tensors import rename
from ..train.loop import checkpoint


def at_step(loaded: Loaded, step: int) -> Any:
    """The same run with its weights after this step: the moving average, where it has one."""
    folder = Path(str(loaded.run.path))
    steps = checkpoint.saved_steps(folder)
    if step not in steps:
        known = f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none"
        raise UserError(f"{folder} has no checkpoint of step {step}; {known}")
    tensors, renamed = checkpoint.read(folder, step).tensors, family(loaded.run.family).renamed_tensors
    own = loaded.model.state_dict()
    found = {}
    for prefix in ("model.", "ema."):
        for stored in tensors:
            if stored.startswith(prefix):
                name = stored.removeprefix(prefix)
                name = name if name in own else rename(name, renamed)
                found[name] = tensors[stored]
    if {name: value.shape for name, value in found.items()} != {name: value.shape for name, value in own.items()}:
        raise UserError(f"the checkpoint of step {step} of {folder} is of another model")
    loaded.model.load_state_dict({name: value.to(own[name].dtype) for name, value in found.items()})
    return loaded
