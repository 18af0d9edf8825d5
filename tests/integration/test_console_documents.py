"""What the console's views and actions of topics and groups answer: keys, order of lists, rebalances, changes of settings."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerobee import Message
from aerobee.client import ConsumeFrom, ConsumerConfig, PushConsumer
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.errors import ConfigError
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.testing import LocalCluster
from tests.integration.console_server import console
from tests.json_keys import wrong_keys
from tests.waiting import wait_until

TOPICS = 5_000


async def get(session: aiohttp.ClientSession, server: ConsoleServer, view: str, **query: str) -> Any:
    async with session.get(f"{server.url}api/{view}", params=query) as answer:
        document = await answer.json()
        assert answer.status == 200, document
        return document


async def act(session: aiohttp.ClientSession, server: ConsoleServer, name: str, fields: Any) -> Any:
    token = (await get(session, server, "session"))["csrf"]
    headers = {"X-CSRF-Token": token}
    async with session.post(f"{server.url}api/act/{name}", json=fields, headers=headers) as answer:
        document = await answer.json()
        return document if answer.status == 200 else document["error"]


def consumer(cluster: LocalCluster) -> PushConsumer:
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    return PushConsumer(cluster.nameserver_address, "billing", subscriptions={"orders": "*"}, config=config)


async def test_every_view_answers_with_keys_in_snake_case(cluster: LocalCluster) -> None:
    async with cluster.producer() as producer:
        message = Message("orders", b"{}", tag="paid", keys=("o-1",), properties={"someKey": "x"})
        sent = await producer.send(message)
    queue = f"{sent.queue.broker_name}/{sent.queue.queue_id}"
    async with consumer(cluster) as member, console(cluster) as server, aiohttp.ClientSession() as session:
        async for received in member:
            received.ack()
            break
        await wait_until(lambda: _knows(server, "billing"), timeout_s=60)
        needed: dict[str, dict[str, str]] = {
            "topic": {"name": "orders"},
            "group": {"name": "billing"},
            "rebalances": {"group": "billing"},
            "browse": {"topic": "orders"},
            "message": {"topic": "orders", "queue": queue, "offset": str(sent.queue_offset)},
            "messages": {"topic": "orders", "key": "o-1"},
            "trace": {"id": sent.message_id},
            "why": {"group": "billing"},
            "dead-letters": {"group": "billing"},
            "settings": {"broker": cluster.broker().address},
        }
        wrong = {}
        for view in server._views.paths:
            document = await get(session, server, view, **needed.get(view, {}))
            if found := wrong_keys(document):
                wrong[view] = found
        assert wrong == {}
        (setting,) = (
            row
            for row in (await get(session, server, "settings", broker=cluster.broker().address))["settings"]
            if row["key"] == "listenPort"
        )
        assert (setting["subject"], setting["is_live"]) == ("Listeners and connections", False)


async def _knows(server: ConsoleServer, group: str) -> bool:
    look = server.snapshot.groups.get(group)
    server.snapshot.asked()
    return look is not None and look.members == 1


async def test_a_join_and_a_leave_are_in_the_rebalance_history(cluster: LocalCluster) -> None:
    await cluster.create_topic("orders", queues=2)
    async with cluster.producer() as producer:
        for _ in range(8):
            await producer.send(Message("orders", b"x"))
    async with console(cluster) as server, aiohttp.ClientSession() as session:

        async def seen(kind: str) -> bool:
            rows = (await get(session, server, "rebalances", group="billing"))["rebalances"]
            return any(row[kind] for row in rows)

        async with consumer(cluster) as member:
            async for received in member:
                received.ack()
                break
            await wait_until(lambda: _knows(server, "billing"), timeout_s=60)
            second = consumer(cluster)
            async with second:
                await wait_until(lambda: seen("joined"), timeout_s=60)
                await wait_until(lambda: seen("moves"), timeout_s=60)
                (row,) = (await get(session, server, "rebalances", group="billing"))["rebalances"]
                assert (len(row["joined"]), row["members"]) == (1, 2)
                assert all(move["to"] == row["joined"][0] for move in row["moves"])


async def test_lists_are_sorted_over_all_their_pages(cluster: LocalCluster) -> None:
    broker = cluster.broker()
    broker.topics.put_all(TopicConfig(f"wide-{number:04}", 1 + number % 7, 1) for number in range(250))
    broker.registration.register_all()
    async with console(cluster) as server, aiohttp.ClientSession() as session:

        async def all_known() -> bool:
            found = await get(session, server, "topics", filter="wide-", sort="queues", way="down")
            looks = server.snapshot.topics.values()
            return found["total"] == 250 and all(look.queues for look in looks if look.name[:5] == "wide-")

        await wait_until(all_known, timeout_s=120)
        down = await get(session, server, "topics", filter="wide-", sort="queues", way="down")
        assert down["total"] == 250
        assert [row["queues"] for row in down["rows"]] == sorted(
            (1 + number % 7 for number in range(250)), reverse=True
        )[:100]
        first = await get(session, server, "topics", filter="wide-", sort="name", way="down")
        assert first["rows"][0]["name"] == "wide-0249"
        async with session.get(f"{server.url}api/topics", params={"sort": "colour"}) as answer:
            assert answer.status == 400
            assert "must be one of name, in" in (await answer.json())["error"]


@pytest.mark.parametrize("count", [50, TOPICS])
async def test_the_first_page_costs_as_many_requests_with_5000_topics_as_with_50(
    cluster: LocalCluster, count: int
) -> None:
    """The page shows 100 rows; names of topics and groups, and brokers, are read before it, numbers after it."""
    broker = cluster.broker()
    broker.topics.put_all(TopicConfig(f"wide-{number:05}", 1, 1) for number in range(count))
    broker.registration.register_all()
    async with cluster.admin() as admin:

        async def registered() -> bool:
            return sum(name.startswith("wide-") for name in await admin.topics()) == count

        await wait_until(registered)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        requests = 0
        client = server._admin._session
        invoke = client.invoke

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal requests
            requests += 1
            return await invoke(*arguments, **options)

        client.invoke = counted  # type: ignore[method-assign]
        announce = server.snapshot._announce
        at_first: list[int] = []

        async def announced() -> None:
            at_first.append(requests)
            await announce()

        server.snapshot._announce = announced  # type: ignore[method-assign]
        page = await get(session, server, "topics", filter="wide-")
        assert (page["total"], len(page["rows"])) == (count, min(count, 100))
        assert at_first[0] <= 10


async def test_settings_of_a_topic_and_of_a_group_are_changed(cluster: LocalCluster) -> None:
    await cluster.create_topic("orders", queues=2)
    async with cluster.admin() as admin, console(cluster) as server, aiohttp.ClientSession() as session:
        await admin.create_group("billing")
        change = {"topic": "orders", "queues": 4, "perm": "r", "order": True}
        preview = await act(session, server, "topic-update", {**change, "dry_run": True})
        assert preview["command"].startswith("aerobee topic update orders --queues 4 --perm r --order --yes")
        (row,) = preview["rows"]
        assert (row["queues_before"], row["queues_after"], row["permission_after"]) == (2, 4, "r")
        assert [each.read_queue_count for each in await admin.topic_config("orders")] == [2]
        await act(session, server, "topic-update", change)
        (info,) = await admin.topic_config("orders")
        assert (info.read_queue_count, info.perm, info.order) == (4, 4, True)
        assert await act(session, server, "topic-update", {"topic": "orders"}) == "no change is given"
        assert "must be one of rw, r, w" in await act(
            session, server, "topic-update", {"topic": "orders", "perm": "x"}
        )

        change = {"group": "billing", "retries": "3", "orderly": True, "consume": False}
        preview = await act(session, server, "group-update", {**change, "dry_run": True})
        assert "--retries 3 --no-consume --orderly" in preview["command"]
        assert {each.retry_count_max for each in await admin.groups() if each.name == "billing"} == {16}
        await act(session, server, "group-update", change)
        (group,) = (each for each in await admin.groups() if each.name == "billing")
        assert (group.retry_count_max, group.orderly, group.consume_enabled) == (3, True, False)
        assert await act(session, server, "group-update", {"group": "nil", "retries": 1}) == (
            "group nil does not exist"
        )
        assert await act(session, server, "group-delete", {"group": "billing"}) == (
            "write billing to confirm the deletion"
        )
        await act(session, server, "group-delete", {"group": "billing", "confirm": "billing"})
        assert "billing" not in {each.name for each in await admin.groups()}


async def test_one_console_shows_several_clusters(cluster: LocalCluster, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with LocalCluster() as other:
        await other.create_topic("elsewhere", queues=1)
        further = (("other", other.nameserver_address),)
        async with (
            console(cluster, further_clusters=further, audit_file=audit) as server,
            aiohttp.ClientSession() as session,
        ):
            about = await get(session, server, "session")
            assert [(each["name"], each["nameserver"]) for each in about["clusters"]] == [
                ("", cluster.nameserver_address),
                ("other", other.nameserver_address),
            ]

            async def found(**query: str) -> bool:
                rows = (await get(session, server, "topics", filter="elsewhere", **query))["rows"]
                return [row["name"] for row in rows] == ["elsewhere"]

            await wait_until(lambda: found(cluster="other"))
            assert not await found()
            headers = {"X-CSRF-Token": about["csrf"]}
            url = f"{server.url}api/act/topic-delete?cluster=other"
            fields = {"topic": "elsewhere", "confirm": "elsewhere"}
            async with session.post(url, json=fields, headers=headers) as answer:
                assert other.nameserver_address in (await answer.json())["command"]
            assert json.loads(audit.read_text().splitlines()[-1])["fields"]["cluster"] == "other"
            async with session.get(f"{server.url}api/topics", params={"cluster": "third"}) as answer:
                assert answer.status == 404


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ((("a b", "127.0.0.1:1"),), "NAME=HOST:PORT"),
        ((("a", ""),), "NAME=HOST:PORT"),
        ((("a", "127.0.0.1:1"), ("a", "127.0.0.1:2")), "each cluster once"),
    ],
)
def test_further_clusters_have_a_name_and_an_address(further: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsoleConfig(nameserver="127.0.0.1:9876", further_clusters=further)


async def test_hidden_fields_reach_no_browser(cluster: LocalCluster) -> None:
    secret = "4711-0815"
    async with cluster.producer() as producer:
        body = json.dumps({"card": secret, "sum": 5}).encode()
        sent = await producer.send(Message("orders", body, keys=("o-1",)))
    queue = f"{sent.queue.broker_name}/{sent.queue.queue_id}"
    masks = ("orders=card",)
    async with console(cluster, masks=masks) as server, aiohttp.ClientSession() as session:
        for view, query in (
            ("browse", {"topic": "orders"}),
            ("message", {"topic": "orders", "queue": queue, "offset": str(sent.queue_offset)}),
            ("messages", {"topic": "orders", "key": "o-1"}),
            ("messages", {"id": sent.message_id, "topic": "orders"}),
        ):
            document = await get(session, server, view, **query)
            (message,) = document.get("messages") or [document["message"]]
            assert message["is_masked"]
            assert json.loads(b64decode(message["body"])) == {"card": "***", "sum": 5}
        search = {"topic": "orders", "filter": "text", "value": secret[:2]}
        async with session.get(f"{server.url}api/browse", params=search) as answer:
            assert answer.status == 400
            assert "cannot be searched" in (await answer.json())["error"]
        async with session.get(f"{server.url}api/tail", params={"topic": "orders"}) as answer:
            lines = (line async for line in answer.content if line.startswith(b"data: "))
            assert json.loads((await anext(lines))[6:]) == {"watching": True}
            async with cluster.producer() as producer:
                await producer.send(Message("orders", body))
            live = json.loads((await anext(lines))[6:])["message"]
            assert json.loads(b64decode(live["body"])) == {"card": "***", "sum": 5}
