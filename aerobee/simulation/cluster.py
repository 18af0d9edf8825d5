"""A cluster of one broker group: two NameServers, three controllers, three replicas, producers and a consumer, from a seed.

All processes run the real code, on simulated machines (host.py) whose faults the nemesis (nemesis.py)
chooses. `Cluster` starts and ends processes and records the replies to clients; checks.py verifies them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.role import RoleState
from aerobee.errors import AerobeeError
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.host_port import join_address
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.clients import Clients
from aerobee.simulation.contacts import Contacts
from aerobee.simulation.features import TASK_QUEUES, Features
from aerobee.simulation.host import Host
from aerobee.simulation.names import (
    BROKER_PORT,
    BROKERS,
    CONTROLLER_ADDRESSES,
    CONTROLLER_PORT,
    CONTROLLERS,
    HA_PORT,
    LOCAL,
    NAME,
    NAMESERVER_ADDRESSES,
    NAMESERVER_PORT,
    NAMESERVERS,
    PEERS,
    PORT_STEP,
    QUEUES,
    TOPIC,
)
from aerobee.simulation.node import Node, Settings
from aerobee.simulation.party import Party
from aerobee.simulation.passing import Passing
from aerobee.simulation.simulated_disk import PowerCut
from aerobee.simulation.simulated_loop import LaggingExecutor, SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork
from aerobee.simulation.stream import Stream
from aerobee.simulation.task import TASKS
from aerobee.simulation.watch import WATCH_S, Watch
from aerobee.store.files.config import BrokerRole, FlushDiskType, StoreConfig

ELECT_TIMEOUT_S = 30.0
CHANGE_TIMEOUT_S = 5.0
CHECK_INTERVAL_MS = 2_000  # interval between two checks of an open transaction
DEDUP_WINDOW_MS = 3_600_000
HA_KEY = "k" * 32
DEATH_S = 2.0  # longest wait for the end of a process that died in a disk call
BEGIN_S = 60.0  # longest wait until the clients of a new cluster send and receive


@dataclass(slots=True)
class Story:
    """The events of the run, in order, as text. Equal runs have an equal `digest`."""

    now: Callable[[], float]
    lines: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.lines.append(f"{self.now():10.3f}  {text}")


class Cluster:
    """Every process of one seed. Belongs to a SimulatedLoop."""

    def __init__(self, seed: int, clock: SimulatedClock, settings: Settings) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock
        self.settings = settings
        self.network = SimulatedNetwork(
            random.Random(self.rng.getrandbits(64)), clock, delay_max_s=0.005, resends=True
        )
        self.story = Story(clock.monotonic)
        self.nameservers = [self._node("nameserver", n) for n in range(NAMESERVERS)]
        self.controllers = [
            self._node("controller", n) for n in range(CONTROLLERS if settings.controllers else 0)
        ]
        self.brokers = [self._node("broker", n) for n in range(BROKERS)]
        for node in self.brokers:
            node.host.byte_cost_s = settings.byte_cost_s
        self.contacts = Contacts(clock.monotonic)
        self.watch = Watch(self.brokers, settings, clock)
        acknowledged, use = self.watch.acknowledged, self.contacts.use
        self.clients = Clients(self.rng, clock, self.network, acknowledged, use)
        self.streams = [
            Stream(traffic, self.rng, clock, self.network, acknowledged, use) for traffic in settings.streams
        ]
        self.passing: Passing | None = None
        # delays, transactions and POP in random runs; scenarios create their own
        self.features: Features | None = None
        self.masters: list[str] = []  # successive masters that accepted messages
        self.has_ha_key = settings.has_ha_key  # setting of brokers that start from now on
        self.replaced_controller: Node | None = None  # the controller that has an empty disk and no vote yet
        self._watching: asyncio.Task[None] | None = None

    @property
    def parties(self) -> list[Party]:
        """The clients."""
        some = (self.features, self.passing)
        return [self.clients, *self.streams, *(party for party in some if party is not None)]

    @property
    def nodes(self) -> list[Node]:
        return [*self.nameservers, *self.controllers, *self.brokers]

    def reseed(self, seed: int) -> None:
        """Draw all further random numbers from this seed."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.network.rng = random.Random(self.rng.getrandbits(64))
        for node in self.nodes:
            node.host.reseed(self.rng)
        for party in self.parties:
            party.reseed(self.rng)
        self.contacts.clear()
        self.masters = self.masters[-1:]

    def _node(self, kind: str, index: int) -> Node:
        host = Host(f"{kind}-{index}", rng=self.rng, clock=self.clock, network=self.network)
        return Node(host, index)

    # --- processes

    async def start(self) -> None:
        """Start everything and wait for a master."""
        for node in self.nodes:
            await self.start_node(node)
        await self.until(lambda: self.master() is not None, 60, "no master was ever elected")

    async def start_node(self, node: Node) -> None:
        """Start the process of a machine. A failed start leaves it down, and the story contains the reason."""
        if node.process is not None:
            return
        kind = node.host.name.partition("-")[0]
        make: Callable[[Node], Any] = {
            "nameserver": self._nameserver,
            "controller": self._controller,
            "broker": self._broker,
        }[kind]
        process = make(node)
        try:
            await process.start()
        except (AerobeeError, OSError) as error:
            self.story.tell(f"{node.host.name} does not start: {error}")
            raise
        except PowerCut as error:
            if not (isinstance(process, Broker) and process.is_running):
                # The process has closed its files, as after any failed start.
                self.story.tell(f"{node.host.name} dies in {error} of its start")
                self._bury(node, power=node.host.disk.died_of_power)
                return
        node.process = process
        node.starts += 1
        if node.host.disk.is_dead:
            await self.kill(node, power=node.host.disk.died_of_power)
            return
        if isinstance(process, Broker):
            self.watch.follow(node)
            process.role.on_change(lambda role, name=node.host.name: self._role_changed(name, role))  # type: ignore[misc]
        self.story.tell(f"{node.host.name} is up")

    def _role_changed(self, name: str, role: RoleState) -> None:
        if role.takes_writes:
            self.masters.append(name)
            self.contacts.fault("change of master")
            self.story.tell(f"{name} is master of epoch {role.epoch}")

    @property
    def changes(self) -> int:
        """Number of changes of master."""
        return sum(one != other for one, other in itertools.pairwise(self.masters))

    @property
    def returns(self) -> int:
        """Number of times that a former master became master again."""
        taken = [name for name, _ in itertools.groupby(self.masters)]
        return len(taken) - len(set(taken))

    def _nameserver(self, node: Node) -> NameServer:
        return NameServer(
            NameServerConfig(listen_port=NAMESERVER_PORT + node.index, bind_address=LOCAL),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
        )

    def _controller(self, node: Node) -> Controller:
        async def at_once(work: Callable[[], Any]) -> Any:
            return work()

        return Controller(
            ControllerConfig(
                controller_d_leger_group="quorum",
                controller_d_leger_peers=PEERS,
                controller_d_leger_self_id=f"n{node.index}",
                controller_store_path="/controller",
                bind_address=LOCAL,
            ),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
            random_numbers=random.Random(self.rng.getrandbits(64)).random,
            runner=at_once,
        )

    def _broker(self, node: Node) -> Broker:
        settings, has_controllers = self.settings, self.settings.controllers
        node.writer = LaggingExecutor(self.clock, settings.writer_delay_s)
        role = (
            BrokerRole.ASYNC_MASTER
            if has_controllers
            else BrokerRole.SLAVE
            if node.index
            else BrokerRole.SYNC_MASTER
        )
        return Broker(
            BrokerConfig(
                broker_name=NAME,
                broker_id=0 if has_controllers else node.index,
                transaction_check_interval=CHECK_INTERVAL_MS,
                dedup_window_millis=DEDUP_WINDOW_MS,
                broker_ip1=LOCAL,
                bind_address=LOCAL,
                listen_port=BROKER_PORT + PORT_STEP * node.index,
                enable_vip_listener=False,
                namesrv_addr=NAMESERVER_ADDRESSES,
                default_topic_queue_nums=QUEUES,
                enable_controller_mode=has_controllers,
                controller_addr=CONTROLLER_ADDRESSES if has_controllers else "",
            ),
            StoreConfig(
                store_path_root_dir="/store",
                mapped_file_size_commit_log=65_536,
                mapped_file_size_consume_queue=2_000,
                mapper_file_size_batch_consume_queue=46 * 100,
                max_hash_slot_num=64,
                max_index_num=256,
                commit_log_reserve_bytes=16_384,
                # A broker with a full disk would delete its oldest messages, and as master delete them at all
                # replicas.
                clean_file_forcibly_enable=False,
                timer_wheel_enable=self.settings.features,
                mapped_file_size_timer_log=16_384,
                broker_role=role,
                ha_listen_port=HA_PORT + PORT_STEP * node.index,
                ha_shared_key=HA_KEY if self.has_ha_key else "",
                message_index_enable=settings.is_indexed,
                enable_lmq=True,
                enable_multi_dispatch=True,
                all_ack_in_sync_state_set=settings.waits_for_replicas
                and has_controllers
                and settings.all_acks,
                in_sync_replicas=settings.in_sync if settings.waits_for_replicas else 1,
                min_in_sync_replicas=settings.min_in_sync
                if settings.waits_for_replicas and has_controllers
                else 1,
                total_replicas=BROKERS,
                flush_disk_type=FlushDiskType.SYNC_FLUSH
                if self.settings.sync_disk
                else FlushDiskType.ASYNC_FLUSH,
            ),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
            executor=node.host.executor,
            config_writer=node.writer,
        )

    async def kill(self, node: Node, *, power: bool) -> None:
        """kill -9, or with `power` a power loss: then peers do not notice the lost connections."""
        process, node.process = node.process, None
        if process is None:
            return
        self.resume(node)
        self.story.tell(f"{node.host.name} {'loses power' if power else 'is killed'}{self._as_what(process)}")
        node.host.unplug()
        if power and not node.host.disk.is_dead:
            # Before the process ends: its end waits for a sync in progress, whose data must not reach the
            # disk any more.
            node.host.disk.lose_power()
        if node.writer is not None:
            node.writer.discard()
        ending = asyncio.create_task(process.kill() if isinstance(process, Broker) else process.stop())
        # A process that died in a disk call never completes it, and its waiters wait forever.
        await asyncio.wait({ending}, timeout=DEATH_S if node.host.disk.is_dead else None)
        ending.cancel()
        results: list[BaseException | None] = await asyncio.gather(ending, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        self._bury(node, power=power)

    def _bury(self, node: Node, *, power: bool) -> None:
        """Apply the death of its process to the disk and the connections of a machine."""
        if power:
            node.host.disk.power_loss()
        else:
            node.host.disk.crash()
        node.host.lose_connections()
        node.host.plug()

    def _as_what(self, process: Any) -> str:
        if isinstance(process, Broker):
            return f" ({process.role.role.value} of epoch {process.role.epoch})"
        return ""

    async def end(self, node: Node) -> None:
        """SIGTERM: the process stops cleanly."""
        process, node.process = node.process, None
        if process is not None:
            self.resume(node)
            self.story.tell(f"{node.host.name} is stopped{self._as_what(process)}")
            try:
                await process.stop()
            except PowerCut as error:
                self.story.tell(f"{node.host.name} dies in {error} of its end")
                self._bury(node, power=node.host.disk.died_of_power)
                return
            node.host.disk.crash()
            node.host.lose_connections()

    def cut(self, one: Node, other: Node) -> None:
        """Stop all bytes from one machine to the other."""
        self.network.cut(one.host.name, other.host.name)

    def open_all(self) -> None:
        """Restore all links."""
        self.network.mend()
        self.story.tell("all links are restored")

    def pause(self, node: Node) -> None:
        if node.process is not None and not node.is_paused:
            node.is_paused = True
            self.story.tell(f"{node.host.name} is paused{self._as_what(node.process)}")
            node.host.pause()

    def resume(self, node: Node) -> None:
        if node.is_paused:
            node.is_paused = False
            self.story.tell(f"{node.host.name} resumes")
            node.host.resume()

    def master(self) -> Node | None:
        """The only node that considers itself master now; None if there is none or several."""
        found = [node for node in self.brokers if node.process is not None and node.process.role.takes_writes]
        return found[0] if len(found) == 1 else None

    async def elect(self, controller: Node, chosen: Node) -> None:
        """Ask a controller for another master, as an operator does. Raises AerobeeError for a refusal."""
        port = BROKER_PORT + PORT_STEP * chosen.index
        replicas = controller.process.state.groups[NAME].replicas
        # A broker that got an empty disk has a new id at its old address.
        broker_id = max(
            (each for each, known in replicas.items() if known.address == join_address(LOCAL, port)),
            default=0,
        )
        request = RemotingCommand(
            RequestCode.CONTROLLER_ELECT_MASTER,
            {
                "clusterName": "",
                "brokerName": NAME,
                "brokerId": str(broker_id),
                "designateElect": "true",
            },
        )
        await self._ask_controller(controller, request, ELECT_TIMEOUT_S)

    def leading_controller(self) -> Node | None:
        """The controllers that consider themselves leader."""
        return next(
            (node for node in self.controllers if node.process is not None and node.process.is_leading), None
        )

    def quorum_status(self) -> tuple[Sequence[str], Sequence[str]] | None:
        """(voters, learners) of the leading controller; None without a leader."""
        leader = self.leading_controller()
        return None if leader is None else leader.process.members

    async def change_quorum(self, action: str, member: str) -> None:
        """Ask the leading controller for another member, as an operator does. Raises AerobeeError for a refusal."""
        leader = self.leading_controller()
        if leader is None:
            raise AerobeeError("no controller leads")
        request = RemotingCommand(RequestCode.AEROBEE_CHANGE_QUORUM, {"action": action, "member": member})
        await self._ask_controller(leader, request, CHANGE_TIMEOUT_S)

    async def _ask_controller(self, controller: Node, request: RemotingCommand, timeout_s: float) -> None:
        client = RemotingClient(clock=self.clock, network=self.network.endpoint("operator"))
        address = join_address(LOCAL, CONTROLLER_PORT + controller.index)
        try:
            answer = await client.invoke(address, request, timeout_s=timeout_s)
            checked(answer, address=address, request=RequestCode(request.code).name)
        finally:
            await client.close()

    async def create_topic(self, name: str = TOPIC, queues: int = QUEUES) -> None:
        """Create a topic at the master, and wait until the NameServers have its route."""
        node = self.master()
        assert node is not None
        await node.process.topics.put_async([TopicConfig(name, queues, queues)])

    async def prepare(self) -> None:
        """Create the topics and groups that the clients of a random run need."""
        await self.create_topic()
        for stream in self.streams:
            master = self.master()
            assert master is not None
            await stream.prepare(master, self.settings.writer_delay_s)
        if self.settings.features:
            await self.create_topic(TASKS, TASK_QUEUES)
            self.features = Features(
                random.Random(self.rng.getrandbits(64)),
                self.clock,
                self.network,
                self.contacts.use,
                has_grpc=self.settings.has_grpc,
            )
        if self.settings.has_passing_topic:
            rng = random.Random(self.rng.getrandbits(64))
            self.passing = Passing(rng, self.clock, self.network, self.contacts.use)
        wanted = {TOPIC, *(stream.traffic.topic for stream in self.streams)}
        wanted |= {TASKS} if self.features is not None else set()
        await self.until(
            lambda: all(wanted <= set(node.process.table.topic_names()) for node in self.nameservers),
            BEGIN_S,
            "the NameServers never heard of new topics",
        )

    def begin(self) -> None:
        """Start the clients and the invariant checks during faults."""
        self.clients.begin()
        for stream in self.streams:
            stream.begin()
        if self.features is not None:
            self.features.begin()
        if self.passing is not None:
            self.passing.begin()
        self._watching = asyncio.create_task(self._watch())

    async def get_going(self) -> None:
        """Wait until every client has sent or received a message."""
        await self.until(
            lambda: (
                self.clients.have_begun
                and all(stream.has_begun for stream in self.streams)
                and (self.features is None or self.features.has_begun)
            ),
            BEGIN_S,
            "the clients of a new cluster never got going",
        )

    async def _watch(self) -> None:
        while True:
            await self.clock.sleep(WATCH_S)
            self.clock.uncharged(self.watch.look)

    def raise_broken(self) -> None:
        """Raise the violation that was detected meanwhile."""
        if self.clients.broken is not None:
            raise self.clients.broken
        for stream in self.streams:
            stream.look()
        if self.features is not None:
            self.features.look()
        if self.passing is not None:
            self.passing.look()
        if self._watching is not None and self._watching.done():
            self._watching.result()

    async def stop(self) -> None:
        """Stop all remaining processes, in any order: nothing is checked any more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.clients.stop()
        for stream in self.streams:
            await stream.stop()
        if self.features is not None:
            await self.features.end()
        if self.passing is not None:
            await self.passing.stop()
        for node in self.nodes:
            if node.process is not None:
                await self.kill(node, power=False)

    async def until(
        self,
        condition: Callable[[], bool],
        seconds: float,
        otherwise: str,
        *,
        step_s: float = 0.1,
        checker: Checker = Checker.PROGRESS,
    ) -> None:
        """Let simulated time pass until the condition holds. Raises Broken with `otherwise` after the time
        limit, and any violation detected meanwhile.
        """
        end = self.clock.monotonic() + seconds
        while not condition():
            self.raise_broken()
            if self.clock.monotonic() >= end:
                raise Broken(checker, otherwise)
            await self.clock.sleep(step_s)
