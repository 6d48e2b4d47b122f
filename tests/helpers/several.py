"""Several processes on this machine, as torchrun starts them (gloo on 127.0.0.1, one thread each): a plugin of the suite.

Loading torch takes longer than most of what they do, so they are forked from one process that has loaded it.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[2] / "src"
SERVER = Path(__file__).parent / "fork_server.py"


class Ended(NamedTuple):
    """How one process ended, and what it printed."""

    rank: int
    code: int
    out: str
    err: str


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of its processes; nothing of it where there is one."""
    ranks = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")},
        "PYTHONPATH": os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # as the command line sets it, before it loads torch
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        **({name: str(value) for name, value in ranks.items()} if size > 1 else {}),
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Forks:
    """The process that the others are forked from; started when it is first needed, and again after a timeout."""

    def __init__(self):
        self.server = None

    def ask(self, job, timeout):
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, SERVER], env={**environment(0, 1, 0)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        if not select.select([self.server.stdout], [], [], timeout)[0]:
            self.end()
            raise TimeoutError(f"the processes did not end in {timeout} s")
        return json.loads(self.server.stdout.readline())

    def end(self):
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGKILL)  # and those that it started
            self.server.communicate()
            self.server = None


@pytest.fixture(scope="session")
def forks():
    found = Forks()
    yield found
    found.end()


@pytest.fixture
def together(forks, tmp_path):
    """Run a script on `size` processes, or with `words` a pencil command; how each of them ended, by rank.

    together(2, "from pencil.collectives.processes import world; print(world().rank)")
    together(2, words=["train", "gpt", "--data", "notes.txt"])
    They run in tmp_path; a script finds `arguments` in sys.argv[1:]. `code` is the status each of them must end with;
    None allows any. Where one has failed the others are left to end by themselves.
    """

    def run(size, script="", words=(), code=0, timeout=120, arguments=(), env=None):
        port, prints = free_port(), tmp_path / ".printed"
        prints.mkdir(exist_ok=True)
        job = {
            "script": script,
            "words": [*map(str, words), *map(str, arguments)],
            "folder": str(tmp_path),
            "ranks": [
                {
                    "env": {**environment(rank, size, port), **(env or {})},
                    "out": str(prints / f"{rank}.out"),
                    "err": str(prints / f"{rank}.err"),
                }
                for rank in range(size)
            ],
        }
        codes = forks.ask(job, timeout)
        ended = [
            Ended(rank, one, (prints / f"{rank}.out").read_text(), (prints / f"{rank}.err").read_text())
            for rank, one in enumerate(codes)
        ]
        if code is not None:
            assert set(codes) == {code}, "\n".join(f"rank {e.rank} ({e.code}): {e.err[-3000:]}" for e in ended)
        return ended

    return run
