"""The HTTP/2 cores: the short form of tests/fuzz/http2_differential.py, and which one a broker takes."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.grpc.call import Event
from aerobee.grpc.frame_scanner import PREFACE, SETTINGS
from aerobee.grpc.http2_connection import Http2Connection
from tests.fuzz.http2_differential import LIMITS, Client, Disagreement, Pair, run
from tests.fuzz.http2_reference import Http2Reference
from tests.unit.grpc.raw_peer import frame

native = pytest.importorskip("aerobee_native")
ROUNDS = 250
CORES = [Http2Reference, Http2Connection, native.Http2Connection]


@pytest.mark.parametrize("seed", range(2))
def test_the_cores_agree_on_conversations(seed: int) -> None:
    done, open_count, _ = run(ROUNDS, 1_000 + seed, CORES)
    assert done == ROUNDS
    assert 0 < open_count < ROUNDS, "some connections last, and some end"


def test_the_cores_agree_on_short_hostile_connections() -> None:
    done, _, inputs = run(1_000, 2_000, CORES, is_short=True)
    assert inputs["bad"] == inputs["all"] > done == 1_000


class Deaf(Http2Connection):
    """Loses the last event of each read."""

    def receive(self, data: bytes, now: float) -> list[Event]:
        return super().receive(data, now)[:-1]


def test_a_lost_event_is_seen() -> None:
    pair = Pair([Http2Connection, Deaf], LIMITS[0], 0.0)
    client = Client(random.Random(1), is_calm=True)
    with pytest.raises(Disagreement, match="after receive"):
        pair.do("receive", PREFACE + frame(SETTINGS) + client.call() + client.call(), 0.0)


def test_a_broker_takes_the_core_of_its_backend() -> None:
    assert choose_backend().make_http2 is native.Http2Connection
    assert choose_backend("python").make_http2 is None
