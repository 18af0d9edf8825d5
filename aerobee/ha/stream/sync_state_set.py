"""The sync state set of this master, and its confirm offset. Core; each mastership has a new object.

Follows AutoSwitchHAService of RocketMQ. The set is the controller's: the master asks for a change and acts by the
answer. Invariants, whose violation lost messages in RocketMQ:

- Every member of the set has everything up to the confirm offset. The master requests a replica's admission only when
  the replica has these bytes, including the first bytes that this master wrote; from then on it counts, whatever the
  result of the request.
- While a change is requested, both sets count. An answer that was lost may have been a yes, and may become one later: the
  requested set counts until the controller names a newer set, because a request with an older set's epoch is refused then.
  If no other change brings a newer set, the master requests the present one with a new epoch.
- The confirm offset never goes back.
- A member that reports less than the confirm offset has lost data: the master removes it immediately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CATCH_UP_MS_MAX = 15_000  # haMaxTimeSlaveNotCatchup


@dataclass(slots=True)
class Replica:
    """A connected slave: the end of its log, and the time since which it lags."""

    offset: int
    caught_up_ms: float
    is_learner: bool
    end_when_reported: int  # this master's end at the last report
    reported_ms: float


class SyncStateSet:
    """The members of the set, the connected replicas, and the confirm offset."""

    def __init__(
        self,
        own_id: int,
        *,
        members: Iterable[int],
        set_epoch: int,
        epoch_start_offset: int,
        confirm_offset: int,
        needs_all: bool = False,
        catch_up_ms_max: float = CATCH_UP_MS_MAX,
    ) -> None:
        """`needs_all` is allAckInSyncStateSet: without it the confirm offset is the end of this master's log, as in
        RocketMQ.
        """
        self.own_id = own_id
        self.members = frozenset(members) | {own_id}
        self.set_epoch = set_epoch
        self.confirm_offset = confirm_offset
        self._asked: frozenset[int] | None = None  # an answer is due
        self._unanswered: frozenset[int] = frozenset()  # requested, with an unknown outcome
        self._replicas: dict[int, Replica] = {}
        self._epoch_start_offset = epoch_start_offset
        self._needs_all = needs_all
        self._catch_up_ms_max = catch_up_ms_max

    def set_needs_all(self, needs_all: bool) -> None:
        """Wait for every member from now on, or for none. The confirm offset never goes back."""
        self._needs_all = needs_all

    @property
    def counted(self) -> frozenset[int]:
        """The replicas whose reports the confirm offset waits for."""
        return self.members | self._unanswered | (self._asked or frozenset())

    def report(
        self,
        broker_id: int,
        offset: int,
        *,
        own_end: int,
        now_ms: float,
        is_learner: bool = False,
        may_confirm: bool = True,
    ) -> None:
        """A slave has everything before `offset`; this master's log ends at `own_end`.

        `may_confirm` false: another broker may be master, so the confirm offset, which slaves receive, stays.
        """
        replica = self._replicas.get(broker_id)
        if replica is None:
            replica = Replica(offset, now_ms, is_learner, own_end, now_ms)
            self._replicas[broker_id] = replica
        if offset >= own_end:
            replica.caught_up_ms = now_ms
        elif offset >= replica.end_when_reported:
            # The replica has all bytes that the log had at its last report, so it lags by less than the time
            # since then.
            replica.caught_up_ms = max(replica.caught_up_ms, replica.reported_ms)
        replica.offset = offset
        replica.end_when_reported, replica.reported_ms = own_end, now_ms
        if may_confirm:
            self.advance(own_end)

    def left(self, broker_id: int) -> None:
        """A slave's connection is gone. Its position is unknown until it reports again."""
        self._replicas.pop(broker_id, None)

    def advance(self, own_end: int) -> int:
        """The confirm offset, now that this master's log ends at `own_end`. The confirm offset does not advance while a
        member is away.
        """
        others = self.counted - {self.own_id}
        if self._needs_all and others:
            reports = [self._replicas[each].offset for each in others if each in self._replicas]
            if len(reports) < len(others):
                return self.confirm_offset
            own_end = min(own_end, *reports)
        self.confirm_offset = max(self.confirm_offset, own_end)
        return self.confirm_offset

    def copied(self, own_end: int, copies: int) -> int:
        """The offset up to which all counted replicas have the log, which must be at least `copies`, including this
        master. 0 while fewer are connected.
        """
        others = self.counted - {self.own_id}
        reports = [self._replicas[each].offset for each in others if each in self._replicas]
        if len(reports) < len(others) or len(reports) + 1 < copies:
            return 0
        return min(own_end, *reports) if reports else own_end

    def wanted(self, now_ms: float, *, may_renew: bool = False) -> frozenset[int] | None:
        """The set to ask the controller for; None when it is right as it is, or an answer is due.

        `may_renew`: the controllers give the present set a new epoch. The set is requested while replicas outside of it
        are counted because a request for them was not answered: a disconnected one would block the confirm offset until
        it returns.
        """
        if self._asked is not None:
            return None
        wanted = {self.own_id}
        for broker_id, replica in self._replicas.items():
            if replica.is_learner or now_ms - replica.caught_up_ms > self._catch_up_ms_max:
                continue
            if broker_id in self.members:
                # Without needs_all the confirm offset runs ahead of members that are a moment behind.
                has_lost = self._needs_all and replica.offset < self.confirm_offset
                if not has_lost:
                    wanted.add(broker_id)
            elif replica.offset >= max(self.confirm_offset, self._epoch_start_offset):
                wanted.add(broker_id)
        may_be_granted = may_renew and not self._unanswered <= self.members
        return frozenset(wanted) if wanted != self.members or may_be_granted else None

    def ask(self, members: frozenset[int]) -> None:
        """This set is being requested: from now on both count."""
        self._asked = members | {self.own_id}

    def unanswered(self) -> None:
        """No answer came. The request may still be granted, so the requested set still counts."""
        self._unanswered |= self._asked or frozenset()
        self._asked = None

    def refused(self) -> None:
        """The controller refused, so this request has ended."""
        self._asked = None

    def learned(self, members: Iterable[int], set_epoch: int) -> None:
        """The controller's yes, or news from it. A set of an epoch that is known already changes nothing."""
        if set_epoch <= self.set_epoch:
            return
        self.members, self.set_epoch = frozenset(members) | {self.own_id}, set_epoch
        self._asked, self._unanswered = None, frozenset()
