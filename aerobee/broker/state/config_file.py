"""Config files in RocketMQ's form: topics.json, subscriptionGroup.json, consumerOffset.json and their like.

Source: ConfigManager (RocketMQ). The text is JSON with tabs, one entry a line, and **bare integer keys** where Java has a
Map<Integer, ...>, so a strict JSON parser refuses it (remoting/fastjson.py reads and writes it). The file is replaced
in one step and its old content kept as `.bak` (store/files/json_file.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from aerobee.broker.state.state_writer import StateWriter
from aerobee.errors import MalformedFrame, StoreError
from aerobee.remoting import fastjson
from aerobee.store.files.disk import Disk
from aerobee.store.files.json_file import load_config_file, load_statistics_file, save_config_file

log = logging.getLogger(__name__)

# Required key of a file of this name: another file's content would be taken for an empty table.
REQUIRED_KEYS = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
    "topicQueueMapping.json": "topicQueueMappingInfoMap",
}


class ConfigFile:
    """One config file. read() and write() block; the files are small."""

    def __init__(
        self, path: str | os.PathLike[str], *, disk: Disk, writer: StateWriter | None = None
    ) -> None:
        """Without a `writer` thread all calls block."""
        self.path = os.fspath(path)
        self._disk = disk
        self._writer = writer
        self._good: tuple[int, int] | None = None  # size and crc32 of content that was usable
        self._required = REQUIRED_KEYS.get(os.path.basename(self.path), "")

    def read(self) -> dict[str, Any] | None:
        """Return the object in the file, or in its `.bak` when the file is empty or broken; None without any.

        Raises StoreError when there are files and none can be used.
        """
        return load_config_file(self._disk, self.path, self._parse)

    def read_statistics(self) -> dict[str, Any] | None:
        """As read(), for statistics and caches: None, and a warning, when no content can be used."""
        return load_statistics_file(self._disk, self.path, self._parse)

    def write(self, value: Mapping[str, Any]) -> None:
        """Replace the file. Raises StoreError when the write fails; the old content is then unchanged."""
        data = fastjson.dumps_pretty(value)
        save_config_file(self._disk, self.path, data, self._check)
        self._good = len(data), zlib.crc32(data)

    def write_soon(self, write: Callable[[], None]) -> None:
        """Run `write`, which writes this file, in the writer's thread; it replaces what waits there for this file.

        A failure is logged and tried again. Without a writer it is done, or has failed, on return.
        """
        if self._writer is not None:
            self._writer.write_soon(self.path, write)
            return
        try:
            write()
        except StoreError as error:
            log.error("%s", error)

    async def written(self) -> None:
        """Return when what write_soon() was given is in the file. Raises StoreError when the disk does not take it."""
        if self._writer is not None:
            await self._writer.written(self.path)

    async def run(self, work: Callable[[], None]) -> None:
        """Run `work`, which writes this file, off the event loop, in its turn. Raises StoreError."""
        if self._writer is None:
            await asyncio.to_thread(work)
        else:
            await self._writer.write(work)

    def _check(self, data: bytes) -> None:
        """Raise ValueError for content that cannot be used. Content that this object wrote last is not parsed again."""
        if self._good != (len(data), zlib.crc32(data)):
            self._parse(data)

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            value = fastjson.loads_trusted(data, "the file")
        except MalformedFrame as error:
            raise ValueError(str(error)) from error
        if self._required and not isinstance(value.get(self._required), dict):
            raise ValueError(f"the file has no object {self._required}")
        return value
