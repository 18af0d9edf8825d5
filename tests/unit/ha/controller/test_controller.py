"""The controller's state machine: against RocketMQ 5.5.0's answers, rule by rule, and the invariants under any request."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame, NewerVersion
from aerobee.ha.controller.bodies import read_names, replicas_body
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    REPLICAS_MAX,
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    CleanBrokerMetadata,
    Command,
    RegisterBroker,
    decode_command,
    encode_command,
)
from aerobee.ha.controller.election import choose
from aerobee.ha.controller.liveness import BrokerLiveness, Heartbeat
from aerobee.ha.controller.state import STATE_BYTES_MAX, ControllerState, Group, Outcome, group_bytes
from aerobee.ha.controller.state import Replica as KnownReplica
from aerobee.ha.packed import pack
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.replica import Outcome as ProposalOutcome
from aerobee.ha.raft.replica import Replica
from aerobee.ha.raft.storage import RaftFiles
from aerobee.remoting.fastjson import loads
from aerobee.remoting.frame import decode_frame
from aerobee.simulation.simulated_disk import SimulatedDisk
from tests.captures import captured
from tests.unit.ha.controller.controller_requests import (
    NAME,
    alive,
    alter,
    apply_id,
    clean,
    elect,
    group_of,
    led_group,
    renew,
)

# -- as captured


def test_the_captured_requests_get_the_captured_answers() -> None:
    """From the first broker's id to the old master's return; the election after the kill is the controller's own."""
    state = ControllerState()
    liveness = BrokerLiveness(0)
    compared: dict[int, int] = {}
    asked: dict[tuple[int, int], Any] = {}
    for frame in captured("controller-remoting"):
        if frame.tap != "controller":
            continue
        command = decode_frame(frame.data)
        ext = command.ext or {}
        if not frame.is_reply:
            asked[frame.connection, command.opaque] = command
            if command.code == 904:
                liveness.beat(
                    Heartbeat(
                        broker_name=ext["brokerName"],
                        broker_id=int(ext["brokerId"]),
                        epoch=int(ext["epoch"]),
                        max_offset=int(ext["maxOffset"]),
                    ),
                    0,
                )
            continue
        request = asked.get((frame.connection, command.opaque))
        if request is None or request.code not in (1001, 1002, 1003, 1004, 1012, 1013):
            continue
        if ext.get("masterEpoch") == "2" and state.groups[NAME].master_epoch == 1:
            liveness.closed(NAME, 1, 0)
            outcome = state.carry_out(elect(living=liveness.candidates(NAME, 0)))
            assert outcome.code is ControllerCode.SUCCESS
            assert outcome.is_role_changed
        got_ext, got_body = answer_to(state, request)
        wanted = {
            key: value for key, value in ext.items() if key in got_ext or "aster" in key or "poch" in key
        }
        assert got_ext == wanted, f"{request.code} at {frame.label}"
        if got_body is not None:
            body = loads(command.body)
            assert {key: body[key] for key in got_body} == got_body
        compared[request.code] = compared.get(request.code, 0) + 1
    assert set(compared) == {1001, 1002, 1003, 1004, 1012, 1013}
    assert state.groups[NAME].master_id == 2
    assert state.groups[NAME].set_epoch == 5


def answer_to(state: ControllerState, request: Any) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Carry a captured request out; what its answer must say."""
    ext = request.ext
    name = ext["brokerName"]
    if request.code == 1012:
        return {"nextBrokerId": str(state.next_broker_id(name))}, None
    if request.code == 1013:
        outcome = state.carry_out(
            ApplyBrokerId(
                broker_name=name,
                cluster_name=ext["clusterName"],
                broker_id=int(ext["appliedBrokerId"]),
                check_code=ext["registerCheckCode"],
            )
        )
        assert outcome.code is ControllerCode.SUCCESS
        return {"clusterName": group_of(outcome).cluster_name}, None
    if request.code == 1001:
        body = loads(request.body)
        outcome = state.carry_out(
            AlterSyncStateSet(
                broker_name=name,
                master_id=int(ext["masterBrokerId"]),
                master_epoch=int(ext["masterEpoch"]),
                set_epoch=body["syncStateSetEpoch"],
                members=tuple(body["syncStateSet"]),
                alive=(1, 2),
            )
        )
        assert outcome.code is ControllerCode.SUCCESS
        return {"newSyncStateSetEpoch": str(group_of(outcome).set_epoch)}, set_body(group_of(outcome))
    if request.code == 1002:
        outcome = state.carry_out(elect(int(ext["brokerId"]), living=alive(1, epoch=-1)))
        assert outcome.code is ControllerCode.SUCCESS
        return master_ext(group_of(outcome), with_set=True), {
            "syncStateSet": sorted(group_of(outcome).in_sync)
        }
    if request.code == 1003:
        outcome = state.carry_out(
            RegisterBroker(
                broker_name=name,
                cluster_name=ext["clusterName"],
                broker_id=int(ext["brokerId"]),
                address=ext["brokerAddress"],
            )
        )
        assert outcome.code is ControllerCode.SUCCESS
        return master_ext(group_of(outcome), with_set=True), set_body(group_of(outcome))
    group = state.groups[name]
    return master_ext(group, with_set=False), set_body(group)


def master_ext(group: Group, *, with_set: bool) -> dict[str, str]:
    if not group.master_id:
        return {}
    ext = {
        "masterBrokerId": str(group.master_id),
        "masterAddress": group.master_address,
        "masterEpoch": str(group.master_epoch),
    }
    return {**ext, "syncStateSetEpoch": str(group.set_epoch)} if with_set else ext


def set_body(group: Group) -> dict[str, Any]:
    return {"syncStateSet": sorted(group.in_sync), "syncStateSetEpoch": group.set_epoch}


# -- ids


def test_ids_are_given_out_one_after_the_other_and_the_same_broker_gets_its_own_again() -> None:
    state = ControllerState()
    assert state.next_broker_id(NAME) == 1
    assert state.carry_out(apply_id(2)).code is ControllerCode.BROKER_ID_INVALID
    assert NAME not in state.groups, "a refusal leaves nothing behind"
    assert state.carry_out(apply_id(1, "a;1")).code is ControllerCode.SUCCESS
    assert state.carry_out(apply_id(1, "a;1")).code is ControllerCode.SUCCESS
    assert state.carry_out(apply_id(1, "b;1")).code is ControllerCode.BROKER_ID_INVALID
    assert state.next_broker_id(NAME) == 2


def test_names_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.ha.controller.state.GROUPS_MAX", 2)
    state = ControllerState()

    def apply(name: str) -> ControllerCode:
        return state.carry_out(
            ApplyBrokerId(broker_name=name, cluster_name="c", broker_id=1, check_code="h:1;1")
        ).code

    assert [apply(name) for name in ("a", "b", "c", "d", "a")] == [
        ControllerCode.SUCCESS,
        ControllerCode.SUCCESS,
        ControllerCode.INVALID_REQUEST,
        ControllerCode.INVALID_REQUEST,
        ControllerCode.SUCCESS,
    ]
    assert sorted(state.groups) == ["a", "b"]


@pytest.mark.slow
def test_brokers_without_end_are_refused_before_a_snapshot_is_too_large() -> None:
    state, code = ControllerState(), "x" * 1024

    def fill(name: str) -> int:
        """How many ids of a name are given out."""
        for broker_id in range(1, REPLICAS_MAX + 1):
            command = ApplyBrokerId(broker_name=name, cluster_name="c", broker_id=broker_id, check_code=code)
            if state.carry_out(command).code is not ControllerCode.SUCCESS:
                return broker_id - 1
        return REPLICAS_MAX

    assert [fill(name) == REPLICAS_MAX for name in "abcdefghi"][-1] is False
    assert len(state.snapshot()) <= STATE_BYTES_MAX < RaftConfig().snapshot_bytes_max // 2
    again = ControllerState()
    again.restore(state.snapshot())
    assert fill("z") == 0
    large = ApplyBrokerId(broker_name="z", cluster_name="c", broker_id=1, check_code=code)
    assert again.carry_out(large).code is ControllerCode.INVALID_REQUEST, (
        "a restored state has the same bound"
    )
    clean = CleanBrokerMetadata(broker_name="a", broker_ids=(), is_cleaning_living_allowed=True, alive=())
    assert state.carry_out(clean).code is ControllerCode.SUCCESS
    assert fill("z") > 0, "what is removed makes room"


def test_the_bound_counts_at_least_what_a_snapshot_has() -> None:
    state = ControllerState()
    for number in range(1, 300):
        name = f"é{number}" * 10
        state.carry_out(
            ApplyBrokerId(broker_name=name, cluster_name="c", broker_id=1, check_code="ü" * number)
        )
    assert len(state.snapshot()) <= sum(map(group_bytes, state.groups.values()))


def test_a_name_asked_for_many_times_is_answered_once() -> None:
    assert read_names(orjson.dumps(["g"] * 10_000)) == ["g"]


def test_an_answer_has_a_bound_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.ha.controller.bodies.ROWS_MAX", 2)
    group = Group(
        cluster_name="c", broker_name="g", replicas={n: KnownReplica("h:1", "h:1;1") for n in range(1, 4)}
    )
    with pytest.raises(MalformedFrame, match="name fewer groups"):
        replicas_body([group], lambda name, broker_id: True, lambda name, broker_id: "")


def test_a_broker_without_an_id_must_apply_and_one_with_an_id_may_move() -> None:
    state = ControllerState()
    register = RegisterBroker(broker_name=NAME, cluster_name="c", broker_id=1, address="10.9.9.9:1")
    assert state.carry_out(register).code is ControllerCode.BROKER_NEEDS_TO_BE_REGISTERED
    state = led_group()
    assert group_of(state.carry_out(register)).master_address == "10.9.9.9:1"


# -- the set


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (alter((1, 2)), ControllerCode.SUCCESS),
        (alter((1,)), ControllerCode.ALTER_SYNC_STATE_SET_FAILED),
        (alter((1, 2), master=2), ControllerCode.INVALID_MASTER),
        (alter((1, 2), epoch=0), ControllerCode.FENCED_MASTER_EPOCH),
        (alter((1, 2), epoch=2), ControllerCode.FENCED_MASTER_EPOCH),
        (alter((1, 2), set_epoch=0), ControllerCode.FENCED_SYNC_STATE_SET_EPOCH),
        (alter((1, 9)), ControllerCode.INVALID_REPLICAS),
        (alter((1, 2), living=(1, 3)), ControllerCode.BROKER_NOT_ALIVE),
        (alter((2, 3)), ControllerCode.ALTER_SYNC_STATE_SET_FAILED),
        (alter(()), ControllerCode.ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_changes_of_the_set(command: AlterSyncStateSet, code: ControllerCode) -> None:
    state = led_group()
    before = state.snapshot()
    outcome = state.carry_out(command)
    assert outcome.code is code
    if code is ControllerCode.SUCCESS:
        assert (group_of(outcome).in_sync, group_of(outcome).set_epoch) == ({1, 2}, 2)
    else:
        assert outcome.remark
        assert state.snapshot() == before, "a refusal changes nothing"


def test_a_deposed_master_changes_no_set() -> None:
    state = led_group(in_sync=(1, 2))
    state.carry_out(elect(living=alive(2, 3)))
    assert state.carry_out(alter((1, 2, 3), set_epoch=2)).code is ControllerCode.INVALID_MASTER


# -- elections


def test_the_first_who_asks_is_the_first_master() -> None:
    state = led_group()
    group = state.groups[NAME]
    assert (group.master_id, group.master_epoch, group.in_sync, group.set_epoch) == (1, 1, {1}, 1)


def test_only_who_is_in_sync_is_elected() -> None:
    state = led_group(in_sync=(1, 2))
    outcome = state.carry_out(elect(living=(*alive(2), *alive(3, epoch=9, offset=999))))
    assert outcome.is_role_changed
    group = group_of(outcome)
    assert (group.master_id, group.master_epoch, group.in_sync, group.set_epoch) == (2, 2, {2}, 3)


def test_without_in_sync_replicas_the_master_is_removed() -> None:
    state = led_group(in_sync=(1, 2))
    outcome = state.carry_out(elect(living=alive(3)))
    assert outcome.code is ControllerCode.MASTER_NOT_AVAILABLE
    group = group_of(outcome)
    assert (group.master_id, group.master_epoch, group.in_sync) == (0, 2, {1, 2})
    again = state.carry_out(elect(living=alive(3)))
    assert group_of(again).master_epoch == 2, "once is enough"
    assert not again.is_role_changed
    assert state.carry_out(elect(3, living=alive(3))).code is ControllerCode.MASTER_NOT_AVAILABLE
    assert group_of(state.carry_out(elect(1, living=alive(1, 3)))).master_id == 1


def test_losing_messages_must_be_allowed() -> None:
    state = led_group(in_sync=(1, 2))
    assert group_of(state.carry_out(elect(living=alive(3), unclean=True))).master_id == 3


def test_a_living_master_stays_unless_another_is_wanted() -> None:
    state = led_group(in_sync=(1, 2))
    for command in (elect(2, living=alive(1, 2)), elect(0, 1, living=alive(1, 2))):
        assert state.carry_out(command).code is ControllerCode.MASTER_STILL_EXIST
    assert group_of(state.carry_out(elect(0, 2, living=alive(1, 2)))).master_id == 2


def test_a_preferred_broker_that_may_not_lead_changes_nothing() -> None:
    state = led_group(in_sync=(1, 2))
    assert state.carry_out(elect(0, 3, living=alive(1, 2, 3))).code is ControllerCode.ELECT_MASTER_FAILED
    assert state.groups[NAME].master_id == 1


def test_an_untrusted_peer_and_an_unknown_group_are_refused() -> None:
    state = led_group()
    assert state.carry_out(elect(9, living=alive(9))).code is ControllerCode.BROKER_NEEDS_TO_BE_REGISTERED
    assert ControllerState().carry_out(elect(1)).code is ControllerCode.BROKER_METADATA_NOT_EXIST
    assert ControllerState().carry_out(alter((1,))).code is ControllerCode.BROKER_METADATA_NOT_EXIST


def test_the_order_of_candidates() -> None:
    ranked = [
        Candidate(5, 3, 10, 9),
        Candidate(4, 2, 99, 9),
        Candidate(3, 2, 50, 1),
        Candidate(1, 2, 50, 2),
        Candidate(2, 2, 50, 2),
    ]
    for seed in range(20):
        left = list(ranked)
        random.Random(seed).shuffle(left)
        for expected in ranked:
            assert choose(left, known=range(9), in_sync=range(9)) == expected
            left.remove(expected)
    assert choose(ranked, known=range(9), in_sync=()) is None
    assert choose(ranked, known=(1,), in_sync=range(9)) == ranked[3]


# -- forgetting brokers


def test_brokers_are_forgotten_when_they_are_not_alive_or_it_is_forced() -> None:
    state = led_group(in_sync=(1, 2))
    assert state.carry_out(clean(2, living=(2,))).code is ControllerCode.INVALID_CLEAN_BROKER_METADATA
    assert state.carry_out(clean(9)).code is ControllerCode.INVALID_CLEAN_BROKER_METADATA
    group = group_of(state.carry_out(clean(2, living=(2,), forced=True)))
    assert (group.in_sync, group.set_epoch, sorted(group.replicas)) == ({1}, 3, [1, 3])
    group = group_of(state.carry_out(clean(1)))
    assert (group.master_id, group.master_epoch, group.in_sync) == (0, 2, frozenset())
    assert group.next_id == 4, "an id is not given out twice"
    assert state.carry_out(clean()).group is None
    assert NAME not in state.groups
    assert state.carry_out(clean()).code is ControllerCode.INVALID_CLEAN_BROKER_METADATA


def test_a_group_whose_only_broker_in_sync_was_forgotten_has_no_master_until_losses_are_allowed() -> None:
    state = led_group()
    assert group_of(state.carry_out(clean(1))).in_sync == frozenset()
    for requester in (0, 2):
        outcome = state.carry_out(elect(requester, living=alive(2, 3)))
        assert outcome.code is ControllerCode.MASTER_NOT_AVAILABLE
    assert group_of(state.carry_out(elect(living=alive(2, 3), unclean=True))).master_id in (2, 3)


# -- bytes

COMMANDS: list[Command] = [
    apply_id(1),
    RegisterBroker(broker_name=NAME, cluster_name="c", broker_id=1, address="10.0.0.1:10911"),
    elect(1, 2, living=alive(1, 2, epoch=-1), unclean=True),
    alter((1, 2)),
    clean(1, 2, living=(3,), forced=True),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_both_ways_and_with_other_values_refused(command: Command) -> None:
    data = encode_command(command)
    assert decode_command(data) == command
    for end in range(len(data)):
        with pytest.raises(MalformedFrame):
            decode_command(data[:end])
    with pytest.raises(MalformedFrame, match="the unknown code 7"):
        decode_command(pack((7,)))
    with pytest.raises(MalformedFrame):
        decode_command(pack((command.CODE, "")))


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_unchanged_or_answered(data: bytes) -> None:
    state = led_group()
    before = state.snapshot()
    try:
        assert isinstance(state.apply(1, data), Outcome)
    except NewerVersion:
        assert state.snapshot() == before


def test_a_snapshot_is_the_whole_state_and_the_same_bytes_again() -> None:
    state = led_group(in_sync=(3, 1, 2))
    state.carry_out(ApplyBrokerId(broker_name="broker-0", cluster_name="c", broker_id=1, check_code="b:1;5"))
    other = ControllerState()
    other.restore(state.snapshot())
    assert other.groups == state.groups
    assert other.snapshot() == state.snapshot()
    for broken in (b"", pack((2, [])), pack((1, [1])), pack((1, [("c", "n", 1, 5, 1, 1, [], [])]))):
        with pytest.raises(MalformedFrame):
            other.restore(broken)
    assert other.groups == state.groups


def test_on_raft_a_command_is_answered_and_survives_power_loss() -> None:
    disk = SimulatedDisk(random.Random(1))

    def start() -> tuple[Replica, ControllerState]:
        files = RaftFiles("/controller", disk=disk)
        recovered = files.open()
        if recovered.is_new:
            recovered = files.initialize(Membership(("n0",)))
        state = ControllerState()
        config = RaftConfig(snapshot_interval_entries=3)
        replica = Replica(
            RaftNode("n0", config, recovered, now_ms=0, random=lambda: 0.5), files, state, send=print
        )
        replica.tick(10_000)
        return replica, state

    replica, state = start()
    outcomes: list[tuple[ProposalOutcome, object]] = []
    for command in (apply_id(1), apply_id(2), elect(1, living=alive(1)), alter((1, 2)), alter((1, 2))):
        replica.propose(encode_command(command), lambda *done: outcomes.append(done), 10_001)
    codes = [result.code for done, result in outcomes if isinstance(result, Outcome)]
    assert codes == [ControllerCode.SUCCESS] * 4 + [ControllerCode.ALTER_SYNC_STATE_SET_FAILED]
    before = state.snapshot()
    disk.power_loss()
    assert start()[1].snapshot() == before


def test_a_state_that_is_too_large_for_a_snapshot_ends_no_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = RaftFiles("/controller", disk=SimulatedDisk(random.Random(1)))
    assert files.open().is_new
    config = RaftConfig(snapshot_bytes_max=1_000, snapshot_interval_entries=4)
    recovered = files.initialize(Membership(("n0",)))
    node = RaftNode("n0", config, recovered, now_ms=0, random=lambda: 0.5)
    state, size = ControllerState(), 2_000
    monkeypatch.setattr(state, "snapshot", lambda: bytes(size))
    replica = Replica(node, files, state, send=print)
    replica.tick(10_000)
    for number in range(9):
        replica.propose(encode_command(apply_id(number + 1)), lambda outcome, result: None, 10_000)
    assert node.log.snapshot_index == 0
    assert len(caplog.records) == 2, "it says so at each interval, not at each entry"
    size = 10
    for number in range(4):
        replica.propose(encode_command(apply_id(number + 1)), lambda outcome, result: None, 10_000)
    assert node.log.snapshot_index > 0, "the log is shortened when the state is small again"


def test_a_set_that_is_renewed_fences_older_requests_for_a_change() -> None:
    state = led_group()
    outcome = state.carry_out(renew())
    assert outcome.code is ControllerCode.SUCCESS
    assert (group_of(outcome).in_sync, group_of(outcome).set_epoch) == ({1}, 2)
    late = state.carry_out(alter((1, 2)))
    assert late.code is ControllerCode.FENCED_SYNC_STATE_SET_EPOCH
    for fenced, code in (
        (renew(set_epoch=1), ControllerCode.FENCED_SYNC_STATE_SET_EPOCH),
        (renew(set_epoch=2, epoch=2), ControllerCode.FENCED_MASTER_EPOCH),
        (renew(set_epoch=2, master=2), ControllerCode.INVALID_MASTER),
    ):
        assert state.carry_out(fenced).code is code
    assert decode_command(encode_command(renew())) == renew()
