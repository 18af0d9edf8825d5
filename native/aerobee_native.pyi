"""What Python sees of the native package. aerobee/broker/fastpath/seam.py explains the fast path's part."""

from collections.abc import Callable, Container, Sequence, Sized
from typing import Any, final

from aerobee.broker.fastpath.pop import NativelyTaken
from aerobee.broker.fastpath.seam import (
    Appended,
    Authorization,
    AuthorizationKey,
    DelayHooks,
    FrameGrant,
    HandedOut,
    LeveledReplies,
    Looked,
    OptionHooks,
    PendingFrame,
    SendBackHooks,
    Stamp,
    TransactionHooks,
)
from aerobee.client.session.send_header import Ids
from aerobee.grpc.call import Event
from aerobee.grpc.limits import Http2Limits
from aerobee.message import Message
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.message_store import MessageStore

FAST_PATH_VERSION: int
CODEC_VERSION: int
CONSTANTS: dict[str, int | bytes]  # what the native module repeats from the Python definitions

# --- the fast path

@final
class PullResult:
    @property
    def authorization(self) -> Authorization: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def commit_offset(self) -> int | None: ...
    @property
    def held(self) -> PendingFrame | None: ...

@final
class BurstResult:
    @property
    def replies(self) -> bytes: ...
    @property
    def used(self) -> int: ...
    @property
    def is_slow(self) -> bool: ...
    @property
    def deferred_replies(self) -> bytes: ...
    @property
    def deferred_answers(self) -> Sequence[tuple[int, int]]: ...
    @property
    def leveled_replies(self) -> Sequence[LeveledReplies]: ...
    @property
    def stored_count(self) -> int: ...
    @property
    def pulled(self) -> Sequence[PullResult]: ...
    @property
    def fault(self) -> BaseException | None: ...

@final
class DeliveryResult:
    @property
    def delivered_count(self) -> int: ...
    @property
    def appended(self) -> list[Appended]: ...
    @property
    def fault(self) -> BaseException | None: ...

@final
class Backend:
    def __init__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        find_authorization: Callable[[AuthorizationKey], Authorization | None],
        store_host: bytes,
        own_properties: str,
        reply_fields: str,
        reply_ext: dict[str, str],
        waiting: Container[tuple[str, int]],
        special_properties: frozenset[str],
        supports_long_poll: bool,
        permits: memoryview,
        put_steps: memoryview,
        get_steps: memoryview,
        put_took: Callable[[float, int], None],
        get_took: Callable[[float, int], None],
        request_rows: memoryview,
        guard: tuple[
            Callable[[int, dict[str, str], str], FrameGrant | None], list[tuple[int, tuple[str, ...]]]
        ]
        | None = None,
    ) -> None: ...
    def serve_delayed(
        self,
        hooks: DelayHooks,
        *,
        schedule_topic: TopicConfig,
        timer_topic: TopicConfig,
        broker_name: str,
        delays_ms: list[int],
        special_properties: frozenset[str],
        send_backs: SendBackHooks | None,
    ) -> None: ...
    def serve_transactions(
        self, hooks: TransactionHooks, *, half_topic: TopicConfig, special_properties: frozenset[str]
    ) -> None: ...
    def serve_options(
        self,
        hooks: OptionHooks,
        *,
        find_leveled: Callable[[str], TopicConfig | None],
        special_properties: frozenset[str],
    ) -> None: ...
    def serve_grpc_sends(self, *, queue_count_of: Callable[[str], int], reserved: frozenset[str]) -> None: ...
    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        now_ms: int,
        takes_sends: bool,
        takes_pulls: bool,
        host: str | None = None,
    ) -> BurstResult: ...
    def take_totals(self) -> tuple[list[Appended], list[HandedOut]]: ...
    def forget_topics(self) -> None: ...
    def forget_authorizations(self) -> None: ...
    def forget_grants(self) -> None: ...

@final
class DeliveryBackend:
    def __init__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        store_host: bytes,
        waiting: Container[tuple[str, int]],
    ) -> None: ...
    def deliver(
        self, sources: Sequence[int], now_ms: int, *, readable_end: int, stamp: Stamp | None
    ) -> DeliveryResult: ...
    def look(self, sources: Sequence[int], *, readable_end: int, precision_ms: int) -> list[Looked]: ...
    def forget_topics(self) -> None: ...

@final
class PopRecords:
    """What aerobee.broker.pop.revive_log writes to the timer's topic."""

    def __init__(
        self,
        *,
        store: object,
        store_host: bytes,
        host: bytes,
        waiting: Container[tuple[str, int]],
        timer_topic: TopicConfig,
        revive_topic: str,
        codes: tuple[int, int, int],
    ) -> None: ...
    def append(
        self,
        queue: object,
        now_ms: int,
        born_ms: int,
        points: Sequence[tuple[object, int]],
        acks: Sequence[tuple[object, int, int]],
        *,
        is_sync: bool,
    ) -> tuple[list[int], int, int] | None: ...
    def plan(
        self,
        *,
        topic: str,
        group: str,
        broker_name: str,
        queue_id: int,
        queue_count: int,
        count_max: int,
        invisible_ms: int,
        retries: Sequence[tuple[str, str, int]],
        tag_codes: frozenset[int] | None,
    ) -> PopPlan: ...
    def take(
        self,
        plan: PopPlan,
        queue: object,
        offsets: dict[tuple[str, str], dict[int, int]],
        now_ms: int,
        pop_time: int,
        opaque: int,
        revive_queue_id: int,
        start: int,
        retry_first: bool,
        highest_first: bool,
        *,
        is_sync: bool,
    ) -> NativelyTaken | None: ...

@final
class PopPlan:
    """What equal pops share."""

@final
class SocketTurns:
    """aerobee.remoting.native_loop.SocketTurns."""

    @property
    def others(self) -> list[tuple[int, int]]: ...
    @property
    def turn_count(self) -> int: ...
    @property
    def stored_count(self) -> int: ...
    @property
    def pulled(self) -> list[tuple[Any, list[PullResult]]]: ...
    @property
    def held(self) -> list[tuple[Any, bytes, Sequence[tuple[int, int]], str | None]]: ...
    @property
    def events(self) -> list[tuple[Any, int, Any]]: ...
    @property
    def unsent(self) -> list[tuple[Any, bytes | int]]: ...
    @property
    def fault(self) -> BaseException | None: ...

@final
class Sockets:
    """aerobee.remoting.native_loop.NativeSockets. On Linux alone."""

    def fileno(self) -> int: ...
    def wait(self, timeout_s: float) -> tuple[int, list[tuple[int, int]]]: ...
    def run(
        self,
        backend: Backend | None,
        timeout_s: float,
        *,
        turn_count_max: int,
        takes_sends: bool,
        takes_pulls: bool,
        now_ms: Callable[[], int] | None,
        loop_ready: Sized | None,
        loop_timers: list[Any] | None,
        linger_s: float = -1.0,
    ) -> SocketTurns: ...
    def add(self, descriptor: int, owner: object) -> int: ...
    def remove(self, token: int) -> None: ...
    def watch(self, token: int, reads: bool, writes: bool) -> None: ...
    def watch_other(self, descriptor: int, mask: int) -> None: ...
    def serve(self, token: int, connection: object, born_host: bytes, host: str | None = None) -> None: ...
    def stop_serving(self, token: int) -> bytes: ...
    def keeps(self, token: int) -> bool: ...
    def send(self, token: int, data: bytes) -> int: ...

@final
class RawAppender:
    def __init__(self, store: object) -> None: ...
    def append(self, physical_offset: int, data: bytearray | memoryview, begin: int) -> int: ...

@final
class RecordFilter:
    """A program of aerobee/broker/filter/program.py."""

    def __init__(self, program: object) -> None: ...
    def accepts(self, record: bytes) -> bool | None: ...

# --- the client's codec

@final
class UniqueIds:
    def __init__(
        self, prefix: str, counter: int, month_bounds_ms: Callable[[int], tuple[int, int]]
    ) -> None: ...
    def next_id(self, now_ms: int) -> str: ...

@final
class SendTemplate:
    def __init__(self, definition: object) -> None: ...
    def frame(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
    ) -> bytes: ...
    def begin(
        self, ids: Ids, opaque: int, queue_id: int, now_ms: int, message: Message
    ) -> tuple[bytes, str]: ...

@final
class SendReplies:
    def __init__(
        self, result: object, open_result: object, queue: object, statuses: dict[Any, Any]
    ) -> None: ...
    def __call__(self, connection: object, data: bytes | bytearray, position: int) -> int: ...

# --- gRPC's connections

@final
class Call:
    stream_id: int
    path: str
    metadata: dict[str, str]
    started: float
    deadline: float | None
    @property
    def is_half_closed(self) -> bool: ...
    @property
    def is_finishing(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    def remaining_s(self, now: float) -> float | None: ...

@final
class Http2Burst:
    @property
    def events(self) -> list[Event]: ...
    @property
    def stored_count(self) -> int: ...
    @property
    def fault(self) -> BaseException | None: ...
    @property
    def is_lost(self) -> bool: ...

@final
class Http2Connection:
    def __init__(
        self, limits: Http2Limits, now: float, message_bytes_max: Callable[[str], int] | None = None
    ) -> None: ...
    @property
    def calls(self) -> dict[int, Call]: ...
    @property
    def has_more(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def close_reason(self) -> str: ...
    @property
    def receiving_bytes(self) -> int: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def kept_bytes(self) -> int: ...
    def receive(self, data: bytes, now: float) -> list[Event]: ...
    def proceed(self, now: float) -> list[Event]: ...
    def serve(
        self, data: bytes, now: float, backend: Backend, born_host: bytes, now_ms: int, pick: int
    ) -> Http2Burst: ...
    def outgoing(self) -> bytes: ...
    def start_response(self, call: Call, *, may_idle: bool = False) -> None: ...
    def send_message(self, call: Call, data: bytes, now: float) -> bool: ...
    def finish(self, call: Call, status: int, message: str, now: float) -> None: ...
    def cancel(self, call: Call, reason: str) -> None: ...
    def due(self) -> float: ...
    def tick(self, now: float) -> list[Event]: ...
    def go_away(self, now: float) -> None: ...
    def lost(self, now: float, reason: str = ...) -> list[Event]: ...

@final
class ArrowRows:
    count: int
    size_bytes: int
    def __init__(self, topic: bytes, mask: int, wanted_tags: list[bytes]) -> None: ...
    def take(self, data: bytes, at: int, begin: int, end: int, offset_delta: int) -> int: ...
    def add(
        self,
        value: bytes,
        key: bytes | None,
        tags: bytes | None,
        msg_id: bytes,
        queue_offset: int,
        born_ts: int,
        store_ts: int,
        reconsume_times: int,
        properties: list[tuple[bytes, bytes]],
    ) -> None: ...
    def finish(self) -> list[Any]: ...

@final
class BatchEntries:
    count: int
    is_full: bool
    def __init__(
        self, rows_max: int, bytes_max: int, body_bytes_max: int, left_names: list[bytes]
    ) -> None: ...
    def take(
        self,
        ids: UniqueIds,
        now_ms: int,
        begin: int,
        end: int,
        value: tuple[Any, ...],
        key: tuple[Any, ...] | None,
        tags: tuple[Any, ...] | None,
        properties: tuple[Any, ...] | None,
    ) -> int: ...
    def finish(self) -> bytes: ...

def take_records(*arguments: Any) -> Any: ...
