"""Sends that wait for others of their topic and share a request with them (ProducerConfig.linger_ms).

Invariants: messages of one queue that the caller chose, by name, selector or message group, are stored in the order of their
sends, because a batch of that queue leaves when the one before it has its reply; each send gets the result of its
message. A batch that a broker refuses, having stored nothing, is sent message by message: what is wrong with one message is
reported to its sender alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.client.base.results import SendResult
from aerobee.client.producer.batch_split import NOT_IN_BATCHES
from aerobee.client.producer.send_tries import Select, may_be_stored
from aerobee.client.session.send_header import encode_plain_entry
from aerobee.errors import AerobeeError, RemoteError
from aerobee.message import RETRY_PREFIX, Message, MessageQueue

BATCH_COUNT_MAX = 1_024  # messages of one request


class LingeringSend(NamedTuple):
    """One send. `entry` is its message inside a batch, empty for a message that is sent on its own."""

    message: Message
    unique_id: str
    entry: bytes
    deadline: float  # of the event loop's time
    result: asyncio.Future[SendResult]
    queue: MessageQueue | None  # that the caller chose
    select: Select | None  # by which


_new_send = tuple.__new__
# (topic, ids, entries, queue, deadline): one request, with retries.
SendBatch = Callable[[str, list[str], bytes, MessageQueue | None, float], Awaitable[tuple[SendResult, ...]]]
SendAlone = Callable[[LingeringSend], Awaitable[SendResult]]
_Key = tuple[str, MessageQueue | None]  # topic and chosen queue


@dataclass(slots=True, eq=False)
class _Batch:
    timer: asyncio.TimerHandle
    timeout_s: float
    sends: list[LingeringSend] = field(default_factory=list)
    size: int = 0


class Lingering:
    """The batches of one producer. Belongs to one event loop; the producer's `in_flight_max` bounds the sends."""

    def __init__(
        self,
        *,
        linger_s: float,
        batch_bytes_max: int,
        send_batch: SendBatch,
        send_alone: SendAlone,
    ) -> None:
        self._linger_s = linger_s
        self._bytes_max = batch_bytes_max
        self._send_batch = send_batch
        self._send_alone = send_alone
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, _Batch] = {}
        self._in_order: dict[_Key, deque[_Batch]] = {}  # of chosen queues: the first is in flight
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        message: Message,
        unique_id: str,
        deadline: float,
        timeout_s: float,
        *,
        shares: bool,
        queue: MessageQueue | None = None,
        select: Select | None = None,
    ) -> asyncio.Future[SendResult]:
        """Add a send, which has `timeout_s` in all until `deadline`, to the next batch of its queue; return its result's
        future. `shares`: as may_share() says. Raises UsageError for a message that can never be stored.
        """
        entry = encode_plain_entry(message, unique_id) if shares else b""
        result: asyncio.Future[SendResult] = self._loop.create_future()
        key = message.topic, queue
        batch = self._open.get(key)
        if batch is not None and (
            not entry
            or batch.timeout_s != timeout_s  # sends of one request share their deadline, about
            or batch.size + len(entry) > self._bytes_max
        ):
            self._close(key, batch)
            batch = None
        if batch is None:
            batch = self._open[key] = _Batch(
                self._loop.call_later(self._linger_s, self._close_due, key), timeout_s
            )
        # Without a call of the class: half the time.
        batch.sends.append(
            _new_send(LingeringSend, (message, unique_id, entry, deadline, result, queue, select))
        )
        batch.size += len(entry)
        if not entry or len(batch.sends) >= BATCH_COUNT_MAX:
            self._close(key, batch)
        return result

    def flush(self) -> None:
        """Send every batch that still waits for others."""
        for key, batch in list(self._open.items()):
            self._close(key, batch)

    def _close_due(self, key: _Key) -> None:
        batch = self._open.get(key)
        if batch is not None:
            self._close(key, batch)

    def _close(self, key: _Key, batch: _Batch) -> None:
        """The batch takes no more messages, and is sent as soon as the one before it in its queue has its reply."""
        del self._open[key]
        batch.timer.cancel()
        if key[1] is None:
            self._start(self._send(key, batch))
        elif (batches := self._in_order.get(key)) is not None:
            batches.append(batch)
        else:
            self._in_order[key] = deque((batch,))
            self._start(self._send_in_order(key))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_in_order(self, key: _Key) -> None:
        batches = self._in_order[key]
        try:
            while batches:
                await self._send(key, batches[0])
                batches.popleft()
        finally:
            del self._in_order[key]
            for batch in batches:  # cancelled with the event loop
                for send in batch.sends:
                    send.result.cancel()

    async def _send(self, key: _Key, batch: _Batch) -> None:
        """Send a batch; every send of it has a result afterwards."""
        sends = [send for send in batch.sends if not send.result.done()]  # without those that were cancelled
        if len(sends) == 1:
            await self._one_by_one(sends)
            return
        if not sends:
            return
        topic, queue = key
        entries = b"".join([send.entry for send in sends])
        deadline = min(send.deadline for send in sends)
        try:
            results = await self._send_batch(
                topic, [send.unique_id for send in sends], entries, queue, deadline
            )
        except AerobeeError as error:
            if isinstance(error, RemoteError) and not may_be_stored(error):
                await self._one_by_one(sends)
            else:
                for send in sends:
                    _fail(send, error)
        except BaseException as error:
            for send in sends:
                _fail(send, error)
            raise
        else:
            for send, result in zip(sends, results, strict=True):
                if not send.result.done():
                    send.result.set_result(result)

    async def _one_by_one(self, sends: list[LingeringSend]) -> None:
        for send in sends:
            if send.result.done():
                continue
            try:
                result = await self._send_alone(send)
            except AerobeeError as error:
                _fail(send, error)
            except BaseException as error:
                for each in sends:
                    _fail(each, error)
                raise
            else:
                if not send.result.done():
                    send.result.set_result(result)


def may_share(message: Message, body_bytes_max: int) -> bool:
    """Whether a batch stores this message as a separate request would. A longer body would be compressed on its own."""
    return (
        type(message.body) is bytes
        and len(message.body) <= body_bytes_max
        and not message.is_delayed
        and message.ack is None
        and message.priority < 0
        and message.wait_store_ok
        and not message.topic.startswith(RETRY_PREFIX)
        and (not message.properties or NOT_IN_BATCHES.isdisjoint(message.properties))
    )


def _fail(send: LingeringSend, error: BaseException) -> None:
    if send.result.done():
        return
    if isinstance(error, Exception):
        send.result.set_exception(_own(error))
    else:
        send.result.cancel()


def _own(error: Exception) -> Exception:
    """A copy of a batch's error for one of its sends: an exception that several callers raise gathers the tracebacks of all, and the
    context of one is seen by the others. Without a call of the class, whose arguments may be others than `args`.
    """
    own = type(error).__new__(type(error), *error.args)
    own.__dict__.update(error.__dict__)
    own.__cause__, own.__context__ = error.__cause__, error.__context__
    own.__suppress_context__ = error.__suppress_context__
    return own.with_traceback(error.__traceback__)
