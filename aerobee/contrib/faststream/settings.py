"""Settings of subscribers and publishers, and what all parts of one broker share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypedDict

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.base.verdict import LEVEL_DELAYS_S
from aerobee.contrib.new_topic import ensure_topic

# RocketMQ's delays of redeliveries, 10 s to 2 h.
RETRY_DELAYS_S: tuple[float, ...] = LEVEL_DELAYS_S[2:]
INVISIBLE_S, WAIT_S = 60.0, 15.0


class SubscriberOptions(TypedDict, total=False):
    """Options of `@broker.subscriber(topic, …)`; docs/faststream.md describes each."""

    group: str
    tag: str
    ordered: bool
    batch: bool
    max_records: int
    batch_timeout_s: float
    max_workers: int
    prefetch_count: int
    invisible_s: float | None
    wait_s: float | None
    max_redeliveries: int | None
    retry_delays_s: float | Sequence[float]
    from_begin: bool
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Any]
    parser: Any
    decoder: Any
    codec: Any
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class PublisherOptions(TypedDict, total=False):
    """Options of `@broker.publisher(topic, …)`; docs/faststream.md describes each."""

    tag: str | None
    keys: tuple[str, ...]
    message_group: str | None
    delay: timedelta | float | None
    deliver_at: datetime | float | None
    priority: int | None
    headers: dict[str, Any] | None
    reply_to: str
    batch: bool
    persistent: bool
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How a subscriber receives. Raises SetupError for values that exclude each other."""

    group: str = ""
    """Consumer group. Empty: named like the topic."""
    tag: str = "*"
    """`*`, `A || B`, Sql(), or a template `{country}-{city}` whose parameters handlers receive as Path()."""
    ordered: bool = False
    """Messages of a queue one at a time and in order, so messages of one message group too."""
    batch: bool = False
    """One handler call for up to `max_records` messages."""
    max_records: int = 10
    """Maximum number of messages of a batch."""
    batch_timeout_s: float = 0.2
    """Longest wait for further messages of a batch, in seconds."""
    max_workers: int = 1
    """Maximum number of handler calls at the same time; with `ordered` each is of another queue."""
    prefetch_count: int = 32
    """Messages that this process has received and not begun; 1 suits handlers of minutes."""
    invisible_s: float | None = None
    """Seconds after which messages of a dead process are redelivered, 60 by default; living ones renew them."""
    wait_s: float | None = None
    """Seconds that a broker keeps a pop pending, 15 by default."""
    max_redeliveries: int | None = None
    """Redeliveries before a message is dead-lettered. None: the group's setting, 16 for a group that this broker creates."""
    retry_delays_s: float | Sequence[float] = RETRY_DELAYS_S
    """Delays of the redeliveries after nack() without a delay, the last one repeats; one number is for all of them."""
    from_begin: bool = True
    """A group that is new to the topic starts with its oldest message. False: with the next one sent."""

    def __post_init__(self) -> None:
        for name in ("max_records", "max_workers", "prefetch_count"):
            if getattr(self, name) < 1:
                raise SetupError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.ordered and self.batch:
            raise SetupError("ordered=True excludes batch=True")
        for name in ("invisible_s", "wait_s"):
            value = getattr(self, name)
            if value is not None and self.ordered:
                raise SetupError(
                    f"ordered=True excludes {name}: an ordered subscriber locks queues and pulls"
                )
            if value is not None and value <= 0:
                raise SetupError(f"{name} is {value}: it must be a number of seconds above 0")
        if any(delay_s < 0 for delay_s in self.delays_s) or not self.delays_s:
            raise SetupError(f"retry_delays_s is {self.retry_delays_s!r}: seconds, 0 or above")

    @property
    def delays_s(self) -> Sequence[float]:
        """`retry_delays_s` as a sequence."""
        delays = self.retry_delays_s
        return (delays,) if isinstance(delays, int | float) else delays

    def retry_delay_s(self, reconsume_times: int) -> float:
        """Delay of the redelivery after `reconsume_times` earlier ones."""
        return self.delays_s[min(reconsume_times, len(self.delays_s) - 1)]

    def group_of(self, topic: str) -> str:
        """The group of a subscriber of `topic`."""
        return self.group or topic


@dataclass(kw_only=True)
class AerobeeBrokerConfig(BrokerConfig):
    """Of one broker; each router has another, whose cluster is that of the broker that includes them."""

    nameservers: str | Sequence[str] = ()
    client: ClientConfig | None = None
    create_topics: bool = True
    queue_count: int = 8
    in_memory: bool = False
    """TestAerobeeBroker: nothing is opened."""
    id_generator: Callable[[], str] = gen_cor_id
    _known: set[str] = field(default_factory=set, repr=False)

    async def ensure(self, topic: str, *, group: str = "", max_redeliveries: int = 16) -> None:
        """Create the topic, and the group, unless brokers have the topic or `create_topics` is off."""
        if (topic in self._known and not group) or self.in_memory:
            return
        if self.create_topics:
            async with Admin(self.nameservers, client=self.client) as admin:
                await ensure_topic(
                    admin,
                    topic,
                    queue_count=self.queue_count,
                    group=group,
                    max_redeliveries=max_redeliveries,
                )
        self._known.add(topic)
