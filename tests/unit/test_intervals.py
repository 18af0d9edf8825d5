"""Settings that say how long or how often: 0 and numbers below it are refused, but where 0 has a meaning that stands here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aerobee.broker.state.config import INTERVAL_MS_MIN, BrokerConfig
from aerobee.config import fields_by_key
from aerobee.errors import ConfigError
from aerobee.ha.controller.config import ControllerConfig
from aerobee.nameserver.config import NameServerConfig
from aerobee.store.files.config import StoreConfig

CONFIGS: tuple[tuple[type[Any], dict[str, str]], ...] = (
    (BrokerConfig, {}),
    (StoreConfig, {}),
    (NameServerConfig, {}),
    (ControllerConfig, {
        "controller_d_leger_group": "g", "controller_d_leger_peers": "n0-127.0.0.1:9877", "controller_d_leger_self_id": "n0",
    }),
)  # fmt: skip
OF_TIME = re.compile(r"interval|period|time|millis|mills|seconds|_ms\b|span|delay|wait", re.IGNORECASE)
MEANINGS_OF_ZERO = {
    "startAcceptSendRequestTimeStamp": "from the start on",
    "dedupWindowMillis": "off",
    "transactionOpBatchInterval": "decisions are written at the end of their pass",
    "transactionTimeOut": "a transaction may be checked immediately",
    "flushCommitLogThoroughInterval": "each flush is a thorough one, at flushIntervalCommitLog's pace",
    "flushConsumeQueueThoroughInterval": "each flush is a thorough one, at flushIntervalConsumeQueue's pace",
    "fileReservedTime": "files are deleted at deleteWhen whatever their age",
    "waitSecondsForService": "no wait",
    "shutdownWaitTimeSeconds": "no wait",
}
PACES = (
    "syncBrokerMemberGroupPeriod", "brokerHeartbeatInterval", "syncControllerMetadataPeriod", "checkSyncStateSetPeriod",
    "filterDataCleanTimeSpan", "transactionCheckInterval", "transactionMetricFlushInterval",
)  # fmt: skip


def _taken(config: type[Any], given: dict[str, Any]) -> bool:
    try:
        config(**given)
    except ConfigError:
        return False
    return True


def test_a_time_of_zero_or_less_is_refused_unless_it_has_a_meaning() -> None:
    zero, negative, looked_at = set(), set(), 0
    for config, needed in CONFIGS:
        for key, field in fields_by_key(config).items():
            if field.type in ("int", int) and OF_TIME.search(field.name):
                looked_at += 1
                if _taken(config, {**needed, field.name: 0}):
                    zero.add(key)
                if _taken(config, {**needed, field.name: -1}):
                    negative.add(key)
    assert looked_at > 40
    assert zero == set(MEANINGS_OF_ZERO)
    assert negative == set()


@pytest.mark.parametrize("key", PACES)
def test_what_is_done_again_and_again_has_a_least_pace(key: str) -> None:
    """transactionCheckInterval=0 took half a core for ever."""
    name = fields_by_key(BrokerConfig)[key].name
    assert _taken(BrokerConfig, {name: INTERVAL_MS_MIN})
    with pytest.raises(
        ConfigError, match=f"{key} is {INTERVAL_MS_MIN - 1}, must be at least {INTERVAL_MS_MIN}"
    ):
        BrokerConfig(**{name: INTERVAL_MS_MIN - 1})
