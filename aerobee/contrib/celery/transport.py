"""Kombu's transport `aerobee://`: connections over a ClusterLink, and delivery without polling.

drain_events() sleeps until a message is here. In a worker's event loop the transport registers one descriptor, which is
readable when there is something to deliver.
"""

from __future__ import annotations

import contextlib
import socket
import time
from importlib.metadata import version
from typing import Any

from kombu.transport import virtual
from kombu.utils.compat import detect_environment
from kombu.utils.url import url_to_parts

from aerobee.contrib.celery.channel import Channel
from aerobee.contrib.celery.cluster_link import ClusterLink, acquire, release
from aerobee.contrib.celery.settings import DEFAULT_PORT, Settings, read_settings
from aerobee.contrib.celery.transient_queue import TransientQueue
from aerobee.contrib.wakeup import Wakeup
from aerobee.errors import (
    AerobeeError,
    NoBroker,
    RemoteSystemError,
    RouteError,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    TransportError,
    UsageError,
)

# Messages that one wake-up of a worker's event loop delivers before timers and other descriptors get their turn.
DELIVER_MAX = 100


class Transport(virtual.Transport):
    """A connection to a cluster. Connections of one process to one cluster share their clients."""

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "aerobee"
    driver_name = "aerobee"
    uses_tls = False
    polling_interval = None
    # The call may succeed later, or at another broker.
    connection_errors = (
        *virtual.Transport.connection_errors,
        TransportError,
        RouteError,
        NoBroker,
        SendFailed,
        ServiceNotAvailable,
        SystemBusy,
        RemoteSystemError,
    )
    channel_errors = (*virtual.Transport.channel_errors, AerobeeError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.settings: Settings = _settings_of(client, uses_tls=self.uses_tls)
        self.wakeup = Wakeup()
        self.transient: dict[str, TransientQueue] = {}
        self.levels: dict[str, int] = {}  # number of priorities of each declared durable queue
        self._link: ClusterLink | None = None
        self._loop: Any = None

    @property
    def link(self) -> ClusterLink:
        """The open link. Raises UsageError before establish_connection()."""
        if self._link is None:
            raise UsageError("this transport is not connected")
        return self._link

    def driver_version(self) -> str:
        return version("aerobee")

    def establish_connection(self) -> Transport:
        """Connect to a NameServer. Raises ConnectFailed when none answers."""
        if detect_environment() != "default":
            raise UsageError(
                "the transport aerobee:// runs in threads, not in greenlets: start the worker with --pool=prefork, threads "
                "or solo instead of gevent or eventlet"
            )
        if self._link is None:
            self._link = acquire(self.settings)
        super().establish_connection()
        return self

    def verify_connection(self, connection: Any) -> bool:
        """False in a forked child, which then connects again."""
        return self._link is not None and self._link.is_open

    def close_connection(self, connection: Any) -> None:
        """Close the channels, then the link when no other connection uses it."""
        link = self._link
        if link is None or not link.is_open:  # never opened, or of the parent of this process
            super().close_connection(connection)
            self._link = self._loop = None
            self.wakeup = Wakeup()
            return
        self._leave_loop()
        try:
            super().close_connection(connection)
        finally:
            self._link = None
            self.wakeup.close()
            release(link)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for a message and deliver it, with those that are here already. Raises socket.timeout without one.

        `timeout`: seconds, None: no limit, 0: do not wait.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self.wakeup.count
            if self._deliver_ready():
                return
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise socket.timeout(f"no message within {timeout:g} s")  # noqa: UP041 - Kombu's name for it
            self.wakeup.wait(seen, left_s)

    def _deliver_ready(self) -> int:
        """Deliver what is here and allowed by the prefetch counts, at most DELIVER_MAX; returns how many."""
        done, progress = 0, True
        while progress and done < DELIVER_MAX:
            progress = False
            for channel in tuple(self.channels):
                if channel.deliver_next():
                    done += 1
                    progress = True
        return done

    # a worker's event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver in Kombu's Hub whenever a message is here."""
        self._leave_loop()
        self._loop = loop
        loop.add_reader(self.wakeup.fileno(), self.on_readable, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo register_with_event_loop()."""
        self._leave_loop()

    def on_readable(self, loop: Any) -> None:
        """Called by the Hub: a message is here, or the prefetch count allows another one."""
        self.wakeup.clear()
        if self._deliver_ready() >= DELIVER_MAX:
            self.wakeup.notify()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(
                KeyError, ValueError, OSError
            ):  # the Hub was reset, and has forgotten it
                loop.remove(self.wakeup.fileno())


class TlsTransport(Transport):
    """`aerobees://`: TLS, with the system's authorities unless `broker_use_ssl` names others."""

    uses_tls = True


def _settings_of(client: Any, *, uses_tls: bool) -> Settings:
    hosts: list[tuple[str | None, int | None]] = [(client.hostname, client.port)]
    for url in client.alt or ():
        parts = url_to_parts(url if "://" in url else f"aerobee://{url}")
        hosts.append((parts.hostname, parts.port))
    return read_settings(
        hosts=hosts,
        access_key=client.userid,
        secret_key=client.password,
        virtual_host=client.virtual_host or "/",
        ssl_options=client.ssl or uses_tls,
        options=client.transport_options,
    )
