"""Groups that are in every state of lag, made by real clients at whatever brokers a nameserver has, and what is to be said of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from aerobee.client import ConsumeFrom, ConsumerConfig
from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue
from aerobee.spark.lag_rows import LagSample, QueueLag, as_row, evaluate
from aerobee.spark.lag_sampler import sample_cluster
from tests.waiting import wait_for

WINDOW_MS = 4_000
STEPS = 6
STEP_S = 1.6 * WINDOW_MS / 1000 / STEPS
SENT = 20


@dataclass(frozen=True)
class Truth:
    """What the job has to say of the one queue of a group. `lag` None: its members decide."""

    state: str
    lag: int | None


class LagStates:
    """Topic and group of a name have one queue, SENT messages, and a committed offset; then each goes its own way."""

    TRUTH: ClassVar = {
        "ok": Truth("OK", 0),
        "drains": Truth("OK", SENT - 2 * STEPS),
        "warn": Truth("WARN", SENT + STEPS),
        "stall": Truth("STALL", SENT),
        "stop": Truth("STOP", 15),
        "rewind": Truth("REWIND", 18),
        "blocked": Truth("BLOCKED", SENT),
        "mismatch": Truth("MISMATCH", None),
    }

    def __init__(self, nameservers: str, broker: str, broker_address: str) -> None:
        self._nameservers = nameservers
        self._broker = broker
        self._address = broker_address
        self._stack = ExitStack()
        self._released = threading.Event()

    def __enter__(self) -> LagStates:
        self._admin: SyncAdmin = self._stack.enter_context(SyncAdmin(self._nameservers))
        self._producer: SyncProducer = self._stack.enter_context(SyncProducer(self._nameservers))
        self._stack.callback(self._released.set)  # before consumers are waited for
        for name in self.TRUTH:
            self._admin.create_topic(name, queue_count=1, broker=self._address)
            self._admin.create_group(name, broker=self._address)
        for name in self.TRUTH:
            wait_for(f"topic {name}", lambda name=name: self._is_routed(name))
            self.send(name, SENT)
            self.commit(name, 0)
        self.commit("ok", SENT)
        self.commit("stop", 5)
        self.commit("rewind", 10)
        self._attend("stall", "*")
        self._attend("blocked", "*", orderly=True)
        # They read nothing new: what differs is what they ask for.
        for expression in ("A", "B"):
            self._attend("mismatch", expression)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._released.set()
        self._stack.close()

    def _is_routed(self, topic: str) -> bool:
        try:
            return bool(self._admin.topic_stats(topic))
        except AerobeeError:
            return False

    def queue(self, name: str) -> MessageQueue:
        """The one queue of a topic."""
        return MessageQueue(name, self._broker, 0)

    def send(self, name: str, count: int) -> None:
        """So many messages more."""
        for _ in range(count):
            self._producer.send(Message(name, b"x", tag="C"), queue=self.queue(name))

    def commit(self, name: str, offset: int) -> None:
        """What the group says it has consumed."""
        with SyncPullConsumer(self._nameservers, name) as consumer:
            consumer.assign([self.queue(name)])
            consumer.commit({self.queue(name): offset})

    def _attend(self, name: str, expression: str, *, orderly: bool = False) -> None:
        """A member that takes a message and does not come back with it."""
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=orderly)

        def handle(message: object) -> None:
            self._released.wait()

        consumer = SyncPushConsumer(
            self._nameservers, name, subscriptions={name: expression}, handler=handle, config=config
        )
        self._stack.enter_context(consumer)

    def looks(self, look: Callable[[], list[LagSample]]) -> list[list[LagSample]]:
        """Samples over more than a window, while the groups that move do."""
        found = [look()]
        for step in range(1, STEPS + 1):
            time.sleep(STEP_S)
            self.commit("warn", step)
            self.send("warn", 2)
            self.commit("drains", 2 * step)
            if step == STEPS:
                self.commit("rewind", 2)
            found.append(look())
        return found


def judged(looks: list[list[LagSample]]) -> dict[str, QueueLag]:
    """What the rules say of each group's queue in its own topic."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for sample in (each for found in looks for each in found):
        if sample.group == sample.topic:
            rows.setdefault(sample.group, []).append(as_row(sample))
    found = {name: evaluate(history, window_ms=WINDOW_MS) for name, history in rows.items()}
    return {name: result for name, result in found.items() if result is not None}


def sampled(nameservers: str) -> list[LagSample]:
    """One look at everything."""
    return sample_cluster(nameservers)
