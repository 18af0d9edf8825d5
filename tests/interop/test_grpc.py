"""The official gRPC clients, Java and Python, unchanged at our broker's own port: the outcomes that RocketMQ's proxy and broker give.

The clients' programs are those of test_proxy.py, which runs them through RocketMQ's proxy.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import LITE_BIND_TOPIC, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.interop.rocketmq import grpc_scenarios
from tests.interop.test_proxy import OWN, TYPES, expected, plain

SETTINGS = {
    "enable_property_filter": True,
    "recall_message_enable": True,
    "transaction_check_interval": 3_000,
    "transaction_time_out": 5_000,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}


@pytest.mark.parametrize("language", OWN)
async def test_an_official_client_without_a_proxy(language: str, tmp_path: Path) -> None:
    wanted = expected(language)
    async with LocalCluster(broker_config=SETTINGS) as cluster:
        broker = cluster.broker()
        for name in wanted:
            if name != "nowhere":
                attributes = {TYPE_ATTRIBUTE: TYPES.get(name, "NORMAL")}
                broker.topics.put(TopicConfig(f"grpc_{name}", 4, 4, attributes=attributes))
        broker.groups.put(SubscriptionGroupConfig("Ggrpc_fifo", consume_message_orderly=True))
        broker.groups.put(SubscriptionGroupConfig("Ggrpc_deadletter", retry_max_times=1))
        attributes = {LITE_BIND_TOPIC: "grpc_lite"}
        broker.groups.put(SubscriptionGroupConfig("Ggrpc_lite", attributes=attributes))
        texts = await asyncio.to_thread(grpc_scenarios, language, broker.address, "grpc", tmp_path, *wanted)
        assert {name: plain(text) for name, text in texts.items()} == wanted
        assert broker.store.max_offset("%DLQ%Ggrpc_deadletter", 0) == 1
        pops = broker.services.acks
        assert pops.ack_count > 0
        assert list(pops._engine.in_flight.out("Ggrpc_simple")) == []
