"""Interface of the two modes of replication: classic (classic_mode.py), and controller mode.

Replication (replication.py) owns the HA port, the roles and the tasks. A mode defines the protocol: it creates the
protocol of a slave's connection to this broker, and follows a master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aerobee.broker.admission.ack import Shortage


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterAddress:
    """Addresses of a slave's master: `ha` is "host:port" of its HA port, `broker` that of its requests, "" if
    unknown.
    """

    ha: str
    broker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One slave as its master sees it. Offsets are physical offsets of the log."""

    address: str  # address of its end of the connection
    acknowledged: int  # it has acknowledged the log up to here
    sent: int
    is_in_sync: bool
    caught_up_at_s: float  # monotonic time at which it last had the whole log; negative: never
    bytes_per_s: int = 0
    broker_id: int = -1  # -1: classic slaves do not send it
    why_not: str = ""  # why it is not in sync, a clause without a full stop; "" when it is


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowState:
    """A slave's view of its master."""

    master: MasterAddress
    is_connected: bool
    master_end: int  # the known end of the master's log
    last_read_s: float  # monotonic time of the last bytes from it; negative: none yet
    last_write_s: float
    bytes_per_s: int = 0
    trouble: str = ""  # why it does not follow, a clause without a full stop


class HaMode(Protocol):
    """A mode of replication. Belongs to the event loop."""

    def become_master(self, epoch: int) -> None:
        """This broker becomes master: the log may be written, and slaves are served."""
        ...

    def become_slave(self) -> None:
        """This broker is no longer master: close the connections of slaves, and answer appends that wait for replicas."""
        ...

    def slave_connection(self) -> asyncio.Protocol:
        """The protocol of one connection that a slave has opened at the HA port."""
        ...

    def on_appended(self) -> None:
        """The log has grown: called once per burst of appends. Must be cheap and must not raise."""
        ...

    def settings_changed(self) -> None:
        """The store's settings have changed: appends that wait for replicas may be safe now."""
        ...

    async def follow(self, master: MasterAddress) -> None:
        """Copy a master's log until cancelled, connecting again as often as needed."""
        ...

    def replicas(self) -> list[ReplicaState]:
        """The connected slaves."""
        ...

    @property
    def has_replicas(self) -> bool:
        """Whether any slave is connected; cheap."""
        ...

    @property
    def members(self) -> frozenset[int]:
        """The sync state set of a master in controller mode, this broker included; else empty."""
        ...

    def following(self) -> FollowState | None:
        """A slave's view of its master; None at a master, or without a known master."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a master acknowledges appends only when enough replicas have them."""
        ...

    @property
    def may_answer(self) -> Callable[[], bool] | None:
        """Whether this broker is surely still the master of this term, checked before an append that only this broker
        is known to have is acknowledged; None: no lease limits it."""
        ...

    @property
    def guards(self) -> bool:
        """Whether a master must check `shortage`."""
        ...

    @property
    def shortage(self) -> Shortage | None:
        """Reason why a message must not be written; None with enough replicas, and a valid lease if there are leases."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
