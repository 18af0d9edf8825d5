"""The topic table: RocketMQ's file both ways, versions, notices, and what happens when the disk refuses."""

from __future__ import annotations

import asyncio
import json
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.state import newest_names
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.topic_table import TopicTable, deletions_of
from aerobee.clock import ManualClock
from aerobee.errors import StoreError, UsageError
from aerobee.remoting import fastjson
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.files.disk import RealDisk

STORES = Path(__file__).parents[3] / "data" / "store"


def table(path: Path) -> TopicTable:
    topics = TopicTable(file=ConfigFile(path, disk=RealDisk()), clock=ManualClock())
    topics.load()
    return topics


def rocketmq_topics() -> bytes:
    with tarfile.open(STORES / "clean-shutdown.tar.gz") as archive:
        member = archive.extractfile("clean-shutdown/config/topics.json")
        assert member is not None
        return member.read()


def test_a_file_of_rocketmq_is_read_and_written_again_alike(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(rocketmq_topics())
    topics = table(path)
    assert topics.get("StoreNormal") == TopicConfig("StoreNormal", 2, 2)
    assert topics.topics["StoreTimer"].attributes == {"message.type": "DELAY"}
    topics.save()
    assert path.read_bytes() == rocketmq_topics()


def test_system_topics_are_those_of_rocketmq(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    topics.create_system_topics(BrokerConfig(broker_name="broker-a", trace_topic_enable=True))
    theirs: dict[str, Any] = fastjson.loads(rocketmq_topics())["topicConfigTable"]
    system = {name for name in theirs if not name.startswith(("Store", "%"))}
    assert set(topics.topics) >= system
    for name in system:
        assert topics.topics[name].to_dict() == theirs[name]
        assert topics.is_system(name)
    assert topics.data_version.counter == 1, "made with one write"


async def test_each_change_grows_the_version_and_is_on_disk_before_it_is_told(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    seen: list[bool] = []

    def saved(field: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "topics.json").read_text())[field]
        return found

    topics.on_change(lambda _: seen.append("TopicA" in saved("topicConfigTable")))
    await topics.put_async((TopicConfig("TopicA"),))
    assert topics.data_version.counter == 1
    assert await topics.delete_async(("TopicA", "Unknown")) == ["TopicA"]
    assert await topics.delete_async(("TopicA",)) == []
    assert topics.data_version.counter == 2
    assert seen == [True, False]
    assert saved("topicConfigTable") == {}
    assert saved("aerobeeDeleted") == {"TopicA": 0}


async def test_replicas_hear_of_a_deleted_lmq_that_is_in_no_table(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    version = topics.data_version.counter
    assert await topics.delete_async(("%LMQ%one",), queues_of=("%LMQ%one",)) == []
    assert topics.deleted == {"%LMQ%one": 0}
    assert topics.data_version.counter == version + 1


async def test_deleted_lmqs_do_not_push_out_deleted_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_names, "NEWEST_MAX", 3)
    topics = table(tmp_path / "topics.json")
    await topics.put_async(TopicConfig(f"T{number}") for number in range(4))
    for number in range(4):
        await topics.delete_async((f"T{number}",))
        await topics.delete_async((), queues_of=[f"%LMQ%{number}-{each}" for each in range(3)])
    assert list(topics.deleted) == ["T1", "T2", "T3", "%LMQ%3-0", "%LMQ%3-1", "%LMQ%3-2"]
    again = table(tmp_path / "topics.json")
    again.load()
    assert again.deleted == topics.deleted
    told = deletions_of({**dict.fromkeys(map(str, range(20)), 5), **topics.deleted})
    assert told is not None
    assert len(told) == 9, "as many as a master may keep, the newest ones"
    assert told.items() >= topics.deleted.items()


async def test_deletions_are_where_the_log_ends_when_the_topic_goes(tmp_path: Path) -> None:
    """Messages come while the file is written: they are the deleted topic's, too."""
    end = 100

    class Slow(ConfigFile):
        def write(self, value: Any) -> None:
            nonlocal end
            super().write(value)
            end += 7

    file = Slow(tmp_path / "topics.json", disk=RealDisk())
    topics = TopicTable(file=file, clock=ManualClock(), log_end=lambda: end)
    await topics.put_async((TopicConfig("TopicA"), TopicConfig("TopicB")))
    await topics.delete_async(("TopicA",))
    assert topics.deleted == {"TopicA": 114}
    await topics.settled()
    again = TopicTable(file=ConfigFile(tmp_path / "topics.json", disk=RealDisk()), clock=ManualClock())
    again.load()
    assert again.deleted == {"TopicA": 114}


@pytest.mark.parametrize("value", ["x", 3, [], {"t": -1}, {"t": "5"}, {"t": 1 << 63}, {"t": True}])
def test_deletions_that_cannot_be_are_left_out(value: object) -> None:
    assert not deletions_of(value)


async def test_a_change_that_cannot_be_saved_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = table(tmp_path / "topics.json")
    await topics.put_async((TopicConfig("TopicA"),))
    version = topics.data_version

    def refuse(self: ConfigFile, value: object) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(ConfigFile, "write", refuse)
    with pytest.raises(StoreError):
        await topics.put_async((TopicConfig("TopicB"),))
    with pytest.raises(StoreError):
        await topics.delete_async(("TopicA",))
    told: list[object] = []
    topics.create_then(TopicConfig("TopicC"), told.append)
    await topics.settled()
    assert [type(error) for error in told] == [StoreError]
    assert set(topics.topics) == {"TopicA"}
    assert topics.data_version == version


async def test_creations_are_told_in_order_when_the_topic_is_durable(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    seen: list[tuple[int, bool, bool]] = []

    def tell(number: int) -> Callable[[object], None]:
        return lambda error: seen.append(
            (number, error is None, "Mine" in names_in(tmp_path / "topics.json") and "Mine" in topics.topics)
        )

    for number in range(3):
        topics.create_then(TopicConfig("Mine", 4 + number, 4 + number), tell(number))
    assert seen == []
    assert "Mine" not in topics.topics
    await topics.settled()
    assert seen == [(0, True, True), (1, True, True), (2, True, True)]
    assert topics.topics["Mine"].read_queue_nums == 4, "who comes later finds the topic"


async def test_who_waits_for_a_topic_fails_alone(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    seen: list[object] = []

    def fail(error: object) -> None:
        raise RuntimeError("a fault of one that waits")

    topics.create_then(TopicConfig("A"), fail)
    topics.create_then(TopicConfig("B"), seen.append)
    await topics.settled()
    assert seen == [None]
    await topics.put_async((TopicConfig("C"),))
    assert set(topics.topics) == {"A", "B", "C"}


async def test_retry_topics_with_messages_are_made_again(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    topics.put(TopicConfig("%RETRY%known", 1, 1))
    queues = [("%RETRY%lost", 0), ("%RETRY%lost", 2), ("%DLQ%lost", 0), ("%RETRY%known", 5), ("plain", 0)]
    assert topics.adopt(queues) == ["%RETRY%lost", "%DLQ%lost"]
    assert topics.topics["%RETRY%lost"].read_queue_nums == 3
    assert topics.topics["%RETRY%known"].read_queue_nums == 1
    assert "plain" not in topics.topics


@pytest.mark.parametrize("name", ["", "a b", "a/b", "t" * 128])
async def test_illegal_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        await table(tmp_path / "topics.json").put_async((TopicConfig(name),))


async def test_an_order_configuration_changes_no_version(tmp_path: Path) -> None:
    topics = table(tmp_path / "topics.json")
    await topics.put_async((TopicConfig("TopicA"),))
    version = topics.data_version
    topics.set_order_topics({"TopicA": "broker-a:4", "Unknown": "x:1"})
    assert topics.topics["TopicA"].order
    assert topics.data_version == version


class CountingFile(ConfigFile):
    """Counts writes; `before_write` runs in the thread that writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, disk=RealDisk())
        self.writes = 0
        self.before_write: Callable[[], None] = lambda: None

    def write(self, value: Mapping[str, Any]) -> None:
        self.before_write()
        self.writes += 1
        super().write(value)


def names_in(path: Path) -> set[str]:
    return set(json.loads(path.read_text())["topicConfigTable"])


async def test_topics_that_are_made_at_once_share_a_write(tmp_path: Path) -> None:
    file = CountingFile(tmp_path / "topics.json")
    topics = TopicTable(file=file, clock=ManualClock())
    told: list[str] = []
    topics.on_change(lambda configs: told.extend(config.topic_name for config in configs))
    wanted = {f"Topic{number}" for number in range(50)}
    await asyncio.gather(*(topics.put_async((TopicConfig(name),)) for name in wanted))
    assert set(topics.topics) == wanted == set(told) == names_in(tmp_path / "topics.json")
    assert len(told) == 50
    assert file.writes <= 3
    assert json.loads((tmp_path / "topics.json").read_text())["dataVersion"]["counter"] == file.writes


async def test_the_table_may_change_while_a_thread_writes_it(tmp_path: Path) -> None:
    file = CountingFile(tmp_path / "topics.json")
    topics = TopicTable(file=file, clock=ManualClock())
    await topics.put_async((TopicConfig("Old"),))
    is_writing, may_write = threading.Event(), threading.Event()

    def hold() -> None:
        file.before_write = lambda: None
        is_writing.set()
        may_write.wait()

    file.before_write = hold
    making = asyncio.create_task(topics.put_async((TopicConfig("Async"),)))
    await asyncio.to_thread(is_writing.wait)
    assert "Async" not in topics.topics, "an entry that is not on the disk is visible"
    may_write.set()
    topics.put(TopicConfig("Meanwhile"))
    topics.delete("Old")
    await making
    await topics.settled()
    assert set(topics.topics) == {"Async", "Meanwhile"} == names_in(tmp_path / "topics.json")


async def test_topics_that_cannot_be_saved_are_not_made(tmp_path: Path) -> None:
    file = CountingFile(tmp_path / "topics.json")
    topics = TopicTable(file=file, clock=ManualClock())

    def refuse() -> None:
        raise StoreError("no space left")

    file.before_write = refuse
    results = await asyncio.gather(
        *(topics.put_async((TopicConfig(f"Topic{number}"),)) for number in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreError] * 5
    file.before_write = lambda: None
    await topics.put_async((TopicConfig("Later"),))
    assert set(topics.topics) == {"Later"} == names_in(tmp_path / "topics.json")


async def test_topics_of_the_broker_itself_live_in_memory_when_the_disk_refuses(tmp_path: Path) -> None:
    file = CountingFile(tmp_path / "topics.json")
    topics = TopicTable(file=file, clock=ManualClock())

    def refuse() -> None:
        raise StoreError("no space left")

    file.before_write = refuse
    await topics.put_async((TopicConfig("%RETRY%g"),), must_save=False)
    topics.create_dead_letter_topic("g")
    await topics.settled()
    assert set(topics.topics) == {"%RETRY%g", "%DLQ%g"}
    file.before_write = lambda: None
    topics.retry()
    await topics.settled()
    assert names_in(tmp_path / "topics.json") == {"%RETRY%g", "%DLQ%g"}
    writes = file.writes
    topics.retry()
    await topics.settled()
    assert file.writes == writes, "nothing is left to be saved"


def test_growing_to_read_or_to_write_takes_no_queue_away() -> None:
    table = TopicTable(file=None, clock=ManualClock())
    table.put(TopicConfig("%RETRY%G", 8, 1))
    grown = table.grow_internal("%RETRY%G", 4)
    assert (grown.read_queue_nums, grown.write_queue_nums) == (8, 4)
    version = table.data_version
    assert table.grow_internal("%RETRY%G", 4) is grown
    assert table.data_version == version


@pytest.mark.parametrize(
    ("topic", "queue_id", "stored"),
    [("T", 2, 2), ("T", 4, 4), ("T", 5, 2), ("T", 7, 1), ("read", 9, 1), ("gone", 7, 7), ("rmq_sys_x", 7, 7)],
)
def test_a_waiting_message_goes_to_an_existing_queue(topic: str, queue_id: int, stored: int) -> None:
    table = TopicTable(file=None, clock=ManualClock())
    # "T" is being shrunk: 5 queues are read until they are empty, 3 are written to.
    table.put_all((TopicConfig("T", 5, 3), TopicConfig("read", 4, 0), TopicConfig("rmq_sys_x", 1, 1)))
    assert table.existing_queue(topic, queue_id) == stored
