"""What taskiq does at a cluster of either product: tasks, delays, a worker that is killed, schedules."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from taskiq import ScheduledTask

from aerobee.contrib.taskiq import AerobeeBroker, AerobeeScheduleSource
from tests.integration.contrib.worker_process import WorkerProcess
from tests.waiting import wait_until


async def run_killed_worker(directory: Path, nameserver: str, topic: str) -> None:
    """Tasks run; a delay is kept; a killed worker loses nothing; SIGTERM ends a worker that is idle."""
    notes, gate = directory / "notes", directory / "gate"
    environment = {
        "TASKIQ_TEST_NAMESERVER": nameserver,
        "TASKIQ_TEST_TOPIC": topic,
        "TASKIQ_TEST_NOTES": str(notes),
    }

    def noted(text: str) -> int:
        return notes.read_text(encoding="utf-8").count(text) if notes.exists() else 0

    broker = AerobeeBroker(nameserver, topic, queue_count=2, max_redeliveries=2)

    async def nothing(*_: object) -> None: ...

    add, wait_for = broker.register_task(nothing, "add"), broker.register_task(nothing, "wait_for")
    await broker.startup()
    arguments = ("taskiq", "worker", "tests.integration.contrib.taskiq_app:broker", "--workers", "1")
    worker = WorkerProcess(directory / "worker.log", environment, *arguments, ready="Listening started")
    try:
        await asyncio.to_thread(worker.start)
        await add.kiq(2, 3)
        await wait_until(lambda: noted("sum 5"))
        begin = time.time()
        await add.kicker().with_labels(delay=3).kiq(20, 30)
        await wait_until(lambda: noted("sum 50"))
        assert time.time() >= begin + 2, "RocketMQ delivers up to a second early"
        for name in ("a", "b", "c"):
            await wait_for.kiq(name, str(gate))
        await wait_until(lambda: noted("started") == 3)
        worker.kill()
        gate.touch()
        await asyncio.to_thread(worker.start)
        await wait_until(lambda: all(noted(f"ended {name}") for name in "abc"))
        started = [
            line for line in notes.read_text(encoding="utf-8").splitlines() if line.startswith("started")
        ]
        assert len(set(started)) == len("abc") < len(started), "a duplicate has the id of the first delivery"
        assert await asyncio.to_thread(worker.stop) == 0
    finally:
        worker.kill()
        await broker.shutdown()


async def run_schedules(nameserver: str, topic: str) -> None:
    """Schedules of one program are seen by another."""
    first, second = AerobeeScheduleSource(nameserver, topic), AerobeeScheduleSource(nameserver, topic)
    await first.startup()
    try:
        await second.startup()
        for name in ("a", "b"):
            await first.add_schedule(
                ScheduledTask(
                    task_name="x", labels={}, args=[], kwargs={}, schedule_id=name, cron="* * * * *"
                )
            )
        await second.delete_schedule("a")
        for source in (first, second):
            assert [each.schedule_id for each in await source.get_schedules()] == ["b"]
    finally:
        await first.shutdown()
        await second.shutdown()
