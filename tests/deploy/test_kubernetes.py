"""The chart in a real Kubernetes, with messages flowing from inside and from outside all the time: nothing is lost, whatever is done to it.

`make kubernetes` runs this; programs are built the first time (scripts/setup-kubernetes).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.deploy.docker import ROOT, run
from tests.deploy.kubernetes import (
    BALANCER,
    NAMESERVER,
    NODE,
    RELEASE,
    SECOND,
    SETUP,
    JavaSender,
    PodSender,
    brokers_by_doctor,
    chart,
    fails,
    give_address,
    helm,
    kubectl,
    load_image,
    master_of,
    outside_driver,
    ready_pods,
    second_chart,
    told_master,
    within,
)
from tests.interop.rocketmq import Driver, wait_for

TOPIC = "orders"
PHASE_MESSAGES = 60  # that each side has to get through in a phase
WAIT_S = 300.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The cluster with the release in it."""
    directory = tmp_path_factory.mktemp("kubernetes")
    run(SETUP, "start", timeout_s=7200)
    try:
        load_image(directory)
        chart("install", directory)
        yield directory
    finally:
        run(SETUP, "stop")


@pytest.fixture(scope="module")
def driver(directory: pathlib.Path) -> Iterator[Driver]:
    driver = outside_driver(directory / "java")
    yield driver
    driver.stop()


def flow_on(*senders: PodSender | JavaSender) -> None:
    """Wait until each has got more messages through."""
    for sender in senders:
        count = len(sender.sent)
        wait_for(
            f"messages from {sender.name}",
            lambda sender=sender, count=count: len(sender.sent) >= count + PHASE_MESSAGES,
            WAIT_S,
        )


def test_helm_test_passes_through_the_external_address(directory: pathlib.Path) -> None:
    text = helm("test", RELEASE, "--logs")
    assert f"NameServer: {NAMESERVER}" in text
    assert "all passed" in text


def test_doctor_names_the_same_brokers_inside_and_outside(directory: pathlib.Path) -> None:
    outside = brokers_by_doctor(ROOT / ".venv/bin/aerobee", "doctor", "-n", NAMESERVER, "--json")
    inside = brokers_by_doctor(
        "kubectl", "exec", "mq-aerobee-nameserver-0", "--", "aerobee", "doctor", "-n", "mq-aerobee-nameserver:9876", "--json"
    )  # fmt: skip
    assert inside == outside
    assert len(inside) == 6


def test_nothing_is_lost_whatever_is_done(directory: pathlib.Path, driver: Driver) -> None:
    external = ROOT / ".venv/bin/aerobee"
    within(external, "topic", "create", TOPIC, "--cluster", RELEASE, "-n", NAMESERVER)
    consumer = driver.push(NAMESERVER, TOPIC, group="readers")
    outside, inside = JavaSender(driver, TOPIC), PodSender(TOPIC)
    senders = (outside, inside)
    flow_on(*senders)

    # A master's pod is killed without any notification.
    victim = wait_for("a master", lambda: master_of("broker-0"), 60)
    kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    wait_for("another master", lambda: master_of("broker-0") not in ("", victim), 60)
    flow_on(*senders)
    wait_for("all brokers in sync", lambda: len(ready_pods()) == 6, WAIT_S)

    # The node is drained: the budgets let one broker of each group go, and no more.
    failed_before = len(inside.failed), len(outside.failed)
    said = fails(
        SETUP, "exec", "kubectl", "drain", "node", "--pod-selector", "app.kubernetes.io/component=broker",
        "--delete-emptydir-data", "--timeout=40s",
    )  # fmt: skip
    assert "disruption budget" in said
    left = ready_pods()
    assert len([name for name in left if "-broker-0-" in name]) == 2
    assert len([name for name in left if "-broker-1-" in name]) == 2
    flow_on(*senders)
    kubectl("uncordon", "node")
    wait_for("all brokers in sync", lambda: len(ready_pods()) == 6, WAIT_S)

    # A rolling upgrade of everything.
    before = {name: uid(name) for name in ready_pods()}
    chart("upgrade", directory, config={"fileReservedTime": 24})
    assert all(uid(name) != before[name] for name in before)
    flow_on(*senders)
    assert (len(inside.failed), len(outside.failed)) == failed_before, (inside.failed, outside.failed)

    # A third group, and away with it again: it is empty before it goes.
    chart("upgrade", directory, config={"fileReservedTime": 24}, broker={"groups": 3})
    within(external, "topic", "create", TOPIC, "--cluster", RELEASE, "-n", NAMESERVER)
    wait_for("messages at the third group", lambda: stored_at("broker-2") > 0, 120)
    chart("upgrade", directory, config={"fileReservedTime": 24}, broker={"groups": 2})
    wait_for("the third group's end", lambda: len(ready_pods()) == 6, WAIT_S)
    assert not [name for name in ready_pods() if "-broker-2-" in name]
    flow_on(*senders)

    for sender in senders:
        sender.stop()
    wanted = {*outside.sent, *inside.sent}
    wait_for("every message", lambda: wanted <= {each["body"] for each in consumer.received(0)}, 120)
    consumer.stop()
    assert (len(inside.failed), len(outside.failed)) == failed_before, (inside.failed, outside.failed)
    print(f"{len(wanted)} messages; failed at the forced deletion: {failed_before}")


def test_an_uninstall_leaves_nothing(directory: pathlib.Path, driver: Driver) -> None:
    kubectl("delete", "pod", "inside", "--grace-period=0", "--force", check=False)
    helm("uninstall", RELEASE, "--wait", "--timeout", "5m")
    wait_for("claims to go", lambda: "mq-aerobee-broker-0-0" not in kubectl("get", "pvc", "-o", "name"), 120)
    kinds = "statefulsets,services,configmaps,poddisruptionbudgets,roles,rolebindings,serviceaccounts"
    left = kubectl("get", kinds, "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    assert left.strip() == ""


BROKER = f"{SECOND}-aerobee-broker-0-0"
INSIDE = f"{BROKER}.{SECOND}-aerobee-brokers.default.svc.cluster.local:10911"


def passes_outside(driver: Driver, address: str, topic: str, broker: str) -> None:
    """A message goes out and in through a host's address, where the broker is at `broker`; clients inside get the pod's name."""
    nameserver = f"{address}:9876"
    within(ROOT / ".venv/bin/aerobee", "topic", "create", topic, "--cluster", SECOND, "-n", nameserver)
    assert told_master(nameserver, topic) == {"broker-0": broker}
    assert told_master(f"{SECOND}-aerobee-nameserver:9876", topic, BROKER) == {"broker-0": INSIDE}
    with driver.producer(nameserver) as producer, driver.push(nameserver, topic) as consumer:
        (result,) = producer.send([{"topic": topic, "body": f"by {broker}"}])
        assert result["status"] == "SEND_OK"
        assert [each["body"] for each in consumer.received(1, 60)] == [f"by {broker}"]
    text = helm("test", SECOND, "--logs")
    assert f"NameServer: {nameserver}" in text
    assert "all passed" in text


def test_a_load_balancers_address_is_waited_for_and_told(directory: pathlib.Path, driver: Driver) -> None:
    second_chart("install", directory, "loadbalancer")

    def said() -> str:
        return kubectl("logs", BROKER, "-c", "find-address", check=False)

    wait_for("the broker to wait for its address", lambda: "no address yet" in said(), WAIT_S)
    assert ready_pods(release=SECOND) == set()
    for service in (f"{SECOND}-aerobee-nameserver-external", BROKER):
        give_address(service, BALANCER)
    wait_for("the broker", lambda: ready_pods(release=SECOND) == {BROKER}, WAIT_S)
    assert f"address for clients outside: {BALANCER}:10911" in said()
    passes_outside(driver, BALANCER, "balanced", f"{BALANCER}:10911")


def test_host_ports_are_told_and_answer(directory: pathlib.Path, driver: Driver) -> None:
    second_chart("upgrade", directory, "hostport", "--install", "--wait", "--timeout", "5m")
    passes_outside(driver, NODE, "hosted", f"{NODE}:10911")
    helm("uninstall", SECOND, "--wait", "--timeout", "5m")


def uid(pod: str) -> str:
    return kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")


def stored_at(broker: str) -> int:
    """How many messages of the topic a broker group has."""
    text = within(ROOT / ".venv/bin/aerobee", "topic", "stats", TOPIC, "-n", NAMESERVER, "--json")
    return sum(each["messages"] for each in json.loads(text) if each["broker"] == broker)
