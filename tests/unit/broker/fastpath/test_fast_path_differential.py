"""Both backends of the fast path give the same answers and the same bytes: the short form of tests/fuzz/fastpath_differential.py."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.gate import Grant
from aerobee.access.keepers import UserKeeper
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.errors import ConfigError
from aerobee.message import encode_properties, pack_host
from tests.fuzz import fastpath_counterparts, fastpath_differential, fastpath_sockets
from tests.fuzz.fastpath_differential import Disagreement, run
from tests.fuzz.fastpath_guarded import SECRETS
from tests.rounds import rounds
from tests.unit.broker.sending import send_frame

BURSTS = int(os.environ.get("AEROBEE_FAST_PATH_BURSTS") or rounds(1500))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    try:
        choose_backend(NATIVE)
    except ConfigError as error:
        pytest.skip(str(error))
    logging.disable(logging.CRITICAL)  # offsets that go back, names that are not legal
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("store", [0, 1, 3], ids=["with-transactions", "with-handlers", "with-sockets"])
def test_backends_and_handlers_agree_on_random_bursts(store: int) -> None:
    assert run(BURSTS, seed=int(os.environ.get("AEROBEE_FAST_PATH_SEED", "20")), first_store=store) > 0


@pytest.mark.parametrize("store", [1, 2, 3], ids=["accounts", "users", "with-sockets"])
def test_they_agree_where_access_control_is_on(store: int) -> None:
    seed = int(os.environ.get("AEROBEE_FAST_PATH_SEED", "20"))
    assert run(BURSTS // 3, seed=seed, first_store=store, guarded=True) > 20 * (BURSTS // 3)


def test_a_frame_that_the_gate_refuses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no permission is let in by both backends alike; the handlers behind the gate refuse him."""
    monkeypatch.setattr(UserKeeper, "grant", lambda keeper, request, host: Grant("x", SECRETS["alice"]))
    with pytest.raises(Disagreement, match=r"store 2, burst \d+: the fast path and the handlers: "):
        run(500, seed=1, first_store=2, guarded=True)


def test_a_byte_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a difference: one bit of one backend's log, of its queue entries or of its index is turned."""
    real, calls = fastpath_differential.check_everything, []

    def turned(backends: list[fastpath_counterparts.Counterpart]) -> None:
        calls.append(1)
        file = backends[1].store.index.files[-1]
        file.buffer[file.entries_at + 25] ^= 1
        real(backends)

    monkeypatch.setattr(fastpath_differential, "check_everything", turned)
    with pytest.raises(Disagreement, match=r"seed 1, store 0, burst 499: index 0 bytes differs at byte \d+"):
        run(500, seed=1)
    assert calls


def test_what_the_handlers_do_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that a backend answers and a handler refuses, or stores in another way."""
    monkeypatch.setattr(fastpath_counterparts, "is_half", lambda message: False)
    with pytest.raises(Disagreement, match=r"store 1, burst \d+: the fast path and the handlers: "):
        run(2_000, seed=1, first_store=1)


@pytest.mark.skipif(sys.platform != "linux", reason="native sockets are there on Linux alone")
def test_what_turns_of_sockets_do_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration that ends while a run lingers is reported, and a record with another time is detected."""
    made: list[fastpath_sockets.SocketCounterpart] = []
    begin = fastpath_sockets.SocketCounterpart.__init__

    def begun(counterpart: fastpath_sockets.SocketCounterpart, *arguments: Any, **settings: Any) -> None:
        begin(counterpart, *arguments, **settings)
        made.append(counterpart)

    monkeypatch.setattr(fastpath_sockets.SocketCounterpart, "__init__", begun)
    run(300, seed=1, socket_stores=1)
    assert made[0].run_count > made[0].lingered_count > 10
    next_turn = fastpath_sockets._Exchange._next_turn
    monkeypatch.setattr(fastpath_sockets._Exchange, "_next_turn", lambda exchange: next_turn(exchange) + 1)
    with pytest.raises(Disagreement, match=r"store 0, burst \d+: one burst and turns of sockets .*written: "):
        run(300, seed=1, socket_stores=1)


@pytest.mark.parametrize("name", [PYTHON, NATIVE])
def test_a_half_message_without_a_key_opens_no_queue(name: str, tmp_path: Path) -> None:
    counterpart = fastpath_counterparts.Counterpart(tmp_path, name)
    try:
        half = {"TRAN_MSG": "true", "PGROUP": "PG", "WAIT": "true"}
        for number, key in enumerate(({}, {"UNIQ_KEY": "K-1"}, {"UNIQ_KEY": "K1"})):
            frame = send_frame("TopicNormal", f="4", properties=encode_properties({**half, **key}))
            used = counterpart.burst(frame, 0, pack_host("10.0.0.1", 1))[1]
            assert (used > 0) == (("TopicNormal", 1) in counterpart.store.queues) == (number == 2)
    finally:
        counterpart.close()
