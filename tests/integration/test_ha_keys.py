"""Who may copy a log, and who may speak to controllers, where keys are set."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aerobee.broker.replication import tls_connection
from aerobee.broker.replication.tls_connection import HaTls, TlsNetwork
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError
from aerobee.ha.controller.controller import Controller
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials
from aerobee.store.files.config import StoreConfig
from tests.integration.broker_calls import make_broker
from tests.integration.certificates import Identity, identity
from tests.integration.controller_quorum import configs, leader_of
from tests.integration.replica_pair import Pair, figures, same
from tests.waiting import wait_until

KEY, OTHER = "a key of sixteen or more", "another key of that length"


async def test_a_slave_with_the_key_copies_the_log(pair: Pair) -> None:
    master = await pair.start("master", store={"ha_shared_key": KEY})
    await pair.send(master, 20, size=3_000)
    slave = await pair.start_slave(master, store={"ha_shared_key": KEY})
    await same(master, slave)
    await pair.send(master, 5)
    await same(master, slave)
    table = json.loads((await pair.client.invoke(master.address, RemotingCommand(28))).body)["table"]
    assert KEY not in str(table)
    shown = await pair.client.invoke(master.address, RemotingCommand(RequestCode.GET_BROKER_CONFIG))
    assert b"haListenPort" in shown.body
    assert KEY.encode() not in shown.body


@pytest.mark.parametrize("key", ["", OTHER])
async def test_a_slave_without_it_gets_nothing(
    pair: Pair, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    master = await pair.start("master", store={"ha_shared_key": KEY})
    await pair.send(master, 3)
    slave = await pair.start_slave(master, store={"ha_shared_key": key})
    await wait_until(lambda: "HA port is closed" in caplog.text, timeout_s=60)
    assert slave.store.log.end == 0
    assert (await figures(pair, master))["haReplicas"] == ""
    assert ("haSharedKey is set here" if not key else "another one") in caplog.text


async def test_whoever_is_silent_at_the_ha_port_is_sent_away(pair: Pair) -> None:
    master = await pair.start("master", store={"ha_shared_key": KEY})
    host, _, port = master.identity.ha_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(60):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()


@dataclass(frozen=True)
class Authorities:
    """Two authorities, and the settings of a broker with a certificate of the first."""

    own: Identity
    untrusted: Identity
    directory: Path

    def store(
        self, name: str, *, by: Identity | None = None, trust: Identity | None = None
    ) -> dict[str, str]:
        signed = identity(self.directory, name, by or self.own)
        trusted = trust or self.own
        return {
            "ha_tls_cert_path": str(signed.cert_path),
            "ha_tls_key_path": str(signed.key_path),
            "ha_tls_trust_cert_path": str(trusted.cert_path),
        }


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    return Authorities(identity(tmp_path, "authority"), identity(tmp_path, "untrusted"), tmp_path)


@pytest.mark.parametrize("key", ["", KEY], ids=["tls", "tls-and-key"])
@pytest.mark.parametrize("fast_path", ["python", "native"])
async def test_a_log_is_copied_under_tls(
    pair: Pair, authorities: Authorities, key: str, fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_FAST_PATH", fast_path)
    master = await pair.start("master", store={**authorities.store("m"), "ha_shared_key": key})
    await pair.send(master, 200, size=3_000)
    slave = await pair.start_slave(master, store={**authorities.store("s"), "ha_shared_key": key})
    await same(master, slave)
    await pair.send(master, 50)
    await same(master, slave)
    assert (await figures(pair, master))["haReplicas"] != ""


async def test_tls_without_a_trust_store_asks_for_no_certificate(
    pair: Pair, authorities: Authorities
) -> None:
    store = {**authorities.store("m"), "ha_tls_trust_cert_path": ""}
    master = await pair.start("master", store=store)
    await pair.send(master, 3)
    slave = await pair.start_slave(master, store=store)
    await same(master, slave)


@pytest.mark.parametrize("kind", ["plain", "untrusted", "distrustful"])
async def test_a_slave_without_a_right_certificate_gets_nothing(
    pair: Pair, authorities: Authorities, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One without TLS, one whose certificate an untrusted authority signed, one that distrusts the certificate of the master."""
    master = await pair.start("master", store=authorities.store("m"))
    await pair.send(master, 3)
    store = {
        "plain": {},
        "untrusted": authorities.store("s", by=authorities.untrusted),
        "distrustful": authorities.store("t", trust=authorities.untrusted),
    }[kind]
    slave = await pair.start_slave(master, store=store)
    await wait_until(lambda: "HA port is closed" in caplog.text, timeout_s=60)
    assert slave.store.log.end == 0
    assert (await figures(pair, master))["haReplicas"] == ""


@pytest.mark.parametrize(
    ("closes", "says"), [(True, "closed it within the TLS handshake"), (False, "no TLS handshake within")]
)
async def test_what_became_of_a_handshake_is_told(
    pair: Pair, authorities: Authorities, closes: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "HANDSHAKE_TIMEOUT_S", 3600.0 if closes else 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not closes and await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    slave = await pair.start("slave", store={**authorities.store("s"), "broker_role": "SLAVE"}, broker_id=1)
    slave.replication.become_slave(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def trouble() -> str:
        following = slave.replication.state().following
        return "" if following is None else following.trouble

    await wait_until(lambda: says in trouble(), timeout_s=60)
    server.close()


async def test_nothing_of_the_log_is_readable_without_a_certificate(
    pair: Pair, authorities: Authorities
) -> None:
    master = await pair.start("master", store=authorities.store("m"))
    await pair.send(master, 3)
    host, _, port = master.identity.ha_address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authorities.own.cert_path))
    context.check_hostname = False

    async def first_byte() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(
            bytes(8)
        )  # as a slave that has nothing: in TLS 1.3 the refusal comes behind the handshake
        return await reader.readexactly(1)

    async with asyncio.timeout(60):
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await first_byte()


async def test_a_stop_ends_a_handshake_under_way(
    pair: Pair, authorities: Authorities, caplog: pytest.LogCaptureFixture
) -> None:
    """Of who connects to this broker's port and says nothing; else it would last five seconds."""
    master = await pair.start("master", store=authorities.store("m"))
    host, _, port = master.identity.ha_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await wait_until(lambda: "ha-tls-handshake" in running_tasks())
    await master.stop()
    await wait_until(lambda: "ha-tls-handshake" not in running_tasks())
    assert "no TLS handshake within" not in caplog.text
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_who_gives_up_a_connection_ends_its_handshake(authorities: Authorities) -> None:
    """Of a slave whose master says nothing."""
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    network = TlsNetwork(AsyncioNetwork(), HaTls(StoreConfig(**authorities.store("s"))))  # type: ignore[arg-type]
    port = silent.sockets[0].getsockname()[1]
    connecting = asyncio.create_task(network.create_connection(asyncio.Protocol, "127.0.0.1", port))
    await wait_until(lambda: accepted and "ha-tls-handshake" in running_tasks())
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await wait_until(lambda: "ha-tls-handshake" not in running_tasks())
    accepted[0].close()
    silent.close()


def running_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ({"ha_tls_cert_path": "/a.pem"}, "set both, or neither"),
        ({"ha_tls_trust_cert_path": "/a.pem"}, "haTlsCertPath is empty"),
        ({"ha_tls_cert_path": "/none.pem", "ha_tls_key_path": "/none.key"}, "/none"),
    ],
)
def test_tls_files_that_cannot_be_used_are_named_at_the_start(
    tmp_path: Path, store: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_broker(tmp_path, store=store)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haSharedKey has 5 characters"):
        make_broker(tmp_path, store={"ha_shared_key": "short"})


async def test_keyed_controllers_elect_and_refuse_untrusted_peers(tmp_path: Path) -> None:
    pair = json.dumps({"accessKey": "quorum", "secretKey": "secret of the quorum"})
    asked = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
    async with AsyncExitStack() as stack:
        controllers = [
            await stack.enter_async_context(
                Controller(
                    replace(config, authentication_enabled=True, inner_client_authentication_credentials=pair)
                )
            )
            for config in configs(tmp_path, 3)
        ]
        leader = await leader_of(controllers)  # they speak to each other with it
        for credentials, code in (
            (None, ResponseCode.NO_PERMISSION),
            (Credentials("quorum", "wrong"), ResponseCode.NO_PERMISSION),
            (Credentials("quorum", "secret of the quorum"), ResponseCode.SUCCESS),
        ):
            client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=credentials)
            reply = await client.invoke(leader.address, RemotingCommand(asked.code))
            assert reply.code == code, (credentials, reply)
            await client.close()


def test_a_controller_that_asks_for_a_key_needs_one(tmp_path: Path) -> None:
    (config,) = configs(tmp_path, 1)
    with pytest.raises(ConfigError, match="no key to ask for"):
        replace(config, authentication_enabled=True)
