"""What torchrun tells a process of a training: its rank, how often it was restarted, and the rendezvous."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ..config import UserError

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
        os.environ.setdefault(name, _loopback())
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


def _loopback() -> str:
    """The name of the network interface of this machine alone."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")
