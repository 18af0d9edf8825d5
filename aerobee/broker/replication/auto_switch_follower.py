"""A slave's half of controller mode's replication (AutoSwitchHAClient of RocketMQ).

States of a connection:

    HANDSHAKE  this broker's id; the master answers with its epochs and its log's end
    CUT        this log is truncated at the last point that the epochs share; the removed bytes are kept in a file
    FOLLOW     bytes are appended as they arrive, an epoch is on disk before its first byte, every frame is answered
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aerobee.broker.fastpath.choice import RawAppends
from aerobee.broker.replication.controller_files import Epochs
from aerobee.broker.replication.follower import (
    FIRST_RETRY_S,
    CannotFollow,
    Follower,
    MasterConnection,
)
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.ha.stream.epoch_file import common_point, parted_at_first_byte
from aerobee.ha.stream.handshake import Handshake, HandshakeReply, MasterStream
from aerobee.ha.stream.transfer_header import StateReport, TransferFrame
from aerobee.network import Network
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)


class _AutoSwitchConnection(MasterConnection):
    """One connection to a master in controller mode. `greeted` holds the master's handshake."""

    def __init__(self, owner: AutoSwitchFollower, handshake: Handshake) -> None:
        super().__init__(owner)
        self.greeted: asyncio.Future[HandshakeReply] = asyncio.get_running_loop().create_future()
        self._follower = owner
        self._handshake = handshake
        self._stream = MasterStream()

    def _greet(self, transport: asyncio.Transport) -> None:
        transport.write(self._handshake.encode())

    def _encode_report(self, offset: int) -> bytes:
        return StateReport(offset).encode()

    def _read(self, data: bytes | memoryview) -> None:
        self._stream.feed(data)
        while (frame := self._stream.next_frame()) is not None and not self.closed.done():
            if isinstance(frame, HandshakeReply):
                if not self.greeted.done():
                    self.greeted.set_result(frame)
            elif self.greeted.done():
                self._follower.on_frame(self, frame)
            else:
                raise MalformedFrame("a frame arrived before the handshake")

    def _space(self) -> memoryview | None:
        large = self._stream.large
        return self._follower.space(self, large.offset, large.left) if large.left and large.is_begun else None

    def _on_space_filled(self, count: int) -> None:
        self._stream.large.passed(count)
        self._follower.on_space_filled(self, count)

    def end(self, error: BaseException | None) -> None:
        super().end(error)
        if not self.greeted.done():
            self.greeted.set_exception(error or ConnectionResetError("the connection is closed"))
            self.greeted.exception()  # as in MasterConnection.end


class AutoSwitchFollower(Follower):
    """Follows one master at a time, in controller mode. Belongs to the event loop."""

    _first_retry_s = FIRST_RETRY_S

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        network: Network,
        epochs: Epochs,
        broker_id: Callable[[], int],
        master_epoch: Callable[[], int],
        finish_cut: Callable[[], Awaitable[None]],
        native: RawAppends | None = None,
    ) -> None:
        """`master_epoch`: the newest epoch from the controllers; a broker that has not started it is not the master.

        `finish_cut` does a cut's steps outside the log, before anything else is appended.
        """
        super().__init__(store=store, clock=clock, network=network)
        self.confirm_offset = 0  # the master's confirm offset, limited to the end of this log
        self._masters_confirm_offset = 0  # of the newest frame
        self._epochs = epochs
        self._broker_id = broker_id
        self._master_epoch = master_epoch
        self._finish_cut = finish_cut
        self._native = native
        self._receiver = RawReceiver(store, native=native)
        self._is_following = False
        self._greeted_epoch = (
            -1
        )  # the newest epoch of the master's handshake; the master starts a new epoch with new connections

    @property
    def _is_copying(self) -> bool:
        return self._is_following

    def stop_now(self) -> None:
        """Append nothing more from now on: this broker becomes a master. The owner cancels run()."""
        self._is_stopped = True
        self._is_following = False
        self._disconnect(self._connection)

    async def _follow(self) -> None:
        await self._finish_cut()  # a truncation that an earlier run began, or that was cancelled
        await self._durable()
        config = self._store.config
        handshake = Handshake(
            broker_id=self._broker_id(),
            is_sync_from_last_file=config.sync_from_last_file,
            is_async_learner=config.async_learner,
        )
        connection = _AutoSwitchConnection(self, handshake)
        try:
            await self._connect(connection)
            async with asyncio.timeout(config.ha_housekeeping_interval / 1000):
                greeting = await connection.greeted
            await self._align(greeting)
            if self._is_stopped:
                return
            self._receiver = RawReceiver(self._store, native=self._native)
            self._is_following = True
            self._acknowledge(connection)
            self._watch(connection)
            await connection.closed
        finally:
            if connection is self._connection:
                self._is_following = False
            self._disconnect(connection)

    async def _align(self, greeting: HandshakeReply) -> None:
        """Truncate this log to its common part with the master's."""
        last_epoch = greeting.entries[-1].epoch if greeting.entries else -1
        if last_epoch < self._master_epoch():
            # A former master, or another broker at this address: bytes that it lacks may be confirmed.
            raise CannotFollow(
                f"the broker at {self._master.ha} is in epoch {last_epoch}, and the controllers' master in {self._master_epoch()}"
            )
        if last_epoch > self._master_epoch():
            # If it were kept, an epoch that the controllers never assigned would exceed all assigned ones,
            # and this broker could not lead.
            raise CannotFollow(
                f"the broker at {self._master.ha} reports epoch {last_epoch}, and the controllers have assigned "
                f"{self._master_epoch()}"
            )
        self._master_end, self._greeted_epoch = greeting.max_offset, last_epoch
        store_log, epochs = self._store.log, self._epochs
        epochs.follow_log(store_log.min_offset, store_log.end)
        end = store_log.end
        if not store_log.segments or end == store_log.min_offset == 0:
            if parted_at_first_byte(epochs.entries, greeting.entries):
                epochs.clear()  # epochs of a log that was truncated to 0 before a kill
            return
        point = common_point(epochs.entries, end, greeting.entries, greeting.max_offset)
        if (
            point is None
            and store_log.min_offset == 0
            and parted_at_first_byte(epochs.entries, greeting.entries)
        ):
            # No replica copied the first byte of this log, and so nothing of it was confirmed.
            await self._cut(0, f"was written in epoch {epochs.entries[0].epoch} alone")
            epochs.clear()
            await self._finish_cut()
            return
        if point is None:
            raise CannotFollow(
                f"this log shares no epoch with that of the master at {self._master.ha}. Move "
                "the store of this broker away if that is its master; an empty store starts at "
                "the beginning of the master's log"
            )
        if point.offset < store_log.min_offset:
            raise CannotFollow(
                f"this log begins at {store_log.min_offset}, and shares only what is before {point.offset} with the master's. "
                "Move the store of this broker away"
            )
        if point.offset < end:
            await self._cut(point.offset, f"parted from the master's in epoch {point.epoch}")
        # After the truncation: epochs without their bytes are harmless, bytes without their epochs are not.
        epochs.cut(point)
        await self._finish_cut()

    async def _cut(self, start: int, what: str) -> None:
        await super()._cut(start, what)
        self.confirm_offset = min(self.confirm_offset, start)

    # --- received bytes

    def space(self, connection: _AutoSwitchConnection, offset: int, size: int) -> memoryview | None:
        """Where bytes of a frame whose beginning on_frame() has accepted may be written; None when nothing may."""
        if not self._is_following or connection is not self._connection or offset != self._receiver.received:
            return None
        return self._receiver.space(size)

    def on_space_filled(self, connection: _AutoSwitchConnection, count: int) -> None:
        """`count` log bytes have been written into space(). Raises WireError, StoreError."""
        self._master_end = max(self._master_end, self._receiver.received + count)
        if self._receiver.grew(count):
            self._confirm()
            self._acknowledge(connection)

    def on_frame(self, connection: _AutoSwitchConnection, frame: TransferFrame) -> None:
        """Log bytes, or a heartbeat. Raises WireError, StoreError."""
        if not self._is_following or connection is not self._connection:
            return
        body, receiver = frame.body, self._receiver
        if body and frame.epoch > self._greeted_epoch:
            raise MalformedFrame(
                f"bytes of epoch {frame.epoch} came, the handshake ended with {self._greeted_epoch}"
            )
        if receiver.received == 0 and frame.offset and not self._store.log.segments:
            receiver.begin_at(frame.offset)
        if frame.epoch < self._epochs.last_epoch and body:
            found = self._epochs.at(frame.offset)
            if found is None or found[0].epoch != frame.epoch:
                raise MalformedFrame(
                    f"the bytes at offset {frame.offset} are of epoch {frame.epoch}, this log is in epoch {self._epochs.last_epoch}"
                )
        if body and frame.epoch > self._epochs.last_epoch:
            if frame.offset != receiver.received or not 0 <= frame.epoch_start_offset <= frame.offset:
                raise MalformedFrame(
                    f"the first bytes of epoch {frame.epoch}, which starts at offset {frame.epoch_start_offset}, are those "
                    f"of offset {frame.offset}; expected offset {receiver.received}"
                )
            self._epochs.begin(frame.epoch, frame.epoch_start_offset)
        self._master_end = max(self._master_end, frame.offset + len(body))
        if body:
            receiver.take(frame.offset, body)
            self._trouble = ""
        self._masters_confirm_offset = frame.confirm_offset
        self._confirm()
        self._acknowledge(connection)

    def _confirm(self) -> None:
        self.confirm_offset = max(self.confirm_offset, min(self._masters_confirm_offset, self._store.log.end))
        self._store.durability.confirm(self.confirm_offset)
