"""The disk as an argument: the store uses it for every file, fsync, rename and lock, so that tests can replace it.

`RealDisk` is the machine's. `aerobee/simulation/simulated_disk.py` is a disk that loses power, tears writes, fails
fsync, fills up and flips bits. Methods block and raise OSError as the system does; callers say which file of the
store it was and make a StoreFull of it (`store_full`) where the call reserves space.

Requirements of the store's guarantees:

- bytes written below a reserved end can never fail for want of space (no SIGBUS);
- after sync(start, end) returns, those bytes survive power loss; after it raised, their state is unknown;
- a created, renamed or removed name survives power loss only after sync_dir of its directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
from typing import Any, Protocol, TypeAlias

from aerobee.errors import StoreError, StoreFull
from aerobee.store.files.descriptors import USED_UP, process_spares
from aerobee.store.files.record_lock import lock_directory, lock_store, require_locks
from aerobee.system import sync_file as sync_descriptor

PAGE_BYTES = mmap.PAGESIZE
SECTOR_BYTES = 512  # the least that a disk writes whole

# Sliced for copies, slice-assigned and pack_into'd for writes. A mapped file's own bytes, not a copy.
WritableBuffer: TypeAlias = mmap.mmap | bytearray


class MappedFile(Protocol):
    """One file of fixed size in memory. Not thread-safe, except read() and sync() against writes."""

    path: str
    size: int  # bytes, the file's length
    buffer: WritableBuffer  # the whole file; write only below a reserved end

    def reserve(self, end: int) -> None:
        """Take disk space for the bytes below `end`, so that writing them cannot fail.

        Raises OSError (ENOSPC) when there is none; bytes reserved earlier stay usable.
        """
        ...

    def read(self, start: int, end: int) -> bytes:
        """Copy bytes from the disk, not through the mapping: other threads run while this one waits."""
        ...

    def peek(self, start: int, end: int) -> bytes:
        """Copy bytes that may never have been written. Unlike a read of `buffer` it allocates no disk space.

        On a tmpfs the first read of a page of `buffer` allocates its space; when the tmpfs is full, SIGBUS ends the
        process instead of an error.
        """
        ...

    def fileno(self) -> int:
        """The open file's descriptor, for sendfile; -1 without one."""
        ...

    def will_need(self, start: int, end: int) -> None:
        """Have the system begin to bring these bytes into memory; does not wait for them."""
        ...

    def is_resident(self, start: int, end: int) -> bool:
        """Whether these bytes are in memory now, so that touching them does not wait for the disk."""
        ...

    def prefault(self, start: int, end: int) -> None:
        """Bring reserved bytes into memory for writing. Best effort."""
        ...

    def fill(self, start: int, end: int) -> None:
        """Overwrite reserved zero bytes with zeros, which loads their pages into the page cache.

        Raises OSError when the file system does not provide the space that it had reserved.
        """
        ...

    def write(self, start: int, data: memoryview) -> None:
        """Write reserved bytes through the file: for large pieces, whose pages are then neither zeroed nor faulted in.

        Raises OSError as fill(); then the state of these bytes is unknown.
        """
        ...

    def rewrite(self, start: int, end: int) -> None:
        """Rewrite these reserved bytes unchanged, so that the next sync writes them to the disk.

        After a failed sync the kernel may treat pages as clean that never reached the disk.
        """
        ...

    def sync(self, start: int, end: int) -> None:
        """Make these bytes durable. Raises OSError; then they must not be trusted to be on the disk, ever."""
        ...

    def close(self) -> None:
        """Unmap and close; unsynced bytes stay in the page cache. Closing twice is harmless."""
        ...


class FileLock(Protocol):
    """A lock on a file, held until released or until the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files and directories. Paths are absolute or relative to the process, as for open()."""

    def write_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        """Create a file, or put `data` in place of its content. Neither content nor name is durable on return.

        If a file `like` exists, the new file gets its mode and owner before any content; otherwise with `is_private`
        only the owner may read it.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Make the content that write_file wrote durable."""
        ...

    def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing an existing file of the new name; durable after sync_dir."""
        ...

    def create_mapped(self, path: str, size: int) -> MappedFile:
        """Create a file of `size` zero bytes, sparse, and map it. Raises FileExistsError."""
        ...

    def open_mapped(self, path: str) -> MappedFile:
        """Map an existing file whole, for reading and writing."""
        ...

    def read_file(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError, OSError."""

    def replace_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        """Put `data` in place of the file's content, or leave it as it was; durable on return.

        The file keeps its mode and owner. `like` names another file that it takes them from, as write_file() does.
        """
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""

    def is_dir(self, path: str) -> bool:
        """Whether there is a directory of this name."""

    def file_size(self, path: str) -> int:
        """Its length in bytes. Raises OSError."""

    def mtime_ms(self, path: str) -> int:
        """Time of the last write, ms since 1970. Raises OSError."""

    def remove(self, path: str) -> None:
        """Remove a file, or an empty directory."""
        ...

    def make_dirs(self, path: str, *, sync: bool = True) -> None:
        """Create a directory and its parents; existing ones are fine. With `sync` their names are durable on return."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed names in a directory durable. Raises OSError."""

    def sync_all(self, path: str) -> None:
        """Make durable whatever any process has written to the file system that holds the directory. Raises OSError.

        After that the state of unflushed data is unknown: Linux calls pages clean that it could not write, and the next
        call, of a file that is opened then, succeeds without them.
        """

    def usage(self, path: str) -> tuple[int, int]:
        """(used, total) bytes of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> FileLock:
        """Take the exclusive lock that RocketMQ takes too. Raises StoreLocked when someone holds it."""
        ...

    def lock_directory(self, path: str) -> FileLock:
        """Take the exclusive lock on a directory. It excludes only Aerobee's brokers. Raises StoreLocked."""
        ...

    @property
    def boot_id(self) -> bytes:
        """16 bytes that are unchanged as long as the page cache cannot have been lost (no reboot); empty when
        unknown.
        """
        ...


def store_full(what: str, error: OSError, *, path: str, offset: int = -1) -> StoreFull:
    """The refusal when no space could be taken for `what`, which names the file. Nothing was written."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{what} could not be made or made larger: {error}", path=path, offset=offset)
    return StoreFull(
        f"no disk space for {what}: {error}; free space, or let retention delete (fileReservedTime, "
        "diskMaxUsedSpaceRatio)",
        path=path,
        offset=offset,
    )


def open_failed(root: str, error: OSError) -> StoreError:
    """The error of a start when a file of the store cannot be opened or extended: names the file and the remedy."""
    path = str(error.filename or root)
    code = error.errno or 0
    if code in (errno.ENOSPC, errno.EDQUOT):
        advice = "free space there, then start again; nothing of the store was lost"
    elif code in (errno.EACCES, errno.EPERM):
        advice = "give the user of this process the right to read and write it, then start again"
    elif code == errno.EROFS:
        advice = "its file system can only be read: mount it for writing, and look why it was not"
    elif code in USED_UP:
        advice = "raise the limit of open files (ulimit -n), then start again"
    else:
        advice = "check the disk (dmesg, smartctl) before anything else; then restore the file from a copy or a replica"
    return StoreError(f"the store in {root} cannot be used: {error}: {advice}", path=path)


def replace_file(disk: Disk, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
    """Disk.replace_file of every disk: the new content is durable before it gets the name."""
    temporary = path + ".tmp"
    disk.write_file(temporary, data, like=like or path, is_private=is_private)
    disk.sync_file(temporary)
    disk.rename(temporary, path)
    disk.sync_dir(os.path.dirname(path) or ".")


def _take_rights(descriptor: int, model: os.stat_result) -> None:
    """Give an open file the owner, the group and the mode of another. A user without read permission for that file gets
    none for this file.

    Without root the owner cannot be changed: it stays this process's user, and if the process is not in the group, the
    group's permissions are reduced to those of others. The same applies when an id does not exist in this user
    namespace (EINVAL), as in a container, or when the file system has no owners.
    """
    mode = stat.S_IMODE(model.st_mode)
    own = os.fstat(descriptor)
    if own.st_uid != model.st_uid:
        with contextlib.suppress(OSError):
            os.fchown(descriptor, model.st_uid, -1)
    if own.st_gid != model.st_gid:
        try:
            os.fchown(descriptor, -1, model.st_gid)
        except OSError:
            mode = (mode & ~0o070) | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)


def sync_names_above(disk: Disk, directory: str) -> None:
    """Sync the directories above `directory`, so that its name is durable, as far up as this process has permission.

    A start that failed or was killed may have created them without a sync; a power loss would then lose the directory
    with its content.
    """
    at = os.path.abspath(directory)
    while (parent := os.path.dirname(at)) != at:
        try:
            disk.sync_dir(parent)
        except PermissionError:
            return  # this process cannot have created anything in that directory
        at = parent


# Windows has no program-wide library; RealDisk refuses to work there.
_libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
_MADV_POPULATE_WRITE = 23
_ZEROS = memoryview(bytes(1 << 20))


def take_blocks(descriptor: int, start: int, end: int) -> None:
    """Give each block of a sparse file disk space, where the system has no posix_fallocate: write its bytes as they are.

    No other code may write there meanwhile. Raises OSError.
    """
    while start < end:
        part = os.pread(descriptor, min(end - start, len(_ZEROS)), start)
        if not part:
            raise OSError(errno.EIO, f"the file ends at {start}, {end} was expected")
        start += os.pwrite(descriptor, part, start)


class RealMappedFile:
    """A shared mapping. fdatasync, not msync: CPython's mmap.flush keeps every other thread waiting."""

    __slots__ = ("_address", "_descriptor", "_reserved", "buffer", "path", "size")

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._reserved = 0
        mapping = mmap.mmap(descriptor, size)
        # Without this the first write to a page of a large file brings in its adjacent pages: 1.3 ms instead of 5 us,
        # and megabytes of cache for a queue of one message. Reads of cold data go through read().
        if hasattr(mmap, "MADV_RANDOM"):
            mapping.madvise(mmap.MADV_RANDOM)
        self.buffer: WritableBuffer = mapping
        self._address = 0

    def reserve(self, end: int) -> None:
        if end <= self._reserved:
            return
        end = min(end, self.size)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, self._reserved, end - self._reserved)
            else:
                take_blocks(self._descriptor, self._reserved, end)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        self._reserved = end

    def read(self, start: int, end: int) -> bytes:
        parts: list[bytes] = []
        while start < end:
            part = os.pread(self._descriptor, end - start, start)
            if not part:
                raise OSError(errno.EIO, f"the file ends at {start}, {end} was expected", self.path)
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, start: int, end: int) -> bytes:
        return self.read(start, min(end, self.size))

    def fileno(self) -> int:
        return self._descriptor

    def will_need(self, start: int, end: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_WILLNEED)
        elif isinstance(self.buffer, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED") and start < end:
            first = start - start % PAGE_BYTES
            self.buffer.madvise(mmap.MADV_WILLNEED, first, end - first)

    def is_resident(self, start: int, end: int) -> bool:
        first = start - start % PAGE_BYTES
        pages = (end - first + PAGE_BYTES - 1) // PAGE_BYTES
        if pages <= 0:
            return True
        if not hasattr(_libc, "mincore"):
            return False  # callers read elsewhere than on the event loop, as for a cold page
        if not self._address:
            # The export ends immediately, so that the mapping can be closed; the address lives as long as it.
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        answer = ctypes.create_string_buffer(pages)
        failed = _libc.mincore(ctypes.c_void_p(self._address + first), ctypes.c_size_t(end - first), answer)
        # Only the lowest bit of each byte means resident; the others are zero in every Linux so far, and
        # macOS uses them.
        return not failed and (answer.raw.count(b"\x01") == pages or all(byte & 1 for byte in answer.raw))

    def prefault(self, start: int, end: int) -> None:
        first = start - start % PAGE_BYTES
        if isinstance(self.buffer, mmap.mmap) and first < end:
            # Kernels before 5.14 do not know it: then each page faults at its first use.
            with contextlib.suppress(OSError, ValueError):
                self.buffer.madvise(_MADV_POPULATE_WRITE, first, end - first)

    def fill(self, start: int, end: int) -> None:
        # Zeros written as a file take large pages of the cache and settle their blocks once: 0.6 us a page of 4 KiB
        # against 4.6 us for the first touch of each, and later syncs have no block to settle.
        try:
            while start < end:
                start += os.pwrite(self._descriptor, _ZEROS[: end - start], start)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def write(self, start: int, data: memoryview) -> None:
        try:
            while data:
                written = os.pwrite(self._descriptor, data, start)
                start, data = start + written, data[written:]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def rewrite(self, start: int, end: int) -> None:
        buffer = self.buffer
        for at in range(start - start % PAGE_BYTES, end, PAGE_BYTES):
            buffer[at : at + 1] = buffer[at : at + 1]

    def sync(self, start: int, end: int) -> None:
        try:
            if hasattr(os, "fdatasync"):
                os.fdatasync(self._descriptor)
            else:
                self._sync_mapping(start, end)
                sync_descriptor(self._descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def _sync_mapping(self, start: int, end: int) -> None:
        # Linux writes a mapping's pages at fdatasync of its file. POSIX promises that of msync alone.
        first = start - start % PAGE_BYTES
        if isinstance(self.buffer, mmap.mmap) and first < end:
            self.buffer.flush(first, end - first)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        if isinstance(self.buffer, mmap.mmap):
            # A reader that still holds a view keeps the mapping alive; it goes when the view goes.
            with contextlib.suppress(BufferError):
                self.buffer.close()


class RealDisk:
    """The machine's file systems. Files opened here may use the process's reserved descriptors."""

    def __init__(self) -> None:
        """Raises StoreError on a platform on which no server runs."""
        require_locks()
        self._spares = process_spares()

    def create_mapped(self, path: str, size: int) -> MappedFile:
        return self._spares.opened(lambda: self._create_mapped(path, size))

    @staticmethod
    def _create_mapped(path: str, size: int) -> MappedFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)
            return RealMappedFile(path, descriptor, size)
        except BaseException:
            os.close(descriptor)
            os.unlink(path)
            raise

    def open_mapped(self, path: str) -> MappedFile:
        return self._spares.opened(lambda: self._open_mapped(path))

    @staticmethod
    def _open_mapped(path: str) -> MappedFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                raise OSError(errno.EIO, "the file is empty", path)
            return RealMappedFile(path, descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    def read_file(self, path: str) -> bytes:
        return self._spares.opened(lambda: self._read_file(path))

    @staticmethod
    def _read_file(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        replace_file(self, path, data, like=like, is_private=is_private)

    def write_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        try:
            model = os.stat(like) if like else None
        except FileNotFoundError:
            model = None
        mode = 0o600 if model is not None or is_private else 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = self._spares.opened(lambda: os.open(path, flags, mode))
        except PermissionError:
            # left over by a killed process, with the permissions of a file that no user may write
            os.remove(path)
            descriptor = self._spares.opened(lambda: os.open(path, flags, mode))
        with open(descriptor, "wb") as file:
            if model is not None:
                _take_rights(file.fileno(), model)
            elif is_private:
                os.fchmod(file.fileno(), mode)  # it may have been there
            file.write(data)

    def sync_file(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_CLOEXEC)

    def _sync(self, path: str, flags: int) -> None:
        descriptor = self._open(path, flags)
        try:
            sync_descriptor(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: str, target: str) -> None:
        os.replace(path, target)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(self._spares.opened(lambda: os.listdir(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)

    def make_dirs(self, path: str, *, sync: bool = True) -> None:
        missing = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o755)
            if sync:
                self.sync_dir(os.path.dirname(directory))

    def sync_dir(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_all(self, path: str) -> None:
        if not hasattr(_libc, "syncfs"):
            os.sync()
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self._open(path, flags)
        try:
            if _libc.syncfs(descriptor):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)

    def usage(self, path: str) -> tuple[int, int]:
        answer = os.statvfs(path)
        used = answer.f_blocks - answer.f_bfree
        # As df and RocketMQ count: blocks that only root may fill belong to neither side.
        return used * answer.f_frsize, (used + answer.f_bavail) * answer.f_frsize

    def lock(self, path: str) -> FileLock:
        return lock_store(path, self._open)

    def lock_directory(self, path: str) -> FileLock:
        return lock_directory(path, self._open)

    def _open(self, path: str, flags: int) -> int:
        return self._spares.opened(lambda: os.open(path, flags, 0o644))

    @property
    def boot_id(self) -> bytes:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return bytes.fromhex(file.read().strip().replace("-", ""))
        except (OSError, ValueError):
            return b""
