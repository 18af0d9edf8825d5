"""What each setting means, its default, and from when a change counts: read from the dataclasses that the settings belong to."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any

from aerobee.access.config import AccessConfig
from aerobee.broker.admin.broker import LIVE_STORE_KEYS, RESTART_KEYS
from aerobee.broker.config import BrokerConfig
from aerobee.config import fields_by_key, value_text
from aerobee.ha.quorum.config import CHANGEABLE_KEYS, ControllerConfig
from aerobee.nameserver.config import START_ONLY_KEYS, NameServerConfig
from aerobee.store.config import StoreConfig

_FIELD = re.compile(r"    (?P<name>\w+): [^#]*?(?:#\s*(?P<comment>.*))?$")


@dataclass(frozen=True, slots=True)
class SettingMeaning:
    """`is_live`: a change counts at once, not with the next start only. `meaning`: "" where the name says it."""

    meaning: str
    default: str
    is_live: bool


@cache
def broker_settings() -> dict[str, SettingMeaning]:
    """By key, those of the store and of access control too."""
    return {
        **_settings(AccessConfig, frozenset()),
        **_settings(StoreConfig, LIVE_STORE_KEYS),
        **_settings(BrokerConfig, fields_by_key(BrokerConfig).keys() - RESTART_KEYS),
    }


@cache
def nameserver_settings() -> dict[str, SettingMeaning]:
    """By key."""
    return _settings(NameServerConfig, fields_by_key(NameServerConfig).keys() - START_ONLY_KEYS)


@cache
def controller_settings() -> dict[str, SettingMeaning]:
    """By key."""
    return _settings(ControllerConfig, frozenset(CHANGEABLE_KEYS))


def _settings(kind: type[Any], live: frozenset[str] | set[str]) -> dict[str, SettingMeaning]:
    meanings = _comments(kind)
    return {
        key: SettingMeaning(meanings.get(field.name, ""), _default(field.default), key in live)
        for key, field in fields_by_key(kind).items()
    }


def _default(value: object) -> str:
    return value_text(value) if isinstance(value, str | int | float | bool) else ""


def _comments(kind: type[Any]) -> dict[str, str]:
    found = {}
    sources = (inspect.getsource(base) for base in reversed(kind.__mro__) if is_dataclass(base))
    for line in "".join(sources).splitlines():
        match = _FIELD.match(line)
        if match is not None and match["comment"]:
            found[match["name"]] = match["comment"].strip()
    return found
