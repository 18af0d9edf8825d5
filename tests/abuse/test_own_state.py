"""Clients do not write what the broker keeps for itself: offsets of its groups, offsets that cannot be."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.remoting.command import RemotingCommand
from aerobee.store.log.stored_message import StoredMessage
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.fakes import FakePeer
from tests.integration.pop_requests import pop_request

HALF, OWN_GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"


def commit(group: str, topic: str, queue: int, offset: int) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}


def pull(group: str, topic: str, offset: int, commit: int) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "1",
        "sysFlag": "5", "commitOffset": str(commit), "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    }  # fmt: skip


async def test_the_offsets_of_the_brokers_groups_are_its_own(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
        assert (await peer.send_message("t", properties=half, f="4")).code == 0
        before = broker.offsets.queues_of(OWN_GROUP, HALF)
        for group in (OWN_GROUP, "CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_mine"):
            assert (await peer.call(15, commit(group, HALF, 0, 1))).code != 0
            await peer.call(11, pull(group, HALF, 0, 1))
            reset = {"group": group, "topic": HALF, "timestamp": "-1", "isForce": "true"}
            assert (await peer.call(222, reset)).code != 0
            assert (await peer.call(314, {"srcGroup": "g", "destGroup": group, "topic": HALF})).code != 0
            pop = {"consumerGroup": group, "topic": HALF, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "10000",
                   "pollTime": "0", "bornTime": str(broker.clock.now_ms()), "initMode": "0"}  # fmt: skip
            assert (await peer.call(200_050, pop)).code != 0
        assert broker.offsets.queues_of(OWN_GROUP, HALF) == before
        assert "CID_RMQ_SYS_mine" not in broker.groups.groups


@pytest.mark.parametrize("backend", ["python", ""])
async def test_offsets_that_cannot_be_are_not_kept(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for _ in range(3):
            assert (await peer.send_message("t")).code == 0
        assert (await peer.call(11, pull("g", "t", 0, 2))).code == 0
        assert broker.offsets.query("g", "t", 0) == 2
        for offset in (-5, -(2**63), 4, 2**63 - 1):
            for from_offset in (0, 1):  # the second pull of a kind is the fast path's
                assert (await peer.call(11, pull("g", "t", from_offset, offset))).code == 0
            assert (await peer.call(15, commit("g", "t", 0, offset))).code != 0
        for queue in (-1, 4, 2**31, 2**63 - 1):
            assert (await peer.call(15, commit("g", "t", queue, 0))).code != 0
        assert broker.offsets.queues_of("g", "t") == {0: 2}
        for offset in (0, 3):
            assert (await peer.call(15, commit("g", "t", 0, offset))).code == 0
            assert broker.offsets.query("g", "t", 0) == offset


async def test_offsets_saved_before_their_topic_was_deleted_are_gone_after_a_crash(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for _ in range(5):
            assert (await peer.send_message("t")).code == 0
        broker.offsets.commit("g", "t", 0, 5)
        broker.offsets.commit("h", "t", 0, 1)
    path = tmp_path / "config" / "consumerOffset.json"
    saved = path.read_bytes()
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.call(215, {"topic": "t"})).code == 0
        for _ in range(2):
            assert (await peer.send_message("t")).code == 0
    path.write_bytes(saved)  # as if the offsets of the second life had never been saved
    async with broker_at(tmp_path) as broker:
        assert broker.offsets.queues_of("g", "t") == {}
        assert broker.offsets.queues_of("h", "t") == {}


async def test_check_points_of_a_queue_that_was_made_again_raise_no_offset_behind_its_end(
    tmp_path: Path,
) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        broker.offsets.commit("h", "t", 0, 1)
    path = tmp_path / "config" / "consumerOffset.json"
    saved = path.read_bytes()
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for _ in range(4):
            assert (await peer.send_message("t")).code == 0
        request = pop_request(broker, "t", "g", queue=0)
        assert (await peer.call(request.code, request.ext)).code == 0
        assert broker.offsets.query("g", "t", 0) == 5
        assert (await peer.call(215, {"topic": "t"})).code == 0
        for _ in range(2):
            assert (await peer.send_message("t")).code == 0
    path.write_bytes(saved)  # a crash: what is known of the pop is its check point in the log
    async with broker_at(tmp_path) as broker:
        known = broker.offsets.query("g", "t", 0)
        assert known is None or known <= 2


async def test_a_topic_that_is_made_while_unused_ones_are_removed_keeps_its_messages(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        cleaning: Any = broker.handlers[316](FakePeer(), RemotingCommand(316, {}))  # type: ignore[arg-type]
        work = asyncio.ensure_future(cleaning)
        await asyncio.sleep(0)  # it has begun; now another peer's turn makes a topic and stores in it
        broker.topics.topics["fresh"] = dataclasses.replace(broker.topics.topics["t"], topic_name="fresh")
        broker.store.append(
            StoredMessage(topic="fresh", queue_id=0, body=b"x", properties=b"", born_host=bytes(8))
        )
        await work
        assert broker.store.max_offset("fresh", 0) == 1
        assert broker.store.get_messages("fresh", 0, 0, count_max=1).body


async def test_a_topic_whose_unused_queue_was_removed_begins_without_old_offsets(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for _ in range(3):
            assert (await peer.send_message("t")).code == 0
        broker.offsets.commit("g", "t", 0, 3)
        del broker.topics.topics["t"]
        assert (await peer.call(316)).code == 0
        assert broker.offsets.query("g", "t", 0) is None
        assert (await peer.send_message("t")).code == 0
        assert broker.store.max_offset("t", 0) == 1
