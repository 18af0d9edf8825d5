"""Commands over TLS: options, environment, contexts, client certificates, and what doctor says without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.client import ClientConfig, SyncProducer
from aerobee.errors import ConfigError
from aerobee.message import Message
from aerobee.ops.servers.listening import free_ports
from tests.cli import Run, make_run
from tests.integration.certificates import Identity, identity


@dataclass
class Secured:
    """Servers that take connections of known clients only, and who may connect."""

    nameserver: str  # of a whole cluster: it takes both kinds of connections, its broker TLS only
    alone: str  # a NameServer that takes TLS only
    authority: Identity
    client: Identity

    def options(self) -> list[str]:
        """What a command needs."""
        files = {"ca": self.authority.cert_path, "cert": self.client.cert_path, "key": self.client.key_path}
        return [part for name, path in files.items() for part in (f"--tls-{name}-file", str(path))]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = identity(directory, "authority")
    server, client = (identity(directory, name, authority) for name in ("server", "client"))
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert_path,
        "tls.server.keyPath": server.key_path,
        "tls.server.trustCertPath": authority.cert_path,
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
    }
    settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    port, nameserver, alone = free_ports(3)
    ports = ("--port", str(port), "--nameserver-port", str(nameserver))
    with (
        started("up", "--ephemeral", "--json", *ports, *settings),
        started("nameserver", "--json", "--port", str(alone), *settings),
    ):
        yield Secured(f"127.0.0.1:{nameserver}", f"127.0.0.1:{alone}", authority, client)


@contextmanager
def started(*arguments: str) -> Iterator[None]:
    """A server in a separate process, ready."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "aerobee.ops", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def run(
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Run:
    monkeypatch.setenv("AEROBEE_CLIENT_CONFIG", str(tmp_path / "client.toml"))
    for name in ("AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)

    return make_run(capfdbinary, request)


def test_commands_connect_with_a_client_certificate(run: Run, secured: Secured) -> None:
    connection = ("-n", secured.nameserver, *secured.options())
    assert run("send", "secret", "hello", *connection)[0] == 0
    reading = ("consume", "secret", "--from", "first", "--count", "1")
    assert run(*reading, *connection)[:2] == (0, "hello\n")
    code, out, _ = run("doctor", "--json", *connection)
    assert (code, json.loads(out)["healthy"]) == (0, True)


def test_options_may_stand_before_the_command(run: Run, secured: Secured) -> None:
    assert run(*secured.options(), "topic", "list", "-n", secured.alone)[0] == 0


def test_environment_says_how_to_connect(run: Run, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", secured.nameserver)
    monkeypatch.setenv("AEROBEE_TLS_CA_FILE", str(secured.authority.cert_path))
    monkeypatch.setenv("AEROBEE_TLS_CERT_FILE", str(secured.client.cert_path))
    monkeypatch.setenv("AEROBEE_TLS_KEY_FILE", str(secured.client.key_path))
    assert run("send", "from-environment", "hello")[0] == 0


def test_context_says_where_and_how(run: Run, secured: Secured) -> None:
    assert run("context", "set", "prod", "-n", secured.nameserver, *secured.options())[0] == 0
    assert run("context", "set", "other", "-n", "127.0.0.1:1")[0] == 0
    assert run("send", "from-context", "hello")[0] == 0
    assert run("context", "use", "other")[0] == 0
    assert run("send", "from-context", "hello")[0] == 3
    assert run("send", "from-context", "hello", "--context", "prod")[0] == 0
    code, out, _ = run("context", "show", "--json")
    assert (code, json.loads(out)["context"]) == (0, "other")
    assert run("topic", "list", "--context", "nope")[0] == 2


@pytest.mark.parametrize(
    ("where", "options", "advice"),
    [
        ("alone", [], "the port accepts TLS connections only: use --tls"),
        ("alone", ["--tls"], "requires a client certificate"),
        ("nameserver", [], "the port accepts TLS connections only: use --tls"),
    ],
)
def test_doctor_knows_a_port_that_takes_tls_only(
    run: Run, secured: Secured, where: str, options: list[str], advice: str
) -> None:
    code, out, _ = run("doctor", "-n", getattr(secured, where), *options)
    assert code == 1
    assert advice in out


def test_python_clients_take_the_same_settings(secured: Secured) -> None:
    client = ClientConfig(
        tls=True,
        tls_ca_file=str(secured.authority.cert_path),
        tls_cert_file=str(secured.client.cert_path),
        tls_key_file=str(secured.client.key_path),
    )
    with SyncProducer(secured.nameserver, client=client) as producer:
        assert producer.send(Message("from-python", b"x")).message_id


@pytest.mark.parametrize("fields", [{"tls_ca_file": "x"}, {"tls": True, "tls_cert_file": "x"}])
def test_settings_that_do_not_fit_together_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ClientConfig(**fields)  # type: ignore[arg-type]


def test_file_that_is_not_there_is_said_before_anything_is_tried(run: Run) -> None:
    code, _, error = run("topic", "list", "-n", "127.0.0.1:1", "--tls-ca-file", "/nowhere.pem")
    assert code == 2
    assert "/nowhere.pem" in error
