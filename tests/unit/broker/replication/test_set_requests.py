"""A change of the sync state set that is requested: what counts when no controller could be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.broker.replication.controller_agent import ControllerAgent
from aerobee.broker.replication.controller_client import ControllerClient, GroupState
from aerobee.errors import AerobeeError, ConnectFailed, ConnectionLost, RemoteError, RequestTimeout
from aerobee.ha.stream.sync_state_set import SyncStateSet
from aerobee.remoting.codes import ResponseCode


@pytest.mark.parametrize("failure", [RequestTimeout("late"), ConnectFailed("away"), ConnectionLost("cut")])
async def test_without_a_leader_a_change_is_not_sent(failure: AerobeeError) -> None:
    class Client:
        async def invoke(self, address: str, *args: object, **more: object) -> None:
            raise failure

        connect = invoke
        credentials = None

    client = ControllerClient(cast(Any, Client()), cluster="c", name="a")
    with pytest.raises(ConnectFailed, match=str(failure)):
        await client.alter_set(("127.0.0.1:1",), GroupState(), frozenset({1}), 0)


async def asked(failure: AerobeeError, *, knows_leases: bool = True) -> SyncStateSet:
    """The set of a master after its request to admit broker 2 ended with this failure."""
    found = SyncStateSet(1, members={1}, set_epoch=1, epoch_start_offset=0, confirm_offset=0, needs_all=True)
    found.report(2, 100, own_end=100, now_ms=0)

    async def alter_set(*args: object) -> None:
        raise failure

    async def sleep(seconds: float) -> None:
        pass

    nothing = SimpleNamespace(set=lambda: None)
    agent: Any = SimpleNamespace(
        mode=SimpleNamespace(sync_state_set=found, wanted=lambda: found.wanted(0)),
        addresses=("127.0.0.1:1",),
        _group=GroupState(master_id=1, master_address="127.0.0.1:2", master_epoch=1),
        _is_master=True,
        _client=SimpleNamespace(alter_set=alter_set),
        _clock=SimpleNamespace(now_ms=lambda: 0, sleep=sleep),
        _knows_leases=knows_leases,
        _is_definite=lambda code: ControllerAgent._is_definite(agent, code),
        _say=lambda text: None,
        _hint=nothing,
        _set_hint=nothing,
    )
    await ControllerAgent._change_set(cast(Any, agent))
    return found


@pytest.mark.parametrize(("is_ours", "counted"), [(True, frozenset({1})), (False, frozenset({1, 2}))])
async def test_a_leader_that_lost_the_leadership_may_have_granted_a_change(
    is_ours: bool, counted: frozenset[int]
) -> None:
    """RocketMQ's say CONTROLLER_NOT_LEADER of a change that is in their log, Aerobee's of one that had no effect."""
    found = await asked(RemoteError(ResponseCode.CONTROLLER_NOT_LEADER, "no leader"), knows_leases=is_ours)
    assert found.counted == counted


@pytest.mark.parametrize(
    ("failure", "counted"),
    [(ConnectFailed("away"), frozenset({1})), (RequestTimeout("late"), frozenset({1, 2}))],
)
async def test_a_replica_whose_admission_reached_no_controller_does_not_count(
    failure: AerobeeError, counted: frozenset[int]
) -> None:
    found = await asked(failure)
    found.left(2)
    assert found.counted == counted
    assert found.advance(200) == (200 if counted == {1} else 100)
