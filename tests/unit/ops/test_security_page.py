"""docs/security.md names every bound with its default, as the settings have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.admin.broker import RESTART_KEYS
from aerobee.broker.state.config import BrokerConfig
from aerobee.config import fields_by_key, value_text
from aerobee.nameserver.config import START_ONLY_KEYS, NameServerConfig
from aerobee.ops.settings.setting_meanings import texts_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
SETTINGS: dict[str, tuple[type[Any], frozenset[str]]] = {
    "broker": (BrokerConfig, RESTART_KEYS),
    "nameserver": (NameServerConfig, START_ONLY_KEYS),
}
NOT_MAX = {"tlsHandshakeTimeoutMillis", "frameReceiveTimeoutMillis", "serverChannelMaxIdleTimeSeconds"}


def table_of(name: str) -> str:
    kind, at_start = SETTINGS[name]
    texts = texts_of(kind)
    rows = ["| key | default | of what |", "|---|---:|---|"]
    for key, field in fields_by_key(kind).items():
        if key in NOT_MAX or key.endswith(("NumsMax", "BytesMax", "ectionsMax", "MembersMax", "GroupsMax", "LocksMax",
                                           "PollsMax", "CallsMax", "SubscriptionsMax", "KeysMax")):  # fmt: skip
            when = " *start*" if key in at_start else ""
            rows.append(f"| `{key}` | {value_text(field.default)} | {texts[field.name]}{when} |")
    return "\n".join(rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_page_has_every_bound(name: str) -> None:
    text = PAGE.read_text()
    found = re.search(rf"<!-- bounds: {name} -->\n(.*?)\n<!-- end -->", text, re.S)
    assert found is not None
    assert found[1] == table_of(name)
