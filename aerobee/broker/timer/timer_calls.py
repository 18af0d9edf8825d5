"""Requests of clients, replicas and operators about timers: 60, 61, 370, and two Aerobee-specific requests, documented
here.

RECALL_MESSAGE 370 (topic, recallHandle, producerGroup) stores a message that cancels the pending one: it enters the
same slot of the wheel and is processed before the slot's messages are delivered. As in RocketMQ it succeeds without a
look whether the message still waits, and is off unless `recallMessageEnable`.

AEROBEE_LIST_TIMERS 910370: ext (all optional) `topic`, `fromMs`, `untilMs` (due times), `maxNum`. The answer's body is JSON,
by due time:

    {"pending": n, "messages": [{"topic", "queueId", "messageId", "dueMs", "inMs", "storedMs", "physicalOffset",
     "offsetMsgId", "bodyBytes", "keys", "tag", "rolls", "recallHandle"}], "isWhole": true}

`pending` counts what waits for all topics; `isWhole` is false when more than `maxNum` match.

AEROBEE_RESCHEDULE_TIMER 910371: ext `recallHandle`, `deliverMs`. The answer's ext has `recallHandle`, the new one, and
`msgId`; when the new time is not ahead the message is delivered immediately and there is no handle.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.broker.state.config import PERM_WRITE, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.timer.delete_key import cancelled_key, waiting_key, waiting_keys, written_key
from aerobee.broker.timer.timer_hook import TimerHook
from aerobee.broker.timer.timer_service import TimerService
from aerobee.broker.timer.timer_source import TimerSource
from aerobee.clock import Clock
from aerobee.errors import MalformedRecord, RemoteError, StoreError
from aerobee.message import decode_records, encode_properties, offset_message_id, pack_host, unpack_host
from aerobee.property_names import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAYS,
    TIMER_DELETE_KEY,
    TIMER_DELETE_OFFSET,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
)
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.recall_handle import RecallHandle, decode_recall_handle
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DELETE, ROLL
from aerobee.system_names import WHEEL_TIMER_TOPIC

LIST_DEFAULT, LIST_MAX = 100, 1_000
UNITS_MAX = 100_000  # maximum number of messages that a listing checks
UNITS_PER_PASS = 2_000  # then other tasks of the event loop run
RECALL_TAG = "_RECALL_TAG_"


class TimerCalls:
    """Answers 60, 61, 370, 910370 and 910371."""

    def __init__(
        self,
        *,
        service: TimerService,
        source: TimerSource,
        files: TimerFiles,
        hook: TimerHook,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        ack: AckPolicy,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
    ) -> None:
        self._service = service
        self._source = source
        self._files = files
        self._hook = hook
        self._store = store
        self._writer = writer
        self._topics = topics
        self._ack = ack
        self._live = live
        self._identity = identity
        self._role = role
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint,
            RequestCode.GET_TIMER_METRICS: self.metrics,
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.AEROBEE_LIST_TIMERS: self.listing,
            RequestCode.AEROBEE_RESCHEDULE_TIMER: self.reschedule,
        }

    # --- replicas

    def checkpoint(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """60: the timer's progress, 56 bytes; for an Aerobee slave also the next units of the timer log."""
        return self._source.answer(request)

    def metrics(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """61: what waits by topic, JSON."""
        return request.reply(body=fastjson.dumps(self._service.progress.pending.to_dict()))

    # --- recall

    def recall(self, peer: Peer, request: RemotingCommand) -> Reply:
        """370: cancel a waiting message. The answer waits for the disk as that of a send does."""
        ext = {"MSG_REGION": self._live.value.region_id}
        try:
            handle = self._check_recall(request)
            now = self._clock.now_ms()
            if handle.timestamp_ms <= now:
                raise RemoteError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"recall failed, the message was due in the second of {handle.timestamp_ms - 1}, now it is {now}",
                )
            message, properties = self._cancelling(handle, now, peer.host_port)
            properties["PGROUP"] = request.text("producerGroup", "")
            result = self._writer.put(message, properties)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext=ext)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark, ext=ext)
        reply = request.reply(ext={**ext, "msgId": handle.unique_key})
        return self._ack.answer(peer, reply, result.end, request_code=request.code)

    def _check_recall(self, request: RemotingCommand) -> RecallHandle:
        """Raises RemoteError for what may not be recalled here."""
        if not self._live.value.recall_message_enable:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"recall failed, it is not enabled: set recallMessageEnable=true at broker {self._identity.name}",
            )
        self._check_master()
        config = self._live.value
        if not config.broker_permission & PERM_WRITE and not config.allow_recall_when_broker_not_writeable:
            raise RemoteError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"recall failed, broker {self._identity.name} takes no messages now (brokerPermission, "
                "allowRecallWhenBrokerNotWriteable)",
            )
        topic = request.text("topic")
        if self._topics.get(topic) is None:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        handle = self._decode_handle(request)
        if handle.topic != topic:
            raise RemoteError(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, the handle is of topic {handle.topic}, not of {topic}",
            )
        return handle

    def _check_master(self) -> None:
        if not self._role.is_master:
            raise RemoteError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                f"broker {self._identity.name} is a slave here: ask its master",
            )

    def _decode_handle(self, request: RemotingCommand) -> RecallHandle:
        try:
            handle = decode_recall_handle(request.text("recallHandle"))
        except ValueError as error:
            raise RemoteError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {error}") from error
        if handle.broker_name != self._identity.name:
            raise RemoteError(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, the handle is of broker {handle.broker_name}, this is {self._identity.name}",
            )
        return handle

    def _cancelling(
        self, handle: RecallHandle, now: int, peer: tuple[str, int]
    ) -> tuple[StoredMessage, dict[str, str]]:
        """The message that cancels the message of the handle."""
        with_topic = self._store.config.append_topic_for_timer_delete_key
        properties = {
            TIMER_DELETE_KEY: written_key(handle.topic, handle.unique_key, with_topic=with_topic),
            UNIQUE_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.timestamp_ms),
            "BORN_TIMESTAMP": str(now),
            "TAGS": RECALL_TAG,
        }
        message = StoredMessage(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=encode_properties(properties).encode(errors="surrogateescape"),
            born_host=pack_host(*peer),
            born_timestamp=now,
        )
        return message, properties

    # --- another time

    def reschedule(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910371: give a waiting message another time."""
        try:
            self._check_master()
            handle = self._decode_handle(request)
            now = self._clock.now_ms()
            deliver_ms = request.integer("deliverMs")
            waiting = self._find(handle, now)
            properties = dict(waiting.properties)
            ext = {"msgId": handle.unique_key}
            for name in (*TIMER_DELAYS, TIMER_OUT_MS, TIMER_ROLL_TIMES):
                properties.pop(name, None)
            topic, queue_id = properties.pop(REAL_TOPIC, ""), int(properties.pop(REAL_QUEUE_ID, "0"))
            properties[TIMER_DELIVER_MS] = str(deliver_ms)
            text = encode_properties(properties).encode(errors="surrogateescape")
            moved = self._hook(waiting.message(topic, queue_id, text), properties)
            # The hook stores the moved message as a new one, not as a delivery of the old one.
            moved.prepared_transaction_offset = 0
            cancelling, its_properties = self._cancelling(handle, now, peer.host_port)
            out_ms = number(properties.get(TIMER_OUT_MS))
            if TIMER_ROLL_TIMES in waiting.properties or not self._is_in_slot(waiting, handle):
                if out_ms == handle.timestamp_ms - 1:
                    raise RemoteError(
                        ResponseCode.ILLEGAL_OPERATION,
                        "the new time is in the second of the old one: nothing to do",
                    )
            else:
                its_properties[TIMER_DELETE_OFFSET] = str(waiting.physical_offset)
            cancelling = self._hook(cancelling, its_properties)
            # Store the message with the new time first, then the cancellation: a crash between them leaves
            # both messages, never neither.
            if moved.topic == cancelling.topic:
                self._store.append_batch([moved, cancelling])
            else:
                self._store.append(moved)
                self._store.append(cancelling)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        if out_ms is not None:
            ext["recallHandle"] = RecallHandle(
                topic, self._identity.name, out_ms + 1, handle.unique_key
            ).encode()
        return request.reply(ext=ext)

    def _find(self, handle: RecallHandle, now: int) -> WaitingMessage:
        """The waiting message that a handle names. Raises RemoteError when the message is not found."""
        out_text = str(handle.timestamp_ms - 1)
        found: WaitingMessage | None = None
        recalled: set[str] = set()
        if handle.timestamp_ms > now:
            answer = self._store.query(WHEEL_TIMER_TOPIC, handle.unique_key, count_max=64)
            for record in decode_records(answer.body):
                properties = record.properties
                if (
                    waiting_key(properties) != f"{handle.topic}+{handle.unique_key}"
                    or properties.get(TIMER_OUT_MS) != out_text
                ):
                    continue
                if TIMER_DELETE_KEY in properties:
                    recalled.add(properties.get(TIMER_DELETE_OFFSET, ""))
                elif (data := self._store.read_record(record.physical_offset)) is not None:
                    found = WaitingMessage(data)
        if found is None or "" in recalled or str(found.physical_offset) in recalled:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message with id {handle.unique_key} waits at broker {self._identity.name} in the second of "
                f"{out_text}: it was delivered, recalled or moved",
            )
        return found

    def _is_cancelled(self, message: WaitingMessage) -> bool:
        """Whether a cancellation of this message is already pending, in a slot that was not processed yet."""
        key, out_text = message.properties.get(UNIQUE_KEY, ""), message.properties.get(TIMER_OUT_MS)
        keys = waiting_keys(message.properties, message.physical_offset)
        answer = self._store.query(WHEEL_TIMER_TOPIC, key, count_max=64)
        return any(
            cancelled_key(record.properties) in keys and record.properties.get(TIMER_OUT_MS) == out_text
            for record in decode_records(answer.body)
        )

    def _is_in_slot(self, waiting: WaitingMessage, handle: RecallHandle) -> bool:
        """Whether the message has arrived in its own slot, or waits in one on the way."""
        slot = self._files.slot(handle.timestamp_ms - 1)
        if slot is None:
            return False
        chain = self._files.log.chain(slot.last, slot.time_ms, self._files.precision_ms)
        return any(unit.physical_offset == waiting.physical_offset for _, unit in chain)

    # --- listing

    async def listing(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910370: the pending messages, ordered by due time."""
        topic = request.field("topic")
        from_ms = request.integer("fromMs", 0)
        until_ms = request.integer("untilMs", 2**62)
        count = min(LIST_MAX, max(1, request.integer("maxNum", LIST_DEFAULT)))
        start = max(
            self._service.progress.read_time,
            from_ms - from_ms % self._files.precision_ms - self._files.precision_ms,
        )
        loop = asyncio.get_running_loop()
        slots = await loop.run_in_executor(
            None, lambda: sorted(s for s in self._files.wheel.slots() if s.time_ms >= start)
        )
        rows: list[dict[str, Any]] = []
        looked = 0
        for slot in slots:
            if slot.time_ms > until_ms or len(rows) > count or looked > UNITS_MAX:
                break
            gone: set[str] = set()
            waiting = self._service.slots.waiting_in(slot.time_ms)
            found: list[tuple[int, WaitingMessage]] = []
            for _, unit in self._files.log.chain(slot.last, slot.time_ms, self._files.precision_ms):
                looked += 1
                if not looked % UNITS_PER_PASS:
                    await asyncio.sleep(0)
                if looked > UNITS_MAX:
                    break
                message = self._message_at(unit.physical_offset)
                if message is None:
                    continue
                if unit.magic & DELETE:
                    if not unit.magic & ROLL:
                        gone.add(cancelled_key(message.properties) or "")
                elif waiting is None or unit.physical_offset in waiting:
                    found.append((unit.due_ms, message))
            for due_ms, message in found:
                real_topic = message.properties.get(REAL_TOPIC, "")
                is_gone = not gone.isdisjoint(waiting_keys(message.properties, message.physical_offset))
                due = due_ms or self._due_of(message)
                if not is_gone and _is_on_its_way(message, slot.time_ms) and self._is_cancelled(message):
                    continue
                if not is_gone and from_ms <= due <= until_ms and topic in (None, "", real_topic):
                    rows.append(self._row(message, due))
        rows.sort(key=lambda row: row["dueMs"])
        tree = {
            "pending": self._service.progress.pending.total,
            "messages": rows[:count],
            "isWhole": len(rows) <= count and looked <= UNITS_MAX,
        }
        return request.reply(body=fastjson.dumps(tree))

    def _message_at(self, physical_offset: int) -> WaitingMessage | None:
        data = self._store.read_record(physical_offset)
        if data is None:
            return None
        try:
            return WaitingMessage(data)
        except MalformedRecord:
            return None

    def _due_of(self, message: WaitingMessage) -> int:
        out_ms = number(message.properties.get(TIMER_OUT_MS)) or 0
        return due_time(
            message.properties,
            out_ms,
            store_timestamp=message.store_timestamp,
            precision_ms=self._files.precision_ms,
        )

    def _row(self, message: WaitingMessage, due_ms: int) -> dict[str, Any]:
        properties = message.properties
        topic, key = properties.get(REAL_TOPIC, ""), properties.get(UNIQUE_KEY, "")
        out_ms = number(properties.get(TIMER_OUT_MS)) or 0
        return {
            "topic": topic,
            "queueId": number(properties.get(REAL_QUEUE_ID)) or 0,
            "messageId": key,
            "dueMs": due_ms,
            "inMs": due_ms - self._clock.now_ms(),
            "storedMs": message.store_timestamp,
            "physicalOffset": message.physical_offset,
            "offsetMsgId": offset_message_id(unpack_host(self._identity.store_host), message.physical_offset),
            "bodyBytes": len(message.body),
            "keys": properties.get("KEYS", ""),
            "tag": properties.get("TAGS", ""),
            "rolls": number(properties.get(TIMER_ROLL_TIMES)) or 0,
            "recallHandle": RecallHandle(topic, self._identity.name, out_ms + 1, key).encode(),
        }


def _is_on_its_way(message: WaitingMessage, slot_time: int) -> bool:
    """Whether the message waits in a slot before its own, to be stored again from there."""
    out_ms = number(message.properties.get(TIMER_OUT_MS))
    return out_ms is not None and out_ms > slot_time
