"""The small files of one broker: their paths, and the thread that writes them one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.state_writer import StateWriter
from aerobee.config import merge_properties
from aerobee.errors import StoreError
from aerobee.store.files.disk import Disk


class ConfigFiles:
    """Creates ConfigFile objects by name, and writes them off the event loop."""

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
        self._writer = StateWriter(writer)

    def file(self, name: str) -> ConfigFile:
        """The file of this name in the store's config directory, existing or not."""
        return ConfigFile(path=self._path_of(name), disk=self._disk, writer=self._writer)

    def run_blocking(self, work: Callable[[], None]) -> None:
        """Run what may wait for the disk in the writer's thread, in its turn. Failures are logged."""
        self._writer.run(work)

    def retry(self) -> None:
        """Retry failed writes."""
        self._writer.retry()

    def close(self, *, wait: bool) -> None:
        """Accept no more work; with `wait` the accepted work is done on return."""
        self._writer.close(wait=wait)

    # --- the settings

    @property
    def save_settings(self) -> Callable[[Mapping[str, str]], Awaitable[None]] | None:
        """Writes settings that were changed at run time into the configuration file; None without one."""
        return None if self._settings_path is None else self._save_settings

    async def _save_settings(self, changes: Mapping[str, str]) -> None:
        path, disk = str(self._settings_path), self._disk

        def write() -> None:
            try:
                text = disk.read_file(path).decode()
                disk.replace_file(path, merge_properties(text, changes).encode(), is_private=True)
            except (OSError, UnicodeDecodeError) as error:
                raise StoreError(f"{path} could not be written: {error}", path=path) from error

        await self._writer.write(write)
