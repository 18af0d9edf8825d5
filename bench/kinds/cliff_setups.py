"""Ways to reach a broker that cliffs.py measures the ordinary send over: TLS, IPv6, many connections and topics, access control,
a slave that is waited for. Standard library and openssl only."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path

from bench.kinds import cliff_kinds
from bench.kinds.cliff_kinds import OPAQUE, Frames, Kind, properties, send_fields, sends
from bench.load import wire
from bench.load.wire import Link, encode_frame
from bench.replication import SYNC, slave_of
from bench.servers import Server

Start = Callable[..., AbstractContextManager[Server]]
MANY = 10_000
TOPICS_A_REQUEST = 500
CREATE_TOPICS = 18  # UPDATE_AND_CREATE_TOPIC_LIST
SIGNED = 4_096  # frames, sent in turn: signing each as it goes would cost the load more than the server
KEYS = ("bench-user", "bench-secret-1")
_PROVIDERS = "org.apache.rocketmq.auth"
ACCESS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": KEYS[0], "password": KEYS[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": KEYS[0], "secretKey": KEYS[1]}),
}


@cache
def certificate() -> dict[str, str]:
    """Settings with a certificate for Aerobee; RocketMQ's broker makes its own in its test mode, which is its default."""
    directory = Path(tempfile.mkdtemp(prefix="bench-tls-"))
    key, own = directory / "key.pem", directory / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", str(key), "-out", str(own)], check=True, capture_output=True)
    return {"tls.server.mode": "permissive", "tls.server.certPath": str(own), "tls.server.keyPath": str(key)}


def over_tls(port: int) -> Link:
    link = Link(("127.0.0.1", port))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    link.sock.settimeout(30)
    link.sock = context.wrap_socket(link.sock)
    return link


def over_ipv6(port: int) -> Link:
    return Link(("::1", port))  # type: ignore[arg-type]


class CrowdedLink(Link):
    """One connection of 10,000; the others say nothing."""

    def __init__(self, port: int) -> None:
        self._others = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(MANY - 1)]
        super().__init__(("127.0.0.1", port))

    def close(self) -> None:
        for each in self._others:
            each.close()
        super().close()


def signed(code: int, ext: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request with the signature of ACL 1.0 and 2.0: the values in the order of their names, then the body."""
    fields = {**ext, "AccessKey": KEYS[0]}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    fields["Signature"] = base64.b64encode(hmac.digest(KEYS[1].encode(), content, "sha1")).decode()
    return encode_frame(code, fields, body, opaque=OPAQUE)


def call_signed(link: Link, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
    """Raises LoadError unless it succeeds."""
    done = cliff_kinds.drive(link, iter([signed(code, ext, body)]), 1, requests=1)
    if done.refused:
        raise wire.LoadError(f"request {code} with a signature: {done.refused}")


def signed_sends(link: Link) -> Frames:
    topic = "cliffs-signed"
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    call_signed(link, wire.UPDATE_AND_CREATE_TOPIC, fields)
    return cycle(
        [
            signed(cliff_kinds.SEND, send_fields(topic, number % 4, properties(f"{number:016X}"), 0, False), cliff_kinds.BODY)
            for number in range(SIGNED)
        ]
    )  # fmt: skip


def many_topics(link: Link) -> Frames:
    """Sends to 10,000 topics in turn."""
    names = [f"cliffs-many-{number}" for number in range(MANY)]
    left = iter(names)
    while some := list(islice(left, TOPICS_A_REQUEST)):
        configs = [
            {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
            for name in some
        ]  # fmt: skip
        link.call(CREATE_TOPICS, {}, json.dumps({"topicConfigList": configs}).encode())
    frames = cliff_kinds.templates(
        [
            encode_frame(cliff_kinds.SEND, send_fields(name, 0, properties(), 0, False), cliff_kinds.BODY, opaque=OPAQUE)
            for name in names
        ]
    )  # fmt: skip
    cliff_kinds.drive(link, frames, 64, requests=MANY)  # makes their queues
    return frames


@contextlib.contextmanager
def with_slave(_: str, start: Start, settings: Mapping[str, str]) -> Iterator[Server]:
    """A master that answers a send when its slave has it. The slave's CPU does not count."""
    with start(extra={**settings, **SYNC}) as master, slave_of(master):
        yield master


def network(product: str) -> dict[str, str]:
    """Listeners for both families of addresses, and TLS."""
    return {**certificate(), "bindAddress": "::" if product == "rocketmq" else ""}


def alone(
    product: str,
    start: Start,
    settings: Mapping[str, str],
    more: Callable[[str], Mapping[str, str]] = lambda _: {},
) -> AbstractContextManager[Server]:
    return start(extra={**settings, **more(product)})


# How the servers of a kind's setup are started; "" are those of all other kinds.
SETUPS: dict[str, Callable[[str, Start, Mapping[str, str]], AbstractContextManager[Server]]] = {
    "": alone,
    "network": partial(alone, more=network),
    "access": partial(alone, more=lambda _: ACCESS),
    "slave": with_slave,
}
KINDS = (
    Kind("send to many topics", "send", many_topics),
    Kind("send on one of many connections", "send", sends("cliffs-crowd"), connect=CrowdedLink),
    Kind("send over TLS", "send", sends("cliffs-tls"), setup="network", connect=over_tls),
    Kind("send over IPv6", "send", sends("cliffs-ipv6"), setup="network", connect=over_ipv6),
    Kind("send with access control 2.0", "send", signed_sends, setup="access"),
    Kind("send with a slave in sync", "send", sends("cliffs-slave"), setup="slave"),
)  # fmt: skip
