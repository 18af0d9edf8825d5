"""A config file of the store (`config/topics.json` and others): the newest content, and the previous one as backup.

RocketMQ's ConfigManager copies the old content to `.bak` and writes the new one in place; a crash can empty the file,
and loading then takes `.bak`. Here the new content replaces the old one in one step, so the file is never half
written, and old content that cannot be read never replaces a usable `.bak`. The text's dialect is the caller's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from aerobee.config import merge_properties
from aerobee.errors import StoreError
from aerobee.store.files.disk import Disk

T = TypeVar("T")
_log = logging.getLogger(__name__)


def save_config_file(disk: Disk, path: str, data: bytes, parse: Callable[[bytes], object]) -> None:
    """Put `data` in place of the file's content and the old content into `path`.bak. Durable on return.

    The file keeps its mode and owner, and `path`.bak has the same. `parse` raises ValueError for unusable content: such
    content does not replace `path`.bak, which may be the only usable copy. One of the two files is usable at every
    moment, also after a failed write or a kill in between.

    The first content goes into both, so that one file alone can be lost at any time.

    Raises StoreError when the disk refuses; the file then has its old content.
    """
    backup = path + ".bak"
    try:
        disk.make_dirs(os.path.dirname(path))
        old, fault = _content(disk, path, parse)
        if old is not None and old[0] == data:
            return
        if old is not None:
            disk.replace_file(backup, old[0], like=path)
        elif fault:
            _log.warning("%s: it is replaced, and %s is kept", fault, backup)
        disk.replace_file(path, data)
        if old is None and _content(disk, backup, parse)[0] is None:
            disk.replace_file(backup, data, like=path)
    except OSError as error:
        raise StoreError(f"the config file {path} could not be written: {error}", path=path) from error


def save_settings_file(disk: Disk, path: str, changes: Mapping[str, str], whole: str) -> None:
    """Put other values for these keys into a properties file, and leave its other lines, secrets and comments, as they are.

    A missing or empty file gets the content `whole`, and a new one is readable only by its owner, because it may
    contain secrets. Durable on return. Raises StoreError when the disk refuses or the file is not UTF-8; it then has
    its old content.
    """
    try:
        disk.make_dirs(os.path.dirname(path))
        text = disk.read_file(path).decode() if disk.exists(path) else ""
        data = (merge_properties(text, changes) if text.strip() else whole).encode()
        disk.replace_file(path, data, is_private=True)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the configuration file {path} could not be written: {error}", path=path) from error


def load_config_file(disk: Disk, path: str, parse: Callable[[bytes], T]) -> T | None:
    """Return parse(content), of `path`.bak when the file is gone or empty or parse raises ValueError on it.

    None when neither file exists. Raises StoreError, naming the files, when there is a file and none can be used:
    starting with empty topics or offsets in place of unreadable ones would lose them.
    """
    value, failures = _read(disk, path, parse)
    if failures and value is None:
        raise StoreError(
            f"no usable content in {'; '.join(failures)}: restore the file from a copy, or another broker's of the "
            "same group; to start without it, move both files away",
            path=path,
        )
    return value


def load_statistics_file(disk: Disk, path: str, parse: Callable[[bytes], T]) -> T | None:
    """Like load_config_file, for statistics and caches, which must not prevent a start: None, and a warning, when no
    content can be used.
    """
    value, failures = _read(disk, path, parse)
    if failures and value is None:
        _log.warning("%s: its contents begin again", "; ".join(failures))
    return value


def _read(disk: Disk, path: str, parse: Callable[[bytes], T]) -> tuple[T | None, list[str]]:
    """The first usable content, and the errors of the files tried before it."""
    backup = path + ".bak"
    failures: list[str] = []
    for candidate in (path, backup):
        found, fault = _content(disk, candidate, parse)
        if found is not None:
            if failures:
                _log.warning(
                    "%s; using %s, which holds what was saved before", "; ".join(failures), candidate
                )
            return found[1], failures
        if fault:
            failures.append(fault)
        elif candidate == path and disk.exists(backup):
            failures.append(f"{path} is missing")
    return None, failures


def _content(disk: Disk, path: str, parse: Callable[[bytes], T]) -> tuple[tuple[bytes, T] | None, str]:
    """The file's content, raw and parsed; None if the file is missing or unusable, with the error."""
    try:
        if not disk.exists(path):
            return None, ""
        data = disk.read_file(path)
        if not data.strip():
            return None, f"{path} is empty"
        return (data, parse(data)), ""
    except (OSError, ValueError) as error:
        return None, f"{path}: {error}"
