"""The commands against a real cluster in another thread; the command line runs in this one, as in a shell."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    """Run one command line; returns exit code, standard output and standard error."""
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)

    return make_run(capfdbinary, request)


def documents(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_message_is_sent_and_consumed(run: Run) -> None:
    code, sent, _ = run("send", "hello", "my first message")
    assert code == 0
    assert "stored: survives a crash of the broker process" in sent
    assert run("consume", "hello", "--from", "first", "--count", "1")[:2] == (0, "my first message\n")


def test_every_line_of_a_file_arrives(run: Run, tmp_path: Path) -> None:
    lines = [f"line {number} ä" for number in range(500)] + ["", "last without a line feed"]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    code, summary, _ = run("send", "file-lines", "--file", str(path), "--json")
    assert code == 0
    assert json.loads(summary)["sent"] == 502
    code, received, _ = run("consume", "file-lines", "--from", "first", "--no-follow")
    assert code == 0
    assert sorted(received.splitlines()) == sorted(lines)


def test_lines_of_one_order_key_keep_their_order(run: Run) -> None:
    lines = "".join(f"{number}\n" for number in range(300))
    assert run("send", "ordered", "--message-group", "k", stdin=lines.encode())[0] == 0
    assert run("consume", "ordered", "--from", "first", "--no-follow")[1] == lines


def test_messages_carry_tag_keys_and_properties(run: Run) -> None:
    assert run("send", "full", "x", "--tag", "A", "--keys", "k1", "--keys", "k2", "--property", "a=b")[0] == 0
    assert run("send", "full", "y", "--tag", "B")[0] == 0
    code, out, _ = run("consume", "full", "--from", "first", "--no-follow", "--tags", "A", "--json")
    assert code == 0
    (message,) = documents(out)
    assert (message["body"], message["tag"], message["keys"]) == ("x", "A", ["k1", "k2"])
    assert message["properties"]["a"] == "b"


def test_group_passes_messages_that_it_does_not_want(run: Run) -> None:
    assert run("topic", "create", "unwanted", "--queues", "2")[0] == 0
    for tag in "BBBABB":
        assert run("send", "unwanted", tag, "--tag", tag)[0] == 0
    reading = ("consume", "unwanted", "--group", "choosy", "--from", "first", "--no-follow")
    assert run(*reading, "--tags", "C")[:2] == (0, "")
    assert json.loads(run("group", "lag", "choosy", "--json")[1])["lag"] == 0
    assert run("group", "reset", "choosy", "-t", "unwanted", "--to", "first", "--yes")[0] == 0
    assert run(*reading, "--tags", "A")[:2] == (0, "A\n")
    assert json.loads(run("group", "lag", "choosy", "--json")[1])["lag"] == 0


def test_a_group_keeps_its_offset_and_can_be_reset(run: Run) -> None:
    lines = "".join(f"{number}\n" for number in range(20))
    assert run("topic", "create", "offsets", "--queues", "2")[0] == 0
    assert run("send", "offsets", "--file", "-", stdin=lines.encode())[0] == 0
    code, first, _ = run("consume", "offsets", "--group", "readers", "--from", "first", "--count", "15")
    assert code == 0
    code, rest, _ = run("consume", "offsets", "--group", "readers", "--no-follow")
    assert code == 0
    assert sorted((first + rest).splitlines(), key=int) == lines.splitlines()
    code, lag, _ = run("group", "lag", "readers", "--json")
    assert json.loads(lag)["lag"] == 0
    code, moved, _ = run("group", "reset", "readers", "-t", "offsets", "--to", "first", "--yes", "--json")
    assert code == 0
    assert {row["after"] for row in json.loads(moved)} == {0}
    assert sum(row["before"] for row in json.loads(moved)) == 20
    dry = run("group", "reset", "readers", "-t", "offsets", "--to", "last", "--dry-run", "--json")
    assert sum(row["after"] for row in json.loads(dry[1])) == 20
    assert json.loads(run("group", "lag", "readers", "--json")[1])["lag"] == 20
    queue = f"{json.loads(moved)[0]['broker']}/1"
    assert (
        run("group", "reset", "readers", "-t", "offsets", "--to", "offset:3", "--queue", queue, "--yes")[0]
        == 0
    )
    assert json.loads(run("group", "lag", "readers", "--json")[1])["lag"] == 17
    code, beyond, _ = run(
        "group", "reset", "readers", "-t", "offsets", "--to", "offset:99", "--dry-run", "--json"
    )
    assert code == 0
    assert all(row["after"] == row["end"] and row["note"] for row in json.loads(beyond))
    assert json.loads(run("group", "describe", "readers", "--json")[1])["members"] == []
    assert run("group", "delete", "readers", "--yes")[0] == 0
    assert run("group", "lag", "readers")[0] == 4


def test_topics_are_listed_described_and_deleted(run: Run) -> None:
    assert run("topic", "create", "stock", "--queues", "3", "--perm", "r")[0] == 0
    assert "stock" in run("topic", "list")[1].split()
    assert "SCHEDULE_TOPIC_XXXX" in run("topic", "list", "--all")[1].split()
    described = json.loads(run("topic", "describe", "stock", "--json")[1])
    assert (described["brokers"][0]["write_queues"], described["brokers"][0]["perm"]) == (3, "r")
    assert len(json.loads(run("topic", "stats", "stock", "--json")[1])) == 3
    assert run("topic", "delete", "stock", "--yes")[0] == 0
    code, _, error = run("topic", "describe", "stock")
    assert code == 4
    assert "topic stock does not exist" in error


def test_message_is_found_by_each_of_its_names(run: Run) -> None:
    sent = json.loads(run("send", "found", "find me", "--keys", "needle", "--json")[1])
    queue = f"{sent['broker']}/{sent['queue_id']}"
    for arguments in (
        ("id", sent["offset_message_id"]),
        ("id", sent["message_id"], "--topic", "found"),
        ("unique-key", "found", sent["message_id"]),
        ("offset", "found", queue, str(sent["queue_offset"])),
    ):
        code, out, error = run("message", *arguments, "--json")
        assert code == 0, error
        assert json.loads(out)["body"] == "find me"
    assert json.loads(run("message", "key", "found", "needle", "--json")[1])[0]["body"] == "find me"
    for arguments in (("key", "found", "nothing"), ("offset", "found", queue, "9999")):
        assert run("message", *arguments)[0] == 4


def test_cluster_and_doctor_find_all_well(run: Run) -> None:
    (broker,) = json.loads(run("cluster", "list", "--json")[1])
    assert broker["state"] == "up"
    (described,) = json.loads(run("cluster", "describe", "--json")[1])
    assert described["ack"].startswith("stored: ")
    code, out, _ = run("doctor", "--json")
    findings = json.loads(out)["findings"]
    assert code == 0, [finding for finding in findings if finding["level"] != "ok"]
    assert {"dial", "advertised address", "clock"} <= {finding["check"] for finding in findings}


def test_doctor_names_what_does_not_answer(run: Run, cluster: ThreadedCluster) -> None:
    code, out, _ = run("doctor", "-n", f"127.0.0.1:1;{cluster.nameserver_address}")
    assert code == 1
    assert "nameserver 127.0.0.1:1  dial: Connection refused" in out
    broker = json.loads(run("cluster", "list", "--json")[1])[0]["address"]
    code, out, _ = run("doctor", "-n", broker)
    assert code == 1
    assert "no NameServer answers" in out


def test_benchmarks_state_rate_percentiles_and_ack_level(run: Run) -> None:
    code, out, _ = run(
        "bench", "produce", "-w", "8", "-s", "16", "--count", "200", "--seconds", "5", "--json"
    )
    produced = json.loads(out)
    assert code == 0
    assert produced["sent"] >= 200
    assert produced["errors"] == 0
    assert {"p50_ms", "p99_ms", "p99_9_ms", "per_second"} <= set(produced)
    assert produced["ack"].startswith("stored: ")
    code, out, _ = run("bench", "consume", "--from-first", "--count", "200", "--seconds", "5", "--json")
    assert code == 0
    assert json.loads(out)["received"] >= 200


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("send", "t", "x", "-n", "127.0.0.1:1"), 3, "Connection refused"),
        (("consume", "nosuch"), 4, "topic nosuch does not exist"),
        (("topic", "list", "-n", "127.0.0.1:1"), 3, "Connection refused"),
        (("group", "describe", "absent"), 4, "no broker knows group absent"),
        (("send", "t", "--whole", "--file", "/nonexist"), 6, "/nonexist cannot be read"),
    ],
)
def test_failures_are_one_sentence_with_their_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    found, out, error = run(*arguments)
    assert (found, out) == (code, "")
    assert sentence in error
    assert "Traceback" not in error
    found, out, _ = run(*arguments, "--json")
    assert found == code
    assert json.loads(out)["error"]["exit_code"] == code


def test_too_large_body_is_refused_before_it_is_sent(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    code, _, error = run("send", "big", "--whole", "--file", str(path))
    assert code == 2
    assert "the maximum size of one message" in error


def test_topic_that_is_read_only_is_not_sent_to(run: Run) -> None:
    assert run("topic", "create", "archive", "--perm", "r")[0] == 0
    code, out, error = run("send", "archive", "x")
    assert code != 0
    assert out == ""
    assert "archive" in error


def test_from_last_of_a_new_group_begins_behind_what_is_there(run: Run) -> None:
    assert run("send", "fresh", stdin=b"one\ntwo\nthree\n")[0] == 0
    for more in ((), ("--pop",)):
        group = f"late{len(more)}"
        reading = ("consume", "fresh", "--group", group, *more)
        assert run(*reading, "--from", "last", "--no-follow")[:2] == (0, "")
        assert run("send", "fresh", f"for {group}")[0] == 0
        assert run(*reading, "--count", "1")[:2] == (0, f"for {group}\n")


def test_create_leaves_a_topic_that_exists_as_it_is(run: Run) -> None:
    assert run("topic", "create", "kept", "--queues", "4")[0] == 0
    assert run("topic", "create", "kept")[0] == 0
    assert run("topic", "create", "kept", "--queues", "4", "--perm", "rw")[0] == 0
    code, _, error = run("topic", "create", "kept", "--queues", "2")
    assert code == 2
    assert "with queues 4: `aerobee topic update kept --queues 2` changes it" in error
    described = json.loads(run("topic", "describe", "kept", "--json")[1])
    assert described["brokers"][0]["read_queues"] == 4


def test_update_changes_what_is_named_and_says_what_goes_out_of_sight(run: Run) -> None:
    assert run("topic", "create", "shrunk", "--queues", "4", "--type", "fifo")[0] == 0
    for queue in range(4):
        assert run("send", "shrunk", "x", "--queue", str(queue))[0] == 0
    code, out, error = run("topic", "update", "shrunk", "--queues", "2", stdin=b"n\n")
    assert (code, out) == (2, "")
    assert "consumers cannot read 2 messages of the removed queues" in error
    assert json.loads(run("topic", "describe", "shrunk", "--json")[1])["brokers"][0]["read_queues"] == 4
    code, _, error = run("topic", "update", "shrunk", "--queues", "2", "--yes")
    assert code == 0
    assert "/2 (1), " in error
    assert run("topic", "update", "shrunk", "--perm", "r")[0] == 0
    (broker,) = json.loads(run("topic", "describe", "shrunk", "--json")[1])["brokers"]
    assert (broker["read_queues"], broker["perm"], broker["type"]) == (2, "r", "FIFO")
    assert run("topic", "update", "shrunk")[0] == 2
    assert run("topic", "update", "nowhere", "--queues", "2")[0] == 4


def test_interrupt_at_a_question_needs_no_enter(run: Run, cluster: ThreadedCluster) -> None:
    assert run("send", "asked", "x")[0] == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "aerobee.ops", "topic", "delete", "asked", "-n", cluster.nameserver_address],
        stdin=subprocess.PIPE,  # nothing is ever written to it
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            asked += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    finally:
        process.kill()
        process.communicate()


def test_delayed_send_says_when_it_is_due(run: Run) -> None:
    before = time.time() * 1000
    for options, delay_ms in ((("--deliver-after", "1h30m"), 5_400_000), (("--delay-level", "5"), 60_000)):
        code, out, _ = run("send", "later", "x", *options, "--json")
        assert code == 0
        assert 0 <= json.loads(out)["due_ms"] - before - delay_ms < 600_000
    code, out, _ = run("send", "later", "x", "--deliver-after", "15m")
    assert "in 15 min" in out
    assert "Z, " in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--delay-level", "99"), "--delay-level 99: the brokers have 18 levels"),
        (("--deliver-after", "soon"), "'soon' is not a duration: write 500ms, 3s, 15m, 1h30m"),
        (("--deliver-at", "15m"), "is a duration, not a time: use --deliver-after 15m"),
        (("--timeout", "0"), "must be above 0"),
    ],
)
def test_times_that_cannot_be_are_refused(run: Run, options: tuple[str, ...], said: str) -> None:
    code, out, error = run("send", "later", "x", *options)
    assert (code, out) == (2, "")
    assert said in error


def test_bench_sends_as_many_as_were_asked_for(run: Run) -> None:
    for batch in ("1", "7"):
        code, out, _ = run(
            "bench", "produce", "-t", f"counted{batch}", "--count", "500", "--batch", batch, "--json"
        )
        assert (code, json.loads(out)["sent"]) == (0, 500)
        stats = json.loads(run("topic", "stats", f"counted{batch}", "--json")[1])
        assert sum(row["messages"] for row in stats) == 500


def test_bytes_come_out_as_they_went_in(run: Run) -> None:
    assert run("send", "bytes", "--queue", "0", stdin=b"\x1b[2J\none\n")[0] == 0
    reading = ("consume", "bytes", "--from", "first", "--no-follow")
    assert run(*reading, "--raw")[:2] == (0, "\x1b[2Jone")
    assert run(*reading, "--format", r"%o:%s\n")[:2] == (0, "0:\x1b[2J\n1:one\n")
    assert run(*reading, "--format", "%q")[0] == 2
    assert run(*reading, "--raw", "--json")[0] == 2


def test_escape_sequences_of_a_body_never_reach_a_terminal(run: Run, cluster: ThreadedCluster) -> None:
    assert run("send", "orders-to-terminals", stdin=b"\x1b[2Jcleared\n")[0] == 0
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aerobee.ops", "consume", "orders-to-terminals"),
            *("--from", "first", "--count", "1", "-n", cluster.nameserver_address),
        ],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    try:
        assert process.wait(timeout=60) == 0
        assert os.read(ours, 1000) == b"\\x1b[2Jcleared\r\n"
    finally:
        process.kill()
        os.close(ours)


def test_an_interrupted_send_names_the_line_to_resume_at(run: Run, cluster: ThreadedCluster) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aerobee.ops", "send", "cut-off", "-n", cluster.nameserver_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n3\nhalf a line")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while sum(row["messages"] for row in _stats(run, "cut-off")) < 3:
            assert time.monotonic() < deadline, "the lines were not stored"
        process.send_signal(signal.SIGINT)
        # Not communicate(), which would close standard input: the end of the lines is not what stops it here.
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert b"with --from-line 4" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def _stats(run: Run, topic: str) -> Any:
    code, out, _ = run("topic", "stats", topic, "--json")
    return json.loads(out) if code == 0 else []
