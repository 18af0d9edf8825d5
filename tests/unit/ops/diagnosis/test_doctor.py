import asyncio

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import NoPermission, RequestNotSupported
from aerobee.ops.diagnosis.doctor import (
    Finding,
    absent_replicas,
    advertised_listeners,
    clock_skew_s,
    connection_advice,
    dead_letter_findings,
    lasting_runtime,
    replication_findings,
    runtime_findings,
    split_addresses,
)
from aerobee.ops.terminal.ack_level import SENTENCES, ack_sentence_of

RUNTIME = {
    "brokerVersionDesc": "V5_5_0",
    "bootTimestamp": "1000000",
    "runtime": "[ 0 days, 0 hours, 1 minutes, 40 seconds ]",
    "commitLogDiskRatio": "0.19",
    "brokerActive": "true",
}


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_clock_is_told_from_boot_time_and_age() -> None:
    assert clock_skew_s(RUNTIME, 1_100.0) == 0
    assert clock_skew_s(RUNTIME, 1_000.0) == 100
    assert clock_skew_s({}, 1_000.0) is None
    assert clock_skew_s({"bootTimestamp": "x", "runtime": "soon"}, 0) is None


def test_healthy_broker_has_no_complaint() -> None:
    findings = runtime_findings("broker a", RUNTIME, {"flushDiskType": "SYNC_FLUSH"}, 1_100.0)
    assert {finding.level for finding in findings} == {"ok"}
    assert "flushed: survives" in by_check(findings)["version"].detail


def test_kinds_that_a_master_cannot_serve_fail() -> None:
    runtime = RUNTIME | {"unservedKinds": "timer: the timer's files cannot be opened"}
    found = by_check(runtime_findings("broker a", runtime, {}, 1_100.0))["message types"]
    assert found.level == "fail"
    assert "timer's files cannot be opened" in found.detail
    assert "message types" not in by_check(
        runtime_findings("broker a", RUNTIME | {"unservedKinds": ""}, {}, 1_100.0)
    )


def test_ports_that_are_not_bound_are_warned_about() -> None:
    runtime = RUNTIME | {"portsNotBound": "10912, where slaves connect: Address already in use"}
    found = by_check(runtime_findings("broker a", runtime, {}, 1_100.0))["ports"]
    assert (found.level, found.detail) == (
        "warn",
        "the broker cannot bind port 10912, where slaves connect: Address already in use",
    )
    assert "ports" not in by_check(runtime_findings("broker a", RUNTIME | {"portsNotBound": ""}, {}, 1_100.0))


def test_clock_disk_state_and_registration_are_judged() -> None:
    runtime = RUNTIME | {
        "commitLogDiskRatio": "0.95",
        "consumeQueueDiskRatio": "0.80",
        "brokerActive": "false",
        "registeredAt_127.0.0.1:9876": "0",
        "registeredAt_127.0.0.1:9877": "1095000",
    }
    found = by_check(runtime_findings("broker a", runtime, {}, 1_000.0))
    assert found["clock"].level == "warn"
    assert "100 s ahead" in found["clock"].detail
    assert found["disk of the commit log"].level == "fail"
    assert found["disk of the consume queues"].level == "warn"
    assert found["state"].level == "fail"
    assert found["registration at 127.0.0.1:9876"].level == "fail"
    assert found["registration at 127.0.0.1:9877"].level == "ok"
    assert all(finding.advice for finding in found.values() if finding.level != "ok")


def test_a_disk_is_judged_by_the_levels_that_its_broker_is_set_to() -> None:
    runtime = RUNTIME | {"commitLogDiskRatio": "0.80", "consumeQueueDiskRatio": "0.97"}
    config = {"diskMaxUsedSpaceRatio": "95", "diskSpaceWarningLevelRatio": "99"}
    found = by_check(runtime_findings("broker a", runtime, config, 1_100.0))
    assert found["disk of the commit log"].level == "ok"
    assert found["disk of the consume queues"].level == "warn"
    assert found["disk of the consume queues"].advice == (
        "above 95 % the broker deletes old messages early; above 99 % it refuses new ones"
    )
    early = config | {"diskMaxUsedSpaceRatio": "50", "diskSpaceWarningLevelRatio": "60"}
    found = by_check(runtime_findings("broker a", runtime, early, 1_100.0))
    assert found["disk of the commit log"].level == "fail"
    assert "above 60 %" in found["disk of the commit log"].advice


def test_advertised_listeners_replace_bound_ones_and_wildcards_are_left_out() -> None:
    config = {
        "listeners": "internal://0.0.0.0:10911,external://0.0.0.0:10921,local://127.0.0.1:1",
        "advertisedListeners": "external://203.0.113.7:10921",
    }
    assert advertised_listeners(config) == {"external": "203.0.113.7:10921", "local": "127.0.0.1:1"}
    assert advertised_listeners({}) == {}


def test_a_sync_master_without_replica_acks_is_asynchronous() -> None:
    config = {"flushDiskType": "ASYNC_FLUSH", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}
    assert ack_sentence_of(config) == SENTENCES["stored"]
    assert ack_sentence_of(config | {"inSyncReplicas": "2"}) == SENTENCES["replicated"]
    assert "unknown" in ack_sentence_of({})


def test_addresses_are_split_at_both_separators() -> None:
    assert split_addresses("a:1; b:2,c:3;") == ["a:1", "b:2", "c:3"]


MASTER = {
    "haRole": "master", "haRoleReason": "the controllers made it master in epoch 3", "haEpoch": "3", "haConfirmed": "70",
    "haReplicas": "2@10.0.0.2:5 lag=0 in-sync", "haSyncStateSet": "1,2", "haMissing": "",
}  # fmt: skip


def test_a_group_that_is_well_is_one_line() -> None:
    (found,) = replication_findings("broker a", MASTER)
    assert found.level == "ok"
    assert "in epoch 3" in found.detail
    assert "sync state set is 1,2" in found.detail


def test_who_is_not_in_sync_is_named_with_the_reason() -> None:
    replicas = "2@10.0.0.2:5 lag=9 not in sync: it lacks 9 bytes;3@10.0.0.3:5 lag=9 not in sync: it is an asyncLearner"
    found = replication_findings("broker a", MASTER | {"haReplicas": replicas, "haMissing": "4"})
    assert [each.level for each in found] == ["ok", "warn", "warn"]  # a learner is meant to be behind
    assert "it lacks 9 bytes" in found[1].detail
    assert "broker 4 is in the sync state set but not connected" in found[2].detail
    assert all(each.advice for each in found[1:])


def test_a_slave_says_whom_it_follows_and_why_not() -> None:
    slave = {
        "haRole": "slave",
        "haEpoch": "0",
        "haMaster": "10.0.0.1:10912",
        "haBehind": "12",
        "haTrouble": "",
    }
    (found,) = replication_findings("broker a", slave)
    assert (found.level, "12 bytes behind" in found.detail) == ("ok", True)
    (found,) = replication_findings("broker a", slave | {"haTrouble": "no record in common"})
    assert (found.level, "no record in common" in found.detail) == ("fail", True)


def test_a_broker_that_does_not_say_has_no_line() -> None:
    assert replication_findings("broker a", {"brokerVersionDesc": "V5_5_0"}) == []


def test_in_controller_mode_the_sentence_is_that_of_the_set() -> None:
    config = {"flushDiskType": "ASYNC_FLUSH", "brokerRole": "ASYNC_MASTER", "enableControllerMode": "true"}
    assert ack_sentence_of(config) == SENTENCES["stored"]
    for waits in ({"allAckInSyncStateSet": "true"}, {"inSyncReplicas": "2"}):
        assert ack_sentence_of(config | waits) == SENTENCES["replicated"]


@pytest.mark.parametrize(("connects_at", "said"), [(0, ""), (3, ""), (100, "it is not connected")])
async def test_a_slave_that_connects_after_a_moment_is_healthy(connects_at: int, said: str) -> None:
    """The slave or its master has just started. A lasting state is reported after some seconds."""
    clock = ManualClock()
    asked: list[dict[str, str]] = []

    async def ask() -> dict[str, str]:
        asked.append({"haTrouble": "" if len(asked) >= connects_at else "it is not connected"})
        return asked[-1]

    looking = asyncio.create_task(lasting_runtime(ask, clock=clock))
    while not looking.done():
        await asyncio.sleep(0)
        clock.advance(0.1)
    assert (await looking)["haTrouble"] == said
    assert len(asked) == connects_at + 1 if connects_at < 100 else len(asked) > 5


def test_what_waits_and_does_not_get_on_is_told() -> None:
    healthy = {"timerTrouble": "", "popTrouble": "", "storeTimeAheadMs": "900"}
    assert all(finding.level == "ok" for finding in runtime_findings("broker a", healthy, {}, 0.0))
    stuck = {"timerTrouble": "StoreFull: no space", "popTrouble": "error: x", "storeTimeAheadMs": "90000"}
    found = {finding.check: finding for finding in runtime_findings("broker a", stuck, {}, 0.0)}
    assert (found["timers"].level, found["pop"].level, found["store times"].level) == ("fail", "fail", "warn")
    assert "90 s ahead" in found["store times"].detail


def replica(broker_id: int, *, alive: bool = True, disk_sound: bool = True) -> dict[str, object]:
    return {
        "brokerId": broker_id,
        "address": f"10.0.0.{broker_id}:10911",
        "isAlive": alive,
        "isDiskSound": disk_sound,
    }


def test_a_replica_without_heartbeats_is_a_warning() -> None:
    brokers = [replica(1), replica(2, alive=False), replica(3, alive=False, disk_sound=False)]
    found = absent_replicas("controllers c", {"brokerGroups": [{"brokerName": "a", "brokers": brokers}]})
    assert [each.level for each in found] == ["warn", "warn"]
    assert "broker a (id 2) at 10.0.0.2:10911 is gone" in found[0].detail
    assert "aerobee ha forget a 2" in found[0].advice
    assert "cannot write to its disk" in found[1].detail


def test_replicas_that_all_send_heartbeats_are_well() -> None:
    found = absent_replicas("controllers c", {"brokerGroups": [{"brokerName": "a", "brokers": [replica(1)]}]})
    assert [each.level for each in found] == ["ok"]


def test_only_groups_with_dead_letters_are_warned_of() -> None:
    found = dead_letter_findings({"a": 0, "b": 2}, left_out=1)
    assert [(each.part, each.level) for each in found] == [("group b", "warn"), ("cluster", "warn")]
    assert [each.level for each in dead_letter_findings({"a": 0})] == ["ok"]


async def test_an_answer_of_the_peer_is_not_explained_by_tls() -> None:
    """Nothing listens at the address: whoever asked it about TLS would say that it speaks none."""
    assert (
        "access key"
        in (await connection_advice("127.0.0.1:1", NoPermission(16, "no"))).replace("_", " ").lower()
    )
    assert await connection_advice("127.0.0.1:1", RequestNotSupported(3, "no such request")) == ""
