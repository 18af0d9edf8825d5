"""One consumer group that reads one topic of a simulated cluster, with one kind of consumer.

Some messages are refused at their first delivery, where the kind of consumer redelivers them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    MessageModel,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SimpleConsumer,
)
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue
from aerobee.simulation.names import NAME, NAMESERVER_ADDRESSES
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.traffic import Way

REFUSED_SHARE = 0.04
AGAIN_S = 0.5  # delay before refused messages are redelivered
INVISIBLE_S = 5.0
WAIT_S = 2.0
RETRY_S = 0.5  # pause after an error
CONFIGS = {
    Way.PUSH: ConsumerConfig(consume_from=ConsumeFrom.FIRST),
    Way.ORDERLY: ConsumerConfig(
        consume_from=ConsumeFrom.FIRST, orderly=True, suspend_s=0.2, lock_lease_s=5.0
    ),
    Way.POP: ConsumerConfig(
        consume_from=ConsumeFrom.FIRST, client_rebalance=False, pop_invisible_s=INVISIBLE_S, rebalance_s=2.0
    ),
    Way.BROADCAST: ConsumerConfig(consume_from=ConsumeFrom.FIRST, model=MessageModel.BROADCASTING),
}


class Reader:
    """Reads until it is cancelled. `received` is called with each handled message; it must not raise."""

    def __init__(
        self,
        way: Way,
        topic: str,
        received: Callable[[ReceivedMessage], None],
        *,
        clock: SimulatedClock,
        numbers: random.Random,
        settings: dict[str, Any],
        directory: str,
        lmqs: tuple[str, ...] = (),
    ) -> None:
        """`directory`: offsets of a broadcasting consumer, on the real disk. `lmqs` are pulled instead of the topic."""
        self._way, self._topic, self._received = way, topic, received
        self._clock, self._numbers, self._settings = clock, numbers, settings
        self._directory = directory
        self._lmqs = lmqs
        self._refused: set[bytes] = set()

    @property
    def group(self) -> str:
        return f"{self._topic}-readers"

    async def run(self) -> None:
        """Read with the chosen kind of consumer."""
        if self._way is Way.SIMPLE:
            await self._receive()
        elif self._way is Way.PULL:
            await self._pull()
        else:
            await self._push()

    async def _push(self) -> None:
        config = replace(CONFIGS[self._way], local_offsets_directory=self._directory)
        async with PushConsumer(
            NAMESERVER_ADDRESSES,
            self.group,
            subscriptions={self._topic: "*"},
            handler=self._handle,
            config=config,
            **self._settings,
        ):
            await self._clock.sleep(float("inf"))

    async def _handle(self, message: ReceivedMessage) -> None:
        if self._refuses(message):
            raise RetryLater("refused", after=AGAIN_S)
        self._received(message)

    def _refuses(self, message: ReceivedMessage) -> bool:
        """Whether to refuse this message: at most once, and only if the consumer redelivers it."""
        if self._way in (Way.BROADCAST, Way.PULL) or message.body in self._refused:
            return False
        if self._numbers.random() >= REFUSED_SHARE:
            return False
        self._refused.add(message.body)
        return True

    async def _receive(self) -> None:
        async with SimpleConsumer(
            NAMESERVER_ADDRESSES, self.group, {self._topic: "*"}, **self._settings
        ) as consumer:
            while True:
                try:
                    for message in await consumer.receive(8, invisible_s=INVISIBLE_S, wait_s=WAIT_S):
                        if not self._refuses(message):
                            self._received(message)
                            await consumer.ack(message)
                except AerobeeError:
                    await self._clock.sleep(RETRY_S)

    async def _pull(self) -> None:
        config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST, pull_hold_s=5.0, rebalance_s=2.0)
        async with PullConsumer(
            NAMESERVER_ADDRESSES, self.group, config=config, **self._settings
        ) as consumer:
            while True:
                try:
                    if self._lmqs:
                        await consumer.assign([MessageQueue(name, NAME, 0) for name in self._lmqs])
                    else:
                        await consumer.subscribe(self._topic)
                    break
                except AerobeeError:
                    await self._clock.sleep(RETRY_S)
            while True:
                for message in await consumer.poll(1.0):
                    self._received(message)
