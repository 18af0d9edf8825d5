"""Access control over real sockets: right, wrong and missing keys of clients, tools and brokers; users, accounts, restarts."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from aerobee import Message, Producer
from aerobee.access.config import AccessConfig
from aerobee.access.keepers import UserKeeper
from aerobee.access.rocks_table import RocksTable
from aerobee.broker.fastpath.choice import VARIABLE, choose_backend
from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError, ConfigError
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials
from tests.integration.access_cluster import ROOT, USERS, Cluster, asked, client, make_consumer, running, sent
from tests.integration.pop_requests import ack, change, pop

ACCOUNTS = """
accounts:
- accessKey: rootkey
  secretKey: rootsecret
  admin: true
- accessKey: alicekey
  secretKey: alicesecret
  defaultTopicPerm: DENY
  topicPerms: [orders=PUB|SUB]
  defaultGroupPerm: SUB
"""


async def make_alice(cluster: Cluster) -> None:
    """A user who may send to orders*, at the broker and at the NameServer."""
    for address in (cluster.broker.address, cluster.server.address):
        made = await asked(
            address,
            RequestCode.AUTH_CREATE_USER,
            {"username": "alice"},
            {"username": "alice", "password": "alicesecret", "userType": "Normal"},
            ROOT,
        )
        assert made.code == 0, made.remark
        entries = [{"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "decision": "Allow"}]
        given = await asked(
            address,
            RequestCode.AUTH_CREATE_ACL,
            {"subject": "User:alice"},
            {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": entries}]},
            ROOT,
        )
        assert given.code == 0, given.remark


async def test_users_with_right_wrong_and_missing_keys(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_alice(cluster)
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_topic("bills", queue_count=1)
        assert await sent(cluster, "orders", client("alice")) == ""
        assert await sent(cluster, "bills", client("root")) == ""
        assert "no permission to access Topic:bills" in await sent(cluster, "bills", client("alice"))
        assert "check signature failed" in await sent(cluster, "orders", client("alice", "another"))
        assert "not signed" in await sent(cluster, "orders", client())
        assert "User:bob is not found" in await sent(cluster, "orders", client("bob"))
        stored = {name: cluster.broker.store.max_offset(name, 0) for name in ("orders", "bills")}
        assert stored == {"orders": 1, "bills": 1}
        # A send whose other spelling of the topic is allowed goes to the one that is served, and is judged by it.
        both = {"topic": "bills", "b": "orders", "producerGroup": "p", "queueId": "0", "properties": ""}
        alice = Credentials("alice", "alicesecret")
        reply = await asked(cluster.broker.address, RequestCode.SEND_MESSAGE, both, {}, alice)
        assert (reply.code, cluster.broker.store.max_offset("bills", 0)) == (16, 1)
        pull = {
            "consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        pulled = await asked(cluster.broker.address, RequestCode.PULL_MESSAGE, pull, None, ROOT)
        assert (pulled.code, pulled.body.count(b"orders")) == (0, 1)
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            refused = await asked(cluster.broker.address, code, pull, None, alice)
            assert (refused.code, refused.body) == (16, b"")
            assert "Group:readers" in (refused.remark or "")


@pytest.mark.parametrize("backend", ["python", "native"])
async def test_what_is_signed_is_served_by_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Over real sockets: permitted sends stay on the fast path; after a revocation each send reaches a handler."""
    try:
        choose_backend(backend)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, backend)
    checked: collections.Counter[int] = collections.Counter()
    check = UserKeeper.check

    def counted(keeper: UserKeeper, request: RemotingCommand, host: str) -> str:
        checked[request.code] += 1
        return check(keeper, request, host)

    monkeypatch.setattr(UserKeeper, "check", counted)
    cluster = Cluster(tmp_path, USERS)
    async with running(cluster):
        await make_alice(cluster)
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        async with Producer(cluster.server.address, client=client("alice")) as producer:
            await asyncio.gather(*(producer.send(Message("orders", b"%d" % number)) for number in range(100)))
            assert checked[RequestCode.SEND_MESSAGE_V2] == 0
            assert cluster.broker.store.max_offset("orders", 0) == 100
            light = Message("orders", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%hidden"})
            with pytest.raises(AerobeeError, match="Pub on Topic:%LMQ%hidden"):
                await producer.send(light)
            gone = await asked(
                cluster.broker.address, RequestCode.AUTH_DELETE_USER, {"username": "alice"}, None, ROOT
            )
            assert gone.code == 0
            with pytest.raises(AerobeeError, match="User:alice is not found"):
                await producer.send(Message("orders", b"late"))
        assert checked[RequestCode.SEND_MESSAGE_V2] > 0
        assert cluster.broker.store.max_offset("orders", 0) == 100


async def test_users_outlive_a_restart_in_the_database_of_rocketmq(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_alice(cluster)
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders-eu", queue_count=1)
        await cluster.broker.stop()
        table = RocksTable(str(tmp_path / "store" / "config" / "users"))
        kept = {name: json.loads(value) for name, value in table.items()}
        table.close()
        assert sorted(kept) == ["alice", "inner", "root"]
        assert kept["alice"]["password"] == "alicesecret"
        await cluster.start_broker()
        assert await sent(cluster, "orders-eu", client("alice")) == ""
        shown = await asked(
            cluster.broker.address, RequestCode.AUTH_GET_USER, {"username": "alice"}, None, ROOT
        )
        assert json.loads(shown.body) == {"username": "alice", "userStatus": "enable", "userType": "Normal"}
        for code, ext in (
            (RequestCode.AUTH_UPDATE_USER, {"username": "alice"}),
            (RequestCode.AUTH_DELETE_USER, {"username": "absent"}),
        ):
            body = {"userStatus": "disable"} if code == RequestCode.AUTH_UPDATE_USER else None
            assert (await asked(cluster.broker.address, code, ext, body, ROOT)).code == 0
        assert "disabled" in await sent(cluster, "orders-eu", client("alice"))


async def test_only_brokers_with_keys_register(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        ext = {
            "brokerName": "evil",
            "brokerAddr": "10.9.9.9:1",
            "clusterName": "DefaultCluster",
            "brokerId": "0",
            "haServerAddr": "",
        }
        for keys in (None, Credentials("inner", "guess")):
            reply = await asked(cluster.server.address, RequestCode.REGISTER_BROKER, ext, None, keys)
            assert reply.code == 16
        async with Admin(cluster.server.address, client=client("root")) as admin:
            assert {broker.broker_name for broker in await admin.brokers()} == {"broker-a"}


async def test_hostile_frames_without_keys_change_nothing(tmp_path: Path) -> None:
    """AEROBEE_FRAMES=100000 for the long run: every code, no keys, stolen names, guessed signatures, hostile values."""
    frames = int(os.environ.get("AEROBEE_FRAMES", "1000"))
    random_numbers = random.Random(7)
    values = (
        "orders",
        "root",
        "x",
        "User:root",
        "",
        "-1",
        "9" * 19,
        "a\nb=c",
        "../../x",
        "\x00",
        "x" * 5_000,
    )
    names = (
        "topic",
        "b",
        "group",
        "consumerGroup",
        "groupName",
        "subject",
        "username",
        "queueId",
        "brokerName",
    )
    identities = ("AccessKey", "Signature", "SecurityToken")
    bodies = (b"{}", b"", b"adminOpen=true\n", b'{"username":"root","password":"guess"}', b"\xff" * 300)
    async with running(Cluster(tmp_path, USERS)) as cluster:
        broker = cluster.broker
        targets = [
            (broker.address, [c for c in broker.handlers if c != RequestCode.GET_BROKER_RUNTIME_INFO]),
            (
                cluster.server.address,
                [RequestCode.REGISTER_BROKER, RequestCode.PUT_KV_CONFIG, 318, 105, 206, 216],
            ),
        ]

        def frame(codes: list[int]) -> RemotingCommand:
            ext = {name: random_numbers.choice(values) for name in names}
            ext |= {name: random_numbers.choice(values) for name in random_numbers.sample(identities, 2)}
            return RemotingCommand(random_numbers.choice(codes), ext, random_numbers.choice(bodies))

        async with Admin(cluster.server.address, client=client("root")) as admin:
            topics = await admin.topics()
        before = (broker.store.log.end, broker.topics.data_version, broker.live.value)
        remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        refused = 0
        for start in range(0, frames, 50):
            address, codes = targets[start // 50 % 5 == 4]
            asked_now = [remoting.invoke(address, frame(codes), timeout_s=60) for _ in range(50)]
            refused += sum(reply.code == 16 for reply in await asyncio.gather(*asked_now))
        await remoting.close()
        assert refused == frames
        assert (broker.store.log.end, broker.topics.data_version, broker.live.value) == before
        async with Admin(cluster.server.address, client=client("root")) as admin:
            assert await admin.topics() == topics
            assert {broker.broker_name for broker in await admin.brokers()} == {"broker-a"}


async def test_a_body_that_is_too_large_is_not_read_to_find_out_what_it_asks_for(tmp_path: Path) -> None:
    """From a user without permissions: each byte of such a body cost the loop a microsecond."""
    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_alice(cluster)
        remoting = RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=Credentials("alice", "alicesecret")
        )
        for size, code, said in ((600_000, 29, "heartbeatBytesMax"), (40_000, 16, "not standard JSON")):
            body = b"{clientID:'" + b"c" * size + b"'}"
            request = RemotingCommand(RequestCode.HEART_BEAT, {}, body)
            reply = await remoting.invoke(cluster.broker.address, request, timeout_s=60)
            assert (reply.code, said in (reply.remark or "")) == (code, True), reply.remark
        await remoting.close()


async def test_who_may_not_send_is_not_asked_about_transactions(tmp_path: Path) -> None:
    """A check carries the half message, and any client may call itself a member of the producer group."""
    asked_about: list[str] = []

    def handlers(name: str) -> dict[int, Any]:
        return {RequestCode.CHECK_TRANSACTION_STATE: lambda peer, request: asked_about.append(name)}

    def remoting(name: str, keys: Credentials) -> RemotingClient:
        return RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=keys, handlers=handlers(name)
        )

    async with running(Cluster(tmp_path, USERS)) as cluster:
        await make_alice(cluster)
        address = cluster.broker.address
        async with Admin(cluster.server.address, client=client("root")) as admin:
            for topic in ("bills", "orders"):
                await admin.create_topic(topic, queue_count=1)
            alice, root = remoting("alice", Credentials("alice", "alicesecret")), remoting("root", ROOT)
            heartbeat = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "billing"}]}).encode()
            for topic in ("bills", "orders"):
                half = {
                    "topic": topic, "producerGroup": "billing", "queueId": "0", "sysFlag": "4", "bornTimestamp": "1",
                    "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "flag": "0", "reconsumeTimes": "0",
                    "properties": f"TRAN_MSG\x01true\x02PGROUP\x01billing\x02UNIQ_KEY\x01{topic}\x02",
                }  # fmt: skip
                sent = await root.invoke(address, RemotingCommand(10, half, b"hidden"), timeout_s=60)
                assert sent.code == 0, sent.remark
            assert (await alice.invoke(address, RemotingCommand(34, {}, heartbeat), timeout_s=60)).code == 0
            assert (await admin.resolve_transaction("orders", "check")).outcome == "asked"
            with pytest.raises(AerobeeError, match="may send to bills"):
                await admin.resolve_transaction("bills", "check")
            assert (await root.invoke(address, RemotingCommand(34, {}, heartbeat), timeout_s=60)).code == 0
            for _ in range(3):
                await admin.resolve_transaction("bills", "check")
            async with asyncio.timeout(60):
                while len(asked_about) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert asked_about == ["alice", "root", "root", "root"]
        await alice.close()
        await root.close()


async def test_answers_to_requests_are_not_for_who_calls_himself_by_anothers_client_id(
    tmp_path: Path,
) -> None:
    pushed: list[str] = []

    def remoting(name: str) -> RemotingClient:
        def push(peer: Any, request: RemotingCommand) -> RemotingCommand:
            pushed.append(name)
            return request.reply()

        keys = Credentials(name, f"{name}secret")
        handlers = {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: push}
        return RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=keys, handlers=handlers
        )

    async with running(Cluster(tmp_path, USERS)) as cluster, asyncio.timeout(60):
        address = cluster.broker.address
        for name in ("alice", "eve"):
            await make_consumer(cluster, name)
        alice, eve, root = remoting("alice"), remoting("eve"), remoting("root")
        beat = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "askers"}]}).encode()
        answer = {
            "a": "repliers", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01c\x02CORRELATION_ID\x01n\x02", "j": "0",
        }  # fmt: skip
        for who, expected in ((alice, "alice"), (eve, "alice"), (alice, "alice")):
            assert (await who.invoke(address, RemotingCommand(34, {}, beat), timeout_s=30)).code == 0
            said = await root.invoke(address, RemotingCommand(325, dict(answer), b"hidden"), timeout_s=30)
            assert (said.code, pushed) == (0, [expected]), said.remark
            pushed.clear()
        address_and_name = (address, RequestCode.AUTH_UPDATE_USER, {"username": "alice"})
        assert (await asked(*address_and_name, {"userStatus": "disable"}, ROOT)).code == 0
        said = await root.invoke(address, RemotingCommand(325, dict(answer), b"hidden"), timeout_s=30)
        assert (said.code, pushed) == (1, [])
        assert (await asked(*address_and_name, {"userStatus": "enable"}, ROOT)).code == 0
        assert cluster.broker.producers.connection_of("c") is not None
        await alice.close()
        while cluster.broker.producers.connection_of("c") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await eve.invoke(address, RemotingCommand(34, {}, beat), timeout_s=30)).code == 0
        await root.invoke(address, RemotingCommand(325, dict(answer), b"for whoever it is now"), timeout_s=30)
        assert pushed == ["eve"]
        await eve.close()
        await root.close()


@pytest.mark.parametrize("v2", [False, True])
async def test_what_a_group_is_handed_out_again_is_settled_with_its_own_permission(
    tmp_path: Path, v2: bool
) -> None:
    """Clients name the retry topic: `%RETRY%bob_orders` of V1 looks like one of a group bob_orders."""
    async with running(Cluster(tmp_path, USERS)) as cluster, asyncio.timeout(60):
        broker = cluster.broker
        broker.live.replace(enable_retry_topic_v2=v2)
        async with Admin(cluster.server.address, client=client("root")) as admin:
            await admin.create_topic("orders", queue_count=1)
        await make_consumer(cluster, "bob")
        bob, eve = (
            RemotingClient(
                clock=SystemClock(), network=AsyncioNetwork(), credentials=Credentials(name, f"{name}secret")
            )
            for name in ("bob", "eve")
        )
        assert await sent(cluster, "orders", client("root")) == ""
        await make_consumer(cluster, "eve")
        (message,) = await pop(bob, broker, "orders", "bob")
        for _ in range(2):
            await change(bob, broker, message, 100)
            (message,) = await pop(bob, broker, "orders", "bob", poll_ms=30_000)
            assert message.topic == f"%RETRY%bob{'+' if v2 else '_'}orders"
        assert await ack(eve, broker, message) == 16
        assert await ack(bob, broker, message) == 0
        await bob.close()
        await eve.close()


async def test_accounts_are_read_again_when_the_file_changes(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text("")
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    cluster = Cluster(tmp_path, AccessConfig(acl_enable=True), str(settings))
    # A broker signs as an administrator: it registers and asks for other brokers' offsets.
    cluster.access = AccessConfig(
        acl_enable=True,
        inner_client_authentication_credentials='{"accessKey":"rootkey","secretKey":"rootsecret"}',
    )
    async with running(cluster):
        alice = ClientConfig(access_key="alicekey", secret_key="alicesecret")
        root = ClientConfig(access_key="rootkey", secret_key="rootsecret")
        async with Admin(cluster.server.address, client=root) as admin:
            await admin.create_topic("orders", queue_count=1)
            await admin.create_topic("bills", queue_count=1)
        assert await sent(cluster, "orders", alice) == ""
        assert "No default permission for Topic:bills" in await sent(cluster, "bills", alice)
        async with Admin(cluster.server.address, client=alice) as admin:
            with pytest.raises(AerobeeError, match="Need admin permission"):
                await admin.create_topic("mine", queue_count=1)
        accounts.write_text(ACCOUNTS.replace("orders=PUB|SUB", "orders=PUB|SUB, bills=PUB"))
        async with asyncio.timeout(60):
            while await sent(cluster, "bills", alice):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        accounts.write_text("accounts: [nonsense]\n")  # what cannot be read leaves the old rules in force
        await asyncio.sleep(0)
        cluster.broker._base.access.reload()
        assert await sent(cluster, "bills", alice) == ""


async def test_access_settings_do_not_come_over_the_wire(tmp_path: Path) -> None:
    async with running(Cluster(tmp_path, USERS)) as cluster:
        for key, value in (
            ("authenticationEnabled", "false"),
            ("adminOpen", "true"),
            ("aclFile", "/tmp/mine.yml"),
            ("initAuthenticationUser", '{"username":"evil","password":"evilsecret"}'),
            ("auditLogPath", "/tmp/x"),
        ):
            remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=ROOT)
            reply = await remoting.invoke(
                cluster.broker.address,
                RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{key}={value}\n".encode()),
                timeout_s=60,
            )
            await remoting.close()
            assert reply.code != 0, key
        shown = await asked(cluster.broker.address, RequestCode.GET_BROKER_CONFIG, {}, None, ROOT)
        assert shown.code == 0
        assert b"secret" not in shown.body


async def test_a_broker_without_accounts_does_not_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, AccessConfig(acl_enable=True), str(tmp_path / "broker.conf"))
    with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
        await cluster.start()
    await cluster.server.stop()
