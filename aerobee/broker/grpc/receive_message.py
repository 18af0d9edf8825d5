"""ReceiveMessage: a pop with long polling, whose messages are sent as one response stream.

    found      status OK, the messages, delivery_timestamp, end
    nothing    status MESSAGE_NOT_FOUND, delivery_timestamp, end

The queue in the request is ignored, as by RocketMQ's proxy: a pop takes from every queue of the topic. Messages that
could not be sent are redelivered after a second. A waiting call costs one object, no task and no future.

Source: ReceiveMessageActivity, ConsumerProcessor (RocketMQ 5.5.0). Differences: a time to wait that is longer than the deadline
allows is shortened, where the proxy refuses the call; an unknown client is served with the settings of its group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from aerobee.broker.admission.ack import AckPolicy, Safety
from aerobee.broker.admission.pending_access import RefusalOf
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.call_peer import CallPeer
from aerobee.broker.grpc.message_form import delivered_message
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.receipt_handle import CHANGED_MS_MAX, Receipt
from aerobee.broker.grpc.refusal import RpcRefused, safety_status, status, status_of
from aerobee.broker.grpc.renewal_table import FIRST_INVISIBLE_MS, Client
from aerobee.broker.grpc.renewals import Renewals
from aerobee.broker.grpc.rpc import ResponseStream, RpcContext
from aerobee.broker.grpc.times import duration_ms, set_ms
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.pop.ack_service import AckRequest, AckService
from aerobee.broker.pop.engine import INIT_FROM_MAX
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pop.pop_service import PopOutcome, PopRequest, PopService, PopStatus
from aerobee.broker.send.send_back_service import SendBackRequest, SendBackService
from aerobee.broker.state.refusal import Refused
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, MessageDamaged, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import LITE_PREFIX
from aerobee.message import Record, decode_record
from aerobee.remoting.body.pop_handle import Handle
from aerobee.remoting.body.subscription import TYPE_SQL92, TYPE_TAG, parse_tags
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import ANY_QUEUE, POP_COUNT_MAX

log = logging.getLogger(__name__)

INVISIBLE_MS_MIN = 10_000  # minInvisibleTimeMillsForRecv
POLL_MS_MAX = 20_000  # grpcClientConsumerMaxLongPollingTimeoutMillis
ANSWER_MS = 500  # left of the deadline for the answer
ATTEMPT_ID_CHARS_MAX = 255
REQUEST_MS = 1_500  # half of a client's request time-out: left where it names no time to wait


class ReceiveRpc:
    """Serves ReceiveMessage."""

    def __init__(
        self,
        *,
        pops: PopService,
        acks: AckService,
        send_backs: SendBackService,
        lite: LiteService,
        groups: GroupTable,
        ack: AckPolicy,
        unserved: UnservedKinds,
        renewals: Renewals,
        access: RpcAccess,
        clock: Clock,
        broker_name: str,
    ) -> None:
        self._pops = pops
        self._acks = acks
        self._send_backs = send_backs
        self._lite = lite
        self._groups = groups
        self._ack = ack
        self._unserved = unserved
        self._renewals = renewals
        self._access = access
        self._clock = clock
        self._broker_name = broker_name

    def receive(
        self, context: RpcContext, request: pb.ReceiveMessageRequest, stream: ResponseStream
    ) -> Coroutine[Any, Any, None] | None:
        """Serve a call: now, or when a message comes. Raises RpcRefused, Refused, AerobeeError."""
        topic, group = topic_name(request.message_queue.topic), group_name(request.group)
        call = Receiving(self, context, stream, topic, group, request)
        call.check_access()
        self._renewals.seen(context.client)
        asked = self._asked(context, request, topic, group)
        if self._unserved.has(Pop.name):
            return self._pop_when_served(asked, call)
        outcome = self._pop(asked, call)
        if isinstance(outcome, Coroutine):
            return self._pop_cold(outcome, call)
        if outcome is not None:
            call.deliver(outcome)
        return None

    async def _pop_when_served(self, asked: PopRequest, call: Receiving) -> None:
        await self._unserved.when_served(Pop.name)
        outcome = self._pop(asked, call)
        await self._finish(await outcome if isinstance(outcome, Coroutine) else outcome, call)

    def _pop(
        self, asked: PopRequest, call: Receiving
    ) -> PopOutcome | Coroutine[Any, Any, PopOutcome | None] | None:
        """By the group: a lite group takes from the lite topics that the client subscribes."""
        if self._lite.group(asked.group) is not None:
            return self._lite.pop(asked, call.client[0], call)
        return self._pops.pop(asked, call)

    async def _pop_cold(self, pop: Coroutine[Any, Any, PopOutcome | None], call: Receiving) -> None:
        await self._finish(await pop, call)

    async def _finish(self, outcome: PopOutcome | None, call: Receiving) -> None:
        """The call's task ends the call, because it must wait for deferred answers."""
        if outcome is not None:
            call.deliver(outcome)
        await call.finished()

    def _asked(
        self, context: RpcContext, request: pb.ReceiveMessageRequest, topic: str, group: str
    ) -> PopRequest:
        if len(request.attempt_id) > ATTEMPT_ID_CHARS_MAX:  # it is kept for as long as the call waits
            text = f"attempt_id has {len(request.attempt_id)} characters, at most {ATTEMPT_ID_CHARS_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        config = self._groups.get(group)
        expression_type, expression = asked_filter(request.filter_expression)
        return PopRequest(
            group=group,
            topic=topic,
            queue_id=ANY_QUEUE,
            count_max=min(max(1, request.batch_size), POP_COUNT_MAX),
            invisible_ms=invisible_ms(request),
            poll_ms=poll_ms(context, request, self._clock.monotonic()),
            init_mode=INIT_FROM_MAX,
            expression_type=expression_type,
            expression=expression,
            ordered=config is not None and config.consume_message_orderly,
            attempt_id=request.attempt_id,
        )

    # --- what calls use

    def check_access(self, peer: CallPeer, context: RpcContext, topic: str, group: str) -> None:
        """Raises RpcRefused."""
        asked = RemotingCommand(RequestCode.POP_MESSAGE, {"topic": topic, "consumerGroup": group})
        self._access.check(peer, context.metadata, asked)

    def when_safe(self, call: Receiving, end: int) -> None:
        """Have the call's messages sent when the log is safe up to `end`; 0: now."""
        if end:
            self._ack.when_safe(call.caller, end, call.release)
        else:
            call.release(Safety.SAFE, "")

    def messages(self, call: Receiving, outcome: PopOutcome, tags: frozenset[str] | None) -> list[Popped]:
        """The popped messages for the client, each with its receipt. Messages that passed only because of a hash
        collision of tags are acknowledged; messages with too many attempts become dead letters.
        """
        taken, want = outcome.taken, outcome.want
        config = self._groups.get(want.group)
        tries_max = -1 if config is None else config.retry_max_times
        found: list[Popped] = []
        for number, (share, body) in enumerate(zip(taken.shares, taken.bodies, strict=True)):
            consumed = taken.consumed[number] if want.ordered else {}
            for offset, record in zip(share.offsets, undamaged_records(body), strict=True):
                handle = Handle(
                    share.start_offset,
                    taken.pop_time,
                    want.invisible_ms,
                    taken.revive_queue_id,
                    share.retry,
                    self._broker_name,
                    share.queue_id,
                    offset,
                )
                if record is None:
                    continue
                receipt = Receipt(handle, record.physical_offset)
                tries = consumed.get(offset, 0) if want.ordered else record.reconsume_times
                stored = call.topic
                if (lmq := taken.topics[number]).startswith(LITE_PREFIX):
                    stored = lmq
                    record = replace(record, queue_id=share.queue_id, queue_offset=offset)
                if tags is not None and record.tag not in tags:
                    self._acknowledge(call, receipt)
                elif not want.ordered and 0 <= tries_max < tries:
                    self._bury(call, receipt, record)
                else:
                    if want.ordered:
                        record = replace(record, reconsume_times=tries)
                    message = delivered_message(record, topic=want.topic, receipt_handle=str(receipt))
                    found.append(Popped(stored, receipt, message))
        return found

    def _acknowledge(self, call: Receiving, receipt: Receipt) -> None:
        handle = receipt.handle
        try:
            self._acks.acknowledge(
                AckRequest(call.group, call.topic, handle.queue_id, handle.queue_offset, handle)
            )
        except (Refused, RemoteError) as error:
            log.info("message %s of %s was not acknowledged: %s", receipt, call.group, error)

    def _bury(self, call: Receiving, receipt: Receipt, record: Record) -> None:
        """Make a message a dead letter, then acknowledge it."""
        asked = SendBackRequest(
            group=call.group,
            physical_offset=record.physical_offset,
            delay_level=-1,
            origin_id=record.properties.get("UNIQ_KEY", ""),
            death_reason=f"{record.reconsume_times} tries failed",
        )
        try:
            self._send_backs.send_back(asked, lambda _: True)
        except AerobeeError as error:
            log.warning("message %s of %s cannot become a dead letter now: %s", receipt, call.group, error)
            return
        self._acknowledge(call, receipt)

    def sent(self, call: Receiving, messages: list[Popped]) -> None:
        """The messages were sent to the client: start their renewal if the call requests it."""
        if call.renews:
            for popped in messages:
                self._renewals.add(call.group, call.client, call.caller.address, popped.topic, popped.receipt)

    def give_back(self, call: Receiving, messages: list[Popped]) -> None:
        """The messages could not be sent to the client: redeliver them soon."""
        for popped in messages:
            self._renewals.give_back(call.group, popped.topic, popped.receipt)

    def now_ms(self) -> int:
        """The broker's time."""
        return self._clock.now_ms()


class Popped(NamedTuple):
    """A message for the client. `topic` is where its receipt is valid: the subscribed topic, or a lite topic's LMQ."""

    topic: str
    receipt: Receipt
    message: pb.Message


class Receiving:
    """One call of ReceiveMessage, as PopService knows it (PopCall)."""

    __slots__ = (
        "_context",
        "_is_done",
        "_is_sent",
        "_messages",
        "_rpc",
        "_stream",
        "_tags",
        "_waiter",
        "group",
        "renews",
        "topic",
    )

    def __init__(
        self,
        rpc: ReceiveRpc,
        context: RpcContext,
        stream: ResponseStream,
        topic: str,
        group: str,
        request: pb.ReceiveMessageRequest,
    ) -> None:
        self._rpc = rpc
        self._context = context
        self._stream = stream
        self.topic = topic
        self.group = group
        self.renews = request.auto_renew
        self._tags = wanted_tags(request.filter_expression)
        self._messages: list[Popped] = []
        self._is_sent = self._is_done = False
        self._waiter: asyncio.Future[None] | None = None  # where the call has a task

    def check_access(self) -> None:
        """Raises RpcRefused."""
        self._rpc.check_access(self._context.peer, self._context, self.topic, self.group)

    async def finished(self) -> None:
        """Return when the call is answered."""
        if not self._is_done:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    @property
    def client(self) -> Client:
        """The client that made the call."""
        return self._context.client

    # --- PopCall

    @property
    def caller(self) -> CallPeer:
        """The client, for this call."""
        return self._context.peer

    @property
    def is_open(self) -> bool:
        """Whether the answer can still arrive."""
        return self._context.peer.is_open and not self._stream.is_over

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """As pending_access.Held."""
        try:
            self.check_access()
        except RpcRefused as refused:
            return RemoteError(ResponseCode.NO_PERMISSION, refused.message)
        return None

    def refuse(self, error: AerobeeError) -> None:
        """Answer with an error."""
        code_and_text = status_of(error)
        if isinstance(error, RemoteError) and error.code == ResponseCode.NO_PERMISSION:
            code_and_text = status(pb.UNAUTHORIZED, error.remark)
        self._end(code_and_text)

    def deliver(self, outcome: PopOutcome) -> None:
        """Answer with what a pop found."""
        if outcome.status is PopStatus.TOO_MANY_WAIT:
            self._end(status(pb.TOO_MANY_REQUESTS, "polling full"))
            return
        if outcome.status is not PopStatus.FOUND:
            self._end(status(pb.MESSAGE_NOT_FOUND, "no new message"))
            return
        self._messages = self._rpc.messages(self, outcome, self._tags)
        if not self._messages:
            self._end(status(pb.MESSAGE_NOT_FOUND, "no match message"))
            return
        self.caller.on_close(self._closed)
        self._rpc.when_safe(self, outcome.taken.end)

    def release(self, safety: Safety, text: str) -> None:
        """The log is safe, or not: send the messages, or say why not."""
        if not self.is_open:
            return  # _closed() has given them back
        if safety is not Safety.SAFE:
            self._give_back()
            self._end(safety_status(safety, text))
            return
        self._is_sent = True
        messages = [pb.ReceiveMessageResponse(message=popped.message) for popped in self._messages]
        self._finish(pb.ReceiveMessageResponse(status=status()), *messages)

    def _closed(self, peer: object) -> None:
        """The call has ended: answered whole, or its client has left."""
        messages, self._messages = self._messages, []
        if self._is_sent and not self._stream.is_cut_off:
            self._rpc.sent(self, messages)
        else:
            self._rpc.give_back(self, messages)

    def _give_back(self) -> None:
        messages, self._messages = self._messages, []
        self._rpc.give_back(self, messages)

    def _end(self, found: pb.Status) -> None:
        self._finish(pb.ReceiveMessageResponse(status=found))

    def _finish(self, *responses: pb.ReceiveMessageResponse) -> None:
        last = pb.ReceiveMessageResponse()
        set_ms(last.delivery_timestamp, self._rpc.now_ms())
        self._stream.push(*responses, last)
        self._is_done = True
        self._stream.end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def undamaged_records(body: bytes) -> Iterator[Record | None]:
    """Records that stand back to back; None for one that is damaged on the disk, which no client gets."""
    at = 0
    while at < len(body):
        try:
            record = decode_record(body, at)
        except MessageDamaged as error:
            record = decode_record(body, at, check_crc=False)
            log.error("message %d of %s is not delivered: %s", record.queue_offset, record.topic, error)
            yield None
        else:
            yield record
        at += record.total_size


def asked_filter(expression: pb.FilterExpression) -> tuple[str, str]:
    """(type, expression) as the broker's services name them. Raises RpcRefused."""
    if expression.type == pb.SQL:
        if not expression.expression.strip():
            raise RpcRefused(pb.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return TYPE_SQL92, expression.expression
    return TYPE_TAG, expression.expression


def wanted_tags(expression: pb.FilterExpression) -> frozenset[str] | None:
    """The tags in the client's filter; None: every message."""
    if expression.type == pb.SQL or expression.expression in ("", "*"):
        return None
    return frozenset(parse_tags(expression.expression)) or None


def poll_ms(context: RpcContext, request: pb.ReceiveMessageRequest, now: float) -> int:
    """How long a request may wait for messages; `now` in monotonic seconds."""
    left_ms = POLL_MS_MAX + ANSWER_MS
    if context.deadline is not None:
        left_ms = int((context.deadline - now) * 1000)
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    else:
        wanted_ms = left_ms - REQUEST_MS
    return max(0, min(wanted_ms, POLL_MS_MAX, left_ms - ANSWER_MS))


def invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    """The invisible time that a request wants. Raises RpcRefused."""
    if request.auto_renew:
        return FIRST_INVISIBLE_MS
    wanted_ms = duration_ms(request.invisible_duration)
    if wanted_ms < INVISIBLE_MS_MIN:
        raise RpcRefused(
            pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {INVISIBLE_MS_MIN}"
        )
    if wanted_ms > CHANGED_MS_MAX:
        raise RpcRefused(
            pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {CHANGED_MS_MAX}"
        )
    return wanted_ms
