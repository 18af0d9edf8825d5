"""Store directories that a real RocketMQ 5.5.0 broker left behind: opened, read, written on, opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.errors import ConfigError
from aerobee.message import decode_record, decode_records, encode_properties
from aerobee.store.index.index_file import INDEX_ENTRY, INDEX_ENTRY_BYTES
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.integration.store_archive import HOST, SMALL, Archive, read_queue

NAMES = (*SMALL, "all-scenarios", "controller-a", "controller-b")


@pytest.fixture(params=NAMES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    return Archive(request.param, tmp_path)


def check_content(store: MessageStore, archive: Archive) -> None:
    for record in archive.expected["records"]:
        data = store.read_record(record["physicalOffset"])
        assert data is not None
        assert len(data) == record["size"]
        decoded = decode_record(data)
        assert (decoded.topic, decoded.queue_id, decoded.queue_offset) == (
            record["topic"], record["queueId"], record["queueOffset"],
        )  # fmt: skip
        # A pair without a value is in the stored text, but no reader of properties shows it.
        assert dict(decoded.properties) == {
            name: value for name, value in record["properties"].items() if value
        }
        assert decoded.store_timestamp == record["storeTimestamp"]
        if "body" in record:
            assert decoded.body == record["body"].encode()
    for topic, queue_id, entries, is_batch in archive.queues():
        offsets = read_queue(store, topic, queue_id)
        assert offsets[: len(entries)] == [entry[0] for entry in entries]
        if not is_batch:
            queue = store.queues[topic, queue_id]
            assert [list(queue.entry(at) or ()) for at in range(len(entries))] == entries


async def test_every_listed_message_is_served_by_offset(archive: Archive) -> None:
    store = archive.open()
    assert archive.report.was_clean is not archive.expected["abort"]
    check_content(store, archive)
    await store.stop()


async def test_every_listed_key_finds_its_messages(archive: Archive) -> None:
    store = archive.open()
    for record in archive.expected["records"]:
        properties = record["properties"]
        keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split()]
        is_rollback = record["sysFlag"] & 0xC == 0xC
        for key in filter(None, keys):
            answer = store.query(record["topic"], key, count_max=64)
            offsets = [found.physical_offset for found in decode_records(answer.body)]
            assert (record["physicalOffset"] in offsets) is not is_rollback or len(offsets) == 64
        if properties.get("TAGS") and not is_rollback:
            answer = store.query(record["topic"], properties["TAGS"], count_max=64, index_type="T")
            assert record["physicalOffset"] in [r.physical_offset for r in decode_records(answer.body)]
    await store.stop()


async def test_every_listed_message_is_found_by_its_store_time(archive: Archive) -> None:
    store = archive.open()
    times = {record["physicalOffset"]: record["storeTimestamp"] for record in archive.expected["records"]}
    for topic, queue_id, entries, is_batch in archive.queues():
        if is_batch:
            continue
        moments = [times[entry[0]] for entry in entries]
        for at, moment in enumerate(moments):
            assert store.store_time(topic, queue_id, at) == moment
            assert store.offset_by_time(topic, queue_id, moment) == moments.index(moment)
            last = len(moments) - 1 - moments[::-1].index(moment)
            assert store.offset_by_time(topic, queue_id, moment, upper=True) == last
        assert store.offset_by_time(topic, queue_id, moments[-1] + 1) == len(moments)
        assert store.offset_by_time(topic, queue_id, moments[0] - 1) == 0
    await store.stop()


async def test_the_index_is_the_same_entry_by_entry_also_when_it_was_built_again(archive: Archive) -> None:
    store = archive.open()
    listed = list(archive.expected["index"].values())
    assert len(store.index.files) == len(listed)
    for file, wanted in zip(store.index.files, listed, strict=True):
        found = [
            list(INDEX_ENTRY.unpack_from(file.buffer, file.entries_at + number * INDEX_ENTRY_BYTES))
            for number in range(1, file.count)
        ]
        assert found == wanted["entries"]
        assert file.used_slots == wanted["usedSlots"]
        assert (file.begin_timestamp, file.end_timestamp) == (
            wanted["beginTimestamp"], wanted["endTimestamp"],
        )  # fmt: skip
    await store.stop()


async def test_writes_continue_and_survive_the_next_start(archive: Archive) -> None:
    store = archive.open()
    await store.start()
    topic, queue_id, entries, _ = next(queue for queue in archive.queues() if not queue[3])
    offsets = []
    for number in range(300):
        properties = encode_properties({"UNIQ_KEY": f"NEW{number}", "TAGS": "more"})
        message = StoredMessage(
            topic=topic, queue_id=queue_id, body=b"b" * 2000, properties=properties.encode(), born_host=HOST
        )
        offsets.append(store.append(message).queue_offset)
    assert offsets == list(range(len(entries), len(entries) + 300))
    await store.stop()
    store = archive.open()
    assert archive.report.was_clean
    assert archive.report.records_scanned <= 3
    check_content(store, archive)
    assert len(read_queue(store, topic, queue_id)) == len(entries) + 300
    assert store.query(topic, "NEW299", count_max=8).count == 1
    await store.stop()


async def test_a_directory_abandoned_while_writing_opens_whole(archive: Archive) -> None:
    store = archive.open()
    await store.start()
    topic, queue_id, entries, _ = next(queue for queue in archive.queues() if not queue[3])
    for number in range(50):
        store.append(
            StoredMessage(
                topic=topic,
                queue_id=queue_id,
                body=b"b" * 100,
                properties=f"UNIQ_KEY\x01NEW{number}\x02".encode(),
                born_host=HOST,
            )
        )
    await store.abandon()
    store = archive.open()
    assert not archive.report.was_clean
    check_content(store, archive)
    assert len(read_queue(store, topic, queue_id)) == len(entries) + 50
    await store.stop()


async def test_a_batch_queue_takes_more_records(tmp_path: Path) -> None:
    archive = Archive("batch-consume-queue", tmp_path)
    store = archive.open()
    assert store.max_offset("StoreBcq", 0) == 8
    store.append(StoredMessage(topic="StoreBcq", queue_id=0, body=b"x", properties=b"", born_host=HOST))
    batch = StoredMessage(
        topic="StoreBcq",
        queue_id=0,
        body=b"inner",
        properties=b"INNER_NUM\x015\x02INNER_BASE\x019\x02",
        sys_flag=0xC0,
        born_host=HOST,
    )
    assert store.append(batch).queue_offset == 9
    assert store.max_offset("StoreBcq", 0) == 14
    await store.abandon()
    store = archive.open()
    assert store.max_offset("StoreBcq", 0) == 14
    result = store.get_messages("StoreBcq", 0, 11, count_max=32)
    assert result.next_offset == 14
    assert decode_record(result.body).body == b"inner"
    await store.stop()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"mapped_file_size_commit_log": 1_048_576}, "mappedFileSizeCommitLog"),
        ({"mapped_file_size_consume_queue": 20_000}, "mappedFileSizeConsumeQueue"),
        ({"mapper_file_size_batch_consume_queue": 46_000}, "mapperFileSizeBatchConsumeQueue"),
        ({"max_index_num": 4_000}, "maxIndexNum"),
    ],
)
def test_files_of_another_length_are_refused_by_the_name_of_the_key(
    tmp_path: Path, change: dict[str, int], key: str
) -> None:
    archive = Archive("batch-consume-queue", tmp_path)
    with pytest.raises(ConfigError, match=key):
        archive.open(**change)


async def test_files_that_are_not_ours_stay_untouched(tmp_path: Path) -> None:
    archive = Archive("controller-a", tmp_path)
    ours = ("commitlog", "consumequeue", "index", "checkpoint", "abort", "abort.bak", "lock")

    def others() -> dict[str, bytes]:
        return {
            str(path.relative_to(archive.root)): path.read_bytes()
            for path in archive.root.rglob("*")
            if path.is_file() and path.relative_to(archive.root).parts[0] not in ours
        }

    before = others()
    store = archive.open()
    await store.start()
    store.append(StoredMessage(topic="More", queue_id=0, body=b"x", properties=b"", born_host=HOST))
    await store.stop()
    assert others() == before
