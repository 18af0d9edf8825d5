"""A slave's reports to a master that sends and does not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aerobee.broker.replication.follower import MasterConnection


class Connection(MasterConnection):
    def _greet(self, transport: Any) -> None:
        """Nothing."""

    def _read(self, data: bytes | memoryview) -> None:
        """Nothing."""

    def _space(self) -> memoryview | None:
        return None

    def _on_space_filled(self, count: int) -> None:
        """Nothing."""

    def _encode_report(self, offset: int) -> bytes:
        return b"%d" % offset


async def test_a_master_that_does_not_read_costs_one_report() -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(write=written.append, is_closing=lambda: False, abort=lambda: None)
    owner = SimpleNamespace(on_write=lambda: None, on_read=lambda: None)
    connection = Connection(cast(Any, owner))
    connection.connection_made(cast(Any, transport))
    connection.report(1)
    connection.pause_writing()
    for offset in range(2, 1_000):
        connection.report(offset)
    assert written == [b"1"]
    connection.resume_writing()
    assert written == [b"1", b"999"], "the newest is not lost"
    connection.pause_writing()
    connection.resume_writing()
    connection.report(1_000)
    assert written == [b"1", b"999", b"1000"]
