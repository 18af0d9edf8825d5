"""The small files of one broker: where they lie, and the thread that writes them one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

from aerobee.broker.config_file import ConfigFile
from aerobee.config import merge_properties
from aerobee.errors import AerobeeError
from aerobee.store.disk import Disk

log = logging.getLogger(__name__)


class ConfigFiles:
    """Makes ConfigFiles by their names, and writes without making the event loop wait."""

    def __init__(
        self,
        *,
        disk: Disk,
        path_of: Callable[[str], str],
        settings_path: str | None,
        writer: Executor | None = None,
    ) -> None:
        """`path_of` gives the path of a file by its name; `settings_path`: the configuration file, where there is one."""
        self._disk = disk
        self._path_of = path_of
        self._settings_path = settings_path
        self._writer = writer or ThreadPoolExecutor(1, "aerobee-config")

    def file(self, name: str) -> ConfigFile:
        """The file of this name in the store's config directory, whether it is there or not."""
        return ConfigFile(path=self._path_of(name), disk=self._disk)

    def run_blocking(self, work: Callable[[], None]) -> None:
        """Run what may wait for the disk in a thread of its own, one after the other. Failures are logged."""

        def run() -> None:
            try:
                work()
            except AerobeeError as error:
                log.error("a config file cannot be written: %s; it is tried again", error)

        self._writer.submit(run)

    @property
    def save_settings(self) -> Callable[[Mapping[str, str]], None] | None:
        """Writes settings that were changed at run time into the configuration file; None without one."""
        return None if self._settings_path is None else self._save_settings

    def _save_settings(self, changes: Mapping[str, str]) -> None:
        path, disk = str(self._settings_path), self._disk

        def write() -> None:
            try:
                text = disk.read_file(path).decode()
                disk.replace_file(path, merge_properties(text, changes).encode())
            except (OSError, UnicodeDecodeError) as error:
                log.error("%s does not have the new settings %s, write them: %s", path, dict(changes), error)

        self.run_blocking(write)

    def close(self, *, wait: bool) -> None:
        """Take no more work; with `wait` what was given is done on return."""
        self._writer.shutdown(wait=wait)
