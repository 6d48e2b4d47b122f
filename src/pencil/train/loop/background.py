"""Work that goes on beside the training, in a thread."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Background:
    """One piece of work at a time; what it raises is raised where its end is waited for.

    As a context it ends with its work: a training never ends while a file of it is being written.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.group: Any = None  # of the processes whose threads work together

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work, after the one before it."""
        self.wait()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised by `wait`
                self.error = error

        self.thread = threading.Thread(target=run, name="pencil-checkpoint")
        self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether the work still goes on."""
        return self.thread is not None and self.thread.is_alive()

    def settle(self) -> None:
        """Wait for the end of the work."""
        if self.thread is not None:
            self.thread.join()

    def wait(self) -> None:
        """Wait for the end of the work, and raise what it raised."""
        self.settle()
        self.thread, error, self.error = None, self.error, None
        if error is not None:
            raise error

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        else:  # what went wrong here would only hide the first error
            self.settle()
