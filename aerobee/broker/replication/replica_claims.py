"""Assigns connections at the HA port to the broker ids that they claim, in controller mode.

    connected  ->  claims an id  ->  the host is that broker's  ->  no living connection has the id  ->  represents the
    id

A slave does not prove its id, and the connection of a member of the sync state set acknowledges messages. So the claim
must come from the host that the controllers know, unless haSharedKey or a certificate has proven the peer, or
haAllowedHosts names the hosts. A second claim waits while the first connection is probed; it replaces the first
connection when the probe gets no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.replication.replica_hosts import ReplicaHosts
from aerobee.broker.replication.unproven_connections import SLAVES_MAX, one_too_many
from aerobee.clock import Clock
from aerobee.ordered_set import OrderedSet

if TYPE_CHECKING:
    from aerobee.broker.replication.auto_switch_slave_connection import AutoSwitchSlaveConnection

# Time for the first connection of an id to answer a probe when a second one claims the id from the same host.
# For a claim from another host the heartbeat interval is added, because a RocketMQ slave whose log does not
# grow answers no sooner.
ANSWER_S = 1.0


class ReplicaClaims:
    """The connections of one master. Belongs to the event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        own_id: Callable[[], int],
        heartbeat_s: Callable[[], float],
        hosts: ReplicaHosts | None,
        on_left: Callable[[AutoSwitchSlaveConnection], None],
    ) -> None:
        """`hosts` None: peers are proven otherwise. `on_left` is called when a connection no longer represents its
        id.
        """
        self.standing: OrderedSet[AutoSwitchSlaveConnection] = OrderedSet()
        self.others: OrderedSet[AutoSwitchSlaveConnection] = OrderedSet()  # said no id yet, or wait with it
        self._clock = clock
        self._own_id = own_id
        self._heartbeat_s = heartbeat_s
        self._hosts = hosts
        self._on_left = on_left
        self._unplaced: dict[
            AutoSwitchSlaveConnection, int
        ] = {}  # -> the answer of the controllers that they wait for
        if hosts is not None:
            hosts.on_news = self._hosts_known

    def connected(self, slave: AutoSwitchSlaveConnection) -> None:
        """A slave connected to the HA port. When too many connections have no id, one of them is closed."""
        self.others.add(slave)
        if len(self.others) > SLAVES_MAX:
            victim = one_too_many(self.others, lambda each: each.host)
            self.others.discard(victim)
            victim.end(f"{SLAVES_MAX} connections at the HA port have not said who they are")

    def claim(self, slave: AutoSwitchSlaveConnection) -> None:
        """The slave claims its id. The connection's admitted() or end() is called, now or later."""
        broker_id, hosts = slave.broker_id, self._hosts
        if broker_id == self._own_id():
            slave.end(f"it says that it is broker {broker_id}, which is this one")
        elif hosts is None or hosts.is_at(broker_id, slave.host):
            self._decide(slave)
        else:
            self._unplaced[slave] = hosts.want()

    def lost(self, slave: AutoSwitchSlaveConnection) -> None:
        """The connection is closed."""
        self.others.discard(slave)
        self._unplaced.pop(slave, None)
        if slave in self.standing:
            self.standing.discard(slave)
            self._on_left(slave)

    def end_all(self, reason: str) -> None:
        """Close every connection; on_left is not called."""
        ended = [*self.standing, *self.others]
        self.standing.clear()
        self.others.clear()
        self._unplaced.clear()
        for slave in ended:
            slave.end(reason)

    def _hosts_known(self) -> None:
        assert self._hosts is not None
        generation = self._hosts.generation
        for slave, awaited in list(self._unplaced.items()):
            if self._hosts.is_at(slave.broker_id, slave.host):
                del self._unplaced[slave]
                self._decide(slave)
            elif generation >= awaited:
                del self._unplaced[slave]
                slave.end(self._why_unrecognized(slave))

    def _why_unrecognized(self, slave: AutoSwitchSlaveConnection) -> str:
        assert self._hosts is not None
        known = self._hosts.known_hosts(slave.broker_id)
        where = f"at {known}" if known else "unknown"
        return (
            f"it says that it is broker {slave.broker_id}, which the controllers know {where}: with NAT or several addresses set "
            "haSharedKey at every broker, or haAllowedHosts"
        )

    def _decide(self, slave: AutoSwitchSlaveConnection) -> None:
        """The slave's host is verified. Accept its claim unless another live connection has the id."""
        first = next((each for each in self.standing if each.broker_id == slave.broker_id), None)
        if first is None:
            self._stand(slave)
            return
        wait_s = ANSWER_S + (0.0 if first.host == slave.host else self._heartbeat_s())
        first.probe()
        self._clock.call_later(wait_s, self._judge, slave, first, first.read_count)

    def _judge(
        self, slave: AutoSwitchSlaveConnection, first: AutoSwitchSlaveConnection, read_count: int
    ) -> None:
        if slave not in self.others:
            return
        if first not in self.standing:
            self._decide(slave)
        elif first.read_count != read_count:
            slave.end(f"broker {slave.broker_id} is connected from {first.address}, and answers there")
        else:
            self.standing.discard(first)
            first.end(f"it gave no answer, and its broker has connected again from {slave.address}")
            self._on_left(first)
            self._stand(slave)

    def _stand(self, slave: AutoSwitchSlaveConnection) -> None:
        if len(self.standing) >= SLAVES_MAX:
            slave.end(f"{SLAVES_MAX} slaves are connected at the HA port")
            return
        self.others.discard(slave)
        self.standing.add(slave)
        slave.admitted()
