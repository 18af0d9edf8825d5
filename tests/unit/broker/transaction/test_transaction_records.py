"""Half messages, commits, checks and op records: the bytes that RocketMQ 5.5.0 wrote, and a start from its queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.transaction.commit_scan import commits_between
from aerobee.broker.transaction.half_message import (
    HalfMessage,
    asked_again,
    check_body,
    committed,
    given_up,
    is_half,
    op_offsets,
    op_record,
    read_half,
    to_half,
)
from aerobee.broker.transaction.recovery import Source, recover
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome
from aerobee.errors import MalformedRecord, RemoteError
from aerobee.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    Record,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    pack_host,
)
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.frame import decode_frame
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from tests.captures import captured

STORE = Path(__file__).parents[3] / "data" / "store"
HOST = pack_host("127.0.0.2", 20911)


def rocketmq_records(archive: str) -> list[Record]:
    """The records of an archive's log, as the expectations list them."""
    expected = json.loads((STORE / f"{archive}.expected.json").read_text())
    return [_record(fields) for fields in expected["records"]]


def _record(fields: dict[str, Any]) -> Record:
    def host(text: str) -> tuple[str, int]:
        ip, _, port = text.rpartition(":")
        return ip, int(port)

    body = fields.get("body")
    return Record(
        topic=fields["topic"],
        queue_id=fields["queueId"],
        queue_offset=fields["queueOffset"],
        physical_offset=fields["physicalOffset"],
        body=body.encode() if isinstance(body, str) else b"",
        properties=fields["properties"],
        flag=fields["flag"],
        sys_flag=fields["sysFlag"],
        born_timestamp=fields["bornTimestamp"],
        born_host=host(fields["bornHost"]),
        store_timestamp=fields["storeTimestamp"],
        store_host=host(fields["storeHost"]),
        reconsume_times=fields["reconsumeTimes"],
        prepared_transaction_offset=fields["preparedTransactionOffset"],
        total_size=fields["size"],
    )


def properties_of(message: StoredMessage) -> dict[str, str]:
    return decode_properties(message.properties.decode())


@pytest.mark.parametrize("archive", ["clean-shutdown", "killed", "all-scenarios"])
def test_half_message_and_commit_are_rocketmqs_records(archive: str) -> None:
    """Every commit of RocketMQ's: what we make of its half message is what RocketMQ made of it, and back."""
    records = {record.physical_offset: record for record in rocketmq_records(archive)}
    commits = [record for record in records.values() if record.sys_flag & 0xC == TRANSACTION_COMMIT]
    assert commits
    for record in commits:
        half = read_half(records[record.prepared_transaction_offset])
        message, properties = committed(half)
        assert (message.topic, message.queue_id) == (record.topic, record.queue_id)
        assert message.sys_flag == record.sys_flag
        assert message.prepared_transaction_offset == half.record.physical_offset
        assert properties == properties_of(message) == dict(record.properties)
        assert message.born_host == pack_host(*record.born_host)
        assert bytes(message.body) == record.body
        # The half message again from what the producer sent.
        sent = {
            name: value
            for name, value in half.record.properties.items()
            if name not in ("__transactionId__", "REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES")
        }
        message.sys_flag = TRANSACTION_PREPARED
        assert is_half(message)
        again = to_half(message, sent)
        wanted = dict(half.record.properties)
        wanted.pop("TRANSACTION_CHECK_TIMES", None)
        assert (again.topic, again.queue_id, again.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
        assert properties_of(again) == wanted
        assert again.properties.endswith(
            f"REAL_TOPIC\x01{record.topic}\x02REAL_QID\x01{record.queue_id}\x02".encode()
        )


def test_copies_for_checks_and_op_records_are_rocketmqs() -> None:
    records = rocketmq_records("all-scenarios")
    halves = [record for record in records if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC"]
    by_id: dict[str, list[Record]] = {}
    for record in halves:
        by_id.setdefault(record.unique_id or "", []).append(record)
    checked = [copies for copies in by_id.values() if len(copies) > 1]
    assert checked
    for first, *copies in checked:
        for number, copy in enumerate(copies, 1):
            ours = asked_again(read_half(first), number)
            assert properties_of(ours) == dict(copy.properties)
            assert (ours.topic, ours.queue_id, ours.sys_flag) == (copy.topic, 0, 0)
    ops = [record for record in records if record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    assert [op_offsets(record) for record in ops] == [[1, 0, 3], [5], [7, 6, 9], [12], [11]]
    for record in ops:
        ours = op_record(op_offsets(record), now_ms=record.born_timestamp, host=HOST)
        assert bytes(ours.body) == record.body
        assert properties_of(ours) == dict(record.properties)
        assert ours.born_host == pack_host(*record.born_host)


def test_check_carries_the_record_that_rocketmq_sends() -> None:
    frames = [frame for frame in captured("java-produce-trans") if frame.request_code == 39]
    assert len(frames) == 2
    for number, frame in enumerate(frames, 1):
        command = decode_frame(frame.data)
        record = decode_record(command.body)
        half = HalfMessage(record, "TopicTrans", 1, "PG_trans", record.unique_id or "", number - 1, None)
        copy = asked_again(half, number)
        ext = command.ext or {}
        result = AppendResult(
            int(ext["commitLogOffset"]),
            record.total_size,
            int(ext["tranStateTableOffset"]),
            record.store_timestamp,
            (),
        )
        ours = decode_record(check_body(half, copy, result, HOST))
        assert ours == record


def test_delay_level_is_dropped_and_a_timer_refused() -> None:
    properties = {"UNIQ_KEY": "U", "DELAY": "3", "TRAN_MSG": "true"}
    message = StoredMessage(
        topic="orders", queue_id=1, body=b"", properties=b"", born_host=HOST, sys_flag=TRANSACTION_PREPARED
    )
    half = to_half(message, properties)
    assert "DELAY" not in properties_of(half)
    for name in ("TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY"):
        with pytest.raises(RemoteError, match=name) as caught:
            to_half(message, {"UNIQ_KEY": "U", name: "5"})
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_sender_cannot_smuggle_in_the_brokers_own_properties() -> None:
    properties = {"UNIQ_KEY": "U", "REAL_TOPIC": "secret", "REAL_QID": "7", "TRANSACTION_CHECK_TIMES": "99"}
    message = StoredMessage(
        topic="orders", queue_id=1, body=b"", properties=b"", born_host=HOST, sys_flag=TRANSACTION_PREPARED
    )
    stored = properties_of(to_half(message, properties))
    assert stored == {"UNIQ_KEY": "U", "__transactionId__": "U", "REAL_TOPIC": "orders", "REAL_QID": "1"}


@pytest.mark.parametrize(
    "broken",
    [
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "t"},
        {"REAL_TOPIC": "t", "REAL_QID": "-1"},
        {"REAL_TOPIC": "t", "REAL_QID": "9" * 30},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ],
)
def test_half_message_that_belongs_nowhere_is_refused(broken: dict[str, str]) -> None:
    with pytest.raises(MalformedRecord, match="belongs to topic"):
        read_half(record_of("RMQ_SYS_TRANS_HALF_TOPIC", broken, 0, 0))


@pytest.mark.parametrize("body", [b"1,x,", b"-3,", b"1 ,", b"9" * 40, b"1,\xb2,"])
def test_op_record_with_anything_but_offsets_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedRecord, match="names half message"):
        op_offsets(record_of("op", {}, 0, 0, body=body))


def test_given_up_copy_keeps_what_an_operator_needs() -> None:
    half = read_half(
        record_of(
            "RMQ_SYS_TRANS_HALF_TOPIC",
            {"REAL_TOPIC": "t", "REAL_QID": "3", "PGROUP": "g", "UNIQ_KEY": "U"},
            0,
            0,
        )
    )
    copy = given_up(half)
    assert copy.topic == "TRANS_CHECK_MAX_TIME_TOPIC"
    assert properties_of(copy) == dict(half.record.properties)


# --- a start


def record_of(
    topic: str, properties: dict[str, str], queue_offset: int, physical_offset: int, *, body: bytes = b"b",
    sys_flag: int = 0, prepared: int = 0,
) -> Record:  # fmt: skip
    return decode_record(
        encode_record(
            topic=topic.encode(), queue_id=0, queue_offset=queue_offset, physical_offset=physical_offset, body=body,
            properties=encode_properties(properties).encode(), sys_flag=sys_flag, born_host=HOST, store_host=HOST,
            prepared_transaction_offset=prepared, store_timestamp=1_000,
        )
    )  # fmt: skip


class MemoryQueue:
    min_offset = 0

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []

    @property
    def max_offset(self) -> int:
        return len(self.entries)

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        return self.entries[offset]


class MemoryLog:
    """A log that is written by the names of what happened."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.half, self.op = MemoryQueue(), MemoryQueue()
        self.positions: dict[str, int] = {}
        self.indexed: set[str] = set()

    def add(
        self,
        topic: str,
        properties: dict[str, str],
        queue: MemoryQueue | None,
        body: bytes = b"b",
        **fields: int,
    ) -> int:
        at = len(self.data)
        data = encode_record(
            topic=topic.encode(), queue_id=0, queue_offset=queue.max_offset if queue else 0, physical_offset=at,
            body=body, properties=encode_properties(properties).encode(), born_host=HOST, store_host=HOST,
            store_timestamp=1_000, sys_flag=fields.get("sys_flag", 0),
            prepared_transaction_offset=fields.get("prepared", 0),
        )  # fmt: skip
        self.data += data
        if queue is not None:
            queue.entries.append((at, len(data), 0))
        return at

    def prepare(self, name: str, checks: int = 0) -> None:
        properties = {"REAL_TOPIC": "t", "REAL_QID": "0", "PGROUP": "g", "UNIQ_KEY": name}
        if checks:
            properties["TRANSACTION_CHECK_TIMES"] = str(checks)
        self.positions[name] = self.add("RMQ_SYS_TRANS_HALF_TOPIC", properties, self.half)

    def commit(self, name: str) -> None:
        self.indexed.add(name)
        self.add(
            "t",
            {"PGROUP": "g", "UNIQ_KEY": name},
            None,
            sys_flag=TRANSACTION_COMMIT,
            prepared=self.positions[name],
        )

    def ops(self, *offsets: int) -> None:
        self.add("op", {}, self.op, "".join(f"{offset}," for offset in offsets).encode())

    def plain(self, count: int = 1) -> None:
        for _ in range(count):
            self.add("other", {}, None)

    def recover(self, half_offset: int | None = None, op_offset: int | None = None, settled: int = 0) -> Any:
        return recover(
            Source(
                half_queue=self.half if self.half.entries else None,
                op_queue=self.op if self.op.entries else None,
                read=lambda at, size: bytes(self.data[at : at + size]),
                log_start=0,
                log_end=len(self.data),
                half_offset=half_offset,
                op_offset=op_offset,
                settled_offset=settled,
            ),
            interval_ms=60_000,
            was_committed=lambda half: half.transaction_id in self.indexed,
        )

    def open_after(self, **arguments: int) -> list[str]:
        return [transaction.transaction_id for transaction in self.recover(**arguments).table.by_key.values()]


def test_start_of_an_empty_store_finds_nothing() -> None:
    found = MemoryLog().recover()
    assert not found.table.open
    assert found.scanned_bytes == 0


def test_op_records_close_half_messages() -> None:
    log = MemoryLog()
    for name in "abc":
        log.prepare(name)
    log.ops(0, 2)
    assert log.open_after() == ["b"]


def test_commit_without_an_op_record_counts() -> None:
    log = MemoryLog()
    for name in "abc":
        log.prepare(name)
    log.commit("b")
    found = log.recover()
    assert list(found.table.by_key) == [("g", "a"), ("g", "c")]
    assert found.found_commits == 1
    assert found.table.ops == [1]  # the op record is still to be written
    assert found.table.outcomes[("g", "b")] is Outcome.COMMITTED


def test_rollback_without_an_op_record_is_open_again() -> None:
    log = MemoryLog()
    log.prepare("a")
    assert log.open_after() == ["a"]


def test_search_for_commits_begins_where_op_records_are_known_to_be_complete() -> None:
    log = MemoryLog()
    log.prepare("open")
    log.plain(50)
    settled = len(log.data)
    log.prepare("late")
    log.commit("late")
    found = log.recover(settled=settled)
    assert found.scanned_bytes == len(log.data) - settled
    assert list(found.table.by_key) == [("g", "open")]
    # What a power loss cut off cannot say where to begin.
    assert log.recover(settled=len(log.data) + 1).scanned_bytes == len(log.data)


def test_search_begins_a_few_op_records_back_without_a_settled_offset() -> None:
    log = MemoryLog()
    log.prepare("open")
    log.plain(50)
    for number in range(6):
        log.prepare(f"done{number}")
        log.ops(number + 1)
    found = log.recover()
    assert found.scanned_bytes < len(log.data) // 2
    assert log.open_after() == ["open"]


def test_copies_of_a_check_are_one_transaction_with_its_count() -> None:
    log = MemoryLog()
    log.prepare("a")
    log.prepare("a", checks=1)
    log.prepare("a", checks=2)
    (transaction,) = log.recover().table.by_key.values()
    assert isinstance(transaction, OpenTransaction)
    assert (transaction.checks, transaction.copies) == (2, (0, 1, 2))
    assert transaction.due_ms == 61_000


def test_copy_that_rocketmq_made_of_a_committed_message_is_not_delivered_again() -> None:
    """RocketMQ asks about a message whose op record it has not written yet, and then delivers it twice."""
    log = MemoryLog()
    log.prepare("a")
    log.commit("a")
    log.ops(0)
    for number in range(5):
        log.prepare(f"x{number}")
        log.ops(number + 1)
    log.prepare("a", checks=1)
    assert log.open_after(half_offset=6) == []


def test_new_half_message_with_an_id_that_was_decided_is_open() -> None:
    log = MemoryLog()
    log.prepare("a")
    log.commit("a")
    log.prepare("a")
    found = log.recover()
    assert [transaction.queue_offset for transaction in found.table.by_key.values()] == [1]


def test_offsets_beyond_the_queues_end_are_those_of_a_log_that_was_cut() -> None:
    log = MemoryLog()
    log.prepare("a")
    found = log.recover(half_offset=9, op_offset=9)
    assert not found.table.open
    assert found.table.progress() == (1, 0)


def test_search_goes_over_the_end_of_a_file_and_stops_at_zeros() -> None:
    log = MemoryLog()
    log.prepare("a")
    log.data += (40).to_bytes(4, "big") + 0xCBD43194.to_bytes(4, "big") + bytes(32)
    at = len(log.data)
    log.commit("a")
    size = len(log.data) - at
    log.data += bytes(100)
    found = list(
        commits_between(lambda start, count: bytes(log.data[start : start + count]), 0, len(log.data))
    )
    assert found == [(at, size)]


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 7, b"\xff" * 60, b"\0\0\0\4" + b"\xda\xa3\x20\xa7" + bytes(60)]
)
def test_search_ends_at_anything_that_is_no_record(junk: bytes) -> None:
    assert list(commits_between(lambda start, count: junk[start : start + count], 0, len(junk))) == []
