"""Groups: who may make them, what is stored, what is forbidden."""

from __future__ import annotations

import dataclasses

import pytest

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.clock import ManualClock
from aerobee.errors import StoreError, UsageError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.system_names import SYSTEM_GROUPS
from tests.fakes import MemoryFile


def make(file: MemoryFile | None = None, *, auto_create: bool = True) -> GroupTable:
    live = LiveConfig(BrokerConfig(broker_name="b", auto_create_subscription_group=auto_create))
    return GroupTable(clock=ManualClock(), live=live, file=file)  # type: ignore[arg-type]


async def test_groups_are_made_on_demand_when_that_is_allowed() -> None:
    file = MemoryFile()
    table = make(file)
    assert table.get("g") is None
    created = table.find_or_create("g")
    assert created == SubscriptionGroupConfig("g")
    assert table.get("g") is created
    await table.settled()
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


async def test_a_group_that_is_made_on_demand_needs_no_disk() -> None:
    file = MemoryFile()
    table = make(file)
    file.failure = StoreError("the disk is full")
    assert table.find_or_create("g") == SubscriptionGroupConfig("g")
    assert table.get("g") is not None
    await table.settled()
    file.failure = None
    table.find_or_create("another")
    await table.settled()
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


async def test_what_was_saved_is_loaded() -> None:
    file = MemoryFile()
    table = make(file)
    table.put(dataclasses.replace(SubscriptionGroupConfig("g"), consume_enable=False))
    table.set_readable("g", "T", False)
    await table.settled()
    again = make(file)
    again.load()
    assert again.groups == table.groups
    assert again.forbidden == table.forbidden
    assert again.data_version == table.data_version
    assert again.delete("g")
    assert not again.delete("g")
    assert again.forbidden == {}


async def test_groups_created_together_cause_one_async_write() -> None:
    file = MemoryFile()
    table = make(file)
    for number in range(100):
        assert table.find_or_create(f"g{number}") is not None
    assert file.value is None
    file.failure = StoreError("the disk is full")
    await table.settled()
    assert table.get("g99") is not None
    file.failure = None
    table.retry()
    await table.settled()
    assert file.value is not None
    assert file.write_count == 1
    assert {f"g{number}" for number in range(100)} <= set(file.value["subscriptionGroupTable"])
    table.retry()
    await table.settled()
    assert file.write_count == 1, "nothing is left to be saved"


async def test_what_is_asked_for_takes_effect_when_it_is_durable() -> None:
    file = MemoryFile()
    table = make(file)
    told: list[bool] = []
    table.on_change(lambda: told.append(file.value is not None))
    file.failure = StoreError("the disk is full")
    for change in (
        table.put_async((SubscriptionGroupConfig("g"),)),
        table.set_readable_async("TOOLS_CONSUMER", "T", False),
        table.delete_async("TOOLS_CONSUMER"),
    ):
        with pytest.raises(StoreError):
            await change
    assert table.get("g") is None
    assert table.is_readable("TOOLS_CONSUMER", "T")
    assert table.get("TOOLS_CONSUMER") is not None
    assert table.data_version.counter == 0
    assert told == []
    file.failure = None
    await table.put_async((SubscriptionGroupConfig("g"),))
    await table.set_readable_async("g", "T", False)
    await table.set_readable_async("g", "T", False)
    assert not table.is_readable("g", "T")
    assert told == [True, True]
    assert file.value == table.wrapper().to_dict()
    await table.delete_async("g")
    assert table.get("g") is None
    assert table.forbidden == {}
