"""ACK_MESSAGE 200051, BATCH_ACK_MESSAGE 200151 and CHANGE_MESSAGE_INVISIBLETIME 200053 by remoting: requests in, outcomes of
AckService out.

Answers leave after the append of the pass (with sync flush: when it is on the disk), so an answer of code 0 means that the
acknowledgement is in the log.
"""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Any, NamedTuple

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.fastpath.pop import empty_reply
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler
from aerobee.broker.pop.ack_service import AckRequest, AckService, BatchAckRequest, ChangeRequest, Written
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine, where
from aerobee.broker.pop.in_flight import InFlight, State
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.errors import MalformedFrame, RemoteError, StoreError
from aerobee.lite_topic import lite_queue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.pop_handle import HANDLE_CHARS_MAX, HANDLE_TOKENS, Handle, parse_handle
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_RESPONSE, RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply

BITS_BYTES_MAX = 64  # maximum size of one entry's bits: 512 messages
BATCH_MAX = 4_096  # maximum number of entries of one batch
_KNOWN_CHARS_MAX = HANDLE_CHARS_MAX - 24  # maximum length of a handle without its last token, a number


class _Target(NamedTuple):
    """Common data of the ordinary acknowledgements of one handle in one iteration."""

    entry: InFlight
    offsets: dict[str, tuple[int, int]]  # text of the offset -> offset, its bit
    acknowledged: set[int]  # written at the end of the pass


class AckCalls:
    """Handlers of the three requests, and the fast path hooks for ordinary acknowledgements."""

    def __init__(
        self, *, service: AckService, engine: PopEngine, checks: PopChecks, ack: AckPolicy, broker_name: str
    ) -> None:
        self._service = service
        self._engine = engine
        self._checks = checks
        self._ack = ack
        self._broker_name = broker_name
        # Replies of ordinary acknowledgements that wait for the append.
        self._opaques: dict[Peer, list[int]] = {}
        self._targets: dict[tuple[str, str, str, str], _Target] = {}
        # Of this iteration: (group, topic, queue id, r) -> topic that stores the messages, the queue's first
        # and last offset.
        self._checked: dict[tuple[str, str, int, str], tuple[str, int, int]] = {}

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible,
        }

    def ack(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Acknowledge one message."""
        asked = AckRequest(
            group=request.text("consumerGroup"),
            topic=_stored_topic(request),
            queue_id=request.integer("queueId"),
            offset=request.integer("offset"),
            handle=parse_handle(request.text("extraInfo")),
        )
        try:
            if not self._service.acknowledge(asked):
                return request.reply()
        except Refused as refused:
            return _refusal(request, refused)
        self._answer_deferred(peer, request)
        return None

    def batch_ack(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Acknowledge messages of many handles; invalid ones are skipped."""
        fields = fastjson.loads_object(
            request.body, "BatchAckMessageRequestBody", fastjson.REQUEST_DIALECT_BYTES_MAX
        )
        entries = json_fields.objects(fields, "acks")
        if len(entries) > BATCH_MAX:
            raise MalformedFrame(
                f"a batch of {len(entries)} acknowledgements, at most {BATCH_MAX} are possible"
            )
        writes = False
        refusal: Refused | None = None
        for entry in entries:
            try:
                has_written, refused = self._service.acknowledge_batch(self._batch_entry(entry))
            except Refused as error:
                refusal = error
                continue
            writes = writes or has_written
            refusal = refused or refusal
        if writes:
            self._answer_deferred(peer, request)
            return None
        return request.reply() if refusal is None else _refusal(request, refusal)

    def _batch_entry(self, entry: dict[str, object]) -> BatchAckRequest:
        start_offset = json_fields.integer(entry, "so")
        handle = Handle(
            start_offset,
            json_fields.integer(entry, "pt"),
            json_fields.integer(entry, "it"),
            json_fields.integer(entry, "rq"),
            json_fields.text(entry, "r", "0"),
            self._broker_name,
            json_fields.integer(entry, "q"),
            start_offset,
        )
        return BatchAckRequest(
            group=json_fields.text(entry, "c"),
            topic=json_fields.text(entry, "t"),
            handle=handle,
            offsets=batch_offsets(json_fields.text(entry, "b"), start_offset),
        )

    def change_invisible(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Change the time of a message's redelivery; the reply contains the parts of its new handle."""
        asked = ChangeRequest(
            group=request.text("consumerGroup"),
            topic=_stored_topic(request),
            queue_id=request.integer("queueId"),
            offset=request.integer("offset"),
            handle=parse_handle(request.text("extraInfo")),
            invisible_ms=request.integer("invisibleTime"),
            suspend=request.boolean("suspend", False),
        )
        try:
            handle, end = self._service.change_invisible(asked, peer.address)
        except (Refused, StoreError) as error:
            return _refusal(request, error)
        reply = request.reply(
            ext={
                "invisibleTime": str(handle.invisible_ms),
                "popTime": str(handle.pop_time),
                "reviveQid": str(handle.revive_queue_id),
            }
        )
        if request.is_oneway or not end:
            return reply
        return self._ack.answer(peer, reply, end, request_code=request.code)

    def _answer_deferred(self, peer: Peer, request: RemotingCommand) -> None:
        if not request.is_oneway:
            self._service.when_written(partial(self._answer, peer, request))

    def _answer(self, peer: Peer, request: RemotingCommand, written: Written) -> None:
        if written.error is not None:
            reply: Reply = _refusal(request, written.error)
        else:
            reply = self._ack.answer(peer, request.reply(), written.end, request_code=request.code)
        if reply is not None and peer.is_open:
            peer.send(reply)

    # --- ordinary acknowledgements

    def ack_fast(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """ack() of a delivered message, by the fields of its request (PopHooks.ack).

        The common data of one check point's handles is looked up once per iteration.
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
            self._service.count_ack()
            return empty_reply(opaque)
        target.acknowledged.add(offset)
        opaques = self._opaques.get(peer)
        if opaques is None:
            opaques = self._opaques[peer] = []
        opaques.append(opaque)
        return b""

    def _find_target(self, key: tuple[str, str, str, str]) -> _Target:
        """Check what does not depend on the offset. Raises FallBackToHandler, or one of UNREADABLE."""
        group, topic_name, queue_text, known = key
        engine, service = self._engine, self._service
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
                self._checks.client_group(group)
                name, low, high = service.check_queue(self._checks.topic(topic_name), handle.queue_id, handle)
                checked = (where(name, group, handle), low, high)
            else:
                service.check_handle(handle)
        except Refused as error:
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
        if not self._targets:
            service.when_written(self._end_pass)
        self._checked[queue] = checked
        target = self._targets[key] = _Target(entry, offsets, service.open_offsets(full_key, handle))
        return target

    def _end_pass(self, written: Written) -> None:
        """Answer the ordinary ones of this pass."""
        opaques, self._opaques = self._opaques, {}
        self._targets.clear()
        self._checked.clear()
        refusal: RemoteError | None = None if written.error is None else remote_refusal(written.error)
        for peer, numbers in opaques.items():
            if refusal is not None:
                refusals = (
                    RemotingCommand(refusal.code, None, b"", refusal.remark, number, FLAG_RESPONSE)
                    for number in numbers
                )
                frames = b"".join(map(encode_frame, refusals))
            else:
                frames = b"".join(map(empty_reply, numbers))
                if self._ack.holds:
                    self._ack.hold(peer, written.end, frames)
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


def _stored_topic(request: RemotingCommand) -> str:
    """The topic of a handle's queue: for a message of a lite topic its LMQ."""
    topic, lite_topic = request.text("topic"), request.text("liteTopic", "")
    return lite_queue(topic, lite_topic) if lite_topic else topic


def _refusal(request: RemotingCommand, error: Refused | StoreError) -> RemotingCommand:
    refusal = remote_refusal(error)
    return request.reply(refusal.code, remark=refusal.remark)
