"""The offsets of a broadcasting group: a file of this machine, `offsets.json`, in RocketMQ's form, and `offsets.json.bak` with the
content before.

Source: LocalFileOffsetStore. Each file is replaced atomically (content durable before the rename), and unreadable
content never becomes the backup: at least one of the two files is usable at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from aerobee.errors import AerobeeError, MalformedFrame, StoreError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.message_queue import offset_map
from aerobee.system import sync_directory, sync_file

log = logging.getLogger(__name__)


class LocalOffsets:
    """An OffsetStore in a directory. Belongs to the event loop; a thread writes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "offsets.json"
        self._backup = self._path.with_suffix(".json.bak")
        self._offsets: dict[MessageQueue, int] | None = None
        self._lock = threading.Lock()
        self._version = 0  # number of the newest content to write
        self._written = 0
        self._on_disk: bytes | None = None  # the last content that this object wrote

    async def load(self, queue: MessageQueue) -> int | None:
        return self._table().get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Durable on return. A failed write is logged, and repeated with the next save."""
        table = self._table()
        table.update(offsets)
        data = fastjson.dumps({"offsetTable": dict(sorted(table.items()))})
        self._version += 1
        try:
            await asyncio.to_thread(self._write, data, self._version)
        except OSError as error:
            log.warning("offsets are not written to %s: %s", self._path, error)

    def _table(self) -> dict[MessageQueue, int]:
        """Raises StoreError when a file exists and none is usable."""
        if self._offsets is not None:
            return self._offsets
        failures: list[str] = []
        for path in (self._path, self._backup):
            try:
                offsets = _parse(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, AerobeeError) as error:
                failures.append(f"{path}: {error}")
                continue
            if failures:
                log.warning("%s; using %s, which holds what was saved before", "; ".join(failures), path)
            self._offsets = offsets
            return offsets
        if failures:
            raise StoreError(
                f"no usable offsets in {'; '.join(failures)}: repair a file, or delete them to start without offsets",
                path=str(self._path),
            )
        self._offsets = {}
        return self._offsets

    def _write(self, data: bytes, version: int) -> None:
        """Any thread. Raises OSError; the previous files then stay."""
        with self._lock:
            if version < self._written:  # of a cancelled save
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            previous = self._usable(self._path)
            if previous != data:
                if previous is not None:
                    _replace(self._backup, previous)
                _replace(self._path, data)
                if previous is None and self._usable(self._backup) is None:
                    _replace(self._backup, data)
            self._on_disk, self._written = data, version

    def _usable(self, path: Path) -> bytes | None:
        """The file's content; None when it is unusable."""
        try:
            data = path.read_bytes()
            if data != self._on_disk:
                _parse(data)
        except (OSError, AerobeeError):
            return None
        return data


def _parse(data: bytes) -> dict[MessageQueue, int]:
    """Raises AerobeeError."""
    fields = fastjson.loads_trusted(data, "an offsets file")
    if "offsetTable" not in fields:
        raise MalformedFrame("the file has no object offsetTable")
    return offset_map(fields, "offsetTable")


def _replace(path: Path, data: bytes) -> None:
    """Replace the file's content with `data`, durable on return. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as target:
        target.write(data)
        target.flush()
        sync_file(target.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
