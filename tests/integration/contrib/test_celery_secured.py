"""Kombu at clusters that take TLS only, and that check who sends."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import kombu
import pytest

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://
from aerobee.errors import RemoteError
from tests.integration.access_cluster import USERS, Cluster, running
from tests.integration.secured_cluster import Secured

WITHIN_S = 120.0


def sent_and_received(connection: Any) -> Any:
    """What arrives of one message."""
    queue, found = kombu.Queue("safe", kombu.Exchange("safe"), "safe"), []

    def remember(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    kombu.Producer(connection).publish("secret", exchange="safe", routing_key="safe", declare=[queue])
    with kombu.Consumer(connection, [queue], callbacks=[remember]):
        connection.drain_events(timeout=WITHIN_S)
    return found


def test_tls_with_a_client_certificate(secured: Secured) -> None:
    files = {
        "ca_certs": str(secured.authority.cert_path),
        "certfile": str(secured.client.cert_path),
        "keyfile": str(secured.client.key_path),
        "cert_reqs": ssl.CERT_REQUIRED,
    }
    with kombu.Connection(f"aerobee://{secured.nameserver}/", ssl=files) as connection:
        assert sent_and_received(connection) == ["secret"]


async def test_keys_of_the_url_sign_the_requests(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        address = cluster.server.address

        def use(user: str) -> Any:
            with kombu.Connection(f"aerobee://{user}{address}/") as connection:
                return sent_and_received(connection)

        assert await asyncio.to_thread(use, "root:rootsecret@") == ["secret"]
        with pytest.raises(RemoteError, match=r"[Aa]uthenticat|signature|[Pp]ermission"):
            await asyncio.to_thread(use, "root:wrong@")
