"""Key-value configuration by namespace, kept in kvConfig.json. Source: KVConfigManager (RocketMQ).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrder":"broker-a:4"}}}

The file is replaced atomically, the one before stays as kvConfig.json.bak, and a change is answered only when it is on
disk. A namespace whose last key goes stays, empty: brokers are then told so, as RocketMQ tells them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import orjson

from aerobee.errors import ConfigError

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]


class KvConfig:
    """The table in memory and its file. Changes are made one after the other; reads see whole changes."""

    def __init__(self, path: Path | None) -> None:
        """`path` None keeps the table in memory only."""
        self._path = path
        self._table: Table = {}
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, blocking. A missing or empty one is an empty table. Raises ConfigError."""
        if self._path is not None:
            self._table = read_table(self._path)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All keys of a namespace; None when it was never used."""
        table = self._table.get(namespace)
        return None if table is None else MappingProxyType(table)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; on disk when this returns. Raises OSError, and changes nothing then."""
        async with self._change:
            await self._replace({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key, or nothing when it is not there. Raises OSError, and changes nothing then."""
        async with self._change:
            if key in self._table.get(namespace, {}):
                left = {k: v for k, v in self._table[namespace].items() if k != key}
                await self._replace({**self._table, namespace: left})

    async def _replace(self, table: Table) -> None:
        if self._path is not None:
            await asyncio.to_thread(replace_file, self._path, orjson.dumps({"configTable": table}))
        self._table = table


def read_table(path: Path) -> Table:
    """Read kvConfig.json of either product. Raises ConfigError that says what is wrong with it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"kvConfigPath {path} cannot be read: {error.strerror}") from error
    if not data.strip():
        return {}
    try:
        root = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON ({error}); restore it from {path}.bak or remove it") from error
    namespaces = root.get("configTable") if isinstance(root, dict) else None
    if namespaces is None and isinstance(root, dict):
        return {}
    table: Table = {}
    if not isinstance(namespaces, dict):
        raise ConfigError(f"{path}: configTable is not an object of namespaces")
    for namespace, keys in namespaces.items():
        if not isinstance(keys, dict) or not all(isinstance(value, str) for value in keys.values()):
            raise ConfigError(f"{path}: namespace {namespace!r} is not an object of texts")
        table[namespace] = keys
    return table


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a crash leaves the old or the new file, whole. Blocking. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    backup = path.with_name(path.name + ".bak")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(fresh, path)
    # The names are durable only when the directory is.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
