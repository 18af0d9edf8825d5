"""The messages that a broker group still holds, and the broker that takes over from a stopped master."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aerobee.client.base.results import BrokerInfo, ConsumerProgress, QueueProgress
from aerobee.errors import RemoteError, UsageError
from aerobee.message import MessageQueue
from aerobee.ops.commands.drain import Remainder, chosen, make_read_only, unread, waiting
from aerobee.ops.commands.ha import successor_of


def progress(group: str, *queues: tuple[str, int, int]) -> ConsumerProgress:
    return ConsumerProgress(
        group=group,
        consume_tps=0,
        queues=tuple(
            QueueProgress(
                queue=MessageQueue("orders", broker, number),
                broker_offset=end,
                consumer_offset=committed,
                pull_offset=committed,
                last_timestamp_ms=0,
            )
            for number, (broker, end, committed) in enumerate(queues)
        ),
    )


def test_only_queues_of_the_drained_brokers_count() -> None:
    found = unread(
        [progress("app", ("a", 10, 4), ("a", 5, 5), ("b", 9, 0)), progress("idle", ("a", 3, 3))],
        frozenset("a"),
    )
    assert found == [Remainder("a", "group app", 6)]
    assert str(found[0]) == "a: 6 of group app"


def test_timers_levels_and_transactions_wait() -> None:
    runtime = {
        "timerPending": "2",
        "openTransactions": "0",
        "scheduleMessageOffset_3": "7,9",
        "scheduleMessageOffset_4": "9,9",
        "putTps": "1.0",
    }
    assert waiting("a", runtime) == [Remainder("a", "timers", 2), Remainder("a", "delay levels", 2)]
    assert waiting("a", {}) == []


def brokers(*names: str) -> list[BrokerInfo]:
    return [BrokerInfo(cluster="c", broker_name=name, broker_id=0, address="h:1") for name in names]


def test_all_but_names_what_goes() -> None:
    assert chosen(brokers("a", "b", "c"), (), ["a", "b"]) == {"c"}
    assert chosen(brokers("a", "b"), (), ["a", "b", "c"]) == frozenset()
    assert chosen(brokers("a", "b"), ["b"], ()) == {"b"}


def test_a_strange_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"x is not registered.*: a, b"):
        chosen(brokers("a", "b"), ["x"], ())


def member(number: int, *, end: int = 100, **changes: Any) -> dict[str, Any]:
    return {
        "brokerId": number,
        "address": f"h{number}:1",
        "isAlive": True,
        "isInSync": True,
        "isDiskSound": True,
        "maxOffset": end,
        **changes,
    }


def group(*members: dict[str, Any], master: int = 1) -> list[dict[str, Any]]:
    return [
        {"brokerName": "other", "brokers": []},
        {"brokerName": "a", "masterId": master, "brokers": list(members)},
    ]


def test_the_heir_is_in_sync_and_has_most_of_the_log() -> None:
    found = successor_of(
        group(member(1), member(2, end=90), member(3, end=95), member(4, end=99, isInSync=False)), "a", "h1:1"
    )
    assert found == 3


def test_who_does_not_lead_has_no_heir() -> None:
    assert successor_of(group(member(1), member(2)), "a", "h2:1") is None
    assert successor_of(group(member(1), member(2), master=0), "a", "h1:1") is None
    assert successor_of([], "a", "h1:1") is None


@pytest.mark.parametrize("flaw", ["isAlive", "isInSync", "isDiskSound"])
def test_without_an_heir_the_reason_is_said(flaw: str) -> None:
    with pytest.raises(UsageError, match="only h1:1 can be master of a"):
        successor_of(group(member(1), member(2, **{flaw: False})), "a", "h1:1")


class OneBroker:
    """What drain asks of a broker whose file cannot be written."""

    def __init__(self, permission: str) -> None:
        self._permission = permission
        self.asked: list[dict[str, str]] = []

    async def update_broker_config(self, address: str, values: dict[str, str]) -> None:
        self.asked.append(values)
        raise RemoteError(1, "not kept for the next start", address=address)

    async def broker_config(self, address: str) -> dict[str, str]:
        return {"brokerPermission": self._permission}


async def test_a_broker_that_cannot_write_its_file_is_drained_when_the_change_is_in_force() -> None:
    broker = OneBroker("4")
    await make_read_only(cast(Any, broker), "h:1")
    assert broker.asked == [{"brokerPermission": "4"}], (
        "the refusal is believed only after a look at what is in force"
    )


async def test_a_refused_change_is_an_error() -> None:
    with pytest.raises(RemoteError, match="not kept"):
        await make_read_only(cast(Any, OneBroker("6")), "h:1")
