"""Signals that stop a training after its step, so that it can save."""

import signal
import threading
from contextlib import contextmanager
from typing import Any

from ...collectives.torchrun import orphaned


class Stopping(threading.Event):
    """Set by a signal; also where the process that started this one is gone, which nobody else would tell."""

    def is_set(self) -> bool:
        return super().is_set() or orphaned()


@contextmanager
def interruptible():
    """Ctrl-C, SIGTERM and SIGHUP (a closed terminal) stop the loop after its step; a second Ctrl-C stops at once."""
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(number: int, frame: Any) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    # `nohup` has SIGHUP ignored, and means it
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
