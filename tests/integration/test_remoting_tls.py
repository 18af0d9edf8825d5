"""TLS on the port of the plain protocol: modes, certificates, reload without restart, broken handshakes."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.clock import SystemClock
from aerobee.config import Setting, build
from aerobee.errors import ConfigError, ConnectFailed, ConnectionLost
from aerobee.network import AsyncioNetwork, Network
from aerobee.ops.settings.settings import TlsSettings
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.server import Listener, RemotingServer
from aerobee.remoting.tls import ClientTls, TlsPump, client_tls, server_tls
from tests.integration.certificates import Identity, identity
from tests.integration.tls_serving import ECHO, NETWORKS, ask, server_keys, serving, trusting


@pytest.fixture(autouse=True)
def _on_every_network(server_network: Callable[[], Network]) -> Iterator[None]:
    """Servers of these tests run on each kind of network in turn."""
    NETWORKS.append(server_network)
    yield
    NETWORKS.pop()


async def test_permissive_serves_both_kinds_on_one_port(tmp_path: Path, authority: Identity) -> None:
    tls = server_tls(server_keys(identity(tmp_path, "server", authority)))
    async with serving(tls) as address:
        assert (await ask(address, None)).body == b"x"
        assert (await ask(address, trusting(authority))).body == b"x"


async def test_large_bodies_pass_through_tls(tmp_path: Path, authority: Identity) -> None:
    body = os.urandom(3 << 20)
    async with serving(server_tls(server_keys(identity(tmp_path, "server", authority)))) as address:
        assert (await ask(address, trusting(authority), body)).body == body


async def test_many_calls_share_one_tls_connection(tmp_path: Path, authority: Identity) -> None:
    async with serving(server_tls(server_keys(identity(tmp_path, "server", authority)))) as address:
        caller = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), tls=trusting(authority))
        calls = (caller.invoke(address, RemotingCommand(ECHO, body=b"%d" % number)) for number in range(200))
        assert [answer.body for answer in await asyncio.gather(*calls)] == [b"%d" % n for n in range(200)]
        assert len(caller.connections) == 1
        await caller.close()


async def test_enforcing_refuses_plain_connections(tmp_path: Path, authority: Identity) -> None:
    own = identity(tmp_path, "server", authority)
    async with serving(server_tls(server_keys(own, tls_server_mode="enforcing"))) as address:
        assert (await ask(address, trusting(authority))).code == 0
        with pytest.raises(ConnectionLost):
            await ask(address, None)


async def test_plain_listeners_take_both_kinds_though_the_others_enforce(
    tmp_path: Path, authority: Identity
) -> None:
    keys = server_keys(identity(tmp_path, "server", authority), tls_server_mode="enforcing")
    settings = build(TlsSettings, {key: Setting(value, "test") for key, value in keys.items()})
    settings = replace(settings, plain_listeners="internal")
    server = RemotingServer(
        clock=SystemClock(),
        network=NETWORKS[-1](),
        handlers={ECHO: lambda _, request: request.reply(body=request.body)},
        tls=settings.server_tls(("internal", "external")),
    )
    await server.start([Listener(name, "127.0.0.1", 0) for name in ("internal", "external")])
    internal, external = ("{}:{}".format(*server.address_of(name)) for name in ("internal", "external"))
    try:
        for address in (internal, external):
            assert (await ask(address, trusting(authority))).body == b"x"
        assert (await ask(internal, None)).body == b"x"
        with pytest.raises(ConnectionLost):
            await ask(external, None)
    finally:
        await server.stop(go_away=False, drain_s=0.05)
    with pytest.raises(
        ConfigError, match=r"plainListeners names unknown listeners: internal; this process has default, vip"
    ):
        settings.server_tls(("default", "vip"))


@pytest.mark.parametrize("has_tls", [True, False])
async def test_disabled_refuses_tls_connections(has_tls: bool) -> None:
    tls = server_tls({"tls.server.mode": "disabled"}) if has_tls else None
    async with serving(tls) as address:
        assert (await ask(address, None)).code == 0
        with pytest.raises(ConnectFailed, match="no connection to"):
            await ask(address, ClientTls())


async def test_test_mode_makes_a_certificate_that_clients_do_not_check() -> None:
    tls = client_tls({"tls.enable": "true"})
    async with serving(server_tls({})) as address:
        assert (await ask(address, tls)).body == b"x"


async def test_without_certificate_and_test_mode_only_tls_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(server_tls({"tls.test.mode.enable": "false"})) as address:
        assert (await ask(address, None)).code == 0
        with pytest.raises(ConnectFailed):
            await ask(address, ClientTls())
    assert "tls.server.certPath and tls.server.keyPath" in caplog.text


async def test_a_server_that_is_not_trusted_is_refused(tmp_path: Path, authority: Identity) -> None:
    peer = identity(tmp_path, "untrusted")
    async with serving(server_tls(server_keys(peer))) as address:
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, trusting(authority))
        assert (await ask(address, ClientTls())).code == 0  # authServer false: not checked


async def test_clients_without_a_certificate_are_refused_when_it_is_required(
    tmp_path: Path, authority: Identity
) -> None:
    own, caller = identity(tmp_path, "server", authority), identity(tmp_path, "client", authority, "secret")
    keys = server_keys(own, tls_server_need_client_auth="require", tls_server_authClient="true")
    keys |= {"tls.server.trustCertPath": str(authority.cert_path), "tls.server.need.client.auth": "require"}
    async with serving(server_tls(keys)) as address:
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await ask(address, trusting(authority))
        known = trusting(
            authority,
            tls_client_certPath=str(caller.cert_path),
            tls_client_keyPath=str(caller.key_path),
            tls_client_keyPassword="secret",
        )
        assert (await ask(address, known)).code == 0


async def test_new_connections_use_replaced_tls_files_open_ones_stay(
    tmp_path: Path, authority: Identity
) -> None:
    old_authority = identity(tmp_path, "old-authority")
    server = identity(tmp_path, "server", old_authority)
    async with serving(server_tls(server_keys(server))) as address:
        caller = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), tls=trusting(old_authority))
        await caller.invoke(address, RemotingCommand(ECHO))
        identity(tmp_path, "server", authority)  # the same paths
        assert (await ask(address, trusting(authority))).code == 0
        with pytest.raises(ConnectFailed):
            await ask(address, trusting(old_authority))
        assert (await caller.invoke(address, RemotingCommand(ECHO))).code == 0
        await caller.close()


async def test_broken_replacements_are_logged_and_the_old_files_stay(
    tmp_path: Path, authority: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    server = identity(tmp_path, "server", authority)
    tls = server_tls(server_keys(server))
    async with serving(tls) as address:
        server.cert_path.write_text("not a certificate")
        assert (await ask(address, trusting(authority))).code == 0
        assert str(server.cert_path) in caplog.text
        with pytest.raises(ConfigError, match=r"server\.pem"):
            tls.reload()


def test_wrong_settings_are_named(tmp_path: Path, authority: Identity) -> None:
    own = identity(tmp_path, "server", authority)
    locked = identity(tmp_path, "locked", authority, "secret")
    wrong: list[tuple[dict[str, str], str]] = [
        ({"tls.server.mode": "maybe"}, "tls.server.mode is 'maybe'"),
        ({"tls.server.need.client.auth": "x"}, "tls.server.need.client.auth"),
        ({"tls.test.mode.enable": "x"}, "tls.test.mode.enable"),
        ({"tls.server.certPath": str(own.cert_path)}, r"tls\.server\.\*: keyPath is ''"),
        (server_keys(own) | {"tls.server.certPath": "/nowhere.pem"}, "/nowhere.pem: No such file"),
        (server_keys(own) | {"tls.server.keyPath": str(own.cert_path)}, "cannot be loaded"),
        (server_keys(locked), "cannot be loaded"),
        (server_keys(locked) | {"tls.server.keyPassword": "wrong"}, "cannot be loaded"),
        ({"tls.server.mode": "enforcing", "tls.test.mode.enable": "false"}, "enforcing: TLS needs"),
    ]
    for keys, text in wrong:
        with pytest.raises(ConfigError, match=text):
            server_tls(keys)
    assert server_tls(server_keys(locked) | {"tls.server.keyPassword": "secret"}).context()
    assert client_tls({}) is None


def client_context() -> ssl.SSLContext:
    return ClientTls().context()


async def test_a_handshake_a_byte_at_a_time_succeeds(tmp_path: Path, authority: Identity) -> None:
    context = server_tls(server_keys(identity(tmp_path, "server", authority))).context()
    server, caller = TlsPump(context, server_side=True), TlsPump(client_context(), server_side=False)
    caller.receive(b"")
    for _ in range(4):
        for side, other in ((caller, server), (server, caller)):
            for byte in side.outgoing():
                other.receive(bytes([byte]))
    assert server.is_ready
    assert caller.is_ready
    caller.send(b"hello")
    assert server.receive(caller.outgoing()) == b"hello"
    caller.end()
    assert server.receive(caller.outgoing()) == b""
    assert server.is_ended


@pytest.mark.parametrize("hello", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(600)])
async def test_what_only_begins_like_tls_closes_its_connection_only(
    hello: bytes, tmp_path: Path, authority: Identity
) -> None:
    async with serving(server_tls(server_keys(identity(tmp_path, "server", authority)))) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello)
        if len(hello) > 1:
            async with asyncio.timeout(60):
                while await reader.read(1000):
                    pass  # an alert may come before the close
        assert (await ask(address, trusting(authority))).code == 0
        writer.close()
