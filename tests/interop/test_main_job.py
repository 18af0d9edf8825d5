"""The main job on real input: a file goes in line by line with `aerobee send`, and every client reads all of it.

`aerobee consume`, the Java client and the C++ client must each see every line, in the order of each queue; also when
the broker is killed with -9 half-way.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import random
import subprocess
from typing import Any

from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import AEROBEE, ROOT, Cluster, Driver, by_queue, call, cpp_consume
from tests.waiting import wait_for

QUEUES = 4
LINE_COUNT = 6_000
WORDS = [
    "alpha",
    "βeta",
    "漢字",
    "ñandú",
    "🚀",
    "don't",
    '"quoted"',
    "<tag>",
    "a=b;c",
    "{json}",
    "\\n",
    "tab\there",
    "",
    "two-blanks",
    "ünïcödé",
    "مرحبا",
    "한국어",
]


def file_lines(kind: str) -> list[str]:
    """Some thousands of lines: text in many scripts, equal ones, empty ones, some of several KB.

    RocketMQ's broker cannot take an empty message: it answers with a NullPointerException.
    """
    dice = random.Random(20_261_121)
    lines = []
    for number in range(LINE_COUNT):
        if number % 97 == 0:
            lines.append("" if kind == "aerobee" else " ")
        elif number % 89 == 0:
            lines.append("the same line again and again")
        elif number % 211 == 0:
            lines.append(f"{number} " + "long 漢字 " * 500)
        else:
            lines.append(f"{number} " + " ".join(dice.choices(WORDS, k=dice.randrange(1, 12))))
    return lines


def aerobee(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*AEROBEE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options
    )


def output_of(process: subprocess.Popen[bytes], input: bytes | None = None) -> list[dict[str, Any]]:
    """The JSON documents that a command printed, after it ended well."""
    out, err = process.communicate(input, timeout=120)
    assert process.returncode == 0, f"{out.decode()[-2000:]}\n{err.decode()[-2000:]}"
    return [json.loads(line) for line in out.decode().splitlines() if line.strip()]


def consume(namesrv: str, topic: str, count: int) -> list[dict[str, Any]]:
    """What `aerobee consume --json` prints, in the words of the other clients."""
    command = ("consume", topic, "--from", "first", "--count", str(count), "--json", "--nameserver", namesrv)
    return [
        {"broker": m["broker"], "queue": m["queue_id"], "offset": m["queue_offset"], "body": m["body"]}
        for m in output_of(aerobee(*command))
    ]


def stored_count(cluster: Cluster, topic: str) -> int:
    """Messages in all queues of the topic; 0 while the broker does not answer."""
    total = 0
    for queue in range(QUEUES):
        try:
            header, _ = call(cluster.broker.address, 30, {"topic": topic, "queueId": str(queue)})
        except OSError:
            return 0
        total += int(header["extFields"]["offset"])
    return total


def read_by_all(
    driver: Driver, cluster: Cluster, topic: str, count: int, root: pathlib.Path
) -> dict[str, list[dict[str, Any]]]:
    with driver.push(cluster.namesrv, topic, orderly=True) as java:
        received = java.received(count, 60)
    return {
        "java": received,
        "c++": cpp_consume(cluster.namesrv, topic, f"CPP_{topic}", count, root, order="orderly"),
        "aerobee consume": consume(cluster.namesrv, topic, count),
    }


def check_order(reader: str, messages: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """Each queue was read from its first to its last offset without a gap; returns {(queue, offset): body}."""
    for (_, queue), group in by_queue(messages).items():
        assert [message["offset"] for message in group] == list(range(len(group))), (reader, queue)
    return {(message["queue"], message["offset"]): message["body"] for message in messages}


def test_a_file_is_read_whole_by_every_client_in_the_order_of_each_queue(
    cluster: Cluster, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    make_topic(driver, cluster, topic, QUEUES)
    lines = file_lines(cluster.kind)
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # RocketMQ's send threads overtake each other: there, one line at a time keeps the order of the file.
    pace = () if cluster.kind == "aerobee" else ("--in-flight", "1")
    output_of(aerobee("send", topic, "--file", str(file), "--json", "--nameserver", cluster.namesrv, *pace))
    assert stored_count(cluster, topic) == len(lines)
    maps = {
        reader: check_order(reader, messages)
        for reader, messages in read_by_all(driver, cluster, topic, len(lines), tmp_path).items()
    }
    for reader, found in maps.items():
        assert found == maps["java"], reader
        assert collections.Counter(found.values()) == collections.Counter(lines)
    # Lines went into their queues in the order of the file.
    for queue in range(QUEUES):
        bodies = [body for (each, _), body in sorted(maps["java"].items()) if each == queue]
        numbers = [int(body.split(" ")[0]) for body in bodies if body[:1].isdigit()]
        assert numbers == sorted(numbers)


def test_a_file_through_a_broker_that_was_killed_half_way_arrives_whole(
    kind: str, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    lines = file_lines(kind)
    half = len(lines) // 2
    cluster = Cluster(kind, tmp_path / "cluster")
    try:
        cluster.start()
        make_topic(driver, cluster, topic, QUEUES)
        sending = aerobee("send", topic, "--json", "--nameserver", cluster.namesrv, stdin=subprocess.PIPE)
        assert sending.stdin is not None
        sending.stdin.write("".join(f"{line}\n" for line in lines[:half]).encode())
        sending.stdin.flush()
        wait_for("some lines to be stored", lambda: stored_count(cluster, topic) >= half // 3)
        cluster.broker.kill()
        cluster.broker.start(wait=False)
        (summary, *_) = output_of(sending, input="".join(f"{line}\n" for line in lines[half:]).encode())
        stored = stored_count(cluster, topic)
        assert stored >= len(lines)
        maps = {
            reader: check_order(reader, messages)
            for reader, messages in read_by_all(driver, cluster, topic, stored, tmp_path).items()
        }
        for reader, found in maps.items():
            assert found == maps["java"], reader
        twice = collections.Counter(maps["java"].values()) - collections.Counter(lines)
        assert not collections.Counter(lines) - collections.Counter(maps["java"].values())
        # Only lines whose acknowledgement got lost were sent, and may have been stored, again.
        assert twice.total() == stored - len(lines) <= summary["tries_repeated"]
    finally:
        cluster.stop()
