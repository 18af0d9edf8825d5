"""Push consumer: the group's members share the queues, a handler or `async for` receives the messages.

Follows DefaultMQPushConsumerImpl. It owns the queues that rebalance assigns to it, pulls each by long polling, passes
messages to a bounded number of handlers, and commits for each queue the smallest unfinished offset. "At least once":
after a crash, a time-out or a change of owner a message can be redelivered; none is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from aerobee.client.base.checks import check_handler, config_of, subscription_map
from aerobee.client.base.config import Blocked, ClientConfig, ConsumeFrom, ConsumerConfig, MessageModel
from aerobee.client.base.handler_threads import HandlerThreads, in_threads, is_plain
from aerobee.client.base.metering import METERS, ClientState
from aerobee.client.base.observer import ConsumeObserver, chosen_consume_observers, observed
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.topic_route import TopicRoute, subscribe_queues
from aerobee.client.consumer.allocation import Allocation, average
from aerobee.client.consumer.broker_calls import check_subscription
from aerobee.client.consumer.consumer_trace import consumer_tracer
from aerobee.client.consumer.consumption import Consumption, Handler
from aerobee.client.consumer.first_offset import FirstOffset, begin_at_end
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.group_retries import GroupRetries
from aerobee.client.consumer.local_directory import DEFAULT_INSTANCE, LocalDirectory
from aerobee.client.consumer.local_offsets import LocalOffsets
from aerobee.client.consumer.message_stream import MessageStream
from aerobee.client.consumer.offset_store import OffsetStore, RemoteOffsets
from aerobee.client.consumer.ordered_consumption import OrderedConsumption
from aerobee.client.consumer.ordered_ownership import OrderedOwnership
from aerobee.client.consumer.ordered_queue import OrderPolicy
from aerobee.client.consumer.peer_calls import PeerCalls
from aerobee.client.consumer.pop_push import PopPush
from aerobee.client.consumer.pulled_state import add_pulls
from aerobee.client.consumer.queue_pull import PullSettings, QueuePull
from aerobee.client.consumer.rebalance import Rebalancer
from aerobee.client.consumer.subscription import Subscription, subscribe
from aerobee.client.consumer.values import with_values
from aerobee.client.serialize.serializer import Deserializer, check_serializer
from aerobee.client.session.session import INNER_PRODUCER_GROUP, Session
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, TopicNotExist, UsageError
from aerobee.message import RETRY_PREFIX, MessageQueue, check_group_name
from aerobee.network import Network
from aerobee.remoting.body.heartbeat import CONSUME_PASSIVELY, ConsumerData
from aerobee.remoting.command import boolean_text

log = logging.getLogger(__name__)


_ORDERLY_NEEDS_HANDLER = "an orderly consumer needs a handler; `async for` takes messages of all queues"


class PushConsumer:
    """Consumes topics as a member of a group.

    With a handler: `async with PushConsumer(addresses, "group", subscriptions={"orders": "*"}, handler=handle): ...`.
    The handler gets a ReceivedMessage, or a list of them with `batch_size` above 1. When it returns, the message is
    consumed. When it raises, the message is redelivered (RetryLater sets the delay). An `async def` runs in the event
    loop; a plain `def` runs in one of at most `concurrency` threads of this consumer, and may block.

    Without a handler: `async for message in consumer`. The next step of the loop acknowledges the message, `message.ack()`
    does so earlier, and `message.retry()` redelivers it. The last message of a loop that is left is acknowledged only by
    `message.ack()`.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        handler: Handler | None = None,
        *,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        allocation: Allocation = average,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        trace: bool = False,
        observers: Sequence[ConsumeObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        """`subscriptions`: topic -> "*", "TagA || TagB", or "sql:…"; a list of topics wants all. Opens nothing before
        start().

        `trace`: record each handler call in RMQ_SYS_TRACE_TOPIC, which `aerobee trace` and RocketMQ's consoles read.
        `deserializer`: reads the body of each message into `message.value`, for example Json() of
        aerobee.client.serialize. A message whose body it cannot read goes to the dead letters with the reason.
        """
        check_group_name(group)
        check_handler(handler)
        check_serializer(deserializer, Deserializer, "deserializer")
        self.group = group
        self.config = config_of(ConsumerConfig, config, "config")
        self._session = Session(
            nameservers,
            config=config_of(ClientConfig, client, "client"),
            clock=clock,
            network=network,
            random=random,
        )
        self._session.meter = METERS.open("push_consumer", group, self._metered_state)
        self._clock = self._session.clock
        self._broadcasting = self.config.model is MessageModel.BROADCASTING
        wanted = subscription_map(subscriptions)
        if not self._broadcasting:
            wanted[RETRY_PREFIX + group] = "*"
        version = self._clock.now_ms()
        self._subscriptions: dict[str, Subscription] = {
            topic: subscribe(topic, expression, version) for topic, expression in wanted.items()
        }
        self._tracer = (
            consumer_tracer(nameservers, group, client, self._clock, network, random) if trace else None
        )
        observers = chosen_consume_observers(observers, self._tracer, group)
        self._threads = HandlerThreads(f"aerobee-{group}", self.config.concurrency)
        self._pulls: dict[MessageQueue, QueuePull] = {}
        self._started_ms = 0
        self._paused = False
        self._offsets: OffsetStore = RemoteOffsets(self._session, group)
        self._first = FirstOffset(self._session, self.config.consume_from, self.config.consume_timestamp_ms)
        self._directory: LocalDirectory | None = None
        self._retries = GroupRetries(self._session, group, self.config.retry_count_max)
        gives_back = GivesBack(self._session, group, retries=self._retries)
        if handler is not None:
            handler = self._wrapped(handler, deserializer, observers, gives_back)
        self._ordering: OrderedOwnership | None = None
        self._consumption: Consumption | OrderedConsumption
        if self.config.orderly:
            if handler is None:
                raise UsageError(_ORDERLY_NEEDS_HANDLER)
            self._ordering = self._make_ordering(handler, gives_back)
            self._consumption = self._ordering.consumption
        else:
            self._consumption = self._make_consumption(handler or _no_handler, gives_back)
        self._stream: MessageStream | None = None
        if handler is None:
            self._stream = MessageStream(gives_back, self._session, group, observers, deserializer)
        self._deliver = self._stream.deliver if self._stream is not None else self._consumption.deliver
        self._pops: PopPush | None = None
        if not self.config.client_rebalance and not self._broadcasting:
            self._pops = self._make_pops(handler)
        self._rebalancer = self._make_rebalancer(allocation)
        self._settings = _pull_settings(self.config)
        self._answer_brokers(has_handler=handler is not None)

    def _wrapped(
        self,
        handler: Handler,
        deserializer: Deserializer | None,
        observers: Sequence[ConsumeObserver],
        gives_back: GivesBack,
    ) -> Handler:
        """The handler in threads if it is a plain function, with values, and observed."""
        if is_plain(handler):
            handler = in_threads(handler, self._threads)
        if deserializer is not None:
            handler = with_values(handler, deserializer, None if self._broadcasting else gives_back)
        return observed(handler, observers, self.group) if observers else handler

    def _answer_brokers(self, *, has_handler: bool) -> None:
        PeerCalls(
            session=self._session,
            group=self.group,
            consume_type=CONSUME_PASSIVELY,
            pulls=self._pulls,
            subscriptions=self._subscriptions,
            rebalance=self._rebalancer.wake,
            reset=self.reset_offsets,
            consume=self._consumption.consume_directly if has_handler else None,
            settings=self._running_settings,
            locked_at_ms=None if self._ordering is None else self._ordering.locked_at_ms,
        ).install()

    def _make_consumption(self, handler: Handler, gives_back: GivesBack) -> Consumption:
        config = self.config
        return Consumption(
            self._session,
            self.group,
            handler,
            concurrency=config.concurrency,
            batch_size=config.batch_size,
            broadcasting=self._broadcasting,
            gives_back=gives_back,
            local_retry_s=config.local_retry_s,
            timeout_s=config.consume_timeout_s,
        )

    def _make_rebalancer(self, allocation: Allocation) -> Rebalancer:
        return Rebalancer(
            self._session,
            self.group,
            broadcasting=self._broadcasting,
            allocation=allocation,
            topics=lambda: self._subscriptions,
            apply=self._own,
            interval_s=self.config.rebalance_s,
            apply_pops=None if self._pops is None else self._pops.own,
        )

    def _make_pops(self, handler: Handler | None) -> PopPush:
        config = self.config
        if handler is None:
            raise UsageError("a consumer with client_rebalance=False needs a handler; or use SimpleConsumer")
        return PopPush(
            self._session,
            self.group,
            handler,
            subscription=lambda topic: self._subscriptions[topic],
            concurrency=config.concurrency,
            batch_size=config.batch_size,
            invisible_s=config.pop_invisible_s,
            wait_s=config.pull_hold_s,
            count_max=config.pop_batch_count,
            retries=self._retries,
            from_begin=config.consume_from is ConsumeFrom.FIRST,
        )

    def _make_ordering(self, handler: Handler, gives_back: GivesBack) -> OrderedOwnership:
        config = self.config
        policy = OrderPolicy(
            batch_size=config.batch_size,
            suspend_s=config.suspend_s,
            block_max_s=config.block_max_s,
            dead_letters=config.blocked is Blocked.DEAD_LETTER,
        )
        return OrderedOwnership(
            self._session,
            self.group,
            handler,
            policy=policy,
            concurrency=config.concurrency,
            gives_back=gives_back,
            retries=self._retries,
            pulls=self._pulls,
            save=self._save_and_wait,
            rebalance=self.rebalance_now,
            broadcasting=self._broadcasting,
            lease_s=config.lock_lease_s,
            local_retry_s=config.local_retry_s,
        )

    @property
    def client_id(self) -> str:
        """Id of this client at NameServers and brokers: address, instance and a suffix that makes it unique."""
        return self._session.client_id

    @property
    def owned(self) -> frozenset[MessageQueue]:
        """The queues that this member has now, those of the retry topic included; -1 is any queue of a broker (POP)."""
        return frozenset(self._pulls) | (frozenset() if self._pops is None else self._pops.owned)

    @property
    def consumed_count(self) -> int:
        """Number of messages that the handler finished since the start."""
        return self._consumption.consumed_count + (0 if self._pops is None else self._pops.consumed_count)

    def _metered_state(self) -> ClientState:
        pops = self._pops
        state = ClientState(
            clients=1,
            in_flight=self._consumption.busy + (0 if pops is None else pops.busy),
            connections=len(self._session.remoting.connections),
        )
        add_pulls(state, self._pulls)
        if pops is not None:
            state.buffered.update(pops.buffered())
        return state

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises ConnectFailed when no NameServer answers, RemoteError when a broker refuses an SQL92 expression.
        A topic may be created later.
        """
        session = self._session
        await session.start()
        try:
            self._started_ms = self._clock.now_ms()
            self._first.start(self._started_ms)
            if self._broadcasting:
                # Not the client id, which differs in each run unless an instance is configured.
                name = "@".join([session.client_ip, session.config.instance or DEFAULT_INSTANCE])
                self._directory = LocalDirectory.claim(
                    Path(self.config.local_offsets_directory), name, self.group
                )
                self._offsets = LocalOffsets(self._directory.directory)
            session.join_producer(INNER_PRODUCER_GROUP)
            session.join_consumer(self.group, self._heartbeat_entry)
            session.routes.on_change(self._route_changed)
            session.routes.subscribe(self._subscriptions)
            for topic in self._subscriptions:
                try:
                    self._first.know(subscribe_queues(await session.routes.refresh(topic)))
                except TopicNotExist:
                    if not topic.startswith(RETRY_PREFIX):
                        log.warning("topic %s does not exist yet; group %s waits for it", topic, self.group)
            # The heartbeat first: a broker answers only pulls of members that it knows.
            await session.heartbeat()
            if self._pops is not None and self.config.consume_from is ConsumeFrom.LAST:
                await begin_at_end(session, self.group, self._first.known)
            await self._check_expressions()
            session.tasks.spawn(self._rebalancer.run(), "consumer-rebalance")
            session.tasks.spawn(self._keep_offsets(), "consumer-offsets")
            if self._ordering is not None:
                session.tasks.spawn(self._ordering.keep_locks(), "consumer-locks")
            elif self.config.consume_timeout_s and isinstance(self._consumption, Consumption):
                session.tasks.spawn(self._consumption.watch(), "consumer-timeouts")
            if self._tracer is not None:
                await self._tracer.start()
        except BaseException:
            await session.close()
            self._release_directory()
            raise

    def _release_directory(self) -> None:
        if self._directory is not None:
            self._directory.close()

    async def _check_expressions(self) -> None:
        """Let a broker of each topic check expressions other than tags, so that an error is raised now."""
        for subscription in self._subscriptions.values():
            if subscription.expression_type == "TAG":
                continue
            route = self._session.routes.cached(subscription.topic)
            for broker in () if route is None else route.brokers[:1]:
                address = self._session.routes.any_address_of(broker.broker_name)
                if address is not None:
                    await check_subscription(self._session, self.group, subscription, address)

    async def close(self) -> None:
        """Stop pulling, let running handlers end (at most `drain_s`), commit, leave the group."""
        if not self._session.is_open:
            return
        try:
            for pull in self._pulls.values():
                pull.pause()
            if self._stream is not None:
                self._stream.close()
            if self._pops is not None:
                await self._pops.stop(self.config.drain_s)
            await self._consumption.stop(self.config.drain_s)
            if self._ordering is not None:
                await self._ordering.close()
            else:
                await asyncio.gather(*(pull.halt() for pull in self._pulls.values()))
                await self._offsets.save(self._offsets_of(self._pulls))
        finally:
            for pull in self._pulls.values():
                pull.stop()
            self._pulls.clear()
            self._threads.close()
            await self._session.close()
            self._release_directory()
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

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        stream = self._stream
        if stream is None:
            raise UsageError("this consumer has a handler: omit the handler to read it with `async for`")
        self._session.check_open()
        while (message := await stream.next()) is not None:
            yield message
            stream.settle(message, None)

    def pause(self) -> None:
        """Stop pulling until resume(); cached messages are still delivered to the handler."""
        self._paused = True
        if self._pops is not None:
            self._pops.pause()
        for pull in self._pulls.values():
            pull.pause()

    def resume(self) -> None:
        """Resume pulling after pause()."""
        self._paused = False
        if self._pops is not None:
            self._pops.resume()
        for pull in self._pulls.values():
            pull.resume()

    def rebalance_now(self) -> None:
        """Check immediately which queues this member should own."""
        self._rebalancer.wake()

    def _heartbeat_entry(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            CONSUME_PASSIVELY,
            self.config.model.value,
            self.config.consume_from.value,
            tuple(subscription.to_data() for subscription in self._subscriptions.values()),
        )

    def _running_settings(self) -> dict[str, str]:
        settings = {name: str(value) for name, value in asdict(self.config).items()}
        concurrency = str(self.config.concurrency)
        return settings | {
            "PROP_CONSUMEORDERLY": boolean_text(self.config.orderly),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_THREADPOOL_CORE_SIZE": concurrency,
        }

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            self._rebalancer.wake()

    # ownership

    async def _own(self, topic: str, wanted: frozenset[MessageQueue]) -> bool:
        """Set the owned queues of a topic to `wanted`. False when a start offset is still unknown."""
        ordering = self._ordering
        owned = {queue for queue in self._pulls if queue.topic == topic}
        lost = owned - wanted
        if lost:
            if ordering is not None:
                ordering.release(lost)
            else:
                log.info("group %s releases %s", self.group, sorted(lost))
                await self._give_up(lost)
        gained = sorted(wanted - owned)
        complete = True
        if ordering is not None:
            # The start offset is final only under the lock: until then the previous owner still consumes.
            locked = await ordering.take(gained)
            complete = len(locked) == len(gained) and not ordering.is_releasing(wanted)
            gained = sorted(locked)
        if not gained:
            return complete
        starts = await self._start_offsets(gained)
        if not self._session.is_open:
            return True
        for queue, start in zip(gained, starts, strict=True):
            if ordering is not None and not await ordering.may_begin(queue, start):
                complete = False
            elif start is not None and queue not in self._pulls:
                pull = QueuePull(
                    self._session,
                    self.group,
                    queue,
                    start,
                    settings=self._settings,
                    subscription=lambda: self._subscriptions[topic],
                    deliver=self._deliver,
                    moved=self._moved,
                )
                self._pulls[queue] = pull
                if ordering is not None:
                    ordering.consumption.open(pull)
                if self._paused:
                    pull.pause()
                pull.start()
        log.info("group %s takes over %s", self.group, gained)
        return complete and None not in starts

    async def _give_up(self, queues: set[MessageQueue]) -> None:
        lost = {queue: self._pulls[queue] for queue in queues}
        await asyncio.gather(*(pull.halt() for pull in lost.values()))
        for queue, pull in lost.items():
            pull.stop()
            self._pulls.pop(queue, None)
        await self._offsets.save(self._offsets_of(lost))

    async def _start_offsets(self, queues: Sequence[MessageQueue]) -> list[int | None]:
        """The first offset of each queue; None if it is unknown now: the next round tries again.

        The first offset of a new group is committed before anything is consumed: if a member dies before its first
        commit, "last" must not become a newer end of the queue.
        """
        begun: dict[MessageQueue, int] = {}

        async def start(queue: MessageQueue) -> int | None:
            try:
                offset = await self._offsets.load(queue)
                if offset is None:
                    offset = begun[queue] = await self._first.of(queue)
                return offset
            except AerobeeError as error:
                self._session.peers.trouble(
                    log, error, "start offset of %s in group %s: %s", queue, self.group, error
                )
                return None

        starts = await asyncio.gather(*(start(queue) for queue in queues))
        if begun and self._session.is_open:
            await self._offsets.save(begun)
        return starts

    def _moved(self, pull: QueuePull, next_offset: int) -> None:
        self._session.tasks.spawn(self._offsets.save({pull.queue: next_offset}), "consumer-offset-moved")

    # offsets

    async def _keep_offsets(self) -> None:
        while True:
            await self._clock.sleep(self.config.persist_offsets_s)
            await self._offsets.save(self._offsets_of(self._pulls))

    @staticmethod
    def _offsets_of(pulls: Mapping[MessageQueue, QueuePull]) -> dict[MessageQueue, int]:
        return {queue: pull.process.commit_offset for queue, pull in pulls.items()}

    async def _save_and_wait(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the offsets. Raises AerobeeError when a broker refuses them."""
        if isinstance(self._offsets, RemoteOffsets):
            await self._offsets.save_and_wait(offsets)
        else:
            await self._offsets.save(offsets)

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in owned queues, and drop the cached messages of these queues."""
        pulls = {queue: self._pulls[queue] for queue in offsets if queue in self._pulls}
        await asyncio.gather(*(pull.halt() for pull in pulls.values()))
        mine = {queue: offsets[queue] for queue, pull in pulls.items() if self._pulls.get(queue) is pull}
        for queue, offset in mine.items():
            log.warning("group %s: %s is reset to offset %d", self.group, queue, offset)
            pulls[queue].restart(offset)
        await self._offsets.save(mine)


def _pull_settings(config: ConsumerConfig) -> PullSettings:
    return PullSettings(
        lite=False,
        commits=config.model is MessageModel.CLUSTERING,
        post_subscription=config.post_subscription,
        count_max=config.pull_batch_count,
        bytes_max=config.pull_batch_bytes,
        hold_s=config.pull_hold_s,
        timeout_s=config.pull_timeout_s,
        cached_count_max=config.cached_count_max,
        cached_bytes_max=config.cached_bytes_max,
        span_max=config.span_max,
        pause_after_error_s=config.pull_pause_after_error_s,
        interval_s=config.pull_interval_s,
    )


def _no_handler(_message: object) -> None:
    raise UsageError("this consumer is read with `async for` and has no handler")
