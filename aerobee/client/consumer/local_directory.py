"""Directory of a broadcasting consumer's offsets on this machine, found again after a restart.

Same layout as RocketMQ: ROOT/CLIENT ID/GROUP/offsets.json. RocketMQ's broadcasting clients are all called ip@DEFAULT
unless they are given an instance name, so that two processes of a machine overwrite each other's offsets in the same
file. Here a second process takes ip@DEFAULT-2, and so on; a lock on the directory marks it as used; the kernel releases
the lock when the process ends.
"""

from __future__ import annotations

from pathlib import Path

from aerobee.errors import StoreError
from aerobee.system import open_locked, unlock_and_close

DIRECTORIES_MAX = 1_000
DEFAULT_INSTANCE = "DEFAULT"
LOCK_FILE = "owner.lock"


class LocalDirectory:
    """A directory that belongs to this process until close()."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def claim(cls, root: Path, name: str, group: str) -> LocalDirectory:
        """Take the first free directory of `name`, `name`-2, `name`-3, … Raises StoreError when there is none."""
        for number in range(1, DIRECTORIES_MAX + 1):
            directory = root / (name if number == 1 else f"{name}-{number}") / group
            try:
                directory.mkdir(parents=True, exist_ok=True)
                descriptor = open_locked(directory / LOCK_FILE)
            except OSError as error:
                raise StoreError(
                    f"offsets of a broadcasting consumer cannot be stored in {directory}: {error}; choose another directory "
                    "with local_offsets_directory",
                    path=str(directory),
                ) from error
            if descriptor is not None:
                return cls(directory, descriptor)
        raise StoreError(
            f"{DIRECTORIES_MAX} broadcasting consumers of group {group} run on this machine: give them instance names",
            path=str(root),
        )

    def close(self) -> None:
        """Release the directory for another process."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            unlock_and_close(descriptor)
