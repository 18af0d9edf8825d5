"""Publish information of one topic: queues in round robin, and per broker the address and the send headers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aerobee.client.base.metering import Durations
from aerobee.client.producer.fault_avoidance import FaultAvoidance
from aerobee.client.session.codec import Template
from aerobee.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Target:
    """One broker that has the topic."""

    broker_name: str
    address: str
    send: Template
    send_batch: Template
    send_oneway: Template


class PublishInfo:
    """Queues of one topic in round robin. Source: TopicPublishInfo, MQFaultStrategy.

    `choices` contains each queue with its broker, None for a broker that accepts no messages of the topic now. The next
    queue is choices[(turn + 1) % len(choices)]; the caller increments `turn`.
    """

    __slots__ = (
        "_leaders",
        "choices",
        "created_from_template",
        "masterless",
        "queues",
        "sends",
        "targets",
        "turn",
    )

    def __init__(
        self,
        queues: Sequence[MessageQueue],
        targets: Mapping[str, Target],
        *,
        first_turn: int,
        created_from_template: bool = False,
        leaders: Mapping[MessageQueue, str] | None = None,
        masterless: Collection[str] = (),
        sends: Durations | None = None,
    ) -> None:
        """`leaders`: the broker that serves each logical queue of a static topic. `masterless`: brokers without a
        master now. `sends`: counts the sends of this topic, None without a meter."""
        self.queues = tuple(queues)
        self.targets = targets
        self.created_from_template = created_from_template
        self.masterless = frozenset(masterless)
        self.turn = first_turn
        self.sends = sends
        self._leaders = leaders or {}
        self.choices = tuple((queue, targets.get(self.broker_of(queue))) for queue in self.queues)

    def broker_of(self, queue: MessageQueue) -> str:
        """The name of the broker that accepts messages for a queue."""
        return self._leaders.get(queue, queue.broker_name)

    def next_queue(
        self, *, avoid: Collection[str] = (), faults: FaultAvoidance | None = None, now_s: float = 0.0
    ) -> MessageQueue:
        """The next queue, preferably of a broker that is not in `avoid` and that replies fast."""
        queues = self.queues
        count = len(queues)
        self.turn += 1
        if not avoid and faults is None:
            return queues[self.turn % count]
        for offset in range(count):
            queue = queues[(self.turn + offset) % count]
            broker_name = self.broker_of(queue)
            if broker_name not in avoid and (faults is None or faults.is_available(broker_name, now_s)):
                self.turn += offset
                return queue
        if faults is not None:
            all_brokers = {self.broker_of(queue) for queue in queues}
            best = faults.first_back(sorted(all_brokers.difference(avoid) or all_brokers))
            own = [queue for queue in queues if self.broker_of(queue) == best]
            return own[self.turn % len(own)]
        return queues[self.turn % count]
