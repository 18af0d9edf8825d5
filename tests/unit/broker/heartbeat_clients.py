"""Clients that send heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.silent_clients import close_silent_clients
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.membership.heartbeat import HeartbeatCalls
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.producer_registry import CHANNEL_EXPIRY_S, ProducerRegistry
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import ManualClock
from aerobee.remoting import fastjson
from aerobee.remoting.body.heartbeat import HeartbeatData
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer


class Clients:
    """The parts that a heartbeat touches, on a clock that stands still."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        live = LiveConfig(BrokerConfig(broker_name="broker-a", **settings))
        self.topics = TopicTable(file=None, clock=self.clock)
        self.groups = GroupTable(clock=self.clock, live=live)
        self.consumers = ConsumerRegistry(clock=self.clock, call_soon=lambda run: run())
        self.producers = ProducerRegistry(clock=self.clock, call_soon=lambda run: run())
        self.calls = HeartbeatCalls(
            consumers=self.consumers,
            producers=self.producers,
            groups=self.groups,
            topics=self.topics,
            live=live,
            expressions=Expressions(),
            bounds=Bounds(live, self.clock),
        )

    def scan(self) -> None:
        close_silent_clients(self.consumers, self.producers, CHANNEL_EXPIRY_S)

    def call(self, connection: FakePeer, request: RemotingCommand) -> RemotingCommand:
        reply = self.calls.handlers()[request.code](connection, request)  # type: ignore[arg-type]
        if not isinstance(reply, RemotingCommand):  # the first heartbeat of a group waits for its retry topic
            reply = asyncio.run(reply)  # type: ignore[arg-type]
        assert isinstance(reply, RemotingCommand)
        return reply

    def beat(self, connection: FakePeer, data: HeartbeatData) -> dict[str, str]:
        reply = self.call(connection, RemotingCommand(34, {}, data.encode(), version=513))
        assert reply.code == 0
        return reply.ext or {}

    def members(self, group: str) -> list[str]:
        reply = self.call(FakePeer(), RemotingCommand(38, {"consumerGroup": group}))
        return list(fastjson.loads(reply.body)["consumerIdList"]) if reply.code == 0 else []
