"""What each setting means: the comment behind it in the dataclass that it belongs to."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from aerobee.broker.config import BrokerConfig
from aerobee.config import fields_by_key, value_text
from aerobee.store.config import StoreConfig

_FIELD = re.compile(r"    (?P<name>\w+): [^#]*?(?:#\s*(?P<comment>.*))?$")


@cache
def broker_settings() -> dict[str, tuple[str, str]]:
    """Key -> (what it means, its default). A setting without a comment says what it is by its name."""
    found: dict[str, tuple[str, str]] = {}
    for kind in (BrokerConfig, StoreConfig):
        meanings = _comments(kind)
        for key, field in fields_by_key(kind).items():
            default = value_text(field.default) if isinstance(field.default, str | int | float | bool) else ""
            found[key] = (meanings.get(field.name, ""), default)
    return found


def _comments(kind: type[Any]) -> dict[str, str]:
    found = {}
    for line in inspect.getsource(kind).splitlines():
        match = _FIELD.match(line)
        if match is not None and match["comment"]:
            found[match["name"]] = match["comment"].strip()
    return found
