"""No setting is accepted without effect and without a word."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.config import BrokerConfig
from aerobee.config import property_key
from aerobee.nameserver.config import WITHOUT_EFFECT_KEYS, NameServerConfig
from aerobee.ops.rocketmq_keys import BROKER_KEYS, NAMESERVER_KEYS
from aerobee.store.config import StoreConfig

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = {"broker": BrokerConfig, "store": StoreConfig, "nameserver": NameServerConfig}


def test_the_table_of_rocketmqs_settings_is_what_the_code_says() -> None:
    """It also fails for a key of RocketMQ that is neither obeyed nor excused with a reason."""
    script = ROOT / "scripts" / "settings-table"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def attributes_read() -> set[str]:
    """Every attribute that the code reads inside a function, but for the checks of the configurations themselves."""
    found: set[str] = set()
    for path in (ROOT / "aerobee").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not (
                isinstance(node, ast.FunctionDef) and node.name == "__post_init__"
            ):
                found |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
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
    # Bounds are asked for by their keys (bounds.py of broker and NameServer).
    folders = (ROOT / "aerobee" / "broker", ROOT / "aerobee" / "nameserver")
    text = "".join(path.read_text(encoding="utf-8") for each in folders for path in each.rglob("*.py"))
    assert [key for key in unread if f'"{key}"' not in text] == []


def test_keys_that_only_rocketmq_has_are_known_when_a_file_holds_them() -> None:
    for key in ("lockInStrictMode", "filterSupportRetry", "flushConsumeQueueLeastPages"):
        assert key in BROKER_KEYS
    assert "productEnvName" in NAMESERVER_KEYS
