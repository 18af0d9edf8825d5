"""Where a client's connection comes from: option, named context, environment, current context, default."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.client.session.contexts import (
    Context,
    ContextFile,
    cluster,
    contexts_path,
    read_contexts,
    write_contexts,
)
from aerobee.errors import ConfigError

PROD = Context(nameserver="prod:9876", tls=True)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "below" / "client.toml"
    write_contexts(ContextFile(path, "prod", {"prod": PROD, 'a "b"': Context(nameserver="ab:9876")}))
    return {"AEROBEE_CLIENT_CONFIG": str(path)}


def test_without_anything_it_is_this_machine_in_plain(tmp_path: Path) -> None:
    found = cluster(environ={"AEROBEE_CLIENT_CONFIG": str(tmp_path / "none")})
    assert (found.nameservers, found.client.tls, found.context) == ("127.0.0.1:9876", False, "")


def test_current_context_is_taken_whole(environ: dict[str, str]) -> None:
    found = cluster(environ=environ)
    assert (found.nameservers, found.client.tls, found.context) == ("prod:9876", True, "prod")


@pytest.mark.parametrize("variable", ["AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR"])
def test_another_cluster_does_not_get_the_tls_of_the_current_context(
    environ: dict[str, str], variable: str
) -> None:
    found = cluster(environ={**environ, variable: "here:9876"})
    assert (found.nameservers, found.client.tls, found.context) == ("here:9876", False, "")
    found = cluster(given=Context(nameserver="there:9876"), environ={**environ, variable: "here:9876"})
    assert (found.nameservers, found.client.tls) == ("there:9876", False)


def test_context_named_by_an_option_wins_over_the_environment(environ: dict[str, str]) -> None:
    environ |= {"AEROBEE_NAMESRV_ADDR": "here:9876", "AEROBEE_TLS": "true", "AEROBEE_CONTEXT": "prod"}
    assert cluster(context='a "b"', environ=environ).nameservers == "ab:9876"
    assert cluster(context="prod", given=Context(tls=False), environ=environ).client.tls is False


def test_environment_wins_over_the_context_that_it_names(environ: dict[str, str]) -> None:
    environ |= {"AEROBEE_CONTEXT": "prod", "AEROBEE_TLS": "off"}
    found = cluster(environ=environ)
    assert (found.nameservers, found.client.tls) == ("prod:9876", False)


def test_file_survives_reading_and_writing_and_is_private(environ: dict[str, str]) -> None:
    path = contexts_path(environ)
    file = read_contexts(path)
    assert (file.current, set(file.contexts)) == ("prod", {"prod", 'a "b"'})
    assert file.contexts["prod"] == PROD
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = ", "cannot be read as TOML"),
        ("nope = 1", "unknown key nope"),
        ("[context.a]\nnope = 1", "context a: unknown key nope"),
        ("[context.a]\ntls = 'yes'", "tls is 'yes', must be true or false"),
        ("[context.a]\nnameserver = 9876", "nameserver is 9876, must be text"),
        ("context = 1", "is a name and"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_contexts(path)


def test_a_context_that_is_not_there_is_said_with_those_that_are(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"no context .nope..*prod"):
        cluster(context="nope", environ=environ)
    with pytest.raises(ConfigError, match="AEROBEE_TLS is 'maybe'"):
        cluster(environ={**environ, "AEROBEE_TLS": "maybe"})


def test_what_a_file_of_text_can_hold_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    odd = Context(nameserver="h:1", access_key='a\x7f\n"\\', secret_key="\U0001f511 \u2028 é", tls=False)
    write_contexts(ContextFile(path, "\U0001f511", {"\U0001f511": odd, "a.b\x7f]": PROD}))
    file = read_contexts(path)
    assert (file.current, file.contexts) == ("\U0001f511", {"\U0001f511": odd, "a.b\x7f]": PROD})
    with pytest.raises(ConfigError, match="no UTF-8"):
        write_contexts(ContextFile(path, "", {"half \udc80": PROD}))
    assert read_contexts(path) == file


def test_what_lies_where_the_new_file_is_made_gets_no_secret(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "client.toml", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    path.with_suffix(".tmp").symlink_to(elsewhere)
    write_contexts(ContextFile(path, "", {"prod": Context(secret_key="hidden")}))
    assert (elsewhere.read_text(), path.is_symlink()) == ("mine", False)
    path.with_suffix(".tmp").write_text("of a run that died")
    path.with_suffix(".tmp").chmod(0o666)
    write_contexts(ContextFile(path, "", {"prod": Context(secret_key="hidden")}))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("[context.prod]\nsecret_key = 13579\n")
    with pytest.raises(ConfigError, match="secret_key is no text") as raised:
        read_contexts(path)
    assert "13579" not in str(raised.value)


def test_whom_to_trust_is_one_decision(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    write_contexts(
        ContextFile(
            path,
            "prod",
            {
                "prod": Context(nameserver="prod:9876", tls=True, tls_ca_file="/ca.pem"),
                "test": Context(nameserver="test:9876", tls_insecure=True),
            },
        )
    )
    environ = {"AEROBEE_CLIENT_CONFIG": str(path)}
    assert cluster(environ=environ).client.tls_ca_file == "/ca.pem"
    client = cluster(given=Context(tls_insecure=True), environ=environ).client
    assert (client.tls, client.tls_insecure, client.tls_ca_file) == (True, True, "")
    client = cluster(context="test", environ=environ).client
    assert (client.tls, client.tls_insecure) == (True, True)
    client = cluster(context="test", given=Context(tls_ca_file="/ca.pem"), environ=environ).client
    assert (client.tls_insecure, client.tls_ca_file) == (False, "/ca.pem")
    with pytest.raises(ConfigError, match="AEROBEE_TLS_INSECURE is 'x': it must be true or false"):
        cluster(environ={**environ, "AEROBEE_TLS_INSECURE": "x"})
