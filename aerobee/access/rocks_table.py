"""A Table in a RocksDB directory, as RocketMQ's ConfigRocksDBStorage writes it: one column family, keys and values plain.

The library (`rocksdict`, extra `acl`) is loaded when a table is opened, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aerobee.errors import ConfigError, StoreError


class RocksTable:
    """One database. Belongs to one process at a time."""

    def __init__(self, path: str) -> None:
        """Opens the database, or creates it. Raises ConfigError without the library, StoreError."""
        try:
            rocksdict: Any = importlib.import_module("rocksdict")
        except ImportError:
            raise ConfigError(
                f"authenticationEnabled keeps users in {path} in RocksDB, which needs a package: pip install 'aerobee[acl]'"
            ) from None
        self._path = path
        self._sync: Any = rocksdict.WriteOptions()
        self._sync.sync = True
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_keep_log_file_num(5)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).mkdir(mode=0o700, exist_ok=True)  # the library creates files that every user can read
            Path(path).chmod(0o700)  # an existing directory, too
            self._rows: Any = rocksdict.Rdict(path, options)
        except Exception as error:  # the library raises one class for all errors
            raise StoreError(f"{path} cannot be opened: {error}", path=path) from error

    def items(self) -> Iterable[tuple[str, bytes]]:
        try:
            return [(bytes(key).decode(), bytes(value)) for key, value in self._rows.items()]
        except Exception as error:
            raise StoreError(f"{self._path} cannot be read: {error}", path=self._path) from error

    def put(self, key: str, value: bytes) -> None:
        """Durable on return."""
        try:
            self._rows.put(key.encode(), value, write_opt=self._sync)
        except Exception as error:
            raise StoreError(f"{self._path} cannot be written: {error}", path=self._path) from error

    def remove(self, key: str) -> None:
        try:
            self._rows.delete(key.encode(), write_opt=self._sync)
        except Exception as error:
            raise StoreError(f"{self._path} cannot be written: {error}", path=self._path) from error

    def close(self) -> None:
        self._rows.close()
