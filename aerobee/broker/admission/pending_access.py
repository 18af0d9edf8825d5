"""Pending requests when users or permissions change: one that its user may not make any more is refused, and gets no message.

What waits was let in by what held when it came. Behind each change all that wait are looked at again, a slice at a time so that
others have their turn in between, and changes that follow each other are looked at together. No message goes out that was stored
behind a change: a request that leaves before its turn, for whatever reason, is looked at on its way out. `changes` tells what has
been looked at: each pending request carries its value of when the gate let it in.

Costs two comparisons of numbers a pending request, and nothing where access control is off, for then there is none of it.
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

SLICE_COUNT = 100  # looked at in one pass of the loop: about 3 ms of signatures
PAUSE_S = 1.0  # from one look at all of them to the next, at least
PAUSE_FACTOR = 10  # and so many times as long as it took

RefusalOf = Callable[[Peer, RemotingCommand], RemoteError | None]


class Held(Protocol):
    """A request that waits. `version` is PendingAccess.seen of when it came, or .changes of its last look."""

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
    """Where requests wait."""

    def everything(self) -> list[H]: ...

    def look_again(self, held: Sequence[H]) -> None:
        """End those that still wait and may not; `held` is some of everything()."""
        ...


class PendingAccess:
    """Belongs to the event loop, but for `changed`."""

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
        self._is_told = False  # the loop knows, or will, that there was a change
        self.changes = 0  # no value comes twice
        self.seen = 0  # `changes` as of this pass of the loop: what the gate lets in meanwhile is no newer
        self._tables: list[PendingTable[Held]] = []
        self._left: list[tuple[PendingTable[Held], list[Held]]] = []
        self._looked = 0  # `changes` of the look at all of them that is under way, or was the last
        self._is_looking = False
        self._is_stopped = False
        self._timer: Timer | None = None
        self._began = 0.0
        self._may_begin = 0.0

    def add(self, table: PendingTable[H]) -> None:
        """Look at these, too."""
        self._tables.append(table)  # type: ignore[arg-type]  # it gets back what it gave

    def changed(self) -> None:
        """Users or permissions are others from now on. From any thread."""
        self.changes = next(self._numbers)
        if not self._is_told:
            self._is_told = True
            try:
                self._call_from_thread(self._told)
            except RuntimeError:
                self._is_stopped = True  # the loop is closed, and no request waits

    def refusals(self, held: Sequence[H]) -> dict[H, RemoteError]:
        """Those that may not be made any more, and why; the others pass for what has changed until now."""
        found = {}
        for each in held:
            if each.version != self.changes and each.peer.is_open:
                version = self.changes  # first: what changes during the look is for the next one
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
        """Look again at a request that was let in at `version` and has waited for the disk. Raises RemoteError."""
        self.require_held(lambda refusal_of: refusal_of(peer, request), version)

    def require_held(self, refusal_by: Callable[[RefusalOf], RemoteError | None], version: int) -> None:
        """As require(), of any protocol: `refusal_by` is Held.refusal_by."""
        if version != self.changes:
            refusal = refusal_by(self._refusal_of)
            if refusal is not None:
                raise refusal

    def stop(self) -> None:
        """The broker stops: what waits is looked at on its way out alone."""
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
        """Look at the next slice."""
        while self._left:
            table, held = self._left[-1]
            if held:
                some = held[-SLICE_COUNT:]
                del held[-SLICE_COUNT:]
                try:
                    table.look_again(some)
                except Exception:
                    # The others must be looked at all the same, now and after the next change. These are on their way out.
                    log.exception(
                        "%d pending requests were not looked at after a change of permissions", len(some)
                    )
                self._call_soon(self._look_on)
                return
            self._left.pop()
        self._is_looking = False
        now = self._clock.monotonic()
        self._may_begin = now + max(PAUSE_S, PAUSE_FACTOR * (now - self._began))
        if self.changes != self._looked:
            self._told()
