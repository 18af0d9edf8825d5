import pytest

from aerobee.errors import ConfigError
from aerobee.store.files.config import FlushDiskType, StoreConfig


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"flush_disk_type": "SOMETIMES"},
            "flushDiskType is 'SOMETIMES': it must be one of ASYNC_FLUSH, SYNC_FLUSH",
        ),
        (
            {"mapped_file_size_consume_queue": 4001},
            "mappedFileSizeConsumeQueue is 4001: it must be a multiple of 20",
        ),
        ({"mapped_file_size_commit_log": 100}, "mappedFileSizeCommitLog is 100"),
        ({"max_hash_slot_num": 0}, "maxHashSlotNum is 0: it must be above 0"),
        ({"file_reserved_time": -1}, "fileReservedTime is -1"),
        ({"disk_max_used_space_ratio": 99}, "diskMaxUsedSpaceRatio is 99: it must be from 10 to 95"),
        (
            {"disk_space_clean_forcibly_ratio": 95, "disk_space_warning_level_ratio": 90},
            "diskSpaceCleanForciblyRatio is 95: it must not be above diskSpaceWarningLevelRatio, which is 90",
        ),
        ({"delete_when": "04;25"}, "deleteWhen is '04;25'"),
        ({"store_path_commit_log": "/a,/b"}, "one directory is supported"),
        ({"message_delay_level": "1s 5x"}, "'5x' is not a number followed by"),
        ({"max_message_size": "4m"}, "maxMessageSize is '4m': it must be a whole number"),
        ({"store_path_root_dir": ""}, "storePathRootDir is empty"),
    ],
)
def test_a_wrong_value_is_refused_by_key_value_and_reason(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreConfig(**change)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_defaults_are_those_of_rocketmq() -> None:
    config = StoreConfig()
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.index_file_bytes == 420_000_040
    assert config.delay_levels_ms()[0] == 1_000
    assert config.delay_levels_ms()[17] == 7_200_000


def test_flush_type_is_taken_as_text() -> None:
    assert StoreConfig(flush_disk_type="SYNC_FLUSH").is_sync_flush  # type: ignore[arg-type]
