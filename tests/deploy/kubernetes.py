"""The cluster of scripts/setup-kubernetes with the chart in it, and senders on both sides of its network."""

from __future__ import annotations

import json
import pathlib
import subprocess
import threading
from typing import Any

from tests.deploy.docker import DAEMON, IMAGE, ROOT, run
from tests.interop.rocketmq import Driver, DriverError, wait_for

SETUP = ROOT / "scripts" / "setup-kubernetes"
CHART = ROOT / "deploy" / "helm" / "aerobee"
NODE = "10.250.0.1"
NAMESERVER = f"{NODE}:30876"
RELEASE = "mq"
BALANCER = "10.250.0.2"  # in the node's network, unused: kube-proxy answers there for Services that say so
SECOND = "lb"  # a separate small release
IMAGE_HERE = "localhost/aerobee:dev"
WAIT_S = 300.0
SMALL: dict[str, Any] = {
    "image": {"repository": "localhost/aerobee", "tag": "dev", "pullPolicy": "Never"},
    "nameserver": {
        "persistence": {"size": "64Mi"},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "384Mi"}},
    },
    "broker": {
        "handOver": {"apartSeconds": 6},  # the clients of these tests look for routes more often
        "persistence": {"size": "256Mi"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    },
    "config": {
        "broker": {
            "mappedFileSizeCommitLog": 16777216,
            "mappedFileSizeConsumeQueue": 60000,
            "maxHashSlotNum": 5000,
            "maxIndexNum": 20000,
            "mappedFileSizeTimerLog": 655200,
        }
    },
    "drain": {"timeoutSeconds": 180},
}


def within(*command: object, **options: Any) -> str:
    """Run a command where the cluster's addresses are."""
    return run(SETUP, "exec", *command, **options)


def kubectl(*arguments: object, **options: Any) -> str:
    return within("kubectl", *arguments, **options)


def helm(*arguments: object, **options: Any) -> str:
    return within("helm", *arguments, timeout_s=900, **options)


def load_image(directory: pathlib.Path) -> None:
    """Build the image and put it into the node."""
    run(ROOT / "scripts" / "make-image", IMAGE, timeout_s=3600)
    saved = directory / "image.tar"
    run(DAEMON, "start", "--build")
    run(DAEMON, "docker", "tag", IMAGE, IMAGE_HERE)
    run(DAEMON, "docker", "save", "-o", saved, IMAGE_HERE)
    run(DAEMON, "stop")
    run(SETUP, "load", saved)
    saved.unlink()


def chart(verb: str, directory: pathlib.Path, **broker: Any) -> str:
    """Install or upgrade the release with the profiles ha and nodeport at small sizes; `broker` are values below broker."""
    values = json.loads(json.dumps(SMALL))
    values["broker"] |= broker.pop("broker", {})
    values["config"]["broker"] |= broker.pop("config", {})
    assert not broker
    path = directory / "values.json"
    path.write_text(json.dumps(values))
    profiles = [word for name in ("ha", "nodeport") for word in ("-f", CHART / "profiles" / f"{name}.yaml")]
    return helm(verb, RELEASE, CHART, *profiles, "-f", path, "--wait", "--timeout", "10m")


def second_chart(verb: str, directory: pathlib.Path, profile: str, *flags: str) -> str:
    """Install or upgrade the second release: one NameServer and one broker without volumes, and a profile for clients outside."""
    path = directory / "second.json"
    path.write_text(json.dumps(SMALL))
    values = (
        "-f",
        path,
        *(word for name in ("dev", profile) for word in ("-f", CHART / "profiles" / f"{name}.yaml")),
    )
    return helm(verb, SECOND, CHART, *values, *flags)


def give_address(service: str, address: str) -> None:
    """What a load balancer's controller does: tell a Service its address."""
    status = json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
    kubectl("patch", "service", service, "--subresource=status", "--type=merge", "-p", status)


def told_master(nameserver: str, topic: str, pod: str = "") -> dict[str, str]:
    """{broker group: address of its master} as that NameServer tells it to whoever asks from the node, or from a pod."""
    script = """if True:
        import asyncio, json, sys
        from aerobee.client.admin.admin import Admin

        async def main():
            async with Admin(sys.argv[1]) as admin:
                route = await admin.topic_route(sys.argv[2])
            print(json.dumps({each.broker_name: each.broker_addrs.get(0, "") for each in route.brokers}))

        asyncio.run(main())
    """
    where = ("kubectl", "exec", pod, "--", "python3") if pod else (ROOT / ".venv/bin/python",)
    told: dict[str, str] = json.loads(within(*where, "-c", script, nameserver, topic))
    return told


def ready_pods(component: str = "broker", release: str = RELEASE) -> set[str]:
    """Names of the ready pods of a component of a release."""
    wanted = f"app.kubernetes.io/component={component},app.kubernetes.io/instance={release}"
    found = json.loads(kubectl("get", "pods", "-l", wanted, "-o", "json"))
    return {
        each["metadata"]["name"]
        for each in found["items"]
        if not each["metadata"].get("deletionTimestamp")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ()))
    }


def master_of(group: str) -> str:
    """The pod that is master of a group; empty while there is none."""
    text = kubectl(
        "exec", "mq-aerobee-nameserver-0", "--", "aerobee", "ha", "status", "-a", "mq-aerobee-nameserver-0.mq-aerobee-nameservers:9878;mq-aerobee-nameserver-1.mq-aerobee-nameservers:9878",
        "--json", check=False,
    )  # fmt: skip
    for each in json.loads(text or "{}").get("broker_groups", ()):
        if each["broker_name"] == group:
            for broker in each["brokers"]:
                if broker["broker_id"] == each["master_id"]:
                    return str(broker["address"]).partition(".")[0]
    return ""


def brokers_by_doctor(*command: object) -> set[str]:
    """The brokers that `aerobee doctor` speaks of, as "name/id". Fails unless all checks passed."""
    findings = json.loads(within(*command))
    return {each["part"] for each in findings["findings"] if str(each["part"]).startswith("broker ")}


class PodSender:
    """workers/sender.py in a pod, at the NameServers' internal Service."""

    name = "inside"

    def __init__(self, topic: str) -> None:
        script = (pathlib.Path(__file__).parent / "workers" / "sender.py").read_text(encoding="utf-8")
        kubectl(
            "run", self.name, f"--image={IMAGE_HERE}", "--image-pull-policy=Never", "--restart=Never", "--env=HOME=/tmp", "--command", "--",
            "python3", "-c", script, "mq-aerobee-nameserver:9876", topic, self.name, "/tmp/stop",
        )  # fmt: skip

    def _lines(self, word: str) -> list[str]:
        log = kubectl("logs", self.name, "--tail=-1", check=False)
        return [line.partition(" ")[2] for line in log.splitlines() if line.startswith(f"{word} ")]

    @property
    def sent(self) -> list[str]:
        return self._lines("sent")

    @property
    def failed(self) -> list[str]:
        return self._lines("failed")

    def stop(self) -> None:
        kubectl("exec", self.name, "--", "touch", "/tmp/stop")
        wait_for("the sender's end", lambda: kubectl("logs", self.name, "--tail=1").strip() == "end", 120)


class JavaSender:
    """RocketMQ's Java client outside, through the NodePorts."""

    name = "outside"

    def __init__(self, driver: Driver, topic: str) -> None:
        self.sent: list[str] = []
        self.failed: list[str] = []
        self._producer = driver.producer(NAMESERVER, group="outside-producers")
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._stop.wait(0.05):
            body = f"{self.name}-{number}"
            number += 1
            try:
                (result,) = self._producer.send([{"topic": self._topic, "body": body}])
            except DriverError as error:
                self.failed.append(f"{body} {error}")
                continue
            (self.sent if result["status"] == "SEND_OK" else self.failed).append(body)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._producer.stop()


def outside_driver(root: pathlib.Path) -> Driver:
    """RocketMQ's Java client in the node's network, outside of the pods'."""
    return Driver(root, within=(str(SETUP), "exec"))


def fails(*command: object) -> str:
    """Run a command that must fail; returns what it said."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr
