"""The seam of the fast path: what its two backends take and give. PythonBackend (python_backend.py) and
`aerobee_native` (native/, aerobee_native.pyi). The handlers are the reference; a differential fuzz compares both backends with them.

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
from aerobee.store.queue.queue_table import AnyQueue

# Changes with the seam and with whatever a burst may answer or write: a native backend of another version is not used.
FAST_PATH_VERSION = 24

# request code, group, topic, subscription of the request (SQL92: with SQL_PREFIX in front) or None for the group's, its version
AuthorizationKey = tuple[int, str, str, str | None, int]


@dataclass(frozen=True, slots=True, eq=False)
class Authorization:
    """One way to pull that is allowed. `tag_codes` None takes every message.

    With `accept`, a test of whole records, those that it refuses are left out; `program` is the same test for the native
    backend (filter/program.py). A pull that has the one and not the other is left to the handlers.
    """

    group: str
    topic: str
    queue_count: int
    tag_codes: frozenset[int] | None
    broker_id: int  # suggested for the next pull
    slow_broker_id: int  # suggested when the requested data is beyond the memory share
    topic_sys_flag: int
    group_sys_flag: int
    accept: Callable[[bytes], bool] | None = None
    program: Program | None = None


# What was stored of one topic: topic, messages, bytes of their records, requests, and how many records are larger than
# each of metrics.SIZE_ENDS and no larger than the next; empty when none is.
Appended = tuple[str, int, int, int, Sequence[int]]

# What was handed out by one authorization: messages, bytes of their records, pulls.
HandedOut = tuple[Authorization, int, int, int]

# The frame of a pull that waits for the next message of its queue, for how many ms it may be held, and its code.
PendingFrame = tuple[bytes, int, int]


class PullResult(Protocol):
    """Where one pull has come to, for the shell to note, or several of one consumer after another; or that it waits.

    results.py has the classes of this and what follows; the native backend has its own. In both the fields are plain members,
    which costs less than properties.
    """

    @property
    def authorization(self) -> Authorization: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def commit_offset(self) -> int | None:
        """What the consumer asks to be committed."""
        ...

    @property
    def held(self) -> PendingFrame | None:
        """The pull waits, and has no reply yet."""
        ...


class BurstResult(Protocol):
    """What became of a burst."""

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
        """Whether a whole frame stands there that is for the handlers."""
        ...

    @property
    def deferred_replies(self) -> bytes:
        """Encoded frames to be sent when the log is durable up to its present end."""
        ...

    @property
    def deferred_answers(self) -> Answers:
        """Those in `deferred_replies`."""
        ...

    @property
    def stored_count(self) -> int:
        """How many requests have stored something; of what, take_totals() says. 1 for none but the one that failed."""
        ...

    @property
    def pulled(self) -> Sequence[PullResult]:
        """In the order of the pulls."""
        ...

    @property
    def fault(self) -> BaseException | None:
        """What failed after a frame's bytes were written: it counts as used, has no reply, and no handler may serve it again."""
        ...


class DelayHooks(Protocol):
    """What the handler of delayed messages reads and reports. Each value is read once per burst."""

    def takes_delayed(self) -> bool:
        """Whether such messages are taken as they come."""
        ...

    def timer_limits(self) -> tuple[int, int] | None:
        """Precision and longest delay of timers, ms; None: all of them are for the handlers."""
        ...

    def level_appended(self, queue_id: int, end: int, due_ms: int) -> None:
        """A level's queue has got its first message in this burst, which is due then."""
        ...

    def timer_appended(self) -> None:
        """The timer has got its first message in this burst."""
        ...


class Transaction(Protocol):
    """What an end of an open transaction is checked by."""

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
        """Keys and tag of its message; None for one that came another way: from a start, a check, the handlers."""
        ...


class TransactionHooks(Protocol):
    """What the family of transactions asks and tells. A failure of began(), committed() or rolled_back() is a fault."""

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


class FrameGrant(Protocol):
    """As aerobee.access.gate.Grant: `signing_key` has to have signed each frame, None when no signature is required."""

    @property
    def signing_key(self) -> str | None: ...

    def allows(self) -> bool:
        """Whether who signed may do this. Asked once, behind the first right signature."""
        ...


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Access control is on: what each frame has to show before it is served (guard.py).

    `find_grant` takes a request's code, its access key and the fields that name what it needs permission for, and the peer's
    host; it returns None for what is to be refused. `fields` are the names of those fields, by the codes that are served.
    """

    find_grant: Callable[[int, dict[str, str], str], FrameGrant | None]
    fields: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """What a backend is made of."""

    store: MessageStore
    find_topic: Callable[[str], TopicConfig | None]  # the config of a topic that is ordinary, else None
    find_authorization: Callable[[AuthorizationKey], Authorization | None]
    store_host: bytes
    own_properties: str  # the end of each stored text
    reply_fields: str  # of each reply in JSON, between message id and queue offset
    reply_ext: dict[str, str]  # the same for the binary header
    waiting: Container[tuple[str, int]]  # queues at which a consumer waits
    special_properties: frozenset[str]  # what makes a message more than one to be stored
    supports_long_poll: bool  # a pull that finds nothing may wait as long as it says
    permits: array[int]  # permits.py
    # Where the native backend counts how long sends and pulls took: steps of metrics.Latency, and what takes the rest.
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
    """What the family of messages for later needs. The topics are those where such messages wait."""

    hooks: DelayHooks
    schedule_topic: TopicConfig
    timer_topic: TopicConfig
    broker_name: str
    delays_ms: tuple[int, ...]  # of level 1, 2, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """What the family of transactions needs."""

    hooks: TransactionHooks
    half_topic: TopicConfig


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

        `born_host` is packed, `now_ms` the store's time. Frames of a closed gate are not ordinary. `host` is whom a guard checks:
        the peer's address, "" for one that is not checked; None is not let in where there is a guard. Raises what fails
        at the burst's end: nothing of it may be answered then.
        """
        ...

    def take_totals(self) -> tuple[Sequence[Appended], Sequence[HandedOut]]:
        """What was stored and handed out since the last call. A topic may be there twice, when it has changed in between.

        Read between bursts: what one has stored is there when it has ended."""
        ...

    def forget_topics(self) -> None:
        """Topics have changed: look everything up again."""
        ...

    def forget_authorizations(self) -> None:
        """Groups, subscriptions or offsets have changed: ask again who may pull."""
        ...

    def forget_grants(self) -> None:
        """Users or permissions have changed: the guard asks again, from the next frame on. From any thread."""
        ...


Stamp = tuple[int, int]  # precision ms, ms of the delivery
Looked = tuple[int, int, bool, str, int]  # TIMER_OUT_MS, due ms, cancels others, real topic, its hash


class DeliveryResult(Protocol):
    """What became of a run of due messages."""

    @property
    def delivered_count(self) -> int:
        """How many of the sources were delivered, from the first one on."""
        ...

    @property
    def appended(self) -> Sequence[Appended]: ...
    @property
    def fault(self) -> BaseException | None:
        """What failed otherwise than a message can; those counted are delivered even so."""
        ...


class DeliveryBackend(Protocol):
    """Stores due messages under their real topics, in runs."""

    def deliver(
        self, sources: Sequence[int], now_ms: int, *, readable_end: int, stamp: Stamp | None
    ) -> DeliveryResult: ...

    def look(self, sources: Sequence[int], *, readable_end: int, precision_ms: int) -> list[Looked]: ...

    def forget_topics(self) -> None: ...
