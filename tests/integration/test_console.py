"""The console's server without a browser: who is let in, what is refused, one look for all, what is on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerobee import Message
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.console.users import Role, User, hash_password, is_password, load_users
from aerobee.errors import ConfigError
from aerobee.testing import LocalCluster


@asynccontextmanager
async def console(cluster: LocalCluster, **options: Any) -> AsyncIterator[ConsoleServer]:
    config = ConsoleConfig(nameserver=cluster.nameserver_address, port=0, refresh_s=0.2, **options)
    server = ConsoleServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as started:
        await started.create_topic("orders", queues=1)
        yield started


def users_file(path: Path) -> Path:
    file = path / "users.json"
    people = {"vera": "viewer", "otto": "operator", "ada": "admin"}
    file.write_text(
        json.dumps(
            {name: {"role": role, "password": hash_password("secret")} for name, role in people.items()}
        )
    )
    return file


async def token(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}api/session") as answer:
        return str((await answer.json()).get("csrf", ""))


async def act(
    session: aiohttp.ClientSession, url: str, name: str, fields: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    headers = {"X-CSRF-Token": await token(session, url)}
    async with session.post(f"{url}api/act/{name}", json=fields, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_page_of_a_stranger_gets_nothing(cluster: LocalCluster) -> None:
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        url = server.url
        async with session.get(url, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        fields = {"topic": "orders", "body": "x"}
        async with session.post(f"{url}api/act/send", json=fields) as answer:
            assert answer.status == 403
        right = {"X-CSRF-Token": await token(session, url)}
        async with session.post(
            f"{url}api/act/send", json=fields, headers={**right, "Origin": "http://evil.example"}
        ) as answer:
            assert answer.status == 403
        async with session.post(f"{url}api/act/send", data="topic=orders", headers=right) as answer:
            assert answer.status == 415
        async with session.get(f"{url}static/..%2f..%2fserver.py") as answer:
            assert answer.status == 404
        async with session.get(url) as answer:
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Frame-Options"] == "DENY"
        stored = sum(row.max_offset for row in await _stats(cluster))
        assert stored == 0


async def _stats(cluster: LocalCluster) -> Any:
    async with cluster.admin() as admin:
        return await admin.topic_stats("orders")


async def test_a_dry_run_changes_nothing_and_names_the_command(cluster: LocalCluster, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with console(cluster, audit_file=audit) as server, aiohttp.ClientSession() as session:
        fields = {"topic": "orders", "body": "x", "tag": "a b"}
        status, answer = await act(session, server.url, "send", {**fields, "dry_run": True})
        assert status == 200
        assert answer["command"].startswith("aerobee send orders x --tag 'a b' --nameserver")
        assert sum(row.max_offset for row in await _stats(cluster)) == 0
        assert not audit.exists()
        status, answer = await act(session, server.url, "send", {"topic": "orders", "body": "x"})
        assert status == 200
        assert sum(row.max_offset for row in await _stats(cluster)) == 1
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        assert [(line["user"], line["action"], line["result"].split(":")[0]) for line in lines] == [
            ("local", "send", "asked"),
            ("local", "send", "done"),
        ]
        status, answer = await act(session, server.url, "send", {"topic": "", "body": "x"})
        assert (status, answer["error"]) == (400, "topic is missing")


async def test_roles_may_what_they_may_and_read_only_means_it(cluster: LocalCluster, tmp_path: Path) -> None:
    users = users_file(tmp_path)
    async with console(cluster, users_file=users) as server:
        expected = {"vera": (403, 403), "otto": (200, 403), "ada": (200, 200)}
        for name, wanted in expected.items():
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
                async with session.get(f"{server.url}api/overview") as answer:
                    assert answer.status == 401
                async with session.post(
                    f"{server.url}api/login", json={"name": name, "password": "secret"}
                ) as answer:
                    assert answer.status == 200
                sent = await act(session, server.url, "send", {"topic": "orders", "body": "x"})
                made = await act(session, server.url, "topic-create", {"topic": f"of-{name}", "queues": 1})
                assert (sent[0], made[0]) == wanted
    async with console(cluster, read_only=True) as server, aiohttp.ClientSession() as session:
        status, answer = await act(session, server.url, "send", {"topic": "orders", "body": "x"})
        assert (status, answer["error"]) == (403, "this console is read-only")


async def test_wrong_passwords_are_counted(cluster: LocalCluster, tmp_path: Path) -> None:
    async with (
        console(cluster, users_file=users_file(tmp_path)) as server,
        aiohttp.ClientSession() as session,
    ):
        for name in ("vera", "nobody", "vera", "vera", "vera"):
            async with session.post(
                f"{server.url}api/login", json={"name": name, "password": "wrong"}
            ) as answer:
                assert (await answer.json())["error"] == "the name or the password is wrong"
        async with session.post(
            f"{server.url}api/login", json={"name": "vera", "password": "secret"}
        ) as answer:
            assert answer.status == 403
            assert "wait a minute" in (await answer.json())["error"]


async def test_a_proxy_is_believed_only_where_it_stands(cluster: LocalCluster, tmp_path: Path) -> None:
    users = users_file(tmp_path)
    headers = {"X-User": "otto"}
    for proxies, wanted in ((("127.0.0.1",), "operator"), (("10.1.1.1",), None)):
        options = {"users_file": users, "user_header": "X-User", "proxy_addresses": proxies}
        async with (
            console(cluster, **options) as server,
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{server.url}api/session") as answer,
        ):
            assert (await answer.json()).get("role") == wanted


async def test_a_hundred_pages_cost_the_brokers_what_one_costs(cluster: LocalCluster) -> None:
    async with cluster.producer() as producer:
        await producer.send(Message("orders", b"x"))
    async with console(cluster) as server:
        looks = 0
        look = server.snapshot.look

        async def counted() -> None:
            nonlocal looks
            looks += 1
            await look()

        server.snapshot.look = counted  # type: ignore[method-assign]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one() -> int:
                async with session.get(f"{server.url}api/overview") as answer:
                    return len((await answer.json())["brokers"])

            assert set(await asyncio.gather(*(one() for _ in range(100)))) == {1}
        assert looks <= server.snapshot.number + 1
        assert looks < 50


async def test_a_group_with_a_queue_that_waits_is_not_said_to_have_nothing_to_do(
    cluster: LocalCluster,
) -> None:
    await cluster.create_topic("half", queues=2)
    async with cluster.producer() as producer:
        queues = await producer.queues("half")
        await producer.send(Message("half", b"x"), queue=queues[0])
    async with cluster.admin() as admin:
        await admin.create_group("clerks")
    for queue in queues:
        cluster.broker().offsets.commit("clerks", "half", queue.queue_id, 0)
    async with console(cluster) as server, aiohttp.ClientSession() as session:

        async def group() -> dict[str, Any]:
            async with session.get(f"{server.url}api/groups") as answer:
                return {row["name"]: row for row in (await answer.json())["groups"]}.get("clerks", {})

        async with asyncio.timeout(60):
            while not (await group()).get("is_known"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found = await group()
    assert (found["lag"], found["state"]) == (1, "UNKNOWN")
    assert found["reason"].startswith("watched for")
    assert found["late_ms"] is not None


def test_beyond_loopback_takes_users(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--users"):
        ConsoleConfig(nameserver="x:1", host="0.0.0.0")
    with pytest.raises(ConfigError, match="--users"):
        ConsoleConfig(nameserver="x:1", user_header="X-User")
    config = ConsoleConfig(
        nameserver="x:1", host="0.0.0.0", users_file=tmp_path, host_names=("Console.example.org",)
    )
    assert config.allowed_hosts == {"localhost", "127.0.0.1", "::1", "console.example.org"}


def test_files_of_users_that_are_wrong_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    for text, message in (
        ("[", "cannot be read"),
        ("{}", "has no users"),
        ('{"a": 1}', "no object"),
        ('{"a": {"role": "king"}}', "'king'"),
        ('{"a": {"role": "admin", "password": "plain"}}', "no hash"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_users(file)
    text = hash_password("right")
    assert is_password(User("a", Role.VIEWER, text), "right")
    assert not is_password(User("a", Role.VIEWER, text), "wrong")
    assert not is_password(User("a", Role.VIEWER), "")
