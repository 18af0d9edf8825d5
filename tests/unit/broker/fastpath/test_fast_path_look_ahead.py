"""Bursts of signed frames, which native code verifies side by side: what is served of them is as if each came alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.access.gate import Gate, Grant
from aerobee.access.keepers import UserKeeper
from aerobee.access.users import MemoryTable, User, Users
from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.signature import Credentials, signature
from tests.fuzz.fastpath_bursts import framed
from tests.unit.broker.access_sends import ALICE, CONFIG, World, allow, changed, in_header, pull, signed
from tests.unit.broker.sending import send_frame, use_backend

BOB = Credentials("bob", "b" * 65)  # longer than a block: its hash is the key
AHEAD = 16  # frames that are looked at together
SHA1_BLOCK_BYTES = 64


@pytest.fixture(params=[PYTHON, NATIVE])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    use_backend(request.param, monkeypatch)
    users = Users(MemoryTable(), MemoryTable())
    for keys in (ALICE, BOB):
        users.put(User(keys.access_key, keys.secret_key))
    allow(users, "Topic:TopicNormal", "Pub", "Sub")
    allow(users, "Group:readers", "Sub")
    acl = users.acls["User:alice"]
    users.put_acl(replace(acl, subject="User:bob"))
    gate = Gate(keeper=UserKeeper(users, CONFIG, lambda: "DefaultCluster"), admin_open=False)
    made = World(tmp_path, gate, users)
    yield made
    made.sending.close()


def served(world: World, frames: list[bytes]) -> int:
    """How many of the frames of one burst are served. What stands behind the first that is not has changed nothing."""
    before = world.sending.store.max_offset("TopicNormal", 1)
    used = world.sending.fast_path.burst(world.peer, b"".join(frames), 0)  # type: ignore[arg-type]
    count = next(number for number in range(len(frames) + 1) if sum(map(len, frames[:number])) == used)
    assert world.sending.store.max_offset("TopicNormal", 1) - before == count
    return count


def some(count: int, keys: Credentials = ALICE, kind: SerializeType = SerializeType.JSON) -> list[bytes]:
    return [signed(send_frame(body=b"body %d" % number), keys, kind) for number in range(count)]


def spoiled(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 1,))


@pytest.mark.parametrize("kind", list(SerializeType))
def test_a_wrong_signature_is_found_at_each_position(world: World, kind: SerializeType) -> None:
    assert served(world, some(2 * AHEAD + 3, kind=kind)) == 2 * AHEAD + 3
    for position in range(2 * AHEAD + 3):
        frames = some(2 * AHEAD + 3, kind=kind)
        frames[position] = spoiled(frames[position])
        assert served(world, frames) == position
        assert served(world, frames[position:]) == 0
        assert served(world, frames[position + 1 :]) == 2 * AHEAD + 2 - position


def test_two_frames_do_not_lend_each_other_their_signatures(world: World) -> None:
    first, second = some(2)
    bodies = [decode_frame(frame).body for frame in (first, second)]
    swapped = [
        changed(frame, lambda request, body=body: setattr(request, "body", body))  # type: ignore[misc]
        for frame, body in zip((first, second), reversed(bodies), strict=True)
    ]
    for number in range(1, AHEAD):
        frames = some(AHEAD)
        frames[number - 1 : number + 1] = swapped
        assert served(world, frames) == number - 1


def test_contents_of_each_length_are_verified(world: World) -> None:
    """Each length of the last block, and texts side by side that end at different blocks."""
    rng = random.Random(4)
    for _ in range(2):
        sizes = [*range(2 * SHA1_BLOCK_BYTES + 1), *(rng.randrange(2_000) for _ in range(60)), 0, 0, 17_000]
        rng.shuffle(sizes)
        for start in range(0, len(sizes), 3 * AHEAD):
            frames = [
                signed(send_frame(body=rng.randbytes(size))) for size in sizes[start : start + 3 * AHEAD]
            ]
            assert served(world, frames) == len(frames)
            position = rng.randrange(len(frames))
            frames[position] = changed(frames[position], lambda request: request.ext.update(n="broker-b"))
            assert served(world, frames) == position


def test_long_bodies_are_verified_to_their_last_byte(world: World) -> None:
    for size in (16_384, 16_385, 16_384 + SHA1_BLOCK_BYTES - 1, 70_000):
        frame = signed(send_frame(body=bytes(size)))
        assert served(world, [frame, frame]) == 2
        assert served(world, [frame, spoiled(frame)]) == 1
        at = len(frame) - size
        assert served(world, [frame[:at] + b"\1" + frame[at + 1 :], frame]) == 0


def test_frames_of_different_keys_are_verified_with_their_own(world: World) -> None:
    mixed = [frame for pair in zip(some(AHEAD), some(AHEAD, BOB), strict=True) for frame in pair]
    for _ in range(2):
        assert served(world, mixed) == 2 * AHEAD
    mixed[7] = changed(mixed[7], lambda request: request.ext.update(AccessKey="alice"))
    assert served(world, mixed) == 7
    mixed[5] = signed(send_frame(), Credentials("bob", ALICE.secret_key))
    assert served(world, mixed) == 5


def test_frames_without_cached_verdict_are_verified(world: World) -> None:
    frames = [*some(5), *some(5, BOB), *some(5)]
    frames[12] = spoiled(frames[12])
    assert served(world, frames) == 12
    assert served(world, frames[13:]) == 2


def test_what_follows_a_change_of_users_is_verified_again(world: World) -> None:
    """Users change while a frame of the burst is let in: those behind it were verified with the former key."""
    ask = world.gate.grant
    new = Credentials("alice", "new password")
    for position in range(AHEAD + 2):
        world.users.put(User("alice", ALICE.secret_key))  # what was known of bob is forgotten, too
        assert served(world, some(3)) == 3

        def grant(request: RemotingCommand, host: str) -> Grant | None:
            if (request.ext or {})["AccessKey"] == "bob":
                world.users.put(User("alice", new.secret_key))
            return ask(request, host)

        world.gate.grant = grant  # type: ignore[method-assign]
        assert served(world, [*some(position), *some(1, BOB), *some(AHEAD)]) == position + 1
        world.gate.grant = ask  # type: ignore[method-assign]
        assert served(world, [*some(AHEAD, new), *some(3)]) == AHEAD


def test_permissions_taken_away_between_bursts_are_gone(world: World) -> None:
    assert served(world, some(40)) == 40
    allow(world.users, "Topic:TopicNormal", "Pub", decision="Deny")
    assert served(world, some(40)) == 0
    allow(world.users, "Topic:TopicNormal", "Pub", "Sub")
    assert served(world, some(40)) == 40


def test_fields_in_any_order_and_of_any_number_are_signed_alike(world: World) -> None:
    rng = random.Random(5)
    frames = []
    for number in range(3 * AHEAD):
        request = decode_frame(send_frame(body=b"%d" % number))
        ext = {**(request.ext or {}), **{f"x{each}": str(each) for each in range(rng.choice((0, 0, 1, 46)))}}
        request.ext = dict(sorted(ext.items(), key=lambda _: rng.random()))
        ALICE.sign(request)
        frames.append(encode_frame(request))
    assert served(world, frames) == len(frames)
    over = decode_frame(frames[4])
    over.ext = {**(over.ext or {}), **{f"y{each}": "" for each in range(64)}}
    ALICE.sign(over)
    assert world.is_let_in(encode_frame(over))
    frames[4] = encode_frame(over)
    assert served(world, frames) == 4, "more than 64 fields are for the handlers"


def test_names_that_are_long_or_come_twice_are_told_apart(world: World) -> None:
    """Orders of fields are remembered by the names, each behind its length."""
    for names in (
        ["x" * 254],
        ["x" * 255],
        ["x" * 256],
        ["x" * 3_000],
        ["xy", "x", "yx"],
        ["\u952e", "\U0001f41d", ""],
    ):
        frame = decode_frame(send_frame())
        frame.ext = {**(frame.ext or {}), **{name: f"v{number}" for number, name in enumerate(names)}}
        ALICE.sign(frame)
        good = encode_frame(frame)
        assert served(world, [good, good, *some(2), good]) == 5
        wrong = changed(good, lambda request, name=names[0]: request.ext.update({name: "v9"}))  # type: ignore[misc]
        assert served(world, [good, wrong]) == 1
    twice = in_header(some(1)[0], '"n":"broker-a"', '"n":"broker-b","n":"broker-a"')
    assert served(world, [*some(3), twice, twice, *some(2)]) == 7
    assert served(world, [in_header(some(1)[0], '"n":"broker-a"', '"n":"broker-a","n":"broker-b"')]) == 0


def test_texts_with_escapes_are_signed_as_what_they_stand_for(world: World) -> None:
    properties = 'UNIQ_KEY\x01U1\x02KEYS\x01\u952e \U0001f41d\x02T\x01"\\/\b\f\n\r\t\x7f\x02'
    good = signed(send_frame(properties=properties))
    size = int.from_bytes(good[5:8], "big")
    header = good[8 : 8 + size].decode()
    spelled = "".join(
        char if char.isascii() else f"\\u{ord(char):04X}"
        for char in header.replace("\U0001f41d", "\\ud83d\\udc1d")
    )
    other = framed(spelled.encode(), good[8 + size :])
    assert other != good
    assert served(world, [good, other, *some(3), other]) == 6
    assert (
        served(world, [other, framed(spelled.replace("\\ud83d", "\\ud83c").encode(), good[8 + size :])]) == 1
    )


def test_a_signature_is_base64_of_all_of_the_hash(world: World) -> None:
    """None that differs in one character, or says the same in other characters, is taken."""
    good = some(1)[0]
    request = decode_frame(good)
    said = (request.ext or {})["Signature"]
    wrong = [said[:at] + ("A" if said[at] != "A" else "B") + said[at + 1 :] for at in range(len(said))]
    wrong += [said[:26] + chr(ord(said[26]) + 1) + "=", said + "=", said[:-1], "", signature("other", b"")]
    for text in wrong:
        bad = changed(good, lambda request, text=text: request.ext.update(Signature=text))  # type: ignore[misc]
        assert served(world, [good, good, bad, good]) == 2


def test_other_requests_in_between_are_served_in_their_turn(world: World) -> None:
    frames = [*some(4), signed(pull()), *some(4)]
    used = world.sending.fast_path.burst(world.peer, b"".join(frames), 0)  # type: ignore[arg-type]
    assert used == sum(map(len, frames))
    assert world.sending.store.max_offset("TopicNormal", 1) == 8
    slow = signed(encode_frame(replace(decode_frame(send_frame()), code=34)))
    for position in (0, 1, 5, 20):
        frames = some(25)
        frames.insert(position, slow)
        assert served(world, frames) == position
        assert served(world, frames[position + 1 :]) == 25 - position
    cut = b"".join(some(20))[:-1]
    assert world.sending.fast_path.burst(world.peer, cut, 0) == len(b"".join(some(19)))  # type: ignore[arg-type]
