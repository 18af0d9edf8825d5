"""Meaning and default of each setting, and when a change takes effect: read from the dataclasses of the settings."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from aerobee.access.config import AccessConfig
from aerobee.broker.admin.broker import LIVE_STORE_KEYS, RESTART_KEYS
from aerobee.broker.state.config import BrokerConfig
from aerobee.config import fields_by_key, value_text
from aerobee.ha.controller.config import CHANGEABLE_KEYS, ControllerConfig
from aerobee.nameserver.config import START_ONLY_KEYS, NameServerConfig
from aerobee.store.files.config import StoreConfig


@dataclass(frozen=True, slots=True)
class SettingMeaning:
    """`is_live`: a change takes effect immediately, not only at the next start."""

    meaning: str
    default: str
    is_live: bool


@cache
def broker_settings() -> dict[str, SettingMeaning]:
    """Key -> meaning, including the settings of the store and of access control."""
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
    meanings = texts_of(kind)
    return {
        key: SettingMeaning(meanings.get(field.name, ""), _default(field.default), key in live)
        for key, field in fields_by_key(kind).items()
    }


def _default(value: object) -> str:
    return value_text(value) if isinstance(value, str | int | float | bool) else ""


def texts_of(kind: type[Any]) -> dict[str, str]:
    """Field -> its docstring: the text below the field, which editors show."""
    found = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[field.target.id] = " ".join(text.split())
    return found
