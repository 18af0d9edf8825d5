"""The producer against a small broker that fails on demand."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from aerobee.client import ClientConfig, Compression, Producer, ProducerConfig, SendStatus
from aerobee.client.producer import send_tries
from aerobee.client.session.codec import choose_codec
from aerobee.errors import (
    ConfigError,
    ConnectFailed,
    MessageIllegal,
    RequestTimeout,
    RouteError,
    SendFailed,
    UsageError,
)
from aerobee.message import Message, decode_properties
from aerobee.network import AsyncioNetwork
from aerobee.remoting import client as remoting_client
from tests.waiting import wait_until


async def test_send_returns_where_the_message_is_stored(broker):
    async with Producer(broker.address, "PG") as producer:
        result = await producer.send(Message("orders", b"hello", tag="TagA", keys=("k1", "k2")))
    assert result.status is SendStatus.SEND_OK
    assert result.queue.broker_name == "broker-a"
    assert result.queue_offset == 0
    assert len(result.message_id) == 32
    assert len(result.offset_message_id) == 32
    assert broker.bodies("orders") == [b"hello"]


async def test_sends_go_round_over_all_queues(broker):
    async with Producer(broker.address, "PG") as producer:
        results = await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in range(8)))
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_equal_message_groups_go_to_one_queue(broker):
    async with Producer(broker.address, "PG") as producer:
        results = [await producer.send(Message("orders", b"x"), message_group="customer-7") for _ in range(6)]
    assert len({result.queue for result in results}) == 1


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_send_tries_again_after_a_code_that_another_try_can_mend(broker, code):
    broker.fail_next = [code, code]
    async with Producer(broker.address, "PG") as producer:
        result = await producer.send(Message("orders", b"hello"))
    assert result.status is SendStatus.SEND_OK
    assert len(broker.seen(310)) == 3


async def test_send_gives_up_after_its_tries_and_names_each(broker):
    broker.fail_next = [2] * 10
    async with Producer(broker.address, "PG") as producer:
        with pytest.raises(SendFailed, match=r"3 tries.*told to fail") as caught:
            await producer.send(Message("orders", b"hello"))
    assert len(caught.value.attempts) == 3
    assert len(broker.seen(310)) == 3


async def test_the_only_broker_is_given_time_when_it_is_busy(broker):
    broker.fail_next = [2, 2]
    loop = asyncio.get_running_loop()
    async with Producer(broker.address, "PG") as producer:
        began = loop.time()
        await producer.send(Message("orders", b"hello"))
        assert loop.time() - began >= 0.25 + 0.5  # the pauses before the second and the third try


@pytest.mark.parametrize(("codes", "tries"), [([2, 2], 3), ([2, 2, 2], 3), ([14] * 5, 6), ([1], 1)])
async def test_a_send_to_one_queue_is_repeated_only_where_a_broker_stored_nothing(broker, codes, tries):
    broker.fail_next = list(codes)
    async with Producer(broker.address, "PG") as producer:
        if tries > len(codes):
            result = await producer.send(Message("orders", b"hello"), message_group="customer-7")
            assert (
                result.queue
                == (await producer.send(Message("orders", b"again"), message_group="customer-7")).queue
            )
            assert broker.bodies("orders") == [b"hello", b"again"]
            tries += 1
        else:
            with pytest.raises(SendFailed, match=f"in {tries} tr(y|ies)"):
                await producer.send(Message("orders", b"hello"), message_group="customer-7")
            assert broker.bodies("orders") == []
    assert len(broker.seen(310)) == tries


async def test_refusal_for_good_is_raised_at_once(broker):
    broker.fail_next = [13]
    async with Producer(broker.address, "PG") as producer:
        with pytest.raises(MessageIllegal):
            await producer.send(Message("orders", b"hello"))
    assert len(broker.seen(310)) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_with_reservations_is_a_status_and_no_failure(broker, code, status):
    broker.fail_next = [code]
    async with Producer(broker.address, "PG") as producer:
        result = await producer.send(Message("orders", b"hello"))
    assert result.status is status


async def test_go_away_is_repeated_over_a_new_connection(broker):
    broker.fail_next = [1500]
    async with Producer(broker.address, "PG", config=ProducerConfig(retry_count_max=0)) as producer:
        result = await producer.send(Message("orders", b"hello"))
    assert result.status is SendStatus.SEND_OK


async def test_missing_topic_is_created_through_the_template(broker):
    async with Producer(broker.address, "PG") as producer:
        result = await producer.send(Message("fresh", b"hello"))
    assert result.queue.topic == "fresh"
    assert broker.bodies("fresh") == [b"hello"]


async def test_missing_topic_without_template_says_what_to_do(broker):
    del broker.topics["TBW102"]
    async with Producer(broker.address, "PG") as producer:
        with pytest.raises(RouteError, match="aerobee topic create"):
            await producer.send(Message("fresh", b"hello"))


async def test_silent_broker_ends_in_a_timeout_that_names_it(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.queues("orders")
        broker.silent = True
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("orders", b"hello"), timeout_s=0.2)
    queue, failure = caught.value.attempts[-1]
    assert broker.address in queue
    assert isinstance(failure, RequestTimeout)
    assert failure.elapsed_s >= 0.1


async def test_unreachable_nameserver_is_named():
    config = ClientConfig(require_nameserver=False)
    async with Producer("127.0.0.1:1", "PG", client=config) as producer:
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1.*check the addresses"):
            await producer.send(Message("orders", b"hello"))


class SilentHost(AsyncioNetwork):
    """Connection attempts to one port are neither taken nor refused, as those to a host that is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.attempts = 0

    async def create_connection(self, factory, host, port):
        if port == self._port:
            self.attempts += 1
            await asyncio.Event().wait()
        await super().create_connection(factory, host, port)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_host_that_says_nothing_leaves_time_for_another_broker(broker, monkeypatch, is_batch):
    broker.elsewhere = {"broker-gone": "127.0.0.1:1"}
    monkeypatch.setattr(remoting_client, "CONNECT_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(send_tries, "CONNECT_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(send_tries, "SHARE", 0.001)
    monkeypatch.setattr(send_tries, "SHARE_S_MIN", 0.0)
    network = SilentHost(1)
    config = ProducerConfig(send_timeout_s=120.0)
    async with Producer(broker.address, "PG", config=config, network=network) as producer:
        for number in range(10):
            message = Message("orders", b"%d" % number)
            sent = (await producer.send_batch([message]))[0] if is_batch else await producer.send(message)
            assert sent.queue.broker_name == "broker-a"
    assert network.attempts == 1  # it continues behind, for all who come for it


async def test_works_while_one_nameserver_is_left(broker):
    async with Producer(f"127.0.0.1:1;127.0.0.1:2;{broker.address}", "PG") as producer:
        result = await producer.send(Message("orders", b"hello"))
    assert result.status is SendStatus.SEND_OK


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
async def test_large_body_travels_compressed(broker, kind):
    body = b"compressible " * 1000
    async with Producer(broker.address, "PG", config=ProducerConfig(compression=kind)) as producer:
        await producer.send(Message("orders", body))
    request = broker.seen(310)[0]
    assert len(request.body) < 2000
    flags = {Compression.ZLIB: 769, Compression.LZ4: 257, Compression.ZSTD: 513}
    assert request.integer("f") == flags[kind]
    if kind is Compression.ZLIB:
        assert zlib.decompress(request.body) == body


async def test_too_large_body_is_refused_before_it_is_sent(broker):
    async with Producer(broker.address, "PG", config=ProducerConfig(body_bytes_max=10)) as producer:
        with pytest.raises(UsageError, match="at most 10"):
            await producer.send(Message("orders", b"x" * 11))
    assert not broker.seen(310)


async def test_a_delay_level_that_brokers_do_not_have_is_refused_on_every_way(broker):
    late = Message("orders", b"x", delay_level=99)
    async with Producer(broker.address, "PG") as producer:
        await producer.send(Message("orders", b"hello", delay_level=18))  # its route is known from here on
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(UsageError, match="brokers have 18 levels"):
                await send(late)
        with pytest.raises(UsageError, match="brokers have 18 levels"):
            await producer.send(late, message_group="k")
    config = ProducerConfig(delay_level_max=99)
    async with Producer(broker.address, "PG", config=config) as producer:
        for _ in range(2):
            await producer.send(late)
    assert broker.bodies("orders") == [b"hello", b"x", b"x"]


async def test_oneway_is_stored_without_an_answer(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.send_oneway(Message("orders", b"hello"))
        await wait_until(lambda: broker.bodies("orders") == [b"hello"])
    assert broker.seen(310)[0].is_oneway


async def test_batch_is_split_at_the_size_limit_and_keeps_order(broker):
    config = ProducerConfig(batch_bytes_max=400)
    messages = [Message("orders", b"message %02d" % n) for n in range(20)]
    async with Producer(broker.address, "PG", config=config) as producer:
        results = await producer.send_batch(messages)
        assert len(broker.seen(320)) > 1
        for message, result in zip(messages, results, strict=True):
            record = broker.records["orders", result.queue.queue_id][result.queue_offset]
            assert message.body in record
            assert result.message_id.encode() in record


async def test_batch_of_several_topics_is_sent_by_topic(broker):
    broker.topics["other"] = 1
    messages = [Message("orders" if n % 2 else "other", b"%d" % n) for n in range(10)]
    async with Producer(broker.address, "PG") as producer:
        results = await producer.send_batch(messages)
    assert [result.queue.topic for result in results] == [message.topic for message in messages]
    assert len(broker.seen(320)) == 2


async def test_cancelled_send_leaves_nothing_behind(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.queues("orders")
        broker.silent = True
        task = asyncio.create_task(producer.send(Message("orders", b"hello")))
        await wait_until(lambda: broker.seen(310))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        broker.silent = False
        assert producer._in_flight.taken == 0
        assert (await producer.send(Message("orders", b"next"))).status is SendStatus.SEND_OK


async def test_closed_producer_refuses(broker):
    producer = Producer(broker.address, "PG")
    with pytest.raises(UsageError, match="async with"):
        await producer.send(Message("orders", b"x"))


async def test_close_says_goodbye(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.send(Message("orders", b"x"))
        await wait_until(lambda: broker.seen(34))
    assert broker.seen(35)[0].ext == {"clientID": producer.client_id, "producerGroup": "PG"}


async def test_send_over_tls(tls_broker):
    async with Producer(
        tls_broker.address, "PG", client=ClientConfig(tls=True, tls_insecure=True)
    ) as producer:
        assert (await producer.send(Message("orders", b"secret"))).status is SendStatus.SEND_OK
    assert tls_broker.bodies("orders") == [b"secret"]


async def test_close_waits_for_sends_that_are_on_their_way(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.queues("orders")
        sending = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(50)]
        await asyncio.sleep(0)  # each of them runs up to its wait for the answer
        assert producer._in_flight.taken == 50
    assert {(await task).status for task in sending} == {SendStatus.SEND_OK}


async def test_send_that_waits_for_a_route_fails_when_the_producer_is_closed(broker):
    producer = Producer(broker.address, "PG", config=ProducerConfig(send_timeout_s=0.2))
    await producer.start()
    broker.silent = True
    sending = asyncio.create_task(producer.send(Message("orders", b"x"), timeout_s=5.0))
    await wait_until(lambda: len(broker.seen(105)) > 1)  # the first one was of start()
    await producer.close()
    with pytest.raises(UsageError, match="closed"):
        await sending


async def test_more_sends_than_may_be_in_flight_wait_for_their_turn(broker):
    async with Producer(broker.address, "PG", config=ProducerConfig(in_flight_max=3)) as producer:
        results = await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(50)))
    assert len(results) == 50


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_send_whose_time_ends_before_its_turn_says_what_it_waited_for(broker, key):
    config = ProducerConfig(in_flight_max=1, send_timeout_s=0.3, retry_count_max=0)
    async with Producer(broker.address, "PG", config=config) as producer:
        await producer.send(Message("orders", b"x"), timeout_s=30)
        broker.silent = True
        first, second = await asyncio.gather(
            producer.send(Message("orders", b"1"), timeout_s=0.6),
            producer.send(Message("orders", b"2"), message_group=key),
            return_exceptions=True,
        )
        assert isinstance(first, SendFailed)
        assert "did not answer" in str(first)
        assert isinstance(second, SendFailed)
        assert "was not sent: for 0.3 s, all its time, it waited for its turn behind 1 send" in str(second)
        broker.silent = False
        assert (await producer.send(Message("orders", b"3"), timeout_s=30)).status is SendStatus.SEND_OK
        assert producer._in_flight.taken == 0


async def test_slow_broker_is_left_alone_with_latency_fault(broker):
    config = ProducerConfig(latency_fault=True)
    async with Producer(broker.address, "PG", config=config) as producer:
        broker.fail_next = [2]
        result = await producer.send(Message("orders", b"x"))
        assert result.status is SendStatus.SEND_OK  # the only broker is used all the same


async def test_a_repeated_send_keeps_its_id_and_its_slot(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.send(Message("orders", b"the route and the connection are there from now on"))
        before = len(broker.seen(310))
        broker.fail_next = [2]
        result = await producer.send(Message("orders", b"x", tag="a", properties={"own": "b"}))
        assert producer._in_flight.taken == 0
    ids = [decode_properties(request.ext["i"])["UNIQ_KEY"] for request in broker.seen(310)[before:]]
    assert ids == [result.message_id] * 2


async def test_a_property_that_the_client_sets_is_refused_at_a_known_route_too(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.send(Message("orders", b"x"))
        with pytest.raises(UsageError, match="KEYS"):
            await producer.send(Message("orders", b"x", properties={"KEYS": "mine"}))


@pytest.mark.parametrize("codec", ["python", "native"])
async def test_a_burst_of_sends_gets_each_its_own_result(broker, codec, monkeypatch):
    try:
        choose_codec(codec)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("AEROBEE_CLIENT_CODEC", codec)
    async with Producer(broker.address, "PG") as producer:
        bodies = [b"%d" % number for number in range(200)]
        results = await asyncio.gather(*(producer.send(Message("orders", body)) for body in bodies))
    assert len({result.message_id for result in results}) == 200
    positions = {(result.queue, result.queue_offset) for result in results}
    assert len(positions) == 200
    assert sorted(broker.bodies("orders")) == sorted(bodies)
