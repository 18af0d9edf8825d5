"""Commands over TLS: options, environment, contexts, client certificates, and what doctor says without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.client import ClientConfig, SyncProducer
from aerobee.errors import ConfigError
from aerobee.message import Message
from tests.cli import Run, make_run
from tests.integration.secured_cluster import Secured


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
        ("alone", ["--tls"], "name the authority that signed"),
        ("alone", ["--tls-insecure"], "requires a client certificate"),
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


def test_a_context_holds_controllers_with_its_tls(
    run: Run, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run("context", "set", "c", "-n", "127.0.0.1:1", "-a", secured.alone, *secured.options())
    assert said[0] == 0
    assert json.loads(run("context", "show", "--json")[1])["controller"] == secured.alone
    code, _, error = run("ha", "status")
    # A NameServer that takes TLS only: it was reached with the context's certificates, and is no controller.
    assert code != 0
    assert secured.alone in error
    assert "TLS" not in error
    assert "127.0.0.1:1:" in run("ha", "status", "-a", "127.0.0.1:1")[2]
    monkeypatch.setenv("AEROBEE_CONTROLLER_ADDR", "127.0.0.1:2")
    assert "127.0.0.1:2" in run("ha", "status")[2]
    assert secured.alone in run("ha", "status", "--context", "c")[2]
