"""A differential fuzz of the fast path: both backends get the same bursts and must give the same answers and the same bytes,
and so must, in two stores of three, the ordinary handlers, which get each frame that the backends serve.

    python tests/fuzz/fastpath_differential.py [--bursts 1000000] [--seed 1] [--first-store 0] [--sockets] [--guarded]

Bursts are made of captured frames (tests/data/wire), of frames made here with numbers, escapes and properties of every
kind, and of both mutated, cut and put behind one another. After each burst the results are compared, the log's end and
what was appended; every CHECK_EVERY bursts every byte of log, queues and index, offsets and statistics. A disagreement
ends the run with the seed and the store, whose random numbers are its own: `--first-store N --bursts 1` runs it again, and a
run that was ended continues with the store behind the last one. Between bursts settings, gates and topics change; listeners, the schedule and the
transaction table fail at times, in both alike: what is stored stays stored, once. Needs the native backend: `make native`.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.errors import WireError
from aerobee.message import decode_properties, encode_properties, pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.frame import decode_frame
from tests.fuzz.fastpath_bursts import delayed_or_half, long_poll, one_burst, send_back, with_options
from tests.fuzz.fastpath_counterparts import LEFT_TO_HANDLERS, Counterpart, HandlerCounterpart
from tests.fuzz.fastpath_guarded import AccessWorld, shown, signed_run
from tests.fuzz.fastpath_sockets import SocketCounterpart

CHECK_EVERY = 500
MEMORY = "/dev/shm"  # a store there waits for no disk
SENDS = (10, 310, 320)
NUMBERS_OF_PULLS = ("subVersion", "suspendTimeoutMillis", "commitOffset")
PLAIN_NUMBER = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)
BURSTS_PER_STORE = 4_000
SOCKET_STORES = 6  # one of so many stores also comes through native sockets
LONG_POLL_SHARE = 0.2  # of the bursts begin with one
KINDS_SHARE = 0.3  # of the bursts begin with messages for later or of transactions
OPTIONS_SHARE = 0.3  # likewise with sends that have an option
SEND_BACK_SHARE = 0.2  # likewise with messages that are sent back, before or behind the others
HOSTS = (("10.0.0.1", 43_664), ("::1", 5_000))


class Disagreement(AssertionError):
    """The backends differ; the text says in what."""


def compare(
    counterparts: Sequence[Counterpart],
    data: bytes,
    position: int,
    rng: random.Random,
    handlers: HandlerCounterpart | None = None,
    sockets: SocketCounterpart | None = None,
) -> None:
    """Feed one burst to its end, over frames that are left to the handlers. Raises Disagreement."""
    host_port = rng.choice(HOSTS)
    born_host = pack_host(*host_port)
    in_place = rng.random() < 0.2
    gates = rng.choice(((True, True), (True, True), (True, True), (False, True), (True, False)))
    while True:
        results = [
            counterpart.burst(bytearray(data) if in_place else data, position, born_host, gates, host_port[0])
            for counterpart in counterparts
        ]
        if results[0] != results[1]:
            names = (
                "replies", "used", "slow", "held", "stored", "pulled", "fault", "told", "released", "end", "written",
                "answered", "deferred answers", "stored count", "handed out",
                "leveled", "dedup keys",
            )  # fmt: skip
            differing = [
                f"{name}: {left!r:.3000} and {right!r:.3000}"
                for name, left, right in zip(names, *results, strict=True)
                if left != right
            ]
            raise Disagreement("; ".join(differing))
        used, slow = results[0][1:3]
        if handlers is not None:
            compare_handlers(handlers, list(cut_frames(data[position:used])), host_port, results[0])
        if sockets is not None:
            compare_sockets(sockets, data, position, born_host, gates, results[0], host_port[0])
        if results[0][6] is not None:
            return  # the connection ends
        if not slow:
            if used == position or used >= len(data):
                return
            position = used
            continue
        length = int.from_bytes(data[used : used + 4], "big")
        position = used + 4 + length
        if position >= len(data):
            return


def compare_sockets(
    sockets: SocketCounterpart,
    data: bytes,
    position: int,
    born_host: bytes,
    gates: tuple[bool, bool],
    result: tuple[Any, ...],
    host: str,
) -> None:
    """Give native sockets what the backends have served, and the frame that they left to the handlers. Raises Disagreement."""
    (
        replies,
        used,
        slow,
        held,
        stored,
        _,
        fault,
        _,
        _,
        end,
        written,
        answered,
        deferred_answers,
        stored_count,
        handed_out,
        leveled,
        dedup_keys,
    ) = result
    assert fault is None, "no callback fails where sockets are compared"
    left = next(cut_frames(data[used:]), b"") if slow else b""
    if len(left) < 8:
        left = b""  # less than the words of a frame is kept until more comes
    if used == position and not left:
        return
    expected = {
        "replies": replies, "rest": left, "held": held, "stored": stored, "end": end, "written": written,
        "answered": answered, "deferred answers": deferred_answers, "stored count": stored_count, "handed out": handed_out,
        "leveled": leveled, "dedup keys": dedup_keys,
    }  # fmt: skip
    found = sockets.serve(data[position:used] + left, born_host, gates, host)
    if found != expected:
        differing = [
            f"{name}: {expected[name]!r:.3000} and {found[name]!r:.3000}"
            for name in found
            if found[name] != expected[name]
        ]
        ways = f"linger {sockets.linger_s} s, {sockets.turn_count_max} turns"
        raise Disagreement(f"one burst and turns of sockets ({ways}): {'; '.join(differing)}")


def cut_frames(data: bytes) -> Iterator[bytes]:
    """The frames that stand one behind the other."""
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at:end]
        at = end


def compare_handlers(
    handlers: HandlerCounterpart, frames: list[bytes], host_port: tuple[str, int], result: tuple[Any, ...]
) -> None:
    """Give the handlers what the backends have served. Raises Disagreement."""
    replies, held, released, written = handlers.serve(frames, host_port)
    by_lane = b"".join(part for part in result[8] if not part.startswith(LEFT_TO_HANDLERS))
    pairs = (
        ("replies", [meaning(each) for each in cut_frames(result[0])], [meaning(each) for each in replies]),
        ("held", [meaning(each) for each in cut_frames(result[3])], [meaning(each) for each in held]),
        (
            "leveled",
            {level: [meaning(each) for each in cut_frames(frames)] for level, (frames, _) in result[15].items()},
            {level: [meaning(each) for each in frames] for level, frames in handlers.leveled.items()},
        ),
        (
            "released",
            sorted(text for each in cut_frames(by_lane) if (text := meaning(each))),
            sorted(meaning(each) for part in released for each in cut_frames(part)),
        ),
        ("written", result[10], written),
        ("dedup keys", result[16], handlers.dedup_keys()),
    )  # fmt: skip
    if (
        result[6] is not None
    ):  # whoever is notified of halves or keys failed: the connection ends without an answer
        pairs = pairs[3:]
    differing = [
        f"{name}: {lane!r:.3000} and {handler!r:.3000}" for name, lane, handler in pairs if lane != handler
    ]
    if differing:
        raise Disagreement(f"the fast path and the handlers: {'; '.join(differing)}; frames {frames!r:.3000}")


def suits_handlers(data: bytes, position: int) -> bool:
    """Whether handlers would understand each frame, and write each message's properties as they came: they leave out what has
    no name or no value, and all but the last of a name, which the fast path stores as it is."""
    for frame in cut_frames(data[position:]):
        try:
            request = decode_frame(frame)
        except WireError:
            return False  # the fast path does not look at all of a header
        ext = request.ext or {}
        if request.code not in SENDS:
            if not all(PLAIN_NUMBER.match(ext.get(name, "0")) for name in NUMBERS_OF_PULLS):
                return False  # not looked at where they say nothing
            continue
        text = ext.get("properties" if request.code == 10 else "i", "")
        plain = encode_properties(decode_properties(text))
        if plain not in (text, text + "\x02"):
            return False
    return True


def meaning(frame: bytes) -> str:
    """What a reply says, whatever the order of its fields."""
    reply = decode_frame(frame)
    said = (
        reply.code,
        reply.opaque,
        reply.flag,
        sorted((reply.ext or {}).items()),
        reply.remark or "",
        bytes(reply.body).hex(),
    )
    return repr(said)


def check_everything(counterparts: Sequence[Counterpart]) -> None:
    has_handlers = isinstance(
        counterparts[1], HandlerCounterpart
    )  # the fast path opens a queue before it has a message
    each = (counterpart.everything(with_empty=not has_handlers) for counterpart in counterparts)
    for (name, left), (_, right) in zip(*each, strict=True):
        if left != right:
            if isinstance(left, bytes) and isinstance(right, bytes):
                at = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
                raise Disagreement(
                    f"{name} differs at byte {at}: {left[at : at + 40]!r} and {right[at : at + 40]!r}"
                )
            raise Disagreement(f"{name}: {left!r:.2000} and {right!r:.2000}")


def run(
    count: int,
    seed: int,
    note: Callable[[str], None] = lambda text: None,
    *,
    first_store: int = 0,
    socket_stores: int = SOCKET_STORES,
    guarded: bool = False,
) -> int:
    """Compare `count` bursts; return how many bytes each log took. Raises Disagreement with the seed and the burst.

    `guarded`: with access control, by users in one store, by accounts in the next.
    """
    stored, done, store_number = 0, 0, first_store
    started = time.monotonic()
    while done < count:
        directory = Path(
            tempfile.mkdtemp(prefix="lane-differential-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        )
        rng = random.Random(f"{seed} {store_number}")
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"} if store_number % 4 == 3 else {}
        if store_number % 5 == 4:
            settings["message_index_enable"] = False
        by_users = store_number % 2 == 0

        def access(by_users: bool = by_users) -> AccessWorld | None:
            return AccessWorld(by_users) if guarded else None

        counterparts = [
            Counterpart(directory / name, name, access=access(), **settings) for name in (PYTHON, NATIVE)
        ]
        # Without the service of transactions handlers cannot end one: two stores of three are without ends.
        has_handlers = store_number % 3
        handlers = (
            HandlerCounterpart(directory / "handlers", access=access(), **settings) if has_handlers else None
        )
        # One store of some also comes through native sockets: no callback fails there and no request waits, because the notifications come at other times.
        has_sockets = sys.platform == "linux" and store_number % socket_stores == socket_stores // 2
        sockets = (
            SocketCounterpart(directory / "sockets", rng, access=access(), **settings)
            if has_sockets
            else None
        )
        others = [each for each in (handlers, sockets) if each is not None]
        all_stores = [*counterparts, *others]
        if sockets is not None:
            for counterpart in all_stores:
                counterpart.live.replace(long_polling_enable=False)
        try:
            for number in range(min(BURSTS_PER_STORE, count - done)):
                data = one_burst(rng)
                if sockets is None and rng.random() < LONG_POLL_SHARE and counterparts[0].store.queues:
                    data = long_poll(rng, counterparts[0].store) + data
                if rng.random() < OPTIONS_SHARE:
                    data = b"".join([with_options(rng) for _ in range(rng.randrange(1, 5))]) + data
                if rng.random() < KINDS_SHARE:
                    data = (
                        b"".join(
                            [
                                delayed_or_half(
                                    rng, counterparts[0].open_transactions() if handlers is None else None
                                )
                                for _ in range(rng.randrange(1, 4))
                            ]
                        )
                        + data
                    )
                # Handlers of send-backs are compared by tests/unit/broker/fastpath/test_send_back_backends.py.
                if handlers is None and rng.random() < SEND_BACK_SHARE and counterparts[0].store.queues:
                    again = b"".join(
                        [send_back(rng, counterparts[0].store) for _ in range(rng.randrange(1, 4))]
                    )
                    data = again + data if rng.random() < 0.5 else data + again
                if guarded:
                    data = shown(rng, list(cut_frames(data)), by_users=by_users)
                    if rng.random() < 0.2:
                        run_of_sends = signed_run(rng, by_users=by_users)
                        data = run_of_sends + data if rng.random() < 0.5 else data + run_of_sends
                    if rng.random() < 0.03:
                        kind, which = rng.randrange(5), rng.randrange(12)
                        for counterpart in all_stores:
                            assert counterpart.access is not None
                            counterpart.access.change(kind, which)
                if rng.random() < 0.02:
                    _change_settings(all_stores, rng, has_sockets=has_sockets)
                if sockets is not None and rng.random() < 0.1:
                    sockets.change()
                position = rng.choice((0, 0, 0, 3))
                if handlers is not None and not suits_handlers(data, 0):
                    continue
                try:
                    compare(counterparts, bytes(position) + data, position, rng, handlers, sockets)
                    if number % CHECK_EVERY == CHECK_EVERY - 1:
                        check_everything(counterparts)
                        for other in others:
                            check_everything([counterparts[0], other])
                        _change_something(all_stores, rng)
                except Exception as error:
                    raise Disagreement(
                        f"seed {seed}, store {store_number}, burst {number}: {error}\nburst: {data.hex()}"
                    ) from error
                done += 1
            check_everything(counterparts)
            for other in others:
                check_everything([counterparts[0], other])
            stored += counterparts[0].store.log.end
        finally:
            for counterpart in all_stores:
                counterpart.close()
            shutil.rmtree(directory)
        store_number += 1
        note(
            f"{done:,} bursts to store {store_number - 1}, {stored / 1e6:.0f} MB stored alike, {done / (time.monotonic() - started):,.0f} a second"
        )
    return stored


def _change_something(counterparts: Sequence[Counterpart], rng: random.Random) -> None:
    """Time continues, topics change, syncs happen, resets come."""
    kind = rng.randrange(5)
    seconds = rng.choice((0.001, 1.5, 100.0))
    queue_count = rng.randrange(1, 9)
    for counterpart in counterparts:
        counterpart.clock.advance(seconds)
        if kind == 0:
            counterpart.topics.put(TopicConfig("TopicOrder", queue_count, queue_count))
        elif kind == 1:
            counterpart.store.flush_now()
        elif kind == 2:
            counterpart.offsets.assign_reset("group", "TopicNormal", {1: 3})
        elif kind == 3:
            counterpart.offsets.take_reset("group", "TopicNormal", 1)
        elif kind == 4:
            counterpart.store.flush_queues_now()


def _change_settings(counterparts: Sequence[Counterpart], rng: random.Random, *, has_sockets: bool) -> None:
    """What is set at run time, and whether the callbacks fail."""
    kind, size, region = (
        rng.randrange(5),
        rng.choice((50, 900, 1 << 22, 1 << 22)),
        rng.choice(("r1", 'r"é', "DefaultRegion")),
    )
    fails = rng.random() < 0.5 and not has_sockets
    for counterpart in counterparts:
        if kind == 0:
            counterpart.store.reconfigure(
                dataclasses.replace(counterpart.store.config, max_message_size=size)
            )
        elif kind == 4:
            counterpart.live.replace(
                dedup_window_millis=size if size < 1_000 else 50_000,
                enable_topic_message_type_check=size == 50,
            )
        elif kind == 1:
            counterpart.live.replace(region_id=region, long_polling_enable=size > 50 and not has_sockets)
        elif kind == 2:
            counterpart.limits = None if size == 50 else (1_000, 259_200_000)
        else:
            counterpart.fails = fails


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bursts", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--first-store", type=int, default=0, help="where an earlier run ended")
    parser.add_argument("--guarded", action="store_true", help="with access control")
    parser.add_argument("--sockets", action="store_true", help="every store also through native sockets")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # listeners that fail, offsets that go back, names that are not legal
    print(f"seed {options.seed}")
    stored = run(
        options.bursts,
        options.seed,
        lambda text: print(text, flush=True),
        first_store=options.first_store,
        socket_stores=1 if options.sockets else SOCKET_STORES,
        guarded=options.guarded,
    )
    print(f"backends and handlers agree on {options.bursts:,} bursts, {stored:,} bytes of log")


if __name__ == "__main__":
    main()
