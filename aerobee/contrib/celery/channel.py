"""Kombu's channel: queues, bindings, publishing and consuming on topics of a RocketMQ cluster.

A queue that is exclusive, deleted automatically or expires is transient (TransientQueue); every other queue is durable
(DurableQueue) and has a separate topic and consumer group. A channel is used by one thread at a time, as Kombu
says; acknowledgements may come from any.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from itertools import count
from queue import Empty
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from aerobee.client.admin.admin import Admin
from aerobee.contrib.celery.cluster_link import ClusterLink
from aerobee.contrib.celery.durable_queue import DurableQueue
from aerobee.contrib.celery.envelope import Envelope, due, encode, priority_queue
from aerobee.contrib.celery.exchange_types import Target, default_transient, targets
from aerobee.contrib.celery.names import (
    direct_tag,
    exchange_topic,
    pattern_tag,
    queue_tag,
    queue_topic,
    transient_topic,
)
from aerobee.contrib.celery.qos import QoS
from aerobee.contrib.celery.settings import Settings
from aerobee.contrib.celery.transient_queue import TransientQueue
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.errors import RouteError, TopicNotExist, UsageError
from aerobee.message import MessageQueue

# Messages that wait in this process for a consumer without a prefetch count.
READY_MAX = 64
LEVEL_COUNT_MAX = 256
_tags = count(1)


@dataclass(slots=True)
class _Consumption:
    """One basic_consume()."""

    queue: str
    no_ack: bool
    callback: Callable[[Any], None]
    source: DurableQueue | TransientQueue


class Channel(virtual.Channel):
    """A virtual channel over a ClusterLink."""

    QoS = QoS
    supports_fanout = True
    do_restore = True
    from_transport_options = ("body_encoding",)

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._link: ClusterLink = connection.link
        self._settings: Settings = connection.settings
        self._wakeup = connection.wakeup
        self._transient: dict[str, TransientQueue] = connection.transient
        self._levels: dict[str, int] = connection.levels
        self._own_transient: set[str] = set()
        self._durable: dict[str, DurableQueue] = {}
        self._consumptions: dict[str, _Consumption] = {}
        self._sources: dict[Delivery, DurableQueue] = {}
        self._turn = 0

    # queues and bindings

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Kombu's `expires`, `message_ttl` and `max_priority` as queue arguments."""
        found: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return found

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue: create its topic, or take the position from which a transient one reads."""
        name = queue or f"amq.gen-{next(_tags)}-{id(self):x}"
        if passive:
            if not self._has_queue(name):
                raise ChannelError(
                    f"NOT_FOUND - no queue {name!r} in vhost {self.connection.client.virtual_host!r}",
                    (50, 10),
                    "Channel.queue_declare",
                    "404",
                )
            return queue_declare_ok_t(name, self._size(name), 0)
        self._new_queue(name, **options)
        return queue_declare_ok_t(name, 0, 0)

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        **_options: Any,
    ) -> None:
        arguments = arguments or {}
        if not (exclusive or auto_delete or "x-expires" in arguments):
            self._declare_durable(queue, arguments.get("x-max-priority"))
            return
        if queue in self._transient:
            return
        found = TransientQueue(
            self._link,
            self._settings,
            queue,
            ttl_ms=arguments.get("x-message-ttl"),
            notify=self._wakeup.notify,
        )
        self._link.call(found.bind(transient_topic(self._settings.prefix), queue_tag(queue), None))
        self._transient[queue] = found
        self._own_transient.add(queue)

    def _declare_durable(self, queue: str, priority_max: Any) -> None:
        topic = queue_topic(self._settings.prefix, queue)
        levels = 0
        if priority_max is not None:
            if not isinstance(priority_max, int) or not 0 <= priority_max < LEVEL_COUNT_MAX:
                raise UsageError(
                    f"queue {queue}: x-max-priority is {priority_max!r}: it must be 0 to {LEVEL_COUNT_MAX - 1}"
                )
            levels = priority_max + 1
        self._link.call(
            self._link.ensure(topic, self._settings, queue_count=levels, priorities=bool(levels), group=topic)
        )
        self._levels[queue] = levels

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        found = self._transient.get(queue)
        if found is None:
            return
        kind, prefix = self._kind(exchange), self._settings.prefix
        if kind == "direct":
            self._link.call(found.bind(transient_topic(prefix), direct_tag(exchange, routing_key), None))
        elif kind == "fanout":
            self._link.call(found.bind(exchange_topic(prefix, exchange), "*", None))
        else:
            regex = re.compile(pattern or "")
            self._link.call(found.bind(exchange_topic(prefix, exchange), pattern_tag(routing_key), regex))

    def _kind(self, exchange: str) -> str:
        state = self.state.exchanges.get(exchange)
        return str(state["type"]) if state else "direct"

    def _has_queue(self, queue: str, **_options: Any) -> bool:
        if queue in self._transient:
            return True
        return self._link.call(self._link.exists(queue_topic(self._settings.prefix, queue)))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_options: Any
    ) -> None:
        """Delete a queue with its messages: the topic and the consumer group of a durable one."""
        if if_empty and self._size(queue):
            return
        if if_unused and any(used.queue == queue for used in self._consumptions.values()):
            return
        self._unbind_all(queue)
        found = self._transient.pop(queue, None)
        if found is not None:
            self._own_transient.discard(queue)
            self._link.call(found.close())
            return
        self._levels.pop(queue, None)
        own = self._durable.pop(queue, None)
        if own is not None:
            self._link.call(own.close())
        self._link.call(self._delete_durable(queue_topic(self._settings.prefix, queue)))

    async def _delete_durable(self, topic: str) -> None:
        self._link.forget(topic)
        await self._link.admin.delete_topic(topic)
        await self._link.admin.delete_group(topic, clean_offsets=True)

    def _unbind_all(self, queue: str) -> None:
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [entry for entry in exchange["table"] if entry[2] != queue]
        self.state.queue_bindings_delete(queue)

    def _purge(self, queue: str) -> int:
        found = self._transient.get(queue)
        if found is not None:
            return found.clear()
        size = self._size(queue)
        return self._link.call(self._durable_queue(queue).purge(size))

    def _size(self, queue: str) -> int:
        """Messages that no worker has received: of a durable queue at the brokers, without those of a future ETA."""
        found = self._transient.get(queue)
        if found is not None:
            return found.ready_count
        return self._link.call(ready_count(self._link.admin, queue_topic(self._settings.prefix, queue)))

    # publishing

    def basic_publish(self, message: Envelope, exchange: str, routing_key: str, **_options: Any) -> None:
        """Store the message for every queue that is bound; returns when brokers have it.

        Raises SendFailed when no broker took it in time, RouteError without a broker, UsageError for a wrong name.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        self._link.call(self._publish(message, exchange or "", routing_key or ""))

    async def _publish(self, message: Envelope, exchange: str, routing_key: str) -> None:
        prefix = self._settings.prefix
        if exchange:
            bound = self._bound(exchange, routing_key)
            kind = self._kind(exchange)
            found = targets(prefix, kind, exchange, routing_key, bound, self._transient)
            if kind == "direct" and not bound and await self._exists(routing_key):
                found = [Target(queue=routing_key)]
        elif routing_key not in self._transient and await self._exists(routing_key):
            found = [Target(queue=routing_key)]
        else:
            found = [default_transient(prefix, routing_key)]
        await asyncio.gather(*(self._send(message, target) for target in found))

    async def _exists(self, queue: str) -> bool:
        if queue in self._levels:
            return True
        return bool(queue) and await self._link.exists(queue_topic(self._settings.prefix, queue))

    def _bound(self, exchange: str, routing_key: str) -> set[str]:
        if exchange not in self.state.exchanges:
            return set()
        found = self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None)
        return set(found)

    async def _send(self, message: Envelope, target: Target) -> None:
        if not target.queue:
            if self._settings.options.create_topics:
                await self._link.ensure(target.topic, self._settings, queue_count=1)
            elif not await self._link.exists(target.topic):
                return  # no transient queue was ever bound: no consumer reads it
            await self._link.send(encode(message, target.topic, tag=target.tag))
            return
        topic = queue_topic(self._settings.prefix, target.queue)
        options, levels = self._settings.options, self._levels.get(target.queue, 0)
        delayed = due(message, time.time(), options.timer_max_s) if options.timers else None
        priority = priority_queue(message, levels) if levels else -1
        if delayed is None:
            await self._link.send(encode(message, topic, priority=priority))
        else:
            queue_id = priority if levels else None
            await self._link.send(encode(message, topic), queue_id=queue_id, deliver_at_s=delayed.at_s)

    # consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], None],
        consumer_tag: str,
        **_options: Any,
    ) -> None:
        """Deliver the queue's messages to `callback` in drain_events()."""
        source: DurableQueue | TransientQueue | None = self._transient.get(queue)
        if source is None:
            source = self._durable_queue(queue)
        self._consumptions[consumer_tag] = _Consumption(queue, no_ack, callback, source)
        self._consumers.add(consumer_tag)
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._link.call(source.receive())

    def _durable_queue(self, queue: str) -> DurableQueue:
        found = self._durable.get(queue)
        if found is None:
            found = DurableQueue(
                self._link,
                self._settings,
                queue_topic(self._settings.prefix, queue),
                wanted=self._wanted,
                notify=self._wakeup.notify,
                level_count=self._levels.get(queue, 0),
            )
            self._link.call(found.start())
            self._durable[queue] = found
        return found

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more. What is here and not delivered goes back to the brokers."""
        used = self._consumptions.pop(consumer_tag, None)
        if used is None:
            return
        self._consumers.discard(consumer_tag)
        self._tag_to_queue.pop(consumer_tag, None)
        if used.queue in self._active_queues:
            self._active_queues.remove(used.queue)
        if self._link.is_open and not any(
            other.source is used.source for other in self._consumptions.values()
        ):
            self._link.call(used.source.pause())

    def basic_get(self, queue: str, no_ack: bool = False, **_options: Any) -> Any:
        """The next message of a queue, None when it has none now."""
        transient = self._transient.get(queue)
        if transient is not None:
            self._link.call(transient.receive())
            envelope = transient.take()
            self._link.call_soon(transient.space_freed)
            return None if envelope is None else self._message(envelope)
        delivery = self._link.call(self._durable_queue(queue).pop_one())
        return None if delivery is None else self._deliver(delivery, no_ack, self._durable[queue])

    def deliver_next(self) -> bool:
        """Call the callback of a consumer with its next message; False when none may be delivered now."""
        used = list(self._consumptions.values())
        for offset in range(len(used)):
            at = (self._turn + offset) % len(used)
            consumption = used[at]
            if not consumption.no_ack and not self.qos.can_consume():
                continue
            taken = consumption.source.take()
            if taken is None:
                continue
            self._turn = at + 1
            if isinstance(taken, Delivery):
                message = self._deliver(taken, consumption.no_ack, consumption.source)
            else:
                self._link.call_soon(consumption.source.space_freed)
                message = self._message(taken)
            if message is not None:
                consumption.callback(message)
            return True
        return False

    @property
    def has_ready(self) -> bool:
        """Whether messages wait in this process, which the prefetch count may hold back."""
        return any(used.source.ready_count for used in self._consumptions.values())

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one message. Raises Empty when none is here; Transport.drain_events() waits for one."""
        if not self.deliver_next():
            raise Empty

    def _deliver(self, delivery: Delivery, no_ack: bool, source: Any) -> Any:
        info = delivery.envelope["properties"]["delivery_info"]
        info["redelivered"] = delivery.message.reconsume_times > 0
        message = self._message(delivery.envelope)
        if message is None:
            self._settle_at(source, delivery, Verdict.DEAD_LETTER, "the body is not in its declared encoding")
        elif no_ack:
            self._settle_at(source, delivery, Verdict.ACK)
        else:
            self._sources[delivery] = source
            self.qos.hold(message, delivery)
        return message

    def _message(self, envelope: Envelope) -> Any:
        """Kombu's message, None when its body cannot be decoded."""
        # Copies of a fanout and redeliveries carry the publisher's tag: each delivery needs a new one.
        envelope["properties"]["delivery_tag"] = f"{self.channel_id}.{next(_tags)}"
        try:
            return self.Message(envelope, channel=self)
        except (ValueError, TypeError, AttributeError):
            return None

    def settle(self, delivery: Delivery, verdict: Verdict) -> None:
        """Called by the QoS when the worker has decided about a delivery, in any thread."""
        source = self._sources.pop(delivery, None)
        if source is not None:
            self._settle_at(source, delivery, verdict, "rejected")

    def _settle_at(
        self, source: DurableQueue, delivery: Delivery, verdict: Verdict, reason: str = ""
    ) -> None:
        if not self._link.is_open:
            return  # a forked child: the parent decides
        self._link.call_soon(self._settle_in_loop, source, delivery, verdict, reason)
        if self.has_ready:
            self._wakeup.notify()

    def _settle_in_loop(
        self, source: DurableQueue, delivery: Delivery, verdict: Verdict, reason: str
    ) -> None:
        source.settle(delivery, verdict, reason)
        self._space_freed()

    def _space_freed(self) -> None:
        for used in tuple(self._consumptions.values()):
            used.source.space_freed()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the maximum number of unacknowledged messages; 0: no maximum."""
        self.qos.prefetch_count = prefetch_count
        self._link.call_soon(self._space_freed)
        self._wakeup.notify()

    def _wanted(self) -> int:
        """How many messages one durable queue of this channel may pop now. In the link's loop."""
        sources = {
            used.source
            for used in tuple(self._consumptions.values())
            if isinstance(used.source, DurableQueue)
        }
        ready = sum(source.ready_count for source in sources)
        if not self.qos.prefetch_count:
            return max(0, READY_MAX - ready)
        free: int = self.qos.prefetch_count - self.qos.unacked_count - ready
        # Each queue pops its share, so that queues together exceed the prefetch count by at most one message each.
        return free if free <= 0 else max(1, free // max(1, len(sources)))

    # end

    def close(self) -> None:
        """Cancel the consumers, return unacknowledged messages, and wait until brokers know it."""
        if self.closed:
            return
        if not self._link.is_open:
            self._abandon()
            return
        super().close()
        closing: list[Coroutine[Any, Any, None]] = [source.close() for source in self._durable.values()]
        self._durable.clear()
        for name in self._own_transient:
            found = self._transient.pop(name, None)
            if found is not None:
                closing.append(found.close())
        self._link.call(_all(closing))

    def _abandon(self) -> None:
        """Close the copy that a forked child has: the parent keeps consumers and deliveries, and may hold their locks."""
        self.closed = True
        self._consumptions.clear()
        self._consumers.clear()
        if self._qos is not None:
            self._qos._on_collect.cancel()
        if self.connection is not None:
            self.connection.close_channel(self)


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; all have ended when the first failure is raised."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def ready_count(admin: Admin, topic: str) -> int:
    """Messages of `topic` and of its retry topic behind the pop position of the group of the same name.

    Invisible messages and those of a later ETA do not count; 0 for a topic that does not exist.
    """
    try:
        ends = await admin.topic_stats(topic)
    except (TopicNotExist, RouteError):
        return 0
    offsets: dict[MessageQueue, int] = {}
    count = 0
    for progress in (await admin.consumer_progress(topic)).queues:
        if progress.queue.topic == topic:
            offsets[progress.queue] = progress.consumer_offset
        else:
            count += max(0, progress.lag)
    for stats in ends:
        count += max(0, stats.max_offset - max(offsets.get(stats.queue, 0), stats.min_offset))
    return count
