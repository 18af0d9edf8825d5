"""The clients of a simulated cluster, and what they were told.

Producers send in bursts, some messages at once, with pauses between them; every second one never sends a message again by
itself, so that what it sent is stored once at most. One message of each burst waits for the one before: their order is looked at.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aerobee.client import (
    ClientConfig,
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
from aerobee.simulation.host import Host
from aerobee.simulation.names import GROUP, LOCAL, NAME, NAMESERVER_ADDRESSES, QUEUES, TOPIC, broker_at
from aerobee.testing.simulated_loop import SimulatedClock
from aerobee.testing.simulated_network import SimulatedNetwork

PRODUCERS = 2
BURST_MAX = 6
PAUSE_S_MAX = 1.2  # between two bursts of one producer
SEND_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Sent:
    """What a producer asked for, and what it was told."""

    body: bytes
    at: float
    queue_id: int
    is_once: bool  # its client sends it no second time
    offset: int = -1  # where it lies; -1: not acknowledged
    broker: str = ""  # who acknowledged it
    answered_at: float = float("inf")
    error: str = ""


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class Clients:
    """Of one cluster."""

    def __init__(
        self,
        rng: random.Random,
        clock: SimulatedClock,
        network: SimulatedNetwork,
        on_acknowledged: Callable[[Sent], None],
    ) -> None:
        self.sent: list[Sent] = []
        self.received: dict[bytes, int] = {}
        self.arrivals: list[tuple[int, int]] = []  # queue, offset, in the order in which they were handled
        self.is_sending = True
        self.broken: Broken | None = None
        self._rng, self._clock, self._network = rng, clock, network
        self._on_acknowledged = on_acknowledged
        self._host = Host("clients", rng=rng, clock=clock, network=network)
        self._numbers: list[random.Random] = []  # that its producers and its consumer take
        self._tasks: list[asyncio.Task[None]] = []
        self._pauses: dict[asyncio.Future[None], None] = {}  # of producers, between two bursts

    def reseed(self, rng: random.Random) -> None:
        """What they do and choose comes from these numbers from now on."""
        self._rng = rng
        self._host.reseed(rng)
        for each in self._numbers:
            each.seed(rng.getrandbits(64))

    @property
    def have_begun(self) -> bool:
        """Each producer was answered, and the consumer has everything that was acknowledged."""
        answered = [each for each in self.sent if each.offset >= 0]
        return len({each.is_once for each in answered}) == PRODUCERS and all(
            each.body in self.received for each in answered
        )

    def begin(self) -> None:
        for number in range(PRODUCERS):
            self._tasks.append(asyncio.create_task(self._produce(number)))
        self._tasks.append(asyncio.create_task(self._consume()))

    async def end_producers(self) -> None:
        """Send no more, and wait for what is under way."""
        self.is_sending = False
        for woken in self._pauses:
            _wake(woken)
        await asyncio.gather(*self._tasks[:-1])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _settings(self, name: str) -> dict[str, Any]:
        return {
            "client": ClientConfig(instance=name, client_ip=LOCAL, route_refresh_s=2.0, heartbeat_s=5.0),
            "clock": self._host.clock,
            "network": self._network.endpoint(name),
            "random": self._own_numbers(),
        }

    def _own_numbers(self) -> random.Random:
        self._numbers.append(random.Random(self._rng.getrandbits(64)))
        return self._numbers[-1]

    async def _produce(self, number: int) -> None:
        clock, rng = self._clock, self._own_numbers()
        is_once = bool(number % 2)
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0 if is_once else 2)
        async with Producer(
            NAMESERVER_ADDRESSES, f"P{number}", config=config, **self._settings(f"producer-{number}")
        ) as producer:
            count = 0
            while self.is_sending:
                await self._pause(rng.uniform(0.01, PAUSE_S_MAX))
                if not self.is_sending:
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

    async def _pause(self, seconds: float) -> None:
        """Let time pass, at most until no more is to be sent."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses[woken] = None
        timer = self._clock.call_later(seconds, _wake, woken)
        try:
            await woken
        finally:
            del self._pauses[woken]
            timer.cancel()

    async def _send(self, producer: Producer, sent: Sent) -> None:
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
        try:
            self._on_acknowledged(sent)
        except Broken as error:
            self.broken = self.broken or error

    async def _consume(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
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
