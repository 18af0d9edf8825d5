"""The directories of a store: created durably, and locked so that only one broker opens them.

RocketMQ's lock is the first byte of `lock` in the root. Another root may be configured with the same commit log
directory, so each written directory is locked too. That lock excludes only Aerobee's brokers, because a lock file must
not be added to RocketMQ's directories.
"""

from __future__ import annotations

from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, FileLock, open_failed, sync_names_above


class StoreLock:
    """The lock on a store's directories, held from take() to release()."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._locks: list[FileLock] = []

    @property
    def is_held(self) -> bool:
        """Whether this process has the directories."""
        return bool(self._locks)

    def take(self) -> None:
        """Make the directories and lock them. Raises StoreLocked, StoreError; nothing is held then."""
        root, log = self._config.store_path_root_dir, self._config.commit_log_dir
        try:
            for directory in (root, log, self._config.path("config")):
                self._disk.make_dirs(directory)
                sync_names_above(self._disk, directory)
            self._locks.append(self._disk.lock(self._config.path("lock")))
            for directory in dict.fromkeys((root, log)):
                self._locks.append(self._disk.lock_directory(directory))
        except OSError as error:
            self.release()
            raise open_failed(root, error) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have them."""
        while self._locks:
            self._locks.pop().release()
