"""Parts of a broker that exist before it knows its address: settings, clock, files, store, tables of topics, groups and
clients.

The constructor opens nothing; load() reads the state of the previous run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from aerobee.access.config import AccessConfig
from aerobee.broker.admission.broker_access import RELOAD_S, BrokerAccess
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.consumer.silent_clients import close_silent_clients
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.replication.wiring import check_roles
from aerobee.broker.send.lmq import lmq_entries, lmq_topic
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.broker.state.background import Background
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.config_files import ConfigFiles
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.missed_topics import make_missed_topics
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.queue_mappings import FILE_NAME as MAPPINGS_FILE
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.errors import StoreError
from aerobee.network import Network
from aerobee.remoting.client import RemotingClient
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

SCAN_INTERVAL_S = 10.0  # interval of checks for clients without heartbeats


class Foundation:
    """The parts that need only settings and a disk. Belongs to the event loop, except load_store()."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock,
        network: Network,
        disk: Disk,
        executor: Executor | None,
        settings_path: str | None,
        config_writer: Executor | None,
        access: AccessConfig | None,
        identity: Callable[[], BrokerIdentity],
    ) -> None:
        """Raises ConfigError for settings that contradict each other. `identity` is read when records are written,
        after the ports are bound; other arguments as Broker."""
        check_roles(config, store_config)
        self.live = LiveConfig(config)
        self.store_config, self.clock, self.disk = store_config, clock, disk
        self.files = ConfigFiles(
            disk=disk,
            path_of=lambda name: store_config.path("config", name),
            settings_path=settings_path,
            writer=config_writer,
        )
        self.store = MessageStore(
            store_config,
            disk=disk,
            clock=clock,
            executor=executor,
            store_host=lambda: identity().store_host,
            needs_confirmation=config.enable_controller_mode,
        )
        self.bounds = Bounds(self.live, clock)
        self.lmqs = lmq_entries(self.store)
        self.topics = TopicTable(
            file=self.files.file("topics.json"),
            clock=clock,
            bounds=self.bounds,
            fallback=lmq_topic if self.lmqs is not None else None,
            log_end=lambda: self.store.log.end,
        )
        self.mappings = QueueMappings(file=self.files.file(MAPPINGS_FILE), clock=clock)
        self.groups = GroupTable(
            clock=clock,
            live=self.live,
            file=self.files.file("subscriptionGroup.json"),
            bounds=self.bounds,
        )
        self._offsets_file = self.files.file("consumerOffset.json")
        self.offsets = ConsumerOffsets(
            clock=clock,
            file=self._offsets_file,
            end_of=self.store.next_offset,
            bounds=self.bounds,
            log_end_now=lambda: self.store.log.end,
            has_pop_buffer=config.enable_pop_buffer_merge,
        )
        self.stats = BrokerStats(clock=clock, cluster=config.broker_cluster_name)
        self.locks = LockTable(clock=clock, bounds=self.bounds)
        self._make_members()
        self.unserved = UnservedKinds()
        self.duplicates = SendDuplicates(live=self.live, clock=clock, unserved=self.unserved)
        self.network = network
        self.client = RemotingClient(  # client of NameServers and other brokers
            clock=clock,
            network=network,
            credentials=None if access is None else access.inner_credentials,
        )
        self.access = BrokerAccess(
            access,
            live=self.live,
            directory=store_config.path("config"),
            settings_path=settings_path,
            clock=clock,
        )
        self.background = Background(clock)
        self._saves_offsets = False

    def _make_members(self) -> None:
        self.consumers = ConsumerRegistry(clock=self.clock, call_soon=_call_soon, may_notify=self._may_notify)
        self.producers = ProducerRegistry(
            clock=self.clock,
            call_soon=_call_soon,
            knows=lambda principal, peer: self.access.gate.knows(principal, peer),
        )

    async def load_store(self) -> None:
        """Open the store. Raises StoreLocked, StoreError, ConfigError; nothing is open then."""
        await asyncio.get_running_loop().run_in_executor(None, self.store.load)

    async def load_tables(self) -> None:
        """Read topics, groups and offsets, and create the system topics and groups. Raises ConfigError, StoreError."""
        await asyncio.get_running_loop().run_in_executor(None, self._load_tables)

    def _load_tables(self) -> None:
        self.access.open()
        for part in (self.topics, self.mappings, self.groups, self.offsets):
            part.load()
        for topic, end in self.topics.deleted.items():
            if 0 <= self.offsets.log_end <= end:  # the offset file was saved before the topic was deleted
                self.offsets.remove_topic(topic)
        # Offsets that were saved before a topic was deleted and recreated, or before records were lost: the
        # group would skip the next messages of the queue.
        for topic, group, queue_id in self.offsets.limit_to_ends():
            log.warning(
                "group %s had an offset after the end of queue %d of %s, which ends at %d: it "
                "continues there",
                group, queue_id, topic, self.store.next_offset(topic, queue_id),
            )  # fmt: skip
        adopted = self.topics.adopt(key for key, queue in self.store.queues.items() if queue.max_offset)
        if adopted:
            log.warning("topics.json was behind: %s have messages and are recreated", ", ".join(adopted))
        self.topics.create_system_topics(self.live.value)

    def lead(self) -> None:
        """This broker becomes master: its copies of a master's tables become authoritative."""
        self.make_missed_topics()
        self.topics.copied(None)
        self.offsets.copied(None)

    def resign(self) -> None:
        """Another broker is master from now on: state that only this broker knew would mislead consumers when it is
        master again."""
        self.locks.clear()
        self.offsets.resigned()

    def make_missed_topics(self) -> None:
        """Make messages of a lost master readable (missed_topics.py). A queue that cannot be examined does not prevent
        a broker from leading; it is logged."""
        try:
            make_missed_topics(self.topics, self.mappings, self.store)
        except (OSError, StoreError) as error:
            log.error(
                "the topics that the lost master created last cannot be determined: %s; "
                "recreate the missing ones (aerobee topic create), their messages are stored",
                error,
            )

    def start(self) -> None:
        """Start the periodic tasks: removing clients without heartbeats, saving offsets."""
        self._saves_offsets = True
        config = self.live
        self.background.every("scan", lambda: SCAN_INTERVAL_S, self._scan)
        if self.access.reloads:
            self.background.every("accounts", lambda: RELOAD_S, self._reload_accounts)
        self.background.every(
            "save", lambda: config.value.flush_consumer_offset_interval / 1000, self._save_offsets
        )

    def stop(self) -> None:
        """End what start() began."""
        self._saves_offsets = False
        self.background.stop()

    def _reload_accounts(self) -> None:
        self.files.run_blocking(self.access.reload)

    async def settled(self) -> None:
        """Return when every requested change of topics and groups is in its file, or refused."""
        for table in (self.topics, self.groups):
            await table.settled()

    def abandon(self) -> None:
        """Write no file of topics and groups any more, as after a kill."""
        for table in (self.topics, self.groups):
            table.abandon()

    def _may_notify(self, group: str) -> bool:
        config = self.groups.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _scan(self) -> None:
        expiry_s = self.live.value.channel_expired_timeout / 1000
        close_silent_clients(self.consumers, self.producers, expiry_s)

    def _save_offsets(self) -> None:
        for part in (self.topics, self.groups, self.files):
            part.retry()
        write = self.offsets.prepare_save()
        if write is not None:
            # The file must not record a delivery whose check point a power loss can remove.
            save = write
            self.store.flushed.when(self.store.log.end, lambda ok: self._write_offsets(save, ok))

    def _write_offsets(self, save: Callable[[], None], is_durable: bool) -> None:
        if is_durable and self._saves_offsets:
            self._offsets_file.write_soon(save)
        else:
            self.offsets.drop_save()


def _call_soon(run: Callable[[], None]) -> None:
    """Run it in the event loop's next iteration. The parts are created before their event loop runs."""
    asyncio.get_running_loop().call_soon(run)
