"""No name that a peer gives becomes a path outside the store, or a topic of the broker's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.errors import RecordInvalid
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at, files_below

ESCAPES = (
    "/tmp/aerobee-abuse+",
    "../../../outside+",
    "outside+/../victim",
    "../outside",
    "..",
    ".",
    "a/b",
    "a\x00b",
    "a\nb",
    "a b+c",
    "%RETRY%g+../../outside",
    "%RETRY%../../g+t",
    "%RETRY%g+",
    "%RETRY%g+t+u",
    "%LMQ%/../../x",
    "+",
)
OK, REFUSED, NO_SUCH_TOPIC = 0, 16, 17


@pytest.mark.parametrize("name", ESCAPES)
async def test_a_name_that_is_a_path_is_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    store = tmp_path / "deep" / "down" / "store"
    lmq_settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with broker_at(store, store=lmq_settings) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("victim", b"mine")).code == OK
        before = set(broker.topics.topics)
        for fields in ({}, {"c": broker.identity.name}, {"c": broker.identity.cluster}):
            assert (await peer.send_message(name, **fields)).code != OK
        for code in (17, 325):
            ext = {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "b": name}
            assert (
                await peer.call(code, ext | {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"})
            ).code
        body = json.dumps({"topicConfigList": [TopicConfig(name, 1, 1).to_dict()]}).encode()
        assert (await peer.call(18, {}, body)).code != OK
        light = await peer.send_message("victim", properties=f"INNER_MULTI_DISPATCH\x01%LMQ%{name}\x02")
        assert light.code != OK
        for code in (11, 361):
            pull = {"consumerGroup": "g", "topic": name, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
                    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
            assert (await peer.call(code, pull)).code != OK
        assert (
            await peer.call(15, {"consumerGroup": "g", "topic": name, "queueId": "0", "commitOffset": "0"})
        ).code
        assert set(broker.topics.topics) - before <= {"%RETRY%g"}
    assert [path for path in files_below(tmp_path) if not path.startswith("deep/down/store")] == [
        "deep",
        "deep/down",
    ]
    async with broker_at(store) as broker, UntrustedPeer(broker.address) as peer:
        pulled = await peer.call(33, {"offset": "0"})
        assert b"mine" in pulled.body
    assert [path for path in files_below(tmp_path) if not path.startswith("deep/down/store")] == [
        "deep",
        "deep/down",
    ]


async def test_a_record_with_such_a_name_is_served_from_no_queue_after_a_restart(tmp_path: Path) -> None:
    store_path = tmp_path / "deep" / "store"
    async with broker_at(store_path) as broker:
        forge(broker.store, "victim")
        # As a broker would have written it that took the name: the checks of today are in the way of writing it.
        segment = next((store_path / "commitlog").iterdir())
        await broker.kill()
    data = bytearray(segment.read_bytes())
    at = data.index(b"\x06victim") + 1
    data[at : at + 6] = b"../../"
    segment.write_bytes(bytes(data))
    for queue in (store_path / "consumequeue").iterdir():
        assert queue.name in ("victim",)
    (store_path / "config" / "topics.json").write_text(
        (store_path / "config" / "topics.json").read_text().replace("victim", "..\\/..\\/")
    )
    outside = files_below(tmp_path)
    async with broker_at(store_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("other")).code == OK
    assert not [
        path for path in files_below(tmp_path) if path not in outside and not path.startswith("deep/store")
    ]


def forge(store: MessageStore, topic: str) -> None:
    store.append(
        StoredMessage(topic=topic, queue_id=0, body=b"x", properties=b"", born_host=b"\x7f\0\0\x01\0\0\0\1")
    )


async def test_the_store_refuses_such_a_name_itself(tmp_path: Path) -> None:
    async with broker_at(tmp_path / "store") as broker:
        for name in ("..", "a/b", "/tmp/x", "a\x00b", "", ".", "a\nb", "x" * 256):
            with pytest.raises(RecordInvalid):
                forge(broker.store, name)
        with pytest.raises(RecordInvalid):
            broker.store.queue("fine", -1)


async def test_no_topic_is_made_from_the_brokers_own_templates_when_that_is_off(tmp_path: Path) -> None:
    async with (
        broker_at(tmp_path, auto_create_topic_enable=False) as broker,
        UntrustedPeer(broker.address) as peer,
    ):
        for template in ("TBW102", broker.identity.name, broker.identity.cluster):
            assert (await peer.send_message("new", c=template)).code == NO_SUCH_TOPIC
        assert "new" not in broker.topics.topics


async def test_what_the_broker_writes_for_itself_takes_no_sends(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        before = broker.store.log.end
        own = [
            "rmq_sys_wheel_timer", f"rmq_sys_REVIVE_LOG_{broker.identity.cluster}", "rmq_sys_mine", "%DLQ%g",
            "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        ]  # fmt: skip
        forged = f"REAL_TOPIC\x01victim\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{broker.clock.now_ms()}\x02TAGS\x01ck\x02"
        for topic in own:
            assert (await peer.send_message(topic, properties=forged)).code == REFUSED, topic
            batch = await peer.call(320, {"b": topic, "m": "true", "a": "g", "c": "TBW102", "d": "4", "e": "0",
                                              "f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false"}, b"x")  # fmt: skip
            assert batch.code == REFUSED, topic
            assert (await peer.call(325, {"b": topic, "a": "g", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0",
                                              "h": "0", "i": "", "j": "0", "k": "false", "m": "false"})).code == REFUSED  # fmt: skip
        assert broker.store.log.end == before
        assert not {"rmq_sys_mine", "%DLQ%g"} & set(broker.topics.topics)
        # What clients of the cloud channel do write stays possible, and can be deleted again.
        assert (await peer.send_message("rmq_sys_TRACE_DATA_cn")).code == OK
        assert (await peer.call(215, {"topic": "rmq_sys_TRACE_DATA_cn"})).code == OK
        assert "rmq_sys_TRACE_DATA_cn" not in broker.topics.topics


async def test_a_system_name_of_an_older_broker_can_be_deleted(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        broker.topics.put(TopicConfig("rmq_sys_mine", 1, 1))
        assert (await peer.call(215, {"topic": "rmq_sys_mine"})).code == OK
        assert "rmq_sys_mine" not in broker.topics.topics
        assert (await peer.call(215, {"topic": "rmq_sys_wheel_timer"})).code != OK
