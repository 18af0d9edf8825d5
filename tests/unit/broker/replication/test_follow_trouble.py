"""When a slave is not ready."""

from __future__ import annotations

from aerobee.broker.exporter.replication_families import follow_trouble
from aerobee.broker.replication.facts import replication_facts
from aerobee.broker.replication.ha_mode import FollowState, MasterAddress
from aerobee.broker.replication.replication import ReplicationState
from aerobee.broker.state.role import Role

GAP = 1_000


def state(role: Role, following: FollowState | None, *, log_end: int = 5_000) -> ReplicationState:
    return ReplicationState(
        role=role,
        epoch=1,
        log_end=log_end,
        confirmed=0,
        replicas=(),
        members=frozenset(),
        reason="",
        following=following,
    )


def follow(*, is_connected: bool = True, master_end: int = 5_000, trouble: str = "") -> FollowState:
    return FollowState(
        master=MasterAddress(ha="10.0.0.1:10912"),
        is_connected=is_connected,
        master_end=master_end,
        last_read_s=1.0,
        last_write_s=1.0,
        trouble=trouble,
    )


def test_who_follows_closely_is_ready() -> None:
    assert follow_trouble(state(Role.SLAVE, follow()), GAP) == ""
    assert follow_trouble(state(Role.SLAVE, follow(master_end=6_000)), GAP) == ""


def test_masters_and_acting_masters_follow_no_broker() -> None:
    assert follow_trouble(state(Role.MASTER, None), GAP) == ""
    assert follow_trouble(state(Role.ACTING, follow(is_connected=False)), GAP) == ""


def test_a_slave_without_its_master_says_so() -> None:
    assert "does not know" in follow_trouble(state(Role.SLAVE, None), GAP)
    text = follow_trouble(state(Role.SLAVE, follow(is_connected=False, trouble="refused")), GAP)
    assert text == "this slave does not follow 10.0.0.1:10912: refused"


def test_a_slave_far_behind_says_by_how_much() -> None:
    text = follow_trouble(state(Role.SLAVE, follow(master_end=6_001)), GAP)
    assert text.startswith("this slave is 1001 bytes behind its master, more than 1000")


def test_a_connected_slave_of_an_idle_master_reports_no_earlier_failure() -> None:
    """Nothing arrives that would prove it, and doctor and the console would say that it does not follow."""
    following = follow(trouble="refused")
    assert replication_facts(state(Role.SLAVE, following), 1)["haTrouble"] == ""
    lost = follow(is_connected=False, trouble="refused")
    assert replication_facts(state(Role.SLAVE, lost), 1)["haTrouble"] == "refused"
