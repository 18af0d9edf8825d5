"""Static topics made and moved by our own admin calls and commands, under load, and when a change breaks off."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aerobee import Message
from aerobee.client import ConsumeFrom, ConsumerConfig, ReceivedMessage
from aerobee.client.admin.static_topics import StaticTopicCalls
from aerobee.client.base.static_plan import StaticTopic
from aerobee.errors import AerobeeError, TopicNotExist, UsageError
from aerobee.testing import LocalCluster, ThreadedCluster
from tests.cli import Run, make_run
from tests.waiting import wait_until

TOPIC = "ledger"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(brokers=3) as started:
        yield started


def counts(topic: StaticTopic) -> dict[str, int]:
    return dict(Counter(topic.leaders.values()))


async def test_queues_move_under_load_and_every_message_comes_once(cluster: LocalCluster) -> None:
    a, b, c = cluster.broker_names
    seen: Counter[bytes] = Counter()

    async def take(message: ReceivedMessage) -> None:
        seen[message.body] += 1

    async with cluster.admin() as admin, cluster.producer() as producer:
        made = await admin.create_static_topic(TOPIC, 6, brokers=(a, b))
        assert counts(made) == {a: 3, b: 3}
        assert (await admin.static_topic(TOPIC)).is_whole
        stop = asyncio.Event()
        sent: list[bytes] = []

        async def send() -> None:
            while not stop.is_set():
                body = b"%d" % len(sent)
                await producer.send(Message(TOPIC, body), timeout_s=30)
                sent.append(body)
                await asyncio.sleep(0.002)

        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with cluster.push_consumer("clerks", subscriptions={TOPIC: "*"}, handler=take, config=config):
            sending = asyncio.create_task(send())
            await wait_until(lambda: len(sent) > 50)
            moved = await admin.move_static_topic(TOPIC, (b, c))
            assert counts(moved) == {b: 3, c: 3}
            enough = len(sent) + 50
            await wait_until(lambda: len(sent) > enough)
            assert counts(await admin.move_static_topic(TOPIC, (a,))) == {a: 6}
            enough = len(sent) + 50
            await wait_until(lambda: len(sent) > enough)
            stop.set()
            await sending
            await wait_until(lambda: set(seen) >= set(sent))
        assert set(seen) == set(sent)
        there = await admin.static_topic(TOPIC)
        assert there.is_whole
        assert set(there.leaders.values()) == {a}


async def test_the_same_call_ends_a_move_that_broke_off(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = cluster.broker_names
    write = StaticTopicCalls._write
    async with cluster.admin() as admin, cluster.producer() as producer:
        await admin.create_static_topic(TOPIC, 4, brokers=(a,))
        for number in range(8):
            await producer.send(Message(TOPIC, b"%d" % number))
        for breaks_at in (1, 2, 3):
            writes = 0

            async def breaks(self: Any, target: StaticTopic, names: Any, at: int = breaks_at) -> None:
                nonlocal writes
                writes += 1
                if writes > at:
                    raise UsageError("the line is cut")
                await write(self, target, names)

            target = (b,) if breaks_at % 2 else (a,)
            with monkeypatch.context() as patch:
                patch.setattr(StaticTopicCalls, "_write", breaks)
                with pytest.raises(UsageError, match="cut"):
                    await admin.move_static_topic(TOPIC, target)
            there = await admin.move_static_topic(TOPIC, target)
            assert there.is_whole
            assert counts(there) == {target[0]: 4}
            assert (await admin.static_topic(TOPIC)).is_whole
        seen: list[bytes] = []
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with cluster.push_consumer(
            "all", subscriptions={TOPIC: "*"}, handler=lambda each: seen.append(each.body), config=config
        ):
            await wait_until(lambda: len(seen) == 8)
        assert sorted(seen) == [b"%d" % number for number in range(8)]


async def test_queues_of_a_broker_that_is_away_stay_its_own(cluster: LocalCluster) -> None:
    a, b, _ = cluster.broker_names
    async with cluster.admin() as admin, cluster.producer() as producer:
        made = await admin.create_static_topic(TOPIC, 4, brokers=(a, b))
        for number in range(8):
            await producer.send(Message(TOPIC, b"%d" % number))
        await cluster.stop_broker(1)
        for change in (
            admin.create_static_topic(TOPIC, 4, brokers=(a,)),
            admin.move_static_topic(TOPIC, (a,)),
        ):
            with pytest.raises(UsageError, match="2 logical queues of ledger have no leader"):
                await change
        await cluster.start_broker(1)
        assert (await admin.static_topic(TOPIC)).leaders == made.leaders
        seen: set[bytes] = set()
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with cluster.push_consumer(
            "all", subscriptions={TOPIC: "*"}, handler=lambda each: seen.add(each.body), config=config
        ):
            await wait_until(lambda: len(seen) == 8)
        await cluster.stop_broker(1)
        given = await admin.create_static_topic(TOPIC, 4, brokers=(a,), gives_lost=True)
        assert counts(given) == {a: 4}


async def test_what_cannot_be_done_is_said(cluster: LocalCluster) -> None:
    a, b, _ = cluster.broker_names
    await cluster.create_topic("ordinary", queues=2)
    async with cluster.admin() as admin:
        with pytest.raises(UsageError, match="an ordinary topic at"):
            await admin.create_static_topic("ordinary", 4)
        with pytest.raises(TopicNotExist):
            await admin.move_static_topic("nowhere", (a,))
        with pytest.raises(UsageError, match="no master named 'broker-z'"):
            await admin.create_static_topic(TOPIC, 4, brokers=(a, "broker-z"))
        await admin.create_static_topic(TOPIC, 4, brokers=(a, b))
        with pytest.raises(AerobeeError, match="never becomes smaller"):
            await admin.create_static_topic(TOPIC, 2)
        same = await admin.create_static_topic(TOPIC, 4, brokers=(a, b))
        assert same.epoch == (await admin.static_topic(TOPIC)).epoch
        assert counts(await admin.create_static_topic(TOPIC, 6)) == dict.fromkeys(cluster.broker_names, 2)


@pytest.fixture
def run(
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Run]:
    with ThreadedCluster(brokers=2) as cluster:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)
        yield make_run(capfdbinary, request)


def test_the_commands_make_move_and_show(run: Run) -> None:
    code, text, error = run("topic", "static", "create", TOPIC, "--queues", "4", "--brokers", "broker-a")
    assert (code, error) == (0, "")
    assert "topic ledger has 4 logical queues" in text
    code, text, error = run("topic", "static", "move", TOPIC)
    assert code == 2
    assert "--brokers NAME,NAME or --cluster NAME" in error
    code, text, _ = run("topic", "static", "move", TOPIC, "--brokers", "broker-b", "--yes")
    assert code == 0
    assert "the queues of topic ledger are at broker-b" in text
    code, text, _ = run("topic", "static", "describe", TOPIC, "--json")
    assert code == 0
    rows = json.loads(text)
    assert [(row["queue"], row["broker"], row["begins_at"], row["parts"]) for row in rows] == [
        (n, "broker-b", 10_000, 2) for n in range(4)
    ]
    code, _, error = run("topic", "static", "create", TOPIC, "--queues", "4", "--give-lost")
    assert (code, error) == (0, "")
    code, _, error = run("topic", "static", "describe", "nowhere")
    assert code != 0
    assert "nowhere" in error
