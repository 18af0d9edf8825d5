"""A store directory goes from one product to the other and back, after a clean stop and after SIGKILL.

What must hold each time: every acknowledged message is readable by offset, by id, by key and by time; queues continue
without a gap; topics, groups and committed offsets are kept.
"""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.broker.state.topic_table import COPIED_TO_FIELD
from tests.interop.conftest import targets
from tests.interop.rocketmq import (
    Broker,
    Driver,
    DriverError,
    JavaClient,
    NameServer,
    call,
    commit_offset,
)
from tests.interop.store_contents import QUEUES, Sent
from tests.ports import free_broker_port
from tests.waiting import wait_for

PAIRS = {
    "aerobee": [("aerobee", "rocketmq"), ("rocketmq", "aerobee")],
    "rocketmq": [("rocketmq", "rocketmq")],
}


@pytest.fixture(scope="session")
def namesrv(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real NameServer: the directory is what is under test here."""
    server = NameServer("rocketmq", tmp_path_factory.mktemp("exchange-namesrv"))
    server.start()
    yield server.address
    server.kill()


def send(producer: JavaClient, topic: str, label: str, count: int) -> list[Sent]:
    """Messages of 1 byte to 12 KB, a fourth of them in batches, all with keys and tags."""
    sent = []
    for number in range(count):
        body = f"{label} {number} ünï" + "x" * (number * 37 % 12_000)
        key = f"{label}-{number}"
        queue = number % QUEUES
        message = {"topic": topic, "body": body, "keys": f"{key} {label}", "tags": "TagA", "queue": queue,
                   "broker": "broker-a", "properties": {"number": str(number)}}  # fmt: skip
        (result,) = producer.send([message])
        assert result["status"] == "SEND_OK"
        sent.append(Sent(body, key, queue, result["offset"], result["offset_msg_id"], result["msg_id"]))
    for number in range(0, count // 4, 8):
        batch = [
            {"topic": topic, "body": f"{label} batch {number + n}", "keys": f"{label}-b{number + n}"}
            for n in range(8)
        ]
        (result,) = producer.send(batch, "batch")
        ids = zip(result["offset_msg_id"].split(","), result["msg_id"].split(","), strict=True)
        sent += [
            Sent(batch[n]["body"], batch[n]["keys"], result["queue"], result["offset"] + n, offset_id, unique)
            for n, (offset_id, unique) in enumerate(ids)
        ]
    return sent


def read_all(puller: JavaClient, topic: str, queue: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    offset = 0
    while True:
        page = puller.call("pull", topic=topic, broker="broker-a", queue=queue, offset=offset)
        messages += page["messages"]
        offset = page["next"]
        if offset >= page["max"]:
            return messages


def query(puller: JavaClient, topic: str, key: str) -> list[dict[str, Any]]:
    try:
        hits: list[dict[str, Any]] = puller.call("query", topic=topic, key=key)
    except DriverError as error:  # Java throws for "nothing found", too
        return [{"body": str(error), "offset": -1}]
    return hits


def wait_indexed(puller: JavaClient, topic: str, sent: Sent) -> None:
    wait_for("the index", lambda: query(puller, topic, sent.key)[0]["offset"] == sent.offset)


def check_all(puller: JavaClient, topic: str, sent: list[Sent]) -> None:
    for queue in range(QUEUES):
        expected = sorted((each.offset, each.body) for each in sent if each.queue == queue)
        queue_fields = {"topic": topic, "broker": "broker-a", "queue": queue}
        assert puller.call("offsets", **queue_fields) == {"min": 0, "max": len(expected)}
        messages = read_all(puller, topic, queue)
        assert [(message["offset"], message["body"]) for message in messages] == expected
        for message in (messages[0], messages[len(messages) // 2], messages[-1]):
            first = min(m["offset"] for m in messages if m["store_timestamp"] == message["store_timestamp"])
            assert puller.call("search", **queue_fields, timestamp=message["store_timestamp"]) == first
    for each in sent[:: max(1, len(sent) // 25)]:
        found = [(hit["offset"], hit["body"]) for hit in query(puller, topic, each.key)]
        assert found == [(each.offset, each.body)], each.key
        assert puller.call("view", topic=topic, msg_id=each.offset_msg_id)["body"] == each.body
        assert puller.call("view", topic=topic, msg_id=each.msg_id)["body"] == each.body


def wait_offsets_on_disk(broker: Broker, topic: str, group: str, committed: dict[int, int]) -> None:
    path = broker.store / "config" / "consumerOffset.json"

    def is_there() -> bool:
        text = path.read_text() if path.exists() else ""
        at = text.find(f'"{topic}@{group}"')
        block = "".join(text[at : text.find("}", at)].split()).replace('"', "") if at >= 0 else ""
        return all(f"{queue}:{offset}" in block for queue, offset in committed.items())

    wait_for(f"offsets in {path}", is_there, timeout_s=120)


def as_of_a_slave(path: pathlib.Path) -> None:
    """A file of topics with what a slave of ours writes besides: RocketMQ passes over it."""
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, COPIED_TO_FIELD: 1 << 40}))


@pytest.mark.parametrize("ending", ["clean", "killed"])
@pytest.mark.parametrize(("first", "second"), [pair for target in targets() for pair in PAIRS[target]])
def test_a_directory_goes_to_the_other_product_and_back(
    driver: Driver, namesrv: str, topic: str, tmp_path: pathlib.Path, first: str, second: str, ending: str
) -> None:
    port = free_broker_port()
    store = tmp_path / "store"
    brokers = [
        Broker(kind, tmp_path / f"{turn}-{kind}", namesrv, store=store, port=port)
        for turn, kind in enumerate((first, second, first))
    ]
    group = driver.unique("CG_exchange")
    committed = {queue: 3 + queue for queue in range(QUEUES)}
    sent: list[Sent] = []
    try:
        for turn, broker in enumerate(brokers):
            broker.start()
            if turn == 0:
                admin = ("-c", "DefaultCluster", "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES))
                assert "success" in driver.admin(namesrv, "updateTopic", *admin)
                assert "success" in driver.admin(
                    namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", group
                )
            with driver.producer(namesrv) as producer, driver.pull(namesrv, group=group) as puller:
                all_queue_fields = [
                    {"topic": topic, "broker": "broker-a", "queue": queue} for queue in range(QUEUES)
                ]
                if turn == 0:
                    sent += send(producer, topic, "first", 240)
                    for queue_fields in all_queue_fields:
                        commit_offset(puller, queue_fields, committed[queue_fields["queue"]])
                    wait_offsets_on_disk(broker, topic, group, committed)
                else:
                    check_all(puller, topic, sent)
                    assert {p["queue"]: puller.call("committed", **p) for p in all_queue_fields} == committed
                    sent += send(producer, topic, f"turn{turn}", 48)
                wait_indexed(puller, topic, sent[-1])
                check_all(puller, topic, sent)
            broker.stop() if ending == "clean" and turn < 2 else broker.kill()
            if broker.kind == "aerobee":
                as_of_a_slave(store / "config" / "topics.json")
        # The last SIGKILL, too, loses nothing that was acknowledged.
        brokers[1].start()
        with driver.pull(namesrv, group=group) as puller:
            check_all(puller, topic, sent)
        assert json.loads(driver.admin(namesrv, "topicRoute", "-t", topic).replace('0:"', '"0":"'))[
            "queueDatas"
        ]
    finally:
        for broker in brokers:
            broker.kill()


@pytest.mark.parametrize(("first", "second"), [pair for target in targets() for pair in PAIRS[target]])
def test_a_broker_killed_while_it_writes_leaves_all_acknowledged_messages_to_the_other_product(
    driver: Driver, namesrv: str, topic: str, tmp_path: pathlib.Path, first: str, second: str
) -> None:
    port = free_broker_port()
    store = tmp_path / "store"
    acked: dict[tuple[int, int], str] = {}
    keys: dict[str, str] = {}
    brokers = [
        Broker(kind, tmp_path / f"{turn}-{kind}", namesrv, store=store, port=port)
        for turn, kind in enumerate((first, second, first))
    ]
    try:
        for turn, broker in enumerate(brokers):
            broker.start()
            if turn == 0:
                admin = ("-c", "DefaultCluster", "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES))
                assert "success" in driver.admin(namesrv, "updateTopic", *admin)
            with driver.pull(namesrv) as puller:
                print(f"turn {turn}: {broker.kind} opens {len(acked)} acknowledged messages")
                check_acked(puller, topic, acked, keys)
            if turn < 2:
                flood(driver, broker, topic, f"turn{turn}", acked, keys)
    finally:
        for broker in brokers:
            broker.kill()


def flood(
    driver: Driver,
    broker: Broker,
    topic: str,
    label: str,
    acked: dict[tuple[int, int], str],
    keys: dict[str, str],
) -> None:
    """Kill the broker while some thousand messages are on their way to it; note what it acknowledged."""
    messages = [
        {"topic": topic, "body": f"{label} {n} " + "y" * (n * 53 % 900), "keys": f"{label}-{n}"}
        for n in range(6_000)
    ]

    def stored() -> int:
        ends = (call(broker.address, 30, {"topic": topic, "queueId": str(queue)}) for queue in range(QUEUES))
        return sum(int(header["extFields"]["offset"]) for header, _ in ends)

    with driver.producer(broker.namesrv, timeout_ms=2_000, retries=0) as producer:
        before = stored()
        results: list[dict[str, Any]] = []

        def send_all() -> None:
            # 500 at a time, until the broker is gone: portions before the kill are acknowledged, one is cut.
            while len(results) < len(messages) and all("error" not in result for result in results[-500:]):
                results.extend(producer.send(messages[len(results) : len(results) + 500], "async"))

        sending = threading.Thread(target=send_all)
        sending.start()
        wait_for("the flood", lambda: stored() - before > 1_500)
        broker.kill()
        sending.join()
    stored_ok = [at for at, result in enumerate(results) if result.get("status") == "SEND_OK"]
    assert len(stored_ok) >= 1_000
    for at in stored_ok:
        acked[results[at]["queue"], results[at]["offset"]] = messages[at]["body"]
    for at in stored_ok[:: len(stored_ok) // 15]:
        keys[messages[at]["keys"]] = messages[at]["body"]


def check_acked(
    puller: JavaClient, topic: str, acked: dict[tuple[int, int], str], keys: dict[str, str]
) -> None:
    found: dict[tuple[int, int], str] = {}
    for queue in range(QUEUES):
        messages = read_all(puller, topic, queue)
        assert [message["offset"] for message in messages] == list(range(len(messages)))
        found |= {(queue, message["offset"]): message["body"] for message in messages}
    assert found.items() >= acked.items()
    for key, body in keys.items():
        assert [hit["body"] for hit in query(puller, topic, key)] == [body]
