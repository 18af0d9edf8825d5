"""Lock requests that repeat an earlier one, as renewals do: they are not parsed again, and get the same reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from aerobee.broker.consumer import lock_calls
from aerobee.broker.consumer.lock_calls import LockCalls
from aerobee.broker.consumer.lock_table import LOCK_EXPIRY_S, LockTable
from aerobee.clock import ManualClock
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

PEER = cast(Peer, None)


def body(client_id: str, queue_ids: Sequence[int], lease_ms: int = 0) -> bytes:
    queues = [{"brokerName": "b", "queueId": each, "topic": "T"} for each in queue_ids]
    tree = {"clientId": client_id, "consumerGroup": "G", "mqSet": queues, "leaseMillis": lease_ms}
    return json.dumps(tree).encode()


def granted(calls: LockCalls, text: bytes) -> list[int]:
    reply = cast(Any, calls.lock(PEER, RemotingCommand(RequestCode.LOCK_BATCH_MQ, {}, text)))
    return [queue["queueId"] for queue in json.loads(reply.body)["lockOKMQSet"]]


def test_repeated_lock_request_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = LockCalls(locks=LockTable(clock=ManualClock()))
    first = body("c1", [0, 1, 2])
    assert granted(calls, first) == [0, 1, 2]
    monkeypatch.setattr(lock_calls, "_parse", None)  # a second parse would fail
    assert granted(calls, first) == [0, 1, 2]


def test_repeated_lock_request_gets_what_is_free_now() -> None:
    clock = ManualClock()
    table = LockTable(clock=clock)
    calls = LockCalls(locks=table)
    first, second = body("c1", [0, 1]), body("c2", [1, 2])
    assert granted(calls, first) == [0, 1]
    assert granted(calls, second) == [2]
    clock.advance(LOCK_EXPIRY_S + 1)
    assert granted(calls, second) == [1, 2]
    assert granted(calls, first) == [0]


def test_known_lock_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_calls, "KNOWN_MAX", 4)
    calls = LockCalls(locks=LockTable(clock=ManualClock()))
    for each in range(10):
        assert granted(calls, body(f"c{each}", [each])) == [each]
        assert len(calls._known) <= 4
    large = body("c", range(100, 300))
    assert len(large) > lock_calls.KNOWN_BODY_BYTES_MAX
    assert len(granted(calls, large)) == 200
    assert large not in calls._known
