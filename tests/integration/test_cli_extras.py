"""The commands for replies, repeated sends, traces, time spans and reasons, against a real cluster in another thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, ReceivedMessage
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.producer.transaction import TransactionState
from aerobee.client.producer.transaction_producer import TransactionProducer
from aerobee.client.sync import LoopThread, SyncProducer
from aerobee.message import Message
from aerobee.testing import ThreadedCluster
from tests.cli import Run, make_run

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(broker_config={"dedup_window_millis": 60_000}) as started:
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


def test_a_reply_is_waited_for_and_printed(run: Run, cluster: ThreadedCluster) -> None:
    run("topic", "create", "questions", "--queues", "1")
    thread = LoopThread("replier")
    with SyncProducer(cluster.nameserver_address) as producer:

        def answer(message: ReceivedMessage) -> None:
            threading.Thread(target=producer.reply_to, args=(message, b"pong")).start()

        consumer = PushConsumer(
            cluster.nameserver_address,
            "repliers",
            subscriptions={"questions": "*"},
            handler=answer,
            config=FIRST,
        )
        thread.call(consumer.start())
        try:
            code, reply, _ = run("send", "questions", "ping", "--reply-within", "10")
            assert (code, reply) == (0, "pong\n")
            code, reply, _ = run("send", "questions", "ping", "--reply-within", "10", "--json")
            assert json.loads(reply)["reply"] == "pong"
        finally:
            thread.call(consumer.close())
            thread.stop()
    code, _, error = run("send", "unanswered", "ping", "--reply-within", "0.3")
    assert code == 3
    assert "no reply to request" in error


def test_a_repeated_send_is_stored_once(run: Run) -> None:
    first = json.loads(
        run("send", "once", "pay", "--dedup-key", "order-1", "--message-group", "k", "--json")[1]
    )
    again = json.loads(
        run("send", "once", "pay", "--dedup-key", "order-1", "--message-group", "k", "--json")[1]
    )
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again["offset_message_id"] == first["offset_message_id"]
    assert again["stored_as"] == first["stored_as"] == first["message_id"]
    text = run("send", "once", "pay", "--dedup-key", "order-1", "--message-group", "k")[1]
    assert text.startswith("was stored before")
    assert run("consume", "once", "--from", "first", "--no-follow")[1] == "pay\n"


def test_a_message_is_traced_from_the_command_line(run: Run) -> None:
    sent = json.loads(run("send", "traced", "hello", "--trace", "--json")[1])
    assert (
        run("consume", "traced", "--group", "readers", "--from", "first", "--count", "1", "--trace")[0] == 0
    )
    code, text, _ = run("trace", sent["message_id"])
    assert code == 0
    assert "sent to traced at 127.0.0.1" in text
    assert "consumed in" in text
    events = json.loads(run("trace", sent["message_id"], "--json")[1])
    assert [event["kind"] for event in events] == ["Pub", "SubBefore", "SubAfter"]
    code, _, error = run("trace", "0" * 32)
    assert code == 4
    assert "has no trace of" in error


def test_messages_of_a_span_of_time_are_listed(run: Run) -> None:
    for number in range(3):
        run("send", "timed", f"old {number}")
    time.sleep(0.002)
    middle = str(time.time_ns() // 1_000_000)
    time.sleep(0.002)
    for number in range(2):
        run("send", "timed", f"new {number}")
    late = json.loads(run("message", "time", "timed", "--since", middle, "--json")[1])
    assert [message["body"] for message in late] == ["new 0", "new 1"]
    early = json.loads(run("message", "time", "timed", "--until", middle, "--json")[1])
    assert [message["body"] for message in early] == ["old 0", "old 1", "old 2"]
    code, table, note = run("message", "time", "timed", "--count", "1")
    assert code == 0
    assert "old 0" in table
    assert "showing the first 1" in note
    assert run("message", "time", "timed", "--until", "1h", "--since", "2h")[0] == 4
    assert run("message", "time", "timed", "--since", "1m", "--until", "5m")[0] == 2


def test_reasons_are_told(run: Run) -> None:
    sent = json.loads(run("send", "reasons", "x", "--json")[1])
    code, text, _ = run("why", "--group", "auditors", "--topic", "reasons", "--message", sent["message_id"])
    assert code == 0
    assert text.startswith("reasons broker-a/")
    assert "has no committed offset in that queue" in text
    document = json.loads(
        run("why", "-g", "auditors", "-t", "reasons", "-m", sent["message_id"], "--json")[1]
    )
    assert document["answer"] == "no-offset"
    assert document["findings"][0]["kind"] == "no-offset"
    assert run("why", "--group", "bad group!")[0] == 2


def test_reasons_of_a_group_or_topic_that_does_not_exist_end_with_4(run: Run) -> None:
    code, text, _ = run("why", "--group", "absent")
    assert (code, "no broker knows group absent" in text) == (4, True)
    code, text, _ = run("why", "--group", "absent", "--json")
    assert (code, json.loads(text)["answer"]) == (4, "no-group")
    assert run("send", "reasons", "x")[0] == 0
    assert run("consume", "reasons", "--group", "readers", "--from", "first", "--count", "1")[0] == 0
    code, text, _ = run("why", "--group", "readers", "--topic", "reasosn")
    assert (code, "topic reasosn does not exist" in text) == (4, True)
    assert run("why", "--group", "readers", "--topic", "reasons")[0] == 0


def test_an_unknown_transaction_is_not_checked(run: Run, cluster: ThreadedCluster) -> None:
    for verb in ("commit", "rollback"):
        code, _, said = run("transaction", verb, "x", stdin=b"y\n")
        assert (code, "[y/N]" in said) == (4, False), said
        assert "no transaction x is open" in said
    known = asyncio.run(leave_open(cluster.nameserver_address))
    code, _, said = run("transaction", "commit", known, "missing", stdin=b"y\n")
    assert (code, "[y/N]" in said, "no transaction missing" in said) == (4, False, True), said
    assert run("transaction", "commit", known, "--group", "other", stdin=b"y\n")[0] == 4
    code, _, said = run("transaction", "commit", known, stdin=b"n\n")
    assert (code, "Deliver the message of transaction" in said) == (2, True), said
    assert run("transaction", "commit", known, "--group", "PG", stdin=b"y\n")[0] == 0


async def leave_open(nameserver: str) -> str:
    """An undecided transaction; returns its id."""

    def undecided(_message: Message, _argument: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(nameserver, "PG", checker=lambda _: TransactionState.UNKNOWN) as producer:
        return (
            await producer.send_in_transaction(Message("undecided", b"x"), executor=undecided)
        ).transaction_id


def test_a_group_is_moved_in_all_its_topics_or_in_one_queue(run: Run) -> None:
    for topic in ("moved-one", "moved-two"):
        for number in range(2):
            run("send", topic, f"{topic} {number}", "--queue", "0")
        assert run("consume", topic, "--group", "movers", "--from", "earliest", "--no-follow")[0] == 0

    def moves(*arguments: str) -> dict[str, tuple[int | None, int]]:
        rows = json.loads(run("offset", *arguments, "--yes", "--json")[1])
        return {row["topic"]: (row["before"], row["after"]) for row in rows if row["queue_id"] == 0}

    both = {"moved-one": (2, 0), "moved-two": (2, 0)}
    assert moves("reset", "movers", "--to", "earliest", "--dry-run") == both
    assert moves("reset", "movers", "--to", "earliest") == both
    assert moves("skip", "movers", "-t", "moved-one", "--queue", "0") == {"moved-one": (0, 2)}
    assert moves("reset", "movers", "--to", "latest", "--only-back") == {
        "moved-one": (2, 2),
        "moved-two": (0, 0),
    }
    assert moves("reset", "movers", "--to", "+1") == {"moved-one": (2, 2), "moved-two": (0, 1)}
    assert moves("clone", "movers", "shakers") == {"moved-one": (None, 2), "moved-two": (None, 1)}
    code, _, error = run("offset", "reset", "movers", "--to", "latest", "--queue", "0", "--yes")
    assert code == 2
    assert "--queue needs --topic" in error
    assert run("offset", "show", "unknown-group")[0] == 4


def test_a_delayed_message_is_not_reported_in_its_topic(run: Run) -> None:
    for delay in (("--delay-level", "2"), ("--deliver-after", "60")):
        text = run("send", "later", "x", *delay)[1]
        assert text.startswith("stored ")
        assert "for later, delivery at 2" in text
    assert run("send", "later", "x", "--deliver-at", "2020-01-01T00:00:00Z")[1].startswith("sent ")
