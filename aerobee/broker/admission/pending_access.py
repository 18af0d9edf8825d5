"""Rechecks pending requests after a change of users or permissions: a request that its user may no longer make is
refused and receives no message.

A pending request was admitted by the permissions at its arrival. After each change all pending requests are rechecked,
in slices so that other requests are served in between; successive changes are handled by one pass. No message that was
stored after a change is delivered without a check: a request that completes before its slice is rechecked at its
completion. `changes` numbers the checks: each pending request carries the value at its admission.

Costs two number comparisons per pending request, and nothing without access control, because the object does not exist
then.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from aerobee.caller import Caller
from aerobee.clock import Clock, Timer
from aerobee.errors import RemoteError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

SLICE_COUNT = 100  # requests rechecked per event loop iteration: about 3 ms of signatures
PAUSE_S = 1.0  # minimum pause between two passes
PAUSE_FACTOR = 10  # minimum pause as a multiple of the duration of the last pass

RefusalOf = Callable[[Peer, RemotingCommand], RemoteError | None]


class Held(Protocol):
    """A pending request. `version` is PendingAccess.seen at its arrival, or .changes at its last check."""

    version: int

    @property
    def peer(self) -> Caller:
        """Who made it."""
        ...

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """Why it would not be let in now. `refusal_of` decides for requests of remoting, as their peer signed them."""
        ...

    def refuse(self, refusal: RemoteError) -> None:
        """Answer it as the gate answers a new one that it refuses."""
        ...


H = TypeVar("H", bound=Held)


class PendingTable(Protocol[H]):
    """A table of pending requests."""

    def everything(self) -> list[H]: ...

    def look_again(self, held: Sequence[H]) -> None:
        """End the pending requests that are no longer permitted; `held` is a part of everything()."""
        ...


class PendingAccess:
    """The rechecks of all pending requests. Belongs to the event loop, except `changed`."""

    def __init__(
        self,
        refusal_of: RefusalOf,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        call_from_thread: Callable[[Callable[[], None]], object],
    ) -> None:
        """`refusal_of` says why a request of remoting would not be let in now. `call_from_thread` is call_soon for any thread."""
        self._refusal_of = refusal_of
        self._clock = clock
        self._call_soon = call_soon
        self._call_from_thread = call_from_thread
        self._numbers = itertools.count(1)
        self._is_told = False  # the event loop was notified of a change
        self.changes = 0  # values are unique
        # `changes` as of this event loop iteration: requests admitted meanwhile have this value.
        self.seen = 0
        self._tables: list[PendingTable[Held]] = []
        self._left: list[tuple[PendingTable[Held], list[Held]]] = []
        self._looked = 0  # `changes` of the present or last pass
        self._is_looking = False
        self._is_stopped = False
        self._timer: Timer | None = None
        self._began = 0.0
        self._may_begin = 0.0

    def add(self, table: PendingTable[H]) -> None:
        """Include this table in each pass."""
        self._tables.append(table)  # type: ignore[arg-type]  # a table receives only its own entries

    def changed(self) -> None:
        """Users or permissions have changed. Callable from any thread."""
        self.changes = next(self._numbers)
        if not self._is_told:
            self._is_told = True
            try:
                self._call_from_thread(self._told)
            except RuntimeError:
                self._is_stopped = True  # the loop is closed, and no request waits

    def refusals(self, held: Sequence[H]) -> dict[H, RemoteError]:
        """The requests that are no longer permitted, with the reason; the others are marked as checked up to now."""
        found = {}
        for each in held:
            if each.version != self.changes and each.peer.is_open:
                version = self.changes  # first, so that a change during the pass triggers the next one
                try:
                    refusal = each.refusal_by(self._refusal_of)
                except Exception as error:
                    each.peer.failed(error)  # whether it may be answered is unknown
                    continue
                if refusal is not None:
                    found[each] = refusal
                else:
                    each.version = version
        return found

    def require(self, peer: Peer, request: RemotingCommand, version: int) -> None:
        """Recheck a request that was admitted at `version` and has waited for the disk. Raises RemoteError."""
        self.require_held(lambda refusal_of: refusal_of(peer, request), version)

    def require_held(self, refusal_by: Callable[[RefusalOf], RemoteError | None], version: int) -> None:
        """As require(), of any protocol: `refusal_by` is Held.refusal_by."""
        if version != self.changes:
            refusal = refusal_by(self._refusal_of)
            if refusal is not None:
                raise refusal

    def stop(self) -> None:
        """The broker stops: pending requests are rechecked only at their completion."""
        self._is_stopped = True
        self._left.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _told(self) -> None:
        self._is_told = False  # first: a change from now on schedules another look
        self.seen = self.changes
        if not self._is_looking and not self._is_stopped:
            self._is_looking = True
            wait_s = self._may_begin - self._clock.monotonic()
            if wait_s > 0:
                self._timer = self._clock.call_later(wait_s, self._begin)
            else:
                self._begin()

    def _begin(self) -> None:
        self._timer = None
        self._began = self._clock.monotonic()
        self._looked = self.changes
        self._left = [(table, table.everything()) for table in self._tables]
        self._look_on()

    def _look_on(self) -> None:
        """Check the next slice."""
        while self._left:
            table, held = self._left[-1]
            if held:
                some = held[-SLICE_COUNT:]
                del held[-SLICE_COUNT:]
                try:
                    table.look_again(some)
                except Exception:
                    # The other tables must be checked nevertheless, now and after the next change. This
                    # table's requests are rechecked at their completion.
                    log.exception(
                        "%d pending requests were not rechecked after a change of permissions", len(some)
                    )
                self._call_soon(self._look_on)
                return
            self._left.pop()
        self._is_looking = False
        now = self._clock.monotonic()
        self._may_begin = now + max(PAUSE_S, PAUSE_FACTOR * (now - self._began))
        if self.changes != self._looked:
            self._told()
