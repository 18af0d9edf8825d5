"""Key-value configuration by namespace, kept in kvConfig.json. Source: KVConfigManager (RocketMQ).

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrder":"broker-a:4"}}}

The file is replaced atomically, the previous file stays as kvConfig.json.bak, and a change is answered only
when it is on disk. A namespace stays, empty, when its last key is deleted, and brokers receive it as empty,
as with RocketMQ.
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
    """The table in memory and its file. Changes are serialized; a read sees a change completely or not at all."""

    def __init__(self, path: str | None, disk: Disk, bounds: PeerBounds | None = None) -> None:
        """`path` None keeps the table in memory only. `bounds` limit keys and bytes; None: no limits."""
        self._path = path
        self._bounds = bounds
        self._disk = disk
        self._table: Table = {}
        self._change = asyncio.Lock()

    def load(self) -> None:
        """Read the file, blocking. A missing or empty one is an empty table.

        Raises StoreError when neither the file nor its backup is readable.
        """
        if self._path:
            self._table = load_config_file(self._disk, self._path, parse_table) or {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All keys of a namespace; None for an unknown namespace."""
        table = self._table.get(namespace)
        return None if table is None else MappingProxyType(table)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; on disk when this returns.

        Raises StoreError, or RemoteError for too many keys or bytes, and then changes nothing.
        """
        async with self._change:
            table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
            if self._bounds is not None and self._grows(namespace, key, value):
                self._bounds.require("kvConfigKeysMax", _key_count(table), "keys of the KV configuration")
                self._bounds.require("kvConfigBytesMax", _byte_count(table), "bytes of the KV configuration")
            await self._replace(table)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key; an unknown key is no error. Raises StoreError, and then changes nothing."""
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
    """Number of keys; each namespace counts as one key, because empty namespaces stay."""
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
