"""The clients of a simulated cluster, and the replies that they received.

Producers send in bursts of concurrent messages, with pauses between them; every second producer never
retries, so each of its messages is stored at most once. One message of each burst is sent after the
acknowledgement of another one: the checkers verify their order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue, parse_offset_message_id
from aerobee.simulation.broken import Broken
from aerobee.simulation.names import GROUP, NAME, NAMESERVER_ADDRESSES, QUEUES, TOPIC, broker_at
from aerobee.simulation.party import Party, Sent
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork
from aerobee.simulation.traffic import Kind, Way

PRODUCERS = 2
BURST_MAX = 6
PAUSE_S_MAX = 1.2  # between two bursts of one producer
SEND_TIMEOUT_S = 5.0


class Clients(Party):
    """The clients of one cluster: two producers and a push consumer."""

    def __init__(
        self,
        rng: random.Random,
        clock: SimulatedClock,
        network: SimulatedNetwork,
        on_acknowledged: Callable[[Sent], None],
        on_use: Callable[[str], None],
    ) -> None:
        """`on_use` is called with the name of a feature at each use of it."""
        super().__init__("clients", rng, clock, network)
        self.sent: list[Sent] = []
        self.received: dict[bytes, int] = {}
        self.arrivals: list[tuple[int, int]] = []  # (queue, offset) in the order of handling
        self.broken: Broken | None = None
        self._on_acknowledged, self._on_use = on_acknowledged, on_use
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def have_begun(self) -> bool:
        """Whether each producer has an acknowledgement, and the consumer has received every acknowledged message."""
        answered = [each for each in self.sent if each.offset >= 0]
        return len({each.is_once for each in answered}) == PRODUCERS and all(
            each.body in self.received for each in answered
        )

    def begin(self) -> None:
        for number in range(PRODUCERS):
            self._tasks.append(asyncio.create_task(self._produce(number)))
        self._tasks.append(asyncio.create_task(self._consume()))

    async def end_producers(self) -> None:
        """Send no more, and wait for sends in flight."""
        self._send_no_more()
        await asyncio.gather(*self._tasks[:-1])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _produce(self, number: int) -> None:
        clock, rng = self._clock, self._own_numbers()
        is_once = bool(number % 2)
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0 if is_once else 2)
        async with Producer(
            NAMESERVER_ADDRESSES, f"P{number}", config=config, **self._settings(f"producer-{number}")
        ) as producer:
            count = 0
            while self._is_sending:
                await self._pause(rng.uniform(0.01, PAUSE_S_MAX))
                if not self._is_sending:
                    return
                burst = []
                for _ in range(rng.randint(1, BURST_MAX)):
                    count += 1
                    body = b"%d-%d-" % (number, count) + b"x" * rng.randrange(200)
                    burst.append(Sent(body, clock.monotonic(), rng.randrange(QUEUES), is_once))
                self.sent += burst
                *others, last = burst
                await asyncio.gather(*(self._send(producer, each) for each in others))
                last.at = clock.monotonic()
                await self._send(producer, last)

    async def _send(self, producer: Producer, sent: Sent) -> None:
        self._on_use(Kind.PLAIN.value)
        try:
            if sent.is_once:
                result = await producer.send(
                    Message(TOPIC, sent.body), queue=MessageQueue(TOPIC, NAME, sent.queue_id)
                )
            else:
                result = await producer.send(Message(TOPIC, sent.body))
        except AerobeeError as error:
            sent.error = str(error)
            return
        if result.status.value != "SEND_OK":
            sent.error = result.status.value
            return
        sent.queue_id, sent.offset = result.queue.queue_id, result.queue_offset
        sent.broker = broker_at(parse_offset_message_id(result.offset_message_id)[0][1])
        sent.answered_at = self._clock.monotonic()
        self._on_use(Kind.PLAIN.value)
        try:
            self._on_acknowledged(sent)
        except Broken as error:
            self.broken = self.broken or error

    async def _consume(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            self._on_use(Way.PUSH.value)
            self.received[message.body] = self.received.get(message.body, 0) + 1
            self.arrivals.append((message.queue.queue_id, message.queue_offset))

        async with PushConsumer(
            NAMESERVER_ADDRESSES,
            GROUP,
            subscriptions={TOPIC: "*"},
            handler=handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
            **self._settings("consumer"),
        ):
            await asyncio.Event().wait()
