"""Short runs of crash_rounds.py and clean_start.py on real processes and a real disk."""

from __future__ import annotations

import re
import signal

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from tests.survival import clean_start, crash_rounds, stop_under_load

ROUNDS = 2
LAST_RECORDS = 3


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_what_was_acknowledged_is_there_once_after_kill_9(sync_flush: bool) -> None:
    figures = crash_rounds.run(ROUNDS, sync_flush=sync_flush, seed=1)
    assert figures["rounds"] == ROUNDS
    assert figures["messages"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("backend", ["python", "native"])
@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_a_stop_while_many_send_loses_nothing_that_was_acknowledged(
    sync_flush: bool, backend: str, number: signal.Signals
) -> None:
    if backend == "native" and choose_backend().make_sockets is None:
        pytest.skip("only the native backend on Linux has sockets")
    environment = {"AEROBEE_FAST_PATH": backend}
    assert stop_under_load.run(number, sync_flush=sync_flush, environment=environment)["acknowledged"]


def test_a_clean_stop_leaves_nothing_to_scan_whatever_the_stores_size() -> None:
    figures = clean_start.measure(20_000_000, 4096, 8)  # raises when a start was no clean one
    assert figures["messages"] > 4_000
    scanned = re.search(r"(\d+) records scanned", figures["clean_log"])
    assert scanned is not None
    assert int(scanned[1]) <= LAST_RECORDS
