"""What a master in controller mode confirms, and whose copies count for ACK_LEVEL=replicated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.admission.ack import Replicated
from aerobee.broker.replication.auto_switch_mode import NO_LEASE, AutoSwitchMode
from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.clock import ManualClock
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.store.files.config import StoreConfig


class Slave:
    """A connected replica that has the log up to `acknowledged`."""

    is_learner = False
    host, address = "127.0.0.1", "127.0.0.1:1"

    def __init__(self, broker_id: int, acknowledged: int) -> None:
        self.broker_id = broker_id
        self.acknowledged = acknowledged

    def wake(self) -> None:
        """Bytes were appended."""

    def admitted(self) -> None:
        """It stands for its id."""


class Master:
    """The mode of broker 1, whose log ends at 100, with members 1 and 2."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.acks = ReplicaAcks(clock=self.clock, timeout_s=lambda: 3.0)
        self.copies = ReplicaAcks(clock=self.clock, timeout_s=lambda: 3.0)
        self.log = SimpleNamespace(end=0, min_offset=0)
        self.confirmed: list[int] = []
        epochs = SimpleNamespace(
            entries=[EpochEntry(1, 0)], follow_log=lambda *_: None, begin=lambda *_: None
        )
        store: Any = SimpleNamespace(
            log=self.log,
            config=StoreConfig(**config),
            durability=SimpleNamespace(confirm=self.confirmed.append),
        )
        follower: Any = SimpleNamespace(stop_now=lambda: None, confirm_offset=0)
        self.mode = AutoSwitchMode(
            store=store,
            clock=self.clock,
            acks=self.acks,
            copies=self.copies,
            follower=follower,
            epochs=epochs,  # type: ignore[arg-type]
            broker_id=lambda: 1,
            hosts=None,
        )
        self.mode.prepare({1, 2}, 1)
        self.mode.become_master(1)
        self.mode.renew_lease(NO_LEASE)
        self.log.end = 100

    def report(self, slave: Slave, offset: int) -> None:
        slave.acknowledged = offset
        self.mode._acknowledged(slave)  # type: ignore[arg-type]

    def connect(self, broker_id: int, offset: int) -> Slave:
        slave = Slave(broker_id, offset)
        assert self.mode._connected(slave) == ""  # type: ignore[arg-type]
        self.mode._claims.claim(slave)  # type: ignore[arg-type]
        self.report(slave, offset)
        return slave

    def ask(self, *members: int) -> None:
        found = self.mode.sync_state_set
        assert found is not None
        found.ask(frozenset(members))


@pytest.mark.parametrize("in_sync_replicas", [1, 2])
def test_replicated_waits_for_a_replica_under_admission(in_sync_replicas: int) -> None:
    master = Master(in_sync_replicas=in_sync_replicas, total_replicas=3)
    verdicts: list[Replicated] = []
    second, third = master.connect(2, 0), master.connect(3, 0)
    master.ask(1, 2, 3)  # the controllers may admit 3 now, and elect it next
    master.copies.when(100, verdicts.append)
    master.report(second, 100)
    assert verdicts == []
    master.report(third, 100)
    assert verdicts == [Replicated.ENOUGH]


def test_replicated_waits_for_a_member_under_removal_and_for_an_unanswered_request() -> None:
    master = Master()
    verdicts: list[Replicated] = []
    second, third = master.connect(2, 0), master.connect(3, 0)
    master.ask(1, 3)
    assert master.mode.sync_state_set is not None
    master.mode.sync_state_set.unanswered()
    master.copies.when(100, verdicts.append)
    master.report(third, 100)
    assert verdicts == [], "2 is still a member"
    master.report(second, 90)
    assert verdicts == []
    master.report(second, 100)
    assert verdicts == [Replicated.ENOUGH]


def test_replicated_needs_as_many_copies_as_are_set() -> None:
    master = Master(in_sync_replicas=3, total_replicas=3)
    master.connect(2, 100)
    assert master.copies.value == 0
    third = master.connect(3, 0)
    master.ask(1, 2, 3)
    master.report(third, 100)
    assert master.copies.value == 100


@pytest.mark.parametrize(
    ("config", "verdict"), [({}, Replicated.HERE), ({"all_ack_in_sync_state_set": True}, Replicated.ENOUGH)]
)
def test_a_group_of_one_confirms_with_its_master_alone(config: dict[str, Any], verdict: Replicated) -> None:
    master = Master(**config)
    verdicts: list[Replicated] = []
    master.acks.when(100, verdicts.append)
    master.connect(2, 100)
    master.mode.on_appended()
    assert verdicts == [verdict]


def test_an_answer_is_asked_of_the_term_that_stored_its_message() -> None:
    master = Master()
    may_answer = master.mode.may_answer
    assert may_answer()
    master.mode.become_slave()
    assert not may_answer()
    master.mode.become_master(2)
    assert master.mode.may_answer()
    assert not may_answer(), "another master may have led in between, without the message"


def test_without_a_lease_a_report_raises_no_confirm_offset() -> None:
    """Its slaves would show consumers what the next master may not have."""
    master = Master()
    second = master.connect(2, 0)
    assert master.mode.confirm_offset == 100, (
        "a group that waits for no replica confirms with its master alone"
    )
    master.mode.lease_until_s = float("-inf")
    master.log.end = 200
    master.report(second, 150)
    assert master.mode.confirm_offset == 100
    master.mode.renew_lease(NO_LEASE)
    assert master.mode.confirm_offset == 200
