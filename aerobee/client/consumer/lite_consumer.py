"""A consumer of lite topics: receive(), then acknowledge or redeliver each message.

The group is a lite group: its attribute lite.bind.topic names the topic. The messages of one lite topic are delivered to the group in
order: while a client has unacknowledged messages of a lite topic, the group receives no others of it. In an exclusive group
(lite.sub.model=Exclusive) the client that subscribed last receives a lite topic, and the others lose it.

Source: LiteSimpleConsumer of RocketMQ's clients for 5.x, by remoting: LITE_SUBSCRIPTION_CTL and POP_LITE_MESSAGE.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from random import Random

import orjson

from aerobee.client.base.config import ClientConfig, SimpleConsumerConfig
from aerobee.client.base.observer import ConsumeObserver, ReceiveObserver
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.pop_calls import pop_lite
from aerobee.client.consumer.popped import PoppedMessage
from aerobee.client.consumer.simple_consumer import SimpleConsumer
from aerobee.client.serialize.serializer import Deserializer
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, UsageError
from aerobee.lite_topic import lite_topic_fault
from aerobee.message import MessageQueue
from aerobee.network import Network
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

SYNC_S = 30.0  # between two repetitions of the whole set: a broker forgets a client after 3 minutes


class LiteStart(Enum):
    """Where the group starts in lite topics that it subscribes."""

    COMMITTED = 0
    """Its committed offset; without one, the next message."""
    FIRST = 1
    """The oldest message."""
    LAST = 2
    """The next message."""


class LiteConsumer(SimpleConsumer):
    """`async with LiteConsumer(addresses, "group", "chat", ["user-42"]) as consumer:`

    for message in await consumer.receive():
        print(message.lite_topic, message.body)
        await consumer.ack(message)
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        topic: str,
        lite_topics: Iterable[str] = (),
        *,
        config: SimpleConsumerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        on_lost: Callable[[str], object] | None = None,
        observers: Sequence[ConsumeObserver | ReceiveObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        """`lite_topics` are subscribed by start(). `on_lost` is called with a lite topic that went to another client. Opens nothing before
        start()."""
        super().__init__(
            nameservers,
            group,
            [topic],
            config=config,
            client=client,
            clock=clock,
            network=network,
            random=random,
            observers=observers,
            deserializer=deserializer,
        )
        self.topic = topic
        self._lite_topics = dict.fromkeys(_checked(lite_topics))
        self._on_lost = on_lost

    @property
    def lite_topics(self) -> frozenset[str]:
        """The subscribed lite topics."""
        return frozenset(self._lite_topics)

    async def start(self) -> None:
        """Join the group, and subscribe. Raises RemoteError when the group is no lite group of the topic, as SimpleConsumer.start()."""
        self._session.handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE.value] = self._lost
        await super().start()
        try:
            await self._synchronize("COMPLETE_ADD", list(self._lite_topics))
        except BaseException:
            await super().close()
            raise
        self._session.tasks.spawn(self._keep_subscribed(), "lite-subscriptions")

    async def close(self) -> None:
        """Leave the group. Unacknowledged messages are redelivered when their invisible time expires."""
        if self._session.is_open:
            try:
                await self._synchronize("COMPLETE_REMOVE", [])
            except AerobeeError as error:
                log.info(
                    "group %s: brokers may keep the lite topics of this client for 3 minutes: %s",
                    self.group,
                    error,
                )
        await super().close()

    async def subscribe(self, *lite_topics: str, start: LiteStart = LiteStart.COMMITTED) -> None:
        """Subscribe lite topics, at every broker of the topic. A lite topic exists from its first message on; it may be subscribed
        earlier. Raises RemoteError when a broker refuses them (LITE_SUBSCRIPTION_QUOTA_EXCEEDED, 2018).
        """
        self._session.check_open()
        names = _checked(lite_topics)
        await self._synchronize("PARTIAL_ADD", names, start)
        self._lite_topics.update(dict.fromkeys(names))

    async def unsubscribe(self, *lite_topics: str) -> None:
        """Receive no more messages of these lite topics."""
        self._session.check_open()
        names = _checked(lite_topics)
        for name in names:
            self._lite_topics.pop(name, None)
        await self._synchronize("PARTIAL_REMOVE", names)

    # --- inside

    async def _synchronize(
        self, action: str, lite_topics: list[str], start: LiteStart = LiteStart.COMMITTED
    ) -> None:
        entry: dict[str, object] = {
            "action": action,
            "clientId": self.client_id,
            "group": self.group,
            "topic": self.topic,
            "liteTopicSet": lite_topics,
            "version": 0,
        }
        if start is not LiteStart.COMMITTED:
            entry["offsetOption"] = {"type": "POLICY", "value": start.value}
        body = orjson.dumps({"subscriptionSet": [entry]})
        route = await self._session.routes.get(self.topic)
        brokers = dict.fromkeys(queue.broker_name for queue in subscribe_queues(route))
        await asyncio.gather(
            *(
                self._session.invoke_broker(
                    name, self.topic, RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL.value, {}, body)
                )
                for name in brokers
            )
        )

    async def _keep_subscribed(self) -> None:
        """Repeat the whole set: a broker keeps it in memory, and brokers join and change."""
        while True:
            await self._session.clock.sleep(SYNC_S)
            try:
                await self._synchronize("COMPLETE_ADD", list(self._lite_topics))
            except AerobeeError as error:
                log.warning("group %s: its lite topics are repeated in %g s: %s", self.group, SYNC_S, error)

    def _lost(self, peer: Peer, request: RemotingCommand) -> None:
        lite_topic = request.text("liteTopic", "")
        if request.text("clientId", "") == self.client_id and request.text("consumerGroup", "") == self.group:
            self._lite_topics.pop(lite_topic, None)
            if self._on_lost is not None:
                self._on_lost(lite_topic)

    async def _pop(
        self, source: MessageQueue, count_max: int, invisible_ms: int, wait_ms: int
    ) -> list[PoppedMessage]:
        return await pop_lite(
            self._session,
            self.group,
            source,
            count_max=count_max,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
        )


def _checked(lite_topics: Iterable[str]) -> list[str]:
    if isinstance(lite_topics, str):
        raise UsageError(f"lite topics are a list of names, write [{lite_topics!r}]")
    names = list(lite_topics)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"lite topic {name!r} is no text")
        if fault := lite_topic_fault(name):
            raise UsageError(f"lite topic {name!r}: {fault}")
    return names
