"""Clients come, stay and go: registries and the calls that change them, with captured heartbeats of Java and C++."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee.broker.filter import expressions
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.sql92 import compile_filter
from aerobee.broker.membership.heartbeat import FILTER_CHARS_PER_TURN, HeartbeatCalls
from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.clock import ManualClock
from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame
from tests.captures import captured
from tests.fakes import FakePeer
from tests.unit.broker.heartbeat_clients import Clients


@pytest.fixture
def clients() -> Clients:
    return Clients()


def consumer(
    client_id: str,
    *topics: str,
    version: int = 1,
    model: str = "CLUSTERING",
    group: str = "g",
    **fields: Any,
) -> HeartbeatData:
    subscriptions = tuple(SubscriptionData(topic, sub_version=version) for topic in topics)
    data = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
    return HeartbeatData(client_id, (), (data,), **fields)


def notices(connection: FakePeer) -> list[tuple[int, dict[str, str] | None]]:
    found = [(command.code, command.ext) for command in connection.sent]
    connection.sent.clear()
    return found


NOTICE = (40, {"consumerGroup": "g"})


def test_members_are_notified_when_a_member_joins_or_leaves(clients: Clients) -> None:
    first, second = FakePeer(), FakePeer()
    clients.beat(first, consumer("c1", "T"))
    assert notices(first) == [NOTICE]
    clients.beat(second, consumer("c2", "T"))
    assert (notices(first), notices(second)) == ([NOTICE], [NOTICE])
    clients.beat(first, consumer("c1", "T"))
    assert (notices(first), notices(second)) == ([], [])
    assert clients.members("g") == ["c1", "c2"]
    reply = clients.call(
        second, RemotingCommand(35, {"clientID": "c2", "consumerGroup": "g", "producerGroup": ""})
    )
    assert (reply.code, reply.ext) == (0, {})
    assert (notices(first), notices(second)) == ([NOTICE], [])
    assert clients.members("g") == ["c1"]


def test_a_closed_connection_takes_its_members_along_at_once(clients: Clients) -> None:
    first, second = FakePeer(), FakePeer()
    clients.beat(first, consumer("c1", "T"))
    clients.beat(second, consumer("c2", "T"))
    notices(first)
    second.close("gone")
    assert notices(first) == [NOTICE]
    assert clients.members("g") == ["c1"]
    first.close("gone")
    assert clients.consumers.group("g") is None


def test_a_member_without_heartbeat_for_120_s_is_removed(clients: Clients) -> None:
    silent, alive = FakePeer(), FakePeer()
    clients.beat(silent, consumer("c1", "T"))
    clients.beat(alive, consumer("c2", "T"))
    for _ in range(12):
        clients.clock.advance(10)
        clients.beat(alive, consumer("c2", "T"))
        clients.scan()
        assert silent.is_open
    notices(alive)
    clients.clock.advance(10)
    clients.scan()
    assert not silent.is_open
    assert "120 s" in silent.close_reason
    assert notices(alive) == [NOTICE]


def test_a_silent_group_leaves_its_connection_to_the_others(clients: Clients) -> None:
    """One process, two groups, of which one sends no heartbeats any more (apache/rocketmq 10435)."""
    shared = FakePeer()
    silent, alive = consumer("c1", "T"), consumer("c1", "T", group="alive")
    clients.beat(shared, silent)
    clients.beat(shared, HeartbeatData("c1", (ProducerData("silent"),)))
    for _ in range(20):
        clients.beat(shared, alive)
        clients.clock.advance(10)
        clients.scan()
    assert clients.consumers.group("g") is None
    assert clients.producers.members("silent") == []
    assert shared.is_open
    assert clients.members("alive") == ["c1"]
    clients.clock.advance(121)
    clients.scan()
    assert not shared.is_open


def test_a_producer_keeps_the_connection_of_a_silent_consumer(clients: Clients) -> None:
    shared = FakePeer()
    clients.beat(shared, consumer("c1", "T"))
    for _ in range(20):
        clients.beat(shared, HeartbeatData("c1", (ProducerData("p"),)))
        clients.clock.advance(10)
        clients.scan()
    assert clients.consumers.group("g") is None
    assert shared.is_open
    assert [each.client_id for each in clients.producers.members("p")] == ["c1"]


def test_broadcasting_members_are_not_told_of_each_other(clients: Clients) -> None:
    connection = FakePeer()
    clients.beat(connection, consumer("c1", "T", model="BROADCASTING"))
    assert notices(connection) == []


def test_the_newer_subscription_wins_and_unnamed_topics_are_dropped(clients: Clients) -> None:
    connection = FakePeer()
    clients.beat(connection, consumer("c1", "T", "U", version=5))
    notices(connection)
    newer = SubscriptionData.parse("T", "TagA", sub_version=6)
    older = SubscriptionData.parse("T", "TagB", sub_version=4)
    for subscription in (newer, older):
        data = ConsumerData("g", subscription_data_set=(subscription,))
        clients.beat(connection, HeartbeatData("c1", (), (data,)))
    assert clients.consumers.subscription("g", "T") == newer
    assert clients.consumers.subscription("g", "U") is None
    assert notices(connection) == [NOTICE]  # of the dropped topic; another version of one is no news


def test_a_heartbeat_makes_the_group_and_its_retry_topic(clients: Clients) -> None:
    clients.beat(FakePeer(), consumer("c1", "T"))
    assert clients.groups.get("g") is not None
    retry = clients.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


def test_many_new_groups_in_one_heartbeat_cost_one_write(clients: Clients) -> None:
    data = HeartbeatData("c1", (), tuple(ConsumerData(f"g{number}") for number in range(500)))
    topics_before, groups_before = clients.topics.data_version.counter, clients.groups.data_version.counter
    clients.beat(FakePeer(), data)
    assert clients.topics.data_version.counter == topics_before + 1
    assert clients.groups.data_version.counter == groups_before + 1
    assert clients.topics.get("%RETRY%g499") is not None
    assert clients.members("g0") == ["c1"]


def test_an_unknown_group_is_skipped_when_none_may_be_made() -> None:
    clients = Clients(auto_create_subscription_group=False)
    ext = clients.beat(FakePeer(), consumer("c1", "T"))
    assert ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    assert clients.consumers.group("g") is None
    assert clients.topics.get("%RETRY%g") is None


async def test_the_first_heartbeat_is_answered_when_the_nameservers_know_the_retry_topic() -> None:
    clients = Clients()
    registered = asyncio.Event()
    calls = HeartbeatCalls(
        consumers=clients.consumers,
        producers=clients.producers,
        groups=clients.groups,
        topics=clients.topics,
        live=LiveConfig(BrokerConfig(broker_name="broker-a")),
        expressions=Expressions(),
        bounds=Bounds(LiveConfig(BrokerConfig(broker_name="broker-a")), clients.clock),
        registered=registered.wait,  # type: ignore[arg-type]
    )
    connection = FakePeer()
    request = RemotingCommand(34, {}, consumer("c1", "T").encode())
    work = calls.heartbeat(connection, request)  # type: ignore[arg-type]
    assert asyncio.iscoroutine(work)
    answered = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not answered.done()
    assert clients.consumers.group("g") is None
    registered.set()
    reply = await answered
    assert reply is not None
    assert reply.code == 0
    assert clients.members("g") == ["c1"]
    again = calls.heartbeat(connection, request)  # type: ignore[arg-type]
    assert isinstance(again, RemotingCommand)


def test_version_2_asks_for_subscriptions_only_when_they_changed(clients: Clients) -> None:
    connection = FakePeer()
    full = consumer("c1", "T", heartbeat_fingerprint=11)
    bare = consumer("c1", heartbeat_fingerprint=11, without_sub=True)
    assert clients.beat(connection, full)["IS_SUB_CHANGE"] == "false"
    assert clients.beat(connection, bare)["IS_SUB_CHANGE"] == "false"
    assert clients.consumers.subscription("g", "T") is not None
    assert clients.beat(connection, consumer("c1", "U", heartbeat_fingerprint=12))["IS_SUB_CHANGE"] == "true"
    assert clients.beat(connection, consumer("c1", "U"))["IS_SUB_CHANGE"] == "true"  # version 1


def test_a_fingerprint_of_subscriptions_that_are_not_known_asks_for_them(clients: Clients) -> None:
    bare = consumer("c1", heartbeat_fingerprint=11, without_sub=True)
    assert clients.beat(FakePeer(), bare)["IS_SUB_CHANGE"] == "true"


@pytest.mark.parametrize(
    "name", ["java-consume-cluster", "java-consume-hbv2", "cpp-consumer", "java-consume-sql"]
)
def test_captured_heartbeats_get_the_captured_answers(name: str) -> None:
    clients = Clients(enable_property_filter=True)
    connections: dict[int, FakePeer] = {}
    questions: dict[tuple[int, int], RemotingCommand] = {}
    compared = 0
    for frame in captured(name):
        if frame.tap != "broker" or (frame.request_code not in (34, 35, 38)):
            continue
        command = decode_frame(frame.data)
        connection = connections.setdefault(frame.connection, FakePeer())
        if not frame.is_reply:
            questions[(frame.connection, command.opaque)] = command
            continue
        # In the order of the replies: that is the order in which RocketMQ served them.
        reply = clients.call(connection, questions.pop((frame.connection, command.opaque)))
        assert (reply.code, reply.ext) == (command.code, command.ext)
        if command.body:
            ours, theirs = fastjson.loads(reply.body), fastjson.loads(command.body)
            assert sorted(ours["consumerIdList"]) == sorted(theirs["consumerIdList"])
        compared += 1
    assert compared >= 5


def test_producers_are_known_by_group_and_found_in_turn(clients: Clients) -> None:
    first, second = FakePeer(("10.0.0.1", 1)), FakePeer(("10.0.0.2", 2))
    clients.beat(first, HeartbeatData("p1", (ProducerData("p"),)))
    clients.beat(second, HeartbeatData("p2", (ProducerData("p"), ProducerData("q"))))
    found = {clients.producers.channel_of("p").client_id for _ in range(4)}  # type: ignore[union-attr]
    assert found == {"p1", "p2"}
    second.close()
    assert clients.producers.channel_of("q") is None
    assert [channel.client_id for channel in clients.producers.members("p")] == ["p1"]
    clients.clock.advance(121)
    clients.scan()
    assert clients.producers.members("p") == []
    assert not first.is_open


def test_two_producers_under_one_id_are_noticed(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    beat = HeartbeatData("c", (ProducerData("p"),))
    first, second, third = (FakePeer(("10.0.0.1", port)) for port in (1, 2, 3))
    clients.beat(first, beat)
    clients.beat(second, beat)  # it may have reconnected
    clients.beat(second, beat)
    assert caplog.text == ""
    for _ in range(3):
        clients.beat(first, beat)
        clients.beat(second, beat)
    assert len(caplog.records) == 1
    assert "10.0.0.1:1 and 10.0.0.1:2 have one client id, 'c'" in caplog.text
    first.close()
    clients.beat(third, beat)
    second.close()
    third.close()
    registry = clients.producers
    assert [registry._former, registry._shared, registry._client_ids] == [{}, set(), {}]


def signed_by(principal: str, host_port: tuple[str, int] = ("10.0.0.1", 1)) -> FakePeer:
    peer = FakePeer(host_port)
    peer.principal = principal
    return peer


def test_a_client_id_is_its_signers_for_as_long_as_he_is_connected(clients: Clients) -> None:
    """Answers of request-reply go by client ids, and whoever likes names any in his heartbeat."""
    beat = HeartbeatData("c", (ProducerData("p"),))
    alice, eve = signed_by("alice"), signed_by("eve", ("10.0.0.2", 2))
    for peer in (alice, eve, alice, eve):
        clients.beat(peer, beat)
        assert clients.producers.connection_of("c") is alice
    assert len(clients.producers.members("p")) == 2
    eve.close()
    assert clients.producers.connection_of("c") is alice
    # She comes back from elsewhere before the broker knows that the old connection is gone.
    again = signed_by("alice", ("10.0.0.3", 3))
    clients.beat(again, beat)
    assert clients.producers.connection_of("c") is again
    alice.close()
    assert clients.producers.connection_of("c") is again
    # The client changes its keys, on its connection.
    again.principal = "alice2"
    clients.beat(again, beat)
    assert clients.producers.connection_of("c") is again
    # It starts with other keys: the former connection has ended.
    again.close()
    assert clients.producers.connection_of("c") is None
    other = signed_by("eve", ("10.0.0.4", 4))
    clients.beat(other, beat)
    assert clients.producers.connection_of("c") is other


def test_a_client_that_calls_itself_otherwise_leaves_another_signers_id_alone(clients: Clients) -> None:
    alice, eve = signed_by("alice"), signed_by("eve", ("10.0.0.2", 2))
    clients.beat(alice, HeartbeatData("c", (ProducerData("p"),)))
    clients.beat(eve, HeartbeatData("c", (ProducerData("p"),)))
    clients.beat(eve, HeartbeatData("d", (ProducerData("p"),)))
    assert clients.producers.connection_of("c") is alice
    assert clients.producers.connection_of("d") is eve


def test_who_is_no_user_any_more_gets_no_answers_and_keeps_no_id() -> None:
    gone: set[str] = set()
    registry = ProducerRegistry(
        clock=ManualClock(), call_soon=lambda run: run(), knows=lambda principal, peer: principal not in gone
    )
    alice: Any = signed_by("alice")
    other: Any = signed_by("alice2", ("10.0.0.2", 2))
    registry.register("p", alice, "c", language=0, version=1, principal="alice")
    registry.register("p", other, "c", language=0, version=1, principal="alice2")
    assert registry.connection_of("c") is alice
    gone.add("alice")
    assert registry.connection_of("c") is None
    registry.register("p", other, "c", language=0, version=1, principal="alice2")
    assert registry.connection_of("c") is other


def test_without_signatures_the_last_heartbeat_sets_the_address(clients: Clients) -> None:
    first, second = FakePeer(), FakePeer(("10.0.0.2", 2))
    for peer in (first, second, first):
        clients.beat(peer, HeartbeatData("c", (ProducerData("p"),)))
        assert clients.producers.connection_of("c") is peer


def test_who_signed_a_heartbeat_is_known_when_it_comes_not_when_it_has_waited(clients: Clients) -> None:
    """The first heartbeat of a group waits for its retry topic, and the peer's next request may be another's."""
    eve = signed_by("eve")
    data = HeartbeatData("c", (ProducerData("p"),), consumer("c", "t").consumer_data_set)
    reply = clients.calls.heartbeat(eve, RemotingCommand(34, {}, data.encode()))  # type: ignore[arg-type]
    eve.principal = "alice"
    asyncio.run(reply)  # type: ignore[arg-type]
    assert [channel.principal for channel in clients.producers.members("p")] == ["eve"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"clientID":[]}', b'{"clientID":"c","consumerDataSet":[{"consumeType":9}]}'],
)
def test_a_heartbeat_that_is_none_changes_nothing(clients: Clients, body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        clients.call(FakePeer(), RemotingCommand(34, {}, body))
    assert clients.consumers.groups() == []


@pytest.mark.parametrize(
    ("enabled", "expression_type", "text", "code"),
    [
        (True, "TAG", "a || b", 0),
        (True, "SQL92", "n > 1", 0),
        (True, "SQL92", "n >", 23),
        (False, "SQL92", "n > 1", 1),
    ],
)
def test_a_subscription_is_checked_before_a_consumer_starts(
    enabled: bool, expression_type: str, text: str, code: int
) -> None:
    clients = Clients(enable_property_filter=enabled)
    subscription = SubscriptionData("T", text, expression_type=expression_type)
    body = fastjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription.to_dict()})
    reply = clients.call(FakePeer(), RemotingCommand(46, None, body))
    assert reply.code == code
    assert bool(reply.remark) == (code != 0)


@pytest.mark.parametrize("end", ["", " ="])
def test_many_filters_of_one_heartbeat_are_compiled_in_turns(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """With `end` none of them compiles."""
    clients = Clients(enable_property_filter=True)
    clients.beat(FakePeer(), consumer("c0", "T"))
    compiled: list[str] = []

    def counted(text: str) -> Any:
        compiled.append(text)
        return compile_filter(text)

    monkeypatch.setattr(expressions, "compile_filter", counted)
    long = "a BETWEEN 1 AND 2 AND " * 8
    subscriptions = tuple(
        SubscriptionData(f"T{number}", f"{long}a = {number}{end}", expression_type="SQL92")
        for number in range(300)
    )
    data = HeartbeatData("c1", consumer_data_set=(ConsumerData("g", subscription_data_set=subscriptions),))
    request = RemotingCommand(34, {}, data.encode(), version=513)
    peer = FakePeer()

    async def served() -> int:
        """Returns how many characters were compiled in one turn at most."""
        work = clients.calls.heartbeat(peer, request)  # type: ignore[arg-type]
        assert asyncio.iscoroutine(work), "one request compiles everything in one go"
        answered = asyncio.ensure_future(work)
        most = 0
        while not answered.done():
            before = len(compiled)
            await asyncio.sleep(0)
            most = max(most, sum(map(len, compiled[before:])))
        assert answered.result().code == 0
        return most

    assert asyncio.run(served()) <= FILTER_CHARS_PER_TURN
    assert set(clients.members("g")) == {"c0", "c1"}
    assert len(compiled) == 300
    again = clients.calls.heartbeat(peer, request)  # type: ignore[arg-type]
    assert isinstance(again, RemotingCommand)
    assert len(compiled) == 300, "what is known is not compiled again, compiled or not"
