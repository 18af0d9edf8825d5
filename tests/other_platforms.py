"""Makes this interpreter look as it does on macOS or Windows, before anything of Aerobee is imported.

`run_on(platform, code)` runs Python code so in a separate process. What is hidden is what CPython documents as missing there;
the kernel below stays Linux's, so that this shows that Aerobee does without, and not how the other system behaves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Modules that the standard library has on Unix alone.
POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "curses", "readline")
_HIDE = """
import asyncio, importlib.abc, logging, mmap, os, signal, socket, ssl, subprocess, sys, tempfile, zoneinfo  # those use what goes now

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r} on this platform", name=name)
        return None

def hide_modules(names):
    global NAMES
    NAMES = frozenset(names)
    for name in names:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())

def hide_names(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""
WINDOWS = (
    _HIDE
    + f"""
import fcntl as real_fcntl, types
hide_modules({POSIX_MODULES!r})
hide_names(os, "O_CLOEXEC", "O_DIRECTORY", "fchmod", "fchown", "fdatasync", "getuid", "pread", "pwrite", "statvfs", "fork",
           "posix_fadvise", "posix_fallocate", "sync", "getpgid", "killpg", "uname", "O_NOFOLLOW")
hide_names(mmap, "MADV_RANDOM", "MADV_WILLNEED")
os.O_BINARY = 0

# msvcrt.locking locks bytes from the file's position on, and raises PermissionError for what another handle has.
msvcrt = sys.modules["msvcrt"] = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.LK_UNLCK, msvcrt.calls = 2, 0, []
def locking(descriptor, mode, count):
    msvcrt.calls.append(mode)
    assert count == 1 and os.lseek(descriptor, 0, os.SEEK_CUR) >= os.fstat(descriptor).st_size
    try:
        real_fcntl.flock(descriptor, real_fcntl.LOCK_UN if mode == 0 else real_fcntl.LOCK_EX | real_fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None
msvcrt.locking = locking

def refuse(*_args, **_kwargs):
    raise NotImplementedError
for name in ("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, refuse)
"""
)
MACOS = (
    _HIDE
    + """
import builtins, ctypes, fcntl
hide_modules(())
hide_names(os, "fdatasync", "posix_fadvise", "posix_fallocate", "POSIX_FADV_WILLNEED")
hide_names(fcntl, "F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK")
hide_names(__import__("time"), "CLOCK_BOOTTIME")
sys.platform = "darwin"  # after what chooses by it when it is imported

# F_FULLFSYNC as a call that is counted, and carried out as Linux can.
fcntl.F_FULLFSYNC, full_syncs, real_control = 51, [], fcntl.fcntl
def control(descriptor, command, argument=0):
    if command == fcntl.F_FULLFSYNC:
        full_syncs.append(descriptor)
        return os.fsync(descriptor) or 0
    return real_control(descriptor, command, argument)
fcntl.fcntl = control

# No syncfs, no /proc.
class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "syncfs":
            raise AttributeError(name)
        return super().__getattr__(name)
ctypes.CDLL = Library
real_open = builtins.open
def open_(file, *args, **kwargs):
    if str(file).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *args, **kwargs)
builtins.open = open_
"""
)


def run_on(platform: str, code: str, *arguments: str, timeout_s: float = 120.0) -> str:
    """Run `code` behind WINDOWS or MACOS in a new interpreter; return what it printed. Fails when it ends with an error."""
    done = subprocess.run(
        [sys.executable, "-c", platform + code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
