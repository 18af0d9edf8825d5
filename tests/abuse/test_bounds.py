"""What a peer may request and occupy is bounded; at a bound it gets an error, and other peers continue."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.message import MessageQueue
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX, SubscriptionData
from aerobee.remoting.codes import ResponseCode
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.loops import event_loop_policy  # noqa: F401

SERVED_WITHIN_S = 60.0
TOPIC = {
    "defaultTopic": "TBW102",
    "topicFilterType": "SINGLE_TAG",
    "perm": "6",
    "topicSysFlag": "0",
    "order": "false",
}


def beat(client: str, groups: Sequence[str], *, topics: int = 1, producers: Sequence[str] = ()) -> bytes:
    consumers = tuple(
        ConsumerData(group, subscription_data_set=tuple(SubscriptionData(f"t{n}") for n in range(topics)))
        for group in groups
    )
    return HeartbeatData(client, tuple(map(ProducerData, producers)), consumers).encode()


async def refused(
    peer: UntrustedPeer, key: str, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> None:
    """The call is refused with the key's name, and another client is served."""
    reply = await peer.call(code, ext, body)
    assert reply.code != 0, f"{code} was taken"
    assert key in (reply.remark or ""), reply.remark
    async with asyncio.timeout(SERVED_WITHIN_S):
        while (sent := await peer.send_message("others")).code == ResponseCode.SYSTEM_BUSY:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the machine has other work
    assert sent.code == 0, sent.remark


def pull(tags: str = "*", **fields: Any) -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": tags, "subVersion": "0",
        **{name: str(value) for name, value in fields.items()},
    }  # fmt: skip


async def test_heartbeats_have_bounds_that_move_while_the_broker_runs(tmp_path: Path) -> None:
    settings = {
        "heartbeat_bytes_max": 20_000, "client_groups_max": 4, "group_subscriptions_max": 5, "group_members_max": 2,
        "client_members_max": 8, "subscription_group_nums_max": 8 + 8,
    }  # fmt: skip
    async with (
        broker_at(tmp_path, **settings) as broker,
        UntrustedPeer(broker.address) as one,
        UntrustedPeer(broker.address) as two,
    ):
        await refused(one, "heartbeatBytesMax", 34, {}, beat("c" * 30_000, ["g"]))
        await refused(one, "clientID", 34, {}, beat("c" * 2_000, ["g"]))
        await refused(one, "clientGroupsMax", 34, {}, beat("c", [f"g{n}" for n in range(5)]))
        await refused(one, "clientGroupsMax", 34, {}, beat("c", ["g1", "g2"], producers=["p1", "p2", "p3"]))
        await refused(one, "groupSubscriptionsMax", 34, {}, beat("c", ["g1"], topics=6))
        await refused(one, "producer group", 34, {}, beat("c", [], producers=["a\nb"]))
        # In several heartbeats it is no more.
        assert (await one.call(34, {}, beat("c", ["g1", "g2"]))).code == 0
        assert (await one.call(34, {}, beat("c", ["g3"], producers=["p1"]))).code == 0
        await refused(one, "clientGroupsMax", 34, {}, beat("c", ["g4"]))
        assert (await one.call(34, {}, beat("c", ["g1", "g2"]))).code == 0
        assert (await two.call(34, {}, beat("d", ["g1", "g2", "g3"]))).code == 0
        async with UntrustedPeer(broker.address) as three:
            await refused(three, "groupMembersMax", 34, {}, beat("e", ["g1"]))
            await refused(three, "clientMembersMax", 34, {}, beat("e", ["n1", "n2", "n3", "n4"]))
            assert (await three.call(25, {}, b"groupMembersMax=3")).code == 0
            assert (await three.call(34, {}, beat("e", ["g1"]))).code == 0
        for number in range(8):
            await one.call(11, pull(consumerGroup=f"made-{number}"))
        await refused(one, "subscriptionGroupNumsMax", 11, pull(consumerGroup="one-more"))
        assert (await one.call(28)).code == 0
        assert broker.bounds.reached_count > 5


async def test_members_that_leave_make_room(tmp_path: Path) -> None:
    async with broker_at(tmp_path, client_members_max=2) as broker:
        for _ in range(5):
            async with UntrustedPeer(broker.address) as peer:
                assert (await peer.call(34, {}, beat("c", ["g1", "g2"], producers=["p1", "p2"]))).code == 0
                # Another name is another member of the same connection, not one more.
                assert (await peer.call(34, {}, beat("d", ["g1", "g2"], producers=["p1", "p2"]))).code == 0
                assert (broker.consumers.member_count, broker.producers.member_count) == (2, 2)
                for group in ("g1", "p1"):
                    fields = {"clientID": "d", "consumerGroup": group, "producerGroup": group}
                    assert (await peer.call(35, fields)).code == 0
                assert (broker.consumers.member_count, broker.producers.member_count) == (1, 1)
            async with UntrustedPeer(broker.address) as other:
                while broker.consumers.member_count:
                    await other.call(28)
        assert not broker.producers._client_ids


async def test_topics_and_their_queues_are_bounded(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("others")).code == 0
        ext = {**TOPIC, "topic": "wide", "readQueueNums": "4096", "writeQueueNums": "4097"}
        await refused(peer, "topicQueueNumsMax", 17, ext)
        group = json.dumps({"groupName": "g", "retryQueueNums": 4097}).encode()
        await refused(peer, "topicQueueNumsMax", 200, {}, group)
        count = len(broker.topics.topics)
        assert (await peer.call(25, {}, b"autoCreateTopicNumsMax=%d" % (count + 1))).code == 0
        assert (await peer.send_message("made")).code == 0
        reply = await peer.send_message("not-made")
        assert "autoCreateTopicNumsMax" in (reply.remark or "")
        small = {**TOPIC, "readQueueNums": "1", "writeQueueNums": "1"}
        assert (await peer.call(17, {**small, "topic": "by-hand"})).code == 0
        assert (await peer.call(25, {}, b"topicNumsMax=%d" % (count + 2))).code == 0
        await refused(peer, "topicNumsMax", 17, {**small, "topic": "by-hand-2"})
        assert (await peer.call(17, {**small, "topic": "by-hand", "readQueueNums": "2"})).code == 0


@pytest.mark.parametrize("backend", ["python", ""])
async def test_expressions_are_bounded(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    async with (
        broker_at(tmp_path, enable_property_filter=True) as broker,
        UntrustedPeer(broker.address) as peer,
    ):
        assert (await peer.send_message("t")).code == 0
        tags = "||".join(f"t{n}" for n in range(20_000))
        assert (await peer.call(11, pull("a || b"))).code in (0, 19, 20)
        for code in (11, 361):
            await refused(peer, f"at most {EXPRESSION_CHARS_MAX}", code, pull(tags))
        sql = " OR ".join(f"a = {n}" for n in range(10_000))
        assert (await peer.call(11, pull(sql, expressionType="SQL92"))).code != 0
        pop = {"consumerGroup": "g", "topic": "t", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "10000",
               "pollTime": "0", "bornTime": str(broker.clock.now_ms()), "initMode": "0", "exp": tags}  # fmt: skip
        await refused(peer, f"at most {EXPRESSION_CHARS_MAX}", 200_050, pop)
        data = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [
            {"groupName": "g", "subscriptionDataSet": [{"topic": "t", "subString": tags[:100_000]}]}]}  # fmt: skip
        await refused(peer, f"at most {EXPRESSION_CHARS_MAX}", 34, {}, json.dumps(data).encode())


async def test_locks_and_offsets_are_bounded(tmp_path: Path) -> None:
    settings = {"orderly_locks_max": 10, "consumer_offset_nums_max": 3}
    async with broker_at(tmp_path, **settings) as broker, UntrustedPeer(broker.address) as peer:

        def wanted(count: int, client: str = "c", name: str = "t") -> bytes:
            queues = [queue_to_dict(MessageQueue(name, "b", n)) for n in range(count)]
            return json.dumps({"consumerGroup": "g", "clientId": client, "mqSet": queues}).encode()

        await refused(peer, "at most 4096", 41, {}, wanted(5_000))
        await refused(peer, "characters", 41, {}, wanted(1, "c" * 5_000))
        await refused(peer, "characters", 41, {}, wanted(1, name="t" * 5_000))
        got = json.loads((await peer.call(41, {}, wanted(12))).body)["lockOKMQSet"]
        assert len(got) == 10
        assert (await peer.call(42, {}, wanted(4))).code == 0
        assert len(json.loads((await peer.call(41, {}, wanted(12))).body)["lockOKMQSet"]) == 10
        assert broker.locks._count == 10
        assert (await peer.send_message("t")).code == 0
        assert (await peer.call(11, pull())).code == 0

        def commit(queue: int) -> dict[str, str]:
            return {"consumerGroup": "g", "topic": "t", "queueId": str(queue), "commitOffset": "0"}

        for queue in range(3):
            assert (await peer.call(15, commit(queue))).code == 0
        await refused(peer, "consumerOffsetNumsMax", 15, commit(3))
        assert (await peer.call(15, commit(0))).code == 0
        assert (await peer.call(215, {"topic": "t"})).code == 0
        assert broker.offsets._count == 0


@pytest.mark.parametrize("backend", ["python", ""])
async def test_polls_of_one_connection_are_bounded(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    async with broker_at(tmp_path, client_polls_max=3) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        waits = pull(queueOffset=1, sysFlag=6, suspendTimeoutMillis=20_000)
        for _ in range(3):
            peer.send(11, waits)
        assert (await peer.call(11, waits)).code == 19
        assert broker.pending_pulls.count == 3
        async with UntrustedPeer(broker.address) as other:
            held = other.send(11, waits)
            while broker.pending_pulls.count < 4:
                await peer.call(28)
            assert (await peer.send_message("t", b"news")).code == 0
            assert b"news" in (await other.answer(held)).body


LARGE = [
    (17, {**TOPIC, "topic": "t", "readQueueNums": "1", "writeQueueNums": "1"}),
    (200, {}), (400, {}), (401, {}), (46, {}), (318, {}), (217, {"topic": "t"}), (322, {}), (14, {}), (909, {}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext"), LARGE)
async def test_an_oversized_body_is_not_read(tmp_path: Path, code: int, ext: dict[str, str]) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        started = time.thread_time()
        # The dialect with bare keys, which is read in Python.
        reply = await peer.call(code, ext, b"{" + b",".join(b"%d:[{}]" % n for n in range(400_000)) + b"}")
        assert reply.code != 0
        assert code not in broker.handlers or "at most" in (reply.remark or ""), reply.remark
        assert time.thread_time() - started < 2.0


async def test_a_large_lock_request_in_the_slow_dialect_is_not_read(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for code in (41, 42, 18, 225, 200_151, 34):
            reply = await peer.call(code, {}, b"{" + b",".join(b"%d:1" % n for n in range(60_000)) + b"}")
            assert "standard JSON" in (reply.remark or ""), (code, reply.remark)


async def test_large_tables_are_answered_whole(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        ext = {**TOPIC, "topic": "wide", "readQueueNums": "1000", "writeQueueNums": "1000"}
        assert (await peer.call(17, ext)).code == 0
        status = await peer.call(202, {"topic": "wide"})
        assert status.body.count(b'"maxOffset"') == 1_000
        names = [f"topic-{n}" for n in range(999)]
        body = json.dumps(
            {"topicConfigList": [{"topicName": n, "readQueueNums": 1, "writeQueueNums": 1} for n in names]}
        )
        assert (await peer.call(18, {}, body.encode())).code == 0
        groups = json.dumps({"groupConfigList": [{"groupName": n} for n in names]})
        assert (await peer.call(225, {}, groups.encode())).code == 0
        topics = json.loads((await peer.call(21)).body)
        assert set(topics["topicConfigTable"]) == set(broker.topics.topics)
        assert topics["topicQueueMappingDetailMap"] == {}
        page = json.loads((await peer.call(21, {"topicSeq": "600", "maxTopicNum": "100"})).body)
        assert list(page["topicConfigTable"]) == list(broker.topics.topics)[600:700]
        assert set(json.loads((await peer.call(201)).body)["subscriptionGroupTable"]) == set(
            broker.groups.groups
        )
