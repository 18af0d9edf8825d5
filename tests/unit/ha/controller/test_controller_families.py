"""What a controller shows at /metrics."""

from __future__ import annotations

from aerobee.ha.controller.families import controller_families
from aerobee.ha.controller.state import Group
from aerobee.ha.raft.raft_service import RaftStatus


def shown(*, is_leader: bool) -> dict[str, list[float | object]]:
    groups = [
        Group(cluster_name="c", broker_name="with", master_id=1, master_epoch=4, in_sync=frozenset({1, 2})),
        Group(cluster_name="c", broker_name="without", master_epoch=2),
    ]
    status = RaftStatus(is_leader=is_leader, leader="n0", term=7, voters=("n0", "n1", "n2"))
    families = controller_families(
        quorum="q", own_id="n0", status=status, groups=groups, alive=lambda name: (1, 2, 3), connections=5
    )
    return {family.name: [value for _, value in family.samples] for family in families}


def test_groups_with_and_without_a_master_are_told_apart() -> None:
    found = shown(is_leader=True)
    assert found["aerobee_controller_group_has_master"] == [1, 0]
    assert found["aerobee_controller_group_master_epoch"] == [4, 2]
    assert found["aerobee_controller_group_in_sync"] == [2, 0]
    assert found["aerobee_controller_term"] == [7]
    assert found["aerobee_controller_group_alive"] == [3, 3]


def test_who_does_not_lead_does_not_say_who_is_alive() -> None:
    assert "aerobee_controller_group_alive" not in shown(is_leader=False)
