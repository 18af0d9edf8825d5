"""deploy/compose.yaml on a dockerd without anything: RocketMQ's Java client from the host and from a container simultaneously; three
brokers a group with a killed master, and under chaos; the lag of a group by Spark; Prometheus with the rules."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.docker import (
    DAEMON,
    compose,
    docker,
    driver_in_the_network,
    driver_on_the_host,
    on_the_host,
    run,
)
from tests.interop.rocketmq import Driver, DriverError, wait_for

pytestmark = pytest.mark.usefixtures("daemon")
NETWORK = "aerobee_default"
WAIT = ("up", "-d", "--wait", "--wait-timeout", "240")
SENT_BEFORE, SENT_AFTER = 100, 200  # around the kill of a master


@pytest.fixture
def single() -> Iterator[None]:
    compose(*WAIT)
    yield
    compose("down", "-v", "-t", "10")


@pytest.fixture
def groups() -> Iterator[None]:
    names = [
        line
        for line in compose("config", "--services", profiles=("ha",)).split()
        if line not in ("nameserver", "broker")
    ]
    compose(*WAIT, *names, profiles=("ha",))
    yield
    compose("down", "-v", "-t", "10", profiles=("ha",))


@pytest.fixture
def host(daemon: None, tmp_path: pathlib.Path) -> Iterator[Driver]:
    driver = driver_on_the_host(tmp_path / "host")
    yield driver
    driver.stop()


def test_clients_on_the_host_and_in_the_network_send_and_receive_at_once(
    single: None, host: Driver, tmp_path: pathlib.Path
) -> None:
    inside = driver_in_the_network(tmp_path / "inside", NETWORK)
    sides = {"host": (host, "localhost:9876"), "container": (inside, "nameserver:9876")}
    try:
        for name, (driver, namesrv) in sides.items():
            with driver.producer(namesrv) as producer:
                for number in range(10):
                    (result,) = producer.send([{"topic": "orders", "body": f"{name}-{number}"}])
                    assert result["status"] == "SEND_OK"
        wanted = sorted(f"{name}-{number}" for name in sides for number in range(10))
        for name, (driver, namesrv) in sides.items():
            with driver.push(namesrv, "orders", group=f"readers-{name}") as consumer:
                assert sorted(each["body"] for each in consumer.received(20, 60)) == wanted
        # Each side gets addresses that it reaches.
        route_outside = host.admin("localhost:9876", "topicRoute", "-t", "orders")
        route_inside = inside.admin("nameserver:9876", "topicRoute", "-t", "orders")
        assert "localhost:10911" in route_outside
        assert "broker:10911" in route_inside
    finally:
        inside.stop()
    report = json.loads(
        docker(
            "exec", "aerobee-broker-1", "aerobee", "doctor", "-n", "nameserver:9876", "--json", check=False
        )
    )
    assert "broker-a" in json.dumps(report)


def test_every_profile_is_understood() -> None:
    services = compose(
        "config", "--services", profiles=("ha", "monitoring", "chaos", "spark", "proxy")
    ).split()
    assert {
        "nameserver", "broker", "controller-c", "broker-b-2", "prometheus", "grafana", "chaos", "spark-lag", "spark-page", "proxy",
    } <= set(services)  # fmt: skip


@pytest.fixture
def lag_job() -> Iterator[None]:
    compose(*WAIT, profiles=("spark",), AEROBEE_SPARK_EVERY="1")
    yield
    compose("down", "-v", "-t", "10", profiles=("spark",))


def test_the_lag_job_shows_what_a_group_has_not_read(lag_job: None, host: Driver) -> None:
    namesrv = "localhost:9876"
    messages = [{"topic": "orders", "body": str(number)} for number in range(10)]
    with host.producer(namesrv) as producer:
        producer.send(messages)
        with host.push(namesrv, "orders", group="readers") as consumer:
            consumer.received(10, 60)
        producer.send(messages[:7])
    lag = 'aerobee_lag_job_messages{cluster="DefaultCluster",consumer_group="readers"} 7'
    wait_for("the lag", lambda: lag in served("lag.txt").splitlines(), 180)
    wait_for("the page", lambda: "readers" in served("lag.html"), 60)


def served(path: str, port: int = 8088, **options: Any) -> str:
    """What is published at a port; 8088 is the page of the profile spark."""
    script = (
        "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=30).read())"
    )
    return on_the_host(sys.executable, "-c", script, f"http://localhost:{port}/{path}", **options)


@pytest.fixture
def prometheus(single: None) -> Iterator[None]:
    if not pathlib.Path("/usr/bin/prometheus").exists():
        pytest.fail("run scripts/setup-prometheus first")
    compose("up", "-d", "prometheus", profiles=("monitoring",))
    yield
    compose("rm", "-sfv", "prometheus", profiles=("monitoring",))


def test_prometheus_reads_the_brokers_and_its_rules(prometheus: None) -> None:
    def health(job: str) -> list[str]:
        found = json.loads(served("api/v1/targets", port=9090))["data"]["activeTargets"]
        return [each["health"] for each in found if each["labels"]["job"] == job]

    wait_for("Prometheus", lambda: served("api/v1/targets", port=9090, check=False).startswith("{"), 120)
    for job in ("aerobee-broker", "aerobee-nameserver"):
        wait_for(f"{job} to be read", lambda job=job: health(job) == ["up"], 120)
    rules = [
        rule
        for group in json.loads(served("api/v1/rules", port=9090))["data"]["groups"]
        for rule in group["rules"]
    ]
    assert {rule["type"] for rule in rules} == {"alerting", "recording"}
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def test_chaos_kills_brokers_and_nothing_is_lost(groups: None, host: Driver) -> None:
    namesrv = "localhost:9886;localhost:9896"
    assert "success" in host.admin(namesrv, "updateTopic", "-c", "ha", "-t", "orders", "-r", "4", "-w", "4")
    compose("up", "-d", "chaos", profiles=("chaos",), CHAOS_PAUSE="2")
    acknowledged: list[str] = []
    with host.producer(namesrv) as producer:

        def are_back() -> int:
            """How many were killed and started again; sends one message."""
            with contextlib.suppress(DriverError):  # the next turn sends it again
                (result,) = producer.send([{"topic": "orders", "body": f"m{len(acknowledged)}"}])
                if result["status"] == "SEND_OK":
                    acknowledged.append(f"m{len(acknowledged)}")
            return docker("logs", "aerobee-chaos-1").count("started aerobee-broker-")

        wait_for("two brokers that were killed and are back", lambda: are_back() >= 2, 240)
        compose("rm", "-sf", "chaos", profiles=("chaos",))
    assert acknowledged
    with host.push(namesrv, "orders") as consumer:
        all_are_read(acknowledged, consumer, namesrv, host)


def test_a_killed_master_loses_nothing(groups: None, host: Driver, tmp_path: pathlib.Path) -> None:
    namesrv = "localhost:9886;localhost:9896"
    made = host.admin(namesrv, "updateTopic", "-c", "ha", "-t", "orders", "-r", "4", "-w", "4")
    assert "success" in made
    acknowledged: list[str] = []
    failed: list[str] = []

    def send(first: int, count: int, producer: Any) -> None:
        for number in range(first, first + count):
            body = f"m{number}"
            for _ in range(60):
                try:
                    (result,) = producer.send([{"topic": "orders", "body": body}])
                except Exception as error:
                    failed.append(f"{body}: {error}")
                    continue
                if result["status"] == "SEND_OK":
                    acknowledged.append(body)
                    break

    with host.producer(namesrv) as producer:
        send(0, SENT_BEFORE, producer)
        victim = master_of("group-a")
        sender = threading.Thread(target=send, args=(SENT_BEFORE, SENT_AFTER, producer))
        sender.start()
        docker("kill", "-s", "KILL", victim)
        sender.join(240)
        assert not sender.is_alive()
    wait_for("another master", lambda: master_of("group-a") not in ("", victim), 60)
    assert len(acknowledged) == SENT_BEFORE + SENT_AFTER, failed[-3:]
    with host.push(namesrv, "orders") as consumer:
        all_are_read(acknowledged, consumer, namesrv, host)


def all_are_read(acknowledged: list[str], consumer: Any, namesrv: str, host: Driver) -> None:
    """Wait until a consumer has all of them; says what is missing, and what the brokers know of the topic."""

    def missing() -> set[str]:
        return set(acknowledged) - {message["body"] for message in consumer.received(0)}

    try:
        wait_for("every message", lambda: not missing(), 180)
    except AssertionError as error:
        known = [
            host.admin(namesrv, *words)
            for words in (("topicStatus", "-t", "orders"), ("topicRoute", "-t", "orders"))
        ]
        raise AssertionError(
            f"{error}: {sorted(missing())} of {len(acknowledged)} are missing; {known}"
        ) from error


def master_of(group: str) -> str:
    """The container that is master of a group as the controllers say; empty while there is none."""
    text = run(
        DAEMON, "docker", "exec", "aerobee-nameserver-a-1", "aerobee", "ha", "status", "-a",
        "nameserver-a:9878;nameserver-b:9878;controller-c:9878", "--json", check=False,
    )  # fmt: skip
    for each in json.loads(text or "{}").get("broker_groups", ()):
        if each["broker_name"] == group:
            for broker in each["brokers"]:
                if broker["broker_id"] == each["master_id"]:
                    return f"aerobee-{broker['address'].partition(':')[0]}-1"
    return ""
