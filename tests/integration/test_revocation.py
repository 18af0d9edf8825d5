"""Over real sockets: what is held for a user whose rights are taken away is refused, and gets nothing that is stored afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee import Message, Producer
from aerobee.broker.fastpath.choice import VARIABLE, choose_backend
from aerobee.client.admin.admin import Admin
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials
from tests.integration.access_cluster import ROOT, USERS, Cluster, asked, client, make_consumer, running

WAIT_MS = 60_000
# How each kind of right is taken away: the request, its fields and body, and what the refusal says.
TAKEN: dict[str, tuple[int, dict[str, Any] | None, str]] = {
    "disabled": (RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, "is disabled"),
    "password": (RequestCode.AUTH_UPDATE_USER, {"password": "another secret"}, "check signature failed"),
    "deleted": (RequestCode.AUTH_DELETE_USER, None, "is not found"),
    "policy": (RequestCode.AUTH_DELETE_ACL, None, "no permission to access"),
}


def requests(group: str) -> dict[str, RemotingCommand]:
    """Each kind that waits."""
    pull = {
        "consumerGroup": group, "topic": "orders", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": str(WAIT_MS), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    pop = {
        "consumerGroup": group, "topic": "orders", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000",
        "pollTime": str(WAIT_MS), "bornTime": "0", "initMode": "1", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return {
        "pull": RemotingCommand(RequestCode.PULL_MESSAGE, dict(pull)),
        "pull by handler": RemotingCommand(RequestCode.PULL_MESSAGE, {**pull, "_UNIQUE_KEY_QUERY": "false"}),
        "lite pull": RemotingCommand(RequestCode.LITE_PULL_MESSAGE, dict(pull)),
        "pop": RemotingCommand(RequestCode.POP_MESSAGE, dict(pop)),
        "notification": RemotingCommand(RequestCode.NOTIFICATION, dict(pop)),
    }


async def take_rights(cluster: Cluster, name: str, way: str) -> None:
    code, body, _ = TAKEN[way]
    taken = await asked(
        cluster.broker.address, code, {"username": name, "subject": f"User:{name}"}, body, ROOT
    )
    assert taken.code == 0, taken.remark


@pytest.mark.parametrize("backend", ["python", "native"])
async def test_what_is_held_is_refused_when_rights_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    try:
        choose_backend(backend)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, backend)
    async with running(Cluster(tmp_path, USERS)) as cluster, asyncio.timeout(60):
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        remotings: dict[str, RemotingClient] = {}
        waiting: dict[tuple[str, str], asyncio.Task[RemotingCommand]] = {}
        async with Producer(cluster.server.address, client=client("root")) as producer:
            await producer.send(Message("orders", b"before"))
            for name in (*TAKEN, "trusted"):
                await make_consumer(cluster, name)
                remoting = remotings[name] = RemotingClient(
                    clock=SystemClock(),
                    network=AsyncioNetwork(),
                    credentials=Credentials(name, f"{name}secret"),
                )
                first = await remoting.invoke(cluster.broker.address, requests(name)["pop"], timeout_s=30)
                assert first.code == 0, first.remark  # what was there before
                for kind, request in requests(name).items():
                    call = remoting.invoke(cluster.broker.address, request, timeout_s=WAIT_MS / 1000)
                    waiting[name, kind] = asyncio.create_task(call)
            pop = next(feature for feature in cluster.broker.features if feature.name == "pop")
            while cluster.broker.pending_pulls.count < 15 or pop.waiting.count < 5 or pop.notified.count < 5:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for name in TAKEN:
                await take_rights(cluster, name, name)
            await producer.send(Message("orders", b"behind"))
            for (name, kind), task in waiting.items():
                if (name, kind) == ("trusted", "notification"):
                    assert not task.done()  # the pop has taken what was there to be popped
                    task.cancel()
                    continue
                reply = await task
                if name == "trusted":
                    assert (kind, reply.code, b"behind" in reply.body) == (kind, 0, True)
                else:
                    assert (name, kind, reply.code, reply.body) == (name, kind, 16, b"")
                    assert TAKEN[name][2] in (reply.remark or "")
        for remoting in remotings.values():
            await remoting.close()


@pytest.mark.parametrize("kind", ["pull", "pop"])
async def test_what_waits_for_the_disk_is_refused_when_rights_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster, asyncio.timeout(60):
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        await make_consumer(cluster, "bob")
        async with Producer(cluster.server.address, client=client("root")) as producer:
            await producer.send(Message("orders", b"one"))
            await producer.send(Message("orders", b"two"))
        store = cluster.broker.store
        read = store.get_messages_cold

        async def slow(*position: Any, **how: Any) -> Any:
            await take_rights(cluster, "bob", "disabled")
            return await read(*position, **how)

        monkeypatch.setattr(store, "is_cold", lambda *position, **how: True)
        monkeypatch.setattr(store, "get_messages_cold", slow)
        remoting = RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=Credentials("bob", "bobsecret")
        )
        request = requests("bob")[kind]
        assert request.ext is not None
        request.ext["_UNIQUE_KEY_QUERY"] = "false"  # for the handlers: the fast path reads no disk
        reply = await remoting.invoke(cluster.broker.address, request, timeout_s=30)
        await remoting.close()
        assert (reply.code, reply.body) == (16, b"")
        assert "is disabled" in (reply.remark or "")
