from aerobee.message import encode_record
from aerobee.store.log.dispatch import (
    ScanKind,
    batch_size_of,
    entry_tags_code,
    index_texts,
    scan_record,
)

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def record(offset: int = 700, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": b"T", "queue_id": 1, "queue_offset": 3, "physical_offset": offset, "body": b"body",
        "properties": b"TAGS\x01a\x02", "born_host": HOST, "store_host": HOST, "store_timestamp": 5,
    }  # fmt: skip
    return encode_record(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_record_is_recognised_with_anything_behind_it() -> None:
    scan = scan_record(record() + b"\xff" * 50, 700, check_crc=True)
    assert scan.kind is ScanKind.RECORD
    assert scan.record is not None
    assert (scan.record.topic, scan.record.queue_offset, scan.record.store_timestamp) == ("T", 3, 5)


def test_every_cut_short_record_is_bad_and_never_an_exception() -> None:
    whole = record()
    for size in range(8, len(whole)):
        assert scan_record(whole[:size], 700, check_crc=True).kind is ScanKind.BAD


def test_zeros_end_the_log_and_a_blank_ends_the_file() -> None:
    assert scan_record(bytes(100), 0, check_crc=True).kind is ScanKind.END
    assert (
        scan_record(bytes.fromhex("00000064cbd43194") + bytes(92), 0, check_crc=True).kind is ScanKind.BLANK
    )


def test_a_record_of_another_offset_is_bad() -> None:
    assert "at 700" in scan_record(record(), 900, check_crc=True).reason


def test_a_changed_body_is_bad_when_the_crc_is_checked() -> None:
    data = record().replace(b"body", b"bodi")
    assert scan_record(data, 700, check_crc=True).kind is ScanKind.BAD
    assert scan_record(data, 700, check_crc=False).kind is ScanKind.RECORD


def test_properties_with_a_sector_that_was_never_written_are_bad() -> None:
    data = bytearray(record(0, properties=b"KEYS\x01" + b"k" * 2000 + b"\x02"))
    assert scan_record(bytes(data), 0, check_crc=True).kind is ScanKind.RECORD
    data[1024:1536] = bytes(512)
    assert scan_record(bytes(data), 0, check_crc=True).kind is ScanKind.BAD


def test_keys_are_indexed_in_rocketmqs_order() -> None:
    assert index_texts({"TAGS": "t", "KEYS": "a  b", "UNIQ_KEY": "u"}) == ("u", "a", "b", "T#t")


def test_the_schedule_topics_entries_hold_the_delivery_time() -> None:
    assert entry_tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": "2", "TAGS": "t"}, 1000, (10, 20)) == 1020
    assert entry_tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": "9"}, 1000, (10, 20)) == 1020
    assert entry_tags_code("Other", {"TAGS": "TagA"}, 1000, (10, 20)) == 2598919


def test_an_inner_batch_counts_its_messages() -> None:
    assert batch_size_of(0xC0, {"INNER_NUM": "4"}) == 4
    assert batch_size_of(0, {"INNER_NUM": "4"}) == 1
    assert batch_size_of(0xC0, {"INNER_NUM": "x"}) == 1


def test_numbers_with_any_count_of_digits_are_read_as_none() -> None:
    many = "9" * 5000  # more than int() takes
    assert entry_tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": many}, 7, (1000,)) == 0
    for count in (many, "40000", "0", "-1", "x", ""):
        assert batch_size_of(0x80, {"INNER_NUM": count}) == 1
    assert batch_size_of(0x80, {"INNER_NUM": "32767"}) == 32_767
