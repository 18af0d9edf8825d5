"""Requests that name a record by its offset: the permission follows the topic of the record, and refusals give nothing away."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.admin import consume_stats
from aerobee.broker.admin.consume_stats import ConsumeStatsCalls
from aerobee.broker.fastpath.choice import VARIABLE, choose_backend
from aerobee.broker.transaction.service import Transactions
from aerobee.broker.transaction.transaction_table import TransactionTable
from aerobee.client.admin.admin import Admin
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError
from aerobee.message import (
    decode_record,
    decode_records,
    encode_properties,
    encode_record,
    java_hash,
    pack_host,
)
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads
from aerobee.remoting.signature import Credentials
from tests.integration.access_cluster import ROOT, USERS, Cluster, client, make_consumer, running

HALF_FLAG = "4"


class World:
    """A broker with topics `orders` and `bills`; eve may send to orders and consume it as group eve."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        keys = {"root": ROOT, "eve": Credentials("eve", "evesecret")}
        self.clients = {
            name: RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=key)
            for name, key in keys.items()
        }

    @property
    def table(self) -> TransactionTable:
        (found,) = (each for each in self.cluster.broker.features if isinstance(each, Transactions))
        return found.transaction_store.table

    async def ask(self, who: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        return await self.clients[who].invoke(
            self.cluster.broker.address, RemotingCommand(code, ext, body), timeout_s=60
        )

    async def send(
        self, who: str, topic: str, properties: dict[str, str], body: bytes, sys_flag: str = "0"
    ) -> tuple[int, int]:
        """Returns physical offset and queue offset."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        header = {
            "topic": topic, "producerGroup": "billing", "queueId": "0", "sysFlag": sys_flag, "bornTimestamp": "1",
            "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "flag": "0", "reconsumeTimes": "0", "properties": text,
        }  # fmt: skip
        sent = await self.ask(who, RequestCode.SEND_MESSAGE, header, body)
        assert sent.code == 0, sent.remark
        assert sent.ext is not None
        return int(sent.ext["msgId"][-16:], 16), int(sent.ext["queueOffset"])

    async def half(self, who: str, topic: str, transaction_id: str) -> tuple[int, int]:
        properties = {"TRAN_MSG": "true", "PGROUP": "billing", "UNIQ_KEY": transaction_id}
        await self.send(who, topic, properties, b"hidden", HALF_FLAG)
        table = self.table
        offset, found = next(item for item in reversed(table.open.items()))
        return found.physical_offset, offset

    async def end(
        self, who: str, topic: str | None, transaction_id: str, offset: tuple[int, int], decision: int = 8
    ) -> RemotingCommand:
        ext = {
            "producerGroup": "billing", "transactionId": transaction_id, "commitLogOffset": str(offset[0]),
            "tranStateTableOffset": str(offset[1]), "commitOrRollback": str(decision),
        }  # fmt: skip
        return await self.ask(
            who, RequestCode.END_TRANSACTION, ext if topic is None else {**ext, "topic": topic}
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        async with Admin(cluster.server.address, client=client("root")) as admin:
            for topic in ("bills", "orders"):
                await admin.create_topic(topic, queue_count=1)
        await make_consumer(cluster, "eve")
        found = World(cluster)
        entries = [{"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}]
        given = await found.ask(
            "root",
            RequestCode.AUTH_UPDATE_ACL,
            {"subject": "User:eve"},
            json.dumps(
                {"subject": "User:eve", "policies": [{"policyType": "Custom", "entries": entries}]}
            ).encode(),
        )
        assert given.code == 0, given.remark
        yield found
        for each in found.clients.values():
            await each.close()


def colliding(topic: str, key: str, own_topic: str) -> str:
    """A key whose index hash with `own_topic` is that of `key` with `topic`."""
    wanted = java_hash(f"{topic}#{key}")
    rest = (wanted - java_hash(f"{own_topic}#" + "0" * 7)) % 2**32
    digits = []
    for _ in range(7):
        digits.append(chr(ord("0") + rest % 31))
        rest //= 31
    found = "".join(reversed(digits))
    assert java_hash(f"{own_topic}#{found}") == wanted
    return found


async def test_a_key_whose_hash_collides_reads_no_other_topic(world: World) -> None:
    await world.send("root", "bills", {"KEYS": "k1"}, b"hidden")
    await world.send("eve", "orders", {"KEYS": "k1"}, b"seen")

    async def query(who: str, topic: str, key: str) -> RemotingCommand:
        ext = {"topic": topic, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        return await world.ask(who, RequestCode.QUERY_MESSAGE, ext)

    assert (
        await query("eve", "orders", colliding("bills", "k1", "orders"))
    ).code == ResponseCode.QUERY_NOT_FOUND
    assert decode_record((await query("eve", "orders", "k1")).body).body == b"seen"
    assert decode_record((await query("root", "bills", "k1")).body).body == b"hidden"


async def test_a_record_is_viewed_with_permission_for_its_own_topic(world: World) -> None:
    hidden, _ = await world.send("root", "bills", {}, b"hidden")
    seen, _ = await world.send("root", "orders", {}, b"seen")
    half, _ = await world.half("root", "bills", "t1")

    async def view(who: str, offset: int) -> RemotingCommand:
        return await world.ask(
            who, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "orders", "offset": str(offset)}
        )

    nothing = await view("eve", 10_000_000)
    for offset in (hidden, half):
        answer = await view("eve", offset)
        assert (answer.code, answer.body) == (nothing.code, b"")
        assert (answer.remark or "").replace(str(offset), "10000000") == nothing.remark
        assert (await view("root", offset)).code == 0
    assert decode_record((await view("eve", seen)).body).body == b"seen"


async def test_the_body_of_a_schedule_is_shown_with_permission_for_its_topic(world: World) -> None:
    for topic in ("bills", "orders"):
        ext = {"name": f"of-{topic}", "topic": topic, "intervalMs": "3600000"}
        made = await world.ask("root", RequestCode.AEROBEE_CREATE_SCHEDULE, ext, b"hidden")
        assert made.code == 0, made.remark
    entries = [
        {"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"},
        {"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"},
    ]
    policy = {"subject": "User:eve", "policies": [{"policyType": "Custom", "entries": entries}]}
    given = await world.ask(
        "root", RequestCode.AUTH_UPDATE_ACL, {"subject": "User:eve"}, json.dumps(policy).encode()
    )
    assert given.code == 0, given.remark

    async def listed(**ext: str) -> RemotingCommand:
        return await world.ask("eve", RequestCode.AEROBEE_LIST_SCHEDULES, ext)

    assert len(loads((await listed()).body)["schedules"]) == 2
    (shown,) = loads((await listed(name="of-orders", topic="orders", withBody="true")).body)["schedules"]
    assert b64decode(shown["body"]) == b"hidden"
    for topic in ({"topic": "bills"}, {"topic": "orders"}, {}):
        answer = await listed(name="of-bills", withBody="true", **topic)
        assert b64encode(b"hidden") not in answer.body


async def test_a_message_is_given_back_with_permission_for_its_own_topic(world: World) -> None:
    hidden, _ = await world.send("root", "bills", {}, b"hidden")
    seen, _ = await world.send("root", "orders", {}, b"seen")

    async def give_back(who: str, offset: int) -> RemotingCommand:
        ext = {"group": "eve", "offset": str(offset), "originTopic": "orders", "delayLevel": "-1"}
        return await world.ask(who, RequestCode.CONSUMER_SEND_MSG_BACK, ext)

    store = world.cluster.broker.store
    nothing, answer = await give_back("eve", 10_000_000), await give_back("eve", hidden)
    assert answer.code == nothing.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").replace(str(hidden), "10000000") == nothing.remark
    assert store.max_offset("%DLQ%eve", 0) == 0
    assert (await give_back("eve", seen)).code == 0
    assert store.max_offset("%DLQ%eve", 0) == 1


async def test_a_consumer_is_given_no_message_of_a_topic_that_its_user_may_not_read(world: World) -> None:
    received: list[bytes] = []

    def take(peer: Any, request: RemotingCommand) -> RemotingCommand:
        received.append(request.body)
        return request.reply()

    eve = RemotingClient(
        clock=SystemClock(),
        network=AsyncioNetwork(),
        credentials=Credentials("eve", "evesecret"),
        handlers={RequestCode.CONSUME_MESSAGE_DIRECTLY: take},
    )
    world.clients["eve"] = eve
    consumer = {
        "groupName": "eve", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1}],
    }  # fmt: skip
    beat = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    assert (await world.ask("eve", RequestCode.HEART_BEAT, {}, beat)).code == 0
    host = world.cluster.broker.identity.store_host
    for topic, codes in (("bills", {ResponseCode.SYSTEM_ERROR}), ("orders", {0})):
        offset, _ = await world.send("root", topic, {}, topic.encode())
        ext = {
            "consumerGroup": "eve", "clientId": "c", "topic": "orders", "brokerName": "broker-a",
            "msgId": f"{host.hex().upper()}{offset:016X}",
        }  # fmt: skip
        answer = await world.ask("eve", RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        assert answer.code in codes, answer.remark
    assert [decode_record(body).body for body in received] == [b"orders"]


@pytest.mark.parametrize("named", ["orders", None])
async def test_a_transaction_is_ended_with_permission_for_its_own_topic(
    world: World, named: str | None
) -> None:
    offset = await world.half("root", "bills", "t1")
    table = world.table
    guesses = (("t1", offset), ("guess", offset), ("t1", (offset[0], 7)), ("t1", (offset[0] + 1, offset[1])))
    refusals = [await world.end("eve", named, *guess) for guess in guesses]
    assert {refusal.code for refusal in refusals} == {ResponseCode.SYSTEM_ERROR}
    assert len({re.sub(r"'(\d+|t1|guess)'", "", refusal.remark or "") for refusal in refusals}) == 1
    assert "t1" not in (refusals[1].remark or "")
    assert ("billing", "t1") in table.by_key
    assert (await world.end("root", named, "t1", offset)).code == 0
    assert ("billing", "t1") not in table.by_key
    own = await world.half("eve", "orders", "t3")
    assert (await world.end("eve", named, "t3", own)).code == 0


@pytest.fixture(params=["python", "native"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path's backend of the next cluster."""
    try:
        choose_backend(request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.mark.parametrize("named", ["orders", None])
async def test_one_way_ends_of_transactions_are_checked_by_the_fast_path(
    backend: None, world: World, named: str | None
) -> None:
    offset = await world.half("root", "bills", "t1")
    own = await world.half("eve", "orders", "t3")
    table = world.table
    for transaction_id, at in (("t1", offset), ("t3", own)):
        ext = {
            "producerGroup": "billing", "transactionId": transaction_id, "commitLogOffset": str(at[0]),
            "tranStateTableOffset": str(at[1]), "commitOrRollback": "12",
        }  # fmt: skip
        if named is not None:
            ext["topic"] = named
        command = RemotingCommand(RequestCode.END_TRANSACTION, ext)
        await world.clients["eve"].invoke_oneway(world.cluster.broker.address, command)
    # Answers keep the order of requests: this one's shows that those before it were served.
    await world.send("eve", "orders", {}, b"after")
    assert list(table.by_key) == [("billing", "t1")]


async def test_a_half_message_under_anothers_id_does_not_join_its_transaction(world: World) -> None:
    offset = await world.half("root", "bills", "t1")
    store = world.cluster.broker.store
    properties = {"TRAN_MSG": "true", "PGROUP": "billing", "UNIQ_KEY": "t1"}
    forged, _ = await world.send("eve", "orders", properties, b"forged", HALF_FLAG)
    for decision in (12, 8):
        assert (await world.end("eve", "orders", "t1", (forged, 1), decision)).code != 0
    assert (await world.end("root", "bills", "t1", offset)).code == 0
    assert (store.max_offset("bills", 0), store.max_offset("orders", 0)) == (1, 0)


async def test_a_half_message_is_asked_about_again_by_whom_its_topic_allows(world: World) -> None:
    half, _ = await world.half("root", "bills", "t1")
    given = await world.ask(
        "root",
        RequestCode.AUTH_UPDATE_ACL,
        {"subject": "User:eve"},
        json.dumps(
            {
                "subject": "User:eve",
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [{"resource": "Topic:orders", "actions": ["Update"], "decision": "Allow"}],
                    }
                ],
            }
        ).encode(),
    )
    assert given.code == 0, given.remark
    message_id = f"{world.cluster.broker.identity.store_host.hex().upper()}{half:016X}"
    ext = {"topic": "orders", "msgId": message_id}
    refused = await world.ask("eve", RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "no half message" in (refused.remark or "")
    assert (await world.ask("root", RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)).code == 0


HEAD_BYTES = 88  # of a record, up to its body


def a_record(
    topic: str, queue_offset: int, body: bytes, properties: dict[str, str]
) -> Callable[[int], bytes]:
    """A record as stored at an offset of the log."""
    host = pack_host("127.0.0.1", 1)
    return lambda offset: encode_record(
        topic=topic.encode(),
        queue_id=0,
        queue_offset=queue_offset,
        physical_offset=offset,
        body=body,
        properties=encode_properties(properties).encode(),
        born_host=host,
        store_host=host,
        store_timestamp=1,
    )


async def forged(world: World, record: Callable[[int], bytes]) -> int:
    """Eve sends to orders a message whose body is this record as stored at the offset where it will lie. Returns that offset."""
    length = len(record(0))
    first, _ = await world.send("eve", "orders", {}, bytes(length))
    second, _ = await world.send("eve", "orders", {}, bytes(length))
    offset = second + (second - first) + HEAD_BYTES
    data = record(offset)
    sent, _ = await world.send("eve", "orders", {}, data)
    assert sent + HEAD_BYTES == offset
    assert world.cluster.broker.store.read_record(offset) == data
    return offset


async def test_a_record_in_the_body_of_a_message_is_none(world: World) -> None:
    store = world.cluster.broker.store
    await world.send("root", "orders", {}, b"seen")
    offset = await forged(world, a_record("orders", 0, b"forged", {"INNER_MULTI_DISPATCH": "%LMQ%bills"}))
    for who in ("eve", "root"):
        viewed = await world.ask(
            who, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "orders", "offset": str(offset)}
        )
        assert (viewed.code, viewed.body) == (ResponseCode.SYSTEM_ERROR, b"")
    ext = {"group": "eve", "offset": str(offset), "originTopic": "orders", "delayLevel": "-1"}
    assert (await world.ask("eve", RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == ResponseCode.SYSTEM_ERROR
    assert store.max_offset("%DLQ%eve", 0) == 0
    message_id = f"{world.cluster.broker.identity.store_host.hex().upper()}{offset:016X}"
    relayed = await world.ask(
        "root",
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "eve", "clientId": "c", "msgId": message_id, "topic": "orders", "brokerName": "b"},
    )
    assert "no message is at offset" in (relayed.remark or "")


async def test_a_half_message_in_the_body_of_a_message_is_none(world: World) -> None:
    offset = await forged(
        world,
        a_record(
            "RMQ_SYS_TRANS_HALF_TOPIC", 5, b"forged",
            {"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "billing", "UNIQ_KEY": "t9", "TRAN_MSG": "true"},
        ),
    )  # fmt: skip
    for decision in (8, 12):
        answer = await world.end("eve", "orders", "t9", (offset, 5), decision)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    message_id = f"{world.cluster.broker.identity.store_host.hex().upper()}{offset:016X}"
    resumed = await world.ask(
        "root", RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "orders", "msgId": message_id}
    )
    assert "no half message" in (resumed.remark or "")
    assert ("billing", "t9") not in world.table.by_key


async def test_a_record_whose_body_is_what_others_store_gives_nothing_away(world: World) -> None:
    offset = await forged(world, a_record("orders", 0, b"", {}))
    store = world.cluster.broker.store
    assert store.read_record(offset) is not None
    size, entry = len(store.read_record(offset) or b""), store.queue("orders", 0).entry(0)
    assert entry is not None
    assert not store.has_entry("orders", 0, 0, offset, size)
    assert store.has_entry("orders", 0, 0, *entry[:2])
    assert not store.has_entry("orders", 0, 0, entry[0], entry[1] + 1), "the size is the entry's"
    assert store.named_record(offset) is None
    assert store.named_record(entry[0]) is not None


async def test_a_dead_letter_and_the_counters_name_the_topic_that_the_message_was_sent_to(
    world: World,
) -> None:
    for made_up in ("bills", "z" * 30_000):
        offset, _ = await world.send("eve", "orders", {"RETRY_TOPIC": made_up}, b"x")
        ext = {"group": "eve", "offset": str(offset), "originTopic": "orders", "delayLevel": "-1"}
        assert (await world.ask("eve", RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        counted = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": f"{made_up}@eve"}
        unknown = await world.ask("root", RequestCode.VIEW_BROKER_STATS_DATA, counted)
        assert unknown.code == ResponseCode.SYSTEM_ERROR, "a key of a sender's own text is kept"
    counted = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "orders@eve"}
    assert (await world.ask("root", RequestCode.VIEW_BROKER_STATS_DATA, counted)).code == 0
    store = world.cluster.broker.store
    for dead_letter in decode_records(store.get_messages("%DLQ%eve", 0, 0, count_max=32).body):
        assert (dead_letter.properties["RETRY_TOPIC"], dead_letter.properties["DLQ_ORIGIN_TOPIC"]) == (
            "orders",
            "orders",
        )
    # A dead letter that is given back keeps what the broker wrote.
    (entry,) = store.queue("%DLQ%eve", 0).entries(0, 1)
    ext = {"group": "eve", "offset": str(entry[0]), "originTopic": "%DLQ%eve", "delayLevel": "-1"}
    assert (await world.ask("root", RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    again = list(decode_records(store.get_messages("%DLQ%eve", 0, 2, count_max=1).body))
    assert [dead_letter.properties["RETRY_TOPIC"] for dead_letter in again] == ["orders"]


async def test_lag_of_a_topic_that_is_named_often_is_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    topic_stats = ConsumeStatsCalls._topic_stats

    async def noted(calls: ConsumeStatsCalls, group: str, topic: str) -> Any:
        counted.append(topic)
        return await topic_stats(calls, group, topic)

    monkeypatch.setattr(ConsumeStatsCalls, "_topic_stats", noted)
    ext = {"consumerGroup": "eve", "topicList": "orders;" * 2_000 + "bills;" * 2_000}
    answer = await world.ask("root", RequestCode.GET_CONSUME_STATS, ext)
    assert answer.code == 0
    assert counted == ["orders", "bills"]


async def test_an_answer_of_more_queues_than_a_frame_holds_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, groups = world.cluster.broker.offsets, world.cluster.broker.groups
    for topic in ("orders", "bills"):
        offsets.commit("eve", topic, 0, 0)
    groups.find_or_create("eve")
    one = await world.ask("root", RequestCode.GET_CONSUME_STATS, {"consumerGroup": "eve", "topic": "orders"})
    whole = await world.ask("root", RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert (one.code, whole.code) == (0, 0)
    of_eve = next(each["eve"] for each in loads(whole.body)["consumeStatsList"] if "eve" in each)
    assert loads(one.body) in of_eve, "both are made of the same pieces"
    monkeypatch.setattr(consume_stats, "ANSWER_QUEUES_MAX", len(loads(one.body)["offsetTable"]))
    again = await world.ask(
        "root", RequestCode.GET_CONSUME_STATS, {"consumerGroup": "eve", "topic": "orders"}
    )
    assert again.body == one.body
    refused = await world.ask("root", RequestCode.GET_CONSUME_STATS, {"consumerGroup": "eve"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "name fewer topics" in (refused.remark or "")
    refused = await world.ask("root", RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
