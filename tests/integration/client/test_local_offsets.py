"""Offsets of broadcasting groups in files that get damaged, and saves that end in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee.client.consumer.local_offsets import LocalOffsets
from aerobee.errors import StoreError
from aerobee.message import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)
DAMAGE = (b"", b"{half", b"\0" * 64, b"{}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "127.0.0.1@DEFAULT" / "group"


async def save(directory: Path, *offsets: int) -> None:
    store = LocalOffsets(directory)
    for offset in offsets:
        await store.save({QUEUE: offset})


@pytest.mark.parametrize("content", DAMAGE)
async def test_a_damaged_offsets_file_is_replaced_by_the_one_before(
    directory: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await save(directory, 5, 6)
    (directory / "offsets.json").write_bytes(content)
    assert await LocalOffsets(directory).load(QUEUE) == 5
    assert "offsets.json.bak, which holds what was saved before" in caplog.text


@pytest.mark.parametrize("content", DAMAGE)
async def test_damaged_offsets_never_become_the_copy(directory: Path, content: bytes) -> None:
    store = LocalOffsets(directory)
    await store.save({QUEUE: 5})
    await store.save({QUEUE: 6})
    (directory / "offsets.json").write_bytes(content)
    await store.save({QUEUE: 7})
    (directory / "offsets.json").unlink()
    assert await LocalOffsets(directory).load(QUEUE) == 5


@pytest.mark.parametrize("rename", [1, 2])
async def test_a_save_that_fails_at_either_rename_leaves_usable_offsets(
    directory: Path, rename: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await save(directory, 5, 6)
    calls = 0

    def refuse(source: Path, target: Path, replace=os.replace) -> None:  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == rename:
            raise OSError(28, "no space")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    store = LocalOffsets(directory)
    await store.save({QUEUE: 7})
    assert "not written" in caplog.text
    assert await LocalOffsets(directory).load(QUEUE) == 6
    monkeypatch.undo()
    await store.save({})
    assert await LocalOffsets(directory).load(QUEUE) == 7


async def test_two_damaged_offsets_files_are_an_error_that_names_both(directory: Path) -> None:
    await save(directory, 5, 6)
    for name in ("offsets.json", "offsets.json.bak"):
        (directory / name).write_bytes(b"{")
    with pytest.raises(StoreError, match=r"offsets\.json: .*offsets\.json\.bak: "):
        await LocalOffsets(directory).load(QUEUE)
