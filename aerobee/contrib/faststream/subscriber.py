"""What FastStream's subscribers of this broker have in common: settings, AsyncAPI, replies, the log context.

How they receive: pop_subscriber.py and ordered_subscriber.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from aerobee.contrib.faststream.incoming import TO_CLIENT, Incoming
from aerobee.contrib.faststream.parser import AerobeeParser
from aerobee.contrib.faststream.publisher import ReplyPublisher, spec_address
from aerobee.contrib.faststream.settings import Delivery
from aerobee.contrib.faststream.tag_filter import TagFilter

CANCEL_WITHIN_S = 5.0  # how long stop() waits for handlers that it has cancelled


@dataclass(kw_only=True)
class AerobeeSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What AsyncAPI says about a subscriber."""

    topic: str


@dataclass(kw_only=True)
class AerobeeSubscriberConfig(SubscriberUsecaseConfig):
    """Of one subscriber."""

    topic: str
    delivery: Delivery
    tag: TagFilter = field(repr=False)

    @property
    def ack_policy(self) -> Any:
        """NACK_ON_ERROR unless the subscriber, its router or the broker says otherwise."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return outer if outer is not EMPTY else AckPolicy.NACK_ON_ERROR


class AerobeeSubscriberSpecification(SubscriberSpecification):
    """AsyncAPI of a subscriber."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The one channel."""
        return [self.topic]

    @property
    def name(self) -> str:
        """Key of the channel."""
        return self.config.title_ or f"{self.topic}:{self.call_name}"

    def get_schema(self) -> dict[str, Any]:
        """The one channel of this subscriber."""
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                description=self.description,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
                **spec_address(SubscriberSpec, self.topic),
            )
        }


class AerobeeSubscriber(SubscriberUsecase, ABC):
    """A member of a consumer group of one topic."""

    def __init__(
        self,
        config: AerobeeSubscriberConfig,
        specification: AerobeeSubscriberSpecification,
        calls: Any,
    ) -> None:
        parser = AerobeeParser(config.tag)
        config.parser = parser.parse_batch if config.delivery.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.delivery.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._topic = config.topic
        self.delivery = config.delivery
        self.tag = config.tag
        self._workers: set[asyncio.Task[None]] = set()
        self._is_open = False

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.delivery.group_of(self.topic)

    async def start(self) -> None:
        """Join the group; handlers are called from now on. Raises ConnectFailed without a NameServer."""
        if self._is_open:
            return
        await super().start()
        config = self._outer_config
        if not config.in_memory:
            retries = self.delivery.max_redeliveries
            await config.ensure(
                self.topic, group=self.group, max_redeliveries=16 if retries is None else retries
            )
            await self._open()
            self._is_open = True
        self._post_start()
        if not config.in_memory and self.calls:
            await self._receive()

    @abstractmethod
    async def _open(self) -> None:
        """Connect and join the group."""

    @abstractmethod
    async def _receive(self) -> None:
        """Begin to call handlers."""

    @abstractmethod
    async def _halt(self) -> None:
        """Receive nothing more."""

    @abstractmethod
    async def _close(self) -> None:
        """Return what is not settled, and leave the group."""

    async def stop(self) -> None:
        """Receive nothing more, wait for handlers (at most `graceful_timeout`), return the rest, leave the group."""
        self._is_open = False
        await self._halt()
        await super().stop()
        workers = self._workers - {asyncio.current_task()}
        self._workers.clear()
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=CANCEL_WITHIN_S)
        await self._close()

    def _make_response_publisher(self, message: Any) -> Sequence[ReplyPublisher]:
        producer = self._outer_config.producer
        if message.reply_to != TO_CLIENT:
            return (ReplyPublisher(producer, topic=message.reply_to),)
        raw = message.raw_message
        first: Incoming = raw[0] if isinstance(raw, tuple) else raw
        return (ReplyPublisher(producer, request=first.record),) if first.record is not None else ()

    @staticmethod
    def log_context(message: Any, topic: str = "", group: str = "") -> dict[str, str]:
        """Fields of a log line about a message."""
        return {"topic": topic, "group": group, "message_id": getattr(message, "message_id", "")}

    def get_log_context(self, message: Any) -> dict[str, str]:
        """See log_context()."""
        return self.log_context(message, self.topic, self.group)
