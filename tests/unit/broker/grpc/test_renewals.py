"""Messages of clients that have the broker renew them: when, for how long, and what becomes of those that a client leaves behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.renewal_table import (
    CLIENT_SILENT_MS,
    FIRST_INVISIBLE_MS,
    RENEW_AHEAD_MS,
    RENEW_MAX_MS,
    STEPS_MS,
    Client,
    RenewalTable,
)
from aerobee.broker.grpc.renewals import GIVE_BACK_MS, Renewals
from aerobee.broker.pop.ack_service import Changed, ChangeRequest
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.clock import ManualClock
from aerobee.errors import RemoteError, StoreFull
from aerobee.remoting.body.pop_handle import Handle

CLIENT, OTHER = ("client", "alice"), ("client", "bob")


class Acks:
    """AckService.change_invisible alone."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.changes: list[ChangeRequest] = []
        self.error: Exception | None = None

    def change_invisible(self, asked: ChangeRequest, consumer: str) -> Changed:
        if self.error is not None:
            raise self.error
        self.changes.append(asked)
        handle = replace(asked.handle, pop_time=self._clock.now_ms(), invisible_ms=asked.invisible_ms)
        return Changed(handle, 1)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.acks = Acks(self.clock)
        self.serves = True
        self.renewals = Renewals(acks=cast(Any, self.acks), clock=self.clock, may_write=lambda: self.serves)

    def receipt(self, offset: int = 0) -> Receipt:
        return Receipt(
            Handle(offset, self.clock.now_ms(), FIRST_INVISIBLE_MS, 0, "0", "broker-a", 0, offset), 4_096
        )

    def take(self, offset: int = 0, client: Client = CLIENT) -> Receipt:
        receipt = self.receipt(offset)
        self.renewals.add("g", client, "10.0.0.1:7", "orders", receipt)
        return receipt

    def advance(self, ms: int, *, client: Client = CLIENT) -> None:
        """Let the client be there all the time."""
        while ms > 0:
            step = min(ms, CLIENT_SILENT_MS // 2)
            self.clock.advance(step / 1000)
            self.renewals.seen(client)
            ms -= step


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_is_renewed_before_it_would_come_back(world: World) -> None:
    receipt = world.take()
    world.advance(FIRST_INVISIBLE_MS - RENEW_AHEAD_MS - 1_000)
    assert world.acks.changes == []
    world.advance(1_500)
    (change,) = world.acks.changes
    assert (change.handle, change.invisible_ms, change.suspend) == (receipt.handle, STEPS_MS[0], False)


def test_the_first_handle_finds_the_one_in_force(world: World) -> None:
    receipt = world.take()
    world.advance(FIRST_INVISIBLE_MS)
    renewed = world.renewals.table.find("g", str(receipt))
    assert renewed is not None
    assert renewed.receipt != receipt
    assert renewed.receipt.handle.invisible_ms == STEPS_MS[0]
    assert renewed.receipt.physical_offset == receipt.physical_offset
    assert world.renewals.table.find("other", str(receipt)) is None


def test_each_renewal_is_longer_until_the_message_is_given_back(world: World) -> None:
    world.take()
    world.advance(RENEW_MAX_MS + STEPS_MS[-1])
    times = [change.invisible_ms for change in world.acks.changes]
    assert times[:-1] == [*STEPS_MS, *[STEPS_MS[-1]] * (len(times) - 1 - len(STEPS_MS))]
    assert (times[-1], world.acks.changes[-1].suspend) == (GIVE_BACK_MS, True)
    assert len(world.renewals.table) == 0


def test_messages_of_a_silent_client_come_back(world: World) -> None:
    world.take()
    world.clock.advance(CLIENT_SILENT_MS / 1000 + 1)
    assert [change.invisible_ms for change in world.acks.changes] == [*STEPS_MS[:2], GIVE_BACK_MS]
    assert len(world.renewals.table) == 0


def test_messages_of_a_client_that_ends_come_back(world: World) -> None:
    first, _ = world.take(0), world.take(1, client=OTHER)
    world.renewals.client_left(CLIENT)
    assert [(each.handle, each.invisible_ms) for each in world.acks.changes] == [(first.handle, GIVE_BACK_MS)]
    assert len(world.renewals.table) == 1


def test_an_acknowledged_message_is_not_renewed(world: World) -> None:
    receipt = world.take()
    renewed = world.renewals.table.find("g", str(receipt))
    assert renewed is not None
    world.renewals.table.remove(renewed)
    world.advance(FIRST_INVISIBLE_MS * 2)
    assert world.acks.changes == []
    assert world.renewals.table.next_due_ms() is None


def test_a_message_that_another_one_has_is_forgotten(world: World) -> None:
    world.take()
    world.acks.error = Refused(Reason.NOT_HELD, "handed out again")
    world.advance(FIRST_INVISIBLE_MS)
    assert len(world.renewals.table) == 0


def test_a_renewal_that_fails_is_tried_again(world: World) -> None:
    world.take()
    world.acks.error = StoreFull("the disk is full")
    world.advance(FIRST_INVISIBLE_MS - RENEW_AHEAD_MS + 500)
    world.acks.error = None
    world.advance(2_000)
    assert len(world.acks.changes) == 1
    world.acks.error = StoreFull("the disk is full")
    world.advance(STEPS_MS[0] + 2_000)
    assert len(world.renewals.table) == 0


@pytest.mark.parametrize(
    "error",
    [
        Refused(Reason.NOT_MASTER, "the broker is a slave"),
        Refused(Reason.TOPIC_UNKNOWN, "the topic is not here yet"),
        RemoteError(2, "flow control"),
    ],
)
def test_a_renewal_is_retried_until_the_message_comes_back(world: World, error: Exception) -> None:
    """The first refusal, and the third failure of any kind, ended the renewal."""
    world.take()
    world.acks.error = error
    world.advance(FIRST_INVISIBLE_MS - 3_000)
    assert len(world.renewals.table) == 1
    world.acks.error = None
    world.advance(2_000)
    assert len(world.acks.changes) == 1


def test_a_broker_that_serves_pop_no_more_writes_nothing(world: World) -> None:
    world.take()
    world.serves = False
    world.advance(FIRST_INVISIBLE_MS)
    assert (world.acks.changes, len(world.renewals.table)) == ([], 0)


def test_the_table_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.broker.grpc.renewal_table.RECEIPTS_MAX", 2)
    world, table = World(), RenewalTable()
    for offset in range(4):
        table.add("g", CLIENT, "10.0.0.1:7", "orders", world.receipt(offset), 0)
    assert len(table) == 2


def test_entries_of_acknowledged_messages_are_dropped_from_the_heap() -> None:
    world, table = World(), RenewalTable()
    for offset in range(1_000):
        receipt = world.receipt(offset)
        table.add("g", CLIENT, "10.0.0.1:7", "orders", receipt, 0)
        renewed = table.find("g", str(receipt))
        assert renewed is not None
        table.remove(renewed)
    assert len(table._due) < 200
