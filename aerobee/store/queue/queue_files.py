"""The files of one queue, and a bound on the open queue files of the whole store.

Follows MappedFileQueue of RocketMQ. A file is named after the position of its first byte, 20 digits, and all have
one size. Files are mapped at their first use. `FilePool` closes those that were not used for a while, so that a
store of 40,000 queues needs neither as many descriptors nor as many mappings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from typing import Protocol

from aerobee.errors import ConfigError, RecordInvalid
from aerobee.store.files.descriptors import is_used_up
from aerobee.store.files.disk import Disk, MappedFile, WritableBuffer, store_full
from aerobee.store.files.zeros import is_zero
from aerobee.system import open_files_max

COMPONENT_BYTES_MAX = 255  # NAME_MAX of Linux
QUEUE_ID_MAX = 2**31 - 1
_RESERVE_FIRST_BYTES = 4_096
_CLOSE_TRIES = 8
_RESERVE_STEP_BYTES_MAX = 1_048_576
_FILL_STEP_BYTES_MIN = 65_536  # of a queue that grows so fast the next part is made ready, as the log's is


def check_component(name: str) -> None:
    """Raise RecordInvalid unless `name` can be a single directory name: call it before building a path from a name.

    Wider than what clients may name a topic: a broker's name is a topic and may have dots.
    """
    if (
        name in ("", ".", "..")
        or "/" in name
        or os.sep in name
        or not name.isprintable()
        or len(name.encode(errors="surrogateescape")) > COMPONENT_BYTES_MAX
    ):
        raise RecordInvalid(f"{name[:80]!r} cannot be a topic: it would be a path outside the store")


class QueueFile:
    """One queue file. `dirty` while it has unsynced bytes."""

    __slots__ = ("base", "dirty", "file", "on_close", "path", "pins", "removed", "reserved", "size", "used")

    def __init__(self, path: str, base: int, size: int, on_close: Callable[[QueueFile], None]) -> None:
        self.path = path
        self.base = base  # position of the first byte in the queue
        self.size = size
        self.on_close = on_close  # the owner forgets the buffer
        self.file: MappedFile | None = None
        self.reserved = 0
        self.dirty = False
        self.removed = False
        self.used = False
        self.pins = 0


class UnsyncedQueue(Protocol):
    """A queue with unsynced entries."""

    unsynced_from: int  # physical offset of the oldest record among them; -1: none


class FilePool:
    """Opens queue files and closes the longest unused ones. `syncing` files stay open until their sync ends."""

    def __init__(self, disk: Disk, open_max: int = 0) -> None:
        self.disk = disk
        # A mapping takes two descriptors (CPython duplicates the file's). A quarter of the limit for queues
        # leaves space for connections.
        self.open_max = open_max or max(64, open_files_max() // 8)
        self.unsynced_dirs: set[str] = set()
        self.unsynced_queues: list[UnsyncedQueue] = []
        self._open: dict[QueueFile, None] = {}
        self._dirty: dict[QueueFile, None] = {}

    def buffer(self, file: QueueFile) -> WritableBuffer:
        """The file's bytes, valid until the next call of this pool unless the file is the owner's tail."""
        mapped = file.file
        if mapped is None:
            mapped = self._opened(lambda: self.disk.open_mapped(file.path))
            self._adopt(file, mapped)
        file.used = True
        return mapped.buffer

    def peek(self, file: QueueFile, start: int, end: int) -> bytes:
        """Copy bytes of a file that may never have been written there: see MappedFile.peek."""
        self.buffer(file)
        assert file.file is not None
        return file.file.peek(start, end)

    def create(self, file: QueueFile) -> None:
        """Create the file on the disk. Raises OSError; then nothing is left behind."""
        directory = os.path.dirname(file.path)
        # Not synced here, in the event loop: the next flush does it before it promises anything.
        self.disk.make_dirs(directory, sync=False)
        if self.disk.exists(file.path):
            self.disk.remove(file.path)  # of a creation that failed, and could not even be taken back
        mapped = self._opened(lambda: self.disk.create_mapped(file.path, file.size))
        try:
            mapped.reserve(min(file.size, _RESERVE_FIRST_BYTES))
        except OSError:
            mapped.close()
            self.disk.remove(file.path)
            raise
        file.reserved = min(file.size, _RESERVE_FIRST_BYTES)
        self._name_changed(file)
        self._adopt(file, mapped)

    def reserve(self, file: QueueFile, end: int) -> None:
        """Take disk space below `end` and a growing step ahead. Raises OSError when there is none.

        Nothing is written yet from `end` on.
        """
        self.buffer(file)
        mapped = file.file
        assert mapped is not None
        step = min(max(_RESERVE_FIRST_BYTES, file.reserved), _RESERVE_STEP_BYTES_MAX)
        target = min(file.size, max(end, min(end + step, file.size)))
        target = min(file.size, -(-target // 4096) * 4096)
        try:
            mapped.reserve(target)
        except OSError:
            if target == end:
                raise
            mapped.reserve(end)
            target = end
        if step >= _FILL_STEP_BYTES_MIN:
            begin = max(end, file.reserved)
            mapped.fill(begin, target)
            mapped.prefault(begin, target)
        file.reserved = target

    def mark_dirty(self, file: QueueFile) -> None:
        """The file has bytes that are not synced."""
        if not file.dirty:
            file.dirty = True
            self._dirty[file] = None

    def take_dirty(self) -> list[QueueFile]:
        """The files to sync now. The files are pinned; the caller must release each with synced() or not_synced()."""
        files = list(self._dirty)
        self._dirty.clear()
        for file in files:
            file.dirty = False
            file.pins += 1
        return files

    def rewrite_dirty(self) -> None:
        """Write the dirty files' bytes again: recovery found them in a cache that a failed sync may have spoilt."""
        for file in self._dirty:
            self._name_changed(file)  # its directory entry may also be only in the page cache
            self.buffer(file)
            assert file.file is not None
            if file.reserved:
                file.file.rewrite(0, file.reserved)

    def _name_changed(self, file: QueueFile) -> None:
        directory = os.path.dirname(file.path)  # of the queue; then of the topic, then of all topics
        for _ in range(3):
            self.unsynced_dirs.add(directory)
            directory = os.path.dirname(directory)

    def take_dirty_dirs(self) -> list[str]:
        """The directories with new names that are not synced; they are the caller's from now on."""
        # sorted, so that the simulation makes equal disk calls in each process
        directories = sorted(self.unsynced_dirs)
        self.unsynced_dirs.clear()
        return directories

    def sync_file(self, file: QueueFile) -> None:
        """Any thread, while the file is pinned. Raises OSError."""
        if file.removed:
            return
        mapped = file.file
        if mapped is not None:
            mapped.sync(0, file.size)
            return
        # Closed while dirty: the kernel reports a write error that no descriptor has seen yet to the next open of the file.
        try:
            mapped = self.disk.open_mapped(file.path)
        except FileNotFoundError:
            if file.removed:  # by the loop's thread, since the look above
                return
            raise
        try:
            mapped.sync(0, file.size)
        finally:
            mapped.close()

    def unpin(self, files: list[QueueFile]) -> None:
        """These files may be closed again."""
        for file in files:
            file.pins -= 1
            if file.removed and file.pins == 0:
                self._close(file)

    def remove(self, file: QueueFile) -> None:
        """Delete the file from the disk."""
        file.removed = True  # first: another thread that misses the file has to know why
        try:
            self.disk.remove(file.path)
        except OSError:
            file.removed = False
            raise
        self.unsynced_dirs.add(os.path.dirname(file.path))
        self.forget(file)

    def forget(self, file: QueueFile) -> None:
        """The file is not this owner's any more: another one replaces it, or it is deleted."""
        file.removed = True
        self._dirty.pop(file, None)
        if file.pins == 0:
            self._close(file)

    def close(self) -> None:
        """Unmap every file."""
        for file in list(self._open):
            self._close(file)

    @property
    def dirty_count(self) -> int:
        """Number of files with unsynced bytes."""
        return len(self._dirty)

    @property
    def open_count(self) -> int:
        """Number of mapped files."""
        return len(self._open)

    def _opened(self, open_: Callable[[], MappedFile]) -> MappedFile:
        """Return open_(). When the descriptors are exhausted, close files that no thread uses, and retry."""
        try:
            return open_()
        except OSError as error:
            if not is_used_up(error):
                raise
            unused = [file for file in self._open if not file.pins and not file.dirty and not file.used]
            for file in unused[:_CLOSE_TRIES]:
                self._close(file)
            if not unused:
                raise
        return open_()

    def _adopt(self, file: QueueFile, mapped: MappedFile) -> None:
        file.file = mapped
        self._open[file] = None
        if len(self._open) > self.open_max:
            self._close_unused(file)

    def _close_unused(self, newest: QueueFile) -> None:
        """Second chance: a file that was used since its last check moves to the end of the list.

        Looks at a few files only. Dirty files stay open while fewer than twice the maximum are open; beyond that they
        are closed too, and the flush reopens them to sync them.
        """
        closes_dirty = len(self._open) > 2 * self.open_max
        for _ in range(_CLOSE_TRIES):
            if len(self._open) <= self.open_max:
                return
            file = next(iter(self._open))
            if file is newest or file.pins or file.used or (file.dirty and not closes_dirty):
                file.used = False
                del self._open[file]
                self._open[file] = None
                continue
            self._close(file)

    def _close(self, file: QueueFile) -> None:
        self._open.pop(file, None)
        if file.file is not None:
            file.on_close(file)
            file.file.close()
            file.file = None
            file.reserved = 0


class QueueFileList:
    """The files of one queue directory, oldest first."""

    def __init__(
        self,
        directory: str,
        file_size: int,
        pool: FilePool,
        on_close: Callable[[QueueFile], None] | None = None,
    ) -> None:
        """`on_close` is called with each file that the pool closes: its buffer must not be used any more."""
        self.directory = directory
        self.file_size = file_size
        self.pool = pool
        self.files: list[QueueFile] = []
        self.fault = ""  # error found in the files
        self._strays: list[str] = []  # files that load() left out
        self._on_close = on_close or _ignore

    def note_fault(self, fault: str) -> None:
        """Something is wrong with the files that load() could not see."""
        self.fault = fault

    def load(self, config_key: str, written_size: int = 0) -> None:
        """Find the files. The first invalid file and all later ones are left out and reported in `fault`.

        `written_size`: the length that the files are known to have had, 0 when nothing is known. Raises ConfigError when
        nothing says that files of another length were cut. A last file that lost its length goes.
        """
        disk = self.pool.disk
        names = [name for name in disk.list_dir(self.directory) if len(name) == 20 and name.isdecimal()]
        sizes = {name: disk.file_size(os.path.join(self.directory, name)) for name in names}
        if names and not sizes[names[-1]]:
            disk.remove(os.path.join(self.directory, names.pop()))
        is_known = self.file_size in (written_size, *sizes.values())
        for number, name in enumerate(names):
            path, base = os.path.join(self.directory, name), int(name)
            if sizes[name] != self.file_size and not is_known:
                raise ConfigError(
                    f"{path} has {sizes[name]} bytes, but {config_key} is {self.file_size}: set it to the value with "
                    f"which the store was written; if the file was cut, move {self.directory} away to have the queue built "
                    "again from the commit log"
                )
            expected = self.files[-1].base + self.file_size if self.files else base
            if sizes[name] != self.file_size:
                self.fault = f"{path} has {sizes[name]} of {self.file_size} bytes"
            elif base != expected or base % self.file_size:
                self.fault = f"the file before {path} is missing"
            if self.fault:
                self._strays = [os.path.join(self.directory, each) for each in names[number:]]
                return
            self.files.append(self._file(base))

    def remove_strays(self) -> None:
        """Delete the files that load() left out."""
        for path in self._strays:
            self.pool.disk.remove(path)
            self.pool.unsynced_dirs.add(self.directory)
        self._strays = []
        self.fault = ""

    def _file(self, base: int) -> QueueFile:
        path = os.path.join(self.directory, f"{base:020d}")
        return QueueFile(path, base, self.file_size, self._closed)

    def _closed(self, file: QueueFile) -> None:
        self._on_close(file)

    def file_at(self, position: int) -> QueueFile | None:
        """The file that has this position (bytes from the queue's begin); None when there is none."""
        if not self.files:
            return None
        index = (position - self.files[0].base) // self.file_size
        return self.files[index] if 0 <= index < len(self.files) else None

    def writable_file(self, position: int, size: int) -> QueueFile:
        """The file for `size` bytes at `position`, created when it is the next one, with space. StoreFull."""
        try:
            file = self.file_at(position)
            if file is None:
                base = position - position % self.file_size
                assert not self.files or base == self.files[-1].base + self.file_size
                file = self._file(base)
                self.pool.create(file)
                self._strays = [path for path in self._strays if path != file.path]
                self.files.append(file)
            end = position - file.base + size
            if end > file.reserved or file.file is None:
                self.pool.reserve(file, end)
            return file
        except OSError as error:
            raise store_full(f"the queue {self.directory}", error, path=self.directory) from error

    def cut(self, position: int) -> bool:
        """Remove everything from `position` on: delete later files and zero the rest of its file. Whether there was any."""
        changed = False
        while self.files and self.files[-1].base >= position:
            if position == self.files[-1].base and len(self.files) == 1:
                break  # an empty first file stays
            self.pool.remove(self.files.pop())
            changed = True
        if self.files:
            file = self.files[-1]
            buffer = self.pool.buffer(file)
            assert file.file is not None
            start = max(0, position - file.base)
            # The space after the end is zero for 64 KiB: the caller of writable_file handles bytes beyond.
            while start < file.size:
                stop = min(file.size, start + 65_536)
                if is_zero(file.file.peek(start, stop)):
                    break
                file.file.reserve(stop)
                buffer[start:stop] = bytes(stop - start)
                self.pool.mark_dirty(file)
                changed = True
                start = stop
        return changed

    def remove_first(self) -> None:
        """Take the oldest file out and remove it."""
        self.pool.remove(self.files.pop(0))

    def remove_all(self, kept: Container[str] = ()) -> None:
        """Delete every file but those of the paths in `kept`, and the directory when it is empty then.

        The topic's directory, which it is in, stays: looking whether it is empty takes as long as it has queues.
        """
        self._strays = [path for path in self._strays if path not in kept]
        self.remove_strays()
        while self.files:
            file = self.files.pop()
            if file.path in kept:
                self.pool.forget(file)
            else:
                self.pool.remove(file)
        disk = self.pool.disk
        if not disk.list_dir(self.directory) and disk.is_dir(self.directory):
            disk.remove(self.directory)
            self.pool.unsynced_dirs.discard(self.directory)
            self.pool.unsynced_dirs.add(os.path.dirname(self.directory))


def _ignore(file: QueueFile) -> None:
    return
