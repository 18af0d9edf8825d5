"""FastStream's test client: handlers run in memory, inside of publish(), and no cluster is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing import broker as framework
from faststream.exceptions import SubscriberNotFound

from aerobee.contrib.faststream.broker import AerobeeBroker
from aerobee.contrib.faststream.incoming import TO_CLIENT, Incoming
from aerobee.contrib.faststream.parser import AerobeeParser
from aerobee.contrib.faststream.producer import REQUEST_TIMEOUT_S, AerobeeProducer
from aerobee.contrib.faststream.response import AerobeePublishCommand
from aerobee.contrib.faststream.subscriber import AerobeeSubscriber
from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.property_names import REPLY_TO_CLIENT


class TestAerobeeBroker(framework.TestBroker):
    """`async with TestAerobeeBroker(broker) as broker: await broker.publish(…)`.

    Each message reaches one subscriber of each group of its topic, whatever its delay. A handler's exception leaves
    publish(); nothing is redelivered. Sql() expressions match every message.
    """

    def create_publisher_fake_subscriber(
        self, broker: AerobeeBroker, publisher: Any
    ) -> tuple[AerobeeSubscriber, bool]:
        """A subscriber that notes what is published to a topic without one."""
        for subscriber in (each for owner in self.brokers for each in owner.subscribers):
            if subscriber.topic == publisher.topic and subscriber.tag.wants(publisher.options.tag):
                return subscriber, True
        return broker.subscriber(publisher.topic, batch=publisher.batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: AerobeeBroker) -> Iterator[None]:
        config = broker.config.broker_config
        before = config.in_memory
        config.in_memory = True
        try:
            with framework.change_producer(config, FakeProducer(broker, self.brokers)):
                yield
        finally:
            config.in_memory = before

    async def _fake_connect(self, broker: AerobeeBroker, *_: Any, **__: Any) -> MagicMock:
        return MagicMock()


# FastStream's page "try it out" looks for the test client of a broker, from 0.7.5 on.
getattr(framework, "_TEST_BROKERS", {})[AerobeeBroker] = TestAerobeeBroker


class FakeProducer(AerobeeProducer):
    """Calls the subscribers of all brokers of a test."""

    def __init__(self, broker: AerobeeBroker, brokers: Sequence[AerobeeBroker]) -> None:
        default = AerobeeParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self._broker = broker
        self._brokers = brokers

    async def publish(self, cmd: AerobeePublishCommand) -> None:
        """Run the handlers of the message."""
        if cmd.destination:
            await self._deliver([await self._incoming(cmd, cmd.body)])

    async def publish_batch(self, cmd: AerobeePublishCommand) -> None:
        """Run the handlers of the messages; a batch subscriber gets all of them in one call."""
        await self._deliver([await self._incoming(cmd, body) for body in cmd.batch_bodies])

    async def request(self, cmd: AerobeePublishCommand) -> Incoming:
        """What the first handler returns. Raises SubscriberNotFound without one."""
        incoming = await self._incoming(cmd, cmd.body)
        incoming.properties = {**incoming.properties, REPLY_TO_CLIENT: TO_CLIENT}
        for subscriber in self._subscribers([incoming]):
            raw: Any = (incoming,) if subscriber.delivery.batch else incoming
            async with asyncio.timeout(cmd.timeout or REQUEST_TIMEOUT_S):
                result = await subscriber.process_message(raw)
            reply = AerobeePublishCommand.from_cmd(result.as_publish_command())
            reply.destination = cmd.destination
            return await self._incoming(reply, reply.body)
        raise SubscriberNotFound

    async def half(self, cmd: AerobeePublishCommand, rollback_on: Sequence[type[BaseException]]) -> Any:
        """A transaction that runs the handlers when it is committed."""
        if self._broker._checker is None:
            raise UsageError("transaction() needs a checker: AerobeeBroker(…, producer_group=…, checker=…)")
        return FakeTransaction(self, cmd)

    async def _incoming(self, cmd: AerobeePublishCommand, body: Any) -> Incoming:
        serializer = self._broker.config.fd_config._serializer
        encoded, content_type = await self.codec.encode(body, serializer)
        message: Message = cmd.message(encoded, content_type)
        return Incoming.of_sent(message, cmd.options.message_group)

    def _subscribers(self, batch: Sequence[Incoming]) -> list[AerobeeSubscriber]:
        fitting = [
            subscriber
            for broker in self._brokers
            for subscriber in broker.subscribers
            if subscriber.topic == batch[0].topic and subscriber.tag.wants(batch[0].tag)
        ]
        # FastStream keeps subscribers in a set: sorted, each run of a test calls them in the same order.
        fitting.sort(key=lambda subscriber: (subscriber.group, subscriber.specification.call_name))
        return list({subscriber.group: subscriber for subscriber in reversed(fitting)}.values())[::-1]

    async def _deliver(self, batch: Sequence[Incoming]) -> None:
        for subscriber in self._subscribers(batch) if batch else ():
            for raw in [tuple(batch)] if subscriber.delivery.batch else batch:
                await subscriber.process_message(raw)


class FakeTransaction:
    """A transaction in memory. After an exception it is as one that the checker rolls back."""

    transaction_id = "in memory"

    def __init__(self, producer: FakeProducer, cmd: AerobeePublishCommand) -> None:
        self._producer = producer
        self._cmd = cmd
        self._commits = True

    def rollback(self) -> None:
        """No handler runs."""
        self._commits = False

    def leave_open(self) -> None:
        """No handler runs: the checker would decide."""
        self._commits = False

    async def __aexit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error is None and self._commits:
            await self._producer.publish(self._cmd)
