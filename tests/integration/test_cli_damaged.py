"""`aerobee consume` names a damaged message, goes on with the others, and its exit code says that one was."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee import Message, SyncProducer
from aerobee.ops.commands import run_cli
from aerobee.testing import ThreadedCluster


@pytest.mark.parametrize("way", [(), ("--verbose",), ("--json",)], ids=["plain", "verbose", "json"])
def test_a_damaged_message_is_named_and_passed_over(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: tuple[str, ...]
) -> None:
    with ThreadedCluster(directory=tmp_path) as cluster:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)
        with SyncProducer(cluster.nameserver_address) as producer:
            for body in (b"first one", b"second one", b"third one"):
                producer.send(Message("orders", body))
        (log,) = (tmp_path / "broker-a" / "commitlog").iterdir()
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"second one"))
            file.write(b"S")
        code = run_cli(["consume", "orders", "--from", "first", "--no-follow", *way])
    out, err = capfd.readouterr()
    assert "first one" in out
    assert "third one" in out
    assert "econd one" not in out
    assert "does not match its CRC" in err
    assert "damaged and passed over: 1 message" in out + err  # JSON says it as JSON
    assert code not in (0, 2)
