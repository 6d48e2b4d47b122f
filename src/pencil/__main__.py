"""The `pencil` command, and python -m pencil: it takes over before the verbs and their libraries are imported."""

import os
import signal
import time

BEGAN = time.perf_counter()  # a time budget counts from here


def _interrupted(*_: object) -> None:
    """Ctrl-C before anything was begun: one line, and no traceback from the middle of an import."""
    os.write(2, b"pencil: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us ignores Ctrl-C
    if usual:
        signal.signal(signal.SIGINT, _interrupted)
    from .cli.main import main as run

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run(began=BEGAN)


if __name__ == "__main__":
    main()
