"""The audit log: lines of unknown clients are bounded, lines of users are complete, and full files are renamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.audit import WAITING_MAX, AuditLog
from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.refusals import (
    COUNTED_ADDRESSES_MAX,
    LINES_MAX,
    LINES_OF_AN_ADDRESS,
    OTHERS,
    WINDOW_MS,
    Refusals,
)
from aerobee.errors import ConfigError, RemoteError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer
from tests.unit.access.gate_requests import CONFIG, refusal, request, users

WIDEST = "\U00010400"  # twelve bytes of JSON
CODE = int(RequestCode.DELETE_TOPIC_IN_BROKER)


def lines_of(*paths: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_lines_about_an_unknown_client_are_limited_and_counted(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.log", [0]
    audit = AuditLog(str(path), lambda: now[0])
    gate = Gate(keeper=None, admin_open=False, audit=audit)
    refused = 2 * WAITING_MAX  # without a bound they would push others' lines out of the queue
    peer, asked = FakePeer(("10.0.0.9", 5)), RemotingCommand(CODE, {"topic": "t"})
    for _ in range(refused):
        with pytest.raises(RemoteError):
            gate.check(peer, asked)
    gate.check(FakePeer(("127.0.0.1", 5)), asked)
    now[0] += WINDOW_MS
    with pytest.raises(RemoteError):
        gate.check(peer, asked)
    gate.close()
    said = [(line["from"], line["result"].partition(" more")[0][:40]) for line in lines_of(path)]
    line = ("10.0.0.9", said[0][1])
    assert said[: LINES_OF_AN_ADDRESS + 1] == [line] * LINES_OF_AN_ADDRESS + [("127.0.0.1", "passed")]
    count = refused - LINES_OF_AN_ADDRESS
    assert said[LINES_OF_AN_ADDRESS + 1 :] == [
        ("10.0.0.9", f"refused: {count}"),
        line,
    ]
    assert audit.lost_count == 0


def test_refusals_of_a_user_who_has_shown_his_key_are_all_there(tmp_path: Path) -> None:
    path, many = tmp_path / "audit.log", 10 * LINES_OF_AN_ADDRESS
    audit = AuditLog(str(path), lambda: 0)
    gate = Gate(keeper=UserKeeper(users(), CONFIG, lambda: "c"), admin_open=False, audit=audit)
    for _ in range(many):
        assert "no permission" in refusal(gate, request(CODE, topic="bills"))  # of alice
        assert "not signed" in refusal(gate, request(CODE, user="", topic="bills"))
        assert "is not found" in refusal(
            gate, RemotingCommand(CODE, {"AccessKey": WIDEST * 400, "topic": WIDEST * 400})
        )
    gate.close()
    lines = lines_of(path)
    assert sum(line["who"] == "alice" for line in lines) == many
    others = [line for line in lines if line["who"] != "alice"]
    assert len(others) == LINES_OF_AN_ADDRESS + 1
    assert f" {2 * many - LINES_OF_AN_ADDRESS} more" in others[-1]["result"]
    # docs/access-control.md: 200 MB a day
    assert max(map(len, path.read_bytes().splitlines())) * LINES_MAX * 24 * 60 < 200e6


def test_many_addresses_share_a_bound_too() -> None:
    refusals = Refusals()
    admitted = sum(refusals.admit(f"10.0.{each // 250}.{each % 250}", 5) for each in range(1_000))
    assert admitted == LINES_MAX
    assert refusals.left_out(WINDOW_MS - 1) == []
    told = dict(refusals.left_out(WINDOW_MS))
    assert sum(told.values()) == 1_000 - LINES_MAX
    assert len(told) == COUNTED_ADDRESSES_MAX + 1
    assert OTHERS in told
    assert refusals.left_out(2 * WINDOW_MS) == []
    assert refusals.admit("10.0.0.1", WINDOW_MS)


def test_a_full_file_is_renamed_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), lambda: 0, bytes_max=500, files_max=2)
    for number in range(40):
        audit.note(who="root", code=CODE, what=f"topic={number:02d}", host="10.0.0.1", result="passed")
    audit.close()
    old = [tmp_path / "audit.log.2", tmp_path / "audit.log.1"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(each.stat().st_size <= 500 for each in (path, *old))
    numbers = [int(line["what"][-2:]) for line in lines_of(*old, path)]
    assert numbers == list(range(40 - len(numbers), 40))
    assert len(numbers) > 6


def test_a_file_that_cannot_be_renamed_keeps_every_line_and_the_log_says_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.log"
    (tmp_path / "audit.log.1").mkdir()
    audit = AuditLog(str(path), lambda: 0, bytes_max=500, files_max=1)
    for _ in range(20):
        audit.note(who="root", code=CODE, what="", host="10.0.0.1", result="passed")
    audit.close()
    assert len(lines_of(path)) == 20
    assert caplog.text.count("cannot be renamed") == 1


@pytest.mark.parametrize("key", ["audit_log_bytes_max", "audit_log_files_max"])
def test_bounds_that_cannot_be_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="auditLog"):
        AccessConfig(**{key: -1})  # type: ignore[arg-type]
