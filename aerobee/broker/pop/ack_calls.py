"""ACK_MESSAGE 200051, BATCH_ACK_MESSAGE 200151 and CHANGE_MESSAGE_INVISIBLETIME 200053 (AckMessageProcessor,
ChangeInvisibleTimeProcessor).

Acknowledgements of one pass of the event loop are written together: those of one check point share one record, all records
are one append. Their answers leave after it (with sync flush: when it is on the disk), so an answer of code 0 means that
the acknowledgement is in the log.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import check_client_group
from aerobee.broker.fastpath.pop import empty_reply
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler
from aerobee.broker.pop.check_point import Acks, CheckPointKey
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine, PopStore, where
from aerobee.broker.pop.in_flight import InFlight, State
from aerobee.broker.pop.order_info import NOT_OURS, UNKNOWN
from aerobee.broker.state.refusal import store_refusal
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, RemoteError, StoreError
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.pop_handle import HANDLE_CHARS_MAX, HANDLE_TOKENS, Handle, parse_handle
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import FLAG_RESPONSE, RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import INVISIBLE_MS_MAX
from aerobee.store.files.config import StoreConfig

BITS_BYTES_MAX = 64  # of one entry of a batch: 512 messages
BATCH_MAX = 4_096  # entries of one batch
HANDLE_AHEAD_MS_MAX = 2 * INVISIBLE_MS_MAX  # of a handle's end: with space for a clock that was put back
_KNOWN_CHARS_MAX = HANDLE_CHARS_MAX - 24  # of a handle without its last token, a number


class AckStore(PopStore, Protocol):
    """What acknowledging needs of the store."""

    config: StoreConfig


@dataclass(slots=True)
class _Open:
    """Acknowledgements of one check point that are not written yet."""

    handle: Handle
    offsets: set[int] = field(default_factory=set)


class _Target(NamedTuple):
    """What the ordinary acknowledgements of one handle and pass have in common."""

    key: CheckPointKey
    handle: Handle
    entry: InFlight
    offsets: dict[str, tuple[int, int]]  # text of the offset -> offset, its bit


class AckCalls:
    """Handlers of the three. Plain functions; answers leave after the append of the pass."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: AckStore,
        offsets: ConsumerOffsets,
        checks: PopChecks,
        wake: Callable[[str, str, int], None],
        ack: AckPolicy,
        clock: Clock,
        broker_name: str,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`wake(topic, group, queue id)` has those that wait for an ordered queue look at it again."""
        self._engine = engine
        self._store = store
        self._offsets = offsets
        self._checks = checks
        self._wake = wake
        self._ack = ack
        self._clock = clock
        self._broker_name = broker_name
        self._call_soon = call_soon
        self._open: dict[CheckPointKey, _Open] = {}
        self._answers: list[tuple[Peer, RemotingCommand]] = []
        self._opaques: dict[Peer, list[int]] = {}  # of ordinary ones that wait for the append
        self._targets: dict[tuple[str, str, str, str], _Target] = {}
        # Of this pass: (group, topic, queue id, r) -> where such messages lie, the queue's first and last offset.
        self._checked: dict[tuple[str, str, int, str], tuple[str, int, int]] = {}
        self.ack_count = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible,
        }

    def ack(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Acknowledge one message."""
        try:
            group = request.text("consumerGroup")
            handle = parse_handle(request.text("extraInfo"))
            topic, queue_id, offset = self._message_of(request, group, handle)
            if handle.is_ordered:
                self._ack_in_order(topic, group, queue_id, offset, handle)
                return request.reply()
            if not self._acknowledge(topic, group, handle, offset):
                return request.reply()
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark)
        self._answer_deferred(peer, request)
        return None

    def ack_fast(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """ack() of a message that is handed out, by the fields of its request (PopHooks.ack).

        What the handles of one check point have in common is looked up one time per pass.
        """
        try:
            handle, offset_text = fields["extraInfo"], fields["offset"]
            known, _, own_text = handle.rpartition(" ")
            key = (fields["consumerGroup"], fields["topic"], fields["queueId"], known)
            target = self._targets.get(key) or self._find_target(key)
            offset, bit = target.offsets[offset_text]
        except UNREADABLE as error:
            raise FallBackToHandler from error
        entry = target.entry
        if own_text != offset_text or entry.state is not State.OUT:
            raise FallBackToHandler
        if entry.point.bit_map & bit:
            self.ack_count += 1
            return empty_reply(opaque)
        waiting = self._open.get(target.key)
        if waiting is None:
            waiting = self._open[target.key] = _Open(target.handle)
        waiting.offsets.add(offset)
        opaques = self._opaques.get(peer)
        if opaques is None:
            opaques = self._opaques[peer] = []
        opaques.append(opaque)
        return b""

    def _find_target(self, key: tuple[str, str, str, str]) -> _Target:
        """Check what does not depend on the offset. Raises FallBackToHandler, or one of UNREADABLE."""
        group, topic_name, queue_text, known = key
        engine = self._engine
        if (
            known.count(" ") != HANDLE_TOKENS - 2
            or len(known) > _KNOWN_CHARS_MAX
            or engine.buffer is not None
        ):
            raise FallBackToHandler
        handle = parse_handle(f"{known} 0")
        if handle.is_ordered or str(handle.queue_id) != queue_text:
            raise FallBackToHandler
        queue = (group, topic_name, handle.queue_id, handle.retry)
        checked = self._checked.get(queue)
        try:
            if checked is None:
                check_client_group(group)
                name, low, high = self._check_queue(self._checks.topic(topic_name), handle.queue_id, handle)
                checked = self._checked[queue] = (where(name, group, handle), low, high)
            else:
                _check_handle(handle, self._clock.now_ms())
        except RemoteError as error:
            raise FallBackToHandler from error
        topic, low, high = checked
        full_key = (topic, group, handle.queue_id, handle.start_offset, handle.pop_time)
        entry = engine.in_flight.get(full_key)
        if entry is None:
            raise FallBackToHandler
        offsets = {
            str(offset): (offset, 1 << at)
            for at, offset in enumerate(entry.point.offsets)
            if low <= offset <= high
        }
        if not self._targets and not self._open:
            self._call_soon(self._write)
        target = self._targets[key] = _Target(full_key, handle, entry, offsets)
        return target

    def batch_ack(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Acknowledge messages of many handles; those that cannot be are left out."""
        fields = fastjson.loads_object(
            request.body, "BatchAckMessageRequestBody", fastjson.REQUEST_DIALECT_BYTES_MAX
        )
        entries = json_fields.objects(fields, "acks")
        if len(entries) > BATCH_MAX:
            raise MalformedFrame(
                f"a batch of {len(entries)} acknowledgements, at most {BATCH_MAX} are possible"
            )
        writes = False
        refusal: RemoteError | None = None
        for entry in entries:
            try:
                handle, group, topic = self._batch_handle(entry)
            except RemoteError as error:
                refusal = error
                continue
            for offset in batch_offsets(json_fields.text(entry, "b"), handle.start_offset):
                try:
                    if handle.is_ordered:
                        self._ack_in_order(topic, group, handle.queue_id, offset, handle)
                    elif self._acknowledge(topic, group, handle, offset):
                        writes = True
                except RemoteError as error:
                    refusal = error
        if writes:
            self._answer_deferred(peer, request)
            return None
        if refusal is not None:
            return request.reply(refusal.code, remark=refusal.remark)
        return request.reply()

    def _batch_handle(self, entry: dict[str, object]) -> tuple[Handle, str, str]:
        group, topic = json_fields.text(entry, "c"), json_fields.text(entry, "t")
        handle = Handle(
            json_fields.integer(entry, "so"),
            json_fields.integer(entry, "pt"),
            json_fields.integer(entry, "it"),
            json_fields.integer(entry, "rq"),
            json_fields.text(entry, "r", "0"),
            self._broker_name,
            json_fields.integer(entry, "q"),
            json_fields.integer(entry, "so"),
        )
        _check_handle(handle, self._clock.now_ms())
        check_client_group(group)
        self._checks.queue(self._checks.topic(topic), handle.queue_id, ResponseCode.MESSAGE_ILLEGAL)
        return handle, group, where(topic, group, handle)

    def change_invisible(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Have a message come back at another time; answered with what its new handle is made of."""
        now_ms = self._clock.now_ms()
        try:
            group = request.text("consumerGroup")
            handle = parse_handle(request.text("extraInfo"))
            topic, _, offset = self._message_of(request, group, handle)
            invisible_ms = request.integer("invisibleTime")
            if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
                raise RemoteError(
                    ResponseCode.INVALID_PARAMETER,
                    f"invisibleTime is {invisible_ms} ms: 0 to {INVISIBLE_MS_MAX} are possible",
                )
            if handle.is_ordered:
                return self._change_in_order(request, topic, group, handle, offset, invisible_ms, now_ms)
            if (topic, group, handle.queue_id, handle.start_offset, handle.pop_time) in self._open:
                self._write()
            pop_time, end = self._engine.change_invisible(
                topic,
                group,
                handle,
                offset,
                invisible_ms,
                now_ms,
                suspend=request.boolean("suspend", False),
                consumer=peer.address,
            )
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        reply = request.reply(
            ext={
                "invisibleTime": str(invisible_ms),
                "popTime": str(pop_time),
                "reviveQid": str(handle.revive_queue_id),
            }
        )
        return reply if request.is_oneway else self._ack.answer(peer, reply, end, request_code=request.code)

    # --- checks

    def _message_of(self, request: RemotingCommand, group: str, handle: Handle) -> tuple[str, int, int]:
        """(topic, queue id, offset) of the message. Raises RemoteError."""
        check_client_group(group)
        topic = self._checks.topic(request.text("topic"))
        queue_id, offset = request.integer("queueId"), request.integer("offset")
        name, low, high = self._check_queue(topic, queue_id, handle)
        if not low <= offset <= high:
            raise RemoteError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{name}@{queue_id}, ack:{offset}, store:{low}~{high}",
            )
        return where(name, group, handle), queue_id, offset

    def _check_queue(self, topic: TopicConfig, queue_id: int, handle: Handle) -> tuple[str, int, int]:
        """(topic, first offset, last offset) of the queue that a request names. Raises RemoteError."""
        if queue_id < 0:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL, f"queueId[{queue_id}] is illegal in an acknowledgement"
            )
        name = topic.topic_name
        self._checks.queue(topic, queue_id, ResponseCode.MESSAGE_ILLEGAL)
        if queue_id != handle.queue_id:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is not that of the handle, which is of queue {handle.queue_id}",
            )
        _check_handle(handle, self._clock.now_ms())
        return name, self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)

    # --- in order

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, handle: Handle) -> None:
        committed = self._offsets.query(group, topic, queue_id)
        if committed is not None and offset < committed:
            return  # acknowledged before
        orders = self._engine.orders
        next_offset = orders.ack(topic, group, queue_id, offset, handle.pop_time)
        if next_offset == UNKNOWN:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{committed}, ack:{offset}: the group does not hold it",
            )
        if next_offset == NOT_OURS:
            raise _handed_out_again(topic, queue_id, offset)
        self.ack_count += 1
        self._offsets.commit(group, topic, queue_id, next_offset)
        if not orders.blocked_until(topic, group, queue_id, "", self._clock.now_ms()):
            self._wake(topic, group, queue_id)

    def _change_in_order(
        self,
        request: RemotingCommand,
        topic: str,
        group: str,
        handle: Handle,
        offset: int,
        invisible_ms: int,
        now_ms: int,
    ) -> RemotingCommand:
        visible_ms = now_ms + invisible_ms
        orders = self._engine.orders
        if not orders.change_visible(topic, group, handle.queue_id, offset, handle.pop_time, visible_ms):
            raise _handed_out_again(topic, handle.queue_id, offset)
        if invisible_ms == 0:
            self._wake(topic, group, handle.queue_id)
        return request.reply(
            ext={
                # From the pop on. Never less than was requested: the clock may have been set back since, and a handle has no negative time.
                "invisibleTime": str(invisible_ms + max(0, now_ms - handle.pop_time)),
                "popTime": str(handle.pop_time),
                "reviveQid": str(handle.revive_queue_id),
            }
        )

    # --- writing

    def _acknowledge(self, topic: str, group: str, handle: Handle, offset: int) -> bool:
        """Note an acknowledgement to be written in this pass. False: it is known, nothing is to be written."""
        key = (topic, group, handle.queue_id, handle.start_offset, handle.pop_time)
        waiting = self._open.get(key)
        if waiting is not None and offset in waiting.offsets:
            return True
        if not self._engine.check_ack(topic, group, handle, offset):
            self.ack_count += 1
            return False
        if waiting is None:
            if not self._open and not self._targets:
                self._call_soon(self._write)
            waiting = self._open[key] = _Open(handle)
        waiting.offsets.add(offset)
        return True

    def _answer_deferred(self, peer: Peer, request: RemotingCommand) -> None:
        if not request.is_oneway:
            self._answers.append((peer, request))

    def _write(self) -> None:
        """Write what this pass of the event loop acknowledged, then answer."""
        opened, self._open = self._open, {}
        answers, self._answers = self._answers, []
        opaques, self._opaques = self._opaques, {}
        self._targets.clear()
        self._checked.clear()
        if not opened:
            return
        acks = [
            (
                Acks(
                    topic=topic,
                    group=group,
                    queue_id=queue_id,
                    start_offset=start_offset,
                    pop_time=pop_time,
                    broker_name=self._broker_name,
                    offsets=tuple(sorted(waiting.offsets)),
                ),
                waiting.handle.revive_queue_id,
                waiting.handle.revive_time,
            )
            for (topic, group, queue_id, start_offset, pop_time), waiting in opened.items()
        ]
        code, remark = 0, None
        end = 0
        try:
            end = self._engine.write_acks(acks, self._clock.now_ms())
            self.ack_count += sum(len(ack.offsets) for ack, _, _ in acks)
        except StoreError as error:
            refusal = store_refusal(error)
            code, remark = refusal.code, refusal.remark
        for peer, request in answers:
            reply = request.reply(code, remark=remark)
            now = reply if code else self._ack.answer(peer, reply, end, request_code=request.code)
            if now is not None and peer.is_open:
                peer.send(now)
        for peer, numbers in opaques.items():
            if code:
                refusals = (
                    RemotingCommand(code, None, b"", remark, number, FLAG_RESPONSE) for number in numbers
                )
                frames = b"".join(map(encode_frame, refusals))
            else:
                frames = b"".join(map(empty_reply, numbers))
                if self._ack.holds:
                    self._ack.hold(peer, end, frames)
                    continue
            if peer.is_open:
                peer.write_now(frames)


def batch_offsets(bits: str, start_offset: int) -> list[int]:
    """Offsets of a batch entry: base64 of bytes whose bit i, lowest first, stands for start_offset + i.

    Raises MalformedFrame.
    """
    try:
        data = base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedFrame(f"the bits of a batch acknowledgement are not base64: {bits[:40]!r}") from error
    if len(data) > BITS_BYTES_MAX:
        raise MalformedFrame(
            f"a batch acknowledgement has {len(data)} bytes of bits, at most {BITS_BYTES_MAX} are possible"
        )
    return [
        start_offset + 8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1
    ]


def _handed_out_again(topic: str, queue_id: int, offset: int) -> RemoteError:
    return RemoteError(
        ResponseCode.NO_MESSAGE,
        f"message {offset} of {topic} queue {queue_id} is not held with this handle any more: its block was handed out again",
    )


def _check_handle(handle: Handle, now_ms: int) -> None:
    """Raise RemoteError for a handle that no pop can have given: an ordinary one names a queue and a time of revival."""
    if handle.is_ordered:
        return
    if handle.pop_time < 0 or not 0 <= handle.revive_time <= now_ms + HANDLE_AHEAD_MS_MAX:
        raise RemoteError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the handle has popTime {handle.pop_time} and invisibleTime {handle.invisible_ms}: popTime must not be negative, and their "
            f"sum must be 0 to {now_ms + HANDLE_AHEAD_MS_MAX}, {HANDLE_AHEAD_MS_MAX} ms from now",
        )
    if not 0 <= handle.revive_queue_id < 64:
        raise RemoteError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the handle has reviveQid {handle.revive_queue_id}, expected 0 to 63",
        )
