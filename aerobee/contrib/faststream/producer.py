"""Sends FastStream's commands by a producer of the client."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import IncorrectState
from faststream.response import PublishType

from aerobee.client.base.results import SendResult
from aerobee.client.producer.message_group import by_message_group, with_message_group
from aerobee.client.producer.producer import Producer
from aerobee.client.producer.transaction_producer import Transaction, TransactionProducer
from aerobee.contrib.faststream.incoming import CORRELATION, EMPTY_BODY, Incoming
from aerobee.contrib.faststream.parser import AerobeeParser
from aerobee.contrib.faststream.response import AerobeePublishCommand
from aerobee.contrib.faststream.settings import AerobeeBrokerConfig
from aerobee.errors import NoReply, RouteError, SendFailed, TopicNotExist, UsageError
from aerobee.message import Message, check_topic_name

log = logging.getLogger(__name__)
REQUEST_TIMEOUT_S = 0.5


class AerobeeProducer:
    """FastStream's ProducerProto. Publishing raises IncorrectState before the broker is connected."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        default = AerobeeParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self._config: AerobeeBrokerConfig | None = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer, config: AerobeeBrokerConfig, codec: Any) -> None:
        """From now on commands are sent."""
        self._producer = producer
        self._config = config
        self.serializer = config.fd_config._serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """From now on publishing raises IncorrectState."""
        self._producer = None

    async def publish(self, cmd: AerobeePublishCommand) -> SendResult | Incoming | None:
        """Send a message, or the reply to a request; a broker has stored it on return.

        A reply whose client is gone is dropped with a warning: a redelivery of the request would not bring it back.
        Raises as Producer.send().
        """
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        if cmd.publish_type is PublishType.REPLY:
            reply = self._reply if cmd.request is not None else self._reply_to_topic
            return await reply(cmd, body, content_type)
        producer = await self._ready(cmd.destination)
        return await producer.send(
            cmd.message(body, content_type),
            message_group=cmd.options.message_group,
            timeout_s=cmd.timeout,
        )

    async def _reply(
        self, cmd: AerobeePublishCommand, body: bytes, content_type: str | None
    ) -> SendResult | None:
        try:
            return await self._connected.reply_to(
                cmd.request,
                body or EMPTY_BODY,
                tag=cmd.options.tag,
                properties=cmd.properties(body, content_type),
            )
        except SendFailed as error:
            log.warning("%s", error)
            return None

    async def _reply_to_topic(
        self, cmd: AerobeePublishCommand, body: bytes, content_type: str | None
    ) -> SendResult | None:
        """Send to the topic that the sender of a message names, who may be anyone: it is not created, and where it does not exist
        the reply is dropped with a warning."""
        try:
            check_topic_name(cmd.destination)
        except UsageError as error:
            log.warning("a reply is dropped: %s", error)
            return None
        message = cmd.message(body, content_type)
        try:
            return await self._connected.send(
                message, message_group=cmd.options.message_group, timeout_s=cmd.timeout
            )
        except (RouteError, TopicNotExist) as error:
            if isinstance(error, RouteError) and not isinstance(error.__cause__, TopicNotExist):
                raise
            log.warning("a reply is dropped: %s", error)
            return None

    async def publish_batch(self, cmd: AerobeePublishCommand) -> tuple[SendResult, ...] | None:
        """Send messages in few requests; with a message group to its queue, in their order. Raises as
        Producer.send_batch()."""
        messages: list[Message] = []
        for each in cmd.batch_bodies:
            body, content_type = await self.codec.encode(each, self.serializer)
            messages.append(cmd.message(body, content_type))
        if not messages:
            return ()
        producer, queue = await self._ready(cmd.destination), None
        if (message_group := cmd.options.message_group) is not None:
            messages = [with_message_group(message, message_group) for message in messages]
            queue = by_message_group(await producer.queues(cmd.destination), messages[0], message_group)
        return await producer.send_batch(messages, queue=queue, timeout_s=cmd.timeout)

    async def request(self, cmd: AerobeePublishCommand) -> Incoming:
        """Send a request and wait for its reply. Raises TimeoutError when none came in `cmd.timeout`."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        producer = await self._ready(cmd.destination)
        try:
            reply = await producer.request(
                cmd.message(body, content_type),
                message_group=cmd.options.message_group,
                timeout_s=cmd.timeout or REQUEST_TIMEOUT_S,
            )
        except NoReply as error:
            raise TimeoutError(str(error)) from error
        if CORRELATION in reply.properties or cmd.correlation_id is None:
            return Incoming.of(reply)
        # A replier without FastStream returns only RocketMQ's id of the request.
        properties = {**reply.properties, CORRELATION: cmd.correlation_id}
        return Incoming(reply.topic, reply.body, properties, reply)

    async def half(
        self, cmd: AerobeePublishCommand, rollback_on: Sequence[type[BaseException]]
    ) -> Transaction:
        """Send a half message. The caller ends the transaction. Raises UsageError without a checker."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        producer = await self._ready(cmd.destination)
        if not isinstance(producer, TransactionProducer):
            raise UsageError("transaction() needs a checker: AerobeeBroker(…, producer_group=…, checker=…)")
        transaction = producer.transaction(
            cmd.message(body, content_type),
            message_group=cmd.options.message_group,
            rollback_on=tuple(rollback_on),
        )
        await transaction.__aenter__()
        return transaction

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("this broker is not connected: call `await broker.connect()` first")
        return self._producer

    async def _ready(self, topic: str) -> Producer:
        producer, config = self._connected, self._config
        if config is not None and topic not in config._known:
            await config.ensure(topic)
        return producer
