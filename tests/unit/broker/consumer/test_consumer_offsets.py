"""The offset table, its file and server-side resets."""

from __future__ import annotations

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.state import newest_names
from aerobee.clock import ManualClock
from aerobee.errors import StoreError
from aerobee.remoting import fastjson
from tests.fakes import MemoryFile


def make(file: MemoryFile | None = None) -> ConsumerOffsets:
    return ConsumerOffsets(clock=ManualClock(), file=file)  # type: ignore[arg-type]


def test_a_commit_is_read_back_and_may_go_back() -> None:
    offsets = make()
    assert offsets.query("g", "T", 0) is None
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 0, 4)
    assert offsets.query("g", "T", 0) == 4
    assert offsets.query("g", "T", 1) is None
    assert offsets.topics_of("g") == ["T"]
    assert offsets.groups_of("T") == ["g"]


def test_commits_are_ignored_until_a_reset_is_taken() -> None:
    offsets = make()
    told: list[tuple[str, str, int]] = []
    offsets.on_reset(lambda *where: told.append(where))
    offsets.commit("g", "T", 0, 10)
    offsets.assign_reset("g", "T", {0: 2, 1: 0})
    assert told == [("g", "T", 0), ("g", "T", 1)]
    assert offsets.has_resets
    offsets.commit("g", "T", 0, 11)
    assert offsets.query("g", "T", 0) == 2
    assert offsets.take_reset("g", "T", 0) == 2
    assert offsets.take_reset("g", "T", 0) is None
    offsets.commit("g", "T", 0, 3)
    assert offsets.query("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 1) == 0
    assert not offsets.has_resets


def test_removals_of_lmqs_push_out_no_topic_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_names, "NEWEST_MAX", 2)
    file = MemoryFile()
    offsets = make(file)
    for number in range(3):
        offsets.remove_topic(f"T{number}")
        offsets.remove_group(f"g{number}")
        for each in range(3):
            offsets.remove_topic(f"%LMQ%{number}-{each}")
    names = ["T1@", "@g1", "T2@", "@g2", "%LMQ%2-1@", "%LMQ%2-2@"]
    assert list(offsets.removed) == names
    offsets.save()
    again = make(file)
    again.load()
    assert list(again.removed) == names


def test_the_file_has_rocketmqs_shape() -> None:
    file = MemoryFile()
    offsets = make(file)
    offsets.commit("g", "T", 0, 3)
    offsets.commit("g", "%RETRY%g", 0, 1)
    offsets.note_pull("g", "T", 0, 5)
    offsets.save()
    assert file.value is not None
    assert list(file.value) == ["dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable"]
    assert file.value["groupTopicMap"] == {"g": ["T", "%RETRY%g"]}
    assert file.value["offsetTable"] == {"T@g": {0: 3}, "%RETRY%g@g": {0: 1}}
    assert file.value["pullOffsetTable"] == {"T@g": {0: 5}}
    assert b'"T@g":{\n\t\t\t0:3\n\t\t}' in fastjson.dumps_pretty(file.value)


def test_the_file_that_a_broker_of_rocketmq_wrote_is_read(rocketmq_offsets: bytes) -> None:
    offsets = make(MemoryFile(fastjson.loads_object(rocketmq_offsets, "the file")))
    offsets.load()
    assert offsets.query("CG_store", "StoreNormal", 1) == 2
    assert offsets.query("CG_storeretry", "%RETRY%CG_storeretry", 0) == 1
    assert offsets.query_pulled("CG_store", "StoreNormal", 0) == 3
    assert offsets.data_version.timestamp == 1795220398292
    assert fastjson.loads(fastjson.dumps(offsets.to_dict())) == fastjson.loads(rocketmq_offsets)


@pytest.fixture
def rocketmq_offsets() -> bytes:
    tabs = "{'dataVersion':{'counter':0,'stateVersion':0,'timestamp':1795220398292},'groupTopicMap':"
    tabs += (
        "{'CG_store':['StoreNormal'],'CG_storeretry':['StoreRetry','%RETRY%CG_storeretry']},'offsetTable':"
    )
    tabs += "{'StoreNormal@CG_store':{\n\t\t\t0:3,\n\t\t\t1:2\n\t\t},'StoreRetry@CG_storeretry':{0:1},"
    tabs += (
        "'%RETRY%CG_storeretry@CG_storeretry':{0:1}},'pullOffsetTable':{'StoreNormal@CG_store':{0:3,1:2}}}"
    )
    return tabs.replace("'", '"').encode()


def test_a_failed_write_is_repeated() -> None:
    file = MemoryFile()
    offsets = make(file)
    offsets.commit("g", "T", 0, 3)
    file.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        offsets.save()
    file.failure = None
    offsets.save()
    offsets.save()
    assert file.write_count == 1


def test_what_is_committed_until_the_thread_comes_by_is_not_in_the_file() -> None:
    file = MemoryFile()
    offsets = make(file)
    offsets.commit("g", "T", 0, 3)
    offsets.commit("g", "U", 0, 1)
    save = offsets.prepare_save()
    assert save is not None
    for offset in (4, 5):
        offsets.commit("g", "T", 0, offset)
    offsets.commit("g", "T", 1, 7)
    offsets.commit("h", "T", 0, 9)
    assert offsets.prepare_save() is None  # one at a time
    save()
    assert file.value is not None
    assert file.value["offsetTable"] == {"T@g": {0: 3}, "U@g": {0: 1}}
    save_again = offsets.prepare_save()
    assert save_again is not None
    offsets.commit("g", "T", 0, 6)
    file.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        save_again()
    file.failure = None
    save_again()  # tried again: the same content
    assert file.value["offsetTable"] == {"T@g": {0: 5, 1: 7}, "U@g": {0: 1}, "T@h": {0: 9}}
    assert offsets.prepare_save() is not None
    offsets.drop_save()
    last = offsets.prepare_save()
    assert last is not None
    last()
    assert file.value["offsetTable"]["T@g"] == {0: 6, 1: 7}


def test_a_broken_file_stops_the_broker_rather_than_losing_offsets() -> None:
    offsets = make(MemoryFile({"offsetTable": {"T@g": {"0": "many"}}}))
    with pytest.raises(StoreError, match=r"consumerOffset\.json"):
        offsets.load()


def test_removed_groups_and_topics_leave_nothing() -> None:
    offsets = make()
    offsets.commit("g", "T", 0, 3)
    offsets.commit("g", "U", 0, 3)
    offsets.commit("h", "T", 0, 3)
    offsets.assign_reset("g", "T", {0: 0})
    offsets.remove_topic("T")
    assert not offsets.has_resets
    assert (offsets.topics_of("g"), offsets.topics_of("h"), offsets.groups_of("T")) == (["U"], [], [])
    offsets.remove_group("g")
    assert offsets.to_dict()["offsetTable"] == {}


def test_a_group_takes_over_the_offsets_of_another() -> None:
    offsets = make()
    offsets.commit("g", "T", 0, 3)
    offsets.commit("g", "T", 5, 8)
    offsets.clone("g", "h", "T")
    assert offsets.queues_of("h", "T") == {0: 3, 5: 8}


def test_a_new_master_says_up_to_where_its_offsets_know_of_pops() -> None:
    """Its slaves, and its own file after a kill, must not take what it has not read yet for nothing."""
    file = MemoryFile()
    offsets = ConsumerOffsets(clock=ManualClock(), file=file, log_end_now=lambda: 900)  # type: ignore[arg-type]
    offsets.copied(500)
    offsets.commit("g", "T", 0, 3)
    assert offsets.known_to is None
    offsets.copied(None)  # it is master now, and the log has check points of its predecessor up to 900
    assert offsets.known_to == 500
    offsets.save()
    assert file.value is not None
    assert file.value["aerobeeLogEnd"] == 500
    offsets.pops_are_known()
    assert offsets.known_to is None


def test_that_offsets_count_what_was_cut_off_is_known_after_a_restart() -> None:
    """A slave is killed between the cut of its log and its master's offsets: it sends none of its offsets to the master then."""
    file = MemoryFile()
    offsets = make(file)
    offsets.commit("g", "T", 0, 5)
    offsets.log_cut(100)
    offsets.save(force=True)
    again = make(file)
    again.load()
    assert again.counts_cut_off
    again.cut_is_over()
    again.save()
    last = make(file)
    last.load()
    assert not last.counts_cut_off


def test_pops_of_a_former_master_are_in_its_table() -> None:
    """What its log says is taken from where it resigned; from where it had begun when it resigns before it has read that."""
    end = 900
    offsets = ConsumerOffsets(clock=ManualClock(), log_end_now=lambda: end)
    offsets.resigned()
    end = 1_000
    offsets.resigned()
    offsets.copied(None)
    assert (offsets.log_end, offsets.known_to) == (900, 900)
    offsets.resigned()
    offsets.copied(None)
    assert offsets.known_to == 900, "what stands between was not read"
    offsets.pops_are_known()
    offsets.resigned()
    offsets.copied(None)
    assert offsets.log_end == 1_000
