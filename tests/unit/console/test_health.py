"""What the overview says needs attention."""

from __future__ import annotations

from typing import Any

from aerobee.console.health import problems


def row(**fields: Any) -> dict[str, Any]:
    return {"name": "broker-a", "role": "master", "address": "10.0.0.1:10911", "disk": 0.4, **fields}


def test_a_healthy_cluster_has_no_problem() -> None:
    slave = row(role="slave", address="10.0.0.2:10911", ha={"ha_trouble": ""})
    master = row(ha={"ha_replicas": "10.0.0.2:10912 lag=0 in-sync"})
    assert problems([master, slave], [], {"billing": 0}) == []


def test_each_kind_of_problem_is_listed_with_its_page() -> None:
    brokers = [
        row(
            disk=0.91, ha={"ha_replicas": "10.0.0.2:1 lag=9 not in sync: too slow;3@10.0.0.3:1 lag=0 in-sync"}
        ),
        row(role="slave", address="10.0.0.2:10911", ha={"ha_trouble": "it is not connected"}),
        row(role="slave", address="10.0.0.3:10911", error="refused"),
        row(name="broker-b", role="slave", address="10.0.0.4:10911"),
    ]
    groups = [{"name": "billing", "state": "STOP", "reason": "no commit"}]
    found = [(each["what"], each["page"], each["name"]) for each in problems(brokers, groups, {"billing": 3})]
    assert found == [
        ("Broker", "topology", ""),
        ("Disk", "broker", "10.0.0.1:10911"),
        ("Replica", "topology", ""),
        ("Replica", "topology", ""),
        ("Broker", "broker", "10.0.0.3:10911"),
        ("Lag", "group", "billing"),
        ("Dead letters", "dlq", "billing"),
    ]


def test_groups_that_consume_are_warnings_and_the_others_are_bad() -> None:
    states = ("WARN", "REWIND", "STALL", "STOP", "BLOCKED", "MISMATCH")
    groups = [{"name": state, "state": state, "reason": "lag"} for state in states]
    levels = {each["name"]: each["level"] for each in problems([], groups, {})}
    assert levels == {state: "warn" if state in ("WARN", "REWIND") else "bad" for state in states}
