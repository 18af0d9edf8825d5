"""A simulated cluster with ordered consumers."""

from __future__ import annotations

from collections import defaultdict

from aerobee.client import reject
from aerobee.client.base.received import ReceivedMessage
from tests.simulation.consumer_world import GROUP, TOPIC, Fault, Member, World


class OrderWorld(World):
    """Ordered members."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed,
            queues=2,
            config={"orderly": True, "suspend_s": 0.2, "rebalance_s": 5.0, "persist_offsets_s": 2.0, "drain_s": 2.0,
                    "retry_count_max": 2, "lock_lease_s": 10.0, "pull_hold_s": 5.0, "pull_timeout_s": 8.0},
        )  # fmt: skip
        self.running: dict[int, Member] = {}
        self.finished: dict[int, int] = defaultdict(
            int
        )  # queue -> offsets below this were handled or given up
        self.poison = {self.rng.randrange(12) for _ in range(self.rng.randrange(2))}
        self.log: list[str] = []

    def note(self, text: str) -> None:
        self.log.append(f"{self.clock.monotonic():.3f} {text}")

    async def handle(self, member: Member, message: ReceivedMessage) -> None:
        queue, offset = message.queue.queue_id, message.queue_offset
        if message.queue.topic != TOPIC:
            raise Fault(f"{message} came back through {message.queue.topic}")
        self.note(f"{member.name} begins {queue}@{offset}")
        if queue in self.running:
            raise self.fault(
                f"{member.name} begins {queue}@{offset} while {self.running[queue].name} works on the queue"
            )
        if offset > self.finished[queue]:
            raise self.fault(f"{queue}@{offset} is begun, but {self.finished[queue]} is not done")
        self.running[queue] = member
        try:
            await self.clock.sleep(self.rng.choice((0.0, 0.01, 0.1, 0.3, 3.0, 25.0)) * self.rng.random())
        finally:
            del self.running[queue]
            self.note(f"{member.name} ends {queue}@{offset}")
        if int(message.body) in self.poison:
            # A dead letter may be passed from now on; before, nothing behind it was begun.
            self.finished[queue] = max(self.finished[queue], offset + 1)
            reject("poison")
        if self.rng.random() < 0.1:
            if message.reconsume_times >= 2:
                self.finished[queue] = max(self.finished[queue], offset + 1)
            raise ValueError("told to fail")
        self.finished[queue] = max(self.finished[queue], offset + 1)

    def fault(self, text: str) -> Fault:
        fault = Fault(text + "\n" + "\n".join(self.log[-40:]))
        self.faults.append(fault)
        return fault

    def is_complete(self) -> bool:
        if self.faults:
            raise self.faults[0]
        offsets = self.broker.offsets if self.broker is not None else None
        return all(
            self.finished[queue] == len(bodies)
            and offsets is not None
            and offsets.query(GROUP, TOPIC, queue) == len(bodies)
            for queue, bodies in self.sent.items()
        )

    def describe(self) -> str:
        return (
            f"{dict(self.finished)} of { {queue: len(sent) for queue, sent in self.sent.items()} }\n"
            + "\n".join(self.log[-40:])
        )
