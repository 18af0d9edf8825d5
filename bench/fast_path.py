"""CPU of one burst without sockets, layer by layer: what is Aerobee's own between read and write.

    python bench/fast_path.py [--rounds 20] [--shapes send-64,pull-32] [--backends python,native] [--profile] [--access]

For each shape the same bytes are given to Backend.burst, to FastPath.burst (with statistics and offsets) and to
Connection.data_received (with its write into nothing). Microseconds of CPU a message, the least of the rounds, which
a busy machine disturbs little. --profile prints cProfile's view instead. --access: Backend.burst without and with access control,
round by round in turns, the frames of the second signed by a user with permissions.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import struct
import time
from collections.abc import Callable
from typing import Any, cast

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.policies import acl_from_info
from aerobee.access.users import MemoryTable, User, Users
from aerobee.broker.fastpath.access import FrameAccess
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, VARIABLE
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.fastpath.seam import Backend
from aerobee.message import pack_host
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.signature import Credentials
from aerobee.testing import LocalCluster

KEYS = Credentials("alice", "alicesecret")
TOPIC, GROUP = "bench-fast-path", "bench-fast-path-group"
PEER = ("127.0.0.1", 40_000)
STORED = 40_000  # messages that pulls find
SECONDS = 0.05  # of one round
BATCH_HEAD = struct.Struct(">iiiii")
STORE = {
    "mapped_file_size_commit_log": 1 << 30,
    "mapped_file_size_consume_queue": 60_000_000,  # not to be filled: over its end batches go to the handlers
    "commit_log_reserve_bytes": 8 << 20,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
}


class NoTransport(asyncio.Transport):
    """Takes everything at once."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def properties(number: int) -> str:
    return f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02"


def send(number: int, *, size: int = 128, batch: int = 1) -> bytes:
    """One SEND_MESSAGE_V2, or a batch."""
    body, code = bytes(size), RequestCode.SEND_MESSAGE_V2
    if batch > 1:
        code = RequestCode.SEND_BATCH_MESSAGE
        entries = []
        for each in range(batch):
            text = properties(number * batch + each).encode()
            head = BATCH_HEAD.pack(BATCH_HEAD.size + size + 2 + len(text), 0, 0, 0, size)
            entries.append(head + bytes(size) + struct.pack(">h", len(text)) + text)
        body = b"".join(entries)
    ext = {
        "a": "group", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
        "g": str(1_700_000_000_000 + number), "h": "0", "i": properties(number), "j": "0", "k": "false", "l": "0",
        "m": "true" if batch > 1 else "false", "n": "broker-a",
    }  # fmt: skip
    return encode_frame(RemotingCommand(code.value, ext, body, opaque=number))


def pull(number: int) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(number % 4), "queueOffset": str(number // 4 * 32),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE.value, ext, opaque=number))


def bursts(shape: str) -> tuple[list[bytes], int]:
    """Bursts to be given one after the other, and the messages of each."""
    if shape == "pull-32":
        return [pull(number) for number in range(STORED // 4 // 32 * 4)], 32
    if shape == "batch-64":
        return [send(number, batch=64) for number in range(8)], 64
    size = 1024 if shape == "send-1k" else 128
    count = 1 if shape == "send-1" else 64
    return [b"".join(send(64 * burst + n, size=size) for n in range(count)) for burst in range(8)], count


def signed(burst: bytes) -> bytes:
    """The same frames with a user's signature."""
    out, at = [], 0
    while at < len(burst):
        end = at + 4 + int.from_bytes(burst[at : at + 4], "big")
        out.append(KEYS.sign_frame(burst[at:end]))
        at = end
    return b"".join(out)


def guarded_backend(joint: FastPath) -> Backend:
    """Another backend at the same store, which asks each frame for a signature."""
    users = Users(MemoryTable(), MemoryTable())
    users.put(User(KEYS.access_key, KEYS.secret_key))
    entries = [
        {"resource": resource, "actions": ["Pub", "Sub"], "decision": "Allow"}
        for resource in (f"Topic:{TOPIC}", f"Group:{GROUP}")
    ]
    users.put_acl(acl_from_info({"subject": "User:alice", "policies": [{"entries": entries}]}))
    first = '{"username":"root","password":"rootsecret"}'
    config = AccessConfig(
        authentication_enabled=True, authorization_enabled=True, init_authentication_user=first
    )
    gate = Gate(keeper=UserKeeper(users, config, lambda: "DefaultCluster"), admin_open=False)
    before, joint._access = joint._access, FrameAccess(gate)
    try:
        return joint._make_backend()
    finally:
        joint._access = before


SHAPES = ("send-64", "send-1k", "send-1", "batch-64", "pull-32")


def least(serve: Callable[[bytes], object], given: list[bytes], messages: int, rounds: int) -> float:
    """CPU microseconds a message in the best round."""
    best = 1e9
    for _ in range(rounds):
        count, began = 0, time.thread_time()
        while (spent := time.thread_time() - began) < SECONDS:
            for burst in given[:64]:
                serve(burst)
            count += len(given[:64]) * messages
            given = given[64:] + given[:64]
        best = min(best, spent / count * 1e6)
    return best


async def measure(
    name: str, shapes: list[str], rounds: int, profile: bool, access: bool
) -> dict[str, list[float]]:
    """Shape -> the least of each layer, with `access` of the backend without and with; with `profile` nothing but what is
    printed."""
    os.environ[VARIABLE] = name
    found: dict[str, list[float]] = {}
    # The loop runs only between shapes: that is no overload.
    busy = {"wait_time_mills_in_send_queue": 1 << 30}
    async with LocalCluster(store_config=STORE, broker_config=busy) as cluster:
        await cluster.create_topic(TOPIC, queues=4)
        broker = cluster.broker()
        joint = broker.fast_path  # what RemotingServer calls
        backend = joint._backend
        connection = Connection(Endpoint({}, burst=joint.burst))
        connection.connection_made(NoTransport())
        host, now_ms = pack_host(*PEER), cluster.clock.now_ms()
        async with cluster.admin() as admin:
            await admin.create_group(GROUP)
        for number in range(STORED // 64):
            connection.data_received(b"".join(send(64 * number + each) for each in range(64)))
        replies = cast(Any, connection)._out  # written, but for data_received never sent: not to be piled up

        def serve_jointly(data: bytes) -> None:
            joint.burst(connection, data, 0)
            replies.clear()

        steps: tuple[Callable[[bytes], object], ...] = (
            lambda data: backend.burst(data, 0, host, now_ms, True, True),
            serve_jointly,
            connection.data_received,
        )
        for shape in shapes:
            given, messages = bursts(shape)
            first = backend.burst(given[0], 0, host, now_ms, True, True)
            if first.is_slow or first.used < len(given[0]):
                raise SystemExit(f"{shape} is not served by the {name} fast path")
            if access:
                given = given[:64]
                guarded, with_keys = guarded_backend(joint), [signed(burst) for burst in given]
                shown = guarded.burst(with_keys[0], 0, host, now_ms, True, True, PEER[0])
                if shown.is_slow or shown.used < len(with_keys[0]):
                    raise SystemExit(f"{shape} with access control is not served by the {name} fast path")
                ways: list[tuple[Callable[[bytes], object], list[bytes]]] = [
                    (steps[0], given),
                    (lambda data: guarded.burst(data, 0, host, now_ms, True, True, PEER[0]), with_keys),  # noqa: B023
                ]
                turns = [[least(serve, bursts, messages, 1) for serve, bursts in ways] for _ in range(rounds)]
                found[shape] = [min(each) for each in zip(*turns, strict=True)]
                found[shape].append(found[shape][1] - found[shape][0])
                continue
            if profile:
                profiler = cProfile.Profile()
                profiler.enable()
                least(steps[2], given, messages, 4)
                profiler.disable()
                pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
                continue
            found[shape] = [least(step, given, messages, rounds) for step in steps]
            await asyncio.sleep(0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--backends", default=f"{PYTHON},{NATIVE}")
    parser.add_argument("--profile", action="store_true", help="cProfile instead of figures")
    parser.add_argument("--access", action="store_true", help="without and with access control")
    options = parser.parse_args()
    layers = "Backend.burst | FastPath.burst | Connection.data_received"
    if options.access:
        layers = "Backend.burst | with access control | difference"
    print(f"| backend | shape | {layers} |\n|---|---|---|---|---|")
    for name in options.backends.split(","):
        found = asyncio.run(
            measure(name, options.shapes.split(","), options.rounds, options.profile, options.access)
        )
        for shape, figures in found.items():
            print(
                f"| {name} | {shape} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
