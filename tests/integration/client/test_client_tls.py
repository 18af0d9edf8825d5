"""Which certificates a client accepts: of a trusted authority, for the host to which it connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.client import ClientConfig
from aerobee.client.session.session import client_tls
from aerobee.errors import ConfigError, ConnectFailed
from aerobee.remoting.tls import server_tls
from tests.integration.certificates import Identity, identity
from tests.integration.tls_serving import ask, serving


def of_server(served: Identity) -> dict[str, str]:
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(served.cert_path),
        "tls.server.keyPath": str(served.key_path),
    }


async def test_tls_refuses_a_certificate_of_no_trusted_authority(tmp_path: Path) -> None:
    server = identity(tmp_path, "server", identity(tmp_path, "authority"))
    async with serving(server_tls(of_server(server))) as address:
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED: unable to get local issuer"):
            await ask(address, client_tls(ClientConfig(tls=True)))


async def test_tls_refuses_a_certificate_of_another_host(tmp_path: Path) -> None:
    authority = identity(tmp_path, "authority")
    server = identity(tmp_path, "server", authority, hosts=["mq.example.com", "192.0.2.7"])
    config = ClientConfig(tls=True, tls_ca_file=str(authority.cert_path))
    async with serving(server_tls(of_server(server))) as address:
        with pytest.raises(ConnectFailed, match=r"not valid for '127\.0\.0\.1'"):
            await ask(address, client_tls(config))


async def test_tls_accepts_a_trusted_certificate_that_names_the_host(tmp_path: Path) -> None:
    authority = identity(tmp_path, "authority")
    server = identity(tmp_path, "server", authority)
    config = ClientConfig(tls=True, tls_ca_file=str(authority.cert_path))
    async with serving(server_tls(of_server(server))) as address:
        assert (await ask(address, client_tls(config))).code == 0
        by_name = address.replace("127.0.0.1", "localhost")
        assert (await ask(by_name, client_tls(config))).code == 0


async def test_tls_insecure_accepts_any_certificate(tmp_path: Path) -> None:
    server = identity(tmp_path, "server", hosts=["mq.example.com"])
    async with serving(server_tls(of_server(server))) as address:
        config = ClientConfig(tls=True, tls_insecure=True)
        assert (await ask(address, client_tls(config))).code == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tls_insecure": True}, "no effect without tls=True"),
        ({"tls": True, "tls_insecure": True, "tls_ca_file": "ca.pem"}, "excludes tls_ca_file"),
    ],
)
def test_insecure_stands_alone(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClientConfig(**fields)  # type: ignore[arg-type]
