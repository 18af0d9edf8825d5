import errno
import json
import random

import pytest

from aerobee.broker.state.config_file import ConfigFile
from aerobee.errors import StoreError
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.json_file import load_config_file, load_statistics_file, save_config_file

PATH = "/store/config/topics.json"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


def test_the_newest_content_is_loaded_and_the_one_before_is_kept(disk: SimulatedDisk) -> None:
    save_config_file(disk, PATH, b"[1]", json.loads)
    save_config_file(disk, PATH, b"[2]", json.loads)
    assert load_config_file(disk, PATH, json.loads) == [2]
    assert disk.content(PATH + ".bak") == b"[1]"


@pytest.mark.parametrize("content", [b"", b"  \n", b"{half"])
def test_an_unusable_file_is_replaced_by_the_one_before(disk: SimulatedDisk, content: bytes) -> None:
    save_config_file(disk, PATH, b"[1]", json.loads)
    save_config_file(disk, PATH, b"[2]", json.loads)
    disk.replace_file(PATH, content)
    assert load_config_file(disk, PATH, json.loads) == [1]


def test_nothing_usable_is_an_error_that_names_both_files(disk: SimulatedDisk) -> None:
    disk.replace_file(PATH, b"{")
    disk.replace_file(PATH + ".bak", b"{")
    with pytest.raises(StoreError, match=r"topics\.json\.bak"):
        load_config_file(disk, PATH, json.loads)


def test_no_file_is_none(disk: SimulatedDisk) -> None:
    assert load_config_file(disk, PATH, json.loads) is None


def test_a_saved_file_survives_power_loss(disk: SimulatedDisk) -> None:
    save_config_file(disk, PATH, b"[1]", json.loads)
    disk.power_loss()
    assert load_config_file(disk, PATH, json.loads) == [1]


@pytest.mark.parametrize("content", [b"", b" \n\t"])
def test_an_empty_file_without_the_one_before_is_no_fresh_start(disk: SimulatedDisk, content: bytes) -> None:
    disk.replace_file(PATH, content)
    with pytest.raises(StoreError, match=r"topics\.json is empty"):
        load_config_file(disk, PATH, json.loads)


@pytest.mark.parametrize("lost", [PATH, PATH + ".bak"])
def test_one_file_can_be_lost_also_after_the_first_time_it_was_saved(
    disk: SimulatedDisk, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_config_file(disk, PATH, b"[1]", json.loads)
    disk.remove(lost)
    assert load_config_file(disk, PATH, json.loads) == [1]
    assert ("topics.json is missing; using" in caplog.text) is (lost == PATH)


@pytest.mark.parametrize("content", [b"", b"{half"])
def test_statistics_begin_anew_and_that_is_said(
    disk: SimulatedDisk, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.replace_file(PATH, content)
    assert load_statistics_file(disk, PATH, json.loads) is None
    assert "begin again" in caplog.text
    assert PATH in caplog.text


TOPICS = {"topicConfigTable": {"orders": {"readQueueNums": 4}}}
DAMAGE = (b"", b" \n", b'{"topicConfigTable":{"orders"', b"\0" * 40, b'{"offsetTable":{}}')


def saved_twice(disk: SimulatedDisk) -> ConfigFile:
    file = ConfigFile(PATH, disk=disk)
    file.write(TOPICS)
    file.write({**TOPICS, "dataVersion": {"counter": 1}})
    return file


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("content", DAMAGE)
def test_damaged_content_never_becomes_the_copy(disk: SimulatedDisk, content: bytes, restarted: bool) -> None:
    file = saved_twice(disk)
    good = disk.content(PATH + ".bak")
    disk.replace_file(PATH, content)
    if restarted:
        file = ConfigFile(PATH, disk=disk)
        assert file.read() == TOPICS
    file.write({**TOPICS, "dataVersion": {"counter": 2}})
    assert disk.content(PATH + ".bak") == good
    assert json.loads(disk.content(PATH))["dataVersion"] == {"counter": 2}


@pytest.mark.parametrize("content", DAMAGE)
def test_a_save_that_ends_anywhere_leaves_a_usable_file(content: bytes) -> None:
    """At each call of the disk the power goes, or the disk is full; also over damaged content."""
    ended = 0
    for way in ("cut", "full"):
        for damaged in (None, PATH, PATH + ".bak"):
            for call in range(40):
                disk = SimulatedDisk(random.Random(call))
                file = saved_twice(disk)
                if damaged is not None:
                    disk.replace_file(damaged, content)
                calls = 0

                def refuse(name: str, path: str, at: int = call) -> int:
                    nonlocal calls
                    calls += 1
                    return errno.ENOSPC if calls == at + 1 else 0

                try:
                    if way == "cut":
                        disk.cut_power_at(call + 1)
                    else:
                        disk.fail = refuse
                    file.write({**TOPICS, "dataVersion": {"counter": 9}})
                except (PowerCut, StoreError):
                    ended += 1
                disk.fail = lambda call, path: 0
                if way == "cut":
                    disk.power_loss()
                found = ConfigFile(PATH, disk=disk).read()
                assert found is not None
                assert found["topicConfigTable"] == TOPICS["topicConfigTable"]
    assert ended > 30


def test_a_save_over_two_damaged_files_leaves_two_usable_ones(disk: SimulatedDisk) -> None:
    file = saved_twice(disk)
    for path in (PATH, PATH + ".bak"):
        disk.replace_file(path, b"{")
    file.write(TOPICS)
    for path in (PATH, PATH + ".bak"):
        assert json.loads(disk.content(path)) == TOPICS


def test_a_file_that_cannot_be_read_is_written_again(disk: SimulatedDisk) -> None:
    file = saved_twice(disk)
    disk.fail = lambda call, path: errno.EIO if (call, path) == ("read", PATH) else 0
    file.write(TOPICS)
    disk.fail = lambda call, path: 0
    assert ConfigFile(PATH, disk=disk).read() == TOPICS
