"""The fast path where access control is on: it serves requests signed by a permitted user, and none that the gate refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.gate import Gate, Grant
from aerobee.access.keepers import AccountKeeper, UserKeeper
from aerobee.access.needs import needs_of
from aerobee.access.plain_acl import PlainAcl, plain_acl
from aerobee.access.policies import Acl, Decision, PolicyEntry, PolicyType, acl_from_info
from aerobee.access.resource import Action, Resource, topic
from aerobee.access.users import MemoryTable, User, Users, disabled
from aerobee.broker.fastpath.access import GUARDED_FIELDS, FrameAccess
from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.fastpath.frame_handlers import FrameHandler
from aerobee.broker.fastpath.pop import PopBursts
from aerobee.broker.send.option_hooks import OptionFastPath
from aerobee.message import pack_host
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.signature import Credentials
from tests.fakes import FakePeer
from tests.unit.broker.access_sends import ALICE, CONFIG, World, allow, changed, in_header, pull, signed
from tests.unit.broker.sending import send_frame, use_backend


@pytest.fixture(params=[PYTHON, NATIVE])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    use_backend(request.param, monkeypatch)
    users = Users(MemoryTable(), MemoryTable())
    users.ensure_super("root", "rootsecret")
    users.put(User("alice", "alicesecret"))
    allow(users, "Topic:TopicNormal", "Pub", "Sub")
    allow(users, "Group:readers", "Sub")
    gate = Gate(keeper=UserKeeper(users, CONFIG, lambda: "DefaultCluster"), admin_open=False)
    made = World(tmp_path, gate, users)
    yield made
    made.sending.close()


@pytest.mark.parametrize("kind", list(SerializeType))
def test_requests_signed_by_a_permitted_user_are_served(world: World, kind: SerializeType) -> None:
    for frame in (
        send_frame(),
        send_frame(body=b"x" * 70_000, properties="UNIQ_KEY\x01U1\x02KEYS\x01\u952e\x02"),
        pull(),
    ):
        assert world.is_let_in(signed(frame, kind=kind))
        assert world.is_served(signed(frame, kind=kind))
    assert world.sending.store.max_offset("TopicNormal", 1) == 2


@pytest.mark.parametrize("kind", list(SerializeType))
def test_a_signature_is_good_for_its_own_frame_alone(world: World, kind: SerializeType) -> None:
    good = signed(send_frame(body=b"pay 1"), kind=kind)
    assert world.is_served(good)
    attacks: list[Callable[[RemotingCommand], Any]] = [
        lambda request: setattr(request, "body", b"pay 9"),
        lambda request: setattr(request, "body", b""),
        lambda request: request.ext.update(b="TopicOrder"),
        lambda request: request.ext.update(e="2"),
        lambda request: request.ext.update(i="UNIQ_KEY\x01U2\x02WAIT\x01true\x02"),
        lambda request: request.ext.update(zz="1"),
        lambda request: request.ext.pop("n"),
        lambda request: request.ext.pop("Signature"),
        lambda request: request.ext.update(Signature=""),
        lambda request: request.ext.update(Signature=request.ext["Signature"].lower()),
        lambda request: request.ext.update(Signature=request.ext["Signature"].rstrip("=")),
        lambda request: request.ext.update(Signature=request.ext["Signature"] + " "),
        lambda request: request.ext.update(AccessKey="root"),
        lambda request: request.ext.update(AccessKey="absent"),
        lambda request: request.ext.pop("AccessKey"),
    ]
    for number, attack in enumerate(attacks):
        assert world.is_refused(changed(good, attack)), number
    # What is not signed may change: the number of the request.
    assert world.is_served(changed(good, lambda request: setattr(request, "opaque", 99)))
    assert world.sending.store.max_offset("TopicNormal", 1) == 2


def test_values_that_move_from_one_field_to_the_next_ask_for_another_permission(world: World) -> None:
    """The protocol signs values without their names: the same text may stand for other fields. Both requests look alike then."""
    frame = signed(send_frame("TopicOrder"))
    assert world.is_refused(frame)
    moved = changed(frame, lambda request: request.ext.update(b="TopicNormal", c="TopicOrder"))
    assert world.is_refused(moved)


def test_of_two_fields_of_a_name_the_last_counts_for_all(world: World) -> None:
    good = signed(send_frame())
    for old, new in (
        ('"b":"TopicNormal"', '"b":"TopicOrder","b":"TopicNormal"'),  # the handlers take the last, too
        ('"b":"TopicNormal"', '"b":"TopicNormal","b":"TopicOrder"'),
        ('"AccessKey":"alice"', '"AccessKey":"alice","AccessKey":"root"'),
        ('"b":"TopicNormal"', '"b":"TopicNormal","\\u0062":"TopicOrder"'),
        ('"extFields":', '"extFields":{"b":"TopicOrder"},"extFields":'),
        ('"flag":0', '"flag":0,"extFields":{"b":"TopicOrder","e":"0"}'),
        ('"b":"TopicNormal"', '"b":"TopicNormal","n\\ufffd":"","\\ud83d\\udc1d":""'),
    ):
        frame = in_header(good, old, new)
        assert not (world.is_served(frame) and not world.is_let_in(frame)), new
    assert world.is_refused(in_header(good, '"b":"TopicNormal"', '"b":"TopicNormal","b":"TopicOrder"'))


def test_who_may_not_is_refused(world: World) -> None:
    assert world.is_refused(signed(send_frame("TopicOrder")))
    assert world.is_refused(signed(pull(topic="TopicOrder")))
    assert world.is_refused(signed(pull(consumerGroup="others")))
    assert world.is_refused(send_frame())
    assert world.is_refused(signed(send_frame(), Credentials("alice", "another")))
    root = Credentials("root", "rootsecret")
    assert world.is_served(signed(send_frame("TopicOrder"), root))


def test_what_is_remembered_is_forgotten_when_users_and_permissions_change(world: World) -> None:
    users, send, fetch = world.users, signed(send_frame()), signed(pull())
    assert world.is_served(send)
    assert world.is_served(fetch)
    allow(users, "Topic:TopicNormal", "Sub")
    assert world.is_refused(send)
    assert world.is_served(fetch)
    allow(users, "Topic:TopicNormal", "Pub", decision="Deny")
    assert world.is_refused(send)
    assert world.is_refused(fetch)
    allow(users, "Topic:TopicNormal", "Pub", "Sub")
    assert world.is_served(send)
    users.put(replace(users.users["alice"], password="new password"))
    assert world.is_refused(send)
    assert world.is_served(signed(send_frame(), Credentials("alice", "new password")))
    users.put(disabled(users.users["alice"]))
    assert world.is_refused(signed(send_frame(), Credentials("alice", "new password")))
    users.remove("alice")
    assert world.is_refused(signed(send_frame(), Credentials("alice", "new password")))
    users.put(User("alice", "alicesecret"))
    assert world.is_refused(send), "a recreated user has none of its former permissions"


def test_a_source_that_a_policy_does_not_name_is_refused(world: World) -> None:
    entry = {
        "resource": "Topic:TopicBatch",
        "actions": ["Pub"],
        "decision": "Allow",
        "sourceIps": ["10.0.0.1"],
    }
    acl = world.users.copy_of("User:alice")
    said = acl_from_info({"subject": "User:alice", "policies": [{"entries": [entry]}]})
    acl.merge(PolicyType.CUSTOM, said.policies[PolicyType.CUSTOM])
    world.users.put_acl(acl)
    frame = signed(send_frame("TopicBatch"))
    assert world.is_served(frame)
    assert world.is_refused(frame, FakePeer(("10.0.0.2", 1)))
    assert world.is_refused(frame, FakePeer(("::1", 1)))


def test_what_older_clients_leave_out_of_the_content_is_for_the_handlers(world: World) -> None:
    frame = decode_frame(send_frame())
    frame.version = 399
    ALICE.sign(frame)
    assert frame.ext is not None
    frame.ext["_UNIQUE_KEY_QUERY"] = "true"
    assert world.is_let_in(encode_frame(frame))
    assert not world.is_served(encode_frame(frame))


def test_an_unknown_peer_is_not_served(world: World) -> None:
    backend = world.sending.fast_path._backend
    result = backend.burst(signed(send_frame()), 0, pack_host("10.0.0.1", 1), 1, True, True)
    assert (result.used, result.stored_count, backend.take_totals()) == (0, 0, ([], []))


def test_a_peer_without_an_address_is_not_one_of_whom_nothing_is_asked() -> None:
    """Who resets a connection before it is accepted has none at some event loops, and what he sent is read all the same."""
    users = Users(MemoryTable(), MemoryTable())
    gate = Gate(keeper=UserKeeper(users, CONFIG, lambda: "c"), admin_open=False)
    assert FrameAccess(gate).host_of(FakePeer(("", 0))) is None  # type: ignore[arg-type]


def test_who_has_not_signed_finds_out_nothing_and_fills_nothing(world: World) -> None:
    """What a user may do is looked up, and remembered, for those only who have his secret."""
    decided: list[Resource] = []
    acl = world.users.acls["User:alice"]

    class Watched(Acl):
        def decide(self, resource: Resource, actions: frozenset[Action], host: str) -> Decision | None:
            decided.append(resource)
            return acl.decide(resource, actions, host)

    world.users.acls["User:alice"] = Watched("User:alice", acl.policies)
    good = signed(send_frame())
    assert world.is_refused(changed(good, lambda request: request.ext.update(Signature="x" * 28)))
    assert world.is_refused(changed(good, lambda request: request.ext.pop("Signature")))
    assert world.is_refused(changed(signed(pull()), lambda request: request.ext.update(queueOffset="1")))
    assert decided == []
    assert world.is_served(good)
    assert decided == [topic("TopicNormal")]
    assert world.is_served(good)
    assert decided == [topic("TopicNormal")]


def test_names_that_no_topic_has_are_not_remembered(world: World) -> None:
    """A grant is known by texts of the request: they would take as much memory as a peer likes."""
    asked: list[str] = []
    ask = world.gate.grant

    def grant(request: RemotingCommand, host: str) -> Grant | None:
        asked.append(str(request.ext))
        return ask(request, host)

    world.gate.grant = grant  # type: ignore[method-assign]
    root = Credentials("root", "rootsecret")
    for name in ("x" * 513, "\u952e" * 513, "\n" * 513):
        assert not world.is_served(signed(send_frame(name), root))
        assert not world.is_served(signed(pull(consumerGroup=name), root))
        assert not world.is_served(
            changed(send_frame(), lambda request, name=name: request.ext.update(AccessKey=name))
        )  # type: ignore[misc]
    assert asked == []
    for _ in range(2):
        assert not world.is_served(signed(send_frame("\u952e" * 512), root)), "there is no such topic"
    assert len(asked) == 1


def test_a_policy_that_cannot_be_read_is_for_the_handlers(world: World) -> None:
    """One of another product's making may name a source that is no address: they answer with an error."""
    entry = PolicyEntry(topic("TopicBatch"), frozenset({Action.PUB}), Decision.ALLOW, ("10.0.0.x",))
    acl = world.users.copy_of("User:alice")
    acl.merge(PolicyType.CUSTOM, [entry])
    world.users.put_acl(acl)
    assert world.is_refused(signed(send_frame("TopicBatch")))
    assert world.is_served(signed(send_frame()))


def test_peers_of_an_open_listener_are_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PYTHON, NATIVE):
        use_backend(name, monkeypatch)
        users = Users(MemoryTable(), MemoryTable())
        gate = Gate(
            keeper=UserKeeper(users, CONFIG, lambda: "c"),
            admin_open=False,
            exempt=lambda peer: peer.listener == "internal",
        )
        world = World(tmp_path / name, gate, users)
        inside = FakePeer()
        inside.listener = "internal"
        assert world.is_served(send_frame(), inside)
        assert world.is_refused(send_frame())
        world.sending.close()


def accounts(**fields: Any) -> PlainAcl:
    account = {"accessKey": "alicekey", "secretKey": "alicesecret", "topicPerms": ["TopicNormal=PUB"]}
    white = fields.pop("white", [])
    document = {"globalWhiteRemoteAddresses": white, "accounts": [{**account, **fields}]}
    return plain_acl([("plain_acl.yml", document)])


@pytest.mark.parametrize("name", [PYTHON, NATIVE])
def test_accounts_and_their_white_lists(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(name, monkeypatch)
    keeper = AccountKeeper(accounts(), lambda: "c")
    world = World(tmp_path, Gate(keeper=keeper, admin_open=False))
    keys = Credentials("alicekey", "alicesecret")
    good, unsigned = signed(send_frame(), keys), send_frame()
    named = changed(unsigned, lambda request: request.ext.update(AccessKey="alicekey"))
    assert world.is_served(good)
    assert world.is_refused(unsigned)
    assert world.is_refused(named)
    assert world.is_refused(signed(send_frame("TopicOrder"), keys))
    keeper.replace_rules(accounts(whiteRemoteAddress="10.0.0.1"))
    assert world.is_served(named), "this account needs no signature from there"
    assert world.is_refused(unsigned)
    assert world.is_refused(named, FakePeer(("10.0.0.2", 1)))
    keeper.replace_rules(accounts(white=["10.0.0.*"]))
    assert world.is_served(unsigned)
    assert world.is_served(send_frame("TopicOrder"), FakePeer(("10.0.0.9", 1)))
    assert world.is_refused(unsigned, FakePeer(("10.0.1.9", 1)))
    keeper.replace_rules(accounts())
    assert world.is_refused(unsigned)
    assert world.is_refused(named)
    keeper.replace_rules(accounts(secretKey="another secret"))
    assert world.is_refused(good)
    world.sending.close()


def test_pops_pass_the_same_guard() -> None:
    """POP's requests have a separate path (fastpath/pop.py)."""
    users = Users(MemoryTable(), MemoryTable())
    users.put(User("alice", "alicesecret"))
    allow(users, "Topic:TopicNormal", "Sub")
    allow(users, "Group:readers", "Sub")
    gate = Gate(keeper=UserKeeper(users, CONFIG, lambda: "c"), admin_open=False)

    class Hooks:
        def pop(self, peer: object, opaque: int, fields: dict[str, Any]) -> bytes:
            return b"popped"

        def ack(self, peer: object, opaque: int, fields: dict[str, Any]) -> bytes:
            return b"acked"

    bursts = PopBursts(Hooks(), FrameAccess(gate).settings)
    gate.on_change(bursts.forget_grants)
    peer = FakePeer()

    def is_served(frame: bytes, host: str | None = "10.0.0.1") -> bool:
        return bursts.burst(peer, frame, 0, host) > 0

    for code in (RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE):
        fields = {"topic": "TopicNormal", "consumerGroup": "readers"}
        frame = encode_frame(RemotingCommand(code, fields))
        good = signed(frame)
        assert is_served(good)
        assert not is_served(good, None)
        assert is_served(frame, "")
        assert not is_served(frame)
        assert not is_served(changed(good, lambda request: request.ext.update(topic="TopicOrder")))
        assert not is_served(signed(encode_frame(RemotingCommand(code, {**fields, "topic": "TopicOrder"}))))
        assert is_served(good)
    users.remove("alice")
    assert not is_served(good)


def test_what_a_request_needs_is_said_by_the_fields_that_grants_are_known_by() -> None:
    """Else a grant would stand for a request that needs more."""
    odd = dict.fromkeys(("group", "b", "topic", "consumerGroup", "producerGroup", "groupName", "c"), "odd")
    for code, names in GUARDED_FIELDS.items():
        own = {name: f"own-{name}" for name in names}
        alone = needs_of(RemotingCommand(code, dict(own)), "c")
        among = needs_of(RemotingCommand(code, {**odd, **own}, json.dumps(odd).encode()), "c")
        assert alone == among, code


def test_each_code_that_a_family_serves_is_guarded(world: World) -> None:
    backend = world.sending.fast_path._backend
    handlers: list[FrameHandler] = getattr(backend, "_handlers", [])
    served = {code for handler in handlers for code in handler.serves}
    assert served <= set(GUARDED_FIELDS)


def test_messages_for_lmqs_are_left_to_the_gate_of_the_handlers(world: World) -> None:
    """Each LMQ needs a separate permission; the guard looks at the topic alone."""
    sending = world.sending
    sending.store.reconfigure(replace(sending.store.config, enable_lmq=True, enable_multi_dispatch=True))
    sending.store.queue("%LMQ%a", 0)
    hooks = OptionFastPath(duplicates=sending.duplicates, epoch=lambda: 0, store=sending.store)
    assert hooks.lmq("%LMQ%a") is not None
    sending.fast_path._options = hooks
    sending.fast_path._settings_changed()
    properties = "UNIQ_KEY\x01U1\x02WAIT\x01true\x02"
    assert world.is_served(signed(send_frame(properties=properties + "DEDUP_KEY\x01d1\x02")))
    assert world.is_refused(signed(send_frame(properties=properties + "INNER_MULTI_DISPATCH\x01%LMQ%a\x02")))
