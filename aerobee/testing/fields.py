"""Settings of a test's cluster, by the names of our dataclasses or by RocketMQ's keys."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from aerobee.config import Setting, build, fields_by_key
from aerobee.errors import UsageError


def fields_of(given: Mapping[str, Any], name: str, *kinds: type[Any]) -> list[dict[str, Any]]:
    """Split settings into the fields of each dataclass of `kinds`.

    `autoCreateTopicEnable` and `auto_create_topic_enable` mean the same; text for a key is read as in a file, "false" is
    False. Raises UsageError for a key that none of them has, with the nearest that exists.
    """
    found: list[dict[str, Any]] = [{} for _ in kinds]
    for key, value in given.items():
        for kind, fields in zip(kinds, found, strict=True):
            by_key = fields_by_key(kind)
            if key in {field.name for field in dataclasses.fields(kind)}:
                fields[key] = value
            elif key in by_key:
                field = by_key[key].name
                fields[field] = (
                    getattr(build(kind, {key: Setting(value, name)}), field)
                    if isinstance(value, str)
                    else value
                )
            else:
                continue
            break
        else:
            known = [each for kind in kinds for each in fields_by_key(kind)]
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(f"{name} has no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return found
