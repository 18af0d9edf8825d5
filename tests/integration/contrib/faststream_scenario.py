"""What FastStream does at a cluster of either product: requests, delays, order, redeliveries, a worker that is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from aerobee.contrib.faststream import AerobeeBroker, AerobeeMessage
from aerobee.errors import TopicNotExist
from tests.integration.contrib.worker_process import WorkerProcess
from tests.waiting import wait_until


def held_count(broker: AerobeeBroker) -> int:
    """Messages that the subscribers of the broker have and no broker has a verdict on."""
    subscribers: Any = broker.subscribers
    return sum(subscriber._queue.held_count for subscriber in subscribers)


async def run_killed_worker(directory: Path, nameserver: str, topic: str) -> None:
    """A request is answered; a delay is kept; order is kept; a killed worker loses nothing; SIGTERM ends an idle one."""
    notes, gate = directory / "notes", directory / "gate"
    environment = {
        "FASTSTREAM_TEST_NAMESERVER": nameserver,
        "FASTSTREAM_TEST_TOPIC": topic,
        "FASTSTREAM_TEST_NOTES": str(notes),
    }

    def lines(text: str) -> list[str]:
        found = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
        return [line for line in found if line.startswith(text)]

    broker = AerobeeBroker(nameserver, queue_count=2)
    worker = WorkerProcess(
        directory / "worker.log",
        environment,
        "tests.integration.contrib.faststream_app",
        ready="FastStream app started successfully",
    )
    try:
        await broker.connect()
        await asyncio.to_thread(worker.start)
        answer = await broker.request({"x": 2, "y": 3}, f"{topic}-sums", timeout=60.0)
        assert await answer.decode() == 5
        begin = time.time()
        await broker.publish({"x": 20, "y": 30}, f"{topic}-sums", delay=3)
        await wait_until(lambda: lines("sum 50"))
        assert time.time() >= begin + 2, "RocketMQ delivers up to a second early"
        for number in range(20):
            await broker.publish(number, f"{topic}-ordered", message_group="one")
        await wait_until(lambda: len(lines("number")) == 20)
        assert lines("number") == [f"number {number}" for number in range(20)]
        for name in ("a", "b", "c"):
            await broker.publish({"name": name, "path": str(gate)}, topic)
        await wait_until(lambda: len(lines("started")) == 3)
        worker.kill()
        gate.touch()
        await asyncio.to_thread(worker.start)
        await wait_until(lambda: {f"ended {name}" for name in "abc"} == set(lines("ended")))
        assert await asyncio.to_thread(worker.stop) in (0, -15)
    finally:
        worker.kill()
        await broker.stop()


async def run_verdicts(nameserver: str, topic: str) -> None:
    """A failing handler gets its message again; after `max_redeliveries` and after reject() it is dead-lettered; empty
    bodies, batches and tag templates work."""
    broker = AerobeeBroker(nameserver, queue_count=1)
    tries: list[int] = []
    dead: list[object] = []
    batches: list[list[str]] = []
    visits: list[tuple[str, str]] = []

    @broker.subscriber(topic, max_redeliveries=1, retry_delays_s=0)
    async def fail(message: AerobeeMessage) -> None:
        tries.append(message.raw_message.reconsume_times)
        raise ValueError("as wanted")

    @broker.subscriber(f"{topic}-batch", batch=True, max_records=10, batch_timeout_s=1.0)
    async def collect(texts: list[str]) -> None:
        batches.append(texts)

    @broker.subscriber(f"{topic}-tags", tag="{country}.{city}")
    async def visit(body: object, message: AerobeeMessage) -> None:
        assert body in (b"", "", None)
        visits.append((message.path["country"], message.path["city"]))

    try:
        await broker.start()
        await broker.publish("x", topic)
        await broker.publish_batch(*"abc", topic=f"{topic}-batch")
        await broker.publish(None, f"{topic}-tags", tag="nowhere")
        await broker.publish(None, f"{topic}-tags", tag="it.Rome")
        await wait_until(lambda: len(tries) == 2 and visits and sum(map(len, batches)) == 3)
        assert tries == [0, 1]
        assert visits == [("it", "Rome")]
        assert sorted(text for batch in batches for text in batch) == ["a", "b", "c"]
        reader = AerobeeBroker(nameserver, create_topics=False)

        @reader.subscriber(f"%DLQ%{topic}", group=f"{topic}-reader")
        async def bury(body: str) -> None:
            dead.append(body)

        await wait_until(lambda: _started(reader), timeout_s=120.0)
        try:
            await wait_until(lambda: dead == ["x"])
        finally:
            await reader.stop()
    finally:
        await broker.stop()


async def _started(broker: AerobeeBroker) -> bool:
    """False while the topic of the dead reader does not exist."""
    try:
        await broker.start()
    except TopicNotExist:
        await broker.stop()
        await asyncio.sleep(0.2)
        return False
    return True
