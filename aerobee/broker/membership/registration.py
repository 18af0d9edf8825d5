"""Registration of a broker at every NameServer: heartbeats, addresses and topics (BrokerOuterAPI of RocketMQ).

One task per NameServer, so that an unreachable one delays no other. Each sends REGISTER_BROKER (103) in full at the
start, each registerNameServerPeriod, and immediately when the connection is new; a changed topic goes out immediately
in a body that holds it alone, with the new data version. With forceRegister=false QUERY_DATA_VERSION (322) goes first
and the registration only if the nameserver's version differs. A large table goes out in parts (registration_parts.py).
The connection stays open: a NameServer removes a broker when its connection closes. On a clean stop UNREGISTER_BROKER
(104).

The reply's body contains the NameServer's order-topic configuration, its fields a slave's master.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from aerobee.broker.membership.registration_parts import PART_TOPICS_MAX, parts_of, well_formed
from aerobee.broker.state.config import PERM_READ, PERM_WRITE, BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, WireError
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.body.register_broker import RegisterBrokerBody, body_crc32
from aerobee.remoting.body.route import QueueData, TopicRouteData
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.connection import Connection
from aerobee.remoting.protocol import LISTENERS_FIELD, PART_FIELD

log = logging.getLogger(__name__)

RW = PERM_READ | PERM_WRITE
RETRY_S = 1.0  # between tries at a nameserver that is down
RECONNECT_S = 0.1  # after a lost connection; a nameserver that closes each one must not be hammered
QUERY_TIMEOUT_S = 10.0
UNREGISTER_TIMEOUT_S = 3.0
MasterCallback = Callable[[str, str], None]


class _NameserverLink:
    """Registration at one NameServer."""

    def __init__(self, owner: Registration, address: str) -> None:
        self.address = address
        self.registered_version: DataVersion | None = None
        self.failure = ""
        self._owner = owner
        self._wake = asyncio.Event()
        self._changes: dict[str, TopicConfig] = {}
        self._needs_full = True
        self._is_busy = False
        self._left_out: list[str] = []
        self._watched: Connection | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def topics_changed(self, configs: Iterable[TopicConfig]) -> None:
        empty = True
        for config in configs:
            self._changes[config.topic_name] = config
            empty = False
        self._needs_full = self._needs_full or empty
        self._wake.set()

    def register_now(self) -> None:
        self._needs_full = True
        self._wake.set()

    @property
    def is_settled(self) -> bool:
        return not (self._needs_full or self._changes or self._is_busy)

    def settled(self) -> asyncio.Future[None]:
        """A future that is done when the next exchange has succeeded or failed."""
        waiter = asyncio.get_running_loop().create_future()
        if self.is_settled:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
        return waiter

    async def run(self) -> None:
        owner = self._owner
        while True:
            self._is_busy = True
            try:
                await self._exchange()
                if self.failure:
                    log.info("nameserver %s is back; this broker is registered there", self.address)
                self.failure = ""
            except AerobeeError as error:
                if str(error) != self.failure:
                    self.failure = str(error)
                    log.warning("registration at nameserver %s failed: %s; trying again", self.address, error)
                self._needs_full = True
            except Exception as error:
                # Boundary of the task: a broker that silently stopped registering would serve no client.
                self.failure = str(error) or type(error).__name__
                log.exception("registration at nameserver %s failed; trying again", self.address)
                self._needs_full = True
            finally:
                self._is_busy = False
            self._tell_waiters()
            if self.failure:
                # Changes do not shorten the pause while the NameServer is down: the next full registration
                # includes them.
                await owner.clock.sleep(RETRY_S)
                continue
            timer = owner.clock.call_later(owner.period_s, self.register_now)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            self._wake.clear()

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _exchange(self) -> None:
        """Send the due registrations. Changes that arrive meanwhile are due the next time."""
        owner = self._owner
        while self._needs_full or self._changes:
            changes, self._changes = self._changes, {}
            full, self._needs_full = self._needs_full, False
            version = owner.topics.data_version
            if full and not owner.force and not await self._is_stale(version):
                self._watch()
                continue
            table = owner.visible(self._well_formed(owner.topics.topics if full else changes))
            if not full and owner.single_topics and self.registered_version is not None:
                # This request cannot carry a mapping.
                for config in [
                    each for each in table.values() if owner.mappings.get(each.topic_name) is None
                ]:
                    await self._register_topic(config)
                table = {
                    name: config for name, config in table.items() if owner.mappings.get(name) is not None
                }
                if not table:
                    continue
            parts = parts_of(table, version, owner.part_topics_max)
            # Several changes in one registration are not a whole table either: a NameServer with
            # deleteTopicWithBrokerRegistration would delete all other topics.
            is_whole = full and len(parts) == 1
            for part, part_version in parts:
                await self._register(part, part_version, is_whole=is_whole)
            self.registered_version = version
            owner.registered_at_ms[self.address] = owner.clock.now_ms()
            self._watch()

    def _well_formed(self, table: Mapping[str, TopicConfig]) -> Mapping[str, TopicConfig]:
        """Without topics that NameServers refuse: one of them must not make the whole registration fail."""
        table, left_out = well_formed(table)
        if left_out and left_out != self._left_out:
            log.warning(
                "%d topics are not registered at nameserver %s, the first: %s",
                len(left_out),
                self.address,
                left_out[0],
            )
        self._left_out = left_out or self._left_out
        return table

    async def _is_stale(self, version: DataVersion) -> bool:
        """Query whether the NameServer has another version of this broker's topics."""
        request = RemotingCommand(
            RequestCode.QUERY_DATA_VERSION, self._owner.identity_fields(), version.encode()
        )
        reply = await self._owner.client.invoke(self.address, request, timeout_s=QUERY_TIMEOUT_S)
        return reply.code != 0 or (reply.ext or {}).get("changed", "true") != "false"

    async def _register_topic(self, config: TopicConfig) -> None:
        """Register a single topic. The NameServer keeps the version of the last registration, so it accepts the next
        one."""
        owner = self._owner
        queues = QueueData(
            owner.identity.name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        )
        request = RemotingCommand(
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            {"topic": config.topic_name},
            TopicRouteData(queue_datas=(queues,)).encode(),
        )
        reply = await owner.client.invoke(self.address, request, timeout_s=owner.timeout_s)
        checked(reply, address=self.address, request="REGISTER_TOPIC_IN_NAMESRV")

    async def _register(
        self, table: Mapping[str, TopicConfig], version: DataVersion, *, is_whole: bool
    ) -> None:
        owner = self._owner
        wrapper = TopicConfigSerializeWrapper(
            dict(table),
            version,
            mapping_data_version=owner.mappings.data_version,
            topic_queue_mapping_info_map=owner.mappings.infos(table),
            topic_queue_mapping_detail_map={},
        )
        content = RegisterBrokerBody(wrapper)
        body = content.encode_compressed() if owner.compressed else content.encode()
        ext = owner.identity_fields()
        ext["haServerAddr"] = owner.identity.ha_address
        ext["enableActingMaster"] = boolean_text(owner.acting_master)
        ext["compressed"] = boolean_text(owner.compressed)
        ext["bodyCrc32"] = str(body_crc32(body))
        if not is_whole:
            ext[PART_FIELD] = boolean_text(True)
        if owner.acting_master:
            ext["heartbeatTimeoutMillis"] = str(owner.not_active_ms)
        if owner.identity.listeners:
            ext[LISTENERS_FIELD] = ",".join(f"{name}={address}" for name, address in owner.identity.listeners)
        request = RemotingCommand(RequestCode.REGISTER_BROKER, ext, body)
        reply = await owner.client.invoke(self.address, request, timeout_s=owner.timeout_s)
        owner.take_reply(checked(reply, address=self.address, request="REGISTER_BROKER"))

    def _watch(self) -> None:
        """Register again immediately when the connection is lost: the NameServer removed this broker with it."""
        connection = self._owner.client.connection_to(self.address)
        if connection is not None and connection is not self._watched:
            self._watched = connection
            connection.on_close(self._connection_lost)

    def _connection_lost(self, _: Connection) -> None:
        self._owner.clock.call_later(RECONNECT_S, self.register_now)

    async def unregister(self) -> None:
        request = RemotingCommand(RequestCode.UNREGISTER_BROKER, self._owner.identity_fields())
        try:
            await self._owner.client.invoke(self.address, request, timeout_s=UNREGISTER_TIMEOUT_S)
        except AerobeeError as error:
            log.warning("unregistering at nameserver %s failed: %s", self.address, error)


class Registration:
    """Keeps a broker registered at all its nameservers.

    `client` is its connections to them, closed by its owner. Topics that change are watched through the table.
    """

    def __init__(
        self,
        *,
        client: RemotingClient,
        topics: TopicTable,
        mappings: QueueMappings,
        identity: BrokerIdentity,
        role: RoleState,
        live: LiveConfig,
        clock: Clock,
        on_master: MasterCallback | None = None,
        broker_id: Callable[[], int] | None = None,
    ) -> None:
        """`broker_id` is called for each request; without it the request contains the identity's id."""
        self.client = client
        self.topics = topics
        self.mappings = mappings
        self.identity = identity
        self._role = role
        self.clock = clock
        self.registered_at_ms: dict[str, int] = {}  # nameserver -> last registration that succeeded
        self._live = live
        self._on_master = on_master
        self._broker_id = broker_id or (lambda: identity.broker_id)
        self._permission = live.value.broker_permission
        self._links: dict[str, _NameserverLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._started = False
        topics.on_change(self._topics_changed)
        live.on_change(self._settings_changed)

    # Read by the links, so that a change of the configuration takes effect immediately.
    @property
    def period_s(self) -> float:
        """Seconds between two registrations."""
        return self._live.value.register_period_s

    @property
    def timeout_s(self) -> float:
        """Time-out of a NameServer's reply, in seconds."""
        return self._live.value.register_broker_timeout_mills / 1000

    @property
    def force(self) -> bool:
        """Whether to register even when nothing has changed (forceRegister)."""
        return self._live.value.force_register

    @property
    def compressed(self) -> bool:
        """Whether the body is compressed (compressedRegister)."""
        return self._live.value.compressed_register

    @property
    def part_topics_max(self) -> int:
        """Number of topics per registration when the table is split."""
        config = self._live.value
        return config.split_registration_size if config.enable_split_registration else PART_TOPICS_MAX

    @property
    def single_topics(self) -> bool:
        """Whether a changed topic is registered alone (enableSingleTopicRegister)."""
        return self._live.value.enable_single_topic_register

    @property
    def acting_master(self) -> bool:
        """Whether a slave may act as the master (enableSlaveActingMaster)."""
        return self._live.value.enable_slave_acting_master

    @property
    def not_active_ms(self) -> int:
        """Time without a heartbeat after which a NameServer removes this broker, in seconds."""
        return self._live.value.broker_not_active_timeout_millis

    @property
    def is_started(self) -> bool:
        """From start() to stop()."""
        return self._started

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The configured addresses of the NameServers."""
        return tuple(self._links)

    @property
    def failures(self) -> dict[str, str]:
        """Nameserver -> why the last try failed; only those that failed."""
        return {address: link.failure for address, link in self._links.items() if link.failure}

    def identity_fields(self) -> dict[str, str]:
        """The fields that name this broker in each request."""
        identity = self.identity
        return {
            "brokerName": identity.name,
            "brokerAddr": identity.address,
            "clusterName": identity.cluster,
            "brokerId": str(self._broker_id()),
        }

    def visible(self, table: Mapping[str, TopicConfig]) -> Mapping[str, TopicConfig]:
        """The topics as advertised to clients: without the write or read permission that this broker lacks."""
        allowed = self._live.value.broker_permission
        if allowed & RW == RW:
            return table
        return {
            name: dataclasses.replace(config, perm=config.perm & allowed) for name, config in table.items()
        }

    async def start(self, nameservers: Iterable[str], *, wait_s: float = 0.0) -> None:
        """Begin. With `wait_s`, return when each nameserver was tried once or that time has passed."""
        self._started = True
        self.set_nameservers(nameservers)
        if wait_s:
            await self.settled(wait_s)

    def set_nameservers(self, nameservers: Iterable[str]) -> None:
        """Register at these NameServers only. Dropped ones remove the broker after their time-out."""
        wanted = tuple(dict.fromkeys(nameservers))
        for address in set(self._links) - set(wanted):
            del self._links[address]
            task = self._tasks.pop(address, None)
            if task is not None:
                task.cancel()
        for address in wanted:
            if address not in self._links:
                link = self._links[address] = _NameserverLink(self, address)
                if self._started:
                    self._tasks[address] = asyncio.create_task(link.run(), name=f"register-{address}")

    def register_all(self) -> None:
        """Register in full at every nameserver now."""
        for link in self._links.values():
            link.register_now()

    async def settled(self, timeout_s: float = 3.0) -> None:
        """Wait until all changes so far were sent to every reachable nameserver."""
        waiters = [link.settled() for link in self._links.values() if not link.failure]
        if waiters:
            await asyncio.wait(waiters, timeout=timeout_s)

    async def stop(self, *, unregister: bool = True) -> None:
        """End the tasks; unregister at the NameServers, unless the broker is being killed."""
        self._started = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if unregister:
            await asyncio.gather(*(link.unregister() for link in self._links.values() if not link.failure))

    def take_reply(self, reply: RemotingCommand) -> None:
        """Apply the contents of a NameServer's reply to the registration."""
        if reply.body:
            try:
                self.topics.set_order_topics(KVTable.decode(reply.body).table)
            except WireError as error:
                log.warning("the order-topic configuration of a nameserver cannot be read: %s", error)
        fields = reply.ext or {}
        if self._on_master is not None and not self._role.is_master and fields.get("masterAddr"):
            self._on_master(fields["masterAddr"], fields.get("haServerAddr", ""))

    def _settings_changed(self, config: BrokerConfig) -> None:
        if config.broker_permission != self._permission:
            self._permission = config.broker_permission
            self.topics.touch()

    def _topics_changed(self, configs: tuple[TopicConfig, ...]) -> None:
        for link in self._links.values():
            link.topics_changed(configs)
