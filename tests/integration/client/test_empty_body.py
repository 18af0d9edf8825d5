"""A message without a body: Aerobee's brokers store it; RocketMQ's do not, so the producer says so before it sends the first one."""

from __future__ import annotations

import logging

import pytest

from aerobee import Message, ProducerConfig
from aerobee.testing import LocalCluster


@pytest.mark.parametrize("linger_ms", [0, 5])
async def test_a_producer_warns_once_of_an_empty_body(
    linger_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with cluster.producer(config=ProducerConfig(linger_ms=linger_ms)) as producer:
            with caplog.at_level(logging.WARNING):
                await producer.send(Message("orders", b"x"))
                assert "empty body" not in caplog.text
                for _ in range(3):
                    await producer.send(Message("orders", b""))
        assert caplog.text.count("has an empty body") == 1
        assert cluster.broker().store.max_offset("orders", 0) == 4
