"""Calls that differ between Linux, macOS and Windows: file locks, durable files, the limit of open files.

Linux and macOS have `fcntl` and `resource`, Windows has `msvcrt`. Every function works on all three; what a platform cannot do
is in its docstring. docs/platforms.md lists the differences that an operator sees.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module
from types import ModuleType


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


# By name, not by sys.platform: type checkers take the branches of other platforms for unreachable.
_fcntl = _module("fcntl")
_resource = _module("resource")
_msvcrt = None if _fcntl else _module("msvcrt")

UNLIMITED_FILES = 1_048_576  # fs.nr_open of Linux; stands for "unlimited", from which no pool can be sized
WINDOWS_FILES = 8_192  # what the C runtime of Windows can open at most
MACOS_FILES = (
    10_240  # OPEN_MAX of macOS, whose setrlimit refuses more than this when the hard limit is "unlimited"
)

# The errors of a file system that knows fsync, and F_FULLFSYNC not: network file systems, FAT.
_NO_FULL_SYNC = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
# The errors of a lock that another holds.
_HELD = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK)

# Windows refuses others to read a locked byte, and locks bytes behind a file's end: this one stands behind all content.
_LOCKED_BYTE = 1 << 30


def open_locked(path: str | os.PathLike[str]) -> int | None:
    """Open a file, made when missing, and take its exclusive lock; None when another open file holds that lock.

    Returns the descriptor for unlock_and_close(). The lock ends with the process at the latest. Raises OSError when the file
    cannot be opened, or its file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    is_locked = False
    try:
        is_locked = _lock(descriptor)
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


def _lock(descriptor: int) -> bool:
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOTSUP, "this Python has neither fcntl nor msvcrt to lock a file with")
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def unlock_and_close(descriptor: int) -> None:
    """Release what open_locked() took, and close the file."""
    try:
        if _msvcrt is not None:
            # Windows releases the lock of a file that is only closed some time later.
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, 1)
    finally:
        os.close(descriptor)


def sync_file(descriptor: int) -> None:
    """Make an open file's content durable. Raises OSError; then nothing is known of what is on the disk.

    On macOS fsync leaves the bytes in the drive's cache, which a power loss empties; F_FULLFSYNC empties it first.
    """
    full_sync = getattr(_fcntl, "F_FULLFSYNC", None)
    if _fcntl is not None and full_sync is not None:
        try:
            _fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Raises OSError.

    Windows opens no directory: NTFS's journal orders renames there, and this does nothing.
    """
    if _fcntl is None and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def open_files_max() -> int:
    """How many files and connections this process may have open."""
    if _resource is None:
        return WINDOWS_FILES
    soft: int = _resource.getrlimit(_resource.RLIMIT_NOFILE)[0]
    return soft if 0 <= soft < UNLIMITED_FILES else UNLIMITED_FILES


def raise_open_files_max() -> int:
    """Raise the limit of open files as far as this process may. Returns the limit that holds now."""
    if _resource is None:
        return WINDOWS_FILES
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_FILES):
        if wanted != soft and (wanted == hard or soft < wanted):
            try:
                _resource.setrlimit(_resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError):
                continue  # macOS says "unlimited" and means MACOS_FILES
        break
    return open_files_max()
