"""A disk in memory that fails as disks do, identically for the same random numbers. Implements store.disk.Disk.

- power_loss() keeps any subset of the 4 KiB pages that were not synced, and some of them only in part, by 512-byte
  sectors. With ALL_LOST_OR_SOME_KEPT half of the losses keep nothing, as when the system had no time yet to write any.
  Names of files and directories that were created, replaced or removed since the last sync_dir of their directory
  survive in order up to a random point. Files opened before are dead: what is written to them goes nowhere.
  lose_power() is its moment, when processes that are to be gone still run on in this one.
- cut_power_at(n) makes the n-th call from now raise PowerCut, and every call behind it, until power_loss().
- crash() is kill -9: nothing is lost, locks are released.
- die_at_write(n) ends the process, or the machine, inside the n-th call from now that changes something: that call and every
  one behind it raises PowerCut, and nothing of what the process still does is on the disk, until crash() or power_loss().
- A sync that fails leaves pages that count as clean without being on the disk: the next sync succeeds without them.
- Space is counted when it is reserved; a call can be made to fail with any error.
- flip_bit() changes what is on the disk and what is read.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from aerobee.errors import StoreLocked
from aerobee.store.files.disk import SECTOR_BYTES, FileLock, MappedFile, WritableBuffer, replace_file

PAGE_BYTES = 4096
# Share of the unsynced pages that a power loss keeps whole; each loss draws one of these shares.
SOME_KEPT = (0.4,)
ALL_LOST_OR_SOME_KEPT = (0.0, 0.0, 0.4, 0.8)


WRITES = frozenset(
    ("reserve", "sync", "sync_dir", "sync_all", "create", "replace", "write", "rename", "remove", "make_dirs")
)


class PowerCut(BaseException):
    """The machine died inside this call. Error handlers must not treat it as an error of the disk."""


@dataclass(eq=False, slots=True)
class _Inode:
    data: bytearray  # content as processes read it
    durable: bytearray  # durable content
    mtime_ms: int
    has_length: bool = False  # whether the length is durable
    reserved: int = 0
    # page number -> content that the system wrongly takes for durable
    clean: dict[int, bytes] = field(default_factory=dict)


class SimulatedMappedFile:
    """A mapping of one simulated file."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self.size = len(inode.data)
        self.buffer: WritableBuffer = inode.data
        self._disk = disk
        self._inode = inode

    def reserve(self, end: int) -> None:
        self._disk.check("reserve", self.path)
        end = min(end, self.size)
        if end > self._inode.reserved:
            self._disk.take_space(end - self._inode.reserved, self.path)
            self._inode.reserved = end

    def read(self, start: int, end: int) -> bytes:
        self._disk.check("read", self.path)
        self._disk.on_read(end - start)
        return bytes(self.buffer[start:end])

    def peek(self, start: int, end: int) -> bytes:
        self._disk.on_read(end - start)
        return bytes(self.buffer[start:end])

    def fileno(self) -> int:
        return -1

    def will_need(self, start: int, end: int) -> None:
        """Does nothing: all content is in memory."""

    def is_resident(self, start: int, end: int) -> bool:
        return self._disk.is_resident

    def prefault(self, start: int, end: int) -> None:
        return

    def fill(self, start: int, end: int) -> None:
        if any(self.buffer[start:end]):  # flipped bits, or lost data
            self.buffer[start:end] = bytes(end - start)

    def write(self, start: int, data: memoryview) -> None:
        self.buffer[start : start + len(data)] = data

    def rewrite(self, start: int, end: int) -> None:
        for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES)):
            self._inode.clean.pop(page, None)

    def sync(self, start: int, end: int) -> None:
        self._disk.sync_inode(self._inode, start, end, self.path)

    def close(self) -> None:
        return


class _SimulatedLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


_DIRECTORY = _Inode(bytearray(), bytearray(), 0)  # represents a created directory
_Operation = tuple[str, "_Inode | None", bool]  # path -> file (None: removed), and whether it is a directory


@dataclass(slots=True)
class _Left:
    """State left by a process that died in a write."""

    names: dict[str, _Inode]
    durable_names: dict[str, _Inode]
    dirs: set[str]
    durable_dirs: set[str]
    operations: dict[str, list[_Operation]]
    newest: _Inode | None
    used_bytes: int


class SimulatedDisk:
    """Files by path. `fail` is called before each call: (call, path) -> errno or 0."""

    def __init__(
        self,
        rng: random.Random,
        *,
        total_bytes: int = 1 << 30,
        now_ms: Callable[[], int] = lambda: 0,
        kept_parts: Sequence[float] = SOME_KEPT,
    ) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.fail: Callable[[str, str], int] = lambda call, path: 0
        self.on_read: Callable[[int], None] = lambda count: (
            None
        )  # called with the number of bytes at each read of a mapped file
        self.is_resident = True
        self.power_losses = 0
        self._rng = rng
        self._now_ms = now_ms
        self._kept_parts = kept_parts
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._dirs: set[str] = {"/"}
        self._durable_dirs: set[str] = {"/"}
        self._calls_left = -1  # calls before the power loss; -1: none
        self._operations: dict[str, list[_Operation]] = {}
        self._locks: set[str] = set()
        self._newest: _Inode | None = None
        self._writes_left = -1  # changing calls before the process dies in one; -1: it does not die
        self._is_power = False  # whether the machine dies, not only the process
        self._on_death: Callable[[], None] | None = None
        self._is_dead = False
        self._left: _Left | None = None  # state left by a process that died in a write
        self._survived: tuple[dict[str, _Inode], set[str]] | None = None  # during a power loss

    # -- faults

    def reseed(self, rng: random.Random) -> None:
        """Draw lost and torn writes from this generator from now on."""
        self._rng = rng

    def check(self, call: str, path: str) -> None:
        """Raise the OSError or PowerCut that is due for this call, if any."""
        if self._writes_left >= 0 and call in WRITES:
            if self._writes_left == 0:
                self._die()
            self._writes_left -= 1
        if self._is_dead:
            raise PowerCut(f"{call} {path}")
        if self._calls_left >= 0:
            if self._calls_left == 0:
                raise PowerCut(f"{call} {path}")
            self._calls_left -= 1
        code = self.fail(call, path)
        if code:
            raise OSError(code, os.strerror(code), path)

    def take_space(self, count: int, path: str) -> None:
        if self.used_bytes + count > self.total_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.used_bytes += count

    def sync_inode(self, inode: _Inode, start: int, end: int, path: str) -> None:
        pages = range(start // PAGE_BYTES, min(-(-end // PAGE_BYTES), -(-len(inode.data) // PAGE_BYTES)))
        try:
            self.check("sync", path)
        except OSError:
            for page in pages:
                at = page * PAGE_BYTES
                content = bytes(inode.data[at : at + PAGE_BYTES])
                if content != inode.durable[at : at + PAGE_BYTES]:
                    if self._rng.random() < 0.5:
                        inode.clean[page] = content
                    else:
                        inode.durable[at : at + PAGE_BYTES] = content
            raise
        self._make_durable(inode, pages)

    def _make_durable(self, inode: _Inode, pages: range) -> None:
        inode.has_length = True
        if not inode.clean:  # then a check of the whole range shows whether there is work
            first, last = pages.start * PAGE_BYTES, pages.stop * PAGE_BYTES
            if inode.data[first:last] == inode.durable[first:last]:
                return
        for page in pages:
            at = page * PAGE_BYTES
            content = bytes(inode.data[at : at + PAGE_BYTES])
            if inode.clean.get(page) == content:
                continue
            inode.clean.pop(page, None)
            if content != inode.durable[at : at + PAGE_BYTES]:
                inode.durable[at : at + PAGE_BYTES] = content
                inode.mtime_ms = self._now_ms()

    def cut_power_at(self, calls: int) -> None:
        """Let `calls` more calls succeed. power_loss() must follow."""
        self._calls_left = calls

    def die_at_write(
        self, calls: int, *, power: bool = False, on_death: Callable[[], None] | None = None
    ) -> None:
        """Let `calls` more calls that change something succeed, then die in one. A negative number cancels
        the death.
        """
        self._writes_left, self._is_power, self._on_death = calls, power, on_death

    @property
    def is_dead(self) -> bool:
        """Whether the process or the machine died in a call, and neither crash() nor power_loss() was called since."""
        return self._is_dead

    @property
    def died_of_power(self) -> bool:
        """Whether the machine died in a call, not only the process."""
        return self._is_dead and self._is_power

    def _die(self) -> None:
        self._writes_left, self._is_dead = -1, True
        if self._is_power:
            self.lose_power()
        else:
            self._left = self._copied()
        if self._on_death is not None:
            self._on_death()

    def _copied(self) -> _Left:
        """A copy of all files as they are now: later writes to open files do not change it."""
        inodes: dict[_Inode, _Inode] = {}

        def copied(inode: _Inode | None) -> _Inode | None:
            if inode is None or inode is _DIRECTORY:
                return inode
            if inode not in inodes:
                inodes[inode] = replace(
                    inode,
                    data=bytearray(inode.data),
                    durable=bytearray(inode.durable),
                    clean=dict(inode.clean),
                )
            return inodes[inode]

        def names(of: dict[str, _Inode]) -> dict[str, _Inode]:
            return {path: found for path, inode in of.items() if (found := copied(inode)) is not None}

        operations = {
            directory: [(path, copied(inode), is_dir) for path, inode, is_dir in each]
            for directory, each in self._operations.items()
        }
        return _Left(
            names(self._names),
            names(self._durable_names),
            set(self._dirs),
            set(self._durable_dirs),
            operations,
            copied(self._newest),
            self.used_bytes,
        )

    @property
    def is_cut(self) -> bool:
        """Whether the power went in a call, and power_loss() has not been called since."""
        return self._calls_left == 0

    def paths(self) -> list[str]:
        """All files."""
        return sorted(self._names)

    def crash(self) -> None:
        """Apply the death of the process, now or in an earlier write: locks are released, files stay as they were."""
        self._locks.clear()
        self._writes_left, self._is_dead, self._on_death = -1, False, None
        left, self._left = self._left, None
        if left is not None:
            self._names, self._durable_names = left.names, left.durable_names
            self._dirs, self._durable_dirs = left.dirs, left.durable_dirs
            self._operations, self._newest, self.used_bytes = left.operations, left.newest, left.used_bytes

    def power_loss(self) -> None:
        """Apply a power loss of the machine, now or at lose_power(): unsynced data survives in part."""
        if self._survived is None:
            self.lose_power()
        assert self._survived is not None
        (names, dirs), self._survived = self._survived, None
        self.power_losses += 1
        self._calls_left = self._writes_left = -1
        self._is_dead, self._on_death, self._left = False, None, None
        self._locks.clear()
        self._operations.clear()
        self._durable_names, self._names = names, dict(names)
        self._durable_dirs, self._dirs = dirs, set(dirs)
        self.used_bytes = sum(inode.reserved for inode in set(names.values()))

    def lose_power(self) -> None:
        """The machine dies now. Later writes of its processes have no effect; power_loss() follows when they have
        ended."""
        rng = self._rng
        settled = [
            operation
            for operations in self._operations.values()
            for operation in operations[: rng.randint(0, len(operations))]
        ]
        for operation in settled:
            self._settle_name(operation)
        # A directory whose name is lost is lost with its content.
        dirs = {path for path in self._durable_dirs if self._is_reachable(path)}
        names = {path: inode for path, inode in self._durable_names.items() if os.path.dirname(path) in dirs}
        kept = self._kept_parts[0] if len(self._kept_parts) == 1 else rng.choice(self._kept_parts)
        survivors: dict[_Inode, _Inode] = {}
        for inode in dict.fromkeys(names.values()):
            if not inode.has_length and inode is self._newest and rng.random() < 0.3:
                survivors[inode] = _Inode(bytearray(), bytearray(), inode.mtime_ms, True)
                continue
            for at in range(0, len(inode.data), PAGE_BYTES):
                self._settle_page(inode, at, kept)
            survivors[inode] = _Inode(
                bytearray(inode.durable), bytearray(inode.durable), inode.mtime_ms, True, inode.reserved
            )
        self._survived = {path: survivors[inode] for path, inode in names.items()}, dirs

    def _settle_page(self, inode: _Inode, at: int, kept: float) -> None:
        content = inode.data[at : at + PAGE_BYTES]
        if content == inode.durable[at : at + PAGE_BYTES] or at // PAGE_BYTES in inode.clean:
            return
        fate = self._rng.random()
        if fate < kept:
            inode.durable[at : at + PAGE_BYTES] = content
        elif kept and fate < (1 + kept) / 2:
            for sector in range(at, min(at + PAGE_BYTES, len(inode.data)), SECTOR_BYTES):
                if self._rng.random() < 0.5:
                    inode.durable[sector : sector + SECTOR_BYTES] = inode.data[sector : sector + SECTOR_BYTES]

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Change one bit of a file on the disk."""
        inode = self._names[path]
        inode.data[offset] ^= 1 << bit
        inode.durable[offset] ^= 1 << bit

    def content(self, path: str) -> bytes:
        """The content that a process sees."""
        return bytes(self._names[path].data)

    @staticmethod
    def _apply(names: dict[str, _Inode], path: str, inode: _Inode | None) -> None:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode

    def _settle_name(self, operation: _Operation) -> None:
        path, inode, is_dir = operation
        if not is_dir:
            self._apply(self._durable_names, path, inode)
        elif inode is None:
            below = path + "/"
            self._durable_dirs = {
                each for each in self._durable_dirs if each != path and not each.startswith(below)
            }
            for name in [name for name in self._durable_names if name.startswith(below)]:
                del self._durable_names[name]
        else:
            self._durable_dirs.add(path)

    def _is_reachable(self, path: str) -> bool:
        while path != "/":
            if path not in self._durable_dirs:
                return False
            path = os.path.dirname(path)
        return True

    def _rename(self, path: str, inode: _Inode | None) -> None:
        self._apply(self._names, path, inode)
        self._note(path, inode, is_dir=False)

    def _note(self, path: str, inode: _Inode | None, *, is_dir: bool) -> None:
        self._operations.setdefault(os.path.dirname(path), []).append((path, inode, is_dir))

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    # -- Disk

    def create_mapped(self, path: str, size: int) -> MappedFile:
        self.check("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        inode = _Inode(bytearray(size), bytearray(size), self._now_ms())
        self._newest = inode
        self._rename(path, inode)
        return SimulatedMappedFile(self, path, inode)

    def open_mapped(self, path: str) -> MappedFile:
        self.check("open", path)
        return SimulatedMappedFile(self, path, self._inode(path))

    def read_file(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._inode(path).data)

    def replace_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        """As Disk.replace_file; modes and owners are not simulated."""
        self.check("replace", path)
        replace_file(self, path, data)

    def write_file(self, path: str, data: bytes, *, like: str = "", is_private: bool = False) -> None:
        """As Disk.write_file; modes and owners are not simulated."""
        self.check("write", path)
        # Unsynced writes are replaced by zeros, or lost.
        self._rename(path, _Inode(bytearray(data), bytearray(len(data)), self._now_ms()))

    def sync_file(self, path: str) -> None:
        inode = self._inode(path)
        self.sync_inode(inode, 0, len(inode.data), path)

    def rename(self, path: str, target: str) -> None:
        self.check("rename", path)
        inode = self._inode(path)
        self._apply(self._names, path, None)
        self._rename(target, inode)
        self._note(path, None, is_dir=False)

    def list_dir(self, path: str) -> list[str]:
        self.check("list", path)
        prefix = path.rstrip("/") + "/"
        names = {
            name[len(prefix) :].split("/")[0]
            for name in (*self._names, *self._dirs)
            if name.startswith(prefix)
        }
        return sorted(name for name in names if name)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._dirs

    def is_dir(self, path: str) -> bool:
        return path in self._dirs

    def file_size(self, path: str) -> int:
        return len(self._inode(path).data)

    def mtime_ms(self, path: str) -> int:
        return self._inode(path).mtime_ms

    def remove(self, path: str) -> None:
        self.check("remove", path)
        if path in self._dirs:
            self._dirs.discard(path)
            self._operations.pop(path, None)
            self._note(path, None, is_dir=True)
            return
        self.used_bytes -= self._inode(path).reserved
        self._rename(path, None)

    def make_dirs(self, path: str, *, sync: bool = True) -> None:
        self.check("make_dirs", path)
        missing = []
        while path not in self._dirs:
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            self._forget_removal(directory)
            self._dirs.add(directory)
            self._note(directory, _DIRECTORY, is_dir=True)
            if sync:
                self.sync_dir(os.path.dirname(directory))

    def _forget_removal(self, directory: str) -> None:
        """A removed directory is recreated: paths cannot distinguish the two, so the removal counts as durable."""
        parent = os.path.dirname(directory)
        operations = self._operations.get(parent, [])
        if (directory, None, True) in operations:
            self._settle_name((directory, None, True))
            self._operations[parent] = [each for each in operations if each[0] != directory]

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        for operation in self._operations.pop(path, []):
            self._settle_name(operation)

    def sync_all(self, path: str) -> None:
        """As Disk.sync_all; there is one file system. A failed call has written nothing and leaves all pages dirty; a
        real one may mark unwritten pages as clean, as sync() does here."""
        self.check("sync_all", path)
        for inode in dict.fromkeys(self._names.values()):
            self._make_durable(inode, range(-(-len(inode.data) // PAGE_BYTES)))
        for operations in self._operations.values():
            for operation in operations:
                self._settle_name(operation)
        self._operations.clear()

    def usage(self, path: str) -> tuple[int, int]:
        return self.used_bytes, self.total_bytes

    def lock(self, path: str) -> FileLock:
        self.check("lock", path)
        if path in self._locks:
            raise StoreLocked(
                f"the store directory {os.path.dirname(path)} is open in another broker", path=path
            )
        self._locks.add(path)
        return _SimulatedLock(self._locks, path)

    def lock_directory(self, path: str) -> FileLock:
        name = path + "/"
        if name in self._locks:
            raise StoreLocked(f"the directory {path} is open in another broker", path=path)
        self._locks.add(name)
        return _SimulatedLock(self._locks, name)

    @property
    def boot_id(self) -> bytes:
        return (self.power_losses + 1).to_bytes(16, "big")
