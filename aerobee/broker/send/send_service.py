"""Reference implementation of sends of every kind (SendMessageProcessor): checks, conversion, storage.

This is the reference implementation; the fast path serves the ordinary ones of them with the same outcome. Here:
automatic creation of topics, direct sends to %RETRY% and their way to the dead letters, delay levels, every refusal
with RocketMQ's code and a remark that states the allowed values.

Differences from RocketMQ: a C++ client's batch (code 10 with batch "1") is stored as the messages it holds, not as
one message with the packed batch as its body.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from aerobee.broker.admission.ack import Shortage
from aerobee.broker.admission.overload import Overload
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.metrics.metrics import larger_of
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.batch_queue import as_inner_batch
from aerobee.broker.send.dead_letter import note_death, tries_bound, tries_failed
from aerobee.broker.send.lmq import add_lite_queue
from aerobee.broker.send.message_type import check_type, priority_queue
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_duplicates import AlreadyStored, SendDuplicates
from aerobee.broker.send.send_header import BatchEntry, SendHeader, batch_count, batch_pieces, parse_batch
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.state.ack_level import AckLevel, wanted_level
from aerobee.broker.state.config import PERM_WRITE, BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import group_unknown
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable, takes_client_sends
from aerobee.caller import Caller
from aerobee.clock import Clock
from aerobee.errors import (
    MalformedRecord,
    RemoteError,
    StoreError,
    UsageError,
)
from aerobee.message import (
    DLQ_PREFIX,
    MULTI_TAGS,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    check_group_name,
    encode_properties,
    pack_host,
    wants_to_wait,
)
from aerobee.property_names import (
    DELAY,
    LITE_TOPIC,
    PRODUCER_GROUP,
    TIMER_DELETE_KEY,
    TIMER_OUT_MS,
    TRAN_MSG,
)
from aerobee.remoting.body.topic_config import MULTI_TAG, TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.protocol import FAQ
from aerobee.remoting.recall_handle import RecallHandle
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import HALF_TOPIC


@dataclass(slots=True)
class SendOutcome:
    """Result of a stored send.

    `append` is its position, or that of the first copy when `is_repeated`. `wants_to_wait`: the sender requests its
    reply only when the message is durable, if the broker is configured to wait. `gaps`: (index, queue offset) of each message of a batch
    whose queue offset does not follow that of the message before it.
    """

    append: AppendResult
    queue_id: int
    unique_key: str
    recall_handle: str = ""  # of a message that waits in the timer
    is_inner_batch: bool = False  # the batch became one record
    is_repeated: bool = False
    wants_to_wait: bool = True
    level: AckLevel | None = None  # ack level of the message or its topic
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Form:
    """The record to write for one send: a message, a batch of `entries`, or with `inner_count` one record for a batch."""

    properties: dict[str, str]  # of the record; of a batch of entries those around it
    unique_key: str
    dedup_key: str = ""
    entries: Sequence[BatchEntry] = ()
    inner_count: int = 0
    level: AckLevel | None = None


class SendService:
    """Stores or refuses sent messages, independent of the protocol: send_calls.py handles remoting requests."""

    def __init__(
        self,
        *,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        locks: LockTable,
        stats: BrokerStats,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        shortage: Callable[[], Shortage | None] = lambda: None,
        overload: Overload,
        unique_keys: UniqueKeys,
        duplicates: SendDuplicates,
        clock: Clock,
        pick_queue: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._stats = stats
        self._live = live
        self._identity = identity
        self._role = role
        self._shortage = shortage
        self._overload = overload
        self._unique_keys = unique_keys
        self._duplicates = duplicates
        self._clock = clock
        self._pick_queue = pick_queue

    def store(self, header: SendHeader, body: bytes, sender: Caller) -> SendOutcome:
        """Store one message or batch, readable on return. Raises RemoteError (a refusal) and StoreError; both are counted.

        `header` is changed on the way: topic and queue become those where the message lies. Its topic exists or cannot
        be created: call needs_topic() before.
        """
        config = self._live.value
        started = self._clock.monotonic()
        level: AckLevel | None = None
        try:
            self._check_open(config)
            topic = self._find_topic(header, sender, config)
            level = _level({} if header.batch else header.properties, topic)
            form = self._batch(header, body, topic) if header.batch else self._message(header, body, topic)
            form.level = level
            outcome = self._write(form, header, body, sender)
        except AlreadyStored as repeated:
            first = repeated.first
            return SendOutcome(
                first.result,
                first.queue_id,
                first.unique_key,
                is_repeated=True,
                wants_to_wait=wants_to_wait(header.properties),
                level=level,
            )
        except (RemoteError, StoreError):
            self._stats.put_failed()
            raise
        # A half message counts for its topic when it is committed.
        self._count(HALF_TOPIC if header.sys_flag & TRANSACTION_MASK else header.topic, outcome.append)
        self._stats.put_took(self._clock.monotonic() - started)
        return outcome

    async def store_in_turns(self, header: SendHeader, body: bytes, sender: Caller) -> SendOutcome:
        """As store(), for a batch with takes_turns(): other requests are served after each of its slices, and their
        messages may be stored between its own.

        A batch that cannot be cut is refused before any of it is stored. If the broker refuses a later slice, earlier
        ones stay stored, as with individual sends.
        """
        started = self._clock.monotonic()
        try:
            self._check_open(self._live.value)
            topic = self._find_topic(header, sender, self._live.value)
            level = _level({}, topic)
            self._check_batch(header, body)
            count = await _count_in_turns(body)
            form = self._batch_form(header, topic, count, ())
            form.level = level
            if form.inner_count:
                outcome = self._write(form, header, body, sender)
                self._count(header.topic, outcome.append)
            else:
                outcome = await self._write_in_turns(form, header, body, sender)
        except (RemoteError, StoreError):
            self._stats.put_failed()
            raise
        self._stats.put_took(self._clock.monotonic() - started)
        return outcome

    def _count(self, topic: str, result: AppendResult) -> None:
        larger = larger_of(result.record_sizes) if result.count > 1 else None
        self._stats.topic_put(topic, result.count, result.size, 1, larger)

    def needs_topic(self, header: SendHeader) -> bool:
        """Whether the topic of a send that would be taken is not there, and may have to be made first."""
        name = header.topic
        if self._topics.get(name) is not None or header.topic_fault or not takes_client_sends(name):
            return False
        try:
            self._check_open(self._live.value, is_counted=False)
        except RemoteError:
            return False
        return True

    def refused(self) -> None:
        """Count a send whose topic could not be made."""
        self._stats.put_failed()

    # --- checks

    def _check_open(self, config: BrokerConfig, *, is_counted: bool = True) -> None:
        opens_ms = config.start_accept_send_request_time_stamp
        if self._clock.now_ms() < opens_ms:
            when = datetime.fromtimestamp(opens_ms / 1000, UTC).isoformat(sep=" ")
            raise RemoteError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {when}")
        if not self._role.takes_writes:
            raise RemoteError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now. broker {self._identity.name} id {self._identity.broker_id} is a slave: "
                "send to the master of that name",
            )
        if shortage := self._shortage():
            raise RemoteError(*shortage)
        if self._overload.reason:
            if is_counted:
                self._overload.count_refused()
            raise RemoteError(ResponseCode.SYSTEM_BUSY, self._overload.reason)

    def _find_topic(self, header: SendHeader, sender: Caller, config: BrokerConfig) -> TopicConfig:
        """Return the topic's config; pick a queue where the request names none. Raises RemoteError."""
        name = header.topic
        if header.topic_fault:
            raise RemoteError(ResponseCode.INVALID_PARAMETER, header.topic_fault)
        if not takes_client_sends(name):
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{name}] is forbidden: it is the broker's own",
            )
        topic = self._topics.get(name)
        if topic is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!\n{FAQ}"
            )
        if not config.broker_permission & PERM_WRITE and topic.order:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] sending message is forbidden",
            )
        queue_count = max(topic.read_queue_nums, topic.write_queue_nums)
        if header.queue_id >= queue_count:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic {name} takes 0 to {queue_count - 1} "
                f"(readQueueNums={topic.read_queue_nums}, writeQueueNums={topic.write_queue_nums}) "
                f"Producer: {sender.address}",
            )
        if header.queue_id < 0:
            header.queue_id = self._pick_queue(max(1, topic.write_queue_nums))
        return topic

    def _check_size(self, body: bytes, what: str = "body") -> None:
        limit = self._store.config.max_message_size
        if len(body) > limit:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its {what} has {len(body)} bytes, at most {limit} are allowed "
                "(maxMessageSize)",
            )

    # --- one message

    def _message(self, header: SendHeader, body: bytes, topic: TopicConfig) -> _Form:
        config, properties = self._live.value, header.properties
        header.sys_flag = self._transaction_bits(header, properties)
        if config.enable_topic_message_type_check:
            check_type(topic, properties)
        queue_id = priority_queue(properties, topic.write_queue_nums)
        if queue_id is not None:
            header.queue_id = queue_id
        self._check_size(body)
        if header.topic.startswith(RETRY_PREFIX):
            topic = self._retry_or_dead_letter(header, properties, topic)
        dedup_key = self._duplicates.check(header.topic, properties, header.sys_flag)
        unique_key = self._add_own_properties(properties, config)
        if LITE_TOPIC in properties:
            add_lite_queue(header.topic, properties)
        header.sys_flag = _sys_flag(header.sys_flag, topic)
        return _Form(properties, unique_key, dedup_key)

    def _transaction_bits(self, header: SendHeader, properties: dict[str, str]) -> int:
        """Return the sys_flag with the prepared bits for a half message and no transaction bits for all others."""
        sys_flag = header.sys_flag & ~TRANSACTION_MASK
        is_prepared = header.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        if properties.get(TRAN_MSG, "").lower() != "true":
            if is_prepared:
                raise RemoteError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: its sysFlag says transaction, but property {TRAN_MSG} is not true",
                )
            return sys_flag
        # A committed message that a consumer sends back still has the property.
        if header.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or (
            header.reconsume_times > 0 and DELAY in properties
        ):
            return sys_flag
        if self._live.value.reject_transaction_message:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.address}] sending transaction message is forbidden",
            )
        if not properties.setdefault(PRODUCER_GROUP, header.producer_group):
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: a transaction message names its producer group in {PRODUCER_GROUP}",
            )
        return sys_flag | TRANSACTION_PREPARED

    def _retry_or_dead_letter(
        self, header: SendHeader, properties: dict[str, str], topic: TopicConfig
    ) -> TopicConfig:
        """A message that a consumer sent to its retry topic: dead-letter it when its tries are used up
        (handleRetryAndDLQ)."""
        group_name = header.topic[len(RETRY_PREFIX) :]
        try:
            check_group_name(group_name.split("+")[0])
        except UsageError as error:
            raise RemoteError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        group = self._groups.find_or_create(group_name)
        if group is None:
            raise group_unknown(group_name)
        tries_max = tries_bound(group, header.max_reconsume_times)
        # A group with orderly locks retries in the client; a message that it sends here has used all its
        # tries. A message that was not tried before comes from an operator who sends dead letters again.
        tries = header.reconsume_times
        if tries <= tries_max and (tries == 0 or not self._locks.holds_any(group_name)):
            return topic
        note_death(
            properties,
            topic=properties.get("RETRY_TOPIC", header.topic),
            message_id=properties.get("UNIQ_KEY") or properties.get("ORIGIN_MESSAGE_ID", ""),
            tries=tries,
            reason=tries_failed(tries),
        )
        properties[DELAY] = "-1"
        header.topic = DLQ_PREFIX + group_name
        header.queue_id = 0
        return self._topics.create_dead_letter_topic(group_name)

    def _add_own_properties(self, properties: dict[str, str], config: BrokerConfig) -> str:
        """Add what the broker writes into every single message; return the unique key."""
        properties.pop("POP_CK", None)
        unique_key = properties.get("UNIQ_KEY") or self._unique_keys.next(self._clock.now_ms())
        properties["UNIQ_KEY"] = unique_key
        properties["MSG_REGION"] = config.region_id
        properties["TRACE_ON"] = boolean_text(config.trace_on)
        properties["CLUSTER"] = config.broker_cluster_name
        return unique_key

    # --- a batch

    def _batch(self, header: SendHeader, body: bytes, topic: TopicConfig) -> _Form:
        self._check_batch(header, body)
        try:
            if topic.is_batch:  # its body is stored as it is
                return self._batch_form(header, topic, batch_count(body), ())
            entries = parse_batch(body)
        except MalformedRecord as error:
            raise _cannot_be_cut(error) from error
        return self._batch_form(header, topic, len(entries), entries)

    def _check_batch(self, header: SendHeader, body: bytes) -> None:
        """Refuse what no batch may ask for. Raises RemoteError."""
        if header.topic.startswith(RETRY_PREFIX):
            raise RemoteError(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
        if len(header.topic) > TOPIC_BYTES_MAX:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message topic length {len(header.topic)}, at most {TOPIC_BYTES_MAX} are allowed in a batch",
            )
        outer = header.properties
        if DELAY in outer or header.sys_flag & TRANSACTION_MASK:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL, "a batch takes neither delay levels nor transaction messages"
            )
        self._check_size(body, "batch body")

    def _batch_form(
        self, header: SendHeader, topic: TopicConfig, count: int, entries: Sequence[BatchEntry]
    ) -> _Form:
        outer = header.properties
        if self._live.value.enable_topic_message_type_check:
            check_type(topic, outer)
        if topic.is_batch:
            return _Form(outer, self._add_own_properties(outer, self._live.value), inner_count=count)
        unique_key = outer.get("UNIQ_KEY") or self._unique_keys.next(self._clock.now_ms())
        return _Form(outer, unique_key, entries=entries)

    # --- storing

    def _write(self, form: _Form, header: SendHeader, body: bytes, sender: Caller) -> SendOutcome:
        """Store the message, record its dedup key, and create the recall handle of a timer message. Raises RemoteError,
        StoreError.
        """
        properties, queue_id, born_host = form.properties, header.queue_id, pack_host(*sender.host_port)
        recall_handle = ""
        if form.entries:
            result = self._append_entries(form.entries, header, born_host)
        elif form.inner_count:
            first = self._store.next_offset(header.topic, queue_id)
            record = _record(header, body, b"", born_host, flag=header.flag)
            result = self._store.append(
                as_inner_batch(record, properties, count=form.inner_count, first_offset=first)
            )
        else:
            record = _record(header, body, _text(properties), born_host, flag=header.flag)
            record.parsed = properties
            has_waited = TIMER_OUT_MS in properties
            result = self._writer.put(record, properties)
            if not has_waited and TIMER_OUT_MS in properties and TIMER_DELETE_KEY not in properties:
                recall_handle = RecallHandle(
                    header.topic, self._identity.name, int(properties[TIMER_OUT_MS]) + 1, form.unique_key
                ).encode()
            if form.dedup_key:
                self._duplicates.note(header.topic, form.dedup_key, result, queue_id, form.unique_key)
        return SendOutcome(
            result,
            queue_id,
            form.unique_key,
            recall_handle=recall_handle,
            is_inner_batch=form.inner_count > 0,
            wants_to_wait=wants_to_wait(properties),
            level=form.level,
        )

    def _append_entries(
        self, entries: Sequence[BatchEntry], header: SendHeader, born_host: bytes
    ) -> AppendResult:
        return self._store.append_batch(
            [_record(header, entry.body, entry.properties, born_host, flag=entry.flag) for entry in entries]
        )

    async def _write_in_turns(
        self, form: _Form, header: SendHeader, body: bytes, sender: Caller
    ) -> SendOutcome:
        """Store the pieces of a batch, each as a separate batch, while the broker takes messages for the topic.

        A refusal behind the first piece is a SYSTEM_ERROR: other codes tell clients that nothing is stored.
        """
        born_host = pack_host(*sender.host_port)
        appends: list[AppendResult] = []
        try:
            for piece in batch_pieces(body):
                if appends:
                    await asyncio.sleep(0)
                self._check_open(self._live.value)
                self._find_topic(header, sender, self._live.value)
                appends.append(self._append_entries(piece, header, born_host))
        except (RemoteError, StoreError) as error:
            if not appends:
                raise
            count = sum(append.count for append in appends)
            why = error.remark if isinstance(error, RemoteError) else str(error)
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR, f"{count} messages of the batch are stored, then: {why}"
            ) from error
        finally:
            sizes = [size for append in appends for size in append.record_sizes]
            if sizes:
                self._stats.topic_put(header.topic, len(sizes), sum(sizes), 1, larger_of(sizes))
        first = appends[0]  # _count_in_turns() refuses an empty batch
        result = AppendResult(
            first.physical_offset,
            appends[-1].end - first.physical_offset,
            first.queue_offset,
            first.store_timestamp,
            tuple(offset for append in appends for offset in append.record_offsets),
        )
        waits = wants_to_wait(form.properties)
        return SendOutcome(
            result,
            header.queue_id,
            form.unique_key,
            wants_to_wait=waits,
            level=form.level,
            gaps=tuple(_gaps(appends)),
        )


def _gaps(appends: list[AppendResult]) -> Iterator[tuple[int, int]]:
    """As SendOutcome has them, of the pieces of a batch."""
    index, following = 0, appends[0].queue_offset
    for append in appends:
        if append.queue_offset != following:
            yield index, append.queue_offset
        index, following = index + append.count, append.queue_offset + append.count


async def _count_in_turns(body: bytes) -> int:
    """Number of messages in a batch. Raises RemoteError when it cannot be cut."""
    count = 0
    try:
        for piece in batch_pieces(body):
            count += len(piece)
            await asyncio.sleep(0)
    except MalformedRecord as error:
        raise _cannot_be_cut(error) from error
    return count


def _cannot_be_cut(error: MalformedRecord) -> RemoteError:
    return RemoteError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")


def _level(properties: dict[str, str], topic: TopicConfig) -> AckLevel | None:
    """The ack level of the message or its topic. Raises RemoteError."""
    try:
        return wanted_level(properties, topic.attributes)
    except ValueError as error:
        raise RemoteError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error


def _record(
    header: SendHeader, body: bytes, properties: bytes, born_host: bytes, *, flag: int
) -> StoredMessage:
    return StoredMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        body=body,
        properties=properties,
        born_host=born_host,
        flag=flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        reconsume_times=header.reconsume_times,
    )


def _text(properties: dict[str, str]) -> bytes:
    text = encode_properties(properties).encode(errors="surrogateescape")
    if len(text) > PROPERTIES_BYTES_MAX:
        raise RemoteError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its properties take {len(text)} bytes with the broker's own, at most "
            f"{PROPERTIES_BYTES_MAX} are allowed",
        )
    return text


def _sys_flag(sys_flag: int, topic: TopicConfig) -> int:
    return sys_flag | MULTI_TAGS if topic.topic_filter_type == MULTI_TAG else sys_flag
