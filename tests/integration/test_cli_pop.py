"""`aerobee consume --pop`, `aerobee group pop` and `aerobee group mode`, against a real cluster in another thread."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from aerobee.client.consumer.simple_consumer import SimpleConsumer
from aerobee.client.sync import LoopThread
from aerobee.testing import ThreadedCluster
from tests.cli import Run, make_run


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as started:
        yield started


@pytest.fixture
def run(
    cluster: ThreadedCluster,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Run:
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)

    return make_run(capfdbinary, request)


def test_messages_are_popped_acknowledged_and_not_more_than_asked_for(run: Run) -> None:
    for body in "abc":
        assert run("send", "popped", body)[0] == 0
    popping = ("consume", "popped", "--pop", "--group", "poppers", "--from", "first")
    code, first, note = run(*popping, "--count", "2")
    assert (code, note) == (0, "2 messages\n")
    code, rest, _ = run(*popping, "--no-follow", "--json")
    assert code == 0
    assert sorted([*first.split(), json.loads(rest)["body"]]) == ["a", "b", "c"]
    assert run(*popping, "--no-follow")[1] == ""


def test_pop_says_what_it_needs(run: Run) -> None:
    code, _, error = run("consume", "popped", "--pop")
    assert code == 2
    assert "--pop needs --group" in error
    code, _, error = run("consume", "no-such", "--pop", "--group", "poppers", "--no-follow")
    assert code != 0
    assert "no-such" in error


def test_what_is_invisible_is_listed_with_its_holder(run: Run, cluster: ThreadedCluster) -> None:
    run("send", "hidden", "x", "--queue", "broker-a/1")
    thread = LoopThread("popper")
    consumer = SimpleConsumer(cluster.nameserver_address, "holders", subscriptions={"hidden": "*"})
    thread.call(consumer.start())
    try:
        (message,) = thread.call(consumer.receive(invisible_s=60, wait_s=10))
        found = json.loads(run("group", "pop", "holders", "--json")[1])
        (row,) = found["invisible"]
        assert (row["topic"], row["queue_id"], row["offset"], row["consumer"]) == (
            "hidden",
            1,
            0,
            consumer.client_id,
        )
        assert 0 < row["left_s"] <= 60
        assert consumer.client_id in run("group", "pop", "holders", "--topic", "hidden")[1]
        thread.call(consumer.ack(message))
        assert "group holders has no invisible messages" in run("group", "pop", "holders")[1]
    finally:
        thread.call(consumer.close())
        thread.stop()
    assert run("group", "pop", "absent")[0] != 0


def test_a_request_mode_is_set_and_shown(run: Run) -> None:
    run("send", "moded", "x")
    run("consume", "moded", "--pop", "--group", "moders", "--no-follow")
    code, out, _ = run("group", "mode", "moders", "pop", "--topic", "moded", "--share", "1")
    assert code == 0
    assert "group moders uses pop mode for moded" in out
    (mode,) = json.loads(run("group", "pop", "moders", "--json")[1])["modes"]
    assert (mode["topic"], mode["mode"], mode["share_queue_num"]) == ("moded", "POP", 1)
    assert run("group", "mode", "moders", "push", "--topic", "moded")[0] == 2
    assert run("group", "mode", "moders", "pop", "--topic", "no-such")[0] != 0
