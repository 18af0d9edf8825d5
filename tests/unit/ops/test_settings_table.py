"""No setting is accepted without effect and without a word."""

from __future__ import annotations

import ast
import dataclasses
import functools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.config import AccessConfig
from aerobee.broker.admin.broker import LIVE_STORE_KEYS, RESTART_KEYS
from aerobee.broker.state.config import BrokerConfig
from aerobee.config import fields_by_key, property_key
from aerobee.console.config import ConsoleConfig
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.raft.config import RaftConfig
from aerobee.metrics_config import MetricsConfig
from aerobee.nameserver.config import START_ONLY_KEYS, WITHOUT_EFFECT_KEYS, NameServerConfig
from aerobee.ops.settings.rocketmq_keys import BROKER_KEYS, NAMESERVER_KEYS
from aerobee.ops.settings.setting_meanings import (
    SettingMeaning,
    broker_settings,
    controller_settings,
    nameserver_settings,
    texts_of,
)
from aerobee.ops.settings.settings import TlsSettings
from aerobee.store.files.config import StoreConfig
from tests.sources import nodes_of, tree_of, walk

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = {"broker": BrokerConfig, "store": StoreConfig, "nameserver": NameServerConfig}


def test_the_table_of_rocketmqs_settings_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also fails for a key of RocketMQ that is neither obeyed nor excused with a reason."""
    monkeypatch.setattr("sys.argv", ["settings-table", "--check"])
    assert runpy.run_path(str(ROOT / "scripts" / "settings-table"))["main"]() == 0, (
        "run scripts/settings-table"
    )


@functools.cache
def attributes_read() -> set[str]:
    """Every attribute that the code reads inside a function, but for the checks of the configurations themselves."""
    found: set[str] = set()
    for path in (ROOT / "aerobee").rglob("*.py"):
        inner: set[int] = set()  # functions of a function that was read
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not (
                id(node) in inner or (isinstance(node, ast.FunctionDef) and node.name == "__post_init__")
            ):
                below = walk(node)
                found |= {each.attr for each in below if isinstance(each, ast.Attribute)}
                inner |= {id(each) for each in below if isinstance(each, ast.FunctionDef | ast.Lambda)}
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_of_ours_is_read_somewhere(name: str) -> None:
    config: type[Any] = CONFIGS[name]
    read = attributes_read()
    unread = [
        property_key(each)
        for each in dataclasses.fields(config)
        if each.name not in read and property_key(each) not in WITHOUT_EFFECT_KEYS
    ]
    # Bounds are requested by their keys (bounds.py of broker and NameServer).
    folders = (ROOT / "aerobee" / "broker", ROOT / "aerobee" / "nameserver")
    text = "".join(path.read_text(encoding="utf-8") for each in folders for path in each.rglob("*.py"))
    assert [key for key in unread if f'"{key}"' not in text] == []


LIVE: dict[str, frozenset[str]] = {
    "broker": frozenset(fields_by_key(BrokerConfig)) - RESTART_KEYS,
    "store": frozenset(LIVE_STORE_KEYS),
    "nameserver": frozenset(fields_by_key(NameServerConfig)) - START_ONLY_KEYS - set(WITHOUT_EFFECT_KEYS),
}
# What runs once, when a part is made.
MAKING = ("__init__", "__post_init__", "_make_h", "open_", "create_system_topics", "first_role", "start_")
# What has fields of the same names and is no configuration.
REQUESTS = ("header", "request", "wish")


@functools.cache
def attributes_read_after_the_start() -> set[str]:
    """Attributes and keys (bounds are requested by key) that functions read which do not only make parts."""
    found: set[str] = set()
    for folder in ("broker", "store", "nameserver", "remoting", "ha", "monitoring"):
        for path in (ROOT / "aerobee" / folder).rglob("*.py"):
            found |= read_by(tree_of(path))
    return found


def read_by(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            # Code that runs once may make objects that are read each time.
            is_asked_again = not child.name.startswith(MAKING)
            for each in (child,) if is_asked_again else lambdas_in(child):
                found |= read_in(each)
        elif isinstance(child, ast.Assign) and isinstance(child.value, ast.Constant):
            found.add(str(child.value.value))  # a key that has a name
        else:
            found |= read_by(child)
            if isinstance(child, ast.Lambda):
                found |= read_in(child)
    return found


def lambdas_in(function: ast.AST) -> list[ast.Lambda]:
    return [each for each in walk(function) if isinstance(each, ast.Lambda)]


def read_in(function: ast.AST) -> set[str]:
    """Attributes of what is no request, and texts, but for the names of fields that are written (keys of a dict)."""
    found: set[str] = set()
    fields = {id(key) for each in walk(function) if isinstance(each, ast.Dict) for key in each.keys}
    for each in walk(function):
        if isinstance(each, ast.Attribute):
            if not (isinstance(each.value, ast.Name) and each.value.id in REQUESTS):
                found.add(each.attr)
        elif isinstance(each, ast.Constant) and id(each) not in fields:
            found.add(str(each.value))
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_setting_that_is_said_to_change_at_run_time_is_read_after_the_start(name: str) -> None:
    config: type[Any] = CONFIGS[name]
    read = attributes_read_after_the_start()
    names = {property_key(each): each.name for each in dataclasses.fields(config)}
    assert [key for key in sorted(LIVE[name]) if not {key, names[key]} & read] == []


def test_keys_that_only_rocketmq_has_are_known_when_a_file_holds_them() -> None:
    for key in ("lockInStrictMode", "filterSupportRetry", "flushConsumeQueueLeastPages"):
        assert key in BROKER_KEYS
    assert "productEnvName" in NAMESERVER_KEYS


@pytest.mark.parametrize("settings", [broker_settings, nameserver_settings, controller_settings])
def test_every_setting_says_what_it_means(settings: Callable[[], dict[str, SettingMeaning]]) -> None:
    assert [key for key, setting in settings().items() if not setting.meaning] == []


@pytest.mark.parametrize(
    "kind",
    [AccessConfig, BrokerConfig, ConsoleConfig, ControllerConfig, MetricsConfig, NameServerConfig, RaftConfig, StoreConfig,
     TlsSettings],
)  # fmt: skip
def test_every_field_of_a_configuration_has_a_docstring(kind: type[Any]) -> None:
    """Below the field, where an editor shows it; a comment behind it is shown nowhere."""
    assert {field.name for field in dataclasses.fields(kind)} == set(texts_of(kind))
