"""Key-value configuration by namespace, kept in kvConfig.json. Source: KVConfigManager (RocketMQ).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrder":"broker-a:4"}}}

The file is replaced atomically, the one before stays as kvConfig.json.bak, and a change is answered only when it is on
disk. A namespace without its last key stays as an empty one, and brokers receive it as such, as with RocketMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import orjson

from aerobee.remoting.peer_bounds import PeerBounds
from aerobee.store.files.disk import Disk
from aerobee.store.files.json_file import load_config_file, save_config_file

SURROGATES = "surrogateescape"
Table = dict[str, dict[str, str]]


class KvConfig:
    """The table in memory and its file. Changes are made one after the other; reads see whole changes."""

    def __init__(self, path: str | None, disk: Disk, bounds: PeerBounds | None = None) -> None:
        """`path` None keeps the table in memory only. `bounds`: of its keys and bytes, without them there are none."""
        self._path = path
        self._bounds = bounds
        self._disk = disk
        self._table: Table = {}
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, blocking. A missing or empty one is an empty table.

        Raises StoreError when neither the file nor the one before it can be used.
        """
        if self._path:
            self._table = load_config_file(self._disk, self._path, parse_table) or {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All keys of a namespace; None when it was never used."""
        table = self._table.get(namespace)
        return None if table is None else MappingProxyType(table)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; on disk when this returns.

        Raises StoreError, and RemoteError when there would be too many keys or bytes; changes nothing then.
        """
        async with self._change:
            table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
            if self._bounds is not None and self._grows(namespace, key, value):
                self._bounds.require("kvConfigKeysMax", _key_count(table), "keys of the KV configuration")
                self._bounds.require("kvConfigBytesMax", _byte_count(table), "bytes of the KV configuration")
            await self._replace(table)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key, or nothing when it is not there. Raises StoreError, and changes nothing then."""
        async with self._change:
            if key in self._table.get(namespace, {}):
                left = {k: v for k, v in self._table[namespace].items() if k != key}
                await self._replace({**self._table, namespace: left})

    def _grows(self, namespace: str, key: str, value: str) -> bool:
        """Whether this value is larger than the one it replaces: a table above the limit may still shrink."""
        before = self.get(namespace, key)
        return before is None or len(value.encode(errors=SURROGATES)) > len(before.encode(errors=SURROGATES))

    async def _replace(self, table: Table) -> None:
        if self._path:
            data = orjson.dumps({"configTable": table})
            await asyncio.to_thread(save_config_file, self._disk, self._path, data, parse_table)
        self._table = table


def _key_count(table: Table) -> int:
    """The keys; a namespace counts as one, for an empty one stays."""
    return sum(1 + len(keys) for keys in table.values())


def _byte_count(table: Table) -> int:
    return sum(
        len(text.encode(errors=SURROGATES))
        for namespace, keys in table.items()
        for text in (namespace, *(part for pair in keys.items() for part in pair))
    )


def parse_table(data: bytes) -> Table:
    """Parse kvConfig.json of either product. Raises ValueError with the reason."""
    root = orjson.loads(data)
    if not isinstance(root, dict):
        raise ValueError("not a JSON object")
    namespaces = root.get("configTable") or {}
    if not isinstance(namespaces, dict):
        raise ValueError("configTable is not an object of namespaces")
    for namespace, keys in namespaces.items():
        if not isinstance(keys, dict) or not all(isinstance(value, str) for value in keys.values()):
            raise ValueError(f"namespace {namespace!r} is not an object of texts")
    return namespaces
