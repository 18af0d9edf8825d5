"""Pull consumer: poll() for messages, seek, pause, commit.

Follows DefaultLitePullConsumerImpl. Queues are either assigned explicitly, or subscribed to and shared with the other
members of the group. Messages are prefetched within bounds; `position` is the offset of the next message that poll()
returns. With `auto_commit` the messages of a poll() are committed when the next poll() begins.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from aerobee.client.base.arrival import Arrival
from aerobee.client.base.checks import check_queues, check_seconds, check_whole_number, config_of
from aerobee.client.base.config import ClientConfig, MessageModel, PullConsumerConfig
from aerobee.client.base.metering import METERS, ClientState
from aerobee.client.base.observer import ConsumeObserver, ReceiveObserver, begin_receive, chosen_observers
from aerobee.client.base.received import ReceivedMessage, read_value_or_error
from aerobee.client.base.topic_route import TopicRoute, subscribe_queues
from aerobee.client.consumer.allocation import Allocation, average
from aerobee.client.consumer.broker_calls import begin_offset, check_subscription, end_offset, offset_for_time
from aerobee.client.consumer.consumer_trace import consumer_tracer
from aerobee.client.consumer.first_offset import FirstOffset
from aerobee.client.consumer.offset_store import RemoteOffsets
from aerobee.client.consumer.peer_calls import PeerCalls
from aerobee.client.consumer.pulled_state import add_pulls
from aerobee.client.consumer.queue_pull import PullSettings, QueuePull
from aerobee.client.consumer.rebalance import Rebalancer
from aerobee.client.consumer.subscription import Subscription, subscribe
from aerobee.client.serialize.serializer import Deserializer, check_serializer, deserialized
from aerobee.client.session.session import Session
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import RETRY_PREFIX, MessageQueue, check_group_name
from aerobee.network import Network
from aerobee.remoting.body.heartbeat import CONSUME_ACTIVELY, ConsumerData
from aerobee.system_names import LMQ_PREFIX

log = logging.getLogger(__name__)

BYTES_MAX = (1 << 31) - 1
OFFSET = "the number of a message in its queue, counted from 0"
MOMENT = "milliseconds since the epoch: round(moment.timestamp() * 1000)"


class PullConsumer:
    """`async with PullConsumer(addresses, "group") as consumer: await consumer.subscribe("orders")`, then poll()."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        *,
        config: PullConsumerConfig | None = None,
        client: ClientConfig | None = None,
        allocation: Allocation = average,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        trace: bool = False,
        observers: Sequence[ConsumeObserver | ReceiveObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        """`trace`: record each message that poll() returns in RMQ_SYS_TRACE_TOPIC. `deserializer`: reads the body of each message into
        `message.value`, which raises BodyUnreadable when it cannot. Opens nothing before start()."""
        check_group_name(group)
        check_serializer(deserializer, Deserializer, "deserializer")
        self._read = None if deserializer is None else partial(deserialized, deserializer)
        self.group = group
        self.config = config_of(PullConsumerConfig, config, "config")
        self._session = Session(
            nameservers,
            config=config_of(ClientConfig, client, "client"),
            clock=clock,
            network=network,
            random=random,
            id_suffix="STREAM",
        )
        self._session.meter = METERS.open("pull_consumer", group, self._metered_state)
        self._clock = self._session.clock
        self._tracer = (
            consumer_tracer(nameservers, group, client, self._clock, network, random) if trace else None
        )
        self._observers = chosen_observers(observers, self._tracer, group)
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned_by_hand = False
        self._pulls: dict[MessageQueue, QueuePull] = {}
        self._no_start: dict[MessageQueue, AerobeeError] = {}  # why the start offset is unknown
        self._ready: dict[MessageQueue, deque[ReceivedMessage]] = {}
        self._positions: dict[MessageQueue, int] = {}  # next offset that poll() returns
        self._uncommitted: dict[MessageQueue, int] = {}
        self._offsets = RemoteOffsets(self._session, group)
        self._first = FirstOffset(self._session, self.config.consume_from, self.config.consume_timestamp_ms)
        self._arrived = Arrival()
        self._committed_at = 0.0
        self._started_ms = 0
        self._rebalancer = Rebalancer(
            self._session,
            group,
            broadcasting=self.config.model is MessageModel.BROADCASTING,
            allocation=allocation,
            topics=lambda: self._subscriptions,
            apply=self._own,
            interval_s=self.config.rebalance_s,
        )
        self._settings = PullSettings(
            lite=True,
            commits=False,
            post_subscription=True,
            count_max=self.config.pull_batch_count,
            bytes_max=BYTES_MAX,
            hold_s=self.config.pull_hold_s,
            timeout_s=self.config.pull_timeout_s,
            cached_count_max=self.config.cached_count_max,
            cached_bytes_max=self.config.cached_bytes_max,
            pause_after_error_s=self.config.pull_pause_after_error_s,
        )
        PeerCalls(
            session=self._session,
            group=group,
            consume_type=CONSUME_ACTIVELY,
            pulls=self._pulls,
            subscriptions=self._subscriptions,
            rebalance=self._rebalancer.wake,
            reset=self._reset,
            consume=None,
            settings=lambda: {"PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms)},
        ).install()

    @property
    def client_id(self) -> str:
        """Id of this client at NameServers and brokers: address, instance and a suffix that makes it unique."""
        return self._session.client_id

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues that poll() reads now."""
        return frozenset(self._pulls)

    @property
    def failures(self) -> tuple[AerobeeError, ...]:
        """Why no messages arrive: the newest failure of each heartbeat, rebalance of a topic and pull that is being retried.

        The consumer retries all of them; the application may decide by their types.
        """
        pulls = (pull.failure for pull in self._pulls.values() if pull.failure is not None)
        shares = self._rebalancer.failures.values()
        return (*self._session.beat_failures.values(), *shares, *self._no_start.values(), *pulls)

    def _metered_state(self) -> ClientState:
        state = ClientState(clients=1, connections=len(self._session.remoting.connections))
        add_pulls(state, self._pulls)
        return state

    async def start(self) -> None:
        """Join the group and begin to fetch. Raises ConnectFailed when no NameServer answers."""
        await self._session.start()
        await self._session.require_nameserver(RETRY_PREFIX + self.group)
        if self._tracer is not None:
            await self._tracer.start()
        self._started_ms = self._clock.now_ms()
        self._first.start(self._started_ms)
        self._committed_at = self._clock.monotonic()
        self._session.routes.on_change(self._route_changed)

    async def close(self) -> None:
        """Commit the offsets of polled messages (with auto_commit) and leave the group."""
        if not self._session.is_open:
            return
        try:
            if self.config.auto_commit:
                await self._offsets.save(dict(self._uncommitted))
        finally:
            for pull in self._pulls.values():
                pull.stop()
            self._pulls.clear()
            self._ready.clear()  # a waiting poll() finds no message and returns
            self._arrived.fire()
            await self._session.close()
            if self._tracer is not None:
                await self._tracer.close()

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

    # which queues

    async def subscribe(self, topic: str, expression: str = "*") -> None:
        """Read a topic, sharing its queues with the other members of the group. May be called for several topics.

        `expression` is "*", "TagA || TagB" or Sql("price > 5"). Returns when this member knows its first share.
        Raises RemoteError (code 23) when a broker cannot parse an SQL92 expression.
        """
        self._session.check_open()
        if self._assigned_by_hand:
            raise UsageError("queues were assigned explicitly: use either assign() or subscribe()")
        first = not self._subscriptions
        subscription = subscribe(topic, expression, self._clock.now_ms())
        self._session.routes.subscribe((topic,))
        self._first.know(subscribe_queues(await self._session.routes.refresh(topic)))
        await self._check(subscription)
        self._subscriptions[topic] = subscription
        if first:
            self._session.join_consumer(self.group, self._heartbeat_entry)
        await self._session.heartbeat()
        await self._rebalancer.round()
        if first:
            self._session.tasks.spawn(self._rebalancer.run(), "consumer-rebalance")

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, whether or not other members read them. Replaces an earlier assignment.

        Starts at the committed offset, otherwise by `consume_from`. Raises AerobeeError when the offset is unknown.
        """
        self._session.check_open()
        check_queues(queues)
        if self._subscriptions and not self._assigned_by_hand:
            raise UsageError("topics were subscribed to: use either assign() or subscribe()")
        self._assigned_by_hand = True
        wanted = frozenset(queues)
        self._first.know(wanted)
        version = self._clock.now_ms()
        for topic in sorted({queue.topic for queue in wanted}):
            if topic.startswith(LMQ_PREFIX):
                # An LMQ has no route; its broker registers a topic named like the broker.
                for queue in wanted:
                    await self._session.routes.get(queue.broker_name)
            else:
                await self._session.routes.get(topic)
            subscription = subscribe(topic, expression, version)
            await self._check(subscription)
            self._subscriptions[topic] = subscription
        for queue in tuple(self._pulls):
            if queue not in wanted:
                self._release(queue)
        for queue in sorted(wanted - self._pulls.keys()):
            stored = await self._offsets.load(queue)
            self._take(queue, await self._first.of(queue) if stored is None else stored)

    async def _check(self, subscription: Subscription) -> None:
        """Let a broker of the topic check an expression other than tags, so that an error is raised now."""
        if subscription.expression_type == "TAG":
            return
        route = await self._session.routes.get(subscription.topic)
        for broker in route.brokers[:1]:
            address = self._session.routes.any_address_of(broker.broker_name)
            if address is not None:
                await check_subscription(self._session, self.group, subscription, address)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues of a topic, sorted."""
        self._session.check_open()
        return subscribe_queues(await self._session.routes.refresh(topic))

    def _heartbeat_entry(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            CONSUME_ACTIVELY,
            self.config.model.value,
            self.config.consume_from.value,
            tuple(subscription.to_data() for subscription in self._subscriptions.values()),
        )

    def _route_changed(self, route: TopicRoute) -> None:
        if not self._assigned_by_hand and route.topic in self._subscriptions:
            self._rebalancer.wake()

    async def _own(self, topic: str, wanted: frozenset[MessageQueue]) -> bool:
        owned = {queue for queue in self._pulls if queue.topic == topic}
        for queue in [queue for queue in self._no_start if queue.topic == topic and queue not in wanted]:
            del self._no_start[queue]
        lost = owned - wanted
        if lost:
            # Offsets of polled messages are committed before another member starts to consume the queue.
            offsets = {queue: self._uncommitted[queue] for queue in lost if queue in self._uncommitted}
            for queue in lost:
                self._release(queue)
            if self.config.auto_commit:
                await self._offsets.save(offsets)
        complete = True
        begun: dict[MessageQueue, int] = {}
        for queue in sorted(wanted - owned):
            try:
                start = await self._offsets.load(queue)
                if start is None:
                    start = begun[queue] = await self._first.of(queue)
            except AerobeeError as error:
                self._session.peers.trouble(
                    log, error, "start offset of %s in group %s: %s", queue, self.group, error
                )
                self._no_start[queue] = error
                complete = False
                continue
            self._no_start.pop(queue, None)
            if queue not in self._pulls and self._session.is_open:
                self._take(queue, start)
        if begun and self.config.auto_commit and self._session.is_open:
            await self._offsets.save(
                begun
            )  # as in the push consumer: the start offset of a new group is committed first
        return complete

    def _take(self, queue: MessageQueue, start: int) -> None:
        self._ready[queue] = deque()
        self._positions[queue] = start
        pull = QueuePull(
            self._session,
            self.group,
            queue,
            start,
            settings=self._settings,
            subscription=lambda: self._subscriptions[queue.topic],
            deliver=self._deliver,
            moved=self._moved,
        )
        self._pulls[queue] = pull
        pull.start()

    def _release(self, queue: MessageQueue) -> None:
        self._pulls.pop(queue).stop()
        for table in (self._ready, self._positions, self._uncommitted):
            table.pop(queue, None)

    # messages

    def _deliver(self, pull: QueuePull, messages: list[ReceivedMessage]) -> None:
        self._ready[pull.queue].extend(messages)
        self._arrived.fire()

    def _moved(self, pull: QueuePull, next_offset: int) -> None:
        self._ready[pull.queue].clear()
        self._positions[pull.queue] = self._uncommitted[pull.queue] = next_offset

    async def poll(self, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Return prefetched messages, or wait for the first one; an empty list after `timeout_s` without one.

        Messages of one queue are in order. With `auto_commit` this call commits the messages of the previous one.
        """
        self._session.check_open()
        if not self._subscriptions and not self._assigned_by_hand:
            raise UsageError("nothing is read yet: call subscribe('topic'), or assign() with queues")
        if self.config.auto_commit:
            self._auto_commit()
        check_seconds(timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        received = begin_receive(self._observers, self.group) if self._observers else None
        while not (messages := self._take_ready()):
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0 or not self._session.is_open:
                return []
            await self._arrived.wait_at_most(remaining_s, self._clock)
        if self._read is not None:
            for message in messages:
                read_value_or_error(message, self._read)
        if received is not None:
            received(messages, None)
        if (meter := self._session.meter) is not None:
            for message in messages:
                meter.consumed(message.topic, 1)
        return messages

    def _take_ready(self) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for queue, ready in self._ready.items():
            pull = self._pulls[queue]
            if pull.paused:
                continue
            process = pull.process
            if not ready and self._positions[queue] == process.next_offset:
                continue
            while ready and len(messages) < self.config.poll_count_max:
                message = ready.popleft()
                process.finish(message.queue_offset)
                messages.append(message)
            # The first offset that poll() has not returned; it is after messages that the subscription
            # filtered out.
            position = ready[0].queue_offset if ready else process.next_offset
            self._positions[queue] = self._uncommitted[queue] = position
            pull.space_freed()
        return messages

    def _auto_commit(self) -> None:
        """Commit in the background, so that an unreachable broker does not delay poll()."""
        now = self._clock.monotonic()
        if self._uncommitted and now - self._committed_at >= self.config.auto_commit_s:
            self._committed_at = now
            offsets, self._uncommitted = self._uncommitted, {}
            self._session.tasks.spawn(self._offsets.save(offsets), "consumer-auto-commit")

    # positions

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that poll() returns from a queue; None for a queue that this consumer does not
        read."""
        return self._positions.get(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset. The broker corrects one outside of the queue at the next pull."""
        offset = check_whole_number(offset, "offset", OFFSET)
        if offset < 0:
            raise UsageError(f"offset {offset} of {queue}: offsets begin with 0")
        self._seek(self._owned(queue), offset)

    def _seek(self, pull: QueuePull, offset: int) -> None:
        queue = pull.queue
        self._ready[queue].clear()
        self._positions[queue] = self._uncommitted[queue] = offset
        pull.restart(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first stored message."""
        self._owned(queue)
        offset = await begin_offset(self._session, queue)
        self._seek(self._owned(queue), offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the end of the queue: skip all stored messages."""
        self._owned(queue)
        offset = await end_offset(self._session, queue)
        self._seek(self._owned(queue), offset)

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at or after a time."""
        self._owned(queue)
        timestamp_ms = check_whole_number(timestamp_ms, "timestamp_ms", MOMENT)
        offset = await offset_for_time(self._session, queue, timestamp_ms)
        self._seek(self._owned(queue), offset)

    def _owned(self, queue: MessageQueue) -> QueuePull:
        self._session.check_open()
        pull = self._pulls.get(queue)
        if pull is None:
            raise UsageError(
                f"{queue} is not read by this consumer now: assign it, or subscribe to its topic"
            )
        return pull

    def pause(self, *queues: MessageQueue) -> None:
        """poll() returns nothing from these queues until resume()."""
        for queue in queues:
            self._owned(queue).pause()

    def resume(self, *queues: MessageQueue) -> None:
        """Let poll() return messages of these queues again."""
        for queue in queues:
            self._owned(queue).resume()
        self._arrived.fire()

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The first offset that is stored."""
        self._session.check_open()
        return await begin_offset(self._session, queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of a queue will get."""
        self._session.check_open()
        return await end_offset(self._session, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the end when there is none."""
        self._session.check_open()
        timestamp_ms = check_whole_number(timestamp_ms, "timestamp_ms", MOMENT)
        return await offset_for_time(self._session, queue, timestamp_ms)

    # commits

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or everything that poll() returned. Returns when the brokers have them."""
        self._session.check_open()
        if offsets is None:
            offsets, self._uncommitted = self._uncommitted, {}
        else:
            check_queues(offsets.keys())
            offsets = {
                queue: check_whole_number(offset, f"the offset of {queue}", OFFSET)
                for queue, offset in offsets.items()
            }
        await self._offsets.save_and_wait(offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset of the group; None without one."""
        self._session.check_open()
        return await self._offsets.load(queue)

    async def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        mine = {queue: offset for queue, offset in offsets.items() if queue in self._pulls}
        for queue, offset in mine.items():
            log.warning("group %s: %s is reset to offset %d", self.group, queue, offset)
            self._seek(self._pulls[queue], offset)
        await self._offsets.save(mine)
