"""Replication state in a broker's runtime info (28), for `aerobee doctor` and `cluster describe`. Core.

haRole, haRoleReason, haEpoch     what it is, why, and since which epoch
haConfirmed                       offset up to which enough replicas have the log
haReplicas                        a master's slaves, "ID@ADDRESS lag=BYTES in-sync" or "... not in sync: REASON", joined by ;
haSyncStateSet, haMissing         controller mode: the ids of the set, and those of it that are not connected
haMaster, haBehind, haTrouble     a slave's master, how many bytes it lacks, and why it does not follow
"""

from __future__ import annotations

from aerobee.broker.replication.ha_mode import ReplicaState
from aerobee.broker.replication.replication import ReplicationState


def replication_facts(state: ReplicationState, own_id: int) -> dict[str, str]:
    """The keys above that have a value. `own_id`: this broker's id at the controllers."""
    facts = {"haRole": state.role.value, "haRoleReason": state.reason, "haEpoch": str(state.epoch)}
    following = state.following
    if following is not None:
        facts |= {
            "haMaster": following.master.ha,
            "haBehind": str(max(0, following.master_end - state.log_end)),
            # The reason of an earlier failure stays known until bytes arrive: a connected slave follows, also an idle master.
            "haTrouble": "" if following.is_connected else following.trouble or "it is not connected",
        }
        return facts
    facts |= {
        "haConfirmed": str(state.confirmed),
        "haReplicas": ";".join(_replica_text(each, state.log_end) for each in state.replicas),
    }
    if state.members:
        connected = {each.broker_id for each in state.replicas} | {own_id}
        facts |= {
            "haSyncStateSet": ",".join(map(str, sorted(state.members))),
            "haMissing": ",".join(map(str, sorted(state.members - connected))),
        }
    return facts


def _replica_text(replica: ReplicaState, log_end: int) -> str:
    name = f"{replica.broker_id}@{replica.address}" if replica.broker_id >= 0 else replica.address
    judged = "in-sync" if replica.is_in_sync else f"not in sync: {replica.why_not}"
    return f"{name} lag={max(0, log_end - replica.acknowledged)} {judged}"
