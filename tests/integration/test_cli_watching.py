"""`--watch`, `aerobee top`, and names that the shell completes, at a running cluster."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.testing.threaded_cluster import ThreadedCluster

AEROBEE = (sys.executable, "-m", "aerobee.ops")
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as started:
        started.create_topic("orders")
        started.create_topic("offers")
        run(started, "send", "orders", "one")
        run(started, "consume", "orders", "--from", "first", "--count", "1", "--group", "billing")
        yield started


def environment(cluster: ThreadedCluster, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    return kept | {"AEROBEE_NAMESRV_ADDR": cluster.nameserver_address} | more


def run(cluster: ThreadedCluster, *arguments: str, **more: str) -> str:
    done = subprocess.run(
        [*AEROBEE, *arguments],
        capture_output=True,
        text=True,
        env=environment(cluster, **more),
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("aerobee topic describe o", ["offers", "orders"]),
        ("aerobee consume or", ["orders"]),
        ("aerobee group lag bil", ["billing"]),
        ("aerobee group lag billing --topic of", ["offers"]),
        ("aerobee offset clone bil", ["billing"]),
        ("aerobee topic update orders --broker br", ["broker-a"]),
        ("aerobee topic create o", []),
    ],
)
def test_names_of_the_cluster_are_completed(cluster: ThreadedCluster, line: str, found: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    assert run(cluster, _AEROBEE_COMPLETE="complete_bash", **words).split() == found


def test_a_list_is_shown_again_until_it_is_interrupted(cluster: ThreadedCluster) -> None:
    with subprocess.Popen(
        [*AEROBEE, "topic", "list", "--watch", "0.2s", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(cluster),
    ) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        code = process.wait(WITHIN_S)
        assert code == 130
    for look in looks:
        assert {"orders", "offers"} <= {row["topic"] for row in look}


def test_watching_survives_silent_nameservers_and_ends_on_typos() -> None:
    away = {"AEROBEE_NAMESRV_ADDR": "127.0.0.1:1"}
    with subprocess.Popen(
        [*AEROBEE, "topic", "list", "--watch", "0.1s"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | away,
    ) as process:
        assert process.stderr is not None
        seen = 0
        while seen < 2:
            line = process.stderr.readline()
            assert line, "it ended"
            seen += "error:" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130
    done = subprocess.run(
        [*AEROBEE, "group", "lag", "bad group!", "--watch", "1s"],
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 2


def test_top_shows_brokers_topics_and_groups(cluster: ThreadedCluster) -> None:
    first, second = [
        json.loads(line)
        for line in run(cluster, "top", "--count", "2", "--interval", "0.1s", "--json").splitlines()
    ]
    assert [broker["state"] for broker in first["brokers"]] == ["up"]
    topics: dict[str, Any] = {row["topic"]: row for row in second["topics"]}
    assert (topics["orders"]["messages"], topics["orders"]["in_tps"]) == (1, 0.0)
    assert "billing" in {row["group"] for row in second["groups"]}
    text = run(cluster, "top", "--count", "1")
    assert text.startswith("--- aerobee top")
    for word in ("broker-a", "orders", "billing"):
        assert word in text


@pytest.mark.parametrize(("terminal", "cleared"), [("xterm", 2), ("dumb", 0)])
def test_in_a_terminal_each_look_replaces_the_one_before(
    cluster: ThreadedCluster, terminal: str, cleared: int
) -> None:
    """A terminal that knows no escape sequences gets none."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*AEROBEE, "top", "--count", "2", "--interval", "0.1s"],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**environment(cluster), "TERM": terminal},
    )
    os.close(theirs)
    text = b""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            part = os.read(ours, 65_536) if ready else b""
        except OSError:  # the other end is closed
            break
        if not part and process.poll() is not None:
            break
        text += part
    assert process.wait(WITHIN_S) == 0
    os.close(ours)
    assert text.count(b"\x1b[H\x1b[2J") == cleared
    assert text.count(b"aerobee top") == 2
