"""A broker.conf of the RocketMQ release after 5.5.0."""

from __future__ import annotations

from pathlib import Path

from aerobee.ops.settings.settings import broker_settings


def test_a_file_of_the_next_release_is_accepted(tmp_path: Path) -> None:
    """5.5.1 adds 14 keys of a broker, which have no effect, and removes enableLiteEventMode."""
    file = tmp_path / "broker.conf"
    file.write_text("batchDeleteTopicMaxRate=10.0\npopOrderLockTimerTickMs=100\nenableLiteEventMode=true\n")
    notes: list[str] = []
    broker_settings(path=str(file), environ={}, note=notes.append)
    assert "batchDeleteTopicMaxRate" in notes[0]
