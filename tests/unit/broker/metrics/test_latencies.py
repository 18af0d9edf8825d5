"""Each request that the fast path serves is in the latencies, by either backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.metrics.stats import GROUP_GET_NUMS
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.protocol import PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.fakes import FakePeer
from tests.unit.broker.pulling import Pulling, pull_request
from tests.unit.broker.sending import batch_body, send_frame, use_backend


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_bursts_count_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    use_backend(backend, monkeypatch)
    pulling = Pulling(tmp_path)
    try:
        peer = FakePeer()
        pulling.fast_path.burst(peer, send_frame() * 3 + send_frame("TopicOrder"), 0)  # type: ignore[arg-type]
        pulling.fast_path.burst(
            peer, send_frame("TopicBatch", code=320, body=batch_body((b"a", ""), (b"b", ""))), 0
        )  # type: ignore[arg-type]
        assert pulling.stats.put_latency.count == 5
        pulls = [pull_request(offset, flags=PULL_SUBSCRIPTION) for offset in (0, 1, 3)]
        first = pulling.pull(peer, pulls[0])  # the handler makes the authorization that the fast path goes by
        assert first is not None
        pulling.fast_path.burst(peer, b"".join(map(encode_frame, pulls)), 0)  # type: ignore[arg-type]
        assert pulling.stats.get_latency.count == 3
    finally:
        pulling.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_pulls_that_waited_are_counted_when_a_message_releases_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """With consumers that keep up every pull is one of these."""
    use_backend(backend, monkeypatch)
    pulling = Pulling(tmp_path)
    try:
        peer = FakePeer()
        waiting = [
            pull_request(0, flags=PULL_SUBSCRIPTION | PULL_SUSPEND, opaque=number) for number in (1, 2)
        ]
        for each in waiting:
            assert pulling.pull(peer, each) is None
        assert pulling.stats.get_latency.count == 0
        pulling.send()
        pulling.run_soon()
        assert [reply.remark for reply in peer.replies()] == ["FOUND", "FOUND"]
        assert pulling.stats.get_latency.count == 2
    finally:
        pulling.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_totals_are_kept_until_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    pulling = Pulling(tmp_path)
    try:
        peer = FakePeer()
        fast_path, stats = pulling.fast_path, pulling.stats
        pull = pull_request(0, flags=PULL_SUBSCRIPTION)
        pulling.send(1)
        pulling.pull(peer, pull)  # the handler makes the authorization that the fast path goes by
        put = stats.put_total

        def bursts() -> None:
            for _ in range(50):
                fast_path.burst(peer, send_frame(), 0)  # type: ignore[arg-type]
                fast_path.burst(peer, encode_frame(pull), 0)  # type: ignore[arg-type]
                assert not fast_path._answered

        bursts()
        stored, handed_out = fast_path._backend.take_totals()
        assert [each[:2] for each in stored] == [("TopicNormal", 50)]
        assert [(whom.group, whom.topic, pulls) for whom, *_, pulls in handed_out] == [
            ("group", "TopicNormal", 50)
        ]
        assert fast_path._backend.take_totals() == ([], [])
        bursts()
        fast_path._backend.forget_topics()
        fast_path._backend.forget_authorizations()
        bursts()
        pulling.live.update({"traceOn": "false"})  # another backend
        bursts()
        fast_path.close()
        assert stats.put_total == put + 150
        found = dict(stats.counters(GROUP_GET_NUMS))["TopicNormal@group"]
        assert (stats.get_total, found.times) == (found.count, 151)
        answered = {outcome.request_code: each.times for outcome, each in pulling.requests.latencies()}
        assert answered[310] == 201
        assert answered[11] >= 200
    finally:
        pulling.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_burst_that_holds_the_loop_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    pulling = Pulling(tmp_path)
    try:
        peer = FakePeer()
        watch = pulling.fast_path._watch
        pulling.fast_path.burst(peer, send_frame(), 0)  # type: ignore[arg-type]
        assert watch.held_count == 0
        monkeypatch.setattr(pulling.store.durability, "hears_bursts", True)
        monkeypatch.setattr(pulling.fast_path, "_burst_done", lambda: pulling.clock.advance(0.06))
        pulling.fast_path.burst(peer, send_frame() * 3, 0)  # type: ignore[arg-type]
        assert watch.held_count == 1
        assert watch.longest == f"a burst that begins with SEND_MESSAGE_V2 (310) of {peer.address}"
        assert watch.stalled_s == 0, "sends are load"
    finally:
        pulling.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_turn_that_held_the_loop_says_where_its_sends_went_and_counts_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    pulling = Pulling(tmp_path)
    try:
        put = pulling.stats.put_total
        for _ in range(3):
            pulling.fast_path.burst(FakePeer(), send_frame(), 0)  # type: ignore[arg-type]
        pulling.fast_path._turn_held(3, [], 0.2)
        assert "a turn with 3 sends of topic TopicNormal blocked the event loop for 200 ms" in caplog.text
        assert pulling.stats.put_total == put + 3
        pulling.fast_path._turn_held(0, [], 0.3)  # of rollbacks, for instance
        assert pulling.fast_path._watch.longest == "a turn with 0 sends of 0 topics"
    finally:
        pulling.close()
