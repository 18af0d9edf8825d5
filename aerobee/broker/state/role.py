"""The broker's role: the one object that all parts read, which notifies parts that cache it.

A broker starts as its configuration says: with id 0 and another brokerRole than SLAVE it is a master. Replication changes the
role while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.remoting.protocol import MASTER_ID
from aerobee.store.files.config import BrokerRole

_logger = logging.getLogger(__name__)


class Role(Enum):
    """MASTER takes and serves everything. SLAVE copies a master and serves reads. ACTING is a slave without a master
    that serves a master's requests but accepts no messages from clients (RocketMQ's acting master). FENCED was a
    master: another one has taken over, or that is unknown; it neither takes nor decides anything.
    """

    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting master"
    FENCED = "fenced"


class RoleState:
    """The role now, with the epoch in which it began, and the reason in words. Belongs to the event loop."""

    def __init__(self, role: Role, reason: str, *, epoch: int = 0, is_provisional: bool = False) -> None:
        """`is_provisional`: another party still decides the role; its first answer is no change to warn of."""
        self.epoch = epoch
        self._is_provisional = is_provisional
        self._listeners: list[Callable[[RoleState], None]] = []
        self._take(role, reason)

    def _take(self, role: Role, reason: str) -> None:
        # Plain attributes, set with the role: they are read with each burst and each pull.
        self.role = role
        self.reason = reason  # for logs and refusals: a clause without a full stop
        # Whether this broker decides for its group: offsets, locks, POP, transactions, timers.
        self.is_master = role is Role.MASTER
        # Whether consumers are served as by a master: locks, POP, and pulls even without slaveReadEnable.
        self.serves_group = role in (Role.MASTER, Role.ACTING)
        # Whether messages of clients may be stored here.
        self.takes_writes = role is Role.MASTER
        # Whether consumers may pull here, slaveReadEnable aside.
        self.serves_reads = role is not Role.FENCED

    def change(
        self, role: Role, reason: str, *, epoch: int | None = None, is_provisional: bool = False
    ) -> None:
        """Take another role; listeners are notified after it has changed. Raises ValueError for an epoch that goes back.

        `is_provisional`: the role is not decided yet, as after RoleState().
        """
        if epoch is not None and epoch < self.epoch:
            raise ValueError(f"the epoch went from {self.epoch} back to {epoch}")
        if epoch is not None:
            self.epoch = epoch
        level = logging.INFO if self._is_provisional else logging.WARNING
        self._is_provisional = self._is_provisional and is_provisional
        if role is self.role:
            self.reason = reason
            return
        _logger.log(level, "this broker was %s and is now %s: %s", self.role.value, role.value, reason)
        self._take(role, reason)
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:
                _logger.exception("a listener of the broker's role failed")

    def on_change(self, callback: Callable[[RoleState], None]) -> None:
        """Call back after each change of the role, in the order of these calls; one that fails stops no other."""
        self._listeners.append(callback)


def first_role(config: BrokerConfig, identity: BrokerIdentity, broker_role: BrokerRole) -> RoleState:
    """The role of a broker that starts; in controller mode the controllers change it when they answer."""
    if config.enable_controller_mode:
        return RoleState(Role.SLAVE, "the controllers have not said who is master", is_provisional=True)
    return configured_role(identity, broker_role)


def configured_role(identity: BrokerIdentity, broker_role: BrokerRole) -> RoleState:
    """The role of a broker that starts."""
    if broker_role is BrokerRole.SLAVE:
        return RoleState(Role.SLAVE, "brokerRole is SLAVE")
    if identity.broker_id != MASTER_ID:
        return RoleState(Role.SLAVE, f"brokerId is {identity.broker_id}")
    return RoleState(Role.MASTER, "it was started as one")
