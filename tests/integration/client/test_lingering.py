"""Sends that share requests (ProducerConfig.linger_ms), against a small broker that fails on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee.client import Producer, ProducerConfig
from aerobee.client.base.results import SendResult
from aerobee.client.producer import lingering
from aerobee.client.session.send_header import encode_batch_entry, encode_plain_entry
from aerobee.errors import ConfigError, MessageIllegal, SendFailed, UsageError
from aerobee.message import Message, MessageQueue
from tests.integration.client.conftest import record_body

LINGER = ProducerConfig(linger_ms=5)
LONG = ProducerConfig(linger_ms=60_000, send_timeout_s=90)  # ends by a full batch or by close() alone


def message(number: int, **fields: Any) -> Message:
    return Message("orders", b"%d" % number, **fields)


async def send_all(producer: Producer, count: int, **options: Any) -> list[SendResult]:
    return await asyncio.gather(*(producer.send(message(number), **options) for number in range(count)))


def body_at(broker: Any, result: SendResult) -> bytes:
    """The body of the message where the result says that it is."""
    record = broker.records["orders", result.queue.queue_id][result.queue_offset]
    return bytes(record_body(record))


def bodies_in(broker: Any, queue_id: int) -> list[bytes]:
    return [bytes(record_body(record)) for record in broker.records["orders", queue_id]]


async def test_sends_share_requests_and_each_has_its_own_result(broker):
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        results = await send_all(producer, 100)
    assert not broker.seen(310)
    assert len(broker.seen(320)) <= 2
    assert [body_at(broker, result) for result in results] == [b"%d" % number for number in range(100)]
    assert len({result.message_id for result in results}) == 100


async def test_a_send_that_no_other_joins_is_a_plain_request(broker):
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        await producer.send(message(1))
    assert (len(broker.seen(310)), len(broker.seen(320))) == (1, 0)


@pytest.mark.parametrize("codes", [[], [2, 14, 2]], ids=["no-failure", "retries"])
async def test_messages_of_one_key_stay_in_order(broker, codes, monkeypatch):
    """Many batches of one queue, of which some are tried again: the next one leaves when one has its reply."""
    monkeypatch.setattr(lingering, "BATCH_COUNT_MAX", 8)
    broker.fail_next = codes
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        results = await send_all(producer, 100, message_group="customer-7")
    (queue,) = {result.queue for result in results}
    assert bodies_in(broker, queue.queue_id) == [b"%d" % n for n in range(100)]
    assert len(broker.seen(320)) >= 100 // 8


async def test_a_message_that_no_batch_can_have_stays_in_order(broker):
    queue = MessageQueue("orders", "broker-a", 2)
    middle = {"properties": {"DEDUP_KEY": "k"}}
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        sends = [message(n, **(middle if n == 2 else {})) for n in range(5)]
        await asyncio.gather(*(producer.send(each, queue=queue) for each in sends))
    assert bodies_in(broker, 2) == [b"0", b"1", b"2", b"3", b"4"]
    assert (len(broker.seen(310)), len(broker.seen(320))) == (1, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_level": 3}, {"ack": "flushed"}, {"priority": 2}, {"wait_store_ok": False}, {"properties": {"DEDUP_KEY": "k"}},
        {"properties": {"TIMER_DELAY_MS": "9000"}}, {"properties": {"__LITE_TOPIC": "room42"}},
    ],
)  # fmt: skip
async def test_a_message_that_no_batch_can_have_does_not_wait(broker, fields):
    async with Producer(broker.address, "PG", config=LONG) as producer:
        await producer.send(message(1, **fields))
    assert len(broker.seen(310)) == 1


async def test_messages_for_a_lite_topic_share_no_request(broker):
    """A broker gives a message to the LMQ of its lite topic outside of batches only."""
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        await send_all(producer, 3, lite_topic="room42")
    assert (len(broker.seen(310)), len(broker.seen(320))) == (3, 0)


async def test_a_refused_batch_is_sent_message_by_message(broker):
    broker.fail_next = [13, 0, 13]
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        results = await asyncio.gather(
            *(producer.send(message(number)) for number in range(4)), return_exceptions=True
        )
    assert [type(each) for each in results] == [SendResult, MessageIllegal, SendResult, SendResult]
    assert broker.bodies("orders") == [b"0", b"2", b"3"]


async def test_a_batch_of_which_nothing_is_known_fails_for_each_send(broker):
    broker.fail_next = [1]
    config = ProducerConfig(linger_ms=5, retry_count_max=0)
    async with Producer(broker.address, "PG", config=config) as producer:
        results = await asyncio.gather(
            *(producer.send(message(number)) for number in range(3)), return_exceptions=True
        )
    assert [type(each) for each in results] == [SendFailed] * 3
    assert len(broker.seen(320)) == 1


@pytest.mark.parametrize("is_internal", [False, True], ids=["of-the-broker", "internal"])
async def test_each_send_of_a_failed_batch_has_its_own_error(broker, is_internal, monkeypatch):
    """Callers that raise one exception object see each other's tracebacks and contexts."""
    config = ProducerConfig(linger_ms=5, retry_count_max=0)
    async with Producer(broker.address, "PG", config=config) as producer:
        broker.fail_next = [] if is_internal else [1]
        if is_internal:
            await producer.send(message(9))

            def fail(*args: object) -> bytes:
                raise LookupError("a bug", 7)

            sender = producer._lingering
            monkeypatch.setattr(sender, "_send_batch", fail)
        errors = await asyncio.gather(
            *(producer.send(message(number)) for number in range(3)), return_exceptions=True
        )
    assert [type(each) for each in errors] == [LookupError if is_internal else SendFailed] * 3
    assert len({id(each) for each in errors}) == 3
    assert len({(str(each), repr(each.args), repr(vars(each))) for each in errors}) == 1


async def test_a_full_batch_does_not_wait(broker, monkeypatch):
    monkeypatch.setattr(lingering, "BATCH_COUNT_MAX", 10)
    async with Producer(broker.address, "PG", config=LONG) as producer:
        await asyncio.wait_for(send_all(producer, 20), 120)
    assert len(broker.seen(320)) == 2


async def test_batches_stay_below_their_size(broker):
    config = ProducerConfig(linger_ms=5, batch_bytes_max=1_000)
    async with Producer(broker.address, "PG", config=config) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"x" * 300)) for _ in range(9)))
    assert {len(request.body) <= 1_000 for request in broker.seen(320)} == {True}
    assert len(broker.bodies("orders")) == 9


async def test_close_sends_what_waits(broker):
    async with Producer(broker.address, "PG", config=LONG) as producer:
        sends = [asyncio.ensure_future(producer.send(message(number))) for number in range(3)]
        await asyncio.sleep(0)
    assert [(await each).queue_offset for each in sends] == [0, 1, 2]


async def test_a_cancelled_send_is_not_stored(broker):
    async with Producer(broker.address, "PG", config=LONG) as producer:
        sends = [asyncio.ensure_future(producer.send(message(number))) for number in range(3)]
        await asyncio.sleep(0)
        sends[1].cancel()
    assert broker.bodies("orders") == [b"0", b"2"]


async def test_sends_with_other_time_outs_do_not_share_a_request(broker):
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        await asyncio.gather(
            *(
                producer.send(message(n), timeout_s=timeout_s)
                for n, timeout_s in enumerate((None, None, 9, 9))
            )
        )
    assert len(broker.seen(320)) == 2


async def test_a_message_that_can_never_be_stored_is_refused_itself(broker):
    async with Producer(broker.address, "PG", config=LINGER) as producer:
        good = asyncio.ensure_future(producer.send(message(1)))
        with pytest.raises(UsageError, match="properties take"):
            await producer.send(message(2, properties={"name": "x" * 40_000}))
        await good
    assert broker.bodies("orders") == [b"1"]


@pytest.mark.parametrize(
    "fields", [{}, {"tag": "new"}, {"keys": ("k1", "k2")}, {"properties": {"a": "b"}}, {"flag": -7}]
)
def test_a_plain_entry_is_the_entry_of_any_batch(fields):
    assert encode_plain_entry(message(1, **fields), "U1") == encode_batch_entry(message(1, **fields), "U1")


def test_linger_ms_is_below_the_time_out():
    for value in (-1, 3_000):
        with pytest.raises(ConfigError, match=r"producer\.linger_ms is"):
            ProducerConfig(linger_ms=value)
