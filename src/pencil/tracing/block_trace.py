"""A trace whose blocks may be closed: reading a name or a cell of one opens it."""

import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from .trace import Trace


class BlockTrace(Trace):
    """A trace of which blocks are recorded when they are looked into."""

    graph: Any  # a Tape
    prefix = re.compile("")  # what stands before the name of a value inside a block

    @abstractmethod
    def open_block(self, path: str) -> None:
        """Record the inside of a closed block."""

    def closed(self) -> Iterator[tuple[str, str]]:
        """The blocks that are closed, and how the names inside begin."""
        tape = self.graph
        return ((path, path.split("#")[0]) for path in tape.blocks if path not in tape.opened)

    def find(self, name: str) -> int:
        inside = self.prefix.sub("", name)
        for path, begin in list(self.closed()):
            if name not in self.graph.names and inside.startswith((f"{begin}.", f"{begin}:")):
                self.open_block(path)
        return super().find(name)

    def matching(self, pattern: str) -> list[str]:
        wanted = re.split(r"[*?]", self.prefix.sub("", pattern))[0]
        for path, begin in list(self.closed()):
            if f"{begin}.".startswith(wanted) or wanted.startswith(f"{begin}."):
                self.open_block(path)
        return super().matching(pattern)

    def open(self, node: int) -> None:
        plan = self.graph.nodes[node].plan
        if isinstance(plan, tuple) and plan[0] == "block":
            self.open_block(plan[1])
