"""What a Kombu connection says about its cluster: URL, `broker_use_ssl` and `broker_transport_options`.

The URL is aerobee://ACCESS_KEY:SECRET_KEY@HOST:PORT/VIRTUAL_HOST. Its user and password sign the requests; further
NameServers are further URLs, separated by `;`, or the option `nameservers`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee.client.base.config import ClientConfig
from aerobee.contrib.celery.names import prefix_of
from aerobee.errors import UsageError
from aerobee.host_port import join_address

DEFAULT_PORT = 9876
INVISIBLE_S_MIN = 3.0
# Options that Kombu and Celery themselves read, or that Celery sets for every transport.
OF_KOMBU = frozenset(
    {
        "body_encoding",
        "client_properties",
        "confirm_publish",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "login_method",
        "max_retries",
        "on_revive",
        "polling_interval",
    }
)
# Names of Celery's broker_use_ssl, and those of Kombu's URL parameters.
_SSL_FIELDS = {
    "ca_certs": "tls_ca_file",
    "ssl_ca_certs": "tls_ca_file",
    "certfile": "tls_cert_file",
    "ssl_certfile": "tls_cert_file",
    "keyfile": "tls_key_file",
    "ssl_keyfile": "tls_key_file",
    "password": "tls_key_password",
    "ssl_password": "tls_key_password",
}
_SSL_VERIFY = ("cert_reqs", "ssl_cert_reqs")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The transport options. `nameservers` and `security_token` are part of Settings."""

    visibility_timeout: float = 60.0
    """Seconds that a delivered message stays invisible to other workers. The worker renews them while it lives."""
    queue_count: int = 8
    """Queues per broker of a topic that the transport creates."""
    create_topics: bool = True
    """Create the topic and the consumer group of a queue that does not exist. False: an operator creates them."""
    timers: bool = True
    """Let the broker hold a task until its ETA. False: the worker holds it, as with other transports."""
    timer_max_s: float = 259_200.0
    """Maximum delay that the brokers accept, their timerMaxDelaySec. A later ETA is reached in several steps."""
    max_redeliveries: int = 16
    """Redeliveries after which a message becomes a dead letter, for groups that the transport creates."""
    wait_s: float = 15.0
    """Seconds that a broker keeps a pop pending while it has no message."""
    close_timeout: float = 10.0
    """Maximum time in seconds that closing waits for acknowledgements."""

    def __post_init__(self) -> None:
        for name in ("visibility_timeout", "timer_max_s", "wait_s", "close_timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise UsageError(
                    f"transport option {name} is {value!r}: it must be a number of seconds above 0"
                )
        for name in ("queue_count", "max_redeliveries"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"transport option {name} is {value!r}: it must be a whole number above 0")
        for name in ("create_topics", "timers"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"transport option {name} is {getattr(self, name)!r}: it is True or False")
        if self.visibility_timeout < INVISIBLE_S_MIN:
            raise UsageError(
                f"transport option visibility_timeout is {self.visibility_timeout:g} s: at least {INVISIBLE_S_MIN:g} s are "
                "needed to renew it in time"
            )
        if self.wait_s > 300:
            raise UsageError(f"transport option wait_s is {self.wait_s:g} s: at most 300 s are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A connection's cluster, virtual host and options."""

    nameservers: tuple[str, ...]
    client: ClientConfig
    prefix: str = ""
    options: QueueOptions = field(default_factory=QueueOptions)


def read_settings(
    *,
    hosts: Iterable[tuple[str | None, int | None]],
    access_key: str | None,
    secret_key: str | None,
    virtual_host: str,
    ssl_options: Any,
    options: Mapping[str, Any],
) -> Settings:
    """The settings of a connection. Raises UsageError for an option that does not exist or has a wrong value.

    `hosts`: name and port of each NameServer of the URL, None for the default. `ssl_options`: False, True or the dict
    of Celery's `broker_use_ssl`.
    """
    given = {name: value for name, value in options.items() if name not in OF_KOMBU}
    named = given.pop("nameservers", None)
    token = given.pop("security_token", "")
    known = QueueOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise UsageError(
                f"transport option {name} does not exist: the options are nameservers, security_token, {', '.join(known)}"
            )
    if named is None:
        servers = tuple(
            dict.fromkeys(join_address(host or "localhost", port or DEFAULT_PORT) for host, port in hosts)
        )
    elif isinstance(named, str):
        servers = tuple(part.strip() for part in named.replace(",", ";").split(";") if part.strip())
    else:
        servers = tuple(named)
    client = ClientConfig(
        access_key=access_key or "",
        secret_key=secret_key or "",
        security_token=token,
        **_tls_fields(ssl_options),
    )
    return Settings(
        nameservers=servers, client=client, prefix=prefix_of(virtual_host), options=QueueOptions(**given)
    )


def _tls_fields(ssl_options: Any) -> dict[str, Any]:
    if not ssl_options:
        return {}
    fields: dict[str, Any] = {"tls": True}
    if not isinstance(ssl_options, Mapping):
        return fields
    for name, value in ssl_options.items():
        if name in _SSL_VERIFY:
            if value not in (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED):
                raise UsageError(f"broker_use_ssl has {name}={value!r}: it must be a constant ssl.CERT_…")
            if value != ssl.CERT_REQUIRED:
                fields["tls_insecure"] = True
        elif name in _SSL_FIELDS:
            fields[_SSL_FIELDS[name]] = str(value)
        else:
            raise UsageError(
                f"broker_use_ssl has no {name}: it takes {', '.join(k for k in _SSL_FIELDS if k[:4] != 'ssl_')}, cert_reqs"
            )
    return fields
