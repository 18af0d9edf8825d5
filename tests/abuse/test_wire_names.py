"""Names that peers give hold no line break, no control character and nothing that turns text around."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from aerobee.message import MessageQueue
from aerobee.nameserver import NameServer
from aerobee.remoting.body.message_queue import queue_to_dict
from tests.abuse.nameserver_settings import SERVER
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at

HOSTILE = ("x\ny", "x\x1b[2Jy", "x\u202ey", "x\u2028y", "x\x85y")
BROKER = {
    "clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "brokerId": "0", "haServerAddr": "127.0.0.1:10912",
}  # fmt: skip


def registration(**changes: Any) -> tuple[dict[str, str], bytes]:
    body: dict[str, Any] = {
        "filterServerList": changes.pop("filterServerList", []),
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
            "topicConfigTable": {
                topic: {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                for topic in ("t", "u")
            },
        },
    }
    return {**BROKER, **changes}, json.dumps(body).encode()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "field",
    [
        "clusterName",
        "brokerName",
        "brokerAddr",
        "haServerAddr",
        "__ZONE_NAME",
        "aerobeeListeners",
        "filterServerList",
    ],
)
async def test_no_name_of_a_registration_forges_a_line(
    field: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    value: Any = {
        "brokerAddr": f"{name}:10911",
        "aerobeeListeners": f"{name}=127.0.0.1:10911",
        "filterServerList": [f"{name}:1"],
    }.get(field, name)
    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        assert (await peer.call(103, *registration(**{field: value}))).code != 0
        assert server.table.live == {}
        assert (await peer.call(103, *registration())).code == 0
        await peer.call(103, *registration(**{field: value}))
        for code, ext in ((106, {}), (105, {"topic": "t"}), (206, {})):
            answer = (await peer.call(code, ext)).body.decode()
            assert name not in json.loads(f"[{json.dumps(answer)}]")[0]
    assert [each for each in caplog.messages if not each.replace("\n", "").isprintable()] == []


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_other_name_at_a_nameserver_forges_a_line(name: str) -> None:
    queues = {"queueDatas": [{"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]}
    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        assert (await peer.call(217, {"topic": "t"}, json.dumps(queues).encode())).code != 0
        assert (await peer.call(217, {"topic": name}, b"{}")).code != 0
        for ext in ({"namespace": name, "key": "k"}, {"namespace": "n", "key": name}):
            assert (await peer.call(100, {**ext, "value": "v"})).code != 0
            assert (await peer.call(101, ext)).code != 0


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_name_of_a_client_forges_a_line(tmp_path: Path, name: str) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        beat = {"clientID": name, "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}
        assert (await peer.call(34, {}, json.dumps(beat).encode())).code != 0
        wanted = [queue_to_dict(MessageQueue("t", "b", 0))]
        lock = {"consumerGroup": "g", "clientId": name, "mqSet": wanted}
        assert (await peer.call(41, {}, json.dumps(lock).encode())).code != 0
        beat = {"clientID": "c", "producerDataSet": [{"groupName": name}]}
        assert (await peer.call(34, {}, json.dumps(beat).encode())).code != 0
        beat = {"clientID": "c", "consumerDataSet": [{"groupName": name, "subscriptionDataSet": []}]}
        await peer.call(34, {}, json.dumps(beat).encode())  # a group that is none is left out
        assert broker.consumers.group(name) is None
        subscriptions = [{"topic": name, "subString": "*"}]
        beat = {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}],
        }
        assert (await peer.call(34, {}, json.dumps(beat).encode())).code != 0


async def test_a_mapping_of_a_registration_has_an_epoch_of_now() -> None:
    def mapping(epoch: int) -> dict[str, Any]:
        return {"topic": "t", "totalQueues": 1, "bname": "b", "epoch": epoch, "scope": "__global__", "dirty": False,
                "currIdMap": {"0": 0}}  # fmt: skip

    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        for epoch, is_kept in ((2**63 - 1, False), (-1, False), (1_700_000_000_000, True)):
            ext, data = registration()
            body = json.loads(data)
            body["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {"t": mapping(epoch)}
            body["topicConfigSerializeWrapper"]["dataVersion"]["counter"] = epoch % 1_000 + 2
            assert (await peer.call(103, ext, json.dumps(body).encode())).code == 0
            route = json.loads((await peer.call(105, {"topic": "t"})).body)
            assert bool(route.get("topicQueueMappingByBroker")) == is_kept, epoch
