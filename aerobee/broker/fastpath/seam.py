"""Interface of the fast path's two backends: arguments and results. PythonBackend (python_backend.py) and
`aerobee_native` (native/, aerobee_native.pyi). The handlers are the reference; a differential fuzz compares both
backends with them.

A backend takes bytes, the sender's address, the time and writable buffers, does no IO and owns no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aerobee.broker.filter.program import Program
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.request_stats import Answers
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue

# Changes with this interface and with the replies or records of a burst: a native backend of another version
# is not used.
FAST_PATH_VERSION = 32

# request code, group, topic, subscription of the request (SQL92: with SQL_PREFIX in front) or None for the group's, its version
AuthorizationKey = tuple[int, str, str, str | None, int]


@dataclass(frozen=True, slots=True, eq=False)
class Authorization:
    """Authorization of a kind of pull. `tag_codes` None matches every message.

    With `accept`, a test of whole records, those that it refuses are left out; `program` is the same test for the
    native backend (filter/program.py). A pull with only one of them is left to the handlers.
    """

    group: str
    topic: str
    queue_count: int
    tag_codes: frozenset[int] | None
    broker_id: int  # broker id suggested for the next pull
    slow_broker_id: int  # broker id suggested when the requested data exceeds the memory share
    topic_sys_flag: int
    group_sys_flag: int
    accept: Callable[[bytes], bool] | None = None
    program: Program | None = None


# Stored messages of one topic: topic, messages, bytes of their records, requests, and the number of records
# in each size bucket above metrics.SIZE_ENDS; empty when all are in the first bucket.
Appended = tuple[str, int, int, int, Sequence[int]]

# Delivered messages of one authorization: messages, bytes of their records, pulls.
HandedOut = tuple[Authorization, int, int, int]

# Replies that are deferred until their appends have an ack level: its name, encoded frames, and their numbers by request code.
LeveledReplies = tuple[str, bytes, Answers]

# The frame of a pull that waits for the next message of its queue, for how many ms it may be held, and its code.
PendingFrame = tuple[bytes, int, int]


class PullResult(Protocol):
    """Effects of one pull, or of several successive pulls of one consumer, for the I/O layer to record; or a waiting
    pull.

    results.py has the classes of this and what follows; the native backend has its own. In both the fields are plain members,
    which costs less than properties.

    A protocol: each backend has its class.
    """

    @property
    def authorization(self) -> Authorization: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def commit_offset(self) -> int | None:
        """The offset to commit for the consumer."""
        ...

    @property
    def held(self) -> PendingFrame | None:
        """The pull waits, and has no reply yet."""
        ...


class BurstResult(Protocol):
    """Result of a burst. A protocol: each backend has its class."""

    @property
    def replies(self) -> bytes:
        """Encoded frames to be sent now."""
        ...

    @property
    def used(self) -> int:
        """Position of the first byte that was not served."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether that position starts a whole frame for the handlers."""
        ...

    @property
    def deferred_replies(self) -> bytes:
        """Encoded frames to be sent when the log is durable up to its present end."""
        ...

    @property
    def deferred_answers(self) -> Answers:
        """Numbers of replies in `deferred_replies`, as (request code, count)."""
        ...

    @property
    def leveled_replies(self) -> Sequence[LeveledReplies]:
        """As `deferred_replies`, by ack level, for messages that have one."""
        ...

    @property
    def stored_count(self) -> int:
        """Number of requests that stored messages; take_totals() has the details. 1 when only a failed request did."""
        ...

    @property
    def pulled(self) -> Sequence[PullResult]:
        """In the order of the pulls."""
        ...

    @property
    def fault(self) -> BaseException | None:
        """The failure after a frame's bytes were written: the frame counts as served, has no reply, and no handler may
        serve it again."""
        ...


class DelayHooks(Protocol):
    """Values and notices of the frame handler of delayed messages. Each value is read once per burst.

    A protocol, because broker/transaction, whose DelayFastPath it is, lies above.
    """

    def takes_delayed(self) -> bool:
        """Whether such messages are accepted without further checks."""
        ...

    def timer_limits(self) -> tuple[int, int] | None:
        """Precision and longest delay of timers, ms; None: all of them are for the handlers."""
        ...

    def level_appended(self, queue_id: int, end: int, due_ms: int) -> None:
        """Called with the first message of a burst in a level's queue, and its due time."""
        ...

    def timer_appended(self) -> None:
        """The timer has got its first message in this burst."""
        ...


class SendBackHooks(Protocol):
    """Queries and notices for messages that a consumer sends back.

    A protocol, because broker/send, whose SendBackFastPath it is, lies above.
    """

    def group(self, name: str) -> tuple[TopicConfig, int] | None:
        """The retry topic of a group that takes messages back, which has its queues, and the tries after which a message is
        dead. None: the group's are for the handler. Looked up again when groups, topics, settings or the role have changed.
        """
        ...

    def pick(self, count: int) -> int:
        """A queue of several."""
        ...

    def is_record(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int
    ) -> bool:
        """Whether a record of the log that may be read has this topic, this queue offset and this size."""
        ...

    def sent_back(self, group: str, topic: str, count: int) -> None:
        """Called at the end of a burst: `count` messages that were first sent to `topic` are stored for their next try."""
        ...


class Transaction(Protocol):
    """Fields of an open transaction that its end is checked against.

    A protocol, because broker/transaction, whose OpenTransaction it is, lies above.
    """

    @property
    def topic(self) -> str: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def immunity_ms(self) -> int | None: ...
    @property
    def keys_and_tag(self) -> tuple[str, str] | None:
        """Keys and tag of its message; None for a transaction from another source: start-up, a check, the handlers."""
        ...


class TransactionHooks(Protocol):
    """Queries and notices of the transaction frame handler. A failure of began(), committed() or rolled_back() is a
    fault.

    A protocol, because broker/transaction, whose TransactionFastPath it is, lies above.
    """

    def takes_halves(self) -> bool: ...
    def half_queue(self) -> AnyQueue: ...
    def open_transactions(self) -> Mapping[tuple[str, str], Transaction]:
        """By group and id."""
        ...

    def began(
        self,
        group: str,
        unique_key: str,
        topic: str,
        queue_offset: int,
        physical_offset: int,
        size: int,
        stored_ms: int,
        keys: str,
        tag: str,
    ) -> None:
        """A half message is in the log."""
        ...

    def committed(self, transaction: Transaction) -> None:
        """Its message is in the log."""
        ...

    def rolled_back(self, transaction: Transaction) -> None: ...
    def burst_done(self) -> None:
        """Called at the end of a burst that wrote a half message or decided a transaction."""
        ...


class OptionHooks(Protocol):
    """Queries and notices of the frame handler of sends with options. A failure of stored() is a fault.

    A protocol, because broker/send, whose OptionFastPath it is, lies above.
    """

    def epoch(self) -> int:
        """Epoch of this broker's mastership. Read once per burst."""
        ...

    def lmq(self, name: str) -> ConsumeQueue | None:
        """The queue of an existing LMQ; None for another name, and where there are no LMQs."""
        ...

    def is_new(self, topic: str, key: str) -> bool:
        """Whether a message with this dedup key may be stored without further checks: no message is known by the key."""
        ...

    def stored(
        self,
        topic: str,
        key: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        size: int,
        stored_ms: int,
        unique_key: str,
    ) -> None:
        """A message with this dedup key is in the log."""
        ...


class FrameGrant(Protocol):
    """As aerobee.access.gate.Grant: `signing_key` has to have signed each frame, None when no signature is required.

    A protocol: it types the native seam.
    """

    @property
    def signing_key(self) -> str | None: ...

    def allows(self) -> bool:
        """Whether the signing user has the permission. Looked up once, after the first valid signature."""
        ...


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Access control: the check of each frame before it is served (guard.py).

    `find_grant` takes a request's code, its access key and the fields that name what it needs permission for, and the
    peer's host; it returns None for a refused request. `fields` are the names of those fields, by the codes that are
    served.
    """

    find_grant: Callable[[int, dict[str, str], str], FrameGrant | None]
    fields: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Dependencies of a backend."""

    store: MessageStore
    find_topic: Callable[[str], TopicConfig | None]  # the config of a topic that is ordinary, else None
    find_authorization: Callable[[AuthorizationKey], Authorization | None]
    store_host: bytes
    own_properties: str  # the end of each stored text
    reply_fields: str  # of each reply in JSON, between message id and queue offset
    reply_ext: dict[str, str]  # the same for the binary header
    waiting: Container[tuple[str, int]]  # queues with a waiting consumer
    special_properties: frozenset[str]  # properties that require more than storing a message
    supports_long_poll: bool  # a pull without a message may wait for its requested time
    permits: array[int]  # permits.py
    # Counters of the native backend for the durations of sends and pulls: the steps of metrics.Latency, and
    # the receiver of other durations.
    put_steps: array[int]
    get_steps: array[int]
    put_took: Callable[[float, int], None]
    get_took: Callable[[float, int], None]
    # RequestStats.fast_rows, where the native backend counts, and .fast_answered, to which the Python one adds what its shell is
    # to count: the codes of requests that were answered, but not those of `deferred_answers`.
    request_rows: array[int]
    answered: list[int]
    guard: GuardSettings | None = None  # None: no frame is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySettings:
    """Dependencies of the frame handler of delayed messages. The topics are those that store pending messages."""

    hooks: DelayHooks
    schedule_topic: TopicConfig
    timer_topic: TopicConfig
    broker_name: str
    delays_ms: tuple[int, ...]  # of level 1, 2, ...
    send_backs: SendBackHooks | None = None  # None: messages that are sent back are the handler's


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Dependencies of the frame handler of transactions."""

    hooks: TransactionHooks
    half_topic: TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSettings:
    """Dependencies of the frame handler of sends with options."""

    hooks: OptionHooks
    find_leveled: Callable[
        [str], TopicConfig | None
    ]  # the config of a topic that is ordinary but for its ack level


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSendSettings:
    """What the native HTTP/2 core needs to serve SendMessage (broker/grpc/native_sends.py).

    `queue_count_of` a topic's name: the number of queues to choose from, 0 where the services decide; asked again when topics have
    changed. `reserved`: properties that a user may not set, or with which a message is no NORMAL one. `pick` returns as many
    random bits as its argument says; they choose queues.
    """

    queue_count_of: Callable[[str], int]
    reserved: frozenset[str]
    pick: Callable[[int], int]


class Backend(Protocol):
    """Serves bursts of ordinary frames."""

    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        now_ms: int,
        takes_sends: bool,
        takes_pulls: bool,
        host: str | None = None,
    ) -> BurstResult:
        """Serve ordinary frames from `position` on, until the data ends or a frame is not ordinary.

        `born_host` is packed, `now_ms` the store's time. Frames of a closed gate are not ordinary. `host` is whom a
        guard checks: the peer's address, "" for one that is not checked; None is not let in where there is a guard.
        Raises a failure at the burst's end: then no frame of the burst may be answered.
        """
        ...

    def take_totals(self) -> tuple[Sequence[Appended], Sequence[HandedOut]]:
        """Messages stored and delivered since the last call. A topic that changed in between may occur twice.

        Call it between bursts: the totals of a burst are complete at its end."""
        ...

    def forget_topics(self) -> None:
        """Topics have changed: drop all cached topics."""
        ...

    def forget_authorizations(self) -> None:
        """Groups, subscriptions or offsets have changed: drop cached authorizations."""
        ...

    def forget_grants(self) -> None:
        """Users or permissions have changed: the guard asks again, from the next frame on. From any thread."""
        ...


Stamp = tuple[int, int]  # precision ms, ms of the delivery
Looked = tuple[int, int, bool, str, int]  # TIMER_OUT_MS, due ms, cancels others, real topic, its hash


class DeliveryResult(Protocol):
    """Result of a run of due messages. A protocol: each backend has its class."""

    @property
    def delivered_count(self) -> int:
        """Number of delivered sources, from the first one on."""
        ...

    @property
    def appended(self) -> Sequence[Appended]: ...
    @property
    def fault(self) -> BaseException | None:
        """A failure that is not the message's; counted messages are delivered nevertheless."""
        ...


class DeliveryBackend(Protocol):
    """Stores due messages under their real topics, in runs. A protocol: Python and native code implement it."""

    def deliver(
        self, sources: Sequence[int], now_ms: int, *, readable_end: int, stamp: Stamp | None
    ) -> DeliveryResult: ...

    def look(self, sources: Sequence[int], *, readable_end: int, precision_ms: int) -> list[Looked]: ...

    def forget_topics(self) -> None: ...
