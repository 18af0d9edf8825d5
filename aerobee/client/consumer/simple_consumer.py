"""A consumer that owns no queues: receive(), then acknowledge or redeliver each message.

Follows SimpleConsumer of RocketMQ 5 and its POP calls. Every member of the group may receive any message; a received message
stays invisible to the others until its invisible time expires, it is acknowledged, or its invisible time is changed. There is
no rebalance: joining and leaving members move no queues, and a member that hangs delays only the messages it has received.
"At least once": a message that is not acknowledged in time is redelivered, with reconsume_times one higher, up to the group's
maximum number of deliveries: then it is dead-lettered, as by RocketMQ's proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from aerobee.client.base.checks import (
    check_messages,
    check_popped,
    check_seconds,
    config_of,
    subscription_map,
)
from aerobee.client.base.config import ClientConfig, SimpleConsumerConfig
from aerobee.client.base.metering import METERS, ClientState
from aerobee.client.base.observer import (
    ConsumeObserver,
    ReceiveObserver,
    begin_receive,
    begin_settle,
    chosen_observers,
)
from aerobee.client.base.received import read_value_or_error
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.base.verdict import LEVEL_DEAD_LETTER, GiveBack
from aerobee.client.consumer.broker_calls import send_back
from aerobee.client.consumer.first_offset import begin_at_end
from aerobee.client.consumer.group_retries import GroupRetries
from aerobee.client.consumer.pop_calls import ack, ack_all, change_invisible, pop
from aerobee.client.consumer.popped import PoppedMessage
from aerobee.client.consumer.subscription import Subscription, subscribe
from aerobee.client.serialize.serializer import Deserializer, check_serializer, deserialized
from aerobee.client.session.session import Session
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RouteError, UsageError
from aerobee.message import MessageQueue, check_group_name
from aerobee.network import Network
from aerobee.remoting.body.heartbeat import CONSUME_POP, ConsumerData
from aerobee.remoting.protocol import ANY_QUEUE, POP_COUNT_MAX
from aerobee.words import plural

log = logging.getLogger(__name__)

# Pause between two tries while a topic's broker has no master.
MASTER_PAUSE_FIRST_S, MASTER_PAUSE_MAX_S = 0.1, 1.0


class SimpleConsumer:
    """`async with SimpleConsumer(addresses, "group", subscriptions={"orders": "*"}) as consumer:`

    for message in await consumer.receive():
        await consumer.ack(message)
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        *,
        config: SimpleConsumerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        observers: Sequence[ConsumeObserver | ReceiveObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        """`subscriptions`: topic -> "*", "TagA || TagB" or Sql("…"); a list of topics wants all. `deserializer`: reads the body of each
        message into `message.value`, which raises BodyUnreadable when it cannot. Opens nothing before start()."""
        check_group_name(group)
        check_serializer(deserializer, Deserializer, "deserializer")
        self._read = None if deserializer is None else partial(deserialized, deserializer)
        wanted = subscription_map(subscriptions)
        self.group = group
        self.config = config_of(SimpleConsumerConfig, config, "config")
        self._session = Session(
            nameservers,
            config=config_of(ClientConfig, client, "client"),
            clock=clock,
            network=network,
            random=random,
        )
        self._session.meter = METERS.open("simple_consumer", group, self._metered_state)
        self._observers = chosen_observers(observers, None, group)
        version = self._session.clock.now_ms()
        self._subscriptions: dict[str, Subscription] = {
            topic: subscribe(topic, expression, version) for topic, expression in wanted.items()
        }
        self._retries = GroupRetries(self._session, group, self.config.retry_count_max)
        self._waiting: dict[MessageQueue, asyncio.Task[list[PoppedMessage]]] = {}
        self._turn = 0

    @property
    def client_id(self) -> str:
        """Id of this client at NameServers and brokers: address, instance and a suffix that makes it unique."""
        return self._session.client_id

    async def start(self) -> None:
        """Join the group. Raises ConnectFailed when no NameServer answers, TopicNotExist for an unknown topic."""
        session = self._session
        await session.start()
        try:
            session.join_consumer(self.group, self._heartbeat_entry)
            session.routes.subscribe(self._subscriptions)
            queues: list[MessageQueue] = []
            for topic in self._subscriptions:
                queues += subscribe_queues(await session.routes.refresh(topic))
            await session.heartbeat()
            if not self.config.from_begin:
                await begin_at_end(session, self.group, queues)
        except BaseException:
            await session.close()
            raise

    async def close(self) -> None:
        """Leave the group. Unacknowledged messages are redelivered when their invisible time expires."""
        if not self._session.is_open:
            return
        for task in self._waiting.values():
            task.cancel()
        self._waiting.clear()
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def receive(
        self,
        count_max: int = POP_COUNT_MAX,
        *,
        invisible_s: float | None = None,
        wait_s: float | None = None,
        topic: str | None = None,
    ) -> list[PoppedMessage]:
        """Receive up to `count_max` (1 to 32) messages, of one topic or of all; empty when none arrived within `wait_s`.

        They are invisible to other members for `invisible_s` seconds. When a broker is lost, or is no longer master, the
        route is refreshed, and messages are received from the new master within `wait_s`. Raises RemoteError, RouteError
        or TransportError when no broker answered.
        """
        self._session.check_open()
        if not isinstance(count_max, int) or not 1 <= count_max <= POP_COUNT_MAX:
            raise UsageError(f"receive() takes 1 to {POP_COUNT_MAX} messages, not {count_max!r}")
        if topic is not None and topic not in self._subscriptions:
            raise UsageError(f"topic {topic} is not among the subscriptions of this consumer")
        for value, name in ((invisible_s, "invisible_s"), (wait_s, "wait_s")):
            if value is not None:
                check_seconds(value, name)
        invisible_ms = round((self.config.invisible_s if invisible_s is None else invisible_s) * 1000)
        wait_ms = round((self.config.wait_s if wait_s is None else wait_s) * 1000)
        if invisible_ms <= 0 or wait_ms < 0:
            raise UsageError("invisible_s must be above 0, wait_s must not be negative")
        end = self._session.clock.monotonic() + wait_ms / 1000
        if not self._observers:
            return self._taken(await self._receive(count_max, invisible_ms, wait_ms, topic, end))
        ended = begin_receive(self._observers, self.group)
        try:
            taken = await self._receive(count_max, invisible_ms, wait_ms, topic, end)
        except BaseException as error:
            ended((), error)
            raise
        ended(taken, None)
        return self._taken(taken)

    def _taken(self, taken: list[PoppedMessage]) -> list[PoppedMessage]:
        if self._read is not None:
            for message in taken:
                read_value_or_error(message, self._read)
        if (meter := self._session.meter) is not None:
            for message in taken:
                meter.received(message.topic, 1)
        return taken

    def _metered_state(self) -> ClientState:
        return ClientState(clients=1, connections=len(self._session.remoting.connections))

    async def _receive(
        self, count_max: int, invisible_ms: int, wait_ms: int, topic: str | None, end: float
    ) -> list[PoppedMessage]:
        sources = await self._sources(topic, end)
        taken = self._arrived(sources)
        if taken:
            return taken
        # Each receive() starts at another broker; only when none has messages, it waits at all of them.
        self._turn += 1
        sources = sources[self._turn % len(sources) :] + sources[: self._turn % len(sources)]
        if len(sources) == 1:
            return await self._pop_until(sources[0], count_max, invisible_ms, end)
        failure: AerobeeError | None = None
        failed_count = 0
        for source in sources:
            if source in self._waiting:
                continue
            try:
                taken = await self._pop(source, count_max, invisible_ms, 0)
            except AerobeeError as error:
                failure = error
                failed_count += 1
                self._trouble(source, error)
            if taken:
                return taken
        if wait_ms:
            return await self._wait(sources, count_max, invisible_ms, end)
        if failure is not None and failed_count == len(sources):
            raise failure
        return []

    @property
    def pending_count(self) -> int:
        """Number of brokers with a pending pop whose messages no call of receive() or arrived() has returned."""
        return len(self._waiting)

    def arrived(self) -> list[PoppedMessage]:
        """Messages of brokers that replied after receive() had returned another broker's; sends no request.

        The next receive() returns them too. Their invisible time has begun, so a caller that pauses takes them.
        """
        found: list[PoppedMessage] = []
        while taken := self._arrived(tuple(self._waiting)):
            found += taken
        return self._taken(found)

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge the message: the group does not receive it again. Stored in the broker's log on return.

        Raises RemoteError (code 208) when its invisible time expired and it was delivered again.
        """
        self._session.check_open()
        check_popped(message)
        await self._settle("ack", [message], ack(self._session, self.group, message))
        if self._session.meter is not None:
            self._session.meter.consumed(message.topic, 1)

    async def _settle(self, operation: str, messages: Sequence[PoppedMessage], call: Awaitable[None]) -> None:
        """Await a call that settles messages, and notify the observers of it."""
        if not self._observers:
            return await call
        ended = begin_settle(self._observers, self.group, operation, messages)
        try:
            await call
        except BaseException as error:
            ended(error)
            raise
        return ended(None)

    async def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge several messages with one call per broker, which does not report late acknowledgements."""
        self._session.check_open()
        check_messages(messages, "ack_all([message, message])")
        wanted = list(messages)
        for message in wanted:
            check_popped(message)
        await self._settle("ack", wanted, ack_all(self._session, self.group, wanted))
        if (meter := self._session.meter) is not None:
            for message in wanted:
                meter.consumed(message.topic, 1)

    async def change_invisible(
        self, message: PoppedMessage, invisible_s: float, *, count_try: bool = True
    ) -> None:
        """Redeliver the message `invisible_s` seconds from now, 0: immediately.

        A longer time than before extends the processing time. `count_try` false leaves its reconsume_times unchanged
        (Aerobee, RocketMQ from 5.5). Raises RemoteError (code 208) when it was delivered again already.
        """
        self._session.check_open()
        check_popped(message)
        check_seconds(invisible_s, "invisible_s")
        call = change_invisible(
            self._session, self.group, message, round(invisible_s * 1000), suspend=not count_try
        )
        await self._settle("change_invisible", [message], call)
        if self._session.meter is not None:
            self._session.meter.retried(message.topic)

    async def dead_letter(self, message: PoppedMessage, reason: str = "") -> None:
        """Dead-letter the message, and acknowledge it."""
        self._session.check_open()
        check_popped(message)
        call = self._to_dead_letters(message, reason, message.reconsume_times + 1)
        await self._settle("dead_letter", [message], call)

    async def _to_dead_letters(self, message: PoppedMessage, reason: str, tries: int) -> None:
        verdict = GiveBack(LEVEL_DEAD_LETTER, reason, tries=tries)
        await send_back(self._session, self.group, message, verdict)
        await ack(self._session, self.group, message)
        if self._session.meter is not None:
            self._session.meter.dead_lettered(message.topic)

    # --- where

    async def _sources(self, topic: str | None, end: float) -> list[MessageQueue]:
        """One entry (topic, broker, any queue) for each readable master of each topic. Waits until `end` for the first master."""
        topics = [topic] if topic is not None else list(self._subscriptions)
        clock, pause_s = self._session.clock, MASTER_PAUSE_FIRST_S
        while True:
            found: dict[MessageQueue, None] = {}
            for name in topics:
                for queue in subscribe_queues(await self._session.routes.get(name)):
                    if self._session.routes.address_of(queue.broker_name) is not None:
                        found[MessageQueue(name, queue.broker_name, ANY_QUEUE)] = None
            if found:
                return list(found)
            await asyncio.gather(*(self._session.routes.refresh(name) for name in topics))
            left_s = end - clock.monotonic()
            if left_s <= 0:
                break
            await clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MASTER_PAUSE_MAX_S)
        raise RouteError(
            ", ".join(topics),
            f"no master has readable queues of {', '.join(topics)} now: see `aerobee topic describe`",
        )

    async def _pop_until(
        self, source: MessageQueue, count_max: int, invisible_ms: int, end: float
    ) -> list[PoppedMessage]:
        """As _pop(), waiting until `end`; retries at the new master when the broker is lost or no longer master."""
        clock, pause_s = self._session.clock, MASTER_PAUSE_FIRST_S
        while True:
            left_s = max(0.0, end - clock.monotonic())
            try:
                return await self._pop(source, count_max, invisible_ms, round(left_s * 1000))
            except AerobeeError as error:
                left_s = end - clock.monotonic()
                if left_s <= 0 or not error.retriable:
                    raise
                if pause_s == MASTER_PAUSE_FIRST_S:
                    self._trouble(source, error)
            # The failed call triggers a route refresh; the election of a new master may take a moment.
            await clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MASTER_PAUSE_MAX_S)

    def _trouble(self, source: MessageQueue, error: AerobeeError) -> None:
        self._session.peers.trouble(
            log, error, "group %s, %s at %s: %s", self.group, source.topic, source.broker_name, error
        )

    async def _pop(
        self, source: MessageQueue, count_max: int, invisible_ms: int, wait_ms: int
    ) -> list[PoppedMessage]:
        subscription = self._subscriptions[source.topic]
        taken = await pop(
            self._session,
            self.group,
            source,
            subscription,
            count_max=count_max,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            from_begin=self.config.from_begin,
        )
        # The broker compares hashes of tags: a message with another tag of the same hash does not match.
        collisions = [message for message in taken if not subscription.wants(message.tag)]
        if collisions:
            self._session.tasks.spawn(ack_all(self._session, self.group, collisions), "pop-ack-collisions")
            taken = [message for message in taken if subscription.wants(message.tag)]
        if not any(message.reconsume_times for message in taken):
            return taken
        bound = await self._retries.bound(source.broker_name, source.topic)
        return [
            message
            for message in taken
            if message.reconsume_times <= bound or not await self._give_up(message)
        ]

    async def _give_up(self, message: PoppedMessage) -> bool:
        """Dead-letter a message with too many deliveries; False when no broker accepts it: the caller then delivers
        it."""
        tries = message.reconsume_times
        try:
            reason = f"not acknowledged in {plural(tries, 'delivery', 'deliveries')}"
            await self._to_dead_letters(message, reason, tries)
        except AerobeeError as error:
            log.warning("group %s: %s is not dead-lettered: %s", self.group, message, error)
            return False
        return True

    async def _wait(
        self, sources: list[MessageQueue], count_max: int, invisible_ms: int, end: float
    ) -> list[PoppedMessage]:
        """Wait at all brokers; messages of later replies are kept for the next receive()."""
        for source in sources:
            if source not in self._waiting:
                self._waiting[source] = self._session.tasks.spawn(
                    self._pop_until(source, count_max, invisible_ms, end), "pop-wait", awaited=True
                )
        while True:
            left_s = end - self._session.clock.monotonic()
            tasks = [self._waiting[source] for source in sources if source in self._waiting]
            if not tasks or left_s <= 0:
                return []
            await asyncio.wait(tasks, timeout=left_s + 1, return_when=asyncio.FIRST_COMPLETED)
            taken = self._arrived(sources)
            if taken:
                return taken

    def _arrived(self, sources: Sequence[MessageQueue]) -> list[PoppedMessage]:
        """Kept messages of earlier pops, except those whose invisible time is about to expire."""
        found: list[PoppedMessage] = []
        for source in sources:
            task = self._waiting.get(source)
            if task is None or not task.done() or found:
                continue
            del self._waiting[source]
            if task.cancelled():
                continue
            error = task.exception()
            if isinstance(error, AerobeeError):
                self._trouble(source, error)
            elif error is not None:
                raise error
            else:
                now_s = self._session.clock.monotonic()
                found = [
                    message
                    for message in task.result()
                    if message.left_s(now_s) * 1000 > message.handle.invisible_ms / 2
                ]
        return found

    def _heartbeat_entry(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            CONSUME_POP,
            "CLUSTERING",
            "CONSUME_FROM_FIRST_OFFSET" if self.config.from_begin else "CONSUME_FROM_LAST_OFFSET",
            tuple(subscription.to_data() for subscription in self._subscriptions.values()),
        )
