"""What a kind of message or a way to consume adds to the broker: a Feature, made from the broker's shared parts.

features.py makes them; broker.py calls them at the right time:

    load()     the store is open, nothing is served yet
    handlers() and put_hook are asked once, then
    start()    the ports are open; only at a broker that takes messages (a master)
    save()     blocking: at the stop, when nothing is served any more
    stop()     before the store closes, also for a broker that is killed: cancel timers and tasks, write nothing
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.config import LiveConfig
from aerobee.broker.config_file import ConfigFile
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.consumer.parked_pulls import ParkedPulls
from aerobee.broker.delay.delivery_runs import DeliveryRuns
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.overload import Overload
from aerobee.broker.producer_registry import ProducerRegistry
from aerobee.broker.send.durable_replies import DurableReplies
from aerobee.broker.send.message_writer import MessageWriter, PutHook
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.connection import Handler
from aerobee.store.disk import Disk
from aerobee.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The shared parts of one broker. A Feature takes from here what it needs and keeps nothing else."""

    store: MessageStore
    writer: MessageWriter
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: ConsumerRegistry
    producers: ProducerRegistry
    locks: LockTable
    stats: BrokerStats
    schedule: Schedule
    deliveries: DeliveryRuns  # of due messages
    parked: ParkedPulls
    durable: DurableReplies
    overload: Overload
    unique_keys: UniqueKeys
    duplicates: SendDuplicates
    expressions: Expressions  # SQL92, compiled once for all who ask
    filters: FilterTable
    live: LiveConfig
    identity: BrokerIdentity
    client: RemotingClient  # towards nameservers and other brokers
    clock: Clock
    disk: Disk
    config_file: Callable[[str], ConfigFile]  # by its name in the store's config directory
    run_blocking: Callable[
        [Callable[[], None]], None
    ]  # in a thread, one after the other, failures are logged
    save_settings: (
        Callable[[Mapping[str, str]], None] | None
    )  # into the configuration file, where there is one
    spawn: Callable[[Coroutine[Any, Any, None]], None]  # a task that ends with the broker


class SecondLane(Protocol):
    """Hot frames of one feature; see transaction/lane_core.py."""

    def transactions(
        self, data: bytes | bytearray, position: int, born_host: bytes, now_ms: int
    ) -> tuple[bytes, int, bytes, list[tuple[str, int, int, int]]]: ...

    def forget_topics(self) -> None: ...


class Feature:
    """Base of all features: each method is overridden by those that need it."""

    name = ""
    put_hook: PutHook | None = None
    lane_core: Callable[..., SecondLane] | None = None  # makes what serves hot frames that the lane leaves;
    # takes the LaneChoice and the arguments of LaneCore

    def handlers(self) -> Mapping[int, Handler]:
        """Request code to handler."""
        return {}

    def load(self) -> None:
        """Read config files. Raises ConfigError or StoreError: the broker does not start then."""

    def start(self) -> None:
        """Begin with timers and tasks, in the broker's event loop."""

    def stop(self) -> None:
        """Cancel timers and tasks. May be called without start()."""

    def save(self) -> None:
        """Write config files, blocking. Raises AerobeeError, which is logged."""

    def close(self) -> None:
        """Close files, as the very last thing, also of a broker that is killed; nothing is written any more."""

    def runtime_info(self) -> Mapping[str, str]:
        """Keys to show in GET_BROKER_RUNTIME_INFO (28)."""
        return {}
