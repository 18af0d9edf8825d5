"""Locks that reserve a store for one broker: on its lock file, as RocketMQ does, and on its directories.

Java's tryLock(0, 1) is a POSIX record lock of the first byte. Linux has open-file-description locks, which conflict with it and
also with a second open of the same process. Elsewhere a record lock belongs to the process: a second open of the process would
get it, and closing any descriptor of the file would release it. So this module remembers the files that it has locked, and
does not open them a second time.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

from aerobee.errors import StoreError, StoreLocked

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_HELD = (errno.EAGAIN, errno.EACCES)
OpenFile: TypeAlias = Callable[[str, int], int]  # path, flags -> descriptor; raises OSError
_FileId: TypeAlias = tuple[int, int]  # st_dev, st_ino

_own_lock = threading.Lock()
_own: set[_FileId] = set()


class OpenFileLock:
    """An open file whose lock is held until release(), or until the process ends."""

    __slots__ = ("_descriptor", "_file_id")

    def __init__(self, descriptor: int, file_id: _FileId | None = None) -> None:
        self._descriptor = descriptor
        self._file_id = file_id

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        if self._file_id is not None:
            with _own_lock:
                _own.discard(self._file_id)


def require_locks() -> None:
    """Raise StoreError on a platform where no store can be locked."""
    if fcntl is None:
        raise StoreError(
            "this platform has no POSIX file locks: run brokers, nameservers and controllers on Linux or macOS; clients run "
            "on Windows, too"
        )


def has_open_file_locks() -> bool:
    """Whether a lock can belong to an open file. Asks sys.platform, too: the layout of struct flock below is that of Linux."""
    return sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def lock_store(path: str, open_file: OpenFile) -> OpenFileLock:
    """Take the lock of a store's lock file, which is made when missing.

    Raises StoreLocked when another broker holds it, StoreError on a platform without locks, OSError.
    """
    require_locks()
    assert fcntl is not None
    take = _take_by_open_file if has_open_file_locks() else _take_by_process
    try:
        lock = take(path, lambda: open_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in _HELD:
            raise
        raise StoreLocked(
            f"the store directory {os.path.dirname(path)} is open in another broker, which holds "
            f"{os.path.basename(path)!r}: stop that broker, or give this one another directory: "
            "storePathRootDir, or --data of `aerobee up`",
            path=path,
        ) from error
    return lock


def lock_directory(path: str, open_file: OpenFile) -> OpenFileLock:
    """Take the exclusive lock of a directory. Raises StoreLocked when another broker holds it, StoreError, OSError."""
    require_locks()
    assert fcntl is not None
    descriptor = open_file(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            return OpenFileLock(descriptor)  # a file system without such locks
        os.close(descriptor)
        raise StoreLocked(
            f"the directory {path} is open in another broker: stop that broker, or give this one another "
            "storePathRootDir and storePathCommitLog",
            path=path,
        ) from error
    return OpenFileLock(descriptor)


def _take_by_open_file(path: str, open_: Callable[[], int]) -> OpenFileLock:
    assert fcntl is not None
    # l_type, l_whence, l_start, l_len, l_pid.
    region = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    descriptor = open_()
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, region)
        os.pwrite(descriptor, b"lock", 0)
    except OSError:
        os.close(descriptor)
        raise
    return OpenFileLock(descriptor)


def _take_by_process(path: str, open_: Callable[[], int]) -> OpenFileLock:
    assert fcntl is not None
    with _own_lock:
        if os.path.exists(path) and _file_id(os.stat(path)) in _own:
            raise OSError(errno.EAGAIN, "this process holds the lock", path)
        descriptor = open_()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(descriptor, b"lock", 0)
        except OSError:
            os.close(descriptor)
            raise
        file_id = _file_id(os.fstat(descriptor))
        _own.add(file_id)
    return OpenFileLock(descriptor, file_id)


def _file_id(found: os.stat_result) -> _FileId:
    return found.st_dev, found.st_ino
