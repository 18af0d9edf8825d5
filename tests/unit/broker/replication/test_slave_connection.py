"""What the connections of slaves have in common, in classic and in controller mode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.replication.auto_switch_slave_connection import AutoSwitchSlaveConnection
from aerobee.broker.replication.classic_slave_connection import ClassicSlaveConnection
from aerobee.broker.replication.controller_files import END_OF_LAST
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.log_sender import LogSender
from aerobee.broker.replication.slave_connection import SlaveConnection
from aerobee.clock import ManualClock
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake
from aerobee.ha.stream.transfer_header import StateReport, encode_report
from aerobee.store.files.config import StoreConfig

SEGMENT_BYTES = 1 << 20


class Transport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.2", 4_711) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True


class Log:
    """A log of one file, all of it in memory."""

    min_offset, segment_size = 0, SEGMENT_BYTES

    def __init__(self) -> None:
        self.end = 0

    def segment_at(self, offset: int) -> Any:
        return SimpleNamespace(base=0, end=self.end, file=SimpleNamespace(buffer=bytes(self.end)))


class Master:
    """A store and one slave of it, of either mode, which has said where to begin."""

    def __init__(self, mode: str) -> None:
        self.clock = ManualClock()
        self.log = Log()
        self.failure: Exception | None = None
        store: Any = SimpleNamespace(log=self.log, config=StoreConfig(), warm_records=None)
        common: dict[str, Any] = {
            "store": store,
            "clock": self.clock,
            "on_ack": self._on_ack,
            "on_lost": lambda _: None,
            "is_urgent": lambda: True,
            "ended": EndedSlaves(self.clock),
        }
        epochs: Any = SimpleNamespace(
            at=lambda _: (EpochEntry(1, 0), END_OF_LAST), sent=lambda: (EpochEntry(1, 0),)
        )
        self.slave: SlaveConnection
        if mode == "classic":
            self.slave = ClassicSlaveConnection(admit=lambda _: "", **common)
        else:
            self.slave = AutoSwitchSlaveConnection(
                epochs=epochs,
                confirm_offset=lambda: 0,
                is_member=lambda _: True,
                on_connected=lambda _: "",
                claim=lambda slave: slave.admitted(),
                **common,
            )
        self.transport = Transport()
        self.slave.connection_made(self.transport)  # type: ignore[arg-type]
        if mode == "controller":
            handshake = Handshake(broker_id=2, is_sync_from_last_file=False, is_async_learner=False)
            self.slave.data_received(handshake.encode())
        self._is_classic = mode == "classic"
        self.report(0)

    def report(self, offset: int) -> None:
        report = encode_report(offset) if self._is_classic else StateReport(offset).encode()
        self.slave.data_received(report)

    def append(self, size: int) -> None:
        self.log.end += size
        self.slave.wake()

    def _on_ack(self, slave: SlaveConnection) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture(params=["classic", "controller"])
def master(request: pytest.FixtureRequest) -> Master:
    return Master(request.param)


def test_the_rate_of_what_a_slave_is_sent_is_reported(master: Master) -> None:
    master.append(3_000)
    assert master.slave.state().sent == 3_000
    master.clock.advance(1.5)
    assert master.slave.state().bytes_per_s == pytest.approx(2_000, rel=0.5)
    master.clock.advance(3)
    assert master.slave.state().bytes_per_s == 0, "nothing moved in the last second"


def test_an_internal_error_closes_the_connection_with_its_reason(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    master.append(100)
    master.failure = KeyError("a bug")
    master.report(100)
    assert master.transport.is_aborted
    assert "serving the slave at 10.0.0.2:4711 failed" in caplog.text
    assert "an internal error of this broker: KeyError('a bug')" in caplog.text


def test_bytes_after_the_end_of_a_connection_are_not_read(master: Master) -> None:
    master.append(100)
    master.slave.end("a test")
    master.report(100)
    assert master.slave.state().acknowledged < 100


@pytest.mark.parametrize("offset", [101, 60])
def test_a_report_of_bytes_that_were_not_sent_closes_the_connection(master: Master, offset: int) -> None:
    master.append(50)
    master.log.end = 100  # not sent yet
    master.report(offset)
    assert master.transport.is_aborted
    assert master.slave.state().acknowledged < 50


def test_a_report_acknowledges_and_tells_when_the_slave_had_the_whole_log(master: Master) -> None:
    master.append(50)
    master.report(50)
    state = master.slave.state()
    assert (state.acknowledged, state.is_in_sync, state.caught_up_at_s) == (
        50,
        True,
        master.clock.monotonic(),
    )


def test_a_silent_slave_is_disconnected(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(25):
        master.clock.advance(1)
    assert master.transport.is_aborted
    assert "haHousekeepingInterval" in caplog.text


def test_a_slave_that_takes_no_bytes_of_a_deleted_file_is_disconnected(
    master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reported its log's end from time to time, read nothing, and the disk kept the file for ever."""
    is_kept = False
    monkeypatch.setattr(LogSender, "keeps_deleted_file", property(lambda _: is_kept))

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            master.clock.advance(1)
            master.report(0)

    wait(60)
    is_kept = True
    wait(19)
    is_kept = False  # it has the file
    wait(5)
    is_kept = True
    wait(19)
    assert not master.transport.is_aborted
    wait(5)
    assert master.transport.is_aborted
    assert "it takes no bytes of a file that was deleted" in caplog.text
