"""Members of one group join, leave and die while 100,000 messages flow: none is lost, each queue has one owner.

Ours run in their own processes, one member is RocketMQ's Java client. A message may be handed out twice only when
its queue changed its owner in between; how often that happened is counted and printed.
"""

from __future__ import annotations

import asyncio
import collections
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

from aerobee.client import Producer
from aerobee.message import Message
from tests.interop.java_topics import make_group, make_topic
from tests.interop.rocketmq import HERE, ROOT, Cluster, Driver, JavaClient
from tests.waiting import wait_for

QUEUES = 8
MESSAGES = 100_000
STAGES = 8  # an eighth of the messages flows while each change of membership happens


class Member:
    """One process of workers/push_member.py."""

    def __init__(self, namesrv: str, topic: str, group: str, root: pathlib.Path, name: str) -> None:
        self.path = root / f"{name}.events"
        self.log = root / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "workers" / "push_member.py", namesrv, topic, group, self.path],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(root)},
            )  # fmt: skip

    def events(self) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split(" ") for line in text.splitlines()]

    def owned(self) -> set[int]:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        latest = [event for event in self.events() if event[0] == "o"][-1:]
        return {int(name.split("/")[1]) for event in latest for name in event[1:] if name}

    def gains(self) -> collections.Counter[int]:
        """How often this member became the owner of each queue."""
        counts: collections.Counter[int] = collections.Counter()
        before: set[str] = set()
        for event in self.events():
            if event[0] == "o":
                now = {name for name in event[1:] if name}
                counts.update(int(name.split("/")[1]) for name in now - before)
                before = now
        return counts

    def end(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)


def wait_one_owner_each(members: list[Member], java: list[JavaClient], topic: str) -> None:
    """Until the live members own all queues, none of them twice, in shares that differ by one at most."""

    def settled() -> bool:
        shares = [member.owned() for member in members]
        shares += [{queue for _, queue in client.queues(topic)} for client in java]
        sizes = [len(share) for share in shares]
        return (
            sum(sizes) == QUEUES
            and set().union(*shares) == set(range(QUEUES))
            and max(sizes) - min(sizes) <= 1
        )

    wait_for(f"each queue to have one of {len(members) + len(java)} owners", settled, 60)


def deliveries_of(members: list[Member], java: list[JavaClient]) -> list[tuple[str, int, int, int]]:
    """(member, queue, offset, number) of every delivery."""
    ours = [
        (str(at), int(event[1]), int(event[2]), int(event[3]))
        for at, member in enumerate(members)
        for event in member.events()
        if event[0] == "m" and len(event) == 4
    ]
    theirs = [("java", m["queue"], m["offset"], int(m["body"])) for client in java for m in client.received()]
    return ours + theirs


async def produce(namesrv: str, topic: str, first: int, count: int, settled: asyncio.Event) -> None:
    """Send `count` numbered messages, in small portions for as long as the group is not settled."""
    async with Producer(namesrv) as producer:
        for start in range(first, first + count, 250):
            messages = [Message(topic, b"%d" % n) for n in range(start, min(start + 250, first + count))]
            parts = [producer.send_batch(messages[at::5], timeout_s=60.0) for at in range(5)]
            for results in await asyncio.gather(*parts):
                assert {result.status.name for result in results} == {"SEND_OK"}
            if not settled.is_set():
                await asyncio.sleep(0.05)


def test_members_join_leave_and_die_while_messages_flow(
    cluster: Cluster,
    driver: Driver,
    topic: str,
    tmp_path: pathlib.Path,
    record_property: Callable[[str, object], None],
) -> None:
    make_topic(driver, cluster, topic, QUEUES)
    group = driver.unique("CG_rebalance")
    make_group(driver, cluster, group)
    started: list[Member] = []
    alive: list[Member] = []
    java: list[JavaClient] = []
    all_java: list[JavaClient] = []

    def join() -> None:
        member = Member(cluster.namesrv, topic, group, tmp_path, f"member{len(started)}")
        started.append(member)
        alive.append(member)

    def die() -> None:
        alive.pop(0).end(signal.SIGKILL)

    def leave() -> None:
        alive.pop(0).end(signal.SIGTERM)

    def java_join() -> None:
        java.append(driver.push(cluster.namesrv, topic, group=group))
        all_java.append(java[-1])

    def java_leave() -> None:
        java.pop().stop()

    part = MESSAGES // STAGES

    async def run() -> None:
        changes = [join, join, join, java_join, die, join, leave, java_leave]
        for stage, change in enumerate(changes):
            settled = asyncio.Event()
            flowing = asyncio.create_task(produce(cluster.namesrv, topic, stage * part, part, settled))
            try:
                await asyncio.to_thread(change)
                await asyncio.to_thread(wait_one_owner_each, alive, java, topic)
            finally:
                settled.set()
            await flowing

    try:
        asyncio.run(run())
        expected = set(range(MESSAGES))

        wait_for(
            "every message",
            lambda: {number for *_, number in deliveries_of(started, all_java)} >= expected,
            60,
        )
    finally:
        for member in started:
            member.end(signal.SIGTERM)
        for client in all_java:
            client.stop()
    deliveries = deliveries_of(started, all_java)
    assert {number for *_, number in deliveries} == expected
    numbers: dict[tuple[int, int], int] = {}
    for _, queue, offset, number in deliveries:
        assert numbers.setdefault((queue, offset), number) == number
    assert len(numbers) == MESSAGES
    # Within one ownership a member sees an offset once.
    gains = {str(at): member.gains() for at, member in enumerate(started)}
    for (name, queue, _), count in collections.Counter(d[:3] for d in deliveries).items():
        if name != "java":
            assert count <= max(1, gains[name][queue])
    duplicates = len(deliveries) - MESSAGES
    print(f"{duplicates} of {MESSAGES} messages came twice")
    record_property("duplicates", duplicates)
