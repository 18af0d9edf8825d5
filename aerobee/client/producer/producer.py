"""Sends messages: awaited, one-way, in batches; retries at several brokers within one deadline.

Follows DefaultMQProducerImpl. A send selects the next queue in round robin, and after a retriable failure continues at
another broker. It needs no task and no timer per send; at most `in_flight_max` sends wait for a reply, further callers
wait for a slot. "At least once": a send whose reply was lost is retried, so a message can be stored twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from aerobee.client.base.checks import (
    check_handler,
    check_message,
    check_messages,
    check_queue,
    check_seconds,
    config_of,
)
from aerobee.client.base.compression import compress
from aerobee.client.base.config import ClientConfig, Compression, ProducerConfig
from aerobee.client.base.metering import METERS, ClientState
from aerobee.client.base.observer import SendObserver, begin_send, begin_send_batch, chosen_send_observers
from aerobee.client.base.results import SendResult
from aerobee.client.producer.batch_split import split
from aerobee.client.producer.fault_avoidance import FaultAvoidance
from aerobee.client.producer.lingering import Lingering, may_share
from aerobee.client.producer.message_group import (
    Selector,
    by_lite_topic,
    by_message_group,
    with_lite_topic,
    with_message_group,
)
from aerobee.client.producer.metered_send import metered
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.publish_info_table import PublishInfoTable, target_of
from aerobee.client.producer.recall import recall_message
from aerobee.client.producer.request_reply import PendingRequests
from aerobee.client.producer.request_reply_calls import RequestReplyCalls
from aerobee.client.producer.send_semaphore import SendSemaphore
from aerobee.client.producer.send_tries import FirstTry, Select, SendTries, connect_s, waited_too_long
from aerobee.client.serialize.serializer import Serializer, check_serializer, serialized
from aerobee.client.session.send_header import (
    RESERVED_PROPERTIES,
    Ids,
    check_properties,
    decode_batch_reply,
    decode_send_reply,
    properties_text,
)
from aerobee.client.session.session import Session
from aerobee.client.tracing.trace import Tracer, trace_client, trace_group
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, ConnectFailed, SendFailed, UsageError
from aerobee.message import Message, MessageQueue, check_group_name
from aerobee.network import Network
from aerobee.property_names import TRAN_MSG
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.connection_calls import OPAQUE_MASK, opaques
from aerobee.system_names import NOT_SENDABLE

log = logging.getLogger(__name__)

EMPTY_BODY = "a message for topic %s has an empty body: Aerobee's brokers store it, RocketMQ's answer with an internal error; send at least one byte"
T = TypeVar("T")

# Properties that are refused, or that make the message one of another kind (TransactionProducer._prepare).
NOT_PLAIN = RESERVED_PROPERTIES | {TRAN_MSG}
SEND = RequestCode.SEND_MESSAGE_V2.name


class Producer(RequestReplyCalls):
    """Sends messages. `async with Producer("127.0.0.1:9876") as producer: await producer.send(message)`."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str = "DEFAULT_PRODUCER",
        *,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        trace: bool = False,
        observers: Sequence[SendObserver] = (),
        serializer: Serializer | None = None,
    ) -> None:
        """`nameservers`: "host:port;host:port" or a sequence. Opens nothing before start() or `async with`.

        `trace`: record each send in RMQ_SYS_TRACE_TOPIC, which `aerobee trace` and RocketMQ's consoles read.
        `serializer`: makes the bodies of message(), for example Json() of aerobee.client.serialize.
        """
        check_group_name(group)
        check_serializer(serializer, Serializer, "serializer")
        self.group = group
        self._serializer = serializer
        self.config = config_of(ProducerConfig, config, "config")
        self._session = Session(
            nameservers,
            config=config_of(ClientConfig, client, "client"),
            clock=clock,
            network=network,
            random=random,
        )
        self._meter = self._session.meter = METERS.open("producer", group, self._metered_state)
        self._connections = self._session.remoting.by_address
        self._clock = self._session.clock
        self._routes = PublishInfoTable(self._session, group, self.config)
        self._publish = self._routes.known
        self._in_flight = SendSemaphore(self.config.in_flight_max)
        self._has_sent_empty = False
        self._tracer: Tracer | None = None
        if trace:
            sender = Producer(
                nameservers,
                trace_group(group, "PRODUCE"),
                client=trace_client(client),
                clock=clock,
                network=network,
                random=random,
            )
            self._tracer = Tracer(sender, group=group, clock=self._clock)
        self._observers = chosen_send_observers(observers, self._tracer, group)
        self._requests = PendingRequests(
            clock=self._clock, random=self._session.random, count_max=self.config.in_flight_max
        )
        # Topics whose brokers know this client as a requester.
        self._request_routes: dict[str, PublishInfo] = {}
        self._closing = False
        faults = FaultAvoidance() if self.config.latency_fault else None
        self._tries = SendTries(self._routes, self.config, faults, self._meter)
        self._lingering: Lingering | None = None  # from start() on, with linger_ms
        # Whether send() itself can make the first try.
        self._is_plain = not (
            self._observers or faults or self.config.retry_when_not_stored_ok or self.config.linger_ms
        )
        self._delay_level_max = self.config.delay_level_max
        self._timeout_s = self.config.send_timeout_s
        self._is_one_try = not self.config.retry_count_max
        self._plain_bytes_max = self.config.body_bytes_max
        if self.config.compression is not Compression.NONE:
            self._plain_bytes_max = min(self._plain_bytes_max, self.config.compress_over_bytes)

    @property
    def client_id(self) -> str:
        """Id of this client at NameServers and brokers: address, instance and a suffix that makes it unique."""
        return self._session.client_id

    async def start(self) -> None:
        """Connect to a NameServer and join the producer group. Raises ConnectFailed when no NameServer answers."""
        self._session.join_producer(self.group)
        self._session.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT.value] = self._requests.arrived
        # Deadlines of calls use the event loop's time, which a test that moves the clock does not change.
        self._loop = asyncio.get_running_loop()
        await self._session.start()
        await self._session.require_nameserver(self.config.default_topic)
        self._ids = self._session.unique_ids()
        if self.config.linger_ms:
            self._lingering = Lingering(
                linger_s=self.config.linger_ms / 1000,
                batch_bytes_max=self.config.batch_bytes_max,
                send_batch=self._send_together,
                send_alone=lambda send: self._try_to_send(
                    send.message, send.queue, send.deadline, select=send.select, unique_id=send.unique_id
                ),
            )
        if self._tracer is not None:
            await self._tracer.start()

    async def close(self) -> None:
        """Wait for the sends in flight, at most one send time-out, then leave the group."""
        if self._session.is_open:
            self._session.check_loop()
        self._closing = True
        if self._lingering is not None:
            self._lingering.flush()
        if self._in_flight.taken:
            try:
                async with asyncio.timeout(self.config.send_timeout_s):
                    await self._in_flight.emptied()
            except TimeoutError:
                log.warning(
                    "closed while %d sends wait for an answer: whether they are stored is unknown",
                    self._in_flight.taken,
                )
        try:
            if self._tracer is not None:
                await self._tracer.close()
        finally:
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

    def message(self, topic: str, value: Any, **fields: Any) -> Message:
        """A message with the value as its body, by the serializer; `fields` are those of Message (tag, keys, …).

        Every send takes it: `await producer.send(producer.message("orders", order, tag="new"))`. Raises UsageError
        without a serializer, and for a value that it does not take.
        """
        found = serialized(self._serializer, value)
        properties = {**found.properties, **fields.pop("properties", {})}
        return Message(topic, found.body, properties=properties, **fields)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The writable queues of `topic`. Raises RouteError when no broker has it or would create it."""
        self._session.check_open()
        return (await self._routes.info(topic)).queues

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
        lite_topic: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        Messages with equal `message_group` go to one queue in the order of their sends (docs/order.md); the group travels in
        the property __SHARDINGKEY. The queue is the given one, the selector's choice, that of the message group or of the
        lite topic (docs/queues.md), or the next in turn: then a retry uses another broker. Check `result.status`: with another status than SEND_OK the message is less durable than the broker's settings require. Raises SendFailed
        when no try succeeded in time, RouteError without a broker, UsageError or another RemoteError when it can never be stored.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        if type(message) is not Message:
            check_message(message)
        if timeout_s is not None:
            check_seconds(timeout_s)
        deadline = (now := self._loop.time()) + (timeout_s or self._timeout_s)
        is_chosen = queue is not None or selector is not None or message_group is not None
        if not self._is_plain or is_chosen or lite_topic is not None:
            options = queue, selector, message_group, lite_topic, deadline, timeout_s
            return await self._send_observed(message, *options)
        in_flight = self._in_flight
        if in_flight.taken < in_flight.count_max:
            in_flight.taken += 1
        else:
            await in_flight.wait()
            now = self._loop.time()
            if now >= deadline:
                in_flight.give_back()
                raise waited_too_long(message.topic, timeout_s or self._timeout_s, in_flight.count_max)
        try:
            info, body = self._publish.get(message.topic), message.body
            if (
                info is None
                or type(body) is not bytes
                or not 0 < len(body) <= self._plain_bytes_max
                or (message.properties and not NOT_PLAIN.isdisjoint(message.properties))
                or message.topic in NOT_SENDABLE
                or (message.delay_level and message.delay_level > self._delay_level_max)
            ):
                return await self._send_in_tries(message, None, deadline)
            # A message eligible for the fast path: the first try without a coroutine and a timer.
            turn = info.turn + 1
            chosen, target = info.choices[turn % len(info.choices)]
            connection = None if target is None else self._connections.get(target.address)
            if target is None or connection is None:
                return await self._send_in_tries(message, None, deadline)
            info.turn = turn
            opaque = next(opaques) & OPAQUE_MASK
            frame, unique_id = target.send.begin(
                self._ids, opaque, chosen.queue_id, self._clock.now_ms(), message
            )
            future = connection.try_call(frame, opaque, now, deadline, SEND, (chosen, unique_id))
            if future is None:
                return await self._send_in_tries(message, None, deadline, unique_id=unique_id)
            try:
                reply = await future
                if type(reply) is not SendResult:  # a failure, or a reply of a rare form
                    reply = self._read_reply(reply, chosen, unique_id, target, connection)
                if info.sends is not None:
                    info.sends.record(self._loop.time() - now)
                return reply
            except AerobeeError as error:
                first = FirstTry(info, target, chosen, now, error)
            return await self._send_in_tries(message, None, deadline, unique_id=unique_id, first=first)
        except RuntimeError:
            self._session.check_loop()
            raise
        finally:
            if in_flight.is_watched:
                in_flight.give_back()
            else:
                in_flight.taken -= 1

    async def _send_observed(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        message_group: object,
        lite_topic: str | None,
        deadline: float,
        timeout_s: float | None,
    ) -> SendResult:
        """A send with any combination of options."""
        if self._lingering is not None and not self._observers and (queue or selector or lite_topic) is None:
            has_slot = self._in_flight.taken < self._in_flight.count_max
            if message_group is None and has_slot and may_share(message, self._plain_bytes_max):
                return await self._linger(self._lingering, message, deadline, timeout_s)
        check_queue(queue)
        if lite_topic is not None:
            if queue is not None or selector is not None or message_group is not None:
                raise UsageError("lite_topic excludes queue, selector and message_group: it names the queue")
            message = with_lite_topic(message, lite_topic)
            selector, message_group = by_lite_topic, lite_topic
        if message_group is not None and selector is None:
            message = with_message_group(message, message_group)
        ended = select = None
        if self._observers:
            message, ended = begin_send(self._observers, message)
        await self._in_flight.wait()
        try:
            if self._loop.time() >= deadline:
                raise waited_too_long(message.topic, timeout_s or self._timeout_s, self._in_flight.count_max)
            if selector is not None or message_group is not None:
                info = self._publish.get(message.topic) or await self._tries.info(message.topic, deadline)
                queue = self._select(info, message, selector, message_group)
                select = partial(
                    self._select, message=message, selector=selector, message_group=message_group
                )
            shares = may_share(message, self._plain_bytes_max)
            if self._lingering is not None and (shares or queue is not None):
                self._check(message)
                sending = self._lingering.put(
                    message,
                    self._ids.next_id(self._clock.now_ms()),
                    deadline,
                    timeout_s or self._timeout_s,
                    shares=shares,
                    queue=queue,
                    select=select,
                )
                result = await metered(self._meter, self._loop.time, message.topic, sending)
            else:
                result = await self._send_in_tries(message, queue, deadline, select=select)
        except BaseException as error:
            if ended is not None:
                ended(None, error)
            raise
        else:
            if ended is not None:
                ended(result, None)
            return result
        finally:
            self._in_flight.give_back()

    async def _linger(
        self, lingering: Lingering, message: Message, deadline: float, timeout_s: float | None
    ) -> SendResult:
        """A send without options that shares a request with others."""
        if message.properties or not message.body or message.topic in NOT_SENDABLE:
            self._check(message)  # what may_share() has not checked
        unique_id = self._ids.next_id(self._clock.now_ms())
        result = lingering.put(message, unique_id, deadline, timeout_s or self._timeout_s, shares=True)
        self._in_flight.taken += 1
        try:
            return await metered(self._meter, self._loop.time, message.topic, result)
        finally:
            self._in_flight.give_back()

    async def _send_together(
        self, topic: str, ids: list[str], entries: bytes, queue: MessageQueue | None, deadline: float
    ) -> tuple[SendResult, ...]:
        await self._tries.info(topic, deadline)
        return await self._send_one_batch(topic, ids, entries, queue, deadline)

    def _send_in_tries(
        self,
        message: Message,
        fixed: MessageQueue | None,
        deadline: float,
        *,
        select: Select | None = None,
        unique_id: str = "",
        first: FirstTry | None = None,
    ) -> Awaitable[SendResult]:
        """As _try_to_send(), counted."""
        sending = self._try_to_send(message, fixed, deadline, select=select, unique_id=unique_id, first=first)
        began = None if first is None else first.began
        return metered(self._meter, self._loop.time, message.topic, sending, began=began)

    def _metered_state(self) -> ClientState:
        connections = len(self._session.remoting.connections)
        return ClientState(clients=1, in_flight=self._in_flight.taken, connections=connections)

    async def _try_to_send(
        self,
        message: Message,
        fixed: MessageQueue | None,
        deadline: float,
        *,
        select: Select | None = None,
        unique_id: str = "",
        first: FirstTry | None = None,
    ) -> SendResult:
        """Send to `fixed`, which `select` chose if it is given, or to any queue. `first`: an earlier try with
        `unique_id`, which failed."""
        began = self._loop.time()
        if first is None:
            await self._tries.info(message.topic, deadline)
        body, sys_flag = self._prepare(message)
        unique_id = unique_id or self._ids.next_id(self._clock.now_ms())
        properties = properties_text(message, unique_id)

        async def attempt(target: Target, chosen: MessageQueue) -> SendResult:
            connection = await self._connection(target, deadline, SEND, is_only_try=self._is_one_try)
            opaque = connection.next_opaque()
            frame = target.send.frame(
                opaque, chosen.queue_id, sys_flag, self._clock.now_ms(), message.flag, properties, body
            )
            reply = await connection.call(frame, opaque, deadline - self._loop.time(), SEND)
            return self._read_reply(reply, chosen, unique_id, target, connection)

        return await self._tries.run(
            message.topic, fixed, deadline, attempt, select=select, first=first, began=began
        )

    async def _connection(
        self, target: Target, deadline: float, request: str, *, is_only_try: bool
    ) -> Connection:
        """The connection to a broker as soon as it accepts bytes. Raises ConnectFailed when no time is left for a
        request."""
        self._session.check_loop()
        remoting = self._session.remoting
        connection = remoting.connection_to(target.address)
        if connection is None:
            wait_s = connect_s(deadline - self._loop.time(), is_only_try=is_only_try)
            connection = await remoting.connect(target.address, timeout_s=wait_s)
        if connection.congested:
            await connection.wait_writable(deadline - self._loop.time(), request)
        if self._loop.time() >= deadline:
            why = f"the time-out passed before it accepted the request: {request} was not sent"
            raise ConnectFailed(
                f"{target.address}: {why}", address=target.address, request=request, reason=why
            )
        return connection

    def _read_reply(
        self,
        reply: RemotingCommand,
        chosen: MessageQueue,
        unique_id: str,
        target: Target,
        connection: Connection,
    ) -> SendResult:
        """Raises the reply's error when the message is not stored."""
        if reply.code == ResponseCode.GO_AWAY:
            self._session.remoting.leave(connection)
        return decode_send_reply(reply, chosen, unique_id, target.address)

    def _refuse_closed(self) -> None:
        self._session.check_open()
        raise UsageError("this producer is closing and accepts no more messages")

    async def recall(self, topic: str, handle: str, *, timeout_s: float | None = None) -> str:
        """Recall a pending timer message, by `recall_handle` of its SendResult; returns its message id.

        The broker accepts without checking that the message is still pending. RocketMQ's brokers (5.3 and later) and
        Aerobee's refuse without recallMessageEnable, and once the second of the delivery time has begun. Raises
        RemoteError with the reason, UsageError for an invalid handle.
        """
        self._session.check_open()
        return await recall_message(
            self._session, self.group, topic, handle, timeout_s=timeout_s or self.config.send_timeout_s
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
    ) -> None:
        """Send one message without a reply: fast, but lost without notice when the broker cannot store it.

        Returns when the connection has taken the bytes. Raises as send() does for errors that are known before that.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        check_message(message)
        if message.ack is not None:
            raise UsageError(f"ack={message.ack!r}: a one-way send has no acknowledgement, use send()")
        info = self._publish.get(message.topic) or await self._routes.info(message.topic)
        if message_group is not None and selector is None:
            message = with_message_group(message, message_group)
        body, sys_flag = self._prepare(message)
        now_ms = self._clock.now_ms()
        if selector is not None or message_group is not None:
            queue = self._select(info, message, selector, message_group)
        elif queue is None:
            queue = info.next_queue()
        target = target_of(info, queue)
        deadline = self._loop.time() + self.config.send_timeout_s
        try:
            connection = await self._connection(target, deadline, SEND, is_only_try=True)
        except AerobeeError as error:
            self._session.stale.failed(target.address, error)  # for the next send
            raise
        frame = target.send_oneway.frame(
            connection.next_opaque(),
            queue.queue_id,
            sys_flag,
            now_ms,
            message.flag,
            properties_text(message, self._ids.next_id(now_ms)),
            body,
        )
        connection.post(frame)
        if self._meter is not None:
            self._meter.sent_oneway(message.topic)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> tuple[SendResult, ...]:
        """Send many messages in few requests and return one result for each, in their order.

        Messages of one topic share requests of at most `batch_bytes_max`; each request is stored completely or not at
        all. Batches are not compressed. The time-out applies to the whole call. Raises as send() does; when an earlier
        request was stored already, SendFailed states the number of its messages. UsageError refuses messages with a property
        that brokers see outside of batches only: a delay, a priority, a lite topic, DEDUP_KEY.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        if timeout_s is not None:
            check_seconds(timeout_s)
        deadline = self._loop.time() + (timeout_s or self.config.send_timeout_s)
        check_messages(messages)
        batch = list(messages)
        for message in batch:
            check_message(message)
        batch, ended = begin_send_batch(self._observers, batch)
        results: dict[int, SendResult] = {}
        await self._in_flight.wait()
        try:
            for topic, indices, unique_ids, body in split(
                batch, self._check, self._ids, self._clock.now_ms(), self.config.batch_bytes_max
            ):
                sending = self._send_one_batch(topic, unique_ids, body, queue, deadline)
                count = len(unique_ids)
                stored = await metered(self._meter, self._loop.time, topic, sending, count=count)
                results.update(zip(indices, stored, strict=True))
        except BaseException as error:
            ended([results.get(index) for index in range(len(batch))], error)
            if not results or not isinstance(error, AerobeeError):
                raise
            raise SendFailed(
                f"{len(results)} of the messages of this batch were stored, then: {error}",
                retriable=error.retriable,
                may_be_stored=True,
            ) from error
        finally:
            self._in_flight.give_back()
        stored_all = tuple(results[index] for index in range(len(results)))
        ended(stored_all, None)
        return stored_all

    async def send_entries(
        self, topic: str, entries: bytes, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send messages of one topic from an encoded batch body (send_header.encode_batch_entry).

        For callers that encode many messages themselves, with ids from `unique_ids`; the entries are not checked, and observers
        are not called. Stored completely or not at all; returns the position of the first one. Raises as send() does.
        """
        if self._closing or not self._session.is_open:
            self._refuse_closed()
        if timeout_s is not None:
            check_seconds(timeout_s)
        deadline = self._loop.time() + (timeout_s or self.config.send_timeout_s)
        await self._in_flight.wait()
        try:
            sending = self._in_one_request(topic, entries, queue, deadline, decode_send_reply)
            return await metered(self._meter, self._loop.time, topic, sending)
        finally:
            self._in_flight.give_back()

    @property
    def unique_ids(self) -> Ids:
        """Generator of this producer's message ids, while it is open."""
        return self._ids

    def now_ms(self) -> int:
        """The wall clock by which this producer stamps messages."""
        return self._clock.now_ms()

    async def _send_one_batch(
        self,
        topic: str,
        unique_ids: list[str],
        body: bytes,
        queue: MessageQueue | None,
        deadline: float,
    ) -> tuple[SendResult, ...]:
        def decode(
            reply: RemotingCommand, chosen: MessageQueue, _batch_id: str, address: str
        ) -> tuple[SendResult, ...]:
            return decode_batch_reply(reply, chosen, unique_ids, address)

        return await self._in_one_request(topic, body, queue, deadline, decode)

    async def _in_one_request(
        self,
        topic: str,
        body: bytes,
        queue: MessageQueue | None,
        deadline: float,
        decode: Callable[[RemotingCommand, MessageQueue, str, str], T],
    ) -> T:
        """Send a batch, with retries. `decode` converts the reply, the queue, the batch's id and the broker's address
        to a result."""
        batch_id = self._ids.next_id(self._clock.now_ms())
        properties = f"UNIQ_KEY\x01{batch_id}\x02WAIT\x01true\x02"

        async def attempt(target: Target, chosen: MessageQueue) -> T:
            connection = await self._connection(
                target, deadline, "SEND_BATCH_MESSAGE", is_only_try=self._is_one_try
            )
            opaque = connection.next_opaque()
            frame = target.send_batch.frame(
                opaque, chosen.queue_id, 0, self._clock.now_ms(), 0, properties, body
            )
            reply = await connection.call(frame, opaque, deadline - self._loop.time(), "SEND_BATCH_MESSAGE")
            if reply.code == ResponseCode.GO_AWAY:
                self._session.remoting.leave(connection)
            return decode(reply, chosen, batch_id, target.address)

        return await self._tries.run(topic, queue, deadline, attempt)

    def _check(self, message: Message) -> None:
        if message.properties:
            check_properties(message)
        if not message.body and not self._has_sent_empty:
            self._has_sent_empty = True
            log.warning(EMPTY_BODY, message.topic)
        if len(message.body) > self.config.body_bytes_max:
            raise UsageError(
                f"the body has {len(message.body)} bytes, at most {self.config.body_bytes_max} are allowed "
                "(producer.body_bytes_max; the broker's maxMessageSize must allow it too)"
            )
        if message.delay_level > self.config.delay_level_max:
            raise UsageError(
                f"delay_level is {message.delay_level}: brokers have {self.config.delay_level_max} levels and would deliver "
                "at the last; deliver_after=… names any time (producer.delay_level_max, where messageDelayLevel has more)"
            )
        if message.topic in NOT_SENDABLE:
            raise UsageError(f"topic {message.topic} belongs to the broker: clients cannot send to it")

    def _prepare(self, message: Message) -> tuple[bytes, int]:
        """Check a message; return its body as sent and the sys_flag bits of its compression."""
        self._check(message)
        body = message.body
        if not isinstance(body, bytes):
            body = bytes(body)
        config = self.config
        if len(body) <= config.compress_over_bytes or config.compression is Compression.NONE:
            return body, 0
        return compress(body, config.compression, config.compression_level)

    def _select(
        self, info: PublishInfo, message: Message, selector: Selector | None, message_group: object
    ) -> MessageQueue:
        try:
            queue = (selector or by_message_group)(info.queues, message, message_group)
        except TypeError:
            check_handler(selector, "selector", ("queues", "message", "message_group"))
            raise
        if queue not in info.queues:
            raise UsageError(f"the selector returned {queue}, which is not one of the given queues")
        return queue
