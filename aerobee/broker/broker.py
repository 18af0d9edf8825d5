"""A broker: wires the parts, opens the store and the ports, registers, and ends in order (BrokerController).

The dispatch is one dict from request code to handler, put together from the parts. A part gets what it needs, never
the broker. Everything belongs to one event loop; what can block runs in the store's executor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from concurrent.futures import Executor

from aerobee.broker.ack import AckPolicy
from aerobee.broker.admin.runtime_info import RuntimeInfo
from aerobee.broker.background import Background
from aerobee.broker.bounds import Bounds
from aerobee.broker.call_parts import CallPart, admin_calls, client_calls, pull_calls, send_calls
from aerobee.broker.config import BrokerConfig, LiveConfig
from aerobee.broker.config_files import ConfigFiles
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.delay.deliveries import Deliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.choice import choose_backend, wanted_backend
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.feature import Feature
from aerobee.broker.features import fast_path_kinds, make_features
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.overload import Overload
from aerobee.broker.parts import BrokerParts
from aerobee.broker.ports import Ports
from aerobee.broker.producer_registry import ProducerRegistry
from aerobee.broker.pull.held_pulls import HeldPulls
from aerobee.broker.pull.pull_calls import PullCalls
from aerobee.broker.registration import Registration
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.replication import Replication
from aerobee.broker.replication.wiring import check_roles, make_replication, open_ha_port
from aerobee.broker.role import configured_role
from aerobee.broker.send.delay_level import delay_level_hook
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import TopicTable
from aerobee.clock import Clock, SystemClock
from aerobee.errors import AerobeeError, StoreError, UsageError
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.body_limits import BROKER_BODIES, limit_bodies
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.connection import Connection
from aerobee.remoting.direct import DirectNetwork
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.peer import Handler
from aerobee.remoting.tls import ServerTls
from aerobee.remoting.unread_replies import UnreadReplies
from aerobee.store.config import StoreConfig
from aerobee.store.disk import Disk, RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.store.reader import record_reader

log = logging.getLogger(__name__)

SCAN_INTERVAL_S = 10.0  # for clients that fell silent
FIRST_REGISTRATION_WAIT_S = 3.0


class Broker:
    """One broker. start() once, then stop() or kill() once.

    After start(): `address` is what nameservers hand to clients, `identity` all names; `store`, `topics`, `groups`,
    `offsets`, `consumers`, `producers`, `stats`, `held`, `registration`, `overload` are its parts.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        executor: Executor | None = None,
        tls: ServerTls | None = None,
        settings_path: str | None = None,
        config_writer: Executor | None = None,
    ) -> None:
        """`settings_path`: the configuration file, into which settings changed at run time (25) are written.

        `config_writer` writes that file and all small ones; a thread of the broker's own when none is given.
        """
        check_roles(config, store_config)
        self.live = LiveConfig(config)
        self.clock = clock or SystemClock()
        self._network = network or AsyncioNetwork()
        self._disk = disk or RealDisk()
        self._store_config = store_config
        files = ConfigFiles(
            disk=self._disk,
            path_of=lambda name: store_config.path("config", name),
            settings_path=settings_path,
            writer=config_writer,
        )
        self._files = files
        self.store = MessageStore(store_config, disk=self._disk, clock=self.clock, executor=executor)
        self.bounds = Bounds(self.live, self.clock)
        self.topics = TopicTable(file=files.file("topics.json"), clock=self.clock, bounds=self.bounds)
        self.groups = GroupTable(
            clock=self.clock,
            live=self.live,
            file=files.file("subscriptionGroup.json"),
            run_beside=files.run_blocking,
            bounds=self.bounds,
        )
        self.offsets = ConsumerOffsets(
            clock=self.clock,
            file=files.file("consumerOffset.json"),
            end_of=self.store.max_offset,
            bounds=self.bounds,
            log_end_now=lambda: self.store.appended,
        )
        self.stats = BrokerStats(clock=self.clock, cluster=config.broker_cluster_name)
        self.locks = LockTable(clock=self.clock, bounds=self.bounds)
        self.consumers = ConsumerRegistry(clock=self.clock, may_notify=self._may_notify)
        self.producers = ProducerRegistry(clock=self.clock)
        self._duplicates = SendDuplicates(live=self.live, clock=self.clock)
        self._handlers: dict[int, Handler] = {}
        self.backend_choice = choose_backend(wanted_backend(os.environ))
        make_sockets = self.backend_choice.make_sockets if type(self._network) is AsyncioNetwork else None
        self._direct = DirectNetwork(make_sockets) if make_sockets is not None else None
        self._watch = LoopWatch(self.clock.monotonic)
        self.ports = Ports(
            live=self.live,
            clock=self.clock,
            network=self._direct or self._network,
            handlers=self._handlers,
            watch=self._watch,
            tls=tls,
        )
        self._ha_listener = HaListener(self._network)
        self._client = RemotingClient(clock=self.clock, network=self._network)
        self._fast_path: FastPath | None = None
        self._deliveries: Deliveries | None = None
        self._background = Background(self.clock)
        self._is_started = False
        self._is_running = False
        self.identity: BrokerIdentity
        self.schedule: Schedule
        self.held: HeldPulls
        self.overload: Overload
        self.registration: Registration
        self.replication: Replication
        self._pulls: PullCalls
        self._features: tuple[Feature, ...] = ()

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.live.value

    @property
    def address(self) -> str:
        """ "ip:port" as clients are told."""
        return self.identity.address

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """Request code to handler: what this broker serves."""
        return self._handlers

    @property
    def connections(self) -> set[Connection]:
        """The open connections of clients."""
        return self.ports.connections

    # --- life

    async def start(self) -> None:
        """Open the store, bind, serve, register. Returns when each nameserver was tried once, after 3 s at most.

        Raises StoreLocked, StoreError, ConfigError, OSError (an address is taken); nothing is left open then.
        """
        if self._is_started:
            raise UsageError("this broker was started before: make a new one")
        self._is_started = True
        await asyncio.get_running_loop().run_in_executor(None, self.store.load)
        try:
            for part in (self.topics, self.groups, self.offsets):
                part.load()
            self.topics.create_system_topics(self.config)
            ha_port = await open_ha_port(self._ha_listener, self.config, self._store_config)
            self.identity = await self.ports.open(ha_port)
            self.store.store_host = self.identity.store_host
            self._wire()
            await self.store.start()
        except BaseException:
            self._ha_listener.close()
            await self.ports.abandon()
            self._files.close(wait=False)
            await self.store.stop()
            raise
        self._is_running = True
        self.replication.start()
        if not self.role.is_master and self._store_config.ha_master_address:
            self._master_found("", "")
        self.stats.start()
        self.overload.start()
        if self._serves_writes:
            self.schedule.start()
            for feature in self._features:
                feature.start()
        every = self._background.every
        every("scan", lambda: SCAN_INTERVAL_S, self._scan)
        every("save", lambda: self.config.flush_consumer_offset_interval / 1000, self._save_offsets)
        await self.registration.start(self.config.nameservers, wait_s=FIRST_REGISTRATION_WAIT_S)
        fast_path = f"{self.backend_choice.name} fast path: {self.backend_choice.why}"
        log.info(
            "broker %s of %s serves at %s (%s)",
            self.identity.name,
            self.identity.cluster,
            self.address,
            fast_path,
        )

    async def stop(self) -> None:
        """End in order: unregister, answer what is held, finish what is being served, flush, close.

        Goes through to the end whatever fails on the way; raises StoreError when the last flush failed. Does nothing
        for a broker that does not run.
        """
        if not self._is_running:
            return
        self._is_running = False
        await self._end_registration(unregister=True)
        self.held.accepting = False
        self.held.release_all()
        try:
            await self.ports.close()
        finally:
            self._stop_timers()
            await self.replication.stop()
            self._files.close(wait=True)
            self.save()
            self._close_parts()
            await self.store.stop()

    async def kill(self) -> None:
        """End as a process that was killed: nothing is flushed or said to anybody. For tests."""
        if not self._is_running:
            return
        self._is_running = False
        await self._end_registration(unregister=False)
        self._stop_timers()
        for connection in list(self.connections):
            connection.abort("the broker was killed")
        await self.replication.stop()
        await self.ports.abandon()
        self._files.close(wait=True)
        self._close_parts()
        await self.store.abandon()

    def _close_parts(self) -> None:
        for feature in self._features:
            feature.close()
        if self._fast_path is not None:
            self._fast_path.close()
        if self._deliveries is not None:
            self._deliveries.close()

    def save(self) -> None:
        """Write every config file now, blocking. While the broker runs it does so by itself, elsewhere.

        The log goes to the disk first, for the files speak of what is in it; when it does not, nothing is written.
        """
        try:
            self.store.flush_now()
        except StoreError as error:
            log.error("the config files are left as they are: %s", error)
            return
        parts = (self.offsets, self.groups, self.topics, self.schedule)
        for save in (*(part.save for part in parts), *(feature.save for feature in self._features)):
            try:
                save()
            except AerobeeError as error:
                log.error("a config file cannot be written: %s", error)

    # --- wiring

    def _wire(self) -> None:
        """Make the parts that need to know who this broker is, and the dispatch table."""
        loop = asyncio.get_running_loop()
        config, store, identity = self.config, self.store, self.identity
        self.role = configured_role(identity, self._store_config.broker_role)
        self.held = HeldPulls(
            bounds=self.bounds,
            clock=self.clock,
            call_soon=loop.call_soon,
            record_at=record_reader(store.queues, store.log),
        )
        store.on_arrival(self.held.on_appended)
        self.offsets.on_reset(self.held.reset)
        self.unread = UnreadReplies(lambda: self.connections, limit_bytes=config.pending_reply_bytes_max)
        self.overload = Overload(
            wait_limit_ms=config.send_wait_limit_ms,
            pending_limit_bytes=config.pending_reply_bytes_max,
            pending_bytes=self.unread.look,
        )
        self.live.on_change(self._limits_changed)
        self.registration = Registration(
            client=self._client,
            topics=self.topics,
            identity=identity,
            role=self.role,
            live=self.live,
            clock=self.clock,
            on_master=self._master_found,
        )
        self._duplicates.load(store.log)
        self._deliveries = Deliveries(
            store=store,
            topics=self.topics,
            stats=self.stats,
            waiting=self.held.by_queue,
            choice=self.backend_choice,
        )
        self.schedule = Schedule(
            store=store,
            deliveries=self._deliveries,
            file=self._files.file("delayOffset.json"),
            clock=self.clock,
            stats=self.stats,
            run_blocking=self._files.run_blocking,
        )
        self.schedule.load()
        store.on_arrival(self.schedule.arrived)
        parts = self._make_parts(self._deliveries)
        self.replication = make_replication(
            store=store,
            role=self.role,
            ack=parts.ack,
            live=self.live,
            listener=self._ha_listener,
            network=self._network,
            client=self._client,
            clock=self.clock,
        )
        self._features = make_features(parts)
        for feature in self._features:
            feature.load()
            if feature.put_hook is not None:
                parts.writer.add_hook(feature.put_hook)
        parts.writer.add_hook(delay_level_hook(len(self._store_config.delay_levels_ms())))
        self._fill_handlers(parts)
        self._fast_path = self._make_fast_path(parts)
        self.ports.serve(self._fast_path.burst)
        if self._direct is not None:
            self._direct.receive = self._fast_path.receive

    def _master_found(self, address: str, ha_address: str) -> None:
        """A NameServer says who the master is. What haMasterAddress names counts more."""
        named = self._store_config.ha_master_address
        if named and not address:
            host, _, port = named.rpartition(":")
            address = f"{host}:{int(port) - 1}"  # where RocketMQ's masters answer requests, until it is known better
        ha_address = named or ha_address
        if not self.role.is_master and ha_address:
            self.replication.become_slave(ha_address, master_address=address)

    def _make_fast_path(self, parts: BrokerParts) -> FastPath:
        """What serves ordinary frames before the handlers do."""
        later, transactions, pops = fast_path_kinds(self._features)
        return FastPath(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            offsets=self.offsets,
            stats=self.stats,
            ack=parts.ack,
            overload=self.overload,
            held=self.held,
            resume_pull=self._pulls.resume,
            live=self.live,
            identity=self.identity,
            role=self.role,
            clock=self.clock,
            choice=self.backend_choice,
            later=later,
            transactions=transactions,
            pops=pops,
            expressions=parts.expressions,
        )

    def _fill_handlers(self, parts: BrokerParts) -> None:
        """The dispatch: what serves which request."""
        self._pulls = pull_calls(parts)
        info = RuntimeInfo(
            stats=self.stats,
            store=self.store,
            disk_usage=self._disk.usage,
            wait_ms=lambda: self.overload.wait_ms,
            accepts_sends_from_ms=lambda: self.config.start_accept_send_request_time_stamp,
            delivered=lambda: self.schedule.offsets,
            extra=self._runtime_extra,
        )
        calls: tuple[CallPart, ...] = (
            self._pulls,
            *send_calls(parts),
            *client_calls(parts, self.registration),
            *admin_calls(parts, self.registration, info),
            *self._features,
        )
        for part in calls:
            self._handlers.update(limit_bodies(part.handlers(), BROKER_BODIES))

    def _limits_changed(self, config: BrokerConfig) -> None:
        self.unread.limit_bytes = config.pending_reply_bytes_max
        self.overload.set_limits(
            wait_limit_ms=config.send_wait_limit_ms, pending_limit_bytes=config.pending_reply_bytes_max
        )

    def _make_parts(self, deliveries: Deliveries) -> BrokerParts:
        """What handlers and features share."""
        store, identity, expressions = self.store, self.identity, Expressions()
        return BrokerParts(
            store=store,
            bounds=self.bounds,
            writer=MessageWriter(store),
            duplicates=self._duplicates,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
            locks=self.locks,
            stats=self.stats,
            schedule=self.schedule,
            deliveries=deliveries,
            held=self.held,
            ack=AckPolicy(store=store, clock=self.clock, timeout_ms=self._store_config.sync_flush_timeout),
            overload=self.overload,
            unique_keys=UniqueKeys(
                ip=identity.store_host[:4], process_id=os.getpid(), salt=random.getrandbits(32)
            ),
            expressions=expressions,
            filters=FilterTable(
                expressions=expressions,
                live=self.live,
                clock=self.clock,
                file=self._files.file("consumerFilter.json"),
            ),
            live=self.live,
            identity=identity,
            role=self.role,
            client=self._client,
            clock=self.clock,
            disk=self._disk,
            config_file=self._files.file,
            run_blocking=self._files.run_blocking,
            save_settings=self._files.save_settings,
            spawn=self._background.spawn,
        )

    def _runtime_extra(self) -> dict[str, str]:
        """Keys of brokerStatus beyond those of the store and the counters."""
        registered = self.registration.registered_at_ms
        return {
            "fastPath": self.backend_choice.name,
            "lane": self.backend_choice.name,  # its name of before
            "loopWaitMaxMs": str(self.overload.wait_max_ms),
            "refusedSends": str(self.overload.refused_count),
            **self.ports.runtime_info(),
            "boundsReached": str(self.bounds.reached_count),
            **self._watch.runtime_info(),
            "dedupKeys": str(len(self._duplicates)),
            "dedupDroppedSends": str(self._duplicates.dropped_count),
            "dedupForgottenKeys": str(self._duplicates.forgotten_count),
            **{
                f"registeredAt_{name}": str(registered.get(name, 0)) for name in self.registration.nameservers
            },
            **{key: text for feature in self._features for key, text in feature.runtime_info().items()},
        }

    @property
    def _serves_writes(self) -> bool:
        return self.role.takes_writes

    # --- periodic work

    def _may_notify(self, group: str) -> bool:
        config = self.groups.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _save_offsets(self) -> None:
        self.groups.save_again()
        write = self.offsets.prepare_save()
        if write is not None:
            # The file must not say that a message was taken whose check point a power loss can take back.
            save = write
            self.store.flushed.when(
                self.store.appended,
                lambda ok: self._files.run_blocking(save) if ok and self._is_running else None,
            )

    def _scan(self) -> None:
        expiry_s = self.config.channel_expired_timeout / 1000
        self.consumers.scan(expiry_s)
        self.producers.scan(expiry_s)

    def _stop_timers(self) -> None:
        for part in (self.stats, self.overload, self.schedule):
            part.stop()
        for feature in self._features:
            feature.stop()
        self._background.stop()

    async def _end_registration(self, *, unregister: bool) -> None:
        await self.registration.stop(unregister=unregister)
        await self._client.close()
