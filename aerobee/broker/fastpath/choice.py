"""Selects the backend of the fast path: native (module aerobee_native, native/) or Python.

The native backend is used when it is installed and has this version of the interface. AEROBEE_FAST_PATH=python or
=native forces one (AEROBEE_LANE, its former name, is still read); a missing forced native backend is an error, because
the operator relies on its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from aerobee.broker.fastpath.exclusions import (
    excluded_from_delayed,
    excluded_from_half,
    excluded_from_options,
)
from aerobee.broker.fastpath.pop import MakePopRecords
from aerobee.broker.fastpath.seam import (
    FAST_PATH_VERSION,
    Backend,
    BackendSettings,
    DelaySettings,
    DeliveryBackend,
    OptionSettings,
    TransactionSettings,
)
from aerobee.errors import ConfigError
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.native_loop import NativeSockets
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.grpc.core import MakeHttp2

try:
    import aerobee_native
except ImportError:
    native: ModuleType | None = None
else:
    native = aerobee_native

VARIABLE, OLD_VARIABLE = "AEROBEE_FAST_PATH", "AEROBEE_LANE"
PYTHON, NATIVE = "python", "native"


class RawAppends(Protocol):
    """Appends the ordinary records at the start of a master's bytes: native code, which mirrors RawAppender.append of the store."""

    def append(self, physical_offset: int, data: bytearray | memoryview, begin: int) -> int:
        """Append the leading whole, ordinary records of `data[begin:]`; return their number of bytes, 0 when the first
        record is incomplete or needs the reference implementation. Raises the same errors as the reference
        implementation."""
        ...


class ReleasableRawAppends:
    """RawAppends that can be released: Python's garbage collection does not see native references, so a stopped broker
    would never be freed."""

    def __init__(self, native: RawAppends) -> None:
        self._native: RawAppends | None = native

    def append(self, physical_offset: int, data: bytearray | memoryview, begin: int) -> int:
        """As RawAppends; 0 after close()."""
        return 0 if self._native is None else self._native.append(physical_offset, data, begin)

    def close(self) -> None:
        """Release the broker."""
        self._native = None


class MakeBackend(Protocol):
    """Creates a backend; with `delayed`, `transactions` and `options` it serves these kinds, too."""

    def __call__(
        self,
        settings: BackendSettings,
        *,
        delayed: DelaySettings | None = None,
        transactions: TransactionSettings | None = None,
        options: OptionSettings | None = None,
    ) -> Backend: ...


class MakeDelivery(Protocol):
    """Creates the delivery of due messages."""

    def __call__(
        self,
        *,
        store: MessageStore,
        find_topic: Callable[[str], TopicConfig | None],
        store_host: bytes,
        waiting: Container[tuple[str, int]],
    ) -> DeliveryBackend: ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """`name` is "python" or "native", `why` is a short reason for the choice."""

    name: str
    why: str
    make: MakeBackend
    make_delivery: MakeDelivery
    make_sockets: Callable[[], NativeSockets] | None = None  # None: the event loop reads and writes
    make_pop_records: MakePopRecords | None = None  # None: pop/revive_log.py writes itself
    make_raw_appender: Callable[[MessageStore], RawAppends] | None = (
        None  # None: the store's RawAppender alone
    )
    make_http2: MakeHttp2 | None = None  # None: grpc/http2_connection.py


def wanted_backend(environment: Mapping[str, str]) -> str:
    """The backend requested by the environment; empty without a request."""
    return environment.get(VARIABLE, "") or environment.get(OLD_VARIABLE, "")


def choose_backend(wanted: str = "") -> BackendChoice:
    """Return the backend to use; `wanted` is as wanted_backend() says. Raises ConfigError for an unavailable one."""
    if wanted not in ("", PYTHON, NATIVE):
        raise ConfigError(f"{VARIABLE} is {wanted!r}: it must be {PYTHON}, {NATIVE} or empty")
    if wanted == PYTHON:
        return _python(f"{VARIABLE}={PYTHON}")
    missing = _what_is_missing(native)
    if not missing:
        why = f"{VARIABLE}={NATIVE}" if wanted else "the native module is installed"
        make_sockets = getattr(native, "Sockets", None)  # only Linux has them
        make_pop_records = getattr(native, "PopRecords", None)
        make_raw = getattr(native, "RawAppender", None)
        make_http2 = getattr(native, "Http2Connection", None)
        return BackendChoice(
            NATIVE,
            why,
            make_native,
            make_native_delivery,
            make_sockets,
            make_pop_records,
            make_raw,
            make_http2,
        )
    if wanted == NATIVE:
        raise ConfigError(
            f"{VARIABLE} is {NATIVE}, but {missing}; install a wheel of this platform, run `make native` in a checkout, or unset {VARIABLE}"
        )
    return _python(missing)


def _python(why: str) -> BackendChoice:
    # Loaded only if it serves: with the native backend it would cost memory and start time without use.
    from aerobee.broker.fastpath.delivery import PythonDelivery
    from aerobee.broker.fastpath.python_backend import PythonBackend

    return BackendChoice(PYTHON, why, PythonBackend, PythonDelivery)


def make_native(
    settings: BackendSettings,
    *,
    delayed: DelaySettings | None = None,
    transactions: TransactionSettings | None = None,
    options: OptionSettings | None = None,
) -> Backend:
    """Make the native backend."""
    special = settings.special_properties
    backend = aerobee_native.Backend(
        store=settings.store,
        find_topic=settings.find_topic,
        find_authorization=settings.find_authorization,
        store_host=settings.store_host,
        own_properties=settings.own_properties,
        reply_fields=settings.reply_fields,
        reply_ext=settings.reply_ext,
        waiting=settings.waiting,
        special_properties=special,
        supports_long_poll=settings.supports_long_poll,
        permits=memoryview(settings.permits).cast("B"),
        put_steps=memoryview(settings.put_steps).cast("B"),
        get_steps=memoryview(settings.get_steps).cast("B"),
        put_took=settings.put_took,
        get_took=settings.get_took,
        request_rows=memoryview(settings.request_rows).cast("B"),
        guard=None
        if settings.guard is None
        else (settings.guard.find_grant, list(settings.guard.fields.items())),
    )
    if delayed is not None:
        backend.serve_delayed(
            delayed.hooks,
            schedule_topic=delayed.schedule_topic,
            timer_topic=delayed.timer_topic,
            broker_name=delayed.broker_name,
            delays_ms=list(delayed.delays_ms),
            special_properties=excluded_from_delayed(special),
            send_backs=delayed.send_backs,
        )
    if transactions is not None:
        backend.serve_transactions(
            transactions.hooks,
            half_topic=transactions.half_topic,
            special_properties=excluded_from_half(special),
        )
    if options is not None:
        backend.serve_options(
            options.hooks,
            find_leveled=options.find_leveled,
            special_properties=excluded_from_options(special),
        )
    return backend


def make_native_delivery(
    *,
    store: MessageStore,
    find_topic: Callable[[str], TopicConfig | None],
    store_host: bytes,
    waiting: Container[tuple[str, int]],
) -> DeliveryBackend:
    """Make what delivers due messages natively."""
    return aerobee_native.DeliveryBackend(
        store=store, find_topic=find_topic, store_host=store_host, waiting=waiting
    )


def _what_is_missing(module: ModuleType | None) -> str:
    """Why the native backend cannot be used; empty when it can."""
    if module is None:
        return "this installation has no native module"
    # The number had another name before it was 7.
    version = getattr(module, "FAST_PATH_VERSION", getattr(module, "LANE_VERSION", 0))
    if version == FAST_PATH_VERSION:
        return ""
    compared = "newer" if version > FAST_PATH_VERSION else "older"
    return (
        f"the installed native module is {compared} than this Aerobee (fast path version {version or 'unknown'}, "
        f"{FAST_PATH_VERSION} is needed): install aerobee again, or run `make native` in a checkout"
    )
