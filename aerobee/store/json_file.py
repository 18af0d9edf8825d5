"""A config file of the store (`config/topics.json` and its like): the newest content and the one before.

RocketMQ's ConfigManager copies the old content to `.bak` and writes the new one in place; a crash can empty the file,
and loading then takes `.bak`. Here the new content replaces the old one in one step, so the file is never half
written. The text's dialect is the caller's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from aerobee.config import merge_properties
from aerobee.errors import StoreError
from aerobee.store.disk import Disk

T = TypeVar("T")
_log = logging.getLogger(__name__)


def save_config_file(disk: Disk, path: str, data: bytes) -> None:
    """Put `data` in place of the file's content and the old content into `path`.bak. Durable on return.

    The file keeps its mode and owner, and `path`.bak has the same.

    The first content goes into both, so that one file alone can be lost at any time.

    Raises StoreError when the disk refuses; the file then has its old content.
    """
    try:
        disk.make_dirs(os.path.dirname(path))
        if disk.exists(path):
            previous = disk.read_file(path)
            if previous == data:
                return
            if previous:
                disk.replace_file(path + ".bak", previous, like=path)
        disk.replace_file(path, data)
        if not disk.exists(path + ".bak"):
            disk.replace_file(path + ".bak", data, like=path)
    except OSError as error:
        raise StoreError(f"the config file {path} could not be written: {error}", path=path) from error


def save_settings_file(disk: Disk, path: str, changes: Mapping[str, str], whole: str) -> None:
    """Put other values for these keys into a properties file, and leave its other lines, secrets and comments, as they are.

    Where there is no file, or an empty one, its content becomes `whole`, and a new one is for its owner's eyes only: it may
    hold secrets. Durable on return. Raises StoreError when the disk refuses or the file is not UTF-8; it then has its old
    content.
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
            "same group; to begin anew without it, move both files away",
            path=path,
        )
    return value


def load_statistics_file(disk: Disk, path: str, parse: Callable[[bytes], T]) -> T | None:
    """As load_config_file, for what is worth less than a start: None, and a warning, when no content can be used."""
    value, failures = _read(disk, path, parse)
    if failures and value is None:
        _log.warning("%s: these statistics begin anew", "; ".join(failures))
    return value


def _read(disk: Disk, path: str, parse: Callable[[bytes], T]) -> tuple[T | None, list[str]]:
    """The first usable content, and what was wrong with the files looked at before it."""
    backup = path + ".bak"
    failures: list[str] = []
    for candidate in (path, backup):
        try:
            if not disk.exists(candidate):
                if candidate == path and disk.exists(backup):
                    failures.append(f"{path} is missing")
                continue
            data = disk.read_file(candidate)
            if not data.strip():
                failures.append(f"{candidate} is empty")
                continue
            value = parse(data)
        except (OSError, ValueError) as error:
            failures.append(f"{candidate}: {error}")
            continue
        if failures:
            _log.warning("%s; using %s, which holds what was saved before", "; ".join(failures), candidate)
        return value, failures
    return None, failures
