"""Work that several processes do at the same time: what fails on one of them is known to all."""

from collections.abc import Callable
from typing import Any

from ..config import UserError
from .processes import Ended, RankError, from_all, wait_long, world


def on_all(work: Callable[[], Any], group: Any = None, patient: bool = False) -> list[Any]:
    """What `work` returns on each rank, which JSON can express, by rank; if it fails on one, all of them raise.

    An error of the system, such as a full disk, is raised as it is on every rank, since all go on after it or none.
    Any other is raised on its own rank, and the others only end. `patient`: it may take some of them hours.
    """
    here = world()
    if here.size == 1:
        return [work()]
    own, answer = None, {}
    try:
        answer["value"] = work()
    except OSError as error:
        own, answer["error"] = error, [error.errno, error.strerror, str(error.filename or "")]
    except Exception as error:
        own, answer["error"] = error, None
    if patient:
        wait_long()
    answers = from_all(answer, group)
    failed = next((rank for rank, one in enumerate(answers) if "error" in one), None)
    if failed is None:
        return [one["value"] for one in answers]
    system = answers[failed]["error"]
    if system is not None:
        number, text, name = system
        raise OSError(number, f"{text} (rank {failed})", *([name] if name else []))
    if failed != here.rank or own is None:
        raise Ended
    if isinstance(own, UserError) and not isinstance(own, RankError) and not here.writer:
        raise RankError(failed, str(own))
    raise own


def on_writer(work: Callable[[], Any], patient: bool = False) -> Any:
    """What `work` returns on the writer, on every rank; the others wait for it."""
    return on_all(lambda: work() if world().writer else None, patient=patient)[0]
