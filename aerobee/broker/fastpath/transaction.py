"""Transactions: half messages (310) and one-way END_TRANSACTION (37) as Java and Go send them (JSON header). A core.

The outcome is that of send/send_service.py with the half message hook, and of transaction/end.py; other frames are left
to them. It is cheap because the committed record is cut out of the half record's bytes: a half message's text ends with
REAL_TOPIC and REAL_QID. The hooks keep the open transactions; they are notified of each start and decision as soon as
its record is in the log, so that the next frame of the burst finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aerobee.broker.fastpath.exclusions import ELIGIBLE_SYS_FLAG, NOT_BATCH, excluded_from_half
from aerobee.broker.fastpath.frame_handlers import Answer, Serve
from aerobee.broker.fastpath.request import (
    UNREADABLE,
    FallBackToHandler,
    Request,
    born_time,
    number,
    read_pairs,
)
from aerobee.broker.fastpath.seam import Transaction, TransactionSettings
from aerobee.broker.fastpath.send import SHORT_NAMES
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import FastQueue, FastTopic
from aerobee.message import (
    HOSTS_V6,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from aerobee.property_names import (
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRAN_MSG,
    TRANSACTION_ID,
)
from aerobee.record_head import HEAD_V4
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.system_names import HALF_TOPIC

_HALF_FIELD = bytes((len(HALF_TOPIC),)) + HALF_TOPIC.encode()
_REAL_TOPIC = f"\x02{REAL_TOPIC}\x01".encode()
_REAL_QUEUE = f"\x02{REAL_QUEUE_ID}\x01".encode()
_WAIT, _WAIT_TRUE = b"WAIT\x01", b"\x02WAIT\x01true\x02"
_CLOSING = 2
_NO_KEYS_NO_TAG = "", ""  # neither KEYS nor TAGS
_unpack_head = HEAD_V4.unpack_from
_PREPARED, _COMMIT = str(TRANSACTION_PREPARED), str(TRANSACTION_COMMIT)


class _Turn(NamedTuple):
    """State of one burst."""

    burst: int
    takes_halves: bool
    half_queue: FastQueue | None  # None: not a transaction of an ordinary kind
    open: Mapping[tuple[str, str], Transaction]


class Transactions:
    """The frame handler of transactions."""

    is_send = True

    def __init__(
        self, shared: Shared, settings: TransactionSettings, special_properties: frozenset[str]
    ) -> None:
        """`special_properties` are those of ordinary messages."""
        self._shared = shared
        self._hooks = settings.hooks
        self._half_topic = FastTopic(settings.half_topic)
        self._special_properties = excluded_from_half(special_properties)
        self._turn = _Turn(-1, False, None, {})
        self._is_changed = False

    def _end(self) -> None:
        """Notify the end of a burst once."""
        self._is_changed = False
        self._hooks.burst_done()

    def _changed(self) -> None:
        if not self._is_changed:
            self._is_changed = True
            self._shared.at_end.append(self._end)

    def forget_topics(self) -> None:
        """The half queue is looked up for each burst."""

    def forget_authorizations(self) -> None:
        """Do nothing: this handler caches no authorizations."""

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        return {
            RequestCode.SEND_MESSAGE_V2.value: self._prepare,
            RequestCode.END_TRANSACTION.value: self._end_one,
        }

    def _turn_of_burst(self) -> _Turn:
        """State of this burst, read once per burst."""
        number_of_burst = self._shared.number
        if self._turn.burst != number_of_burst:
            hooks, half = self._hooks, self._half_topic
            queue, known = hooks.half_queue(), half.queues.get("0")
            if type(queue) is not ConsumeQueue:
                known = None
            elif known is None or known.queue is not queue:  # the topic's queues were deleted meanwhile
                known = half.queues["0"] = FastQueue(queue, 0)
            self._turn = _Turn(number_of_burst, hooks.takes_halves(), known, hooks.open_transactions())
        return self._turn

    # --- a half message

    def _prepare(self, request: Request) -> Answer:
        if request.command is not None:
            raise FallBackToHandler
        shared, half = self._shared, self._half_topic
        try:
            topic_name, queue_text, sys_flag, born_timestamp, flag, text, tries, batch = SHORT_NAMES(
                request.ext
            )
            sys_flag = TRANSACTION_PREPARED if sys_flag == _PREPARED else number(sys_flag)
            if sys_flag & ~ELIGIBLE_SYS_FLAG != TRANSACTION_PREPARED:
                raise ValueError
            pairs = request.pairs
            if pairs is None:
                pairs = request.pairs = read_pairs(text)
            unique_key, group = pairs["UNIQ_KEY"], pairs[PRODUCER_GROUP]
            if (
                not self._special_properties.isdisjoint(pairs)
                or pairs[TRAN_MSG] != "true"
                or not (unique_key.isalnum() and unique_key.isascii() and group)
                or (tries != "0" and number(tries))
                or batch not in NOT_BATCH
            ):
                raise ValueError
            turn = self._turn
            if turn.burst != shared.number:
                turn = self._turn_of_burst()
            half_queue = turn.half_queue
            if not turn.takes_halves or half_queue is None:
                raise ValueError
            topic, queue = shared.find(topic_name, queue_text)
            waits = (shared.holds_replies or shared.holds_all) and shared.waits(pairs)
            stored = (
                f"{text if text[-1] == PROPERTY_SEPARATOR else text + PROPERTY_SEPARATOR}{shared.own_properties}{TRANSACTION_ID}\x01"
                f"{unique_key}\x02{REAL_TOPIC}\x01{topic.name}\x02{REAL_QUEUE_ID}\x01{queue.queue_id}\x02"
            ).encode()
            body = request.data[request.body_at : request.end]
            if len(stored) > PROPERTIES_BYTES_MAX or len(body) > shared.store.config.max_message_size:
                raise ValueError
            keys, tag = pairs.get("KEYS", ""), pairs.get("TAGS", "")
            if keys or tag:
                hashes, code = shared.hashes(half, unique_key, keys, tag)
            else:
                hashes, code = [half.plain_key_hash(unique_key.encode())], 0
            flag = 0 if flag == "0" else number(flag)
            born_timestamp = born_time(born_timestamp)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        queue_offset, offset = shared.append(
            half, half_queue, body, stored, hashes, code, flag, sys_flag & ~TRANSACTION_PREPARED, born_timestamp, 0
        )  # fmt: skip
        shared.count_request(half)
        if not self._is_changed:
            self._changed()
        size = shared.log.end - offset
        self._hooks.began(group, unique_key, topic.name, queue_offset, offset, size, shared.now_ms, keys, tag)
        return queue, queue_offset, f"{shared.store_host_hex}{offset:016X}", unique_key, waits, ""

    # --- its end

    def _end_one(self, request: Request) -> None:
        """Apply one decision to an open transaction with matching fields."""
        if request.command is not None or request.flag != FLAG_ONEWAY:
            raise FallBackToHandler
        try:
            ext = request.ext
            turn, unique_key = self._turn, ext["transactionId"]
            if turn.burst != self._shared.number:
                turn = self._turn_of_burst()
            transaction = turn.open[ext["producerGroup"], unique_key]
            # As texts: a number that is written otherwise is read.
            queue_text, offset_text = ext["tranStateTableOffset"], ext["commitLogOffset"]
            if (
                (
                    str(transaction.queue_offset) != queue_text
                    and transaction.queue_offset != number(queue_text)
                )
                or (
                    str(transaction.physical_offset) != offset_text
                    and transaction.physical_offset != number(offset_text)
                )
                or transaction.immunity_ms is not None
                # Access control admitted this frame by the topic in its header.
                or ext.get("topic", transaction.topic) != transaction.topic
            ):
                raise ValueError
            decision = ext["commitOrRollback"]
            is_commit = decision == _COMMIT
            if not is_commit and (decision := number(decision)) != TRANSACTION_ROLLBACK:
                if decision != TRANSACTION_COMMIT:
                    raise ValueError
                is_commit = True
        except UNREADABLE as error:
            raise FallBackToHandler from error
        if is_commit:
            self._commit(transaction, unique_key)
        if not self._is_changed:
            self._changed()
        if is_commit:
            self._hooks.committed(transaction)
        else:
            self._hooks.rolled_back(transaction)

    def _commit(self, transaction: Transaction, unique_key: str) -> None:
        """Write the committed record, cut out of the half record."""
        shared, origin, keys_and_tag = self._shared, self._shared.origin, transaction.keys_and_tag
        try:
            size = transaction.size
            if keys_and_tag is None or size <= HEAD_V4.size:
                raise ValueError
            log, physical_offset = shared.log, transaction.physical_offset
            at = physical_offset - log.base
            record = bytes(log.buffer[at : at + size]) if at >= 0 else log.read(physical_offset, size)
            (
                total, magic, _, _, flag, _, own_offset, sys_flag, born_timestamp, born_ip, born_port, _, _, _,
                tries, _, body_size,
            ) = _unpack_head(record)  # fmt: skip
            body_end = HEAD_V4.size + body_size
            text_at = body_end + len(_HALF_FIELD) + 2
            if (
                total != len(record)
                or magic != MAGIC_V1
                or own_offset != physical_offset
                or sys_flag & HOSTS_V6
                or body_size < 0
                or record[body_end : text_at - 2] != _HALF_FIELD
                or int.from_bytes(record[text_at - 2 : text_at], "big") != total - text_at
            ):
                raise ValueError  # bytes that another program wrote
            topic = shared.topics.get(transaction.topic) or shared.admit(transaction.topic)
            # A half message that this broker wrote ends with its real topic and queue: `\x02 REAL_TOPIC \x01
            # topic \x02 REAL_QID \x01 queue \x02`.
            queue_at = record.rindex(b"\x01", text_at) + 1
            ending = _REAL_TOPIC + topic.field[1:] + _REAL_QUEUE
            ending_at = queue_at - len(ending)
            if record[-1] != _CLOSING or ending_at < text_at or not record.startswith(ending, ending_at):
                raise ValueError
            queue_text = record[queue_at:-1].decode()
            queue = topic.queues.get(queue_text) or shared.admit_queue(topic, queue_text)
            properties = record[text_at : ending_at + 1]
            # The quick path takes a text with one WAIT behind another pair, as clients write it; any other
            # text is parsed.
            if (_WAIT_TRUE not in properties or properties.count(_WAIT) != 1) and read_pairs(
                properties.decode()
            ).get("WAIT") != "true":
                raise ValueError
            if keys_and_tag == _NO_KEYS_NO_TAG:
                hashes, code = [topic.plain_key_hash(unique_key.encode())], 0
            else:
                hashes, code = shared.hashes(topic, unique_key, *keys_and_tag)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        # The committed message has the sender of its half message, whichever client commits it.
        sender, born_host = origin.born_host, born_ip + born_port.to_bytes(4, "big")
        if is_other := sender != born_host:
            origin.enter(born_host)
        try:
            shared.append(
                topic, queue, record[HEAD_V4.size : body_end], properties, hashes, code, flag,
                sys_flag | TRANSACTION_COMMIT, born_timestamp, tries, physical_offset,
            )  # fmt: skip
        finally:
            if is_other:
                origin.enter(sender)
        shared.count_request(topic)
