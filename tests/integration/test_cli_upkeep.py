"""`aerobee config`, `kv`, `cluster stop-writes|clean|producers|export|import`, `group create|update` and other twins of mqadmin's verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.sync import SyncProducer
from aerobee.message import Message
from aerobee.testing import ThreadedCluster
from tests.cli import Run, make_run
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2) as started:
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


def document(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json")[1])


def test_a_setting_is_shown_changed_and_refused(run: Run, cluster: ThreadedCluster) -> None:
    (row,) = document(run, "config", "show", "broker-a", "fileReservedTime")
    assert (row["value"], row["default"], row["counts"]) == ("72", "72", "immediately")
    changed = document(run, "config", "set", "brokers", "fileReservedTime=48")
    assert [(each["before"], each["after"]) for each in changed] == [("72", "48")] * 2
    at_a = cluster.broker_addresses[0]
    (row,) = document(run, "config", "show", at_a, "filereserved", "--changed")
    assert (row["setting"], row["value"]) == ("fileReservedTime", "48")
    assert run("config", "show", "broker-a", "fileReservedTime")[1].splitlines()[0].split() == [
        "setting", "value", "default", "change", "takes", "effect", "meaning",
    ]  # fmt: skip
    code, _, error = run("config", "set", "broker-a", "fileReservedTim=48")
    assert (code, "did you mean fileReservedTime" in error) == (2, True)
    code, _, error = run("config", "set", "broker-a", "listenPort=1")
    assert code not in (0, 2)
    assert "needs the configuration file and a restart: listenPort" in error
    code, _, error = run("config", "set", "broker-a", "fileReservedTime=soon")
    assert (code != 0, "fileReservedTime" in error) == (True, True)
    code, _, error = run("config", "set", "broker-a", "fileReservedTime")
    assert (code, "is not of the form KEY=VALUE" in error) == (2, True)
    code, _, error = run("config", "set", "absent", "fileReservedTime=1")
    assert "no master is called absent; known masters: broker-a, broker-b" in error
    assert document(run, "config", "show", "broker-b", "fileReservedTime")[0]["value"] == "48"


def test_a_nameservers_setting_is_changed(run: Run, cluster: ThreadedCluster) -> None:
    (row,) = document(run, "config", "set", "nameservers", "orderMessageEnable=true")
    assert row == {
        "server": cluster.nameserver_address,
        "setting": "orderMessageEnable",
        "before": "false",
        "after": "true",
    }
    (row,) = document(run, "config", "show", "nameservers", "orderMessage", "--changed")
    assert (row["setting"], row["counts"]) == ("orderMessageEnable", "immediately")
    code, _, error = run("config", "set", "nameservers", "kvConfigPath=/tmp/x")
    assert code != 0, error


def test_keys_and_values_of_the_nameservers(run: Run, cluster: ThreadedCluster) -> None:
    assert run("kv", "list", "verbs")[1] == "namespace verbs is empty\n"
    assert run("kv", "set", "verbs", "one", "1")[1] == f"set verbs one to 1 at {cluster.nameserver_address}\n"
    assert run("kv", "get", "verbs", "one")[1] == "1\n"
    assert document(run, "kv", "list", "verbs") == [{"key": "one", "value": "1"}]
    run("kv", "delete", "verbs", "one", "--yes")
    code, _, error = run("kv", "get", "verbs", "one")
    assert (code, "has no key one" in error) == (4, True)


def test_writes_are_stopped_and_allowed(run: Run) -> None:
    run("topic", "create", "guarded", "--queues", "2")

    def queues() -> set[str]:
        _, output, _ = run("bench", "probe", "--topic", "guarded", "--count", "2", "--json")
        probe = json.loads(output.splitlines()[0])
        return {row["broker"] for row in probe if row["queues"]}

    assert queues() == {"broker-a", "broker-b"}
    assert "of broker-a accept no writes any more" in run("cluster", "stop-writes", "broker-a")[1]
    assert queues() == {"broker-b"}
    assert "of broker-a accept writes again" in run("cluster", "allow-writes", "broker-a")[1]
    assert queues() == {"broker-a", "broker-b"}


def test_a_group_is_created_and_updated(run: Run) -> None:
    made = document(run, "group", "create", "billing", "--retries", "5")
    assert (made["created"], len(made["brokers"])) == (True, 2)
    assert document(run, "group", "create", "billing")["created"] is False
    code, _, error = run("group", "create", "billing", "--retries", "7")
    assert (code, "`aerobee group update billing` changes them" in error) == (2, True)
    run("group", "update", "billing", "--no-consume", "--broker", "broker-a")
    rows = document(run, "group", "list")
    (row,) = [each for each in rows if each["group"] == "billing"]
    assert row["retries"] == 5
    described = document(run, "group", "describe", "billing")
    assert described["consume_enabled"] is False
    code, _, error = run("group", "update", "nobodys", "--retries", "1")
    assert (code, "`aerobee group create nobodys` creates it" in error) == (4, True)
    assert run("group", "update", "billing")[0] == 2


def test_a_group_has_attributes(run: Run) -> None:
    bound = ("--attribute", "lite.bind.topic=sessions")
    assert document(run, "group", "create", "agents", *bound)["created"] is True
    assert document(run, "group", "create", "agents", *bound)["created"] is False
    code, _, error = run("group", "create", "agents", "--attribute", "lite.bind.topic=others")
    assert (code, "`aerobee group update agents` changes them" in error) == (2, True)
    changes = ("--attribute", "lite.sub.client.quota=7", "--remove-attribute", "lite.bind.topic")
    changed = document(run, "group", "update", "agents", *changes)
    assert changed["attributes"] == [
        {"name": "lite.sub.client.quota", "value": "7"},
        {"name": "lite.bind.topic", "value": None},
    ]
    code, _, error = run("group", "update", "agents", "--remove-attribute", "lite.bind.topic")
    assert (code, "is not set" in error) == (1, True), error
    code, _, error = run("group", "update", "agents", "--attribute", "lite.bind.topic")
    assert (code, "expected NAME=VALUE" in error) == (2, True)


def test_topics_and_groups_go_to_another_cluster(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topic", "create", "exported", "--queues", "3", "--type", "FIFO")
    run("topic", "update", "exported", "--queues", "5", "--broker", "broker-b")
    run("group", "create", "exporters", "--retries", "2", "--orderly")
    for name in ("report", "asleep"):
        run("schedule", "create", name, "exported", "the body", "--every", "1h", "--broker", "broker-b")
    run("schedule", "pause", "asleep")
    file = tmp_path / "cluster.json"
    told = document(run, "cluster", "export", str(file))
    assert (told["brokers"], told["schedules"]) == (["broker-a", "broker-b"], 2)
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("cluster", "export", str(file))[0] == 2  # it is there
    assert "match the file" in run("cluster", "import", str(file), "--yes")[1]
    with ThreadedCluster() as other:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", other.nameserver_address)
        rows = document(run, "cluster", "import", str(file), "--dry-run")
        assert {"broker": "broker-a", "kind": "topic", "name": "exported", "change": "created"} in rows
        assert run("topic", "describe", "exported")[0] == 4  # a dry run changes nothing
        code, _, error = run("cluster", "import", str(file), "--from", "broker-z", "--yes")
        assert (code, "has no broker broker-z; its brokers: broker-a, broker-b" in error) == (2, True)
        run("cluster", "import", str(file), "--from", "broker-b", "--yes")

        def imported() -> bool:
            code, output, _ = run("topic", "describe", "exported", "--json")
            return code == 0 and json.loads(output)["brokers"][0]["read_queues"] == 5

        wait_for("the topic's route", imported)
        (topic,) = document(run, "topic", "describe", "exported")["brokers"]
        assert (topic["read_queues"], topic["type"]) == (5, "FIFO")
        (group,) = [each for each in document(run, "group", "list") if each["group"] == "exporters"]
        assert (group["retries"], group["orderly"]) == (2, True)
        schedules = document(run, "schedule", "list")
        assert [(each["name"], each["topic"], each["state"], each["body_bytes"]) for each in schedules] == [
            ("asleep", "exported", "paused", 8),
            ("report", "exported", "active", 8),
        ]
        assert "match the file" in run("cluster", "import", str(file), "--from", "broker-b", "--yes")[1]
        # What mqadmin writes and reads: exportMetadata's tables, updateTopicList's list.
        theirs = tmp_path / "theirs.json"
        theirs.write_text(
            json.dumps(
                {
                    "topicConfigTable": {
                        "moved": {"topicName": "moved", "readQueueNums": 2, "writeQueueNums": 2}
                    },
                    "subscriptionGroupTable": {"movers": {"groupName": "movers", "retryMaxTimes": 9}},
                }
            )
        )
        rows = document(run, "cluster", "import", str(theirs), "--yes")
        assert [row["name"] for row in rows] == ["moved", "movers"]
        theirs.write_text(json.dumps([{"topicName": "listed", "readQueueNums": 1, "writeQueueNums": 1}]))
        assert [row["name"] for row in document(run, "cluster", "import", str(theirs), "--yes")] == ["listed"]
        theirs.write_text('{"something": 1}')
        code, _, error = run("cluster", "import", str(theirs), "--yes")
        assert (code, "neither brokers nor topicConfigTable" in error) == (2, True)


def test_queues_their_entries_and_who_would_have_them(run: Run, cluster: ThreadedCluster) -> None:
    run("topic", "create", "entered", "--queues", "1", "--broker", "broker-a")
    wait_for("the topic", lambda: run("topic", "describe", "entered")[0] == 0)
    assert "has no entries at offset 0 or after" in run("message", "entries", "entered", "broker-a/0", "0")[1]
    with SyncProducer(cluster.nameserver_address) as producer:
        results = [producer.send(Message("entered", b"x", tag=tag)) for tag in ("red", "blue")]
        rows = document(run, "message", "entries", "entered", "broker-a/0", "0")
        assert [row["offset"] for row in rows] == [0, 1]
        assert rows[1]["physical_offset"] == rows[0]["physical_offset"] + rows[0]["record_bytes"]
        assert results[1].queue_offset == 1
        assert [row["wanted"] for row in rows] == [None, None]
        (producing,) = {
            (row["group"], row["language"])
            for row in document(run, "cluster", "producers", "--broker", "broker-a")
            if row["group"] != "aerobee-probe"
        }
        assert producing[1] == "PYTHON"
        assert "no producer of group absent" in run("cluster", "producers", "--group", "absent")[1]
    run("topic", "create", "shared", "--queues", "4", "--broker", "broker-a")
    wait_for("the topic", lambda: run("topic", "describe", "shared")[0] == 0)
    rows = document(run, "topic", "allocate", "shared", "b", "a", "c")
    assert [(row["member"], len(row["queues"])) for row in rows] == [("a", 2), ("b", 1), ("c", 1)]
    assert rows[0]["queues"] == ["broker-a/0", "broker-a/1"]
    circle = document(run, "topic", "allocate", "shared", "a", "b", "--strategy", "circle")
    assert circle[0]["queues"] == ["broker-a/0", "broker-a/2"]


def test_expired_files_and_unused_queues_are_cleaned(run: Run) -> None:
    assert run("cluster", "clean")[0] == 2
    assert run("cluster", "clean", "--files", "--queues")[1].startswith(
        "old files and unused queues are deleted at "
    )


def test_a_broker_without_epochs_says_so(run: Run) -> None:
    code, _, error = run("ha", "epochs", "broker-a")
    assert code != 0
    assert "not in controller mode" in error
    assert "enableControllerMode=true" in error
