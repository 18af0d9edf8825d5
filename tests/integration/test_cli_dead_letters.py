"""`aerobee dlq`, `topic create --type`, `send --priority` and the locks of `group describe`, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, PushConsumer, reject
from aerobee.client.base.received import ReceivedMessage
from aerobee.testing import ThreadedCluster
from tests.cli import Run, make_run
from tests.waiting import wait_for


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


def consume(cluster: ThreadedCluster, topic: str, group: str, *, orderly: bool = False) -> Callable[[], None]:
    """Start a consumer that rejects everything in the cluster's loop; returns what stops it."""

    def handle(message: ReceivedMessage) -> None:
        reject(f"cannot use {message.body.decode()}")

    async def start() -> PushConsumer:
        consumer = PushConsumer(
            cluster.nameserver_address,
            group,
            subscriptions={topic: "*"},
            handler=handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=orderly),
        )
        await consumer.start()
        return consumer

    consumer = cluster._call(start())
    return lambda: cluster._call(consumer.close())


def dead_letters(run: Run, group: str, *options: str) -> list[dict[str, object]]:
    code, out, _ = run("dlq", "show", group, "--json", *options)
    found: list[dict[str, object]] = json.loads(out) if code == 0 else []
    return found


def test_dead_letters_are_listed_shown_and_sent_again_once(cluster: ThreadedCluster, run: Run) -> None:
    for number in range(3):
        assert run("send", "fruit", f"apple {number}", "--tag", "t", "--keys", f"k{number}")[0] == 0
    stop = consume(cluster, "fruit", "juicer")
    wait_for("the dead letters", lambda: len(dead_letters(run, "juicer")) == 3)
    stop()
    code, out, _ = run("dlq", "list", "--json")
    (row,) = json.loads(out)
    assert (code, row["group"], row["dead_letters"], row["waiting"]) == (0, "juicer", 3, 3)
    (dead_letter,) = dead_letters(run, "juicer", "--keys", "k1")
    assert (dead_letter["origin_topic"], dead_letter["reason"], dead_letter["tries"]) == (
        "fruit",
        "cannot use apple 1",
        1,
    )
    assert dead_letter["last_error"] == "Reject: cannot use apple 1"
    assert dead_letters(run, "juicer", "--error", "PEAR") == []
    assert "cannot use apple 2" in run("dlq", "show", "juicer")[1]

    code, out, err = run("dlq", "redrive", "juicer", "--dry-run", "--json")
    results = [json.loads(line) for line in out.splitlines()]
    assert [result["status"] for result in results] == ["dry run"] * 3
    assert "3 messages would be sent, 0 failed" in err
    code, out, err = run("dlq", "redrive", "juicer", "--yes", "--json", "--limit", "2")
    assert (code, [json.loads(line)["status"] for line in out.splitlines()]) == (0, ["sent", "sent"])
    assert len(dead_letters(run, "juicer", "--waiting")) == 1
    code, out, _ = run("dlq", "redrive", "juicer", "--yes", "--to", "origin")
    assert (code, out.count("sent to fruit")) == (0, 1)
    code, _, err = run("dlq", "redrive", "juicer", "--yes")
    assert (code, "0 messages sent" in err, "--all includes messages" in err) == (0, True, True)


def test_a_group_without_dead_letters_is_said_to_have_none(run: Run) -> None:
    code, _, err = run("dlq", "show", "absent")
    assert (code, "group absent has no dead-letter messages" in err) == (4, True)
    code, _, err = run("dlq", "redrive", "absent", "--yes")
    assert code == 4


def test_who_holds_the_queues_of_an_ordered_group_is_shown(cluster: ThreadedCluster, run: Run) -> None:
    assert run("topic", "create", "ordered", "--queues", "2", "--type", "fifo")[0] == 0
    stop = consume(cluster, "ordered", "keeper", orderly=True)

    def locks() -> list[dict[str, object]]:
        code, out, _ = run("group", "describe", "keeper", "--json")
        return [lock for lock in json.loads(out)["locks"] if lock["topic"] == "ordered"] if code == 0 else []

    wait_for("two locks", lambda: len(locks()) == 2)
    assert {(lock["state"], lock["lease_s"]) for lock in locks()} == {("held", 32.0)}
    assert "renewed s ago" in run("group", "describe", "keeper")[1]
    stop()
    wait_for("no lock", lambda: locks() == [])


def test_a_topic_of_a_kind_and_a_priority(run: Run) -> None:
    assert run("topic", "create", "jobs", "--queues", "3", "--type", "priority")[0] == 0
    assert "PRIORITY" in run("topic", "describe", "jobs")[1]
    code, out, _ = run("send", "jobs", "urgent", "--priority", "9", "--json")
    assert (code, json.loads(out)["queue_id"]) == (0, 2)
    code, _, err = run("topic", "create", "anything", "--type", "mixed")
    assert code == 1
    assert "enableMixedMessageType" in err
