"""taskiq's receiver over a cluster, in this process, and what becomes of tasks when something fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from taskiq import AsyncBroker, Context, ScheduledTask, TaskiqDepends, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from aerobee.contrib.taskiq import AerobeeBroker, AerobeeScheduleSource
from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.integration.contrib.taskiq_scenario import run_killed_worker
from tests.waiting import wait_until


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


def broker_at(cluster: LocalCluster, **options: Any) -> AerobeeBroker:
    return AerobeeBroker(
        cluster.nameserver_address,
        "tasks",
        **{"queue_count": 2, "invisible_s": 3, "max_redeliveries": 2, **options},
    )


@asynccontextmanager
async def working(broker: AsyncBroker, **options: Any) -> AsyncIterator[asyncio.Event]:
    """A receiver of the broker as a worker process has it; its end is a worker's, tasks included."""
    finish = asyncio.Event()
    broker.is_worker_process = True
    receiver = Receiver(broker, max_async_tasks=10, **options)
    task = asyncio.create_task(receiver.listen(finish))
    try:
        yield finish
    finally:
        finish.set()
        await task
        await broker.shutdown()


def dead_letter_count(cluster: LocalCluster) -> int:
    return cluster.broker().store.max_offset("%DLQ%tasks", 0)


async def test_task_runs_with_its_arguments_and_labels(cluster: LocalCluster) -> None:
    broker, ran = broker_at(cluster), []

    @broker.task("add", kind="sum")
    async def add(x: int, y: int, context: Context = TaskiqDepends()) -> None:
        ran.append((x + y, context.message.labels["kind"]))

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        await add.kiq(1, 2)
        await add.kicker().with_labels(kind="other").kiq(2, 3)
        await wait_until(lambda: len(ran) == 2)
    assert sorted(ran) == [(3, "sum"), (5, "other")]


async def test_delayed_task_waits_at_the_broker(cluster: LocalCluster) -> None:
    broker, ran = broker_at(cluster), []

    @broker.task("now")
    async def now() -> None:
        ran.append(time.time())

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        begin = time.time()
        await now.kicker().with_labels(delay=1.5).kiq()
        await wait_until(lambda: ran)
        with pytest.raises(SendTaskError) as found:
            await now.kicker().with_labels(delay="soon").kiq()
        assert "label delay is 'soon'" in str(found.value.__cause__)
    assert ran[0] >= begin + 1.5


async def test_failed_task_is_acknowledged(cluster: LocalCluster) -> None:
    """As taskiq documents: a retry is its retry middleware's."""
    broker, ran = broker_at(cluster), []

    @broker.task("fail")
    async def fail() -> None:
        ran.append(1)
        raise ValueError("as wanted")

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        await fail.kiq()
        await wait_until(lambda: broker._queue is not None and ran and broker._queue.held_count == 0)
    assert dead_letter_count(cluster) == 0
    assert ran == [1]


class Refuses(TaskiqMiddleware):
    """A middleware that fails before each task, so that taskiq neither runs nor acknowledges it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        self.ids.append(message.task_id)
        raise ConnectionError("as wanted")


async def test_task_that_is_never_acknowledged_is_a_dead_letter(cluster: LocalCluster) -> None:
    broker, refuses = broker_at(cluster), Refuses()
    broker.add_middlewares(refuses)

    @broker.task("never")
    async def never() -> None:
        raise AssertionError("a middleware refuses it")

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        sent = await never.kiq()
        await wait_until(lambda: dead_letter_count(cluster) == 1)
    assert refuses.ids == [sent.task_id] * 3, "a duplicate has the id of the task"


async def test_foreign_message_and_unknown_task_stop_no_other_task(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """taskiq's receiver acknowledges both with a warning; old versions leave them unacknowledged, for the dead letters."""
    broker, ran = broker_at(cluster, max_redeliveries=0), []

    @broker.task("note")
    async def note() -> None:
        ran.append(1)

    async with working(broker), cluster.producer("makers") as producer:
        await wait_until(lambda: broker._producer is not None)
        await note.kiq()
        await wait_until(lambda: ran)
        await producer.send(Message("tasks", b"foreign"))
        unknown = broker.formatter.dumps(
            TaskiqMessage(task_id="1", task_name="unknown", labels={}, args=[], kwargs={})
        )
        await producer.send(Message("tasks", unknown.message))
        await note.kiq()
        await wait_until(
            lambda: len(ran) == 2 and "Cannot parse message" in caplog.text and "is not found" in caplog.text
        )
        await wait_until(lambda: broker._queue is not None and broker._queue.held_count == 0)
    assert ran == [1, 1]
    assert dead_letter_count(cluster) in (0, 2)


async def test_workers_that_join_and_leave_run_each_task_once(cluster: LocalCluster) -> None:
    ran: list[tuple[str, int]] = []

    def broker_of(name: str) -> tuple[AerobeeBroker, Any]:
        broker = broker_at(cluster, prefetch_count=1)

        async def note(number: int) -> None:
            ran.append((name, number))

        return broker, broker.register_task(note, f"note-{cluster.nameserver_address}")

    first, task = broker_of("first")
    guest, _ = broker_of("guest")
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            await task.kiq(number)
        sent += count

    async with working(first):
        await wait_until(lambda: first._producer is not None)
        await send(10)
        async with working(guest):
            while not any(name == "guest" for name, _ in ran):
                await send(5)
        await send(10)
        await wait_until(lambda: len(ran) >= sent)
    assert sorted(number for _, number in ran) == list(range(sent))


async def test_slow_task_is_not_redelivered(cluster: LocalCluster) -> None:
    broker, gate, ran = broker_at(cluster), asyncio.Event(), []

    @broker.task("slow")
    async def slow() -> None:
        ran.append(1)
        await gate.wait()

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        await slow.kiq()
        await wait_until(lambda: ran)
        await asyncio.sleep(7)  # more than twice its invisible time
        gate.set()
    assert ran == [1]


async def test_shutdown_finishes_what_runs_and_returns_the_rest(cluster: LocalCluster) -> None:
    gate, ran = asyncio.Event(), []

    def broker_of(name: str) -> tuple[AerobeeBroker, Any]:
        broker = broker_at(cluster, invisible_s=300, prefetch_count=4)

        async def wait(number: int) -> None:
            ran.append((name, number))
            await gate.wait()

        return broker, broker.register_task(wait, f"wait-{cluster.nameserver_address}")

    first, task = broker_of("first")
    second, _ = broker_of("second")
    first.is_worker_process = True
    finish = asyncio.Event()
    listening = asyncio.create_task(Receiver(first, max_async_tasks=1).listen(finish))
    await wait_until(lambda: first._producer is not None)
    for number in range(4):
        await task.kiq(number)
    await wait_until(lambda: first._queue is not None and first._queue.held_count == 4)
    finish.set()
    gate.set()
    await listening
    await first.shutdown()
    began = len(ran)
    async with working(second):
        await wait_until(lambda: len(ran) == 4)
    assert sorted(number for _, number in ran) == [0, 1, 2, 3]
    assert 1 <= began < 4
    assert dead_letter_count(cluster) == 0


async def test_killed_broker_loses_no_task(cluster: LocalCluster) -> None:
    broker, gate, ran = broker_at(cluster), asyncio.Event(), []

    @broker.task("hold")
    async def hold(number: int) -> None:
        ran.append(number)
        await gate.wait()

    async with working(broker):
        await wait_until(lambda: broker._producer is not None)
        for number in range(20):
            await hold.kiq(number)
        await wait_until(lambda: len(ran) >= 10)
        await cluster.kill_broker()
        gate.set()
        await cluster.start_broker()
        await wait_until(lambda: set(ran) == set(range(20)))
        await hold.kiq(20)
        await wait_until(lambda: 20 in ran)


@pytest.mark.slow
async def test_killed_worker_loses_no_task(cluster: LocalCluster, tmp_path: Path) -> None:
    await run_killed_worker(tmp_path, cluster.nameserver_address, "tasks")


async def test_wrong_use_is_an_error(cluster: LocalCluster) -> None:
    broker, source = broker_at(cluster), AerobeeScheduleSource(cluster.nameserver_address)

    @broker.task("x")
    async def x() -> None: ...

    with pytest.raises(SendTaskError) as found:
        await x.kiq()
    assert "is not connected" in str(found.value.__cause__)
    with pytest.raises(UsageError, match="is not connected"):
        await source.get_schedules()
    with pytest.raises(UsageError, match="prefetch_count"):
        broker_at(cluster, prefetch_count=0)


# schedules


def source_at(cluster: LocalCluster, **options: Any) -> AerobeeScheduleSource:
    return AerobeeScheduleSource(cluster.nameserver_address, "schedules", **options)


@asynccontextmanager
async def started(source: AerobeeScheduleSource) -> AsyncIterator[AerobeeScheduleSource]:
    await source.startup()
    try:
        yield source
    finally:
        await source.shutdown()


def every_minute(name: str) -> ScheduledTask:
    return ScheduledTask(task_name="x", labels={}, args=[1], kwargs={}, schedule_id=name, cron="* * * * *")


async def ids(source: AerobeeScheduleSource) -> set[str]:
    return {schedule.schedule_id for schedule in await source.get_schedules()}


async def test_schedules_are_those_of_all_programs(cluster: LocalCluster) -> None:
    async with started(source_at(cluster)) as first, started(source_at(cluster)) as second:
        assert await ids(first) == set()
        await first.add_schedule(every_minute("a"))
        await second.add_schedule(every_minute("b"))
        assert await ids(first) == await ids(second) == {"a", "b"}
        await second.delete_schedule("a")
        assert await ids(first) == {"b"}
    async with started(source_at(cluster)) as third:
        (schedule,) = await third.get_schedules()
        assert schedule == every_minute("b")


async def test_schedule_for_one_time_is_deleted_when_it_was_sent(cluster: LocalCluster) -> None:
    async with started(source_at(cluster)) as source:
        at = datetime.now(UTC) + timedelta(hours=1)
        once = ScheduledTask(task_name="x", labels={}, args=[], kwargs={}, time=at)
        await source.add_schedule(once)
        await source.add_schedule(every_minute("a"))
        for schedule in await source.get_schedules():
            await source.post_send(schedule)
        assert await ids(source) == {"a"}


async def test_old_schedules_are_written_again(cluster: LocalCluster) -> None:
    async with started(source_at(cluster, renew_after_s=0.01)) as source:
        await source.add_schedule(every_minute("a"))
        end = cluster.broker().store.max_offset("schedules", 0)
        await asyncio.sleep(0.02)
        assert await ids(source) == {"a"}
        await wait_until(lambda: cluster.broker().store.max_offset("schedules", 0) > end)
        assert await ids(source) == {"a"}


async def test_foreign_records_and_topics_of_several_queues(cluster: LocalCluster) -> None:
    async with started(source_at(cluster)) as source, cluster.producer("makers") as producer:
        await producer.send(Message("schedules", b"foreign"))
        await source.add_schedule(every_minute("a"))
        assert await ids(source) == {"a"}
    await cluster.create_topic("wide", queues=2)
    with pytest.raises(UsageError, match="the topic wide has 2 queues"):
        await AerobeeScheduleSource(cluster.nameserver_address, "wide").startup()
