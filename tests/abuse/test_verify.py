"""`verify` finds each damaged range and changes nothing; `repair` recreates what the log can give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.ops.commands.tree import run_cli
from aerobee.store.files.config import StoreConfig
from aerobee.store.verify.checker import verify
from aerobee.store.verify.repair import repair
from tests.abuse.damage import Base, make_ours, read_queue

ORDERS = ("orders", 1)


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return make_ours(tmp_path / "store", crashed=False)


def config_of(base: Base) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(base.root), **base.config)


def content(base: Base) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in base.root.rglob("*") if path.is_file()}


def damage(base: Base) -> int:
    """A bit of a body, and a queue file. Returns where the record is."""
    victim = base.queues[ORDERS][5]
    path = base.root / "commitlog" / f"{victim.physical - victim.physical % 16_384:020d}"
    data = bytearray(path.read_bytes())
    data[victim.physical % 16_384 + 90] ^= 1
    path.write_bytes(data)
    (base.root / "consumequeue" / "orders" / "2" / f"{0:020d}").write_bytes(bytes(400))
    return victim.physical


def test_a_whole_store_is_whole_and_stays_as_it_is(base: Base) -> None:
    before = content(base)
    report = verify(config_of(base))
    assert report.is_whole
    assert report.records >= sum(map(len, base.queues.values()))
    assert content(base) == before


def test_each_damage_is_found_and_nothing_is_changed(base: Base) -> None:
    physical = damage(base)
    before = content(base)
    report = verify(config_of(base))
    assert [damage.start for damage in report.damaged] == [physical]
    assert report.damaged[0].reason == "the body does not match its CRC"
    assert {(each.topic, each.queue_id) for each in report.wrong} == {("orders", 2)}
    assert len(report.wrong) == 20
    assert content(base) == before


def test_what_can_be_had_from_the_log_is_mended(base: Base) -> None:
    damage(base)
    notes = repair(config_of(base))
    assert "added" in notes[0]
    assert any("the body does not match its CRC" in note for note in notes)
    assert verify(config_of(base)).wrong_count == 0
    store = base.make(base.root)
    store.load()
    assert len(read_queue(store, ("orders", 2))) == len(base.queues["orders", 2])


def test_the_command_prints_a_report_and_ends_with_a_code(
    base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [
        "mappedFileSizeCommitLog=16384", "mappedFileSizeConsumeQueue=400", "mapperFileSizeBatchConsumeQueue=460",
        "maxHashSlotNum=32", "maxIndexNum=100",
    ]  # fmt: skip
    arguments = [
        "store",
        "verify",
        "--data",
        str(base.root),
        *(word for size in sizes for word in ("--set", size)),
    ]
    assert run_cli([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"]
    physical = damage(base)
    assert run_cli(arguments) != 0
    assert f"log bytes {physical} to" in capsys.readouterr().out


def test_a_directory_without_a_store_is_no_whole_store(
    base: Base, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_cli(["store", "verify", "--data", str(tmp_path / "nowhere")]) != 0
    assert "has no store" in capsys.readouterr().err
    assert run_cli(["store", "verify", "--data", str(base.root.parent)]) != 0
    assert f"name one of {base.root}" in capsys.readouterr().err
