"""Replication lag as families of /metrics: a master's slaves, or a slave's view of its master."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.replication.replication import ReplicationState
from aerobee.broker.state.role import Role
from aerobee.monitoring.exposition import GAUGE, Family, joined, label_text


def replication_families(parts: BrokerParts, state: ReplicationState, common: str) -> Iterator[Family]:
    """Bytes of the log, seconds."""
    config = parts.store.config
    if state.role is Role.MASTER:
        yield from _slaves(parts, state, common)
        in_sync = len(state.members) or 1 + sum(replica.is_in_sync for replica in state.replicas)
        for name, meaning, value in (
            ("aerobee_in_sync_replicas", "Copies with the complete log, including the master's", in_sync),
            ("aerobee_in_sync_replicas_wanted", "inSyncReplicas", config.in_sync_replicas),
            ("aerobee_in_sync_replicas_min", "minInSyncReplicas", config.min_in_sync_replicas),
        ):
            yield Family(name, GAUGE, meaning, ((common, value),))
        return
    following, now_s = state.following, parts.clock.monotonic()
    is_connected = following is not None and following.is_connected
    yield Family(
        "aerobee_replication_connected",
        GAUGE,
        "1: this slave follows a master",
        ((common, int(is_connected)),),
    )
    if following is None:
        return
    if following.master_end > 0:
        behind = max(0, following.master_end - state.log_end)
        meaning = "Known lag of this slave behind its master's log, bytes"
        yield Family("aerobee_replication_behind_bytes", GAUGE, meaning, ((common, behind),))
    if following.last_read_s >= 0:
        silent_s = max(0.0, now_s - following.last_read_s)
        meaning = "Time since the last data from the master, s"
        yield Family("aerobee_replication_silent_seconds", GAUGE, meaning, ((common, silent_s),))


def _slaves(parts: BrokerParts, state: ReplicationState, common: str) -> Iterator[Family]:
    now_s = parts.clock.monotonic()
    slaves = [
        (joined(common, label_text({"replica": each.address, "replica_id": str(each.broker_id)})), each)
        for each in state.replicas
    ]
    yield Family(
        "aerobee_replica_behind_bytes",
        GAUGE,
        "Bytes of the log that a slave has not acknowledged",
        ((text, max(0, state.log_end - each.acknowledged)) for text, each in slaves),
    )
    yield Family(
        "aerobee_replica_in_sync",
        GAUGE,
        "1: this slave counts as in sync",
        ((text, int(each.is_in_sync)) for text, each in slaves),
    )
    yield Family(
        "aerobee_replica_behind_seconds",
        GAUGE,
        "Time since a slave last had the whole log; 0 while it has it",
        (
            (text, 0.0 if each.acknowledged >= state.log_end else max(0.0, now_s - each.caught_up_at_s))
            for text, each in slaves
            if each.caught_up_at_s >= 0
        ),
    )


def follow_trouble(state: ReplicationState, gap_max_bytes: int) -> str:
    """Reason why a slave should serve no client; "" when it follows its master. A master and an acting master follow no
    broker."""
    if state.role in (Role.MASTER, Role.ACTING, Role.FENCED):
        return ""
    following = state.following
    if following is None:
        return "this slave does not know its master"
    if not following.is_connected:
        return f"this slave does not follow {following.master.ha or 'its master'}" + (
            f": {following.trouble}" if following.trouble else ""
        )
    behind = following.master_end - state.log_end
    if behind > gap_max_bytes:
        return (
            f"this slave is {behind} bytes behind its master, more than {gap_max_bytes} (haMaxGapNotInSync)"
        )
    return ""
