"""A stream of one kind of message through a separate topic: its producer, its group, and the replies to both.

The guarantees depend on the kind of message, and on the number of copies before the acknowledgement
(Sent.is_promised). After the faults such a message is stored at its acknowledged offset, once unless its
client retried, in the order of the acknowledgements, with its body and properties, and its group has handled
it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from typing import cast

from aerobee.client import Admin, Producer, ProducerConfig, ReceivedMessage, SendResult
from aerobee.errors import AerobeeError
from aerobee.message import ACK_LEVELS, AckLevel, Message, MessageQueue, parse_offset_message_id
from aerobee.remoting.body.topic_config import BATCH, QUEUE_TYPE, TopicConfig
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.names import NAME, NAMESERVER_ADDRESSES, broker_at
from aerobee.simulation.node import Node
from aerobee.simulation.party import Party, Sent
from aerobee.simulation.reader import Reader
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork
from aerobee.simulation.traffic import Kind, Traffic, Way

QUEUES = 2
KEYS = 3  # queues of an ordered stream
BATCH_MAX = 5
PAUSE_S_MAX = 1.0
COPIED_S, COPIED_DELAYS = (
    4.0,
    30.0,
)  # until slaves have the mapping of a static topic and the request mode of a group
SEND_TIMEOUT_S = 5.0
REPEATS_MAX = 4  # times that a message with a DEDUP_KEY is sent
LMQS = ("%LMQ%one", "%LMQ%two")
TOPIC_LEVEL = "replicated"
ATTRIBUTES = {Kind.BATCH_QUEUE: {QUEUE_TYPE: BATCH}, Kind.TOPIC_LEVEL: {"ack.level": TOPIC_LEVEL}}


class Stream(Party):
    """One stream of a cluster. `broken` is the first detected violation."""

    def __init__(
        self,
        traffic: Traffic,
        rng: random.Random,
        clock: SimulatedClock,
        network: SimulatedNetwork,
        on_acknowledged: Callable[[Sent], None],
        on_use: Callable[[str], None],
    ) -> None:
        """As Clients()."""
        super().__init__(traffic.topic, rng, clock, network)
        self.traffic = traffic
        self.sent: dict[bytes, Sent] = {}
        self.received: dict[bytes, int] = {}
        self.first_arrivals: dict[
            int, list[int]
        ] = {}  # queue -> offsets in the order of their first handling
        self.broken: Broken | None = None
        self._on_acknowledged, self._on_use = on_acknowledged, on_use
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._tasks: list[asyncio.Task[None]] = []  # the producer, then the reader

    # --- running

    async def prepare(self, master: Node, writer_delay_s: float) -> None:
        """Create the topic and the group settings of the stream at the master. `writer_delay_s`: delay of
        config file writes.
        """
        kind, topic = self.traffic.kind, self.traffic.topic
        if kind is not Kind.STATIC:
            attributes = ATTRIBUTES.get(kind, {})
            await master.process.topics.put_async([TopicConfig(topic, QUEUES, QUEUES, attributes=attributes)])
        if kind is Kind.STATIC or self.traffic.way is Way.POP:
            async with Admin(NAMESERVER_ADDRESSES, **self._settings(f"operator-{topic}")) as admin:
                if kind is Kind.STATIC:
                    await admin.create_static_topic(topic, QUEUES)
                if self.traffic.way is Way.POP:
                    await admin.set_request_mode(f"{topic}-readers", topic, "POP")
            # A slave copies the tables again after ten times the duration of the last copy, which includes
            # the writes of its config files.
            await self._clock.sleep(COPIED_S + COPIED_DELAYS * writer_delay_s)

    def begin(self) -> None:
        """Start to send and to read."""
        if self.traffic.way is Way.BROADCAST:
            self._directory = tempfile.TemporaryDirectory(prefix="aerobee-sim-")
        reader = Reader(
            self.traffic.way,
            self.traffic.topic,
            self._received,
            clock=self._clock,
            numbers=self._own_numbers(),
            settings=self._settings(f"reader-{self.traffic.topic}"),
            directory=self._directory.name if self._directory is not None else "",
            lmqs=LMQS if self.traffic.kind is Kind.LIGHT else (),
        )
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(reader.run())]

    @property
    def has_begun(self) -> bool:
        """Whether a message was acknowledged, and every acknowledged message was handled."""
        answered = [each for each in self.sent.values() if each.offset >= 0]
        return bool(answered) and all(each.body in self.received for each in answered)

    def look(self) -> None:
        """Raise the violation that was detected."""
        if self.broken is not None:
            raise self.broken
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def end_producer(self) -> None:
        """Send no more, and wait for sends in flight."""
        self._send_no_more()
        await self._tasks[0]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._directory is not None:
            self._directory.cleanup()

    # --- sends

    async def _produce(self) -> None:
        rng, topic = self._own_numbers(), self.traffic.topic
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0)
        sends = {
            Kind.BATCH: self._send_batch,
            Kind.BATCH_QUEUE: self._send_batch,
            Kind.DEDUP: self._send_again_and_again,
        }.get(self.traffic.kind, self._send_one)
        async with Producer(
            NAMESERVER_ADDRESSES, f"P-{topic}", config=config, **self._settings(f"producer-{topic}")
        ) as producer:
            while self._is_sending:
                await self._pause(rng.uniform(0.01, PAUSE_S_MAX))
                if not self._is_sending:
                    return
                await asyncio.gather(*(sends(producer, rng) for _ in range(rng.randint(1, 3))))

    def _new(self, rng: random.Random) -> Sent:
        kind, number = self.traffic.kind, len(self.sent)
        body = b"%s-%d-" % (self.traffic.topic.encode(), number) + b"x" * rng.randrange(100)
        properties = {"number": str(number)}
        level = TOPIC_LEVEL if kind is Kind.TOPIC_LEVEL else ""
        if kind is Kind.LIGHT:
            properties["INNER_MULTI_DISPATCH"] = ",".join(rng.sample(LMQS, rng.randint(1, 2)))
        if kind is Kind.DEDUP:
            properties["DEDUP_KEY"] = f"key-{number}"
        if kind is Kind.MESSAGE_LEVEL:
            level = rng.choice(ACK_LEVELS)
        sent = Sent(body, self._clock.monotonic(), -1, True, properties=properties, level=level)
        self.sent[body] = sent
        return sent

    def _message(self, sent: Sent) -> Message:
        asked = sent.level if self.traffic.kind is Kind.MESSAGE_LEVEL else None
        return Message(
            self.traffic.topic,
            sent.body,
            tag="A",
            keys=(f"k{len(sent.body)}",),
            properties=sent.properties,
            ack=cast("AckLevel | None", asked),
        )

    async def _send_one(self, producer: Producer, rng: random.Random) -> None:
        sent = self._new(rng)
        self._on_use(self.traffic.kind.value)
        try:
            if self.traffic.kind is Kind.ORDERED:
                key = f"key-{rng.randrange(KEYS)}"
                result = await producer.send(self._message(sent), message_group=key)
            else:
                queue = MessageQueue(self.traffic.topic, NAME, rng.randrange(QUEUES))
                result = await producer.send(
                    self._message(sent), queue=None if self.traffic.kind is Kind.STATIC else queue
                )
        except AerobeeError as error:
            sent.error = str(error)
            return
        self._answered(sent, result)

    async def _send_batch(self, producer: Producer, rng: random.Random) -> None:
        batch = [self._new(rng) for _ in range(rng.randint(1, BATCH_MAX))]
        self._on_use(self.traffic.kind.value)
        try:
            results = await producer.send_batch([self._message(each) for each in batch])
        except AerobeeError as error:
            for each in batch:
                each.error = str(error)
            return
        for each, result in zip(batch, results, strict=True):
            self._answered(each, result)

    async def _send_again_and_again(self, producer: Producer, rng: random.Random) -> None:
        """Send until the message is acknowledged, and sometimes once more."""
        sent = self._new(rng)
        for _ in range(rng.randint(1, REPEATS_MAX)):
            self._on_use(self.traffic.kind.value)
            try:
                result = await producer.send(self._message(sent))
            except AerobeeError as error:
                sent.error = str(error)
                await self._pause(rng.uniform(0.05, PAUSE_S_MAX))
                continue
            before = sent.queue_id, sent.offset
            self._answered(sent, result)
            if before[1] >= 0 and before != (sent.queue_id, sent.offset):
                self._break(
                    Checker.EXACTLY_ONCE,
                    f"{sent.body[:24]!r} with {sent.properties['DEDUP_KEY']} was acknowledged at {before} and at "
                    f"{(sent.queue_id, sent.offset)} (queue, offset)",
                )
            if rng.random() < 0.5:
                return
            await self._pause(rng.uniform(0.05, 3 * PAUSE_S_MAX))

    def _answered(self, sent: Sent, result: SendResult) -> None:
        if result.status.value != "SEND_OK":
            sent.error = result.status.value
            return
        sent.queue_id, sent.offset = result.queue.queue_id, result.queue_offset
        sent.broker = broker_at(parse_offset_message_id(result.offset_message_id.split(",")[0])[0][1])
        sent.answered_at = min(sent.answered_at, self._clock.monotonic())
        self._on_use(self.traffic.kind.value)
        try:
            self._on_acknowledged(sent)
        except Broken as error:
            self.broken = self.broken or error

    # --- the group

    def _received(self, message: ReceivedMessage) -> None:
        self._on_use(self.traffic.way.value)
        sent = self.sent.get(message.body)
        if sent is None:
            self._break(Checker.NOTHING_UNSENT, f"{message.body[:24]!r} was received, but never sent")
            return
        self.check_content(sent, message)
        if message.body not in self.received and not message.queue.topic.startswith("%"):
            self.first_arrivals.setdefault(message.queue.queue_id, []).append(message.queue_offset)
        self.received[message.body] = self.received.get(message.body, 0) + 1

    def check_content(self, sent: Sent, message: ReceivedMessage) -> None:
        """Stored and received messages have the sent properties."""
        wanted = {**sent.properties, "TAGS": "A", "KEYS": f"k{len(sent.body)}"}
        found = {name: message.properties.get(name) for name in wanted}
        if found != wanted:
            self._break(
                Checker.NOTHING_UNSENT, f"{sent.body[:24]!r} was sent with {wanted}, and arrived with {found}"
            )

    def _break(self, checker: Checker, text: str) -> None:
        self.broken = self.broken or Broken(checker, f"{self.traffic.topic}: {text}")
