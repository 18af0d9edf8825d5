"""What the followers of both modes have in common: how they tell how they are, and the reports and housekeeping of a connection."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Protocol

from aerobee.broker.replication.byte_rate import ByteRate
from aerobee.broker.replication.ha_mode import FollowState, MasterAddress
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, StoreError
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
RETRY_S = 1.0  # RocketMQ: 5 s
# The first time that a master of a new epoch is tried again, then twice as long each time: slaves hear of it at the moment at which it
# does, and one that came too early must not be missing in the sync state set, should this master die as well.
FIRST_RETRY_S = 0.1
CONNECT_TIMEOUT_S = 3.0


class CannotFollow(AerobeeError):
    """This log cannot be brought to the master's by itself: the reason says what to do."""


def why(error: Exception) -> str:
    """Why a master is not followed."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no connection, with its TLS handshake if there is one, within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


class FollowedConnection(Protocol):
    """A connection to a master."""

    def report(self, offset: int) -> None: ...
    def end(self, error: BaseException) -> None: ...


class Follower(ABC):
    """The common half of ClassicFollower and AutoSwitchFollower. Belongs to the event loop."""

    def __init__(self, *, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._master = MasterAddress(ha="")
        self._master_end = 0
        self._last_read_s = -1.0
        self._last_write_s = -1.0
        self._rate = ByteRate(clock.monotonic(), store.log.end)
        self._trouble = ""
        self._timer: Timer | None = None

    def state(self) -> FollowState:
        """What is known of the master now."""
        return FollowState(
            master=self._master,
            is_connected=self._is_copying,
            master_end=self._master_end,
            last_read_s=self._last_read_s,
            last_write_s=self._last_write_s,
            bytes_per_s=self._rate.look(self._clock.monotonic(), self._store.log.end),
            trouble=self._trouble,
        )

    def on_read(self) -> None:
        """Bytes of the master came."""
        self._last_read_s = self._clock.monotonic()

    def on_write(self) -> None:
        """Something was sent to the master."""
        self._last_write_s = self._clock.monotonic()

    @property
    @abstractmethod
    def _is_copying(self) -> bool:
        """Whether a connection is open, and what comes is appended."""

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the master at %s is not followed: %s; trying again", self._master.ha, trouble)

    async def _durable(self) -> None:
        """With sync flush wait until the disk has the log: the first report says how far it goes."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(ok: bool) -> None:
            if not future.done():
                future.set_result(ok)

        self._store.wait_durable(self._store.log.end, done)
        if not await future:
            raise StoreError(self._store.writability.reason or "the store failed")

    def _acknowledge(self, connection: FollowedConnection) -> None:
        """Report what is here; with sync flush what is on the disk, when it is."""
        store = self._store
        if not store.holds_answers:
            connection.report(store.log.end)
            return
        store.wait_durable(store.log.end, lambda ok: connection.report(store.flushed.value) if ok else None)

    def _watch(self, connection: FollowedConnection) -> None:
        """Reports without bytes, and housekeeping, until _stop_watching()."""
        store, now = self._store, self._clock.monotonic()
        config = store.config
        self._rate.look(now, store.log.end)
        silent_s = now - self._last_read_s
        if silent_s > config.ha_housekeeping_interval / 1000:
            connection.end(
                TimeoutError(f"nothing came from it for {silent_s:.0f} s (haHousekeepingInterval)")
            )
            return
        if now - self._last_write_s >= config.ha_send_heartbeat_interval / 1000:
            # Never what consumers may see: a report below one before would say that something was lost.
            # While nothing is known to be the master's, 0 acknowledges nothing.
            kept = store.flushed.value if store.holds_answers else store.log.end
            connection.report(kept if self._is_copying else 0)
        shortest_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval, 4_000)
        self._timer = self._clock.call_later(shortest_ms / 4000, self._watch, connection)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
