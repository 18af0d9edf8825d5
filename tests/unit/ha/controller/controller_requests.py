"""Requests of the brokers of one group to a controller's state, with the usual values, and the replies' group."""

from __future__ import annotations

from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    CleanBrokerMetadata,
    ElectMaster,
    RenewSyncStateSet,
)
from aerobee.ha.controller.state import ControllerState, Group, Outcome

NAME = "broker-a"
PRIORITY = (1 << 31) - 1


def alive(*ids: int, epoch: int = 1, offset: int = 100) -> tuple[Candidate, ...]:
    return tuple(Candidate(each, epoch, offset, PRIORITY) for each in ids)


def apply_id(broker_id: int, check: str = "") -> ApplyBrokerId:
    return ApplyBrokerId(
        broker_name=NAME,
        cluster_name="c",
        broker_id=broker_id,
        check_code=check or f"10.0.0.{broker_id}:10911;{broker_id}",
    )


def elect(
    requester: int = 0, preferred: int = 0, *, living: tuple[Candidate, ...] = (), unclean: bool = False
) -> ElectMaster:
    return ElectMaster(
        broker_name=NAME,
        requester_id=requester,
        preferred_id=preferred,
        is_unclean_allowed=unclean,
        candidates=living,
    )


def alter(
    members: tuple[int, ...],
    *,
    master: int = 1,
    epoch: int = 1,
    set_epoch: int = 1,
    living: tuple[int, ...] = (1, 2, 3),
) -> AlterSyncStateSet:
    return AlterSyncStateSet(
        broker_name=NAME,
        master_id=master,
        master_epoch=epoch,
        set_epoch=set_epoch,
        members=members,
        alive=living,
    )


def clean(*ids: int, living: tuple[int, ...] = (), forced: bool = False) -> CleanBrokerMetadata:
    return CleanBrokerMetadata(
        broker_name=NAME, broker_ids=ids, is_cleaning_living_allowed=forced, alive=living
    )


def renew(*, master: int = 1, epoch: int = 1, set_epoch: int = 1) -> RenewSyncStateSet:
    return RenewSyncStateSet(broker_name=NAME, master_id=master, master_epoch=epoch, set_epoch=set_epoch)


def led_group(*, in_sync: tuple[int, ...] = (1,)) -> ControllerState:
    """Three brokers, of which 1 is master in epoch 1."""
    state = ControllerState()
    for broker_id in (1, 2, 3):
        assert state.carry_out(apply_id(broker_id)).code is ControllerCode.SUCCESS
    assert state.carry_out(elect(1, living=alive(1, 2, 3))).code is ControllerCode.SUCCESS
    if in_sync != (1,):
        assert state.carry_out(alter(in_sync)).code is ControllerCode.SUCCESS
    return state


def group_of(outcome: Outcome) -> Group:
    assert outcome.group is not None
    return outcome.group
