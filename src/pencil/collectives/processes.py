"""The processes of one training: what torchrun tells each of them, how they meet, and their collectives.

Values are sent as JSON, never pickled as torch's object collectives send them: nothing that comes from another process
is executed. Only rank 0 prints and writes files.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..config import UserError
from ..progress import watched

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

LOOPBACK = "127.0.0.1"
POLL_INTERVAL = timedelta(seconds=1)  # a process that waits looks so often whether another has failed
PARENT_PID = os.getppid()


class World(NamedTuple):
    """This process among all: its rank, how many there are, its number on this machine."""

    rank: int
    size: int
    local: int

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0


def world() -> World:
    """This process among those that torchrun started; without torchrun it is the only one."""
    try:
        this = World(
            *(int(os.environ.get(name) or "01"[name == "WORLD_SIZE"]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        )
    except ValueError:
        this = World(-1, 0, 0)
    if not 0 <= this.rank < this.size or this.local < 0:
        raise UserError(
            "RANK, WORLD_SIZE and LOCAL_RANK in the environment are not those of a process of torchrun: unset them, "
            "or start with torchrun or --processes"
        )
    return this


def restarts() -> int:
    """How often torchrun has restarted this process because one of the processes had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def launch_name() -> str | None:
    """The name of this start of the processes, the same after a restart; None where nobody would restart them."""
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0) and not several_machines():
        return None
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return agent_name() if name == "none" else name


def agent_name() -> str:
    """The torchrun that has started this process."""
    return f"{socket.gethostname()}-{os.getppid()}"


def launch_facts() -> dict[str, str]:
    """What a run records of its start, to be found again after a restart."""
    name = launch_name()
    return {} if name is None else {"launch": name, "agent": agent_name()}


def several_machines() -> bool:
    """Whether torchrun has started processes on several machines; their restarts are not all counted."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("GROUP_WORLD_SIZE", "1") != "1"


def launch_folder() -> Path | None:
    """The folder in which processes that `--processes` started, and their parent, leave files for each other."""
    place = os.environ.get("PENCIL_LAUNCH")
    return Path(place) if place else None


def is_orphaned() -> bool:
    """Whether torchrun has ended without ending this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != PARENT_PID


def rendezvous_store(here: World) -> Any:
    """The store by which the processes find each other's addresses, of this training among those of this process.

    torchrun may give a restarted process the store of the ones before it, which still has their addresses; on one
    machine the number of the restart sets them apart. There nothing listens to other machines.
    """
    from torch._C._distributed_c10d import HashStore, PrefixStore

    global _store, _groups_joined
    if here.size == 1:
        return HashStore()
    _groups_joined += 1
    _store = _store or _open_store(here)  # its port is taken as long as this process lives
    return PrefixStore(f"training {_groups_joined}", _store)


_store: Any = None
_groups_joined = 0


def wait_for_key(store: Any, key: str, failure: str) -> bool:
    """Wait until a process sets a key of the store, however long it takes; False where one sets `failure` before."""
    from torch.distributed import DistStoreError

    while True:
        try:
            store.wait([key], POLL_INTERVAL)
            return True
        except DistStoreError:  # not yet
            if store.check([failure]):
                return False


def _open_store(here: World) -> Any:
    """The store of all processes."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed.rendezvous import rendezvous

    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UserError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing in the environment, where the "
            "processes meet: start them with torchrun or --processes"
        )
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" or os.environ.get("LOCAL_WORLD_SIZE") != str(here.size):
        return next(rendezvous("env://", here.rank, here.size))[0]
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        loopback = (interface for _, interface in socket.if_nameindex() if interface in ("lo", "lo0"))
        os.environ.setdefault(name, next(loopback, ""))
    host, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT") or 0)
    if host != LOOPBACK or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = next(rendezvous("env://", here.rank, here.size))[0]
    elif here.is_rank0:
        try:
            listening = socket.create_server((host, port)).detach()
        except OSError as error:
            if launch_folder() is not None:  # it was free when it was chosen; started again, they get another
                raise RuntimeError(f"port {port}, where the processes meet, was taken meanwhile") from None
            raise UserError(
                f"the processes cannot meet at {host}:{port}: {error.strerror}; use another MASTER_PORT"
            ) from None
        store = TCPStore(host, port, here.size, True, wait_for_workers=False, master_listen_fd=listening)
    else:
        store = TCPStore(host, port, here.size, False)
    return PrefixStore(f"restart {restarts()}", store)


T = TypeVar("T")
RANK0_REPORT_SECONDS = 2  # the others leave rank 0 this long to report what has failed
FAILURE_POLL_SECONDS = 0.05
WAIT_NOTICE_SECONDS = 30  # a process that waits longer for the others reports it
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
    """An error of one process, with its rank."""

    def __init__(self, rank: int, sentence: str):
        super().__init__(f"rank {rank}: {sentence}")
        self.rank = rank


class OtherRankFailed(Exception):
    """Another process has failed and reports why; this one only ends."""


def has_process_group() -> bool:
    """Whether this process has joined the others."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


@contextmanager
def process_group(device: "torch.device", alone: bool = False) -> Iterator[World]:
    """Join the other processes, and leave them at the end. Inside another `process_group` it does nothing.

    A single process joins nobody, unless it needs a group of one (`alone`), as FSDP does. Where one fails, only its
    own error is raised, with its rank; the others raise `OtherRankFailed`.
    """
    here = world()
    if (here.size == 1 and not alone) or has_process_group():
        yield here
        return
    import torch.distributed as dist

    _check_device(device, here)
    begun = ended = False
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _announce_waiting(here):
        store = rendezvous_store(here)
    try:
        with _announce_waiting(here):
            dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.size)
        begun = True
        # kept to the end: if DDP were the last to hold it, freeing it would wait for a thread that waits for Python
        _groups.append((dist.group.WORLD, store))
        yield here
        all_reduce_any(False)  # wait for all: rank 0's store must not go first
        ended = True
    except Exception as error:
        raise _error_to_raise(error, store, here, begun and is_lost_connection(error)) from error
    finally:
        # after a failure NCCL would wait for the others, and the error would never be shown
        if has_process_group() and (ended or here.size == 1 or device.type == "cpu"):
            with suppress(RuntimeError):  # the others may be gone
                dist.destroy_process_group()


_groups: list[Any] = []


@contextmanager
def _announce_waiting(here: World) -> Iterator[None]:
    """A context in which one process of each machine reports that it waits, if the others do not come soon."""
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


def _error_to_raise(error: Exception, store: Any, here: World, lost: bool) -> Exception:
    """The error to raise in place of one that was raised here: one process reports what has failed, the others end.

    Rank 0 reports first, since most errors are the same on all ranks. `lost`: the error only means that another rank is
    gone.
    """
    try:
        if isinstance(error, OtherRankFailed):  # the one that has failed reports it, as long as rank 0's store is there
            until = time.monotonic() + 3 * RANK0_REPORT_SECONDS
            while here.is_rank0 and not store.check(["failed"]) and time.monotonic() < until:
                time.sleep(FAILURE_POLL_SECONDS)
            return error
        until = time.monotonic() + (0 if here.is_rank0 or isinstance(error, RankError) else RANK0_REPORT_SECONDS)
        while not store.check(["failed"]) and time.monotonic() < until:
            time.sleep(FAILURE_POLL_SECONDS)
        if store.check(["failed"]) or (lost and restarts() < int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0)):
            return OtherRankFailed()
        if lost and here.is_rank0 and not os.environ.get("TORCHELASTIC_RUN_ID"):
            return RankError(here.rank, "another process has ended, and this one with it")
        if lost or store.add("failed", 1) > 1:
            return OtherRankFailed()
    except RuntimeError:  # rank 0 is gone, and has reported why
        return OtherRankFailed()
    plain = isinstance(error, UserError) and not isinstance(error, RankError)
    return RankError(here.rank, str(error)) if plain and not here.is_rank0 else error


def all_reduce_any(*flags: bool) -> tuple[bool, ...]:
    """Whether each flag is set on any rank, in one message: for decisions that all ranks must take together."""
    if world().size == 1:
        return flags
    import torch
    import torch.distributed as dist

    reduced = torch.tensor(flags, dtype=torch.uint8)
    dist.all_reduce(reduced, dist.ReduceOp.MAX)
    return tuple(map(bool, reduced.tolist()))


def broadcast(value: Any) -> Any:
    """Send rank 0's value, which JSON must be able to express, to every rank."""
    return all_gather(value if world().is_rank0 else None)[0]


def all_gather(value: Any, group: "ProcessGroup | None" = None) -> list[Any]:
    """Send the values of all ranks, which JSON must be able to express, to every rank; they are in rank order.

    A thread that goes on beside the training has a process group of its own.
    """
    if world().size == 1:
        return [value]
    import torch
    import torch.distributed as dist

    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world().size)]
    dist.all_gather(lengths, torch.tensor([len(content)]), group)
    longest = max(map(int, lengths))
    padded = torch.cat([content, content.new_zeros(longest - len(content))])
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded, group)
    return [json.loads(bytes(content[: int(n)].tolist())) for content, n in zip(gathered, lengths, strict=True)]


def require_same_on_all_ranks(value: Any, what: str) -> None:
    """Refuse ranks whose value differs from rank 0's; the sentence has the rank, and where it differs."""
    values = all_gather(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            where = _describe_difference(values[0], other)
            raise RankError(rank, f"its {what} differ from those of rank 0: {where}; start all with the same command")


def _describe_difference(first: Any, other: Any, place: str = "") -> str:
    """Where two values of JSON first differ, in words."""
    if isinstance(first, dict) and isinstance(other, dict):
        key = next(key for key in (*first, *other) if first.get(key) != other.get(key))
        return _describe_difference(first.get(key), other.get(key), f"{place}.{key}" if place else key)
    return f"{place or 'it'} is {_describe_value(other)} here and {_describe_value(first)} there"


def _describe_value(value: Any) -> str:
    """A value as the user has given it."""
    text = "not given" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def all_reduce_sum(tensor: "Tensor") -> "Tensor":
    """The sum of a tensor over the ranks, in its place."""
    if world().size > 1:
        import torch.distributed as dist

        dist.all_reduce(tensor)
    return tensor


def barrier_without_timeout() -> None:
    """Wait until every rank has come to this line, however long one of them prepares its data."""
    if world().size == 1:
        return
    store, key = _store_and_key("come")
    if store.add(key, 1) == world().size:
        store.set(f"{key}: all", "")
    if not wait_for_key(store, f"{key}: all", "failed"):
        raise OtherRankFailed


def _store_and_key(word: str) -> tuple[Any, str]:
    """The store of the processes, and a key that is the same on every rank and was not used before."""
    global _keys
    _keys += 1
    return _groups[-1][1], f"{word} {_keys}"


_keys = 0


def rank0_first(make: Callable[[], T]) -> T:
    """Call `make` on rank 0, while the others wait as long as it takes, and then on the others; returns its result.

    So the others find what is made only once, such as a cache of tokens. If rank 0 fails they only end.
    """
    here = world()
    if here.size == 1:
        return make()
    store, key = _store_and_key("made")
    if not here.is_rank0:
        if not wait_for_key(store, key, "failed") or store.get(key) != b"whole":
            raise OtherRankFailed
        return make()
    done = "failed"
    try:
        with watched(_end_if_orphaned):
            made = make()
        done = "whole"
    finally:
        store.set(key, done)
    return made


def _end_if_orphaned(done: int, total: int) -> None:
    """End long work where torchrun, and so the training, was killed."""
    if is_orphaned():
        raise OtherRankFailed


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error only means that the connection to another process was lost."""
    from torch.distributed import DistNetworkError, DistStoreError

    return isinstance(error, (OtherRankFailed, DistNetworkError, DistStoreError)) or (
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


def on_all_ranks(work: Callable[[], Any], group: "ProcessGroup | None" = None, patient: bool = False) -> list[Any]:
    """Call `work` on every rank; returns its results, which JSON must express, by rank. If one fails, all raise.

    An error of the system, such as a full disk, is raised as it is on every rank, since all go on after it or none.
    Any other is raised on its own rank, and the others only end. `patient`: some ranks may need hours for it.
    """
    here = world()
    if here.size == 1:
        return [work()]
    own_error, answer = None, {}
    try:
        answer["value"] = work()
    except OSError as error:
        own_error, answer["error"] = error, [error.errno, error.strerror, str(error.filename or "")]
    except Exception as error:
        own_error, answer["error"] = error, None
    if patient:
        barrier_without_timeout()
    answers = all_gather(answer, group)
    failed = next((rank for rank, answer in enumerate(answers) if "error" in answer), None)
    if failed is None:
        return [answer["value"] for answer in answers]
    system = answers[failed]["error"]
    if system is not None:
        number, text, name = system
        raise OSError(number, f"{text} (rank {failed})", *([name] if name else []))
    if failed != here.rank or own_error is None:
        raise OtherRankFailed
    if isinstance(own_error, UserError) and not isinstance(own_error, RankError) and not here.is_rank0:
        raise RankError(failed, str(own_error))
    raise own_error


def on_rank0(work: Callable[[], Any], patient: bool = False) -> Any:
    """Call `work` on rank 0, for which the others wait; returns its result on every rank."""
    return on_all_ranks(lambda: work() if world().is_rank0 else None, patient=patient)[0]
