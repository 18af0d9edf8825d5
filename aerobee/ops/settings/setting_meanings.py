"""Meaning and default of each setting, and when a change takes effect: read from the dataclasses of the settings."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from dataclasses import dataclass, is_dataclass
from functools import cache
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
    meanings = comments_of(kind)
    return {
        key: SettingMeaning(meanings.get(field.name, ""), _default(field.default), key in live)
        for key, field in fields_by_key(kind).items()
    }


def _default(value: object) -> str:
    return value_text(value) if isinstance(value, str | int | float | bool) else ""


def comments_of(kind: type[Any]) -> dict[str, str]:
    """Field -> the comment in the statement that declares it."""
    found = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        source = inspect.getsource(base)
        comments = {
            token.start[0]: token.string.lstrip("# ").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for each in definition.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                lines = range(each.lineno, (each.end_lineno or each.lineno) + 1)
                if text := " ".join(comments[line] for line in lines if line in comments):
                    found[each.target.id] = text
    return found
