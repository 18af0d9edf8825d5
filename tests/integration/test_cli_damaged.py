"""`aerobee consume` names a damaged message, continues with the others, and its exit code says that one was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee import Message, SyncProducer
from aerobee.ops.commands.tree import run_cli
from aerobee.remoting.codes import RequestCode
from aerobee.testing import ThreadedCluster
from tests.abuse.untrusted_peer import UntrustedPeer


@pytest.mark.parametrize("way", [(), ("--verbose",), ("--json",)], ids=["plain", "verbose", "json"])
def test_a_damaged_message_is_named_and_passed_over(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: tuple[str, ...]
) -> None:
    with ThreadedCluster(directory=tmp_path) as cluster:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)
        with SyncProducer(cluster.nameserver_address) as producer:
            for body in (b"first one", b"second one", b"third one"):
                producer.send(Message("orders", body))
        (log,) = (tmp_path / "broker-a" / "commitlog").iterdir()
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"second one"))
            file.write(b"S")
        code = run_cli(["consume", "orders", "--from", "first", "--no-follow", *way])
    out, err = capfd.readouterr()
    assert "first one" in out
    assert "third one" in out
    assert "econd one" not in out
    assert "does not match its CRC" in err
    assert "skipped 1 damaged message" in out + err  # JSON says it as JSON
    assert code not in (0, 2)


GROUP = b'{"groupName":"workers","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0}'
PACKED = 1  # sysFlag of a compressed body


def _send_what_does_not_decompress(cluster: ThreadedCluster, topic: str, *, is_dead: bool = False) -> None:
    """Between two others a message that says that it is compressed, and is not; it has key K."""
    with SyncProducer(cluster.nameserver_address) as producer:
        producer.send(Message(topic, b"first one"))

    async def send() -> None:
        async with UntrustedPeer(cluster.broker_addresses[0]) as peer:
            properties = "KEYS\x01K\x02UNIQ_KEY\x017F00000100002A9F00000000000000AB\x02"
            reply = await peer.send_message(topic, b"no stream", properties=properties, f=str(PACKED))
            assert reply.code == 0
            if not is_dead:
                return
            assert (await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP)).code == 0
            at = int((reply.field("msgId") or "")[-16:], 16)
            back = {"group": "workers", "offset": str(at), "delayLevel": "-1", "originTopic": topic}
            assert (await peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0

    asyncio.run(send())
    with SyncProducer(cluster.nameserver_address) as producer:
        producer.send(Message(topic, b"third one"))


@pytest.mark.parametrize("way", [(), ("--verbose",), ("--json",), ("--group", "readers")])
def test_what_does_not_decompress_is_passed_over(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    with ThreadedCluster() as cluster:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)
        _send_what_does_not_decompress(cluster, "orders")
        code = run_cli(["consume", "orders", "--from", "first", "--no-follow", *way])
    out, err = capfd.readouterr()
    assert "first one" in out
    assert "third one" in out
    assert "does not decompress" in err
    assert code not in (0, 2)


@pytest.mark.parametrize(
    "command",
    [
        ("message", "key", "orders", "K"),
        ("message", "unique-key", "orders", "7F00000100002A9F00000000000000AB"),
        ("message", "time", "orders", "--since", "10m"),
        ("dlq", "show", "workers"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_does_not_decompress_is_shown_as_stored(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    with ThreadedCluster() as cluster:
        monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", cluster.nameserver_address)
        _send_what_does_not_decompress(cluster, "orders", is_dead=command[0] == "dlq")
        assert run_cli([*command, "--json"]) == 0
        told = capfd.readouterr().out
        assert "does not decompress" in told
        assert "no stream" in told
        assert run_cli(list(command)) == 0
        assert "no stream" in capfd.readouterr().out
