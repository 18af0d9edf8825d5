"""The gate: users, what each request needs, and that no handler stands without a rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.admin_requests import ADMIN
from aerobee.access.audit import AuditLog
from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.needs import RULES, STRICTER, needs_of
from aerobee.access.policies import acl_from_info
from aerobee.access.resource import parse_resource
from aerobee.access.users import MemoryTable, User, Users, UserStatus, UserType, disabled
from aerobee.config import to_properties
from aerobee.errors import ConfigError, RemoteError, StoreError, UsageError
from aerobee.ha.controller.config import ControllerConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.remoting.signature import Credentials
from tests.fakes import FakePeer
from tests.unit.access.gate_requests import CONFIG, FIRST, allow, refusal, request, users

SEND = RequestCode.SEND_MESSAGE_V2


def closed(made: Users, config: AccessConfig = CONFIG) -> Gate:
    return Gate(keeper=UserKeeper(made, config, lambda: "DefaultCluster"), admin_open=False)


def test_who_is_let_in() -> None:
    made = users()
    gate = closed(made)
    assert refusal(gate, request(SEND, b="orders-eu")) == ""
    assert "no permission to access Topic:bills from 10.0.0.1" in refusal(gate, request(SEND, b="bills"))
    assert "username cannot be null" in refusal(gate, request(SEND, user="", b="orders"))
    assert "User:bob is not found" in refusal(gate, request(SEND, user="bob", b="orders"))
    longest = 1 << 20
    said = refusal(gate, request(SEND, b="x" * longest))
    assert (f"({longest + 6} characters)" in said, len(said) < 1_200) == (True, True)
    forged = request(SEND, b="orders")
    forged.body = b"other"
    assert "check signature failed" in refusal(gate, forged)
    assert refusal(gate, request(RequestCode.DELETE_TOPIC_IN_BROKER, user="root", topic="orders")) == ""
    made.put(disabled(made.users["alice"]))
    assert "disabled" in refusal(gate, request(SEND, b="orders"))
    assert gate.refused_count == 6


def test_a_decision_is_forgotten_when_permissions_change() -> None:
    made = users()
    gate = closed(made)
    assert refusal(gate, request(SEND, b="orders")) == ""
    allow(made, "Topic:orders", "All", decision="Deny")
    assert "the decision is deny" in refusal(gate, request(SEND, b="orders"))
    made.remove_acl("User:alice")
    assert "no matched policies" in refusal(gate, request(SEND, b="orders"))


def test_a_refusal_names_the_command_that_grants_the_permission() -> None:
    gate = closed(users())
    told = refusal(gate, request(SEND, b="bills"))
    assert told.endswith("An administrator grants it with `aerobee acl allow alice Topic:bills --action Pub`")
    assert "aerobee acl allow alice 'Topic:a; reboot' --action Pub" in refusal(
        gate, request(SEND, b="a; reboot")
    )


def test_a_refusal_by_a_deny_names_no_command() -> None:
    made = users()
    allow(made, "Topic:bills", "All", decision="Deny")
    assert "aerobee acl allow" not in refusal(closed(made), request(SEND, b="bills"))


def test_a_decision_about_a_name_that_nothing_has_is_not_remembered() -> None:
    """Who has a key, and may do nothing with it, would fill the memory with names of megabytes."""
    keeper = UserKeeper(users(), CONFIG, lambda: "DefaultCluster")
    gate = Gate(keeper=keeper, admin_open=False)
    assert refusal(gate, request(SEND, b="b" * 255))
    remembered = len(keeper._remembered)
    assert remembered == 1
    for name in ("b" * 256, "orders" + "b" * 256, "%RETRY%" + "b" * 4_000_000):
        assert bool(refusal(gate, request(SEND, b=name))) != name.startswith("orders")
    assert len(keeper._remembered) == remembered


def test_without_authorization_a_signature_is_enough() -> None:
    gate = closed(users(), AccessConfig(authentication_enabled=True, init_authentication_user=FIRST))
    assert refusal(gate, request(SEND, b="bills")) == ""
    assert refusal(gate, request(SEND, user="", b="bills"))


def test_white_lists_of_codes() -> None:
    config = AccessConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=FIRST,
        authentication_whitelist="105",
        authorization_whitelist="11, 310",
    )
    gate = closed(users(), config)
    assert refusal(gate, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, user="", topic="bills")) == ""
    assert refusal(gate, request(SEND, b="bills")) == ""
    assert refusal(gate, request(SEND, user="", b="bills"))


def needed(code: int, body: dict[str, Any] | None = None, **ext: str) -> list[str]:
    return [str(need) for need in needs_of(RemotingCommand(code, ext, json.dumps(body or {}).encode()), "c")]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (needed(SEND, b="t"), ["Pub on Topic:t"]),
        (needed(SEND, b="%RETRY%g"), ["Sub on Group:g"]),
        # the field that is served is judged, whatever else is there
        (needed(SEND, b="t", topic="mine"), ["Pub on Topic:t"]),
        (needed(RequestCode.SEND_MESSAGE, topic="t", b="mine"), ["Pub on Topic:t"]),
        (needed(RequestCode.RECALL_MESSAGE, topic="t", b="mine"), ["Pub on Topic:t"]),
        # the topic that a consumer's own retry came from, and nothing of that property elsewhere
        (
            needed(SEND, b="%RETRY%g", i="RETRY_TOPIC\x01secret\x02TAGS\x01a\x02"),
            ["Sub on Group:g", "Sub on Topic:secret"],
        ),
        (needed(SEND, b="t", i="RETRY_TOPIC\x01secret\x02"), ["Pub on Topic:t"]),
        (
            needed(RequestCode.SEND_MESSAGE, topic="%RETRY%g", properties="RETRY_TOPIC\x01%RETRY%other\x02"),
            ["Sub on Group:g", "Sub on Group:other"],
        ),
        # the LMQs that a message enters
        (
            needed(SEND, b="t", i="INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", properties="TAGS\x01a\x02"),
            ["Pub on Topic:t", "Pub on Topic:%LMQ%a", "Pub on Topic:%LMQ%b"],
        ),
        (
            needed(RequestCode.SEND_MESSAGE, topic="t", properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02"),
            ["Pub on Topic:t", "Pub on Topic:%LMQ%a"],
        ),
        (
            needed(
                RequestCode.BATCH_ACK_MESSAGE,
                {"brokerName": "b", "acks": [{"c": "h", "t": "t", "topic": "mine"}]},
            ),
            ["Sub on Topic:t", "Sub on Group:h"],
        ),
        (
            needed(RequestCode.PULL_MESSAGE, topic="t", consumerGroup="g"),
            ["Sub on Topic:t", "Sub on Group:g"],
        ),
        (
            needed(RequestCode.LITE_PULL_MESSAGE, topic="%RETRY%other", consumerGroup="g"),
            ["Sub on Group:other", "Sub on Group:g"],
        ),
        (
            needed(
                RequestCode.HEART_BEAT,
                {
                    "consumerDataSet": [
                        {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}]}
                    ]
                },
            ),
            ["Sub on Group:g", "Sub on Topic:t", "Sub on Group:g"],
        ),
        # a name that a body repeats is requested once
        (
            needed(
                RequestCode.HEART_BEAT,
                {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}] * 3}] * 2},
            ),
            ["Sub on Group:g", "Sub on Topic:t"],
        ),
        (
            needed(RequestCode.BATCH_ACK_MESSAGE, {"acks": [{"c": "g", "t": "t"}] * 3}),
            ["Sub on Topic:t", "Sub on Group:g"],
        ),
        (
            needed(
                RequestCode.BATCH_ACK_MESSAGE, {"acks": [{"c": "g", "t": "t"}, {"c": "g", "t": "%RETRY%h_t"}]}
            ),
            ["Sub on Topic:t", "Sub on Group:g", "Sub on Group:h_t"],
        ),
        # what a group has popped from its retry topic of a topic, of both kinds; of another group's it is that group's
        *(
            (needed(code, topic=f"%RETRY%g{sign}t", consumerGroup="g"), ["Sub on Topic:t", "Sub on Group:g"])
            for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
            for sign in "_+"
        ),
        (
            needed(RequestCode.ACK_MESSAGE, topic="%RETRY%g_t", consumerGroup="h"),
            ["Sub on Group:g_t", "Sub on Group:h"],
        ),
        (
            needed(RequestCode.ACK_MESSAGE, topic="%RETRY%g", consumerGroup="g"),
            ["Sub on Group:g", "Sub on Group:g"],
        ),
        # to read it by its name takes a group of that name
        (
            needed(RequestCode.POP_MESSAGE, topic="%RETRY%g_t", consumerGroup="g"),
            ["Sub on Group:g_t", "Sub on Group:g"],
        ),
        (
            needed(
                RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "g", "mqSet": [{"topic": "t"}, {"topic": "t"}]}
            ),
            ["Sub on Group:g", "Sub on Topic:t"],
        ),
        (needed(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}), ["Create on Group:g"]),
        (
            needed(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                {"topicConfigList": [{"topicName": "a"}, {"topicName": "b"}]},
            ),
            ["Create on Topic:a", "Create on Topic:b"],
        ),
        (
            needed(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList="a;b"),
            ["Get on Topic:a", "Get on Topic:b", "Get on Group:g"],
        ),
        (needed(RequestCode.UPDATE_BROKER_CONFIG), ["Update on Cluster:c"]),
        (needed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), ["List on Topic:*"]),
        (needed(RequestCode.VIEW_MESSAGE_BY_ID), ["Sub/Get on Cluster:c"]),
        (needed(99_999), ["Update on Cluster:c"]),
    ],
)
def test_what_requests_need(found: list[str], wanted: list[str]) -> None:
    assert found == wanted


def test_a_body_that_cannot_be_read_is_refused() -> None:
    gate = closed(users())
    for body in (b"{", b"[]", b'{"consumerDataSet":[{"subscriptionDataSet":7}]}'):
        asked = RemotingCommand(RequestCode.HEART_BEAT, {}, body)
        Credentials("alice", "alicesecret").sign(asked)
        assert refusal(gate, asked)


def test_every_handler_has_a_rule() -> None:
    """Read from the handlers that a real broker and NameServer have; a new code without a rule fails here."""
    assert {RequestCode(code) for code in served_codes() - set(RULES)} == set()
    assert set(RULES) >= ADMIN
    assert set(RULES) >= STRICTER


def served_codes() -> set[int]:
    """Every code that some file of the servers names as the key of a handler."""
    root = Path(__file__).resolve().parents[3] / "aerobee"
    names = {code.name: int(code) for code in RequestCode}
    found: set[int] = set()
    for folder in ("broker", "nameserver", "access"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "def handlers(self)" in text:
                body = text.split("def handlers(self)", 1)[1].split("\n    def ", 1)[0]
                found |= {number for name, number in names.items() if f"RequestCode.{name}:" in body}
    assert len(found) > 100
    return found


@pytest.mark.parametrize("code", [RequestCode.AEROBEE_CREATE_SCHEDULE, RequestCode.AEROBEE_CHANGE_SCHEDULE])
def test_schedules_are_changed_by_administrators(code: RequestCode) -> None:
    """Otherwise any peer could delete the schedules of others, or have the broker send for ever."""
    asked = RemotingCommand(code, {"name": "nightly", "action": "delete"})
    assert "adminOpen=true" in refusal(Gate(keeper=None, admin_open=False), asked)
    assert refusal(Gate(keeper=None, admin_open=False), asked, FakePeer(("127.0.0.1", 5))) == ""


def test_an_open_gate_serves_administrators_of_this_machine() -> None:
    gate = Gate(keeper=None, admin_open=False)
    asked = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
    assert "adminOpen=true" in refusal(gate, asked)
    assert refusal(gate, asked, FakePeer(("127.0.0.1", 5))) == ""
    assert refusal(gate, RemotingCommand(SEND, {"b": "t"})) == ""
    assert refusal(Gate(keeper=None, admin_open=True), asked) == ""
    handlers = {int(SEND): _served, int(asked.code): _served}
    assert gate.guard(handlers)[SEND] is _served
    assert gate.guard(handlers)[asked.code] is not _served
    with pytest.raises(RemoteError):
        gate.guard(handlers)[asked.code](FakePeer(), asked)
    assert gate.guard(handlers)[asked.code](FakePeer(("::1", 5)), asked) is None


def _served(peer: Any, asked: RemotingCommand) -> None:
    return None


def test_an_internal_listener_may_be_open() -> None:
    gate = Gate(
        keeper=UserKeeper(users(), CONFIG, lambda: "c"),
        admin_open=False,
        exempt=lambda peer: peer.listener == "internal",
    )
    inside = FakePeer()
    inside.listener = "internal"
    asked = request(RequestCode.DELETE_TOPIC_IN_BROKER, user="", topic="t")
    assert refusal(gate, asked, inside) == ""
    assert refusal(gate, asked)


def test_the_audit_log_says_who_what_from_where_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(str(path), lambda: 1_700_000_000_000)
    gate = Gate(keeper=UserKeeper(users(), CONFIG, lambda: "c"), admin_open=False, audit=audit)
    refusal(gate, request(RequestCode.DELETE_TOPIC_IN_BROKER, user="root", topic="orders"))
    refusal(gate, request(RequestCode.AUTH_CREATE_USER, {"password": "hidden"}, username="bob"))
    refusal(gate, request(SEND, b="orders"))  # a public topic
    gate.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["who"], line["what"], line["result"][:7]) for line in lines] == [
        ("root", "topic=orders", "passed"),
        ("alice", "username=bob", "refused"),
    ]
    assert lines[0]["from"] == "10.0.0.1"
    assert lines[0]["request"] == "DELETE_TOPIC_IN_BROKER (215)"
    assert "hidden" not in path.read_text()
    assert "Signature" not in path.read_text()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"authentication_enabled": True}, "needs a first user"),
        ({"authorization_enabled": True}, "needs to be on, too"),
        (
            {"acl_enable": True, "authentication_enabled": True, "init_authentication_user": FIRST},
            "choose one",
        ),
        ({"init_authentication_user": "root:rootsecret"}, "initAuthenticationUser is not"),
        (
            {"authentication_metadata_provider": "org.example.Mine"},
            "only LocalAuthenticationMetadataProvider",
        ),
        ({"authorization_whitelist": "11;12"}, "separated by commas"),
    ],
)
def test_settings_that_cannot_hold_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        AccessConfig(**fields)
    assert "rootsecret" not in str(caught.value)


def test_users_are_kept() -> None:
    accounts, acls = MemoryTable(), MemoryTable()
    made = Users(accounts, acls)
    made.put(User("alice", "alicesecret", UserType.SUPER, UserStatus.DISABLE))
    made.put_acl(acl_from_info({"subject": "User:alice", "policies": []}))
    assert Users(accounts, acls).users == made.users
    assert dict(accounts.items())["alice"] == (
        b'{"password":"alicesecret","subjectType":1,"userStatus":2,"userType":1,"username":"alice"}'
    )
    made.remove("alice")
    assert (list(accounts.items()), list(acls.items())) == ([], [])
    with pytest.raises(UsageError, match="does not exist"):
        made.put_acl(acl_from_info({"subject": "User:alice", "policies": []}))


def test_a_removal_that_ends_half_way_leaves_no_permissions_for_the_next_of_that_name() -> None:
    class Refusing(MemoryTable):
        def remove(self, key: str) -> None:
            raise StoreError("the disk is full")

    accounts, acls = MemoryTable(), MemoryTable()
    for half in (Users(Refusing(), acls), Users(accounts, Refusing())):
        half.put(User("alice", "alicesecret"))
        allow(half, "Topic:*", "All")
        with pytest.raises(StoreError):
            half.remove("alice")
        # Remaining users keep their remaining permissions, and removed users have no policy.
        assert {f"User:{name}" for name in half.users} >= set(half.acls)


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"password":""}', b'{"password":"x","userType":9}'])
def test_a_damaged_entry_permits_no_client(value: bytes) -> None:
    accounts = MemoryTable()
    accounts.put("alice", value)
    with pytest.raises(StoreError, match="'alice' of the access control cannot be read"):
        Users(accounts, MemoryTable())


@pytest.mark.parametrize("name", ["", "a b", "a@b", "ä", "x" * 129])
def test_names_of_users(name: str) -> None:
    with pytest.raises(UsageError):
        User(name, "secret")


def test_resources_are_written_as_they_are_read() -> None:
    for text in ("*", "Topic:orders", "Topic:orders*", "Group:*", "Cluster:DefaultCluster"):
        assert str(parse_resource(text)) == text


def test_controllers_sign_with_keys_of_their_own_file() -> None:
    config = ControllerConfig(
        controller_d_leger_group="g",
        controller_d_leger_peers="n0-127.0.0.1:9878",
        controller_d_leger_self_id="n0",
        inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"innersecret"}',
    )
    assert config.credentials == Credentials("inner", "innersecret")
    assert "innersecret" not in repr(config)
    assert "innersecret" not in str(to_properties(config))
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials is not"):
        assert replace(config, inner_client_authentication_credentials="inner:innersecret").credentials


def test_the_peers_principal_is_who_signed_the_request_that_is_served() -> None:
    gate, peer = closed(users()), FakePeer()
    seen: list[str] = []

    def handler(asked_by: Peer, asked: RemotingCommand) -> None:
        seen.append(asked_by.principal)

    (serve,) = gate.guard({SEND: handler}).values()
    serve(peer, request(SEND, b="orders-eu"))  # type: ignore[arg-type]
    with pytest.raises(RemoteError):
        serve(peer, request(SEND, b="orders-eu", user=""))  # type: ignore[arg-type]
    assert seen == ["alice"]


def test_a_request_that_waits_is_looked_at_as_a_new_one(tmp_path: Path) -> None:
    made, path = users(), tmp_path / "audit.jsonl"
    gate = Gate(
        keeper=UserKeeper(made, CONFIG, lambda: "DefaultCluster"),
        admin_open=False,
        audit=AuditLog(str(path), lambda: 1),
        exempt=lambda peer: peer.listener == "internal",
    )
    waits, peer, internal = request(SEND, b="orders"), FakePeer(), FakePeer()
    internal.listener = "internal"
    assert gate.look_again(peer, waits) is None
    made.put(disabled(made.users["alice"]))
    refused = gate.look_again(peer, waits)
    assert refused is not None
    assert (refused.code, refused.remark) == (16, refusal(gate, waits))
    assert (gate.look_again(internal, waits), gate.refused_count) == (None, 2)
    assert [gate.knows(name, peer) for name in ("root", "alice", "absent", "")] == [True, False, False, False]  # type: ignore[arg-type]
    assert gate.knows("alice", internal)  # type: ignore[arg-type]
    gate.close()
    assert path.read_text().count("refused: User:alice is disabled") == 2
    assert Gate(keeper=None, admin_open=True).look_again(peer, waits) is None

    class CannotSay(UserKeeper):
        def check(self, request: RemotingCommand, host: str) -> str:
            raise UsageError("an entry cannot be read")

    gate = Gate(keeper=CannotSay(made, CONFIG, lambda: "DefaultCluster"), admin_open=False)
    refused = gate.look_again(peer, waits)
    assert refused is not None
    assert (refused.code, refused.remark) == (1, "an entry cannot be read")
