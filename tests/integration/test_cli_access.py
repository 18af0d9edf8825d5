"""`aerobee user` and `aerobee acl` at a broker and a NameServer with access control, and what the client's calls tell."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.config import AccessConfig
from aerobee.client.admin.access import DEFAULT, PolicyEntryInfo
from aerobee.client.admin.admin import Admin
from aerobee.errors import InvalidParameter, NoPermission, RemoteError, RemoteSystemError
from aerobee.remoting.codes import RequestCode
from aerobee.testing import LocalCluster
from tests.integration.access_cluster import USERS, Cluster, client, running, sent
from tests.waiting import wait_until

WITHIN_S = 120.0


async def aerobee(cluster: Cluster, *arguments: str, **environment: str) -> tuple[int, Any, str]:
    """Exit code, the JSON document, standard error."""
    own = {
        "PATH": os.environ["PATH"],
        "AEROBEE_ACCESS_KEY": "root",
        "AEROBEE_SECRET_KEY": "rootsecret",
        "AEROBEE_NAMESRV_ADDR": cluster.server.address,
        **environment,
    }
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "aerobee.ops", *arguments, "--json"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=own,
        timeout=WITHIN_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines[0] if len(lines) == 1 else lines, done.stderr


async def test_users_and_policies_by_commands(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        both = sorted((cluster.broker.address, cluster.server.address))
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        code, made, _ = await aerobee(cluster, "user", "create", "alice", "--secret-env", "SECRET", SECRET="alicesecret")  # fmt: skip
        assert (code, sorted(made["at"])) == (0, both)
        assert "no permission" in await sent(cluster, "orders", client("alice"))
        code, said, _ = await aerobee(
            cluster, "acl", "allow", "alice", "Topic:orders*", "--action", "pub,sub", "--from", "127.0.0.0/8"
        )
        assert (code, said["resources"], said["actions"]) == (0, ["Topic:orders*"], ["Pub", "Sub"])
        assert await sent(cluster, "orders", client("alice")) == ""
        _, rows, _ = await aerobee(cluster, "acl", "list")
        assert [(row["user"], row["resource"], row["actions"], row["from"], row["at"]) for row in rows] == [
            ("alice", "Topic:orders*", ["Pub", "Sub"], ["127.0.0.0/8"], both)
        ]
        more = ("acl", "allow", "alice", "Topic:orders*", "Group:g", "--action", "Get")
        code, document, _ = await aerobee(cluster, *more)
        assert (code, "allow Pub, Sub from 127.0.0.0/8" in document["error"]["message"]) == (2, True)
        code, said, _ = await aerobee(cluster, *more, "--from", "127.0.0.0/8")
        assert (code, said["entries"]) == (
            0,
            [
                {
                    "resource": "Topic:orders*",
                    "before": ["allow Pub, Sub from 127.0.0.0/8"],
                    "after": "allow Pub, Sub, Get from 127.0.0.0/8",
                },
                {"resource": "Group:g", "before": [], "after": "allow Get from 127.0.0.0/8"},
            ],
        )
        code, _, _ = await aerobee(cluster, "acl", "deny", "alice", "Topic:orders", "--action", "All")
        assert code == 0
        assert "decision is deny" in await sent(cluster, "orders", client("alice"))
        assert (await aerobee(cluster, "acl", "delete", "alice", "Topic:orders", "--yes"))[0] == 0
        assert await sent(cluster, "orders", client("alice")) == ""
        assert (await aerobee(cluster, "user", "update", "alice", "--disable"))[0] == 0
        assert "disabled" in await sent(cluster, "orders", client("alice"))
        _, rows, _ = await aerobee(cluster, "user", "list")
        assert {row["user"]: (row["kind"], row["status"], row["at"]) for row in rows}["alice"] == (
            "normal",
            "disabled",
            both,
        )
        assert (await aerobee(cluster, "user", "delete", "alice", "--yes"))[0] == 0
        _, rows, _ = await aerobee(cluster, "user", "list")
        assert "alice" not in {row["user"] for row in rows}
        assert (await aerobee(cluster, "acl", "list"))[1] == []


async def test_what_is_wrong_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        for arguments, code, text in (
            (("user", "create", "alice"), 2, "use --secret-env NAME"),
            (("user", "create", "alice", "--secret-env", "NOTHING"), 2, "this variable is not set"),
            (("user", "update", "alice"), 2, "no change is given"),
            (("acl", "allow", "alice", "orders", "--action", "Pub"), 2, "resource 'orders' is not"),
            (("acl", "delete", "alice", "--default", "--yes"), 2, "--default needs a RESOURCE"),
            (("acl", "allow", "alice", "Topic:orders", "--action", "Fly"), 2, "action 'Fly' is unknown"),
        ):
            found, document, _ = await aerobee(cluster, *arguments)
            assert (found, text in document["error"]["message"]) == (code, True), document


async def test_what_servers_tell_differently_is_shown_twice(tmp_path: Path) -> None:
    async with (
        running(Cluster(tmp_path, USERS)) as cluster,
        Admin(cluster.server.address, client=client("root")) as admin,
    ):
        await admin.create_user("bob", "bobsecret", is_super=True)
        with pytest.raises((InvalidParameter, RemoteError), match="already exists"):
            await admin.create_user("bob", "bobsecret")
        await admin.put_policy(
            "bob", ["Topic:a", "Group:b"], ["Sub"], is_allowed=False, policy=DEFAULT, source_ips=["10.0.0.1"]
        )
        at = tuple(sorted((cluster.broker.address, cluster.server.address)))
        wanted = [
            PolicyEntryInfo(
                user="bob", resource=name, actions=("Sub",), is_allowed=False, policy=DEFAULT,
                source_ips=("10.0.0.1",), addresses=at,
            )
            for name in ("Group:b", "Topic:a")
        ]  # fmt: skip
        assert list(await admin.policies()) == wanted
        assert await admin.policies("unsigned") == ()
        await admin.delete_policy("bob", "Group:b")  # of the Custom policy, where nothing is said of it
        assert [each.resource for each in await admin.policies("bob")] == ["Group:b", "Topic:a"]
        await admin.delete_policy("bob", "Group:b", policy=DEFAULT)
        assert [each.resource for each in await admin.policies("bob")] == ["Topic:a"]
        # A NameServer that lost the user: the list says who knows it.
        await admin._call(cluster.server.address, RequestCode.AUTH_DELETE_USER, {"username": "bob"})
        (bob,) = [each for each in await admin.users() if each.name == "bob"]
        assert bob.addresses == (cluster.broker.address,)
        assert await admin.policies("bob") == (
            PolicyEntryInfo(
                user="bob", resource="Topic:a", actions=("Sub",), is_allowed=False, policy=DEFAULT,
                source_ips=("10.0.0.1",), addresses=(cluster.broker.address,),
            ),
        )  # fmt: skip
        async with Admin(cluster.server.address) as peer:
            with pytest.raises(NoPermission):
                await peer.users()


async def test_where_access_control_is_off_it_is_said() -> None:
    assert not AccessConfig().authentication_enabled
    async with LocalCluster() as cluster, cluster.admin() as admin:
        with pytest.raises(RemoteSystemError, match="authentication is not enabled"):
            await admin.users()


@pytest.mark.parametrize("how", [(), ("--group", "readers"), ("--group", "readers", "--pop")])
@pytest.mark.parametrize("who", ["alice", "unsigned", "wrong"])
async def test_consume_without_permission_ends(tmp_path: Path, how: tuple[str, ...], who: str) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_user("alice", "alicesecret")
            await admin.put_policy("alice", ["Topic:orders"], ["Pub"], is_allowed=True, source_ips=[])
        keys = {
            "alice": {"AEROBEE_ACCESS_KEY": "alice", "AEROBEE_SECRET_KEY": "alicesecret"},
            "unsigned": {"AEROBEE_ACCESS_KEY": "", "AEROBEE_SECRET_KEY": ""},
            "wrong": {"AEROBEE_ACCESS_KEY": "root", "AEROBEE_SECRET_KEY": "wrong"},
        }[who]
        code, document, said = await aerobee(cluster, "consume", "orders", *how, **keys)
        assert code == 5, (document, said)
        failed = document["error"]
        wanted = {
            "alice": "User:alice has no permission",
            "unsigned": "the request is not signed",
            "wrong": "check signature failed",
        }
        assert failed["address"] in (cluster.broker.address, cluster.server.address)
        assert wanted[who] in failed["message"], failed
        if who == "alice":
            assert "`aerobee acl allow alice " in failed["message"], failed
            assert failed["advice"] == "", failed
        else:
            assert "AEROBEE_ACCESS_KEY" in failed["advice"], failed


async def test_consume_ends_where_the_group_may_be_joined_and_the_topic_not_read(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_user("alice", "alicesecret")
            await admin.put_policy("alice", ["Topic:orders"], ["Pub"], is_allowed=True, source_ips=[])
            await admin.put_policy("alice", ["Group:readers"], ["Sub"], is_allowed=True, source_ips=[])
        keys = {"AEROBEE_ACCESS_KEY": "alice", "AEROBEE_SECRET_KEY": "alicesecret"}
        code, document, said = await aerobee(cluster, "consume", "orders", "--group", "readers", **keys)
        assert code == 5, (document, said)
        assert "Sub" in document["error"]["message"]


async def test_consume_ends_when_the_permission_is_taken(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_user("alice", "alicesecret")
            await admin.put_policy(
                "alice", ["Topic:orders", "Group:readers"], ["Sub"], is_allowed=True, source_ips=[]
            )
            keys = {"AEROBEE_ACCESS_KEY": "alice", "AEROBEE_SECRET_KEY": "alicesecret"}
            reading = asyncio.create_task(aerobee(cluster, "consume", "orders", "--group", "readers", **keys))
            await wait_until(lambda: cluster.broker.consumers.size_of("readers") > 0)
            await admin.delete_policy("alice", "Topic:orders")
        code, document, said = await reading
        assert code == 5, (document, said)
