"""URL, TLS and options of a Kombu connection."""

from __future__ import annotations

import ssl
from typing import Any

import kombu
import pytest

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://
from aerobee.contrib.celery.settings import OF_KOMBU, QueueOptions, Settings
from aerobee.errors import ConfigError, UsageError


def settings(url: str, **options: Any) -> Settings:
    found: Settings = kombu.Connection(url, **options).transport.settings
    return found


def test_url_names_server_keys_and_virtual_host() -> None:
    found = settings("aerobee://ann:s%2Fcret@mq.example:9999/shop")
    assert found.nameservers == ("mq.example:9999",)
    assert (found.client.access_key, found.client.secret_key) == ("ann", "s/cret")
    assert (found.prefix, found.client.tls) == ("shop%-", False)
    assert settings("aerobee://").nameservers == ("localhost:9876",)
    assert settings("aerobee://[::1]:9/").nameservers == ("[::1]:9",)


def test_every_url_is_a_nameserver() -> None:
    assert settings("aerobee://a:1;aerobee://b:2").nameservers == ("a:1", "b:2")
    assert settings("aerobee://a:1", transport_options={"nameservers": "x:1;y:2"}).nameservers == (
        "x:1",
        "y:2",
    )
    assert settings("aerobee://a:1", transport_options={"nameservers": ["x:1"]}).nameservers == ("x:1",)


def test_tls_by_scheme_or_option() -> None:
    assert settings("aerobees://a/").client.tls
    client = settings(
        "aerobee://a/",
        ssl={"ca_certs": "ca.pem", "certfile": "c.pem", "keyfile": "k.pem", "cert_reqs": ssl.CERT_REQUIRED},
    ).client
    assert (client.tls, client.tls_insecure) == (True, False)
    assert (client.tls_ca_file, client.tls_cert_file, client.tls_key_file) == ("ca.pem", "c.pem", "k.pem")
    assert settings("aerobees://a/", ssl={"cert_reqs": ssl.CERT_NONE}).client.tls_insecure
    assert settings("aerobees://a/?ssl_ca_certs=ca.pem").client.tls_ca_file == "ca.pem"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"visibility_timout": 3}, "visibility_timout does not exist: the options are nameservers"),
        ({"visibility_timeout": 1}, "at least 3 s"),
        ({"visibility_timeout": True}, "number of seconds above 0"),
        ({"queue_count": 0}, "whole number above 0"),
        ({"timers": 1}, "True or False"),
        ({"wait_s": 1000}, "at most 300 s"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        settings("aerobee://a/", transport_options=options)


def test_wrong_tls_options_are_refused() -> None:
    with pytest.raises(UsageError, match="broker_use_ssl has no ciphers: it takes ca_certs"):
        settings("aerobee://a/", ssl={"ciphers": "x"})
    with pytest.raises(UsageError, match="a constant ssl"):
        settings("aerobee://a/", ssl={"cert_reqs": "maybe"})
    with pytest.raises(ConfigError, match="belong together"):
        settings("aerobee://ann@a/")


def test_options_of_kombu_are_passed_over() -> None:
    assert settings("aerobee://a/", transport_options={"max_retries": 1}).options == QueueOptions()
    assert not OF_KOMBU & set(QueueOptions.__dataclass_fields__)


def test_greenlets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.contrib.celery.transport.detect_environment", lambda: "gevent")
    with pytest.raises(UsageError, match="--pool=prefork"):
        kombu.Connection("aerobee://127.0.0.1:1/").transport.establish_connection()
