"""mqadmin's commands about lite topics, and their answers, at a broker of either product."""

from __future__ import annotations

import json
import pathlib
import re
import time
from typing import Any

from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Cluster, Driver, call
from tests.waiting import wait_for

SETTINGS = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    # RocketMQ ranks lite topics by their lag only then.
    "liteLagLatencyCollectEnable": "true",
    "liteLagLatencyMetricsEnable": "true",
    "liteLagCountMetricsEnable": "true",
}
TOPIC, GROUP, CLIENT = "chat", "readers", "client-1"


def lmq(name: str) -> str:
    return f"%LMQ%${TOPIC}${name}"


class World:
    """A broker with two lite topics that one client subscribes: room1 has 3 messages, room2 one, and room1's first is consumed."""

    def __init__(self, kind: str, root: pathlib.Path, driver: Driver) -> None:
        self.cluster = Cluster(kind, root, **SETTINGS)
        self.driver = driver

    def prepare(self) -> None:
        self.cluster.start()
        make_topic(self.driver, self.cluster, TOPIC, a="+message.type=LITE,+lite.topic.expiration=30")
        make_topic(self.driver, self.cluster, "plain")
        out = self.admin(
            "updateSubGroup", "-c", "DefaultCluster", "-g", GROUP, "--attributes", f"+lite.bind.topic={TOPIC}"
        )
        assert "success" in out
        entry = {
            "action": "COMPLETE_ADD", "clientId": CLIENT, "group": GROUP, "topic": TOPIC,
            "liteTopicSet": ["room1", "room2"], "version": 1,
        }  # fmt: skip
        header, _ = self.call(200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())
        assert header["code"] == 0, header
        for name in ("room1", "room1", "room1", "room2"):
            self.send(name)
        for name, count in (("room1", 3), ("room2", 1)):
            wait_for(
                f"{name}'s messages",
                lambda name=name, count=count: self.topic(name)["topicOffset"]["maxOffset"] == count,
            )
            ext = {
                "consumerGroup": GROUP,
                "topic": lmq(name),
                "queueId": "0",
                "commitOffset": str(int(count == 3)),
            }
            header, _ = self.call(15, ext)
            assert header["code"] == 0, header

    def send(self, name: str) -> None:
        properties = {
            "__LITE_TOPIC": name,
            "INNER_MULTI_DISPATCH": lmq(name),
            "UNIQ_KEY": f"{time.time_ns():032X}",
        }
        ext = {
            "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(time.time_ns() // 1_000_000), "h": "0",
            "i": "".join(f"{key}\x01{value}\x02" for key, value in properties.items()), "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        header, _ = self.call(310, ext, b"hello")
        assert header["code"] == 0, header

    def call(self, code: int, ext: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        return call(self.cluster.broker.address, code, ext, body)

    def ask(self, code: int, **ext: str) -> dict[str, Any]:
        header, body = self.call(code, ext)
        assert header["code"] == 0, header
        found: dict[str, Any] = json.loads(body)
        return found

    def topic(self, name: str) -> dict[str, Any]:
        return self.ask(200076, parentTopic=TOPIC, liteTopic=name)

    def admin(self, *arguments: str) -> str:
        return self.driver.admin(self.cluster.namesrv, *arguments, with_errors=True)


COMMANDS = {
    "getParentTopicInfo": ("-p", TOPIC),
    "getLiteTopicInfo": ("-p", TOPIC, "-l", "room1", "-s"),
    "getLiteClientInfo": ("-p", TOPIC, "-g", GROUP, "-c", CLIENT, "-s"),
    "getLiteGroupInfo": ("-p", TOPIC, "-g", GROUP, "-l", "room1"),
    "triggerLiteDispatch": ("-p", TOPIC, "-g", GROUP),
}


def shown(world: World) -> dict[str, object]:
    """What the commands print, and the answers whose values are times or sizes of other tables, without these."""
    found: dict[str, object] = {
        name: without_times(world.admin(name, *arguments)) for name, arguments in COMMANDS.items()
    }
    broker = world.ask(200074)
    found["broker"] = {name: value for name, value in broker.items() if name != "cqTableSize"}
    lags = world.ask(200078, group=GROUP, topK="10")
    found["ranked"] = (
        [(each["liteTopic"], each["lagCount"]) for each in lags["lagCountTopK"]],
        lags["totalLagCount"],
    )
    for name in (
        "plain",
        "absent",
    ):  # RocketMQ creates a group when it reads one, and so never says that one does not exist
        header, _ = world.call(200075, {"topic": name})
        found[name] = header["code"], header["remark"]
    header, body = world.call(
        200077, {"parentTopic": TOPIC, "group": GROUP, "clientId": "none", "maxCount": "9"}
    )
    found["unknown client"] = json.loads(body)
    return found


def without_times(text: str) -> list[str]:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME", text)
    return re.sub(r"\d{13} \(-?\d+ s ago\)", "TIME", text).split()


def test_both_products_answer_alike(driver: Driver, tmp_path: pathlib.Path) -> None:
    found = {}
    for kind in ("aerobee", "rocketmq"):
        world = World(kind, tmp_path / kind, driver)
        try:
            world.prepare()
            found[kind] = shown(world)
            if kind == "aerobee":  # RocketMQ has the second list for consumers that have popped
                text = world.admin("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP)
                assert re.search(r"TopK by lag time-+.*1 +room1 +2 .*2 +room2 +1 ", text, re.DOTALL), text
        finally:
            world.cluster.stop()
    assert found["aerobee"] == found["rocketmq"]
