"""The console's server without a browser: who is let in, what is refused, one look for all, what is on record."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerobee import Message
from aerobee.client import Admin
from aerobee.console import access as console_access
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.console.users import Role, User, hash_password, is_password, load_users
from aerobee.errors import ConfigError
from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.testing import LocalCluster
from tests.integration.access_cluster import USERS, Cluster, client, running
from tests.integration.console_server import console, users_file
from tests.waiting import wait_until


async def token(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}api/session") as answer:
        return str((await answer.json()).get("csrf", ""))


async def act(
    session: aiohttp.ClientSession, url: str, name: str, fields: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    headers = {"X-CSRF-Token": await token(session, url)}
    async with session.post(f"{url}api/act/{name}", json=fields, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_page_of_another_origin_is_refused(cluster: LocalCluster) -> None:
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
            tag = answer.headers["ETag"]
        async with session.get(url, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read(), answer.headers["ETag"]) == (304, b"", tag)
            assert answer.headers["X-Frame-Options"] == "DENY"
        async with session.get(url, headers={"If-None-Match": '"another"'}) as answer:
            assert answer.status == 200
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
        for name in ("vera", "absent", "vera", "vera", "vera", "vera"):
            async with session.post(
                f"{server.url}api/login", json={"name": name, "password": "wrong"}
            ) as answer:
                assert (await answer.json())["error"] == "wrong name or password"
        async with session.post(
            f"{server.url}api/login", json={"name": "vera", "password": "secret"}
        ) as answer:
            assert answer.status == 403
            assert "wait a minute" in (await answer.json())["error"]


async def test_passwords_that_come_at_once_are_counted_as_those_that_come_in_turn(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.log"
    async with (
        console(cluster, users_file=users_file(tmp_path), audit_file=audit) as server,
        aiohttp.ClientSession() as session,
    ):

        async def tried(password: str) -> str:
            login = {"name": "ada", "password": password}
            async with session.post(f"{server.url}api/login", json=login) as answer:
                return str((await answer.json()).get("error", ""))

        assert await tried("secret") == ""  # one that is right counts for nothing
        said = await asyncio.gather(*(tried(f"wrong {number}") for number in range(30)))
        assert said.count("wrong name or password") == 5
        assert "wait a minute" in await tried("secret")
        assert len(audit.read_text().splitlines()) == 6  # what is not looked at is not written


async def test_audit_text_of_clients_is_short_and_one_line(cluster: LocalCluster, tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    users = users_file(tmp_path)
    async with (
        console(cluster, users_file=users, audit_file=audit) as server,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        for name in ("x" * 100_000, "a\u2028\x85\x9b31m\nb"):
            login = {"name": name, "password": "wrong"}
            async with session.post(f"{server.url}api/login", json=login) as answer:
                assert answer.status == 403
        login = {"name": "vera", "password": "secret"}
        async with session.post(f"{server.url}api/login", json=login) as answer:
            assert answer.status == 200
        many = {f"{number}" * 1_000: "v" * 400 for number in range(1_000)}
        assert (await act(session, server.url, "send", many))[0] == 403
    lines = audit.read_text(encoding="ascii").splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["login", "login", "login", "send"]
    assert max(map(len, lines)) < 60_000


@pytest.mark.parametrize("body", [b'{"name":"\\ud800"}', b"[" * 100_000, b"\xff", b"[]"])
async def test_unreadable_bodies_are_refused(cluster: LocalCluster, tmp_path: Path, body: bytes) -> None:
    headers = {"Content-Type": "application/json; charset=none"}
    async with (
        console(cluster, users_file=users_file(tmp_path)) as server,
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}api/login", data=body, headers=headers) as answer,
    ):
        assert answer.status == 400


async def test_a_token_that_is_no_text_is_no_token(cluster: LocalCluster) -> None:
    async with console(cluster) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "POST /api/act/send HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\nX-CSRF-Token: "
        writer.write(head.encode() + b"\xff\xfe\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
        writer.close()


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


async def test_a_request_with_two_proxy_names_has_no_role(cluster: LocalCluster, tmp_path: Path) -> None:
    options: dict[str, Any] = {"users_file": users_file(tmp_path), "user_header": "X-User"}
    async with console(cluster, **options) as server, aiohttp.ClientSession() as session:
        for names, wanted in (
            (["vera"], "viewer"),
            (["ada", "vera"], None),
            (["vera", "vera"], None),
            ([], None),
        ):
            headers = [("X-User", name) for name in names]
            async with session.get(f"{server.url}api/session", headers=headers) as answer:
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
                return {row["name"]: row for row in (await answer.json())["rows"]}.get("clerks", {})

        async with asyncio.timeout(60):
            while not (await group()).get("is_known"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found = await group()
    assert (found["lag"], found["state"]) == (1, "UNKNOWN")
    assert "watched for" in found["reason"]
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
        ('{"a": 1}', "must be an object"),
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


async def events(tail: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in tail.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def test_what_is_sent_once_a_watcher_was_told_that_it_watches_is_seen(cluster: LocalCluster) -> None:
    async with console(cluster) as server, aiohttp.ClientSession() as session, cluster.producer() as producer:
        await producer.send(Message("orders", b"before"))
        watch = {"params": {"topic": "orders"}}
        async with (
            asyncio.timeout(60),
            session.get(f"{server.url}api/tail", **watch) as first,
            session.get(f"{server.url}api/tail", **watch) as second,
        ):
            watchers = [events(first), events(second)]
            assert [await anext(each) for each in watchers] == [{"watching": True}] * 2
            await producer.send(Message("orders", b"after"))
            for each in watchers:
                assert b64decode((await anext(each))["message"]["body"]) == b"after"
            async with session.get(f"{server.url}api/tail", **watch) as late:  # the topic is watched already
                assert await anext(events(late)) == {"watching": True}


async def test_a_thousand_open_tabs_cost_the_brokers_what_one_costs(cluster: LocalCluster) -> None:
    """Counted in requests: all are made by looks, of which one continues at a time, and none by a page."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_096:
        pytest.skip(f"a process may open {hard} files, a thousand tabs take two thousand")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    tabs: list[asyncio.StreamWriter] = []
    try:
        async with console(cluster) as server:
            requests = {"in looks": 0, "elsewhere": 0}
            caller = "elsewhere"
            session = server._admin._session
            invoke, look = session.invoke, server.snapshot.look
            of_looks: list[int] = []

            async def counted(*arguments: Any, **options: Any) -> Any:
                requests[caller] += 1
                return await invoke(*arguments, **options)

            async def counted_look() -> None:
                nonlocal caller
                caller, before = "in looks", requests["in looks"]
                try:
                    await look()
                finally:
                    caller = "elsewhere"
                    of_looks.append(requests["in looks"] - before)

            session.invoke = counted  # type: ignore[method-assign]
            server.snapshot.look = counted_look  # type: ignore[method-assign]

            async def tab() -> asyncio.StreamReader:
                reader, writer = await asyncio.open_connection(*server.address.rsplit(":", 1))
                tabs.append(writer)
                writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return reader

            async def events(reader: asyncio.StreamReader, count: int) -> None:
                for _ in range(count):
                    await reader.readuntil(b"\ndata: {")

            async with asyncio.timeout(300):
                first = await tab()
                await events(first, 4)
                of_one, of_looks[:] = max(of_looks), []
                readers = [await tab() for _ in range(999)]
                await asyncio.gather(*(events(reader, 3) for reader in readers), events(first, 3))
            assert of_looks
            assert max(of_looks) <= of_one  # names of topics and groups are requested now and then only
            assert requests["elsewhere"] == 0
    finally:
        for writer in tabs:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_lists_come_a_page_at_a_time_and_what_is_seen_is_asked_for_first(cluster: LocalCluster) -> None:
    broker = cluster.broker()
    broker.topics.put_all(TopicConfig(f"wide-{number:04}", 1, 1) for number in range(450))
    broker.registration.register_all()
    async with cluster.admin() as admin:

        async def is_told() -> bool:
            return "wide-0449" in await admin.topics()

        await wait_until(is_told)
    async with console(cluster) as server, aiohttp.ClientSession() as session:

        async def topics(**query: Any) -> dict[str, Any]:
            async with session.get(f"{server.url}api/topics", params=query) as answer:
                document: dict[str, Any] = await answer.json()
                assert answer.status == 200, document
                return document

        first = await topics()
        assert (first["total"], len(first["rows"])) == (451, 100)
        assert [row["name"] for row in (await topics(filter="WIDE-044"))["rows"]] == [
            f"wide-{number:04}" for number in range(440, 450)
        ]
        last = await topics(offset=400, count=1000)
        assert [row["name"] for row in last["rows"]][-1] == "wide-0449"

        async def known() -> bool:
            return all(row["is_known"] for row in (await topics(offset=400))["rows"])

        await wait_until(known, timeout_s=120)
        # All others have their turn as well.
        await wait_until(
            lambda: all(each.looked_s > 0 for each in server.snapshot.topics.values()), timeout_s=120
        )
        async with session.get(f"{server.url}api/topics?offset=-1") as answer:
            assert (answer.status, (await answer.json())["error"]) == (
                400,
                "offset is '-1', not a whole number",
            )


async def test_users_and_what_they_may_do(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    (tmp_path / "cluster").mkdir()
    async with running(Cluster(tmp_path / "cluster", USERS)) as closed:
        server = ConsoleServer(
            ConsoleConfig(nameserver=closed.server.address, port=0, refresh_s=0.2, audit_file=audit),
            client=client("root"),
        )
        await server.start()
        try:
            async with aiohttp.ClientSession() as session:

                async def seen() -> dict[str, Any]:
                    async with session.get(f"{server.url}api/access") as answer:
                        document: dict[str, Any] = await answer.json()
                        return document

                fields = {"user": "alice", "secret_key": "a secret of alice", "is_super": False}
                status, answer = await act(session, server.url, "user-create", {**fields, "dry_run": True})
                assert (status, answer["text"]) == (200, "user alice would be created without permissions")
                assert "a secret" not in answer["command"]
                assert [row["user"] for row in (await seen())["users"]] == ["inner", "root"]
                assert (await act(session, server.url, "user-create", fields))[0] == 200
                assert "a secret of alice" not in audit.read_text()
                status, answer = await act(session, server.url, "user-create", fields)
                assert (status, answer["error"]) == (400, "user alice exists already: change it instead")
                said = {"user": "alice", "resource": "Topic:orders", "actions": "Pub", "is_allowed": True}
                _, answer = await act(session, server.url, "acl-put", {**said, "dry_run": True})
                assert answer["rows"] == [
                    {"user": "alice", "resource": "Topic:orders", "before": "", "after": "allow Pub"}
                ]
                assert (await seen())["policies"] == []
                assert (await act(session, server.url, "acl-put", said))[0] == 200
                (row,) = (await seen())["policies"]
                assert (row["resource"], row["actions"], row["is_allowed"]) == ("Topic:orders", ["Pub"], True)
                status, answer = await act(session, server.url, "acl-put", {**said, "actions": "Fly"})
                assert (status, "action 'Fly' is unknown" in answer["error"]) == (400, True)
                assert (await act(session, server.url, "user-delete", {"user": "alice"}))[0] == 400
                assert (await act(session, server.url, "user-delete", {"user": "alice", "confirm": "alice"}))[
                    0
                ] == 200
                assert [row["user"] for row in (await seen())["users"]] == ["inner", "root"]
                assert (await seen())["policies"] == []
        finally:
            await server.stop()


async def test_users_take_an_administrator_and_a_token(cluster: LocalCluster, tmp_path: Path) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with console(cluster, users_file=users_file(tmp_path)) as server:  # noqa: SIM117
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            async with session.post(
                f"{server.url}api/login", json={"name": "otto", "password": "secret"}
            ) as answer:
                assert answer.status == 200
            for name in ("user-create", "user-update", "user-delete", "acl-put", "acl-delete"):
                status, answered = await act(session, server.url, name, {"user": "x"})
                assert (status, answered["error"]) == (403, "the role admin is required, yours is operator")
                async with session.post(f"{server.url}api/act/{name}", json={"user": "x"}) as answer:
                    assert answer.status == 403
            async with session.get(f"{server.url}api/access") as answer:
                assert "authentication is not enabled" in (await answer.json())["unsupported"]


async def test_a_plan_is_compared_with_the_cluster_and_carried_out_elsewhere(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    name = cluster.broker().config.broker_name
    change = TopicChange(topic="orders", before={name: 1}, after={name: 3})
    nothing = Forecast(imbalance={"bytes_in": 1.5}, broken_goals={}, loads={})
    plan = Plan(
        made_at_ms=round(time.time() * 1000),
        changes=(change,),
        before=nothing,
        after=nothing,
        warnings=("mind this",),
    )
    file = tmp_path / "my plan.json"
    file.write_bytes(plan.encode())
    async with console(cluster, plan_file=file) as server, aiohttp.ClientSession() as session:

        async def seen() -> dict[str, Any]:
            async with session.get(f"{server.url}api/placement") as answer:
                document: dict[str, Any] = await answer.json()
                return document

        found = await seen()
        assert (found["trouble"], found["warnings"], found["is_begun"]) == ("", ["mind this"], False)
        assert [row["phase"] for row in found["phases"]] == ["grow", "seed", "allow"]
        assert found["commands"]["apply"].startswith(f"aerobee placement apply '{file}' --nameserver ")
        headers = {"X-CSRF-Token": await token(session, server.url), "Content-Type": "application/json"}
        async with session.post(f"{server.url}api/plan", data=plan.encode(), headers=headers) as answer:
            assert (await answer.json())["steps"] == found["steps"]
        for data, status, text in (
            (b"{}", 400, "plan"),
            (plan.encode().replace(b'"orders"', b'"nothing"'), 200, "topic nothing is not there any more"),
        ):
            async with session.post(f"{server.url}api/plan", data=data, headers=headers) as answer:
                document = await answer.json()
                assert (answer.status, text in (document.get("error") or document["trouble"])) == (
                    status,
                    True,
                )
        async with session.post(f"{server.url}api/plan", data=plan.encode()) as answer:
            assert answer.status == 403
        # What changed since is said, not an error.
        async with cluster.admin() as admin:
            await admin.create_topic("orders", queue_count=2)
        assert "it was changed since" in (await seen())["trouble"]


async def test_users_of_the_cluster_log_in_with_their_keys(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    (tmp_path / "cluster").mkdir()
    async with running(Cluster(tmp_path / "cluster", USERS)) as closed:
        async with Admin(closed.server.address, client=client("root")) as admin:
            for name in ("vera", "otto", "absent", "gone"):
                await admin.create_user(name, f"{name}secret")
            await admin.put_policy("vera", ["Cluster:*"], ["Get"], is_allowed=True)
            await admin.put_policy("otto", ["Cluster:DefaultCluster"], ["Get", "Update"], is_allowed=True)
            await admin.update_user("gone", is_enabled=False)
        server = ConsoleServer(
            ConsoleConfig(
                nameserver=closed.server.address, port=0, cluster_users=True, audit_file=audit, refresh_s=0.5
            ),
            client=client("root"),
        )
        await server.start()
        try:

            async def login(name: str, key: str) -> tuple[int, str]:
                """Status, and the role or why not."""
                jar = aiohttp.CookieJar(unsafe=True)
                server._access._tries.clear()  # wrong keys are counted by address, and all come from here
                async with aiohttp.ClientSession(cookie_jar=jar) as session:
                    async with session.post(
                        f"{server.url}api/login", json={"name": name, "password": key}
                    ) as answer:
                        if answer.status != 200:
                            return answer.status, (await answer.json())["error"]
                    async with session.get(f"{server.url}api/session") as answer:
                        return 200, (await answer.json())["role"]

            assert await login("root", "rootsecret") == (200, "admin")
            assert await login("otto", "ottosecret") == (200, "operator")
            assert await login("vera", "verasecret") == (200, "viewer")
            wrong = (403, "wrong name or password")
            assert await login("vera", "ottosecret") == wrong
            assert await login("vera", "") == wrong
            assert await login("unknown", "unknownsecret") == wrong
            assert await login("gone", "gonesecret") == wrong
            status, said = await login("absent", "absentsecret")
            assert (
                status,
                "may not read the cluster: Get on Cluster:DefaultCluster is required" in said,
            ) == (403, True)
            assert "verasecret" not in audit.read_text()
            async with aiohttp.ClientSession() as session, session.get(f"{server.url}api/overview") as answer:
                assert answer.status == 401
        finally:
            await server.stop()


async def test_a_session_ends_with_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_access, "CHECKED_S", 0.2)
    async with (
        running(Cluster(tmp_path, USERS)) as closed,
        Admin(closed.server.address, client=client("root")) as admin,
    ):
        for name in ("otto", "vera"):
            await admin.create_user(name, f"{name}secret")
            await admin.put_policy(name, ["Cluster:*"], ["Get", "Update"], is_allowed=True)
        server = ConsoleServer(
            ConsoleConfig(nameserver=closed.server.address, port=0, cluster_users=True, refresh_s=0.5),
            client=client("root"),
        )
        await server.start()
        try:
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as otto,
                aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as vera,
            ):

                async def role(session: aiohttp.ClientSession) -> str:
                    async with session.get(f"{server.url}api/session") as answer:
                        return str((await answer.json()).get("role", "absent"))

                async def becomes(session: aiohttp.ClientSession, wanted: str) -> None:
                    async def is_so() -> bool:
                        return await role(session) == wanted

                    await wait_until(is_so, f"the role {wanted}")

                for name, session in (("otto", otto), ("vera", vera)):
                    body = {"name": name, "password": f"{name}secret"}
                    async with session.post(f"{server.url}api/login", json=body) as answer:
                        assert answer.status == 200, await answer.text()
                    assert await role(session) == "operator"
                async with otto.get(f"{server.url}api/stream") as stream:
                    await stream.content.readline()
                    await admin.put_policy("vera", ["Cluster:*"], ["Get"], is_allowed=True)
                    await admin.delete_user("otto")
                    await becomes(otto, "absent")
                    await becomes(vera, "viewer")
                    async with otto.get(f"{server.url}api/overview") as answer:
                        assert answer.status == 401
                    async with asyncio.timeout(60):
                        await stream.content.read()  # it ends, too
                await admin.update_user("vera", is_enabled=False)
                await becomes(vera, "absent")
        finally:
            await server.stop()


async def test_a_broker_that_takes_any_key_permits_no_login(tmp_path: Path) -> None:
    takes_any = replace(USERS, authentication_whitelist=str(int(RequestCode.UNREGISTER_CLIENT)))
    async with running(Cluster(tmp_path, takes_any)) as closed:
        server = ConsoleServer(
            ConsoleConfig(nameserver=closed.server.address, port=0, cluster_users=True), client=client("root")
        )
        await server.start()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{server.url}api/login", json={"name": "root", "password": "x"}) as answer,
            ):
                assert (answer.status, "does not verify" in (await answer.json())["error"]) == (403, True)
        finally:
            await server.stop()
