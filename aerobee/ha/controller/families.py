"""A controller's metrics as families of /metrics. The names are Aerobee-specific, because RocketMQ's (`role`,
`active_broker_num`) have no prefix.

Core: it reads its arguments and does no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aerobee.ha.controller.state import Group
from aerobee.ha.raft.raft_service import RaftStatus
from aerobee.monitoring.exposition import GAUGE, Family, joined, label_text


def controller_families(
    *,
    quorum: str,
    own_id: str,
    status: RaftStatus,
    groups: Iterable[Group],
    alive: Callable[[str], tuple[int, ...]],
    connections: int,
) -> Iterator[Family]:
    """Metrics of one controller. Only the leader knows which brokers are alive: other controllers omit it."""
    common = label_text({"node_type": "controller", "controller_group": quorum, "controller_id": own_id})
    for name, meaning, value in (
        ("aerobee_controller_is_leader", "1: it leads the quorum", int(status.is_leader)),
        (
            "aerobee_controller_is_serving",
            "1: it leads and has applied all that was agreed",
            int(status.is_serving),
        ),
        ("aerobee_controller_knows_leader", "1: it knows who leads", int(bool(status.leader))),
        ("aerobee_controller_term", "Of the quorum; it grows with each election", status.term),
        ("aerobee_controller_voters", "Controllers that have a vote", len(status.voters)),
        ("aerobee_controller_learners", "Controllers that copy and have no vote", len(status.learners)),
        ("aerobee_controller_connections", "Of brokers, tools and other controllers", connections),
    ):
        yield Family(name, GAUGE, meaning, ((common, value),))
    named = [
        (joined(common, label_text({"cluster": group.cluster_name, "broker": group.broker_name})), group)
        for group in groups
    ]
    for name, meaning, read in _GROUPS:
        yield Family(name, GAUGE, meaning, [(text, read(group)) for text, group in named])
    if status.is_leader:
        living = [(text, len(alive(group.broker_name))) for text, group in named]
        yield Family(
            "aerobee_controller_group_alive", GAUGE, "Brokers of the group whose heartbeats arrive", living
        )


_GROUPS: tuple[tuple[str, str, Callable[[Group], int]], ...] = (
    ("aerobee_controller_group_has_master", "1: there is a master", lambda group: int(group.master_id > 0)),
    ("aerobee_controller_group_master_epoch", "It grows with each master", lambda group: group.master_epoch),
    ("aerobee_controller_group_in_sync", "Replicas in the sync state set", lambda group: len(group.in_sync)),
    ("aerobee_controller_group_replicas", "Replicas that are known", lambda group: len(group.replicas)),
)
