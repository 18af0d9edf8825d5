"""Pending pulls and pops when users or permissions change: a client without permission is refused, and gets no message stored since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.policies import SUBJECT_PREFIX
from aerobee.access.users import MemoryTable, User, Users, disabled
from aerobee.broker.admission.held_request import HeldRequest
from aerobee.broker.admission.pending_access import PAUSE_S, SLICE_COUNT, PendingAccess
from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.pop.pending_pops import PendingPop, PendingPops
from aerobee.clock import ManualClock
from aerobee.errors import RemoteError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.protocol import ANY_QUEUE, PULL_SUBSCRIPTION, PULL_SUSPEND
from aerobee.remoting.signature import Credentials
from tests.fakes import FakePeer
from tests.unit.broker.access_sends import CONFIG
from tests.unit.broker.access_sends import allow as allow_alice
from tests.unit.broker.pending_watch import NoWatch
from tests.unit.broker.pulling import Pulling, pull_request
from tests.unit.broker.sending import send_frame, use_backend

ALICE, ROOT = Credentials("alice", "alicesecret"), Credentials("root", "rootsecret")
WAITS = PULL_SUSPEND | PULL_SUBSCRIPTION

CHANGES: dict[str, tuple[Callable[[Users], None], str]] = {
    "disabled": (lambda users: users.put(disabled(users.users["alice"])), "User:alice is disabled."),
    "deleted": (lambda users: users.remove("alice"), "User:alice is not found."),
    "policy": (lambda users: users.remove_acl(SUBJECT_PREFIX + "alice"), "no permission to access Topic:TopicNormal"),
    "password": (lambda users: users.put(User("alice", "another secret")), "check signature failed"),
}  # fmt: skip


class Held(Pulling):
    """Pulls behind a gate."""

    users: Users

    def hold(
        self, keys: Credentials, *, fast: bool, code: int = 11, kind: SerializeType = SerializeType.JSON
    ) -> FakePeer:
        """A peer whose pull waits at queue 1."""
        peer = FakePeer()
        request = pull_request(self.store.max_offset("TopicNormal", 1), flags=WAITS)
        request.code, request.serialize_type = code, kind
        keys.sign(request)
        if fast:
            frame = encode_frame(request)
            assert self.fast_path.burst(peer, frame, 0) == len(frame)  # type: ignore[arg-type]
        else:
            assert self.gate is not None
            self.gate.check(peer, request)  # type: ignore[arg-type]
            assert self.pull(peer, request) is None
        return peer

    def send(self, count: int = 1, tag: str = "", queue: str = "1") -> None:
        request = decode_frame(send_frame(queue=queue))
        ROOT.sign(request)
        for _ in range(count):
            assert self.fast_path.burst(FakePeer(), encode_frame(request), 0)  # type: ignore[arg-type]


@pytest.fixture(params=[PYTHON, NATIVE])
def held(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    use_backend(request.param, monkeypatch)
    users = Users(MemoryTable(), MemoryTable())
    users.ensure_super("root", "rootsecret")
    users.put(User("alice", "alicesecret"))
    allow_alice(users, "Topic:TopicNormal", "Sub")
    allow_alice(users, "Group:group", "Sub")
    gate = Gate(keeper=UserKeeper(users, CONFIG, lambda: "DefaultCluster"), admin_open=False)
    made = Held(tmp_path, gate=gate)
    made.users = users
    made.groups.put(SubscriptionGroupConfig("group"))
    made.send()
    yield made
    made.close()


def answers(peer: FakePeer) -> list[tuple[int, str, bytes]]:
    return [(reply.code, reply.remark or "", reply.body) for reply in peer.replies()]


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("code", [11, 361])
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "handler"])
@pytest.mark.parametrize("change", CHANGES)
def test_who_may_not_pull_any_more_is_refused_at_once(
    held: Held, change: str, fast: bool, code: int, kind: SerializeType
) -> None:
    alice, root = (held.hold(keys, fast=fast, code=code, kind=kind) for keys in (ALICE, ROOT))
    make, said = CHANGES[change]
    make(held.users)
    held.run_told()
    held.run_soon()
    ((found, remark, body),) = answers(alice)
    assert (found, body, said in remark) == (16, b"", True), remark
    assert (held.pending_pulls.count, answers(root)) == (1, [])
    held.send()
    held.run_soon()
    assert len(answers(alice)) == 1
    assert [found for found, _, _ in answers(root)] == [0]
    assert (held.pending_pulls.count, held.pending_pulls.frames_bytes, held.pending_pulls.by_queue) == (
        0,
        0,
        {},
    )


@pytest.mark.parametrize("way", ["message", "deadline", "reset", "end"])
def test_whatever_releases_a_pull_before_the_loop_knows_it_gets_no_message(held: Held, way: str) -> None:
    """The change is made in a thread; a message is stored behind it before anything was looked at again."""
    alice, root = held.hold(ALICE, fast=True), held.hold(ROOT, fast=True)
    held.users.remove("alice")
    if way == "deadline":
        held.clock.advance(15)
        held.clock.advance(1)
    elif way == "reset":
        held.pending_pulls.reset("group", "TopicNormal", 1)
    if way == "end":
        held.pending_pulls.end()
    else:
        held.send()
    held.run_soon()
    assert [(found, body) for found, _, body in answers(alice)] == [(16, b"")]
    assert len(answers(root)) == 1
    held.run_told()
    held.run_soon()
    assert (len(answers(alice)), held.pending_pulls.count) == (1, 0)


def test_a_pull_that_comes_before_the_loop_knows_is_looked_at_again(held: Held) -> None:
    """The gate may have answered before the change, which a thread makes at any time."""
    held.users.put(User("bob", "bobsecret"))
    alice = held.hold(ALICE, fast=True)
    access, asked = held.pending_pulls.access, []
    assert access is not None
    assert access.seen != access.changes
    refusal_of = access._refusal_of
    access._refusal_of = lambda peer, request: asked.append(request) or refusal_of(peer, request)  # type: ignore[func-returns-value]
    held.run_told()
    held.run_soon()
    assert (len(asked), answers(alice)) == (1, [])
    held.send()
    held.run_soon()
    assert (len(asked), [found for found, _, _ in answers(alice)]) == (1, [0])  # once a change


def test_who_is_let_in_after_a_change_is_not_looked_at_again(held: Held) -> None:
    held.users.put(User("bob", "bobsecret"))
    held.run_told()
    alice = held.hold(ALICE, fast=True)
    assert held.pending_pulls.access is not None
    held.pending_pulls.access._refusal_of = lambda peer, request: RemoteError(16, "asked")
    held.send()
    held.run_soon()
    assert [found for found, _, _ in answers(alice)] == [0]


def test_thousands_are_looked_at_in_slices_and_changes_together(held: Held) -> None:
    peers = [held.hold(ALICE, fast=True) for _ in range(2 * SLICE_COUNT + 10)]
    held.users.put(disabled(held.users.users["alice"]))
    held.run_told()
    counts = [held.pending_pulls.count]
    while held.soon:
        held.soon.pop(0)()
        counts.append(held.pending_pulls.count)
    assert counts[:3] == [SLICE_COUNT + 10, 10, 0]
    assert all(len(answers(peer)) == 1 for peer in peers)
    # The next change is near: it is checked after the pause, together with later ones.
    held.users.put(User("alice", "alicesecret"))
    allow_alice(held.users, "Topic:TopicNormal", "Sub")
    allow_alice(held.users, "Group:group", "Sub")
    held.run_told()
    alice = held.hold(ALICE, fast=True)
    for secret in ("second secret", "third secret"):
        held.users.put(User("alice", secret))
        held.run_told()
        held.run_soon()
        assert answers(alice) == []
    held.clock.advance(PAUSE_S)
    held.run_soon()
    assert [found for found, _, _ in answers(alice)] == [16]


def test_a_pull_of_a_static_topic_is_looked_at_as_it_was_signed(held: Held) -> None:
    """What is held has other offsets than what its peer signed."""
    request = pull_request(7, flags=WAITS)
    ALICE.sign(request)
    translated = pull_request(held.store.max_offset("TopicNormal", 1), flags=WAITS)
    peer = FakePeer()
    assert held.pulls.pull(peer, translated, lambda reply: reply, signed=request) is None  # type: ignore[arg-type]
    held.users.put(User("bob", "bobsecret"))
    held.run_told()
    held.run_soon()
    assert (answers(peer), held.pending_pulls.count) == ([], 1)
    held.users.remove("alice")
    held.clock.advance(PAUSE_S)
    held.run_told()
    held.run_soon()
    assert [found for found, _, _ in answers(peer)] == [16]


def test_a_pull_that_waits_for_the_disk_is_looked_at_behind_it(held: Held) -> None:
    request = pull_request(0)
    ALICE.sign(request)
    held.pulls._service.is_cold = lambda pull: True  # type: ignore[method-assign]
    reply = held.pulls.pull(FakePeer(), request)  # type: ignore[arg-type]
    held.users.remove("alice")
    held.run_told()  # nothing is held yet
    with pytest.raises(RemoteError, match="User:alice is not found"):
        asyncio.run(reply)  # type: ignore[arg-type]


def test_a_fault_while_a_request_is_looked_at_ends_its_connection_alone(held: Held) -> None:
    alice, root = held.hold(ALICE, fast=True), held.hold(ROOT, fast=True)
    access = held.pending_pulls.access
    assert access is not None
    refusal_of = access._refusal_of

    def broken(peer: FakePeer, request: RemotingCommand) -> RemoteError | None:
        if peer is alice:
            raise ValueError("a fault")
        return refusal_of(peer, request)  # type: ignore[arg-type]

    access._refusal_of = broken  # type: ignore[assignment]
    held.users.put(User("bob", "bobsecret"))
    held.run_told()
    held.run_soon()
    assert (len(alice.failures), root.failures, held.pending_pulls.count) == (1, [], 1)


class Pops:
    """Two calls of a group wait: alice's, then bob's. A message is for one of them."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.refused: set[str] = set()
        self.clock = clock = ManualClock()
        self.access = PendingAccess(
            lambda peer, request: RemoteError(16, "no") if request.text("who") in self.refused else None,
            clock=clock,
            call_soon=self.soon.append,
            call_from_thread=self.soon.append,
        )
        self.pops = PendingPops(clock=clock, call_soon=self.soon.append, watch=NoWatch(), access=self.access)
        self.served: list[str] = []
        self.peers = {who: FakePeer() for who in ("alice", "bob")}
        for who, peer in self.peers.items():
            request = RemotingCommand(200050, {"who": who})
            held = HeldRequest(peer, request)  # type: ignore[arg-type]
            call = PendingPop(held, None, "t", "g", ANY_QUEUE, None, 15_000, self.resume)
            assert self.pops.hold(call, 15, [("t", 0)])

    def resume(self, call: PendingPop[Any, Any], timed_out: bool) -> None:
        self.served.append(next(who for who, peer in self.peers.items() if peer is call.peer))

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()


def test_pops_of_who_may_not_any_more_are_refused_and_the_others_wait_on() -> None:
    world = Pops()
    world.refused.add("alice")
    world.access.changed()
    world.run_soon()
    assert [answers(peer) for peer in world.peers.values()] == [[(16, "no", b"")], []]
    assert (world.pops.count, world.served) == (1, [])


def test_a_message_that_wakes_a_pop_which_may_not_is_for_another_of_its_group() -> None:
    world = Pops()
    world.pops.on_appended("t", 0, 1, 0)
    world.refused.add("alice")
    world.access.changed()
    world.run_soon()
    assert (answers(world.peers["alice"]), world.served) == ([(16, "no", b"")], ["bob"])
    assert world.pops.count == 0


def test_a_fault_while_pending_requests_are_looked_at_does_not_end_further_looks() -> None:
    world = Pops()
    faults = [ValueError("a fault")]

    class Broken:
        def everything(self) -> list[Any]:
            return [object()]

        def look_again(self, held: Sequence[Any]) -> None:
            if faults:
                raise faults.pop()

    world.access.add(Broken())
    for who in ("alice", "bob"):
        world.refused.add(who)
        world.access.changed()
        world.run_soon()
        world.clock.advance(60)
        world.run_soon()
    assert not faults
    assert world.pops.count == 0


def test_a_pop_that_cannot_be_resumed_does_not_keep_the_others_waiting() -> None:
    world = Pops()
    serve = world.resume

    def resume(call: PendingPop[Any, Any], timed_out: bool) -> None:
        if call.peer is world.peers["alice"]:  # type: ignore[comparison-overlap]
            raise ValueError("a fault")
        serve(call, timed_out)

    for call in world.pops.everything():
        call.resume = resume
    world.pops.release_all()
    assert world.served == ["bob"]
    assert len(world.peers["alice"].failures) == 1
