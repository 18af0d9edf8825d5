"""A NameServer, a broker and the members of one group in one process, on simulated time, network and disk.

All of it is the real code. The broker dies and comes back on its disk, members die, leave, come, and lose the network; the
handlers fail, take their time, and say what they saw.
"""

from __future__ import annotations

import abc
import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest import mock

from aerobee.broker.assembly import features
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.timer.timer_feature import Timers
from aerobee.client import ClientConfig, ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.client.base.received import ReceivedMessage
from aerobee.errors import AerobeeError
from aerobee.message import Message
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.simulation.simulated_loop import InlineExecutor, SimulatedClock, SimulatedLoop
from aerobee.simulation.simulated_network import SimulatedNetwork
from aerobee.store.files.config import StoreConfig

TOPIC = "orders"
GROUP = "G"
NAMESERVER = "127.0.0.1:9876"
BROKER_PORT = 10911
HOST = "127.0.0.1"
WHEEL_SLOTS = 600  # the timer's: one that is a week long costs 80 MB a run


class Fault(AssertionError):
    """The code broke a promise."""


class Member:
    """One consumer process."""

    def __init__(self, name: str, consumer: PushConsumer) -> None:
        self.name = name
        self.consumer = consumer
        self.dead = False


class World(abc.ABC):
    """Everything of one seed. Subclasses say what a handler does and what has to hold."""

    def __init__(
        self, seed: int, *, queues: int, config: dict[str, Any], levels: str = "1s 1s 1s 1s 1s"
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(self.rng, self.clock)
        self.disk = SimulatedDisk(self.rng, now_ms=self.clock.now_ms)
        self.queues = queues
        self.levels = levels
        self.consumer_config = config
        self.members: list[Member] = []
        self.faults: list[Fault] = []
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        self.broker: Broker | None = None
        self._count = 0
        self.nameserver: NameServer

    # parts

    async def start(self) -> None:
        self.nameserver = NameServer(
            NameServerConfig(listen_port=9876, bind_address=HOST),
            clock=self.clock,
            network=self.network.endpoint("nameserver"),
            disk=self.disk,
        )
        await self.nameserver.start()
        await self.start_broker()

    async def start_broker(self) -> None:
        broker = Broker(
            BrokerConfig(
                broker_name="broker-a", broker_ip1=HOST, bind_address=HOST, listen_port=BROKER_PORT,
                enable_vip_listener=False, namesrv_addr=NAMESERVER, default_topic_queue_nums=self.queues,
            ),
            StoreConfig(
                store_path_root_dir="/store", mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000,
                max_hash_slot_num=64, max_index_num=256, commit_log_reserve_bytes=16384,
                message_delay_level=self.levels, timer_roll_window_slot=300, mapped_file_size_timer_log=8192,
            ),
            clock=self.clock,
            network=self.network.endpoint("broker"),
            disk=self.disk,
            executor=InlineExecutor(),
            config_writer=InlineExecutor(),
        )  # fmt: skip
        self.prepare(broker)
        # A broker makes its features when it starts.
        with mock.patch.object(features, "Timers", partial(Timers, slot_count=WHEEL_SLOTS)):
            await broker.start()
        if TOPIC not in broker.topics.topics:
            broker.topics.put(TopicConfig(TOPIC, self.queues, self.queues))
        self.broker = broker

    def prepare(self, broker: Broker) -> None:  # noqa: B027  most simulations have nothing to check
        """Look into a broker that is about to start."""

    async def kill_broker(self) -> None:
        """kill -9: what the process wrote is there, what it only had in memory is not."""
        broker, self.broker = self.broker, None
        if broker is not None:
            await broker.kill()
            self.disk.crash()

    def client(self, name: str) -> dict[str, Any]:
        return {
            "client": ClientConfig(instance=name, client_ip=HOST, route_refresh_s=5.0, heartbeat_s=5.0),
            "clock": self.clock,
            "network": self.network.endpoint(name),
            "random": random.Random(self.rng.getrandbits(32)),
        }

    async def fill(self, count: int) -> None:
        async with Producer(NAMESERVER, "PG", **self.client("producer")) as producer:
            places = await producer.queues(TOPIC)
            for number in range(count):
                place = self.rng.choice(places)
                body = b"%d" % number
                await producer.send(Message(TOPIC, body), queue=place)
                self.sent[place.queue_id].append(body)

    async def join(self) -> None:
        self._count += 1
        name = f"member{self._count}"
        member: Member

        async def handle(message: ReceivedMessage) -> None:
            await self.handle(member, message)

        consumer = PushConsumer(
            NAMESERVER,
            GROUP,
            subscriptions={TOPIC: "*"},
            handler=handle,
            config=ConsumerConfig(**{"consume_from": ConsumeFrom.FIRST, **self.consumer_config}),
            **self.client(name),
        )
        member = Member(name, consumer)
        try:
            await consumer.start()
        except AerobeeError:
            return  # the broker is away just now
        self.members.append(member)

    async def leave(self, member: Member) -> None:
        self.members.remove(member)
        await member.consumer.close()

    async def kill(self, member: Member) -> None:
        """The death of a process: nothing is said, nothing is finished."""
        self.members.remove(member)
        member.dead = True
        session = member.consumer._session
        session.is_open = False
        member.consumer._consumption._pool._stopped = True  # no timer of a dead process has an effect
        self.network.isolate(member.name)  # what its tasks say while they end is not heard
        await session.tasks.close()
        self.network.sever(member.name)
        await session.remoting.close()

    # what happens

    @abc.abstractmethod
    async def handle(self, member: Member, message: ReceivedMessage) -> None:
        """A message has come to one of the members."""

    @abc.abstractmethod
    def is_complete(self) -> bool:
        """Whether every message is where it has to be."""

    async def disturb(self) -> None:
        """One random event."""
        rng = self.rng
        event = rng.randrange(6)
        member = rng.choice(self.members) if self.members else None
        if event == 0 and len(self.members) < 3:
            await self.join()
        elif event == 1 and member is not None and len(self.members) > 1:
            await self.leave(member)
        elif event == 2 and member is not None:
            await self.kill(member)
            await self.join()
        elif event == 3:
            if self.broker is not None:
                await self.kill_broker()
                await self.clock.sleep(rng.choice((0.0, 1.0, 40.0)) * rng.random())
                await self.start_broker()
        elif event == 4 and member is not None:
            self.network.sever(member.name)
        elif event == 5 and member is not None:
            self.network.isolate(member.name)
            if rng.random() < 0.5:
                self.network.sever(member.name)  # the broker notices, and others take over
            await self.clock.sleep(rng.choice((2.0, 30.0)) * rng.random())
            self.network.rejoin(member.name)

    async def live(self, *, messages: int, events: int) -> None:
        """Faults first, then peace, in which all has to be completed."""
        await self.start()
        await self.fill(messages)
        await self.join()
        if self.rng.random() < 0.7:
            await self.join()
        for _ in range(events):
            await self.clock.sleep(self.rng.choice((0.05, 1.0, 5.0)) * self.rng.random())
            await self.disturb()
        if not self.members:
            await self.join()
        deadline = self.clock.monotonic() + 400
        while not self.is_complete():
            if self.clock.monotonic() > deadline:
                raise Fault(f"not complete after 400 s of peace: {self.describe()}")
            await self.clock.sleep(1.0)
        for member in list(self.members):
            await self.leave(member)

    def describe(self) -> str:
        return ""

    async def end(self) -> None:
        for member in list(self.members):
            await self.kill(member)
        if self.broker is not None:
            await self.broker.kill()
        await self.nameserver.stop()


def run(world: World, life: Callable[[], Awaitable[None]]) -> None:
    """Execute one run on a separate event loop."""

    async def both() -> None:
        try:
            await life()
        finally:
            await world.end()

    loop = SimulatedLoop(world.clock)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(both())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
