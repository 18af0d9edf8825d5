"""The console's message browser: order, paging without gaps, filters at the broker, and messages that are sent again."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Any

import aiohttp
import pytest

from aerobee import Message
from aerobee.console import browse
from aerobee.testing import LocalCluster
from tests.integration.console_server import console
from tests.integration.test_console import act

TOPIC = "browsed"


async def filled(cluster: LocalCluster, count: int = 150) -> None:
    await cluster.create_topic(TOPIC, queues=4)
    async with cluster.producer() as producer:
        for number in range(count):
            region = "EU" if number % 10 == 0 else "US"
            await producer.send(
                Message(
                    TOPIC,
                    b"body %d" % number,
                    tag="even" if number % 2 == 0 else "odd",
                    properties={"region": region, "n": str(number)},
                )
            )


async def get(session: aiohttp.ClientSession, url: str, **query: Any) -> dict[str, Any]:
    async with session.get(f"{url}api/browse", params={"topic": TOPIC, **query}) as answer:
        document: dict[str, Any] = await answer.json()
        assert answer.status == 200, document
        return document


async def all_pages(session: aiohttp.ClientSession, url: str, **query: Any) -> list[int]:
    """The numbers of the messages of all pages, in order; those of one millisecond may be in any."""
    found: list[int] = []
    cursor, pages, times = "", 0, list[int]()
    is_backward = "by" not in query
    while True:
        page = await get(session, url, **query, cursor=cursor)
        found += [int(each["properties"]["n"]) for each in page["messages"]]
        if "filter" in query:
            times = []
        times += [each["store_timestamp"] for each in page["messages"]]
        assert times == sorted(times, reverse=is_backward)
        cursor, pages = page["cursor"], pages + 1
        if not cursor:
            return found
        assert pages < 50


async def test_pages_of_large_messages_are_bounded_in_bytes(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty messages of each of 64 queues, of up to 4 MiB, or 2,000 that match a text and inflate to 16 MiB each, ended the console."""
    monkeypatch.setattr(browse, "KEPT_BYTES_MAX", 4_000)  # some five messages of each queue
    await filled(cluster)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        for query in ({}, {"filter": "text", "value": "body"}, {"by": "oldest"}):
            assert 0 < len((await get(session, server.url, **query))["messages"]) <= 24
            assert sorted(await all_pages(session, server.url, **query)) == list(range(150))


async def test_pages_have_each_message_once(cluster: LocalCluster) -> None:
    await filled(cluster)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        url = server.url
        first = await get(session, url)
        assert len(first["messages"]) == 50
        newest = first["messages"][0]
        assert b64decode(newest["body"]) == b"body " + newest["properties"]["n"].encode()
        assert len(first["queues"]) == 4
        assert sorted(await all_pages(session, url)) == list(range(150))
        assert sorted(await all_pages(session, url, by="oldest")) == list(range(150))
        name = first["queues"][1]["name"]
        of_queue = await all_pages(session, url, queue=name)
        assert 0 < len(of_queue) < 150
        assert of_queue == sorted(of_queue, reverse=True)
        assert len(await all_pages(session, url, queue=name, by="offset", what="5")) == len(of_queue) - 5


async def test_pages_begin_at_a_time(cluster: LocalCluster) -> None:
    await filled(cluster, 5)
    between_ms = round(time.time() * 1000) + 5
    while time.time() * 1000 <= between_ms:
        pass
    async with cluster.producer() as producer:
        await producer.send(Message(TOPIC, b"late", properties={"n": "5"}))
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        assert await all_pages(session, server.url, by="time", what=str(between_ms)) == [5]


@pytest.mark.parametrize(
    ("filter_by", "value", "wanted"),
    [
        ("tag", "even", lambda number: number % 2 == 0),
        ("tag", "even || odd", lambda number: True),
        ("sql", "region = 'EU' AND TAGS = 'even'", lambda number: number % 10 == 0),
        ("property", "region=EU", lambda number: number % 10 == 0),
        ("property", "region", lambda number: True),
        ("property", "absent", lambda number: False),
        ("text", "body 14", lambda number: str(number).startswith("14")),
    ],
)
async def test_filters(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, filter_by: str, value: str, wanted: Any
) -> None:
    monkeypatch.setattr(browse, "SCAN_MAX", 100)
    monkeypatch.setattr(browse, "PAGE_MAX", 7)
    await filled(cluster)
    if filter_by == "sql":
        async with cluster.admin() as admin:
            await admin.update_broker_config(cluster.broker().address, {"enablePropertyFilter": "true"})
    expected = [number for number in range(150) if wanted(number)]
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        found = await all_pages(session, server.url, filter=filter_by, value=value)
        assert sorted(found) == expected  # pages of a filter are sorted each by itself
        assert (
            sorted(await all_pages(session, server.url, by="oldest", filter=filter_by, value=value))
            == expected
        )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"by": "random"}, "by is 'random'"),
        ({"filter": "regex", "value": "x"}, "filter is 'regex'"),
        ({"filter": "tag"}, "has no value"),
        ({"by": "offset", "what": "1"}, "choose the queue"),
        ({"by": "time"}, "what is missing"),
        ({"queue": "nowhere/9"}, "has no queue 'nowhere/9'"),
        ({"cursor": "x"}, "cursor has 'x'"),
        ({"cursor": "a/0:-1"}, "cursor has"),
        ({"filter": "sql", "value": "region ="}, ""),
    ],
)
async def test_invalid_searches_say_what_is_wrong(
    cluster: LocalCluster, query: dict[str, str], said: str
) -> None:
    await filled(cluster, 1)
    async with (
        console(cluster) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}api/browse", params={"topic": TOPIC, **query}) as answer,
    ):
        assert answer.status in (400, 502)
        assert said in (await answer.json())["error"]


async def test_a_large_body_is_cut_in_lists_and_read_whole_alone(cluster: LocalCluster) -> None:
    await cluster.create_topic(TOPIC, queues=1)
    async with cluster.producer() as producer:
        await producer.send(Message(TOPIC, bytes(range(256)) * 1_000))
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        (row,) = (await get(session, server.url))["messages"]
        assert (row["is_cut"], row["body_bytes"], len(b64decode(row["body"]))) == (True, 256_000, 8_192)
        where = {"topic": TOPIC, "queue": f"{row['broker']}/{row['queue_id']}", "offset": "0"}
        async with session.get(f"{server.url}api/message", params=where) as answer:
            whole = (await answer.json())["message"]
        assert (whole["is_cut"], b64decode(whole["body"])) == (False, bytes(range(256)) * 1_000)
        for wrong in ({"queue": "x"}, {"queue": "x/y"}, {"offset": "-1"}):
            async with session.get(f"{server.url}api/message", params=where | wrong) as answer:
                assert answer.status == 400


async def test_a_message_is_sent_again_with_its_bytes_and_properties(cluster: LocalCluster) -> None:
    body = b"\xff\x00binary"
    fields = {
        "topic": "orders",
        "tag": "paid",
        "keys": "o-1 o-2",
        "properties": {"region": "EU"},
        "body_base64": b64encode(body).decode(),
    }
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        status, answer = await act(session, server.url, "send", {**fields, "dry_run": True})
        assert (status, "--property region=EU" in answer["command"]) == (200, True)
        status, answer = await act(session, server.url, "send", fields)
        assert status == 200
        row = answer["rows"][0]
        where = {
            "topic": "orders",
            "queue": f"{row['broker']}/{row['queue_id']}",
            "offset": str(row["offset"]),
        }
        async with session.get(f"{server.url}api/message", params=where) as response:
            message = (await response.json())["message"]
        assert (b64decode(message["body"]), message["tag"], message["keys"]) == (body, "paid", ["o-1", "o-2"])
        assert message["properties"]["region"] == "EU"
        for wrong in ({"body_base64": "§"}, {"properties": ["x"]}, {"properties": {"x": 1}}):
            status, answer = await act(session, server.url, "send", {**fields, **wrong})
            assert status == 400
