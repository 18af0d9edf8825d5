"""A simulated cluster whose consumers fail, so that messages are redelivered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.client import retry
from aerobee.client.base.received import ReceivedMessage
from aerobee.message import decode_record
from tests.simulation.consumer_world import GROUP, TOPIC, Fault, Member, World

TRIES_MAX = 2  # after the first one
RETRY_TOPIC = f"%RETRY%{GROUP}"
DEAD_LETTERS = f"%DLQ%{GROUP}"


class RedeliveryWorld(World):
    """Members that handle many messages at a time."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed,
            queues=2,
            levels="1s 2s 3s 3s 3s",
            config={"rebalance_s": 5.0, "persist_offsets_s": 2.0, "drain_s": 2.0, "retry_count_max": TRIES_MAX,
                    "pull_hold_s": 5.0, "pull_timeout_s": 8.0, "consume_timeout_s": 10.0, "local_retry_s": 1.0},
        )  # fmt: skip
        self.poison = {b"%d" % self.rng.randrange(14) for _ in range(self.rng.randrange(3))}
        self.handled: set[bytes] = set()
        self.taken_back: dict[bytes, set[int]] = defaultdict(set)  # tries with which a broker stored it again
        self.failed: dict[bytes, set[int]] = defaultdict(set)  # tries at which a handler failed
        self.retries: list[tuple[bytes, int]] = []  # the records of the retry topic: body, tries
        self.dead: list[bytes] = []
        self.seen: dict[tuple[str, int], int] = defaultdict(int)  # the next entry of each queue

    def prepare(self, broker: Broker) -> None:
        """See what the broker commits."""
        commit = broker.offsets.commit

        def committed(group: str, topic: str, queue_id: int, offset: int, **more: Any) -> None:
            self.see_what_is_stored(broker)
            self.check_commit(topic, queue_id, offset)
            commit(group, topic, queue_id, offset, **more)

        broker.offsets.commit = committed  # type: ignore[method-assign]

    def see_what_is_stored(self, broker: Broker) -> None:
        """Read what is new in all topics but the one that is sent to, whoever of the broker stored it.

        Arrivals would not do: runs of due messages are announced only where a request waits.
        """
        store = broker.store
        for (topic, queue_id), queue in list(store.queues.items()):
            if topic == TOPIC:
                continue
            for offset in range(self.seen[topic, queue_id], queue.max_offset):
                entry = queue.entry(offset)
                record = store.read_record(entry[0]) if entry is not None else None
                assert record is not None, f"{topic} {queue_id}: entry {offset} has no record"
                message = decode_record(record)
                self.taken_back[message.body].add(message.reconsume_times)
                if topic == RETRY_TOPIC:
                    self.retries.append((message.body, message.reconsume_times))
                if topic == DEAD_LETTERS:
                    self.dead.append(message.body)
            self.seen[topic, queue_id] = queue.max_offset

    def check_commit(self, topic: str, queue_id: int, offset: int) -> None:
        if topic == TOPIC:
            passed = [(body, 0) for body in self.sent[queue_id][:offset]]
        else:
            passed = self.retries[:offset]
        for body, tries in passed:
            if body not in self.handled and tries + 1 not in self.taken_back[body]:
                self.faults.append(
                    Fault(
                        f"{topic} {queue_id}: {offset} is committed, but {body!r} (try {tries}) is not done"
                    )
                )

    async def handle(self, member: Member, message: ReceivedMessage) -> None:
        body, tries = message.body, message.reconsume_times
        if tries > TRIES_MAX:
            self.faults.append(Fault(f"{body!r} is tried for the {tries}th time again"))
        if tries and tries - 1 not in self.failed[body]:
            self.faults.append(Fault(f"{body!r} comes with {tries} tries, but failed at {self.failed[body]}"))
        if message.topic != TOPIC:
            self.faults.append(Fault(f"{message} shows topic {message.topic}"))
        try:
            if self.rng.random() < 0.03:
                await asyncio.Event().wait()  # until the time-out, or the end of the process
            await self.clock.sleep(self.rng.choice((0.0, 0.01, 0.3, 3.0)) * self.rng.random())
        except asyncio.CancelledError:
            self.failed[body].add(tries)
            raise
        if body in self.poison or self.rng.random() < 0.2:
            self.failed[body].add(tries)
            if self.rng.random() < 0.5:
                retry("told to", after=2 * self.rng.random())
            raise ValueError("told to fail")
        self.handled.add(body)

    def is_complete(self) -> bool:
        if self.faults:
            raise self.faults[0]
        broker = self.broker
        if broker is None:
            return False
        self.see_what_is_stored(broker)
        ends = {(TOPIC, queue): len(bodies) for queue, bodies in self.sent.items()}
        if self.retries:
            ends[(RETRY_TOPIC, 0)] = len(self.retries)
        everything = {body for bodies in self.sent.values() for body in bodies}
        return everything == self.handled | set(self.dead) and all(
            broker.offsets.query(GROUP, topic, queue) == end for (topic, queue), end in ends.items()
        )

    def describe(self) -> str:
        left = {body for bodies in self.sent.values() for body in bodies} - self.handled - set(self.dead)
        offsets = None if self.broker is None else self.broker.offsets.queues_of(GROUP, TOPIC)
        return f"left {left}, dead {self.dead}, {len(self.retries)} retries, offsets {offsets}"
