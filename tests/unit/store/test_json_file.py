import json
import random

import pytest

from aerobee.errors import StoreError
from aerobee.store.json_file import load_config_file, load_statistics_file, save_config_file
from aerobee.testing.simulated_disk import SimulatedDisk

PATH = "/store/config/topics.json"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


def test_the_newest_content_is_loaded_and_the_one_before_is_kept(disk: SimulatedDisk) -> None:
    save_config_file(disk, PATH, b"[1]")
    save_config_file(disk, PATH, b"[2]")
    assert load_config_file(disk, PATH, json.loads) == [2]
    assert disk.content(PATH + ".bak") == b"[1]"


@pytest.mark.parametrize("content", [b"", b"  \n", b"{half"])
def test_an_unusable_file_is_replaced_by_the_one_before(disk: SimulatedDisk, content: bytes) -> None:
    save_config_file(disk, PATH, b"[1]")
    save_config_file(disk, PATH, b"[2]")
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
    save_config_file(disk, PATH, b"[1]")
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
    save_config_file(disk, PATH, b"[1]")
    disk.remove(lost)
    assert load_config_file(disk, PATH, json.loads) == [1]
    assert ("topics.json is missing; using" in caplog.text) is (lost == PATH)


@pytest.mark.parametrize("content", [b"", b"{half"])
def test_statistics_begin_anew_and_that_is_said(
    disk: SimulatedDisk, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.replace_file(PATH, content)
    assert load_statistics_file(disk, PATH, json.loads) is None
    assert "begin anew" in caplog.text
    assert PATH in caplog.text
