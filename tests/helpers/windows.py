"""Pencil as on another system: python tests/helpers/windows.py MODE COMMANDS runs commands, given as JSON lists of words.

`missing`: without fcntl, the signals, the flags and the calls that Windows lacks; with a msvcrt whose lock is the
system's own; and with Windows' rules: what is open or mapped into memory is not renamed or replaced, a name has no
colon, what is open for reading is not flushed. `nolock` is the same without msvcrt. It is a simulation: it shows which
calls are made, not what Windows answers.
"""

import fcntl
import json
import os
import shutil
import signal
import sys
import types
import warnings
from multiprocessing import resource_tracker
from pathlib import Path

# first, so that only Pencil meets the missing names
import matplotlib  # noqa: F401
import torch
import torch._dynamo
import torch.distributed

SIGNALS = ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGPIPE", "SIGCHLD")
CALLS = ("fork", "sysconf", "getuid", "geteuid", "getloadavg", "fchmod", "mkfifo", "sched_getaffinity", "O_DIRECTORY",
         "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "killpg", "setsid", "pread")  # fmt: skip


def take_away(locking: bool) -> None:
    flock, mode = fcntl.flock, fcntl.fcntl
    for name in SIGNALS:
        if hasattr(signal, name):
            delattr(signal, name)
    for name in ("pthread_sigmask", "setitimer", "alarm"):
        delattr(signal, name)
    resource_tracker._HAVE_SIGMASK = False  # part of Python's own library, which knows Windows
    for name in CALLS:
        if hasattr(os, name):
            delattr(os, name)
    for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp"):
        sys.modules[name] = None
    if locking:
        msvcrt = types.ModuleType("msvcrt")
        msvcrt.LK_NBLCK = 2
        msvcrt.locking = lambda handle, how, count: flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.modules["msvcrt"] = msvcrt
    else:
        sys.modules["msvcrt"] = None
    _windows_rules(mode)


def _held() -> set[str]:
    """The files and folders that this process has open or mapped."""
    found = set()
    for handle in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(handle))
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found |= {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
    return found


def _windows_rules(mode) -> None:
    real = {name: getattr(os, name) for name in ("rename", "replace", "unlink", "fsync", "open")}

    def refuse(*paths) -> None:
        held = _held()
        for path in map(os.path.abspath, paths):
            if mine := [one for one in held if one == path or one.startswith(path + "/")]:
                raise PermissionError(13, f"The process cannot access the file: {mine[0]}", path)

    def named(path) -> None:
        bad = [part for part in Path(path).parts if set(part) & set(':*?"<>|') or part != part.rstrip(" .") != ""]
        if bad and bad not in (["."], [".."]):
            raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", str(path))

    def moving(name):
        def call(source, target, **given):
            refuse(source, target)
            named(target)
            if name == "rename" and os.path.exists(target):
                raise FileExistsError(17, "Cannot create a file when that file already exists", str(target))
            return real[name](source, target, **given)

        return call

    def unlink(path, **given):
        if given.get("dir_fd") is None:
            refuse(path)
        return real["unlink"](path, **given)

    def fsync(handle):
        if mode(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        return real["fsync"](handle)

    def opened(path, flags, *more, **given):
        if os.path.isdir(path) and given.get("dir_fd") is None:
            raise PermissionError(13, "Permission denied", str(path))
        return real["open"](path, flags, *more, **given)

    for name in ("rename", "replace"):
        setattr(os, name, moving(name))
    os.unlink, os.fsync = unlink, fsync
    os.remove = unlink
    os.open = opened
    shutil._use_fd_functions = False

    def audit(event, args):
        if event == "open" and isinstance(args[0], str) and set(str(args[1])) & set("wax"):
            named(args[0])

    sys.addaudithook(audit)


def run(words) -> int:
    from pencil.cli.main import main

    try:
        main([*words, "--debug"])
    except SystemExit as ended:
        return ended.code or 0
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    # a text file without an encoding is read in the code page there (python -X warn_default_encoding notices)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"pencil\b")
    take_away(sys.argv[1] != "nolock")
    import pencil.files

    pencil.files.WINDOWS = True
    for words in json.loads(sys.argv[2]):
        if status := run(words):
            print(f"exit {status}: {words}", file=sys.stderr)
            sys.exit(status)
