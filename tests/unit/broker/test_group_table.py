"""Groups: who may make them, what is stored, what is forbidden."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from aerobee.broker.config import BrokerConfig, LiveConfig
from aerobee.broker.consumer.group_table import SYSTEM_GROUPS, GroupTable
from aerobee.clock import ManualClock
from aerobee.errors import StoreError, UsageError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from tests.fakes import MemoryFile


def make(file: MemoryFile | None = None, *, auto_create: bool = True) -> GroupTable:
    live = LiveConfig(BrokerConfig(broker_name="b", auto_create_subscription_group=auto_create))
    return GroupTable(clock=ManualClock(), live=live, file=file)  # type: ignore[arg-type]


def test_groups_are_made_on_demand_when_that_is_allowed() -> None:
    file = MemoryFile()
    table = make(file)
    assert table.get("g") is None
    created = table.find_or_create("g")
    assert created == SubscriptionGroupConfig("g")
    assert table.get("g") is created
    assert file.value is not None
    assert "g" in file.value["subscriptionGroupTable"]
    assert table.data_version.counter == 1


def test_no_group_is_made_when_that_is_off_and_system_groups_are_there() -> None:
    table = make(auto_create=False)
    assert table.find_or_create("g") is None
    assert table.find_or_create("CID_RMQ_SYS_anything") is None
    assert make(auto_create=True).find_or_create("CID_RMQ_SYS_anything") is None
    assert set(SYSTEM_GROUPS) <= set(table.groups)


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "gr\u00fc\u00df"])
def test_an_illegal_name_makes_no_group(name: str) -> None:
    table = make()
    assert table.find_or_create(name) is None
    with pytest.raises(UsageError):
        table.put(SubscriptionGroupConfig(name))


def test_a_change_that_cannot_be_saved_does_not_take_effect() -> None:
    file = MemoryFile()
    table = make(file)
    file.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        table.put(SubscriptionGroupConfig("g"))
    assert table.get("g") is None
    assert table.data_version.counter == 0


def test_a_group_that_is_made_on_demand_needs_no_disk() -> None:
    file = MemoryFile()
    table = make(file)
    file.failure = StoreError("the disk is full")
    assert table.find_or_create("g") == SubscriptionGroupConfig("g")
    assert table.get("g") is not None
    file.failure = None
    table.find_or_create("another")
    assert file.value is not None
    assert {"g", "another"} <= set(file.value["subscriptionGroupTable"])


def test_the_same_settings_again_change_nothing() -> None:
    table = make()
    table.put(SubscriptionGroupConfig("g", retry_max_times=3))
    table.put(SubscriptionGroupConfig("g", retry_max_times=3))
    assert table.data_version.counter == 1


def test_reading_can_be_forbidden_topic_by_topic() -> None:
    table = make()
    table.set_readable("g", "T", False)
    assert not table.is_readable("g", "T")
    assert table.is_readable("g", "U")
    assert table.forbidden == {"g": {"T": 4}}
    table.set_readable("g", "T", True)
    assert table.is_readable("g", "T")
    assert table.forbidden == {}


def test_what_was_saved_is_loaded() -> None:
    file = MemoryFile()
    table = make(file)
    table.put(dataclasses.replace(SubscriptionGroupConfig("g"), consume_enable=False))
    table.set_readable("g", "T", False)
    again = make(file)
    again.load()
    assert again.groups == table.groups
    assert again.forbidden == table.forbidden
    assert again.data_version == table.data_version
    assert again.delete("g")
    assert not again.delete("g")
    assert again.forbidden == {}


def test_groups_that_are_new_at_once_are_written_once_and_beside() -> None:
    file, beside = MemoryFile(), list[Callable[[], None]]()
    live = LiveConfig(BrokerConfig(broker_name="b"))
    table = GroupTable(clock=ManualClock(), live=live, file=file, run_beside=beside.append)  # type: ignore[arg-type]
    for number in range(100):
        assert table.find_or_create(f"g{number}") is not None
    assert file.value is None
    assert len(beside) == 1
    file.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        beside.pop()()
    assert table.get("g99") is not None
    file.failure = None
    table.save_again()
    beside.pop()()
    assert file.value is not None
    assert {f"g{number}" for number in range(100)} <= set(file.value["subscriptionGroupTable"])
    table.save_again()
    assert not beside, "nothing is left to be saved"
