"""The processes of one training, and what they tell one another: bytes in tensors, never pickled objects.

Only rank 0 prints and writes files.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import UserError
from ..progress import watched
from .torchrun import World, meeting, orphaned, restarts, wait_for, world

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
RANK0_REPORT_SECONDS = 2  # the others leave rank 0 this long to report what has failed
WAIT_NOTICE_SECONDS = 30  # a process that waits longer for the others says so
LOST_CONNECTION_WORDS = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Socket closed",
    "remote process exited",
    "ncclRemoteError",
)
MAX_SHOWN_CHARACTERS = 60  # of a value that differs


class RankError(UserError):
    """A mistake of one process, with its rank."""

    def __init__(self, rank: int, sentence: str):
        super().__init__(f"rank {rank}: {sentence}")
        self.rank = rank


class Ended(Exception):
    """Another process has failed and says why; this one only ends."""


def has_process_group() -> bool:
    """Whether this process has joined the others."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


@contextmanager
def process_group(device: "torch.device", alone: bool = False) -> Iterator[World]:
    """Join the other processes, and leave them at the end. Inside another `process_group` it does nothing.

    A single process joins nobody, unless it needs a group of one (`alone`), as FSDP does. Where one fails, only its
    own error is raised, with its rank; the others raise `Ended`.
    """
    here = world()
    if (here.size == 1 and not alone) or has_process_group():
        yield here
        return
    import torch.distributed as dist

    _check_device(device, here)
    begun = ended = False
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _waiting(here):
        store = meeting(here)
    try:
        with _waiting(here):
            dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.size)
        begun = True
        # kept to the end: if DDP were the last to hold it, freeing it would wait for a thread that waits for Python
        _groups.append((dist.group.WORLD, store))
        yield here
        wait_for_all()  # rank 0's store must not go first
        ended = True
    except Exception as error:
        raise _own_failure(error, store, here, begun and lost_another(error)) from error
    finally:
        # after a failure NCCL would wait for the others, and the error would never be shown
        if has_process_group() and (ended or here.size == 1 or device.type == "cpu"):
            with suppress(RuntimeError):  # the others may be gone
                dist.destroy_process_group()


_groups: list[Any] = []


@contextmanager
def _waiting(here: World) -> Iterator[None]:
    """Where the others do not come soon, one process of each machine says that it waits for them."""
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    line = f"rank {here.rank} waits for the other processes, {here.size - 1} of them, at {where}"
    timer = threading.Timer(WAIT_NOTICE_SECONDS, lambda: print(line, file=sys.__stderr__, flush=True))
    timer.daemon = True
    if here.size > 1 and not here.local:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_device(device: "torch.device", here: World) -> None:
    """Give each process of a machine its own GPU."""
    import torch

    if device.type not in ("cpu", "cuda"):
        raise UserError(f"several processes, ddp and fsdp train on cpu or cuda, not {device}: use --train.device cpu")
    if device.type == "cpu":
        return
    if here.size == 1:
        torch.cuda.set_device(torch.cuda.current_device() if device.index is None else device.index)
        return
    if device.index is not None:
        raise UserError(f"--train.device {device} is one GPU, and each process takes its own: use --train.device cuda")
    if here.local >= torch.cuda.device_count():
        raise RankError(
            here.rank,
            f"there is no GPU left for it: this machine has {torch.cuda.device_count()}, one for each process; start "
            "fewer, or train with --train.device cpu",
        )
    torch.cuda.set_device(here.local)


def _own_failure(error: Exception, store: Any, here: World, lost: bool) -> Exception:
    """The error to raise here for one that was raised here: one process says what has failed, the others only end.

    Rank 0 speaks first, since most errors are the same everywhere. `lost`: it only says that another is gone.
    """
    try:
        if isinstance(error, Ended):  # the one that has failed reports it, as long as rank 0's store is there
            until = time.monotonic() + 3 * RANK0_REPORT_SECONDS
            while here.is_rank0 and not store.check(["failed"]) and time.monotonic() < until:
                time.sleep(0.05)
            return error
        until = time.monotonic() + (0 if here.is_rank0 or isinstance(error, RankError) else RANK0_REPORT_SECONDS)
        while not store.check(["failed"]) and time.monotonic() < until:
            time.sleep(0.05)
        if store.check(["failed"]) or (lost and restarts() < int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0)):
            return Ended()
        if lost and here.is_rank0 and not os.environ.get("TORCHELASTIC_RUN_ID"):
            return RankError(here.rank, "another process has ended, and this one with it")
        if lost or store.add("failed", 1) > 1:
            return Ended()
    except RuntimeError:  # rank 0 is gone, and has reported why
        return Ended()
    plain = isinstance(error, UserError) and not isinstance(error, RankError)
    return RankError(here.rank, str(error)) if plain and not here.is_rank0 else error


def all_reduce_any(*flags: bool) -> tuple[bool, ...]:
    """Each flag as it is on any rank, in one message: for decisions that all must take together."""
    if world().size == 1:
        return flags
    import torch
    import torch.distributed as dist

    found = torch.tensor(flags, dtype=torch.uint8)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return tuple(map(bool, found.tolist()))


def broadcast(value: Any) -> Any:
    """Rank 0's value, which JSON can express, on every rank."""
    if world().size == 1:
        return value
    import torch.distributed as dist

    content = _bytes(value if world().is_rank0 else None)
    length = _count(len(content))
    dist.broadcast(length, 0)
    if not world().is_rank0:
        content = content.new_zeros(int(length))
    dist.broadcast(content, 0)
    return json.loads(bytes(content.tolist()))


def all_gather(value: Any, group: Any = None) -> list[Any]:
    """The values of all ranks, which JSON can express, in the order of the ranks, on every rank.

    A thread that goes on beside the training has a group of its own.
    """
    if world().size == 1:
        return [value]
    import torch
    import torch.distributed as dist

    content, size = _bytes(value), world().size
    lengths = [_count(0) for _ in range(size)]
    dist.all_gather(lengths, _count(len(content)), group)
    longest = max(map(int, lengths))
    padded = torch.cat([content, content.new_zeros(longest - len(content))])
    found = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(found, padded, group)
    return [json.loads(bytes(one[: int(n)].tolist())) for one, n in zip(found, lengths, strict=True)]


def _bytes(value: Any) -> "Tensor":
    import torch

    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _count(number: int) -> "Tensor":
    import torch

    return torch.tensor([number], dtype=torch.int64)


def same_everywhere(value: Any, what: str) -> None:
    """Refuse ranks whose value differs from rank 0's; the sentence has the rank, and where it differs."""
    values = all_gather(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            where = _difference(values[0], other)
            raise RankError(rank, f"its {what} differ from those of rank 0: {where}; start all with the same command")


def _difference(first: Any, other: Any, place: str = "") -> str:
    """The first place at which two values of JSON differ."""
    if isinstance(first, dict) and isinstance(other, dict):
        key = next(key for key in (*first, *other) if first.get(key) != other.get(key))
        return _difference(first.get(key), other.get(key), f"{place}.{key}" if place else key)
    return f"{place or 'it'} is {_shown(other)} here and {_shown(first)} there"


def _shown(value: Any) -> str:
    """A value as the user has given it."""
    text = "not given" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def all_reduce_sum(tensor: "Tensor") -> "Tensor":
    """The sum of a tensor over the ranks, in its place."""
    if world().size > 1:
        import torch.distributed as dist

        dist.all_reduce(tensor)
    return tensor


def wait_for_all() -> None:
    """Go on when every rank has come to this line."""
    if world().size > 1:
        all_reduce_any(False)


def wait_long() -> None:
    """Go on when every rank has come to this line, however long one of them prepares its data."""
    if world().size == 1:
        return
    store, key = _numbered("come")
    if store.add(key, 1) == world().size:
        store.set(f"{key}: all", "")
    if not wait_for(store, f"{key}: all", "failed"):
        raise Ended


def _numbered(word: str) -> tuple[Any, str]:
    """The store of the processes, and a key that is the same on every rank and was not used before."""
    global _keys
    _keys += 1
    return _groups[-1][1], f"{word} {_keys}"


_keys = 0


def rank0_first(make: Callable[[], T]) -> T:
    """What `make` makes: by rank 0, while the others wait as long as it takes, and then by them.

    So that what is made once, such as a cache of tokens, is found by the others. If rank 0 fails they only end.
    """
    here = world()
    if here.size == 1:
        return make()
    store, key = _numbered("made")
    if not here.is_rank0:
        if not wait_for(store, key, "failed") or store.get(key) != b"whole":
            raise Ended
        return make()
    done = "failed"
    try:
        with watched(_go_on):
            made = make()
        done = "whole"
    finally:
        store.set(key, done)
    return made


def _go_on(done: int, total: int) -> None:
    """End long work for a training that is gone: torchrun was killed."""
    if orphaned():
        raise Ended


def lost_another(error: BaseException) -> bool:
    """Whether an error only says that another process is gone."""
    from torch.distributed import DistNetworkError, DistStoreError

    return isinstance(error, (Ended, DistNetworkError, DistStoreError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_CONNECTION_WORDS)
    )


@contextmanager
def only_rank0_prints() -> Iterator[None]:
    """Drop what the other ranks print."""
    if world().is_rank0:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def on_all_ranks(work: Callable[[], Any], group: Any = None, patient: bool = False) -> list[Any]:
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
    answers = all_gather(answer, group)
    failed = next((rank for rank, one in enumerate(answers) if "error" in one), None)
    if failed is None:
        return [one["value"] for one in answers]
    system = answers[failed]["error"]
    if system is not None:
        number, text, name = system
        raise OSError(number, f"{text} (rank {failed})", *([name] if name else []))
    if failed != here.rank or own is None:
        raise Ended
    if isinstance(own, UserError) and not isinstance(own, RankError) and not here.is_rank0:
        raise RankError(failed, str(own))
    raise own


def on_rank0(work: Callable[[], Any], patient: bool = False) -> Any:
    """What `work` returns on rank 0, on every rank; the others wait for it."""
    return on_all_ranks(lambda: work() if world().is_rank0 else None, patient=patient)[0]
